"""The records a user gets back: frozen, slotted, and cheap to make by the million."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "UNKNOWN",
    "Classification",
    "Estimate",
    "LaneEstimate",
    "Neighbor",
    "PoolStats",
    "Prediction",
    "Usage",
]


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
        from testnuc._base.html import cut, facts, grid

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


#: What a file without that record says of what was spent.
UNKNOWN = Usage(input_tokens=None, cached_tokens=None, output_tokens=None, usd=None)
