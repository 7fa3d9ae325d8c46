"""The client that waits: in scripts, in threads, in a running loop, and under Ctrl-C."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import testnuc
from testnuc import InvalidInputError, Limits, SyncTestNUC, TestNUC, TestNUCError
from testnuc.errors import ConfigurationError
from testnuc.testing import HashEmbedder, LoopbackLLM
from tests.conftest import LABELS, confident, messages


def background():
    return [thread for thread in threading.enumerate() if thread.name == "testnuc-sync"]


def public(of):
    return {name for name in vars(of) if not name.startswith("_")}


def test_it_has_all_that_the_client_has_with_the_same_parameters():
    assert public(TestNUC) - {"aclose"} == public(SyncTestNUC) - {"close", "labels", "model"}
    assert inspect.signature(SyncTestNUC) == inspect.signature(TestNUC)
    for name in public(TestNUC) - {
        "aclose",
        "usage",
        "learned",
        "referee_usage",
        "stream",
        "policy",
        "k",
    }:
        ours, theirs = getattr(SyncTestNUC, name), getattr(TestNUC, name)
        assert list(inspect.signature(ours).parameters) == list(
            inspect.signature(theirs).parameters
        )
        assert ours.__doc__ == theirs.__doc__


def test_the_results_are_those_of_the_client(client_of):
    texts = messages(60)

    async def awaited(llm):
        async with TestNUC(**client_of(llm)) as nuc:
            return list(await nuc.classify_many(texts))

    with LoopbackLLM(confident) as llm:
        expected = asyncio.run(awaited(llm))
        with SyncTestNUC(**client_of(llm)) as nuc:
            nuc.add(messages(3))
            results = nuc.classify_many(texts)
            assert list(results) == expected
            assert nuc.classify(texts[0]).text == texts[0]
            assert sorted(r.index for r in nuc.stream(texts, window=16)) == list(range(60))
            assert (nuc.usage.calls, len(nuc), nuc.stats().predicted) == (60, 60, 60)
            assert nuc.estimate(["another"]).calls > 0
            assert repr(nuc) == "<SyncTestNUC openai/test, 3 labels, pool of 60>"
            assert (nuc.model, nuc.labels.names) == ("openai/test", tuple(LABELS))
        assert llm.calls == 120
    assert background() == []


async def test_it_works_inside_a_running_loop(client_of):
    with LoopbackLLM(confident) as llm, SyncTestNUC(**client_of(llm)) as nuc:
        assert len(nuc.classify_many(messages(12)).labels) == 12


def test_threads_share_one(client_of):
    with (
        LoopbackLLM(confident) as llm,
        SyncTestNUC(**client_of(llm, k=0)) as nuc,
        ThreadPoolExecutor(8) as threads,
    ):
        results = list(threads.map(nuc.classify, messages(40)))
        assert len(background()) == 1
    assert [r.text for r in results] == messages(40)
    assert llm.calls == 40


async def test_an_async_client_in_two_threads_says_so_and_does_not_wait_for_ever(loopback):
    reached, go_on = asyncio.Event(), asyncio.Event()

    class Slow(HashEmbedder):
        async def embed(self, texts):
            reached.set()
            await go_on.wait()
            return await super().embed(texts)

    async with loopback(embedder=Slow()) as (_, nuc):
        here = asyncio.create_task(nuc.classify_many(messages(20)))
        await reached.wait()

        async def there():
            # it would wait for a future of this loop
            await asyncio.wait_for(nuc.classify_many(messages(20)), 20)

        with pytest.raises(ConfigurationError, match="create one for each loop"):
            await asyncio.to_thread(asyncio.run, there())
        go_on.set()
        assert (await here).labels.count(None) == 0


def test_errors_come_to_the_caller_as_they_are(client_of):
    with LoopbackLLM(confident) as llm:
        with pytest.raises(InvalidInputError, match="k is -1"):
            SyncTestNUC(**client_of(llm, k=-1))
        nuc = SyncTestNUC(**client_of(llm))
        with nuc, pytest.raises(InvalidInputError, match="text 0 is empty"):
            nuc.classify_many([""])
        with pytest.raises(TestNUCError, match="closed; make a new one"):
            nuc.classify("x")
        nuc.close()
    assert background() == []


def test_a_client_that_cannot_be_opened_leaves_no_thread(client_of, tmp_path):
    (tmp_path / "store.db").write_bytes(b"no database" * 100)
    with (
        LoopbackLLM(confident) as llm,
        pytest.raises(testnuc.StoreError),
        SyncTestNUC(**client_of(llm, store=tmp_path / "store.db")),
    ):
        pass
    assert background() == []


def test_a_client_that_was_never_used_has_no_thread(client_of):
    with LoopbackLLM(confident) as llm:
        nuc = SyncTestNUC(**client_of(llm))
        assert background() == []
        nuc.close()
        assert background() == []


def test_a_stream_that_is_left_early_ends(client_of):
    taken = []

    def endless():
        for number in range(100_000):
            taken.append(number)
            yield f"money back {number}"

    with LoopbackLLM(confident) as llm, SyncTestNUC(**client_of(llm, k=0)) as nuc:
        for result in nuc.stream(endless(), window=4):
            assert result.label == "refund"
            break
        assert nuc.classify("a parcel: delivery late").label == "delivery"
    # two windows are under way at most, and what was sent is not thrown away
    assert len(taken) <= 12
    assert llm.calls <= 13


def test_a_close_meanwhile_returns_what_was_answered(client_of):
    with LoopbackLLM(confident, latency=0.05) as llm:
        nuc = SyncTestNUC(**client_of(llm, limits=Limits(concurrency=4)))
        with ThreadPoolExecutor() as threads:
            run = threads.submit(nuc.classify_many, messages(100))
            while llm.calls < 10:
                time.sleep(0.005)
            nuc.close()
            results = run.result()
    assert results.stopped is not None
    assert sum(row.prediction is not None for row in results) == llm.calls


def test_a_call_from_its_own_thread_is_an_error_and_no_deadlock(client_of):
    class Embedder(HashEmbedder):
        async def embed(self, texts):
            nuc.classify("from within")
            return await super().embed(texts)

    with LoopbackLLM(confident) as llm:
        nuc = SyncTestNUC(**client_of(llm, embedder=Embedder()))
        with nuc, pytest.raises(TestNUCError, match="its own background thread"):
            nuc.classify_many(messages(3))


SCRIPT = """
import sys, testnuc
from testnuc.testing import HashEmbedder
url, store = sys.argv[1:]
with testnuc.SyncTestNUC(
    ["refund", "delivery", "login"], model="openai/test", base_url=url, api_key="k",
    embedder=HashEmbedder(), store=store, limits=testnuc.Limits(concurrency=4),
    policy="weighted", k=0,
) as nuc:
    print("ready", flush=True)
    try:
        nuc.classify_many([f"money back {i}" for i in range(400)])
    except KeyboardInterrupt:
        before = nuc.usage.calls
    for i in range(10):
        nuc.classify(f"delivery late {i}")
print(before, nuc.usage.calls)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="platform: Windows has no SIGINT to send")
def test_ctrl_c_cancels_and_keeps_what_was_paid_for(tmp_path):
    store = tmp_path / "store.db"
    with LoopbackLLM(confident, latency=0.02) as llm:
        command = [sys.executable, "-c", SCRIPT, llm.base_url, str(store)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
        ) as process:
            assert process.stdout.readline() == "ready\n"
            until = time.monotonic() + 30
            while llm.calls < 20 and time.monotonic() < until:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert err == ""
        before, said = map(int, out.split())
        # it is of use as before, and nothing of what was given up goes on but what was sent
        assert 20 <= before < 400
        assert said <= before + 4 + 10
        assert llm.calls == said
        with SyncTestNUC(
            LABELS,
            model="openai/test",
            base_url=llm.base_url,
            api_key="k",
            embedder=HashEmbedder(),
            store=store,
            policy="weighted",
        ) as nuc:
            # each billed answer is there
            assert nuc.stats().predicted == said


UNCLOSED = """
import sys, time, testnuc
from testnuc.testing import HashEmbedder
url, store = sys.argv[1:]
nuc = testnuc.SyncTestNUC(
    ["refund", "delivery", "login"], model="openai/test", base_url=url, api_key="k",
    embedder=HashEmbedder(), store=store, policy="weighted", k=0,
)
results = nuc.stream([f"money back {i}" for i in range(40)], window=4)
print(next(results).label)
time.sleep(0.2)
"""


@pytest.mark.slow
def test_a_script_that_ends_within_a_stream_loses_nothing_that_was_sent(tmp_path):
    with LoopbackLLM(confident, latency=1.0) as llm:
        command = [sys.executable, "-c", UNCLOSED, llm.base_url, str(tmp_path / "s.db")]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        assert (ended.stdout, ended.stderr) == ("refund\n", "")
        same = {"model": "openai/test", "base_url": llm.base_url, "api_key": "k"}
        with SyncTestNUC(
            LABELS, **same, embedder=HashEmbedder(), store=tmp_path / "s.db", policy="weighted"
        ) as nuc:
            assert nuc.stats().predicted == llm.calls > 4
