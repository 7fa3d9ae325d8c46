"""Several labels for one text: which options it allows, and the votes of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from testnuc._engine.neighborhoods import Neighborhoods
from testnuc.errors import InvalidInputError
from testnuc.methods import StandardPrompting
from testnuc.types import MultilabelPrediction, Reason
from testnuc.voting import (
    THRESHOLD,
    PoolLabels,
    VotedLabels,
    VotePolicy,
    VoteResult,
    keep_own,
    places_of,
    vote_multilabel,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from testnuc.protocols import Method
    from testnuc.types import Prediction

__all__ = [
    "MultilabelNeighborhoods",
    "check_options",
    "neighborhoods_class",
]


def check_options(
    multilabel: object,
    policy: str | VotePolicy,
    model: object,
    method: Method | None,
    confidence: str,
    **others: tuple[Any, Any],
) -> None:
    """Raise an `InvalidInputError` if an option is not supported with or without several labels.

    `others`: option -> (value given, the only value that several labels allow).
    """
    if not isinstance(multilabel, bool):
        raise InvalidInputError(f"multilabel is {multilabel!r}; give True or False")
    threshold = policy.threshold if isinstance(policy, VotePolicy) else None
    if not multilabel:
        if threshold is not None:
            raise InvalidInputError(
                f"threshold is {threshold!r}, but a text has one label, which needs none; leave "
                "threshold out, or set multilabel=True"
            )
        return
    _check_options(model, method, confidence, others)
    for name in ("prior", "min_trust"):
        value = getattr(policy, name, None)
        if value is not None:
            raise InvalidInputError(
                f"{name} is {value!r}, which multilabel=True does not support; leave {name} out"
                + (", or set the threshold of the policy" if name == "min_trust" else "")
            )


def _check_options(
    model: object,
    method: Method | None,
    confidence: str,
    others: Mapping[str, tuple[Any, Any]],
) -> None:
    if model == "local/zero-shot":
        raise InvalidInputError(
            "model 'local/zero-shot' gives one label; with multilabel=True choose an LLM"
        )
    if method is not None and not isinstance(method, StandardPrompting):
        raise InvalidInputError(
            f"method is {method!r}; with multilabel=True only StandardPrompting() is supported: "
            "leave method out"
        )
    if confidence != "verbalized":
        raise InvalidInputError(
            f"confidence is {confidence!r}; with multilabel=True the LLM states its confidence in "
            "each label: leave confidence out"
        )
    for name, (value, allowed) in others.items():
        if value is not allowed and value != allowed:
            raise InvalidInputError(
                f"{name} is {value!r}, which multilabel=True does not support yet; leave {name} out"
            )


_KEPT = Reason(
    "llm_kept", "several labels stay as the LLM gives them until judgments choose another way"
)


@dataclass(frozen=True, slots=True, eq=False)
class LearnedSets:
    """The labels of n texts by what was learned; those of text i are at starts[i]:starts[i + 1].

    Labels are ordered by share, largest first.
    """

    starts: NDArray[np.int64]
    labels: NDArray[np.int32]
    #: float32[T], what speaks for each label.
    shares: NDArray[np.float32]
    given: NDArray[np.bool_]
    #: float64[T], the chance that the label applies.
    chances: NDArray[np.float64]
    #: float64[n], the chance that all labels of the text are right; NaN = unknown.
    trust: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        n: int,
        row: NDArray[np.integer],
        labels: NDArray[np.integer],
        shares: NDArray[np.float32],
        given: NDArray[np.bool_],
        chances: NDArray[np.floating],
        trust: NDArray[np.float64],
    ) -> LearnedSets:
        """Return the labels of n texts, from pairs of text and label in any order."""
        order = np.lexsort((-shares, row))
        return cls(
            np.concatenate([[0], np.cumsum(np.bincount(row, minlength=n))]).astype(np.int64),
            labels[order].astype(np.int32),
            shares[order].astype(np.float32),
            given[order],
            chances[order].astype(np.float64),
            trust,
        )

    def over(
        self, voted: VotedLabels, rows: NDArray[np.int64], only: NDArray[np.bool_] | None = None
    ) -> VotedLabels:
        """Return votes on some of the texts with these labels.

        `rows`: int64[B], the texts voted on; `only`: bool[B], those that get these labels, or all.
        """
        if only is None:
            only = np.ones(len(rows), dtype=np.bool_)
        at, _ = places_of(self.starts, rows[only])
        row = voted.rows
        old = ~only[row]
        mine = np.repeat(np.flatnonzero(only), np.diff(self.starts)[rows[only]])
        row = np.concatenate([row[old], mine])
        order = np.argsort(row, kind="stable")
        counts = np.bincount(row, minlength=len(rows))
        return replace(
            voted,
            starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            labels=np.concatenate([voted.labels[old], self.labels[at]])[order],
            shares=np.concatenate([voted.shares[old], self.shares[at]])[order],
            given=np.concatenate([voted.given[old], self.given[at]])[order],
        )


class MultilabelNeighborhoods(Neighborhoods):
    """The texts of one run, each with several labels; see `Neighborhoods`."""

    #: The labels at each place; None: predictions were set since they were collected.
    _pool: PoolLabels | None = None
    #: Labels and trust of the own texts, from what was learned.
    sets: LearnedSets | None = None
    #: The same from a head in a file, of the texts that it labels instead of the LLM.
    by_head: LearnedSets | None = None

    def put(self, place: int, outcome: Prediction | Exception) -> None:
        """Set the prediction or the error of the text at a place."""
        self._pool = None
        if not isinstance(outcome, Exception):
            outcome = self.labels.several(outcome)
        super().put(place, outcome)

    @property
    def pool_labels(self) -> PoolLabels:
        """The LLM's labels at each place."""
        if self._pool is None:
            self._pool = PoolLabels.of([self._given(p) for p in self.predictions])
        return self._pool

    @property
    def threshold(self) -> float:
        """The threshold of the vote settings."""
        return THRESHOLD if self.policy.threshold is None else self.policy.threshold

    def voted(self, rows: slice | NDArray[np.int64]) -> VotedLabels:
        """Return the labels of some of the own texts; what was learned wins, and a head."""
        found, numbers = self.plain_labels(rows), np.arange(self.n_own)[rows]
        if self.sets is not None:
            found = self.sets.over(found, numbers)
        if self.by_head is not None:
            only = np.array([self._labeled_by_head(at) for at in numbers.tolist()], dtype=np.bool_)
            found = self.by_head.over(found, numbers, only)
        return found

    def _labeled_by_head(self, place: int) -> bool:
        return self.is_spared(place) and place not in self.judges

    def sets_of(self, place: int) -> LearnedSets | None:
        """Return what the labels and the trust of the own text at a place come from, if learned."""
        return self.by_head if self._labeled_by_head(place) else self.sets

    def plain_labels(self, rows: slice | NDArray[np.int64]) -> VotedLabels:
        """Vote for each label on some of the own texts, without regard to judgments."""
        k, own, pool = self.settings.k, np.arange(self.n_own)[rows], self.pool_labels
        voted = vote_multilabel(
            self.neighbors[rows, :k],
            self.similarities[rows, :k],
            own,
            pool,
            n_classes=len(self.labels.names),
            policy=self.policy,
            checked=True,
        )
        return keep_own(voted, own, pool) if self.settings.careful else voted

    def note_of_kept(self) -> str:
        """Return how many texts a vote would change, where all keep the LLM's own labels."""
        if not self.settings.keeps_own or self.settings.several is not None:
            return ""
        found = self.plain_labels(slice(0, self.n_own))
        other = (found.shares > THRESHOLD) != found.given
        # at the threshold, the text itself decides
        changed = len(np.unique(found.rows[other & (found.shares != THRESHOLD)]))
        if not changed:
            return ""
        return (
            f"the LLM's own labels are kept; a vote of neighbors would change those of {changed:,} "
            f"of {self.n_own:,} texts, and fifty judgments show whether it should"
        )

    def _given(self, prediction: Prediction | None) -> list[tuple[int, float | None]] | None:
        if not isinstance(prediction, MultilabelPrediction) or prediction.label is None:
            return None
        return [
            (place, confidence)
            for place, confidence in zip(
                map(self.labels.index, prediction.labels), prediction.confidences, strict=True
            )
            if place is not None
        ]

    def vote(self, rows: slice | NDArray[np.int64], *, votes: bool = False) -> VoteResult:
        """Vote on some of the own texts; label 0 means that it is known which labels they have."""
        return self.result(self.voted(rows), rows, votes=votes)

    def result(
        self, voted: VotedLabels, rows: slice | NDArray[np.int64], *, votes: bool = False
    ) -> VoteResult:
        """Return the labels of some of the own texts, from `voted`, as one vote for each text."""
        n_rows, row_of = len(voted.voters), voted.rows
        # the closest decision: most weight against it
        share = (voted.voters > 0).astype(np.float32)
        np.minimum.at(share, row_of, np.where(voted.given, voted.shares, 1 - voted.shares))
        places = np.arange(self.n_own)[rows]
        answered = np.array(
            [
                i in self.judges
                or self.is_spared(i)
                or self._given(self.predictions[i]) is not None
                for i in places.tolist()
            ]
        )
        table = None
        if votes:
            table = np.zeros((n_rows, len(self.labels.names)))
            table[row_of, voted.labels] = voted.shares * voted.weight[row_of]
        return VoteResult(
            label=np.where((voted.voters > 0) | answered, 0, -1).astype(np.int32),
            share=share,
            margin=np.maximum(2 * share - 1, 0),
            weight=voted.weight,
            voters=voted.voters,
            votes=table,
        )

    def reason(self, place: int) -> Reason | None:
        """Return why the neighbors of the own text at `place` do not decide; None: they do."""
        found = super().reason(place)
        if found is None and self.settings.keeps_own and self.pool_labels.voted[place]:
            return _KEPT
        return found

    def source(self, place: int, voters: int) -> str:
        """Return what gave the labels of the own text at `place`."""
        learned = self.settings.several
        if place in self.judges or learned is None or self.sets is None:
            return super().source(place, voters)
        if learned.decides in {"llm", "head"}:
            return learned.decides
        return super().source(place, voters)

    def cut(self, rows: NDArray[np.int64], known: int) -> NDArray[np.bool_]:  # noqa: ARG002
        """Return no early exit: every voter counts in the share of every label."""
        return np.zeros(len(rows), dtype=np.bool_)


def neighborhoods_class(*, multilabel: bool) -> type[Neighborhoods]:
    """Return the class of a run's neighborhoods."""
    return MultilabelNeighborhoods if multilabel else Neighborhoods
