"""Bounds: they are computed as defined, and are wrong as seldom as promised."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testnuc.trust import evidence
from testnuc.trust.evidence import Draws, capital, gain_of, paired_gain
from tests import naive

_ALPHA = 0.1


def two_strata(random, among, m, decide=0.8):
    """Draw without replacement: with `decide` from `among`, else from all; as a review does."""
    n = len(among)
    taken = np.zeros(n, dtype=bool)
    rows, chances, floors, uniform = [], [], [], []
    for _ in range(m):
        inside = (among & ~taken).sum()
        part = decide if inside else 0.0
        floor = part / max(inside, 1) + (1 - part) / (n - len(rows))
        uniform.append(random.random() >= part)
        pool = ~taken if uniform[-1] else among & ~taken
        row = random.choice(np.flatnonzero(pool))
        taken[row] = True
        rows.append(row)
        chances.append(floor if among[row] else (1 - part) / (n - len(rows) + 1))
        floors.append(floor)
    draws = Draws(n, np.array(chances), np.array(floors), np.array(uniform, dtype=bool))
    return np.array(rows, dtype=np.int64), draws


def stopping(values, draws, mean):
    """Highest capital over the times that a person may stop at: after each fifth judgment."""
    return max(
        capital(
            values[:m],
            draws.only(np.arange(len(values)) < m),
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


def test_what_was_proved_stays_proved_unless_later_draws_contradict_it():
    n, m = 400, 30
    wins, ties, losses = np.ones(m), np.zeros(200), -np.ones(60)

    def gain(*values):
        values = np.concatenate(values)
        return gain_of(values, Draws.at_random(n, len(values)), 0.1)

    assert gain(wins).low > 0
    assert gain(wins, ties).low > 0
    assert gain(wins, losses).low <= 0


def test_uniform_draws_are_known_as_such():
    assert Draws.at_random(50, 10).uniform.all()
    assert not Draws.at_random(50, 10, among=20).uniform.any()
    # in an older snapshot they are those whose probability and place say so
    first, rest = Draws.at_random(50, 10), Draws.at_random(50, 15).only(np.arange(15) >= 10)
    decided = np.full(10, 1 / 20)
    for one, is_uniform in ((first.probability, True), (decided, False)):
        chance = np.concatenate([one, rest.probability])
        old = Draws.taken_from({"probability": chance, "floor": chance}, 50)
        assert old.uniform.tolist() == [is_uniform] * 10 + [True] * 5
    late = Draws.taken_from({"probability": rest.probability, "floor": rest.floor}, 50)
    assert not late.uniform.any()


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


def test_skipped_texts_prove_no_gain():
    # as many wins as losses; whoever judges skips half of the losses
    wrong = {"as if neither is right": 0, "unknown": 0}
    for seed in range(30):
        dice = np.random.default_rng(seed)
        among, values = np.arange(1_000) < 400, np.zeros(1_000)
        values[:400] = dice.permutation(np.repeat([-1.0, 1.0], 200))
        rows, draws = two_strata(dice, among, 200)
        skipped = (values[rows] < 0) & (dice.random(200) < 0.5)
        seen = np.where(skipped, 0.0, values[rows])
        wrong["as if neither is right"] += gain_of(seen, draws, _ALPHA).low > 0
        found = gain_of(seen, draws, _ALPHA, skipped)
        wrong["unknown"] += found.low > 0
        assert found.low <= found.value <= found.high
    assert wrong["as if neither is right"] > 15
    assert wrong["unknown"] <= 3


@pytest.mark.parametrize(
    ("balance", "others"), [((0.4, 0.4), (0.05, 0.05)), ((0.6, 0.3), (0.0, 0.05))]
)
@pytest.mark.parametrize("strata", [False, True])
def test_wins_and_losses_seldom_prove_a_gain_that_is_not_there(balance, others, strata):
    # as many wins as losses; in the second world all that one stratum wins is lost in the other
    random = np.random.default_rng(3)
    n, among, values = 900, np.arange(900) < 150, np.zeros(900)
    for inside, (won, lost) in ((among, balance), (~among, others)):
        rows = np.flatnonzero(inside)
        first, second = round(won * len(rows)), round((won + lost) * len(rows))
        values[rows[:first]], values[rows[first:second]] = 1.0, -1.0
    values[np.flatnonzero(values == 1.0)[: int(max(values.sum(), 0))]] = 0.0
    changed = among | (values != 0) | (random.random(n) < 0.02)
    low = high = 0
    for _ in range(400):
        if strata:
            rows, _ = two_strata(random, among, 50, 0.5)
            found = paired_gain(values[rows], rows, changed, [among, ~among], 0.09)
        else:
            rows = random.permutation(n)[:50]
            found = paired_gain(values[rows], rows, changed, [np.ones(n, np.bool_)], 0.09)
        low += found.low > 1e-9
        high += found.high < -1e-9
    assert max(low, high) <= 64


@pytest.mark.parametrize("later", [(320, 40, 0.4, 0.5, 0.1), (800, 40, 0.4, 0.3, 0.3)])
def test_the_gain_of_two_parts_misses_the_truth_as_seldom_as_it_says(later):
    """First texts said how much all later ones gain, on many of which neither label is right."""
    parts, below, above, draws = [(1_400, 180, 0.33, 0.85, 0.05), later], 0, 0, 400
    n = sum(part[0] for part in parts)
    for seed in range(draws):
        random, start, strata, rows = np.random.default_rng(seed), 0, [], []
        values, changed = np.zeros(n), np.zeros(n, np.bool_)
        for texts, judged, change, won, lost in parts:
            here = slice(start, start + texts)
            changed[here] = random.random(texts) < change
            values[here] = random.choice([1, -1, 0], texts, p=[won, lost, 1 - won - lost])
            rows.append(start + random.permutation(texts)[:judged])
            strata.append((np.arange(n) >= start) & (np.arange(n) < start + texts))
            start += texts
        values, where = values * changed, np.concatenate(rows)
        found = paired_gain(values[where], where, changed, strata, _ALPHA)
        assert found.low < found.value < found.high
        below += values.mean() < found.low
        above += values.mean() > found.high
        # of the first part alone
        first = paired_gain(values[rows[0]], rows[0], changed & strata[0], strata[:1], _ALPHA)
        alone = paired_gain(
            values[rows[0]], rows[0], changed & strata[0], strata[:1], _ALPHA, texts=1_400
        )
        assert alone.value == pytest.approx(first.value * n / 1_400)
    assert max(below, above) / draws <= 0.13


def test_all_texts_judged_say_the_gain_and_skipped_ones_prove_nothing():
    values, rows = np.array([1.0, 1.0, -1.0, 0.0]), np.arange(4)
    every, skipped = np.ones(4, np.bool_), np.array([True, True, False, False])
    found = paired_gain(values, rows, every, [every], _ALPHA)
    assert (found.low, found.value, found.high) == (0.25, 0.25, 0.25)
    found = paired_gain(values, rows, every, [every], _ALPHA, skipped)
    assert (found.low, found.high) == (-0.75, 0.25)
    # where none was drawn, nothing is known
    many = np.ones(400, np.bool_)
    some = np.arange(400) < 40
    found = paired_gain(np.ones(20), np.arange(20), many, [some, ~some], _ALPHA)
    assert found.low < 0 < found.high
    assert paired_gain(np.ones(20), np.arange(20), many, [some], _ALPHA).low > 0
