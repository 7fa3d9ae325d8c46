"""One client inside a service: thousands of callers, and an event loop that is never blocked."""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import contextmanager

import pytest
from blockbuster import BlockingError, blockbuster_ctx

from testnuc import Sampling, TestNUC
from testnuc.errors import EmbeddingError
from testnuc.testing import HashEmbedder
from tests.conftest import gold, messages
from tests.doubles import Says

pytestmark = pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")


@pytest.fixture(autouse=True)
async def _blocking_calls_raise(loopback):
    """Sleeping, files, locks, subprocesses and blocking sockets in the loop are errors."""
    # what is imported when the first client of a process is made is read from files
    async with loopback() as (_, nuc):
        await nuc.classify_many(messages(20))
    with blockbuster_ctx("testnuc", excluded_modules=["testnuc.testing"]):
        yield


async def test_a_blocking_call_would_be_noticed(loopback):
    class Blocking(HashEmbedder):
        async def embed(self, texts):
            time.sleep(0.001)  # noqa: ASYNC251
            return await super().embed(texts)

    async with loopback(embedder=Blocking()) as (_, nuc):
        with pytest.raises(EmbeddingError) as caught:
            await nuc.add(["a text"])
    assert isinstance(caught.value.__cause__, BlockingError)


#: Seconds of CPU time after which a step of a task counts as long. Most take 2 to 7 ms, of which
#: the embedder of the tests has most; one or two take 50, and a machine with much to do, whose
#: caches are shared, makes a few more of them longer. One for each block of texts would be dozens.
LONG, MOST_LONG = 0.02, 8


@contextmanager
def long_steps():
    """Collect the CPU times of long steps of tasks: others' load hardly counts."""
    found = []
    run = asyncio.events.Handle._run

    def measured(handle):
        before = time.thread_time()
        run(handle)
        took = time.thread_time() - before
        if took > LONG:
            found.append((took, repr(handle)[:300]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.events.Handle, "_run", measured)
        yield found


@pytest.fixture
def no_gc():
    # collections are the host's matter, and would count as the step they fall into
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
async def test_two_thousand_callers_share_one_client(loopback, no_gc):
    class CountingEmbedder(HashEmbedder):
        sizes: list[int] = []  # noqa: RUF012

        async def embed(self, texts):
            self.sizes.append(len(texts))
            await asyncio.sleep(0.005)
            return await super().embed(texts)

    embedder = CountingEmbedder()
    texts = messages(2_000)
    async with loopback(embedder=embedder, neighbors="stored", k=5) as (llm, nuc):
        await nuc.classify_many(messages(2_100)[2_000:])
        embedder.sizes.clear()
        with long_steps() as long:
            callers = [asyncio.create_task(nuc.classify(text)) for text in texts]
            # half of them ask what another one is asking
            callers += [asyncio.create_task(nuc.classify(text)) for text in texts[::2]]
            results = await asyncio.gather(*callers)
        assert [r.prediction.label for r in results[:2_000]] == [gold(t) for t in texts]
        assert llm.calls == 2_100
        assert set(llm.asked.values()) == {1}
        # each text is embedded once, hundreds at a time
        assert sum(embedder.sizes) == 2_000
        assert len(embedder.sizes) <= 8
    assert len(long) <= MOST_LONG, long


@pytest.mark.slow
async def test_a_large_batch_leaves_the_loop_to_others(no_gc):
    texts = [f"message {i} about {i % 97}" for i in range(10_000)]

    # without sockets: the calls themselves are what other tests are about
    async with TestNUC(
        ["refund", "login"],
        Says(lambda _: "refund"),
        embedder=HashEmbedder(),
        sampling=Sampling(texts_per_call=20),
    ) as nuc:
        with long_steps() as long:
            results = await nuc.classify_many(texts)
            streamed = [r.index async for r in nuc.stream(texts[:6_000], window=3_000)]
            await nuc.estimate([f"{text}, once more" for text in texts])
        assert len(results) == 10_000
        assert sorted(streamed) == list(range(6_000))
    assert len(long) <= MOST_LONG, long
