"""Shortlists: of many labels, the few that the prompt of one text shows."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from testnuc._base.checks import checked_whole, hash_text
from testnuc._dispatch.predictor import NONE_OF_THESE
from testnuc.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from numpy.typing import NDArray

    from testnuc._engine.neighborhoods import Neighborhoods
    from testnuc.embedders.cache import EmbeddingCache
    from testnuc.labels import LabelSet
    from testnuc.protocols import Method, PoolText
    from testnuc.types import Prediction

__all__ = [
    "Shortlist",
    "checked_shortlist",
    "described",
    "nearest_labels",
    "neighbors_labels",
    "similar_together",
]

#: Texts whose lists are computed between two turns of the event loop.
_BLOCK = 1_024


def checked_shortlist(size: int | None, labels: LabelSet, method: Method) -> tuple[int | None, str]:
    """Return the length of shortlists, and a note; None: every prompt shows all labels.

    Parameters
    ----------
    size, labels, method
        Of the client.

    Raises
    ------
    InvalidInputError
        The length is wrong, or another option does not allow shortlists.
    """
    if size is None:
        return None, ""
    checked_whole("shortlist", size, least=2)
    if method.context:
        raise InvalidInputError(
            f"method is {method!r}, whose few-shot examples shortlist does not support; leave "
            "method or shortlist out"
        )
    clash = labels.match(NONE_OF_THESE) if labels.none_label is None else None
    if clash is not None:
        name = labels.names[clash]
        raise InvalidInputError(
            f"the label {name!r} reads as {NONE_OF_THESE!r}, the answer to a shortlist that lacks "
            f"the right label; rename it, or give it as none_label={name!r}"
        )
    n = len(labels.names) - (labels.none_label is not None)
    if size >= n:
        return None, f"shortlist={size} is off: there are only {n} labels"
    return size, ""


def described(labels: LabelSet) -> list[str]:
    """Return what is embedded of each label: its name, and its description if it has one."""
    texts = []
    for name in labels.names:
        description = labels.descriptions.get(name)
        readable = name.replace("_", " ")
        texts.append(f"{readable}: {description}" if description else readable)
    return texts


def nearest_labels(
    labels: NDArray[np.float32],
    vectors: NDArray[np.float16],
    size: int,
    first: Sequence[Sequence[int]] | None = None,
) -> NDArray[np.int32]:
    """Return the labels in the list of each text, int32[len(vectors), size], in label order.

    Parameters
    ----------
    labels : float32[n_labels, dim]
        Unit vectors; a row of zeros is never in a list that the others fill.
    vectors : float16[n, dim]
    size : int
    first : sequence of sequence of int, optional
        Labels of each text that are in its list wherever they rank; at most `size`.
    """
    found = np.empty((len(vectors), size), dtype=np.int32)
    absent = ~labels.any(axis=1)
    for row, vector in enumerate(vectors.astype(np.float32)):
        # one text at a time: a matrix product over many could round differently
        similarities = labels @ vector
        similarities[absent] = -np.inf
        if first is not None:
            similarities[list(first[row])] = np.inf
        found[row] = np.sort(np.argsort(-similarities, kind="stable")[:size])
    return found


def neighbors_labels(
    known: Sequence[int], neighbors: NDArray[np.int64], size: int
) -> list[list[int]]:
    """Return the labels that most neighbors of each text have, up to half of a list.

    Parameters
    ----------
    known : sequence of int
        The label at each place; -1: it is not known.
    neighbors : int64[n, K]
        Places, most similar first; padded with -1.
    size : int
        Labels in a list.
    """
    found = []
    for row in neighbors.tolist():
        labels = (known[place] for place in row if place >= 0)
        # of as many, the one of the nearest neighbor comes first
        counted = Counter(label for label in labels if label >= 0)
        found.append([label for label, _ in counted.most_common(size // 2)])
    return found


def similar_together(lists: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return an order of texts in which those that share labels follow each other.

    Parameters
    ----------
    lists : int32[n, size]
        The labels to show for each text.
    """
    # by the commonest labels first, as in an FP-tree
    rank = np.argsort(np.argsort(-np.bincount(lists.ravel()), kind="stable"))
    return np.lexsort(np.sort(rank[lists], axis=1).T[::-1])


class Shortlist:
    """Chooses the labels that the prompt of each text shows.

    Up to half of a list are labels of the neighbors, as given by the user or stored before the run;
    the rest are those whose name and description are nearest to the text.

    Parameters
    ----------
    labels : LabelSet
    size : int
        Labels in a list, besides the one that means "none of these".
    embedding : EmbeddingCache
    """

    def __init__(self, labels: LabelSet, size: int, embedding: EmbeddingCache) -> None:
        self._labels = labels
        self._size = size
        self._embedding = embedding
        self._vectors: NDArray[np.float32] | None = None

    async def attach(
        self,
        neighborhoods: Neighborhoods,
        vectors: NDArray[np.float16],
        look_up: Callable[[Sequence[PoolText]], Awaitable[list[Prediction | None]]],
    ) -> None:
        """Set the lists of the own texts, from their vectors and what is known of neighbors.

        Predictions that arrive during the run are not used, so that lists do not depend on the
        order in which calls are answered.
        """
        entries = neighborhoods.entries
        predictions = await look_up(entries)
        known = [
            self._place(entry.label or (None if stored is None else stored.label))
            for entry, stored in zip(entries, predictions, strict=True)
        ]
        first = neighbors_labels(known, neighborhoods.neighbors, self._size)
        neighborhoods.shortlists = await self._nearest(vectors, first)

    async def lists(self, neighborhoods: Neighborhoods, places: Sequence[int]) -> NDArray[np.int32]:
        """Return the labels to show for the texts at some places, in label order."""
        own = neighborhoods.shortlists
        found = np.empty((len(places), self._size), dtype=np.int32)
        others = []
        for row, place in enumerate(places):
            if own is None or place >= neighborhoods.n_own:
                others.append(row)
            else:
                found[row] = own[place]
        for start in range(0, len(others), _BLOCK):
            rows = others[start : start + _BLOCK]
            entries = [neighborhoods.entries[places[row]] for row in rows]
            vectors = await self._embedding.vectors(
                [e.text for e in entries], [e.hash for e in entries]
            )
            found[rows] = await self._nearest(vectors)
        return found

    def _place(self, label: str | None) -> int:
        """Return the position of a label that a list may hold; -1: it may not."""
        if label is None or label == self._labels.none_label:
            return -1
        place = self._labels.index(label)
        return -1 if place is None else place

    async def _nearest(
        self, vectors: NDArray[np.float16], first: Sequence[Sequence[int]] | None = None
    ) -> NDArray[np.int32]:
        labels = await self._label_vectors()
        found = np.empty((len(vectors), self._size), dtype=np.int32)
        for start in range(0, len(vectors), _BLOCK):
            part = slice(start, start + _BLOCK)
            found[part] = await asyncio.to_thread(
                nearest_labels,
                labels,
                vectors[part],
                self._size,
                None if first is None else first[part],
            )
        return found

    async def _label_vectors(self) -> NDArray[np.float32]:
        if self._vectors is None:
            texts = described(self._labels)
            found = await self._embedding.vectors(texts, [hash_text(text) for text in texts])
            vectors = found.astype(np.float32)
            if self._labels.none_label is not None:
                # in every prompt anyway
                vectors[self._labels.names.index(self._labels.none_label)] = 0
            self._vectors = vectors
        return self._vectors
