"""Bounds and certificates: they are computed as defined, and are wrong as seldom as promised."""

import re
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testnuc.trust import evidence
from testnuc.trust.certificates import Certificate, certify, proved
from testnuc.trust.evidence import Draws, capital, gain_of
from testnuc.trust.review import draw
from tests import naive

_ALPHA = 0.1


def two_strata(random, among, m, decide=0.8):
    """Draw without replacement: with `decide` from `among`, else from all; as a review does."""
    n = len(among)
    taken = np.zeros(n, dtype=bool)
    rows, chances, floors = [], [], []
    for _ in range(m):
        inside = (among & ~taken).sum()
        part = decide if inside else 0.0
        floor = part / max(inside, 1) + (1 - part) / (n - len(rows))
        pool = among & ~taken if random.random() < part else ~taken
        row = random.choice(np.flatnonzero(pool))
        taken[row] = True
        rows.append(row)
        chances.append(floor if among[row] else (1 - part) / (n - len(rows) + 1))
        floors.append(floor)
    return np.array(rows, dtype=np.int64), Draws(n, np.array(chances), np.array(floors))


def stopping(values, draws, mean):
    """Highest capital over the times that a person may stop at: after each fifth judgment."""
    return max(
        capital(
            values[:m],
            Draws(draws.texts, draws.probability[:m], draws.floor[:m]),
            np.array([mean]),
        )[0]
        for m in range(5, len(values) + 1, 5)
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 12), st.floats(-0.9, 0.9), st.booleans())
def test_the_capital_is_that_of_bettors(seed, m, mean, strata):
    random = np.random.default_rng(seed)
    among = random.random(40) < 0.6
    among[0] = True
    if strata:
        rows, draws = two_strata(random, among, m)
    else:
        rows, draws = random.permutation(40)[:m], Draws.at_random(40, m)
    values = np.where(among, random.integers(-1, 2, 40), 0)[rows].astype(float)
    found = capital(values, draws, np.array([mean]))
    expected = naive.log_capital(
        values, draws.probability, draws.floor, 40, mean, evidence.BETS.tolist()
    )
    assert found[0] == pytest.approx(expected, abs=1e-9)


def test_uniform_draws_are_known_as_such():
    assert Draws.at_random(50, 10).uniform
    assert not Draws.at_random(50, 10, among=20).uniform
    assert Draws.at_random(50, 0).uniform


def test_a_bound_without_judgments_says_nothing():
    found = gain_of(np.empty(0), Draws.at_random(100, 0), 0.05)
    assert (found.value, found.low, found.high) == (0.0, -1.0, 1.0)


def test_all_wins_prove_a_gain_and_all_losses_a_loss():
    draws = Draws.at_random(1_000, 40)
    won, lost = gain_of(np.ones(40), draws, 0.05), gain_of(-np.ones(40), draws, 0.05)
    assert 0.5 < won.low <= won.value <= won.high
    assert lost.high <= 0.0
    assert lost.low <= lost.value < -0.5
    none = gain_of(np.zeros(40), draws, 0.05)
    assert none.low <= 0 <= none.high


def population(random, n, share, balance):
    """Values of a candidate: 0 outside `among`; inside wins and losses with a mean near 0."""
    among = random.random(n) < share
    among[:2] = True
    values = np.zeros(n)
    count = int(among.sum())
    values[among] = random.choice([1.0, -1.0, 0.0], count, p=balance)
    return among, values


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["uniform", "among", "strata"])
@pytest.mark.parametrize("balance", [(0.35, 0.35, 0.3), (0.5, 0.3, 0.2)])
def test_bounds_are_wrong_in_at_most_alpha_of_the_draws(kind, balance):
    random = np.random.default_rng(1)
    among, values = population(random, 300, 0.4, balance)
    mean = values.mean()
    lower = upper = 0
    for _ in range(1_000):
        if kind == "strata":
            rows, draws = two_strata(random, among, 60)
        elif kind == "among":
            rows = random.permutation(np.flatnonzero(among))[:60]
            draws = Draws.at_random(300, 60, int(among.sum()))
        else:
            rows, draws = random.permutation(300)[:60], Draws.at_random(300, 60)
        found = gain_of(values[rows], draws, _ALPHA)
        # bounds lie on a grid, rounded outward
        lower += found.low > mean + 1e-9
        upper += found.high < mean - 1e-9
    assert lower <= 100
    assert upper <= 100


@pytest.mark.slow
@pytest.mark.parametrize("strata", [False, True])
def test_who_stops_at_the_first_proof_is_seldom_wrong(strata):
    random = np.random.default_rng(2)
    among = random.random(300) < 0.4
    values = np.zeros(300)
    inside = np.flatnonzero(among)
    # as many wins as losses: the gain is exactly 0
    values[inside[::2]], values[inside[1::2]] = 1.0, -1.0
    values[inside[-1]] = 0.0 if len(inside) % 2 else values[inside[-1]]
    assert values.sum() == 0
    wrong = 0
    for _ in range(1_000):
        if strata:
            rows, draws = two_strata(random, among, 60)
        else:
            rows = random.permutation(inside)[:60]
            draws = Draws.at_random(300, 60, len(inside))
        wrong += stopping(values[rows], draws, 0.0) >= np.log(1 / _ALPHA)
    assert wrong <= 100


@pytest.mark.slow
@pytest.mark.parametrize("strata", [False, True])
def test_certificates_are_wrong_in_at_most_a_tenth_of_the_draws(strata):
    random = np.random.default_rng(3)
    n, m = 800, 150
    trust = random.random(n)
    right = random.random(n) < 1 - 0.4 * (1 - trust)
    among = trust < 0.5
    wrong = certified = 0
    for _ in range(1_000):
        if strata:
            rows, draws = two_strata(random, among, m)
        else:
            rows, draws = random.permutation(n)[:m], Draws.at_random(n, m)
        made = certify(trust, rows, right[rows], draws, accuracy=0.85, confidence=0.9)
        inside = trust >= made.trust
        certified += bool(made.part)
        wrong += bool(inside.any() and right[inside].mean() < 0.85)
    assert wrong <= 100
    assert strata or certified >= 100


def test_a_certificate_says_what_it_takes():
    trust = np.linspace(0, 1, 400)
    rows = np.arange(0, 400, 40)
    few = certify(
        trust, rows, np.ones(10, bool), Draws.at_random(400, 10), accuracy=0.9, confidence=0.9
    )
    assert few.part == 0
    assert np.isinf(few.trust)
    assert "10 judged texts count so far, and it takes 60; about 50 more" in str(few)
    assert "60 in all" in str(few)
    assert few.more == 50
    rows = np.arange(0, 400, 2)
    draws = Draws.at_random(400, 200)
    bad = certify(trust, rows, rows % 4 == 0, draws, accuracy=0.9, confidence=0.9)
    assert "better labels do" in str(bad)
    assert bad.more == 0
    good = certify(trust, rows, np.ones(200, bool), draws, accuracy=0.9, confidence=0.9)
    assert good.part == 1.0
    assert "100% of the texts" in str(good)


@dataclass(frozen=True, eq=False)
class Taught:
    """What `proved` reads of what was learned."""

    decides: str
    right: np.ndarray
    certificate: Certificate

    def certify(self):
        return self.certificate


def test_better_labels_come_before_their_certificate():
    half, all_right = np.arange(50) % 2 == 0, np.ones(50, bool)
    lacks = Certificate(0.9, 0.9, np.inf, 0.0, 50, "about 50 more would do", 50)
    hopeless = Certificate(0.9, 0.9, np.inf, 0.0, 50, "better labels do")
    fine = Certificate(0.9, 0.9, 0.7, 0.5, 50)
    differ = "which ways to label differ"
    for decides, right, made, says in (
        ("settings", half, lacks, differ),
        # an LLM that is mostly right leaves nothing to gain
        ("settings", all_right, lacks, "about 50 more would do"),
        ("settings", np.tile(half, 4), lacks, "about 50 more would do"),
        ("head", half, lacks, "about 50 more would do"),
        ("head", half, hopeless, differ),
        ("settings", half, fine, "Proved: 50% of the texts"),
    ):
        text = proved(Taught(decides, right, made))
        assert says in text
        assert (differ in text) == (says == differ)


@pytest.mark.slow
def test_the_reason_is_about_all_texts_and_not_about_those_that_were_drawn_more_often():
    random = np.random.default_rng(5)
    n, m = 800, 150
    trust = random.random(n)
    # candidates differ on a fifth of the trusted texts, and half of those labels are wrong
    among = random.random(n) < 0.2
    right = ~(among & (random.random(n) < 0.5))
    top = trust >= np.sort(trust)[::-1][319]
    trusted, plain = [], []
    for _ in range(200):
        rows, draws = two_strata(random, among, m)
        made = certify(trust, rows, right[rows], draws, accuracy=0.95, confidence=0.9)
        found = re.search(
            r"the 40% of the texts with the highest trust about (\d+)% are", str(made)
        )
        assert found
        trusted.append(int(found[1]) / 100)
        plain.append(right[rows][top[rows]].mean())
    assert np.mean(trusted) == pytest.approx(right[top].mean(), abs=0.03)
    assert np.mean(plain) < right[top].mean() - 0.1


def test_judged_disagreements_alone_certify_nothing_and_do_not_stand_in_the_way():
    n = 400
    trust = np.linspace(0, 1, n)
    right = np.ones(n, bool)
    first, rest = np.arange(0, n, 8), np.arange(1, n, 4)
    chance = 1 / (100 - np.arange(50))
    alone = certify(
        trust, first, right[first], Draws(n, chance, chance), accuracy=0.8, confidence=0.9
    )
    assert alone.part == 0
    assert "could not be drawn" in str(alone)
    # then a review of all that are left
    chance = np.concatenate([chance, 1 / (n - 50 - np.arange(100))])
    rows = np.concatenate([first, rest])
    both = certify(trust, rows, right[rows], Draws(n, chance, chance), accuracy=0.8, confidence=0.9)
    assert both.part > 0.5


@pytest.mark.slow
def test_judged_disagreements_do_not_certify_texts_that_could_not_be_drawn_with_them():
    random = np.random.default_rng(7)
    n, wrong = 1_000, 0
    trust = random.random(n)
    # where candidates differ labels are right, elsewhere they are not
    among = random.random(n) < 0.4
    right = among | (random.random(n) < 0.2)
    for _ in range(100):
        open_, drawn = np.ones(n, dtype=bool), []
        for goal, m in (("decide", 300), (None, 50)):
            drawn += draw(m, goal, among, open_, trust, random)
            open_[[d.row for d in drawn]] = False
        rows = np.array([d.row for d in drawn])
        draws = Draws(n, *np.array([(d.probability, d.floor, d.lowest) for d in drawn]).T)
        made = certify(trust, rows, right[rows], draws, accuracy=0.55, confidence=0.9)
        inside = trust >= made.trust
        wrong += bool(inside.any() and right[inside].mean() < 0.55)
    assert wrong <= 10


def test_a_text_of_unknown_trust_is_never_certified():
    trust = np.full(300, np.nan)
    trust[:200] = 0.9
    rows = np.arange(200)
    draws = Draws.at_random(300, 200)
    made = certify(trust, rows, np.ones(200, bool), draws, accuracy=0.8, confidence=0.9)
    assert made.trust == 0.9
    assert made.part == pytest.approx(200 / 300)
