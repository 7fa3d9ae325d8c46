"""Assemble neighborhoods: the neighbors' texts from the pool, predictions from the store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

from testnuc._engine.inputs import without_foreign_labels
from testnuc._engine.multilabel import neighborhoods_class
from testnuc._engine.neighborhoods import build_neighborhoods, distinct_ids
from testnuc._engine.retrieval import SEARCH, no_matches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from testnuc._engine.neighborhoods import Neighborhoods, Snapshot
    from testnuc._engine.retrieval import Retriever
    from testnuc.labels import LabelSet
    from testnuc.protocols import Index, Matches, PoolText
    from testnuc.trust import VoteSettings

__all__ = ["Assembler", "in_thread_if_large"]


class Assembler:
    """Assembles the neighborhoods of one client.

    Parameters
    ----------
    labels : LabelSet
    neighbors : {"predict", "stored"}
        "stored": neighbors have their stored predictions from the beginning.
    pool : Index
    retriever : Retriever
    """

    def __init__(
        self,
        labels: LabelSet,
        neighbors: Literal["predict", "stored"],
        *,
        pool: Index,
        retriever: Retriever,
    ) -> None:
        self.labels = labels
        self.pool = pool
        self.retriever = retriever
        self._stored = neighbors == "stored"
        self._kind = neighborhoods_class(multilabel=labels.multilabel)

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
            self._kind,
        )
        if self._stored:
            await self.fill(neighborhoods, range(len(texts), len(neighborhoods.entries)))
        return neighborhoods

    def alone(self, texts: Sequence[PoolText], settings: VoteSettings) -> Neighborhoods:
        """Return neighborhoods without neighbors."""
        texts, matches = without_foreign_labels(texts, self.labels), no_matches(len(texts))
        ids = distinct_ids(matches)
        return build_neighborhoods(self.labels, settings, texts, ids, [], matches, kind=self._kind)

    async def fill(self, neighborhoods: Neighborhoods, places: Iterable[int]) -> None:
        """Set the stored predictions at the given places."""
        unknown = [place for place in places if not neighborhoods.answered(place)]
        stored = await self.retriever.stored([neighborhoods.entries[i] for i in unknown])
        for place, prediction in zip(unknown, stored, strict=True):
            if prediction is not None:
                neighborhoods.put(place, prediction)


async def in_thread_if_large(size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function; in a thread if `size` is large, so as not to block the event loop."""
    if size < SEARCH:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)
