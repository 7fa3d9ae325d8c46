"""Decisions and labels of a pool that changes, or that clients with other labels share."""

from __future__ import annotations

import numpy as np
import pytest

from testnuc import TestNUC
from testnuc.methods import StandardPrompting, TopKICL, TopKICLP
from testnuc.protocols import Answer, Reply, TokenUsage

CLASSES = ["refund", "delivery", "login", "invoice"]
OTHERS = ["spam", "no spam"]


def truth(text):
    return int(text.split()[1]) % len(CLASSES)


class Clusters:
    """Embeds ``text N`` near the other texts of its class."""

    name, dim = "clusters", 16

    async def embed(self, texts):
        rows = np.empty((len(texts), self.dim), np.float32)
        for row, text in zip(rows, texts, strict=True):
            row[:] = np.random.default_rng(int(text.split()[1])).standard_normal(self.dim) * 0.15
            row[truth(text)] += 1
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


class Rule:
    """Guesses on 25 % of the texts, at random."""

    name, model, identity = "rule", "m", "1"

    def __init__(self):
        self.asked = []
        self.users = []

    async def answer(self, request):
        self.asked += request.texts
        self.users.append(request.user)
        answers = []
        for text in request.texts:
            random = np.random.default_rng(10**6 + int(text.split()[1]))
            right = random.random() > 0.25
            label = truth(text) if right else int(random.integers(len(CLASSES)))
            answers.append(Answer(request.task.labels[label % len(request.task.labels)], 0.9))
        return Reply(tuple(answers), TokenUsage(1, 1))


def client(rule=None, labels=CLASSES, **options):
    return TestNUC(labels, rule or Rule(), embedder=Clusters(), **options)


def texts(start, n):
    return [f"text {i}" for i in range(start, start + n)]


def looked(nuc):
    """Return the number of predictions behind the decision of the next text."""
    return nuc._parts.pipeline.pool_predictions.last.diagnosis.predictions


# -- decisions -------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_the_decision_follows_the_predictions():
    async with client() as nuc:
        await nuc.add(texts(0, 1_600))
        await nuc.classify_many(texts(0, 200))
        await nuc.classify("text 0")
        assert 200 <= looked(nuc) <= 250
        await nuc.predict_pool()
        asked = [await nuc.classify(text) for text in texts(5_000, 60)]
        assert looked(nuc) >= 1_600, "the decision goes by most of the predictions"
        await nuc.diagnose()
        again = [await nuc.classify(text) for text in texts(5_000, 60)]
        assert [r.label for r in asked] == [r.label for r in again]


@pytest.mark.slow
async def test_calls_alone_let_the_decision_be_made_again():
    async with client() as nuc:
        await nuc.add(texts(0, 900))
        await nuc.classify_many(texts(0, 200))
        await nuc.classify("text 0")
        first = looked(nuc)
        for text in texts(200, first // 4 + 2):
            await nuc.classify(text)
        assert looked(nuc) >= 1.25 * first


@pytest.mark.slow
async def test_the_same_texts_do_not_let_the_pool_be_diagnosed_again(monkeypatch):
    async with client() as nuc:
        await nuc.add(texts(0, 400))
        await nuc.predict_pool()
        await nuc.classify("text 0")
        pool_predictions = nuc._parts.pipeline.pool_predictions
        looks = 0
        diagnose = pool_predictions.diagnose

        async def counted(settings):
            nonlocal looks
            looks += 1
            return await diagnose(settings)

        monkeypatch.setattr(pool_predictions, "diagnose", counted)
        for _ in range(3):
            for text in texts(0, 110):
                await nuc.classify(text)
        assert looks == 0


@pytest.mark.parametrize("removed", ["predictions", "texts"])
async def test_what_is_forgotten_or_removed_no_longer_decides(removed):
    async with client() as nuc:
        await nuc.add(texts(0, 600))
        await nuc.predict_pool()
        await nuc.classify("text 0")
        assert looked(nuc) == 600
        if removed == "texts":
            assert await nuc.remove(texts(100, 300)) == 300
            await nuc.classify("text 0")
            assert looked(nuc) == 300
        else:
            await nuc.forget()
            with pytest.warns(UserWarning, match="has 1 predictions"):
                result = await nuc.classify("text 0")
            assert looked(nuc) == 1
            assert result.label == result.prediction.label


# -- labels of another label set -------------------------------------------------------------------


@pytest.mark.parametrize("neighbors", ["predict", "stored"])
@pytest.mark.parametrize("method", [StandardPrompting(), TopKICL(k=2), TopKICLP(k=2)])
async def test_a_label_of_another_set_is_no_label(tmp_path, neighbors, method):
    path = tmp_path / "s.db"
    async with client(labels=OTHERS, store=path) as other:
        await other.add(texts(0, 20), ["spam"] * 20)
        assert (await other.stats()).foreign_labels == 0
    rule = Rule()
    options = {"neighbors": neighbors, "method": method, "policy": "weighted", "k": 5}
    async with client(rule, store=path, **options) as nuc:
        await nuc.add(texts(20, 3), ["login", "login", "login"])
        assert (await nuc.stats()).foreign_labels == 20
        assert (await nuc.estimate(texts(0, 20))).calls >= 20
        results = await nuc.classify_many(texts(0, 20))
        assert set(rule.asked) == set(texts(0, 20)), "each is asked, and none with a label of ours"
        assert all(r.prediction is not None and r.label in CLASSES for r in results)
        assert not any("spam" in user for user in rule.users)
        one = await nuc.classify("text 30")
        assert one.label in CLASSES
        assert len(one.neighbors) == 5
        assert all(neighbor.label in CLASSES for neighbor in one.neighbors)
        await nuc.predict_pool()
        assert (await nuc.stats()).predicted == 21
        assert (await nuc.diagnose()).predictions == 24
    async with client(labels=OTHERS, store=path, policy="majority", k=3) as other:
        # the other client keeps its labels
        assert (await other.classify("text 3")).label == "spam"
        assert (await other.stats()).foreign_labels == 3
