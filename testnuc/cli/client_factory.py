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
    if "shortlist" in given:
        given["shortlist"] = _shortlist(given["shortlist"])
    labels = given.pop("labels")
    least = given.pop("head_trust", None)
    if given.get("head") is not None:
        head = _head_of(given, least)
        labels = head.labels if labels is None else labels
    elif least is not None:
        raise InvalidInputError("--head-trust needs --head, a file from `testnuc distill`")
    if labels is None:
        raise InvalidInputError("there are no labels; give --labels, a file or a,b,c")
    return TestNUC(read_labels(labels), **given)


def _shortlist(given: str | int | None) -> str | int | None:
    """Return the number in an option, or the word."""
    return int(given) if isinstance(given, str) and given.isdecimal() else given


def embedder_of(options: Mapping[str, Any]) -> str:
    """Return the name of the embedder: the option's, or the head's where none was named."""
    name: str = options["embedder"]
    if options.get("head") is None or name != EMBEDDER:
        return name
    head = Head.load(options["head"])
    return head.embedder if head.loadable else name


def _head_of(given: dict[str, Any], least: float | None) -> Head:
    """Return the head of a client, and complete the client's arguments by it."""
    given["embedder"] = embedder_of(given)
    given["head"] = head = Head.load(given["head"], given["embedder"], least_trust=least or 0.0)
    given["multilabel"] = given.get("multilabel") or head.sets is not None
    if least is None:
        # nothing is left to an LLM, so neither a key nor neighbors are needed
        given.update(model=head, k=0, join_pool=False, base_url=None)
    return head
