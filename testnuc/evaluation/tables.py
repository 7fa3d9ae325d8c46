"""The tables that studies return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from testnuc.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

__all__ = ["frame"]


def frame(study: str, rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return the rows as a DataFrame with the name of the study in ``table.attrs["study"]``."""
    try:
        import pandas as pd
    except ImportError as exc:
        raise MissingDependencyError(
            "studies return pandas tables: pip install 'testnuc[plots]'"
        ) from exc
    table = pd.DataFrame(rows)
    table.attrs["study"] = study
    return table
