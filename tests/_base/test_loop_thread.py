"""The event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from testnuc._base.loop_thread import Background, run_to_end
from testnuc.errors import TestNUCError


@pytest.fixture
def background():
    made = Background()
    yield made
    made.close()


async def returned(value):
    await asyncio.sleep(0)
    if isinstance(value, BaseException):
        raise value
    return value


def test_what_the_caller_has_set_holds_in_the_background(background):
    variable = contextvars.ContextVar("variable", default="default")
    variable.set("mine")

    async def seen():
        return variable.get()

    assert background.run(seen()) == "mine"


def test_close_cancels_what_others_wait_for(monkeypatch):
    monkeypatch.setattr("testnuc._base.loop_thread._PATIENCE", 0.1)
    background, begun, ended = Background(), threading.Event(), []

    async def endless():
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(background.run, endless())
        assert begun.wait(5)
        background.close()
        with pytest.raises(asyncio.CancelledError):
            waiting.result(5)
    assert ended == [True]
    background.close()
    with pytest.raises(TestNUCError, match="closed"):
        background.run(returned(1))


def ends(background):
    """Whether the thread of the background ends by itself."""
    background._thread.join(10)
    return not background._thread.is_alive()


def test_an_unclosed_loop_closes_by_itself_without_blocking():
    background, lock, done = Background(), threading.Lock(), []

    async def last():
        # the thread that collects garbage may hold a lock that the end needs
        await asyncio.to_thread(lock.acquire)
        done.append(True)

    with lock:
        background.leave(last)
        assert not done
        background.leave(last)
    assert ends(background)
    assert done == [True]
    with pytest.raises(TestNUCError, match="closed"):
        background.run(returned(1))


def test_what_could_not_be_closed_is_logged(caplog):
    background = Background()

    async def last():
        raise ValueError("the disk is full")

    background.leave(last)
    assert ends(background)
    assert "cleanup of an unclosed client failed" in caplog.text
    assert "the disk is full" in caplog.text


def test_the_end_of_a_stream_is_not_waited_for_forever(background, monkeypatch):
    monkeypatch.setattr("testnuc._base.loop_thread._PATIENCE", 0.0)
    go, done = threading.Event(), threading.Event()

    async def slow():
        await asyncio.to_thread(go.wait)
        done.set()

    background.end(slow())
    assert not done.is_set()
    go.set()
    assert done.wait(10)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="no"):
        background.end(returned(ValueError("no")))


def test_beside_a_running_service_nothing_is_kept_from_garbage_collection():
    before = gc.get_freeze_count(), gc.get_threshold()
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(run_to_end, returned(1)).result() == 1
    assert (gc.get_freeze_count(), gc.get_threshold()) == before


def test_a_run_can_be_ended_where_ctrl_c_is_ignored():
    """In the background of a script SIGTERM was ignored, too."""

    async def waits():
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0.01)
        seen.append("SIGINT")
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(asyncio.Event().wait(), 10)

    seen = []
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_to_end(waits())
        assert (seen, signal.getsignal(signal.SIGINT)) == (["SIGINT"], signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGINT, before)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
