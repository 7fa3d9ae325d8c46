"""What the user's own code raises during a run ends that run, and no other."""

from __future__ import annotations

import asyncio

import pytest

from testnuc import Limits, TestNUC
from testnuc.methods import SelfConsistency
from testnuc.testing import LoopbackLLM
from tests.conftest import confident, gold, messages

pytestmark = pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")


class MistakeError(Exception):
    """The user's."""


class Watcher:
    """An observer that fails at the tenth text."""

    def __init__(self):
        self.texts = 0
        self.closed = False

    def start(self, texts):
        pass

    def stage(self, name):
        pass

    def advance(self, texts=1):
        self.texts += texts
        if self.texts >= 10:
            raise MistakeError

    def close(self):
        self.closed = True


class Once(SelfConsistency):
    """A method that fails to reduce one text, the first time."""

    failed = False

    def reduce(self, samples):
        if not Once.failed:
            Once.failed = True
            raise MistakeError
        return super().reduce(samples)


class Counter(Watcher):
    """Counts what is embedded apart from what is answered, as an observer may."""

    def __init__(self):
        super().__init__()
        self.blocks = []
        self.stages = []

    def stage(self, name):
        self.stages.append(name)

    def embedded(self, texts):
        assert self.stages == ["embedding"]
        self.blocks.append(texts)

    def advance(self, texts=1):
        # calls are made meanwhile
        assert self.stages in (["embedding"], ["embedding", "asking"])
        self.texts += texts


@pytest.mark.slow
async def test_an_observer_sees_texts_being_embedded(loopback):
    texts, counter, again = messages(1_300), Counter(), Counter()
    async with loopback(k=3) as (_, nuc):
        await nuc.classify_many(texts, progress=counter)
        await nuc.classify_many(texts, progress=again)
    assert len(set(texts)) == counter.texts == sum(counter.blocks) == sum(again.blocks)
    assert max(counter.blocks) <= 512
    # they were in the pool
    assert len(again.blocks) < len(counter.blocks)


@pytest.mark.parametrize("way", ["classify_many", "stream", "classify", "predict_pool"])
async def test_a_method_that_raises_ends_its_own_run_alone(client_of, way):
    texts = messages(30)
    Once.failed = False

    async def run(nuc):
        if way == "classify_many":
            await nuc.classify_many(texts)
        elif way == "stream":
            [r async for r in nuc.stream(texts, window=10)]
        elif way == "classify":
            await nuc.classify(texts[0])
        else:
            await nuc.predict_pool()

    async with LoopbackLLM(confident) as llm:
        options = client_of(llm, limits=Limits(concurrency=4), k=3, method=Once(n=2))
        async with TestNUC(**options) as nuc:
            await nuc.add(texts)
            async with asyncio.timeout(60):
                with pytest.raises(MistakeError):
                    await run(nuc)
                results = await nuc.classify_many(texts)
            assert [r.prediction.label for r in results] == [gold(text) for text in texts]
            assert not [task for task in asyncio.all_tasks() if task.get_name() == "testnuc-worker"]
        assert set(llm.asked.values()) == {2}
