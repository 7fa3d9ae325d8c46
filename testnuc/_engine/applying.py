"""Apply what was learned to the texts of a run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from testnuc.trust.head import folds_of
from testnuc.trust.model import Texts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from testnuc._engine.neighborhoods import Neighborhoods
    from testnuc.embedders.cache import EmbeddingCache
    from testnuc.trust import Learned

__all__ = ["apply_learned", "judge", "judged_labels"]

#: Of each text.
_NEIGHBORS = 30


async def apply_learned(neighborhoods: Neighborhoods, embedding: EmbeddingCache) -> None:
    """Replace labels and trust of the own texts; the vectors are those that were searched with."""
    learned = neighborhoods.settings.learned
    assert learned is not None
    entries = neighborhoods.entries
    vectors = await embedding.vectors([e.text for e in entries], [e.hash for e in entries])
    await asyncio.to_thread(_apply, neighborhoods, learned, vectors)


def judged_labels(
    learned: Learned, names: Mapping[str, int], none: str | None
) -> dict[bytes, tuple[int, str]]:
    """Return the class, -1 = none, and the source of each judged text, by its hash."""
    return {
        key: (-1 if label is None and none is None else names.get(label or none or "", -1), source)
        for key, (label, source) in learned.answers.items()
    }


def _apply(neighborhoods: Neighborhoods, learned: Learned, vectors: NDArray[np.float16]) -> None:
    labels, n_own = neighborhoods.labels, neighborhoods.n_own
    names = {name: i for i, name in enumerate(labels.names)}
    said = judged_labels(learned, names, labels.none_label)
    judged = np.full(len(vectors), -1, dtype=np.int32)
    at = {place: said[e.hash] for place, e in enumerate(neighborhoods.entries) if e.hash in said}
    for place, (label, _) in at.items():
        judged[place] = label
    texts = Texts(
        vectors,
        neighborhoods.answers()[0],
        neighborhoods.neighbors[:, :_NEIGHBORS],
        neighborhoods.similarities[:, :_NEIGHBORS],
        folds_of([entry.hash for entry in neighborhoods.entries]),
        len(names),
        judged if (judged >= 0).any() else None,
    )
    kept = neighborhoods.plain_vote(slice(0, n_own)).label.copy()
    neighborhoods.applied = learned.apply(texts, kept)
    judge(neighborhoods, {place: found for place, found in at.items() if place < n_own})


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
        if applied.shares is not None:
            applied.shares[place] = 0
            if label >= 0:
                applied.shares[place, label] = 1
