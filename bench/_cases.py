"""Cases of a vote, and the least that a vote must do."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from testnuc._kernels import fast
from testnuc._kernels import vote as plain
from testnuc._kernels.compile import prefetch
from testnuc.voting import VotePolicy, vote_pool

__all__ = ["Array", "Case"]

#: Part of the neighbors that share the text's class, about what embeddings of short texts give.
PURITY = 0.7
#: As far ahead as the vote.
_AHEAD = np.uintp(128)
_POOL = ThreadPoolExecutor(2)

Array: TypeAlias = NDArray[Any]


@njit(nogil=True, error_model="numpy")  # type: ignore[untyped-decorator, unused-ignore]
def floor(ids: Any, similarities: Any, records: Any, own: Any, k: Any, out: Any) -> Any:
    """Gather the packed records and stream ids and similarities, with the same prefetch; add up."""
    missing = np.uint64(records.size - 1)
    bits = similarities.view(np.int32)
    last = np.uintp(ids.size - 1)
    width = np.uintp(k)
    for row in range(own.size):
        total = np.int64(own[row])
        for at in range(row * width, row * width + width):
            prefetch(records, np.int64(min(ids[min(np.uintp(at) + _AHEAD, last)], missing)))
            total += records[min(ids[at], missing)] + bits[at]
        out[row] = total


@dataclass(frozen=True, slots=True)
class Case:
    """B rows of K neighbors in a pool of N predictions of C classes."""

    ids: Array
    similarities: Array
    pool_labels: Array
    own_labels: Array
    n_classes: int

    @classmethod
    def make(cls, b: int, k: int, c: int, n: int, seed: int = 0) -> Case:
        """Draw a pool, and rows whose neighbors are scattered in it."""
        rng = np.random.default_rng(seed)
        pool = rng.integers(0, c, n).astype(np.int32)
        by_class = np.argsort(pool, kind="stable")
        starts = np.searchsorted(pool[by_class], np.arange(c + 1))
        truth = rng.integers(0, c, b)
        size = starts[truth + 1] - starts[truth]
        inside = starts[truth][:, None] + (rng.random((b, k)) * size[:, None]).astype(np.int64)
        same = (rng.random((b, k)) < PURITY) & (size > 0)[:, None]
        ids = np.where(same, by_class[np.minimum(inside, n - 1)], rng.integers(0, n, (b, k)))
        similarities = -np.sort(-rng.uniform(0.2, 1, (b, k)).astype(np.float32), axis=1)
        own = np.where(rng.random(b) < 0.75, truth, rng.integers(0, c, b)).astype(np.int32)
        return cls(ids, similarities, pool, own, c)

    def first(self, rows: int) -> Case:
        """Return the case with fewer rows."""
        return Case(
            self.ids[:rows],
            self.similarities[:rows],
            self.pool_labels,
            self.own_labels[:rows],
            self.n_classes,
        )

    def vote(self, threads: int | None = 1, policy: str = "weighted") -> Any:
        """Vote through the public function."""
        return vote_pool(
            self.ids,
            self.similarities,
            self.pool_labels,
            None,
            self.own_labels,
            None,
            n_classes=self.n_classes,
            policy=policy,
            threads=threads,
        )

    def kernels(self) -> tuple[Callable[[], object], Callable[[], object] | None]:
        """Return the plain kernel and, where it pays, the fast one with the pool packed before."""
        policy = VotePolicy.weighted().fields
        b, k = self.ids.shape
        none, ones = np.empty(0, np.float32), np.ones(b, np.float32)
        out = np.empty((5, b), np.int32)
        ids, similarities = self.ids.ravel().view(np.uint64), self.similarities.ravel()
        own = (self.own_labels, ones, ones)
        rest = (own, policy, self.n_classes, k, 0, b, out, out.view(np.float32))
        untold = np.empty((0, self.n_classes))
        neighbors = (ids, similarities, self.pool_labels, none)
        by_rows = plain.vote_rows()
        if not fast.pays(b, k, self.n_classes, self.pool_labels.size):
            return lambda: by_rows(neighbors, *rest, untold), None
        packed = (ids, similarities, self._records())
        by_blocks = fast.vote_packed()
        return lambda: by_rows(neighbors, *rest, untold), lambda: by_blocks(packed, *rest)

    def floor(self) -> Callable[[int], object]:
        """Return the floor, on so many threads."""
        records = self._records()
        b, k = self.ids.shape
        ids, similarities = self.ids.ravel().view(np.uint64), self.similarities.ravel()
        out = np.empty(b, np.int64)

        def run(threads: int) -> object:
            cuts = [b * part // threads for part in range(threads + 1)]
            each = map if threads == 1 else _POOL.map
            return list(each(some_rows, cuts[:-1], cuts[1:]))

        def some_rows(first: int, last: int) -> object:
            at = slice(first * k, last * k)
            own = self.own_labels[first:last]
            return floor(ids[at], similarities[at], records, own, k, out[first:last])

        return run

    def _records(self) -> Array:
        records = np.empty(self.pool_labels.size + 1, np.int64)
        policy = VotePolicy.weighted().fields
        fast.pack()(self.pool_labels, np.empty(0, np.float32), policy, self.n_classes, records)
        return records
