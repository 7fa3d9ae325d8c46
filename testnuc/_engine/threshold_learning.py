"""Learn a rule for texts that can have several labels: thresholds of scores.

Candidates are the labels as they are; the vote or, if they are those of the vote, the LLM's own;
the vote with thresholds by judgments, and the vote with a head. One of them is taken if the betting
bounds of `testnuc.trust.evidence` prove that it raises the mean Jaccard index of a text.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from testnuc._base.arrays import Bools, Float16s, Float64s
from testnuc._engine.argmax_learning import MOST_TEXTS, Offer
from testnuc._engine.components import Components
from testnuc._engine.labelers import judged_of, scores_in
from testnuc._engine.run import Run
from testnuc.trust import thresholds
from testnuc.trust.evidence import Judged, Judgment, drawn_here, gain_of
from testnuc.trust.head import FOLDS, LinearHead, fit_folds, folds_of
from testnuc.trust.learned import Learned, fallen, of_judged
from testnuc.trust.review import ReviewContext
from testnuc.trust.shares import Share
from testnuc.trust.thresholds import Decides, LabelScores, Thresholds, exactly
from testnuc.types import SEPARATOR
from testnuc.voting import Labels, places_of, starts_of_rows

#: Texts that a head is fitted on, and cells of these texts times labels, at most.
_FITTED, _CELLS = 40_000, 1 << 26
#: The errors of all bounds together: 90 % confidence.
_ALPHA = 0.1
#: Judgments from which thresholds are fitted.
_LEAST_JUDGED = 20
#: Candidate -> its part of the error, in plain words.
_CANDIDATES: dict[Decides, tuple[float, str]] = {
    "settings": (0.0, "the vote settings"),
    "llm": (1.0, "the LLM's own labels"),
    "vote": (1.0, "the vote"),
    "thresholds": (2.0, "the vote, with thresholds by your judgments"),
    "head": (2.0, "the vote and a model of your texts, with thresholds by your judgments"),
}
#: What gives labels, before anything is learned and after.
_KEPT = ("the vote", "what was learned so far")
#: Labels that are shown with a text: those with at least this score.
_SHOWN = 0.1


class ThresholdFit:
    """What speaks for each label of the texts of the pool that have a prediction.

    `run` has these texts, `vectors`, float16[n, dim], theirs.
    """

    goals = ("certify", "count", "later", "correct")

    def __init__(self, parts: Components, run: Run, vectors: Float16s) -> None:
        self._parts, self.run = parts, run
        assert parts.settings.threshold is not None
        self._threshold = parts.settings.threshold
        #: Position of each text, by hash.
        self.rows = {entry.hash: row for row, entry in enumerate(run.batch.own)}
        n, n_classes = run.batch.n_own, len(run.batch.labels.names)
        pool, folds = run.answers.labels(), folds_of(list(self.rows))
        used = np.flatnonzero(pool.known[:n])
        most = min(_FITTED, max(1, _CELLS // n_classes))
        if len(used) > most:
            used = used[np.linspace(0, len(used) - 1, most).astype(np.int64)]
        said = pool.at(used)
        targets = said.table(n_classes, said.given.astype(np.float32))
        # a head of the LLM's own labels
        fitted = fit_folds(vectors[used], targets, folds[used], several=True)
        self._heads = tuple(head.rounded() for head in fitted)
        self._scores = scores_in(run, self._heads, vectors)

    @staticmethod
    def wanted(parts: Components) -> tuple[int, int]:
        """Return the most texts to fit on, and the neighbors of each."""
        return MOST_TEXTS, parts.settings.k

    @staticmethod
    def goal(before: Learned | None) -> str:
        """Return the goal of a review if none is given."""
        return "certify" if before is None else "count"

    def offer(self, before: Learned | None, open_: Bools) -> Offer:
        """Return what a review draws from; `open_`: bool[n], texts that are not judged."""
        parts, scores = self._parts, self._scores
        vote = scores.vote
        if before is None:
            # nothing is calibrated: the weight on the side of the closest decision
            likely, given, trust = vote.share, scores.vote.given, np.ones(len(scores))
            np.minimum.at(trust, vote.rows, np.where(given, likely, 1 - likely))
        else:
            assert isinstance(before.rule, Thresholds)
            labels = before.rule.decide(scores)
            likely, given, trust = labels.share, labels.given, labels.trust
        names, kept_own = parts.labels.names, parts.pipeline.settings.keeps_llm_labels

        def kept_label(row: int) -> str:
            at = np.arange(vote.starts[row], vote.starts[row + 1])
            return SEPARATOR.join(names[one] for one in np.sort(vote.label[at[given[at]]]))

        kept = () if kept_own else (_KEPT[before is not None],)

        def shown(row: int) -> list[tuple[str, list[str]]]:
            at = np.arange(vote.starts[row], vote.starts[row + 1])
            at = at[scores.own[at] | given[at] | (likely[at] >= _SHOWN)]
            candidates = []
            for place in at[np.argsort(-likely[at], kind="stable")].tolist():
                by = [*(("the LLM",) if scores.own[place] else ()), *(kept if given[place] else ())]
                candidates.append(
                    (names[vote.label[place]], [*by, f"share {vote.share[place]:.2f}"])
                )
            return candidates

        changed = np.zeros(len(scores), dtype=np.bool_)
        # where labels are the LLM's own, those that a vote would change
        other = vote.share > self._threshold if kept_own else given
        changed[vote.rows[scores.by_llm() != other]] = True
        context = ReviewContext(
            differing=int((changed & open_).sum()),
            unlabeled=int((~scores.answered & open_).sum()),
            descriptions=parts.labels.descriptions,
            instructions=parts.instructions,
            blind=False,
        )
        return Offer(
            trust,
            calibrated=True,
            label=kept_label,
            support=np.ones(len(scores), dtype=np.bool_),
            candidates=shown,
            context=context,
        )

    def learned(self, judgments: tuple[Judgment, ...], protected: tuple[int, ...]) -> Learned:
        """Learn from all judgments; labels `protected` stay where they are."""
        labels = self._parts.labels
        judged = judged_of(drawn_here(judgments, self.rows), self.rows, labels)
        learned = learn_thresholds(
            self._scores, judged, labels.names, self._threshold, self._heads, judgments, protected
        )
        return replace(learned, settings=self._parts.settings.basis)

    def checked(self, before: Learned, judgments: tuple[Judgment, ...]) -> Learned:
        """Return the same with all judgments, and nothing learned from them."""
        here = drawn_here(judgments, self.rows)
        judged = judged_of(here, before.places(self.rows), self._parts.labels)
        rule = before.rule
        assert isinstance(rule, Thresholds)
        starts, labels = starts_of_rows(rule.given_rows, before.texts), rule.given_labels
        ones, known = np.ones(len(labels), np.float32), np.ones(before.texts, np.bool_)
        given = Labels(starts, labels, ones, known).at(judged.rows)
        right, own = np.zeros(len(labels), np.bool_), self._scores.at(judged.rows)
        right[places_of(starts, judged.rows)[0]] = given.among(judged.right)
        exact = exactly(given, judged.right, given.given)
        own_exact = exactly(own.vote, judged.right, own.own)
        return before.checked(judgments, judged, exact, own_exact, replace(rule, given_right=right))


def learn_thresholds(
    scores: LabelScores,
    judged: Judged,
    names: tuple[str, ...],
    usual: float,
    heads: Sequence[LinearHead] = (),
    judgments: tuple[Judgment, ...] = (),
    protected: tuple[int, ...] = (),
) -> Learned:
    """Learn from judged texts; those that were not drawn at random are known, but teach nothing.

    `usual` is the threshold of the vote settings, and `heads` are those behind the scores, if any;
    `judged` are the known ones of all `judgments`. Labels `protected` stay where they are.
    """
    n_classes = len(names)
    rows, truth, known = judged.rows, judged.right, judged.right.known
    drawn, proving = judged.draws.drawn, judged.draws.only(judged.draws.drawn)
    some, used = scores.at(rows), np.flatnonzero(known & drawn)
    taught, right = some.at(used), truth.at(used)
    enough = len(used) >= _LEAST_JUDGED
    # what the labels are already is no candidate
    same = "llm" if (scores.vote.given == scores.by_llm()).all() else "vote"
    tried = {kind: part for kind, (part, _) in _CANDIDATES.items() if kind != same}
    rules = {}
    for kind in tried:
        if (kind == "head" and not heads) or (kind in {"thresholds", "head"} and not enough):
            continue
        limits = np.full((FOLDS, n_classes), usual, dtype=np.float32)
        if kind in {"thresholds", "head"}:
            limits = thresholds.fit_thresholds(
                taught, right, n_classes, usual, with_head=kind == "head"
            )
        rules[kind] = Thresholds(
            kind, limits, tuple(heads) if kind == "head" else (), protected=protected
        )

    def index(given: Bools) -> Float64s:
        return thresholds.jaccard(*thresholds.counts(some.vote, truth, given))

    before, gains = index(some.vote.given), {}
    for kind, rule in rules.items():
        others = rule.given(some)
        values = np.where(known, index(others) - before, 0.0)
        changed = np.bincount(some.vote.rows, others != some.vote.given, minlength=len(some)) > 0
        skipped, alpha = changed & ~known, _ALPHA * tried[kind] / sum(tried.values())
        nothing = Share(0.0, 0.0, 0.0)
        gains[kind] = gain_of(values[drawn], proving, alpha, skipped[drawn]) if alpha else nothing
    chosen = max(rules, key=lambda kind: gains[kind].low)
    rule = rules[chosen]
    exact = exactly(some.vote, truth, rule.given(some))
    rule = rule.calibrated(taught, right, exact[used])
    labels, applies = rule.decide(scores), np.zeros(len(scores.own), dtype=np.bool_)
    applies[places_of(scores.vote.starts, rows)[0]] = some.vote.among(truth)
    given = np.flatnonzero(labels.given)
    rule = replace(
        rule,
        given_rows=labels.rows[given].astype(np.int32),
        given_labels=labels.label[given],
        given_right=applies[given],
    )
    return Learned(
        labels=names,
        name=_CANDIDATES[chosen][1],
        rule=rule,
        gain=gains[chosen],
        judged=judgments,
        texts=len(labels),
        trust=labels.trust.astype(np.float32),
        **of_judged(judged, exact, exactly(some.vote, truth, some.own)),
        fewer=fallen(names, *(scores.vote.label[of] for of in (scores.vote.given, labels.given))),
    )
