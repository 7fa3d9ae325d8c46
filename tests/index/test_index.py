"""Nearest vectors: exact and graph search, their sharp edges, and the pool on top."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from testnuc._base.checks import hash_text
from testnuc.errors import EmbeddingError
from testnuc.index.memory_pool import Pool
from testnuc.index.nearest import FairLock, NearestVectors
from testnuc.protocols import PoolText


def unit(n, seed=0):
    rows = np.random.default_rng(seed).standard_normal((n, 16)).astype(np.float32)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


def brute(half, query, k, *, without=(), below=None, ranks=None):
    """Return the k nearest rows, by float64 cosines."""
    ranks = np.arange(len(half)) if ranks is None else ranks
    cosines = half.astype(np.float64) @ query.astype(np.float64)
    rows = [r for r in range(len(half)) if r not in without and (below is None or r < below)]
    rows.sort(key=lambda r: (-np.float32(min(cosines[r], 1)), ranks[r]))
    return rows[:k]


@pytest.mark.slow
@pytest.mark.parametrize("exact_below", [10_000, 100])
def test_finds_what_brute_force_finds(exact_below):
    half = unit(600)
    index = NearestVectors(16, exact_below=exact_below)
    index.add(half[:350], np.arange(350, dtype=np.uint64))
    index.add(half[350:], np.arange(350, 600, dtype=np.uint64))
    own = np.arange(600)
    rows, similarities = index.search(half, 10, exclude=own)
    expected = np.array([brute(half, half[i], 10, without={i}) for i in range(600)])
    assert (rows == expected).mean() > (0.999 if exact_below > 600 else 0.98)
    assert (np.diff(similarities, axis=1) <= 0).all()
    assert similarities.max() <= 1


@pytest.mark.parametrize("exact_below", [10_000, 100])
def test_a_query_alone_gives_the_bits_of_a_batch(exact_below):
    half = unit(300)
    index = NearestVectors(16, exact_below=exact_below)
    index.add(half, np.arange(300, dtype=np.uint64))
    rows, similarities = index.search(half[:40], 7)
    for i in range(40):
        one_row, one_similarity = index.search(half[i : i + 1], 7)
        assert (one_row == rows[i]).all()
        assert (one_similarity == similarities[i]).all()


@pytest.mark.parametrize("exact_below", [10_000, 100])
def test_equal_similarities_rank_by_hash_even_at_the_edge(exact_below):
    half = np.repeat(unit(1), 150, axis=0)
    ranks = np.random.default_rng(1).permutation(150).astype(np.uint64)
    index = NearestVectors(16, exact_below=exact_below)
    index.add(half, ranks)
    rows, _ = index.search(half[:1], 150)
    # a graph need not reach every one of many equal vectors
    found = ranks[rows[0][rows[0] >= 0]].tolist()
    assert found == sorted(found)
    if exact_below > 150:
        assert found == list(range(150))
        rows, _ = index.search(half[:1], 5)
        assert ranks[rows[0]].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("exact_below", [10_000, 100])
def test_limit_is_the_pool_as_it_was(exact_below):
    half = unit(400)
    index = NearestVectors(16, exact_below=exact_below)
    index.add(half, np.arange(400, dtype=np.uint64))
    rows, _ = index.search(half[:5], 8, limit=120)
    for i in range(5):
        assert rows[i].tolist() == brute(half, half[i], 8, below=120)


@pytest.mark.parametrize("exact_below", [10_000, 100])
def test_removed_rows_are_not_found(exact_below):
    half = unit(200)
    index = NearestVectors(16, exact_below=exact_below)
    index.add(half, np.arange(200, dtype=np.uint64))
    gone = np.arange(0, 200, 2)
    index.remove(gone)
    index.remove(gone)
    rows, _ = index.search(half, 50)
    assert (rows % 2 == 1).all()
    rows, similarities = index.search(half[:1], 150)
    assert (rows[0] >= 0).sum() == 100
    assert (similarities[0, 100:] == 0).all()


def test_fewer_than_k_are_padded():
    half = unit(3)
    index = NearestVectors(16)
    index.add(half, np.arange(3, dtype=np.uint64))
    rows, similarities = index.search(half[:2], 5, exclude=np.array([0, -1]))
    assert (rows >= 0).sum(axis=1).tolist() == [2, 3]
    assert similarities[0, 2:].tolist() == [0, 0, 0]
    empty = NearestVectors(16)
    rows, _ = empty.search(half, 4)
    assert (rows == -1).all()
    rows, _ = index.search(half[:0], 4)
    assert rows.shape == (0, 4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_one_bad_vector_is_refused_and_spoils_nothing(bad):
    half = unit(150)
    index = NearestVectors(16, exact_below=100)
    index.add(half, np.arange(150, dtype=np.uint64))
    spoiled = half[:3].copy()
    spoiled[1, 4] = bad
    with pytest.raises(EmbeddingError, match="NaN or infinity in vector 1"):
        index.add(spoiled, np.arange(3, dtype=np.uint64))
    assert len(index) == 150
    assert (index.search(half, 1)[0][:, 0] == np.arange(150)).all()


async def test_additions_from_many_tasks_keep_rows_and_texts_together():
    half = unit(400)
    entries = [PoolText(f"t{i}", hash_text(f"t{i}")) for i in range(400)]
    pool = Pool(exact_below=150)
    tasks = [
        asyncio.create_task(pool.add(entries[i : i + 20], half[i : i + 20]))
        for i in range(0, 400, 10)
        if i + 20 <= 400
    ]
    tasks[5].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    found = await pool.search(half, 1)
    assert [e.text for e in await pool.fetch(found.ids[:, 0])] == [e.text for e in entries]
    await pool.close()


def test_a_waiting_thread_gets_the_lock_before_the_next_chunk():
    lock, order = FairLock(), []

    def search():
        with lock:
            order.append("search")

    searching = threading.Thread(target=search)
    with lock:
        searching.start()
        while not lock._next.locked():
            pass
        order.append("chunk")
    with lock:
        order.append("next chunk")
    searching.join()
    assert order == ["chunk", "search", "next chunk"]


def test_the_graph_is_made_little_by_little():
    vectors, ranks = unit(400, seed=3), np.arange(400, dtype=np.uint64)
    index = NearestVectors(16, exact_below=200)
    grown = []
    for i in range(400):
        before = index.graph_rows
        index.add(vectors[i : i + 1], ranks[i : i + 1])
        grown.append(index.graph_rows - before)
        if i in {150, 198, 199, 200, 399}:
            # before, while and after it is made, all is found
            rows, _ = index.search(vectors[: i + 1], 1)
            assert rows[:, 0].tolist() == list(range(i + 1))
    # none of those who add waits for the work of all
    assert max(grown) <= 3
    assert index.graph_rows == 400
    # at once, where many are added
    whole = NearestVectors(16, exact_below=200)
    whole.add(vectors, ranks)
    assert whole.graph_rows == 400
