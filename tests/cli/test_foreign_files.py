"""What files, stores and a settings file from somebody else may decide."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import asdict

import orjson
import pytest

from bench._batch_api import Batches, BatchLLM
from testnuc.cli.settings import _is_here
from testnuc.testing import LoopbackLLM
from tests.cli.in_process import ran, run_here
from tests.conftest import LABELS, confident, messages

ELSEWHERE = "https://models.example/v1"


@pytest.fixture
def results(tmp_path):
    """Return the file of a run with its options, as somebody may send it."""
    (tmp_path / "in.txt").write_text("\n".join(messages(120)))
    with LoopbackLLM(confident) as llm:
        ran(
            "classify", "in.txt", "--labels", ",".join(LABELS), "--model", "openai/test", "--full",
            "--base-url", llm.base_url, "-o", "results.jsonl",
        )  # fmt: skip
    return tmp_path / "results.jsonl"


def store_in(folder):
    (store,) = (folder / ".testnuc").glob("answers-*.db")
    return store


def with_option(file, **options):
    path = file.with_name(f"{file.name}.resume") / "output.json"
    note = orjson.loads(path.read_bytes())
    path.write_bytes(orjson.dumps(note | {"options": note["options"] | options}))


@pytest.mark.parametrize("name", ["./minilm", "minilm", "someone/minilm"])
@pytest.mark.parametrize("command", ["review", "learn", "distill", "diagnose"])
def test_a_file_of_results_does_not_say_which_folder_is_loaded(
    results, tmp_path, monkeypatch, command, name
):
    with_option(results, embedder=name)
    # as it is sent: without its store
    store_in(tmp_path).unlink()
    folder = tmp_path / "minilm"
    folder.mkdir()
    (folder / "modules.json").write_text('[{"type": "modeling_own.Own", "path": ""}]')
    (folder / "modeling_own.py").write_text("raise SystemExit")
    loaded = []
    kind = "testnuc.embedders.sentence_transformers.SentenceTransformersEmbedder._loaded"
    monkeypatch.setattr(kind, lambda self: loaded.append(self.name))
    (tmp_path / "marks.csv").write_text("text,right_label\na,refund\n")
    more = {"learn": ["marks.csv"], "distill": ["-o", "x.head"]}.get(command, [])
    code, _, err = run_here(command, "results.jsonl", *more, replaced=False)
    assert code == 2
    assert f"names the embedder {name!r}, which is loaded only if you name it" in err
    assert f"add --embedder {name}" in err
    assert not loaded


def test_stored_vectors_are_read_under_any_name(results, tmp_path):
    """A review of one's own run needs no embedder, so none has to be named."""
    with closing(sqlite3.connect(store_in(tmp_path))) as store:
        store.execute("UPDATE embedders SET name = 'static-minilm'")
        store.commit()
    with_option(results, embedder="static-minilm")
    _, err = ran("review", "results.jsonl", "-n", "30")
    assert "30 of 120 texts to judge" in err


SETTINGS = 'model = "openai/test"\nlabels = ["refund", "delivery", "login"]\nk = 0\n'


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(messages(12)))
    return tmp_path


@pytest.mark.parametrize(
    ("setting", "url"),
    [
        ("base_url", ELSEWHERE),
        ("base_url", "http://192.168.1.7:8000/v1"),
        ("base_url", "http://localhost.example/v1"),
        ("store", "postgresql://db.example/labels"),
        ("store", "postgresql:///labels?service=other"),
    ],
)
@pytest.mark.parametrize("command", ["classify", "evaluate", "serve"])
def test_a_settings_file_nobody_named_sends_nothing_elsewhere(folder, command, setting, url):
    (folder / "testnuc.toml").write_text(f'{SETTINGS}{setting} = "{url}"\n')
    code, out, err = run_here(command, *([] if command == "serve" else ["in.txt"]))
    assert (code, out) == (2, "")
    assert f"testnuc.toml in this folder sets {setting} to {url}, and the texts" in err
    assert "TESTNUC_CONFIG=testnuc.toml" in err


def test_an_address_that_the_user_names_is_used(folder):
    with LoopbackLLM(confident) as llm:
        (folder / "testnuc.toml").write_text(f'{SETTINGS}base_url = "{ELSEWHERE}"\n')
        for flags, environment in (
            (["--base-url", llm.base_url], {}),
            ([], {"TESTNUC_BASE_URL": llm.base_url}),
        ):
            _, err = ran("classify", "in.txt", *flags, **environment)
            assert "testnuc.toml" not in err
        (folder / "testnuc.toml").write_text(f'{SETTINGS}base_url = "{llm.base_url}"\n')
        _, err = ran("classify", "in.txt")
        # said, and before the first call
        said = "note: testnuc.toml in this folder sets base_url: the texts, and the key in the"
        assert err.startswith(said)
        for flags, environment in (
            (["--config", "testnuc.toml"], {}),
            ([], {"TESTNUC_CONFIG": "testnuc.toml"}),
        ):
            _, err = ran(*flags, "classify", "in.txt", **environment)
            assert "note: testnuc.toml" not in err


@pytest.mark.parametrize("command", ["report", "diagnose", "describe", "labels check"])
def test_a_command_that_sends_nothing_takes_any_address(results, tmp_path, command):
    (tmp_path / "testnuc.toml").write_text(f'base_url = "{ELSEWHERE}"\n')
    ran(*command.split(), "results.jsonl")


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://localhost:11434/v1", True),
        ("http://127.8.0.1/v1", True),
        ("http://[::1]:8000", True),
        ("http://[::2]:8000", False),
        ("http://127.0.0.1@models.example/v1", False),
        ("http://models.example/127.0.0.1", False),
        ("http://[::1", False),
        ("ftp://models.example", False),
        ("postgresql:///labels", True),
        ("postgresql://me@localhost/labels", True),
        ("postgresql://%2Fvar%2Frun%2Fpostgresql/labels", True),
        ("postgresql://localhost,db.example/labels", False),
        ("postgresql://localhost/labels?host=db.example", False),
        ("postgresql://localhost/labels?service=other", False),
    ],
)
def test_which_addresses_are_of_this_machine(url, here):
    assert _is_here(url) is here


@pytest.mark.parametrize("command", [["list"], ["resume"], ["cancel", "--all"]])
def test_a_store_does_not_say_where_the_key_goes(folder, command):
    """A batch at another server is asked for only where the user names the server."""
    polls = Batches(polls=1_000)
    with BatchLLM(confident, batches=polls) as llm, LoopbackLLM(confident) as foreign:
        store = folder / "store.db"
        left_behind(llm, store)
        address = move(store, "http://models.example/v1")
        _, out, err = run_here("batch", *command, store)
        assert "and the key would be sent there" in out + err
        assert f"--base-url {address}" in out + err
        # another one than the store's is not used, either
        _, out, err = run_here("batch", *command, store, "--base-url", foreign.base_url)
        assert "and the key would be sent there" in out + err
        assert foreign.requests == 0
        move(store, llm.base_url)
        for more in ([], ["--base-url", llm.base_url]):
            out, _ = ran("batch", "list", store, *more)
            assert "in_progress" in out


def left_behind(llm, store):
    import asyncio

    from tests.cli.test_batch import client
    from tests.waiting import until

    async def begin():
        async with client(llm, store) as nuc:
            run = asyncio.create_task(nuc.classify_many(messages(12), lane="batch"))
            await until(lambda: llm.batches == 1)
            await until(lambda: not nuc._parts.batch_lane._creating)
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)

    asyncio.run(begin())


def move(store, address):
    """Say that the batches of a store are at another server."""
    with closing(sqlite3.connect(store)) as opened:
        for batch, facts in opened.execute("SELECT id, facts FROM batches").fetchall():
            changed = json.dumps({**json.loads(facts), "base_url": address})
            opened.execute("UPDATE batches SET facts = ? WHERE id = ?", (changed, batch))
        opened.commit()
    return address


def test_an_index_names_only_a_file_of_its_folder():
    from testnuc.index.nearest import DamagedIndexError, SavedGraph

    made = asdict(SavedGraph(dim=8, rows=0, file="graph.0a", crc=0))
    assert SavedGraph.of(made).file == "graph.0a"
    for name in ("../graph.0a", "/etc/passwd", "..", "graph.0a/../../x", "other", 5):
        with pytest.raises(DamagedIndexError, match="names files outside of its folder"):
            SavedGraph.of({**made, "file": name})


@pytest.mark.parametrize("name", ["answered", "labels", "descriptions", "model"])
def test_facts_of_a_run_that_are_damaged_are_named(results, tmp_path, name):
    store, codes = store_in(tmp_path), set()
    for wrong in ("a", 7, ["a"], {"a": 1}, {"a": [1]}, [[1], None]):
        with closing(sqlite3.connect(store)) as opened, opened:
            opened.execute(
                "UPDATE scopes SET facts = json_set(facts, ?, json(?))",
                (f"$.{name}", json.dumps(wrong)),
            )
        for command in (["store", "runs"], ["diagnose"]):
            code, _, err = run_here(*command, store)
            codes.add(code)
            assert code in {0, 2}, err
            assert "Traceback" not in err
    assert 2 in codes
