"""Texts are erased: of a store, and of what learned from them, nothing of them is left."""

from __future__ import annotations

import json
import zlib

import pytest

from testnuc._base.checks import hash_text
from testnuc._engine.learning import erase_texts
from testnuc.errors import InvalidInputError, StoreError
from testnuc.server.served import TrafficSample, set_summary
from testnuc.stores.export import dump
from testnuc.stores.sqlite import SqliteStore
from testnuc.stores.sqlite.database import SqliteDatabase
from testnuc.stores.sqlite.pool import SqlitePool
from testnuc.trust.audit import AuditWeek, is_audit
from tests._engine.test_learning import Clustered, Says, client, gold, noisy, texts_of
from tests.server.test_auditing import result
from tests.stores.contents import entries, is_open, unit
from tests.stores.test_stores import durable  # noqa: F401

TEXTS = texts_of(60)
GONE = "c3 Ada Lovelace, 12 St James's Square"


def said(text):
    # what a model says beside its labels is stored, too
    return "Ada" if text == GONE else noisy(text)


async def filled(store):
    """Fill a store with predictions, what was learned, and texts set aside; return the answers."""
    async with client(Says(said), store=store, policy="majority", k=3) as nuc:
        await nuc.classify_many([*TEXTS, GONE])
        learned = await nuc.learn([GONE, *TEXTS[:20]], [gold(t) for t in [GONE, *TEXTS[:20]]])
        sample = TrafficSample(nuc, 5)
        for text in (GONE, GONE, *TEXTS[:2]):
            sample.note(result(text, gold(text)))
        await sample.flush()
        await set_summary(nuc._parts.store, sample.latest, {"judged": 3})
        return learned


async def contents(store):
    """Return all that a store exports, and what was learned as it was before it was packed."""
    async with is_open(store):
        records = [record async for part in dump(store) for record in part]
        kept = dict(await store.learned())
    plain = [data if data[:1] == b"{" else zlib.decompress(data) for data in kept.values()]
    assert "vector" not in {record["kind"] for record in records}, "all vectors are of texts"
    return json.dumps(records).encode() + b"".join(plain), plain


async def test_nothing_of_a_text_is_left(durable):  # noqa: F811
    learned = await filled(durable.make())
    before, _ = await contents(durable.make())
    assert b"Ada" in before
    assert hash_text(GONE).hex().encode() in before
    async with client(Says(said), store=durable.make(), policy="majority", k=3) as nuc:
        assert await nuc.remove([GONE, "never seen"], erase=True) == 1
        assert len(nuc) == len(TEXTS)
        assert len(nuc.learned.judged) == 20
        # as numbers, judgments prove what they proved
        assert str(nuc.learned.accuracy()) == str(learned.accuracy())
        # it needs the label of each judged text
        assert nuc.learned.macro_f1().needed == learned.macro_f1().needed + 1
        assert await nuc.remove([GONE], erase=True) == 0
        answers = await nuc.classify_many(TEXTS)
        assert GONE not in {near.text for row in answers for near in row.neighbors}
        # a text that comes again is a new one
        assert (await nuc.classify(GONE)).source != "person"
        assert await nuc.remove([GONE], erase=True) == 1
    after, plain = await contents(durable.make())
    assert b"Ada" not in after
    assert hash_text(GONE).hex().encode() not in after
    (week,) = [AuditWeek.of(data) for data in plain if is_audit(data)]
    assert ({one.text for one in week.sample}, week.texts) == ({*TEXTS[:2]}, 4)


async def test_a_sample_of_the_traffic_that_loses_a_text_does_not_grow_again(tmp_path):
    async with client(Says(said), store=tmp_path / "labels.db", policy="majority", k=3) as nuc:
        sample = TrafficSample(nuc, 5)

        async def kept(texts):
            for text in texts:
                sample.note(result(text, gold(text)))
            await sample.flush()
            return {one.text for one in sample.latest.sample}

        first = await kept(TEXTS[:40])
        await nuc.remove([*first][:2], erase=True)
        # others with a higher random number are forgotten, so the next texts are not sure to be in
        assert len(await kept(TEXTS[40:])) == 3
        await nuc.remove(TEXTS, erase=True)
        await kept(TEXTS[:5])
        # what is in the store is known by now
        assert len(await kept(TEXTS[5:9])) == 1


async def test_no_byte_of_it_is_left_in_the_files_while_others_use_them(tmp_path, monkeypatch):
    connect = SqliteDatabase.connect

    def connected(database):
        # as in a build of SQLite that does not overwrite what is deleted
        connection = connect(database)
        connection.execute("PRAGMA secure_delete = OFF")
        return connection

    monkeypatch.setattr(SqliteDatabase, "connect", connected)
    path = tmp_path / "labels.db"
    await filled(path)
    row = (await Clustered().embed([GONE])).astype("<f2").tobytes()
    async with client(Says(said), store=path, policy="majority", k=3) as other:
        await other.classify_many(TEXTS)
        async with is_open(SqliteStore(path)) as store:
            assert any(row in file.read_bytes() for file in tmp_path.glob("labels.db*"))
            assert await erase_texts(store, [hash_text(GONE)]) == {hash_text(GONE)}
            for file in tmp_path.glob("labels.db*"):
                content = file.read_bytes()
                for part in (b"Ada", b"St James", hash_text(GONE), row):
                    assert part not in content, file
        # the other process has learned of it
        again = await other.classify_many(TEXTS)
        assert GONE not in {near.text for row in again for near in row.neighbors}
        assert len(other) == len(TEXTS)


async def test_it_waits_until_others_have_written_the_log(tmp_path, monkeypatch):
    """As beside the traffic of a service: the caller got an error, and a 0 the next time."""
    path, busy = tmp_path / "labels.db", [(1, 3, 0), (1, 3, 3)]
    await filled(path)
    async with is_open(SqliteStore(path)) as store:
        rows = store._rows

        async def meanwhile(statement, *values):
            if "wal_checkpoint" in statement and busy:
                return [busy.pop()]
            return await rows(statement, *values)

        monkeypatch.setattr(store, "_rows", meanwhile)
        assert await erase_texts(store, [hash_text(GONE)]) == {hash_text(GONE)}
        assert not busy
        for file in tmp_path.glob("labels.db*"):
            assert b"St James" not in file.read_bytes()
        # it is never free
        monkeypatch.setattr("testnuc.stores.sqlite.store._TRIES", 2)
        busy += [(1, 3, 0)] * 2
        with pytest.raises(StoreError, match="is in use: what was erased is not in its tables"):
            await erase_texts(store, [hash_text(GONE)])


async def test_an_index_is_built_again_without_it(tmp_path):
    path, texts, vectors = tmp_path / "labels.db", entries(400), unit(400)
    folder = tmp_path / "labels.db.index" / "of"

    async def near():
        pool = SqlitePool(store.database, "e", folder, exact_below=100)
        matches = await pool.search(vectors[:1], 3)
        found = [entry.text for entry in await pool.fetch(matches.ids[0])]
        await pool.close()
        return found

    async with is_open(SqliteStore(path)) as store:
        pool = SqlitePool(store.database, "e", folder, exact_below=100)
        await pool.add(texts, vectors)
        await pool.close()
        assert vectors[0].tobytes() in b"".join(f.read_bytes() for f in folder.iterdir())
        first, *others = await near()
        assert first == "text 0"
        await erase_texts(store, [texts[0].hash])
        assert not folder.exists()
        assert (await near())[:2] == others
        assert vectors[0].tobytes() not in b"".join(f.read_bytes() for f in folder.iterdir())


async def test_what_cannot_be_read_or_erased_is_an_error(tmp_path):
    class Other:
        """A store of somebody's own."""

    with pytest.raises(InvalidInputError, match="Other cannot erase"):
        await erase_texts(Other(), [b""])
    async with is_open(SqliteStore(tmp_path / "labels.db")) as store:
        await store.swap_learned(b"k", None, b"from a later version")
        with pytest.raises(StoreError, match="damaged"):
            await erase_texts(store, [b""])
