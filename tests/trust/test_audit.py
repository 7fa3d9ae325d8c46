"""Texts of the traffic that are set aside: what is kept, what is counted, and what has moved."""

from __future__ import annotations

import re

import numpy as np
import pytest

from testnuc.errors import StoreError
from testnuc.trust.audit import (
    ERROR,
    AuditedText,
    AuditWeek,
    audited,
    found_moves,
    is_audit,
    log_evidence,
    review_of,
    week_of,
)
from testnuc.trust.review import ReviewContext
from testnuc.trust.shares import stratified

LABELS = ("refund", "delivery")


def week(name="2026-W07", size=3, *, multilabel=False):
    return AuditWeek(name, LABELS, multilabel, "openai/x", ReviewContext(), size)


def text(order, label="refund", answer=None, look=0):
    return AuditedText(f"text {order}", 0.0, order, label, label, None, None, answer, look)


def judged_week(name, right, wrong, look=1):
    """Return a week of 1,000 texts, most of them about refunds, with so many judged ones."""
    made = week(name, 100)
    made.texts, made.given = 1_000, {"refund": 800, "delivery": 190, "": 10}
    made.sample = [text(at / 100, answer="refund", look=look) for at in range(right)]
    made.sample += [text((right + at) / 100, answer="delivery", look=look) for at in range(wrong)]
    return made


def test_weeks_are_those_of_the_calendar_in_utc():
    assert week_of(0) == "1970-W01"
    assert week_of(1_767_225_600) == "2026-W01"  # Thursday 2026-01-01
    assert week_of(1_767_225_600 - 4 * 86_400) == "2025-W52"


def test_one_label_that_looks_like_several():
    """Any two of these were the same to it: every label was right, and none was given."""
    labels = ("broken; in use", "broken; on arrival")
    made = AuditWeek("2026-W07", labels, False, "openai/x", ReviewContext(), 20)
    for _ in range(20):
        made.count(labels[0], 0.0)
    made.keep(
        [
            AuditedText(f"text {at}", 0.0, at / 20, labels[0], None, None, None, labels[at % 2], 1)
            for at in range(20)
        ]
    )
    found = audited([made])
    assert found.overall.value == pytest.approx(0.5)
    assert [(one.label, one.llm) for one in found.counts] == [
        (labels[0], 1),
        (labels[1], 0),
        (None, 0),
    ]


def test_what_several_processes_keep_is_a_sample_of_all():
    orders = np.random.default_rng(0).random(400).tolist()
    one, other = week(), week()
    for at, order in enumerate(orders):
        mine = (one, other)[at % 3 == 0]
        mine.count(("refund", "delivery", None)[at % 3], 0.0)
        mine.keep([text(order)])
    one.merge(AuditWeek.of(other.to_bytes()))
    assert [kept.order for kept in one.sample] == sorted(orders)[:3]
    assert (one.texts, sum(one.given.values()), one.given[""]) == (400, 400, 133)


def test_a_sample_that_was_cut_does_not_grow_again():
    """Else texts that came later would be more likely in it."""
    stored = week(size=3)
    stored.keep([text(order / 10) for order in range(9)])
    smaller = week(size=2)
    stored.merge(smaller)
    stored.merge(week(size=50))
    stored.keep([text(0.85)])
    assert [kept.order for kept in stored.sample] == [0.0, 0.1]


def test_a_week_that_is_judged_gets_no_more_texts():
    closed = week()
    closed.keep([text(0.5, answer="refund", look=1)])
    late = week()
    late.count("refund", 0.0)
    late.keep([text(0.1)])
    closed.merge(late)
    assert [kept.order for kept in closed.sample] == [0.5]
    assert closed.texts == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-2],
        lambda data: data.replace(b'"order":0.5', b'"order":"x"'),
        lambda data: data.replace(b'"texts":0', b'"texts":-1'),
        lambda data: data.replace(b'"text":"text 0.5"', b'"text":7'),
        lambda data: data.replace(b'"text":"text 0.5"', b'"text":null'),
        lambda data: re.sub(rb'"week":"[^"]*"', b'"week":null', data),
        lambda data: data.replace(b'"size":3', b'"size":0'),
        lambda data: data.replace(b'"labels"', b'"lables"'),
    ],
)
def test_a_damaged_week_is_an_error(change):
    made = week()
    made.keep([text(0.5)])
    data = made.to_bytes()
    assert is_audit(data)
    assert AuditWeek.of(data).to_bytes() == data
    with pytest.raises(StoreError, match="damaged"):
        AuditWeek.of(change(data))


@pytest.mark.parametrize(
    ("was", "now"),
    # no text can be set aside, and one more text could not be written
    [(b'"size":3', b'"size":0'), (b'"texts":0', b'"texts":18446744073709551615')],
)
def test_a_week_that_cannot_go_on_is_an_error(was, now):
    with pytest.raises(StoreError, match="damaged"):
        AuditWeek.of(week().to_bytes().replace(was, now))


def test_each_text_is_judged_once_with_the_labels_that_were_given():
    made, other = week(size=9), week("2026-W08", size=9)
    made.sample = [text(0.1), text(0.1), text(0.2, answer="refund", look=1), text(0.3, None)]
    other.sample = [text(0.1), text(0.4)]
    review = review_of([made, other])
    assert [item.text for item in review] == ["text 0.1", "text 0.3", "text 0.4"]
    assert review[0].candidates == (("refund", ("the label given", "the LLM alone")),)
    assert review[1].candidates[0] == (None, ("the label given",))
    # what is learned from it corrects and trains, and proves nothing of a pool
    assert not review.drawn


def test_accuracy_and_shares_are_those_of_the_judged_texts_within_the_labels_given():
    audit = audited([judged_week("2026-W07", 18, 2), judged_week("2026-W08", 5, 1)])
    accuracy, missing = audit.accuracy
    assert accuracy.value == pytest.approx(0.9)
    assert 0.68 < accuracy.low < 0.9 < accuracy.high < 0.99
    # six judged texts are too few for an interval
    assert missing is None
    shares = {(one.group, one.label): one for one in audit.counts}
    refunds = shares["2026-W07", "refund"]
    # 0.9 of 800, and 0.9 of 200 of which none is judged
    assert refunds.share.value == pytest.approx(0.9)
    assert (refunds.llm, refunds.judged) == (0.8, 20)
    assert shares["2026-W08", "refund"].share is None
    assert shares["2026-W08", "refund"].judgments_needed == 4
    shown = str(audit)
    assert "20 of 20" in shown
    assert "no change" in shown


def test_texts_without_a_label_or_an_answer_are_not_wrong():
    made = judged_week("2026-W07", 12, 0)
    made.sample += [text(0.95, None, "refund", 1), text(0.96), text(0.97, answer=None, look=1)]
    audit = audited([made])
    assert audit.accuracy[0].value == pytest.approx(12 / 13)
    nothing = {one.label: one for one in audit.counts}[None]
    assert nothing.judged == 14
    assert nothing.share.value > 0.01
    assert "nothing is judged" in str(audited([week()]))


def test_several_labels_of_a_text_are_right_in_any_order():
    made = week(size=20, multilabel=True)
    made.texts, made.given = 100, {"refund": 100, "delivery": 60}
    made.sample = [text(at, "delivery; refund", "refund; delivery", 1) for at in range(10)]
    made.sample += [text(at, "refund", "", 1) for at in range(10, 12)]
    audit = audited([made])
    assert audit.accuracy[0].value == pytest.approx(10 / 12)
    shares = {one.label: one.share.value for one in audit.counts}
    assert shares["refund"] == pytest.approx(10 / 12)


def test_the_interval_of_a_sample_in_strata_holds():
    rng, inside = np.random.default_rng(0), 0
    for _ in range(300):
        right = np.array([rng.binomial(700, 0.9), rng.binomial(300, 0.05)])
        texts = np.array([700, 300])
        judged = np.array([15, 5])
        hits = rng.hypergeometric(right, texts - right, judged)
        share = stratified(texts, judged, hits)
        inside += share.low <= right.sum() / 1_000 <= share.high
    assert inside / 300 > 0.92
    # what is judged whole is known
    assert stratified(np.array([20]), np.array([20]), np.array([5])).high == 0.25


@pytest.mark.parametrize("shares", [(0.9, 0.5, 0.02), (0.99, 0.1, 0.0)])
def test_false_alarms_are_few_however_often_one_looks(shares):
    rng, years = np.random.default_rng(1), 300
    alarms = 0
    for _ in range(years):
        judged = rng.integers(0, 30, 52)[:, None].repeat(3, axis=1)
        alarms += bool(found_moves(judged, rng.binomial(judged, shares)))
    # a twentieth at most; of 300 years, two standard errors more could be by chance
    assert alarms / years < ERROR + 2 * np.sqrt(ERROR * (1 - ERROR) / years)


def test_evidence_is_a_fair_bet_and_does_not_change_with_what_comes_later():
    rng = np.random.default_rng(2)
    judged = rng.integers(0, 25, (12, 1)).repeat(1_500, axis=1)
    hits, between = rng.binomial(judged, 0.8), rng.random(judged.shape)
    whole, _ = log_evidence(judged, hits, between)
    capital = np.exp(whole[-1])
    assert capital.mean() == pytest.approx(1, abs=4 * capital.std() / np.sqrt(1_500))
    for n in range(1, 12):
        part, _ = log_evidence(judged[:n], hits[:n], between[:n])
        assert part == pytest.approx(whole[:n])


def test_a_fall_of_the_accuracy_is_found_with_its_week():
    weeks = [judged_week(f"2026-W{at:02}", 18, 2, look=at) for at in range(1, 20)]
    assert audited(weeks).moves == []
    weeks += [judged_week(f"2026-W{at:02}", 13, 7, look=at) for at in range(20, 27)]
    audit = audited(weeks)
    accuracy = audit.moves[0]
    assert accuracy.what == "the accuracy"
    assert accuracy.since == "2026-W20"
    assert "2026-W21" < accuracy.proved <= "2026-W26"
    assert (accuracy.before.value, accuracy.after.value) == pytest.approx((0.9, 0.65))
    assert "alarm: the accuracy has moved, since about 2026-W20" in str(audit)
    # after a change that is known, one looks for the next
    assert audited(weeks, since="2026-W20").moves == []


def test_a_change_soon_after_the_start_is_one_from_what_was_judged_before():
    numbers = ("2026-W48", 16, 4), ("2026-W51", 2, 18), ("2026-W52", 1, 19)
    weeks = [judged_week(*one, look=at) for at, one in enumerate(numbers, 1)]
    move = audited(weeks).moves[0]
    assert (move.since, move.proved) == ("2026-W51", "2026-W52")
    assert (move.before.value, move.after.value) == pytest.approx((0.8, 3 / 40))


def test_a_change_has_judged_texts_before_it_and_from_it_on():
    rng, found = np.random.default_rng(3), 0
    for _ in range(300):
        # weeks may have no judged text, and those judged may have no label
        judged = rng.integers(0, 25, (8, 2)) * rng.integers(0, 2, (8, 2))
        early = np.arange(8)[:, None] < rng.integers(0, 4)
        hits = rng.binomial(judged, np.where(early, 0.9, 0.1))
        for kind, proved, since in found_moves(judged, hits):
            found += 1
            assert judged[:since, kind].any()
            assert judged[since, kind] > 0
            assert judged[since : proved + 1, kind].any()
    assert found > 50


def test_a_label_that_nobody_gave_before_is_found():
    judged = np.full((30, 3), 20)
    hits = np.array([[18, 14, 6]] * 15 + [[18, 8, 12]] * 15)
    assert [kind for kind, *_ in found_moves(judged, hits)] == [1, 2]


def test_copies_of_judged_texts_are_no_sample_of_a_week_that_was_judged_in_part():
    """They had an answer wherever they came: weeks that nobody judged were 100 % right."""
    random, missed, alarms = np.random.default_rng(3), 0, 0
    for _ in range(100):
        weeks = []
        for number in range(4):
            made = week(f"2026-W0{number + 1}", 40)
            made.texts, made.given = 1_000, {"refund": 1_000}
            made.sample = [text(at / 40) for at in range(40)]
            for at, one in enumerate(made.sample):
                often = random.random() < 0.35
                one.text = "thanks" if often else f"{number} {at}"
                one.answer = "refund" if often or random.random() < 0.7 else "delivery"
            weeks.append(made)
        for number in (0, 1, 3):
            # its first fourteen texts, which a person sees once each, and all copies
            texts = dict.fromkeys(one.text for one in weeks[number].sample)
            judged = {*[*texts][:14], "thanks"}
            for one in [one for made in weeks for one in made.sample if one.text in judged]:
                one.look = one.look or number + 1
        found = audited(weeks)
        assert found.accuracy[2] is None
        assert "0 of 40" in str(found)
        known = [share for share in found.accuracy if share is not None]
        missed += sum(not share.low <= 0.35 + 0.65 * 0.7 <= share.high for share in known)
        alarms += bool(found.moves)
    assert missed <= 24
    assert alarms <= 5
