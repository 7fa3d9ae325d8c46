"""The rule where a text can have several labels: all whose score is above a threshold.

The score of a text and a label is the share of the vote, or the mean of the share and of a head's
probability. Thresholds maximize, by judged texts::

    sum of the Jaccard index over the judged texts - 20 * sum of (threshold - pooled threshold) ** 2

so that the threshold of a label moves away from the pooled one only as far as judgments demand it:
by 0.2 if that gains 0.8 texts. The pooled one moves away from that of the vote settings likewise.
Thresholds are fitted without the fold of the texts that they apply to, as in `testnuc.trust.model`.

Trust is calibrated in two steps, each without the fold of the text: that a label applies, by its
score and whether the LLM gave it; that all labels of a text are right, by the product of these.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from testnuc._base.arrays import Array, Bools, Float32s, Float64s, Floats, Int32s, Int64s
from testnuc._base.display import Brief
from testnuc.trust.calibration import LABEL_PRIOR, Prior, by_fold, log_odds
from testnuc.trust.head import FOLDS, LinearHead, predict_folds
from testnuc.voting import Labels, places_of, starts_of_rows

#: Cells of texts times labels that are in memory at a time.
_CELLS = 1 << 22
#: A label that only the head speaks for is dropped below this probability.
_LEAST = 0.05
_GRID = np.arange(0.025, 1, 0.05)
#: Jaccard index that a squared move of a threshold must gain.
_STRENGTH = 20.0
_ROUNDS = 2


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LabelScores(Brief):
    """What speaks for each label of n texts."""

    #: The labels that anything speaks for, in their order, with the shares of the vote and those
    #: that it gives under the vote settings; known: anything voted.
    vote: Labels
    #: float32[T], probabilities by a head; the shares without one.
    heads: Float32s
    #: bool[T], whether the LLM gave the label.
    own: Bools
    #: bool[n], whether the LLM's labels are known.
    answered: Bools
    #: int64[n].
    folds: Int64s

    def __len__(self) -> int:
        return len(self.folds)

    def at(self, rows: Int64s) -> "LabelScores":
        """Return the scores of some texts."""
        at, _ = places_of(self.vote.starts, rows)
        return LabelScores(
            self.vote.at(rows), self.heads[at], self.own[at], self.answered[rows], self.folds[rows]
        )

    def scores(self, *, with_head: bool) -> Float32s:
        """Return the score of each pair, float32[T]."""
        return (self.vote.share + self.heads) * np.float32(0.5) if with_head else self.vote.share

    def above(self, thresholds: Float32s, *, with_head: bool = False) -> Bools:
        """Return which labels have a score above float32[FOLDS, C]; as before without a vote."""
        rows = self.vote.rows
        above = self.scores(with_head=with_head) > thresholds[self.folds[rows], self.vote.label]
        return np.where(self.vote.known[rows], above, self.vote.given)

    def by_llm(self) -> Bools:
        """Return which labels the LLM gave; those of the vote where its labels are unknown."""
        return np.where(self.answered[self.vote.rows], self.own, self.vote.given)


def scores_of(
    voted: Labels,
    pool: Labels,
    folds: Int64s,
    n_classes: int,
    heads: Sequence[LinearHead] = (),
    vectors: Floats | None = None,
) -> LabelScores:
    """Return what speaks for the labels of the first n texts of a pool.

    With a head for each fold, `vectors` are needed, too.
    """
    n, step = len(folds), max(1, _CELLS // n_classes)
    votes, by_head, own = [], [], []
    # of no text, one part without any
    for start in range(0, max(n, 1), step):
        part = slice(start, min(start + step, n))
        rows = np.arange(n)[part]
        vote, said = voted.at(rows), pool.at(rows)
        shares = vote.table(n_classes)
        given = vote.table(n_classes, vote.given)
        mine = said.table(n_classes, said.given)
        head = shares
        if heads and vectors is not None:
            head = predict_folds(heads, vectors[part], folds[part])
        at = np.nonzero((shares > 0) | mine | given | (head >= _LEAST))
        starts = starts_of_rows(at[0], len(rows))
        label = at[1].astype(np.int32)
        votes.append(Labels(starts, label, shares[at], vote.voters > 0, given[at]))
        by_head.append(head[at])
        own.append(mine[at])
    vote, probabilities = Labels.stacked(votes), np.concatenate(by_head)
    return LabelScores(vote, probabilities, np.concatenate(own), pool.known[:n], folds)


def counts(labels: Labels, right: Labels, given: Bools) -> tuple[Int64s, Int64s, Int64s]:
    """Return of each text the number of given labels that are right, of given and of right ones."""
    rows, n = labels.rows, len(right)
    hits = np.bincount(rows[given & labels.among(right)], minlength=n)
    return hits, np.bincount(rows[given], minlength=n), np.diff(right.starts)


def exactly(labels: Labels, right: Labels, given: Bools) -> Bools:
    """Return which texts have all their right labels, and no other."""
    hits, count, sizes = counts(labels, right, given)
    exact: Bools = (hits == sizes) & (count == sizes) & right.known
    return exact


def jaccard(hits: Int64s, count: Int64s, sizes: Int64s) -> Float64s:
    """Return the Jaccard index of each text by its `counts`; 1 if it has no label and gets none."""
    union = count + sizes - hits
    return np.where(union > 0, hits / np.maximum(union, 1), 1.0)


def fit_thresholds(
    scores: LabelScores, right: Labels, n_classes: int, usual: float, *, with_head: bool = False
) -> Float32s:
    """Return the threshold of each label for the texts of each fold, float32[FOLDS, C].

    `right` are the labels that the texts should have, and `usual` is the threshold of the vote
    settings. With a head, thresholds are for scores with it.
    """
    thresholds = np.full((FOLDS, n_classes), usual, dtype=np.float32)
    for fold in range(FOLDS):
        others = np.flatnonzero((scores.folds != fold) & scores.vote.known)
        if len(others):
            some = scores.at(others)
            thresholds[fold] = _thresholds(
                some.vote, some.scores(with_head=with_head), right.at(others), n_classes, usual
            )
    return thresholds


def _thresholds(
    vote: Labels, scores: Float32s, truth: Labels, n_classes: int, usual: float
) -> Float32s:
    rows, right, grid = vote.rows, vote.among(truth), np.append(_GRID, usual)
    sums = [jaccard(*counts(vote, truth, scores > threshold)).sum() for threshold in grid]
    pooled = grid[int(np.argmax(sums - _STRENGTH * (grid - usual) ** 2))]
    thresholds = np.full(n_classes, pooled, dtype=np.float32)
    grid = np.append(_GRID, pooled)
    penalty = _STRENGTH * (grid - pooled) ** 2
    given = scores > pooled
    hits, count, sizes = counts(vote, truth, given)
    order = np.argsort(vote.label, kind="stable")
    names, first = np.unique(vote.label[order], return_index=True)
    groups = [
        (label, order[start:stop])
        for label, start, stop in zip(names.tolist(), first, [*first[1:], len(order)], strict=False)
    ]
    for _ in range(_ROUNDS):
        for label, at in groups:
            row, size = rows[at], sizes[rows[at]]
            # of the other labels of these texts
            hits[row] -= given[at] & right[at]
            count[row] -= given[at]
            without = jaccard(hits[row], count[row], size)
            inside = jaccard(hits[row] + right[at], count[row] + 1, size)
            passed = scores[at] > grid[:, None]
            sums = np.where(passed, inside, without).sum(axis=1)
            best = int(np.argmax(sums - penalty))
            thresholds[label] = grid[best]
            given[at] = passed[best]
            hits[row] += given[at] & right[at]
            count[row] += given[at]
    return thresholds


Decides = Literal["settings", "llm", "vote", "thresholds", "head"]

#: Of the chance that all labels of a text are right.
_TEXT_PRIOR = Prior(np.array([0.0, 1.0]), np.array([0.5, 4.0]), (None, 0))
#: Scores nearer to 0 and 1 count as this near.
_NEAR = 0.01

#: Arrays that are stored as they are.
_ARRAYS = ("limits", "of_label", "of_text", "given_rows", "given_labels", "given_right")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Thresholds(Brief):
    """Texts get all labels whose score is above a threshold, or those that they have anyway."""

    #: In words: what is trusted, and what a gain is measured in.
    trusted: ClassVar[str] = "all labels of a text are right"
    measured: ClassVar[str] = " of the Jaccard index"

    #: "settings": labels stay as they are without judgments; "llm"; "vote"; "thresholds" of the
    #: vote; "head": thresholds of the vote and a head.
    decides: Decides
    #: float32[FOLDS, C], the threshold of each label for the texts of each fold.
    limits: Float32s
    #: One for each fold, if `decides` is "head".
    heads: tuple[LinearHead, ...] = ()
    #: float64[FOLDS, 3] and float64[FOLDS, 2]: what trust is made of.
    of_label: Float64s = field(default_factory=lambda: np.tile([0.0, 1.0, 0.0], (FOLDS, 1)))
    of_text: Float64s = field(default_factory=lambda: np.tile(_TEXT_PRIOR.mean, (FOLDS, 1)))
    #: int32[G], int32[G], bool[G]: the text and the number of each given label, and whether a
    #: judgment says that it applies.
    given_rows: Int32s = field(default_factory=lambda: np.empty(0, np.int32))
    given_labels: Int32s = field(default_factory=lambda: np.empty(0, np.int32))
    given_right: Bools = field(default_factory=lambda: np.empty(0, np.bool_))
    #: Labels that stay where the vote settings give them.
    protected: tuple[int, ...] = ()

    @property
    def follows_settings(self) -> bool:
        """Whether other vote settings give other labels."""
        return self.decides != "llm"

    def uncalibrated(self) -> "Thresholds":
        """Return the rule of the vote settings, without what judgments say of trust."""
        return Thresholds("settings", self.limits, protected=self.protected)

    def given(self, scores: LabelScores) -> Bools:
        """Return which labels texts get, bool[T]."""
        if self.decides == "settings":
            return scores.vote.given
        if self.decides == "llm":
            found = scores.by_llm()
        else:
            found = scores.above(self.limits, with_head=self.decides == "head")
        return found | (scores.vote.given & np.isin(scores.vote.label, self.protected))

    def decide(self, scores: LabelScores) -> Labels:
        """Label texts; the candidates are those of the scores, in their order."""
        given, chances = self.given(scores), self._chances(scores)
        start, slope = self.of_text[scores.folds].T
        odds = start + slope * _text_odds(scores, given, chances)
        known = scores.vote.known | scores.answered
        share = scores.scores(with_head=self.decides == "head")
        trust = np.where(known, 1 / (1 + np.exp(-odds)), np.nan)
        vote = scores.vote
        return replace(vote, share=share, known=known, given=given, chance=chances, trust=trust)

    def calibrated(self, scores: LabelScores, right: Labels, exact: Bools) -> Self:
        """Return the same with trust, fitted for each fold on the judged texts of the others.

        `right` are the labels of these texts, and `exact`, bool[m], whether they get just these.
        """
        if not len(exact):
            return self
        z, used = self._features(scores)
        folds, rows = scores.folds, scores.vote.rows[used]
        applies = scores.vote.among(right)[used]
        of_label = by_fold(z[used], applies, np.ones(len(rows)), folds[rows], LABEL_PRIOR)
        rule = replace(self, of_label=of_label)
        odds = _text_odds(scores, rule.given(scores), rule._chances(scores))  # noqa: SLF001
        x = np.column_stack([np.ones(len(odds)), odds])
        return replace(rule, of_text=by_fold(x, exact, np.ones(len(x)), folds, _TEXT_PRIOR))

    def _features(self, scores: LabelScores) -> tuple[Float64s, Bools]:
        """Return float64[T, 3]: one, log odds by the score, and whether the LLM gave the label.

        And which pairs it knows of, bool[T]: without a head, not those of a head alone, so that
        trust is the same whether a run has a head or not.
        """
        by_head = self.decides == "head"
        p = np.clip(scores.scores(with_head=by_head).astype(np.float64), _NEAR, 1 - _NEAR)
        z = np.stack([np.ones(len(p)), log_odds(p), scores.own - 0.5], axis=1)
        return z, by_head | (scores.vote.share > 0) | scores.own | scores.vote.given

    def _chances(self, scores: LabelScores) -> Float64s:
        """Return the chance that each label applies, float64[T]."""
        z, known = self._features(scores)
        odds = (z * self.of_label[scores.folds[scores.vote.rows]]).sum(axis=1)
        return np.where(known, 1 / (1 + np.exp(-odds)), 0.0)

    def packed(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return its plain values and its arrays."""
        arrays: dict[str, Array] = {name: getattr(self, name) for name in _ARRAYS}
        if self.heads:
            arrays["heads"] = np.stack([h.weights for h in self.heads]).astype(np.float16)
        return {"decides": self.decides, "protected": self.protected}, arrays

    @classmethod
    def unpacked(cls, header: dict[str, Any], arrays: dict[str, Array]) -> Self:
        """Return what `packed` returned, from it."""
        heads = arrays.get("heads", np.empty(0))
        return cls(
            decides=header["decides"],
            heads=tuple(LinearHead(weights.astype(np.float32), several=True) for weights in heads),
            protected=tuple(map(int, header.get("protected", ()))),
            **{name: arrays[name] for name in _ARRAYS},
        )


def _text_odds(scores: LabelScores, given: Bools, chances: Float64s) -> Float64s:
    """Return the log odds that all labels are right, were they independent, float64[n]."""
    logs = np.log(np.where(given, chances, 1 - chances))
    return log_odds(np.exp(np.bincount(scores.vote.rows, weights=logs, minlength=len(scores))))
