"""Reviews of several people become one."""

import json
import re
from dataclasses import replace

import krippendorff
import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from testnuc._base.checks import hash_text
from testnuc._engine.carried import _judgments_in
from testnuc.errors import InvalidInputError
from testnuc.report import render
from testnuc.trust.joining import (
    agreement_of,
    errors_of_judges,
    join_reviews,
    judge_error,
)
from testnuc.trust.review import Review, ReviewItem
from testnuc.types import Neighbor

LABELS = ("a", "b", "c")


def review_of(answers, *, probability=0.1, labels=LABELS, called="text"):
    """Return a review whose texts have these answers; "-" is open."""
    items = [
        ReviewItem(
            index=at, text=f"{called} {at}", hash=hash_text(f"{called} {at}"), own_label="a",
            candidates=(("a", ("the LLM's own labels",)),), trust=0.5, neighbors=(),
            goal="decide", probability=probability, floor=probability,
        )
        for at in range(len(answers))
    ]  # fmt: skip
    made = Review(items, labels, 100, "openai/x")
    for at, answer in enumerate(answers):
        if answer != "-":
            made.answer(at, answer)
    return made


def test_a_joined_review_says_how_far_people_agreed_and_what_was_settled_since():
    """It holds the labels of each where they differ, and was said to be of one person."""
    people = {"ann": review_of(["a", "b", "c", "-"]), "ben": review_of(["a", "c", "-", "-"])}
    before = join_reviews(people)
    joined = before.review
    again = join_reviews([joined])
    assert (again.shared, again.disagreements, again.undecided) == (2, 1, 1)
    # a page made to be checked did not say it; of the joined review it is not known
    assert "2 texts are judged here (without an answer: 1 in ann, 2 in ben); on" in before.facts
    assert "without an answer" not in again.facts
    assert again.agreement == before.agreement
    assert again.review.context.judges == 2
    # a later review of one of them alone leaves kappa
    beside = join_reviews([joined, review_of(["a", "b"], called="later")], batches=True)
    assert beside.agreement == before.agreement
    assert before.agreement.kappa is not None
    joined.answer(1, "c")
    joined.answer(3, "a")
    settled = join_reviews([joined])
    assert (settled.undecided, len(settled.review.judged)) == (0, 4)
    assert settled.review[1].answer == "c"
    assert settled.agreement == before.agreement
    assert "they differ: 1 settled by the majority, or later by a person who saw" in str(settled)


def of(who, answers, called="text"):
    """Return a review that this person judged."""
    review = review_of(answers, called=called)
    review.context = replace(review.context, people=(who,))
    return review


def test_files_of_one_person_count_as_theirs(tmp_path):
    first = {"a.json": of("Ann", "abc"), "b.json": of("Ben", "acc")}
    # in another order of files
    later = {"x.json": of("Ben", "ca", "later"), "y.json": of("Ann", "aa", "later")}
    joined = join_reviews(first).review
    joined.save(tmp_path / "joined.json")
    joined = Review.load(tmp_path / "joined.json")
    assert (joined.context.people, joined.context.judges) == (("Ann", "Ben"), 2)
    expected = join_reviews([review_of("abcaa"), review_of("accca")]).agreement
    assert expected.kappa is not None
    for files in (first, {"joined.json": joined}):
        both = join_reviews(files | later, batches=True)
        assert both.review.context.people == ("Ann", "Ben")
        assert both.agreement == expected
    assert {one.by for one in _judgments_in(joined)} - {""} == {"2 people (Ann, Ben)"}


def test_one_person_may_judge_twice_and_a_copy_is_no_second_judge():
    assert join_reviews([of("Ann", "abc"), of("Ann", "abc")]).alike
    # who is named is no copy: of few texts, two people often say the same
    assert join_reviews([of("Ann", "abc"), of("Ben", "abc")]).shared == 3
    twice = join_reviews([of("Ann", "abc"), of("Ann", "abb")])
    assert twice.agreement == join_reviews([review_of("abc"), review_of("abb")]).agreement
    again = join_reviews([twice.review])
    assert again.agreement == twice.agreement
    assert {one.by for one in _judgments_in(again.review)} == {"one person (Ann)"}
    assert "Several files name Ann: if they are of two people, name each" in twice.facts
    assert "Several files" not in join_reviews([of("Ann", "abc"), of("Ben", "abb")]).facts


def test_a_file_without_a_name_is_known_by_its_own():
    joined = join_reviews({"a.json": of("Ann", "abc"), "b.json": review_of("abb")}).review
    assert joined.context.people == ("Ann", "b.json")


def test_the_majority_wins_and_a_tie_stays_open():
    people = {
        "ann": review_of(["a", "b", "-", None, "b"]),
        "ben": review_of(["a", "c", "-", None, "c"]),
        "eve": review_of(["a", "b", "c", "a", "-"]),
    }
    joined = join_reviews(people)
    assert [(i.answer, i.source) for i in joined.review] == [
        ("a", "person"), ("b", "person"), ("c", "person"), (None, "person"), (None, None),
    ]  # fmt: skip
    assert (joined.shared, joined.disagreements, joined.undecided) == (4, 3, 1)
    assert joined.review[4].said == (("ann", "b"), ("ben", "c"))
    assert joined.review[0].said == ()
    assert (
        "on 3 of 4 that several people judged they differ: 2 settled by the majority, or later by "
        "a person who saw the labels, 1 open" in (str(joined))
    )
    # what was known of the draw stays
    assert [i.probability for i in joined.review] == [0.1] * 5


def test_reviews_without_names_are_judge_1_and_2():
    reviews = [review_of(["a", "b"]), review_of(["a", "c"])]
    reviews[1].answer(reviews[1][0], "a")
    assert join_reviews(reviews).review[1].said == (("judge 1", "b"), ("judge 2", "c"))


def test_a_person_counts_for_more_than_a_referee():
    machine = review_of(["-", "-"])
    for at in range(2):
        machine.answer(at, "c", "referee")
    joined = join_reviews({"ann": review_of(["a", "-"]), "model": machine})
    assert [(i.answer, i.source) for i in joined.review] == [("a", "person"), ("c", "referee")]
    assert joined.disagreements == 0
    assert "none of them by several" in str(joined)


def test_agreement_is_that_of_the_libraries():
    dice = np.random.default_rng(0)
    ann = [LABELS[c] for c in dice.integers(0, 3, 80)]
    ben = [label if dice.random() < 0.8 else LABELS[dice.integers(3)] for label in ann]
    eve = ["-" if dice.random() < 0.4 else label for label in ann]
    two = join_reviews({"ann": review_of(ann), "ben": review_of(ben)}).agreement
    assert two.kappa[0] == pytest.approx(cohen_kappa_score(ann, ben))
    assert two.equal[0] == np.mean(np.array(ann) == ben)
    several = join_reviews({n: review_of(of) for n, of in zip("abe", (ann, ben, eve), strict=True)})
    assert several.agreement.kappa is None
    for made, people in ((two, (ann, ben)), (several.agreement, (ann, ben, eve))):
        numbers = [[np.nan if x == "-" else LABELS.index(x) for x in of] for of in people]
        expected = krippendorff.alpha(numbers, level_of_measurement="nominal")
        assert made.alpha[0] == pytest.approx(expected)
        assert made.alpha[1] < expected < made.alpha[2]
    assert f"Cohen's kappa {two.kappa[0]:.2f} (" in str(two)
    assert f"Judgments agree in {two.equal[0]:.1%} (" in str(two)


def test_how_often_judges_err_is_said_once_and_alike():
    one, other = ["a"] * 30, ["b"] * 2 + ["a"] * 28
    said = str(join_reviews({"ann": review_of(one), "ben": review_of(other)}))
    assert said.splitlines()[-1] == errors_of_judges([False] * 2 + [True] * 28)
    assert said.count("errs") == 1
    assert "differ on 2 of 30 texts that several judged: each errs in about 3.3%, at most" in said
    # an upper bound, where nobody differs
    said = errors_of_judges([True] * 10)
    assert "each errs in at most 10.3% with 90% confidence" in said
    assert "0.0%" not in said
    assert errors_of_judges([]) == ""


def test_how_far_people_agree_is_known_over_several_draws():
    first, second = review_of(["a", "b", "c"]), review_of(["a", "b", "a"])
    later = [review_of(of, called="later") for of in ("aaa", "aab")]
    with pytest.raises(InvalidInputError, match="other texts than the first review"):
        join_reviews([first, second, *later])
    found = join_reviews([first, second, *later], batches=True)
    assert (found.shared, found.disagreements) == (6, 2)


@pytest.mark.parametrize(
    ("n", "wrong", "rare"), [(150, 0.1, 0.5), (30, 0.05, 0.5), (40, 0.03, 0.2)]
)
def test_intervals_of_agreement_cover_the_truth(n, wrong, rare):
    """Of two judges of two labels, also where these are few, or nearly agree."""
    equal, second = (1 - wrong) ** 2 + wrong**2, rare * (1 - wrong) + (1 - rare) * wrong
    chance = second**2 + (1 - second) ** 2
    kappa = (equal - chance) / (1 - chance)
    held = {"kappa": 0, "alpha": 0, "equal": 0}
    for seed in range(200):
        dice = np.random.default_rng(seed)
        gold = dice.random(n) < rare
        said = [(gold ^ (dice.random(n) < wrong)).astype(int) for _ in range(2)]
        made = agreement_of([[LABELS[a], LABELS[b]] for a, b in zip(*said, strict=True)], 2)
        for name, true in (("kappa", kappa), ("alpha", kappa), ("equal", equal)):
            _, low, high = getattr(made, name)
            held[name] += low <= true <= high
    assert min(held.values()) >= 186, held


def test_nineteen_of_twenty_that_agree_have_an_exact_interval():
    """It ended at 100 % though two differed, and began at 85 %."""
    made = agreement_of([("a", "b"), *[(LABELS[at % 2],) * 2 for at in range(19)]], 2)
    assert made.equal == pytest.approx((0.95, 0.751, 0.999), abs=0.001)
    assert made.kappa[1] < 0.55
    assert made.alpha[1] < 0.55
    assert "agree in 95.0% (75.1% to 99.9%)" in str(made)


def test_three_equal_judgments_do_not_prove_that_all_are():
    made = agreement_of([("a", "a"), ("b", "b"), ("c", "c")], 2)
    # what a binomial proportion of 3 in 3 leaves open (Clopper and Pearson)
    assert made.equal == (1.0, pytest.approx(0.292, abs=0.001), 1.0)
    for value, low, high in (made.kappa, made.alpha):
        assert (value, high) == (1.0, 1.0)
        assert -1 <= low < 0.25
    many = agreement_of([(LABELS[at % 3],) * 2 for at in range(300)], 2)
    for _, low, _ in (many.equal, many.kappa, many.alpha):
        assert 0.97 < low < 0.99
    # one text
    assert "agree in 100.0% (2.5% to 100.0%)" in str(agreement_of([("a", "a")], 2))
    assert "agree in 0.0% (0.0% to 97.5%)" in str(agreement_of([("a", "b")], 2))


def on_another_day(review):
    """Return the review of a judge who says the same, and is no copy."""
    return review.with_items([replace(item, day="2026-01-02") for item in review])


def test_a_joined_answer_has_the_days_of_all_who_judged():
    first = review_of("aa-")
    ann = first.with_items([replace(item, day="2026-01-01") for item in first])
    cay = first.with_items([replace(item, day="") for item in first])
    ben = on_another_day(review_of("abb"))
    for people in ([ann, ben], [ben, ann], [cay, ben, ann]):
        # also where they differ, and without the day of those who skipped the text
        days = [item.day for item in join_reviews(people).review]
        assert days == ["2026-01-01 to 2026-01-02"] * 2 + ["2026-01-02"]


def test_equal_judgments_say_nothing_of_chance():
    ben = on_another_day(review_of(["a", "a"]))
    made = join_reviews({"ann": review_of(["a", "a"]), "ben": ben}).agreement
    assert np.isnan(made.alpha[0])
    assert "alpha unknown (all judgments are equal)" in str(made)


def test_chosen_texts_are_joined_by_their_text():
    ann, ben = review_of(["a", "b"], probability=None), review_of(["a", "b", "c"], probability=None)
    assert [i.answer for i in join_reviews({"ann": ann, "ben": ben}).review] == ["a", "b", "c"]


def test_reviews_that_do_not_fit_are_refused():
    first = review_of(["a"])
    with pytest.raises(InvalidInputError, match="ben has another label set"):
        join_reviews({"ann": first, "ben": review_of(["a"], labels=("a", "b"))})
    other = Review([replace(first[0], text="other")], LABELS, 100, "openai/x")
    with pytest.raises(InvalidInputError, match="ben has other texts"):
        join_reviews({"ann": first, "ben": other})
    with pytest.raises(InvalidInputError, match="no review"):
        join_reviews({})


@pytest.mark.parametrize("batches", [False, True])
def test_a_joined_review_is_no_further_judge_beside_those_that_it_joins(batches):
    people = {"ann": review_of(["a", "b", "c"]), "ben": review_of(["a", "c", "c"])}
    joined = join_reviews(people).review
    for both in ({**people, "joined": joined}, {"joined": joined, "ann": people["ann"]}):
        with pytest.raises(InvalidInputError, match=r"joined joins several: name it alone, or"):
            join_reviews(both, batches=batches)
    # of another draw it has no text in common
    cay = review_of(["a", "b"], called="later")
    later = {"cay": cay, "dan": on_another_day(cay)}
    assert join_reviews({"joined": joined, **later}, batches=True).shared == 5


def test_a_copy_under_another_name_is_named_and_left_out():
    one = review_of(["a", "b", "c"])
    joined = join_reviews(
        {"ann.json": one, "ben.json": one.with_items(one), "cy": review_of("abb")}
    )
    assert joined.alike == ("ann.json, ben.json",)
    copy = "\nann.json, ben.json: equal in every answer. A copy is no judge: the second one is left"
    assert copy in joined.facts
    # it is in no number
    alone = join_reviews({"ann.json": one, "cy": review_of("abb")})
    assert (joined.agreement, joined.review.context.judges) == (alone.agreement, 2)
    assert copy in join_reviews({"ann.json": one, "ben.json": one.with_items(one)}).facts
    assert join_reviews({"ann.json": one, "cy": review_of("abb")}).alike == ()


def test_parts_of_a_review_share_some_texts_and_become_the_whole_again(tmp_path):
    whole = review_of(["-"] * 40)
    parts = whole.split(2, 0.1)
    assert [len(part) for part in parts] == [22, 22]
    both = {item.text for item in parts[0]} & {item.text for item in parts[1]}
    assert len(both) == 4
    # saved and read, as two people do it; on one of the shared texts they differ
    read = []
    for at, part in enumerate(parts):
        part.save(tmp_path / f"{at}.json")
        read.append(Review.load(tmp_path / f"{at}.json"))
        for item in read[-1]:
            read[-1].answer(item.index, "b" if at and item.text == min(both) else "a")
    for order in (read, read[::-1]):
        joined = join_reviews(order)
        assert [item.text for item in joined.review] == [item.text for item in whole]
        assert [item.index for item in joined.review] == [*range(40)]
        assert (joined.shared, joined.disagreements, joined.undecided) == (4, 1, 1)
        judges = {item.text: item.judges for item in joined.review}
        assert {text for text, number in judges.items() if number == 2} == both
    other = review_of(["-"] * 40)
    other.texts = 99
    with pytest.raises(InvalidInputError, match="other texts"):
        join_reviews([read[0], other.split(2)[1]])


def test_one_judge_gets_some_texts_a_second_time():
    whole, again = review_of(["-"] * 30).split(1, 0.2)
    assert (len(whole), len(again)) == (30, 6)
    assert {item.text for item in again} <= {item.text for item in whole}


def test_a_blind_review_shows_no_label(tmp_path):
    whole = review_of(["-"] * 3)
    near = Neighbor("near", 0.9, "b", 0.8)
    items = [replace(item, neighbors=(near,)) for item in whole]
    blind = whole.with_items(items).blind()
    assert [(item.own_label, item.candidates, item.trust) for item in blind] == [
        (None, (), None)
    ] * 3
    assert blind[0].neighbors == (Neighbor("near", 0.9, None, None),)
    # what was drawn, and how, stays
    assert [item.probability for item in blind] == [item.probability for item in whole]
    page = render(None, review=blind)
    shown = json.loads(
        re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)[1]
    )
    assert [(row["l"], row["o"], row["a"]) for row in shown["rows"]] == [(None, None, False)] * 3
    blind.save(tmp_path / "r.json")
    Review.load(tmp_path / "r.json").answer(0, "a")


def test_the_error_of_judges_is_rarely_above_its_bound():
    missed = 0
    for seed in range(200):
        dice = np.random.default_rng(seed)
        gold = dice.integers(0, 9, 40)
        said = [np.where(dice.random(40) < 0.1, 9, gold) for _ in range(2)]
        error = judge_error([bool(a == b) for a, b in zip(*said, strict=True)], 0.9)
        # both are wrong, and alike, in one of a hundred
        missed += error < (0.1 - 0.01)
    assert missed <= 30
    assert judge_error([], 0.9) is None
    assert judge_error([False], 0.9) == 0.5
    # (1 - 0.1 ** (1 / 20)) / 2, rounded up
    assert judge_error([True] * 20, 0.9) == 0.055
