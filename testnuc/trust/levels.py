"""The levels of a tree of labels: the chance that a parent of a label is right.

It is the chance of the label, and of what is left the part that a model gives the other labels
below the parent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from testnuc.label_tree import LabelTree

__all__ = ["parts_by_level", "trust_of_level"]

_TINY = 1e-6


def parts_by_level(
    found: NDArray[np.float32], label: NDArray[np.int32], tree: LabelTree | None
) -> NDArray[np.float32] | None:
    """Return what the other labels below each parent of a label are given, float32[b, depth - 1].

    Parts of what is given to all labels except the text's own. None: labels are not in a tree.

    Parameters
    ----------
    found : float32[b, C]
        Probabilities of a model.
    label : int32[b]
        -1 = none.
    tree : LabelTree, optional
    """
    if tree is None:
        return None
    made = np.zeros((len(found), tree.depth - 1), dtype=np.float32)
    at = np.flatnonzero(label >= 0)
    given = label[at]
    own = found[at, given].astype(np.float64)
    rest = np.maximum(found[at].sum(axis=1, dtype=np.float64) - own, _TINY)
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
