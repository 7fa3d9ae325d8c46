"""The LLM's answers for the texts of a batch, by place; they only grow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from testnuc.types import MultilabelPrediction, Prediction
from testnuc.voting import Labels

if TYPE_CHECKING:
    from testnuc._engine.batch import TextBatch


class Answers:
    """Predictions and errors, by place."""

    def __init__(self, batch: TextBatch) -> None:
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
        for place, entry in enumerate(batch.entries):
            if entry.label is not None:
                self.put(place, Prediction(entry.label, 1.0))

    def put(self, place: int, outcome: Prediction | Exception) -> None:
        """Set the prediction or the error of the text at a place."""
        if isinstance(outcome, Exception):
            self.errors[place] = outcome
            return
        labels = self._batch.labels
        if labels.multilabel:
            outcome = labels.several(outcome)
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
        own = zip(self.predictions[: self._batch.n_own], self._batch.entries, strict=False)
        return any(answer is not None and entry.label is None for answer, entry in own)

    def labels(self) -> Labels:
        """Return the labels at each place."""
        if self._labels is None:
            if self._batch.labels.multilabel:
                self._labels = Labels.of([self._listed(p) for p in self.predictions])
            else:
                self._labels = Labels.single(self.label, self.confidence)
        return self._labels

    def _listed(self, prediction: Prediction | None) -> list[tuple[int, float | None]] | None:
        if not isinstance(prediction, MultilabelPrediction) or prediction.label is None:
            return None
        return [
            (place, confidence)
            for place, confidence in zip(
                map(self._batch.labels.index, prediction.labels),
                prediction.confidences,
                strict=True,
            )
            if place is not None
        ]
