"""Assemble neighborhoods from texts, the matches of a search, and the texts of the neighbors."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np

from testnuc._engine.multilabel import neighborhoods_class

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from testnuc._engine.neighborhoods import Neighborhoods, Snapshot
    from testnuc.labels import LabelSet
    from testnuc.protocols import Matches, PoolText
    from testnuc.trust import VoteSettings

__all__ = ["SEARCH", "build_neighborhoods", "distinct_ids", "in_thread_if_large"]

#: Queries searched at a time, so that other searches wait milliseconds.
SEARCH = 1_024
#: Rows of neighbors whose places are looked up at a time.
_BLOCK = 4_096


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
