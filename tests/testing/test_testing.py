import asyncio
import random
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime

import numpy as np
import pytest

from testnuc.errors import InvalidInputError
from testnuc.protocols import Embedder
from testnuc.testing import CURABLE_KINDS, Faults, HashEmbedder, by_hash
from testnuc.testing.answers import answer_function, latency_function
from testnuc.testing.faults import PACKED_KINDS, RateLimitWindow
from testnuc.testing.formats import ANTHROPIC
from tests.virtual import Clock

TEXTS = [f"where is my order number {i}?" for i in range(2000)]


# -- HashEmbedder ------------------------------------------------------------------------------


async def test_vectors_are_float32_of_unit_norm():
    embedder = HashEmbedder(dim=32)
    vectors = await embedder.embed([*TEXTS, "", " ", "!?", "日本語の文", "\ud800", "a" * 20_000])
    assert vectors.shape == (len(TEXTS) + 6, 32)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert embedder.embedded == len(TEXTS) + 6
    assert isinstance(embedder, Embedder)


async def test_a_vector_depends_on_its_text_alone():
    together = await HashEmbedder().embed(TEXTS)
    embedder = HashEmbedder()
    apart = np.concatenate([await embedder.embed([text]) for text in reversed(TEXTS)])[::-1]
    assert (together == apart).all()
    assert (await HashEmbedder().embed([])).shape == (0, 64)


def test_vectors_are_the_same_in_every_process():
    code = (
        "import asyncio; from testnuc.testing import HashEmbedder;"
        "print(asyncio.run(HashEmbedder(8).embed(['Where is my card?']))[0].tobytes().hex())"
    )
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    vector = asyncio.run(HashEmbedder(8).embed(["where is my card"]))[0]
    assert vector.tobytes().hex() == out.strip()
    # on every platform, too: these digits were written down once
    pinned = [-13, 2, -5, 29, -20, 8, -8, -3]
    assert vector.tolist() == pytest.approx((pinned / np.linalg.norm(pinned)).tolist(), abs=1e-7)


async def test_similar_texts_are_near():
    near, text, far = await HashEmbedder().embed(
        ["my card has not arrived", "has my new card arrived yet?", "close the account please"]
    )
    assert near @ text > 0.5 > far @ text


async def test_the_vocabulary_is_bounded(monkeypatch):
    monkeypatch.setattr("testnuc.testing.embedder._MAX_WORDS", 10)
    embedder = HashEmbedder()
    expected = await HashEmbedder().embed(["one two three"])
    for i in range(100):
        await embedder.embed([f"word{i} other{i}"])
    assert len(embedder._words) <= 12
    assert (await embedder.embed(["one two three"]) == expected).all()


async def test_seed_and_dim_make_another_embedder():
    first, second = HashEmbedder(), HashEmbedder(seed=1)
    assert len({first.name, second.name, HashEmbedder(32).name}) == 3
    assert not np.allclose(await first.embed(["a card"]), await second.embed(["a card"]))
    with pytest.raises(InvalidInputError, match="at least 2"):
        HashEmbedder(1)


# -- Faults ------------------------------------------------------------------------------------


def drawn(faults, order=None, attempts=1):
    order = list(order or range(len(TEXTS)))
    return {
        (i, attempt): faults.draw((TEXTS[i],), attempt, number)
        for attempt in range(attempts)
        for number, i in enumerate(order)
    }


def test_a_schedule_does_not_depend_on_the_order_of_requests():
    order = list(range(len(TEXTS)))
    random.Random(1).shuffle(order)
    assert drawn(Faults(seed=3)) == drawn(Faults(seed=3), order)
    assert drawn(Faults(seed=3)) != drawn(Faults(seed=4))


def test_the_rate_and_all_kinds_are_met():
    kinds = Counter(drawn(Faults(0.2), attempts=10).values())
    failed = 1 - kinds.pop(None) / (10 * len(TEXTS))
    assert failed == pytest.approx(0.2, abs=0.02)
    assert set(kinds) == set(CURABLE_KINDS) - set(PACKED_KINDS)
    assert min(kinds.values()) > max(kinds.values()) / 2


def test_packed_requests_have_faults_of_their_own():
    faults = Faults(1, PACKED_KINDS)
    assert faults.draw(("a",), 0, 0) is None
    assert {faults.draw(("a", str(i)), 0, 0) for i in range(50)} == set(PACKED_KINDS)
    assert Faults(1, schedule=["missing-ids"]).draw(("a",), 0, 0) is None
    joined = [Faults(0.5).draw(("ab", "c"), i, 0) for i in range(40)]
    assert joined != [Faults(0.5).draw(("a", "bc"), i, 0) for i in range(40)]


def test_no_and_every_request_fails():
    assert set(drawn(Faults(0)).values()) == {None}
    assert None not in drawn(Faults(1)).values()


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_text_does_not_fail_more_often_in_a_row_than_allowed(most):
    for seed in range(20):
        faults = Faults(0.8, seed=seed, most_in_a_row=most)
        fates = "".join("." if faults.draw(("a",), i, 0) is None else "x" for i in range(200))
        assert max(map(len, fates.split("."))) == most


def test_explicit_schedules():
    listed = Faults(schedule=["500", None, "slow"])
    assert [listed.draw(("a",), 0, i) for i in range(4)] == ["500", None, "slow", None]
    called = Faults(schedule=lambda number: "429" if number % 2 else None)
    assert [called.draw(("a",), 0, i) for i in range(4)] == [None, "429", None, "429"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rate": 1.5}, "between 0 and 1"),
        ({"kinds": ()}, "rate=0"),
        ({"kinds": ("5oo",)}, "unknown fault '5oo'"),
        ({"schedule": ["200"]}, "unknown fault '200'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        Faults(**arguments)
    Faults(kinds=("408", "502"))


# -- rate limit ----------------------------------------------------------------------------------


def test_no_sliding_minute_holds_more_than_the_limit():
    clock = Clock()
    window = RateLimitWindow({"requests_per_minute": 3}, clock=clock)
    for second in (0, 30, 59):
        clock.now = 1000.0 + second
        assert window.admit(1) is None
    assert window.wait(1) == pytest.approx(1.0)
    violation = window.admit(1)
    assert (violation.what, violation.used, violation.limit) == ("requests", 4, 3)
    clock.now = 1060.0
    assert window.admit(1) is None
    assert window.admit(1) is not None
    assert window.wait(1) == pytest.approx(30.0)
    assert window.reset() == pytest.approx(60.0)
    clock.now = 2000.0
    assert window.wait(1) == window.reset() == window.requests == 0


def test_tokens_are_limited_too():
    clock = Clock()
    window = RateLimitWindow({"requests_per_minute": 10, "tokens_per_minute": 100}, clock=clock)
    assert window.admit(60) is None
    clock.now += 10
    assert window.admit(40) is None
    assert window.admit(1).what == "tokens"
    assert window.wait(60) == pytest.approx(50)
    assert window.wait(61) == pytest.approx(60)


# -- answers -------------------------------------------------------------------------------------


def test_how_an_answer_is_called_shows_in_its_signature():
    gold = {"a": "x"}
    cases = [
        (gold, False),
        (gold.get, False),
        (lambda text, gold=gold: gold[text], False),
        (lambda text, *rest: text, False),
        (by_hash(["x"]), False),
        (lambda text, time: "x", True),
    ]
    for answer, counts in cases:
        ask, found = answer_function(answer)
        assert found is counts
        assert ask("a", 0)
    with pytest.raises(InvalidInputError, match="a mapping of text"):
        answer_function(["x"])


def test_latency_may_be_drawn():
    assert latency_function(0.5)() == 0.5
    draw = latency_function((0.1, 0.2))
    assert all(0.1 <= draw() <= 0.2 for _ in range(100))
    assert latency_function((0.1, 0.2))() == latency_function((0.1, 0.2))()
    assert latency_function(lambda rng: rng.choice([3.0]))() == 3.0
    with pytest.raises(InvalidInputError, match="seconds"):
        latency_function(-1)


def test_by_hash_knows_every_text():
    answer = by_hash(["x", "y", "z"])
    labels, confidences = zip(*(answer(text) for text in TEXTS), strict=True)
    assert min(Counter(labels).values()) > 500
    assert 0.5 <= min(confidences) < max(confidences) <= 1
    assert answer("where is my card?") == ("y", 0.771240234375)
    with pytest.raises(InvalidInputError, match="empty"):
        by_hash([])


# -- content and wire ------------------------------------------------------------------------------


def test_anthropic_resets_are_dates():
    before = time.time()
    date = datetime.fromisoformat(ANTHROPIC.reset(30.5))
    assert before + 30 <= date.timestamp() <= time.time() + 31
