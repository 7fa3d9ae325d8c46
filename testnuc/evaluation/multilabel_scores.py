"""F1, Jaccard index and exact match of texts with several labels."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testnuc.errors import InvalidInputError
from testnuc.evaluation.scores import ClassScore

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["MultilabelScores", "score_multilabel"]


@dataclass(frozen=True, slots=True)
class MultilabelScores:
    """Scores of predicted labels against gold labels, where a text has several labels or none."""

    texts: int
    #: Texts whose labels are unknown: no label in F1, an error in `exact_match` and `jaccard`.
    unlabeled: int
    #: F1 over all pairs of text and label.
    micro_f1: float
    #: Mean F1 over all labels that occur as gold or predicted label.
    macro_f1: float
    #: Mean of common labels over all labels of a text; 1 if it has none and gets none.
    jaccard: float
    #: Part of the texts that get exactly their labels.
    exact_match: float
    #: Sorted by label.
    per_class: tuple[ClassScore, ...]


def score_multilabel(
    gold: Sequence[Collection[str]], given: Sequence[Collection[str] | None]
) -> MultilabelScores:
    """Score predicted labels against gold labels.

    Parameters
    ----------
    gold : sequence of collections of str
        Gold labels of each text; empty: it has none.
    given : sequence of collections of str, or None
        Predicted labels of the same texts; None: unknown.

    Raises
    ------
    InvalidInputError
        The sequences are empty or differ in length.

    Examples
    --------
    >>> scores = score_multilabel([["a", "b"], []], [["a"], []])
    >>> round(scores.micro_f1, 3), scores.jaccard, scores.exact_match
    (0.667, 0.75, 0.5)
    """
    if not gold or len(gold) != len(given):
        raise InvalidInputError(
            f"gold has {len(gold)} texts, and {len(given)} have predicted labels; give as many, "
            "at least one"
        )
    support, count, hits = Counter[str](), Counter[str](), Counter[str]()
    jaccard = exact = 0.0
    for right, said in zip(map(set, gold), given, strict=True):
        found = set() if said is None else set(said)
        support.update(right)
        count.update(found)
        hits.update(right & found)
        if said is not None:
            jaccard += len(right & found) / len(right | found) if right | found else 1.0
            exact += right == found
    per_class = tuple(
        ClassScore(
            name,
            hits[name] / count[name] if count[name] else 0.0,
            hits[name] / support[name] if support[name] else 0.0,
            2 * hits[name] / (support[name] + count[name]),
            support[name],
        )
        for name in sorted(support.keys() | count.keys())
    )
    pairs = support.total() + count.total()
    return MultilabelScores(
        texts=len(gold),
        unlabeled=sum(said is None for said in given),
        micro_f1=2 * hits.total() / pairs if pairs else 0.0,
        macro_f1=sum(of.f1 for of in per_class) / max(len(per_class), 1),
        jaccard=jaccard / len(gold),
        exact_match=exact / len(gold),
        per_class=per_class,
    )
