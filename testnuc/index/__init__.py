"""Nearest-neighbor search by cosine: exact for small pools, a usearch HNSW graph for larger ones.

`NearestVectors` indexes vectors by row number; pools map rows to texts. The file of a saved graph
can be mapped by several processes at the same time, because it never changes.
"""

from testnuc.index.graph import DamagedIndexError, Graph, SavedGraph
from testnuc.index.matching import (
    SCORE_SLACK,
    FilteredIndex,
    Where,
    check_dim,
    empty_matches,
    ranks_of,
    scanned,
)
from testnuc.index.nearest import EXACT_BELOW, NearestVectors

__all__ = [
    "EXACT_BELOW",
    "SCORE_SLACK",
    "DamagedIndexError",
    "FilteredIndex",
    "Graph",
    "NearestVectors",
    "SavedGraph",
    "Where",
    "check_dim",
    "empty_matches",
    "ranks_of",
    "scanned",
]
