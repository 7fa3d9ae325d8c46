"""Certificates are computed as defined, and are wrong as seldom as promised."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench._judged import proof
from bench.certificates import worlds
from testnuc.trust import certificates
from testnuc.trust.certificates import Certificate, Strata, certify, edges
from testnuc.trust.evidence import Draws
from testnuc.trust.learned import Learned, _proved
from tests import naive

PARTS = len(certificates.PARTS)
#: Of 60 runs: at an error of a tenth, more come by chance in 1 of 500; at 0.3, in 9 of 10.
MOST = 13
#: Of 200 runs: at an error of a tenth, more come by chance in 1 of 1,000; at 0.2, in 5 of 6.
RUNS, MOST_OF_RUNS = 200, 34


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6))
def test_the_evidence_is_not_above_its_definition(seed):
    random = np.random.default_rng(seed)
    shape = [(1, 1), (2, 1), (3, 1), (1, 2), (1, 3), (2, 2)][random.integers(6)]
    left = random.integers(2, 12 if sum(shape) < 4 else 7, shape)
    draws = random.integers(0, left + 1)
    wrong = np.minimum(random.integers(0, 3, shape), draws)
    least, most = int(wrong.sum()), int((left - draws + wrong).sum())
    budget = int(random.integers(least, most + 1))
    expected = naive.log_evidence(left.tolist(), draws.tolist(), wrong.tolist(), budget, 0.9)
    made = float(certificates.log_evidence(left, draws, wrong, budget, 0.9))
    if budget <= least:
        assert made == -np.inf
    else:
        assert made <= expected + 1e-5
        # and not far below: real numbers of wrong texts instead of whole ones
        assert made > expected - 1.0


@pytest.mark.parametrize("draws", [40, 300])
@pytest.mark.parametrize("texts", [1_000, 7_000, 10**6, 10**9])
@pytest.mark.parametrize("strata", [1, 2, 5])
def test_evidence_of_draws_that_are_all_right_is_exact(strata, texts, draws):
    """Of equal strata, equally many are wrong where that is most likely."""
    budget = certificates.too_many(strata * texts, 0.9)
    every = np.arange(draws)
    predicted = np.log((70 + every) / (71 + every)).sum()
    likely = np.log1p(-budget / strata / (texts - every)).sum()
    left, drawn = np.full((strata, 1), texts), np.full((strata, 1), draws)
    made = certificates.log_evidence(left, drawn, 0 * drawn, budget, 0.9)
    expected = strata * (predicted - likely)
    assert expected - 1e-3 < made < expected + 1e-5


def test_one_wrong_draw_costs_about_as_many_draws_again():
    needed = -np.log(certificates.error_of(0.9, 0))
    for draws, wrong in ((26, 0), (53, 1), (76, 2)):
        counts = [np.array([[count]]) for count in (10_000, draws, wrong)]
        assert certificates.log_evidence(*counts, certificates.too_many(10_000, 0.9), 0.9) >= needed


@pytest.mark.parametrize(
    ("texts", "draws", "accuracy"), [(20, 10, 0.9), (60, 30, 0.9), (200, 80, 0.8)]
)
def test_evidence_of_what_is_not_true_is_at_most_one_in_the_mean(texts, draws, accuracy):
    wrong = certificates.too_many(texts, accuracy)
    mean = 0.0
    for found in range(min(wrong, draws) + 1):
        chance = comb(wrong, found) * comb(texts - wrong, draws - found) / comb(texts, draws)
        evidence = certificates.log_evidence([[texts]], [[draws]], [[found]], wrong, accuracy)
        mean += float(np.exp(evidence)) * chance
    assert mean <= 1 + 1e-9


@pytest.mark.parametrize("wrong", range(7))
def test_evidence_of_cohorts_that_are_not_true_is_at_most_one_in_the_mean(wrong):
    texts, draws, all_wrong = (30, 20), (12, 9), certificates.too_many(50, 0.88)
    each = (wrong, all_wrong - wrong)

    def chances(n, m, bad):
        return {w: comb(bad, w) * comb(n - bad, m - w) / comb(n, m) for w in range(min(m, bad) + 1)}

    first, second = (chances(*of) for of in zip(texts, draws, each, strict=True))
    mean = 0.0
    for (a, p), (b, q) in itertools.product(first.items(), second.items()):
        evidence = certificates.log_evidence([texts], [draws], [(a, b)], all_wrong, 0.88)
        mean += float(np.exp(evidence)) * p * q
    assert mean <= 1 + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("n", [300, 1_000])
@pytest.mark.parametrize("which", range(5))
def test_certificates_are_wrong_in_at_most_a_tenth_with_a_look_after_every_judgment(n, which):
    _, right, known = [*worlds(n)][which]
    random, trust = np.random.default_rng(2), np.linspace(1, 0.01, n)
    wrongly = sum(proof(trust, right, known, 300, random)[1] for _ in range(RUNS))
    assert wrongly <= MOST_OF_RUNS


@pytest.mark.parametrize("which", range(5))
def test_many_looks_at_once_prove_what_each_look_does(which):
    _, right, known = [*worlds(300)][which]
    trust, every = np.linspace(1, 0.01, 300), (np.random.default_rng(seed) for seed in (3, 3))
    by_look, at_once = every
    for _ in range(3):
        expected = by_looks(trust, right, known, 70, by_look)
        assert proof(trust, right, known, 70, at_once) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "later"), [("right", 200), ("just not", 600), ("trust says nothing", 200)]
)
def test_extended_certificates_are_wrong_in_at_most_a_tenth(first, later):
    """The union of first and later texts is just not right enough; with a look at each 2nd draw."""
    n, random, runs, seen = 600, np.random.default_rng(3), 60, {}
    trust = np.concatenate([np.linspace(1, 0.01, n), np.linspace(1, 0.01, later)])
    ends, wrongly = (n, n + later), 0
    lowest = edges(trust[:n])
    cells = certificates.cells_of(trust, lowest, ends)
    for _ in range(runs):
        right = np.ones(n + later, bool)
        bad = {"right": 0.02, "just not": 0.1, "trust says nothing": 0.1}[first]
        right[random.permutation(n)[: int(bad * n) + 1]] = False
        for part in range(PARTS):
            # the later texts make each part just not right enough
            inside = np.flatnonzero(cells // 2 <= part)
            lacks = certificates.too_many(len(inside), 0.9) - int((~right[inside]).sum())
            here = np.flatnonzero((cells == 2 * part + 1) & right)
            right[random.permutation(here)[: max(lacks, 0)]] = False
        wrongly += extended_wrongly(trust, right, ends, (60, 60), random, seen)
    assert wrongly <= MOST


def extended_wrongly(trust, right, ends, looks, random, seen):
    """Whether a certificate of all texts is ever wrong: draws of the first, then of all texts."""
    lowest, none = edges(trust[: ends[0]]), np.empty(0, np.int64)
    start = Strata.of(trust, none, none > 0, none > 0, None, ends)
    cells = certificates.cells_of(trust, lowest, ends)
    left = [random.permutation(np.flatnonzero(cells == cell)).tolist() for cell in range(2 * PARTS)]
    draws, wrong, proven = np.zeros((PARTS, 2), int), np.zeros((PARTS, 2), int), 0
    for cohorts, steps in zip((1, 2), looks, strict=True):
        for _ in range(0, steps, 2):
            state = replace(start, draws=draws, wrong=wrong).earlier(cohorts)
            for cell in state.next(2, proven + 1):
                at = divmod(int(cell), cohorts)
                draws[at] += 1
                wrong[at] += not right[left[2 * at[0] + at[1]].pop()]
            state = replace(start, draws=draws, wrong=wrong).earlier(cohorts)
            if proven < PARTS and evidence_of(state, proven + 1, seen) >= np.log(10):
                proven += 1
                inside = (cells < 2 * proven) & ((cells % 2) < cohorts)
                if cohorts == 2 and right[inside].mean() < 0.9 - 1e-9:
                    return True
        proven = 0
    return False


def evidence_of(strata, parts, seen):
    """Return `strata.evidence`, which many runs in the same texts need of the same counts."""
    key = (parts, *(of[:parts].tobytes() for of in (strata.draws, strata.wrong)))
    if key not in seen:
        seen[key] = strata.evidence(parts, 0.9)
    return seen[key]


def by_looks(trust, right, known, looks, random):
    """Return the first draw that proves a part, and whether a wrong one is ever proved."""
    n, first = len(trust), np.inf
    needed = -np.log(certificates.error_of(0.9, 0))
    texts = Strata.of(trust, known, right[known], np.zeros(len(known), bool))
    places = certificates.cells_of(trust, texts.lowest, [len(trust)])
    ends = texts.texts[:, 0].cumsum()
    true = [right[:end].sum() >= 0.9 * end - 1e-9 for end in ends]
    open_ = np.ones(n, dtype=bool)
    open_[known] = False
    left = [
        random.permutation(np.flatnonzero(open_ & (places == j))).tolist() for j in range(PARTS)
    ]
    draws, wrong, proven = np.zeros((PARTS, 1), int), np.zeros((PARTS, 1), int), 0
    for look in range(looks):
        state = replace(texts, draws=draws, wrong=wrong)
        for stratum in state.next(1, proven + 1):
            draws[stratum] += 1
            wrong[stratum] += not right[left[stratum].pop()]
        while proven < PARTS and state.evidence(proven + 1, 0.9) >= needed:
            proven, first = proven + 1, min(first, look + 1)
            if not true[proven - 1]:
                return first, True
    return first, False


def test_parts_hold_equal_trusts_whole():
    lowest = edges(np.array([0.9] * 5 + [0.5] * 5))
    assert lowest.tolist() == [0.9, 0.5]
    assert edges(np.array([0.9, np.nan, np.nan, np.nan])).tolist() == [0.9]


def test_draws_become_proportional_and_end_with_the_texts():
    trust = np.linspace(1, 0, 100)
    state = Strata.of(trust, np.empty(0, np.int64), np.empty(0, bool), np.empty(0, bool))
    assert np.bincount(state.next(8, 2)).tolist() == [6, 2]
    assert len(state.next(200, 1)) == 30
    rows = np.arange(30)
    known = Strata.of(trust, rows, rows >= 0, np.zeros(30, bool))
    assert len(known.next(5, 1)) == 0


def certified(trust, rows, right, drawn, inside=None, *, accuracy=0.9, endless=False):
    strata = Strata.of(trust, rows, right, drawn, inside)
    return certify(strata, accuracy=accuracy, confidence=0.9, endless=endless)


def test_only_draws_since_the_ranking_say_something_of_the_other_texts():
    trust, rows = np.linspace(1, 0, 400), np.arange(0, 120, 2)
    right, none, every = np.ones(60, bool), np.zeros(60, bool), np.ones(60, bool)
    known = certified(trust, rows, right, none)
    assert (known.coverage, known.judged) == (0, 0)
    assert "none was judged since trust was learned" in str(known)
    drawn = certified(trust, rows, right, every)
    assert (drawn.coverage, drawn.judged) == (0.3, 60)
    assert drawn.trust == pytest.approx(trust[119])
    assert "30% of 400 distinct texts" in str(drawn)
    assert "by your judgments" in str(drawn)
    # unless all are judged
    rows = np.arange(400)
    whole = certified(trust, rows, rows % 10 > 0, np.zeros(400, bool))
    assert whole.coverage == 1


def test_a_certificate_says_what_it_takes_and_what_is_proved_now():
    trust, rows = np.linspace(1, 0, 400), np.arange(0, 120, 12)
    every = np.ones(10, bool)
    few = certified(trust, rows, every, every)
    assert few.coverage == 0
    assert np.isinf(few.trust)
    assert "10 of 10 drawn among the 30% with the highest trust are right" in str(few)
    assert f"about {few.judgments_needed} more drawn there would probably do" in str(few)
    assert 10 <= few.judgments_needed <= 60
    assert few.achievable is not None
    assert "a hint" in str(few)
    rows = np.arange(120)
    bad = certified(trust, rows, rows % 4 > 0, rows >= 0)
    assert bad.judgments_needed == 0
    assert "better labels do" in str(bad)


def test_few_draws_among_later_texts_do_not_shrink_what_is_certified():
    n, later = 1_000, 500
    trust = np.concatenate([np.linspace(1, 0.01, n), np.linspace(1, 0.01, later)])
    # of the first all strata of a half, of the later ones the most trusted alone
    rows = np.concatenate([np.arange(0, n // 2, 5), n + np.arange(0, 150, 7)])
    every = np.ones(len(rows), bool)
    strata = Strata.of(trust, rows, every, every, None, (n, n + later))
    assert 0 < strata.proven(0.9, certificates.error_of(0.9, 0)) < 3
    made = certificates.certify(strata, accuracy=0.9, confidence=0.9)
    assert made == certificates.certify(strata.earlier(1), accuracy=0.9, confidence=0.9)
    assert (made.coverage, made.texts) == (0.5, n)


def test_rankings_that_were_drawn_from_share_the_error():
    errors = [certificates.error_of(0.9, ranking) for ranking in range(50)]
    assert sum(errors) == pytest.approx(0.1)
    assert errors == sorted(errors, reverse=True)


def test_new_texts_take_more_draws_than_these():
    trust, rows = np.linspace(1, 0, 100), np.arange(20)
    every = np.ones(20, bool)
    assert certified(trust, rows, every, every).coverage
    assert not certified(trust, rows, every, every, endless=True).coverage


@pytest.mark.parametrize("texts", [1_000, 1_000_000])
@pytest.mark.parametrize("endless", [False, True])
def test_a_certificate_reaches_all_texts_where_all_are_right(texts, endless):
    rows = np.linspace(0, texts - 1, 500).astype(np.int64)
    every = np.ones(500, bool)
    assert certified(np.linspace(1, 0, texts), rows, every, every, endless=endless).coverage == 1


def test_texts_of_one_label_are_certified_inside_the_strata_of_all():
    trust, rows = np.linspace(1, 0, 400), np.arange(120)
    inside = np.arange(400) % 2 == 0
    right = rows % 2 == 0
    made = certified(trust, rows, right, rows >= 0, inside)
    assert made.judged == 60
    assert made.coverage == pytest.approx(0.3)
    none = certified(trust, rows, right, rows >= 0, np.zeros(400, bool))
    assert not none.coverage


def test_a_text_of_unknown_trust_is_never_certified():
    trust = np.full(300, np.nan)
    trust[:200] = np.linspace(1, 0.9, 200)
    rows, every = np.arange(200), np.ones(200, bool)
    made = certified(trust, rows, every, every, accuracy=0.8)
    assert made.trust == 0.9
    assert made.coverage == pytest.approx(200 / 300)
    none = certified(np.full(9, np.nan), rows[:9], every[:9], every[:9], accuracy=0.8)
    assert "trust of the texts is unknown" in str(none)


@dataclass(frozen=True, eq=False)
class Taught:
    """What `_proved` reads of what was learned."""

    decides: str
    right: np.ndarray
    certificate: Certificate
    draws: Draws

    wants_decisions = Learned.wants_decisions

    def certify(self):
        return self.certificate


def test_better_labels_come_before_their_certificate():
    half, all_right = np.arange(50) % 2 == 0, np.ones(50, bool)
    lacks = Certificate(0.9, 0.9, np.inf, 0.0, 50, "about 50 more would do", 50)
    far = replace(lacks, reason="about 150 more would do", judgments_needed=150)
    hopeless = Certificate(0.9, 0.9, np.inf, 0.0, 50, "better labels do")
    fine = Certificate(0.9, 0.9, 0.7, 0.5, 50)
    differ = "which strategies differ"
    for decides, right, made, says in (
        ("settings", half, lacks, differ),
        # an LLM that is mostly right leaves nothing to gain
        ("settings", all_right, lacks, "about 50 more would do"),
        ("settings", np.tile(half, 3), lacks, "about 50 more would do"),
        ("settings", np.tile(half, 3), far, differ),
        ("settings", np.tile(half, 4), far, "about 150 more would do"),
        ("head", half, lacks, "about 50 more would do"),
        ("head", half, hopeless, differ),
        ("settings", half, fine, "Proved: 50% of the distinct texts"),
    ):
        draws = Draws.at_random(1_000, len(right))
        text = _proved(Taught(decides, right, made, draws))
        assert says in text
        assert (differ in text) == (says == differ)


def test_better_labels_are_wanted_where_labels_are_wrong_over_all_texts():
    """And not where only the texts that were drawn more often are wrong."""
    right = np.arange(50) % 5 > 1
    lacks = Certificate(0.9, 0.9, np.inf, 0.0, 50, "about 50 more would do", 50)
    hard = np.where(right, 1 / 1_000, 1 / 50)
    for chance, wanted in ((hard, False), (np.full(50, 1 / 1_000), True)):
        draws = Draws(1_000, chance, chance, np.ones(50, bool))
        assert Taught("settings", right, lacks, draws).wants_decisions(lacks) == wanted
