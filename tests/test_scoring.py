"""Accuracy with intervals, comparisons, the frame to review, and short representations."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import numpy as np
import pytest

import testnuc
from testnuc import Classification, Prediction, Results, Usage
from testnuc._base.display import Brief
from testnuc.errors import InvalidInputError
from testnuc.metrics import score
from testnuc.scoring import (
    _macro_f1,
    accuracy_of,
    compare,
    evaluated,
    gain_of,
    paired_difference,
    wilson,
)
from tests.conftest import gold, messages


def results(labels, own=None, trust=None, sources=None, texts=None):
    rows = [
        Classification(
            index=at, text=f"text {at}" if texts is None else texts[at], label=label, share=0.5,
            margin=0.1, voters=3, complete=True,
            prediction=Prediction((own or labels)[at], 0.9), neighbors=(), votes={},
            trust=None if trust is None else trust[at],
            source="vote" if sources is None else sources[at],
        )
        for at, label in enumerate(labels)
    ]  # fmt: skip
    return Results(rows, Usage(calls=len(rows)), 1.0)


def test_an_evaluation_counts_and_gives_intervals():
    right = ["a"] * 60 + ["b"] * 40
    given = ["a"] * 50 + ["b"] * 40 + ["a"] * 8 + [None] * 2
    own = ["a"] * 40 + ["b"] * 60
    sources = ["vote"] * 90 + ["head"] * 8 + [None] * 2
    of = evaluated(results(given, own, sources=sources), right)
    assert (of.texts, of.unlabeled) == (100, 2)
    hits = sum(a == b for a, b in zip(given, right, strict=True))
    assert of.accuracy.value == hits / 100
    assert of.accuracy.low < of.accuracy.value < of.accuracy.high
    assert of.own_accuracy.value == 0.8
    assert of.gain.value == pytest.approx(of.accuracy.value - of.own_accuracy.value)
    assert of.macro_f1.value == pytest.approx(score(right, given).macro_f1)
    assert of.own_macro_f1.value == pytest.approx(score(right, own).macro_f1)
    assert of.macro_f1.low < of.macro_f1.value < of.macro_f1.high
    assert {name: texts for name, (texts, _) in of.by_source.items()} == {"vote": 90, "head": 8}
    assert of.by_source["head"][1].value == 0
    # the same results have the same interval
    assert evaluated(results(given, own, sources=sources), right).macro_f1 == of.macro_f1
    assert "the LLM alone 0.800" in str(of)
    assert len(repr(of)) < 300


def test_the_interval_of_an_accuracy_is_that_of_wilson():
    # Agresti and Coull 1998: 0 of 10 and 5 of 10
    assert (wilson(0, 10).low, round(wilson(0, 10).high, 3)) == (0.0, 0.278)
    assert [round(v, 3) for v in (wilson(5, 10).low, wilson(5, 10).high)] == [0.237, 0.763]
    assert (wilson(7, 7).value, wilson(7, 7).high) == (1.0, 1.0)


def test_the_interval_of_macro_f1_covers_the_truth_with_few_texts_for_a_label():
    # 77 labels and 300 texts: a percentile bootstrap covers .46
    dice, classes = np.random.default_rng(0), 77
    accuracy = dice.beta(4, 1.5, classes)
    size, other = (
        dice.dirichlet(np.full(classes, 5)),
        dice.dirichlet(np.full(classes, 0.1), classes),
    )
    chances = (size * (1 - accuracy))[:, None] * other + np.diag(size * accuracy)
    hit = np.diag(chances)
    true = float(np.mean(2 * hit / (chances.sum(axis=0) + chances.sum(axis=1))))
    names, held = [f"label {c}" for c in range(classes)], []
    for _ in range(60):
        drawn = dice.choice(classes**2, 300, p=chances.ravel() / chances.sum())
        gold, given = [[names[c] for c in of] for of in divmod(drawn, classes)]
        found = _macro_f1(gold, given, list(map(str, range(300))))
        held.append(found.low <= true <= found.high)
        assert found.value == pytest.approx(score(gold, given).macro_f1)
    assert np.mean(held) >= 0.85


def test_the_interval_of_macro_f1_covers_the_truth_of_three_labels():
    dice = np.random.default_rng(1)
    chances = np.array([0.35, 0.1, 0.05, 0.3, 0.15, 0.05])
    cells = [("a", "a"), ("a", "b"), ("b", "a"), ("b", "b"), ("c", "c"), ("c", None)]
    many = dice.choice(6, 200_000, p=chances)
    true = score([cells[c][0] for c in many], [cells[c][1] for c in many]).macro_f1
    held = 0
    for _ in range(100):
        drawn = dice.choice(6, 150, p=chances)
        gold, given = zip(*(cells[c] for c in drawn), strict=True)
        found = _macro_f1(gold, given, list(map(str, range(150))))
        held += found.low <= true <= found.high
    assert held >= 88


def test_copies_of_a_text_are_one_draw():
    # a text in fifteen comes twenty times, and these are wrong more often
    dice, held = np.random.default_rng(2), {"accuracy": [], "gain": [], "macro F1": []}
    popular, true = 1 / 15, (14 * 0.95 + 20 * 0.4) / 34
    for _ in range(100):
        often = dice.random(400) < popular
        right = dice.random(400) < np.where(often, 0.4, 0.95)
        at = np.repeat(np.arange(400), np.where(often, 20, 1))
        texts, hits = list(map(str, at)), right[at].tolist()
        found = accuracy_of(hits, texts)
        held["accuracy"].append(found.low <= true <= found.high)
        found = gain_of([(False, hit) for hit in hits], texts)
        held["gain"].append(found.low <= true <= found.high)
        # all texts are "a", the wrong ones are called "b": F1 of "b" is 0
        found = _macro_f1(["a"] * len(hits), ["a" if hit else "b" for hit in hits], texts)
        held["macro F1"].append(found.low <= true / (1 + true) <= found.high)
    assert {name: np.mean(of) >= 0.88 for name, of in held.items()} == dict.fromkeys(held, True)


def test_texts_that_a_person_judged_are_left_out():
    # what a person judged is right by that judgment
    right = ["a"] * 10
    given, sources = ["a"] * 6 + ["b"] * 4, ["person"] * 5 + ["vote"] * 5
    of = evaluated(results(given, sources=sources), right)
    assert (of.texts, of.judged, of.accuracy.value) == (5, 5, 0.2)
    assert set(of.by_source) == {"vote"}
    assert "5 texts that a person judged are left out" in str(of)
    with pytest.raises(InvalidInputError, match="a person judged all 10 texts"):
        evaluated(results(given, sources=["person"] * 10), right)
    both = compare(results(["b"] * 10), results(given, sources=sources), right)
    assert (both.judged, both.accuracies[1].value, both.texts) == (5, 0.2, 10)
    assert "5 texts that a person judged" in str(both)
    with pytest.raises(InvalidInputError, match="a person judged all 10 texts"):
        compare(results(given), results(given, sources=["person"] * 10), right)


async def test_evaluate_refuses_before_a_call_and_measures_with_one_each(loopback):
    texts = messages(30)
    async with loopback(k=3, policy="weighted") as (llm, nuc):
        for labels, says in (
            ([gold(texts[0])], "30 texts and 1 labels"),
            (["weather"] * 30, "label 0 is 'weather', which is not one of"),
            ([None] * 30, "label 0 is None"),
        ):
            with pytest.raises(InvalidInputError, match=says):
                await nuc.evaluate(texts, labels)
        assert llm.calls == 0
        of = await nuc.evaluate(texts, map(gold, texts))
    assert llm.calls == 30
    assert of.own_accuracy.value == 1.0
    assert [r.text for r in of.results] == texts


def test_two_runs_are_compared_by_text():
    first = results(["a", "a", "b", "b", "a"], texts=["one", "two", "three", "same", "same"])
    second = results(["b", "b", None, "a", "x"], texts=["same", "one", "two", "same", "other"])
    of = testnuc.scoring.compare(first, second)
    assert (of.texts, of.only_first, of.only_second) == (4, 1, 1)
    # repeated texts are matched in order
    assert [(a.text, a.label, b.label) for a, b in of.differing] == [
        ("one", "a", "b"), ("two", "a", None),
    ]  # fmt: skip
    assert Counter({(a, b): n for a, b, n in of.pairs}) == {("a", "b"): 1, ("a", None): 1}
    assert "4 texts are in both, 2 labels differ (50.0%)" in str(of)
    known = testnuc.scoring.compare(first, second, ["b", "b", "b", "b", "a"])
    assert [m.value for m in known.accuracies] == [0.5, 0.75]
    assert known.gain.value == 0.25
    assert "difference +25.0 points" in str(known)
    with pytest.raises(InvalidInputError, match="no text in common"):
        testnuc.scoring.compare(first, results(["a"], texts=["none"]))
    with pytest.raises(InvalidInputError, match="5 texts and 1 labels"):
        testnuc.scoring.compare(first, second, ["a"])


def test_runs_that_give_several_labels_in_another_order_agree():
    first, second = results(["a; b", "a; b", None]), results(["b; a", "a", None])
    of = testnuc.scoring.compare(first, second, ["b; a", "a; b", "a"])
    assert [(a.label, b.label) for a, b in of.differing] == [("a; b", "a")]
    assert [m.value for m in of.accuracies] == pytest.approx([2 / 3, 1 / 3])


def test_the_frame_to_review_has_unknown_trust_on_top():
    pytest.importorskip("pandas")
    of = results(["a"] * 5, trust=[0.9, None, 0.2, None, 0.5])
    assert list(of.to_review().index) == [1, 3, 2, 4, 0]
    assert list(of.to_review(3).index) == [1, 3, 2]
    assert list(results(["a", "b"]).to_review().index) == [0, 1]
    # what it is there for
    assert list(of.to_pandas().nsmallest(3, "trust").index) == [2, 4, 0]
    with pytest.raises(InvalidInputError, match="n is -1"):
        of.to_review(-1)


def test_the_interval_covers_the_true_difference():
    dice = random.Random(0)
    for up, down, texts in ((0.2, 0.1, 60), (0.02, 0.0, 200), (0.3, 0.3, 30)):
        held = 0
        for _ in range(500):
            rolls = [dice.random() for _ in range(texts)]
            wins = sum(r < up for r in rolls)
            losses = sum(up <= r < up + down for r in rolls)
            of = paired_difference(wins, losses, texts)
            held += of.low <= up - down <= of.high
        assert held >= 0.92 * 500


def filled(kind):
    """Return a record with a long value in each field, whatever its type."""
    made = object.__new__(kind)
    values = (
        "a long text " * 500, np.zeros((702, 14)), tuple(range(500)),
        {f"label {i}": i / 7 for i in range(77)}, [Prediction("a")] * 40, 1 / 3, b"x" * 900,
    )  # fmt: skip
    for at, field in enumerate(dataclasses.fields(kind)):
        object.__setattr__(made, field.name, values[at % len(values)])
    return made


# Results reads its fields to be shown, see the next test
RECORDS = [
    n for n in testnuc.__all__ if dataclasses.is_dataclass(getattr(testnuc, n)) and n != "Results"
]


@pytest.mark.parametrize("name", RECORDS)
def test_every_public_representation_is_short(name):
    kind = getattr(testnuc, name)
    if kind.__repr__ is not Brief.__repr__ and all(
        (f.type.__name__ if isinstance(f.type, type) else str(f.type)).split(" ")[0]
        in {"int", "float", "str", "bool"}
        for f in dataclasses.fields(kind)
    ):
        return  # a few numbers and names
    assert len(repr(filled(kind))) < 300


async def test_other_public_objects_have_short_representations(loopback):
    many = [f"label {at}" for at in range(200)]
    of = results(many)
    shown = [of, testnuc.LabelSet(many), testnuc.OpenAI("gpt-4o-mini", api_key="x" * 40)]
    async with loopback(k=3) as (_, nuc):
        shown.append(nuc)
        shown += await nuc.classify_many([*messages(3), "refund " * 400 + messages(1)[0]])
        shown += [nuc.usage, await nuc.stats(), await nuc.estimate(messages(3))]
    for one in shown:
        assert len(repr(one)) < 300, repr(one)
        assert "\n" not in repr(one)
