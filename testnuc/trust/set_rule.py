"""Labels and trust from a head's probabilities, where a text can have several labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from testnuc.trust.calibration import chance_of, fit_line, log_odds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

#: Labels that are less probable do not count in the chance that a label applies.
_LEAST = 0.02
_GRID = np.arange(0.05, 0.951, 0.05)


@dataclass(frozen=True, slots=True)
class SetRule:
    """How a head gives several labels, and how far they are trusted.

    A label is given above one threshold. The chance that a label applies follows from its
    probability by a line of log odds; that all labels of a text are right follows likewise from the
    product of the former.
    """

    threshold: float
    #: Start and slope of each line.
    of_label: tuple[float, float]
    of_text: tuple[float, float]

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> SetRule:
        """Return the rule of a record that `dataclasses.asdict` made."""
        label, text = ([float(x) for x in record[name]] for name in ("of_label", "of_text"))
        return cls(float(record["threshold"]), (label[0], label[1]), (text[0], text[1]))

    def apply(
        self, probabilities: NDArray[np.float32]
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32], NDArray[np.float32]]:
        """Label n texts, by the probability float32[n, C] of each label alone.

        Returns the labels given, bool[n, C], the chance that each applies, and the trust of each
        text.
        """
        given = probabilities > np.float32(self.threshold)
        chances = chance_of(log_odds(probabilities), self.of_label)
        trust = chance_of(_text_odds(given, chances), self.of_text)
        return given, chances.astype(np.float32), trust.astype(np.float32)


def fit_set_rule(
    probabilities: NDArray[np.float32],
    taught: NDArray[np.bool_],
    judged: tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.floating]] | None = None,
) -> SetRule:
    """Fit a rule.

    The threshold and the chance of a label are fitted on the labels that the head was taught, so
    that judged texts, of which a certificate is made, do not choose which texts come first.

    Parameters
    ----------
    probabilities : float32[n, C]
        Each predicted by a head that was fitted without the text.
    taught : bool[n, C]
    judged : (int64[m], bool[m, C], float[m]), optional
        Judged texts, their right labels and weights: trust is calibrated on them.
    """
    sizes = taught.sum(axis=1)

    def jaccard(threshold: float) -> float:
        given = probabilities > threshold
        both, either = (given & taught).sum(axis=1), (given | taught).sum(axis=1)
        found = np.where(either > 0, both / np.maximum(either, 1), 1.0)
        return float(found.mean()) if len(sizes) else 0.0

    threshold = max(_GRID.tolist(), key=jaccard)
    given = probabilities > np.float32(threshold)
    likely = probabilities >= _LEAST
    of_label = fit_line(log_odds(probabilities[likely]), taught[likely], np.ones(int(likely.sum())))
    chances = chance_of(log_odds(probabilities), of_label)
    odds = _text_odds(given, chances)
    rows, right, weights = judged or (np.arange(len(taught)), taught, np.ones(len(taught)))
    exact = (given[rows] == right).all(axis=1)
    return SetRule(threshold, of_label, fit_line(odds[rows], exact, weights))


def _text_odds(given: NDArray[np.bool_], chances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the log odds that all labels are right, were they independent, float64[n]."""
    return log_odds(np.exp(np.log(np.where(given, chances, 1 - chances)).sum(axis=1)))
