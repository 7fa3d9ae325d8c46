"""Classify the texts of a Ray `Dataset` on many machines (extra ``ray``).

::

    rows ─ distinct texts ─ embed ─ predict ─┐
      └───────────────────────────────────── vote ─ rows with labels

Each stage is a ``map_batches`` of Ray Data.
"""

from testnuc.ray.job import Labeled, classify_dataset
from testnuc.ray.stages import LabelByHead

__all__ = ["LabelByHead", "Labeled", "classify_dataset"]
