"""Classify the texts of a Ray `Dataset` on many machines (extra ``ray``).

::

    rows ─ distinct texts ─ embed ─ predict ─ index ─┐
      └───────────────────────────────────────────── vote ─ rows with labels

Each stage is a ``map_batches`` of Ray Data. `limits_actor` has the limits that all workers share,
and `limits_client` calls it; `shards` has the pool, in actors that are searched together; `workers`
predict and vote; `stages` are run by Ray; `job` puts them together.
"""

from __future__ import annotations

from testnuc.ray.job import Labeled, classify_dataset
from testnuc.ray.stages import LabelByHead

__all__ = ["LabelByHead", "Labeled", "classify_dataset"]
