"""Labels of texts, from what was learned.

The chance that a parent of a label in a tree is right is the chance of the label, and of what is
left the part that a model gives the other labels below the parent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from testnuc._base.display import brief

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from testnuc.label_tree import LabelTree

__all__ = ["Applied", "joined", "parts_by_level", "second", "shown_shares", "trust_of_level"]

#: Smaller shares of a label are not shown.
_LEAST_SHARE = 0.01
_TINY, _TINY_REST = 1e-4, 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """Labels of b texts, from a `Learned`."""

    __repr__ = brief

    #: int32[b]; -1 = none.
    label: NDArray[np.int32]
    #: float64[b].
    trust: NDArray[np.float64]
    #: float32[b, C]: what speaks for each label, rows sum to 1; None: the votes.
    shares: NDArray[np.float32] | None = None
    #: int32[b]: the label that is trusted most, except `label`; -1 = none.
    other: NDArray[np.int32] | None = None
    #: float64[b]: its part of what speaks for all labels except `label`.
    part: NDArray[np.float64] | None = None
    #: float32[b, depth - 1], of labels in a tree: what speaks for the other labels below each
    #: parent of `label`, as a part of what speaks for all labels except `label`.
    levels: NDArray[np.float32] | None = None
    #: bool[b]: whether a judgment gave the label.
    judged: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "judged", np.zeros(len(self.label), dtype=np.bool_))

    def alternative(self, row: int) -> tuple[int, float] | None:
        """Return the other label of a text, and the chance that it is right; None: unknown."""
        if self.other is None or self.part is None or self.other[row] < 0:
            return None
        # of what is left: both together are at most 1
        trust = (1 - float(self.trust[row])) * float(self.part[row])
        return (int(self.other[row]), trust) if trust > 0 else None


def joined(parts: Sequence[Applied]) -> Applied:
    """Return the labels of all texts, without shares."""
    levels = [part.levels for part in parts if part.levels is not None]
    return Applied(
        np.concatenate([part.label for part in parts]),
        np.concatenate([part.trust for part in parts]),
        None,
        np.concatenate([part.other for part in parts if part.other is not None]),
        np.concatenate([part.part for part in parts if part.part is not None]),
        np.concatenate(levels) if levels else None,
    )


def second(
    found: NDArray[np.float32], label: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Return the most probable other label, and its part of the probability of all others."""
    at = np.flatnonzero(label >= 0)
    given = found[at, label[at]].copy()
    found[at, label[at]] = 0
    other = found.argmax(axis=1).astype(np.int32)
    rest = found.sum(axis=1, dtype=np.float64)
    part = found[np.arange(len(found)), other] / np.maximum(rest, _TINY)
    found[at, label[at]] = given
    return np.where(rest > 0, other, -1).astype(np.int32), part


def shown_shares(found: NDArray[np.float32], label: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return the shares that are shown: none is larger than that of the kept label."""
    shown = found.copy()
    at = np.arange(len(label))
    # an LLM's own label that was kept out of care
    shown[at, label] = np.maximum(shown[at, label], shown.max(axis=1))
    shown[shown < _LEAST_SHARE] = 0
    result: NDArray[np.float32] = shown / shown.sum(axis=1, keepdims=True)
    return result


def parts_by_level(
    found: NDArray[np.float32], label: NDArray[np.int32], tree: LabelTree | None
) -> NDArray[np.float32] | None:
    """Return what the other labels below each parent of a label are given, float32[b, depth - 1].

    Parts of what a model, whose probabilities are float32[b, C], gives all labels except the text's
    own. None: labels are not in a tree.
    """
    if tree is None:
        return None
    made = np.zeros((len(found), tree.depth - 1), dtype=np.float32)
    at = np.flatnonzero(label >= 0)
    given = label[at]
    own = found[at, given].astype(np.float64)
    rest = np.maximum(found[at].sum(axis=1, dtype=np.float64) - own, _TINY_REST)
    for level in range(1, tree.depth):
        nodes = tree.nodes(level)
        order = np.argsort(nodes, kind="stable")
        starts = np.flatnonzero(np.diff(nodes[order], prepend=-1))
        mass = np.add.reduceat(found[at][:, order], starts, axis=1, dtype=np.float64)
        below = mass[np.arange(len(at)), nodes[given]] - own
        made[at, level - 1] = np.clip(below / rest, 0, 1)
    return made


def trust_of_level(
    trust: NDArray[np.float64] | np.float64, part: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Return the chance that a parent is right, from that of the label and its siblings' part."""
    made: NDArray[np.float64] = np.asarray(trust + (1 - trust) * part, dtype=np.float64)
    return made
