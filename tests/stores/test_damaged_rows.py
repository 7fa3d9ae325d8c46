"""Stores whose rows or bytes were damaged: runs work, or end with an error of this package."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from contextlib import closing
from random import Random

import numpy as np
import orjson
import pytest

from testnuc.errors import StoreError, TestNUCError
from testnuc.protocols import StoredBatch
from testnuc.stores.export import dump
from testnuc.stores.sqlite import SqliteStore
from testnuc.testing import LoopbackLLM
from testnuc.types import Usage
from tests.conftest import LABELS, confident, messages
from tests.stores.contents import client, is_open

pytestmark = pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")

TEXTS = messages(60)
NAN = b"\x00\x7e"
#: What may stand in a column, of any type.
VALUES = (
    None, b"", b"\xff" * 7, NAN * 256, "", "x", "[", "null", "[1]", '{"dim": "x"}', -1, 0, 2**40,
    -0.5, 1e308, "1e999", 9_999,
)  # fmt: skip
COLUMNS = [
    ("predictions", "label"),
    ("predictions", "confidence"),
    ("predictions", "said"),
    ("predictions", "text"),
    ("vectors", "vector"),
    ("vectors", "hash"),
    ("pool", "text"),
    ("pool", "label"),
    ("pool", "removed"),
    ("pool", "vector"),
    ("embedders", "dim"),
    ("embedders", "size"),
    ("embedders", "removals"),
    ("embedders", "saved"),
    ("scopes", "facts"),
    ("learned", "data"),
]
#: Read by an export, or a list of batch jobs.
MOVED = [
    ("embedders", "name"),
    ("embedders", "dim"),
    ("scopes", "scope"),
    ("predictions", "text"),
    ("predictions", "sample"),
    ("pool", "text"),
    ("pool", "label"),
    ("learned", "scope"),
    ("learned", "data"),
    ("batches", "scope"),
    ("batches", "requests"),
    ("batches", "created"),
    ("batches", "remote"),
    ("batches", "outcome"),
    ("batches", "usage"),
]


def opened(path):
    return is_open(SqliteStore(path))


async def exported(path):
    async with opened(path) as store:
        async for records in dump(store):
            orjson.dumps(records)


async def batches_of(path):
    async with opened(path) as store:
        return [
            f"{batch.created:.0f} {batch.id.hex()}" for batch in await store.batches(ended=True)
        ]


@pytest.fixture(scope="module")
def llm():
    with LoopbackLLM(confident) as llm:
        yield llm


@pytest.fixture(scope="module")
def whole(tmp_path_factory, llm):
    path = tmp_path_factory.mktemp("whole") / "labels.db"

    async def fill():
        async with client(llm.base_url, path) as nuc:
            await nuc.classify_many(TEXTS)
            await nuc.learn(TEXTS[:30], [LABELS[i % 3] for i in range(30)])
        async with opened(path) as store:
            ((scope, facts),) = await store.scopes()
            await store.put_batch(
                StoredBatch(bytes(16), scope, facts, 1, 1.0, b"", "b", "completed", Usage()),
                bytes(16),
                1.0,
            )

    asyncio.run(fill())
    return path


async def use(llm, path):
    """Use everything that reads a store; returns the errors, all of this package."""
    errors = []

    async def uses(nuc):
        yield nuc.classify_many(TEXTS)
        yield nuc.classify("refund please, now")
        yield nuc.stats()
        yield nuc.diagnose()
        yield nuc.review(5)
        yield nuc.remove(TEXTS[:2])

    try:
        nuc = client(llm.base_url, path)
        async with nuc:
            async for using in uses(nuc):
                try:
                    await using
                except TestNUCError as exc:
                    errors.append(exc)
    except TestNUCError as exc:
        errors.append(exc)
    return errors


async def test_a_whole_store_is_used_without_an_error(llm, whole, tmp_path):
    assert await use(llm, shutil.copy(whole, tmp_path)) == []


@pytest.mark.parametrize(("table", "column"), COLUMNS)
@pytest.mark.slow
async def test_rows_with_values_of_any_type(llm, whole, tmp_path, table, column):
    for number, value in enumerate(VALUES):
        path = shutil.copy(whole, tmp_path / f"{number}.db")
        with closing(sqlite3.connect(path)) as c:
            where = f"rowid IN (SELECT rowid FROM {table} LIMIT 3)"
            if table == "predictions":
                where = "key IN (SELECT key FROM predictions ORDER BY key LIMIT 3)"
            try:
                c.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (value,))
            except sqlite3.IntegrityError:
                continue
            c.commit()
        await use(llm, path)


@pytest.mark.parametrize(("table", "column"), MOVED)
async def test_rows_with_values_of_any_type_are_moved_or_refused(whole, tmp_path, table, column):
    moved = refused = 0
    for number, value in enumerate(VALUES):
        path = shutil.copy(whole, tmp_path / f"{number}.db")
        with closing(sqlite3.connect(path)) as c:
            try:
                c.execute(f"UPDATE {table} SET {column} = ?", (value,))
            except sqlite3.IntegrityError:
                continue
            c.commit()
        for reads in (exported, batches_of):
            try:
                await reads(path)
                moved += 1
            except StoreError:
                refused += 1
    assert moved
    assert refused


@pytest.mark.parametrize(
    "damaged",
    [b"", b"\x00", b"\x00\x3c" * 3, NAN * 384, None],
    ids=["none", "odd", "short", "nan", "cut"],
)
async def test_a_damaged_vector_names_the_store_and_the_remedy(
    llm, whole, tmp_path, monkeypatch, damaged
):
    path = shutil.copy(whole, tmp_path / "labels.db")
    with closing(sqlite3.connect(path)) as c:
        dim = c.execute("SELECT dim FROM embedders").fetchone()[0]
        if damaged is None:
            damaged = b"\x00" * (2 * dim - 2)
        if damaged == NAN * 384:
            damaged = NAN * dim
        c.execute("UPDATE vectors SET vector = ? WHERE id = 5", (damaged,))
        c.commit()
        ((embedder, text_hash),) = c.execute(
            "SELECT name, hash FROM vectors JOIN embedders ON embedders.id = embedder "
            "WHERE vectors.id = 5"
        )
    store = SqliteStore(path)
    await store.open()
    with pytest.raises(StoreError, match=r"labels\.db.*damaged.*backup"):
        await store.get_vectors(embedder, [text_hash])
    opened, connect = [], store.database.connect
    monkeypatch.setattr(store.database, "connect", lambda: opened.append(connect()) or opened[-1])
    pool = store.pool(embedder)
    with pytest.raises(StoreError, match=r"labels\.db.*damaged.*backup"):
        await pool.open()
    # nobody closes what could not be opened
    (connection,) = opened
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")
    await pool.close()
    await store.close()


@pytest.mark.parametrize(
    ("column", "value"), [("label", b"x"), ("confidence", 7), ("confidence", "high"), ("said", b"")]
)
async def test_a_damaged_prediction_names_the_store_and_the_remedy(whole, tmp_path, column, value):
    path = shutil.copy(whole, tmp_path / "labels.db")
    with closing(sqlite3.connect(path)) as c:
        ((key,),) = c.execute("SELECT key FROM predictions LIMIT 1").fetchall()
        c.execute(f"UPDATE predictions SET {column} = ? WHERE key = ?", (value, key))
        c.commit()
    async with opened(path) as store:
        with pytest.raises(StoreError, match=r"labels\.db.*damaged.*backup"):
            await store.get_predictions([key])
        with pytest.raises(StoreError, match=r"labels\.db.*damaged.*backup"):
            await store.predictions()


@pytest.mark.parametrize("seed", range(6))
async def test_a_file_with_damaged_bytes(llm, whole, tmp_path, seed):
    random = Random(seed)
    content = whole.read_bytes()
    for number in range(8):
        damaged = bytearray(content)
        for _ in range(random.choice((1, 4, 64))):
            damaged[random.randrange(100, len(damaged))] = random.randrange(256)
        path = tmp_path / f"{number}.db"
        path.write_bytes(damaged)
        await use(llm, path)


@pytest.mark.parametrize("version", [-1, -2_000_000_000, 1_000])
async def test_a_version_that_this_one_does_not_know_changes_nothing(whole, tmp_path, version):
    path = shutil.copy(whole, tmp_path / "labels.db")
    with closing(sqlite3.connect(path)) as c:
        c.execute(f"PRAGMA user_version = {version}")
        c.commit()
    before = path.read_bytes()
    with pytest.raises(
        StoreError, match=rf"labels\.db has schema version {version}.*upgrade testnuc"
    ):
        async with opened(path):
            pass
    assert path.read_bytes() == before


@pytest.mark.parametrize("facts", ["", "[]", "{}", '{"rows": -5}', "null", "7"])
async def test_damaged_index_files_are_built_again(tmp_path, facts):
    from testnuc._base.checks import hash_text
    from testnuc.protocols import PoolText
    from testnuc.stores.sqlite.pool import SqlitePool

    rows = np.random.default_rng(0).standard_normal((len(TEXTS), 8))
    vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
    texts = [PoolText(text, hash_text(text)) for text in TEXTS]
    store = SqliteStore(tmp_path / "labels.db")

    def pool():
        return SqlitePool(store.database, "e", tmp_path / "index", exact_below=10)

    await store.open()
    first = pool()
    await first.add(texts, vectors)
    expected = (await first.search(vectors, 3)).ids.tolist()
    await first.close()
    saved = tmp_path / "index"
    assert list(saved.iterdir())
    with closing(sqlite3.connect(tmp_path / "labels.db")) as c:
        ((good,),) = c.execute("SELECT saved FROM embedders").fetchall()
        fields = json.loads(good)
        wrong = [facts, *(json.dumps({**fields, name: None}) for name in fields)]
        wrong += [json.dumps({**fields, name: "../x"}) for name in fields]
        wrong += [json.dumps({**fields, name: -3}) for name in fields]
    for number, value in enumerate([*wrong, good]):
        with closing(sqlite3.connect(tmp_path / "labels.db")) as c:
            c.execute("UPDATE embedders SET saved = ?", (value,))
            c.commit()
        if number == len(wrong):
            for file in saved.iterdir():
                file.write_bytes(file.read_bytes()[: Random(number).randrange(40)])
        again = pool()
        await again.open()
        assert (await again.search(vectors, 3)).ids.tolist() == expected
        await again.close()
    await store.close()
