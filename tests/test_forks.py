"""A process that is forked: what was used before cannot be used in the child, and says so."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import threading
from contextlib import aclosing

import pytest

import testnuc
from testnuc import SyncTestNUC, TestNUC
from testnuc._base.checks import needing
from testnuc._base.loop_thread import Background
from testnuc.stores.sqlite.store import SqliteStore
from testnuc.testing import LoopbackLLM
from tests.conftest import confident, messages

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="platform: no fork"),
    # Python 3.12 warns of every fork of a process with threads
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


def in_child(work):
    """Return what `work()` returns in a forked child, or the type and message of its error."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def run():
        try:
            there.send(work())
        except BaseException as error:  # noqa: BLE001 - reported
            there.send((type(error).__name__, str(error)))

    child = context.Process(target=run, daemon=True)
    child.start()
    there.close()
    try:
        assert here.poll(60), "the child waits for ever"
        return here.recv()
    finally:
        child.kill()
        child.join()


def awaited(call):
    """Return a function that runs a coroutine function in a loop of its own."""
    return lambda: asyncio.run(call())


async def first_of(results):
    async with aclosing(results):
        return await anext(results)


#: Whatever a client can be asked for.
CALLS = {
    "classify": lambda nuc: nuc.classify(messages(1)[0]),
    "classify_many": lambda nuc: nuc.classify_many(messages(12)),
    "stream": lambda nuc: first_of(nuc.stream(messages(12))),
    "add": lambda nuc: nuc.add(messages(3)),
    "remove": lambda nuc: nuc.remove(messages(3)),
    "predict_pool": lambda nuc: nuc.predict_pool(),
    "stats": lambda nuc: nuc.stats(),
    "diagnose": lambda nuc: nuc.diagnose(),
    "estimate": lambda nuc: nuc.estimate(messages(3)),
    "forget": lambda nuc: nuc.forget(),
    "unlearn": lambda nuc: nuc.unlearn(),
    "aclose": lambda nuc: nuc.aclose(),
}


@pytest.mark.parametrize("durable", [False, True])
def test_a_client_that_was_used_before_a_fork_says_so(client_of, tmp_path, durable):
    with LoopbackLLM(confident) as llm:
        nuc = TestNUC(**client_of(llm, store=tmp_path / "answers.db" if durable else None))

        async def main():
            await nuc.classify_many(messages(12))
            try:
                return {
                    name: in_child(awaited(lambda call=call: call(nuc)))
                    for name, call in CALLS.items()
                }
            finally:
                # the parent goes on
                await nuc.classify_many(messages(24))
                await nuc.aclose()

        failures = asyncio.run(main())
        assert llm.calls == 24
    for name, failure in failures.items():
        assert failure[0] == "TestNUCError", name
        assert "fork" in failure[1], name
        assert "child" in failure[1], name


@pytest.mark.parametrize("kind", [TestNUC, SyncTestNUC])
def test_a_client_that_was_not_used_before_a_fork_works_in_the_child(client_of, tmp_path, kind):
    with LoopbackLLM(confident) as llm:
        nuc = kind(**client_of(llm, store=tmp_path / "answers.db"))

        def work():
            if kind is SyncTestNUC:
                with nuc:
                    return nuc.classify_many(messages(12)).labels

            async def main():
                async with nuc:
                    return (await nuc.classify_many(messages(12))).labels

            return asyncio.run(main())

        labels = in_child(work)
        assert labels == in_child(work), "and again in another child"
    assert len(labels) == 12
    assert None not in labels
    assert llm.calls == 12


def test_a_store_that_was_opened_before_a_fork_says_so(tmp_path):
    store = SqliteStore(tmp_path / "answers.db")

    async def main():
        await store.open()
        await store.get_predictions([b"k" * 16])

    asyncio.run(main())
    for call in (
        lambda: store.get_predictions([b"k" * 16]),
        lambda: store.count(b"scope"),
        lambda: store.put_predictions([]),
        store.close,
    ):
        kind, words = in_child(awaited(call))
        assert kind == "StoreError"
        assert "fork" in words
    asyncio.run(store.close())


def test_locks_that_are_held_at_the_fork_block_no_child(client_of):
    with LoopbackLLM(confident) as llm, SyncTestNUC(**client_of(llm, k=0)) as nuc:
        nuc.classify(messages(1)[0])
        held, release = threading.Event(), threading.Event()

        def hold():
            with nuc._lock, nuc._background._lock:
                held.set()
                release.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        try:
            for work in (lambda: nuc.classify(messages(2)[1]), nuc.close):
                kind, words = in_child(work)
                assert kind == "TestNUCError"
                assert "fork" in words
            background = nuc._background
            assert in_child(background.close) is None
        finally:
            release.set()
            thread.join()
        assert nuc.classify(messages(2)[1]).label is not None


def test_a_child_does_not_close_what_is_its_parents():
    background = Background("testnuc-test")

    async def nothing():
        return 1

    def leave():
        background.leave(nothing)
        background.end(nothing())
        background.close()

    try:
        assert in_child(leave) is None
        assert background.run(nothing()) == 1
    finally:
        background.close()


def test_a_fit_that_runs_at_the_fork_blocks_no_child():
    from testnuc.trust import head

    with head._FITTING:
        assert in_child(lambda: head._FITTING.acquire(timeout=1)) is True


SLOW = """
import threading, time
threading.slow_import.set()
time.sleep(1)
"""


def test_a_fork_waits_for_imports_in_a_thread(tmp_path, monkeypatch):
    """The child waited for ever for what the thread imports, such as the kernels."""
    (tmp_path / "slow_to_import.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(threading, "slow_import", threading.Event(), raising=False)

    def load():
        with needing("it"):
            import slow_to_import

            return slow_to_import.__name__

    thread = threading.Thread(target=load)
    thread.start()
    threading.slow_import.wait()
    assert in_child(load) == "slow_to_import"
    thread.join()


def test_a_key_function_that_runs_at_the_fork_is_called_again_in_the_child():
    from testnuc.transport.keys import KeySource

    parent, gate = os.getpid(), threading.Event()

    def ask():
        if os.getpid() == parent:
            gate.wait()
        return "key"

    source = KeySource(ask)

    async def main():
        with pytest.raises(testnuc.errors.ConfigurationError):
            await source.current(0.05)
        assert in_child(awaited(lambda: source.current(30.0))) == "key"

    try:
        asyncio.run(main())
    finally:
        gate.set()
