"""Apply what was learned to the texts of a run that can have several labels."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from testnuc._engine.multilabel import LearnedSets, MultilabelNeighborhoods
from testnuc.trust.head import folds_of
from testnuc.trust.label_pairs import pairs_of
from testnuc.types import split_labels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from testnuc.embedders.cache import EmbeddingCache
    from testnuc.trust import MultilabelLearned

__all__ = ["apply_sets"]


async def apply_sets(
    neighborhoods: MultilabelNeighborhoods, embedding: EmbeddingCache | None
) -> None:
    """Replace labels and trust of the own texts, if anything was learned.

    Parameters
    ----------
    neighborhoods : MultilabelNeighborhoods
    embedding : EmbeddingCache, optional
        None: vectors are missing, and a head counts as the vote does.
    """
    learned = neighborhoods.settings.several
    if learned is None:
        return
    vectors = None
    if learned.heads and embedding is not None:
        entries = neighborhoods.entries[: neighborhoods.n_own]
        vectors, _ = await embedding.each([e.text for e in entries], [e.hash for e in entries])
    await asyncio.to_thread(_apply, neighborhoods, learned, vectors)


def _apply(
    neighborhoods: MultilabelNeighborhoods,
    learned: MultilabelLearned,
    vectors: NDArray[np.float16] | None,
) -> None:
    n, labels = neighborhoods.n_own, neighborhoods.labels
    entries = neighborhoods.entries[:n]
    pairs = pairs_of(
        neighborhoods.plain_labels(slice(0, n)),
        neighborhoods.pool_labels,
        folds_of([entry.hash for entry in entries]),
        len(labels.names),
        learned.heads if vectors is not None else (),
        vectors,
    )
    applied, answers = learned.apply(pairs), learned.answers
    trust = applied.trust.copy()
    # without neighbors and a vector
    trust[[*neighborhoods.rejected]] = np.nan
    said = {place: answers[e.hash] for place, e in enumerate(entries) if e.hash in answers}
    judged = np.zeros(n, dtype=np.bool_)
    more: list[tuple[int, int]] = []
    sure: list[float] = []
    for place, (joined, source) in said.items():
        judged[place], trust[place] = True, 1.0 if source == "person" else np.nan
        neighborhoods.judges[place] = source
        names = split_labels(joined)
        more += [(place, labels.names.index(name)) for name in names]
        sure += [float(trust[place])] * len(names)
    left = ~judged[pairs.rows]
    added = np.array(more, dtype=np.int64).reshape(-1, 2)
    ones = np.ones(len(more))
    row = np.concatenate([pairs.rows[left], added[:, 0]])
    shares = np.concatenate([applied.scores[left], ones.astype(np.float32)])
    neighborhoods.sets = LearnedSets.of(
        n,
        row,
        np.concatenate([pairs.labels[left], added[:, 1]]),
        shares,
        np.concatenate([applied.given[left], ones > 0]),
        np.concatenate([applied.chances[left], sure]),
        trust,
    )
