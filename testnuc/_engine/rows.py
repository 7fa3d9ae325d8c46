"""Classifications, created from neighborhoods on access."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from testnuc._engine.multilabel import MultilabelNeighborhoods
from testnuc._engine.neighborhoods import LEAST_VOTERS
from testnuc.trust.applied import trust_of_level
from testnuc.types import (
    Classification,
    MultilabelClassification,
    Reason,
    TreeClassification,
    is_outside,
    own_labels,
)
from testnuc.voting import places_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from testnuc._engine.neighborhoods import Neighborhoods
    from testnuc.types import Neighbor

__all__ = ["MultilabelRows", "Rows", "classification", "rows_of"]

#: Fewest neighbors in a result, even if fewer vote.
_SHOWN = 10


class Rows(Sequence[Classification]):
    """The classifications of input texts, each created on access.

    `texts` is the input, including duplicates; `places`, int64[len(texts)], the place of each.
    """

    def __init__(
        self, neighborhoods: Neighborhoods, texts: Sequence[str], places: NDArray[np.int64]
    ) -> None:
        self._neighborhoods = neighborhoods
        self._texts = texts
        self._places = places
        neighborhoods.balance()
        self._result = neighborhoods.vote(slice(0, neighborhoods.n_own))

    def __len__(self) -> int:
        return len(self._texts)

    def labels(self) -> list[str | None]:
        """Return the label of each text, without creating the records."""
        if self._neighborhoods.settings.min_trust is not None:
            # whether a label is withheld depends on the whole record
            return [row.label for row in self]
        names = (*self._neighborhoods.labels.names, None)
        # index -1, the winner of a vote without voters, is None
        return [names[winner] for winner in self._result.label[self._places].tolist()]

    def label_lists(self) -> list[list[str] | None]:
        """Return the labels of each text in a list, without creating the records."""
        return [None if label is None else [label] for label in self.labels()]

    def failed(self) -> list[int]:
        """Return the positions of the texts with an error."""
        errors = self._neighborhoods.errors.keys() | self._neighborhoods.rejected.keys()
        if not errors:
            return []
        return [at for at, place in enumerate(self._places.tolist()) if place in errors]

    def outside(self) -> list[int]:
        """Return the positions of the texts whose answer is, or has, a label outside the set."""
        neighborhoods = self._neighborhoods
        own = neighborhoods.predictions[: neighborhoods.n_own]
        outside = {at for at, p in enumerate(own) if p is not None and is_outside(p)}
        return [at for at, place in enumerate(self._places.tolist()) if place in outside]

    def changed(self) -> int:
        """Return the number of texts whose label differs from their own prediction."""
        if self._neighborhoods.settings.min_trust is not None:
            return sum(row.changed for row in self)
        own = self._neighborhoods.answers()[0][: self._neighborhoods.n_own]
        other = (own >= 0) & (self._result.label >= 0) & (own != self._result.label)
        return int(other[self._places].sum())

    @overload
    def __getitem__(self, index: int) -> Classification: ...

    @overload
    def __getitem__(self, index: slice) -> list[Classification]: ...

    def __getitem__(self, index: int | slice) -> Classification | list[Classification]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        place = int(self._places[at])
        return classification(self._neighborhoods, place, at, self._texts[at])


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


def classification(
    neighborhoods: Neighborhoods, place: int, index: int, text: str
) -> Classification:
    """Return the classification of the own text at `place`."""
    neighbors = neighborhoods.near(place, max(neighborhoods.settings.k, _SHOWN))
    if isinstance(neighborhoods, MultilabelNeighborhoods):
        return _multilabel_classification(neighborhoods, place, index, text, neighbors)
    names = neighborhoods.labels.names
    single = neighborhoods.vote(np.array([place]), votes=True)
    assert single.votes is not None
    winner, share, voters = int(single.label[0]), float(single.share[0]), int(single.voters[0])
    weights = single.votes[0]
    heaviest = sorted(np.flatnonzero(weights).tolist(), key=lambda c: (-weights[c], c != winner))
    basis = neighborhoods.basis(place, single)
    trust = neighborhoods.trust(place, winner, share, basis)
    second = neighborhoods.alternative(place, winner, basis)
    reason = neighborhoods.reason(place)
    source = neighborhoods.source(place, voters)
    least = neighborhoods.settings.min_trust
    label = names[winner] if winner >= 0 else None
    if least is not None and trust is not None and trust < least and label is not None:
        withheld = f"trust {trust:.2f} is below {least:g}; it would be {label!r}"
        reason = Reason("low_trust", withheld)
        label = None
    fields: dict[str, Any] = {}
    kind = Classification if neighborhoods.labels.tree is None else TreeClassification
    if kind is TreeClassification:
        fields = _levels_of(neighborhoods, place, winner, weights, trust, basis)
    return kind(
        **fields,
        index=index,
        text=text,
        label=label,
        share=share,
        margin=float(single.margin[0]),
        voters=voters,
        complete=bool(neighborhoods.complete[place]),
        prediction=neighborhoods.predictions[place],
        neighbors=neighbors,
        votes={names[c]: float(weights[c]) for c in heaviest},
        error=neighborhoods.error(place),
        trust=trust,
        reason=reason,
        source=None if label is None and place not in neighborhoods.judges else source,
        alternative=None if second is None else names[second[0]],
        trust_of_alternative=None if second is None else second[1],
    )


def _multilabel_classification(
    neighborhoods: MultilabelNeighborhoods,
    place: int,
    index: int,
    text: str,
    neighbors: tuple[Neighbor, ...],
) -> MultilabelClassification:
    """Return the classification of the own text at `place`."""
    row = np.array([place])
    names = neighborhoods.labels.names
    voted = neighborhoods.voted(row)
    result = neighborhoods.result(voted, row)
    share, voters = float(result.share[0]), int(result.voters[0])
    known, weight = result.label[0] >= 0, float(voted.weight[0])
    shares = dict(zip((names[c] for c in voted.labels), voted.shares.tolist(), strict=True))
    given = [name for name, passed in zip(shares, voted.given.tolist(), strict=True) if passed]
    trust = share if voters >= LEAST_VOTERS else None
    trusts = {name: shares[name] if voters >= LEAST_VOTERS else None for name in given}
    sets = neighborhoods.sets_of(place)
    if sets is not None:
        at, _ = places_of(sets.starts, row)
        chances = dict(zip(shares, sets.chances[at].tolist(), strict=True))
        # a referee's labels have none
        trusts = {name: None if np.isnan(chances[name]) else chances[name] for name in given}
        chance = float(sets.trust[place])
        trust = None if np.isnan(chance) else chance
    return MultilabelClassification(
        index=index,
        text=text,
        label=neighborhoods.labels.joined(given) if known else None,
        share=share,
        margin=float(result.margin[0]),
        voters=voters,
        complete=True,
        prediction=neighborhoods.predictions[place],
        neighbors=neighbors,
        votes={name: part * weight for name, part in shares.items()},
        error=neighborhoods.error(place),
        trust=trust if known else None,
        reason=neighborhoods.reason(place),
        source=neighborhoods.source(place, voters) if known else None,
        labels=tuple(given),
        shares=shares,
        trusts=trusts,
    )


def _levels_of(
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
    shares = [
        _part_of_node(weights, tree.nodes(level), winner) for level in range(1, len(path) + 1)
    ]
    trusts = [
        _trust_of_level(neighborhoods, place, winner, level, trust, basis)
        for level in range(1, len(path))
    ]
    trusts.append(trust)
    if least is not None and trust is not None and trust < least:
        kept = sum(one is not None and one >= least for one in trusts)
        path, shares, trusts = path[:kept], shares[:kept], trusts[:kept]
    return {"path": path, "path_shares": tuple(shares), "path_trusts": tuple(trusts)}


def _part_of_node(weights: NDArray[np.float64], nodes: NDArray[np.int32], winner: int) -> float:
    total = float(weights.sum())
    return float(weights[nodes == nodes[winner]].sum()) / total if total else 0.0


def _trust_of_level(
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
    return _part_of_node(weights, tree.nodes(level), winner) if voters >= LEAST_VOTERS else None
