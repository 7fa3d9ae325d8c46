"""The results of a run: a sequence of classifications, written as JSON Lines and read back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, InitVar, asdict, dataclass, field
from itertools import chain
from types import EllipsisType
from typing import TYPE_CHECKING, Any

from testnuc._base.checks import checked_whole, is_null, values
from testnuc._base.display import Listed, data_frames, facts, grid
from testnuc._base.foreign import read_as
from testnuc._base.jsonl import table, write_whole
from testnuc.errors import InvalidInputError, TestNUCError
from testnuc.records import file_row, line_of, result_of, rounded, text_of
from testnuc.trust.counts import Counts, counted
from testnuc.trust.counts import debiased as pseudo_outcomes
from testnuc.trust.label_check import LabelCheck, checked_labels, grouped
from testnuc.types import CELLS, SEPARATOR, UNKNOWN, Classification, Usage, error_text, row

if TYPE_CHECKING:
    import os

    import pandas as pd
    import polars as pl

    from testnuc.trust.certificates import Certificate
    from testnuc.trust.diagnosis import Diagnosis
    from testnuc.trust.learned import Learned
    from testnuc.trust.review import Review
    from testnuc.types import Prediction

#: The only field of the record that describes the run instead of a text.
_RUN = "nuc_run"
#: Attributes of results that are texts in that record.
_TEXTS = ("model", "none_label", "instructions", "learned", "escalated")


def run_record(results: Results) -> dict[str, Any]:
    """Return the record of a run: model, labels, seconds and usage."""
    stopped, referee = results.stopped, results.referee_usage
    record = {name: getattr(results, name) for name in _TEXTS} | {
        "labels": list(results.choices),
        "descriptions": dict(results.descriptions),
        "seconds": rounded(results.seconds),
        "usage": asdict(results.usage),
        "stopped": None if stopped is None else str(stopped),
        "referee_usage": None if referee is None else asdict(referee),
    }
    return {_RUN: record}


def read_results(
    records: Iterable[Mapping[str, Any]], source: str, text_column: str = "text"
) -> Results:
    """Return the results in the records of a file that was written with `file_row`."""
    rows: list[Classification] = []
    usage, run = UNKNOWN, dict[str, Any]()
    for record in records:
        if _RUN in record:
            run = record[_RUN] or {}
            continue
        for needed in (text_column, "nuc_label"):
            if needed not in record:
                remedy = "give a file written by `testnuc classify` or `Results.to_jsonl`"
                if needed == text_column:
                    remedy = "name the text column with --text-column"
                raise InvalidInputError(
                    f"{source}, record {len(rows) + 1} has no field {needed!r}, only "
                    f"{', '.join(map(repr, record)) or 'nothing'}: {remedy}"
                )
        try:
            rows.append(result_of(record, len(rows), text_column))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
            raise InvalidInputError(
                f"{source}, record {len(rows) + 1} was not written by testnuc: {exc!r} (R: na='')"
            ) from exc
    if not rows:
        raise InvalidInputError(f"{source} holds no results")
    try:
        usage = read_as(Usage, spent) if (spent := run.get("usage")) else usage
        referee_usage = read_as(Usage, spent) if (spent := run.get("referee_usage")) else None
        repr(run)  # what is nested too deep cannot be shown
        seconds, labels = float(run.get("seconds") or 0.0), tuple(map(str, run.get("labels") or ()))
        descriptions = {str(k): str(v) for k, v in (run.get("descriptions") or {}).items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as exc:
        raise InvalidInputError(f"{source}: {_RUN} was not written by testnuc: {exc!r}") from exc
    texts: dict[str, Any] = {name: text_of(run.get(name)) for name in _TEXTS}
    stopped = text_of(run.get("stopped"))
    return Results(
        rows,
        usage,
        seconds,
        **texts,
        choices=labels,
        descriptions=descriptions,
        stopped=None if stopped is None else TestNUCError(stopped),
        referee_usage=referee_usage,
    )


def outcome(results: Results, *, invalid: int = 0, output: str | None = None) -> list[str]:
    """Return the outcome of a run in lines: what failed, counts and cost, the referee's work."""
    errors, outside, stopped = results.errors, results.unmatched, results.stopped
    lines = []
    if stopped is not None:
        lines.append(f"stopped early: {error_text(stopped)}")
    elif errors:
        lines.append(f"first error: {error_text(errors[0].error)}")
    said = grouped(one for row in outside if (own := row.prediction) for one in own.unmatched)
    if said:
        often = ", ".join(f"{what[:60]!r} ({n:,})" for what, n in [*said.items()][:3])
        lines.append(f"answers outside the labels, most often: {often}")
    lines.append(figures(results, invalid=invalid, output=output))
    if results.escalated is not None:
        lines.append(results.escalated)
    if (spent := results.referee_usage) is not None:
        calls = f"{spent.calls:,} calls"
        lines.append(", ".join(filter(None, ("the referee", calls, cost(spent)))))
    return lines


def figures(results: Results, *, invalid: int = 0, output: str | None = None) -> str:
    """Return counts and cost of a run in a line, without texts, labels and errors."""
    unlabeled = results.labels.count(None)
    counts = {
        "without a label": unlabeled,
        "failed": len(results.errors),
        "answered outside the labels": len(results.unmatched),
        "without a usable text": invalid,
        "labels changed" if results.learned else "labels changed by the vote": results.changed,
    }
    parts = [
        f"{len(results) + invalid:,} texts in {results.seconds:.1f} s",
        f"{len(results) - unlabeled:,} labeled",
        *(f"{number:,} {what}" for what, number in counts.items() if number),
        f"{results.usage.calls:,} calls",
        f"{results.usage.incomplete:,} calls broke off" if results.usage.incomplete else "",
        f"{results.usage.store_hits:,} stored" if results.usage.store_hits else "",
        cost(results.usage),
        f"written to {output}" if output else "",
    ]
    return ", ".join(filter(None, parts))


def cost(usage: Usage) -> str:
    """Format tokens and dollars; empty where nothing was spent."""
    tokens = None
    if usage.input_tokens is not None and usage.output_tokens is not None:
        tokens = usage.input_tokens + usage.output_tokens
    if not tokens:
        return "" if tokens == 0 else "tokens unknown"
    usd = "price unknown" if usage.usd is None else f"{usage.usd:.4f} USD"
    return f"{tokens:,} tokens, {usd}"


def _columns(results: Results) -> dict[str, list[Any]]:
    rows = [{"text": result.text, **row(result)} for result in results]
    some = ("labels", "path", "path_trusts")
    more = [name for name in some if any(name in fields for fields in rows)]
    names = ("text", *more, *CELLS)
    return {name: [fields.get(name) for fields in rows] for name in names}


@dataclass(eq=False, repr=False)
class Results(Listed[Classification]):
    """The classifications of `classify_many`, in the order of the texts.

    Rows may be created on access, so that a million results stay small.
    """

    rows: InitVar[Sequence[Classification]]
    #: Usage of this run alone.
    usage: Usage
    #: Wall-clock seconds of the run.
    seconds: float
    _: KW_ONLY
    #: The model, as ``provider/name``; None if unknown.
    model: str | None = None
    #: The label set; empty if unknown.
    choices: Sequence[str] = ()
    #: The label that means "none of these".
    none_label: str | None = None
    #: Descriptions of labels, as far as they are known.
    descriptions: Mapping[str, str] = field(default_factory=dict)
    #: The user's own instructions for the LLM.
    instructions: str | None = None
    #: The error that ended the run early (a wrong key, an exhausted quota, a failed store); texts
    #: that were not answered by then have it as their error. None: the run completed.
    stopped: Exception | None = None
    #: What `TestNUC.learn` had learned by then, as text; None: nothing.
    learned: str | None = None
    #: What the referee labeled, or why it labeled nothing; None: nothing is escalated.
    escalated: str | None = None
    #: Usage of the referee in this run; it is not part of `usage`. None: there is no referee.
    referee_usage: Usage | None = None
    #: The diagnosis behind the decision of policy "auto"; None: there was nothing to decide.
    diagnosis: Diagnosis | None = None
    #: Which texts the LLM was not asked about and why, which labels prompts showed and how the
    #: answers compare with those by all labels.
    notes: Sequence[str] = ()
    #: Label -> the number of distinct texts whose shortlist held it; empty without shortlists.
    coverage: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self, rows: Sequence[Classification]) -> None:
        self._rows = rows
        self.choices, self.notes = tuple(self.choices), tuple(self.notes)
        self.descriptions = dict(self.descriptions or {})

    def with_rows(self, rows: Sequence[Classification]) -> Results:
        """Return results of the same run with other rows."""
        results = copy(self)
        results._rows = rows  # noqa: SLF001
        return results

    def _outcomes(self) -> Iterator[tuple[list[str] | None, Prediction | None, bool]]:
        """Yield the labels of each text, its own prediction, and whether it has an error."""
        # rows of a run need not create every `Classification`
        if (outcomes := getattr(self._rows, "outcomes", None)) is not None:
            yield from outcomes()
            return
        for one in self._rows:
            labels = None if one.label is None else list(one.labels)
            yield labels, one.prediction, one.error is not None

    @property
    def labels(self) -> list[str | None]:
        """The label of each text."""
        return [None if some is None else SEPARATOR.join(some) for some, *_ in self._outcomes()]

    @property
    def multilabel(self) -> bool:
        """Whether a text can have several labels."""
        # the record of a text that was not asked about does not say
        said = (row.multilabel for row in self if row.multilabel or row.error is None)
        return next(said, False)

    @property
    def label_lists(self) -> list[list[str] | None]:
        """The labels of each text of a run with ``multilabel=True``; None: they are unknown."""
        return [labels for labels, *_ in self._outcomes()]

    @property
    def errors(self) -> list[Classification]:
        """The results with an error."""
        return [self._rows[at] for at, (*_, failed) in enumerate(self._outcomes()) if failed]

    @property
    def unmatched(self) -> list[Classification]:
        """The results whose own answer matches no label; `Prediction.said` holds it.

        With ``multilabel=True``, those whose answer holds a label outside the set.
        """
        outcomes = enumerate(self._outcomes())
        return [self._rows[at] for at, (_, own, _) in outcomes if own and own.unmatched]

    @property
    def changed(self) -> int:
        """Number of texts whose label differs from their own prediction."""
        return sum(
            set(labels) != set(own.labels)
            for labels, own, _ in self._outcomes()
            if labels is not None and own is not None and own.label is not None
        )

    def certified(self, certificate: Certificate) -> list[Classification]:
        """Return the results that a certificate is about, and those that a person judged.

        It says nothing of texts that came after those that judged ones were drawn from, of labels
        that changed since, that a referee gave, or a model where the LLM was not asked.

        Parameters
        ----------
        certificate : Certificate
            From `Learned.certify`. Of one label: the results that have it.
        """
        label = certificate.label
        certified = []
        for result in self if certificate.coverage else ():
            if result.source == "referee" or (result.source == "head" and not result.prediction):
                continue
            has = label is None or label in (result.labels or ())
            if has and (result.source == "person" or certificate.holds(result)):
                certified.append(result)
        return certified

    def count_labels(
        self,
        learned: Learned,
        by: Sequence[str | None] | None = None,
        *,
        confidence: float = 0.95,
        together: bool = False,
        level: int | None = None,
        judge_error: float = 0.0,
        compare: Sequence[str] | None = None,
    ) -> Counts:
        """Count the labels: their shares as the judged texts correct them, with intervals.

        Parameters
        ----------
        learned : Learned
            `TestNUC.learned`, with the judged texts. Those drawn at random from all are the sample:
            ``review(n, "count")`` draws nothing else.
        by : sequence of str, optional
            The group of each result, such as its month, or a column of them; None: it is in none.
        confidence : float
            With this probability an interval holds: each alone, or with `together` all of them.
        level : int, optional
            Of labels in a tree, 1 = the top. Default: whole labels.
        judge_error : float
            The part of the judgments that may be wrong.
        compare : sequence of str, optional
            Two groups of `by`, to be compared with each other alone.

        Raises
        ------
        InvalidInputError
            No judged text was drawn at random from all, `by` has another length, or `compare` is
            not two of its groups.
        """
        if by is not None:
            by = [None if is_null(value) else value for value in values(by, "by")]
            if len(by) != len(self):
                raise InvalidInputError(f"by has {len(by):,} values for {len(self):,} results")
            kinds: set[Any] = {type(value) for value in by if value is not None}
            if len(kinds) > 1 or list in kinds:
                # they have no order
                by = [None if value is None else str(value) for value in by]
        how = {"confidence": confidence, "together": together, "judge_error": judge_error}
        return counted(self, learned, by, level=level, compare=compare, **how)

    def check_labels(self, learned: Learned | None = None) -> LabelCheck:
        """Check the label set by the LLM's own answers: what is confused, unused or missing.

        It needs no judgments: it compares each text with its neighbors. The pairs of labels that
        neighbors have are shown with texts side by side, and what merging them gains.

        Parameters
        ----------
        learned : Learned, optional
            `TestNUC.learned`: then each pair has the number of judged texts that confirm it.

        Raises
        ------
        InvalidInputError
            A text can have several labels.
        """
        return checked_labels(self, self.choices, learned, self.diagnosis, self.none_label)

    def summary(self) -> str:
        """Return the outcome of the run in a few lines: labels, failures, calls and cost."""
        lines = outcome(self)
        if never := [label for label, texts in self.coverage.items() if not texts]:
            listed = f"{len(never):,} labels of {len(self.coverage):,}"
            lines.append(f"{listed} are in the shortlist of no text, such as {never[0][:60]!r}")
        if self.learned is not None:
            lines.append(self.learned)
        elif self.diagnosis is not None and self.stopped is None:
            lines.append(self.diagnosis.sentence())
        return "\n".join(lines)

    def to_pandas(
        self, debiased: Learned | EllipsisType = ..., *, probabilities: bool = False
    ) -> pd.DataFrame:
        """Return a pandas data frame with a row for each text, without neighbors and votes.

        It needs the extra ``frames``, as `to_review` and `to_polars` do.

        Parameters
        ----------
        debiased : Learned, optional
            Adds a column ``debiased_LABEL`` for each label, to be averaged or regressed on other
            variables in place of the label: the texts that were judged at random correct it. Use
            robust standard errors, clustered by text where texts repeat. It is no label of a text.
        probabilities : bool
            Adds a column ``probability_LABEL`` for each label: `Classification.probabilities`, 0
            for labels that it does not list, NaN where trust is unknown.

        Raises
        ------
        InvalidInputError
            `debiased` is None: nothing is learned.
        """
        columns = _columns(self)
        if debiased is not ...:
            more = pseudo_outcomes(self, debiased)
            columns |= {f"debiased_{label}": column for label, column in more.items()}
        if probabilities:
            chances = [result.probabilities for result in self]
            for label in self.choices or sorted({label for one in chances for label in one}):
                values = [one.get(label, 0.0) if one else math.nan for one in chances]
                columns[f"probability_{label}"] = values
        return data_frames("pandas").DataFrame(columns)

    def to_review(self, n: int | None = None) -> pd.DataFrame:
        """Return a pandas data frame, the least trusted texts first, unknown trust on top.

        Its index is the position of each text. (`nsmallest` and a filter drop unknown trust.)

        Parameters
        ----------
        n : int, optional
            Number of rows; default: all.
        """
        frame = self.to_pandas().sort_values("trust", na_position="first", kind="stable")
        return frame if n is None else frame.head(checked_whole("n", n, least=0))

    def to_polars(self) -> pl.DataFrame:
        """Return a polars data frame with a row for each text, without neighbors and votes."""
        library = data_frames("polars")
        # explicit types: a column may hold only None
        types = {"string": library.String, "float64": library.Float64}
        typed = {name: types[kind] for name, kind in CELLS.items() if kind in types}
        frame: pl.DataFrame = library.DataFrame(_columns(self), schema_overrides=typed)
        return frame

    def to_jsonl(self, path: str | os.PathLike[str]) -> None:
        """Write everything as JSON Lines: a line for each text, the last one for the run.

        ``testnuc report`` renders such a file as a page, and `from_jsonl` reads it back.
        """
        texts = (line_of({"text": one.text, **file_row(one, full=True)}) for one in self)
        # the last line is that of the run
        write_whole(path, chain(texts, [line_of(run_record(self))]))

    @classmethod
    def from_jsonl(cls, path: str | os.PathLike[str], *, text_column: str = "text") -> Results:
        """Read a file written by `to_jsonl` or ``testnuc classify -o FILE.jsonl``.

        Raises
        ------
        InvalidInputError
            It cannot be read, or was not written by testnuc.
        """
        return read_results(table(path), str(path), text_column)

    def to_html(
        self,
        path: str | os.PathLike[str],
        *,
        review: Review | None = None,
        title: str | None = None,
    ) -> None:
        """Write a self-contained HTML page for judging and browsing these results.

        It asks for the right label of the texts that look wrong, or of those of a review, and saves
        the answers as a file for `Review.load`. It shows the neighbors and votes of each text.

        Parameters
        ----------
        path : str or path
        review : Review, optional
            From `TestNUC.review`: the texts to be judged.
        title : str, optional
        """
        from testnuc.report import write

        write(self, path, review=review, title=title)

    def __repr__(self) -> str:
        failed = len(self.errors)
        more = f", {failed} with an error" if failed else ""
        if self.stopped is not None:
            more += f", stopped early by {type(self.stopped).__name__}"
        return f"<Results of {len(self)} texts{more}, {self.usage.calls} calls>"

    def _repr_html_(self) -> str:
        usage = self.usage
        summary = facts(
            f"Results of {len(self)} texts",
            [
                ("model", self.model),
                ("changed" if self.learned else "changed by the vote", self.changed),
                ("with an error", len(self.errors) or None),
                ("stopped early", None if self.stopped is None else str(self.stopped)),
                ("calls", usage.calls),
                ("US dollars", None if usage.usd is None else f"{usage.usd:.4f}"),
                ("seconds", f"{self.seconds:.1f}"),
            ],
        )
        shown = [(row.label, row.trust, row.own_label, row.text) for row in self[:10]]
        more = len(self) - len(shown)
        tail = f"<p>and {more:,} more</p>" if more else ""
        return summary + grid(["label", "trust", "the LLM said", "text"], shown) + tail
