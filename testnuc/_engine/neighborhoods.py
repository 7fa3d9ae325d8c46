"""The texts of one run, with neighbors, predictions and votes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from testnuc.protocols import PoolText
from testnuc.trust import (
    MAX_NEIGHBORS,
    Applied,
    Decision,
    Diagnosis,
    VoteSettings,
    correct,
    diagnose,
    factors,
)
from testnuc.types import Neighbor, Prediction, Reason
from testnuc.voting import VotePolicy, VoteResult, decided, vote_pool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from testnuc.labels import LabelSet
    from testnuc.trust.model import HeadModel

__all__ = [
    "LEAST_VOTERS",
    "Neighborhoods",
    "Snapshot",
    "load_kernels",
]

#: Neighbors in the first wave, and the fewest in each further wave.
_FIRST_WAVE = 5
#: Rows whose vote weights of all labels are in memory at a time, and their weights.
_BLOCK, _CELLS = 4_096, 16_000_000
#: With fewer voters, a share is not a useful estimate of trust.
LEAST_VOTERS = 3


@dataclass(slots=True, eq=False)
class Snapshot:
    """The pool as of one moment, and the data for few-shot examples from it."""

    #: Version of the pool, as returned by `Index.add`.
    upto: int
    #: Vectors of the own texts if they do not join the pool, by hash.
    vectors: dict[bytes, NDArray[np.float16]] = field(default_factory=dict)
    #: Hashes of the texts that may be predicted to label an example; None: all.
    askable: frozenset[bytes] | None = None
    #: Labels shown with examples, by hash; None: shown without a label.
    labels: dict[bytes, str | None] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class Neighborhoods:
    """The distinct texts of one snapshot, by place: own texts first, then their neighbors."""

    labels: LabelSet
    settings: VoteSettings
    #: The text at each place; the first `n_own` are the texts to classify.
    entries: list[PoolText]
    n_own: int
    #: int64[n_own, K], places of the neighbors of each, most similar first; padded with -1.
    neighbors: NDArray[np.int64]
    #: float32[n_own, K].
    similarities: NDArray[np.float32]
    #: Of a method with few-shot examples.
    snapshot: Snapshot | None = None
    #: Errors of own texts that the embedder rejected: they have no neighbors.
    rejected: Mapping[int, Exception] = field(default_factory=dict)

    def __post_init__(self) -> None:
        #: The decision of the auto policy, or of `learn`; else None.
        self.decision: Decision | None = None
        #: The diagnosis behind the decision, if one was made.
        self.diagnosis: Diagnosis | None = None
        self._scale: NDArray[np.float64] | None = None
        #: Labels and trust of the own texts, from what was learned.
        self.applied: Applied | None = None
        #: Place -> "person" or "referee", of judged texts.
        self.judges: dict[int, str] = {}
        #: Labels and trust of own texts that a head labels instead of the LLM; -1 = the LLM does.
        self.spared: NDArray[np.int32] | None = None
        self.spared_trust: NDArray[np.float64] | None = None
        #: The learned model, fitted again on this run.
        self.refitted: HeadModel | None = None
        #: For `Results.notes`; empty ones are left out.
        self.notes: list[str] = []
        #: The labels that the prompt of each own text shows, int32[n_own, length]; None: all.
        self.shortlists: NDArray[np.int32] | None = None
        #: Number of neighbors that count; reduced by early exit.
        self.counted = (self.neighbors >= 0).sum(axis=1)
        self.complete = np.ones(self.n_own, dtype=np.bool_)
        self.predictions: list[Prediction | None] = [None] * len(self.entries)
        self.errors: dict[int, Exception] = {}
        #: The error that ended the run while the neighbors were retrieved.
        self.failure: Exception | None = None
        #: Place -> sample -> outcome, of texts that lack some samples.
        self.partial: dict[int, dict[int, Prediction | Exception]] = {}
        self._winners = np.full(len(self.entries), -1, dtype=np.int32)
        self._confidences = np.full(len(self.entries), np.nan, dtype=np.float32)
        for place, entry in enumerate(self.entries):
            if entry.label is not None:
                self.put(place, Prediction(entry.label, 1.0))

    def put(self, place: int, outcome: Prediction | Exception) -> None:
        """Set the prediction or the error of the text at a place."""
        if isinstance(outcome, Exception):
            self.errors[place] = outcome
            return
        self.predictions[place] = outcome
        if outcome.label is not None:
            index = self.labels.index(outcome.label)
            self._winners[place] = -1 if index is None else index
        if outcome.confidence is not None:
            self._confidences[place] = outcome.confidence

    def answers(self) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return label and confidence at each place; -1 and NaN if missing."""
        return self._winners, self._confidences

    def has_outcome(self, place: int) -> bool:
        """Whether the text at a place has an outcome."""
        return self.predictions[place] is not None or place in self.errors

    @property
    def any_answered(self) -> bool:
        """Whether the LLM answered, now or before, about any of the own texts."""
        own = zip(self.predictions[: self.n_own], self.entries, strict=False)
        return any(said is not None and entry.label is None for said, entry in own)

    def near(self, place: int, most: int) -> tuple[Neighbor, ...]:
        """Return the nearest neighbors of the own text at a place, most similar first."""
        found = []
        for other, similarity in zip(
            self.neighbors[place, :most].tolist(),
            self.similarities[place, :most].tolist(),
            strict=True,
        ):
            if other >= 0:
                said = self.predictions[other]
                label, confidence = (None, None) if said is None else (said.label, said.confidence)
                found.append(Neighbor(self.entries[other].text, similarity, label, confidence))
        return tuple(found)

    def error(self, place: int) -> Exception | None:
        """Return what failed for the own text at a place: its call, or else its embedding."""
        return self.errors.get(place) or self.rejected.get(place)

    @property
    def policy(self) -> VotePolicy:
        """The vote policy; weighted by similarity until one is decided."""
        return self.settings.policy or VotePolicy.weighted()

    def diagnose(self) -> Diagnosis:
        """Diagnose the predictions of the own texts and their neighbors."""
        return diagnose(
            self.neighbors,
            self.similarities,
            self._winners,
            n_classes=len(self.labels.names),
            row_ids=np.arange(self.n_own, dtype=np.int64),
            k=self.settings.k if self.settings.fixed_k else None,
        )

    def decide(self, decision: Decision, diagnosis: Diagnosis | None = None) -> None:
        """Apply a decision to the vote settings."""
        self.decision, self.diagnosis = decision, diagnosis
        self.settings = replace(
            self.settings, policy=decision.policy or VotePolicy.weighted(), k=decision.k
        )
        self.counted = (self.neighbors[:, : decision.k] >= 0).sum(axis=1)

    @property
    def _block(self) -> int:
        return max(1, min(_BLOCK, _CELLS // len(self.labels.names)))

    def decide_by_settings(self) -> None:
        """Under auto, apply the decision of the settings, or else that of a diagnosis of these."""
        if self.settings.policy is not None:
            return
        decision, diagnosis = self.settings.decision, None
        if decision is None:
            diagnosis = self.diagnose()
            decision = diagnosis.decision
        self.decide(decision, diagnosis)

    def balance(self) -> None:
        """Compute the prior correction; call it when all predictions are set."""
        prior = self.settings.prior
        if prior is None:
            return
        mass = np.zeros(len(prior))
        for start in range(0, self.n_own, self._block):
            votes = self._vote(slice(start, start + self._block), votes=True).votes
            assert votes is not None
            mass += votes.sum(axis=0)
        self._scale = factors(mass, prior, self.settings.prior_power)

    def spare(
        self, rows: NDArray[np.int64], labels: NDArray[np.int32], trust: NDArray[np.floating]
    ) -> None:
        """Let a head label some of the own texts; these need no prediction."""
        if self.spared is None or self.spared_trust is None:
            self.spared = np.full(self.n_own, -1, dtype=np.int32)
            self.spared_trust = np.zeros(self.n_own)
        self.spared[rows], self.spared_trust[rows] = labels, trust

    def is_spared(self, place: int) -> bool:
        """Whether a head labels the own text at a place."""
        return self.spared is not None and self.spared[place] >= 0

    @property
    def n_spared(self) -> int:
        """Number of own texts that a head labels."""
        return 0 if self.spared is None else int((self.spared >= 0).sum())

    def vote_with_head(self, rows: slice | NDArray[np.int64], *, votes: bool = False) -> VoteResult:
        """Vote on some of the own texts; a head wins where the LLM was not asked."""
        result = self.corrected_vote(rows, votes=votes)
        if self.spared is None:
            return result
        by_head = self.spared[rows] >= 0
        return replace(
            result,
            label=np.where(by_head, self.spared[rows], result.label).astype(np.int32),
            share=np.where(by_head, 0, result.share).astype(np.float32),
            margin=np.where(by_head, 0, result.margin).astype(np.float32),
        )

    def vote(self, rows: slice | NDArray[np.int64], *, votes: bool = False) -> VoteResult:
        """Vote on some of the own texts; what was learned wins."""
        result = self.vote_with_head(rows, votes=votes)
        applied = self.applied
        if applied is None:
            return result
        label, judged = applied.label[rows], applied.judged[rows]
        share, margin, weights = result.share, result.margin, result.votes
        at = np.arange(len(label))
        if applied.shares is not None:
            weights = applied.shares[rows].astype(np.float64)
            share = np.where(label >= 0, weights[at, label], 0)
            others = weights.copy()
            others[at, label] = 0
            margin = np.maximum(share - others.max(axis=1), 0)
            voters = 1 + (self.neighbors[rows, :MAX_NEIGHBORS] >= 0).sum(axis=1)
            result = replace(result, voters=voters.astype(result.voters.dtype))
        # nothing speaks for another label than the judged one
        alone = (label >= 0).astype(np.float32)
        if votes:
            assert weights is not None
            weights = np.where(judged[:, None], 0, weights)
            weights[at[judged], label[judged]] = alone[judged]
        return replace(
            result,
            label=label,
            share=np.where(judged, alone, share).astype(np.float32),
            margin=np.where(judged, alone, margin).astype(np.float32),
            votes=weights if votes else None,
        )

    def corrected_vote(self, rows: slice | NDArray[np.int64], *, votes: bool = False) -> VoteResult:
        """Vote on some of the own texts, without regard to judgments and learned models."""
        if self._scale is None:
            return self._vote(rows, votes=votes)
        numbers = np.arange(self.n_own)[rows]
        step = self._block
        parts = [numbers[i : i + step] for i in range(0, len(numbers), step)]
        return _joined([self._corrected(part) for part in parts or [numbers]], votes=votes)

    def _corrected(self, rows: NDArray[np.int64]) -> VoteResult:
        assert self._scale is not None
        result = self._vote(rows, votes=True)
        assert result.votes is not None
        return replace(correct(result, result.votes, self._scale), votes=result.votes * self._scale)

    def _vote(self, rows: slice | NDArray[np.int64], *, votes: bool = False) -> VoteResult:
        k = self.settings.k
        neighbors = self.neighbors[rows, :k]
        if self.decision is not None and self.decision.kept:
            kept = np.isin(self._winners[: self.n_own][rows], self.decision.kept)
            neighbors = np.where(kept[:, None], np.int64(-1), neighbors)
        return vote_pool(
            neighbors,
            self.similarities[rows, :k],
            self._winners,
            self._confidences,
            self._winners[: self.n_own][rows],
            self._confidences[: self.n_own][rows],
            n_classes=len(self.labels.names),
            policy=self.policy,
            votes=votes or None,
        )

    def basis(self, place: int, single: VoteResult) -> tuple[NDArray[np.float64], int]:
        """Return the weight of each label in the votes that trust rests on, and their number.

        Under a given policy these are the votes that decide, `single`. Under auto they are those of
        the text itself and all its neighbors, by similarity, also where they do not decide.
        """
        if self.settings.auto and self.applied is None and not self.is_spared(place):
            rows = np.array([place])
            single = vote_pool(
                self.neighbors[rows],
                self.similarities[rows],
                self._winners,
                None,
                self._winners[rows],
                None,
                n_classes=len(self.labels.names),
                votes=True,
            )
        assert single.votes is not None
        return single.votes[0], int(single.voters[0])

    def trust(
        self, place: int, winner: int, share: float, basis: tuple[NDArray[np.float64], int]
    ) -> float | None:
        """Return how far a label can be trusted: its share of the votes in `basis`.

        `share` is that of the votes that decide.
        """
        if self.applied is not None:
            chance = float(self.applied.trust[place])
            return None if np.isnan(chance) else chance
        if self.spared_trust is not None and self.is_spared(place):
            return float(self.spared_trust[place])
        if winner < 0 or not self.complete[place]:
            return None
        weights, voters = basis
        if self.settings.auto:
            share = float(weights[winner] / weights.sum()) if voters else 0.0
        return share if voters >= LEAST_VOTERS else None

    def alternative(
        self, place: int, winner: int, basis: tuple[NDArray[np.float64], int]
    ) -> tuple[int, float] | None:
        """Return the label other than `winner` that is trusted most, and its trust.

        None: no voter has another label, or trust is unknown.
        """
        if self.applied is not None:
            return self.applied.alternative(place)
        if self.is_spared(place):
            return None
        weights = basis[0].copy()
        total = float(weights.sum())
        if winner >= 0:
            weights[winner] = 0
        other = int(weights.argmax())
        if weights[other] <= 0:
            return None
        trust = self.trust(place, other, float(weights[other]) / total, basis)
        return (other, trust) if trust else None

    def reason(self, place: int) -> Reason | None:
        """Return why the neighbors of the own text at `place` do not decide; None: they do."""
        judge = self.judges.get(place)
        if judge is not None:
            none = self.applied is not None and self.applied.label[place] < 0
            said = Reason("none_of_the_labels", f"a {judge} said that none of the labels is right")
            return said if none else None
        if place in self.rejected:
            return Reason("not_embedded", "the embedder rejected the text: it has no neighbors")
        if self.decision is None or self.settings.head_decides or self.is_spared(place):
            return None
        if self.decision.policy is None:
            return Reason("llm_kept", self.decision.reason)
        if self._winners[place] in self.decision.kept:
            name = self.labels.names[self._winners[place]]
            return Reason(
                "neighbors_disagree",
                f"near neighbors disagree with the vote on texts labeled {name!r}: "
                "the LLM's label is kept",
            )
        return None

    def source(self, place: int, voters: int) -> str:
        """Return what gave the label of the own text at `place`."""
        if place in self.judges:
            return self.judges[place]
        decides = self.settings.head_decides and self.applied is not None
        if (decides or self.is_spared(place)) and place not in self.rejected:
            return "head"
        return "llm" if voters <= 1 or self.reason(place) is not None else "vote"

    def cut(self, rows: NDArray[np.int64], known: int) -> NDArray[np.bool_]:
        """Exit early where the winner is certain after `known` neighbors; returns bool[len(rows)].

        In these rows only the first `known` neighbors count, even if more have predictions, so that
        the result does not depend on the contents of the store.
        """
        ids = self.neighbors[rows]
        own = self._winners[rows][:, None]
        labels = np.where(ids >= 0, self._winners[ids], -1).astype(np.int32)
        confidences = np.where(ids >= 0, self._confidences[ids], np.nan).astype(np.float32)
        similarities = np.where(ids >= 0, self.similarities[rows], 0).astype(np.float32)
        certain = decided(
            np.concatenate([own, labels], axis=1),
            np.concatenate([np.ones_like(own, dtype=np.float32), similarities], axis=1),
            np.concatenate([self._confidences[rows][:, None], confidences], axis=1),
            np.full(len(rows), 1 + known, dtype=np.int64),
            n_classes=len(self.labels.names),
            policy=self.policy,
        )
        stopped = rows[certain & (self.counted[rows] > known)]
        self.complete[stopped] = False
        self.counted[stopped] = known
        self.neighbors[stopped, known:] = -1
        return certain

    def waves(self) -> list[int]:
        """Return the numbers of neighbors at which each wave ends: 5, 10, 15, 20, 25, 31, .., all.

        A wave costs a round trip, an unnecessary neighbor costs a call: each wave adds a quarter of
        the neighbors before it. On recorded answers (77 labels, k = 30) doubling saves 14 % of the
        neighbor calls, these steps 21 %, single ones 25 %.
        """
        width = self.neighbors.shape[1]
        ends = [_FIRST_WAVE]
        while ends[-1] < width:
            ends.append(ends[-1] + max(_FIRST_WAVE, ends[-1] // 4))
        return [*ends[:-1], width]


def load_kernels(
    labels: LabelSet, settings: VoteSettings, kind: type[Neighborhoods] = Neighborhoods
) -> None:
    """Compile or load the kernels by a dummy vote, which can take seconds."""
    texts = [PoolText("a", b"a"), PoolText("b", b"b")]
    neighbors = np.array([[1], [0]], dtype=np.int64)
    ones = np.ones((2, 1), dtype=np.float32)
    neighborhoods = kind(labels, settings, texts, 2, neighbors, ones)
    neighborhoods.vote(slice(0, 2))
    neighborhoods.vote(slice(0, 2), votes=True)
    neighborhoods.cut(np.arange(2), 1)


def _joined(parts: Sequence[VoteResult], *, votes: bool) -> VoteResult:
    tables = [part.votes for part in parts if part.votes is not None]
    return VoteResult(
        label=np.concatenate([part.label for part in parts]),
        share=np.concatenate([part.share for part in parts]),
        margin=np.concatenate([part.margin for part in parts]),
        weight=np.concatenate([part.weight for part in parts]),
        voters=np.concatenate([part.voters for part in parts]),
        votes=np.concatenate(tables) if votes else None,
    )
