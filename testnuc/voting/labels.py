"""Labels of texts: one container for what the LLM, a vote, a model, a head and people give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from testnuc._base.arrays import Array, Bools, Float32s, Float64s, Floats, Int32s, Int64s, Ints
from testnuc._base.display import Brief
from testnuc.errors import InvalidInputError


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
    #: bool[m], whether the text has the label; None: all.
    given: Bools | None = None
    #: float64[m], the probability that the label applies; NaN and None: unknown.
    chance: Float64s | None = None
    #: float64[n], the probability that the labels of the text are right; NaN and None: unknown.
    trust: Float64s | None = None
    #: int32[n], the number of texts that voted, the text itself included; None: no vote.
    voters: Int32s | None = None
    #: float32[n], their weight.
    weight: Float32s | None = None
    #: float64[n, depth - 1], of labels in a tree: the trust of each level above the label.
    level_trust: Float64s | None = None

    @classmethod
    def of(cls, given: Sequence[Sequence[tuple[int, float | None]] | None]) -> Labels:
        """Return the labels of texts, each a sequence of (label, confidence); None: unknown."""
        sizes = [0 if one is None else len(one) for one in given]
        pairs = [pair for one in given if one for pair in one]
        return cls(
            starts_of(np.array(sizes, dtype=np.int64)),
            np.array([label for label, _ in pairs], dtype=np.int32),
            np.array([np.nan if c is None else c for _, c in pairs], dtype=np.float32),
            np.array([one is not None for one in given], dtype=np.bool_),
        )

    @classmethod
    def single(
        cls, label: Int32s, share: Floats | None = None, trust: Float64s | None = None
    ) -> Labels:
        """Return one label for each text, int32[n], or none where it is -1."""
        known = label >= 0
        return cls(
            starts_of(known),
            label[known].astype(np.int32),
            np.full(int(known.sum()), np.nan, np.float32)
            if share is None
            else share[known].astype(np.float32),
            known,
            trust=trust,
        )

    @classmethod
    def pairs(
        cls,
        n: int,
        rows: Ints,
        label: Ints,
        share: Floats,
        *,
        given: Bools | None = None,
        chance: Floats | None = None,
        trust: Float64s | None = None,
        known: Bools | None = None,
        level_trust: Float64s | None = None,
    ) -> Labels:
        """Return the labels of n texts, from pairs of text and label in any order.

        The candidates of a text are ordered by share, largest first.
        """
        order = np.lexsort((-share, rows))
        return cls(
            starts_of(np.bincount(rows, minlength=n)),
            label[order].astype(np.int32),
            share[order].astype(np.float32),
            np.ones(n, dtype=np.bool_) if known is None else known,
            None if given is None else given[order],
            None if chance is None else chance[order].astype(np.float64),
            trust,
            level_trust=level_trust,
        )

    def __len__(self) -> int:
        return len(self.known)

    @property
    def rows(self) -> Int64s:
        """The text of each candidate, int64[m]."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def is_given(self) -> Bools:
        """Return whether the text has each candidate, bool[m]."""
        return np.ones(len(self.label), np.bool_) if self.given is None else self.given

    def first(self) -> Int32s:
        """Return the first label that each text has, int32[n]; -1 = none."""
        first = np.full(len(self), -1, dtype=np.int32)
        given = np.flatnonzero(self.is_given())[::-1]
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

    def at(self, rows: Ints) -> Labels:
        """Return the labels of some of the texts."""
        at, starts = places_of(self.starts, rows)
        arrays: dict[str, Any] = {
            name: None if (array := getattr(self, name)) is None else array[by]
            for names, by in ((_OF_CANDIDATES, at), (_OF_TEXTS, rows))
            for name in names
        }
        return Labels(starts, **arrays)

    def among(self, others: Labels) -> Bools:
        """Return which of the candidates `others`, labels of the same texts, have, too; bool[m]."""
        width = 1 + max(self.label.max(initial=0), others.label.max(initial=0))
        mine, theirs = self.rows * width + self.label, others.rows * width + others.label
        return np.isin(mine, theirs, assume_unique=True)

    def over(self, others: Labels, here: Bools) -> Labels:
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
    def stacked(cls, parts: Sequence[Labels]) -> Labels:
        """Return the labels of the texts of all parts, one part after the other."""
        counts = np.concatenate([np.diff(part.starts) for part in parts])
        arrays: dict[str, Any] = {name: _joined(name, parts) for name in _ARRAYS}
        return cls(starts_of(counts), **arrays)

    def check(self, n_classes: int) -> None:
        """Raise an `InvalidInputError` if an array is invalid: a kernel would write outside."""
        n, m = self.known.size, self.label.size
        wanted = {"starts": np.int64, "label": np.int32, "share": np.float32, "known": np.bool_}
        for name, dtype in wanted.items():
            array = getattr(self, name)
            if array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
                raise InvalidInputError(
                    f"{name} has the dtype {array.dtype} and the shape {array.shape}; give a "
                    f"contiguous {np.dtype(dtype)} array of one dimension"
                )
        starts, sure = self.starts, self.share
        if (
            starts.size != n + 1
            or sure.size not in {0, m}
            or starts[0] != 0
            or starts[-1] != m
            or (np.diff(starts) < 0).any()
        ):
            raise InvalidInputError(
                f"starts has {starts.size} values, label {m}, share {sure.size} and known {n}; "
                "give n + 1 ascending starts from 0 to m"
            )
        text = self.rows
        wrong = np.ones(m, dtype=np.bool_)
        # the first of each label of a text is right
        wrong[np.unique(text * 2**32 + self.label, return_index=True)[1]] = False
        wrong |= (self.label < 0) | (self.label >= n_classes)
        if sure.size:
            wrong |= (sure < 0) | (sure > 1)
        if wrong.any():
            bad = text[wrong.argmax()]
            part = slice(int(starts[bad]), int(starts[bad + 1]))
            raise InvalidInputError(
                f"text {bad} has the labels {self.label[part].tolist()} with the confidences "
                f"{sure[part].tolist()}; give distinct labels from 0 to {n_classes - 1}, and "
                "confidences from 0 to 1 or NaN"
            )


_OF_CANDIDATES = ("label", "share", "given", "chance")
_OF_TEXTS = ("known", "trust", "voters", "weight", "level_trust")
_ARRAYS = (*_OF_CANDIDATES, *_OF_TEXTS)
#: What stands for an array that is None where the other one is not.
_NEUTRAL: dict[str, Any] = {"given": True, "voters": 0, "weight": 0}


def _joined(name: str, parts: Sequence[Labels]) -> Array | None:
    arrays = [getattr(part, name) for part in parts]
    there = next((array for array in arrays if array is not None), None)
    if there is None:
        return None
    sizes = [len(part.label) if name in _OF_CANDIDATES else len(part) for part in parts]
    return np.concatenate(
        [
            np.full((size, *there.shape[1:]), _NEUTRAL.get(name, np.nan), there.dtype)
            if array is None
            else array
            for array, size in zip(arrays, sizes, strict=True)
        ]
    )


def starts_of(sizes: Array) -> Int64s:
    """Return where the items of each row start, int64[n + 1], by their number in each."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def places_of(starts: Int64s, rows: Ints) -> tuple[Int64s, Int64s]:
    """Return where the items of some rows are, and the starts of each row among them.

    The items of row i are at ``starts[i]:starts[i + 1]``.
    """
    counts = np.diff(starts)[rows]
    new_starts = starts_of(counts)
    at = np.repeat(starts[rows] - new_starts[:-1], counts) + np.arange(new_starts[-1])
    return at, new_starts
