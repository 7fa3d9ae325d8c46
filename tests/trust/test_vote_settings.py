"""The settings of a client change as a whole, when learning has succeeded."""

from __future__ import annotations

import asyncio

import pytest

from testnuc import InvalidInputError, TestNUC, TestNUCError
from tests.doubles import Breaks, Says

TEXTS = [f"{'abc'[i % 3]}{i % 3} case {i}" for i in range(120)]
GOLD = ["abc"[i % 3] for i in range(120)]


def wrong_about_every_fifth(text):
    number = int(text.rsplit(" ", 1)[1])
    return "abc"[(number + (number % 5 == 0)) % 3]


class Labeler(Says):
    """`gate` holds its answers back."""

    def __init__(self):
        super().__init__(wrong_about_every_fifth)
        self.gate = asyncio.Event()
        self.gate.set()
        self.called = asyncio.Event()

    async def answer(self, request):
        if not self.gate.is_set():
            self.called.set()
        await self.gate.wait()
        return await super().answer(request)


def client(**more):
    labeler, embedder = Labeler(), Breaks()
    arguments = {"k": 10, "policy": "weighted", "join_pool": False, **more}
    return labeler, embedder, TestNUC(list("abc"), labeler, embedder=embedder, **arguments)


async def test_a_failed_learn_changes_nothing():
    labeler, embedder, nuc = client(k=3)
    async with nuc:
        await nuc.add(TEXTS)
        policy = nuc.policy
        embedder.broken = True
        with pytest.raises(TestNUCError, match="out of memory"):
            await nuc.learn(["unseen 1", "unseen 2"] * 30, ["a", "b"] * 30)
        embedder.broken = False
        assert nuc.learned is None
        assert (nuc.k, nuc.policy) == (3, policy)
        result = await nuc.classify("a0 new 7")
    # the text and its 3 neighbors
    assert len(labeler.asked) == 4
    assert (len(result.neighbors), result.voters) == (3, 4)


async def test_classification_while_it_learns_uses_the_former_settings():
    labeler, _, nuc = client()
    async with nuc:
        await nuc.add(TEXTS)
        before = await nuc.classify_many(TEXTS)
        labeler.gate.clear()
        fresh = [f"{t}0" for t in TEXTS]
        learning = asyncio.create_task(nuc.learn(fresh, GOLD))
        await labeler.called.wait()
        during = await nuc.classify_many(TEXTS)
        assert [(r.label, r.share) for r in during] == [(r.label, r.share) for r in before]
        assert max(len(r.neighbors) for r in during) == 10
        assert not learning.done()
        labeler.gate.set()
        await learning
        assert (await nuc.classify_many(fresh)).labels == GOLD


@pytest.mark.slow
async def test_texts_that_do_not_join_the_pool_teach_too():
    _, _, nuc = client()
    async with nuc:
        learned = await nuc.learn(TEXTS, GOLD)
        assert learned.texts == len(TEXTS)
        assert len(learned.rows) == len(TEXTS)
        with pytest.raises(
            InvalidInputError, match="'b' and, before, 'a'; give each text one label"
        ):
            await nuc.learn([TEXTS[0], TEXTS[0]], ["a", "b"])
