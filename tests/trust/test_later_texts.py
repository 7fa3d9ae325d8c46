"""Texts that came later are said to differ where they do, and hardly ever where they do not."""

from dataclasses import dataclass

import numpy as np

from testnuc._engine.labelers import about_later


@dataclass(frozen=True, eq=False)
class Taught:
    """What `about_later` reads of what was learned."""

    trust: np.ndarray
    given: np.ndarray
    labels = tuple("abcdefgh")

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
    assert sum("differ" in one for one in found) <= 5
    assert "came after the 2,000 that judged texts were drawn from, and are like them" in found[0]


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
