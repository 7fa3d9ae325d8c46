"""Who labels each own text of a run: judged > head > learned > sampler > vote.

Each labeler labels some texts and leaves the rest to the next one. The vote labels all; a text
without voters keeps the LLM's own answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from testnuc._engine.votes import LEAST_VOTERS
from testnuc.trust import MAX_NEIGHBORS
from testnuc.trust.model import table_of
from testnuc.types import Reason
from testnuc.voting import Labels, VoteResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from testnuc._engine.batch import TextBatch
    from testnuc._engine.votes import Votes
    from testnuc.trust.model import HeadModel

_KEPT = Reason(
    "llm_kept", "several labels stay as the LLM gives them until judgments choose another way"
)


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """The labels of one labeler."""

    #: Of all own texts.
    labels: Labels
    #: bool[n_own], the texts that it labels.
    here: NDArray[np.bool_]


@dataclass(eq=False)
class Labeling:
    """The labelers of a run."""

    batch: TextBatch
    votes: Votes
    #: A head from a file.
    head: Layer | None = None
    #: What was learned from judgments.
    learned: Layer | None = None
    #: A model of this run's answers, which labels texts that the LLM was not asked for.
    sampler: Layer | None = None
    #: Judged texts: place -> "person" or "referee".
    judges: dict[int, str] = field(default_factory=dict)
    _judged: dict[int, tuple[int, ...] | None] = field(default_factory=dict)
    #: The learned model, fitted again on this run.
    refitted: HeadModel | None = None

    def judge(self, said: Mapping[int, tuple[Sequence[int] | None, str]]) -> None:
        """Let judgments win: place -> the classes, None = none of the labels, and who said so."""
        for place, (classes, source) in said.items():
            self.judges[place] = source
            self._judged[place] = None if classes is None else tuple(classes)

    def is_skipped(self, place: int) -> bool:
        """Whether a head or a sampler labels the own text at a place, so that no call is needed."""
        return any(layer is not None and layer.here[place] for layer in (self.head, self.sampler))

    @property
    def n_skipped(self) -> int:
        """Number of own texts that need no call."""
        here = np.zeros(self.batch.n_own, dtype=np.bool_)
        for layer in (self.head, self.sampler):
            if layer is not None:
                here |= layer.here
        return int(here.sum())

    # -- the chain --

    def _layers(self) -> list[tuple[str, Layer]]:
        """Return the labelers above the vote, the strongest last."""
        layers = [("sampler", self.sampler), ("learned", self.learned), ("head", self.head)]
        found = [(name, layer) for name, layer in layers if layer is not None]
        if self._judged:
            found.append(("judged", self._judgments()))
        return found

    def _judgments(self) -> Layer:
        n = self.batch.n_own
        here = np.zeros(n, dtype=np.bool_)
        here[list(self._judged)] = True
        known, trust = here.copy(), np.full(n, np.nan)
        pairs: list[tuple[int, int]] = []
        for place, classes in self._judged.items():
            if classes is None:
                known[place] = False
            elif self.judges[place] == "person":
                # how often a referee is right is not known
                trust[place] = 1.0
            pairs += [(place, one) for one in classes or ()]
        rows, label = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        ones = np.ones(len(rows), dtype=np.float32)
        chance = trust[rows]
        return Layer(
            Labels.pairs(n, rows, label, ones, chance=chance, trust=trust, known=known), here
        )

    def labels(self, rows: slice | NDArray[np.int64] = slice(None)) -> Labels:
        """Return the labels of some own texts, by the strongest labeler of each."""
        numbers = np.arange(self.batch.n_own)[rows]
        labels = self.votes.label(numbers)
        for _, layer in self._layers():
            labels = layer.labels.at(numbers).over(labels, layer.here[numbers])
        return labels

    def labeler(self, place: int) -> str:
        """Return who labels an own text: judged, head, learned, sampler or vote."""
        names = [name for name, layer in self._layers() if layer.here[place]]
        return names[-1] if names else "vote"

    def tally(self, rows: NDArray[np.int64]) -> VoteResult:
        """Return the labels of some own texts, one each, with what speaks for every label."""
        result = self.votes.result(rows, votes=True)
        weights, share, margin = result.votes, result.share.copy(), result.margin.copy()
        assert weights is not None
        weights, voters, n_classes = weights.copy(), result.voters, weights.shape[1]
        for name, layer in self._layers():
            here, at = layer.here[rows], np.arange(len(rows))
            if not here.any():
                continue
            labels = layer.labels.at(rows[here])
            if name in {"sampler", "head"}:
                share[here] = margin[here] = 0
            elif name == "judged" or self._by_model:
                # of a judged text, nothing speaks for another label
                shares = table_of(labels, n_classes)
                weights[here] = shares
                winner, best = labels.first(), at[: len(labels)]
                top = np.where(winner >= 0, shares[best, winner], 0)
                others = shares.copy()
                others[best, winner] = 0
                share[here] = top
                margin[here] = np.maximum(top - others.max(axis=1), 0)
                if name == "learned":
                    near = self.batch.neighbors[rows[here], :MAX_NEIGHBORS] >= 0
                    voters = voters.copy()
                    voters[here] = 1 + near.sum(axis=1)
        return replace(
            result,
            label=self.labels(rows).first(),
            share=share.astype(np.float32),
            margin=margin.astype(np.float32),
            voters=voters,
            votes=weights,
        )

    @property
    def _by_model(self) -> bool:
        """Whether a learned model gives one label to each text."""
        return self.votes.settings.head_decides and self.learned is not None

    # -- what a result says --

    def trust(
        self, place: int, labels: Labels, share: float, basis: tuple[NDArray[np.float64], int]
    ) -> float | None:
        """Return how far the one label of a text can be trusted.

        `labels` are those of this text alone, and `share` that of the votes that decide; `basis`
        has the weight of each label in the votes that trust rests on, and their number.
        """
        if self.labeler(place) != "vote":
            chance = np.nan if labels.trust is None else float(labels.trust[0])
            return None if np.isnan(chance) else chance
        winner = int(labels.first()[0])
        if winner < 0 or not self.votes.complete[place]:
            return None
        weights, voters = basis
        if self.votes.settings.auto:
            share = float(weights[winner] / weights.sum()) if voters else 0.0
        return share if voters >= LEAST_VOTERS else None

    def alternative(
        self, place: int, labels: Labels, basis: tuple[NDArray[np.float64], int]
    ) -> tuple[int, float] | None:
        """Return the other label that is trusted most, and its trust; None: unknown, or none."""
        labeler = self.labeler(place)
        if labeler == "learned" and labels.chance is not None:
            chance = np.where(labels.is_given() | np.isnan(labels.chance), 0, labels.chance)
            if not len(chance) or chance.max() <= 0:
                return None
            best = int(chance.argmax())
            return int(labels.label[best]), float(chance[best])
        if labeler != "vote":
            return None
        weights, total = basis[0].copy(), float(basis[0].sum())
        winner = int(labels.first()[0])
        if winner >= 0:
            weights[winner] = 0
        other = int(weights.argmax())
        if weights[other] <= 0:
            return None
        next_best = Labels.single(np.array([other], dtype=np.int32))
        trust = self.trust(place, next_best, float(weights[other]) / total, basis)
        return (other, trust) if trust else None

    def reason(self, place: int) -> Reason | None:  # noqa: PLR0911 - one return for each
        """Return why the neighbors of the own text at `place` do not decide; None: they do."""
        votes, labels = self.votes, self.batch.labels
        judge, decision = self.judges.get(place), votes.decision
        if judge is not None:
            if self._judged[place] is not None:
                return None
            return Reason("none_of_the_labels", f"a {judge} said that none of the labels is right")
        if place in self.batch.rejected:
            return Reason("not_embedded", "the embedder rejected the text: it has no neighbors")
        if decision is not None and not votes.settings.head_decides and not self.is_skipped(place):
            if decision.policy is None:
                return Reason("llm_kept", decision.reason)
            own = votes.own_label(place)
            if own in decision.kept:
                return Reason(
                    "neighbors_disagree",
                    f"near neighbors disagree with the vote on texts labeled "
                    f"{labels.names[own]!r}: the LLM's label is kept",
                )
        if labels.multilabel and votes.settings.keeps_llm_labels and votes.is_answered(place):
            return _KEPT
        return None

    def source(self, place: int, voters: int) -> str:
        """Return what gave the labels of the own text at `place`."""
        labeler, settings = self.labeler(place), self.votes.settings
        if labeler == "judged":
            return self.judges[place]
        if self.is_skipped(place):
            # also where what was learned is above the sampler: the LLM gave nothing
            return "head"
        if labeler == "learned":
            decides = settings.learned.decides if settings.learned is not None else "settings"
            if decides == "head" or (self.batch.labels.multilabel and decides == "llm"):
                return decides
        return "llm" if voters <= 1 or self.reason(place) is not None else "vote"
