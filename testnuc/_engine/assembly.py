"""Assemble neighborhoods: the neighbors' texts from the pool, predictions from the store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from testnuc._engine.inputs import without_foreign_labels
from testnuc._engine.multilabel import neighborhoods_class
from testnuc._engine.retrieval import SEARCH, no_matches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from testnuc._engine.neighborhoods import Neighborhoods, Snapshot
    from testnuc._engine.retrieval import Retriever
    from testnuc.labels import LabelSet
    from testnuc.protocols import Index, Matches, PoolText
    from testnuc.trust import VoteSettings

__all__ = ["Assembler", "build_neighborhoods", "distinct_ids", "in_thread_if_large"]

#: Rows of neighbors whose places are looked up at a time.
_BLOCK = 4_096


@dataclass
class Assembler:
    """Assembles the neighborhoods of one client."""

    labels: LabelSet
    #: "stored": neighbors have their stored predictions from the beginning.
    neighbors: Literal["predict", "stored"]
    pool: Index
    retriever: Retriever

    async def build(
        self,
        texts: Sequence[PoolText],
        matches: Matches,
        settings: VoteSettings,
        snapshot: Snapshot | None = None,
        rejected: Mapping[int, Exception] | None = None,
    ) -> Neighborhoods:
        """Fetch the neighbors' texts and build the neighborhoods."""
        ids = await in_thread_if_large(len(texts), distinct_ids, matches)
        texts = without_foreign_labels(texts, self.labels)
        others = without_foreign_labels(await self.pool.fetch(ids), self.labels)
        neighborhoods: Neighborhoods = await in_thread_if_large(
            len(texts),
            build_neighborhoods,
            self.labels,
            settings,
            texts,
            ids,
            others,
            matches,
            snapshot,
            rejected,
        )
        if self.neighbors == "stored":
            await self.fill(neighborhoods, range(len(texts), len(neighborhoods.entries)))
        return neighborhoods

    def alone(self, texts: Sequence[PoolText], settings: VoteSettings) -> Neighborhoods:
        """Return neighborhoods without neighbors."""
        texts, matches = without_foreign_labels(texts, self.labels), no_matches(len(texts))
        ids = distinct_ids(matches)
        return build_neighborhoods(self.labels, settings, texts, ids, [], matches)

    async def fill(self, neighborhoods: Neighborhoods, places: Iterable[int]) -> None:
        """Set the stored predictions at the given places."""
        unknown = [place for place in places if not neighborhoods.answered(place)]
        stored = await self.retriever.stored([neighborhoods.entries[i] for i in unknown])
        for place, prediction in zip(unknown, stored, strict=True):
            if prediction is not None:
                neighborhoods.put(place, prediction)


def distinct_ids(matches: Matches) -> NDArray[np.int64]:
    """Return the distinct pool ids of all neighbors, ascending."""
    ids = matches.ids
    highest = int(ids.max(initial=-1))
    if highest >= 16 * ids.size:
        found = np.unique(ids)
        return found[found >= 0]
    # a byte per id takes less memory than a sorted copy of all neighbors
    seen = np.zeros(highest + 2, dtype=np.bool_)
    seen[ids.reshape(-1)] = True
    seen[-1] = False  # the -1 of the padding
    return np.flatnonzero(seen)


def build_neighborhoods(
    labels: LabelSet,
    settings: VoteSettings,
    texts: Sequence[PoolText],
    ids: NDArray[np.int64],
    others: Sequence[PoolText],
    matches: Matches,
    snapshot: Snapshot | None = None,
    rejected: Mapping[int, Exception] | None = None,
) -> Neighborhoods:
    """Return the neighborhoods of texts. Places: own texts first, then other neighbors.

    `ids`: int64[n], the pool ids of all neighbors, ascending; `others`: the texts with these ids.
    The ids in `matches` are overwritten with places.
    """
    entries = list(texts)
    places = {entry.hash: place for place, entry in enumerate(entries)}
    place_of = np.empty(len(ids), dtype=np.int64)
    for at, entry in enumerate(others):
        place = places.get(entry.hash)
        if place is None:
            place = len(entries)
            entries.append(entry)
        elif entry.label is not None:
            entries[place] = entry
        place_of[at] = place
    for start in range(0, len(texts), _BLOCK):
        block = matches.ids[start : start + _BLOCK]
        filled = block >= 0
        block[filled] = place_of[np.searchsorted(ids, block[filled])]
    return neighborhoods_class(multilabel=labels.multilabel)(
        labels,
        settings,
        entries,
        len(texts),
        matches.ids,
        matches.similarities,
        snapshot,
        rejected or {},
    )


async def in_thread_if_large(size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function; in a thread if `size` is large, so as not to block the event loop."""
    if size < SEARCH:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)
