"""What a store holds moves to another, from the command line, and nothing is requested again."""

from __future__ import annotations

import errno
import json
import sys
from base64 import b64encode
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from testnuc._base.checks import hash_text
from testnuc.errors import InvalidInputError
from testnuc.stores import export as moving
from testnuc.stores import resolve
from testnuc.testing import HashEmbedder, LoopbackLLM
from tests.cli.in_process import run_here
from tests.conftest import confident, gold, messages
from tests.stores.contents import client, is_open

TEXTS = messages(60)


def run(*arguments):
    """Run ``testnuc store``; returns exit code, stdout, stderr."""
    return run_here("store", *arguments)


async def contents(place):
    async with is_open(resolve(place)) as store:
        with patch.object(moving, "BATCH", 7):
            return [record async for batch in moving.dump(store) for record in batch]


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A store with all there can be: predictions, known labels, a vector outside the pool."""
    import asyncio

    path = tmp_path_factory.mktemp("filled") / "from.db"

    async def fill():
        async with LoopbackLLM(confident) as llm, client(llm.base_url, path) as nuc:
            await nuc.add(["keep me", "drop me"], labels=["login", "refund"])
            results = await nuc.classify_many(TEXTS)
            await nuc.remove(["drop me"])
            await nuc.learn(TEXTS[:20], [gold(text) for text in TEXTS[:20]])
        # the address is part of every key
        return llm.base_url, [(r.label, r.share, r.margin) for r in results]

    return path, *asyncio.run(fill())


async def same_labels(base_url, store, expected):
    """Label the same texts with another store: nothing may be asked or embedded."""
    embedder = HashEmbedder()
    async with client(base_url, store, embedder=embedder) as nuc:
        assert len(nuc.learned.judged) == 20
        again = await nuc.classify_many(TEXTS)
    assert nuc.usage.calls == 0
    assert embedder.embedded == 0
    # one voter that was there before is gone, so shares may differ where it voted
    assert [r.label for r in again] == [label for label, _, _ in expected]


KINDS = [".jsonl", ".parquet"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_to_another_file_and_again(filled, tmp_path, kind):
    import asyncio

    if kind == ".parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    path, base_url, expected = filled
    file, target = tmp_path / f"moved{kind}", tmp_path / "to.db"
    code, out, err = run("export", path, file)
    assert (code, out) == (0, "")
    assert "60 predictions, 61 texts, 1 other vectors, and what was learned" in err
    for _ in range(2):
        code, _, err = run("import", file, target)
        assert code == 0, err
        assert "60 predictions, 61 texts, 1 other vectors" in err
        assert asyncio.run(contents(target)) == asyncio.run(contents(path))
    asyncio.run(same_labels(base_url, target, expected))
    code, out, _ = run("runs", target)
    assert code == 0
    assert "60 answers, with judgments, openai/x" in out
    assert "61 texts, testnuc/hash-64-0, 64 dimensions" in out


def test_a_folder_that_became_read_only_is_an_error_in_words(filled, tmp_path, monkeypatch):
    def refused(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refused)
    monkeypatch.setattr(Path, "replace", refused)
    code, _, err = run("export", filled[0], tmp_path / "moved.jsonl")
    assert code == 2
    assert "moved.jsonl cannot be written: Read-only file system" in err


def test_to_postgresql_and_back(filled, tmp_path, database):
    import asyncio

    path, base_url, expected = filled
    file, back = tmp_path / "moved.jsonl", tmp_path / "back.jsonl"
    url = database.url("moved")
    assert run("export", path, file)[0] == 0
    for _ in range(2):
        code, _, err = run("import", file, url)
        assert code == 0, err
    assert run("export", url, back)[0] == 0
    assert sorted(back.read_bytes().splitlines()) == sorted(file.read_bytes().splitlines())
    asyncio.run(same_labels(base_url, url, expected))


async def test_what_is_there_already_stays(tmp_path):
    vector = moving.of_vector(np.eye(4, dtype=np.float16)[0])
    other = moving.of_vector(np.eye(4, dtype=np.float16)[1])
    scope, key = hash_text("scope").hex(), hash_text("key").hex()

    def records(label, vector, model):
        said = {"sample": 0, "label": label, "confidence": None, "said": None}
        return [
            {"kind": "scope", "scope": scope, "facts": {"model": model}},
            {"kind": "prediction", "key": key, "scope": scope, "hash": scope, **said},
            {"kind": "text", "embedder": "e", "text": "a", "label": label, "vector": vector},
            {"kind": "vector", "embedder": "e", "hash": key, "vector": vector},
            {"kind": "learned", "key": key, "data": b64encode(label.encode()).decode()},
        ]

    store = resolve(tmp_path / "store.db")
    for given in (records("refund", vector, "one"), records("login", other, "two")):
        counts = await moving.load(store, given)
        assert counts == dict.fromkeys(("scope", "prediction", "text", "vector", "learned"), 1)
    await store.close()
    assert await contents(tmp_path / "store.db") == records("refund", vector, "one")


PREDICTION = {
    **dict.fromkeys(("key", "scope", "hash"), "0" * 32), "kind": "prediction", "sample": 0,
    "label": "a", "confidence": 0.5, "said": None,
}  # fmt: skip
TEXT = {"kind": "text", "embedder": "e", "text": "a", "label": None, "vector": "ADwAAA=="}


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"kind": "planet"}, "unknown kind 'planet'"),
        ({"kind": "prediction", "key": "zz"}, "'zz' is not hexadecimal"),
        ({"kind": "prediction", "key": "00"}, "not a hash of 16 bytes"),
        ({**PREDICTION, "sample": "x"}, "is malformed: ValueError"),
        ({**PREDICTION, "sample": 2**70}, "is malformed: OverflowError"),
        *(
            # each would be a damaged row of the store, which no run could read
            ({**PREDICTION, **wrong}, r"is malformed: DamagedRowError\(.a prediction is")
            for wrong in (
                {"label": 5},
                {"said": 5},
                *({"confidence": value} for value in ("high", 5.0, -0.1, True)),
            )
        ),
        (
            {"kind": "scope", "scope": "0" * 32, "facts": ["ab", "c"]},
            "is malformed: DamagedRowError",
        ),
        *(
            ({"kind": "scope", "scope": "0" * 32, "facts": facts}, "is malformed: DamagedRowError")
            for facts in (
                {"labels": 5},
                {"labels": {"a": "b"}},
                {"labels": [["a"]]},
                {"labels": ["a", "b"], "descriptions": ["x"]},
                {"labels": ["a", "b"], "embedder": 5},
            )
        ),
        ({**TEXT, "text": 5}, "is malformed: AttributeError"),
        ({**TEXT, "label": 5}, "a value is 5"),
        ({"kind": "vector", "embedder": "e"}, "is malformed: KeyError"),
        ({"kind": "vector", "embedder": "e", "hash": "0" * 32, "vector": "AAA"}, "is malformed"),
        ({"kind": "vector", "embedder": "e", "hash": "0" * 32, "vector": ""}, "differ in length"),
        ({"kind": "vector", "embedder": "e", "hash": "0" * 32, "vector": "AHwAfA=="}, "NaN"),
    ],
)
async def test_a_record_that_cannot_be_read(tmp_path, record, problem):
    store = resolve(tmp_path / "store.db")
    with pytest.raises(InvalidInputError, match=problem):
        await moving.load(store, [record])
    await store.close()


@pytest.mark.slow
def test_mistakes_are_one_line_and_exit_code_2(filled, tmp_path):
    path, _, _ = filled
    file, target = tmp_path / "moved.jsonl", tmp_path / "to.db"
    run("export", path, file)
    whole = file.read_text()
    foreign = tmp_path / "foreign.db"
    foreign.write_text("no database " * 100)
    tickets = tmp_path / "tickets.jsonl"
    tickets.write_text('{"text": "of mine"}\n')
    cases = [
        (("export", tmp_path / "none.db", file), "there is no store"),
        (("export", foreign, file), "foreign.db"),
        (("export", path, tickets), "tickets.jsonl exists and is not an export of a store"),
        (("export", path, tmp_path / "a.csv"), "name a .jsonl or .parquet file"),
        (("export", path, tmp_path / "none" / "a.jsonl"), "no folder"),
        (("export", path, tmp_path / "a.parquet"), "pip install 'testnuc[parquet]'"),
        (("import", tmp_path / "none.jsonl", target), "there is no file"),
        (("import", file, foreign), "foreign.db"),
        (("import", file, "mysql://host/db"), "postgresql://"),
        (("runs", tmp_path / "none.db"), "there is no store"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pyarrow", None)
        for arguments, problem in cases:
            code, out, err = run(*arguments)
            assert (code, out) == (2, ""), (arguments, err)
            assert problem in err
            assert len(err.splitlines()) == 1
    assert tickets.read_text() == '{"text": "of mine"}\n'
    assert file.read_text() == whole, "an export that fails leaves the file as it was"
    assert sorted(p.name for p in tmp_path.glob("*.part")) == []

    file.write_text(whole[: whole.rindex("\n", 0, len(whole) // 2) + 1])
    code, _, err = run("import", file, target)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "is truncated" in err
    file.write_text(whole[: len(whole) // 2])
    code, _, err = run("import", file, target)
    assert code == 2
    assert "is not JSON" in err
    # the rest comes with the whole file
    file.write_text(whole)
    assert run("import", file, target)[0] == 0
    lines = [json.loads(line) for line in whole.splitlines()]
    assert lines[-1] == {
        "kind": "end",
        "counts": {"scope": 1, "prediction": 60, "text": 61, "vector": 1, "learned": 1},
    }
