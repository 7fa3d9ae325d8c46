"""The auto policy, trust and prior through the client."""

from __future__ import annotations

import asyncio
import warnings

import numpy as np
import pytest

from testnuc import SmallPoolWarning, TestNUC, VotePolicy
from testnuc.review import review_queue
from tests.doubles import Says

NAMES = [f"label {i}" for i in range(6)]


class Embedder:
    name = "clusters"
    dim = 24

    async def embed(self, texts):
        rows = []
        for text in texts:
            group, member = map(int, text.split())
            center = np.random.default_rng(group).normal(size=24)
            noise = np.random.default_rng(10_000 * group + member).normal(size=24)
            row = center + 0.03 * (member % 8) * noise
            rows.append(row / np.linalg.norm(row))
        return np.array(rows, np.float32)


def gold(text):
    return NAMES[int(text.split()[0]) % 6]


def said(text):
    """Return what is right in seven of ten cases, else anything."""
    group, member = map(int, text.split())
    rng = np.random.default_rng([group, member, 7])
    return gold(text) if rng.random() < 0.7 else NAMES[rng.integers(6)]


TEXTS = [f"{group} {member}" for group in range(60) for member in range(20)]


def client(**more):
    labeler = Says(lambda text: (said(text), None))
    return labeler, TestNUC(NAMES, labeler, embedder=Embedder(), **more)


def accuracy(results):
    return np.mean([r.label == gold(r.text) for r in results])


@pytest.mark.slow
async def test_auto_votes_where_it_helps_and_costs_no_call_more():
    labeler, nuc = client()
    async with nuc:
        results = await nuc.classify_many(TEXTS)
        assert len(labeler.asked) == len(TEXTS)
        alone = np.mean([r.prediction.label == gold(r.text) for r in results])
        assert accuracy(results) > alone + 0.05
        assert all(r.trust is not None and 0 <= r.trust <= 1 for r in results)
        found = await nuc.diagnose()
        assert found.decision.policy is not None
        assert len(labeler.asked) == len(TEXTS)
        # a later single text uses what the pool says
        one = await nuc.classify("3 21")
        assert len(labeler.asked) == len(TEXTS) + 1
        assert one.voters > 3
        assert review_queue(results, 5)
    _, other = client()
    async with other:
        streamed = {r.index: r async for r in other.stream(TEXTS, window=len(TEXTS))}
    for row in results:
        same = streamed[row.index]
        assert (same.label, same.share, same.trust) == (row.label, row.share, row.trust)


async def test_few_predictions_keep_their_own():
    labeler, nuc = client()
    async with nuc:
        with pytest.warns(SmallPoolWarning, match="20 predictions"):
            results = await nuc.classify_many(TEXTS[:20])
    assert len(labeler.asked) == 20
    assert [r.label for r in results] == [said(t) for t in TEXTS[:20]]
    assert "20 predictions" in results[0].reason


@pytest.mark.slow
async def test_a_diagnosis_ends_with_what_was_decided_and_what_judgments_would_bring():
    _, nuc = client()
    async with nuc:
        results = await nuc.classify_many(TEXTS)
        # the decision, and the labels that a plain vote would change
        _, plain = client(policy="weighted")
        async with plain:
            changed = (await plain.classify_many(TEXTS)).changed
    found = results.diagnosis
    assert found is not None
    last = str(found).splitlines()[-1]
    assert last.startswith(f"{found.decision.k} neighbors vote")
    assert f"another label to {changed:,} of 1,200 texts, rightly or not" in last
    assert "How many labels are right is unknown before some texts are judged" in last
    assert "await nuc.review(50)" in last
    assert "testnuc review out.csv" in found.sentence("testnuc review out.csv")
    _, nuc = client()
    async with nuc:
        with pytest.warns(SmallPoolWarning) as caught:
            results = await nuc.classify_many(TEXTS[:100])
    last = str(results.diagnosis).splitlines()[-1]
    assert last.startswith("The LLM's own labels are kept: 100 predictions are too few")
    assert "weighted" not in str(caught[0].message)


@pytest.mark.parametrize("given", [{}, {"policy": "weighted"}])
async def test_trust_is_shown_of_the_kept_label_and_of_the_one_that_others_would_give(given):
    """Trust 0.04 beside votes of 100 % was shown: the votes were the text's own alone."""
    _, nuc = client(**given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallPoolWarning)
        async with nuc:
            results = await nuc.classify_many(TEXTS[:100])
    overruled = 0
    for result in results:
        if result.alternative is None:
            continue
        assert result.alternative != result.label
        assert result.trust_of_alternative > 0
        assert result.trust + result.trust_of_alternative <= 1 + 1e-6
        explained = result.explain()
        assert f"trust {result.trust:.2f} in {result.label!r}" in explained
        assert f"{result.trust_of_alternative:.2f} in {result.alternative!r}" in explained
        assert f"{result.trust_of_alternative:.2f}" in result._repr_html_()
        overruled += result.trust_of_alternative > result.trust
        if result.voters == 1:
            assert "voted" not in explained
            assert "<th>votes" not in result._repr_html_()
    # kept, though others would give another label
    assert bool(overruled) == (not given)


async def test_a_single_text_asks_no_neighbor_before_there_is_evidence():
    labeler, nuc = client()
    async with nuc:
        await nuc.add(TEXTS)
        with pytest.warns(SmallPoolWarning):
            result = await nuc.classify("3 30")
    assert len(labeler.asked) == 1
    assert result.label == said("3 30")


@pytest.mark.slow
async def test_trust_is_unknown_without_voters_and_withholds_labels():
    _, nuc = client(policy="weighted", k=0)
    async with nuc:
        assert (await nuc.classify_many(TEXTS[:5]))[0].trust is None
    _, nuc = client(policy=VotePolicy(min_trust=0.6))
    async with nuc:
        results = await nuc.classify_many(TEXTS)
    withheld = [r for r in results if r.label is None]
    assert 0 < len(withheld) < len(TEXTS)
    assert all("below 0.6" in r.reason for r in withheld)
    assert all(r.share == r.trust for r in results)
    assert results.labels == [r.label for r in results]
    assert results.changed == sum(r.changed for r in results)


@pytest.mark.slow
async def test_prior_balances_the_batch():
    _, nuc = client(policy=VotePolicy(prior={n: 1 + (n == NAMES[0]) * 20 for n in NAMES}))
    async with nuc:
        tilted = await nuc.classify_many(TEXTS)
        streamed = {r.index: r.label async for r in nuc.stream(TEXTS, window=len(TEXTS))}
    assert [streamed[i] for i in range(len(TEXTS))] == tilted.labels
    _, nuc = client(policy="weighted")
    async with nuc:
        plain = await nuc.classify_many(TEXTS)
    assert tilted.labels.count(NAMES[0]) > plain.labels.count(NAMES[0])


async def test_stored_neighbors_and_no_joining():
    labeler, nuc = client(neighbors="stored", join_pool=False)
    async with nuc:
        await nuc.add(TEXTS)
        await nuc.predict_pool()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            results = await nuc.classify_many([f"{g} 25" for g in range(30)])
    assert len(labeler.asked) == len(TEXTS) + 30
    assert results[0].voters > 3


@pytest.mark.slow
async def test_many_callers_look_at_the_pool_once():
    labeler, nuc = client(neighbors="stored")
    looks = []
    pool_predictions = nuc._parts.pipeline.pool_predictions
    look = pool_predictions.diagnose

    async def counted(settings):
        looks.append(len(nuc))
        return await look(settings)

    pool_predictions.diagnose = counted
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallPoolWarning)
        async with nuc:
            # too few predictions: looked at again when there can be enough, not by every caller
            for text in TEXTS[:100]:
                await nuc.classify(text)
            assert len(looks) < 25
            await nuc.classify_many(TEXTS[100:800])
            looks.clear()
            await asyncio.gather(*(nuc.classify(f"{i % 60} {20 + i}") for i in range(600)))
            assert 1 <= len(looks) <= 6
    assert len(labeler.asked) == 1_400
