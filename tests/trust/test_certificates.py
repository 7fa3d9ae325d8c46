"""Certificates are computed as defined, and are wrong as seldom as promised."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testnuc.trust import certificates
from testnuc.trust.certificates import Certificate, certify, wants_decisions
from testnuc.trust.evidence import Draws
from testnuc.trust.learned import Learned, _proved
from testnuc.trust.review import draw
from tests import naive

#: Reviews: what they are for, and how many texts.
REVIEWS = {
    "at random": [("certify", 150)],
    "mixed, decide, certify": [(None, 50), ("decide", 50), ("certify", 100)],
    "certify, then decide": [("certify", 80), ("decide", 60)],
    "chosen before and after": [("correct", 30), (None, 40), ("certify", 60), ("correct", 30)],
}


def spread(random, n, differ, wrong_among, wrong):
    """Return trust, texts on which strategies differ, and which labels are right.

    Each part of the texts, highest trust first, has the same accuracy, but for a text or two.
    """
    trust, among = random.random(n), random.random(n) < differ
    right = np.ones(n, dtype=bool)
    order = np.argsort(-trust)
    elsewhere = (wrong - differ * wrong_among) / (1 - differ)
    for some, part in ((among, wrong_among), (~among, elsewhere)):
        rows = order[some[order]]
        right[rows[np.diff(np.floor(part * np.arange(len(rows) + 1))) > 0]] = False
    return trust, among, right


def reviewed(random, reviews, trust, among, before=()):
    """Return the texts that reviews draw, in their order, and which are drawn from all."""
    open_, found = np.ones(len(trust), dtype=bool), []
    open_[np.array(before, dtype=np.int64)] = False
    for goal, m in reviews:
        found += draw(m, goal, among, open_, trust, random)
        open_[[d.row for d in found]] = False
    return np.array([d.row for d in found]), np.array([d.goal == "certify" for d in found])


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.6, 0.8, 0.9]))
def test_a_part_is_proved_as_defined(seed, accuracy):
    random = np.random.default_rng(seed)
    n, m = (int(x) for x in random.integers((1, 0), (60, 50)))
    trust = np.round(random.random(n), 1)
    rows = random.permutation(n)[: min(m, n)]
    right, uniform = random.random(len(rows)) < 0.95, random.random(len(rows)) < 0.7
    threshold = float(random.choice(trust))
    made = certificates._Ranked(trust, trust[rows], right, uniform, 0.1)
    inside = trust[rows] >= threshold
    judged = list(zip(right[inside].tolist(), uniform[inside].tolist(), strict=True))
    texts = int((trust >= threshold).sum())
    expected = naive.proves(judged, texts, Fraction(str(accuracy)), Fraction(1, 10))
    wrong, limit = made._counted(threshold, accuracy)
    assert (wrong <= limit) == expected


@pytest.mark.slow
@pytest.mark.parametrize("n", [300, 2_000])
@pytest.mark.parametrize("reviews", list(REVIEWS))
def test_certificates_are_wrong_in_at_most_a_tenth_of_the_draws(n, reviews):
    """Where every part is just not accurate enough, and the judged disagreements are hard."""
    random = np.random.default_rng(3)
    trust, among, right = spread(random, n, 0.2, 0.4, 0.108)
    wrong = 0
    for _ in range(1_000):
        rows, uniform = reviewed(random, REVIEWS[reviews], trust, among)
        # what `certify` returns, without the search for what is proved instead
        made = certificates._Ranked(trust, trust[rows], right[rows], uniform, 0.1)
        threshold, part = made.largest(0.9)
        wrong += bool(part and right[trust >= threshold].mean() < 0.9)
    # of 300 texts most are judged
    assert (n == 2_000) <= wrong <= 100


@pytest.mark.slow
def test_who_follows_the_advice_and_stops_at_the_first_proof_is_seldom_wrong():
    random = np.random.default_rng(9)
    trust, among, right = spread(random, 2_000, 0.2, 0.4, 0.11)
    wrong = 0
    for _ in range(200):
        reviews, part, more = [(None, 50)], 0.0, 1
        rows, uniform = np.empty(0, np.int64), np.empty(0, bool)
        while more and not part and len(rows) < 400:
            new, of_all = reviewed(random, reviews, trust, among, rows)
            rows, uniform = np.concatenate([rows, new]), np.concatenate([uniform, of_all])
            made = certificates._Ranked(trust, trust[rows], right[rows], uniform, 0.05)
            threshold, part = made.largest(0.9)
            more = made.why(0.9)[1]
            reviews = [("certify", more)]
        wrong += bool(part and right[trust >= threshold].mean() < 0.9)
    assert 0 < wrong <= 20


def test_mixed_reviews_certify_as_many_texts_as_their_draws_from_all():
    random = np.random.default_rng(4)
    trust, among, right = spread(random, 3_000, 0.2, 0.15, 0.03)
    parts = []
    for _ in range(20):
        rows, uniform = reviewed(random, [(None, 50), ("certify", 200)], trust, among)
        judged = right[rows]
        every = certify(trust, rows, judged, uniform, accuracy=0.9, confidence=0.9)
        some = certify(
            trust, rows[uniform], judged[uniform], uniform[uniform], accuracy=0.9, confidence=0.9
        )
        parts.append((every.coverage, some.coverage))
    assert np.mean(parts, axis=0)[0] == pytest.approx(np.mean(parts, axis=0)[1], abs=0.1)
    assert np.mean(parts) > 0.5


def test_judged_texts_that_were_not_drawn_from_all_prove_nothing_of_the_others():
    trust, rows = np.linspace(0, 1, 400), np.arange(0, 400, 8)
    alone = certify(
        trust, rows, np.ones(50, bool), np.zeros(50, bool), accuracy=0.5, confidence=0.9
    )
    assert alone.coverage == alone.judged == 0
    assert "0 of 50 judged texts were drawn at random from all" in str(alone)
    # unless all are judged
    rows = np.arange(400)
    whole = certify(trust, rows, rows % 10 > 0, np.zeros(400, bool), accuracy=0.9, confidence=0.9)
    assert whole.coverage == 1


def test_what_was_judged_later_is_not_subtracted_for_earlier_draws():
    n = 1_000
    trust = np.linspace(0, 1, n)
    drawn, chosen = np.arange(0, n, 20), np.arange(1, n, 4)
    right = np.concatenate([np.ones(48, bool), np.zeros(2, bool), np.ones(250, bool)])
    uniform = np.arange(300) < 50

    def proves(order):
        rows = np.concatenate([drawn, chosen])[order]
        made = certificates._Ranked(trust, trust[rows], right[order], uniform[order], 0.1)
        wrong, limit = made._counted(0.0, 0.9)
        return wrong <= limit

    # 250 right texts: the others hold all the wrong ones that there may be
    first = np.roll(np.arange(300), 250)
    assert proves(first)
    assert not proves(np.arange(300))


def test_a_certificate_says_what_it_takes_and_what_is_proved_now():
    trust = np.linspace(0, 1, 400)
    rows = np.arange(0, 400, 40)
    few = certify(trust, rows, np.ones(10, bool), np.ones(10, bool), accuracy=0.9, confidence=0.9)
    assert few.coverage == 0
    assert np.isinf(few.trust)
    found = re.search(
        r"about (\d+) more, drawn at random from all, would probably do: (\d+) in all", str(few)
    )
    assert found
    assert int(found[1]) == few.judgments_needed == int(found[2]) - 10
    assert 20 < few.judgments_needed < 200
    assert few.achievable == (0.7, 1.0)
    assert "a hint" in str(few)
    assert "70% is proved now, for 100% of the texts" in str(few)
    rows = np.arange(0, 400, 2)
    every = np.ones(200, bool)
    bad = certify(trust, rows, rows % 4 == 0, every, accuracy=0.9, confidence=0.9)
    assert "better labels do" in str(bad)
    assert bad.judgments_needed == 0
    good = certify(trust, rows, every, every, accuracy=0.9, confidence=0.9)
    assert good.coverage == 1.0
    assert "100% of the texts" in str(good)
    assert good.achievable is None


@pytest.mark.slow
def test_as_many_more_judgments_as_are_named_are_mostly_enough():
    random = np.random.default_rng(6)
    proofs = 0
    for _ in range(100):
        trust, among, right = spread(random, 2_000, 0.2, 0.15, 0.04)
        rows, uniform = reviewed(random, [(None, 50)], trust, among)
        made = certify(trust, rows, right[rows], uniform, accuracy=0.9, confidence=0.9)
        more = [] if made.coverage else [("certify", made.judgments_needed)]
        rows, uniform = reviewed(random, [(None, 50), *more], trust, among)
        proofs += (
            certify(trust, rows, right[rows], uniform, accuracy=0.9, confidence=0.9).coverage > 0
        )
    assert proofs > 50


def test_a_text_of_unknown_trust_is_never_certified():
    trust = np.full(300, np.nan)
    trust[:200] = 0.9
    rows, every = np.arange(200), np.ones(200, bool)
    made = certify(trust, rows, every, every, accuracy=0.8, confidence=0.9)
    assert made.trust == 0.9
    assert made.coverage == pytest.approx(200 / 300)
    none = certify(np.full(9, np.nan), rows[:9], every[:9], every[:9], accuracy=0.8, confidence=0.9)
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
    hopeless = Certificate(0.9, 0.9, np.inf, 0.0, 50, "better labels do")
    fine = Certificate(0.9, 0.9, 0.7, 0.5, 50)
    differ = "which strategies differ"
    for decides, right, made, says in (
        ("settings", half, lacks, differ),
        # an LLM that is mostly right leaves nothing to gain
        ("settings", all_right, lacks, "about 50 more would do"),
        ("settings", np.tile(half, 4), lacks, "about 50 more would do"),
        ("head", half, lacks, "about 50 more would do"),
        ("head", half, hopeless, differ),
        ("settings", half, fine, "Proved: 50% of the texts"),
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
        assert wants_decisions("settings", right, draws, lacks) == wanted
