"""A labeler made of the LLM's own label, the neighbors' votes and a head.

For a text x with own label y and neighbors N(x)::

    labels of neighbors:  l(u) = argmax_c head(u)[c]
    votes:                v(x)[c] = sum over u in N(x) of similarity * [l(u) = c]
    probabilities:        p(x)[c] ~ head(x)[c] * (v(x)[c] + 0.3) * scale[c] * e ** offset[c]
    label:                argmax_c p(x)[c] * e ** (care * [c = y])

``head`` is the one that was fitted without the fold of the text, so that a text in the data is
labeled as a new one is. A judged text keeps its judged label, and counts more as a neighbor.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from testnuc.trust.head import Softmax, class_scale, fit_folds, predict_folds
from testnuc.voting import VotePolicy, vote_pool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["HeadModel", "Texts", "VoteModel", "fit_model", "one_hot", "teach", "vote_joined"]

#: Neighbors whose votes are joined with the head.
_NEIGHBORS = 30
#: Added to the votes for each label, so that a vote alone never excludes one.
_SMOOTHING = np.float32(0.3)
#: Rounds of self-training after the first fit.
_ROUNDS = 2
#: How much more the label of a judged text counts: in the fit, and as a neighbor.
_JUDGED_WEIGHT, _JUDGED_VOTE = np.float32(40), np.float32(8)
#: Standard deviation that offsets are drawn from: what few judgments say of a class is shrunk.
_OFFSET_SPREAD = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Distinct texts, their neighbors among each other, and what is known of them.

    Parameters
    ----------
    vectors : float16[n, dim]
        Unit norm.
    own : int32[n]
        The LLM's labels; -1 = none.
    neighbors : int64[b, K]
        Positions of the neighbors of the first b texts, most similar first; -1 = none.
    similarities : float32[b, K]
    folds : int64[n]
    n_classes : int
    judged : int32[n], optional
        Judged labels; -1 = not judged.
    """

    vectors: NDArray[np.float16]
    own: NDArray[np.int32]
    neighbors: NDArray[np.int64]
    similarities: NDArray[np.float32]
    folds: NDArray[np.int64]
    n_classes: int
    judged: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        """Return the number of texts whose neighbors are known."""
        return len(self.neighbors)

    def votes(
        self, labels: NDArray[np.int32], *, k: int, own_weight: float = 0.0
    ) -> NDArray[np.floating]:
        """Return float[b, C], the weight of the votes for each label.

        Parameters
        ----------
        labels : int32[n]
            Of the neighbors.
        k : int
        own_weight : float
            Weight of the LLM's own label of each text.
        """
        b = len(self)
        own = self.own[:b] if own_weight else np.full(b, -1, dtype=np.int32)
        found = vote_pool(
            self.neighbors[:, :k],
            self.similarities[:, :k],
            labels,
            None,
            own,
            None,
            n_classes=self.n_classes,
            policy=VotePolicy(own_weight=own_weight or 1.0),
            votes=True,
        ).votes
        assert found is not None
        return found

    def with_judged(self, rows: NDArray[np.int64], labels: NDArray[np.int32]) -> Texts:
        """Return the same texts, some of them judged."""
        judged = np.full(len(self.own), -1, dtype=np.int32)
        judged[rows] = labels
        return replace(self, judged=judged)


@dataclass(frozen=True, slots=True, eq=False)
class VoteModel:
    """The vote of k neighbors; k = 0 keeps the LLM's own labels."""

    k: int
    own_weight: float = 1.0

    def label(self, texts: Texts) -> NDArray[np.int32]:
        """Return int32[b], the label of each text; -1 = none."""
        own = texts.own[: len(texts)]
        if not self.k:
            return own
        votes = texts.votes(texts.own, k=self.k, own_weight=self.own_weight)
        found = np.where(votes.max(axis=1) > 0, votes.argmax(axis=1), own)
        result: NDArray[np.int32] = found.astype(np.int32)
        return result


@dataclass(frozen=True, slots=True, eq=False)
class HeadModel:
    """Head and vote, see the module.

    Parameters
    ----------
    heads : tuple of Softmax
        One for each fold.
    scale : float32[C]
        Of class sizes.
    care : float
        How much the LLM's own label counts more, as a log odds.
    offsets : float32[FOLDS, C]
        Learned from judged texts of the other folds.
    """

    heads: tuple[Softmax, ...]
    scale: NDArray[np.float32]
    care: float
    power: float = 0.0
    offsets: NDArray[np.float32] | None = field(default=None)

    def probabilities(self, texts: Texts) -> NDArray[np.float32]:
        """Return float32[b, C], before the care for the own label; rows sum to 1."""
        if self.offsets is None:
            head = predict_folds(self.heads, texts.vectors, texts.folds)
            return _rows_to_one(_joined(texts, head, self.scale))
        folds = texts.folds[: len(texts)]
        found = np.empty((len(texts), texts.n_classes), dtype=np.float32)
        for fold, fitted in enumerate(self.heads):
            # The neighbors are labeled by the head of the text, too: other heads learned from the
            # judgment of this text.
            inside = np.flatnonzero(folds == fold)
            head = fitted.probabilities(texts.vectors)
            labels = head.argmax(axis=1).astype(np.int32)
            product = head[inside] * (_votes(texts, labels, inside) + _SMOOTHING)
            found[inside] = _rows_to_one(product * self.scale * np.exp(self.offsets[fold]))
        return found

    def label(self, texts: Texts) -> NDArray[np.int32]:
        """Return int32[b], the label of each text."""
        return self.label_of(self.probabilities(texts), texts)

    def label_of(self, probabilities: NDArray[np.float32], texts: Texts) -> NDArray[np.int32]:
        """Return int32[b], the label of each text, from its probabilities."""
        weighed = _careful(probabilities, texts.own[: len(texts)], self.care)
        result: NDArray[np.int32] = weighed.argmax(axis=1).astype(np.int32)
        return result


def fit_model(
    texts: Texts, *, power: float, care: float, start: Sequence[Softmax], rounds: int = _ROUNDS
) -> HeadModel:
    """Self-train a model on the LLM's own labels.

    Parameters
    ----------
    texts : Texts
        Neighbors of all of them.
    power : float
        How far class sizes are moved toward equal ones, 0 to 1.
    care : float
    start : sequence of Softmax
        By fold, fitted on the own labels.
    rounds : int
    """
    weights = np.ones(len(texts), dtype=np.float32)
    heads = tuple(start)
    head = predict_folds(heads, texts.vectors, texts.folds)
    first = texts.votes(texts.own, k=_NEIGHBORS, own_weight=1.0).astype(np.float32)
    found = _rows_to_one(head * (first + _SMOOTHING))
    scale = class_scale(found, power)
    found = _rows_to_one(found * scale)
    for _ in range(rounds):
        heads = fit_folds(texts.vectors, found, weights, texts.folds, heads)
        head = predict_folds(heads, texts.vectors, texts.folds)
        labels = found.argmax(axis=1).astype(np.int32)
        found = _rows_to_one(_joined(texts, head, labels=labels))
        scale = class_scale(found, power)
        found = _rows_to_one(found * scale)
    # the labels of neighbors are the head's from now on, so that a new text is labeled alike
    scale = class_scale(_rows_to_one(_joined(texts, head)), power)
    return HeadModel(heads, scale, care, power)


def teach(model: HeadModel, texts: Texts) -> HeadModel:
    """Refit a model on its own labels and the judged ones, which count more.

    The prediction of a judged text does not depend on its judgment: its fold's head and offset are
    fitted without it. So what is measured on judged texts holds for the others.
    """
    from scipy.optimize import minimize

    assert texts.judged is not None
    rows = np.flatnonzero(texts.judged >= 0)
    gold = texts.judged[rows]
    plain = replace(texts, judged=None)
    targets = model.probabilities(plain)
    base = predict_folds(model.heads, texts.vectors, texts.folds)
    targets[rows] = 0
    targets[rows, gold] = 1
    weights = np.ones(len(texts), dtype=np.float32)
    weights[rows] = _JUDGED_WEIGHT
    heads = fit_folds(texts.vectors, targets, weights, texts.folds)
    # the fit already follows the class sizes of its targets
    taught = replace(model, heads=heads, scale=np.ones_like(model.scale), offsets=None)
    labels = base.argmax(axis=1).astype(np.int32)
    offsets = np.zeros((len(heads), texts.n_classes), dtype=np.float32)
    one_hot = np.eye(texts.n_classes)[gold]
    for fold in range(len(heads)):
        others = texts.folds[rows] != fold
        # Neither the heads nor the votes behind these logs know a judgment of this fold.
        known = np.where(texts.folds == fold, -1, texts.judged).astype(np.int32)
        votes = _votes(replace(texts, judged=known), labels, rows[others])
        product = _rows_to_one(base[rows[others]] * (votes + _SMOOTHING) * model.scale)
        z, t = np.log(product + np.float32(1e-6)).astype(np.float64), one_hot[others]

        def loss(
            b: NDArray[np.float64], z: NDArray[np.float64] = z, t: NDArray[np.float64] = t
        ) -> tuple[float, NDArray[np.float64]]:
            moved = z + b
            moved -= moved.max(axis=1, keepdims=True)
            odds = np.exp(moved)
            norm = odds.sum(axis=1, keepdims=True)
            fit = float((t * (moved - np.log(norm))).sum())
            slope = (odds / norm - t).sum(axis=0) + b / _OFFSET_SPREAD**2
            return -fit + float((b * b).sum()) / 2 / _OFFSET_SPREAD**2, slope

        offsets[fold] = minimize(loss, np.zeros(texts.n_classes), jac=True, method="L-BFGS-B").x
    return replace(taught, offsets=offsets)


def one_hot(labels: NDArray[np.int32], n_classes: int) -> NDArray[np.float32]:
    """Return float32[n, C]; a row of zeros for -1."""
    table = np.zeros((len(labels), n_classes), dtype=np.float32)
    known = np.flatnonzero(labels >= 0)
    table[known, labels[known]] = 1
    return table


def vote_joined(
    texts: Texts, head: NDArray[np.float32], own: NDArray[np.int32]
) -> NDArray[np.float32]:
    """Return float32[b, C]: a head times the votes of the neighbors' own labels; rows sum to 1."""
    votes = texts.votes(own, k=_NEIGHBORS).astype(np.float32)
    return _rows_to_one(head[: len(texts)] * (votes + _SMOOTHING))


def _joined(
    texts: Texts,
    head: NDArray[np.float32],
    scale: NDArray[np.float32] | None = None,
    labels: NDArray[np.int32] | None = None,
) -> NDArray[np.float32]:
    """Return float32[b, C]: head times votes times scale; rows do not sum to 1."""
    if labels is None:
        labels = head.argmax(axis=1).astype(np.int32)
    votes = _votes(texts, labels)
    product: NDArray[np.float32] = head[: len(texts)] * (votes + _SMOOTHING)
    return product if scale is None else product * scale


def _votes(
    texts: Texts, labels: NDArray[np.int32], rows: NDArray[np.int64] | None = None
) -> NDArray[np.float32]:
    """Return float32[b, C], or of some rows: votes of neighbors, more of judged ones."""
    if rows is not None:
        texts = replace(
            texts, neighbors=texts.neighbors[rows], similarities=texts.similarities[rows]
        )
    judged = texts.judged
    if judged is None or not (judged >= 0).any():
        return texts.votes(labels, k=_NEIGHBORS).astype(np.float32)
    votes = texts.votes(np.where(judged >= 0, judged, labels), k=_NEIGHBORS)
    votes += (_JUDGED_VOTE - 1) * texts.votes(judged, k=_NEIGHBORS)
    return votes.astype(np.float32)


def _careful(
    probabilities: NDArray[np.float32], own: NDArray[np.int32], care: float
) -> NDArray[np.float32]:
    """Multiply the probability of the own label by e ** care."""
    if not care:
        return probabilities
    weighed = probabilities.copy()
    known = np.flatnonzero(own >= 0)
    weighed[known, own[known]] *= np.float32(np.exp(care))
    return weighed


def _rows_to_one(table: NDArray[np.float32]) -> NDArray[np.float32]:
    result: NDArray[np.float32] = table / table.sum(axis=1, keepdims=True)
    return result
