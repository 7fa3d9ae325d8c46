"""A client made of command-line options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from testnuc._engine.parameters import client_arguments
from testnuc.cli.files import read_labels
from testnuc.client import TestNUC

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testnuc._engine.components import Components

__all__ = ["client_of", "parts_of"]


def client_of(options: Mapping[str, Any], **instead: Any) -> TestNUC:
    """Return a client.

    Parameters
    ----------
    options : mapping
        Of the options in `testnuc.cli.options`.
    **instead
        Arguments of `TestNUC` that win.
    """
    given = client_arguments({**options, **instead})
    labels = given.pop("labels")
    return TestNUC(read_labels(labels) if isinstance(labels, str) else labels, **given)


def parts_of(nuc: TestNUC) -> Components:
    """Return the parts of a client, for commands that read or write its store."""
    return nuc._engine.parts  # noqa: SLF001 - of the same package
