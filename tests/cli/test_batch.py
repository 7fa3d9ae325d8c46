"""``testnuc batch``: batches that a run has left behind are looked at, gone on with, cancelled."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from importlib import import_module

import orjson
import pytest

from bench._batch_api import Batches, BatchLLM
from testnuc import BatchPolicy, Limits, TestNUC
from testnuc.testing import Faults, HashEmbedder
from tests.cli.in_process import ran, run_here
from tests.conftest import LABELS, confident, messages
from tests.waiting import until

TEXTS = messages(60)


def client(llm, path, model="openai/test", **more):
    policy = BatchPolicy(max_requests=20, first_poll=0.001, longest_poll=0.002, grace=0.1)
    arguments = {"policy": "weighted", "limits": Limits(batches=policy), "store": path, **more}
    return TestNUC(
        LABELS, model, base_url=llm.base_url, api_key="k", embedder=HashEmbedder(), **arguments
    )


@pytest.fixture(params=["openai/test", "anthropic/claude-test"])
def model(request):
    return request.param


@pytest.fixture
def left_behind(tmp_path, model):
    """Start a run, end it while its batches are under way, and return its store."""

    def leave(llm):
        path = tmp_path / "store.db"

        async def begin():
            async with client(llm, path, model) as nuc:
                run = asyncio.create_task(nuc.classify_many(TEXTS, lane="batch"))
                await until(lambda: llm.batches == 3)
                await until(lambda: not nuc._parts.batch_lane._creating)
                run.cancel()
                await asyncio.gather(run, return_exceptions=True)

        asyncio.run(begin())
        return path

    return leave


@pytest.mark.slow
def test_a_run_is_gone_on_with(left_behind, model):
    faults = Faults(schedule=["500"])
    with BatchLLM(confident, batches=Batches(polls=60), faults=faults, api_key=None) as llm:
        path = left_behind(llm)
        code, out, _ = run_here("batch", "list", path)
        assert code == 0
        lines = out.splitlines()
        assert len(lines) == 3
        assert all("in_progress" in line and model in line for line in lines)
        assert all(" of 20" in line for line in lines)

        one = lines[0].split()[0]
        code, out, err = run_here("batch", "resume", path, one)
        assert code == 0
        assert out.startswith(one)
        assert "of 20 requests were answered" in err
        code, out, err = run_here("batch", "resume", path)
        assert code == 0
        assert len(out.splitlines()) == 2
        assert llm.calls == 59

        code, out, _ = run_here("batch", "list", path)
        assert out == "no batch is open\n"
        code, out, _ = run_here("batch", "list", path, "--all")
        assert len(out.splitlines()) == 3
        assert "tokens, price unknown" in out

        async def finish():
            async with client(llm, path, model) as nuc:
                results = await nuc.classify_many(TEXTS)
                assert not results.errors
                return results.usage

        used = asyncio.run(finish())
        # what failed in its batch alone is asked
        assert (used.calls, used.store_hits) == (1, 59)
        assert set(llm.asked.values()) == {1}


def test_batches_are_cancelled_and_what_they_have_is_kept(left_behind):
    with BatchLLM(confident, batches=Batches(polls=1_000, answered=0.5)) as llm:
        path = left_behind(llm)
        code, _, err = run_here("batch", "cancel", path)
        assert code == 2
        assert "--all" in err
        one = run_here("batch", "list", path)[1].split()[0]
        code, out, _ = run_here("batch", "cancel", path, one)
        assert code == 0
        assert "cancel" in out
        code, out, _ = run_here("batch", "cancel", path, "--all")
        assert code == 0
        code, out, err = run_here("batch", "resume", path)
        assert code == 0
        assert "30 of 60 requests were answered" in err
        assert "--lane batch" in err
        assert llm.calls == 30


def test_one_batch_that_cannot_be_cancelled_does_not_keep_the_others(left_behind):
    with BatchLLM(confident, batches=Batches(polls=1_000, answered=0.5)) as llm:
        path = left_behind(llm)
        # one that the provider does not know, and it is the first
        with sqlite3.connect(path) as file:
            file.execute(
                "UPDATE batches SET remote = 'batch_unknown' WHERE created = "
                "(SELECT min(created) FROM batches)"
            )
        file.close()
        code, out, _ = run_here("batch", "cancel", path, "--all")
        assert code == 1
        assert len(out.splitlines()) == 3
        assert sum("cancel" in line for line in out.splitlines()) >= 2


def test_errors(left_behind, tmp_path):
    code, _, err = run_here("batch", "list", tmp_path / "none.db")
    assert code == 2
    assert "there is no store" in err
    with BatchLLM(confident, batches=Batches(polls=1_000), api_key="k") as llm:
        path = left_behind(llm)
        code, _, err = run_here("batch", "resume", path, "zz")
        assert code == 2
        assert "no open batch" in err
        # another key: what the provider says stands beside each batch
        code, out, _ = run_here("batch", "list", path, key="wrong-key-123")
        assert code == 0
        assert out.count(": 401 ") == 3
        assert "wrong-key-123" not in out
        code, out, err = run_here("batch", "resume", path, key="wrong-key-123")
        assert code == 1
        assert "0 of 0" in err


def test_a_file_is_labeled_in_the_batch_lane(tmp_path):
    source, target = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("\n".join(TEXTS) + "\n")
    batches = Batches(outcomes=["expired"], answered=0.5)
    with BatchLLM(confident, batches=batches) as llm:
        flags = ["--labels", ",".join(LABELS), "--model", "openai/test", "--policy", "weighted"]
        flags += ["--base-url", llm.base_url, "--output", target, "--lane"]
        code, _, err = run_here("classify", source, *flags, "batch")
        assert code == 2
        assert "--store" in err
        flags += ["batch", "--store", tmp_path / "store.db"]
        code, _, err = run_here("classify", source, *flags, "--rest", "never")
        assert code == 2
        assert "'never' is not one of" in err
        assert llm.requests == 0
        _, err = ran("classify", source, *flags, "--rest", "live")
        assert "60 texts" in err
        assert (llm.batches, llm.calls) == (1, 60)
        assert len(target.read_text().splitlines()) == 60
        code, _, err = run_here("classify", source, *flags[:-3], "fast", "--overwrite")
        assert code == 2
        assert "'fast' is not one of" in err


def test_ctrl_c_prints_how_to_resume(tmp_path, monkeypatch):
    source = tmp_path / "in.txt"
    source.write_text("\n".join(TEXTS) + "\n")

    def interrupted(main):
        if main.__name__ != "_told":
            return asyncio.run(main)
        # neither is started
        main.cr_frame.f_locals["labeling"].close()
        main.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("testnuc.cli.classify"), "run_to_end", interrupted)
    flags = ["--labels", "a,b", "--lane", "batch", "--store", tmp_path / "s.db"]
    code, _, err = run_here("classify", source, *flags)
    assert code == 130
    assert "testnuc batch list" in err
    assert str(tmp_path / "s.db") in err


@pytest.mark.parametrize(
    "change",
    [{"model": None}, {"provider": [1]}, {"base_url": {}}, {"labels": 5}, {"confidence": []}],
)
def test_a_batch_with_malformed_facts_is_damaged(left_behind, change):
    with BatchLLM(confident, batches=Batches(polls=60), api_key=None) as llm:
        path = left_behind(llm)
        with closing(sqlite3.connect(path)) as store:
            rows = store.execute("SELECT id, facts FROM batches").fetchall()
            for name, facts in rows:
                wrong = {**orjson.loads(facts), **change}
                if change == {"model": None}:
                    del wrong["model"]
                store.execute(
                    "UPDATE batches SET facts = ? WHERE id = ?", (json.dumps(wrong), name)
                )
            store.commit()
        for command in ("list", "resume", "cancel"):
            more = [rows[0][0].hex()] if command == "cancel" else []
            code, out, err = run_here("batch", command, path, *more)
            assert "Traceback" not in err
            assert "damaged" in out + err or code or change.keys() & {"labels", "confidence"}
