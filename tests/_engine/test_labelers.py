"""The LLM is asked where a model of its answers is unsure; the audit bounds the rest."""

from __future__ import annotations

import numpy as np
import pytest

from testnuc import InvalidInputError, Limits, UncertaintySampling
from testnuc.errors import ServerError
from testnuc.limits.policies import Budget
from testnuc.protocols import Answer, Reply
from tests._engine.test_learning import LABELS, Says, client, gold, judge, noise, texts_of


def sure(text):
    """Return what a model says that is nearly always right where texts are easy."""
    return gold(text)


def arbitrary(text):
    return LABELS[noise(text) % len(LABELS)]


async def run(model, texts, **more):
    async with client(model, **more) as nuc:
        return await nuc.classify_many(texts)


@pytest.mark.slow
async def test_texts_that_a_model_predicts_need_no_call():
    model, texts = Says(sure), texts_of(2_000)
    results = await run(model, texts, labeler=UncertaintySampling())
    assert len(model.asked) < 1_000
    assert len(model.asked) == len(set(model.asked)) == results.usage.calls
    asked = set(model.asked)
    assert [row.source == "head" for row in results] == [text not in asked for text in texts]
    assert np.mean([row.label == sure(row.text) for row in results]) >= 0.99
    spared = [row for row in results if row.source == "head"]
    assert all(row.prediction is None and 0 < row.trust <= 1 for row in spared)
    assert f"asked about {len(asked):,} of 2,000 texts" in results.notes[0]
    assert f"the other {len(spared):,}" in results.notes[0]


@pytest.mark.slow
async def test_all_texts_are_asked_about_where_the_model_is_no_match():
    model, texts = Says(arbitrary), texts_of(1_500)
    results = await run(model, texts, labeler=UncertaintySampling(), k=0)
    assert sorted(model.asked) == sorted(texts)
    assert {row.source for row in results} == {"llm"}
    assert results.labels == [arbitrary(text) for text in texts]
    (note,) = results.notes
    assert "so no call was saved" in note


@pytest.mark.slow
async def test_a_second_run_is_free_and_the_same(tmp_path):
    texts, store = texts_of(1_500), tmp_path / "answers.db"
    first = await run(Says(sure), texts, labeler=UncertaintySampling(), store=store)
    model = Says(sure)
    again = await run(model, texts, labeler=UncertaintySampling(), store=store)
    assert model.asked == []
    assert again.labels == first.labels
    assert [r.trust for r in again] == [r.trust for r in first]
    assert [r.source for r in again] == [r.source for r in first]
    assert again.notes == first.notes


@pytest.mark.slow
async def test_a_run_that_a_budget_stopped_is_resumed(tmp_path):
    texts, store = texts_of(1_500), tmp_path / "answers.db"
    whole = await run(Says(sure), texts, labeler=UncertaintySampling())
    stopped = await run(
        Says(sure),
        texts,
        labeler=UncertaintySampling(),
        store=store,
        limits=Limits(budget=Budget(calls=200)),
    )
    assert stopped.usage.calls == 200
    assert stopped.labels.count(None) > 0
    model = Says(sure)
    resumed = await run(model, texts, labeler=UncertaintySampling(), store=store)
    assert resumed.usage.calls == whole.usage.calls - 200
    assert resumed.labels == whole.labels


@pytest.mark.parametrize("labeler", [UncertaintySampling(max_fraction=0.25), UncertaintySampling()])
@pytest.mark.parametrize("said", ["elsewhere", ServerError("500")])
async def test_no_answer_is_no_label(labeler, said):
    class Silent(Says):
        async def answer(self, request):
            if isinstance(said, Exception):
                said.retryable = False
                raise said
            return Reply((Answer(said),))

    results = await run(Silent(), texts_of(600), labeler=labeler, k=0)
    assert set(results.labels) == {None}


@pytest.mark.slow
async def test_judgments_that_prove_a_learned_model_better_stop_earlier():
    texts = texts_of(2_000)
    model = Says()
    async with client(model, policy="majority", k=0, labeler=UncertaintySampling()) as nuc:
        await nuc.classify_many(texts_of(600, 10_000))
        review = await nuc.review(100)
        judge(review)
        learned = await nuc.learn(review)
        assert learned.decides == "head"
        model.asked.clear()
        results = await nuc.classify_many(texts)
        assert len(model.asked) <= 500
        assert {row.source for row in results} == {"head"}
        assert np.mean([row.label == gold(row.text) for row in results]) > 0.9
        assert "judgments prove" in results.notes[0]


async def test_the_estimate_gives_a_range():
    async with client(Says(sure), labeler=UncertaintySampling()) as nuc:
        found = await nuc.estimate(texts_of(5_000))
        assert (found.least_calls, found.calls) == (500, 5_000)
        assert "from 500 to 5,000 calls" in str(found)


@pytest.mark.slow
async def test_the_estimate_knows_the_most_and_what_is_stored():
    texts = texts_of(1_000)
    async with client(
        Says(sure), labeler=UncertaintySampling(min_agreement=1, max_fraction=0.6)
    ) as nuc:
        before = await nuc.estimate(texts)
        assert (before.least_calls, before.calls) == (600, 600)
        await nuc.classify_many(texts)
        after = await nuc.estimate(texts)
        assert (after.least_calls, after.calls, after.store_hits) == (0, 0, 600)


@pytest.mark.slow
async def test_a_stream_spares_texts_in_each_window():
    model, texts = Says(sure), texts_of(2_000)
    async with client(model, labeler=UncertaintySampling()) as nuc:
        results = [row async for row in nuc.stream(texts, window=1_000)]
    assert sorted(row.index for row in results) == list(range(2_000))
    assert 0 < sum(row.source == "head" for row in results) == 2_000 - len(model.asked)


@pytest.mark.slow
async def test_answers_outside_the_labels_are_changes():
    class Silent(Says):
        async def answer(self, request):
            self.asked += request.texts
            return Reply(
                tuple(
                    Answer("something else" if noise(t) < 30 else sure(t), 0.9)
                    for t in request.texts
                )
            )

    for least, some in ((0.99, False), (0.5, True)):
        model, texts = Silent(), texts_of(2_500)
        rule = UncertaintySampling(min_agreement=least)
        results = await run(model, texts, labeler=rule, k=0)
        assert len(results.unmatched) == sum(noise(text) < 30 for text in model.asked)
        skipped = 2_500 - len(model.asked)
        assert sum(row.source == "head" for row in results) == skipped
        assert (skipped > 0) == some


async def test_known_labels_are_kept():
    texts = texts_of(1_000)
    async with client(Says(sure), labeler=UncertaintySampling()) as nuc:
        await nuc.add(texts[:50], ["topic 5"] * 50)
        results = await nuc.classify_many(texts)
    assert all(row.own_label == "topic 5" for row in results[:50])


@pytest.mark.parametrize("wrong", ["unsure", None, 3])
def test_wrong_arguments(wrong):
    with pytest.raises(InvalidInputError, match=r"labeler is .*; give 'llm', testnuc.Uncertainty"):
        client(Says(), labeler=wrong)
    with pytest.raises(InvalidInputError, match="min_agreement"):
        UncertaintySampling(min_agreement=1.5)
    with pytest.raises(InvalidInputError, match="max_fraction"):
        UncertaintySampling(max_fraction=0)
