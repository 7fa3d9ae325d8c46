"""The texts of a run and their neighbors, of one snapshot of the pool; never written again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from testnuc.labels import LabelSet
    from testnuc.protocols import PoolText


@dataclass(slots=True, eq=False)
class Snapshot:
    """The pool as of one moment, and the data for few-shot examples from it."""

    #: Version of the pool, as returned by `Index.add`.
    upto: int
    #: Vectors of the own texts if they do not join the pool, by hash.
    vectors: dict[bytes, NDArray[np.float16]] = field(default_factory=dict)
    #: Hashes of the texts that may be predicted to label an example; None: all.
    askable: frozenset[bytes] | None = None
    #: Labels shown with examples, by hash; None: shown without a label.
    labels: dict[bytes, str | None] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class TextBatch:
    """Distinct texts by place: first the `n_own` texts to label, then their other neighbors."""

    labels: LabelSet
    #: The text at each place.
    entries: Sequence[PoolText]
    n_own: int
    #: int64[n_own, K], places of the neighbors of each, most similar first; padded with -1.
    neighbors: NDArray[np.int64]
    #: float32[n_own, K].
    similarities: NDArray[np.float32]
    #: Of a method with few-shot examples.
    snapshot: Snapshot | None = None
    #: Errors of own texts that the embedder rejected: they have no neighbors.
    rejected: Mapping[int, Exception] = field(default_factory=dict)
    #: The labels that the prompt of each own text shows, int32[n_own, length]; None: all.
    shortlists: NDArray[np.int32] | None = None

    def hashes(self) -> list[bytes]:
        """Return the hashes of the own texts."""
        return [entry.hash for entry in self.entries[: self.n_own]]
