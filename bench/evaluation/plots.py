"""The tables that studies return, and their figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from testnuc.errors import InvalidInputError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["frame", "plot"]

#: With more lines than this, the legend is placed outside the axes.
_MAX_INSIDE = 5


@dataclass(frozen=True, slots=True)
class _Style:
    """How to draw the table of a study: lines over `x`, or bars if `x` is None."""

    x: str | None = None
    xlabel: str = ""
    #: One line per combination of values in these columns.
    by: tuple[str, ...] = ()
    title: str = ""
    y: str = "accuracy"
    ylabel: str = "accuracy"


_STYLES = {
    "purity_over_k": _Style(
        "k", "neighbors", ("dataset",), "Neighborhood purity", "purity", "purity (eq. 1)"
    ),
    "gold_votes_over_k": _Style("k", "neighbors", ("dataset", "vote"), "Votes over gold labels"),
    "accuracy_over_k": _Style("k", "neighbors", ("policy",), "Accuracy over k"),
    "accuracy_over_pool_size": _Style(
        "pool", "texts in the pool", ("k",), "Accuracy over pool size"
    ),
    "accuracy_over_embedders": _Style("k", "neighbors", ("embedder",), "Accuracy over embedders"),
    "accuracy_over_policies": _Style(
        "threshold", "threshold", ("policy",), "Policies and thresholds"
    ),
    "accuracy_with_foreign_texts": _Style(
        "k", "neighbors", ("share", "policy"), "Foreign texts in the pool"
    ),
    "accuracy_of_the_choice": _Style(by=("seed",), title="k and policy chosen on held-out texts"),
    "consistency": _Style(by=("method",), y="inconsistency", ylabel="inconsistency ratio"),
    "measure_costs": _Style(by=("method", "way", "k"), y="seconds", ylabel="seconds per text"),
}


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


def plot(table: pd.DataFrame, *, title: str | None = None) -> Figure:
    """Return a matplotlib figure of a study's table.

    Parameters
    ----------
    table : DataFrame
        A table that a study returned; ``table.attrs["study"]`` is the name of the study.
    title : str, optional
        Default: the title of the study.

    Raises
    ------
    InvalidInputError
        `table` is not the table of a study.
    MissingDependencyError
        matplotlib is not installed (extra ``plots``).
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise MissingDependencyError("plots need matplotlib: pip install 'testnuc[plots]'") from exc
    style = _STYLES.get(table.attrs.get("study", ""))
    if style is None:
        raise InvalidInputError(
            "this table is not one that a study returned; table.attrs['study'] must be one of "
            f"{', '.join(_STYLES)}"
        )
    # not through pyplot, which keeps figures in global state
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    if style.x is None:
        _bars(axes, table, style)
    else:
        _lines(axes, table, style)
    axes.set_title(style.title if title is None else title, fontsize=11)
    axes.grid(alpha=0.3)
    return figure


def _lines(axes: Axes, table: pd.DataFrame, style: _Style) -> None:
    assert style.x is not None
    # rows without x (policies without a threshold) are horizontal lines
    styles = (":", "-.", "--", (0, (5, 1, 1, 1, 1, 1)))
    for i, (_, row) in enumerate(table[table[style.x].isna()].iterrows()):
        axes.axhline(
            float(row[style.y]),
            linestyle=styles[i % len(styles)],
            color="0.4",
            linewidth=1,
            label=_name(row, style.by),
        )
    drawn = table[table[style.x].notna()]
    keys = list(style.by)
    if len(keys) > 1:
        # labels omit columns that are constant
        keys = [key for key in keys if len(set(drawn[key])) > 1] or keys[-1:]
    markers = "osD^vP*X<>hd"
    for i, (_, part) in enumerate(drawn.groupby(keys, sort=False)):
        label = _name(part.iloc[0], keys)
        error: Any = part["std"] if "std" in part and part["std"].notna().all() else None
        axes.errorbar(
            part[style.x],
            part[style.y],
            yerr=error,
            label=label,
            marker=markers[i % len(markers)],
            markersize=4,
            linewidth=1.4,
            elinewidth=0.6,
            capsize=2,
        )
    axes.set_xlabel(style.xlabel)
    axes.set_ylabel(style.ylabel)
    if len(axes.get_legend_handles_labels()[0]) > _MAX_INSIDE:
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    else:
        axes.legend(fontsize=8)


def _bars(axes: Axes, table: pd.DataFrame, style: _Style) -> None:
    names = [_name(row, style.by) for _, row in table.iterrows()]
    places = range(len(names))
    axes.barh(list(places), table[style.y].astype(float))
    axes.set_yticks(list(places), names, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel(style.ylabel)


def _name(row: Any, columns: list[str] | tuple[str, ...]) -> str:
    parts = []
    for column in columns:
        value = row[column]
        if column == "share":
            parts.append(f"{value:.0%} foreign")
        elif column in {"k", "seed"}:
            parts.append(f"{column} = {value:g}")
        else:
            parts.append(str(value).replace("_", " "))
    return ", ".join(parts)
