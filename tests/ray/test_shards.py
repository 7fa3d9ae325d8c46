"""The pool of a job in shards finds what one pool finds."""

from __future__ import annotations

import numpy as np
import pytest

import testnuc
from testnuc.index.memory_pool import Pool
from testnuc.protocols import PoolText
from testnuc.ray.workers import Shard, Shards
from testnuc.types import Prediction

K = 10


class Here:
    """An actor that is an object of this process."""

    def __init__(self, instance):
        self._instance = instance

    def __getattr__(self, name):
        method = getattr(self._instance, name)
        return type("Method", (), {"remote": staticmethod(method)})


def unit_vectors(n, clusters=40, dim=32):
    rng = np.random.default_rng(3)
    centers = rng.normal(size=(clusters, dim))
    of = rng.integers(clusters, size=n)
    vectors = centers[of] + 0.6 * rng.normal(size=(n, dim))
    # some vectors twice, so that similarities tie and hashes decide
    vectors[1::50] = vectors[::50][: len(vectors[1::50])]
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16), of


async def filled(n, shards):
    texts = [f"text {i}" for i in range(n)]
    entries = [PoolText.of(text) for text in texts]
    hashes = [entry.hash for entry in entries]
    vectors, of = unit_vectors(n)
    board = Shards([Here(Shard()) for _ in range(shards)])
    outcomes = [Prediction(f"label {c % 7}") for c in of]
    order = np.random.default_rng(1).permutation(n)
    for start in range(0, n, 500):
        at = order[start : start + 500].tolist()
        for _ in range(2):  # a batch that Ray runs again changes nothing
            known = [(outcomes[i], None) for i in at]
            await board.put([entries[i] for i in at], vectors[at], known)
    pool = Pool()
    await pool.add(entries, vectors)
    return board, pool, hashes, vectors, of


async def found(index, hashes, vectors):
    matches = await index.search(vectors, K, exclude=hashes)
    entries = await index.fetch(matches.ids.ravel())
    return np.array([e.text for e in entries]).reshape(-1, K), matches.similarities


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 3])
async def test_exact_searches_merge_to_that_of_one_pool(shards):
    board, pool, hashes, vectors, _ = await filled(2_000, shards)
    texts, similarities = await found(board, hashes, vectors)
    expected, same = await found(pool, hashes, vectors)
    assert (texts == expected).all()
    assert (similarities == same).all()
    assert None not in await board.known(hashes)
    assert await board.known([b"unknown text...."]) == [None]
    sample = await board.sample(100)
    assert len(sample) == 100
    assert [e.hash for e in sample] == sorted(e.hash for e in sample)
    await pool.close()


@pytest.mark.slow
async def test_above_the_exact_size_nearly_all_labels_are_equal():
    board, pool, hashes, vectors, of = await filled(6_000, 1)
    labels = {f"text {i}": c % 7 for i, c in enumerate(of.tolist())}
    winners = []
    for index in (board, pool):
        texts, similarities = await found(index, hashes, vectors)
        said = np.vectorize(labels.get)(texts).astype(np.int32)
        own = (of % 7).astype(np.int32)
        winners.append(
            testnuc.voting.vote(
                np.c_[own, said],
                np.c_[np.ones(len(own), "f4"), similarities].astype(np.float32),
                n_classes=7,
                policy=testnuc.VotePolicy(own_weight=0),
            ).label
        )
    assert (winners[0] == winners[1]).mean() >= 0.995
    await pool.close()


async def test_fewer_texts_than_neighbors_and_no_text():
    board, pool, hashes, vectors, _ = await filled(6, 3)
    matches = await board.search(vectors, K, exclude=hashes)
    assert ((matches.ids >= 0).sum(axis=1) == 5).all()
    expected = await pool.search(vectors, K, exclude=hashes)
    assert (matches.similarities == expected.similarities).all()
    empty = Shards([Here(Shard()), Here(Shard())])
    assert ((await empty.search(vectors, K)).ids == -1).all()
    assert await empty.sample(5) == []
    await pool.close()
