"""A client made of command-line options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testnuc._engine.parameters import client_arguments
from testnuc.cli.event_loop import run_to_end
from testnuc.cli.label_files import read_labels
from testnuc.cli.options import Options
from testnuc.cli.options_of_run import EMBEDDER, with_embedder
from testnuc.client import TestNUC
from testnuc.errors import InvalidInputError
from testnuc.head import Head


def client_of(options: Mapping[str, Any], **instead: Any) -> TestNUC:
    """Return a client of command-line options; arguments in `instead` win."""
    flat = {**options, **instead}
    if flat["labels"] is None:
        raise InvalidInputError("there are no labels; give --labels, a file or a,b,c")
    given = client_arguments({**flat, "labels": read_labels(flat["labels"])})
    if flat.get("head") is not None and flat.get("head_trust") is None:
        head = given["labeler"]
        # nothing is left to an LLM, so neither a key nor neighbors are needed
        head.least_trust = 0.0
        given.update(model=head, k=0, join_pool=False, base_url=None)
    return TestNUC(**given)


def completed(options: Options, store: str | None) -> Options:
    """Return the options, with labels that are read, and what store and head know besides."""
    options = run_to_end(with_embedder(options, store))
    if options["labels"] is not None:
        options = options.but(labels=read_labels(options["labels"]))
    if options["head"] is None:
        return options
    head = Head.load(options["head"])
    embedder, labels = options["embedder"], options["labels"]
    return options.but(
        embedder=head.embedder if head.loadable and embedder == EMBEDDER else embedder,
        labels=list(head.labels) if labels is None else labels,
        multilabel=options["multilabel"] or head.sets is not None,
    )
