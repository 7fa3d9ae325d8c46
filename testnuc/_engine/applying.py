"""Apply what was learned to the texts of a run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from testnuc.trust import Applied
from testnuc.trust.head import folds_of
from testnuc.trust.model import Texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from testnuc._engine.neighborhoods import Neighborhoods
    from testnuc.embedders.cache import EmbeddingCache
    from testnuc.trust import Learned

__all__ = ["apply_judged", "apply_learned", "judge", "judged_labels", "said_of"]

#: Of each text.
_NEIGHBORS = 30


async def apply_learned(neighborhoods: Neighborhoods, embedding: EmbeddingCache) -> None:
    """Replace labels and trust of the own texts; the vectors are those that were searched with."""
    learned = neighborhoods.settings.learned
    assert learned is not None
    entries = neighborhoods.entries
    vectors, _ = await embedding.each([e.text for e in entries], [e.hash for e in entries])
    await asyncio.to_thread(_apply, neighborhoods, learned, vectors)


def judged_labels(
    learned: Learned, names: Mapping[str, int], none: str | None
) -> dict[bytes, tuple[int, str]]:
    """Return the class, -1 = none, and the source of each judged text, by its hash."""
    return {
        key: (-1 if label is None and none is None else names.get(label or none or "", -1), source)
        for key, (label, source) in learned.answers.items()
    }


def apply_judged(neighborhoods: Neighborhoods) -> None:
    """Replace the labels of judged texts; trust of the others is unknown."""
    n_own = neighborhoods.n_own
    neighborhoods.applied = Applied(
        neighborhoods.plain_vote(slice(0, n_own)).label.copy(), np.full(n_own, np.nan)
    )
    judge(neighborhoods, said_of(neighborhoods, range(n_own)))


def said_of(neighborhoods: Neighborhoods, places: Iterable[int]) -> dict[int, tuple[int, str]]:
    """Return what was said of the texts at some places."""
    learned, labels = neighborhoods.settings.learned, neighborhoods.labels
    assert learned is not None
    names = {name: i for i, name in enumerate(labels.names)}
    said = judged_labels(learned, names, labels.none_label)
    hashes = ((place, neighborhoods.entries[place].hash) for place in places)
    return {place: said[key] for place, key in hashes if key in said}


def _apply(neighborhoods: Neighborhoods, learned: Learned, vectors: NDArray[np.float16]) -> None:
    n_own = neighborhoods.n_own
    judged = np.full(len(vectors), -1, dtype=np.int32)
    said = said_of(neighborhoods, range(len(vectors)))
    for place, (label, _) in said.items():
        judged[place] = label
    texts = Texts(
        vectors,
        neighborhoods.answers()[0],
        neighborhoods.neighbors[:, :_NEIGHBORS],
        neighborhoods.similarities[:, :_NEIGHBORS],
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
