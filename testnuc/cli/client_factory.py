"""A client made of command-line options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from testnuc.cli.files import read_labels
from testnuc.client import TestNUC
from testnuc.limits import Budget, RateLimit

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["client_of"]


def client_of(options: Mapping[str, Any], **instead: Any) -> TestNUC:
    """Return a client.

    Parameters
    ----------
    options : mapping
        Of the options in `testnuc.cli.options`.
    **instead
        Arguments of `TestNUC` that win.
    """
    given = {**options, **instead}
    labels = given.pop("labels")
    requests, tokens = (given.pop(f"{of}_per_minute", None) for of in ("requests", "tokens"))
    usd = given.pop("budget_usd", None)
    if requests is not None or tokens is not None:
        given["rate_limit"] = RateLimit(requests, tokens)
    if usd is not None:
        given["budget"] = Budget(usd=usd)
    return TestNUC(read_labels(labels) if isinstance(labels, str) else labels, **given)
