"""Many machines: classify the texts of a Ray `Dataset` (extra ``ray``).

::

    rows ─ distinct texts ─ embed ─ predict ─ index ─┐
      └───────────────────────────────────────────── vote ─ rows with labels

Each stage is a ``map_batches`` of Ray Data. `limits` holds what all workers share, in one named
actor, and `line` is how they reach it; `shards` holds the pool, in actors that are searched
together; `clients` are what asks and what votes; `stages` is what Ray runs, and `job` puts it
together.
"""

from __future__ import annotations

from testnuc.ray.job import Labeled, classify_dataset

__all__ = ["Labeled", "classify_dataset"]
