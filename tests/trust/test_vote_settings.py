"""The settings of a client change as a whole, when tuning or calibration has succeeded."""

from __future__ import annotations

import asyncio

import pytest

from testnuc import InvalidInputError, TestNUC, TestNUCError, VotePolicy
from testnuc.protocols import Answer, Reply
from testnuc.testing import HashEmbedder

TEXTS = [f"{'abc'[i % 3]}{i % 3} case {i}" for i in range(120)]
GOLD = ["abc"[i % 3] for i in range(120)]
#: With some labels that the vote does not give: a calibration needs wrong ones.
DISPUTED = [label if i % 7 else "abc"[(i + 1) % 3] for i, label in enumerate(GOLD)]


class Labeler:
    """Is wrong about every fifth text; `gate` holds its answers back."""

    name, model, identity = "test", "gated", "1"

    def __init__(self):
        self.gate = asyncio.Event()
        self.gate.set()
        self.called = asyncio.Event()
        self.asked = 0

    async def answer(self, request):
        self.asked += len(request.texts)
        if not self.gate.is_set():
            self.called.set()
        await self.gate.wait()
        said = []
        for text in request.texts:
            number = int(text.rsplit(" ", 1)[1])
            said.append(Answer("abc"[(number + (number % 5 == 0)) % 3], 0.9))
        return Reply(tuple(said))


class Embedder(HashEmbedder):
    """Fails when it is told to."""

    broken = False

    async def embed(self, texts):
        if self.broken:
            raise RuntimeError("out of memory")
        return await super().embed(texts)


def client(**more):
    labeler, embedder = Labeler(), Embedder()
    arguments = {"k": 10, "policy": "weighted", "join_pool": False, **more}
    return labeler, embedder, TestNUC(list("abc"), labeler, embedder=embedder, **arguments)


async def test_a_failed_tune_changes_nothing():
    labeler, embedder, nuc = client(k=3)
    async with nuc:
        await nuc.add(TEXTS)
        policy = nuc.policy
        embedder.broken = True
        with pytest.raises(TestNUCError, match="out of memory"):
            await nuc.tune(["unseen 1", "unseen 2"] * 30, ["a", "b"] * 30)
        embedder.broken = False
        assert (nuc.k, nuc.policy) == (3, policy)
        result = await nuc.classify("a0 new 7")
    # the text and its 3 neighbors
    assert labeler.asked == 4
    assert (len(result.neighbors), result.voters) == (3, 4)


async def test_a_tune_is_used_by_all_that_reads_the_settings():
    _, _, nuc = client(join_pool=True)
    async with nuc:
        await nuc.classify_many(TEXTS)
        tuning = await nuc.tune(TEXTS, GOLD)
        assert tuning.policy is not None
        assert (nuc.k, nuc.policy) == (30, None)
        result = await nuc.classify(TEXTS[5])
        assert result.voters <= 1 + tuning.k
        # one new text, and at most as many neighbors as vote
        await nuc.add([f"b1 other {i}" for i in range(200)])
        assert (await nuc.estimate(["b1 other 1000"])).calls <= 1 + tuning.k


async def test_classification_during_a_tune_uses_the_former_settings():
    labeler, _, nuc = client()
    async with nuc:
        await nuc.add(TEXTS)
        before = await nuc.classify_many(TEXTS)
        labeler.gate.clear()
        fresh = [f"{t}0" for t in TEXTS]
        tuning = asyncio.create_task(nuc.tune(fresh, GOLD))
        await labeler.called.wait()
        assert nuc.k == 10
        during = await nuc.classify_many(TEXTS)
        assert [(r.label, r.share) for r in during] == [(r.label, r.share) for r in before]
        assert max(len(r.neighbors) for r in during) == 10
        assert not tuning.done()
        labeler.gate.set()
        await tuning


async def test_a_calibration_holds_until_the_next_one_is_complete():
    pytest.importorskip("sklearn")
    labeler, _, nuc = client()
    async with nuc:
        await nuc.add(TEXTS)
        raw = await nuc.classify_many(TEXTS)
        first = await nuc.calibrate(TEXTS, DISPUTED)
        expected = [None if r.trust is None else first(r.share) for r in raw]

        async def trusts():
            return [r.trust for r in await nuc.classify_many(TEXTS)]

        assert await trusts() == expected
        # one that fails
        with pytest.raises(InvalidInputError, match="cannot be calibrated"):
            await nuc.calibrate(TEXTS[:10], DISPUTED[:10])
        assert await trusts() == expected
        # one under way
        labeler.gate.clear()
        fresh = [f"{t}0" for t in TEXTS]
        again = asyncio.create_task(nuc.calibrate(fresh, DISPUTED))
        await labeler.called.wait()
        assert await trusts() == expected
        assert not again.done()
        labeler.gate.set()
        second = await again
        assert second != first
        assert await trusts() == [None if r.trust is None else second(r.share) for r in raw]


async def test_withheld_labels_are_calibrated_on_too():
    pytest.importorskip("sklearn")
    curves = []
    for least in (None, 0.9):
        _, _, nuc = client(policy=VotePolicy(min_trust=least))
        async with nuc:
            await nuc.add(TEXTS)
            curves.append(await nuc.calibrate(TEXTS, DISPUTED))
            withheld = [r for r in await nuc.classify_many(TEXTS) if r.label is None]
            assert bool(withheld) == (least is not None)
    assert curves[0] == curves[1]
