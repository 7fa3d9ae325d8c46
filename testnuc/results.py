"""The records a user gets back: frozen, slotted, and cheap to make by the million."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, overload, runtime_checkable

if TYPE_CHECKING:
    import os

    import pandas as pd
    import polars as pl

__all__ = [
    "Classification",
    "Estimate",
    "LaneEstimate",
    "Neighbor",
    "PoolStats",
    "Prediction",
    "Results",
    "Usage",
]

#: Rows that a notebook shows.
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the LLM said of one text."""

    #: The label of the set that the answer means; None: the answer is outside the set, it abstains.
    label: str | None
    #: The LLM's own confidence in 0..1; None where it gave none.
    confidence: float | None = None
    #: The answer as it was given, where it differs from `label`.
    said: str | None = None


@dataclass(frozen=True, slots=True)
class Neighbor:
    """An unlabeled text near the classified one, and what was predicted for it."""

    text: str
    #: Cosine of the two embeddings, 1 = same direction.
    similarity: float
    #: None: no prediction, or one outside the label set.
    label: str | None
    confidence: float | None


@dataclass(frozen=True, slots=True)
class Classification:
    """The label of one text, and all that led to it."""

    #: Position of the text in the input.
    index: int
    text: str
    #: The winner of the vote; None where nobody could say.
    label: str | None
    #: The winner's part of the vote's weight, 0..1.
    share: float
    #: Winner minus runner-up, as parts of the vote's weight, 0..1.
    margin: float
    #: How many voted, the text itself included.
    voters: int
    #: False where neighbors were left unasked because the winner was certain.
    complete: bool
    #: The text's own prediction; None where its call failed.
    prediction: Prediction | None
    #: The neighbors, most similar first.
    neighbors: tuple[Neighbor, ...] = ()
    #: label -> weight of its votes, heaviest first.
    votes: Mapping[str, float] = field(default_factory=dict)
    #: Why the text's own call failed, or why the text is invalid.
    error: Exception | None = None
    #: How far the label can be trusted, 0..1: its part of the vote (under auto of all neighbors
    #: that were looked at, also where they do not decide), calibrated if the client is; None with
    #: fewer than three voters, or where the vote is not complete.
    trust: float | None = None
    #: Why there is no label although somebody voted; why the neighbors did not decide.
    reason: str | None = None

    @property
    def own_label(self) -> str | None:
        """The label of the text's own prediction; None where there is none."""
        return None if self.prediction is None else self.prediction.label

    @property
    def changed(self) -> bool:
        """Whether the vote gave another label than the text's own prediction."""
        return None not in {self.own_label, self.label} and self.label != self.own_label

    def explain(self) -> str:
        """Return how the label came about, in a few lines."""
        own = self.own_label
        lines = [f"{self.text[:100]!r} is labeled {self.label!r}"]
        if self.prediction is None:
            lines.append("the text has no prediction of its own")
        else:
            sure = self.prediction.confidence
            lines.append(
                f"the LLM said {own!r}" + ("" if sure is None else f" (confidence {sure:.2f})")
            )
        if self.voters > 1:
            votes = ", ".join(f"{label!r} {weight:.2f}" for label, weight in self.votes.items())
            lines.append(f"{self.voters} voted: {votes}")
        if self.changed:
            lines.append("its neighbors overruled it:")
            lines.extend(
                f"  {n.similarity:.2f} {n.label!r} {n.text[:70]!r}" for n in self.neighbors[:5]
            )
        if self.trust is not None:
            lines.append(f"trust {self.trust:.2f}")
        if self.reason is not None:
            lines.append(self.reason)
        if self.error is not None:
            lines.append(f"error: {self.error}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from testnuc.markup import cut, facts, grid

        own = self.prediction
        said = None if own is None else own.label or own.said or "nothing usable"
        votes = ", ".join(f"{label}: {weight:.2f}" for label, weight in self.votes.items())
        told = facts(
            cut(self.text),
            [
                ("label", self.label if self.label is not None else "none"),
                ("trust", None if self.trust is None else f"{self.trust:.2f}"),
                ("the LLM said", said),
                ("votes", votes or None),
                ("reason", self.reason),
                ("error", self.error),
            ],
        )
        if not self.neighbors:
            return told
        near = [(n.similarity, n.label, n.confidence, n.text) for n in self.neighbors]
        return told + grid(["similarity", "label", "confidence", "neighbor"], near)


@dataclass(frozen=True, slots=True)
class Usage:
    """What was spent. None means unknown, never 0."""

    #: Calls that the provider answered.
    calls: int = 0
    #: Tokens sent, cached ones included.
    input_tokens: int | None = 0
    #: Tokens sent that the provider served from its prompt cache.
    cached_tokens: int | None = 0
    output_tokens: int | None = 0
    #: US dollars by the price list; None where the model has no known price.
    usd: float | None = 0.0
    #: Predictions that were in the store already.
    store_hits: int = 0
    #: Predictions that another request in flight was already asking for.
    coalesced: int = 0
    #: Requests sent again after a failure.
    retries: int = 0


@dataclass(frozen=True, slots=True)
class LaneEstimate:
    """What a run would take in one lane. None means unknown."""

    #: "live" or "batch".
    lane: str
    calls: int
    input_tokens: int | None
    output_tokens: int | None
    usd: float | None
    #: Seconds that it takes at least, by the client's own rate limit.
    least_seconds: float | None = None
    #: Seconds that it takes at most, by the provider's word; what fails and is sent again is not in
    #: it.
    most_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Estimate(Usage):
    """What a run would use: in the live lane, and in each lane that the provider has.

    ``print`` it for a table.
    """

    lanes: tuple[LaneEstimate, ...] = ()

    def __str__(self) -> str:
        rows = [("lane", "calls", "input tokens", "output tokens", "usd", "hours")]
        for lane in self.lanes:
            least, most = lane.least_seconds, lane.most_seconds
            hours = "unknown" if least is None else f"at least {least / 3600:.2f}"
            hours = hours if most is None else f"at most {most / 3600:.0f}"
            rows.append(
                (
                    lane.lane,
                    f"{lane.calls:,}",
                    "unknown" if lane.input_tokens is None else f"{lane.input_tokens:,}",
                    "unknown" if lane.output_tokens is None else f"{lane.output_tokens:,}",
                    "unknown" if lane.usd is None else f"{lane.usd:.4f}",
                    hours,
                )
            )
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = [
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        if self.store_hits:
            lines.append(f"{self.store_hits:,} predictions are stored already")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class PoolStats:
    """What the pool and the store hold for one client."""

    #: Texts in the pool.
    texts: int
    #: Texts with a stored prediction of this model, label set, prompt and sampling.
    predicted: int
    #: The model, as ``provider/name``.
    model: str
    #: How many labels the client chooses from.
    labels: int


@runtime_checkable
class _Columns(Protocol):
    """Rows that can tell labels and failures without being made."""

    def labels(self) -> list[str | None]: ...

    def failed(self) -> list[int]: ...

    def changed(self) -> int: ...

    def __getitem__(self, index: int, /) -> Classification: ...


class Results(Sequence[Classification]):
    """The classifications of `classify_many`, in the order of the texts.

    Rows may be made only when they are looked at, so that a million results stay small.
    """

    def __init__(
        self,
        rows: Sequence[Classification],
        usage: Usage,
        seconds: float,
        *,
        model: str | None = None,
        choices: Sequence[str] = (),
    ) -> None:
        self._rows = rows
        #: What these results cost, this run alone.
        self.usage = usage
        #: Wall-clock seconds of the run.
        self.seconds = seconds
        #: The model that was asked, as ``provider/name``; None where it is not known.
        self.model = model
        #: The labels that were to choose from; empty where they are not known.
        self.choices = tuple(choices)

    @property
    def labels(self) -> list[str | None]:
        """The label of each text."""
        if isinstance(self._rows, _Columns):
            return self._rows.labels()
        return [row.label for row in self._rows]

    @property
    def errors(self) -> list[Classification]:
        """The results that carry an error."""
        if isinstance(self._rows, _Columns):
            return [self._rows[at] for at in self._rows.failed()]
        return [row for row in self._rows if row.error is not None]

    @property
    def changed(self) -> int:
        """How many texts have another label than their own prediction's."""
        if isinstance(self._rows, _Columns):
            return self._rows.changed()
        return sum(row.changed for row in self)

    def to_pandas(self) -> pd.DataFrame:
        """Return a pandas data frame with a row for each text, without neighbors and votes.

        Raises
        ------
        MissingDependencyError
            pandas is not installed.
        """
        from testnuc.records import pandas_frame

        return pandas_frame(self)

    def to_polars(self) -> pl.DataFrame:
        """Return a polars data frame with a row for each text, without neighbors and votes.

        Raises
        ------
        MissingDependencyError
            polars is not installed.
        """
        from testnuc.records import polars_frame

        return polars_frame(self)

    def to_jsonl(self, path: str | os.PathLike[str]) -> None:
        """Write all of it as JSON Lines: a line for each text, the last one for the run.

        ``testnuc report`` makes a page of such a file, and `from_jsonl` reads it back.
        """
        from testnuc.records import write_jsonl

        write_jsonl(self, path)

    @classmethod
    def from_jsonl(cls, path: str | os.PathLike[str], *, text_column: str = "text") -> Results:
        """Read what `to_jsonl` or ``testnuc classify -o FILE.jsonl`` wrote.

        Raises
        ------
        InvalidInputError
            It cannot be read, or was not written by testnuc.
        """
        from testnuc.records import results_of, table

        return results_of(table(path), str(path), text_column)

    def to_html(self, path: str | os.PathLike[str], *, title: str | None = None) -> None:
        """Write a page to look at these results with: one file that needs nothing else.

        It shows labels, trust, cost and what the vote changed, what to review first, and for any
        text its neighbors and votes. What is marked there as right or wrong can be downloaded;
        `read_marks` makes it the arguments of `TestNUC.tune` and `TestNUC.calibrate`.
        """
        from testnuc.report import write

        write(self, path, title=title)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Classification: ...

    @overload
    def __getitem__(self, index: slice) -> list[Classification]: ...

    def __getitem__(self, index: int | slice) -> Classification | list[Classification]:
        if isinstance(index, slice):
            return [self._rows[i] for i in range(*index.indices(len(self._rows)))]
        return self._rows[index]

    def __iter__(self) -> Iterator[Classification]:
        return iter(self._rows)

    def __repr__(self) -> str:
        failed = len(self.errors)
        more = f", {failed} with an error" if failed else ""
        return f"<Results of {len(self)} texts{more}, {self.usage.calls} calls>"

    def _repr_html_(self) -> str:
        from testnuc.markup import facts, grid

        usage = self.usage
        told = facts(
            f"Results of {len(self)} texts",
            [
                ("model", self.model),
                ("changed by the vote", self.changed),
                ("with an error", len(self.errors) or None),
                ("calls", usage.calls),
                ("US dollars", None if usage.usd is None else f"{usage.usd:.4f}"),
                ("seconds", f"{self.seconds:.1f}"),
            ],
        )
        shown = [(row.label, row.trust, row.own_label, row.text) for row in self[:_SHOWN]]
        more = len(self) - len(shown)
        tail = f"<p>and {more:,} more</p>" if more else ""
        return told + grid(["label", "trust", "the LLM said", "text"], shown) + tail
