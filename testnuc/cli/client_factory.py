"""A client made of command-line options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from testnuc._engine.parameters import client_arguments
from testnuc.cli.label_files import read_labels
from testnuc.cli.options_of_run import EMBEDDER
from testnuc.client import TestNUC
from testnuc.errors import InvalidInputError
from testnuc.head import Head

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["client_of", "embedder_of"]


def client_of(options: Mapping[str, Any], **instead: Any) -> TestNUC:
    """Return a client of command-line options; arguments in `instead` win."""
    given = client_arguments({**options, **instead})
    if str(given.get("shortlist")).isdecimal():
        given["shortlist"] = int(given["shortlist"])
    labels = given.pop("labels")
    if given.get("head") is not None:
        head = _head_of(given)
        labels = head.labels if labels is None else labels
    if labels is None:
        raise InvalidInputError("there are no labels; give --labels, a file or a,b,c")
    return TestNUC(read_labels(labels), **given)


def embedder_of(options: Mapping[str, Any]) -> str:
    """Return the name of the embedder: the option's, or the head's where none was named."""
    name: str = options["embedder"]
    if options.get("head") is None or name != EMBEDDER:
        return name
    head = options["head"]
    head = head if isinstance(head, Head) else Head.load(head)
    return head.embedder if head.loadable else name


def _head_of(given: dict[str, Any]) -> Head:
    """Return the head of a client, and complete the client's arguments by it."""
    given["embedder"], head = embedder_of(given), given["head"]
    if not isinstance(head, Head):
        head = Head.load(head, given["embedder"], least_trust=0.0)
        # nothing is left to an LLM, so neither a key nor neighbors are needed
        given.update(head=head, model=head, k=0, join_pool=False, base_url=None)
    given["multilabel"] = given.get("multilabel") or head.sets is not None
    return head
