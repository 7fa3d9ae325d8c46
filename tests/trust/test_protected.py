"""Protected labels: what is learned takes them from no text, and is proved as it is then.

In these worlds the LLM finds most texts of a rare label, and gives it to others, too; embeddings do
not tell them apart. A model that is right more often gives the label up.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from testnuc.trust.argmax import Argmax
from testnuc.trust.calibration import UNCALIBRATED
from testnuc.trust.candidates import candidates_of, choose, chosen_parts, differing
from testnuc.trust.evidence import Draws
from testnuc.trust.learned import _never_right, fallen, grown_by_few
from testnuc.trust.review import draw
from tests.trust.arrays import clusters

RARE, CLASSES = 4, 5


def world(seed, n=1_000):
    """Return texts and their right labels, one in forty of them rare."""
    random = np.random.default_rng(seed)
    texts, gold = clusters(n, RARE, 16, wrong=0.3, spread=0.3, seed=seed)
    gold = np.where((gold == 0) & (random.random(n) < 0.1), RARE, gold).astype(np.int32)
    # where the LLM gives the label, one in five or so is right
    given = random.random(n) < np.where(gold == RARE, 0.85, 0.1)
    own = np.where(given, RARE, texts.own).astype(np.int32)
    return replace(texts, own=own, n_classes=CLASSES), gold


def review(candidates, seed, m=150):
    """Return what a default review draws."""
    n, differ = len(candidates[0].labels), differing(candidates)
    random = np.random.default_rng(seed)
    found = draw(m, None, differ, np.ones(n, np.bool_), np.zeros(n), random)
    probability, floor = np.array([(d.probability, d.floor) for d in found], np.float64).T
    uniform = np.array([d.goal == "certify" for d in found], dtype=np.bool_)
    return np.array([d.row for d in found]), Draws(n, probability, floor, uniform)


def recall(labels, gold):
    return float((labels == gold)[gold == RARE].mean())


@pytest.mark.parametrize("seed", range(3))
def test_recall_that_vanishes_holds_if_the_label_is_protected(seed):
    texts, gold = world(seed)
    candidates, own = candidates_of(texts), texts.own
    rows, draws = review(candidates, seed)
    grounds = [model.ground(texts) for model in chosen_parts(candidates)[1]]
    plain = choose(texts, candidates, rows, gold[rows], draws, grounds)
    kept = choose(texts, candidates, rows, gold[rows], draws, grounds, protected=(RARE,))
    for verdict in (plain, kept):
        assert (verdict.chosen.labels == gold).mean() > (own == gold).mean() + 0.05
    assert recall(own, gold) > 0.8
    assert recall(plain.chosen.labels, gold) < 0.3
    assert recall(kept.chosen.labels, gold) >= recall(own, gold)
    assert (kept.chosen.labels[own == RARE] == RARE).all()
    # in the words of the person: half of its texts, or more, are gone
    names = [f"{label}" for label in range(CLASSES)]
    assert "4" in [label for label, *_ in fallen(names, own, plain.chosen.labels)]
    assert "4" not in [label for label, *_ in fallen(names, own, kept.chosen.labels)]


@pytest.mark.slow
def test_the_gain_that_is_proved_is_that_of_the_labels_with_protection():
    wrong = adopted = 0
    for seed in range(20):
        texts, gold = world(seed, 400)
        candidates = candidates_of(texts)
        rows, draws = review(candidates, seed, 80)
        verdict = choose(texts, candidates, rows, gold[rows], draws, protected=(RARE,))
        if verdict.probabilities is not None:
            adopted += 1
            gain = (verdict.chosen.labels == gold).mean() - (texts.own == gold).mean()
            wrong += gain < verdict.gain.low
    assert adopted > 15
    assert wrong <= 0.1 * adopted + 2


def test_later_texts_keep_what_the_llm_gives_too():
    texts, _ = world(0, 300)
    candidates = candidates_of(texts)
    vote, heads = chosen_parts(candidates)
    rule = Argmax("head", heads[1], vote, (), UNCALIBRATED, protected=(RARE, 1))
    labels = rule.apply(texts, texts.own).first()
    free = replace(rule, protected=()).apply(texts, texts.own).first()
    kept = np.isin(texts.own, (RARE, 1))
    assert (labels == np.where(kept, texts.own, free)).all()
    assert (free[kept] != texts.own[kept]).any()
    # the LLM gave these nothing: the model labels them
    assert (labels[texts.own < 0] >= 0).all()
    header, arrays = rule.packed()
    assert Argmax.unpacked(header, arrays).protected == (RARE, 1)


def test_one_judgment_that_doubles_a_label_is_named():
    before = np.repeat(np.array([0, 1, 2], np.int32), (100, 60, 20))
    after, names = before.copy(), ["meet", "marry", "arrest"]
    after[100:146] = 2
    after[:30] = 1
    rows = np.array([100, 0, 1, 2, 150, 170])
    right = np.array([2, 1, 1, 1, 1, -1], np.int32)
    # three judgments are no slip, and one that confirms changes nothing
    assert grown_by_few(names, before, after, rows, right) == (("marry", "arrest", 46, 1),)
    assert grown_by_few(names, before, before, rows, right) == ()


def test_a_label_of_which_no_judged_text_is_right_is_named():
    """A new label took 13 texts, all 3 judged ones were wrong, and nothing said so."""
    learned = SimpleNamespace(
        labels=("call", "name", "text"),
        given=np.array([0] * 13 + [1] * 20 + [2] * 3),
        rows=np.array([0, 1, 2, 3, 13, 14, 15, 33, 34, 35]),
        right=np.array([False] * 4 + [True, False, False] + [False] * 3),
        person=np.ones(10, dtype=bool),
        # one of them was skipped
        before=np.array([0, 0, 0, -1, 1, 0, 0, 0, 0, 0]),
        # of a text it is not known which of two labels was meant
        reopened=[SimpleNamespace(possible=("call", "name"))],
    )
    (said,) = _never_right(learned)
    assert "0 of 3 judged texts that would have 'call' are right, and 9 more have it" in said
    assert "`testnuc learn FILE FILE` takes" in said
    # of a label that was split only those judged to have another one are left
    learned.reopened *= 3
    assert [*_never_right(learned)] == []
    learned.reopened = []
    assert [*_never_right(learned)] == [said]
    learned.given = np.zeros(0, dtype=np.int32)
    assert [*_never_right(learned)] == []
