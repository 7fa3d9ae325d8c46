"""A model that is no better than the LLM is seldom proved to be: whole choices, simulated.

Values of judged texts come from fits that do not know them, but do know the others, so that the
proof of the bets does not cover them strictly; and the model is fitted anew at each look.
"""

import numpy as np
import pytest

from testnuc.trust.candidates import candidates_of, choose, chosen_parts, differing
from testnuc.trust.evidence import Draws
from testnuc.trust.model import teach
from testnuc.trust.review import draw
from tests.trust.arrays import clusters, sides

#: World -> classes, spread of the embeddings, and how often the LLM is wrong.
WORLDS = {
    # the embedding says nothing: a model equals the LLM at best
    "noise": (3, 9.0, 0.3),
    # it says little, and the LLM is good
    "strong": (4, 0.9, 0.1),
    # two labels, and the LLM tosses a coin in each second text
    "coin": (2, 9.0, 0.5),
    # labels are random
    "random": (4, 0.4, 0.3),
}
LOOKS = (30, 60, 90)


def world(kind, seed, n=300):
    """Return the right labels, the candidates, and how to choose among them."""
    classes, spread, wrong = WORLDS[kind]
    texts, gold = clusters(n, classes, 8, wrong=wrong, spread=spread, seed=seed)
    if kind == "random":
        gold = np.random.default_rng(seed).permutation(gold)
    candidates = candidates_of(texts)
    grounds = [model.ground(texts) for model in chosen_parts(candidates)[1]]
    return texts, gold, candidates, grounds


def harms(kind, seed, draws, goals=(None, "certify"), looks=LOOKS):
    """Draw reviews of goals in turn; return how often a model is adopted, and is worse."""
    texts, gold, candidates, grounds = world(kind, seed)
    n, differ, own = len(gold), differing(candidates), texts.own
    adopted = harmful = 0
    for number in range(draws):
        random = np.random.default_rng([seed, number])
        goal = goals[number % len(goals)]
        found = draw(looks[-1], goal, differ, np.ones(n, np.bool_), np.zeros(n), random)
        rows = np.array([d.row for d in found], dtype=np.int64)
        probability, floor = np.array([(d.probability, d.floor) for d in found], np.float64).T
        drawn = Draws(n, probability, floor, np.array([d.goal == "certify" for d in found]))
        for m in looks:
            part = drawn.only(np.arange(len(rows)) < m)
            verdict = choose(texts, candidates, rows[:m], gold[rows[:m]], part, grounds)
            if verdict.probabilities is None:
                continue
            # one stops at the first proof
            rest = np.ones(n, dtype=np.bool_)
            rest[rows[:m]] = False
            adopted += 1
            labels = verdict.chosen.labels
            harmful += (labels == gold)[rest].sum() < (own == gold)[rest].sum()
            break
    return adopted, harmful


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORLDS)
def test_a_model_that_is_no_better_is_seldom_adopted(kind):
    _, harmful = harms(kind, 0, 12)
    # at a tenth, more than 4 of 12 come by chance in 1 of 200; at a half, in 4 of 5
    assert harmful <= 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORLDS)
def test_judged_disagreements_alone_seldom_prove_a_model_that_is_no_better(kind):
    _, harmful = harms(kind, 1, 12, ["decide"])
    assert harmful <= 4


@pytest.mark.slow
def test_disagreements_alone_keep_what_a_model_says_of_the_texts_that_nobody_disputes(monkeypatch):
    """It changes fewer of their labels then, so that it is more often proved for all texts."""
    gains = {False: [], True: []}
    for seed in (0, 2, 4):
        texts, gold = sides(seed)
        candidates = candidates_of(texts)
        grounds = [model.ground(texts) for model in chosen_parts(candidates)[1]]
        among = np.flatnonzero(differing(candidates))
        for number in range(4):
            rows = np.random.default_rng([seed, number]).permutation(among)[:20]
            draws = Draws.at_random(len(gold), len(rows), len(among))
            for as_all, found in gains.items():
                # as if they were drawn from all texts
                using = {"everywhere": True} if as_all else {}
                monkeypatch.setattr(
                    "testnuc.trust.candidates.teach",
                    lambda *args, using=using, **named: teach(*args, **named | using),
                )
                verdict = choose(texts, candidates, rows, gold[rows], draws, grounds)
                found.append(np.mean(verdict.chosen.labels == gold) - np.mean(texts.own == gold))
    assert min(gains[False]) >= 0
    assert np.mean(gains[False]) > np.mean(gains[True]) + 0.01
