"""The texts of a run and their neighbors, of one snapshot of the pool; and the LLM's answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from testnuc._base.arrays import Float16s, Float32s, Int32s, Int64s
from testnuc.errors import ConfigurationError, EmbeddingError, ProviderError, StoreError
from testnuc.labels import LabelSet
from testnuc.protocols import PoolText
from testnuc.types import Prediction
from testnuc.voting import Labels

#: Errors that end a run; what was answered before is handed over.
FATAL_ERRORS = (ProviderError, StoreError, EmbeddingError, ConfigurationError)


@dataclass(slots=True, eq=False)
class Snapshot:
    """The pool as of one moment, and the data for few-shot examples from it."""

    #: Version of the pool, as returned by `Index.add`.
    upto: int
    #: Vectors of the own texts if they do not join the pool, by hash.
    vectors: dict[bytes, Float16s] = field(default_factory=dict)
    #: Hashes of the texts that may be predicted to label an example; None: all.
    askable: frozenset[bytes] | None = None
    #: Labels shown with examples, by hash; None: shown without a label.
    labels: dict[bytes, str | None] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class TextBatch:
    """Distinct texts by place: first the `n_own` texts to label, then their other neighbors.

    Never written again.
    """

    labels: LabelSet
    #: The text at each place.
    entries: Sequence[PoolText]
    n_own: int
    #: int64[n_own, K], places of the neighbors of each, most similar first; padded with -1.
    neighbors: Int64s
    #: float32[n_own, K].
    similarities: Float32s
    #: Of a method with few-shot examples.
    snapshot: Snapshot | None = None
    #: Errors of own texts that the embedder rejected: they have no neighbors.
    rejected: Mapping[int, Exception] = field(default_factory=dict)
    #: The labels that the prompt of each own text shows, int32[n_own, length]; None: all.
    shortlists: Int32s | None = None

    @property
    def own(self) -> Sequence[PoolText]:
        """The texts to label."""
        return self.entries[: self.n_own]


class Answers:
    """Predictions and errors for the texts of a batch, by place; they only grow.

    `before`: the answers for the same own texts in a batch without neighbors.
    """

    def __init__(self, batch: TextBatch, before: Self | None = None) -> None:
        self._batch = batch
        n = len(batch.entries)
        self.predictions: list[Prediction | None] = [None] * n
        self.errors: dict[int, Exception] = {}
        #: Place -> sample -> outcome, of texts that lack some samples.
        self.partial: dict[int, dict[int, Prediction | Exception]] = {}
        #: int32[n], -1 = none; of several labels, unused.
        self.label = np.full(n, -1, dtype=np.int32)
        #: float32[n], NaN = unknown.
        self.confidence = np.full(n, np.nan, dtype=np.float32)
        #: The same as labels; None: answers came since.
        self._labels: Labels | None = None
        #: Others may have given the label of a text that was answered, since.
        self._answered = before is not None and before.any_own
        if before is not None:
            self.predictions[: batch.n_own] = before.predictions
            self.errors, self.partial = before.errors, before.partial
            self.label[: batch.n_own] = before.label
            self.confidence[: batch.n_own] = before.confidence
        for place, entry in enumerate(batch.entries):
            if entry.label is not None:
                self.put(place, Prediction(entry.label, 1.0))

    def put(self, place: int, outcome: Prediction | Exception) -> None:
        """Set the prediction or the error of the text at a place."""
        if isinstance(outcome, Exception):
            self.errors[place] = outcome
            return
        labels = self._batch.labels
        outcome = labels.restored(outcome)
        self.predictions[place], self._labels = outcome, None
        if outcome.label is not None:
            index = labels.index(outcome.label)
            self.label[place] = -1 if index is None else index
        if outcome.confidence is not None:
            self.confidence[place] = outcome.confidence

    def has_outcome(self, place: int) -> bool:
        """Whether the text at a place has an outcome."""
        return self.predictions[place] is not None or place in self.errors

    @property
    def any_own(self) -> bool:
        """Whether the LLM answered, now or before, for any of the own texts."""
        if self._answered:
            return True
        own = zip(self.predictions, self._batch.own, strict=False)
        return any(answer is not None and entry.label is None for answer, entry in own)

    def labels(self) -> Labels:
        """Return the labels at each place."""
        if self._labels is None:
            self._labels = Labels.of([self._listed(p) for p in self.predictions])
        return self._labels

    def _listed(self, prediction: Prediction | None) -> list[tuple[int, float | None]] | None:
        if prediction is None or prediction.label is None:
            return None
        places = map(self._batch.labels.index, prediction.labels)
        pairs = zip(places, prediction.confidences, strict=True)
        return [(place, confidence) for place, confidence in pairs if place is not None]
