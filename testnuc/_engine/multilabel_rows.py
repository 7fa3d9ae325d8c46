"""The results of a run whose texts have several labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testnuc._engine.multilabel import MultilabelNeighborhoods
from testnuc._engine.rows import Rows
from testnuc.types import MultilabelPrediction, own_labels

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from testnuc._engine.neighborhoods import Neighborhoods

__all__ = ["MultilabelRows", "rows_of"]


class MultilabelRows(Rows):
    """The classifications of input texts, each created on access; see `Rows`."""

    def label_lists(self) -> list[list[str] | None]:
        """Return the labels of each text, without creating the records."""
        distinct = self._distinct()
        return [distinct[place] for place in self._places.tolist()]

    def labels(self) -> list[str | None]:
        """Return the labels of each text in one string."""
        joined = self._neighborhoods.labels.joined
        return [None if labels is None else joined(labels) for labels in self.label_lists()]

    def outside(self) -> list[int]:
        """Return the positions of the texts whose answer holds a label outside the set."""
        own = self._neighborhoods.predictions[: self._neighborhoods.n_own]
        outside = {
            at for at, p in enumerate(own) if isinstance(p, MultilabelPrediction) and p.outside
        }
        return [at for at, place in enumerate(self._places.tolist()) if place in outside]

    def changed(self) -> int:
        """Return the number of texts whose labels differ from their own prediction."""
        own = self._neighborhoods.predictions
        other = [
            labels is not None
            and (said := own[place]) is not None
            and said.label is not None
            and set(labels) != set(own_labels(said))
            for place, labels in enumerate(self._distinct())
        ]
        return sum(other[place] for place in self._places.tolist())

    def _distinct(self) -> list[list[str] | None]:
        """Return the labels of each own text."""
        neighborhoods = self._neighborhoods
        assert isinstance(neighborhoods, MultilabelNeighborhoods)
        voted, names = neighborhoods.voted(slice(0, neighborhoods.n_own)), neighborhoods.labels
        starts, given = voted.starts.tolist(), voted.given.tolist()
        labels = [names.names[c] for c in voted.labels.tolist()]
        return [
            None if label < 0 else [labels[at] for at in range(first, last) if given[at]]
            for label, first, last in zip(
                self._result.label.tolist(), starts, starts[1:], strict=False
            )
        ]


def rows_of(neighborhoods: Neighborhoods, texts: Sequence[str], places: NDArray[np.int64]) -> Rows:
    """Return the classifications of input texts."""
    several = isinstance(neighborhoods, MultilabelNeighborhoods)
    return (MultilabelRows if several else Rows)(neighborhoods, texts, places)
