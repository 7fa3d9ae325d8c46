"""The pool in SQLite: equal to the one in memory, whatever happens to its files or processes."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import asynccontextmanager

import numpy as np
import orjson
import pytest
from blockbuster import blockbuster_ctx
from hypothesis import given, settings
from hypothesis import strategies as st

import testnuc
from testnuc._base.checks import hash_text
from testnuc.errors import EmbeddingError, StoreError
from testnuc.index.memory_pool import Pool
from testnuc.protocols import PoolText
from testnuc.stores.sqlite import SqliteStore
from testnuc.stores.sqlite.pool import SqlitePool
from testnuc.testing import LoopbackLLM
from tests.conftest import confident, messages
from tests.stores.contents import entries, is_open, unit

DIM = 16
#: Pools of more than this have a graph, and are saved.
EXACT_BELOW = 200


VECTORS = unit(2_000, DIM)


@asynccontextmanager
async def opened(path, exact_below=EXACT_BELOW):
    async with is_open(SqliteStore(path)) as store:
        folder = path.with_name("index")
        async with is_open(
            SqlitePool(store.database, "e", folder, exact_below=exact_below)
        ) as pool:
            yield pool


async def fill(path, n, start=0):
    async with opened(path) as pool:
        await pool.add(entries(n, start), VECTORS[start : start + n])


async def texts_found(pool, queries, k, **more):
    """Return the texts and similarities of each query's neighbors."""
    matches = await pool.search(queries, k, **more)
    ids = np.unique(matches.ids[matches.ids >= 0])
    names = {i: t.text for i, t in zip(ids.tolist(), await pool.fetch(ids), strict=True)}
    return [
        [(names.get(i), s) for i, s in zip(row, similarities, strict=True)]
        for row, similarities in zip(
            matches.ids.tolist(), matches.similarities.tolist(), strict=True
        )
    ]


async def recall(pool, n, without=()):
    """Return the part of the true 10 nearest that are found."""
    left = [i for i in range(n) if i not in without]
    cosines = VECTORS[:100].astype(np.float32) @ VECTORS[left].astype(np.float32).T
    found = (await pool.search(VECTORS[:100], 10)).ids
    best = np.argsort(-cosines, axis=1)[:, :10]
    return np.mean(
        [
            len({left[i] for i in row} & set(got)) / 10
            for row, got in zip(best.tolist(), found.tolist(), strict=True)
        ]
    )


# -- equal to the pool in memory -------------------------------------------------------------------

#: Few texts and coarse vectors, so that there are doubles and ties.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(0, 40), min_size=1, max_size=12)),
        st.tuples(st.just("label"), st.lists(st.integers(0, 40), min_size=1, max_size=3)),
        st.tuples(st.just("remove"), st.lists(st.integers(0, 40), min_size=1, max_size=6)),
        st.tuples(st.just("search"), st.lists(st.integers(0, 40), min_size=1, max_size=5)),
        st.tuples(st.just("reopen"), st.just([])),
    ),
    max_size=14,
)


def coarse(numbers):
    rows = np.random.default_rng(7).integers(-1, 2, (41, 4)).astype(np.float32)
    rows[~rows.any(axis=1)] = 1
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)[numbers]


@pytest.mark.slow
@settings(max_examples=60)
@given(steps=STEPS)
def test_behaves_as_the_pool_in_memory(steps, tmp_path_factory):
    asyncio.run(_compare(steps, tmp_path_factory.mktemp("pool") / "s.db"))


async def _compare(steps, path):
    memory = Pool()
    store = SqliteStore(path)
    stored = store.pool("e")
    await stored.open()
    for kind, numbers in steps:
        hashes = [hash_text(f"text {i}") for i in numbers]
        if kind in {"add", "label"}:
            label = "refund" if kind == "label" else None
            new = [PoolText(f"text {i}", hash_text(f"text {i}"), label) for i in numbers]
            sizes = [await pool.add(new, coarse(numbers)) for pool in (memory, stored)]
            assert sizes[0] == sizes[1]
        elif kind == "remove":
            assert await memory.remove(hashes) == await stored.remove(hashes)
        elif kind == "reopen":
            await stored.close()
            await store.close()
            await store.open()
            stored = store.pool("e")
            await stored.open()
        else:
            for exclude in (None, hashes):
                found = [
                    await texts_found(pool, coarse(numbers), 7, exclude=exclude)
                    for pool in (memory, stored)
                ]
                assert found[0] == found[1]
        assert len(memory) == len(stored)
        known = [hash_text(f"text {i}") for i in range(41)]
        assert await memory.labels(known) == await stored.labels(known)
        assert (await memory.scan(0, 1_000))[0] == (await stored.scan(0, 1_000))[0]
    await memory.close()
    await stored.close()
    await store.close()


# -- what is saved, and what becomes of it ---------------------------------------------------------


async def test_a_large_pool_is_opened_from_its_files(tmp_path):
    path = tmp_path / "s.db"
    async with opened(path) as pool:
        await pool.add(entries(1_500), VECTORS[:1_500])
        before = await pool.search(VECTORS[:50], 10)
    async with opened(path) as pool:
        assert pool.index.nearest.graph.mapped is not None
        assert pool.index.damaged is None
        after = await pool.search(VECTORS[:50], 10)
        assert (after.ids == before.ids).all()
        assert (after.similarities == before.similarities).all()


async def test_a_small_pool_leaves_no_files(tmp_path):
    await fill(tmp_path / "s.db", 100)
    assert [p.name for p in tmp_path.iterdir()] == ["s.db"]


@pytest.mark.slow
async def test_additions_to_a_mapped_graph_are_found_before_and_after_it_is_loaded(tmp_path):
    path = tmp_path / "s.db"
    await fill(path, 1_000)
    async with opened(path) as pool:
        index = pool.index.nearest
        await pool.add(entries(100, 1_000), VECTORS[1_000:1_100])
        assert index.graph.mapped is not None, "too few to load the graph for"
        assert await recall(pool, 1_100) > 0.98
        await pool.add(entries(400, 1_100), VECTORS[1_100:1_500])
        assert index.graph.mapped is None
        assert await recall(pool, 1_500) > 0.98
    await fill(path, 150, 1_500)
    async with opened(path) as pool:
        assert pool.index.damaged is None
        assert await recall(pool, 1_650) > 0.98


@pytest.mark.slow
async def test_removals_hold_in_a_mapped_graph(tmp_path):
    path = tmp_path / "s.db"
    await fill(path, 1_000)
    gone = range(400)
    async with opened(path) as pool:
        assert await pool.remove([e.hash for e in entries(400)]) == 400
        assert await recall(pool, 1_000, set(gone)) > 0.98
    async with opened(path) as pool:
        assert len(pool) == 600
        assert await recall(pool, 1_000, set(gone)) > 0.98
        await pool.add(entries(500, 1_000), VECTORS[1_000:1_500])
        assert pool.index.nearest.graph.mapped is None
        assert await recall(pool, 1_500, set(gone)) > 0.98
    async with opened(path) as pool:
        assert await recall(pool, 1_500, set(gone)) > 0.98


async def test_the_graph_of_a_store_of_version_0_1_0_is_used(tmp_path):
    path = tmp_path / "s.db"
    await fill(path, 1_000)
    with sqlite3.connect(path) as connection:
        ((saved,),) = connection.execute("SELECT saved FROM embedders").fetchall()
        graph = orjson.loads(saved)
        names = {"graph": "file", "graph_rows": "rows", "graph_crc": "crc", "dim": "dim"}
        old = {name: graph[now] for name, now in names.items()} | {"form": 1, "rows": 1_000}
        old |= {"vectors": "vectors.0a", "ranks": "ranks.0a", "vectors_crc": 1, "ranks_crc": 1}
        connection.execute("UPDATE embedders SET saved = ?", (orjson.dumps(old).decode(),))
    connection.close()
    async with opened(path) as pool:
        assert pool.index.damaged is None
        assert pool.index.nearest.graph.mapped is not None
        assert await recall(pool, 1_000) > 0.98


def next_folder(path):
    return path.with_name("index")


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 10])


def scramble(file):
    raw = bytearray(file.read_bytes())
    for at in range(1_000, len(raw), 997):
        raw[at] ^= 0x55
    file.write_bytes(raw)


def empty(file):
    file.write_bytes(b"")


def unlink(file):
    file.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("harm", [cut, scramble, empty, unlink])
async def test_a_damaged_graph_is_built_anew(tmp_path, caplog, harm):
    path = tmp_path / "s.db"
    await fill(path, 1_000)
    (file,) = next_folder(path).iterdir()
    harm(file)
    async with opened(path) as pool:
        assert pool.index.damaged
        assert "rebuilding it from 1000 vectors" in caplog.text
        assert len(pool) == 1_000
        assert await recall(pool, 1_000) > 0.98
    assert len(list(next_folder(path).iterdir())) == 1, "the damaged one is gone"
    async with opened(path) as pool:
        assert pool.index.damaged is None
        assert await recall(pool, 1_000) > 0.98


@pytest.mark.slow
async def test_files_of_another_copy_of_the_store_are_not_believed(tmp_path):
    path, copy = tmp_path / "s.db", tmp_path / "copy" / "s.db"
    await fill(path, 300)
    copy.parent.mkdir()
    shutil.copy(path, copy)
    shutil.copytree(next_folder(path), next_folder(copy))
    await fill(path, 700, 300)
    await fill(copy, 700, 1_000)
    # the files of the one beside the store of the other
    shutil.rmtree(next_folder(copy))
    shutil.copytree(next_folder(path), next_folder(copy))
    async with opened(copy) as pool:
        assert pool.index.damaged
        found = await texts_found(pool, VECTORS[1_500:1_501], 1)
        assert found[0][0][0] == "text 1500"


@pytest.mark.slow
async def test_an_older_copy_of_the_store_beside_newer_files(tmp_path):
    path = tmp_path / "s.db"
    await fill(path, 300)
    old = path.read_bytes()
    await fill(path, 1_200, 300)
    path.write_bytes(old)
    await fill(path, 500, 1_500)
    async with opened(path) as pool:
        assert len(pool) == 800
        for at in (0, 299, 1_500, 1_999):
            assert (await texts_found(pool, VECTORS[at : at + 1], 1))[0][0][0] == f"text {at}"


async def test_files_that_cannot_be_written_cost_nothing_but_time(tmp_path, caplog):
    path = tmp_path / "s.db"
    next_folder(path).write_text("a file where the folder should be")
    await fill(path, 500)
    assert "could not be saved" in caplog.text
    async with opened(path) as pool:
        assert await recall(pool, 500) > 0.98


async def test_leftovers_of_killed_processes_are_cleared_away(tmp_path):
    path = tmp_path / "s.db"
    await fill(path, 500)
    old, new = next_folder(path) / "graph.old", next_folder(path) / "graph.new"
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    await fill(path, 500, 500)
    assert new.exists(), "another process may be writing it"
    assert not old.exists()


# -- processes and threads -------------------------------------------------------------------------


@pytest.mark.slow
async def test_two_pools_save_one_after_the_other(tmp_path):
    path = tmp_path / "s.db"
    async with opened(path) as one, opened(path) as two:
        await one.add(entries(600), VECTORS[:600])
        await two.add(entries(300, 600), VECTORS[600:900])
        await one._update(one.index.save)
        await two._update(two.index.save)
        await one.add(entries(400, 900), VECTORS[900:1_300])
        await one._update(one.index.save)
        await two.add(entries(10, 1_300), VECTORS[1_300:1_310])
        assert await recall(one, 1_300) > 0.98
        assert await recall(two, 1_310) > 0.98
    assert len(list(next_folder(path).iterdir())) == 1
    async with opened(path) as pool:
        assert pool.index.damaged is None
        assert await recall(pool, 1_310) > 0.98


_CHILD = """
import asyncio, sys
from pathlib import Path
import tests.stores.test_pool as t

async def main(path, start):
    async with t.opened(Path(path)) as pool:
        for at in range(start, start + 600, 20):
            await pool.add(t.entries(20, at), t.VECTORS[at : at + 20])
            await pool.search(t.VECTORS[:3], 5)
            print(at, flush=True)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def child(path, start):
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, path, str(start)], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_processes_on_one_file(tmp_path):
    path = tmp_path / "s.db"
    running = [child(path, start) for start in (0, 600)]
    for process in running:
        process.communicate(timeout=300)
        assert process.returncode == 0

    async def check():
        async with opened(path) as pool:
            assert len(pool) == 1_200
            assert pool.index.damaged is None
            matches = await texts_found(pool, VECTORS[:1_200], 1)
            assert [m[0][0] for m in matches] == [f"text {i}" for i in range(1_200)]

    asyncio.run(check())


@pytest.mark.slow
def test_a_killed_process_loses_nothing_that_was_added(tmp_path):
    path = tmp_path / "s.db"
    process = child(path, 0)
    added = [int(process.stdout.readline()) for _ in range(18)]
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=300)

    async def check():
        async with opened(path) as pool:
            assert len(pool) >= added[-1] + 20
            assert len(pool) % 20 == 0, "an addition is whole or not at all"
            assert await recall(pool, len(pool)) > 0.98

    asyncio.run(check())


@pytest.mark.slow
async def test_the_event_loop_is_not_blocked(tmp_path, client_of):
    texts = messages(400)
    async with LoopbackLLM(confident) as llm:
        arguments = client_of(llm, store=tmp_path / "s.db")
        # warm: the first use of a module reads files
        async with testnuc.TestNUC(**arguments) as nuc:
            await nuc.classify_many(texts[:20])
            await nuc.classify("is my parcel here")
        with blockbuster_ctx():
            for part in (texts[:200], texts[100:]):
                async with testnuc.TestNUC(**arguments) as nuc:
                    await nuc.classify_many(part)
                    await nuc.classify("where is the parcel I ordered")


async def test_a_cancelled_addition_is_whole(tmp_path):
    async with opened(tmp_path / "s.db") as pool:
        task = asyncio.create_task(pool.add(entries(300), VECTORS[:300]))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await pool.add(entries(10, 300), VECTORS[300:310]) in {10, 310}
        found = await texts_found(pool, VECTORS[305:306], 1)
        assert found[0][0][0] == "text 305"


async def test_sharp_edges(tmp_path):
    async with opened(tmp_path / "s.db") as pool:
        none_found = await pool.search(VECTORS[:2], 3, exclude=[b"x" * 16] * 2)
        assert none_found.ids.tolist() == [[-1] * 3] * 2
        assert none_found.similarities.tolist() == [[0.0] * 3] * 2
        assert await pool.remove([b"x" * 16]) == 0
        assert await pool.labels([b"x" * 16]) == [None]
        await pool.add(entries(5), VECTORS[:5])
        with pytest.raises(StoreError, match="has no text 77"):
            await pool.fetch(np.array([77]))
        with pytest.raises(EmbeddingError, match="has dimension 16"):
            await pool.search(unit(1, 4), 3)
        assert await pool.fetch(np.array([], dtype=np.int64)) == []
        bad = VECTORS[5:6].copy()
        bad[0, 0] = np.inf
        with pytest.raises(EmbeddingError, match="infinity"):
            await pool.add(entries(1, 5), bad)
        assert len(pool) == 5
        await pool.close()
