"""Texts that came later are said to differ where they do, and hardly ever where they do not."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from testnuc._engine.labelers import about_later
from testnuc.trust.argmax import Argmax
from testnuc.trust.calibration import fit_trust
from testnuc.trust.candidates import candidates_of, choose, chosen_parts, default_model
from testnuc.trust.evidence import Draws
from tests.trust.arrays import among, clusters


@dataclass(frozen=True, eq=False)
class Taught:
    """What `about_later` reads of what was learned."""

    trust: np.ndarray
    given: np.ndarray
    labels: tuple[str, ...] = tuple("abcdefgh")

    @property
    def texts(self):
        return len(self.trust)


def drawn(random, n, shares=(0.3, 0.2, 0.2, 0.1, 0.1, 0.05, 0.05), harder=1.0):
    label = random.choice(len(shares), n, p=shares).astype(np.int32)
    return random.beta(4, harder, n).astype(np.float32), label


def said(random, n, **changes):
    trust, label = drawn(random, n, **changes)
    learned = Taught(*drawn(random, 2_000))
    return about_later(learned, np.ones(n, bool), trust.astype(np.float64), label)


def test_alike_texts_are_seldom_said_to_differ():
    random = np.random.default_rng(0)
    found = [said(random, n) for n in (30, 100, 1_000) for _ in range(200)]
    # a chance of .002 each
    assert sum("and differ" in one for one in found) <= 5
    assert "came after the 2,000 that judged texts were drawn from; trust and labels" in found[0]
    # nor is it said that their labels are right
    assert "do not show that they differ" in found[0]
    assert found[0].endswith("only judged texts say how many labels are right")


def test_lower_trust_and_other_labels_are_said_in_numbers():
    random = np.random.default_rng(1)
    text = said(random, 400, harder=3.0)
    assert "400 texts came after the 2,000" in text
    assert "and differ: trust 0.5" in text
    assert "(0.80 before), below 0.5 for" in text
    assert "another label" not in text
    text = said(random, 400, shares=(0.05, 0.2, 0.2, 0.1, 0.1, 0.05, 0.3))
    assert "would need another label to have the former shares, mostly 'a' (" in text


def test_few_later_texts_and_unknown_trust_say_nothing():
    random = np.random.default_rng(2)
    assert said(random, 29) is None
    learned, (trust, label) = Taught(*drawn(random, 500)), drawn(random, 100)
    here = np.ones(100, bool)
    assert about_later(learned, here, np.full(100, np.nan), label) is None
    assert about_later(learned, ~here, trust.astype(np.float64), label) is None


def said_of_a_fit(seed, n=600, later=1_000, classes=60, harder=1.0):
    """Learn from some texts, label later ones, and return what is said of these.

    The first texts were labeled by models that were fitted on them, so their trust is a little
    higher: to each label there are few texts, in many dimensions. `harder`: how much further from
    the middle of their label later ones are.
    """
    every, gold = clusters(n + later, classes, 384, wrong=0.5, spread=0.2, seed=seed)
    away = np.where(np.arange(n + later) < n, 1.0, harder)
    middles = np.array([every.vectors[gold == label].mean(0) for label in range(classes)])
    vectors = middles[gold] + away[:, None] * (every.vectors - middles[gold])
    every = replace(every, vectors=vectors.astype(np.float16))
    first, rows = among(every, np.arange(n)), np.arange(60)
    draws, candidates = Draws.at_random(n, 60), candidates_of(first)
    verdict = choose(first, candidates, rows, gold[rows], draws)
    found, label, model = verdict.probabilities, verdict.chosen.labels, verdict.chosen.model
    known = first.with_judged(rows, gold[rows])
    if found is None:
        model = default_model(candidates)
        found = model.probabilities(known)
    right = label[rows] == gold[rows]
    line, trust = fit_trust(known, found, label, rows, right, draws.probability)
    vote, heads = chosen_parts(candidates)
    rule = Argmax(
        "settings" if verdict.probabilities is None else "head",
        model,
        vote,
        () if verdict.everywhere else heads,
        line,
    )
    # the later ones first, whose neighbors are among all
    order = np.concatenate([np.arange(n, n + later), np.arange(n)])
    new = among(every, order, later).with_judged(later + rows, gold[rows])
    labels = rule.apply(new, new.own[:later])
    learned = Taught(trust.astype(np.float32), label, tuple(map(str, range(classes))))
    return about_later(learned, np.ones(later, bool), labels.trust, labels.first())


@pytest.mark.slow
def test_texts_that_a_model_was_fitted_on_are_no_false_alarm():
    """Their trust was compared with that of others, which is lower by up to .07."""
    found = [said_of_a_fit(seed) for seed in range(8)]
    # a tenth at most: more than two of eight would come by chance in one of 25
    assert sum("and differ" in one for one in found) <= 1, found
    shifted = [said_of_a_fit(seed, harder=1.6) for seed in range(3)]
    assert all("and differ" in one for one in shifted), shifted


def test_later_texts_that_fit_no_label_lower_the_gain():
    """The gain of all was that of the first ones, and more than the accuracies differed by."""
    held = 0
    for seed in range(6):
        texts, gold = clusters(700, 5, 16, wrong=0.4, spread=0.1, seed=seed)
        random, candidates = np.random.default_rng(seed), candidates_of(texts)
        # these are of a topic that no label has
        gold[random.permutation(np.arange(500, 700))[:150]] = -1
        rows = np.append(random.permutation(500)[:100], 500 + random.permutation(200)[:40])
        chance = np.where(rows < 500, 1 / 500, np.nan)
        draws = Draws(700, chance, chance, np.ones(len(rows), np.bool_))
        of = texts, candidates, rows, gold[rows], draws
        alone, both = choose(*of, ends=(0, 500)), choose(*of, ends=(500, 700))
        true = [
            np.mean((one.chosen.labels == gold)[:n]) - np.mean((texts.own == gold)[:n])
            for one, n in ((alone, 500), (both, 700))
        ]
        assert both.gain.high < alone.gain.value
        held += all(
            v.gain.low <= t <= v.gain.high for v, t in zip((alone, both), true, strict=True)
        )
    # each bound with 90 % confidence
    assert held >= 4
