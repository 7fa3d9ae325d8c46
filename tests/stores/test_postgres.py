"""What the PostgreSQL store does beyond what every store does: many processes, restarts, limits."""

from __future__ import annotations

import asyncio
import gc
import logging
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path
from uuid import uuid4

import numpy as np
import orjson
import pytest

import testnuc
from bench._server import serve_in_process
from testnuc import Limits
from testnuc._base.checks import hash_text
from testnuc.errors import EmbeddingError, InvalidInputError, MissingDependencyError, StoreError
from testnuc.index.memory_pool import Pool
from testnuc.protocols import PoolText, StoredPrediction
from testnuc.stores import resolve
from testnuc.stores.postgres import PostgresStore
from testnuc.testing import HashEmbedder, LoopbackLLM
from testnuc.types import Prediction
from tests.conftest import LABELS, confident, messages
from tests.stores.contents import entries, is_open

ROOT = Path(__file__).parents[2]


@pytest.fixture
def url(database):
    return database.url(f"t{uuid4().hex}")


def opened(url, **options):
    return is_open(PostgresStore(url, **options))


def stored(i, label="refund"):
    key = hash_text(f"key {i}")
    return StoredPrediction(key, b"s" * 16, hash_text(f"text {i}"), 0, Prediction(label, 0.5))


def clustered(n, dim, seed=0):
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((max(n // 100, 4), dim))
    rows = centers[rng.integers(0, len(centers), n)] + 0.5 * rng.standard_normal((n, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


def arguments(llm, store, **more):
    return {
        "labels": LABELS,
        "model": "openai/x",
        "base_url": llm.base_url,
        "api_key": "k",
        "embedder": HashEmbedder(),
        "store": store,
        "policy": "weighted",
        **more,
    }


# -- the URL ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        "postgresql://nuc:hunter2@db.example:5432/app",
        "postgres://nuc:hunter2@db.example:5432/app?sslmode=require",
        "postgresql://nuc@db.example:5432/app?password=hunter2",
        "postgresql://nuc:hunter%32@db.example:5432/app",
    ],
)
def test_the_password_is_not_shown(given):
    shown = repr(resolve(given))
    assert shown == "PostgresStore('postgresql://nuc@db.example:5432/app')"
    assert "hunter" not in repr(PostgresStore(given).database.address)


@pytest.mark.parametrize(
    "given",
    [
        "postgresql://nuc:hunter2/x@db.example/app",
        "postgresql://nuc:hunter2#x@db.example/app",
        "postgresql://nuc:12/hunter2@db.example/app",
        "postgresql://nuc:hunter2[@db.example/app",
        "postgresql+asyncpg://nuc:hunter2@db.example/app",
        "mysql://nuc:hunter2@db.example/app",
    ],
)
def test_a_url_that_cannot_be_read_is_not_repeated(given):
    with pytest.raises(InvalidInputError, match="postgresql://user") as caught:
        resolve(given)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("schema", ["", "pg_x", "a-b", 'a"b', "A", "x" * 64])
def test_the_schema_is_a_plain_name(schema):
    with pytest.raises(InvalidInputError, match="lower-case letters"):
        PostgresStore(f"postgresql://u@h/d?schema={schema}")


def test_no_connections_is_no_pool():
    with pytest.raises(InvalidInputError, match="at least 1"):
        PostgresStore("postgresql://u@h/d", connections=0)


async def test_without_the_driver_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(MissingDependencyError, match=r"testnuc\[postgres\]"):
        await PostgresStore("postgresql://u@h/d").open()


# -- opening ---------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_an_unreachable_server_is_reported_without_the_password(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    store = PostgresStore(
        f"postgresql://nuc:hunter2@/app?host={tmp_path}&password=hunter3", patience=0.2
    )
    with pytest.raises(StoreError, match=r"postgresql://nuc@/app.*cannot be reached") as caught:
        await store.open()
    shown = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert "hunter" not in shown


async def test_no_such_database_or_user(database):
    with pytest.raises(StoreError, match="createdb"):
        await PostgresStore(database.url("x", database="nowhere")).open()
    with pytest.raises(StoreError, match="user or the password"):
        await PostgresStore(database.url("x", user="nobody")).open()


async def test_rights_that_are_lacking_are_named(database):
    database.sql("CREATE ROLE guest LOGIN")
    database.sql("CREATE DATABASE bare")
    database.sql("REVOKE CREATE ON SCHEMA public FROM PUBLIC", "bare")
    with pytest.raises(StoreError, match=r"administrator .* CREATE EXTENSION vector"):
        await PostgresStore(database.url("x", user="guest", database="bare")).open()
    database.sql("CREATE EXTENSION vector", "bare")
    with pytest.raises(StoreError, match="CREATE SCHEMA x AUTHORIZATION"):
        await PostgresStore(database.url("x", user="guest", database="bare")).open()
    database.sql("CREATE SCHEMA x AUTHORIZATION guest", "bare")
    async with opened(database.url("x", user="guest", database="bare")) as store:
        await store.pool("e").add(entries(2), clustered(2, 8))


async def test_tables_of_a_newer_version_are_left_alone(database, url):
    async with opened(url) as store:
        schema = store.address.schema
    database.sql(f"INSERT INTO {schema}.migrations (number) VALUES (99)")
    with pytest.raises(StoreError, match=r"version 99.*upgrade testnuc"):
        await PostgresStore(url).open()


async def test_the_extension_may_be_anywhere(database):
    database.sql("CREATE DATABASE elsewhere")
    database.sql("CREATE SCHEMA ext; CREATE EXTENSION vector SCHEMA ext", "elsewhere")
    vectors = clustered(60, 16)
    async with opened(database.url("x", database="elsewhere"), exact_below=30) as store:
        pool = store.pool("e")
        await pool.add(entries(60), vectors)
        assert (await pool.search(vectors, 1)).ids[:, 0].tolist() == list(range(60))


async def test_many_open_an_empty_database_at_once(database):
    database.sql("CREATE DATABASE fresh")
    stores = [PostgresStore(database.url("x", database="fresh")) for _ in range(6)]
    vectors = clustered(6, 8)
    try:
        await asyncio.gather(*(s.open() for s in stores))
        await asyncio.gather(*(s.put_vectors("e", [b"h" * 16], vectors[:1]) for s in stores))
        assert await stores[0].embedders() == [("e", 8)]
    finally:
        await asyncio.gather(*(s.close() for s in stores))


# what belongs to a loop that has ended cannot be closed any more
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_store_serves_one_event_loop_after_another(url):
    store = PostgresStore(url)

    async def put(i):
        await store.put_predictions([stored(i)])

    asyncio.run(put(0))  # not closed: its connections end with the loop
    asyncio.run(put(1))

    async def get():
        found = await store.get_predictions([stored(0).key, stored(1).key])
        await store.close()
        return found

    assert None not in asyncio.run(get())
    gc.collect()  # here, not in another test


async def test_a_store_that_is_open_in_another_event_loop_says_so(url):
    store = PostgresStore(url)
    await store.open()

    async def there():
        with pytest.raises(StoreError, match="open in another event loop"):
            await asyncio.wait_for(store.open(), 20)

    await asyncio.to_thread(asyncio.run, there())
    await store.put_predictions([stored(0)])
    await store.close()

    async def afterwards():
        await store.open()
        found = await store.get_predictions([stored(0).key])
        await store.close()
        return found

    # its own loop still runs, but the store was closed there
    assert None not in await asyncio.to_thread(asyncio.run, afterwards())


# -- what is stored --------------------------------------------------------------------------------


async def test_characters_that_postgresql_does_not_store(url):
    names = ["a\0b", "\x1a", "\x1a0", "\0\x1a1", "\x1a1\0"]
    rows = [
        StoredPrediction(hash_text(n), b"s" * 16, hash_text(n), 0, Prediction(n, 0.5, n))
        for n in names
    ]
    async with opened(url) as store:
        await store.put_predictions(rows)
        assert await store.get_predictions([r.key for r in rows]) == [r.prediction for r in rows]
        pool = store.pool("e")
        await pool.add([PoolText(n, hash_text(n), n) for n in names], clustered(5, 8))
        assert [t.text for t in (await pool.scan(0, 9))[0]] == names
        assert await pool.labels([hash_text(n) for n in names]) == names


async def test_a_dimension_that_cannot_be_stored(url):
    async with opened(url) as store:
        with pytest.raises(EmbeddingError, match="1 to 16000"):
            await store.put_vectors("e", [b"h" * 16], np.ones((1, 16_001), np.float16))


# -- the pool --------------------------------------------------------------------------------------


@pytest.mark.parametrize("exact_below", [10_000, 100], ids=["exact", "graph"])
@pytest.mark.parametrize("dim", [48, 4_100], ids=["short", "long"])
async def test_search_is_that_of_the_pool_in_memory(url, dim, exact_below):
    n = 700 if dim < 1_000 else 250
    vectors = clustered(n, dim)
    vectors[5] = vectors[9] = vectors[17] = vectors[40]  # ties
    memory = Pool(exact_below=10**9)
    async with opened(url, exact_below=exact_below) as store:
        pool = store.pool("e")
        half = n // 2
        upto = [await p.add(entries(half), vectors[:half]) for p in (pool, memory)]
        for p in (pool, memory):
            await p.remove([hash_text("text 3"), hash_text("text 40")])
            await p.add(entries(n - half, half), vectors[half:])
            await p.add(entries(1, 3), vectors[3:4])
        assert upto[0] == upto[1]
        assert len(pool) == len(memory) == n - 1
        own = [entry.hash for entry in entries(n)]
        same = total = 0
        for rows in (slice(0, 3), slice(0, n)):
            for limit in (upto[0], None):
                for k in (1, 10):
                    ours, theirs = [
                        await p.search(vectors[rows], k, exclude=own[rows], upto=limit)
                        for p in (pool, memory)
                    ]
                    if exact_below > n:
                        assert ours.ids.tolist() == theirs.ids.tolist()
                        assert ours.similarities.tobytes() == theirs.similarities.tobytes()
                    same += int((ours.ids == theirs.ids).sum())
                    total += ours.ids.size
        assert same / total > 0.99
    await memory.close()


async def test_more_neighbors_than_the_graph_keeps_in_view(url):
    vectors = clustered(3_000, 8)
    async with opened(url, exact_below=100) as store:
        pool = store.pool("e")
        await pool.add(entries(3_000), vectors)
        # none of the first few texts is near; the scan has to go on, or give way to a full one
        assert (await pool.search(vectors[-2:], 150, upto=200)).ids.min() >= 0
        assert (await pool.search(vectors[:2], 2_990)).ids.min() >= 0


async def test_two_processes_need_the_graph_at_once(url):
    vectors = clustered(400, 16)
    async with opened(url, exact_below=100) as one, opened(url, exact_below=100) as two:
        pools = [one.pool("e"), two.pool("e")]
        await pools[0].add(entries(300), vectors[:300])
        searches = [p.search(vectors[:50], 5) for p in pools]
        first, second, _ = await asyncio.gather(
            *searches, pools[1].add(entries(100, 300), vectors[300:])
        )
        assert first.ids.shape == second.ids.shape
        assert (await pools[0].search(vectors[399:], 1)).ids.tolist() == [[399]]


async def test_numbers_have_no_gaps_and_a_snapshot_stays_as_it_was(url):
    vectors = clustered(400, 16)
    async with opened(url) as one, opened(url) as two:
        seen = []

        async def add(store, start):
            pool = store.pool("e")
            for i in range(start, start + 200, 10):
                upto = await pool.add(entries(10, i), vectors[i : i + 10])
                seen.append((upto, (await pool.search(vectors[:20], 8, upto=upto)).ids.tolist()))

        await asyncio.gather(add(one, 0), add(two, 200))
        pool = one.pool("e")
        everything = await pool.fetch(np.arange(400))
        assert len({entry.hash for entry in everything}) == 400
        for upto, ids in seen:
            assert (await pool.search(vectors[:20], 8, upto=upto)).ids.tolist() == ids


async def test_what_was_removed_can_be_fetched_by_who_has_found_it(url):
    async with opened(url) as store:
        pool = store.pool("e")
        await pool.add(entries(3), clustered(3, 8))
        await pool.remove([hash_text("text 1")])
        await pool.add(entries(1, 1), clustered(1, 8))
        texts = await pool.fetch(np.array([1, 3, 0]))
        assert [t.text for t in texts] == ["text 1", "text 1", "text 0"]
        with pytest.raises(StoreError, match="no text 9"):
            await pool.fetch(np.array([9]))


# -- restarts --------------------------------------------------------------------------------------


async def test_a_run_goes_on_after_the_server_restarted(database, url):
    texts = messages(400)
    restarted = asyncio.Event()

    async def restart():
        while llm.calls < 100:  # noqa: ASYNC110 - the server has no event
            await asyncio.sleep(0.01)
        await asyncio.to_thread(database.stop)
        await asyncio.sleep(0.2)
        await asyncio.to_thread(database.start)
        restarted.set()

    async with LoopbackLLM(confident, latency=0.05) as llm:
        async with testnuc.TestNUC(**arguments(llm, url, limits=Limits(concurrency=16))) as nuc:
            restarting = asyncio.create_task(restart())
            results = await nuc.classify_many(texts)
            assert restarted.is_set(), "the server restarted during the run"
            await restarting
        assert not any(r.error for r in results)
        assert llm.calls == len(texts)
        async with testnuc.TestNUC(**arguments(llm, url)) as nuc:
            again = await nuc.classify_many(texts)
            assert nuc.usage.calls == 0
            assert [(r.label, r.share) for r in again] == [(r.label, r.share) for r in results]


async def test_a_database_that_is_closed_for_maintenance_is_waited_for(database):
    database.sql("CREATE DATABASE closed ALLOW_CONNECTIONS false")
    url = database.url("testnuc", database="closed")
    store = resolve(url)
    opening = asyncio.create_task(store.open())
    while not store.database.breaks:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)
    database.sql("ALTER DATABASE closed ALLOW_CONNECTIONS true")
    await opening
    await store.close()


async def test_patience_ends(database, url):
    async with opened(url, patience=2, exact_below=10) as store:
        await store.put_predictions([stored(0)])
        pool = store.pool("e")
        vectors = clustered(60, 8)
        await pool.add(entries(60), vectors)
        before = (await pool.search(vectors, 3)).ids.tolist()
        await asyncio.to_thread(database.stop)
        try:
            started = time.monotonic()
            with pytest.raises(StoreError, match="cannot be reached"):
                await store.get_predictions([stored(0).key])
            assert 2 <= time.monotonic() - started < 60
            with pytest.raises(StoreError, match="cannot be reached"):
                await pool.search(vectors, 3)
        finally:
            await asyncio.to_thread(database.start)
        assert await store.get_predictions([stored(0).key]) == [stored(0).prediction]
        assert (await pool.search(vectors, 3)).ids.tolist() == before


async def test_a_search_that_is_cancelled_leaves_no_transaction_open(url):
    vectors = clustered(2_000, 32)
    async with opened(url, exact_below=10, connections=2) as store:
        pool = store.pool("e")
        await pool.add(entries(2_000), vectors)
        await pool.search(vectors[:20], 3)
        for wait in (0.0, 0.002, 0.01, 0.05):
            task = asyncio.create_task(pool.search(vectors, 3))
            await asyncio.sleep(wait)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await store.put_predictions([stored(i) for i in range(5)])
            await pool.add(entries(1, 2_000), vectors[:1])
        assert (await pool.search(vectors[:20], 3)).ids.min() >= 0


async def test_a_graph_is_built_although_its_caller_is_cancelled(database):
    name = f"t{uuid4().hex}"
    url, schema = database.url(name), f"schemaname = '{name}'"
    vectors = clustered(1_500, 64)
    async with opened(url, exact_below=10) as store:
        pool = store.pool("e")
        await pool.add(entries(1_500), vectors)
        task = asyncio.create_task(pool.search(vectors, 3))
        await asyncio.sleep(0.02)
        task.cancel()
        # a few queries do not wait for it, and are answered exactly
        assert (await pool.search(vectors[:2], 1)).ids.tolist() == [[0], [1]]
        built = f"SELECT count(*) FROM pg_indexes WHERE indexdef LIKE '%hnsw%' AND {schema}"
        async with asyncio.timeout(60):
            while await asyncio.to_thread(database.sql, built) != "1":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await pool.close()


@pytest.mark.parametrize("times", [1, 9])
async def test_a_statement_that_an_administrator_cancels_is_run_again(database, url, times):
    cancel = (
        "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity "
        "WHERE application_name = 'testnuc' AND query LIKE '%pg_sleep(0.5%' AND state = 'active'"
    )
    async with opened(url) as store:
        running = asyncio.create_task(store.database.fetch("SELECT 7, pg_sleep(0.5)::text"))
        while times and not running.done():
            times -= int(await asyncio.to_thread(database.sql, cancel))
        if times <= 0:
            assert (await running)[0][0] == 7
            return
        with pytest.raises(StoreError, match="canceled a statement before its timeout"):
            await running
        assert await store.get_predictions([stored(0).key]) == [None]


_IGNORED = "search_path,statement_timeout,idle_in_transaction_session_timeout,jit"


@pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="platform: pgbouncer is missing")
@pytest.mark.parametrize("ignored", ["", f"ignore_startup_parameters = {_IGNORED}"])
async def test_a_pooler_in_transaction_mode_is_named(database, ignored):
    with tempfile.TemporaryDirectory(prefix="nuc") as folder:
        Path(folder).chmod(0o777)
        port = free_port()
        settings = Path(folder) / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\npostgres = host={database._folder} dbname=postgres user=postgres\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = any\npool_mode = transaction\n{ignored}\n"
        )
        user = ["-u", database._user] if database._user else []
        pooler = await asyncio.create_subprocess_exec(
            *("pgbouncer", *user, str(settings)), stderr=asyncio.subprocess.DEVNULL
        )
        try:
            url = f"postgresql://postgres@127.0.0.1:{port}/postgres?schema=t{uuid4().hex}"
            async with LoopbackLLM(confident) as llm:
                with pytest.raises(StoreError, match="pooler in session mode"):
                    async with testnuc.TestNUC(**arguments(llm, url)) as nuc:
                        await nuc.classify_many(messages(9))
                assert llm.calls == 0
        finally:
            pooler.terminate()
            await pooler.wait()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


# -- leases ----------------------------------------------------------------------------------------


async def test_a_lease_is_one_process_s(url):
    keys = [stored(i).key for i in range(4)]
    async with opened(url) as one, opened(url) as two:
        assert await one.lease(keys[:2], 60) == [True, True]
        assert await two.lease(keys[:3], 60) == [False, False, True]
        assert await one.lease(keys[:1], 60) == [False], "two clients may share a store"
        assert await two.renew(keys[:3], 60) == [False, False, True]
        await two.release(keys[:1])
        assert await two.lease(keys[:1], 60) == [False], "it was not its own to release"
        await one.release(keys[:1])
        assert await two.lease(keys[:1], 60) == [True]
        # an answer ends the lease, and no other is given for what is answered
        await one.put_predictions([stored(1)])
        assert await one.renew(keys[1:2], 60) == [False]
        assert await two.lease(keys[1:2], 60) == [False]
        assert await one.lease(keys[1:2], 60) == [False]


async def test_a_stale_lease_expires_unless_it_is_renewed(url):
    keys = [stored(i).key for i in range(2)]
    async with opened(url) as one, opened(url) as two:
        await one.lease(keys, 60)
        assert await two.lease(keys, 60) == [False, False]
        assert await one.renew(keys[1:], 0.02) == [True]
        await asyncio.sleep(0.1)
        assert await two.lease(keys, 60) == [False, True]


@pytest.mark.parametrize("hours", [1, 24 * 365])
async def test_a_clock_that_is_set_back_holds_no_lease(url, hours):
    keys = [stored(i).key for i in range(2)]
    async with opened(url) as one, opened(url) as two:
        await one.lease(keys, 60)
        later = f"UPDATE leases SET until = until + interval '{hours} hours'"
        await one.database.execute(later)
        assert await two.lease(keys, 60) == [True, True]
        assert await one.lease(keys, 60) == [False, False]


async def test_what_another_process_began_and_left_is_asked(url):
    texts = messages(40)
    async with opened(url) as other, LoopbackLLM(confident) as llm:
        async with testnuc.TestNUC(**arguments(llm, url)) as nuc:
            keys = [nuc._parts.predictor.ask(t, hash_text(t), 0).key for t in texts]
            await other.lease(keys, 60)
            running = asyncio.create_task(nuc.classify_many(texts))
            await asyncio.sleep(0.2)
            assert llm.calls == 0
            # the other process ends, and its leases a little later
            assert all(await other.renew(keys, 0.1))
            async with asyncio.timeout(60):
                results = await running
        assert not any(r.error for r in results)
        assert llm.calls == 40


async def test_calls_that_another_process_took_after_a_crash_of_the_server_are_left_to_it(database):
    name, texts = f"t{uuid4().hex}", messages(40)
    url, crashed = database.url(name), asyncio.Event()

    def answer(text):
        if llm.requests == 12:
            # leases do not survive a crash, and the other process may be first to ask for them
            database.sql(f"UPDATE {name}.leases SET owner = '\\x00'")
            database.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'testnuc'"
            )
            crashed.set()
        return confident(text)

    async with LoopbackLLM(answer) as llm:
        limits = Limits(concurrency=4)
        async with testnuc.TestNUC(**arguments(llm, url, limits=limits, k=0)) as nuc:
            running = asyncio.create_task(nuc.classify_many(texts))
            await crashed.wait()
            async with opened(url) as other:
                predictor = nuc._parts.predictor
                rows = [
                    StoredPrediction(
                        predictor.ask(text, hash_text(text), 0).key,
                        predictor.scope,
                        hash_text(text),
                        0,
                        Prediction(*confident(text)),
                    )
                    for text in texts
                ]
                await other.put_predictions(rows)
            results = await running
    assert not results.errors
    assert llm.calls <= 20, "of each worker that in flight, and one if its answer was just stored"


async def test_a_connection_that_breaks_in_a_transaction_is_replaced(url):
    tries = 0

    async def work(connection):
        nonlocal tries
        tries += 1
        async with connection.transaction():
            if tries == 1:
                await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            return await connection.fetchval("SELECT 7")

    async with opened(url) as store:
        assert await store.database.run(work) == 7
        assert tries == 2


async def test_a_lock_that_cannot_be_had_in_time_is_waited_for(database):
    name = f"t{uuid4().hex}"
    url = database.url(name)
    async with opened(url) as store:
        await store.put_predictions([stored(0)])
        locked, left = asyncio.Event(), asyncio.Event()

        async def lock(connection):
            async with connection.transaction():
                await connection.execute("LOCK TABLE predictions IN SHARE ROW EXCLUSIVE MODE")
                locked.set()
                await left.wait()

        locking = asyncio.create_task(store.database.run(lock))
        await locked.wait()
        refused = asyncio.Event()

        async def write(connection):
            try:
                await connection.execute("SET lock_timeout = 1")
                return await connection.fetch("UPDATE predictions SET label = 'other' RETURNING 1")
            except Exception:
                refused.set()
                raise

        writing = asyncio.create_task(store.database.run(write))
        await refused.wait()
        left.set()
        await locking
        assert len(await writing) == 1


_RUN = """
import asyncio, sys
import orjson
import testnuc
from tests.conftest import messages
from tests.stores.test_postgres import arguments

class Server:
    base_url = sys.argv[1]

async def main():
    async with testnuc.TestNUC(**arguments(Server, sys.argv[2])) as nuc:
        # both begin when both are ready
        print("ready", flush=True)
        sys.stdin.readline()
        results = await nuc.classify_many(messages(1_000))
        found = [(r.label, r.share, r.error is None) for r in results]
        print(orjson.dumps([found, nuc.usage.calls]).decode(), flush=True)

asyncio.run(main())
"""


async def test_two_processes_classify_the_same_texts_at_once(url):
    answers = {text: confident(text) for text in messages(1_000)}
    with serve_in_process(answers, latency=(0.01, 0.05)) as llm:
        command = [sys.executable, "-c", _RUN, llm.base_url, url]
        pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        both = [
            await asyncio.create_subprocess_exec(*command, cwd=ROOT, limit=1 << 24, **pipes)
            for _ in range(2)
        ]
        try:
            for process in both:
                assert await process.stdout.readline() == b"ready\n"
            outputs = await asyncio.gather(*(process.communicate(b"go\n") for process in both))
        finally:
            for process in both:
                if process.returncode is None:
                    process.kill()
        (first, mine), (second, yours) = (orjson.loads(output) for output, _ in outputs)
        asked = llm.stats()["calls"]
    assert first == second
    assert all(fine for _, _, fine in first)
    assert mine + yours == asked
    assert 1_000 <= asked <= 1_100
    assert min(mine, yours) > 100, "they share the work"


_SUSPENDED = """
import asyncio, sys
import testnuc
from testnuc.stores.postgres import PostgresStore
from tests.conftest import messages
from tests.stores.test_postgres import arguments

class Server:
    base_url = sys.argv[1]

async def main():
    store = PostgresStore(sys.argv[2], lease_seconds=0.5)
    limits = testnuc.Limits(concurrency=8)
    async with testnuc.TestNUC(**arguments(Server, store, k=0, limits=limits)) as nuc:
        print("ready", flush=True)
        results = await nuc.classify_many(messages(600))
        print(len(results.errors), nuc.usage.calls, flush=True)

asyncio.run(main())
"""


async def test_a_process_that_was_suspended_repeats_no_call_of_another_one(url):
    texts = messages(600)
    answers = {text: confident(text) for text in texts}
    with serve_in_process(answers, latency=0.05) as llm:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _SUSPENDED, llm.base_url, url),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert await process.stdout.readline() == b"ready\n"
            while llm.stats()["calls"] < 100:  # noqa: ASYNC110 - the server has no event
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGSTOP)
            sent = llm.stats()["calls"]
            store = PostgresStore(url, lease_seconds=0.5)
            async with testnuc.TestNUC(**arguments(llm, store, k=0)) as nuc:
                results = await nuc.classify_many(texts)
                assert not results.errors
            process.send_signal(signal.SIGCONT)
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        asked = llm.stats()["calls"]
    errors, calls = map(int, output.split())
    assert errors == 0
    assert calls <= sent + 8, "only what was in flight is sent by both"
    assert asked <= len(texts) + 8
