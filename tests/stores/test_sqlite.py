"""The SQLite file: what is wrong with it is said, and nothing is damaged; migrations; threads."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

import testnuc
from testnuc.errors import InvalidInputError, StoreError
from testnuc.protocols import StoredPrediction
from testnuc.stores import resolve
from testnuc.stores.sqlite import SqliteStore, database
from testnuc.testing import HashEmbedder
from testnuc.types import Prediction
from tests.conftest import confident, messages


def stored(i, label="refund"):
    return StoredPrediction(i.to_bytes(16, "big"), b"s" * 16, b"t" * 16, 0, Prediction(label, 0.5))


async def refusal(path):
    store = SqliteStore(path)
    with pytest.raises(StoreError) as caught:
        await store.open()
    await store.close()
    return str(caught.value)


def content(path):
    return sha256(path.read_bytes()).hexdigest(), sorted(p.name for p in path.parent.iterdir())


@pytest.fixture
async def filled(tmp_path):
    """Return the path of a store with something in it."""
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    await store.put_predictions([stored(i) for i in range(2_000)])
    await store.put_vectors("e", [b"h" * 16], np.ones((1, 8), np.float16))
    await store.close()
    return path


# -- what a path means -----------------------------------------------------------------------------


def test_a_path_is_an_sqlite_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert isinstance(resolve("s.db"), SqliteStore)
    assert resolve(Path("s.db")).path == tmp_path / "s.db"
    assert "s.db" in repr(resolve("s.db"))
    assert list(tmp_path.iterdir()) == [], "nothing is made before it is used"


@pytest.mark.parametrize("wrong", ["sqlite:///s.db", "mysql://host", "", ":memory:", 3, b"s.db"])
def test_what_is_no_path_is_refused(wrong):
    with pytest.raises(InvalidInputError):
        resolve(wrong)


def test_synchronous_is_one_of_two(tmp_path):
    with pytest.raises(InvalidInputError, match="choose from normal, full"):
        SqliteStore(tmp_path / "s.db", synchronous="off")


# -- what can be wrong -----------------------------------------------------------------------------


async def test_a_folder(tmp_path):
    assert "is a folder; use the path of a file" in await refusal(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="platform: no pipes")
async def test_a_pipe_which_nobody_writes_to_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "s.db")
    assert "is a pipe or a device; use the path of a file" in await refusal(tmp_path / "s.db")


async def test_a_missing_folder(tmp_path):
    message = await refusal(tmp_path / "missing" / "s.db")
    assert "does not exist" in message
    assert "create it" in message
    assert list(tmp_path.iterdir()) == []


async def test_not_an_sqlite_file(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("my notes, not yours\n" * 100)
    before = content(path)
    assert "is not an SQLite file and was not changed" in await refusal(path)
    assert content(path) == before


@pytest.mark.parametrize("application", [0, 0x0F055112])
@pytest.mark.parametrize("journal", ["delete", "wal"])
async def test_the_file_of_another_program(tmp_path, application, journal):
    path = tmp_path / "browser.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute(f"PRAGMA journal_mode = {journal}")
    other.execute(f"PRAGMA application_id = {application}")
    other.execute("CREATE TABLE history (url TEXT)")
    other.close()
    before = content(path)
    assert "the SQLite database of another program and was not changed" in await refusal(path)
    assert content(path) == before


@pytest.mark.parametrize("start", [16, 100])
async def test_a_damaged_head(filled, start):
    raw = bytearray(filled.read_bytes())
    raw[start : start + 30] = b"\xff" * 30
    filled.write_bytes(raw)
    before = content(filled)
    message = await refusal(filled)
    assert "corrupt" in message or "another program" in message
    assert content(filled) == before


async def test_a_file_that_another_process_is_writing_does_not_seem_corrupt(filled):
    """Its first page may say that there are more pages than there are yet."""
    filled.write_bytes(filled.read_bytes()[:4096])
    database.check_file(str(filled))
    assert "is corrupt" in await refusal(filled)


async def test_a_damaged_page_is_found_where_it_is_read(filled):
    raw = bytearray(filled.read_bytes())
    raw[8 * 4096 :] = os.urandom(len(raw) - 8 * 4096)
    filled.write_bytes(raw)
    store = SqliteStore(filled)
    with pytest.raises(StoreError, match=r"is corrupt .*restore a backup"):
        await store.get_predictions([stored(i).key for i in range(2_000)])
    await store.close()


async def test_a_full_disk_costs_what_does_not_fit_and_nothing_else(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "testnuc")
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    await store.put_predictions([stored(i) for i in range(100)])
    await store.database.write(
        lambda c: c.execute(
            f"PRAGMA max_page_count = {c.execute('PRAGMA page_count').fetchone()[0] + 2}"
        ).fetchone()
    )
    with pytest.raises(StoreError, match=r"disk is full .*nothing stored is lost"):
        await store.put_predictions([stored(i) for i in range(100, 5_000)])
    # what fits is stored beside what does not
    big = store.put_predictions([stored(i) for i in range(5_000, 9_000)])
    outcomes = await asyncio.gather(big, store.put_predictions([stored(1)]), return_exceptions=True)
    assert isinstance(outcomes[0], StoreError)
    assert outcomes[1] == [stored(1).prediction]
    found = await store.get_predictions([stored(i).key for i in range(5_000)])
    assert [p is not None for p in found] == [True] * 100 + [False] * 4_900
    assert not caplog.messages
    # room was made
    await store.database.write(lambda c: c.execute("PRAGMA max_page_count = 100000").fetchone())
    monkeypatch.setattr(database, "_SILENT", 0.0)
    await store.put_predictions([stored(i) for i in range(100, 5_000)])
    await store.put_predictions([stored(1)])
    assert caplog.messages == [f"the store {path} takes writes again"]
    await store.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


_OPEN = """
import asyncio, os, sys
from testnuc.errors import StoreError
from testnuc.stores.sqlite import SqliteStore
os.setgid(65534); os.setuid(65534)
async def main():
    store = SqliteStore(sys.argv[1])
    try:
        await store.open()
    except StoreError as exc:
        print(exc)
    await store.close()
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0,
    reason="platform: root alone changes users",
)
@pytest.mark.parametrize(
    ("mode", "folder_mode", "says"),
    [
        (0o444, 0o777, "to a writable folder"),
        (0o666, 0o555, "change the owner of the folder"),
        (0o222, 0o777, "check the permissions of the file"),
    ],
)
def test_a_file_or_folder_without_permissions(tmp_path, mode, folder_mode, says):
    # a folder that others may enter: those of pytest are its user's alone

    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        path = Path(folder) / "store.db"
        asyncio.run(_make(path))
        path.chmod(mode)
        Path(folder).chmod(folder_mode)
        before = content(path)
        said = subprocess.run(
            [sys.executable, "-c", _OPEN, path], capture_output=True, text=True, check=False
        )
        assert says in said.stdout, said.stderr
        assert content(path) == before


async def _make(path):
    store = SqliteStore(path)
    await store.put_predictions([stored(0)])
    await store.close()


async def test_a_process_that_writes_for_too_long(filled, monkeypatch):
    monkeypatch.setattr("testnuc.stores.sqlite.database._SILENT", 0.01)
    monkeypatch.setattr("testnuc.stores.sqlite.database._BUSY_TIMEOUT", 0.02)
    other = sqlite3.connect(filled, isolation_level=None)
    store = SqliteStore(filled)
    await store.open()
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked by another process"):
        await asyncio.gather(*(store.put_predictions([stored(i)]) for i in range(9_000, 9_009)))
    assert await store.get_predictions([stored(0).key]) == [stored(0).prediction]
    other.execute("ROLLBACK")
    other.close()
    assert await store.put_predictions([stored(9_000)]) == [stored(9_000).prediction]
    await store.close()


async def test_the_error_reaches_who_classifies(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("my notes")
    client = testnuc.TestNUC(
        ["a", "b"], "openai/x", api_key="k", embedder=HashEmbedder(), store=path
    )
    with pytest.raises(StoreError, match="not an SQLite file"):
        await client.classify("text")
    # which closes the client
    with pytest.raises(StoreError, match="not an SQLite file"):
        async with client:
            pass


# -- the file --------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="platform: an open file cannot be deleted")
@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_a_file_that_is_deleted_meanwhile_ends_the_run_that_would_pay_for_nothing(
    loopback, tmp_path, how
):
    store = tmp_path / "s.db"

    def answer(text):
        if llm.calls == 20:
            store.rename(tmp_path / "away.db")
            if how == "replaced":
                store.write_bytes(b"")
        return confident(text)

    async with loopback(answer, store=store, k=0, max_concurrency=2) as (llm, nuc):
        results = await nuc.classify_many(messages(200))
    assert isinstance(results.stopped, StoreError)
    assert "deleted or replaced while it was open" in str(results.stopped)
    assert llm.calls < 60
    assert sum(label is not None for label in results.labels) >= 20


async def test_migrations_run_once_each_and_whole(filled, monkeypatch):
    more = (("CREATE TABLE extra (x INTEGER)", "INSERT INTO extra VALUES (1)"),)
    newest = len(database.MIGRATIONS) + len(more)
    monkeypatch.setattr(database, "MIGRATIONS", database.MIGRATIONS + more)
    stores = [SqliteStore(filled) for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    for store in stores:
        assert await store.get_predictions([stored(0).key]) == [stored(0).prediction]
        await store.close()
    broken = (("CREATE TABLE half (x INTEGER)", "CREATE NONSENSE"),)
    monkeypatch.setattr(database, "MIGRATIONS", database.MIGRATIONS + broken)
    assert "syntax error" in await refusal(filled)
    with sqlite3.connect(filled) as connection:
        assert connection.execute("SELECT count(*) FROM extra").fetchone()[0] == 1
        assert connection.execute("PRAGMA user_version").fetchone()[0] == newest
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    connection.close()
    assert "half" not in names


async def test_many_make_the_file_at_once(tmp_path):
    stores = [SqliteStore(tmp_path / "store.db") for _ in range(8)]
    await asyncio.gather(*(s.put_predictions([stored(i)]) for i, s in enumerate(stores)))
    found = await stores[0].get_predictions([stored(i).key for i in range(8)])
    assert None not in found
    await asyncio.gather(*(s.close() for s in stores))


def test_a_second_store_on_a_file_leaves_the_locks_of_the_first(tmp_path):
    """A process loses its locks on a file whenever it closes that file, by whatever descriptor."""
    path = tmp_path / "store.db"
    first, second = SqliteStore(path), SqliteStore(path)
    with asyncio.Runner() as runner:
        runner.run(first.put_predictions([stored(1)]))
        runner.run(second.open())
    # another process that finds no lock takes itself for the last, and deletes the log
    use = f"import sqlite3; c = sqlite3.connect({str(path)!r}); c.execute('PRAGMA user_version')"
    code = f"{use}.fetchone(); c.execute('SELECT * FROM predictions').fetchall(); c.close()"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert path.with_name("store.db-wal").exists()
    asyncio.run(first.close())
    asyncio.run(second.close())


async def test_an_empty_file_becomes_a_store(tmp_path):
    path = tmp_path / "made-by-mktemp"
    path.touch()
    await _make(path)
    assert path.stat().st_size > 0


async def test_concurrent_writes_share_a_commit(tmp_path):
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    commits = []
    await store.database.write(
        lambda c: c.set_trace_callback(lambda s: commits.append(s) if s == "COMMIT" else None)
    )
    await asyncio.gather(*(store.put_predictions([stored(i)]) for i in range(1_000)))
    assert len(commits) < 30
    await store.close()


async def test_one_bad_write_does_not_fail_those_beside_it(tmp_path):
    store = SqliteStore(tmp_path / "store.db")
    await store.open()

    def bad(_connection):
        raise StoreError("mine")

    outcomes = await asyncio.gather(
        *(store.put_predictions([stored(i)]) for i in range(5)),
        store.database.write(bad),
        *(store.put_predictions([stored(i)]) for i in range(5, 10)),
        return_exceptions=True,
    )
    assert [str(o) for o in outcomes if isinstance(o, Exception)] == ["mine"]
    assert None not in await store.get_predictions([stored(i).key for i in range(10)])
    await store.close()


async def test_a_model_is_forgotten_in_all_its_scopes_or_in_none(tmp_path):
    path = tmp_path / "s.db"
    scopes = [bytes([i]) * 16 for i in range(2)]
    store = SqliteStore(path)
    for i, scope in enumerate(scopes):
        await store.describe(scope, {"model": "m"})
        await store.put_predictions(
            [StoredPrediction(bytes([i]) * 16, scope, b"t" * 16, 0, Prediction("a", 0.5))]
        )
    with sqlite3.connect(path) as file:
        file.execute(
            "CREATE TRIGGER last BEFORE DELETE ON predictions WHEN old.scope = 2 "
            "BEGIN SELECT RAISE(ABORT, 'not this one'); END"
        )
    file.close()
    with pytest.raises(StoreError):
        await store.forget(model="m")
    assert [await store.count(scope) for scope in scopes] == [1, 1]
    with sqlite3.connect(path) as file:
        file.execute("DROP TRIGGER last")
    file.close()
    assert await store.forget(model="m") == 2
    await store.close()
