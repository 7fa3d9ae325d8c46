"""Nearest texts by cosine: exact for small pools, a usearch HNSW graph above.

`NearestVectors` numbers vectors by row and knows nothing of texts; the pool gives it those. It is
saved to files that others may map at the same time: what the files hold of a row never changes.
"""

from __future__ import annotations

from testnuc.index.files import DamagedIndexError, SavedIndex
from testnuc.index.nearest import EXACT_BELOW, NearestVectors

__all__ = ["EXACT_BELOW", "DamagedIndexError", "NearestVectors", "SavedIndex"]
