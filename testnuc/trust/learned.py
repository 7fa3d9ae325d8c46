"""What was learned from judged texts: how texts are labeled, and what trust means.

A rule, `Argmax` or `Thresholds`, turns what speaks for labels into labels and trust; it works for
new texts. Without a proof that another way is better, labels stay as the vote settings make them,
and only trust is learned.
"""

import math
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from itertools import repeat
from typing import Any, Self

import numpy as np

from testnuc._base.arrays import Array, Bools, Float32s, Float64s, Int32s, Int64s
from testnuc._base.checks import checked_number, checked_whole, hash_text
from testnuc._base.display import Brief
from testnuc.errors import InvalidInputError, StoreError
from testnuc.trust.argmax import Argmax
from testnuc.trust.certificates import Certificate, Strata, cells_of, certify, error_of, key_of
from testnuc.trust.evidence import Draws, Judged, Judgment, ends_of_draws, pack, unpack, weights_of
from testnuc.trust.joining import errors_of_judges, judge_error
from testnuc.trust.macro import MacroF1, macro_f1
from testnuc.trust.review import closest_label
from testnuc.trust.shares import (
    Accuracy,
    LabelAccuracy,
    Share,
    accuracy_of,
    combined,
    draws_in_a_row,
    draws_lacking,
    label_accuracy,
    upper_bound,
)
from testnuc.trust.thresholds import Thresholds
from testnuc.types import split_labels

#: The accuracy, and the confidence, of a certificate for which nothing else is asked.
USUAL = 0.9
#: Judged disagreements that prove a candidate that wins twice as often as it loses.
_ENOUGH = 100
#: Draws that give enough texts of a kind in the mean give too few half of the time.
_AMPLE = 1.5
#: Texts that a label loses, or judged ones that all are wrong, at least before it is named.
_FEWER = 3
#: So many judged texts that fit no label, and so many of the random ones, later or all, are many.
_UNFIT, _UNFIT_SHARE = 3, 0.05
#: So many judgments are few, and so many texts for each are many.
_SLIPS, _MANY = 2, 10
#: Plain values that are stored, and arrays; the last ones unless they are empty.
_FACTS = ("labels", "name", "texts", "settings", "ranking", "extends", "cohorts", "fewer", "grown")
_ARRAYS = ("trust", "rows", "right", "person", "drawn")
_OPTIONAL = ("keys", "given", "before", "differs", "apart")
_OTHER_SETTINGS = (
    "the texts were judged under other vote settings (policy, k, prior); learn from the same "
    "reviews again"
)


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Learned(Brief):
    """How texts are labeled since `TestNUC.learn`, and why. ``print`` it."""

    #: The label set.
    labels: tuple[str, ...]
    #: What gives the labels, in plain words.
    name: str
    #: How scores become labels and trust: of the largest, or of all above their thresholds.
    rule: Argmax | Thresholds
    #: Over the texts that some were drawn from: of labels, or of several the mean Jaccard index.
    gain: Share
    #: All judged texts, in the order they were drawn; several labels are one string.
    judged: tuple[Judgment, ...]
    #: Number of texts whose trust is fixed: of the pool that it was learned on, and later ones of
    #: which some were drawn.
    texts: int
    #: float32[texts]: trust of all texts.
    trust: Float32s
    #: Position in `trust` of each judged text, whether it had exactly the right label or labels,
    #: and whether a person judged or skipped it: certificates count these.
    rows: Int64s
    right: Bools
    person: Bools
    draws: Draws = field(repr=False)
    #: bool[m]: which judged texts were drawn from `ranking`: they prove, and taught nothing.
    drawn: Bools = field(repr=False)
    #: The ranking of the texts by `trust`; "": an older version learned, and there is none.
    ranking: str = ""
    #: `Certificate.among` has them: uint64[texts]. Empty: an older version learned.
    keys: Array = field(default_factory=lambda: np.zeros(0, np.uint64), repr=False)
    #: Numbers of texts that were ranked first, and together with those that came later.
    cohorts: tuple[int, ...] = ()
    #: Rankings of the first cohorts alone, whose draws count on.
    extends: tuple[str, ...] = ()
    #: Where a text has one label: int32[texts], the labels that `trust` is of; -1 = none.
    given: Int32s = field(default_factory=lambda: np.zeros(0, np.int32), repr=False)
    #: int8[m]: whether the LLM's own label, or labels, of each judged text were exactly right;
    #: -1: skipped. Empty: an older version learned.
    before: Array = field(default_factory=lambda: np.zeros(0, np.int8), repr=False)
    #: bool[texts]: the texts on which candidates differ; empty: there are none.
    differs: Bools = field(default_factory=lambda: np.zeros(0, np.bool_), repr=False)
    #: int32[texts]: labels by models that know no judgment of the text, for strata. Empty: a text
    #: has several labels, or an older version learned.
    apart: Int32s = field(default_factory=lambda: np.zeros(0, np.int32), repr=False)
    #: `VoteSettings.basis` where it was learned; "": an older version did not say.
    settings: str = ""
    #: Labels that far fewer texts have than the LLM gave them to, with both numbers, see `fallen`.
    fewer: tuple[tuple[str, int, int], ...] = ()
    #: Changes of many texts by few judgments, see `grown_by_few`.
    grown: tuple[tuple[str, str, int, int], ...] = ()
    #: Whether a client with other vote settings uses it, see `under`.
    unproved: bool = False

    @property
    def decides(self) -> str:
        """What decides labels.

        "settings": labels stay as they are without judgments; "vote"; "head": a model of the texts;
        where a text can have several labels, also "llm", and "thresholds" of the vote.
        """
        return self.rule.decides

    @property
    def thresholds(self) -> dict[str, float]:
        """The threshold of each label, the mean over the folds; {} if no threshold is learned."""
        rule = self.rule
        if not isinstance(rule, Thresholds) or rule.decides not in {"thresholds", "head"}:
            return {}
        return dict(zip(self.labels, rule.limits.mean(axis=0).tolist(), strict=True))

    @property
    def protected(self) -> tuple[str, ...]:
        """The labels that learning takes from no text, see `TestNUC.learn`."""
        return tuple(n for at, n in enumerate(self.labels) if at in self.rule.protected)

    @property
    def used(self) -> tuple[Judgment, ...]:
        """The judgments that count: without those of a referee that is not shown to be better."""
        if isinstance(self.rule, Thresholds) or self.rule.referee_better:
            return self.judged
        return tuple(j for j in self.judged if j.source != "referee")

    @property
    def answers(self) -> dict[bytes, tuple[str | None, str]]:
        """The label (several in one string) and the source of each judged text, by its hash."""
        return {j.hash: (j.label, j.source) for j in self.used if j.source is not None}

    @property
    def reopened(self) -> tuple[Judgment, ...]:
        """Those that labels added, split or removed since left open: a review asks them first."""
        return tuple(j for j in self.judged if j.reopened)

    def unfit_among(self, texts: Collection[str] | None = None) -> tuple[list[Judgment], int]:
        """Return judged texts that fit no label, if many of the random ones, and their number.

        `texts`: of these alone, as of a file.
        """
        wanted = {*(texts or ())}
        here = [j for j in self.judged if texts is None or j.text in wanted]
        drawn = [j for j in here if j.source == "person" and j.uniform]
        for among in ([j for j in drawn if j.probability is None], drawn):
            found = [j for j in among if j.label is None]
            if len(found) >= max(_UNFIT, _UNFIT_SHARE * len(among)):
                return found, len(among)
        return [], 0

    @property
    def proving(self) -> frozenset[bytes]:
        """The hashes of the texts that were drawn from `ranking`: nothing was learned from them."""
        return frozenset(j.hash for j in self.judged if j.ranking in self.current)

    @property
    def current(self) -> frozenset[str]:
        """The names of `ranking` and of what it extends: their draws prove together."""
        return frozenset({self.ranking, *self.extends} - {""})

    @property
    def rankings(self) -> int:
        """Number of earlier rankings that were drawn from: each has a part of the error."""
        return len({j.ranking for j in self.judged} - {""} - self.current)

    def places(self, rows: Mapping[bytes, int]) -> dict[bytes, int]:
        """Return the places of texts, by hash, without those that came later."""
        return {key: row for key, row in rows.items() if row < self.texts}

    def ranking_of(self, hashes: Sequence[bytes]) -> str:
        """Return the name of the ranking of texts, whose hashes are given, by trust."""
        held = b"".join(hashes[: self.texts]) + self.trust.tobytes()
        return blake2b(held, digest_size=8).hexdigest()

    def ranked(self, hashes: Sequence[bytes]) -> Self:
        """Return the same, with the name of the ranking of the texts that have these hashes."""
        keys = np.array([key_of(one) for one in hashes[: self.texts]], dtype=np.uint64)
        ranking, cohorts = self.ranking_of(hashes), (*self.cohorts, self.texts)
        return replace(self, ranking=ranking, keys=keys, cohorts=cohorts)

    def extended(self, trust: Float32s, given: Int32s, hashes: Sequence[bytes]) -> Self:
        """Return the same with trust and labels, by the same rule, of texts that came later."""
        n, extends = self.texts, (*self.extends, self.ranking)
        trust = np.concatenate([self.trust, trust[n:]])
        given = np.concatenate([self.given, given[n:]])
        longer = replace(self, texts=len(trust), trust=trust, given=given, extends=extends)
        return longer.ranked(hashes)

    def checked(
        self,
        judgments: tuple[Judgment, ...],
        judged: Judged,
        right: Bools,
        own_right: Bools,
        rule: Argmax | Thresholds,
    ) -> Self:
        """Return the same with all judgments; `right`: whether the labels of `judged` ones are."""
        drawn = np.array([one in self.current for one in judged.rankings], dtype=np.bool_)
        by_text = of_judged(judged, right, own_right) | {"drawn": drawn}
        return replace(self, rule=rule, judged=judgments, **by_text)

    def labels_apart(self, texts: Sequence[str]) -> list[tuple[str, ...] | None]:
        """Return the label `apart` of each text; None: the text came later, or there are none."""
        known = dict(zip(self.keys.tolist(), self.apart.tolist(), strict=False))
        found = (known.get(key_of(hash_text(text)), -1) for text in texts)
        return [None if label < 0 else (self.labels[label],) for label in found]

    def next_to_prove(self, n: int, random: np.random.Generator) -> list[int]:
        """Draw the positions of n texts that are not judged, to certify one part more."""
        trust, ends = self.trust.astype(np.float64), self.cohorts or (self.texts,)
        strata = self._strata(self.right)
        proven = strata.proven(USUAL, error_of(USUAL, self.rankings))
        for parts in range(proven + 1, len(strata.lowest) + 2):
            if len(found := strata.next(n, parts)) == n:
                break
        cells = cells_of(trust, strata.lowest, ends)
        cells[self.rows] = -1
        left = [
            random.permutation(np.flatnonzero(cells == cell)).tolist()
            for cell in range(strata.texts.size)
        ]
        return [left[cell].pop() for cell in found.tolist()]

    def _strata(self, right: Bools, inside: Bools | None = None) -> Strata:
        """Count the texts whose labels are right by a person.

        `right`, bool[m], and `inside`, bool[texts], as for `Strata.of`.
        """
        counted = self._provable if inside is None else inside & self._provable
        trust, known = self.trust.astype(np.float64), right & self.person
        return Strata.of(trust, self.rows, known, self.drawn, counted, self.cohorts)

    @property
    def _provable(self) -> Bools:
        """The texts but for those that a referee alone judged, which certifies nothing."""
        found = np.ones(self.texts, np.bool_)
        found[self.rows[~self.person & ~self.drawn]] = False
        return found

    def without(self, hashes: Collection[bytes]) -> Self:
        """Return the same without the judgments of texts; what they prove stays, as numbers."""
        gone = np.isin(self.keys, [key_of(one) for one in hashes])
        judged = tuple(one for one in self.judged if one.hash not in hashes)
        if len(judged) == len(self.judged) and not gone.any():
            return self
        return replace(self, judged=judged, keys=np.where(gone, np.uint64(0), self.keys))

    def under(self, settings: str) -> Self:
        """Return what holds under these vote settings.

        Judgments do. Trust and certificates are of labels that other settings do not give.
        """
        if self.settings in {"", settings} or not self.rule.follows_settings:
            return self
        unknown = np.full(len(self.rows), np.nan)
        return replace(
            self,
            rule=self.rule.uncalibrated(),
            trust=np.full_like(self.trust, np.nan),
            draws=Draws(self.draws.texts, unknown, unknown, np.zeros(len(unknown), np.bool_)),
            unproved=True,
        )

    def accuracy(self, texts: Iterable[str] | None = None) -> Accuracy | None:
        """Return how many labels are right, of the LLM and now, by the judgments of people.

        None: too few texts were drawn at random, an older version learned, or a client with other
        vote settings asks. A label is right if the text has it and no other.

        With `texts`, it is of these alone, as of a file; if most of them came after earlier draws,
        and such were drawn from alone (goal "later"), of those that did.
        """
        if self.unproved or not len(self.before):
            return None

        def of(*which: Any) -> Accuracy | None:
            inside, by, rows, drawn = self._sample(*which)
            of_each = (self.right[by], self.before[by], drawn, self.drawn[by], weights[by])
            alike = bool(self.draws.uniform[by][drawn & ~self.drawn[by]].all())
            return accuracy_of(self._differs[inside], rows, *of_each, alike=alike)

        weights = self._weights()
        every, together, keys = True, True, _keys_of(texts)
        if keys is not None:
            every = keys.issuperset(self.keys[: self.measured].tolist())
            together = any(j.agreed is not None and key_of(j.hash) in keys for j in self.judged)
        among, first = None if every else keys, self.first_later()
        if first and (every or self._sample(among)[0][:first].any()):
            # those that came since were drawn from alone, and may differ
            parts = of(among, slice(first)), of(among, slice(first, None))
            found = parts[0] and combined([*filter(None, parts)])
        else:
            found = of(keys)
        # of texts that one person alone judged it is not known
        return found and replace(found, judge_error=judge_error(self._agreed if together else ()))

    def by_label(self, texts: Iterable[str] | None = None) -> dict[str, LabelAccuracy]:
        """Return how many texts have each label rightly, and how many that should have it have it.

        By the texts that people judged and that were drawn at random. Recall is of the labels
        without the texts' own judgments. {}: as for `accuracy`, and so are `texts`. How often
        judges err on the texts of a label is not known.
        """
        if self.unproved or not len(self.before) or not len(self.keys):
            return {}
        inside, by, rows, drawn = self._sample(_keys_of(texts))
        # later texts that were drawn from alone are strata of their own
        later = np.arange(len(inside)) >= (self.first_later() or len(inside))
        drawn = drawn | (self.draws.uniform[by] & later[self.rows[by]])
        strata = self._differs + 2 * later
        several, n = isinstance(self.rule, Thresholds), len(inside)
        said = {key_of(j.hash): split_labels(j.label, several=several) for j in self.judged}
        judged = [said.get(key) for key in self.keys[self.rows[by]].tolist()]
        # a judgment may have been erased
        skipped = (self.before[by] < 0) | np.array([one is None for one in judged], np.bool_)
        of_each = (strata[inside], rows, skipped, drawn, self.drawn[by], self._weights()[by])
        found = {}
        for at, label in enumerate(self.labels):
            given = self._of_label(label)[1] if several else self.given == at
            true = np.array([label in (labels or ()) for labels in judged], dtype=np.bool_)
            found[label] = label_accuracy(given[:n][inside], true, *of_each)
        return found

    def _weights(self) -> Float64s:
        """Return of how many texts of its stratum each judged one speaks, float64[m]."""
        if not len(self.keys):
            return np.ones(len(self.rows))
        keys = self.keys[self.rows].tolist()
        differs = dict(zip(keys, np.isin(self.rows, np.flatnonzero(self._differs)), strict=True))
        judged = [key_of(one.hash) for one in self.judged]
        here = np.array([differs.get(key, False) for key in judged], dtype=np.bool_)
        found = dict(zip(judged, weights_of(self.judged, here).tolist(), strict=True))
        return np.array([found.get(key, 1.0) for key in keys])

    @property
    def to_measure(self) -> int:
        """About how many more judgments, at random, `accuracy` lacks; 0: none, or it is unknown."""
        if self.unproved or not len(self.before) or self.accuracy():
            return 0
        _, by, rows, drawn = self._sample()
        # the next draws follow those after the last text that was chosen
        used, earlier = draws_in_a_row(drawn, self.drawn[by], -1)
        open_ = np.ones(len(self._differs), np.bool_)
        open_[rows[earlier]] = False
        lacking = draws_lacking(self._differs[open_], (np.cumsum(open_) - 1)[rows[used]])
        left = self.texts - len(self.rows)
        return min(math.ceil(lacking * left * _AMPLE), left)

    def first_later(self, texts: int | None = None) -> int:
        """Return from which place draws of goal "later" are: the last, or the next of `texts`."""
        return ends_of_draws(self.judged, texts)[0]

    def _sample(
        self, keys: set[int] | None = None, part: slice = slice(None)
    ) -> tuple[Bools, Bools, Int64s, Bools]:
        """Return which of all that are `measured` have these keys, and which judged ones are meant.

        Of the latter, also their places among the former, and whether they were drawn at random.
        """
        inside, drawn = np.ones(self.measured, np.bool_), self.draws.drawn
        if keys is not None and len(self.keys):
            inside = np.isin(self.keys[: self.measured], np.fromiter(keys, np.uint64))
            first = self.first_later()
            if part == slice(None) and 2 * inside[first:].sum() > inside.sum():
                part = slice(first, None)
        if part.start:
            drawn = drawn | self.draws.uniform
        within = np.zeros_like(inside)
        within[part] = True
        inside &= within
        by = self.person & np.isin(self.rows, np.flatnonzero(inside))
        return inside, by, (np.cumsum(inside) - 1)[self.rows[by]], drawn[by]

    def macro_f1(self) -> MacroF1 | None:
        """Return the mean F1 of all labels as they are now, or how many judgments it needs.

        Texts that people judged and that were drawn at random say it; those drawn to certify do not
        count. None: a text can have several labels, an older version learned, or a client with
        other vote settings asks.
        """
        n, none = len(self._differs), len(self.labels)
        several = isinstance(self.rule, Thresholds)
        if several or self.unproved or not len(self.before) or not len(self.keys):
            return None
        number = {label: at for at, label in enumerate(self.labels)}
        said = {key_of(one.hash): number.get(one.label or "", none) for one in self.judged}
        # the judgment may have been erased
        known = np.isin(self.keys[self.rows], np.fromiter(said, np.uint64))
        used = self._sample()[1] & ~self.drawn & known
        rows, skipped = self.rows[used], self.before[used] < 0
        given = np.where(self.given[:n] < 0, none, self.given[:n]).astype(np.int64)
        true = np.array([said[key] for key in self.keys[rows].tolist()], np.int64)
        drawn, strata = self.draws.drawn[used], self._differs.astype(np.int64)
        weights, true = self._weights()[used], np.where(skipped, -1, true)
        return macro_f1(given, rows, true, drawn, strata, weights, labels=none)

    @property
    def measured(self) -> int:
        """Number of texts that `accuracy` is of: those that judged ones were drawn from."""
        n, drawn = self.cohorts[0] if self.cohorts else self.texts, self.draws.drawn
        last = ends_of_draws(self.used)[1] or n
        # a draw from below shows that the texts are not in the order they had
        return n if (self.rows[drawn | self.draws.uniform] >= last).any() else min(last, n)

    @property
    def _gained(self) -> int:
        """Number of texts that `gain` is of; thresholds are not proved by draws from later ones."""
        several = isinstance(self.rule, Thresholds)
        of = [j for j in self.used if not several or j.probability is not None]
        return min(ends_of_draws(of)[1] or self.measured, self.measured)

    @property
    def _differs(self) -> Bools:
        """The texts on which candidates differ, of those that are `measured`."""
        differs = self.differs if len(self.differs) else np.zeros(self.texts, np.bool_)
        return differs[: self.measured]

    def certify(
        self,
        accuracy: float = 0.9,
        confidence: float = 0.9,
        *,
        level: int | None = None,
        label: str | None = None,
    ) -> Certificate:
        """Return the trust above which labels are right to `accuracy`, proved by the judged texts.

        Where a text can have several labels, it is right if it has all of them and no other.

        Parameters
        ----------
        accuracy : float
        confidence : float
            Over the draw of the judged texts.
        level : int, optional
            Of labels in a tree: the level to certify, 1 = the top. Default: whole labels.
        label : str, optional
            Where a text can have several labels: certify this one alone. Of the texts that have it
            with at least this trust, it is right for at least the part `accuracy`.

        Raises
        ------
        InvalidInputError
            The labels have no such level, or `label` is not in the label set, or a text has one
            label; accuracy or confidence is not below 1.
        """
        checked_number("accuracy", accuracy, 0, 0.9999)
        checked_number("confidence", confidence, 0.5, 0.9999)
        right, inside = self.right, None
        if level is not None:
            right = self._at_level(level)
        if label is not None:
            right, inside = self._of_label(label)
        strata, ranking = self._strata(right, inside), self.rankings
        certificate = certify(strata, accuracy=accuracy, confidence=confidence, ranking=ranking)
        if self.unproved:
            certificate = replace(certificate, reason=_OTHER_SETTINGS)
        elif not strata.texts.sum() and not self._provable.all():
            reason = "a referee judged the texts, which certifies nothing; judge some yourself"
            certificate = replace(certificate, reason=reason)
        among = None
        if len(self.keys):
            # the last place of the cohorts that it is about
            at = int(np.searchsorted(strata.sizes.cumsum(), certificate.texts))
            n = [*self.cohorts, self.texts][at]
            sure = (self.trust[:n].astype(np.float64) >= certificate.trust) & self._provable[:n]
            names = np.array([*self.labels, None], dtype=object)
            given = names[self.given[: len(sure)]][sure] if len(self.given) else repeat(())
            among = dict(zip(self.keys[: len(sure)][sure].tolist(), given, strict=False))
        error = judge_error(self._agreed, confidence)
        return replace(certificate, level=level, label=label, among=among, judge_error=error)

    @property
    def cautions(self) -> list[str]:
        """What to look at: unused judgments, errors of judges, labels that are lost or grow."""
        said = [*_open_again(self.reopened), errors_of_judges(self._agreed)]
        if (found := self.unfit_among())[0]:
            later = "later " * all(j.probability is None for j in found[0])
            of = f"{len(found[0]):,} of {found[1]:,} {later}texts that were drawn at random and"
            said.append(f"{of} judged fit no label: a label may be missing (docs/label-set.md).")
        said += [*_moves(self), *_never_right(self)]
        if unused := self.unused(self.answers):
            said.append(
                f"{unused:,} judgments are not used: of texts that came later, or are not here. "
                "Label these texts first, then learn again."
            )
        if (known := self.accuracy()) is not None:
            drawn = self.drawn & (self.before >= 0)
            n, right = int(drawn.sum()), int((drawn & self.right).sum())
            if n and upper_bound(right, n, 0.01) < known.before.low:
                said.append(f"Only {right} of {n} drawn by trust are right: check these judgments.")
        if (end := ends_of_draws(self.judged)[1]) > self.texts and not self.draws.drawn.any():
            of = f"Judged texts were drawn from {end:,}, most of which this run lacks: they prove"
            said.append(f"{of} nothing of its {self.texts:,}. Label those, too, then learn again.")
        return [*filter(None, said)]

    @property
    def _agreed(self) -> list[bool]:
        """Whether those who judged a text said the same, of each here that several judged."""
        return [j.agreed for j in judged_here(self) if j.agreed is not None]

    def later(self, hashes: Sequence[bytes], among: int = 0) -> list[bool]:
        """Return which texts are not among the first ones that have a fixed trust; 0: all these."""
        known, whole = _known(self, among or self.texts), len(self.keys) >= max(among, 1)
        return [whole and key_of(one) not in known for one in hashes]

    def unused(self, hashes: Iterable[bytes]) -> int:
        """Return of how many texts the judgment did not count yet: they were not there."""
        return len(self._unused & {*hashes})

    @property
    def _unused(self) -> set[bytes]:
        used = {*self.keys[self.rows].tolist()} if len(self.keys) else {*map(key_of, self.answers)}
        return {one for one in self.answers if key_of(one) not in used}

    def mostly_later(self, texts: Collection[str], among: int = 0) -> bool:
        """Whether most texts are not among the first ones that have a fixed trust; 0: all these."""
        return 2 * sum(self.later([hash_text(text) for text in texts], among)) > len(texts)

    def wants_decisions(self, certificate: Certificate) -> bool:
        """Whether texts on which strategies differ would help more than texts drawn at random.

        Better labels come first: they also take fewer judgments to certify.
        """
        drawn = self.draws.drawn
        hits, weights = self.right[drawn], 1 / self.draws.probability[drawn]
        wrong = not len(hits) or float(np.average(hits, weights=weights)) < certificate.accuracy
        # where a certificate is far, a candidate that wins three times for two losses comes first
        most = 2 * _ENOUGH if certificate.judgments_needed > _ENOUGH else _ENOUGH
        unsettled = self.decides == "settings" and len(hits) < most and wrong
        return not certificate.coverage and (unsettled or not certificate.judgments_needed)

    def _at_level(self, level: int) -> Bools:
        right = self.rule.level_right if isinstance(self.rule, Argmax) else None
        levels = () if right is None else right
        checked_whole("level", level, least=1)
        if level > len(levels):
            most = f"give 1 to {len(levels)}" if len(levels) else "the labels have no levels"
            raise InvalidInputError(f"level is {level}; {most}, or leave level out")
        found: Bools = levels[level - 1]
        return found

    def _of_label(self, label: str) -> tuple[Bools, Bools]:
        """Return whether a label is right in each judged text, and which of all texts have it."""
        rule = self.rule
        if not isinstance(rule, Thresholds):
            raise InvalidInputError(f"label is {label!r}, but a text has one; leave label out")
        if label not in self.labels:
            raise InvalidInputError(
                f"the label {label!r} is not in the label set{closest_label(label, self.labels)}"
            )
        given = rule.given_labels == self.labels.index(label)
        inside, right = np.zeros((2, self.texts), dtype=np.bool_)
        inside[rule.given_rows[given]] = True
        right[rule.given_rows[given & rule.given_right]] = True
        known: Bools = right[self.rows]
        return known, inside

    def __str__(self) -> str:
        unused = self._unused
        by = Counter(j.source for j in self.judged if j.source and j.hash not in unused)
        said = " and ".join(f"{n:,} by a {who}" for who, n in sorted(by.items())) or "none"
        known = (self.before >= 0 if len(self.before) else self.rows >= 0)[self.draws.drawn]
        proving, skipped = int(known.sum()), int((~known).sum()) or ""
        lines = [f"{by.total():,} of {self.texts:,} texts are judged: {said}."]
        if by["referee"] and len(self.used) < len(self.judged):
            lines.append(
                "The referee's answers are not used: neighbors and models of your texts do not "
                "show that it is better than the LLM."
            )
        if self.decides == "settings":
            drawn = self.rows[self.draws.drawn]
            n = int(self._differs[drawn[drawn < len(self._differs)]].sum())
            why = f": strategies differ on {n:,} of the judged texts, and too few show a gain"
            lines.append(
                "Nothing was applied: labels stay as they are, but for the judged texts. No other "
                f"strategy is proved to be better{why if len(self.differs) else ''}."
            )
        else:
            value, low, high = (100 * x for x in (self.gain.value, self.gain.low, self.gain.high))
            lines.append(
                f"Labels come from {self.name}: expected gain {value:+.1f} points"
                f"{self.rule.measured} over the {self._gained:,} texts that judged ones were drawn "
                f"from, by {'these' if by['referee'] else 'your'} judgments (from {low:+.1f} to "
                f"{high:+.1f}, with 90 % confidence "
                "for each bound)."
            )
        if accuracy := self.accuracy():
            lines.append(
                f"{accuracy} Both are by the random draws alone; a gain counts labels that change "
                "by what was learned, not by a text's own judgment, and may be lower."
            )
        elif more := self.to_measure:
            # one number: those that come next
            certificate = self.certify()
            number = "" if self.wants_decisions(certificate) else f"about {more:,} "
            ends = ", which ends the certificate" if certificate.coverage else ""
            lines.append(
                f"How many labels are right is not known yet: judge {number}more texts for that, "
                f'drawn at random (goal "count"){ends}.'
            )
        lines += self.cautions
        if self.fewer:
            lines.append('To protect labels from that: protect=[".."], or --protect LABEL.')
        if self.protected:
            names = ", ".join(map(repr, self.protected))
            lines.append(f"Protected labels, which only a person takes from a text: {names}.")
        if self.unproved:
            return "\n".join([*lines, f"Trust is not calibrated: {_OTHER_SETTINGS}."])
        lines.append(
            f"Trust is the chance that {self.rule.trusted}, calibrated on {proving:,} judged texts "
            f"drawn with known probabilities{skipped and f' ({skipped:,} others have no answer)'}."
            if proving
            else "Trust is not calibrated: no judged text was drawn at random."
        )
        lines.append(_proved(self))
        return "\n".join(lines)

    def to_bytes(self) -> bytes:
        """Return everything as bytes, without pickle."""
        header, arrays = self.rule.packed()
        return pack(
            {
                **{name: getattr(self, name) for name in _FACTS},
                "gain": [self.gain.value, self.gain.low, self.gain.high],
                "population": self.draws.texts,
                "judged": [judgment.record() for judgment in self.judged],
                **header,
            },
            {
                **{name: getattr(self, name) for name in _ARRAYS},
                **{name: one for name in _OPTIONAL if len(one := getattr(self, name))},
                **self.draws.arrays(),
                **arrays,
            },
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return what `to_bytes` wrote.

        Raises
        ------
        StoreError
            It is damaged, or a newer version of testnuc wrote it.
        """
        try:
            header, arrays = unpack(data)
            rule: type[Argmax | Thresholds] = Argmax if "models" in header else Thresholds
            # older versions have no ranking, and no draws from it
            arrays.setdefault("drawn", np.zeros(len(arrays["rows"]), np.bool_))
            found = [name for name in (*_ARRAYS, *_OPTIONAL) if name in {*_ARRAYS, *arrays}]
            of_texts: dict[str, Any] = {name: arrays.pop(name) for name in found}
            return cls(
                labels=tuple(header["labels"]),
                name=header["name"],
                gain=Share(*header["gain"]),
                texts=header["texts"],
                judged=Judgment.all_of(header["judged"]),
                draws=Draws.taken_from(arrays, header["population"]),
                settings=str(header.get("settings", "")),
                ranking=str(header.get("ranking", "")),
                extends=tuple(map(str, header.get("extends", ()))),
                cohorts=tuple(map(int, header.get("cohorts", ()))),
                fewer=tuple((str(x), int(b), int(a)) for x, b, a in header.get("fewer", ())),
                grown=tuple(
                    (str(x), str(y), int(n), int(m)) for x, y, n, m in header.get("grown", ())
                ),
                **of_texts,
                rule=rule.unpacked(header, arrays),
            )
        except (zlib.error, AttributeError, KeyError, OverflowError, TypeError, ValueError) as exc:
            raise StoreError(
                f"what was learned is damaged in the store ({exc!r:.200}); learn again after "
                "`unlearn`, which sets it aside"
            ) from exc


def judged_here(learned: Learned) -> list[Judgment]:
    """Return all judged texts; of those that are not here, not whether several people agreed.

    That does not say how often they err here.
    """
    others = learned.later([one.hash for one in learned.judged])
    told = zip(learned.judged, others, strict=True)
    return [replace(one, agreed=None) if other else one for one, other in told]


def of_judged(judged: Judged, right: Bools, own_right: Bools) -> dict[str, Any]:
    """Return the fields of `Learned` about each judged text; `own_right`: by the LLM's labels."""
    return {
        "rows": judged.rows,
        "right": right,
        "person": judged.person,
        "before": np.where(judged.right.known, own_right, -1).astype(np.int8),
        "draws": judged.draws,
        "drawn": np.zeros(len(right), dtype=np.bool_),
    }


def fallen(
    labels: Sequence[str], before: Int32s, after: Int32s
) -> tuple[tuple[str, int, int], ...]:
    """Return the labels that less than half as many texts have as before, and both numbers.

    Labels of the same texts before and after are int32[n], -1 = none. A loss of two says nothing.
    """
    counts = (np.bincount(given[given >= 0], minlength=len(labels)) for given in (before, after))
    return tuple(
        (label, b, a)
        for label, b, a in zip(labels, *(count.tolist() for count in counts), strict=True)
        if 2 * a < b and b - a >= _FEWER
    )


def grown_by_few(
    labels: Sequence[str], before: Int32s, after: Int32s, rows: Int64s, right: Int32s
) -> tuple[tuple[str, str, int, int], ...]:
    """Return the former and new label, texts and judgments where few of these change many texts.

    Only labels that more than double are named. Arguments as for `fallen`; `right`, int32[m], are
    the labels of the judged texts, at `rows`.
    """
    was, now = (np.bincount(of[of >= 0], minlength=len(labels)) for of in (before, after))
    found = []
    for (old, new), judgments in Counter(zip(before[rows], right, strict=True)).items():
        texts = int(((before == old) & (after == new)).sum())
        many = judgments <= _SLIPS and texts >= _MANY * judgments
        if old != new and min(old, new) >= 0 and many and now[new] > 2 * was[new]:
            found.append((labels[old], labels[new], texts, judgments))
    return tuple(sorted(found, key=lambda one: -one[2]))


def _open_again(judged: Sequence[Judgment]) -> Iterator[str]:
    """Yield of how many judged texts the label is open, as labels were added or split since."""
    none = [j for j in judged if None in j.possible or j.source is not None]
    new = ", ".join(sorted({repr(one) for j in none for one in j.possible if one is not None}))
    told = "A review asks about them first."
    if none:
        before = f"'none of these' before the label set had {new}"
        yield f"Texts that were judged {before}: {len(none):,}. {told}"
    if split := len(judged) - len(none):
        yield f"Judged texts whose label is split or gone, or may be a new one: {split:,}. {told}"


def _moves(learned: Learned) -> Iterator[str]:
    """Yield which labels are lost, and which grow by few judgments."""
    if learned.fewer:
        counts = ", ".join(
            f"{label!r} ({before / learned.texts:.1%} -> {after / learned.texts:.1%})"
            for label, before, after in learned.fewer
        )
        yield (
            "Rare labels can vanish while accuracy rises. Less than half as many texts as before "
            f"have {counts}: look at some before you rely on these labels."
        )
    if learned.grown:
        moves = "; ".join(f"{n:,} texts from {x!r} to {y!r} by {m}" for x, y, n, m in learned.grown)
        yield (
            "One or two judgments more than double a label, which one slip would do, too: "
            f"{moves}. Look at these judgments, and at some of the texts: `testnuc compare` of the "
            "results before and after has each pair of labels, with examples."
        )


def _keys_of(texts: Iterable[str] | None) -> set[int] | None:
    """Return the keys of texts; None: of all."""
    return None if texts is None else {*map(key_of, map(hash_text, texts))}


def _never_right(learned: Learned) -> Iterator[str]:
    """Yield the labels that no judged text has rightly while others have them."""
    if not (len(learned.given) and len(learned.before)):
        return
    known = learned.person & (learned.before >= 0)
    by = Counter(zip(learned.given[learned.rows], learned.right & known, known, strict=True))
    given = Counter(np.delete(learned.given, learned.rows).tolist())
    # of a label that was split, those judged to have it are open
    open_ = Counter(name for one in learned.reopened for name in one.possible)
    for at, label in enumerate(learned.labels):
        wrong = by[at, False, True]
        if wrong >= _FEWER and given[at] and not by[at, True, True] and open_[label] < wrong:
            said = f"0 of {wrong:,} judged texts that would have {label!r} are right, and"
            todo = "look at these; what you correct in the file, `testnuc learn FILE FILE` takes"
            yield f"{said} {given[at]:,} more have it: {todo}."


@lru_cache(maxsize=2)
def _known(learned: Learned, among: int) -> frozenset[int]:
    """Return the keys of the first texts: once, as each single `classify` asks for them."""
    return frozenset(learned.keys[:among].tolist())


@lru_cache(maxsize=2)
def _proved(learned: Learned) -> str:
    """Return how far labels are proved to be right, and what would help most next."""
    certificate = learned.certify()
    if certificate.coverage:
        return (
            f'Proved: {certificate}. More draws of goal "certify" may prove a larger part; '
            'corrections (goal "correct") end this proof.'
        )
    accuracy = f"{certificate.accuracy * 100:g} % right by your judgments"
    text = f"No labels are proved to be {accuracy} yet"
    decisions = learned.wants_decisions(certificate)
    text += f": {certificate.reason}." if not (decisions and certificate.judgments_needed) else "."
    if decisions:
        text += " Judging 50 more texts on which strategies differ may lead to better labels."
    return f"{text} {certificate.hint}." if certificate.achievable else text
