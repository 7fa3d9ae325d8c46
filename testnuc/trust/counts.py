"""How many texts have each label, corrected by judged texts, with intervals."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import islice, zip_longest
from textwrap import fill
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from testnuc._base.arrays import Bools, Float64s, Int64s
from testnuc._base.checks import checked_number, hash_text
from testnuc._base.display import Brief, Listed, columns, data_frames, new_figure, one_line, theme
from testnuc.errors import InvalidInputError
from testnuc.label_tree import path_of
from testnuc.trust.evidence import Judgment
from testnuc.trust.joining import BY_DIFFERENCES
from testnuc.trust.joining import judge_error as bound_of_errors
from testnuc.trust.learned import Learned, judged_here
from testnuc.trust.shares import Accuracy, JudgedSample, Population, Share, percent
from testnuc.types import LEVELS, Classification, split_labels

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

#: Judged texts, drawn at random, that a group needs for an interval.
LEAST_JUDGED = 10
#: Judged texts for each label, drawn at random, below which a note says that they are few.
PER_LABEL = 10
#: How a text without any of the labels is shown.
NONE = "(none of these)"
#: Most differences of groups that a note names.
_NAMED = 5
#: How the names of columns that hold shares and their bounds end.
_BOUNDS = ("share", "low", "high", "difference", "accuracy")
#: Says which texts, given by their hashes, are not among so many first ones.
Later: TypeAlias = Callable[[Sequence[bytes], int], Sequence[bool]]
#: Labels that a plot shows, groups that it names, and those that a note names.
_PLOTTED, _TICKS, _SHOWN = 12, 12, 6
#: Part of the judged texts elsewhere with labels that a file lacks, from which it seems chosen.
_MISSING = 0.25
#: How the note begins on rows that seem to be chosen so.
CHOSEN = "if rows were chosen or grouped by the labels in use"
#: What the mark of a share means.
_END = "*: an end of its interval, as few are judged: trust the interval, not the point"
#: Characters in a line of the title of a panel.
_TITLE = 34
#: Characters in a line below a plot.
_LINE = 110


@dataclass(frozen=True, slots=True, repr=False)
class LabelCount(Brief):
    """How many rows of a group have a label."""

    #: None: none of the labels is right.
    label: str | None
    #: The value of the column that rows are grouped by; None: all rows.
    group: str | None
    #: Rows of the group.
    rows: int
    #: Of these, the share that has the label; None: the group has too few judged texts.
    share: Share | None
    #: The share by the LLM's own labels.
    llm: float
    #: The share by the labels that the results have now.
    current: float
    #: Distinct texts of the group that are a random sample and judged.
    judged: int
    #: About how many more judgments would halve the interval; without one, would give one.
    judgments_needed: int
    #: The share less that in all other groups (of two that are compared, in the other), or, of all
    #: rows by period, that of the later half less that of the earlier; None: one is not known.
    difference: Share | None = None

    @property
    def number(self) -> int | None:
        """The share times the rows: an estimate, no count."""
        return None if self.share is None else round(self.share.value * self.rows)

    @property
    def shown(self) -> str:
        """The share as text, marked where it is an end of its interval."""
        return "too few judged" if self.share is None else f"{'* ' * self.at_end}{self.share}"

    @property
    def at_end(self) -> bool:
        """Whether the share is an end of its interval, as where few texts are judged."""
        value, low, high = astuple(self.share) if self.share else (0, 0, 0)
        return low < high and value in {low, high}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Counts(Brief, Listed[LabelCount]):
    """Counts of labels, by group and label. ``print`` it."""

    items: Sequence[LabelCount]
    #: The probability that an interval holds: each alone, or all together.
    confidence: float = 0.95
    together: bool = False
    notes: Sequence[str] = field(default=())
    #: The part of the judgments that shares are corrected for, as they may be wrong.
    judge_error: float = 0.0
    #: The first period of the later half; None: groups are no periods.
    since: str | None = None
    #: Whose labels shares are of: "person", or "referee", if no person judged.
    judge: str = "person"
    #: How many labels of each group are right; None: too few of its texts are judged.
    accuracy: Mapping[str | None, Accuracy | None] = field(default_factory=dict)

    @property
    def _rows(self) -> Sequence[LabelCount]:  # type: ignore[override]
        return self.items

    def records(self) -> list[dict[str, Any]]:
        """Return plain values, a record for each group and label: for JSON and CSV."""
        return [
            {
                "group": item.group,
                "label": item.label,
                **_bounds(item.share, "share", "low", "high"),
                "number": item.number,
                "rows": item.rows,
                "llm_share": item.llm,
                "current_share": item.current,
                "judged": item.judged,
                "judgments_needed": item.judgments_needed,
                "at_end": item.at_end,
                **_bounds(item.difference, "difference", "difference_low", "difference_high"),
                **_bounds(now, "accuracy", "accuracy_low", "accuracy_high"),
                **_bounds(before, "llm_accuracy", "llm_accuracy_low", "llm_accuracy_high"),
                "since": self.since if item.group is None else None,
                "confidence": self.confidence,
                "together": self.together,
                "judge_error": self.judge_error,
                "judge": self.judge,
            }
            for item in self.items
            for right in [self.accuracy.get(item.group)]
            for now, before in [(right.now, right.before) if right else (None, None)]
        ]

    def to_pandas(self) -> pd.DataFrame:
        """Return a pandas data frame with a row for each group and label (extra ``frames``)."""
        return data_frames("pandas").DataFrame(self.records())

    def to_polars(self) -> pl.DataFrame:
        """Return a polars data frame with a row for each group and label (extra ``frames``)."""
        library = data_frames("polars")
        # explicit types: a column may hold only None
        typed = {"group": library.String, "since": library.String, "number": library.Int64}
        records = self.records()
        typed |= {name: library.Float64 for name in records[0] if name.endswith(_BOUNDS)}
        frame: pl.DataFrame = library.DataFrame(records, schema_overrides=typed)
        return frame

    def __str__(self) -> str:
        groups = dict.fromkeys(item.group for item in self.items if item.group is not None)
        grouped = bool(groups)
        compared = any(item.difference is not None for item in self.items if item.group)
        learned = any(item.current != item.llm for item in self.items)
        now = ["labels in use"] * learned
        head = ["label", "share", "share x rows", "LLM alone", *now, "judged"]
        other = "minus the other" if len(groups) == 2 else "minus the others"
        rows = [[*(["group"] * grouped), *head, *([other] * compared)]]
        # a note says which groups have no shares
        for item in (one for one in self.items if one.share is not None or not grouped):
            # of all rows, a note says what changed
            number, less = item.number, item.group and item.difference
            cells = [
                *(["all" if item.group is None else item.group] * grouped),
                item.label or NONE,
                item.shown,
                f"{item.rows:,}" if number is None else f"{number:,} of {item.rows:,}",
                *(f"{100 * part:.1f} %" for part in (item.llm, item.current)[: 1 + learned]),
                f"{item.judged:,}",
                *([less.signed() if less else ""] * compared),
            ]
            rows.append(cells)
        half = f"about {self[0].judgments_needed:,} more judgments, drawn at random, halve them"
        intervals = self._intervals if grouped else f"{self._intervals}; {half}"
        return "\n".join([columns(rows), intervals, *self.marks, *self.notes, *self._right()])

    @property
    def marks(self) -> list[str]:
        """What the mark of a share means, where one is marked."""
        found = any(item.at_end for item in self.items)
        return [f"{_END}; labels in use, counted plainly, may be nearer"] * found

    def _right(self) -> list[str]:
        """Return how many labels of each group are right, as lines; none where nothing is known."""
        judged = {item.group: item.judged for item in self.items if item.group is not None}
        if not any(self.accuracy.get(group) for group in judged):
            unknown = "too few texts of each group are judged to say how many labels are right"
            return [unknown] if judged and self.accuracy.get(None) else []
        rows = [["group", "labels right now", "LLM alone", "judged"]]
        for group, n in judged.items():
            right = self.accuracy.get(group)
            said = map(percent, (right.now, right.before)) if right else ("not known", "")
            rows.append([group, *said, f"{n:,}"])
        return [
            "How many labels of distinct texts are right by your judgments, with 95% intervals:",
            columns(rows),
        ]

    @property
    def _intervals(self) -> str:
        kind = "all intervals together" if self.together else "each interval alone"
        return f"{self.confidence:.0%} intervals: {kind}"

    def plot(self, labels: Sequence[str] | None = None, *, dark: bool = False) -> Any:
        """Return a matplotlib figure of shares with intervals, beside those of the labels.

        By group it has a panel for each label. It needs the extra ``plots``.

        Parameters
        ----------
        labels : sequence of str, optional
            Default: twelve, those that differ between groups for certain, then those with the
            largest shares; a note below names the others.
        dark : bool
            Light on dark.

        Raises
        ------
        InvalidInputError
            One of `labels` was not counted.
        """
        every = [item for item in self.items if item.group is None]
        shares = {i.label or NONE: i.llm if i.share is None else i.share.value for i in every}
        differ = {item.label or NONE for item in self.items if _differs(item)}
        first = sorted(shares, key=lambda name: (name in differ, shares[name]), reverse=True)
        chosen = list(labels or first[:_PLOTTED])
        if unknown := {*chosen} - {*shares}:
            raise InvalidInputError(f"{unknown} were not counted; labels: {', '.join(shares):.200}")
        groups = list(dict.fromkeys(item.group for item in self.items if item.group is not None))
        said = f"share of the texts, % ({self._intervals})"
        few = dict.fromkeys(item.group or "" for item in self.items if item.share is None)
        missing = {
            "without an interval, as too few are judged": few,
            "labels not shown": [label for label in shares if label not in chosen],
        }
        notes = [
            f"{len(of):,} {what}: {one_line(', '.join(of), _LINE)}"
            for what, of in missing.items()
            if of
        ]
        notes += [_END] * any(i.at_end for i in self.items if (i.label or NONE) in chosen)
        with theme(dark=dark):
            if groups:
                figure = self._by_group(chosen, groups)
                figure.supylabel(said, fontsize="small")
            else:
                figure, order = new_figure(6.4, 1.2 + 0.4 * len(chosen)), chosen[::-1]
                axes = figure.subplots()
                shown = [i for i in every if (i.label or NONE) in order]
                _draw(axes, [(order.index(i.label or NONE), i) for i in shown])
                axes.set_yticks(range(len(order)), order)
                axes.set_xlabel(said, fontsize="small")
                axes.set_xlim(left=0)
                axes.margins(y=0.2)
            marks = figure.axes[0].get_legend_handles_labels()
            # above the panels, where it hides no interval
            place = {"loc": "outside upper right", "ncols": 3}
            figure.legend(*marks, **place, frameon=False, fontsize="small")
            figure.supxlabel("\n".join(notes), fontsize="x-small", color="gray")
            return figure

    def _by_group(self, chosen: Sequence[str], groups: Sequence[str]) -> Any:
        lines = math.ceil(len(chosen) / 2)
        # no higher than a page
        figure = new_figure(6.4, 0.8 + min(1.9 * lines, 9.5))
        panels = figure.subplots(lines, 2, sharex=True, sharey=True, squeeze=False)
        ticks = range(0, len(groups), math.ceil(len(groups) / _TICKS))
        shown = [i for i in self.items if (i.label or NONE) in chosen and i.group is not None]
        highs = [100 * item.share.high for item in shown if item.share] or [0.0]
        least = max(110 * max(i.share.value if i.share else 0, i.llm, i.current) for i in shown)
        # a few wide intervals leave no room for the others
        top = max(least, min(1.05 * max(highs), 1.5 * float(np.median(highs)))) or 1.0
        for axes, label in zip_longest(panels.flat, chosen):
            if label is None:
                axes.set_axis_off()
                # the panel above is the last one of its column
                panels[max(len(panels) - 2, 0), 1].tick_params(labelbottom=True)
                continue
            of_label = [i for i in shown if (i.label or NONE) == label]
            _draw(axes, [(groups.index(str(i.group)), i) for i in of_label], top=top)
            axes.set_title(fill(label, _TITLE), fontsize="medium", loc="left")
            axes.set_xticks(ticks, [groups[at] for at in ticks], rotation=40, ha="right")
        panels[0, 0].set(ylim=(0, top), xlim=(-0.5, len(groups) - 0.5))
        return figure


def _draw(axes: Any, points: Sequence[tuple[int, LabelCount]], *, top: float = np.inf) -> None:
    """Draw shares with intervals at places of an axis, by group up to `top`, and of labels."""
    by_group = top < np.inf
    places = [at for at, _ in points]
    value, low, high = (
        # a group without an interval has the LLM's share alone
        100 * np.array([getattr(item.share, name, np.nan) for _, item in points])
        for name in ("value", "low", "high")
    )
    for at in np.array(places)[high > top]:
        axes.plot(at, top, "^", color="C0", markersize=7, clip_on=False)
    high = np.minimum(high, top)
    bars = {"yerr" if by_group else "xerr": [value - low, high - value]}
    way = 1 if by_group else -1
    # a marker at the edge is drawn whole
    marks: dict[str, Any] = {"color": "gray", "fillstyle": "none", "clip_on": False}
    llm, current = (100 * np.array([getattr(i, n) for _, i in points]) for n in ("llm", "current"))
    axes.plot(*(places, llm)[::way], "D", markersize=8, label="LLM alone", **marks)
    axes.plot(*(places, current)[::way], "x", markersize=6, label="labels in use", **marks)
    few = ", where enough" if np.isnan(value).any() else ""
    marks = {"fmt": "o", "markersize": 4, "capsize": 3, "clip_on": False}
    axes.errorbar(*(places, value)[::way], **bars, **marks, label=f"with judgments{few}")
    for at, item in points:
        if item.share and item.at_end:
            place = (at, 100 * item.share.value)[::way]
            axes.annotate("*", place, (4, 4), textcoords="offset points")
    axes.spines[["top", "right"]].set_visible(False)


def counted(
    results: Sequence[Classification],
    learned: Learned,
    groups: Sequence[str | None] | None = None,
    **options: Any,
) -> Counts:
    """Count the labels of results by what was judged; `options` are those of `count_labels`."""
    texts, own = _said(results, learned)
    options |= {"apart": learned.labels_apart(texts), "later": learned.later}
    options["now"] = [result.labels for result in results]
    counts = count_labels(texts, own, judged_here(learned), learned.labels, groups, **options)
    of = {item.group: list[str]() for item in counts}
    for text, group in zip(texts, groups or (), strict=False):
        of.get(group, []).append(text)
    right = {group: learned.accuracy(some) for group, some in (of | {None: texts}).items()}
    return replace(counts, accuracy=right)


def debiased(results: Sequence[Classification], learned: Learned) -> dict[str, list[float]]:
    """Return for each label a column whose means and regressions are unbiased.

    A value is 1 or 0 by the LLM's label; of a text that was judged and drawn at random, the LLM's
    error, divided by the probability of being drawn, is added. So it can be far from 0 and 1. It is
    NaN where a text came after the last draw, or the label after the judgments.

    Sources: Robins, Rotnitzky and Zhao 1994; Egami and others 2023, "Using imperfect surrogates for
    downstream inference: design-based supervised learning" (NeurIPS).
    """
    texts, own = _said(results, learned)
    counting = _Counting(texts, own, learned.judged, learned.labels, None, later=learned.later)
    cohort, rows, said = counting.cohort, counting.rows, counting.own.astype(np.float64)
    known = counting.drawn[:, None] & ~counting.missing
    sizes = np.bincount(cohort[cohort >= 0])[:, None]
    judged = np.zeros((len(sizes), said.shape[1]))
    np.add.at(judged, cohort[rows], known)
    # of a cohort without judgments nothing is known
    values = np.where((cohort[:, None] >= 0) & (judged[cohort] > 0), said, np.nan)
    inverse = (sizes / np.maximum(judged, 1))[cohort[rows]]
    values[rows] += known * (counting.hits - said[rows]) * inverse
    made = values[counting.place].T.tolist()
    return {label: column for label, column in zip(counting.labels, made, strict=True) if label}


def _said(
    results: Sequence[Classification], learned: Learned
) -> tuple[list[str], list[Sequence[str] | None]]:
    """Return the texts of results, and the LLM's labels; the given ones where it was not asked."""
    if not hasattr(learned, "judged"):
        raise InvalidInputError(
            f"learned is {learned!r}; give what `nuc.learn(review)` returned, or `nuc.learned` of "
            "a client with the store, model, base_url, labels, embedder and sampling (temperature, "
            "seed) of the judged run"
        )
    own: list[Sequence[str] | None] = []
    for result in results:
        unasked = None if result.source == "person" else result.labels or None
        own.append(unasked if result.prediction is None else result.prediction.labels)
    return [result.text for result in results], own


def count_labels(
    texts: Sequence[str],
    own: Sequence[Sequence[str] | None],
    judged: Sequence[Judgment],
    labels: Sequence[str],
    groups: Sequence[str | None] | None = None,
    *,
    apart: Sequence[Sequence[str] | None] | None = None,
    now: Sequence[Sequence[str]] | None = None,
    later: Later | None = None,
    confidence: float = 0.95,
    together: bool = False,
    level: int | None = None,
    judge_error: float = 0.0,
    periods: bool = False,
    compare: Sequence[str] | None = None,
) -> Counts:
    """Count labels in rows of texts.

    The strata of a label are the texts that the LLM gave it, or `apart` does, or both or none of
    them do. Judged texts that were drawn at random from all count as a sample, all other judged
    ones as what they are. If there is none of the former, it raises an `InvalidInputError`.

    `texts` are those of each row, and may occur in several; `own` are the LLM's own labels of each
    row, None where they are unknown; `apart` are others, which do not depend on how the text was
    judged; `now` are those of the results; `later` says which texts, by hash, are not among so many
    first ones; `labels` is the label set. A row whose group is None is
    in no group. If groups are `periods`, the later half of the rows is also compared with the
    earlier half. The other arguments are those of `Results.count_labels`.
    """
    checked_number("confidence", confidence, 0.5, 0.9999)
    checked_number("judge_error", judge_error, 0, 0.4)
    counting = _Counting(texts, own, judged, labels, level, apart, now, later)
    selected = counting.rows_of(groups if compare is None else _of_two(groups or (), compare))
    # of a group that came after the last draw nothing is known: others are not compared with it
    early = {*selected[None]}
    names = [name for name, rows in selected.items() if name is not None and rows[0] in early]
    kinds = len(counting.labels) * len(selected)
    each = 1 - (1 - confidence) / kinds if together else confidence
    items = {name: counting.of(name, rows, each, judge_error) for name, rows in selected.items()}

    def contrast(name: str | None, some: Sequence[str]) -> None:
        """Note for each label its share in some groups less that in the others."""
        others = [other for other in names if other not in {*some}]
        rows = [[row for group in of for row in selected[group]] for of in (some, others)]
        shares = [counting.of(None, of, each, judge_error, compared=True) for of in rows]
        sizes = [counting.independent(of) for of in rows]
        items[name] = [
            replace(one, difference=a.share.less(b.share, *sizes, each))
            if a.share and b.share
            else one
            for one, a, b in zip(items[name], *shares, strict=True)
        ]

    for name in names if len(names) > 1 else ():
        # if too few are judged, there is nothing to compare
        if any(one.share for one in items[name]):
            contrast(name, [name])
    if len(names) > 1:
        counting.notes.append(
            "each group is estimated alone: rows of groups need not add up, and a file of one "
            "group's rows alone may have slightly other bounds"
        )
    if counting.chosen_by_use([selected[name] for name in names] or [selected[None]]):
        counting.notes.append(
            f"{CHOSEN}, as in `nuc_label`, these shares, and how many labels are right, are wrong, "
            "as judged texts are where they were judged to be; take `nuc_own_label`; accuracy by "
            "label is in `testnuc describe`"
        )
    twice = {one.text: one.agreed for one in judged if one.agreed is not None}
    if judge_error:
        counting.notes.append(
            f"corrected for errors in {judge_error:.1%} of the judgments, at random; the intervals "
            "hold for fewer, too"
        )
    elif not twice.keys().isdisjoint(texts) and (most := bound_of_errors([*twice.values()])):
        counting.notes.append(
            f"judges err in at most {most:.1%} ({BY_DIFFERENCES}), which the intervals do not "
            f"know: `testnuc count --judge-error {min(most, 0.4)}` allows for it; print both"
        )
    enough = PER_LABEL * (len(counting.labels) - 1)
    open_ = (i for some in items.values() for i in some if i.share and i.share.low < i.share.high)
    if few := {item.group: item.judged for item in open_ if item.judged < enough}:
        counting.notes.append(
            f"{min(few.values()):,} texts{' of a group' * bool({*few} - {None})}, judged and drawn "
            f"at random, are few for {len(counting.labels) - 1:,} labels: a share may be noise, "
            f"trust its interval{f'; about {PER_LABEL} for each label are enough' * (None in few)}"
        )
    since = None
    if periods and len(names) > 1 and compare is None:
        until = np.cumsum([len(selected[name]) for name in names])
        # where the halves are most alike in size
        at = 1 + int(np.abs(2 * until[:-1] - until[-1]).argmin())
        since = names[at]
        contrast(None, names[at:])
        found = _moved(items[None], "these shares have changed", together=together)
        found = found or "no label's share has changed for certain"
        counting.notes.append(f"since {since}, compared with the time before, {found}")
    # of two groups, the one differs as the other does
    some = names[:1] if len(names) == 2 else names
    counting.notes += _apart([one for name in some for one in items[name]], together=together)
    every = [item for some in items.values() for item in some]
    return Counts(every, confidence, together, counting.notes, judge_error, since, counting.judge)


def _differs(item: LabelCount) -> bool:
    less = item.difference
    return less is not None and not less.low <= 0 <= less.high


def _moved(items: Sequence[LabelCount], what: str, *, together: bool) -> str:
    """Return the counts whose difference excludes 0, the largest first; empty: there is none."""
    found = [(i, less) for i in items if (less := i.difference) and _differs(i)]
    found.sort(key=lambda one: -abs(one[1].value))
    said = [f"{i.group or ''} {i.label or NONE} {less.signed()}".strip() for i, less in found]
    if items[0].group and (more := len(said) - _NAMED) > 0:
        # the table has them all
        said[_NAMED:] = [f"and {more:,} more"]
    number = f"{len(items):,} {'shares' if items[0].group else 'labels'}"
    alone = f" (each alone, of {number}; sure only with `count --together`)"
    return f"{what}, in points: {', '.join(said)}{alone * (not together)}" if said else ""


def _apart(items: Sequence[LabelCount], *, together: bool) -> list[str]:
    """Return a note on which groups differ from the others; none if nothing is compared."""
    if not any(one.difference for one in items):
        return []
    found = _moved(items, "shares in one group differ from the others", together=together)
    return [found or "no share in one group differs for certain from the others"]


def _of_two(groups: Sequence[str | None], compare: Sequence[str]) -> list[str | None]:
    """Return the groups of rows, None where they are not of the two that are compared."""
    there = {group for group in groups if group is not None}
    if len({*compare}) != 2 or not {*compare} <= there:
        raise InvalidInputError(
            f"compare is {' and '.join(map(repr, compare))}; give two of the groups: "
            f"{', '.join(map(str, sorted(there))):.400}"
        )
    return [group if group in compare else None for group in groups]


class _Counting:
    """Texts, what the LLM says of them, and the judged ones among them."""

    def __init__(
        self,
        texts: Sequence[str],
        own: Sequence[Sequence[str] | None],
        judged: Sequence[Judgment],
        labels: Sequence[str],
        level: int | None,
        apart: Sequence[Sequence[str] | None] | None = None,
        now: Sequence[Sequence[str]] | None = None,
        later: Later | None = None,
    ) -> None:
        self._level = level
        #: The last one: none of the labels.
        self.labels = [*dict.fromkeys(map(self._cut, labels)), None]
        self._number = {label: at for at, label in enumerate(self.labels)}
        places: dict[bytes, int] = {}
        #: The position of the distinct text of each row.
        self.place = np.array(
            [places.setdefault(hash_text(text), len(places)) for text in texts], dtype=np.int64
        )
        #: bool[n, C]: the LLM's labels of each distinct text.
        self.own = self._table(own)
        self.now = self._table(now or own)
        #: int64[n, C]: the stratum of each for each label.
        self.strata: Int64s = self.own + 2 * self._table(apart or own)
        self.strata[:, -1] = 0
        #: Whether what was learned gives a label that the LLM does not.
        self.learned = bool((self.strata == 2).any())
        people = any(one.source == "person" for one in judged)
        self.judge = judge = "person" if people else "referee"
        # of a text that was skipped and not drawn at random, nothing is known
        used = [
            one
            for one in judged
            if one.hash in places and (one.source == judge or (one.uniform and one.source is None))
        ]
        self.notes = [f"right: by {'your judgments' if people else 'the referee, not by a person'}"]
        others = [one.label for one in judged if one.hash not in places]
        #: The labels of judged texts that are not among these.
        self.elsewhere = [
            self._cut(name)
            for label in others
            for name in split_labels(label, several=label not in labels)
        ]
        if elsewhere := len(others):
            self.notes.append(
                f"{elsewhere:,} more texts are judged, of other files (or left out, or edited here)"
            )
        #: int64[m], bool[m, C] twice: where judged texts are, their labels, those they may have.
        self.rows = np.array([places[one.hash] for one in used], dtype=np.int64)
        self.drawn = np.array([bool(one.uniform) for one in used], dtype=np.bool_)
        self.hits, self.missing = np.zeros((2, len(used), len(self.labels)), dtype=np.bool_)
        for at, one in enumerate(used):
            known = one.source is not None
            several = split_labels(one.label, several=one.label not in labels)
            given, maybe = (
                {self._number.get(self._cut(name), -1) for name in names}
                for names in (several if known else (), one.possible)
            )
            if not known and len(maybe) == 1:
                known, given, maybe = True, maybe, given
            if known:
                self.hits[at, [*given - {-1}] or [-1]] = True
            # what may have others may not have none
            maybe = maybe - given if given - {-1} or not maybe else maybe | {-1}
            self.missing[at, [*maybe] or slice(0 if known else None)] = True
        #: Whether no text has several labels, so that the shares of all add up to 1.
        most = self.hits.sum(1) + (self.hits.any(1) & self.missing.any(1))
        self.exclusive = max(self.own.sum(1).max(), most.max(initial=0)) <= 1
        if 0 < (unfit := int(self.hits[self.drawn, -1].sum())) < LEAST_JUDGED / 2:
            self.notes.append(f"{NONE}: {unfit:,} of the judged texts, drawn at random, say so")
        if not self.drawn.any():
            raise InvalidInputError(
                f"none of these texts was drawn at random and judged ({elsewhere:,} judged texts "
                'are of another file, or edited since); draw some: `review(goal="count")`, on the '
                "command line `testnuc review RESULTS --goal count`"
            )
        #: int64[n]: the texts that were there at the same draws; -1: the text came after the last.
        sizes = [one.texts for one in used]
        came = [False] * len(places) if later is None else later([*places], max(sizes))
        self.cohort = self._cohorts(sizes, np.array(came, dtype=np.bool_))
        self.chosen = self._chosen()
        if after := int((self.cohort < 0).sum()):
            self.notes.append(
                f"{after:,} texts are left out, of which nothing is known: they came after the "
                "last draw, or the LLM was not asked about them; review some of them, too"
            )
        if skipped := int(self.missing.any(1).sum()):
            self.notes.append(
                "drawn texts that were skipped, that judges do not agree on, or that may have a "
                f"label which was split or added since, widen the intervals: {skipped:,}; to "
                "answer them: testnuc review REVIEW.json, or after a change of labels RESULTS"
            )
        n = sum(one.source is not None for one in used)
        if (drawn := sum(bool(one.uniform and one.source) for one in used)) < n:
            self.notes[0] += f"; {drawn:,} of {n:,} were drawn at random from all: these count"

    def _cut(self, label: str | None) -> str | None:
        return label and LEVELS.join(path_of(label)[: self._level])

    def _table(self, given: Sequence[Sequence[str] | None]) -> Bools:
        """Return which labels each distinct text has, bool[n, C], of those that rows are given."""
        found = np.zeros((self.place.max(initial=-1) + 1, len(self.labels)), dtype=np.bool_)
        for place, some in zip(self.place.tolist(), given, strict=True):
            said = {self._number.get(self._cut(name), -1) for name in some or ()} - {-1}
            found[place, [*said] or [-1] * (some is not None)] = True
        return found

    def _cohorts(self, drawn_from: Sequence[int], later: Bools) -> Int64s:
        """Return the cohort of each text, given of how many texts each judged one was drawn.

        Texts that came later are known, or below in the file, unless a judged one shows that they
        are not: those that were drawn in another store may come later here.
        """
        if later[self.rows[self.drawn]].mean() > 1 / 2:
            later[:] = False
        later[self.rows] = False
        place, sizes = (~later).cumsum() - 1, np.array(drawn_from)
        rows, n = place[self.rows], int((~later).sum())
        ends = np.unique(sizes[self.drawn])
        if (rows >= sizes).any():
            if n > ends[-1]:
                self.notes.append(
                    f"the judged texts were drawn from {ends[-1]:,} texts, these are {n:,}, and "
                    "later ones are not below the others: all are taken to be alike"
                )
            return np.where(later, -1, 0)
        starts = [0]
        for end in ends[:-1].tolist():
            here = rows[self.drawn & (rows >= starts[-1])]
            if min((here < end).sum(), (here >= end).sum()) >= LEAST_JUDGED:
                starts.append(end)
        cohort = np.searchsorted(starts, place, side="right") - 1
        return np.where(later | (place >= ends[-1]), -1, cohort)

    def _chosen(self) -> Bools:
        """Return what was chosen after most draws of its cohort: these were from all, bool[m]."""
        cohort, chosen = self.cohort[self.rows], np.zeros(len(self.rows), dtype=np.bool_)
        for one in np.unique(cohort).tolist():
            draws = self.drawn & (cohort == one)
            chosen |= (cohort == one) & ~self.drawn & (2 * draws.cumsum() > draws.sum())
        return chosen

    def rows_of(self, groups: Sequence[str | None] | None) -> dict[str | None, list[int]]:
        """Return the rows of each group that are counted, and under None all that are."""
        early = self.cohort[self.place] >= 0
        selected: dict[str | None, list[int]] = {None: np.flatnonzero(early).tolist()}
        members: dict[str, list[int]] = defaultdict(list)
        for row, group in enumerate(groups or ()):
            if group is not None:
                members[group].append(row)
        if members and (outside := len(self.place) - sum(map(len, members.values()))):
            self.notes.append(f"{outside:,} rows are in no such group: they count under all alone")
        texts = {name: np.unique(self.place[rows]) for name, rows in members.items()}
        judged = {name: int(self.drawn[np.isin(self.rows, of)].sum()) for name, of in texts.items()}
        few = {g: m for g, m in judged.items() if m < min(LEAST_JUDGED, len(texts[g]))}
        most, enough = max(judged.values(), default=0), max(LEAST_JUDGED, len(judged))
        if few and most < LEAST_JUDGED and self.drawn.sum() < enough:
            raise InvalidInputError(
                f"none of the {len(judged):,} groups has {LEAST_JUDGED} texts that were drawn at "
                f"random and judged, the most have {most}; group by fewer values "
                "(dates by a longer period), or judge more, with the goal count"
            )
        if few:
            # two standard deviations more than are expected to do
            more = max(
                (1 + math.sqrt(1 + LEAST_JUDGED - m)) ** 2 * len(self.own) / len(texts[g])
                for g, m in few.items()
            )
            more = min(more, len(self.own) - len(self.rows))
            shown = [f"{name} ({some})" for name, some in islice(sorted(few.items()), _SHOWN)]
            self.notes.append(
                f"too few judged texts for an interval, fewer than {LEAST_JUDGED}, are in "
                f"{', '.join(shown)}{', ..' if len(few) > _SHOWN else ''}; fewer groups, as of a "
                f"longer period, give each one, or about {math.ceil(more):,} more judgments, drawn "
                "at random"
            )
        for name in sorted(members):
            rows = members[name]
            selected[name] = [row for row in rows if early[row]] or rows
        return selected

    def chosen_by_use(self, parts: Sequence[Sequence[int]]) -> bool:
        """Return whether the labels in use seem to say which rows are in which part, or here."""
        if len(parts) > 1:
            now = np.array([self.now[self.place[rows]].any(0) for rows in parts])
            return bool((now.sum(0) <= 1).all() and (self.own != self.now).any())
        counts = self.now[self.place[parts[0]]].sum(0)
        here = {self.labels[at] for at in np.flatnonzero(counts)}
        missing = [one not in here for one in self.elsewhere] or [False]
        # by chance missing labels are as frequent as those seen once (Good and Turing)
        by_chance = 2 * ((counts == 1).sum() + 3) / len(parts[0])
        return bool(np.mean(missing) > min(max(by_chance, _MISSING), 1 - _MISSING))

    def independent(self, rows: Sequence[int]) -> float:
        """Return how many texts the rows are worth, as copies are written at once (Kish)."""
        copies = np.bincount(self.place[rows])
        return float(len(rows) ** 2 / (copies**2).sum())

    def of(
        self,
        group: str | None,
        rows: Sequence[int],
        confidence: float,
        judge_error: float,
        *,
        compared: bool = False,
    ) -> list[LabelCount]:
        """Count the labels of some rows; `compared`: the shares are for differences alone."""
        copies = np.bincount(self.place[rows], minlength=len(self.own)).astype(np.float64)
        inside = np.flatnonzero(copies)
        there = np.isin(self.rows, inside)
        # whoever looks for errors leaves fewer of them than the draws had
        here, places = there & ~self.chosen, np.searchsorted(inside, self.rows)
        sample = JudgedSample(places[here], self.drawn[here], self.missing[here])
        judged = int(sample.drawn.sum())
        llm, now = (copies[inside] @ of[inside] / max(len(rows), 1) for of in (self.own, self.now))
        shares: list[Share | None] = [None] * len(self.labels)
        more = LEAST_JUDGED - judged
        if judged >= min(LEAST_JUDGED, len(inside)) > 0:
            strata = Population(self.strata[inside] + 4 * self.cohort[inside, None], copies[inside])
            options = {"compared": compared, "learned": self.learned}
            value, low, high = sample.totals(
                strata, self.hits[here], len(self.labels) - 1, confidence=confidence, **options
            )
            # what was chosen is known, too
            n, known = len(rows), copies[self.rows[there]]
            low = np.maximum(low, known @ (self.hits & ~self.missing)[there] / n)
            high = np.minimum(high, (n - known @ ~(self.hits | self.missing)[there]) / n)
            value = np.clip(value, low, high)
            value, low, high = _corrected(value, low, high, judge_error)
            if self.exclusive:
                value = np.clip(value / value.sum(), low, high)
            shares = [Share(*map(float, one)) for one in zip(value, low, high, strict=True)]
            # the width falls by the root of the number, and is zero once all are judged
            more = round(3 * judged * (len(inside) - judged) / (len(inside) + 3 * judged))
        return [
            LabelCount(label, group, len(rows), share, float(said), float(part), judged, more)
            for label, share, said, part in zip(self.labels, shares, llm, now, strict=True)
            if label is not None or self.hits[:, -1].any()
        ]


def _corrected(
    value: Float64s, low: Float64s, high: Float64s, error: float
) -> tuple[Float64s, Float64s, Float64s]:
    """Return the shares of all labels and of none as if a part of the judgments were wrong.

    Those name another label: to take some for "none" would correct shares of two labels too little.
    The interval holds for any smaller part as well. Source: Rogan and Gladen 1978, "Estimating
    prevalence from the results of a screening test".
    """
    other = error / max(len(value) - 2, 1)
    true = np.clip((np.array([value, low, high]) - other) / (1 - error - other), 0, 1)
    return true[0], np.minimum(low, true[1]), np.maximum(high, true[2])


def _bounds(share: Share | None, *names: str) -> dict[str, float | None]:
    """Return value and bounds by these names."""
    return dict.fromkeys(names) if share is None else dict(zip(names, astuple(share), strict=True))
