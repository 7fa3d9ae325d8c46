"""Which texts of the pool vote with `neighbors="stored"`, without asking for them one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from testnuc._engine.inputs import without_foreign_labels
from testnuc.protocols import Index

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from testnuc.labels import LabelSet
    from testnuc.protocols import Matches, PoolText, Store
    from testnuc.types import Prediction

__all__ = ["FilteredIndex", "StoredVoters", "known_labels"]

#: Texts checked at a time; bounds the memory.
_CHUNK = 1_024
_UNKNOWN, _VOTES, _SILENT = 0, 1, 2


@runtime_checkable
class FilteredIndex(Index, Protocol):
    """An index that can search some of its texts; the pools of testnuc's stores can."""

    async def rows(self, hashes: Sequence[bytes]) -> NDArray[np.int64]:
        """Return the row numbers of those texts that are in the pool, ascending."""

    async def labeled(self) -> dict[bytes, str]:
        """Return the known label of each text that has one, by hash."""

    async def search(
        self,
        vectors: NDArray[np.float16],
        k: int,
        *,
        exclude: Sequence[bytes] | None = None,
        upto: int | None = None,
        among: NDArray[np.int64] | None = None,
    ) -> Matches:
        """Return the k nearest texts, among the rows of `among` if given; see `Index.search`."""


async def known_labels(pool: Index) -> dict[bytes, str]:
    """Return the known label of each text of a pool that has one, by hash."""
    if isinstance(pool, FilteredIndex):
        return await pool.labeled()
    found: dict[bytes, str] = {}
    start: int | None = 0
    while start is not None:
        texts, start = await pool.scan(start, _CHUNK)
        found.update((e.hash, e.label) for e in texts if e.label is not None)
    return found


@dataclass
class StoredVoters:
    """The texts of the pool that can vote in one run.

    A text votes if it has a known label or a stored prediction, or if it gets one in this run.
    """

    pool: Index
    #: Read once for the texts of the scope, if it has a method `predicted`; else all texts of the
    #: pool are checked, once.
    store: Store
    scope: bytes
    #: Other known labels do not count.
    labels: LabelSet
    #: Returns the stored prediction of each text.
    stored: Callable[[Sequence[PoolText]], Awaitable[list[Prediction | None]]]
    #: Hashes of the texts that get a prediction in this run.
    batch: AbstractSet[bytes]
    #: What is known of each row.
    _state: NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, dtype=np.int8))
    _rows: NDArray[np.int64] | None = None

    async def votes(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which rows vote; -1 does not."""
        highest = int(ids.max(initial=-1))
        if highest >= len(self._state):
            more = np.zeros(max(highest + 1, 2 * len(self._state)), dtype=np.int8)
            more[: len(self._state)] = self._state
            self._state = more
        new = np.unique(ids[ids >= 0])
        new = new[self._state[new] == _UNKNOWN]
        for start in range(0, len(new), _CHUNK):
            await self._check(new[start : start + _CHUNK])
        voting: NDArray[np.bool_] = ids >= 0
        voting[voting] = self._state[ids[voting]] == _VOTES
        return voting

    async def _check(self, rows: NDArray[np.int64]) -> None:
        entries = without_foreign_labels(await self.pool.fetch(rows), self.labels)
        asked = [i for i, e in enumerate(entries) if e.label is None and e.hash not in self.batch]
        found = await self.stored([entries[i] for i in asked])
        state = np.full(len(rows), _VOTES, dtype=np.int8)
        state[[i for i, p in zip(asked, found, strict=True) if p is None]] = _SILENT
        self._state[rows] = state

    async def rows(self) -> NDArray[np.int64]:
        """Return all rows that can vote, ascending; some of them may turn out not to."""
        if self._rows is None:
            assert isinstance(self.pool, FilteredIndex)
            labels = await self.pool.labeled()
            hashes = {h for h, label in labels.items() if self.labels.knows(label)}
            predicted = getattr(self.store, "predicted", None)
            hashes.update(await self._all() if predicted is None else await predicted(self.scope))
            hashes |= self.batch
            self._rows = await self.pool.rows(list(hashes))
        return self._rows

    async def _all(self) -> list[bytes]:
        hashes: list[bytes] = []
        start: int | None = 0
        while start is not None:
            texts, start = await self.pool.scan(start, _CHUNK)
            hashes += [entry.hash for entry in texts]
        return hashes

    async def verify(self) -> None:
        """Check all rows that can vote, so that `rows` holds only those that do."""
        rows = await self.rows()
        self._rows = rows[await self.votes(rows)]
