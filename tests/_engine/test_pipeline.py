"""The pipeline with its parts, the model played by the test."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import numpy as np
import pytest

from testnuc._engine.rows import Rows
from testnuc.errors import ServerError
from testnuc.methods import SelfConsistency
from testnuc.protocols import PoolText
from testnuc.trust import MIN_PREDICTIONS
from testnuc.types import Prediction
from tests._engine.engine_parts import Parts, entries_of
from tests.conftest import gold, messages


@pytest.fixture
async def parts():
    """Return what makes parts that are closed after the test."""
    made = []

    def make(*arguments, **options):
        made.append(Parts(*arguments, **options))
        return made[-1]

    yield make
    for one in made:
        await one.close()


async def test_a_batch_is_its_own_pool(parts):
    one = parts()
    texts = messages(30)
    run = await one.pipeline.prepare(entries_of(texts), together=True)
    assert len(run.batch.entries) == run.batch.n_own == len(one.pool) == 30
    assert (run.batch.neighbors >= 0).all()
    assert (run.batch.neighbors != np.arange(30)[:, None]).all(), "none is its own neighbor"
    places = await one.predict(run)
    assert sorted(places) == list(range(30)), "each place once"
    assert len(one.asked) == 30
    rows = Rows(run, texts, np.arange(30))
    assert [row.prediction.label for row in rows] == [gold(text) for text in texts]


@pytest.mark.parametrize("join_pool", [True, False])
async def test_a_text_alone_sees_the_pool_as_it_was(parts, join_pool):
    one = parts(join_pool=join_pool)
    await one.add(messages(20))
    run = await one.pipeline.prepare(entries_of(["refund please now"]), together=False)
    assert run.batch.n_own == 1
    assert len(run.batch.entries) == 4
    assert len(one.pool) == 20 + join_pool
    assert sorted(await one.predict(run)) == [0, 1, 2, 3]
    assert len(one.asked) == 4


async def test_only_what_has_no_outcome_is_asked_and_yielded(parts):
    one = parts()
    texts = messages(12)
    run = await one.pipeline.prepare(
        [PoolText(e.text, e.hash, "login" if i < 3 else None) for i, e in
         enumerate(entries_of(texts))],
        together=True,
    )  # fmt: skip
    run.answers.put(3, ServerError("503"))
    assert sorted(await one.predict(run)) == list(range(4, 12))
    assert {ask.text for ask in one.asked} == set(texts[4:])
    assert await one.predict(run) == []


async def test_stored_neighbors_are_those_with_a_prediction(parts):
    one = parts(neighbors="stored")
    old, unknown = messages(30)[:15], messages(30)[15:]
    await one.add(messages(30))
    for e in entries_of(old):
        ask = one.predictor.ask(e.text, e.hash, 0)
        async with aclosing(one.scheduler.run([ask])) as outcomes:
            assert [o async for _, o in outcomes] == [Prediction(gold(e.text), 0.9)]
    one.asked.clear()
    run = await one.pipeline.prepare(entries_of(["account locked"]), together=False)
    found = {e.text for e in run.batch.entries[1:]}
    assert len(found) == 3
    assert found <= set(old)
    assert not found & set(unknown)
    assert await one.predict(run) == [0]
    assert [ask.text for ask in one.asked] == ["account locked"]


async def test_waves_stop_where_the_winner_is_certain(parts):
    one = parts(k=20)
    one.said = lambda _: "refund"
    await one.add(messages(40))
    run = await one.pipeline.prepare(entries_of(["refund please"]), together=False)
    places = await one.predict(run, waves=True)
    assert len(places) == len(set(places)) == len(one.asked)
    # the text and 5, 10 or 15 neighbors: the rest cannot change a unanimous vote
    assert len(one.asked) in {6, 11, 16}
    row = Rows(run, ["refund please"], np.array([0]))[0]
    assert (row.label, row.complete) == ("refund", False)
    assert row.voters == len(one.asked)


async def test_under_auto_too_few_predictions_leave_each_text_its_own(parts):
    one = parts(policy=None)
    await one.add(messages(60))
    run = await one.pipeline.prepare(entries_of(["refund please"]), together=False)
    assert await one.predict(run) == [0]
    assert run.votes.decision.policy is None
    assert run.votes.diagnosis.predictions < MIN_PREDICTIONS
    assert len(one.asked) == 1


async def test_a_thousand_callers_look_at_the_pool_once(parts, monkeypatch):
    one = parts(policy=None)
    await one.add(messages(30))
    looks = 0
    diagnose = one.pipeline.pool_predictions.diagnose

    async def counted(settings):
        nonlocal looks
        looks += 1
        return await diagnose(settings)

    monkeypatch.setattr(one.pipeline.pool_predictions, "diagnose", counted)
    made = [
        await one.pipeline.prepare(entries_of([f"refund please, {i}"]), together=False)
        for i in range(20)
    ]
    runs = [asyncio.create_task(one.predict(n)) for n in made]
    for _ in range(3):
        await asyncio.sleep(0)
    runs[0].cancel()
    done = await asyncio.gather(*runs, return_exceptions=True)
    assert done[1:] == [[0]] * 19
    assert 1 <= looks <= 2
    decisions = {id(n.votes.diagnosis) for n in made[1:]}
    assert len(decisions) == looks


async def test_the_pool_is_predicted_once(parts):
    one = parts()
    await one.add(messages(50))
    counts = []
    await one.pipeline.predict_pool("live", counts.append)
    assert sum(counts) == len(one.asked) == 50
    counts = []
    await one.pipeline.predict_pool("live", counts.append)
    assert (sum(counts), len(one.asked)) == (50, 50)


class Broken(SelfConsistency):
    """Fails to reduce the samples of one text, or of a text of its own choice."""

    def reduce(self, samples):
        if samples[0].label == "login":
            raise ZeroDivisionError("the method's own mistake")
        return super().reduce(samples)


async def test_a_method_that_raises_ends_its_own_run_alone(parts):
    one = parts(Broken(n=3))
    texts = messages(60)
    fine = [text for text in texts if gold(text) != "login"]
    both = [await one.pipeline.prepare(entries_of(some), together=True) for some in (texts, fine)]
    # neighbors among the texts that cannot be reduced would fail the second run by its own
    both[1].batch.neighbors[:] = -1
    failed, places = await asyncio.gather(*map(one.predict, both), return_exceptions=True)
    assert isinstance(failed, ZeroDivisionError)
    assert sorted(places) == list(range(len(fine)))
    assert all(both[1].answers.has_outcome(place) for place in places)
    # shared asks were made once
    keys = [ask.key for ask in one.asked]
    assert len(keys) == len(set(keys))


async def test_a_run_that_is_ended_early_asks_no_more(parts):
    one = parts(k=0)
    run = await one.pipeline.prepare(entries_of(messages(500)), together=True)
    first = asyncio.Event()
    running = asyncio.create_task(one.pipeline.complete(run, on_place=lambda _: first.set()))
    await first.wait()
    running.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert 1 <= len(one.asked) <= 20
