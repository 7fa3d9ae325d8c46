"""What every store does, whatever keeps it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import uuid4

import numpy as np
import pytest

from testnuc import TestNUC
from testnuc._base.checks import hash_text
from testnuc.batch import BatchStore
from testnuc.errors import EmbeddingError, StoreError
from testnuc.index.memory_pool import Pool
from testnuc.methods import StandardPrompting, TopKICL
from testnuc.protocols import PoolText, Store, StoredBatch, StoredPrediction
from testnuc.stores import resolve
from testnuc.testing import HashEmbedder, LoopbackLLM
from testnuc.types import Prediction, Usage
from tests.conftest import LABELS, confident, messages
from tests.stores.contents import is_open, unit

SCOPE, OTHER = b"s" * 16, b"o" * 16


class Memory:
    """How the tests open a store, more than once where it outlives the process."""

    durable = False

    def __init__(self, request):
        self.store = resolve(None)

    def make(self):
        return self.store


class Sqlite(Memory):
    durable = True

    def __init__(self, request):
        self.path = request.getfixturevalue("tmp_path") / "store.db"

    def make(self):
        return resolve(self.path)


class Postgres(Memory):
    durable = True

    def __init__(self, request):
        self.url = request.getfixturevalue("database").url(f"t{uuid4().hex}")

    def make(self):
        return resolve(self.url)


#: One class for each kind of store; ``make`` is called for each opening.
KINDS = {"memory": Memory, "sqlite": Sqlite, "postgres": Postgres}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param](request)


@pytest.fixture(params=[name for name, kind in KINDS.items() if kind.durable])
def durable(request):
    return KINDS[request.param](request)


def opened(kind):
    return is_open(kind.make())


@asynccontextmanager
async def pool_of(kind, embedder="e"):
    async with opened(kind) as store:
        pool = store.pool(embedder) if kind.durable else Pool()
        await pool.open()
        try:
            yield pool
        finally:
            await pool.close()


def stored(i, label="refund", confidence=0.5, said=None, *, scope=SCOPE, text=None, sample=0):
    text_hash = hash_text(text or f"text {i}")
    key = hash_text(f"key {i}")
    return StoredPrediction(key, scope, text_hash, sample, Prediction(label, confidence, said))


def entries(names, labels=None):
    labels = labels or [None] * len(names)
    return [PoolText(n, hash_text(n), label) for n, label in zip(names, labels, strict=True)]


# -- predictions -----------------------------------------------------------------------------------


async def test_is_a_store(kind):
    async with opened(kind) as store:
        assert isinstance(store, Store)
        assert store.durable is kind.durable


async def test_predictions_come_back_as_they_were(kind):
    rows = [
        stored(0),
        stored(1, confidence=None),
        stored(2, None, 1 / 3, "something else"),
        stored(3, "naïve 標籤 \N{ROCKET}", 1.0, ""),
    ]
    async with opened(kind) as store:
        assert await store.put_predictions(rows) == [row.prediction for row in rows]
        keys = [rows[2].key, b"?" * 16, *(row.key for row in rows)]
        found = await store.get_predictions(keys)
    assert found == [rows[2].prediction, None, *(row.prediction for row in rows)]


async def test_nothing_is_put_and_nothing_asked_for(kind):
    async with opened(kind) as store:
        assert await store.put_predictions([]) == []
        assert await store.get_predictions([]) == []
        assert await store.get_vectors("e", []) == []
        await store.put_vectors("e", [], unit(0))


async def test_the_first_answer_wins_and_the_loser_reads_it(kind):
    first, second = stored(0, "refund", 0.9), stored(0, "delivery", 0.1, "other")
    async with opened(kind) as store:
        await store.put_predictions([first])
        assert await store.put_predictions([second, stored(1, "login")]) == [
            first.prediction,
            Prediction("login", 0.5),
        ]
        assert await store.get_predictions([first.key]) == [first.prediction]
        # within one call, too
        assert (
            await store.put_predictions([stored(2, "a"), stored(2, "b")])
            == [Prediction("a", 0.5)] * 2
        )


async def test_many_callers_at_once_agree(kind):
    async with opened(kind) as store:

        async def put(who):
            rows = [stored(i, f"label of {who}") for i in range(50)]
            return await store.put_predictions(rows)

        standing = await asyncio.gather(*(put(who) for who in range(20)))
        assert all(answers == standing[0] for answers in standing)
        assert await store.get_predictions([stored(i).key for i in range(50)]) == standing[0]


async def test_more_keys_than_a_statement_takes(kind):
    rows = [stored(i) for i in range(3_000)]
    async with opened(kind) as store:
        await store.put_predictions(rows)
        found = await store.get_predictions([row.key for row in rows] + [b"?" * 16])
    assert found == [row.prediction for row in rows] + [None]


async def test_counts_texts_of_a_scope(kind):
    async with opened(kind) as store:
        assert await store.count(SCOPE) == 0
        await store.describe(SCOPE, {"model": "m", "labels": ["a"]})
        await store.put_predictions([stored(i) for i in range(5)])
        await store.put_predictions([stored(9, text="text 1", sample=1)])
        await store.put_predictions([stored(10, scope=OTHER)])
        assert await store.count(SCOPE) == 5
        assert await store.count(OTHER) == 1


async def test_names_the_texts_of_a_scope(kind):
    async with opened(kind) as store:
        assert await store.predicted(SCOPE) == []
        await store.put_predictions(
            [stored(0, text="a"), stored(1, text="a", sample=1), stored(2, text="b")]
        )
        await store.put_predictions([stored(3, text="c", scope=OTHER), stored(2, text="b")])
        assert sorted(await store.predicted(SCOPE)) == sorted([hash_text("a"), hash_text("b")])
        await store.forget(scope=SCOPE)
        assert await store.predicted(SCOPE) == []
        assert await store.predicted(OTHER) == [hash_text("c")]


async def test_forgets_a_model_or_a_scope(kind):
    async with opened(kind) as store:
        await store.describe(SCOPE, {"model": "small", "labels": ["a"]})
        await store.describe(SCOPE, {"model": "small", "labels": ["a"]})
        await store.describe(OTHER, {"model": "large", "labels": ["a"]})
        await store.put_predictions([stored(i) for i in range(5)])
        await store.put_predictions([stored(i, scope=OTHER) for i in range(5, 8)])
        assert await store.forget() == 0
        assert await store.forget(model="unknown") == 0
        assert await store.forget(model="small") == 5
        assert [await store.count(SCOPE), await store.count(OTHER)] == [0, 3]
        assert await store.forget(scope=OTHER) == 3
        assert await store.get_predictions([stored(6).key]) == [None]
        # what was forgotten may be asked again, and answered differently
        assert await store.put_predictions([stored(6, "new")]) == [Prediction("new", 0.5)]


async def test_what_was_learned_is_replaced_and_deleted(kind):
    async with opened(kind) as store:
        assert await store.get_learned(SCOPE) is None
        assert await store.swap_learned(SCOPE, None, b"first")
        assert await store.swap_learned(OTHER, None, b"other")
        # another client has written meanwhile
        assert not await store.swap_learned(SCOPE, None, b"lost")
        assert not await store.swap_learned(SCOPE, b"before", b"lost")
        assert await store.swap_learned(SCOPE, b"first", b"second" * 100_000)
    async with opened(kind) as store:
        assert await store.get_learned(SCOPE) == b"second" * 100_000
        await store.drop_learned(SCOPE)
        assert await store.get_learned(SCOPE) is None
        assert not await store.swap_learned(SCOPE, b"second" * 100_000, b"lost")
        assert await store.get_learned(OTHER) == b"other"


async def test_what_is_stored_outlives_the_store(durable):
    async with opened(durable) as store:
        await store.describe(SCOPE, {"model": "m"})
        await store.put_predictions([stored(0)])
        await store.put_vectors("e", [b"h" * 16], unit(1))
    async with opened(durable) as store:
        assert await store.get_predictions([stored(0).key]) == [stored(0).prediction]
        assert (await store.get_vectors("e", [b"h" * 16]))[0].tolist() == unit(1)[0].tolist()
        assert await store.forget(model="m") == 1


async def test_an_embedder_may_have_any_name(durable):
    name = "our\0own\x1a1"
    async with opened(durable) as store:
        await store.put_vectors(name, [b"h" * 16], unit(1))
        assert await store.embedders() == [(name, unit(1).shape[1])]
        assert (await store.get_vectors(name, [b"h" * 16]))[0] is not None


async def test_two_stores_on_the_same_content(durable):
    async with opened(durable) as one, opened(durable) as two:
        await one.put_predictions([stored(0, "one")])
        assert await two.put_predictions([stored(0, "two")]) == [Prediction("one", 0.5)]

        async def put(store, who):
            return [await store.put_predictions([stored(i, who)]) for i in range(1, 60)]

        assert len(set(map(str, await asyncio.gather(put(one, "one"), put(two, "two"))))) == 1


async def test_a_closed_store_is_opened_again_by_open_alone(durable):
    store = durable.make()
    await store.close()
    await store.open()
    await store.put_predictions([stored(0)])
    await store.close()
    await store.close()
    for late in (
        store.get_predictions([stored(0).key]),
        store.put_predictions([stored(1)]),
        store.count(b"s" * 16),
    ):
        with pytest.raises(StoreError, match="is closed"):
            await late
    await store.open()
    assert await store.get_predictions([stored(0).key, stored(1).key]) == [
        stored(0).prediction,
        None,
    ]
    await store.close()


async def test_a_store_that_two_have_opened_is_closed_by_the_second(durable):
    store = durable.make()
    await store.open()
    await store.open()
    await store.close()
    await store.put_predictions([stored(0)])
    await store.close()
    with pytest.raises(StoreError, match="is closed"):
        await store.get_predictions([stored(0).key])


async def test_a_cancelled_caller_undoes_nothing(durable):
    async with opened(durable) as store:
        task = asyncio.create_task(store.put_predictions([stored(0)]))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.put_predictions([stored(1)])
        assert None not in await store.get_predictions([stored(0).key, stored(1).key])


# -- vectors ---------------------------------------------------------------------------------------


async def test_vectors_come_back_bit_for_bit(durable):
    vectors = unit(1_200, 24)
    hashes = [hash_text(str(i)) for i in range(1_200)]
    async with opened(durable) as store:
        await store.put_vectors("e", hashes[:700], vectors[:700])
        await store.put_vectors("e", hashes[500:], -vectors[500:])
        found = await store.get_vectors("e", [*hashes, b"?" * 16])
        assert found[-1] is None
        assert (np.stack(found[:700]) == vectors[:700]).all(), "the first one stays"
        assert (np.stack(found[700:-1]) == -vectors[700:]).all()
        assert found[0].dtype == np.float16
        assert await store.get_vectors("another", hashes[:1]) == [None]


async def test_another_dimension_under_the_same_name_is_refused(durable):
    async with opened(durable) as store:
        await store.put_vectors("e", [b"h" * 16], unit(1, 8))
        with pytest.raises(StoreError, match=r"dimension 8 .*'e'.* dimension 4; give the embedder"):
            await store.put_vectors("e", [b"i" * 16], unit(1, 4))
        pool = store.pool("e")
        with pytest.raises(StoreError, match="another `name`"):
            await pool.add(entries(["a"]), unit(1, 4))
        await pool.close()
        await store.put_vectors("other", [b"i" * 16], unit(1, 4))
        assert await store.get_vectors("e", [b"i" * 16]) == [None]


async def test_a_spoiled_vector_is_not_stored(durable):
    vectors = unit(2)
    vectors[1, 3] = np.nan
    async with opened(durable) as store:
        with pytest.raises(EmbeddingError, match="NaN"):
            await store.put_vectors("e", [b"a" * 16, b"b" * 16], vectors)
        assert await store.get_vectors("e", [b"a" * 16]) == [None]


async def test_all_that_is_stored_can_be_read_page_by_page(durable):
    rows = [stored(i, scope=OTHER if i % 3 else SCOPE, sample=i % 2) for i in range(25)]
    hashes = [hash_text(str(i)) for i in range(12)]
    async with opened(durable) as store:
        assert (await store.scopes(), await store.embedders()) == ([], [])
        assert (await store.predictions(), await store.vectors("e")) == ([], [])
        await store.describe(SCOPE, {"model": "m", "labels": ["a"]})
        await store.put_predictions(rows)
        await store.put_vectors("e", hashes, unit(12))
        await store.put_vectors("other", hashes, unit(12, 4))
        assert dict(await store.scopes()) == {SCOPE: {"model": "m", "labels": ["a"]}, OTHER: {}}
        assert sorted(await store.embedders()) == [("e", 8), ("other", 4)]
        seen, after = [], b""
        while page := await store.predictions(after, 10):
            assert len(page) <= 10
            seen += page
            after = page[-1].key
        assert sorted(seen, key=lambda r: r.key) == sorted(rows, key=lambda r: r.key)
        first = await store.vectors("e", count=7)
        rest = await store.vectors("e", first[-1][0], 7)
        expected = dict(zip(hashes, unit(12).tolist(), strict=True))
        assert {h: v.tolist() for h, v in first + rest} == expected


# -- the pool --------------------------------------------------------------------------------------


async def test_the_pool_outlives_the_process(durable):
    vectors = unit(30)
    names = [f"text {i}" for i in range(30)]
    async with pool_of(durable) as pool:
        assert len(pool) == 0
        upto = await pool.add(entries(names), vectors)
        before = await pool.search(vectors, 5, exclude=[hash_text(n) for n in names], upto=upto)
    async with pool_of(durable) as pool:
        assert len(pool) == 30
        after = await pool.search(vectors, 5, exclude=[hash_text(n) for n in names])
        assert after.ids.tolist() == before.ids.tolist()
        assert after.similarities.tobytes() == before.similarities.tobytes()
        assert [t.text for t in await pool.fetch(after.ids[0])]
        found = await pool.stored_vectors([hash_text(n) for n in [*names, "?"]])
        assert found[-1] is None
        assert (np.stack(found[:-1]) == vectors).all()
    async with pool_of(durable, "another") as pool:
        assert len(pool) == 0, "each embedder has its own pool"


async def test_a_text_is_in_the_pool_once(kind):
    vectors = unit(3)
    async with pool_of(kind) as pool:
        await pool.add(entries(["a", "b", "a"]), vectors)
        await pool.add(entries(["b", "c"]), unit(2, seed=1))
        assert len(pool) == 3
        kept = await pool.stored_vectors([hash_text("b")])
        assert kept[0].tolist() == vectors[1].tolist()


async def test_known_labels_are_kept(durable):
    vectors = unit(3)
    async with pool_of(durable) as pool:
        await pool.add(entries(["a", "b", "c"], ["refund", None, None]), vectors)
        await pool.add(entries(["a", "b"], [None, "login"]), vectors[:2])
    async with pool_of(durable) as pool:
        labels = await pool.labels([hash_text(t) for t in "abc?"])
        assert labels == ["refund", "login", None, None]
        texts, following = await pool.scan(0, 10)
        assert [(t.text, t.label) for t in texts] == [("a", "refund"), ("b", "login"), ("c", None)]
        assert following is None


async def test_some_texts_of_the_pool_are_searched_alone(durable):
    names = [f"text {i}" for i in range(300)]
    vectors, other = unit(300), Pool()
    async with pool_of(durable) as pool:
        assert (await pool.rows([hash_text("text 1")])).tolist() == []
        assert await pool.labeled() == {}
        assert (await pool.search(vectors, 2, among=np.arange(3))).ids.max() == -1
        labels = ["x" if i % 100 == 7 else None for i in range(300)]
        for one in (pool, other):
            upto = await one.add(entries(names[:250], labels[:250]), vectors[:250])
            await one.add(entries(names[250:]), vectors[250:])
            await one.remove([hash_text("text 3"), hash_text("text 107")])
            assert await one.labeled() == {hash_text("text 7"): "x", hash_text("text 207"): "x"}
            some = [hash_text(n) for n in (*names[299:0:-3], "unknown")]
            rows = await one.rows(some)
            assert rows.tolist() == [i for i in range(2, 300, 3) if i != 107]
            for limit, end in ((None, 300), (upto, 250)):
                for queries in (slice(0, 40), slice(2, 3)):
                    found = await one.search(
                        vectors[queries],
                        4,
                        exclude=[hash_text(n) for n in names[queries]],
                        upto=limit,
                        among=rows,
                    )
                    inside = rows[rows < end]
                    cosines = vectors[queries].astype(float) @ vectors[inside].astype(float).T
                    cosines[np.arange(300)[queries, None] == inside] = -2
                    best = inside[np.argsort(-cosines, axis=1)[:, :4]]
                    assert found.ids.tolist() == best.tolist()
            assert (await one.search(vectors[:2], 4, among=rows[:0])).ids.max() == -1
    await other.close()


async def test_what_is_removed_stays_removed(durable):
    vectors = unit(6)
    names = list("abcdef")
    async with pool_of(durable) as pool:
        await pool.add(entries(names, ["x"] * 6), vectors)
        gone = [hash_text("b"), hash_text("?"), hash_text("e"), hash_text("b")]
        assert await pool.remove(gone) == 2
        assert await pool.remove(gone) == 0
        assert len(pool) == 4
    async with pool_of(durable) as pool:
        assert len(pool) == 4
        matches = await pool.search(vectors[:1], 10)
        ids = [i for i in matches.ids[0].tolist() if i >= 0]
        assert sorted(t.text for t in await pool.fetch(np.array(ids))) == ["a", "c", "d", "f"]
        # its number is not used again, and its label is forgotten
        await pool.add(entries(["b"]), vectors[1:2])
        matches = await pool.search(vectors[1:2], 1)
        assert matches.ids[0, 0] not in [*ids, 1, 4]
        assert await pool.labels([hash_text("b")]) == [None]
        assert len(pool) == 5
        scanned, _ = await pool.scan(0, 100)
        assert [t.text for t in scanned] == ["a", "c", "d", "f", "b"]


async def test_a_snapshot_does_not_see_what_came_later(kind):
    vectors = unit(20)
    async with pool_of(kind) as pool:
        upto = await pool.add(entries([f"old {i}" for i in range(10)]), vectors[:10])
        await pool.add(entries([f"new {i}" for i in range(10)]), vectors[10:])
        assert (await pool.search(vectors, 20, upto=upto)).ids.max() < upto
        assert (await pool.search(vectors, 20)).ids.max() >= upto
        assert await pool.add([], unit(0)) == 20


async def test_scanning_goes_on_where_it_stopped(kind):
    async with pool_of(kind) as pool:
        assert await pool.scan(0, 5) == ([], None)
        await pool.add(entries([f"{i}" for i in range(12)]), unit(12))
        seen, start = [], 0
        while start is not None:
            texts, start = await pool.scan(start, 5)
            seen += [t.text for t in texts]
        assert seen == [f"{i}" for i in range(12)]


async def test_pools_on_the_same_content_see_each_other(durable):
    vectors = unit(40)
    async with pool_of(durable) as one, pool_of(durable) as two:
        await one.add(entries([f"one {i}" for i in range(10)]), vectors[:10])
        assert (await two.search(vectors[:1], 10)).ids[0].min() >= 0
        await asyncio.gather(
            one.add(entries([f"one {i}" for i in range(10, 20)]), vectors[10:20]),
            two.add(entries([f"two {i}" for i in range(20, 40)]), vectors[20:]),
        )
        first, second = await one.search(vectors, 40), await two.search(vectors, 40)
        assert first.ids.tolist() == second.ids.tolist()
        await two.remove([hash_text("one 0")])
        assert (await one.search(vectors[:1], 1)).ids.tolist() != [[0]]
        assert (await one.search(vectors, 40)).ids.tolist() == (
            await two.search(vectors, 40)
        ).ids.tolist()
        assert len(one) == len(two) == 39


def batch(number, scope=SCOPE, created=1.0):
    facts = {"provider": "openai", "labels": ["a", "b\0"], "none_label": None}
    return StoredBatch(bytes([number]) * 16, scope, facts, 2, created, b"items")


async def test_a_batch_is_open_until_it_has_ended(kind):
    async with opened(kind) as store:
        assert isinstance(store, BatchStore)
        await store.put_batch(batch(2, created=2.0), b"me", 60)
        await store.put_batch(batch(1), b"me", 60)
        await store.put_batch(batch(3, OTHER), b"me", 60)
        await store.put_batch(replace(batch(1), items=b"other"), b"you", 60)
    async with opened(kind) as store:
        assert await store.batches(SCOPE) == [batch(1), batch(2, created=2.0)]
        await store.note_batch(batch(1).id, "remote-1")
        assert (await store.batches(SCOPE))[0] == replace(batch(1), remote_id="remote-1")
        used = Usage(calls=2, input_tokens=None, output_tokens=None, usd=0.25)
        assert await store.end_batch(batch(1).id, "completed", used)
        assert not await store.end_batch(batch(1).id, "expired", Usage())
        assert not await store.end_batch(b"?" * 16, "expired", Usage())
        assert await store.batches() == [batch(3, OTHER), batch(2, created=2.0)]
        ended = replace(batch(1), remote_id="remote-1", items=b"", outcome="completed", usage=used)
        assert ended in await store.batches(ended=True)
        assert len(await store.batches(ended=True)) == 3
        assert await store.batches(OTHER, ended=True) == [batch(3, OTHER)]


async def test_one_process_holds_a_batch_until_it_lets_go(kind):
    async with opened(kind) as store:
        await store.put_batch(batch(1), b"me", 60)
        assert not await store.claim_batch(batch(1).id, b"you", 60)
        # its owner may claim it for a shorter time than before
        assert await store.claim_batch(batch(1).id, b"me", 0.02)
        await asyncio.sleep(0.1)
        claims = [store.claim_batch(batch(1).id, bytes([i]), 60) for i in range(5)]
        assert sorted(await asyncio.gather(*claims)) == [False] * 4 + [True]
        await store.end_batch(batch(1).id, "completed", Usage())
        assert not await store.claim_batch(batch(1).id, b"me", 60)
        assert not await store.claim_batch(b"?" * 16, b"me", 60)


@pytest.mark.parametrize("hours", [1, 24 * 365])
async def test_a_clock_that_is_set_back_holds_no_batch(kind, hours, monkeypatch):
    async with opened(kind) as store:
        if not hasattr(store, "_now"):
            return  # in memory: a clock that nobody sets
        with monkeypatch.context() as ahead:
            now = f"({store._now} + {hours * 3600} * {store._second})"
            ahead.setattr(type(store), "_now", now)
            await store.put_batch(batch(1), b"me", 60)
            assert not await store.claim_batch(batch(1).id, b"you", 60)
        assert await store.claim_batch(batch(1).id, b"you", 60)
        assert not await store.claim_batch(batch(1).id, b"me", 60)


# -- an embedder that does not know its dimension --------------------------------------------------


class Unmeasured(HashEmbedder):
    """Knows its dimension only from its first vectors on."""

    def __init__(self):
        super().__init__(32)

    @property
    def dim(self):
        if not self.known:
            raise EmbeddingError("the dimension is known after the first embedding")
        return 32

    @dim.setter
    def dim(self, value):
        """Do not keep it."""

    name, known = "unmeasured", False

    async def embed(self, texts):
        self.known = True
        return await super().embed(texts)


@pytest.mark.parametrize("method", [StandardPrompting(), TopKICL(k=2)])
async def test_the_store_knows_the_dimension_of_an_embedder(durable, method):
    texts = messages(20)
    options = {"method": method, "policy": "weighted", "k": 0}
    for run in range(2):
        embedder = Unmeasured()
        async with (
            LoopbackLLM(confident) as llm,
            TestNUC(LABELS, "openai/test", base_url=llm.base_url, embedder=embedder,
                    store=durable.make(), **options) as nuc,
        ):  # fmt: skip
            if run:
                # nothing is embedded only to learn the dimension
                assert await nuc._parts.embedding.vectors([]) is not None
            results = await nuc.classify_many(texts)
            assert len(await nuc.classify_many([])) == 0
            assert all(r.label is not None for r in results)
            await nuc.predict_pool()
            await nuc.diagnose()
        assert embedder.embedded == (20 if run == 0 else 0)
