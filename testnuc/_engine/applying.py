"""Apply what was learned to the texts of a run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from testnuc._engine.judgment_arrays import class_of
from testnuc.trust import Applied
from testnuc.trust.head import folds_of
from testnuc.trust.model import NEIGHBORS, Texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from testnuc._engine.neighborhoods import Neighborhoods
    from testnuc.embedders.cache import EmbeddingCache
    from testnuc.trust import Learned

__all__ = ["apply_judged", "apply_learned", "judge", "said_of", "texts_among"]


async def apply_learned(neighborhoods: Neighborhoods, embedding: EmbeddingCache) -> None:
    """Replace labels and trust of the own texts; the vectors are those that were searched with."""
    learned = neighborhoods.settings.learned
    assert learned is not None
    entries = neighborhoods.entries
    vectors, _ = await embedding.each([e.text for e in entries], [e.hash for e in entries])
    await asyncio.to_thread(_apply, neighborhoods, learned, vectors)


def apply_judged(neighborhoods: Neighborhoods) -> None:
    """Replace the labels of judged texts; trust of the others is unknown."""
    n_own, learned = neighborhoods.n_own, neighborhoods.settings.learned
    assert learned is not None
    neighborhoods.applied = Applied(
        neighborhoods.plain_vote(slice(0, n_own)).label.copy(), np.full(n_own, np.nan)
    )
    judge(neighborhoods, said_of(neighborhoods, range(n_own), learned))


def said_of(
    neighborhoods: Neighborhoods, places: Iterable[int], learned: Learned
) -> dict[int, tuple[int, str]]:
    """Return the class, -1 = none, and the source of each judged text among some places."""
    answers, labels = learned.answers, neighborhoods.labels
    hashes = ((place, neighborhoods.entries[place].hash) for place in places)
    found = {place: answers[key] for place, key in hashes if key in answers}
    return {p: (class_of(label, source, labels), source) for p, (label, source) in found.items()}


def _apply(neighborhoods: Neighborhoods, learned: Learned, vectors: NDArray[np.float16]) -> None:
    n_own = neighborhoods.n_own
    judged = np.full(len(vectors), -1, dtype=np.int32)
    said = said_of(neighborhoods, range(len(vectors)), learned)
    for place, (label, _) in said.items():
        judged[place] = label
    texts = Texts(
        vectors,
        neighborhoods.answers()[0],
        neighborhoods.neighbors[:, :NEIGHBORS],
        neighborhoods.similarities[:, :NEIGHBORS],
        folds_of([entry.hash for entry in neighborhoods.entries]),
        len(neighborhoods.labels.names),
        judged if (judged >= 0).any() else None,
    )
    kept = neighborhoods.plain_vote(slice(0, n_own)).label.copy()
    if neighborhoods.refitted is not None:
        learned = replace(learned, model=neighborhoods.refitted)
    neighborhoods.applied = applied = learned.apply(texts, kept)
    # without a vector, the model knows nothing
    rejected = [*neighborhoods.rejected]
    applied.label[rejected], applied.trust[rejected] = kept[rejected], np.nan
    judge(neighborhoods, {place: found for place, found in said.items() if place < n_own})


def texts_among(
    neighborhoods: Neighborhoods,
    rows: NDArray[np.int64],
    vectors: NDArray[np.float16],
    own: NDArray[np.int32],
) -> Texts:
    """Return some own texts, with neighbors among them alone.

    Parameters
    ----------
    neighborhoods : Neighborhoods
    rows : int64[n]
        Their places.
    vectors : float16[n, dim]
    own : int32[n]
        The LLM's labels; -1 = none.
    """
    place = np.full(len(neighborhoods.entries) + 1, -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    near = place[neighborhoods.neighbors[rows, :NEIGHBORS]]
    # missing ones last
    order = np.argsort(near < 0, axis=1, kind="stable")
    return Texts(
        vectors,
        own,
        np.take_along_axis(near, order, axis=1),
        np.take_along_axis(neighborhoods.similarities[rows, :NEIGHBORS], order, axis=1),
        folds_of([neighborhoods.entries[row].hash for row in rows.tolist()]),
        len(neighborhoods.labels.names),
    )


def judge(neighborhoods: Neighborhoods, said: Mapping[int, tuple[int, str]]) -> None:
    """Let judgments of own texts win.

    Parameters
    ----------
    neighborhoods : Neighborhoods
        With applied labels, which are this run's own.
    said : mapping
        Place -> class, -1 = none, and "person" or "referee".
    """
    applied = neighborhoods.applied
    assert applied is not None
    for place, (label, source) in said.items():
        neighborhoods.judges[place] = source
        applied.label[place] = label
        # how often a referee is right is not known
        applied.trust[place] = 1.0 if label >= 0 and source == "person" else np.nan
        applied.judged[place] = True
