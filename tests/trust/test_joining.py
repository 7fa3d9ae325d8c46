"""Reviews of several people become one."""

from dataclasses import replace

import krippendorff
import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from testnuc._base.checks import hash_text
from testnuc.errors import InvalidInputError
from testnuc.trust.agreement import agreement_of
from testnuc.trust.joining import join_reviews
from testnuc.trust.review import Review, ReviewItem

LABELS = ("a", "b", "c")


def review_of(answers, *, probability=0.1, labels=LABELS):
    """Return a review whose texts have these answers; "-" is open."""
    items = [
        ReviewItem(
            index=at, text=f"text {at}", hash=hash_text(f"text {at}"), own_label="a",
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
        "on 3 of 4 that several people judged they differ: 2 settled by the majority, 1 open"
        in (str(joined))
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
    assert two.error == (1 - two.equal[0]) / 2
    several = join_reviews({n: review_of(of) for n, of in zip("abe", (ann, ben, eve), strict=True)})
    assert several.agreement.kappa is None
    for made, people in ((two, (ann, ben)), (several.agreement, (ann, ben, eve))):
        numbers = [[np.nan if x == "-" else LABELS.index(x) for x in of] for of in people]
        expected = krippendorff.alpha(numbers, level_of_measurement="nominal")
        assert made.alpha[0] == pytest.approx(expected)
        assert made.alpha[1] < expected < made.alpha[2]
    assert f"Cohen's kappa {two.kappa[0]:.2f} (" in str(two)
    assert f"a judge errs in at least {two.error:.1%} on average" in str(two)


def test_intervals_of_agreement_cover_the_truth():
    # two judges of two labels, right in nine of ten texts: kappa and alpha are .64
    held = {"kappa": 0, "alpha": 0, "equal": 0}
    for seed in range(100):
        dice = np.random.default_rng(seed)
        gold = dice.integers(0, 2, 150)
        said = [gold ^ (dice.random(150) < 0.1) for _ in range(2)]
        made = agreement_of([[LABELS[a], LABELS[b]] for a, b in zip(*said, strict=True)], 2)
        for name, true in (("kappa", 0.64), ("alpha", 0.64), ("equal", 0.82)):
            _, low, high = getattr(made, name)
            held[name] += low <= true <= high
    assert min(held.values()) >= 90


def test_equal_judgments_say_nothing_of_chance():
    made = join_reviews({"ann": review_of(["a", "a"]), "ben": review_of(["a", "a"])}).agreement
    assert np.isnan(made.alpha[0])
    assert "alpha unknown (all judgments are equal)" in str(made)
    assert made.error == 0


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
