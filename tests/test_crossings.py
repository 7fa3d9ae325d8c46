"""Where two features meet: what was learned, priors, referees, heads, failures, delegates."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from testnuc import Limits, TestNUC, VotePolicy
from testnuc.errors import EmbeddingError, SmallPoolWarning, UnreadableReplyError
from testnuc.protocols import Answer, Reply
from testnuc.testing import LoopbackLLM
from tests._engine.test_learning import (
    LABELS,
    Clustered,
    Says,
    client,
    gold,
    judge,
    noisy,
    texts_of,
)
from tests.doubles import Breaking

PRIOR = dict(zip(LABELS, (0.75, *[0.05] * 5), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["auto", "similarity"])
async def test_a_prior_corrects_batches_and_never_a_single_text(policy):
    """What was learned, and proves nothing, changes no label of `classify`."""
    texts = texts_of(240)
    settings = VotePolicy(weight=policy, prior=PRIOR)
    async with client(Says(), policy=settings) as nuc:
        await nuc.classify_many(texts)
        before = [(await nuc.classify(text)).label for text in texts[:40]]
        judge(review := await nuc.review(4))
        learned = await nuc.learn(review)
        assert learned.decides == "settings"
        after = [await nuc.classify(text) for text in texts[:40]]
    judged = {item.text for item in review}
    assert [row.label for row in after if row.text not in judged] == [
        label for label, row in zip(before, after, strict=True) if row.text not in judged
    ]


class Failing(Breaking, Clustered):
    """Embeds until it is told to fail."""

    error = OSError("the embedder is down")


@pytest.mark.slow
async def test_an_answer_outlives_the_embedder_although_something_was_learned():
    embedder = Failing()
    async with TestNUC(LABELS, model=Says(), embedder=embedder, policy="majority") as nuc:
        await nuc.classify_many(texts_of(60))
        judge(review := await nuc.review(20))
        await nuc.learn(review)
        embedder.broken = True
        (known,) = texts_of(1, start=500)
        with pytest.raises(EmbeddingError, match="down"):
            await nuc.classify(known)
        # answered before, but not embedded
        predictor = nuc._parts.predictor
        from testnuc._base.checks import hash_text
        from testnuc.protocols import StoredPrediction
        from testnuc.types import Prediction

        row = StoredPrediction(
            predictor.key(known), hash_text(known), nuc.model, predictor.scope,
            Prediction(gold(known), 0.9),
        )  # fmt: skip
        await nuc._parts.store.put_predictions([row])
        with pytest.warns(SmallPoolWarning, match="the embedder failed"):
            assert (await nuc.classify(known)).label == gold(known)


async def test_a_referee_that_two_runs_share_stores_answers_under_their_own_keys():
    """Each answer is kept under the key of the labels that its prompt showed."""
    release = asyncio.Event()

    class Slow(Says):
        async def answer(self, request):
            self.asked.append(request.task.labels)
            if "first" in request.texts[0]:
                await release.wait()
            return Reply(tuple(Answer(request.task.labels[0], 0.9) for _ in request.texts))

    small, big = Says(), Slow(gold, model="big")
    async with client(small, referee=big, limits=Limits(concurrency=1)) as nuc:
        referee = nuc._escalation.referee
        from tests._engine.engine_parts import entries_of

        entries, shown = entries_of(["c1 number 1"]), [[LABELS[3], LABELS[4]]]
        # it has the only worker, so that the others wait for it
        busy = asyncio.create_task(referee.ask(entries_of(["c1 first"])))
        while not big.asked:  # noqa: ASYNC110 - what is waited for is no event
            await asyncio.sleep(0)
        first, second = (asyncio.create_task(referee.ask(entries, shown)) for _ in range(2))
        for _ in range(50):
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        release.set()
        await busy
        (answer,) = await second
        assert answer.label in shown[0]
        # a run that comes later, with all labels, is another question
        (alone,) = await referee.ask(entries)
        assert alone.label == LABELS[0]
        (again,) = await referee.ask(entries, shown)
        assert again.label == answer.label
        assert len(big.asked) == 3


class Delegate:
    """Passes everything on to another object, as wrappers of users do."""

    def __init__(self, wrapped):
        self._wrapped = wrapped

    def __getattr__(self, name):
        return getattr(self._wrapped, name)


async def test_objects_that_delegate_by_getattr_are_accepted(tmp_path):
    from testnuc import OpenAI, SelfConsistency
    from testnuc.stores import resolve

    with LoopbackLLM(noisy) as llm:
        wrapped = OpenAI("gpt-4o-mini", base_url=llm.base_url, api_key="k")
        async with TestNUC(
            LABELS, Delegate(wrapped), embedder=Delegate(Clustered()),
            store=Delegate(resolve(tmp_path / "s.db")), method=Delegate(SelfConsistency(2)), k=0,
        ) as nuc:  # fmt: skip
            results = await nuc.classify_many(texts_of(12))
        assert results.labels.count(None) == 0
        assert llm.calls == 24


@pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")
@pytest.mark.slow
async def test_a_neighbor_without_a_readable_reply_is_not_paid_for_again():
    """Windows of a stream share neighbors: three billed replies to a text are the most."""
    texts = texts_of(12)
    billed = Counter()

    class Mute(Says):
        async def answer(self, request):
            for text in request.texts:
                billed[text] += 1
                if text == texts[0]:
                    raise UnreadableReplyError("no label")
            return await super().answer(request)

    async with client(Mute(), policy="majority", k=5) as nuc:
        rows = [row async for row in nuc.stream(texts, window=1)]
        assert len(rows) == len(texts)
        assert billed[texts[0]] <= 3
        # its own run asks for it again
        before = billed[texts[0]]
        await nuc.classify_many(texts[:1])
        assert billed[texts[0]] > before
