"""Apply what was learned to the texts of a run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from testnuc._engine.first_calls import STOPS
from testnuc._engine.judgment_arrays import class_of
from testnuc._engine.multilabel import LearnedSets, MultilabelNeighborhoods
from testnuc.trust import Applied, MultilabelLearned
from testnuc.trust.head import folds_of
from testnuc.trust.label_pairs import pairs_of
from testnuc.trust.model import NEIGHBORS, Texts
from testnuc.types import split_labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from testnuc._engine.neighborhoods import Neighborhoods
    from testnuc.embedders.cache import EmbeddingCache
    from testnuc.trust import Learned

__all__ = ["apply_taught", "judge", "said_of", "texts_among"]


async def apply_taught(
    neighborhoods: Neighborhoods, embedding: EmbeddingCache, *, stopped: bool = False
) -> None:
    """Replace labels and trust of the own texts, if anything was learned.

    `stopped`: an error ended the run. If vectors are missing, a head of several labels counts as
    the vote does; of one label, judged texts alone change, and trust of the others is unknown.
    """
    learned, vectors = neighborhoods.settings.taught, None
    if learned is None:
        return
    entries = neighborhoods.entries
    if isinstance(learned, MultilabelLearned):
        entries = entries[: neighborhoods.n_own if learned.heads else 0]
    try:
        if entries:
            # those that were searched with
            vectors, _ = await embedding.each([e.text for e in entries], [e.hash for e in entries])
    except STOPS:
        if not stopped:
            raise
    if isinstance(learned, MultilabelLearned):
        await asyncio.to_thread(_apply_sets, neighborhoods, learned, vectors)
    else:
        await asyncio.to_thread(_apply, neighborhoods, learned, vectors)


def said_of(
    neighborhoods: Neighborhoods, places: Iterable[int], learned: Learned
) -> dict[int, tuple[int, str]]:
    """Return the class, -1 = none, and the source of each judged text among some places."""
    answers, labels = learned.answers, neighborhoods.labels
    hashes = ((place, neighborhoods.entries[place].hash) for place in places)
    found = {place: answers[key] for place, key in hashes if key in answers}
    return {p: (class_of(label, source, labels), source) for p, (label, source) in found.items()}


def _apply(
    neighborhoods: Neighborhoods, learned: Learned, vectors: NDArray[np.float16] | None
) -> None:
    n_own = neighborhoods.n_own
    kept = neighborhoods.vote_with_head(slice(0, n_own)).label.copy()
    if vectors is None:
        neighborhoods.applied = Applied(kept, np.full(n_own, np.nan))
        judge(neighborhoods, said_of(neighborhoods, range(n_own), learned))
        return
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

    `rows`: int64[n], their places; `vectors`: float16[n, dim]; `own`: int32[n], the LLM's labels,
    -1 = none.
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

    `said`: place -> class, -1 = none, and "person" or "referee".
    """
    applied = neighborhoods.applied
    assert applied is not None
    for place, (label, source) in said.items():
        neighborhoods.judges[place] = source
        applied.label[place] = label
        # how often a referee is right is not known
        applied.trust[place] = 1.0 if label >= 0 and source == "person" else np.nan
        applied.judged[place] = True


def _apply_sets(
    neighborhoods: Neighborhoods, learned: MultilabelLearned, vectors: NDArray[np.float16] | None
) -> None:
    assert isinstance(neighborhoods, MultilabelNeighborhoods)
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
