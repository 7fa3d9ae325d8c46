"""Judgments, and what they prove of a gain: a test of wins and losses, and bounds by betting.

Where a text has one label, other labels win or lose on it, and judged texts were drawn from strata,
equally likely in each: `paired_gain`. Its error is that of one look.

Else there are bets, `gain_of`. A text is drawn with a known probability and judged. Under the
hypothesis "the gain is at most mu" a bet on the judgment cannot be expected to win, so a capital
that grows to 1/alpha refutes it, with an error of at most alpha **whenever one stops** (Ville's
inequality). Several candidates share alpha by weights. Texts are drawn without replacement, with
unequal probabilities. An estimate is shrunk toward 0 as far as it is uncertain (positive-part
James-Stein).

Sources: Brown, Cai and DasGupta 2001, "Interval estimation for a binomial proportion" (Statistical
Science); Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting"
(JRSS B); Shekhar, Xu, Lipton, Liang and Ramdas 2023, "Risk-limiting financial audits via weighted
sampling without replacement" (UAI).
"""

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import partial
from math import hypot
from typing import Any, Self

import numpy as np
import orjson

from testnuc._base.arrays import Array, Bools, Float64s, Int64s
from testnuc._base.checks import checked_number
from testnuc._base.display import Brief
from testnuc._base.foreign import read_as
from testnuc.errors import StoreError
from testnuc.protocols import Provider, WireProvider
from testnuc.trust.shares import NEVER, Share, quantiles
from testnuc.voting import Labels

#: Parts of the capital that are bet; the capital is the mean over them.
#: Bold ones prove a gain by few judgments.
BETS = np.array([0.5, 0.95])
#: Parameters of the beta prior that a text is won.
_JEFFREYS = (0.5, 0.5)
#: Gains that a bound is searched on, as parts of all texts.
#: The first step is tiny: where no gain at all is refuted, there is one.
_GRID = np.concatenate([[0.0, 1e-6], np.linspace(0.0025, 0.6, 96)])
#: An estimate is shrunk by so many of its variances: what is chosen since it looks good looks too
#: good.
_SHRINK = 2
#: With less probability it is not by chance that judged texts are left where others are not.
_BY_CHANCE = 1e-3
#: Times the chance of a text among all that were left: with more, some texts were preferred.
_PREFERRED = 1.05


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Draws(Brief):
    """How judged texts were drawn, in their order."""

    #: Size of the population.
    texts: int
    #: float64[m]: of each drawn text, at its draw, given the earlier ones. NaN: a judged text that
    #: was not drawn at random.
    probability: Float64s
    #: float64[m]: the lowest probability, at that draw, of any text that a candidate may change.
    floor: Float64s
    #: bool[m]: whether it was a draw from all texts that were left, all equally likely. A review
    #: tosses a coin for each draw, and one side is such a draw.
    uniform: Bools

    @classmethod
    def at_random(cls, texts: int, m: int, among: int | None = None) -> Self:
        """Return m draws without replacement, all equally likely, from `among` or all texts."""
        left = (texts if among is None else among) - np.arange(m, dtype=np.float64)
        chance = 1 / np.maximum(left, 1)
        return cls(texts, chance, chance, np.full(m, among is None))

    def only(self, used: Bools) -> "Draws":
        """Return some of the draws."""
        return Draws(self.texts, self.probability[used], self.floor[used], self.uniform[used])

    def arrays(self) -> dict[str, Array]:
        """Return the arrays to be stored, by name."""
        return {"probability": self.probability, "floor": self.floor, "uniform": self.uniform}

    @classmethod
    def taken_from(cls, arrays: dict[str, Array], texts: int) -> Self:
        """Return the draws of what `arrays` returned, which is removed from `arrays`."""
        probability, floor = arrays.pop("probability"), arrays.pop("floor")
        # older versions of testnuc did not store it
        uniform = arrays.pop("uniform", None)
        if uniform is None:
            uniform = of_all(probability, floor, texts - np.arange(len(probability)))
        return cls(texts, probability, floor, uniform)

    @property
    def drawn(self) -> Bools:
        """Which texts were drawn at random, bool[m]."""
        return np.isfinite(self.probability)


def of_all(probability: Float64s, floor: Float64s, left: Int64s) -> Bools:
    """Return which draws were from all texts that were left, by their probabilities."""
    return np.isclose(probability * left, 1) & np.isclose(floor * left, 1)


def capital(values: Float64s, draws: Draws, means: Float64s, bets: Float64s = BETS) -> Float64s:
    """Return the log of the most capital so far against "the mean over all texts is at most mu".

    `values`, float64[m], of each drawn text are -1 to 1; 0 where a text cannot count. For each mu
    of `means`: at least log(1 / alpha) means that it is refuted with an error of at most alpha.
    """
    if not len(values):
        return np.zeros(len(means))
    seen, known = _seen(values, draws)
    most = 1 / draws.floor / draws.texts
    move = seen[:, None] - means
    least = most[:, None] + np.maximum(means - known[:, None], 0)
    move = np.maximum(move / least, -1)
    logs = np.log1p(bets[:, None, None] * move).cumsum(axis=1)
    top = logs.max(axis=0)
    after = np.log(np.exp(logs - top).mean(axis=0)) + top
    # what a capital has refuted once is refuted, whatever is drawn later (Ville)
    result: Float64s = after.max(axis=0)
    return result


def gain_of(values: Float64s, draws: Draws, alpha: float, unknown: Bools | None = None) -> Share:
    """Return the gain of a candidate, and bounds that hold with 1 - alpha each.

    `values` are 1 where the candidate is right and the LLM's own label is not, -1 the other way
    round. Where `unknown`, bool[m], a text was skipped: the lower bound takes it as -1, the upper
    one as 1.
    """
    if unknown is not None and unknown.any():
        worst = gain_of(np.where(unknown, -1.0, values), draws, alpha)
        best = gain_of(np.where(unknown, 1.0, values), draws, alpha)
        value = gain_of(values, draws, alpha).value
        return Share(float(np.clip(value, worst.low, best.high)), worst.low, best.high)
    m = len(values)
    if not m:
        return Share(0.0, -1.0, 1.0)
    needed = np.log(1 / alpha)
    above = capital(values, draws, _GRID) >= needed
    # the last gain that is refuted, of all the last one
    low = float(_GRID[np.argmin(above) - 1]) if above[0] else -_reach(-values, draws, needed)
    high = _reach(values, draws, needed)
    seen, _ = _seen(values, draws)
    mean, variance = float(seen.mean()), float(seen.var()) / m
    part = max(0.0, 1 - _SHRINK * variance / mean**2) if mean else 0.0
    # what was proved once may be contradicted by what was drawn since
    low = min(low, high, np.inf if mean * part > 0 else 0.0)
    value = float(np.clip(mean * part, max(low, -1.0), min(high, 1.0)))
    return Share(value, low, high)


def paired_gain(
    values: Float64s,
    rows: Int64s,
    changed: Bools,
    strata: Sequence[Bools],
    error: float,
    unknown: Bools | None = None,
    *,
    texts: int | None = None,
) -> Share:
    """Return the gain of other labels over all texts, and bounds that are each wrong with `error`.

    `values`, float64[m], of the judged texts `rows`: 1 where the other label is right and the LLM's
    own is not, -1 the other way round, 0 if neither. `changed`, bool[n], are the texts on which
    these labels differ. `strata`, bool[n] each: judged texts were drawn from each, equally likely;
    outside of all nothing counts. `unknown`, bool[m], as for `gain_of`. `texts` is the number that
    the gain is of, if not n.

    Judged texts count as they are. Of the others, as many are won as a beta-binomial with Jeffreys'
    prior says: a sign test (mid-p) where there is one stratum. What few draws say of a further
    stratum is bounded exactly (Clopper and Pearson), since it may be unlike the first.
    """
    if unknown is not None and unknown.any():
        given = (np.where(unknown, one, values) for one in (-1.0, 1.0))
        worst, best = (paired_gain(v, rows, changed, strata, error, texts=texts) for v in given)
        return Share((worst.value + best.value) / 2, worst.low, best.high)
    left, counts, ties, known = changed.copy(), [], [], 0.0
    left[rows] = False
    for stratum in strata:
        seen = values[stratum[rows] & changed[rows]]
        won, lost = float((seen > 0).sum()), float((seen < 0).sum())
        known += won - lost
        # on some texts neither label is right
        tied, unseen = len(seen) - won - lost, float((left & stratum).sum())
        decided = min((won + lost + 0.5) / (len(seen) + 0.75), 1.0)
        counts.append((won, lost, float(round(unseen * decided))))
        ties.append((won + lost + 0.5, tied + 0.5, unseen, 1.0))

    def bound(prior: tuple[float, float], side: int) -> float:
        priors = [_JEFFREYS] + [prior] * (len(counts) - 1)
        cells = [
            (won + more, lost + less, texts, 2.0)
            for (won, lost, texts), (more, less) in zip(counts, priors, strict=True)
        ]
        found = quantiles(tuple(cells), error)[side] - rest
        # how many are decided is an estimate, too, by which a gain of none stays one of none
        apart = abs(quantiles(tuple(ties), error)[side] - rest) * abs(found) / max(rest, 1.0)
        return middle + (2 * side - 1) * hypot(found - middle, apart)

    n, rest = texts or len(changed), sum(left for *_, left in counts)
    value = sum(2 * left * (won + 0.5) / (won + lost + 1) for won, lost, left in counts) - rest
    middle = sum(left * (won - lost) / max(won + lost, 1) for won, lost, left in counts)
    found = (value, bound((NEVER, 1.0), 0), bound((1.0, NEVER), 1))
    return Share(*((known + one) / n for one in found))


def _seen(values: Float64s, draws: Draws) -> tuple[Float64s, Float64s]:
    """Return the mean that each draw speaks for, and the part of it that is known before."""
    # what is drawn leaves the population: its part of the mean is known from then on
    known = np.concatenate([[0.0], np.cumsum(values)[:-1]]) / draws.texts
    return values / draws.probability / draws.texts + known, known


def _reach(values: Float64s, draws: Draws, needed: float) -> float:
    """Return the lowest mean on the grid that "at least" is refuted for: an upper bound."""
    # "the mean is at least mu" is "the mean of the negated values is at most -mu"
    refuted = capital(-values, draws, -_GRID) >= needed
    return float(_GRID[int(np.argmax(refuted))]) if refuted.any() else 1.0


#: Of what is stored; a later one is refused.
_VERSION = 2
#: Bytes that are decompressed: zeros shrink to a thousandth, what was learned does not.
_MOST, _RATIO = 64 * 1024 * 1024, 100

#: Array -> kinds of its type, and its shape: n texts, c labels, m judged texts, d dimensions and
#: one, l levels, g given labels, 5 folds, p first texts.
_SHAPES = {
    "trust": ("f", "n"),
    "keys": ("u", "n"),
    **dict.fromkeys(("probability", "floor"), ("f", "m")),
    **dict.fromkeys(("right", "person", "uniform", "drawn"), ("b", "m")),
    "given": ("i", "n"),
    "before": ("i", "m"),
    # of the texts that were there when it was learned
    "differs": ("b", "p"),
    "rows": ("iu", "m"),
    **dict.fromkeys(("coefficients", "of_label"), ("f", "53")),
    "of_text": ("f", "52"),
    "limits": ("f", "5c"),
    "scale": ("f", "c"),
    **dict.fromkeys(("heads", "moves"), ("f", "5dc")),
    "moved": ("f", "dc"),
    "answers": ("f", "cc"),
    "level_right": ("b", "lm"),
    **dict.fromkeys(("given_rows", "given_labels"), ("iu", "g")),
    "given_right": ("b", "g"),
    "vote": ("fiu", "2"),
}
#: Array of positions -> the letter of what they are positions of.
_PLACES = {"rows": "n", "given_rows": "n", "given_labels": "c"}


@dataclass(frozen=True, slots=True, repr=False)
class Judgment(Brief):
    """What was said of a text, and how the text was drawn."""

    text: str
    hash: bytes
    #: None: no label is right, or the text was skipped.
    label: str | None
    #: "person" or "referee"; None: skipped.
    source: str | None
    #: None: it was not drawn at random from all, and proves nothing of these.
    probability: float | None
    floor: float | None
    #: Number of texts that there were then.
    texts: int
    #: Whether it was drawn at random from all texts that were left; without a probability: from
    #: all later ones, see `Learned.first_later`. None: an older version of testnuc did not say.
    uniform: bool | None = None
    #: The ranking of texts by trust that it was drawn from, to certify; "": none.
    ranking: str = ""
    #: The date when it was learned from; "": an older version did not say.
    day: str = ""
    #: Whether several people said the same; None: one judged it.
    agreed: bool | None = None
    #: Where it is not known which label was meant, as it was split since: those that it may be,
    #: None = none of the labels; (): any. With a `source`, of several labels: those that it may
    #: have besides, as they were added since.
    possible: tuple[str | None, ...] = ()
    #: Who judged: how many people, and what they saw; "": not known.
    by: str = ""

    @property
    def reopened(self) -> bool:
        """Whether labels that were added, split or removed since left it open."""
        is_open = not self.label and bool(self.possible or self.source is None)
        return is_open and bool(self.possible or self.by)

    def record(self) -> list[Any]:
        """Return its values, as they are stored."""
        text, key, *rest = astuple(self)
        return [text, key.hex(), *rest]

    @classmethod
    def all_of(cls, records: Sequence[Sequence[Any]]) -> "tuple[Judgment, ...]":
        """Return the judgments of records."""
        names, plain = [field.name for field in fields(cls)], []
        for text, key, *rest in records:
            # older versions stored nothing, or a number, in place of `uniform`
            known = rest if len(rest) > 5 and isinstance(rest[5], bool) else rest[:5]
            plain.append(dict(zip(names, (text, bytes.fromhex(key), *known), strict=False)))
        return tuple(read_as(list[Judgment], plain))


@dataclass(frozen=True, slots=True)
class Referee:
    """A better model, whose answers are judgments.

    `TestNUC.classify_many` lets it judge a hundred texts once, half of them where strategies
    differ, and learns from them as `TestNUC.learn` does.

    Parameters
    ----------
    model : str or Provider
        As for `TestNUC`. A name of the same provider has the client's address and key.
    escalate : float
        The part of the texts of each `classify_many`, those of lowest trust, that it labels.
        Nothing is escalated, and none of its answers is used, unless neighbors or a model of your
        texts back its contradictions of the LLM, most of them and more often than by chance, and
        it contradicts the LLM not too often; `Results.escalated` says so.

    Examples
    --------
    ::

        TestNUC(labels, referee=Referee("openai/gpt-5", escalate=0.1))
    """

    model: str | Provider | WireProvider
    escalate: float = 0.0

    def __post_init__(self) -> None:
        checked_number("escalate", self.escalate, 0, 1)

    @classmethod
    def of(cls, given: Any) -> "Referee | None":
        """Return a referee, of a model or None as well."""
        return given if given is None or isinstance(given, Referee) else cls(given)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Judged(Brief):
    """The judged texts among n, in the order they were drawn, with those that were skipped."""

    #: int64[m], their positions.
    rows: Int64s
    #: Their right labels: known, unless the text was skipped.
    right: Labels
    draws: Draws
    #: bool[m], whether a person judged it, or skipped it.
    person: Bools
    #: `Judgment.ranking` of each.
    rankings: tuple[str, ...] = ()


def draws_of(judged: Sequence[Judgment], texts: int) -> Draws:
    """Return the draws of judged texts; those that came to the pool later are taken to be alike.

    `judged` are all of them, in their order, of a pool of `texts` texts.
    """
    share = np.array([j.texts / texts for j in judged], dtype=np.float64)
    # None becomes NaN
    probability = np.array([j.probability for j in judged], dtype=np.float64)
    floor = np.array([j.floor for j in judged], dtype=np.float64)
    left = np.array([j.texts for j in judged], dtype=np.int64) - np.arange(len(judged))
    said = np.array([j.uniform is not None for j in judged], dtype=np.bool_)
    uniform = np.array([bool(j.uniform) for j in judged], dtype=np.bool_)
    uniform |= ~said & of_all(probability, floor, left)
    return Draws(texts, probability * share, floor * share, uniform)


def weights_of(judged: Sequence[Judgment], differs: Bools) -> Float64s:
    """Return of how many texts of its stratum each judged one speaks, float64[m].

    A review prefers texts on which candidates differ. `differs`, bool[m], says whether they do now.
    Where they did not then, or no longer do, texts of one stratum had unlike chances.
    """
    chance = np.array([j.probability for j in judged], dtype=np.float64)
    floor = np.array([j.floor for j in judged], dtype=np.float64)
    left = np.array([j.texts for j in judged], dtype=np.int64) - np.arange(len(judged))
    drawn = np.isfinite(chance)
    preferred = (floor * left > _PREFERRED) | differs
    rare = drawn & ((chance < floor) | ~preferred)
    # the sum of the chances that a preferred text had, over all draws of people, by that which
    # another text had: only in draws from all texts
    people = drawn & np.array([j.source != "referee" for j in judged], dtype=np.bool_)
    alike = np.array([bool(j.uniform) for j in judged], dtype=np.bool_)
    others = float((1 / np.maximum(left, 1))[alike & people].sum())
    weight = max(float(floor[people].sum()) / others, 1.0) if others else 1.0
    if rare.any() and any(j.uniform is None for j in judged):
        # older versions did not say which draws were from all
        weight = float(np.mean((floor / chance)[rare]))
    return np.where(rare, weight, 1.0)


def drawn_here(judged: Sequence[Judgment], here: Collection[bytes]) -> Sequence[Judgment]:
    """Return draws from more texts than these as texts that were chosen, if most are not here.

    So it is in another run, of the hashes `here`, which has the judged texts, but not the others
    that they were drawn from. Deleting texts at random would take judged ones with them.
    """
    from scipy.special import bdtrc

    more = [j for j in judged if j.texts > len(here) and (j.uniform or j.probability is not None)]
    part = len(here) / max((j.texts for j in more), default=1)
    found = sum(j.hash in here for j in more)
    if not more or bdtrc(found - 1, len(more), part) > _BY_CHANCE:
        return judged
    chosen = partial(replace, probability=None, floor=None, uniform=False)
    return [chosen(j) if j.texts > len(here) else j for j in judged]


def ends_of_draws(judged: Iterable[Judgment], texts: int | None = None) -> tuple[int, int]:
    """Return where the texts end that were drawn from: the first ones, and all.

    The former are 0, unless later ones, or those from the place `texts` on, are drawn from alone.
    """
    drawn = [j for j in judged if j.uniform or j.probability is not None]
    later = texts or max((j.texts for j in drawn if j.probability is None), default=0)
    first = max((j.texts for j in drawn if j.texts < later), default=0)
    return first, max((j.texts for j in drawn), default=0)


def pack(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """Return a header of plain values, and arrays, as bytes."""
    listed = [
        [name, array.dtype.newbyteorder("<").str, array.shape] for name, array in arrays.items()
    ]
    # a gain may be a scalar of numpy
    head = orjson.dumps(
        {"version": _VERSION, **header, "arrays": listed}, option=orjson.OPT_SERIALIZE_NUMPY
    )
    body = b"".join(
        np.ascontiguousarray(a, dtype=a.dtype.newbyteorder("<")).tobytes() for a in arrays.values()
    )
    return zlib.compress(len(head).to_bytes(8, "little") + head + body, 1)


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return what `pack` was given; refuse what a newer version of testnuc wrote."""
    most, reader = _MOST + _RATIO * len(data), zlib.decompressobj()
    raw = reader.decompress(data, most)
    if not reader.eof:
        raise ValueError(f"it is incomplete, or has more than {most:,} bytes")
    at = 8 + int.from_bytes(raw[:8], "little")
    header = orjson.loads(raw[8:at])
    if header["version"] not in range(1, _VERSION + 1):
        raise StoreError(
            "what was learned was stored by another version of testnuc; upgrade it, or learn "
            "again after `unlearn`, which sets it aside"
        )
    arrays: dict[str, Array] = {}
    for name, kind, shape in header["arrays"]:
        dtype = np.dtype(kind)
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        found = np.frombuffer(raw[at : at + size], dtype=dtype).reshape(shape)
        arrays[name] = found.astype(dtype.newbyteorder("="))
        at += size
    _check_shapes(arrays, {"c": len(header["labels"]), "n": header["texts"]})
    return header, arrays


def _check_shapes(arrays: Mapping[str, Array], sizes: dict[str, int]) -> None:
    """Raise a `ValueError` if arrays do not fit each other: others may have written the store."""
    for name, array in arrays.items():
        kind, letters = _SHAPES.get(name.rstrip("0123456789"), ("", ""))
        if not kind:
            continue
        wanted = [int(c) if c.isdigit() else sizes.get(c) for c in letters]
        sizes_fit = len(wanted) == array.ndim and all(
            size in {None, have} for size, have in zip(wanted, array.shape, strict=True)
        )
        if array.dtype.kind not in kind or not sizes_fit:
            raise ValueError(f"{name} has the shape {array.shape} of {array.dtype}")
        sizes.update(zip(letters, array.shape, strict=True))
    for name, letter in _PLACES.items():
        places = arrays.get(name, np.zeros(0))
        if len(places) and not 0 <= places.min() <= places.max() < sizes[letter]:
            raise ValueError(f"{name} goes beyond {sizes[letter]:,}")
