"""A figure for each study's table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from testnuc.errors import InvalidInputError, MissingDependencyError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot"]

#: More lines than this have their legend beside the axes.
_MOST_INSIDE = 5


@dataclass(frozen=True, slots=True)
class _Drawing:
    """How the table of a study is drawn: lines over `x`, or bars where there is none."""

    y: str
    ylabel: str
    x: str | None = None
    xlabel: str = ""
    #: A line for each value, or combination of values, of these columns.
    by: tuple[str, ...] = ()
    title: str = ""


_LOOKS = {
    "purity_over_k": _Drawing(
        "purity", "purity (eq. 1)", "k", "neighbors", ("dataset",), "Neighborhood purity"
    ),
    "gold_votes_over_k": _Drawing(
        "accuracy", "accuracy", "k", "neighbors", ("dataset", "vote"), "Votes over gold labels"
    ),
    "accuracy_over_k": _Drawing(
        "accuracy", "accuracy", "k", "neighbors", ("policy",), "Accuracy over k"
    ),
    "accuracy_over_pool_size": _Drawing(
        "accuracy", "accuracy", "pool", "texts in the pool", ("k",), "Accuracy over pool size"
    ),
    "accuracy_over_embedders": _Drawing(
        "accuracy", "accuracy", "k", "neighbors", ("embedder",), "Accuracy over embedders"
    ),
    "accuracy_over_policies": _Drawing(
        "accuracy", "accuracy", "threshold", "threshold", ("policy",), "Policies and thresholds"
    ),
    "accuracy_with_foreign_texts": _Drawing(
        "accuracy", "accuracy", "k", "neighbors", ("share", "policy"), "Foreign texts in the pool"
    ),
    "accuracy_of_the_choice": _Drawing(
        "accuracy", "accuracy", by=("seed",), title="k and policy chosen on held-out texts"
    ),
    "consistency": _Drawing("inconsistency", "inconsistency ratio", by=("method",)),
    "measure_costs": _Drawing("seconds", "seconds a text", by=("method", "way", "k")),
}


def plot(table: pd.DataFrame, *, title: str | None = None) -> Figure:
    """Return a matplotlib figure of the table that a study returned.

    Parameters
    ----------
    table : DataFrame
        ``table.attrs["study"]`` names the study.
    title : str, optional
        Default: the study's own.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise MissingDependencyError("plots need matplotlib: pip install 'testnuc[plots]'") from exc
    look = _LOOKS.get(table.attrs.get("study", ""))
    if look is None:
        raise InvalidInputError(
            "this table is not one that a study returned; its attrs name the study "
            f"({', '.join(_LOOKS)})"
        )
    # a Figure of its own, not pyplot's: nothing global, no window, no leak
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    if look.x is None:
        _bars(axes, table, look)
    else:
        _lines(axes, table, look)
    axes.set_title(look.title if title is None else title, fontsize=11)
    axes.grid(alpha=0.3)
    return figure


def _lines(axes: Axes, table: pd.DataFrame, look: _Drawing) -> None:
    assert look.x is not None
    # rows without an x (the policies that have no threshold) are lines across
    styles = (":", "-.", "--", (0, (5, 1, 1, 1, 1, 1)))
    for i, (_, row) in enumerate(table[table[look.x].isna()].iterrows()):
        axes.axhline(
            float(row[look.y]),
            linestyle=styles[i % len(styles)],
            color="0.4",
            linewidth=1,
            label=_name(row, look.by),
        )
    drawn = table[table[look.x].notna()]
    keys = list(look.by)
    if len(keys) > 1:
        # what is the same in all lines is in no line's name
        keys = [key for key in keys if len(set(drawn[key])) > 1] or keys[-1:]
    markers = "osD^vP*X<>hd"
    for i, (_, part) in enumerate(drawn.groupby(keys, sort=False)):
        label = _name(part.iloc[0], keys)
        error: Any = part["std"] if "std" in part and part["std"].notna().all() else None
        axes.errorbar(
            part[look.x],
            part[look.y],
            yerr=error,
            label=label,
            marker=markers[i % len(markers)],
            markersize=4,
            linewidth=1.4,
            elinewidth=0.6,
            capsize=2,
        )
    axes.set_xlabel(look.xlabel)
    axes.set_ylabel(look.ylabel)
    if len(axes.get_legend_handles_labels()[0]) > _MOST_INSIDE:
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    else:
        axes.legend(fontsize=8)


def _bars(axes: Axes, table: pd.DataFrame, look: _Drawing) -> None:
    names = [_name(row, look.by) for _, row in table.iterrows()]
    places = range(len(names))
    axes.barh(list(places), table[look.y].astype(float))
    axes.set_yticks(list(places), names, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel(look.ylabel)


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
