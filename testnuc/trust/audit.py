"""Texts of the traffic that are set aside and judged: accuracy and shares by week, and what moved.

Each text gets a random number, and of each week the texts with the lowest are kept: a simple random
sample of all that came by then, also where several processes see the traffic.

Whether a share has moved is tested after each batch of judged texts, however often one looks. Given
all judged texts so far, the number of hits among the latest is hypergeometric as long as the share
is the same, whatever it is. Its place in that distribution is uniform, and independent from batch
to batch (a conformal p-value). Bets on its normal score multiply to a test martingale, which
exceeds 1 / e with a chance of at most e (Ville): a mixture over the size of the change, and over
the batch that it came with.

Sources: Cohen and Kaplan 2007, "Summarizing data using bottom-k sketches" (PODC); Vovk 2021,
"Testing randomness online" (Statistical Science).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Self

import numpy as np
import orjson

from testnuc._base.arrays import Bools, Float64s, Int64s
from testnuc._base.checks import hash_text
from testnuc._base.display import Brief, columns
from testnuc._base.foreign import read_as
from testnuc.errors import StoreError
from testnuc.trust.counts import LEAST_JUDGED, Counts, LabelCount
from testnuc.trust.review import Chance, Count, Review, ReviewContext, ReviewItem
from testnuc.trust.shares import Share, stratified
from testnuc.types import split_labels

_FORMAT = b'{"testnuc.audit":'
#: Texts that a sample is of, where their number does not matter.
_ENDLESS = 10**9
#: Labels that the table shows.
_SHOWN = 4
#: The chance of a false alarm: half of it is for the first kind, the rest is shared by the others.
ERROR = 0.05
#: Changes that are bet on, in standard errors of a batch.
_SIZES = np.array([-1.5, -0.75, 0.75, 1.5])
#: A change is as likely in the first so many batches as in all later ones.
_EARLY = 26
#: Places in a distribution are at least so far from its ends.
_TINY = 1e-12


def week_of(time: float) -> str:
    """Return the ISO week of a time in seconds since the epoch, in UTC: 2026-W07."""
    return f"{datetime.fromtimestamp(time, UTC):%G-W%V}"


@dataclass(slots=True, repr=False)
class AuditedText(Brief):
    """A text of the traffic that was set aside."""

    text: str
    #: When it was labeled, in seconds since the epoch.
    time: float
    #: Uniform in 0 to 1; the lowest of a week are kept.
    order: Chance
    #: The label that was given, as one string; None: none.
    label: str | None
    own_label: str | None
    alternative: str | None
    trust: Chance | None
    #: The right label, as `ReviewItem.answer`.
    answer: str | None = None
    #: The look at which its answer was known; 0: it is not judged.
    look: Count = 0


@dataclass(slots=True, repr=False)
class AuditWeek(Brief):
    """The traffic of a week: how many texts got each label, and a random sample of the texts."""

    week: str
    labels: Sequence[str]
    multilabel: bool
    model: str
    #: What those who judge are shown.
    context: ReviewContext
    #: Texts that are kept.
    size: Count
    texts: Count = 0
    #: Label -> texts that it was given to; "": none.
    given: dict[str, Count] = field(default_factory=dict)
    #: The lowest `order` first.
    sample: list[AuditedText] = field(default_factory=list)
    #: When the latest text was counted, in seconds since the epoch; 0: unknown.
    latest: Count = 0

    def key(self, week: str | None = None) -> bytes:
        """Return the key in a store; "": that of the summary of all weeks of these labels."""
        facts = orjson.dumps(
            [list(self.labels), self.multilabel, self.week if week is None else week]
        )
        return blake2b(_FORMAT + facts, digest_size=16).digest()

    @property
    def judged(self) -> list[AuditedText]:
        """The texts that have an answer."""
        return [text for text in self.sample if text.look]

    def count(self, label: str | None, time: float) -> None:
        """Count a text by the label that it was given then."""
        self.texts += 1
        self.latest = int(time)
        for name in split_labels(label, several=self.multilabel) or [""]:
            self.given[name] = self.given.get(name, 0) + 1

    def keep(self, texts: Sequence[AuditedText]) -> None:
        """Keep those with the lowest order; none once some are judged: a clock may be set back."""
        if not self.judged:
            self.sample = sorted([*self.sample, *texts], key=lambda text: text.order)[: self.size]

    def merge(self, other: Self) -> None:
        """Add what another process, or another time, saw of this week."""
        # a sample that was cut cannot grow again
        self.size = min(self.size, other.size)
        self.texts += other.texts
        self.latest = max(self.latest, other.latest)
        for name, number in other.given.items():
            self.given[name] = self.given.get(name, 0) + number
        self.keep(other.sample)

    def erase(self, gone: frozenset[bytes]) -> frozenset[bytes]:
        """Drop texts by their hashes; return those of which there was something."""
        held = gone & {hash_text(one.text) for one in self.sample}
        rest = [one for one in self.sample if hash_text(one.text) not in held]
        if len(self.sample) == self.size:
            # others were left out for those that go, so that the next text would be sure to be in
            self.size = max(len(rest), 1)
        self.sample = rest
        return held

    def to_bytes(self) -> bytes:
        """Return the week as a store holds it."""
        return _FORMAT + orjson.dumps(self) + b"}"

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Return the week of bytes that `to_bytes` returned."""
        try:
            week = read_as(cls, orjson.loads(data)["testnuc.audit"])
            # what a store of somebody else holds fails here, not later
            if not len(week.sample) <= week.size > 0:
                raise ValueError(week.size)  # noqa: TRY301
        except (LookupError, TypeError, ValueError) as exc:
            raise StoreError(f"texts set aside for an audit are damaged: {exc!r}") from exc
        return week


def is_audit(data: bytes) -> bool:
    """Whether what a store holds beside what was learned is a week."""
    return data.startswith(_FORMAT)


def review_of(weeks: Sequence[AuditWeek]) -> Review:
    """Return the texts that are not judged yet, each once, in the order to judge them."""
    items: dict[str, ReviewItem] = {}
    for text in (text for week in weeks for text in week.sample if not text.look):
        by: dict[str | None, tuple[str, ...]] = {text.label: ("the label given",)}
        others = (text.own_label, "the LLM alone"), (text.alternative, "the next label")
        for label, name in others:
            if label is not None:
                by[label] = (*by.get(label, ()), name)
        facts = len(items), text.text, hash_text(text.text), text.own_label
        item = ReviewItem(*facts, tuple(by.items()), text.trust, goal="audit", label=text.label)
        items.setdefault(text.text, item)
    last, texts = weeks[-1], sum(week.texts for week in weeks)
    return Review(
        [*items.values()], last.labels, texts, last.model, last.context, multilabel=last.multilabel
    )


@dataclass(frozen=True, slots=True, repr=False)
class Move(Brief):
    """A change of the accuracy, or of the share of a label, that the judged texts prove."""

    what: str
    #: The week whose judgments proved it.
    proved: str
    #: The week that it most likely came with.
    since: str
    #: Among the judged texts before that week, and from it on.
    before: Share
    after: Share

    def __str__(self) -> str:
        return (
            f"{self.what} has moved, since about {self.since}: {self.after} of the judged texts, "
            f"{self.before} before (proved in {self.proved})"
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Audit(Brief):
    """What judged texts of the traffic say, by week. ``print`` it."""

    weeks: Sequence[AuditWeek]
    #: By week: the share of the labels given that are right; None: too few are judged.
    accuracy: Sequence[Share | None]
    #: Over all judged texts.
    overall: Share
    #: Share of each label, by week.
    counts: Counts
    moves: Sequence[Move]

    def __str__(self) -> str:
        sizes = Counter[str | None]()
        for one in self.counts:
            sizes[one.label] += round(one.llm * one.rows)
        shown = [label for label, _ in sizes.most_common(_SHOWN) if label is not None]
        shares = {(one.group, one.label): one.share for one in self.counts}
        used = {one.group: one.judged for one in self.counts}
        rows = [["week", "texts", "judged", "accuracy", *shown]]
        for week, accuracy in zip(self.weeks, self.accuracy, strict=True):
            found = [accuracy, *(shares[week.week, label] for label in shown)]
            cells = ["-" if share is None else str(share) for share in found]
            judged = f"{used[week.week]} of {len(week.sample)}"
            rows.append([week.week, f"{week.texts:,}", judged, *cells])
        lines = [
            columns(rows),
            f"95 % intervals, each alone; -: fewer than {LEAST_JUDGED} judged texts of the week",
        ]
        if not any(week.judged for week in self.weeks):
            return "\n".join([*lines, "nothing is judged yet"])
        lines.append(f"accuracy of all judged texts: {self.overall}, by your judgments")
        alarms = [f"alarm: {move}" for move in self.moves]
        lines += alarms or ["no change of the accuracy or of a share is proved"]
        return "\n".join(lines)


def _in_order(weeks: Sequence[AuditWeek]) -> list[list[AuditedText]]:
    """Return the judged texts of each week up to where it was judged: they are a random sample.

    Beyond, or in a week that was not judged, those that have an answer are copies of others.
    """
    seen, found = set[str](), list[list[AuditedText]]()
    for week in weeks:
        until = len(week.sample) if len(week.judged) == len(week.sample) else 0
        for at, text in enumerate(week.sample, 1):
            if text.look and text.text not in seen:
                until = max(until, at)
            seen.add(text.text)
        # copies up to the first text that is not judged: who stops there stops at random
        while 0 < until < len(week.sample) and week.sample[until].look:
            until += 1
        found.append([text for text in week.sample[:until] if text.look])
    return found


def audited(weeks: Sequence[AuditWeek], since: str = "") -> Audit:
    """Return what the judged texts of some weeks say; changes are looked for from `since` on."""
    labels: list[str | None] = [*weeks[-1].labels, None]
    of_weeks = _in_order(weeks)
    judged = [(at, text) for at, texts in enumerate(of_weeks) for text in texts]
    place = np.array([at for at, _ in judged], dtype=np.int64)
    several = weeks[-1].multilabel
    given = _marks([text.label for _, text in judged], labels, several=several)
    right = _marks([text.answer for _, text in judged], labels, several=several)
    every = np.ones((len(judged), 1), dtype=np.bool_)
    # the first kind of hit is a right label, among the texts that have one; then each label
    labeled = np.array([[text.label is not None] for _, text in judged]).reshape(-1, 1)
    used = np.hstack([labeled, every.repeat(len(labels), axis=1)]).astype(np.bool_)
    hits = np.hstack([(given == right).all(axis=1, keepdims=True), right]) & used
    said = np.hstack([every, given])

    accuracy: list[Share | None] = []
    items: list[LabelCount] = []
    for at, week in enumerate(weeks):
        here = used & (place == at)[:, None]
        n, total = len(of_weeks[at]), max(week.texts, len(week.sample))
        numbers = np.array([week.given.get(label or "", 0) for label in labels])
        parts = (numbers / max(total, 1)).tolist()
        texts = np.array([[total - numbers[-1], *numbers], [0, *np.maximum(total - numbers, 0)]])
        strata = np.array([(here & said), (here & ~said)])
        of_each = zip(texts.T, *(of.sum(axis=1).T for of in (strata, strata & hits)), strict=True)
        shares = [stratified(*of) if of[1].sum() >= LEAST_JUDGED else None for of in of_each]
        accuracy.append(shares[0])
        more = LEAST_JUDGED - n if n < LEAST_JUDGED else 3 * n
        items += [
            LabelCount(label, week.week, total, share, part, part, n, more)
            for label, share, part in zip(labels, shares[1:], parts, strict=True)
        ]

    # a batch is what was judged of a week at a look
    later = np.array([week.week >= since for week in weeks], dtype=np.bool_)[place]
    when = np.array([(text.look, at) for at, text in judged], dtype=np.int64).reshape(-1, 2)
    looks, number = np.unique(when[later], axis=0, return_inverse=True)
    batch = (number.reshape(-1) == np.arange(len(looks))[:, None]).astype(np.int64)
    totals = np.array([batch @ used[later], batch @ hits[later]])
    names = [weeks[at].week for at in looks[:, 1].tolist()]
    moves = [
        Move(
            "the accuracy" if not kind else f"the share of {labels[kind - 1] or 'none of these'!r}",
            names[proved],
            names[start],
            _pooled(*totals[:, :start, kind]),
            _pooled(*totals[:, start:, kind]),
        )
        for kind, proved, start in found_moves(*totals)
    ]
    return Audit(weeks, accuracy, _pooled(used[:, :1], hits[:, :1]), Counts(items), moves)


def _marks(given: Sequence[str | None], labels: Sequence[str | None], *, several: bool) -> Bools:
    """Return which of the labels each text has, bool[m, C]; the last: none of them."""
    number = {label: at for at, label in enumerate(labels)}
    marks = np.zeros((len(given), len(labels)), dtype=np.bool_)
    for row, label in zip(marks, given, strict=True):
        names = split_labels(label, several=several)
        row[[number[name] for name in names if name in number] or [-1]] = True
    return marks


def _pooled(judged: Any, hits: Any) -> Share:
    """Return the share of hits among judged texts, as a sample of endlessly many."""
    return stratified(*(np.array([n]) for n in (_ENDLESS, judged.sum(), hits.sum())))


def found_moves(judged: Int64s, hits: Int64s) -> list[tuple[int, int, int]]:
    """Return the kinds of hits whose share is proved to have moved.

    Each as (kind, batch that proved it, batch that it most likely came with). `judged` and `hits`,
    int64[T, K]: texts and hits of each batch, the earliest first, for each kind.
    """
    if not len(judged):
        return []
    # the same ones for the same judgments, whatever is judged later
    between = np.array(
        [np.random.default_rng([k]).random(len(judged)) for k in range(judged.shape[1])]
    )
    evidence, since = log_evidence(judged, hits, between.T)
    error = np.full(judged.shape[1], ERROR / 2)
    error[1:] /= max(len(error) - 1, 1)
    proved = evidence >= -np.log(error)
    return [
        (kind, int(proved[:, kind].argmax()), int(since[kind]))
        for kind in np.flatnonzero(proved.any(axis=0)).tolist()
    ]


def log_evidence(judged: Int64s, hits: Int64s, between: Float64s) -> tuple[Float64s, Int64s]:
    """Return the log evidence after each batch that shares have moved, and since which batch.

    Arrays [T, K], and int64[K]. `between` are uniform random numbers in 0 to 1, which break ties.
    """
    from scipy.special import ndtri
    from scipy.stats import hypergeom

    steps, kinds = judged.shape
    so_far = judged.cumsum(axis=0), hits.cumsum(axis=0), judged
    place = hypergeom.cdf(hits - 1, *so_far) + between * hypergeom.pmf(hits, *so_far)
    score = ndtri(np.clip(place, _TINY, 1 - _TINY))[..., None]
    # the first batch is compared with nothing
    compared = ((judged > 0) & (so_far[0] > judged))[..., None]
    gains = np.where(compared, score * _SIZES - _SIZES**2 / 2, 0).cumsum(axis=0)
    at = np.arange(steps)[:, None, None]
    before = np.concatenate([np.zeros((1, kinds, len(_SIZES))), gains])[:-1]
    # what is bet from each batch on: all together is 1
    staked = np.log(_EARLY / ((at + _EARLY) * (at + _EARLY + 1)) / len(_SIZES)) - before
    capital = gains + np.logaddexp.accumulate(staked, axis=0)
    kept = -np.log1p((at[..., 0] + 1) / _EARLY)
    evidence: Float64s = np.logaddexp(np.logaddexp.reduce(capital, axis=2), kept)
    # where the evidence is highest, which bet is worth most
    best = evidence.argmax(axis=0)
    worth = np.logaddexp.reduce(staked + gains[best, np.arange(kinds)], axis=2)
    # a change before which nothing was judged is none
    possible = compared[..., 0] & (np.arange(steps)[:, None] <= best)
    return evidence, np.where(possible, worth, -np.inf).argmax(axis=0)
