"""The levels of a label in a tree: path, shares and trusts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from testnuc._engine.neighborhoods import LEAST_VOTERS
from testnuc.trust.levels import trust_of_level

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from testnuc._engine.neighborhoods import Neighborhoods

__all__ = ["levels_of"]


def levels_of(
    neighborhoods: Neighborhoods,
    place: int,
    winner: int,
    weights: NDArray[np.float64],
    trust: float | None,
    basis: tuple[NDArray[np.float64], int],
) -> dict[str, Any]:
    """Return the fields of a `TreeClassification` besides those of its label.

    `winner` is the label before it is withheld, -1 = none; `weights`, float64[C], those of its
    votes; `basis` the votes that trust rests on, from `Neighborhoods.basis`.
    """
    tree, least = neighborhoods.labels.tree, neighborhoods.settings.min_trust
    if tree is None or winner < 0:
        return {}
    path = tree.paths[winner]
    shares = [_share(weights, tree.nodes(level), winner) for level in range(1, len(path) + 1)]
    trusts = [
        _trust(neighborhoods, place, winner, level, trust, basis) for level in range(1, len(path))
    ]
    trusts.append(trust)
    if least is not None and trust is not None and trust < least:
        kept = sum(one is not None and one >= least for one in trusts)
        path, shares, trusts = path[:kept], shares[:kept], trusts[:kept]
    return {"path": path, "path_shares": tuple(shares), "path_trusts": tuple(trusts)}


def _share(weights: NDArray[np.float64], nodes: NDArray[np.int32], winner: int) -> float:
    total = float(weights.sum())
    return float(weights[nodes == nodes[winner]].sum()) / total if total else 0.0


def _trust(
    neighborhoods: Neighborhoods,
    place: int,
    winner: int,
    level: int,
    trust: float | None,
    basis: tuple[NDArray[np.float64], int],
) -> float | None:
    """Return the trust of a level above the label."""
    applied = neighborhoods.applied
    if trust is None or place in neighborhoods.judges or neighborhoods.is_spared(place):
        # where only the label was weighed, the levels above are trusted as it is, at least
        return trust
    tree = neighborhoods.labels.tree
    assert tree is not None
    if applied is not None:
        if applied.levels is None:
            return trust
        return float(trust_of_level(np.float64(trust), applied.levels[place, level - 1]))
    weights, voters = basis
    return _share(weights, tree.nodes(level), winner) if voters >= LEAST_VOTERS else None
