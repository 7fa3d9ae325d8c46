"""Learn a rule for texts with one label: judged texts teach a model, and prove it or not."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from testnuc._base.arrays import Bools, Float16s, Float64s, Int32s
from testnuc._engine.components import Components
from testnuc._engine.labelers import judged_classes, judged_of, taught_classes, texts_among
from testnuc._engine.run import Run
from testnuc.trust.argmax import Argmax, right_by_level
from testnuc.trust.calibration import fit_trust
from testnuc.trust.candidates import (
    SKIPPED,
    Dissent,
    candidates_of,
    choose,
    chosen_parts,
    default_model,
    differing,
    dissent_of,
)
from testnuc.trust.evidence import Judgment, drawn_here, ends_of_draws
from testnuc.trust.learned import Learned, fallen, grown_by_few, of_judged
from testnuc.trust.model import NEIGHBORS, HeadModel, most_texts
from testnuc.trust.review import GOALS, ReviewContext
from testnuc.voting import Labels

#: Texts that candidates are fitted on at most.
MOST_TEXTS = 200_000


class Offer(NamedTuple):
    """What a review draws from, and shows."""

    #: float64[n], by which texts are drawn, of the labels that are kept now.
    trust: Float64s
    #: Whether results have that trust, too.
    calibrated: bool
    #: Row -> the label that is kept now.
    label: Callable[[int], str | None]
    #: bool[n], the texts on which candidates differ.
    support: Bools
    #: Row -> the candidates for a text: labels, and what gives each.
    candidates: Callable[[int], Iterable[tuple[str | None, Sequence[str]]]]
    context: ReviewContext


class ArgmaxFit:
    """Candidates for one label of each text, fitted on the texts of the pool with a prediction.

    `run` has these texts, `vectors`, float16[n, dim], theirs.
    """

    goals = GOALS

    def __init__(self, parts: Components, run: Run, vectors: Float16s) -> None:
        self._parts, self.run = parts, run
        #: Position of each text, by hash.
        self.rows = {entry.hash: row for row, entry in enumerate(run.batch.own)}
        n = run.batch.n_own
        self._texts = texts_among(run, np.arange(n), vectors, run.answers.label[:n].copy())
        self._candidates = [
            replace(one, model=one.model.rounded()) if isinstance(one.model, HeadModel) else one
            for one in candidates_of(self._texts)
        ]

    @staticmethod
    def wanted(parts: Components) -> tuple[int, int]:
        """Return the most texts to fit on, and the neighbors of each."""
        return most_texts(len(parts.labels.names), MOST_TEXTS), NEIGHBORS

    @staticmethod
    def goal(before: Learned | None) -> str | None:
        """Return the goal of a review if none is given; None: of most texts "decide"."""
        if before is None or before.reopened or before.wants_decisions(before.certify()):
            return None
        return "certify"

    def offer(self, before: Learned | None, open_: Bools) -> Offer:
        """Return what a review draws from; `open_`: bool[n], texts that are not judged."""
        candidates = self._candidates
        names = (*self._parts.labels.names, None)
        kept, trust = self._kept(before)

        def shown(row: int) -> Iterable[tuple[str | None, Sequence[str]]]:
            given: dict[str | None, list[str]] = {}
            for candidate in candidates:
                given.setdefault(names[int(candidate.labels[row])], []).append(candidate.name)
            if before is not None:
                given.setdefault(names[int(kept[row])], []).append("what was learned so far")
            return given.items()

        return Offer(
            trust,
            calibrated=before is not None,
            label=lambda row: names[int(kept[row])],
            support=differing(candidates),
            candidates=shown,
            context=self._context(() if before is None else before.used, open_ & (kept < 0), open_),
        )

    def learned(self, judgments: tuple[Judgment, ...], protected: tuple[int, ...]) -> Learned:
        """Learn from all judgments; labels `protected` stay where the LLM gives them."""
        texts, candidates, tree = self._texts, self._candidates, self._parts.labels.tree
        dissent = self._dissent(judgments)
        used = [j for j in judgments if dissent.better or j.source != "referee"]
        here = drawn_here(used, self.rows)
        judged = judged_of(here, self.rows, self._parts.labels)
        where, draws = judged.rows, judged.draws
        gold = np.where(judged.right.known, judged.right.first(), SKIPPED)
        first, end = ends_of_draws(here)
        ends = (first, min(end or len(texts), len(texts)))
        verdict = choose(texts, candidates, where, gold, draws, protected=protected, ends=ends)
        vote, heads = chosen_parts(candidates)
        found, label, model = verdict.probabilities, verdict.chosen.labels, verdict.chosen.model
        known = texts.with_judged(where[gold >= 0], gold[gold >= 0])
        changes = self._parts.labels.names, texts.own, texts.own if found is None else label
        if found is None:
            label, model = self._kept_by_settings(), default_model(candidates)
            found = model.probabilities(known)
        assert isinstance(model, HeadModel)
        right = (label[where] == gold) & (gold >= 0)
        # a skipped text is missing: neither right nor wrong
        said = draws.drawn & (gold != SKIPPED)
        coefficients, trust = fit_trust(
            known, found, label, where[said], right[said], draws.probability[said]
        )
        rule = Argmax(
            decides="settings" if verdict.probabilities is None else "head",
            model=model,
            vote=vote,
            bases=() if verdict.everywhere else heads,
            coefficients=coefficients,
            dissent=(dissent.backed, dissent.alone),
            referee_better=dissent.better,
            protected=protected,
        )
        if tree is not None:
            rule = replace(rule, level_right=right_by_level(label[where], gold, tree))
        return Learned(
            labels=self._parts.labels.names,
            name=verdict.chosen.name,
            rule=rule,
            gain=verdict.gain,
            judged=judgments,
            texts=len(texts),
            trust=trust.astype(np.float32),
            **of_judged(judged, right, (texts.own[where] == gold) & (gold >= 0)),
            given=label,
            differs=differing(candidates),
            apart=verdict.apart,
            settings=self._parts.settings.basis,
            fewer=fallen(*changes),
            grown=grown_by_few(*changes, where, gold),
        )

    def extended(self, before: Learned) -> Learned:
        """Return the same with the trust of texts that came later."""
        labels = self._labeled(before)
        return before.extended(labels.trust.astype(np.float32), labels.first(), [*self.rows])

    def checked(self, before: Learned, judgments: tuple[Judgment, ...]) -> Learned:
        """Return the same with all judgments, and nothing learned from them."""
        rule, tree = before.rule, self._parts.labels.tree
        assert isinstance(rule, Argmax)
        # that a drawn text has no answer but a referee's counts as wrong
        all_count, ranking = rule.referee_better, before.ranking
        used = [j for j in judgments if all_count or j.source != "referee" or j.ranking == ranking]
        here = drawn_here(used, self.rows)
        judged = judged_of(here, before.places(self.rows), self._parts.labels)
        given, gold = before.given[judged.rows], judged.right.first()
        own = self._texts.own[judged.rows]
        if tree is not None:
            rule = replace(rule, level_right=right_by_level(given, gold, tree))
        right, own_right = ((labels == gold) & (gold >= 0) for labels in (given, own))
        return before.checked(judgments, judged, right, own_right, rule)

    def _dissent(self, judgments: Sequence[Judgment]) -> Dissent:
        said = [j for j in judgments if j.source == "referee"]
        judged = judged_of(said, self.rows, self._parts.labels)
        given, differ = judged.right.first(), differing(self._candidates)
        own, *others = [c.labels[judged.rows[given >= 0]] for c in self._candidates]
        at, part = judged.rows[given >= 0], float(differ.mean())
        return dissent_of(own, np.array(others), given[given >= 0], differ[at], part)

    def _kept(self, learned: Learned | None) -> tuple[Int32s, Float64s]:
        """Return the labels that are kept now, as far as learned models give them, and trust."""
        texts, own = self._texts, self._texts.own
        if learned is not None:
            labels = self._labeled(learned)
            return labels.first(), np.nan_to_num(labels.trust)
        probabilities = default_model(self._candidates).probabilities(texts)
        trust = probabilities[np.arange(len(texts)), np.maximum(own, 0)].astype(np.float64)
        return self._kept_by_settings(), np.where(own >= 0, trust, 0.0)

    def _labeled(self, learned: Learned) -> Labels:
        """Return the labels by what was learned, and their trust."""
        texts, rule = self._texts, learned.rule
        assert isinstance(rule, Argmax)
        places = range(len(texts))
        judged = judged_classes(self.run, places, learned)
        texts = replace(texts, judged=taught_classes(self.run, judged, places, learned))
        kept = rule.vote.label(texts) if rule.decides == "vote" else self._kept_by_settings()
        return rule.apply(texts, kept, self._parts.labels.tree)

    def _kept_by_settings(self) -> Int32s:
        """Return the labels that the settings of the client give without judgments."""
        votes = self.run.votes
        votes.settings = self._parts.settings
        votes.decide_by_settings()
        votes.fit_prior()
        return votes.result(slice(0, self.run.batch.n_own)).label

    def _context(
        self, judgments: Sequence[Judgment], unlabeled: Bools, open_: Bools
    ) -> ReviewContext:
        """Return what the page of a review shows, with the judgments before this review."""
        candidates, labels = self._candidates, self._parts.labels
        judged = judged_of([j for j in judgments if j.probability is not None], self.rows, labels)
        earlier = tuple(
            (label >= 0, tuple(label >= 0 and int(c.labels[row]) == label for c in candidates))
            for row, label in zip(judged.rows.tolist(), judged.right.first().tolist(), strict=True)
        )
        return ReviewContext(
            candidates=tuple(c.name for c in candidates),
            earlier=earlier,
            differing=int((differing(candidates) & open_).sum()),
            unlabeled=int(unlabeled.sum()),
            descriptions=labels.descriptions,
            instructions=self._parts.instructions,
            blind=False,
            none_label=labels.none_label,
        )
