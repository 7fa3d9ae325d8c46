"""The page's statistic in Chromium against Python's: the same numbers."""

from __future__ import annotations

import json
from importlib.resources import files

import numpy as np
import pytest

from testnuc.trust import candidates as module
from testnuc.trust.candidates import LabelCandidate, choose
from testnuc.trust.evidence import Draws, capital, gain_of
from testnuc.trust.model import VoteModel
from tests.trust.test_evidence import two_strata


@pytest.fixture(scope="module")
def run(browser):
    """Call a function of evidence.js."""
    script = (files("testnuc.report") / "evidence.js").read_text(encoding="utf-8")
    page = browser.new_page()
    page.evaluate(f"{script.replace('const evidence =', 'globalThis.evidence =')}; null")

    def call(name, *arguments):
        return page.evaluate(
            f"(given) => evidence.{name}(...JSON.parse(given))", json.dumps(arguments)
        )

    yield call
    page.close()


def case(seed):
    """Return values of drawn texts, the draws, and a seeded generator."""
    random = np.random.default_rng(seed)
    n = int(random.integers(30, 4_000))
    among = random.random(n) < random.uniform(0.02, 0.9)
    among[0] = True
    m = int(random.integers(0, min(n, 120)))
    if random.random() < 0.5:
        rows, draws = two_strata(random, among, m)
    else:
        rows, draws = random.permutation(n)[:m], Draws.at_random(n, m)
    return rows, among, draws, random


def plain(draws):
    return {
        "texts": draws.texts,
        "probability": draws.probability.tolist(),
        "floor": draws.floor.tolist(),
    }


def test_the_page_computes_what_learn_computes(run):
    for seed in range(60):
        rows, among, draws, random = case(seed)
        part = random.uniform(0.05, 0.95)
        values = np.where(among[rows], np.sign(part - random.random(len(rows))), 0.0)
        means = np.linspace(-0.9, 0.9, 7)
        found = run("capital", values.tolist(), plain(draws), means.tolist())
        assert found == pytest.approx(capital(values, draws, means).tolist(), abs=1e-8), seed
        alpha = float(random.choice([0.1, 0.02, 0.005]))
        gain, expected = run("gainOf", values.tolist(), plain(draws), alpha), gain_of(
            values, draws, alpha
        )  # fmt: skip
        assert gain["low"] == pytest.approx(expected.low, abs=1e-9), seed
        assert gain["high"] == pytest.approx(expected.high, abs=1e-9), seed
        assert gain["value"] == pytest.approx(expected.value, abs=1e-9), seed


def test_the_page_chooses_what_learn_chooses(run):
    chosen = set()
    for seed in range(40):
        rows, _, draws, random = case(1_000 + seed)
        n = draws.texts
        gold = random.integers(-1, 4, n).astype(np.int32)
        shares = [0.0, 1.0, 1.0, 2.0]
        given = [
            LabelCandidate(
                f"way {c}", share, VoteModel(c),
                np.where(random.random(n) < random.uniform(0.3, 0.95), gold, 0).astype(np.int32),
            )
            for c, share in enumerate(shares)
        ]  # fmt: skip
        labels = gold[rows]
        everywhere = np.ones(n, dtype=np.bool_)
        # `choose` reads the texts only to teach models
        verdict = choose(None, given, rows, labels, draws, everywhere, taught=False)
        judged = [
            {
                "probability": draws.probability[i],
                "floor": draws.floor[i],
                "known": bool(label >= 0),
                "right": [bool(c.labels[row] == label) for c in given],
            }
            for i, (row, label) in enumerate(zip(rows.tolist(), labels.tolist(), strict=True))
        ]
        found = run("choose", judged, [[c.name, c.share, False] for c in given], n)
        assert found["best"] == given.index(verdict.chosen), seed
        chosen.add(found["best"])
        for mine, theirs in zip(found["gains"], verdict.gains, strict=True):
            assert mine["low"] == pytest.approx(theirs.low, abs=1e-9), seed
            assert mine["value"] == pytest.approx(theirs.value, abs=1e-9), seed
        # the confidence shown is the level at which the bound reaches 0
        for c, mine in enumerate(found["gains"][1:], 1):
            assert (mine["sure"] >= 1 - module.ALPHA) == (verdict.gains[c].low >= 0), seed
        known = labels >= 0
        assert found["before"] == int(((given[0].labels[rows] == labels) & known).sum())
    assert len(chosen) > 2
