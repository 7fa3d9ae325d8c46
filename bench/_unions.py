"""Texts with several labels for `bench multilabel`: simulated, or unions of recorded ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench._recorded import read_recorded
from testnuc._engine.threshold_learning import learn_thresholds
from testnuc.index.nearest import NearestVectors
from testnuc.trust.evidence import Draws, Judged
from testnuc.trust.head import FOLDS, LinearHead, fit_folds
from testnuc.trust.thresholds import LabelScores, scores_of
from testnuc.voting import Labels, keep_own, vote_multilabel

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from testnuc.trust.learned import Learned

__all__ = ["SIZES", "Unions", "recorded_unions", "simulated_unions"]

#: Chance that a text has 0, 1, 2, 3 labels: about that of GoEmotions and of tagged tickets.
SIZES = (0.1, 0.55, 0.25, 0.1)
#: Chance that a union has 1, 2, 3 parts.
_PARTS = (0.5, 0.35, 0.15)
_DIM = 64
#: Distinct sets of labels; texts choose among them by Zipf's law.
_SETS = 120


@dataclass(frozen=True, eq=False)
class Unions:
    """Texts with several labels, and their neighbors."""

    #: bool[n, C].
    gold: NDArray[np.bool_]
    said: NDArray[np.bool_]
    ids: NDArray[np.int64]
    similarities: NDArray[np.float32]
    vectors: NDArray[np.float32]

    @property
    def folds(self) -> NDArray[np.int64]:
        """The fold of each text: by chance, as content hashes are."""
        return np.random.default_rng(7).integers(0, FOLDS, len(self.gold))

    def scores(self) -> tuple[LabelScores, tuple[LinearHead, ...]]:
        """Return what speaks for each label, given by default, and the heads."""
        pool = _labels(self.said)
        n, n_classes = self.gold.shape
        own = np.arange(n)
        voted = vote_multilabel(self.ids, self.similarities, own, pool, n_classes=n_classes)
        voted = keep_own(voted, own, pool)
        heads = fit_folds(self.vectors, self.said.astype(np.float32), self.folds, several=True)
        return scores_of(voted, pool, self.folds, n_classes, heads, self.vectors), heads

    def learned(
        self, scores: LabelScores, heads: tuple[LinearHead, ...], m: int, seed: int
    ) -> Learned:
        """Return what is learned from m texts that are drawn at random."""
        n, n_classes = self.gold.shape
        rows = np.random.default_rng([seed, m]).permutation(n)[:m].astype(np.int64)
        draws, person = Draws.at_random(n, m), np.ones(m, dtype=np.bool_)
        judged = Judged(rows, _labels(self.gold[rows]), draws, person)
        return learn_thresholds(scores, judged, tuple(map(str, range(n_classes))), 0.5, heads)


def _labels(table: NDArray[np.bool_]) -> Labels:
    return Labels.of([[(int(c), None) for c in np.flatnonzero(row)] for row in table])


def _texts(
    n: int, n_classes: int, random: np.random.Generator
) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.float32]]:
    """Return sets of labels, the set of each text, and unit vectors: unions of the labels."""
    sets = np.zeros((_SETS, n_classes), np.bool_)
    for one in sets:
        size = random.choice(len(SIZES), p=SIZES)
        one[random.choice(n_classes, size, replace=False)] = True
    chance = 1 / np.arange(1, _SETS + 1)
    set_of = random.choice(_SETS, n, p=chance / chance.sum())
    gold = sets[set_of]
    centers = random.normal(size=(n_classes, _DIM))
    vectors = gold @ centers + random.normal(size=_DIM) + 0.8 * random.normal(size=(n, _DIM))
    return sets, set_of, _unit(vectors)


def _unit(vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    unit: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit.astype(np.float32)


def _answers(
    gold: NDArray[np.bool_], missed: float, wrong: float, random: np.random.Generator
) -> NDArray[np.bool_]:
    """Return what a simulated LLM says: it misses labels, and adds one to some texts."""
    said = gold & (random.random(gold.shape) >= missed)
    adds = random.random(len(gold)) < wrong
    said[adds, random.integers(0, gold.shape[1], int(adds.sum()))] = True
    return said


def _nearest(vectors: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    n = len(vectors)
    index = NearestVectors(vectors.shape[1], exact_below=n + 1)
    half = vectors.astype(np.float16)
    index.add(half, np.arange(n, dtype=np.uint64))
    return index.search(half, k, exclude=np.arange(n, dtype=np.int64))


def simulated_unions(
    n: int, n_classes: int, k: int, missed: float, wrong: float, alike: float
) -> Unions:
    """Return texts, answers and vectors that are all simulated.

    Parameters
    ----------
    n, n_classes, k : int
    missed : float
        Part of the right labels that the LLM misses.
    wrong : float
        Part of the texts to which it adds a wrong one.
    alike : float
        Part of the texts with the same labels that get the same answer.
    """
    random = np.random.default_rng(1)
    sets, set_of, vectors = _texts(n, n_classes, random)
    gold = sets[set_of]
    said = _answers(gold, missed, wrong, random)
    same = random.random(n) < alike
    said[same] = _answers(sets, missed, wrong, random)[set_of[same]]
    return Unions(gold, said, *_nearest(vectors, k), vectors)


def recorded_unions(path: Path, cache: Path, embedder: str, n: int, k: int) -> Unions:
    """Return unions of one, two or three recorded texts, with the union of their answers.

    A union's vector is the sum of the vectors of its parts. The second and third part are often
    those of another union, so that sets of labels occur together as they do in real data.
    """
    found = read_recorded(path, cache, embedder)
    random = np.random.default_rng(2)
    own, gold, n_classes = found.texts.own, found.gold, found.texts.n_classes
    # pairs of labels that occur together: each label has three partners
    partners = random.integers(0, n_classes, (n_classes, 3))
    of_label = [np.flatnonzero(gold == label) for label in range(n_classes)]
    right = np.zeros((n, n_classes), np.bool_)
    said = np.zeros((n, n_classes), np.bool_)
    vectors = np.zeros((n, found.texts.vectors.shape[1]), np.float32)
    for row in range(n):
        size = 1 + int(random.choice(len(_PARTS), p=_PARTS))
        label = int(random.integers(0, n_classes))
        for _ in range(size):
            text = int(random.choice(of_label[label]))
            right[row, gold[text]] = True
            if own[text] >= 0:
                said[row, own[text]] = True
            vectors[row] += found.texts.vectors[text]
            label = int(random.choice(partners[label]))
    vectors = _unit(vectors)
    return Unions(right, said, *_nearest(vectors, k), vectors)
