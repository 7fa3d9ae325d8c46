"""The vote on the own texts of a batch, and the settings that a run decides."""

from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np

from testnuc import voting
from testnuc._base.arrays import Bools, Float64s, Int64s
from testnuc._base.checks import IMPORTING
from testnuc._engine.batch import Answers, TextBatch
from testnuc.labels import LabelSet
from testnuc.protocols import PoolText
from testnuc.trust.auto_policy import VoteSettings, correct, diagnose, factors
from testnuc.trust.diagnosis import Decision, Diagnosis
from testnuc.types import Prediction
from testnuc.voting import Labels, VotePolicy, VoteResult

#: Neighbors in the first wave, and the fewest in each further wave.
_FIRST_WAVE = 5
#: Rows whose vote weights of all labels are in memory at a time, and their weights.
_BLOCK, _CELLS = 4_096, 16_000_000
#: With fewer voters, a share is not a useful estimate of trust.
LEAST_VOTERS = 3


class Votes:
    """Votes of the texts of a batch and their neighbors."""

    def __init__(self, batch: TextBatch, answers: Answers, settings: VoteSettings) -> None:
        self._batch, self._answers = batch, answers
        self._n_classes = len(batch.labels.names)
        #: Replaced as a whole by `decide`.
        self.settings = settings
        #: The decision of the auto policy, or of `learn`; else None.
        self.decision: Decision | None = None
        #: The diagnosis behind the decision, if one was made.
        self.diagnosis: Diagnosis | None = None
        #: bool[n_own], False after an early exit.
        self.complete = np.ones(batch.n_own, dtype=np.bool_)
        #: int64[n_own], neighbors of each text that may vote; fewer after an early exit.
        self._limit = np.full(batch.n_own, batch.neighbors.shape[1], dtype=np.int64)
        #: float64[C], the prior correction.
        self._scale: Float64s | None = None

    @property
    def policy(self) -> VotePolicy:
        """The vote policy; weighted by similarity until one is decided."""
        return self.settings.policy or VotePolicy.weighted()

    def neighbors(self, rows: slice | Int64s) -> Int64s:
        """Return the neighbors that count, int64[B, K]; -1 = none, or not after an early exit."""
        neighbors = self._batch.neighbors[rows]
        if self.complete[rows].all():
            return neighbors
        beyond = np.arange(neighbors.shape[1]) >= self._limit[rows][:, None]
        return np.where(beyond, np.int64(-1), neighbors)

    def diagnose(self) -> Diagnosis:
        """Diagnose the predictions of the own texts and their neighbors."""
        return diagnose(
            self._batch.neighbors,
            self._batch.similarities,
            self._answers.label,
            n_classes=self._n_classes,
            row_ids=np.arange(self._batch.n_own, dtype=np.int64),
            k=self.settings.k if self.settings.fixed_k else None,
        )

    def decide(self, decision: Decision, diagnosis: Diagnosis | None = None) -> None:
        """Apply a decision to the vote settings."""
        self.decision, self.diagnosis = decision, diagnosis
        self.settings = replace(
            self.settings, policy=decision.policy or VotePolicy.weighted(), k=decision.k
        )

    def decide_by_settings(self) -> None:
        """Under auto, apply the decision of the settings, or else that of a diagnosis of these."""
        if self.settings.policy is not None:
            return
        decision, diagnosis = self.settings.decision, None
        if decision is None:
            diagnosis = self.diagnose()
            decision = diagnosis.decision
        self.decide(decision, diagnosis)

    def reached(self, rows: Int64s) -> Bools:
        """Return which of some own texts have a neighbor that is similar enough to be voted on."""
        least = -1.0 if self.decision is None else self.decision.min_nearest
        nearest: Bools = self._batch.similarities[rows].max(axis=1, initial=-1) >= least
        return nearest

    def fit_prior(self) -> None:
        """Compute the prior correction; call it when all predictions are set."""
        prior, n = self.settings.prior, self._batch.n_own
        if prior is None:
            return
        mass = np.zeros(len(prior))
        for result in self._in_blocks(np.arange(n)):
            assert result.votes is not None
            mass += result.votes.sum(axis=0)
        self._scale = factors(mass, prior, self.settings.prior_power)

    def waves(self) -> list[int]:
        """Return the numbers of neighbors at which each wave ends: 5, 10, 15, 20, 25, 31, .., all.

        A wave costs a round trip, an unnecessary neighbor costs a call: each wave adds a quarter of
        the neighbors before it. On recorded answers (77 labels, k = 30) doubling saves 14 % of the
        neighbor calls, these steps 21 %, single ones 25 %.
        """
        width = min(self._batch.neighbors.shape[1], self.settings.k)
        ends = [_FIRST_WAVE]
        while ends[-1] < width:
            ends.append(ends[-1] + max(_FIRST_WAVE, ends[-1] // 4))
        return [*ends[:-1], width]

    def exit_early(self, rows: Int64s, known: int) -> Bools:
        """Exit early where the winner is certain after `known` neighbors; returns bool[len(rows)].

        In these rows only the first `known` neighbors count, even if more have predictions, so that
        the result does not depend on the contents of the store.
        """
        k, answers = self.settings.k, self._answers
        ids, own = self._batch.neighbors[rows, :k], answers.label[rows][:, None]
        labels = np.where(ids >= 0, answers.label[ids], -1).astype(np.int32)
        confidences = np.where(ids >= 0, answers.confidence[ids], np.nan).astype(np.float32)
        similarities = np.where(ids >= 0, self._batch.similarities[rows, :k], 0)
        certain = voting.decided(
            np.concatenate([own, labels], axis=1),
            np.concatenate([np.ones_like(own), similarities], axis=1, dtype=np.float32),
            np.concatenate([answers.confidence[rows][:, None], confidences], axis=1),
            np.full(len(rows), 1 + known, dtype=np.int64),
            n_classes=self._n_classes,
            policy=self.policy,
        )
        stopped = rows[certain & ((ids >= 0).sum(axis=1) > known)]
        self.complete[stopped] = False
        self._limit[stopped] = known
        return certain

    def label(self, rows: slice | Int64s) -> Labels:
        """Label some of the own texts by their votes."""
        if self.settings.threshold is not None:
            return self.of_each_label(rows)
        return Labels.single((result := self.result(rows)).label, result.share)

    def result(self, rows: slice | Int64s, *, votes: bool = False) -> VoteResult:
        """Vote for one label of each of some own texts, with the prior correction."""
        numbers = np.arange(self._batch.n_own)[rows]
        if self._scale is None:
            return self._vote(numbers, votes=votes)
        corrected = [correct(result, self._scale) for result in self._in_blocks(numbers)]
        names = [f.name for f in fields(VoteResult) if votes or f.name != "votes"]
        return VoteResult(
            **{name: np.concatenate([getattr(part, name) for part in corrected]) for name in names}
        )

    def _in_blocks(self, rows: Int64s) -> Iterator[VoteResult]:
        """Vote with the weights of all labels, which are in memory for some rows at a time."""
        step = max(1, min(_BLOCK, _CELLS // self._n_classes))
        for start in range(0, max(len(rows), 1), step):
            yield self._vote(rows[start : start + step], votes=True)

    def _vote(self, rows: Int64s, *, votes: bool = False) -> VoteResult:
        neighbors = self.neighbors(rows)[:, : self.settings.k]
        if self.decision is not None:
            kept = np.isin(self._answers.label[rows], self.decision.kept) | ~self.reached(rows)
            neighbors = np.where(kept[:, None], np.int64(-1), neighbors)
        return self._vote_of(rows, neighbors, self.policy, votes=votes)

    def by_similarity(self, rows: Int64s) -> VoteResult:
        """Vote by similarity, with all neighbors and the weight of each label."""
        return self._vote_of(rows, self.neighbors(rows), VotePolicy.weighted(), votes=True)

    def _vote_of(
        self, rows: Int64s, neighbors: Int64s, policy: VotePolicy, *, votes: bool
    ) -> VoteResult:
        answers = self._answers
        return voting.vote_pool(
            neighbors,
            self._batch.similarities[rows, : neighbors.shape[1]],
            answers.label,
            answers.confidence,
            answers.label[rows],
            answers.confidence[rows],
            n_classes=self._n_classes,
            policy=policy,
            votes=votes,
        )

    def of_each_label(self, rows: slice | Int64s) -> Labels:
        """Vote for each label alone on some of the own texts."""
        k, own, pool = self.settings.k, np.arange(self._batch.n_own)[rows], self._answers.labels()
        assert self.settings.threshold is not None
        voted = voting.vote_multilabel(
            self._batch.neighbors[rows, :k],
            self._batch.similarities[rows, :k],
            own,
            pool,
            n_classes=self._n_classes,
            policy=self.policy,
            threshold=self.settings.threshold,
        )
        # where nobody could vote, an answer of the text itself is known to hold
        voted = replace(voted, known=voted.known | pool.known[own])
        return voting.keep_own(voted, own, pool) if self.settings.llm_by_default else voted


def note_of_kept(votes: Votes, n: int) -> str:
    """Return how many of n texts a vote would change, where all keep the LLM's own labels."""
    settings, threshold = votes.settings, votes.settings.threshold
    if threshold is None or not settings.keeps_llm_labels or settings.learned is not None:
        return ""
    voted = votes.of_each_label(slice(0, n))
    other = (voted.share > threshold) != voted.given
    # at the threshold, the text itself decides
    changed = len(np.unique(voted.rows[other & (voted.share != threshold)]))
    if not changed:
        return ""
    return (
        f"the LLM's own labels are kept; a vote of neighbors would change those of {changed:,} "
        f"of {n:,} texts, and fifty judgments show whether it should"
    )


def load_kernels(labels: LabelSet, settings: VoteSettings) -> None:
    """Compile or load the kernels by a dummy vote, which can take seconds."""
    neighbors, ones = np.array([[1], [0]], dtype=np.int64), np.ones((2, 1), dtype=np.float32)
    batch = TextBatch(labels, [PoolText("a", b"a"), PoolText("b", b"b")], 2, neighbors, ones)
    answers = Answers(batch)
    for place in range(2):
        answers.put(place, Prediction(labels.names[0], 1.0))
    votes, rows = Votes(batch, answers, settings), np.arange(2)
    with IMPORTING:
        votes.label(rows)
        if settings.threshold is None:
            votes.result(rows, votes=True)
            votes.exit_early(rows, min(1, settings.k))
