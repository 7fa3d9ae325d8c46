"""Labels are counted: by group, with copies, several labels and levels of a tree."""

import io
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from testnuc._base.checks import hash_text
from testnuc.errors import InvalidInputError
from testnuc.trust import counts as counts_module
from testnuc.trust.counts import Counts, LabelCount, count_labels, counted, debiased
from testnuc.trust.evidence import Judgment
from testnuc.trust.shares import Accuracy, Share
from testnuc.types import Classification, Prediction

LABELS = ("refund", "delivery", "login")


def judgment(text, label, source="person", *, uniform=True, texts=300):
    chance = 1 / texts if uniform else None
    return Judgment(text, hash_text(text), label, source, chance, chance, texts, uniform)


def world(n=300, wrong=0.2, seed=0):
    rng = np.random.default_rng(seed)
    right = rng.choice(LABELS, n, p=[0.5, 0.3, 0.2])
    # what is wrong is called a refund
    said = np.where(rng.random(n) < wrong, "refund", right)
    return [f"text {at}" for at in range(n)], [str(x) for x in right], [[str(x)] for x in said]


def judged_at_random(texts, right, m, seed=0):
    rows = np.random.default_rng(seed).choice(len(texts), m, replace=False)
    return [judgment(texts[row], right[row], texts=len(texts)) for row in rows]


def test_judgments_correct_the_count_of_the_llm():
    texts, right, said = world(wrong=0.4)
    counts = count_labels(texts, said, judged_at_random(texts, right, 150), LABELS)
    refund = counts[0]
    assert refund.label == "refund"
    assert refund.llm - 0.5 > 0.1
    assert refund.share.low <= right.count("refund") / len(texts) <= refund.share.high
    assert refund.share.high < refund.llm
    assert sum(count.share.value for count in counts) == pytest.approx(1, abs=0.05)
    assert [count.judged for count in counts] == [150] * 3
    assert "refund" in str(counts)
    assert "each interval alone" in str(counts)


def test_intervals_of_all_labels_together_are_wider():
    texts, right, said = world()
    judged = judged_at_random(texts, right, 100)
    alone = count_labels(texts, said, judged, LABELS)
    together = count_labels(texts, said, judged, LABELS, together=True)
    for one, other in zip(alone, together, strict=True):
        assert other.share.low < one.share.low
        assert other.share.high > one.share.high


def test_groups_are_counted_apart_and_compared():
    texts, right, said = world(600)
    groups = ["phone" if label == "refund" else "mail" for label in right]
    counts = count_labels(texts, said, judged_at_random(texts, right, 300), LABELS, groups)
    by = {(count.group, count.label): count for count in counts}
    assert by["phone", "refund"].share.low > 0.9
    assert by["mail", "refund"].share.high < 0.1
    assert by["phone", "refund"].difference.low > 0.8
    assert by["mail", "refund"].difference.high < -0.8
    assert by[None, "refund"].difference is None
    assert by["phone", "refund"].rows + by["mail", "refund"].rows == 600
    some = [None if at < 100 else group for at, group in enumerate(groups)]
    counts = count_labels(texts, said, judged_at_random(texts, right, 300), LABELS, some)
    assert any("100 rows are in no such group" in note for note in counts.notes)


def test_periods_are_compared_in_halves_by_what_is_prepared_once(monkeypatch):
    texts, right, said = world(600)
    judged = judged_at_random(texts, right, 300)
    months = [f"2026-0{1 + at // 200}" for at in range(600)]
    counts = count_labels(texts, said, judged, LABELS, months, periods=True)
    assert counts.notes[-2] == (
        "since 2026-02, compared with the time before, no label's share has changed for certain"
    )
    alike = count_labels(texts, said, judged, LABELS, months, together=True)
    assert alike.notes[-1] == "no share in one group differs for certain from the others"
    assert str(counts).endswith(counts.notes[-1])
    alone = "each group is estimated alone: rows of groups need not add up, and"
    assert any(note.startswith(alone) for note in counts.notes)
    hashed = []
    monkeypatch.setattr(counts_module, "hash_text", lambda t: hashed.append(t) or hash_text(t))
    rising = sorted(range(600), key=lambda at: right[at] == "refund")
    texts, right, said = ([of[at] for at in rising] for of in (texts, right, said))
    counts = count_labels(texts, said, judged, LABELS, months, periods=True)
    assert "these shares have changed, in points: refund +" in counts.notes[-2]
    assert counts.notes[-2].endswith("(each alone, of 3 labels; sure only with `count --together`)")
    compared = [i for i in counts if i.group and i.difference]
    differ = [i for i in compared if not i.difference.low <= 0 <= i.difference.high]
    one = max(differ, key=lambda i: abs(i.difference.value))
    first = f"in points: {one.group} {one.label} {one.difference.signed()}, "
    assert f"shares in one group differ from the others, {first}" in counts.notes[-1]
    more = f", and {len(differ) - 5} more" * (len(differ) > 5)
    alone = f" (each alone, of {len(compared)} shares; sure only with `count --together`)"
    assert counts.notes[-1].endswith(more + alone)
    # a file has it, too
    assert {row["since"] for row in counts.records()} == {None, "2026-02"}
    row = counts.records()[0]
    assert (row["group"], row["since"], row["difference_low"] > 0) == (None, "2026-02", True)
    assert f"refund {counts[0].difference.signed()}" in counts.notes[-2]
    assert len(hashed) == 600
    both = count_labels(texts, said, judged, LABELS, months, periods=True, together=True)
    assert "these shares have changed, in points: refund +" in both.notes[-2]
    assert not any("--together" in note for note in both.notes)
    for groups, periods in ((months, False), (["2026"] * 600, True)):
        assert "since" not in str(
            count_labels(texts, said, judged, LABELS, groups, periods=periods)
        )


def test_two_groups_are_compared_with_each_other_alone():
    texts, right, said = world(900)
    judged = judged_at_random(texts, right, 450)
    groups = ["abc"[at % 3] for at in range(900)]
    counts = count_labels(texts, said, judged, LABELS, groups, compare=("a", "c"), periods=True)
    two = [at for at in range(900) if at % 3 != 1]
    alone = count_labels(
        *([of[at] for at in two] for of in (texts, said)),
        judged,
        LABELS,
        [groups[at] for at in two],
    )
    assert [one.group for one in counts] == [*[None] * 3, *["a"] * 3, *["c"] * 3]
    assert counts.items[3:] == alone.items[3:]
    # all are counted, as before
    assert counts.items[:3] == count_labels(texts, said, judged, LABELS).items
    assert "minus the other\n" in str(counts)
    assert "since" not in str(counts)
    assert "minus the others\n" in str(count_labels(texts, said, judged, LABELS, groups))
    for wrong in (("a", "d"), ("a", "a"), ("a",)):
        with pytest.raises(InvalidInputError, match="give two of the groups: a, b, c"):
            count_labels(texts, said, judged, LABELS, groups, compare=wrong)


@pytest.mark.slow
def test_the_difference_of_two_groups_holds_as_often_as_it_says():
    """Of three groups, two are as alike as chance makes them, and one has fewer refunds."""
    held, apart, found, draws = 0, 0, 0, 200
    chances = {"a": [0.5, 0.3, 0.2], "b": [0.5, 0.3, 0.2], "c": [0.2, 0.5, 0.3]}
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        groups = rng.choice([*chances], 900).tolist()
        right = [str(rng.choice(LABELS, p=chances[group])) for group in groups]
        said = [["refund"] if rng.random() < 0.2 else [label] for label in right]
        texts = [f"text {at}" for at in range(900)]
        judged = judged_at_random(texts, right, 150, seed)
        for pair, true in ((("a", "b"), 0.0), (("a", "c"), 0.3)):
            counts = count_labels(texts, said, judged, LABELS, groups, compare=pair)
            less = counts[len(LABELS)].difference
            held += less.low <= true <= less.high
            excludes = not less.low <= 0 <= less.high
            apart, found = apart + (excludes and not true), found + (excludes and true > 0)
    # three standard errors below 95 %
    assert held / (2 * draws) >= 0.915
    assert apart / draws <= 0.08
    assert found / draws >= 0.9


def test_a_share_that_is_an_end_of_its_interval_is_marked():
    """It was drawn and read as a peak of its month."""
    share = Share(0.177, 0.05, 0.177)
    counts = Counts(
        [
            LabelCount("refund", None, 300, share, 0.02, 0.02, 40, 100),
            LabelCount("login", None, 300, Share(0.1, 0.05, 0.2), 0.02, 0.02, 40, 100),
            # all are judged
            LabelCount("delivery", None, 300, Share(0.1, 0.1, 0.1), 0.02, 0.02, 40, 100),
        ]
    )
    assert [row["at_end"] for row in counts.records()] == [True, False, False]
    assert "* 17.7 % (5.0 to 17.7)" in str(counts)
    assert str(counts).count("* ") == 1
    assert "*: an end of its interval, as few are judged: trust the interval" in str(counts)
    # a number of rows that was read as a count
    assert "share x rows" in str(counts)
    # the figure has the mark, too
    pytest.importorskip("matplotlib")
    figure = counts.plot()
    assert [mark.get_text() for mark in figure.axes[0].texts] == ["*"]
    assert "*: an end of its interval, as few are judged" in figure.get_supxlabel()


def test_a_group_of_few_judged_texts_has_no_share_but_a_number():
    texts, right, said = world()
    groups = ["new" if at < 20 else "old" for at in range(300)]
    old = [one for one in judged_at_random(texts, right, 100) if int(one.text[5:]) >= 20]
    counts = count_labels(texts, said, [*old, judgment(texts[0], right[0])], LABELS, groups)
    new = next(count for count in counts if count.group == "new")
    assert new.share is None
    assert new.number is None
    assert (new.judged, new.judgments_needed) == (1, 9)
    # as many as are left: (1 + 10 ** 0.5) ** 2 * 300 / 20 are more
    assert "too few judged texts for an interval, fewer than 10, are in " in str(counts)
    assert (
        "new (1); fewer groups, as of a longer period, give each one, or about 210 more judgments"
        in str(counts)
    )
    assert not any(line.startswith("new ") for line in str(counts).splitlines())


def test_a_column_of_values_that_differ_is_refused():
    texts, right, said = world()
    judged = judged_at_random(texts, right, 100)
    with pytest.raises(InvalidInputError, match=r"none of the 300 groups has 10 .* group by fewer"):
        count_labels(texts, said, judged, LABELS, [f"id {at}" for at in range(300)])
    with pytest.raises(InvalidInputError, match="the most have 9"):
        count_labels(texts, said, judged[:9], LABELS, ["one"] * 300)


def test_where_every_group_has_few_judged_texts_all_are_counted():
    texts, right, said = world()
    months = [f"2026-{1 + at % 12:02}" for at in range(300)]
    counts = count_labels(texts, said, judged_at_random(texts, right, 30), LABELS, months)
    assert {count.group for count in counts if count.share is not None} == {None}
    more = int(str(counts).split(", or about ")[1].split()[0])
    enough = count_labels(
        texts, said, judged_at_random(texts, right, 30 + more), LABELS, months, periods=True
    )
    assert None not in {count.share for count in enough}


def test_no_difference_of_shares_is_above_one():
    texts, right, said = world()
    right = ["refund" if at < 20 else "login" for at in range(300)]
    groups = ["new" if at < 20 else "old" for at in range(300)]
    counts = count_labels(texts, said, judged_at_random(texts, right, 290), LABELS, groups)
    apart = [count.difference for count in counts if count.difference is not None]
    assert max(one.high for one in apart) == 1
    assert min(one.low for one in apart) == -1


def test_rows_that_were_chosen_by_the_labels_in_use_are_told():
    """Judged texts are there if they were judged so: all were refunds, by a third too many."""
    texts, right, said = world(wrong=0.4)
    judged = judged_at_random(texts, right, 100)
    judged_as = {one.text: one.label for one in judged}
    now = [[judged_as.get(text, own)] for text, (own,) in zip(texts, said, strict=True)]
    by_use, by_own = [[of[0] for of in some] for some in (now, said)]
    by_month = [f"2026-0{1 + at % 3}" for at in range(len(texts))]
    for groups, wrong in [(by_use, True), (by_own, False), (by_month, False), (None, False)]:
        counts = count_labels(texts, said, judged, LABELS, groups, now=now)
        assert ("by the labels in use" in str(counts)) == wrong
    for labels, wrong in [(by_use, True), (by_own, False)]:
        rows = [at for at, label in enumerate(labels) if label == "refund"]
        some = [[of[at] for at in rows] for of in (texts, said, now)]
        # also where some of what was judged is of another file
        another = judgment("of another file", "refund", texts=300)
        for drawn in (judged, [*judged, another]):
            counts = count_labels(*some[:2], drawn, LABELS, now=some[2])
            assert ("by the labels in use" in str(counts)) == wrong


def test_a_text_counts_as_often_as_it_occurs():
    texts, right, said = world()
    judged = judged_at_random(texts, right, 300)
    rows = [*range(300), *[0] * 300]
    counts = count_labels([texts[r] for r in rows], [said[r] for r in rows], judged, LABELS)
    true = [right[row] for row in rows]
    for count in counts:
        assert count.number == true.count(count.label)
        assert count.share.low == count.share.high


def test_several_labels_for_a_text():
    texts, right, said = world()
    twice = [[*some, "login"] for some in said]
    judged = [
        judgment(one.text, "; ".join(dict.fromkeys([one.label, "login"])))
        for one in judged_at_random(texts, right, 150)
    ]
    counts = {count.label: count for count in count_labels(texts, twice, judged, LABELS)}
    assert counts["login"].share.low > 0.95
    assert 0.3 < counts["refund"].share.value < 0.7


def test_one_label_that_looks_like_several():
    """What was judged so was counted as none of the labels."""
    texts, right, said = world()
    names = {"refund": "refund; return", "delivery": "delivery", "login": "login"}
    judged = judged_at_random(texts, [names[label] for label in right], 300)
    counts = count_labels(texts, [[names[x] for x in of] for of in said], judged, [*names.values()])
    assert [one.number for one in counts] == [right.count(label) for label in names]


def test_levels_of_a_tree():
    texts, right, said = world()
    paths = {"refund": "money > refund", "delivery": "parcel", "login": "money > login"}
    counts = count_labels(
        texts,
        [[paths[label] for label in some] for some in said],
        judged_at_random(texts, [paths[label] for label in right], 300),
        list(paths.values()),
        level=1,
    )
    money = sum(label != "delivery" for label in right)
    assert {count.label: count.number for count in counts} == {
        "money": money,
        "parcel": 300 - money,
    }


def test_a_record_holds_what_its_interval_is_and_a_correction_is_told():
    texts, right, said = world()
    judged = judged_at_random(texts, right, 100)
    given = {"confidence": 0.9, "together": True, "judge_error": 0.04}
    counts = count_labels(texts, said, judged, LABELS, **given)
    assert all({name: row[name] for name in given} == given for row in counts.records())
    assert "corrected for errors in 4.0% of the judgments, at random" in str(counts)
    assert "corrected" not in str(count_labels(texts, said, judged, LABELS))


def test_none_of_the_labels_is_counted_where_it_was_judged():
    texts, right, said = world()
    judged = judged_at_random(texts, [None if x == "login" else x for x in right], 150)
    counts = count_labels(texts, said, judged, LABELS)
    assert counts[-1].label is None
    none = counts[-1].share
    assert none.low <= right.count("login") / 300 <= none.high
    assert "(none of these)" in str(counts)
    assert "say so" not in str(counts)
    few = judged_at_random(texts, [None, None, *right[2:]], 300)
    told = "(none of these): 2 of the judged texts, drawn at random, say so"
    assert told in str(count_labels(texts, [[one] for one in right], few, LABELS))


def test_a_figure_has_texts_that_fit_no_label_or_names_them_as_left_out():
    pytest.importorskip("matplotlib")
    texts, right, said = world()
    judged = judged_at_random(texts, [None if x == "login" else x for x in right], 150)
    counts = count_labels(texts, said, judged, LABELS)
    shown = counts.plot().axes[0].get_yticklabels()
    assert "(none of these)" in [one.get_text() for one in shown]
    assert counts.plot(["refund"]).get_supxlabel().endswith("delivery, login, (none of these)")


def test_texts_to_which_the_llm_gives_no_label_count_as_none():
    """It was shown to say so of no text."""
    texts, right, said = world()
    judged = judged_at_random(texts, [None if x == "login" else x for x in right], 150)
    answers = [() if x == ["login"] else x for x in said]
    unknown = [None if x == ["login"] else x for x in said]
    none, unasked = (count_labels(texts, own, judged, LABELS) for own in (answers, unknown))
    assert none[-1].llm == said.count(["login"]) / 300
    assert unasked[-1].llm == 0
    assert [one.share for one in none] == [one.share for one in unasked]
    results = [
        Classification(at, text, None, prediction=Prediction(None, said="x") if at % 3 else None)
        for at, text in enumerate(texts)
    ]
    none_apart = {"labels_apart": lambda texts: [None] * len(texts), "accuracy": lambda _: None}
    learned = SimpleNamespace(
        later=lambda hashes, *_: [False] * len(hashes), judged=judged, labels=LABELS, **none_apart
    )
    assert counted(results, learned)[-1].llm == pytest.approx(2 / 3)


def test_the_interval_of_texts_without_any_label_holds_the_share_of_the_judged_ones():
    """It was moved to how seldom the LLM misses each of many labels: .31 of such intervals held."""
    labels = [f"label {at}" for at in range(30)]
    held = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        said, unfit = rng.choice(labels, 300).tolist(), rng.random(300) < 0.25
        texts = [f"text {at}" for at in range(300)]
        right = [None if none else label for none, label in zip(unfit, said, strict=True)]
        judged = judged_at_random(texts, right, 40, seed)
        share = count_labels(texts, [[label] for label in said], judged, labels)[-1].share
        held.append(share.low <= unfit.mean() <= share.high)
        found = sum(one.label is None for one in judged) / 40
        assert share.low < found < share.high
    assert sum(held) >= 18


def test_what_counts_is_said():
    texts, right, said = world()
    person = judged_at_random(texts, right, 50)
    referee = [judgment(texts[at], right[at], "referee") for at in range(100)]
    skipped = [judgment("text 299", None, None)]
    counts = count_labels(texts, said, [*person, *referee, *skipped], LABELS)
    assert counts[0].judged <= 51
    assert "right: by your judgments" in counts.notes
    assert counts.records()[0]["judge"] == "person"
    assert any("that were skipped, that judges do not agree on" in note for note in counts.notes)
    chosen = [replace(one, uniform=False) for one in person[:20]]
    some = count_labels(texts, said, [*chosen, *person[20:]], LABELS)
    drawn = "30 of 50 were drawn at random from all: these count"
    assert some.notes[0] == f"right: by your judgments; {drawn}"
    only = count_labels(texts, said, referee, LABELS)
    assert "right: by the referee, not by a person" in only.notes
    assert only.records()[0]["judge"] == only.judge == "referee"
    some = count_labels(texts[:200], said[:200], person, LABELS)
    assert some[0].rows == 200


def test_a_judgment_of_a_label_that_was_split_widens_the_intervals_of_its_parts_alone():
    """It counted as if it were any label, and widened all intervals."""
    texts, right, said = world()
    judged = judged_at_random(texts, right, 150)
    sure = count_labels(texts, said, judged, LABELS)
    parts = ("refund", "login")
    split = [
        one if one.label != "login" else replace(one, label=None, source=None, possible=parts)
        for one in judged
    ]
    unsure = count_labels(texts, said, split, LABELS)
    shares = [{one.label: one.share for one in of} for of in (sure, unsure)]
    # logins may be refunds
    assert shares[1]["login"].low < 0.01 < shares[0]["login"].low
    assert shares[1]["refund"].high > shares[0]["refund"].high + 0.1
    # but for the prior, which looks at all labels
    assert shares[1]["delivery"].low == pytest.approx(shares[0]["delivery"].low, abs=0.004)
    assert shares[1]["delivery"].high == pytest.approx(shares[0]["delivery"].high, abs=0.004)
    # of a level at which its parts are one label, it says which
    paths = {"refund": "money > refund", "delivery": "parcel", "login": "money > login"}
    own = [[paths[label] for label in some] for some in said]
    both = [
        [
            replace(
                one,
                label=paths.get(one.label),
                possible=tuple(paths[label] for label in one.possible),
            )
            for one in of
        ]
        for of in (judged, split)
    ]
    first, second = (count_labels(texts, own, of, [*paths.values()], level=1) for of in both)
    assert first.records() == second.records()


def test_a_label_that_was_added_is_not_counted_as_absent_from_what_was_judged_before():
    texts, right, said = world(wrong=0.0)
    judged = judged_at_random(texts, right, 150)
    labels = [*LABELS, "angry"]
    before = [replace(one, possible=("angry",)) for one in judged]
    # as many were judged since as before
    since = [replace(one, label=f"{one.label}; angry") for one in judged[:75]]
    some = [*since, *before[75:]]
    for one, low in ((before, 0), (some, 0.4)):
        shares = {count.label: count.share for count in count_labels(texts, said, one, labels)}
        assert shares["angry"].low == pytest.approx(low, abs=0.15)
        assert shares["angry"].high > 0.9
        assert shares["refund"].high - shares["refund"].low < 0.05
    results = [result(at, text, said[at][0]) for at, text in enumerate(texts)]
    columns = debiased(results, SimpleNamespace(later=None, judged=some, labels=labels))
    assert np.mean(columns["angry"]) == pytest.approx(1)
    assert np.mean(columns["refund"]) == pytest.approx(right.count("refund") / 300)
    columns = debiased(results, SimpleNamespace(later=None, judged=before, labels=labels))
    assert np.isnan(columns["angry"]).all()


def test_texts_that_came_after_the_draws_are_counted_apart():
    texts, right, said = world()
    judged = judged_at_random(texts, right, 100)
    later = [f"later {at}" for at in range(100)]
    grown, answers = [*texts, *later], [*said, *[["login"]] * 100]
    counts = count_labels(grown, answers, judged, LABELS, ["spring"] * 300 + ["summer"] * 100)
    by = {(count.group, count.label): count for count in counts}
    assert by[None, "login"].rows == by["spring", "login"].rows == 300
    assert by["summer", "login"].share is None
    assert (by["summer", "login"].rows, by["summer", "login"].llm) == (100, 1)
    assert any("100 texts are left out" in note for note in counts.notes)
    alone = count_labels(texts, said, judged, LABELS)
    assert [count.share for count in counts if count.group is None] == [one.share for one in alone]
    # nor do they widen what is said of the others
    months = ["1"] * 100 + ["2"] * 200
    before = count_labels(texts, said, judged, LABELS, months, periods=True)
    after = count_labels(grown, answers, judged, LABELS, months + ["3"] * 100, periods=True)
    known = {(one.group, one.label): one.difference for one in after}
    assert {(one.group, one.label): one.difference for one in before}.items() <= known.items()
    columns = debiased(
        [result(at, text, answers[at][0]) for at, text in enumerate(grown)],
        SimpleNamespace(later=None, judged=judged, labels=LABELS),
    )
    assert np.isnan(columns["login"]).tolist() == [False] * 300 + [True] * 100
    # where later texts are not below the others, this is said
    mixed = count_labels(later + texts, answers[300:] + said, judged, LABELS)
    assert mixed[0].rows == 400
    assert any("all are taken to be alike" in note for note in mixed.notes)


@pytest.mark.slow
def test_texts_of_another_file_are_not_counted_wherever_they_stand():
    """Else the share of a label that half of them have would be that of texts they are not."""
    texts, right, said = world()
    first = {hash_text(text) for text in texts}
    others = [f"other {at}" for at in range(100)]
    counts = count_labels(
        [*others, *texts[:100]],
        [*[["login"]] * 100, *said[:100]],
        judged_at_random(texts, right, 100),
        LABELS,
        later=lambda hashes, n: [n == 300 and key not in first for key in hashes],
    )
    assert counts[0].rows == 100
    assert any("100 texts are left out" in note for note in counts.notes)
    assert sum(count.llm for count in counts) == pytest.approx(1)


def test_texts_that_came_between_two_reviews_are_not_outnumbered():
    # of the first 300 texts 40 % are logins, of the 300 that came later none
    rng = np.random.default_rng(0)
    texts, value = [f"text {at}" for at in range(600)], []
    for _ in range(60):
        right = ["login" if at < 300 and rng.random() < 0.4 else "refund" for at in range(600)]
        first = rng.choice(300, 60, replace=False)
        second = rng.choice(np.setdiff1d(np.arange(600), first), 60, replace=False)
        judged = [judgment(texts[at], right[at], texts=300) for at in first]
        judged += [judgment(texts[at], right[at], texts=600) for at in second]
        counts = count_labels(texts, [["refund"]] * 600, judged, LABELS)
        value.append(counts[2].share.value - right.count("login") / 600)
    assert abs(np.mean(value)) < 3 * np.std(value) / np.sqrt(60) + 0.005


@pytest.mark.parametrize("first", [True, False])
def test_errors_that_are_corrected_after_or_before_the_draws_do_not_move_shares(first):
    missed, worlds = 0, 100
    for seed in range(worlds):
        texts, right, said = world(n=1000, wrong=0.3, seed=seed)
        rng = np.random.default_rng(seed)
        wrong = [at for at in range(1000) if said[at] != [right[at]]]
        if first:
            drawn = rng.choice(1000, 100, replace=False)
            chosen = {*rng.choice(wrong, round(0.9 * len(wrong)), replace=False)} - {*drawn}
        else:
            chosen = {*rng.choice(wrong, round(0.9 * len(wrong)), replace=False)}
            drawn = rng.choice([*{*range(1000)} - chosen], 100, replace=False)
        found = [judgment(texts[at], right[at], uniform=False, texts=1000) for at in chosen]
        draws = [judgment(texts[at], right[at], texts=1000) for at in drawn]
        counts = count_labels(texts, said, draws + found if first else found + draws, LABELS)
        for one in counts:
            missed += not one.share.low <= right.count(one.label) / 1000 <= one.share.high
    # two standard errors above 5 %
    assert missed / (worlds * len(LABELS)) < 0.075


def test_what_was_chosen_bounds_shares():
    texts, right, said = world(n=300, wrong=0.3)
    judged = judged_at_random(texts, right, 30)
    names = {one.text for one in judged}
    rest = [judgment(t, r, uniform=False) for t, r in zip(texts, right, strict=True)]
    judged += [one for one in rest if one.text not in names]
    for one in count_labels(texts, said, judged[:-2], LABELS):
        assert one.share.low <= right.count(one.label) / 300 <= one.share.high
        assert one.share.high - one.share.low == pytest.approx(2 / 300)
    for one in count_labels(texts, said, judged, LABELS):
        assert one.share.low == one.share.value == one.share.high == right.count(one.label) / 300


def test_wrong_judgments_widen_the_interval():
    texts, right, said = world()
    judged = judged_at_random(texts, right, 100)
    sure = count_labels(texts, said, judged, LABELS)
    unsure = count_labels(texts, said, judged, LABELS, judge_error=0.05)
    for one, other in zip(sure, unsure, strict=True):
        assert other.share.low <= one.share.low
        assert other.share.high >= one.share.high
    assert str(sure) != str(unsure)
    assert sum(one.share.value for one in unsure) == pytest.approx(1)
    # of 50 that two judged they differ on one: at most 7.6 % of such pairs, and half of it by each
    twice = [replace(one, agreed=at > 0) for at, one in enumerate(judged[:50])] + judged[50:]
    notes = {e: count_labels(texts, said, twice, LABELS, judge_error=e).notes for e in (0, 0.04)}
    assert any(
        "err in at most 3.8% (by their differences; errors that both make are not in it), " in o
        and "`testnuc count --judge-error 0.038` allows for it; print both" in o
        for o in notes[0]
    )
    # of other texts, which one person alone judged, it is not known
    alone = {one.text for one in judged[50:]}
    other = [at for at, text in enumerate(texts) if text in alone]
    some = [texts[at] for at in other], [said[at] for at in other]
    others = count_labels(*some, twice, LABELS).notes
    assert not any("judges err" in note for note in [*notes[0.04], *sure.notes, *others])


@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c")])
def test_shares_hold_where_judges_name_another_label_in_a_part_of_their_judgments(names):
    missed = tries = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        right = [
            names[int(x)]
            for x in rng.choice(
                len(names), 600, p=[0.1, 0.9] if len(names) == 2 else [0.1, 0.6, 0.3]
            )
        ]
        said = [[label] if rng.random() < 0.9 else [names[0]] for label in right]
        texts = [f"text {at}" for at in range(600)]
        err = [str(rng.choice([n for n in names if n != label])) for label in right]
        told = [b if rng.random() < 0.1 else a for a, b in zip(right, err, strict=True)]
        judged = judged_at_random(texts, told, 120, seed)
        for one in count_labels(texts, said, judged, names, judge_error=0.1):
            missed += not one.share.low <= right.count(one.label) / 600 <= one.share.high
            tries += 1
    assert missed / tries < 0.1


def test_labels_that_do_not_depend_on_a_judgment_narrow_the_intervals():
    texts, right, said = world(n=2000, wrong=0.4)
    judged = judged_at_random(texts, right, 100)
    alone = count_labels(texts, said, judged, LABELS)
    better = [[label] if at % 20 else None for at, label in enumerate(right)]
    counts = count_labels(texts, said, judged, LABELS, apart=better)
    for one, other in zip(alone, counts, strict=True):
        assert other.llm == one.llm
        assert other.share.low <= right.count(one.label) / len(texts) <= other.share.high
        assert other.share.high - other.share.low < 0.7 * (one.share.high - one.share.low)
    # a label that is the LLM's own says nothing more
    assert count_labels(texts, said, judged, LABELS, apart=said).items == alone.items


def test_where_strata_are_learned_intervals_have_a_tenth_less_error(monkeypatch):
    texts, right, said = world(n=2000, wrong=0.4)
    judged = judged_at_random(texts, right, 100)
    better = [[label] if at % 20 else None for at, label in enumerate(right)]

    def shares(**options):
        counts = count_labels(texts, said, judged, LABELS, apart=better, **options)
        return [one.share for one in counts]

    asked = shares()
    monkeypatch.setattr("testnuc.trust.shares._LEARNED", 1)
    assert asked == shares(confidence=0.955)
    assert asked != shares()


def test_few_judgments_for_many_labels_are_told_beside_the_labels_now():
    """With one judgment for each label, a noisy share looked like a count."""
    names = [f"label {at}" for at in range(20)]
    right = [names[at % 20] for at in range(1000)]
    texts = [f"text {at}" for at in range(1000)]
    said = [[names[0]] if at % 4 == 0 else [label] for at, label in enumerate(right)]
    now = [[label] for label in right]
    judged = judged_at_random(texts, right, 40)
    counts = count_labels(texts, said, judged, names, now=now)
    assert counts[0].current == pytest.approx(0.05)
    assert counts[0].llm == pytest.approx(0.25, abs=0.06)
    assert counts.records()[0]["current_share"] == counts[0].current
    assert "LLM alone  labels in use" in str(counts)
    assert "40 texts, judged and drawn at random, are few for 20 labels" in str(counts)
    # so are those of a group, of which 200 in all are enough
    judged = judged_at_random(texts, right, 200)
    by_half = count_labels(
        texts, said, judged, names, ["a" if x < "text 5" else "b" for x in texts]
    )
    most = max(item.judged for item in by_half[20:])
    said_of_groups = f"{200 - most} texts of a group, judged and drawn at random"
    assert f"{said_of_groups}, are few for 20 labels" in str(by_half)
    assert "for each label are enough" in str(counts)
    assert "are enough" not in str(by_half)
    counts = count_labels(texts, said, judged, names)
    assert "few for" not in str(counts)
    assert "labels in use" not in str(counts)
    assert counts[0].current == counts[0].llm


def test_what_was_not_learned_is_refused():
    with pytest.raises(InvalidInputError, match="learned is None; give what"):
        counted([result(0, "text", "refund")], None)
    with pytest.raises(InvalidInputError, match="learned is True; give what"):
        debiased([result(0, "text", "refund")], True)


def test_without_a_random_sample_it_is_an_error():
    texts, right, said = world()
    chosen = [judgment(texts[0], right[0], uniform=False)]
    with pytest.raises(InvalidInputError, match="drawn at random"):
        count_labels(texts, said, chosen, LABELS)


def test_data_frames_have_a_row_for_each_group_and_label():
    texts, right, said = world()
    groups = ["new" if at < 20 else "old" for at in range(300)]
    judged = [one for one in judged_at_random(texts, right, 100) if int(one.text[5:]) >= 20]
    counts = count_labels(texts, said, judged, LABELS, groups)
    pandas = counts.to_pandas()
    assert [*pandas.columns] == [*counts.records()[0]]
    assert pandas["rows"].tolist() == [count.rows for count in counts]
    assert np.isnan(pandas[pandas["group"] == "new"]["share"]).all()
    counts = count_labels(texts, said, judged_at_random(texts, right, 100), LABELS)
    assert f"about {counts[0].judgments_needed:,} more judgments, drawn at random" in str(counts)


def test_a_plot_by_group():
    pytest.importorskip("matplotlib")
    texts, right, said = world()
    groups = [f"2024-0{1 + at // 150}" for at in range(300)]
    judged = judged_at_random(texts, right, 150)
    now = [[label] for label in right]
    by_month = count_labels(texts, said, judged, LABELS, groups, now=now).plot()
    shown = [axes for axes in by_month.axes if axes.axison]
    assert {axes.get_title(loc="left") for axes in shown} == set(LABELS)
    assert [tick.get_text() for tick in shown[-1].get_xticklabels()] == ["2024-01", "2024-02"]
    # three labels in two columns: below the right one there is no panel
    assert [any(t.label1.get_visible() for t in a.xaxis.get_major_ticks()) for a in shown] == [
        False,
        True,
        True,
    ]
    dark = count_labels(texts, said, judged, LABELS).plot(["login"], dark=True)
    (axes,) = dark.axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["login"]
    assert dark.get_facecolor() != by_month.get_facecolor()
    # within a panel it hid intervals
    assert not any(axes.get_legend() for figure in (by_month, dark) for axes in figure.axes)
    assert [len(figure.legends[0].get_texts()) for figure in (by_month, dark)] == [3, 3]
    assert by_month.get_supylabel() == "share of the texts, % (95% intervals: each interval alone)"
    # both groups are within a panel
    assert shown[0].get_xlim() == (-0.5, 1.5)


def test_one_wide_interval_does_not_rule_the_axis_and_titles_are_whole():
    """Shares of 5 % could not be read beside a month of 47 %, and long titles were cut off."""
    pytest.importorskip("matplotlib")
    name = "balance not updated after cheque or cash deposit"
    highs = (0.1, 0.12, 0.11, 0.13, 0.47)
    items = [
        LabelCount(name, group, 100, Share(0.05, 0.01, high), 0.05, 0.05, 20, 9)
        for group, high in [(None, 0.1), *((f"month {at}", high) for at, high in enumerate(highs))]
    ]
    axes = Counts(items).plot().axes[0]
    assert axes.get_ylim()[1] == pytest.approx(18)
    # the arrow is where the wide one goes on
    arrows = [line for line in axes.lines if line.get_marker() == "^"]
    assert [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in arrows] == [
        ([4], [pytest.approx(18)])
    ]
    title = axes.get_title(loc="left")
    assert title.replace("\n", " ") == name
    assert max(map(len, title.splitlines())) < 35
    even = Counts([replace(item, share=Share(0.05, 0.01, 0.1)) for item in items]).plot().axes[0]
    assert even.get_ylim()[1] == pytest.approx(10.5)
    assert not any(line.get_marker() == "^" and len(line.get_xdata()) for line in even.lines)


def test_how_many_labels_of_each_group_are_right_is_said_where_it_is_known():
    share, right = Share(0.5, 0.4, 0.6), Accuracy(Share(0.7, 0.6, 0.8), Share(0.9, 0.8, 0.95), 9)
    items = [
        LabelCount("refund", group, 300, share, 0.5, 0.5, judged, 9)
        for group, judged in ((None, 60), ("app", 50), ("web", 12))
    ]
    unknown = Counts(items, accuracy={None: right, "app": None, "web": None})
    assert "too few texts of each group are judged" in str(unknown)
    counts = Counts(items, accuracy={None: right, "app": right, "web": None})
    assert [" ".join(line.split()) for line in str(counts).splitlines()[-4:]] == [
        "How many labels of distinct texts are right by your judgments, with 95% intervals:",
        "group labels right now LLM alone judged",
        "app 90 % (80 to 95) 70 % (60 to 80) 50",
        "web not known 12",
    ]
    app, web = counts.records()[1:]
    names = [f"{who}accuracy{end}" for who in ("", "llm_") for end in ("", "_low", "_high")]
    assert [app[name] for name in names] == [0.9, 0.8, 0.95, 0.7, 0.6, 0.8]
    assert {web[name] for name in names} == {None}
    assert "right by your judgments, with" not in str(Counts(items))
    pytest.importorskip("polars")
    assert str(counts.to_polars()["llm_accuracy_low"].dtype) == "Float64"


def test_a_plot_says_which_labels_and_intervals_it_leaves_out():
    """It left out all but six labels, the largest of any month, without a word."""
    pytest.importorskip("matplotlib")
    names = [f"label {at}" for at in range(14)]
    right = [names[at % 8 if at % 3 else at % 14] for at in range(700)]
    texts = [f"text {at}" for at in range(700)]
    judged = judged_at_random(texts[100:], right[100:], 200)
    for groups in (None, ["new" if at < 100 else "old" for at in range(700)]):
        counts = count_labels(texts, [[label] for label in right], judged, names, groups)
        plotted = counts.plot()
        note = plotted.get_supxlabel()
        assert ("1 without an interval, as too few are judged: new" in note) == (groups is not None)
        shares = {item.label: item.share.value for item in counts[:14]}
        rarest = sorted(shares, key=shares.get, reverse=True)[12:]
        assert note.endswith(f"2 labels not shown: {', '.join(sorted(rarest, key=names.index))}")
        assert sum(axes.axison for axes in plotted.axes) == (12 if groups else 1)
    assert (
        not count_labels(texts, [[one] for one in right], judged, names[:9]).plot().get_supxlabel()
    )
    with pytest.raises(InvalidInputError, match=r"\{'other'\} were not counted; labels: label 0,"):
        counts.plot(["other"])


@pytest.mark.parametrize("by_group", [False, True])
def test_a_label_with_dollar_signs_is_no_formula(by_group):
    """It was drawn as one, or could not be: a plot ended in matplotlib's ValueError."""
    pytest.importorskip("matplotlib")
    texts, right, said = world()
    named = {label: rf"{label} $\frac{{$" for label in LABELS}
    groups = ["from $_ to $^"] * len(texts) if by_group else None
    judged = judged_at_random(texts, [named[label] for label in right], 100)
    own = [[named[label]] for (label,) in said]
    plotted = count_labels(texts, own, judged, [*named.values()], groups).plot()
    plotted.savefig(io.BytesIO())
    shown = [text.get_text() for axes in plotted.axes for text in axes.get_yticklabels()]
    assert by_group or set(named.values()) <= set(shown)


def result(index, text, own):
    return Classification(
        index, text, own, 1.0, 1.0, 1, True, prediction=Prediction(own, 0.9), source="llm"
    )


def test_debiased_columns_average_to_what_ppi_estimates():
    texts, right, said = world(wrong=0.4)
    judged = judged_at_random(texts, right, 100)
    results = [result(at, text, said[at][0]) for at, text in enumerate(texts)]
    columns = debiased(results, SimpleNamespace(later=None, judged=judged, labels=LABELS))
    rows = [int(one.text[5:]) for one in judged]
    for label in LABELS:
        f = np.array([some == [label] for some in said], dtype=float)
        y = np.array([right[row] == label for row in rows], dtype=float)
        # prediction-powered inference with lambda 1
        assert np.mean(columns[label]) == pytest.approx(f.mean() + (y - f[rows]).mean(), abs=1e-9)
        untouched = np.setdiff1d(np.arange(300), rows)
        assert np.array(columns[label])[untouched].tolist() == f[untouched].tolist()


@pytest.mark.slow
def test_a_regression_on_debiased_columns_is_unbiased():
    # the LLM errs only where x is 1: by its own labels, x seems to matter
    rng = np.random.default_rng(0)
    slopes, naive = [], []
    for seed in range(200):
        texts, right, said = world(400, wrong=0, seed=seed)
        x = rng.random(400) < 0.5
        said = [
            ["refund"] if x[at] and rng.random() < 0.4 else some for at, some in enumerate(said)
        ]
        results = [result(at, text, said[at][0]) for at, text in enumerate(texts)]
        learned = SimpleNamespace(
            later=None, judged=judged_at_random(texts, right, 100, seed), labels=LABELS
        )
        y = np.array(debiased(results, learned)["refund"])
        f = np.array([some == ["refund"] for some in said], dtype=float)
        true = np.array([label == "refund" for label in right], dtype=float)
        slopes.append(y[x].mean() - y[~x].mean() - (true[x].mean() - true[~x].mean()))
        naive.append(f[x].mean() - f[~x].mean() - (true[x].mean() - true[~x].mean()))
    assert np.mean(naive) > 0.15
    # three standard errors
    assert abs(np.mean(slopes)) < 3 * np.std(slopes) / np.sqrt(200)
