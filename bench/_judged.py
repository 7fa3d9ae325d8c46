"""What judgments bring on recorded predictions: repeated draws, judged by gold or by a referee."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from testnuc.trust.argmax import Argmax
from testnuc.trust.calibration import fit_trust
from testnuc.trust.candidates import (
    candidates_of,
    choose,
    chosen_parts,
    default_model,
    differing,
    dissent_of,
)
from testnuc.trust.certificates import Strata, cells_of, edges, error_of
from testnuc.trust.evidence import Draws
from testnuc.trust.model import HeadModel, one_hot
from testnuc.trust.review import Drawn, draw
from testnuc.trust.shares import accuracy_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from bench._recorded import Recorded
    from testnuc.trust.candidates import LabelCandidate, Verdict
    from testnuc.trust.model import Ground, Texts
    from testnuc.trust.shares import Accuracy

__all__ = ["Judge", "Learned", "Outcomes", "chance_of", "proof", "regression"]

#: Looks whose evidence is computed at once.
_LOOKS = 64
_STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)


@dataclass
class Outcomes:
    """Gains of repeated draws, as parts of 1."""

    true: list[float] = field(default_factory=list)
    expected: list[float] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Learned:
    """What one draw of judgments led to."""

    verdict: Verdict
    #: Labels of the chosen candidate; judged texts are not replaced.
    labels: NDArray[np.int32]
    trust: NDArray[np.float64]
    #: Of the judged texts.
    right: NDArray[np.bool_]
    draws: Draws

    @property
    def decides(self) -> str:
        """What gives the labels, as `testnuc.trust.learned.Learned` has it."""
        model = self.verdict.chosen.model
        if isinstance(model, HeadModel):
            return "head"
        return "vote" if model.k else "settings"


class Judge:
    """The candidates of a set, and who judges.

    Parameters
    ----------
    data : Recorded
    judgments : int32[n], optional
        What the judge says; default: the right labels.
    """

    def __init__(self, data: Recorded, judgments: NDArray[np.int32] | None = None) -> None:
        self.data = data
        self.judgments = data.gold if judgments is None else judgments

    @cached_property
    def candidates(self) -> list[LabelCandidate]:
        """The candidates that do not depend on judgments."""
        return candidates_of(self.data.texts)

    @cached_property
    def differ(self) -> NDArray[np.bool_]:
        """Texts that some candidate labels otherwise than the LLM."""
        return differing(self.candidates)

    @cached_property
    def best(self) -> float:
        """The highest gain of a candidate that was not taught."""
        return max(self.gain(candidate.labels) for candidate in self.candidates)

    @cached_property
    def shares(self) -> NDArray[np.floating]:
        """The share of the vote for each label, the own label counted once."""
        votes = self.data.texts.votes(self.data.texts.own, k=10, own_weight=1.0)
        total: NDArray[np.floating] = votes / np.maximum(votes.sum(axis=1, keepdims=True), 1e-9)
        return total

    @cached_property
    def plain(self) -> NDArray[np.float32]:
        """Probabilities of the model that knows nothing of class sizes and judgments."""
        return default_model(self.candidates).probabilities(self.data.texts)

    @cached_property
    def grounds(self) -> list[Ground]:
        """What models give without judgments, so that a draw computes only what changes."""
        return [model.ground(self.data.texts) for model in chosen_parts(self.candidates)[1]]

    def sharing(self, other: NDArray[np.int32]) -> Judge:
        """Return another judge of the same candidates."""
        made = Judge(self.data, other)
        for name in ("candidates", "differ", "shares", "plain", "grounds"):
            made.__dict__[name] = getattr(self, name)
        return made

    def gain(self, labels: NDArray[np.int32]) -> float:
        """Return the true gain over all texts."""
        gold, own = self.data.gold, self.data.texts.own
        return float((labels == gold).mean() - (own == gold).mean())

    def disagreements(self, seed: int, m: int) -> tuple[NDArray[np.int64], Draws]:
        """Draw texts that candidates label differently."""
        among = np.flatnonzero(self.differ)
        rows = np.random.default_rng(seed).permutation(among)[:m]
        return rows, Draws.at_random(len(self.differ), len(rows), len(among))

    def any_texts(self, seed: int, m: int) -> tuple[NDArray[np.int64], Draws]:
        """Draw from all texts."""
        rows = np.random.default_rng(seed).permutation(len(self.differ))[:m]
        return rows, Draws.at_random(len(self.differ), len(rows))

    def mixture(self, seed: int, m: int) -> tuple[NDArray[np.int64], Draws]:
        """Draw as the default review does."""
        return self.drawn(self.reviewed([], m, None, np.random.default_rng(seed)))

    def refereed(self, seed: int, m: int) -> tuple[NDArray[np.int64], Draws]:
        """Draw as for a referee: half of the texts are disagreements."""
        open_, random = np.ones_like(self.differ), np.random.default_rng(seed)
        nothing = np.zeros(len(open_))
        return self.drawn(draw(m, None, self.differ, open_, nothing, random))

    def is_better(self, rows: NDArray[np.int64]) -> bool:
        """Whether who judges is shown to be better than the LLM, as a referee must be."""
        rows = rows[self.judgments[rows] >= 0]
        own, *others = [candidate.labels[rows] for candidate in self.candidates]
        differ = float(self.differ.mean())
        return dissent_of(
            own, np.array(others), self.judgments[rows], self.differ[rows], differ
        ).better

    def reviewed(
        self, before: list[Drawn], m: int, goal: str | None, random: np.random.Generator
    ) -> list[Drawn]:
        """Draw one more review; returns all draws."""
        n = len(self.differ)
        open_ = np.ones(n, dtype=np.bool_)
        open_[[d.row for d in before]] = False
        return [*before, *draw(m, goal, self.differ, open_, np.zeros(n), random)]

    def drawn(self, found: list[Drawn]) -> tuple[NDArray[np.int64], Draws]:
        """Return the texts that reviews drew, and how."""
        probability, floor = np.array([(d.probability, d.floor) for d in found], np.float64).T
        uniform = np.array([d.goal == "certify" for d in found], dtype=np.bool_)
        rows = np.array([d.row for d in found], dtype=np.int64)
        return rows, Draws(len(self.differ), probability, floor, uniform)

    def verdict(self, rows: NDArray[np.int64], draws: Draws) -> Verdict:
        """Choose by the judgments of these texts."""
        return choose(
            self.data.texts, self.candidates, rows, self.judgments[rows], draws, self.grounds
        )

    def gains(
        self,
        drawn: Callable[[int, int], tuple[NDArray[np.int64], Draws]],
        m: int,
        seeds: Sequence[int],
    ) -> Outcomes:
        """Repeat draws of m judgments, and the choice by them."""
        found = Outcomes()
        for seed in seeds:
            rows, draws = drawn(seed, m)
            verdict = self.verdict(rows, draws)
            found.true.append(self.gain(verdict.chosen.labels))
            found.expected.append(verdict.gain.value)
        return found

    def learned(self, rows: NDArray[np.int64], draws: Draws) -> Learned:
        """Choose by these judgments, and calibrate trust on them."""
        verdict = self.verdict(rows, draws)
        labels = verdict.chosen.labels
        trust = self.trust(verdict, labels, rows, draws)
        return Learned(verdict, labels, trust, labels[rows] == self.judgments[rows], draws)

    def trust(
        self,
        verdict: Verdict,
        labels: NDArray[np.int32],
        rows: NDArray[np.int64],
        draws: Draws,
    ) -> NDArray[np.float64]:
        """Return the calibrated trust of labels, by the model that was chosen."""
        said, found = self.judgments[rows], verdict.probabilities
        texts = self.data.texts.with_judged(rows[said >= 0], said[said >= 0])
        if found is None:
            found = default_model(self.candidates).probabilities(texts, self.grounds[1])
        right = labels[rows] == said
        _, trust = fit_trust(texts, found, labels, rows, right, draws.probability)
        return np.nan_to_num(trust)

    def accuracy(
        self, learned: Learned, rows: NDArray[np.int64], ranked: int, seed: int
    ) -> tuple[Accuracy | None, float]:
        """Return the accuracy by these judgments and further ones, and the true one.

        The further ones are drawn from the two fifths with the highest trust.
        """
        right, own = learned.labels == self.data.gold, self.data.texts.own == self.data.gold
        places = cells_of(learned.trust, edges(learned.trust), [len(learned.trust)])
        places[rows] = len(places)
        top = np.random.default_rng(seed).permutation(np.flatnonzero(places <= 1))[:ranked]
        every = np.concatenate([rows, top])
        later = np.arange(len(every)) >= len(rows)
        drawn = np.concatenate([learned.draws.drawn, np.zeros(len(top), dtype=np.bool_)])
        before = own[every].astype(np.int8)
        found = accuracy_of(self.differ, every, right[every], before, drawn, later)
        return found, float(np.delete(right, every).sum() + len(every)) / len(right)

    def proof(
        self, learned: Learned, rows: NDArray[np.int64], draws: int, seed: int, level: float = 0.9
    ) -> tuple[float, bool]:
        """Return the draws that certify the first part at `level`, inf if so many do not.

        And whether any part is ever certified that is not, with a look after each draw. `rows` were
        judged before the draws.
        """
        right = learned.labels == self.judgments
        return proof(learned.trust, right, rows, draws, np.random.default_rng(seed), level)

    def later(
        self, first: NDArray[np.int64], seed: int, m: int
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64]]:
        """Learn from m judgments of the first texts, and apply it to all, these at the front.

        Returns the trust of all texts, whether their labels are right, and the judged texts.
        """
        n = len(self.data.gold)
        rest = np.setdiff1d(np.arange(n), first)
        every = Judge(self.data.part(np.concatenate([first, rest])))
        some = Judge(self.data.part(first))
        rows, drawn = some.mixture(seed, m)
        verdict = some.verdict(rows, drawn)
        label, found = verdict.chosen.labels, verdict.probabilities
        said = some.judgments[rows]
        known = some.data.texts.with_judged(rows[said >= 0], said[said >= 0])
        vote, heads = chosen_parts(some.candidates)
        model = verdict.chosen.model if found is not None else default_model(some.candidates)
        assert isinstance(model, HeadModel)
        if found is None:
            found = model.probabilities(known)
        right, chance = label[rows] == said, drawn.probability
        coefficients, trust = fit_trust(known, found, label, rows, right, chance)
        rule = Argmax(
            decides="settings" if verdict.probabilities is None else "head",
            model=model,
            vote=vote,
            bases=() if verdict.everywhere else heads,
            coefficients=coefficients,
        )
        texts = every.data.texts.with_judged(rows[said >= 0], said[said >= 0])
        labels = rule.apply(texts, every.data.texts.own)
        assert labels.trust is not None
        given = np.concatenate([label, labels.first()[len(first) :]])
        fixed = np.concatenate([trust, labels.trust[len(first) :]])
        return np.nan_to_num(fixed), given == every.data.gold, rows


def proof(
    trust: NDArray[np.float64],
    right: NDArray[np.bool_],
    rows: NDArray[np.int64],
    draws: int,
    random: np.random.Generator,
    level: float = 0.9,
) -> tuple[float, bool]:
    """Return what `Judge.proof` does, of any trust, and of whether labels are right."""
    start = Strata.of(trust, rows, right[rows], np.zeros(len(rows), dtype=np.bool_))
    parts, needed = len(start.lowest), -np.log(error_of(0.9, 0))
    places = cells_of(trust, start.lowest, [len(trust)])
    accurate = [bool(right[places <= part].mean() >= level) for part in range(parts)]
    places[rows] = -1
    # of the first texts of each stratum: how many are wrong
    wrong = [
        np.cumsum([0, *~right[random.permutation(np.flatnonzero(places == part))[::-1]]])
        for part in range(parts)
    ]
    counts, first, done, proven = np.zeros((1, parts), dtype=np.int64), np.inf, 0, 0
    while proven < parts:
        # many looks at once; which texts come next does not depend on what is said of them
        state = replace(start, draws=counts.T)
        cells = state.next(min(_LOOKS, draws - done), proven + 1)
        drawn = (cells[:, None] == np.arange(parts)).cumsum(axis=0)
        counts = np.vstack([counts, counts + drawn])
        bad = np.stack([of[m] for of, m in zip(wrong, counts.T, strict=True)], axis=1)
        looks = replace(start, draws=counts[..., None], wrong=bad[..., None])
        proves = np.flatnonzero(looks.evidence(proven + 1, level) >= needed)
        look = int(proves[0]) if len(proves) else len(cells)
        counts, done = counts[look : look + 1], done + look
        if len(proves):
            first = min(first, done)
            if not accurate[proven]:
                return first, True
            proven += 1
        elif not len(cells):
            break
    return first, False


def regression(
    texts: Texts, rows: NDArray[np.int64], labels: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Return the labels of all texts by a logistic regression on some of them, int32[n].

    Its features are the embedding and the LLM's label; five folds choose its strength.
    """
    from sklearn.linear_model import LogisticRegression

    x = np.hstack([texts.vectors.astype(np.float32), one_hot(texts.own, texts.n_classes)])
    seen, folds = x[rows], np.arange(len(rows)) % 5
    if len(np.unique(labels)) == 1:
        return np.full(len(x), labels[0], dtype=np.int32)

    def right(strength: float) -> int:
        count = 0
        for fold in range(5):
            inside = folds == fold
            if len(np.unique(labels[~inside])) == 1:
                guess = labels[~inside][:1]
            else:
                made = LogisticRegression(C=strength, max_iter=200, tol=1e-3)
                guess = made.fit(seen[~inside], labels[~inside]).predict(seen[inside])
            count += int((guess == labels[inside]).sum())
        return count

    best = LogisticRegression(C=max(_STRENGTHS, key=right), max_iter=200, tol=1e-3)
    found: NDArray[np.int32] = best.fit(seen, labels).predict(x).astype(np.int32)
    return found


def chance_of(table: NDArray[np.floating], labels: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return what a table gives the label of each text; 0 where there is no label."""
    chance = table[np.arange(len(labels)), np.maximum(labels, 0)].astype(np.float64)
    return np.where(labels >= 0, chance, 0.0)
