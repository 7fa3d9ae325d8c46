"""Labels of texts: one container for what the LLM, a vote, a model, a head and people give them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from testnuc._base.arrays import Array, Bools, Float32s, Float64s, Floats, Int32s, Int64s, Ints
from testnuc._base.display import Brief

#: An array that has its neutral values.
_LEFT_OUT: Any = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Labels(Brief):
    """The labels of n texts, as many as each has; those of text i are at starts[i]:starts[i + 1].

    Where a text has one label, one of its candidates is `given`. A text whose labels are `known`
    can have none.
    """

    #: int64[n + 1].
    starts: Int64s
    #: int32[m], the candidates: the labels that anything speaks for, those of one text distinct.
    label: Int32s
    #: float32[m], 0 to 1, how much speaks for each: the LLM's confidence, a share of the vote, a
    #: probability; NaN = unknown.
    share: Float32s
    #: bool[n], whether the labels of the text are known.
    known: Bools
    #: bool[m], whether the text has the label. Left out: it has all.
    given: Bools = _LEFT_OUT
    #: float64[m], the probability that the label applies; NaN = unknown, as where it is left out.
    chance: Float64s = _LEFT_OUT
    #: float64[n], the probability that the labels of the text are right; likewise.
    trust: Float64s = _LEFT_OUT
    #: int32[n], the number of texts that voted, the text itself included. Left out: no vote.
    voters: Int32s = _LEFT_OUT
    #: float32[n], their weight.
    weight: Float32s = _LEFT_OUT
    #: float64[n, depth - 1], of labels in a tree: the trust of each level above the label; NaN =
    #: unknown. Left out: float64[n, 0].
    level_trust: Float64s = _LEFT_OUT

    def __post_init__(self) -> None:
        n, m = len(self.known), len(self.label)
        for name, shape, value, dtype in (
            ("given", m, True, np.bool_),
            ("chance", m, np.nan, np.float64),
            ("trust", n, np.nan, np.float64),
            ("voters", n, 0, np.int32),
            ("weight", n, 0, np.float32),
            ("level_trust", (n, 0), np.nan, np.float64),
        ):
            if getattr(self, name) is None:
                object.__setattr__(self, name, np.full(shape, value, dtype))

    @classmethod
    def of(cls, given: Sequence[Sequence[tuple[int, float | None]] | None]) -> Self:
        """Return the labels of texts, each a sequence of (label, confidence); None: unknown."""
        pairs = [pair for one in given if one for pair in one]
        return cls(
            starts_of(np.array([0 if one is None else len(one) for one in given], dtype=np.int64)),
            np.array([label for label, _ in pairs], dtype=np.int32),
            np.array([np.nan if c is None else c for _, c in pairs], dtype=np.float32),
            np.array([one is not None for one in given], dtype=np.bool_),
        )

    @classmethod
    def single(
        cls, label: Int32s, share: Floats | None = None, trust: Float64s | None = None
    ) -> Self:
        """Return one label for each text, int32[n], or none where it is -1."""
        known, unknown = label >= 0, np.full(len(label), np.nan)
        share = unknown if share is None else share
        trust = unknown if trust is None else trust
        label, share = label[known].astype(np.int32), share[known].astype(np.float32)
        return cls(starts_of(known), label, share, known, chance=trust[known], trust=trust)

    def by_share(self) -> Self:
        """Return the same with the candidates of each text by share, largest first."""
        order = np.lexsort((-self.share, self.rows))
        return replace(self, **{name: getattr(self, name)[order] for name in _OF_CANDIDATES})

    def __len__(self) -> int:
        return len(self.known)

    @property
    def rows(self) -> Int64s:
        """The text of each candidate, int64[m]."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def first(self) -> Int32s:
        """Return the first label that each text has, int32[n]; -1 = none."""
        first = np.full(len(self), -1, dtype=np.int32)
        given = np.flatnonzero(self.given)[::-1]
        first[self.rows[given]] = self.label[given]
        return first

    def table(self, n_classes: int, values: Array | None = None) -> Array:
        """Return a value of each candidate, [m], by default the share, in a table, [n, C].

        0 where a text has no such candidate, or an unknown share.
        """
        given = np.nan_to_num(self.share) if values is None else values
        table = np.zeros((len(self), n_classes), given.dtype)
        table[self.rows, self.label] = given
        return table

    def at(self, rows: Ints) -> "Labels":
        """Return the labels of some of the texts."""
        at, starts = places_of(self.starts, rows)
        arrays: dict[str, Any] = {
            name: getattr(self, name)[by]
            for names, by in ((_OF_CANDIDATES, at), (_OF_TEXTS, rows))
            for name in names
        }
        return Labels(starts, **arrays)

    def among(self, others: Self) -> Bools:
        """Return which of the candidates `others`, labels of the same texts, have, too; bool[m]."""
        width = 1 + max(self.label.max(initial=0), others.label.max(initial=0))
        mine, theirs = self.rows * width + self.label, others.rows * width + others.label
        return np.isin(mine, theirs, assume_unique=True)

    def over(self, others: "Labels", here: Bools) -> "Labels":
        """Return these labels where `here`, bool[n], and `others` elsewhere, of the same texts."""
        if here.all():
            return self
        if not here.any():
            return others
        kept, mine = np.flatnonzero(~here), np.flatnonzero(here)
        order = np.empty(len(here), dtype=np.int64)
        order[np.concatenate([kept, mine])] = np.arange(len(here))
        return Labels.stacked([others.at(kept), self.at(mine)]).at(order)

    @classmethod
    def stacked(cls, parts: Sequence[Self]) -> Self:
        """Return the labels of the texts of all parts, one part after the other."""
        counts = np.concatenate([np.diff(part.starts) for part in parts])
        levels = [part.level_trust for part in parts]
        depth = max(of.shape[1] for of in levels)
        arrays: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in (*_OF_CANDIDATES, *_OF_TEXTS[:-1])
        }
        deep = [of if of.shape[1] else np.full((len(of), depth), np.nan) for of in levels]
        return cls(starts_of(counts), **arrays, level_trust=np.concatenate(deep))


_OF_CANDIDATES = ("label", "share", "given", "chance")
_OF_TEXTS = ("known", "trust", "voters", "weight", "level_trust")


def starts_of(sizes: Array) -> Int64s:
    """Return where the items of each row start, int64[n + 1], by their number in each."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def starts_of_rows(rows: Ints, n: int) -> Int64s:
    """Return where the items of each of n rows start, by the row of each item, in their order."""
    return starts_of(np.bincount(rows, minlength=n))


def places_of(starts: Int64s, rows: Ints) -> tuple[Int64s, Int64s]:
    """Return where the items of some rows are, and the starts of each row among them."""
    counts = np.diff(starts)[rows]
    new_starts = starts_of(counts)
    at = np.repeat(starts[rows] - new_starts[:-1], counts) + np.arange(new_starts[-1])
    return at, new_starts
