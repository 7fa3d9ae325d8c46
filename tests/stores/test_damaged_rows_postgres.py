"""PostgreSQL stores whose rows were changed: runs work, or end with an error of this package."""

from __future__ import annotations

import contextlib
import subprocess
from uuid import uuid4

import pytest

from testnuc.errors import StoreError
from testnuc.stores.postgres import PostgresStore
from testnuc.testing import HashEmbedder, LoopbackLLM
from tests.conftest import LABELS, confident
from tests.stores.contents import client, is_open
from tests.stores.test_damaged_rows import TEXTS, use

pytestmark = pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")

#: What may stand in a column, as SQL; the types of the columns refuse some.
VALUES = (
    "NULL", "''", "'[1]'", r"'\x00ff'::bytea", "-1", "2147483647", "'NaN'::float8",
    "'[1,2,3]'::halfvec",
)  # fmt: skip
COLUMNS = [
    ("predictions", "label"),
    ("predictions", "confidence"),
    ("predictions", "said"),
    ("predictions", "text"),
    ("texts_1", "vector"),
    ("texts_1", "hash"),
    ("texts_1", "number"),
    ("texts_1", "text"),
    ("texts_1", "label"),
    ("embedders", "dim"),
    ("embedders", "size"),
    ("embedders", "removals"),
    ("scopes", "facts"),
    ("learned", "data"),
]


@pytest.fixture(scope="module")
def llm():
    with LoopbackLLM(confident) as llm:
        yield llm


@pytest.fixture
async def schema(llm, database):
    schema = f"t{uuid4().hex}"
    async with client(llm.base_url, database.url(schema)) as nuc:
        await nuc.classify_many(TEXTS)
        await nuc.learn(TEXTS[:30], [LABELS[i % 3] for i in range(30)])
    # a vector of another dimension can be there only if the type of the column allows it
    database.sql(f"ALTER TABLE {schema}.texts_1 ALTER vector TYPE halfvec")
    return schema


@pytest.mark.parametrize(("table", "column"), COLUMNS)
async def test_rows_with_values_of_any_type(llm, database, schema, table, column):
    place = f"{schema}.{table}"
    database.sql(f"CREATE TABLE {schema}.whole AS TABLE {place}")
    for value in VALUES:
        try:
            database.sql(
                f"UPDATE {place} SET {column} = {value} "
                f"WHERE ctid IN (SELECT ctid FROM {place} ORDER BY ctid LIMIT 3)"
            )
        except subprocess.CalledProcessError:
            continue
        await use(llm, database.url(schema))
        async with is_open(PostgresStore(database.url(schema))) as store:
            pool, start = store.pool(HashEmbedder().name), 0
            with contextlib.suppress(StoreError):
                while start is not None:
                    _, start = await pool.scan(start, 20)
        database.sql(
            f"DELETE FROM {place}; INSERT INTO {place} OVERRIDING SYSTEM VALUE TABLE {schema}.whole"
        )


@pytest.mark.parametrize("value", ["7", "-1", "'NaN'", "'infinity'"])
async def test_a_damaged_prediction_names_the_store_and_the_remedy(database, schema, value):
    database.sql(f"UPDATE {schema}.predictions SET confidence = {value}")
    key = bytes.fromhex(
        database.sql(f"SELECT encode(key, 'hex') FROM {schema}.predictions LIMIT 1")
    )
    async with is_open(PostgresStore(database.url(schema))) as store:
        with pytest.raises(StoreError, match=r"postgresql:.*damaged.*backup"):
            await store.get_predictions([key])
        with pytest.raises(StoreError, match=r"postgresql:.*damaged.*backup"):
            await store.predictions()


@pytest.mark.parametrize("value", ["[1]", "[1,2,3]"])
async def test_a_damaged_vector_names_the_store_and_the_remedy(database, schema, value):
    database.sql(f"UPDATE {schema}.texts_1 SET vector = '{value}' WHERE number = 5")
    text_hash = bytes.fromhex(
        database.sql(f"SELECT encode(hash, 'hex') FROM {schema}.texts_1 WHERE number = 5")
    )
    async with is_open(PostgresStore(database.url(schema))) as store:
        ((embedder, _),) = await store.embedders()
        with pytest.raises(StoreError, match=r"postgresql:.*damaged.*backup"):
            await store.get_vectors(embedder, [text_hash])
        with pytest.raises(StoreError, match=r"postgresql:.*damaged.*backup"):
            await store.vectors(embedder)


@pytest.mark.parametrize("column", ["facts", "usage"])
@pytest.mark.parametrize("value", ["", "7", "[", "null"])
async def test_a_damaged_batch_names_the_store_and_the_remedy(database, schema, column, value):
    database.sql(
        f"INSERT INTO {schema}.batches (id, scope, facts, requests, created, items, owner, until) "
        f"VALUES ('a', 'b', '{{}}', 1, 0, '', 'c', now()); "
        f"UPDATE {schema}.batches SET {column} = '{value}'"
    )
    async with is_open(PostgresStore(database.url(schema))) as store:
        with pytest.raises(StoreError, match=r"postgresql:.*damaged.*backup"):
            await store.batches()


async def test_a_client_that_cannot_be_opened_closes_its_connections(llm, database, schema):
    database.sql(f"UPDATE {schema}.embedders SET size = -1")
    store = PostgresStore(database.url(schema))
    with pytest.raises(StoreError, match="damaged"):
        async with client(llm.base_url, store):
            pass
    with pytest.raises(StoreError, match="closed"):
        await store.scopes()
