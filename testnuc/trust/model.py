"""A labeler made of the LLM's own label, the neighbors' votes and a head.

For a text x with own label y and neighbors N(x)::

    labels of neighbors:  l(u) = argmax_c head(u)[c]
    votes:                v(x)[c] = sum over u in N(x) of similarity * [l(u) = c]
    probabilities:        p(x)[c] ~ head(x)[c] * (v(x)[c] + 0.3) * scale[c]
    taught by judgments:  p(x)[c] ~ p(x)[c] ** temper * e ** (move(x)[c] + move(y)[c])
    label:                argmax_c p(x)[c] * e ** (care * [c = y])

``head`` is the one that was fitted without the fold of the text, so that a text in the data is
labeled as a new one is. A judged text keeps its judged label, and counts more as a neighbor.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from testnuc._base.arrays import Bools, Float16s, Float32s, Floats, Int32s, Int64s
from testnuc._base.display import Brief
from testnuc.errors import InvalidInputError
from testnuc.trust.head import (
    FOLDS,
    LinearHead,
    class_scale,
    fit_folds,
    fit_move,
    one_thread,
    predict_folds,
)
from testnuc.voting import VotePolicy, vote_pool

Rows = Int64s | slice
_ALL = slice(None)
#: Neighbors whose votes are joined with the head.
NEIGHBORS = 30
#: Added to the votes for each label, so that a vote alone never excludes one.
_SMOOTHING = np.float32(0.3)
#: Rounds of self-training after the first fit.
_ROUNDS = 2
#: The same where most texts have no answer of the LLM: labels reach them step by step.
SKIPPED_ROUNDS = 4
#: How much more the label of a judged text counts as a neighbor.
_JUDGED_VOTE = np.float32(8)
#: Standard deviations of what judgments add to log odds: of each weight, one of these, and of the
#: bias.
_SPREADS, _BIAS_SPREAD = (0, 1, 3, 10, 30), 2
#: Parts of a fold: what is measured on judged texts is by fits that know all but one of them.
_PARTS = 4
#: The least probability whose log is taken.
_TINY = np.float32(1e-6)
#: Most labels that a model is fitted to, and cells (texts x labels) of a table in a fit.
_MOST_LABELS, _FIT_CELLS = 2_000, 40_000_000
#: Cells of the largest table in memory where a model is applied, and of a block of texts.
MOST_CELLS, _BLOCK_CELLS = 100_000_000, 4_000_000


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Texts(Brief):
    """Distinct texts, their neighbors among each other, and what is known of them."""

    #: float16[n, dim], unit norm.
    vectors: Float16s
    #: int32[n], the LLM's labels; -1 = none.
    own: Int32s
    #: int64[b, K]: positions of the neighbors of the first b texts, most similar first; -1 = none.
    neighbors: Int64s
    #: float32[b, K].
    similarities: Float32s
    #: int64[n].
    folds: Int64s
    n_classes: int
    #: int32[n], judged labels; -1 = not judged.
    judged: Int32s | None = None

    def __len__(self) -> int:
        """Return the number of texts whose neighbors are known."""
        return len(self.neighbors)

    def votes(self, labels: Int32s, *, k: int, own_weight: float = 0.0) -> Floats:
        """Return float[b, C], the weight of the votes for each label.

        The neighbors' labels are int32[n]; the LLM's own label of each text has the weight
        `own_weight`.
        """
        b = len(self)
        own = self.own[:b] if own_weight else np.full(b, -1, dtype=np.int32)
        policy = VotePolicy(own_weight=own_weight or 1.0)
        given = (self.neighbors[:, :k], self.similarities[:, :k], labels, None, own, None)
        found = vote_pool(*given, n_classes=self.n_classes, policy=policy, votes=True).votes
        assert found is not None
        return found

    def part(self, rows: Int64s) -> "tuple[Texts, Int64s]":
        """Return some of the texts, followed by their neighbors, and the place of each before."""
        near = self.neighbors[rows]
        places = np.concatenate([rows, np.setdiff1d(near[near >= 0], rows)])
        # the last one is that of a missing neighbor
        new = np.full(len(self.own) + 1, -1, dtype=np.int64)
        new[places] = np.arange(len(places))
        judged = None if self.judged is None else self.judged[places]
        facts = (self.vectors[places], self.own[places], new[near], self.similarities[rows])
        return Texts(*facts, self.folds[places], self.n_classes, judged), places

    def with_judged(self, rows: Int64s, labels: Int32s) -> Self:
        """Return the same texts, some of them judged."""
        judged = np.full(len(self.own), -1, dtype=np.int32)
        judged[rows] = labels
        return replace(self, judged=judged)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class VoteModel(Brief):
    """The vote of k neighbors; k = 0 keeps the LLM's own labels."""

    k: int
    own_weight: float = 1.0

    def label(self, texts: Texts) -> Int32s:
        """Return int32[b], the label of each text; -1 = none."""
        own = texts.own[: len(texts)]
        if not self.k:
            return own
        votes = texts.votes(texts.own, k=self.k, own_weight=self.own_weight)
        return np.where(votes.max(axis=1) > 0, votes.argmax(axis=1), own).astype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """What a model gives texts before anything is judged; it is the same for all judgments."""

    #: float32[b, C], by the head that was fitted without the fold of the text.
    head: Float32s
    #: int32[n], that neighbors vote for.
    labels: Int32s
    #: float32[b, C].
    votes: Float32s


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HeadModel(Brief):
    """Head and vote, see the module."""

    #: One for each fold.
    heads: tuple[LinearHead, ...]
    #: float32[C], of class sizes.
    scale: Float32s
    #: How much the LLM's own label counts more, as a log odds.
    care: float
    power: float = 0.0
    #: How much log probabilities count beside `moves`.
    temper: float = 1.0
    #: float32[dim + 1 + C, C], learned from judged texts: what the embedding, a constant, and the
    #: LLM's own label add to log odds. An older version learned some for each fold.
    moves: Float32s | None = None

    def rounded(self) -> Self:
        """Return it as it is read back from a store, so that both give the same labels."""
        heads = tuple(head.rounded() for head in self.heads)
        moves = None if self.moves is None else self.moves.astype(np.float16).astype(np.float32)
        return replace(self, heads=heads, moves=moves)

    def neighbor_labels(self, texts: Texts) -> Int32s:
        """Return the labels that neighbors vote for, int32[n], in little memory."""
        found = np.empty(len(texts.own), dtype=np.int32)
        step = max(1, _BLOCK_CELLS // texts.n_classes)
        for start in range(0, len(found), step):
            at = slice(start, start + step)
            head = predict_folds(self.heads, texts.vectors[at], texts.folds[at])
            found[at] = head.argmax(axis=1)
        return found

    def ground(self, texts: Texts, labels: Int32s | None = None) -> Ground:
        """Return what `probabilities` and `teach` need, for those that call them many times.

        Labels are those of `neighbor_labels`, if they are known.
        """
        if labels is None:
            head = predict_folds(self.heads, texts.vectors, texts.folds)
            labels = head.argmax(axis=1).astype(np.int32)
        else:
            b = len(texts)
            head = predict_folds(self.heads, texts.vectors[:b], texts.folds[:b])
        votes = texts.votes(labels, k=NEIGHBORS).astype(np.float32)
        return Ground(head[: len(texts)], labels, votes)

    def probabilities(
        self, texts: Texts, ground: Ground | None = None, of: Rows = _ALL
    ) -> Float32s:
        """Return float32[b, C], or of some rows: sums to 1, before the care for the own label."""
        chances = _untaught(self, texts, ground or self.ground(texts), of)
        if self.moves is None:
            return chances
        logs = np.float32(self.temper) * np.log(np.maximum(chances, _TINY))
        places = np.arange(len(texts))[of]
        for fold, moves in enumerate(np.broadcast_to(self.moves, (FOLDS, *self.moves.shape[-2:]))):
            here = texts.folds[places] == fold
            of_text, of_own = np.split(moves, [-texts.n_classes])
            vectors = texts.vectors[places[here]].astype(np.float32)
            logs[here] += vectors @ of_text[:-1] + of_text[-1]
            here &= texts.own[places] >= 0
            logs[here] += of_own[texts.own[places[here]]]
        return _softmax(logs)

    def label(self, texts: Texts, ground: Ground | None = None) -> Int32s:
        """Return int32[b], the label of each text."""
        return self.label_of(self.probabilities(texts, ground), texts)

    def label_of(self, probabilities: Float32s, texts: Texts) -> Int32s:
        """Return int32[b], the label of each text, from its probabilities."""
        weighed = probabilities.copy()
        known = np.flatnonzero(texts.own[: len(texts)] >= 0)
        weighed[known, texts.own[known]] *= np.float32(np.exp(self.care))
        result: Int32s = weighed.argmax(axis=1).astype(np.int32)
        return result


def fits(texts: int, n_classes: int) -> bool:
    """Whether a model of so many texts and labels fits into memory."""
    return n_classes <= _MOST_LABELS and texts * n_classes <= MOST_CELLS


def most_texts(n_classes: int, most: int) -> int:
    """Return how many texts a model is fitted on at most, so that its tables fit into memory."""
    if n_classes > _MOST_LABELS:
        raise InvalidInputError(
            f"there are {n_classes:,} labels, and a model that learns them holds texts x labels in "
            f"memory: at most {_MOST_LABELS:,} are supported; use the labels of an upper level, or "
            "fewer"
        )
    return min(most, _FIT_CELLS // n_classes)


def fit_model(
    texts: Texts, *, power: float, care: float, start: Sequence[LinearHead], rounds: int = _ROUNDS
) -> HeadModel:
    """Self-train a model on the LLM's own labels; `start` are heads that were fitted on them.

    `power`, 0 to 1, is how far class sizes are moved toward equal ones.
    """
    heads, labels, own_weight = tuple(start), texts.own, 1.0
    for step in range(rounds + 1):
        head = predict_folds(heads, texts.vectors, texts.folds)
        found = vote_joined(texts, head, labels, own_weight=own_weight)
        found = _rows_to_one(found * class_scale(found, power))
        if step < rounds:
            heads = fit_folds(texts.vectors, found, texts.folds, heads)
            labels, own_weight = found.argmax(axis=1).astype(np.int32), 0.0
    # the labels of neighbors are the head's from now on, so that a new text is labeled alike
    labels = head.argmax(axis=1).astype(np.int32)
    scale = class_scale(vote_joined(texts, head, labels), power)
    return HeadModel(heads, scale, care, power)


class Taught(NamedTuple):
    """A model that has learned from judged texts."""

    model: HeadModel
    #: Which of the bases it is made of.
    base: int
    #: float32[b, C]; of a judged text without its judgment, see `teach`.
    probabilities: Float32s
    #: int32[b], the label of each text by a fit that knows no judgment of its fold.
    apart: Int32s


@one_thread()
def teach(
    bases: Sequence[HeadModel],
    texts: Texts,
    weights: Float32s | None = None,
    grounds: Sequence[Ground] | None = None,
    parts: int = _PARTS,
    *,
    everywhere: bool = True,
) -> Taught:
    """Fit a model to the judged labels, with what one of the bases says as a feature.

    A softmax regression on the judged texts (maximum a posteriori) from the log probabilities of
    the base, the embedding and the LLM's own label. Base and spread of the prior are those with the
    least log loss on folds that were left out: so judgments say how much of the base is kept.

    The probabilities of a judged text are those of a fit without its part of its fold, which knows
    nearly all judgments, so that what is measured on judged texts holds for the others. Its base
    and spread are those that are best on the other folds, whose fits do know it:
    tests/trust/test_adoption.py counts what that does. `weights`, float32[n], are those of judged
    texts; a fold has so many `parts`, none if those probabilities are not needed.

    Where the embedding takes part, judgments must show how much the base counts, unless these are
    of disagreements alone (not `everywhere`): such texts do not say where the base is right.
    """
    judged = texts.judged
    assert judged is not None
    given = [base.ground(texts) for base in bases] if grounds is None else grounds
    rows = np.flatnonzero(judged[: len(texts)] >= 0)
    labels, folds = judged[rows], texts.folds[rows]
    own = one_hot(texts.own[rows], texts.n_classes)
    w = np.ones(len(rows), dtype=np.float32) if weights is None else weights[rows]
    # Centered: the bias stands for all that embeddings have in common.
    middle = texts.vectors.mean(axis=0, dtype=np.float32)
    embedded = texts.vectors[rows].astype(np.float32) - middle
    x = np.column_stack([embedded, np.ones(len(rows)), own]).astype(np.float32)
    # pairs: what all fits need of two texts, without the constant
    dim, m, pairs = len(middle), np.arange(len(rows)), x.astype(np.float64) @ x.T - 1

    def logs_of(base: int, known: Texts) -> Float32s:
        chances = _untaught(bases[base], known, given[base], rows)
        return np.log(np.maximum(chances, _TINY))

    def fitted(logs: Float32s, some: Bools, spread: int) -> tuple[float, Float32s]:
        """Return the temper, and the moves of centered embeddings."""
        scale = np.full(x.shape[1], spread, dtype=np.float32)
        scale[dim] = _BIAS_SPREAD
        used = np.flatnonzero(scale)
        seen, said = x[some][:, used] * scale[used], np.stack([logs, own])[:, some]
        gram = spread**2 * pairs[some][:, some] + _BIAS_SPREAD**2
        temper, care, move = fit_move(
            said, seen, gram, labels[some], w[some], 0.0 if spread and everywhere else 1.0
        )
        moves = np.zeros((len(scale), texts.n_classes), dtype=np.float32)
        moves[used] = move * scale[used][:, None]
        moves[dim + 1 :] += np.float32(care) * np.eye(texts.n_classes, dtype=np.float32)
        return temper, moves

    def predicted(base: int, out: Bools, spreads: Sequence[int]) -> list[Float32s]:
        """Return the probabilities of some judged texts, by a fit without them for each spread."""
        # Neither the heads nor the votes behind these logs know the judgments.
        logs = logs_of(base, texts.with_judged(rows[~out], labels[~out]))
        fits = [fitted(logs, ~out, spread) for spread in spreads]
        return [_softmax(np.float32(temper) * logs[out] + x[out] @ moves) for temper, moves in fits]

    def left_out(base: int, spreads: Sequence[int]) -> dict[tuple[int, int], Float32s]:
        """Return the log loss of the judged texts, each by a fit without its fold."""
        found = np.empty((len(spreads), len(rows), texts.n_classes), np.float32)
        for fold in np.unique(folds):
            found[:, folds == fold] = predicted(base, folds == fold, spreads)
        losses = -w * np.log(np.maximum(found[:, m, labels], _TINY))
        return {(base, spread): of for spread, of in zip(spreads, losses, strict=True)}

    def best(some: Bools) -> tuple[int, int]:
        return min(loss, key=lambda way: float(loss[way][some].sum()))

    def made(some: Bools, of: Rows = _ALL) -> tuple[int, HeadModel, Float32s]:
        """Return what some of the judged texts teach: base, model, and probabilities of texts."""
        known, (base, spread) = texts.with_judged(rows[some], labels[some]), best(some)
        temper, moves = fitted(logs_of(base, known), some, spread)
        moves[dim] -= middle @ moves[:dim]
        model = replace(bases[base], care=0.0, temper=temper, moves=moves).rounded()
        return base, model, model.probabilities(known, given[base], of)

    loss = {way: of for b in range(len(bases)) for way, of in left_out(b, _SPREADS[:1]).items()}
    loss |= left_out(best(m >= 0)[0], _SPREADS[1:])
    base, model, probabilities = made(m >= 0)
    apart = probabilities.argmax(axis=1).astype(np.int32)
    for fold in np.unique(folds):
        here = np.flatnonzero(texts.folds[: len(texts)] == fold)
        apart[here] = made(folds != fold, here)[2].argmax(axis=1)
    places = folds * parts + m % max(parts, 1)
    for place in np.unique(places)[: FOLDS * parts]:
        of, spread = best(folds != place // parts)
        (probabilities[rows[places == place]],) = predicted(of, places == place, [spread])
    return Taught(model, base, probabilities, apart)


def one_hot(labels: Int32s, n_classes: int) -> Float32s:
    """Return float32[n, C]; a row of zeros for -1."""
    table = np.zeros((len(labels), n_classes), dtype=np.float32)
    known = np.flatnonzero(labels >= 0)
    table[known, labels[known]] = 1
    return table


def vote_joined(
    texts: Texts, head: Float32s, labels: Int32s, *, own_weight: float = 0.0
) -> Float32s:
    """Return float32[b, C]: a head times the neighbors' votes for their labels; rows sum to 1."""
    votes = texts.votes(labels, k=NEIGHBORS, own_weight=own_weight).astype(np.float32)
    return _rows_to_one(head[: len(texts)] * (votes + _SMOOTHING))


def _untaught(model: HeadModel, texts: Texts, ground: Ground, rows: Rows = _ALL) -> Float32s:
    """Return float32[b, C], or of some rows: probabilities without what judgments teach."""
    votes, judged = ground.votes[rows].copy(), texts.judged
    if judged is not None and (judged >= 0).any():
        # judged neighbors count more, and as they were judged
        neighbors = texts.neighbors[rows, :NEIGHBORS]
        place, rank = np.nonzero((neighbors >= 0) & (judged[neighbors] >= 0))
        other = neighbors[place, rank]
        near = np.clip(texts.similarities[rows][place, rank], 0, 1)
        np.add.at(votes, (place, judged[other]), _JUDGED_VOTE * near)
        np.subtract.at(votes, (place, ground.labels[other]), near)
        # rounding
        votes = np.maximum(votes, 0)
    return _rows_to_one(ground.head[rows] * (votes + _SMOOTHING) * model.scale)


def _rows_to_one(table: Float32s) -> Float32s:
    result: Float32s = table / table.sum(axis=1, keepdims=True)
    return result


def _softmax(logs: Float32s) -> Float32s:
    chances: Float32s = np.exp(logs - logs.max(axis=1, keepdims=True))
    return _rows_to_one(chances)
