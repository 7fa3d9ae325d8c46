"""What judgments say of the candidates, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from testnuc.trust.candidates import differing
from testnuc.trust.evidence import Draws, of_all
from testnuc.trust.learned import chosen_parts, rounded
from testnuc.trust.model import HeadModel, teach
from testnuc.trust.review_context import EarlierJudgment, ReviewContext

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from testnuc.labels import LabelSet
    from testnuc.trust.candidates import LabelCandidate, Verdict
    from testnuc.trust.judgment import Judgment
    from testnuc.trust.model import Texts

__all__ = [
    "Judged",
    "class_of",
    "context_of",
    "default_model",
    "dissent_of",
    "draws_of",
    "parts_of",
]


@dataclass(frozen=True, eq=False)
class Judged:
    """The judged texts among n, in the order they were drawn, with those that were skipped."""

    known: list[Judgment]
    #: int64[m], their positions.
    rows: NDArray[np.int64]
    draws: Draws

    @classmethod
    def of(cls, judged: Sequence[Judgment], place: Mapping[bytes, int]) -> Self:
        """Return those among the texts whose hashes have a place."""
        known = [j for j in judged if j.hash in place]
        rows = np.array([place[j.hash] for j in known], dtype=np.int64)
        return cls(known, rows, draws_of(known, len(place)))

    @cached_property
    def answered(self) -> NDArray[np.bool_]:
        """Which of them have an answer."""
        return np.array([j.source is not None for j in self.known], dtype=np.bool_)

    @property
    def person(self) -> NDArray[np.bool_]:
        """Which of them a person judged, or skipped."""
        return np.array([j.source != "referee" for j in self.known], dtype=np.bool_)


def class_of(label: str | None, source: str | None, labels: LabelSet) -> int:
    """Return the class of a judged label; -1: none of the labels, or skipped."""
    if label is None and source is not None:
        label = labels.none_label
    place = None if label is None else labels.index(label)
    return -1 if place is None else place


def draws_of(judged: Sequence[Judgment], texts: int) -> Draws:
    """Return the draws of judged texts; those that came to the pool later are taken to be alike.

    `judged` are all of them, in their order, of a pool of `texts` texts.
    """
    share = np.array([j.texts / texts for j in judged], dtype=np.float64)
    # None becomes NaN
    probability = np.array([j.probability for j in judged], dtype=np.float64)
    floor = np.array([j.floor for j in judged], dtype=np.float64)
    left = np.array([j.texts for j in judged], dtype=np.int64) - np.arange(len(judged))
    said = np.array([j.uniform is not None for j in judged], dtype=np.bool_)
    uniform = np.array([bool(j.uniform) for j in judged], dtype=np.bool_)
    uniform |= ~said & of_all(probability, floor, left)
    return Draws(texts, probability * share, floor * share, uniform)


def dissent_of(
    judged: Sequence[Judgment],
    rows: NDArray[np.int64],
    gold: NDArray[np.int32],
    candidates: Sequence[LabelCandidate],
) -> tuple[int, int]:
    """Return how often candidates agree with a referee that contradicts the LLM, and how not."""
    asked = np.array([j.source == "referee" for j in judged], dtype=np.bool_)
    against = asked & (gold >= 0) & (candidates[0].labels[rows] != gold)
    backed = np.zeros(len(rows), dtype=np.bool_)
    for candidate in candidates[1:]:
        backed |= candidate.labels[rows] == gold
    return int((against & backed).sum()), int((against & ~backed).sum())


def context_of(
    candidates: Sequence[LabelCandidate],
    judged: Sequence[Judgment],
    rows: Mapping[bytes, int],
    open_: NDArray[np.bool_],
    labels: LabelSet,
    instructions: str | None,
) -> ReviewContext:
    """Return what the page of a review shows, with the judgments before this review.

    `rows` is the position of each text of the pool, by hash; `open_`: bool[n], not judged.
    """
    drawn = [j for j in judged if j.hash in rows and j.probability is not None]
    draws = draws_of(drawn, len(rows))
    earlier = []
    for place, judgment in enumerate(drawn):
        label = class_of(judgment.label, judgment.source, labels)
        row = rows[judgment.hash]
        right = tuple(label >= 0 and int(c.labels[row]) == label for c in candidates)
        earlier.append(
            EarlierJudgment(
                float(draws.probability[place]), float(draws.floor[place]), label >= 0, right
            )
        )
    return ReviewContext(
        candidates=tuple((c.name, c.share, c.teachable) for c in candidates),
        earlier=tuple(earlier),
        differing=int((differing(candidates) & open_).sum()),
        unlabeled=int(((candidates[0].labels < 0) & open_).sum()),
        descriptions=labels.descriptions,
        instructions=instructions,
        none_label=labels.none_label,
    )


def default_model(candidates: Sequence[LabelCandidate]) -> HeadModel:
    """Return the model behind trust where none was chosen: the first with full care."""
    return chosen_parts(candidates)[1][1]


def parts_of(
    verdict: Verdict, candidates: Sequence[LabelCandidate], taught: Texts, *, every: bool
) -> tuple[HeadModel, Literal["settings", "vote", "head"], tuple[HeadModel, ...]]:
    """Return the model, what decides, and the models that bound where a taught one does."""
    chosen = verdict.chosen
    if not isinstance(chosen.model, HeadModel):
        kind: Literal["settings", "vote"] = "vote" if chosen.model.k else "settings"
        return default_model(candidates), kind, ()
    if chosen in candidates:
        return chosen.model, "head", ()
    model = chosen.model
    if not every:
        # judgments that prove nothing teach, too
        assert chosen.base is not None
        model = teach(chosen.base, taught)
    return rounded(model), "head", chosen_parts(candidates)[1]
