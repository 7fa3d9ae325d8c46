"""One run: a batch, the answers for it, its votes, and who labels each text.

Judged > head > learned > sampler > vote: each labeler labels some texts and leaves the rest to the
next one. The vote labels all; a text without voters keeps the LLM's own answer.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

import numpy as np

from testnuc._base.arrays import Bools, Float64s, Int64s
from testnuc._engine.batch import Answers, TextBatch
from testnuc._engine.votes import LEAST_VOTERS, Votes
from testnuc.errors import EmbeddingError
from testnuc.trust.auto_policy import MAX_NEIGHBORS, VoteSettings
from testnuc.trust.model import HeadModel
from testnuc.types import Reason, error_text
from testnuc.voting import Labels, VoteResult

#: Judgments: place -> the classes, None = none of the labels, and "person" or "referee".
Said: TypeAlias = Mapping[int, tuple[tuple[int, ...] | None, str]]
#: The labelers above the vote, the strongest last: a model of the run's answers, which labels texts
#: that the LLM was not asked for; what was learned from judgments; a head from a file; judgments.
_CHAIN = ("sampler", "learned", "head", "judged")
#: Those whose texts need no call.
_SKIPPING = ("sampler", "head")
_KEPT = Reason(
    "llm_kept", "several labels stay as the LLM gives them until judgments choose another way"
)


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """The labels of one labeler."""

    #: Of all own texts; of those that it does not label, any.
    labels: Labels
    #: bool[n_own], the texts that it labels.
    here: Bools

    @classmethod
    def of(cls, n: int, rows: Int64s, labels: Labels) -> Self:
        """Return labels of some of n own texts."""
        here, place = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.int64)
        here[rows], place[rows] = True, np.arange(len(rows))
        return cls(labels.at(place) if len(rows) else Labels.of([None] * n), here)


class Run:
    """What belongs to one run; `answers` grow, and labelers are added.

    `before`: the answers for the same own texts, before their neighbors were known.
    """

    def __init__(
        self, batch: TextBatch, settings: VoteSettings, before: Answers | None = None
    ) -> None:
        self.batch = batch
        self.answers = Answers(batch, before)
        self.votes = Votes(batch, self.answers, settings)
        #: The labelers of `_CHAIN` that this run has.
        self.layers: dict[str, Layer] = {}
        #: The judged texts.
        self.judges: dict[int, tuple[tuple[int, ...] | None, str]] = {}
        #: The learned model, fitted again on this run.
        self.refitted: HeadModel | None = None
        #: For `Results.notes`; empty ones are left out.
        self.notes: list[str] = []
        #: The error that ended the run: what was answered before is handed over.
        self.failure: Exception | None = None
        #: Of texts whose label the user gave: the right one.
        self._given: Said = {
            at: (batch.labels.judged(entry.label, "person"), "person")
            for at, entry in enumerate(batch.own)
            if entry.label is not None
        }
        if self._given:
            self.judge(self._given)

    def judge(self, said: Said) -> None:
        """Let judgments win; no referee takes a protected label away."""
        self.judges |= self._allowed(said)
        if not self.judges:
            return
        judged = self.judges.values()
        labels = Labels.of([None if of is None else [(c, 1.0) for c in of] for of, _ in judged])
        # how often a referee is right is not known
        sure = labels.known & np.array([source == "person" for _, source in judged])
        trust = np.where(sure, 1.0, np.nan)
        labels = replace(labels, chance=trust[labels.rows], trust=trust)
        self.layers["judged"] = Layer.of(self.batch.n_own, np.array([*self.judges]), labels)

    def _allowed(self, said: Said) -> Said:
        """Return judgments without those of a referee against a label that only a person takes."""
        said = {at: of for at, of in said.items() if of[1] == "person" or at not in self._given}
        learned = self.votes.settings.learned
        if learned is None or not learned.rule.protected:
            return said
        places, kept = [*said], defaultdict[int, set[int]](set)
        own = self.answers.labels().at(np.array(places, dtype=np.int64))
        for at, label in zip(own.rows.tolist(), own.label.tolist(), strict=True):
            if label in learned.rule.protected:
                kept[places[at]].add(label)
        return {
            place: (classes, source)
            for place, (classes, source) in said.items()
            if source == "person" or kept[place] <= {*(classes or ())}
        }

    def is_skipped(self, place: int) -> bool:
        """Whether a head or a sampler labels the own text at a place, so that no call is needed."""
        return any(name in self.layers and self.layers[name].here[place] for name in _SKIPPING)

    @property
    def n_skipped(self) -> int:
        """Number of own texts that need no call."""
        here = [self.layers[name].here for name in _SKIPPING if name in self.layers]
        return int(np.logical_or.reduce(here).sum()) if here else 0

    def _layers(self) -> list[tuple[str, Layer]]:
        """Return the labelers above the vote, the strongest last."""
        return [(name, self.layers[name]) for name in _CHAIN if name in self.layers]

    def labels(self, rows: slice | Int64s = slice(None), voted: Labels | None = None) -> Labels:
        """Return the labels of some own texts, by the strongest labeler of each.

        `voted`: those by the vote, if they are known.
        """
        numbers = np.arange(self.batch.n_own)[rows]
        labels = self.votes.label(numbers) if voted is None else voted
        for _, layer in self._layers():
            labels = layer.labels.at(numbers).over(labels, layer.here[numbers])
        return labels

    def labeler(self, place: int) -> str:
        """Return who labels an own text: judged, head, learned, sampler or vote."""
        names = [name for name, layer in self._layers() if layer.here[place]]
        return names[-1] if names else "vote"

    def tally(self, place: int, result: VoteResult) -> tuple[Float64s, float, float, int]:
        """Return what speaks for each label of an own text, float64[C], share, margin, voters.

        `result` is that of its vote, with the weight of each label.
        """
        assert result.votes is not None
        weights, voters = result.votes[0], int(result.voters[0])
        share, margin = float(result.share[0]), float(result.margin[0])
        name = self.labeler(place)
        if name == "judged" or (name == "learned" and self.votes.settings.head_decides):
            # of a judged text, nothing speaks for another label
            labels = self.layers[name].labels.at(np.array([place]))
            shares, winner = labels.table(len(weights))[0], int(labels.first()[0])
            weights, share, margin = shares.astype(np.float64), 0.0, 0.0
            if winner >= 0:
                share, shares[winner] = float(shares[winner]), 0
                margin = max(share - float(shares.max()), 0.0)
            if name == "learned":
                voters = 1 + int((self.batch.neighbors[place, :MAX_NEIGHBORS] >= 0).sum())
        elif self.is_skipped(place):
            share = margin = 0.0
        return weights, share, margin, voters

    def trust(
        self, place: int, labels: Labels, share: float, basis: tuple[Float64s, int]
    ) -> float | None:
        """Return how far the one label of a text can be trusted.

        `labels` are those of this text alone, and `share` that of the votes that decide; `basis`
        has the weight of each label in the votes that trust rests on, and their number.
        """
        if self.labeler(place) != "vote":
            chance = float(labels.trust[0])
            return None if np.isnan(chance) else chance
        winner = int(labels.first()[0])
        if winner < 0 or not self.votes.complete[place]:
            return None
        weights, voters = basis
        if self.votes.settings.auto:
            share = float(weights[winner] / weights.sum()) if voters else 0.0
        return share if voters >= LEAST_VOTERS else None

    def alternative(
        self, place: int, labels: Labels, basis: tuple[Float64s, int]
    ) -> tuple[int, float] | None:
        """Return the other label that is trusted most, and its trust; None: unknown, or none."""
        labeler = self.labeler(place)
        if labeler == "learned":
            chance = np.where(labels.given | np.isnan(labels.chance), 0, labels.chance)
            if not len(chance) or chance.max() <= 0:
                return None
            best = int(chance.argmax())
            return int(labels.label[best]), float(chance[best])
        if labeler != "vote":
            return None
        weights, voters = basis[0].copy(), basis[1]
        if (winner := int(labels.first()[0])) >= 0:
            weights[winner] = 0
        other = int(weights.argmax())
        known = voters >= LEAST_VOTERS and self.votes.complete[place]
        trust = float(weights[other] / basis[0].sum()) if known else 0.0
        return (other, trust) if trust else None

    def reason(self, place: int) -> Reason | None:
        """Return why the neighbors of the own text at `place` do not decide; None: they do."""
        votes, labels = self.votes, self.batch.labels
        settings, decision = votes.settings, votes.decision
        if place in self.judges:
            classes, judge = self.judges[place]
            said = f"a {judge} said that none of the labels is right"
            return Reason("none_of_the_labels", said) if classes is None else None
        stopped = isinstance(self.failure, EmbeddingError)
        if place in self.batch.rejected or (stopped and (self.batch.neighbors[place] < 0).all()):
            error = self.batch.rejected.get(place) or self.failure
            return Reason("not_embedded", f"the embedder failed: {error_text(error)}")
        if decision is not None and not settings.head_decides and not self.is_skipped(place):
            if decision.policy is None:
                return Reason("llm_kept", decision.reason)
            if not votes.reached(np.array([place]))[0]:
                return Reason(
                    "not_similar",
                    f"no neighbor has a similarity of {decision.min_nearest:.2f}, up to which near "
                    "copies support the vote: the LLM's label is kept",
                )
            own = int(self.answers.label[place])
            if own in decision.kept:
                return Reason(
                    "neighbors_disagree",
                    f"near neighbors disagree with the vote on texts labeled "
                    f"{labels.names[own]!r}: the LLM's label is kept",
                )
        kept = settings.keeps_llm_labels and self.answers.labels().known[place]
        return _KEPT if kept else None

    def source(self, place: int, voters: int) -> str:
        """Return what gave the labels of the own text at `place`."""
        labeler, settings = self.labeler(place), self.votes.settings
        if labeler == "judged":
            return self.judges[place][1]
        if self.is_skipped(place):
            # also where what was learned is above the sampler: the LLM gave nothing
            return "head"
        if labeler == "learned" and settings.learned is not None:
            decides = settings.learned.decides
            if decides in {"head", "llm"}:
                return decides
        return "llm" if voters <= 1 or self.reason(place) is not None else "vote"
