"""The event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from testnuc.background import Background
from testnuc.errors import TestNUCError


@pytest.fixture
def background():
    made = Background()
    yield made
    made.close()


async def told(value):
    await asyncio.sleep(0)
    if isinstance(value, BaseException):
        raise value
    return value


def test_results_and_errors_come_back(background):
    assert background.run(told(7)) == 7
    for error in (ValueError("no"), TimeoutError("its own"), StopAsyncIteration()):
        with pytest.raises(type(error)) as caught:
            background.run(told(error))
        assert caught.value is error


def test_what_the_caller_has_set_holds_in_the_background(background):
    variable = contextvars.ContextVar("variable", default="default")
    variable.set("mine")

    async def seen():
        return variable.get()

    assert background.run(seen()) == "mine"


async def test_a_loop_that_runs_is_none_of_its_business(background):
    assert background.run(told("here")) == "here"
    assert await told("there") == "there"


def test_close_cancels_what_others_wait_for():
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
        background.run(told(1))


def test_its_own_thread_cannot_wait_for_itself(background):
    async def within():
        return background.run(told(1))

    with pytest.raises(TestNUCError, match="its own background thread"):
        background.run(within())
