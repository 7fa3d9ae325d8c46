"""Classifications, created on access from the labels of a run."""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from testnuc._base.arrays import Float64s, Floats, Int32s, Int64s
from testnuc._engine.run import Run
from testnuc._engine.votes import LEAST_VOTERS
from testnuc.types import SEPARATOR, Classification, Neighbor, Prediction, Reason
from testnuc.voting import Labels

#: Fewest neighbors in a result, even if fewer vote.
_SHOWN = 10


class Rows(Sequence[Classification]):
    """The classifications of input texts, each created on access.

    `texts` is the input, including duplicates; `places`, int64[len(texts)], the place of each.
    """

    def __init__(self, run: Run, texts: Sequence[str], places: Int64s) -> None:
        self._run, self._texts, self._places = run, texts, places
        self._labels = run.labels()

    def __len__(self) -> int:
        return len(self._texts)

    def outcomes(self) -> Iterator[tuple[list[str] | None, Prediction | None, bool]]:
        """Yield the labels of each text, its own prediction, and whether it has an error.

        Makes no record, unless labels can be withheld, which depends on the whole record.
        """
        run, labels, names = self._run, self._labels, self._run.batch.labels.names
        starts, known = labels.starts.tolist(), labels.known.tolist()
        given = zip(labels.label.tolist(), labels.given.tolist(), strict=True)
        of = [names[one] if has else None for one, has in given]
        errors = run.answers.errors.keys() | run.batch.rejected.keys()
        for at, place in enumerate(self._places.tolist()):
            some = [name for name in of[starts[place] : starts[place + 1]] if name is not None]
            withheld = some and run.votes.settings.min_trust is not None and self[at].label is None
            labeled = known[place] and not withheld
            yield some if labeled else None, run.answers.predictions[place], place in errors

    @overload
    def __getitem__(self, index: int) -> Classification: ...

    @overload
    def __getitem__(self, index: slice) -> list[Classification]: ...

    def __getitem__(self, index: int | slice) -> Classification | list[Classification]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        return classification(self._run, int(self._places[at]), at, self._texts[at])


def classification(run: Run, place: int, index: int, text: str) -> Classification:
    """Return the classification of the own text at `place`."""
    answers = run.answers
    fields: dict[str, Any] = {
        "index": index,
        "text": text,
        "complete": bool(run.votes.complete[place]),
        "prediction": answers.predictions[place],
        "neighbors": nearest(run, place, max(run.votes.settings.k, _SHOWN)),
        "error": answers.errors.get(place) or run.batch.rejected.get(place),
    }
    one = run.votes.settings.threshold is None
    return _of_label(run, place, fields) if one else _of_labels(run, place, fields)


def nearest(run: Run, place: int, most: int) -> tuple[Neighbor, ...]:
    """Return the nearest neighbors of the own text at a place, most similar first."""
    shown = []
    others = run.votes.neighbors(np.array([place]))[0, :most].tolist()
    similarities = run.batch.similarities[place, :most].tolist()
    for other, similarity in zip(others, similarities, strict=True):
        if other >= 0:
            own = run.answers.predictions[other]
            label, confidence = (None, None) if own is None else (own.label, own.confidence)
            shown.append(Neighbor(run.batch.entries[other].text, similarity, label, confidence))
    return tuple(shown)


def _of_label(run: Run, place: int, fields: dict[str, Any]) -> Classification:
    names, row = run.batch.labels.names, np.array([place])
    voted = run.votes.result(row, votes=True)
    labels = run.labels(row, Labels.single(voted.label, voted.share))
    winner = int(labels.first()[0])
    weights, share, margin, voters = run.tally(place, voted)
    heaviest = sorted(np.flatnonzero(weights).tolist(), key=lambda c: (-weights[c], c != winner))
    # under auto, trust is a share of all neighbors, by similarity, also where they do not decide
    basis = weights, voters
    if run.votes.settings.auto and run.labeler(place) == "vote":
        by = run.votes.by_similarity(row)
        assert by.votes is not None
        basis = by.votes[0], int(by.voters[0])
    trust = run.trust(place, labels, share, basis)
    second = run.alternative(place, labels, basis)
    reason, least = run.reason(place), run.votes.settings.min_trust
    label = names[winner] if winner >= 0 else None
    if least is not None and trust is not None and trust < least and label is not None:
        reason = Reason("low_trust", f"trust {trust:.2f} is below {least:g}; it would be {label!r}")
        label = None
    return Classification(
        **fields,
        **_levels_of(run, place, winner, weights, trust, basis[0], labels),
        label=label,
        share=share,
        margin=margin,
        voters=voters,
        votes={names[c]: float(weights[c]) for c in heaviest},
        trust=trust,
        reason=reason,
        source=None if label is None and place not in run.judges else run.source(place, voters),
        alternative=None if second is None else names[second[0]],
        trust_of_alternative=None if second is None else second[1],
    )


def _of_labels(run: Run, place: int, fields: dict[str, Any]) -> Classification:
    names, row = run.batch.labels.names, np.array([place])
    voted = run.votes.of_each_label(row)
    labels = run.labels(row, voted)
    voters, weight, known = int(voted.voters[0]), float(voted.weight[0]), bool(labels.known[0])
    of = [names[one] for one in labels.label.tolist()]
    shares = dict(zip(of, labels.share.tolist(), strict=True))
    # on the side of the closest decision
    sides = np.where(labels.given, labels.share, 1 - labels.share)
    share = float(sides.min(initial=1.0 if voters else 0.0))
    by_vote = run.labeler(place) == "vote"
    trust = share if by_vote else float(labels.trust[0])
    chances: Floats = labels.share if by_vote else labels.chance
    if by_vote and voters < LEAST_VOTERS:
        trust, chances = np.nan, np.full(len(of), np.nan)
    trusts = {of[at]: _or_none(chances[at]) for at in np.flatnonzero(labels.given).tolist()}
    return Classification(
        **fields,
        label=SEPARATOR.join(trusts) if known else None,
        share=share,
        margin=max(2 * share - 1, 0.0),
        voters=voters,
        votes={name: part * weight for name, part in shares.items()},
        trust=_or_none(trust) if known else None,
        reason=run.reason(place),
        source=run.source(place, voters) if known else None,
        shares=shares,
        trusts=trusts,
    )


def _or_none(value: float | np.floating[Any]) -> float | None:
    return None if np.isnan(value) else float(value)


def _levels_of(
    run: Run,
    place: int,
    winner: int,
    weights: Float64s,
    trust: float | None,
    basis: Float64s,
    labels: Labels,
) -> dict[str, Any]:
    """Return the fields of a label's levels in a tree.

    `winner` is the label before it is withheld, -1 = none; `weights`, float64[C], those of its
    votes; `basis` those of the votes that trust rests on.
    """
    tree, least = run.batch.labels.tree, run.votes.settings.min_trust
    if tree is None or winner < 0:
        return {} if tree is None else {"path": ()}
    path = tree.paths[winner]
    levels = range(1, len(path) + 1)
    shares = [_share_of_node(weights, tree.nodes(level), winner) for level in levels]
    trusts = [trust] * len(path)
    for level in levels[:-1] if trust is not None else ():
        if labels.level_trust.size:
            above = float(labels.level_trust[0, level - 1])
            trusts[level - 1] = trust if np.isnan(above) else above
        elif run.labeler(place) == "vote":
            trusts[level - 1] = _share_of_node(basis, tree.nodes(level), winner)
    if least is not None and trust is not None and trust < least:
        kept = sum(one is not None and one >= least for one in trusts)
        path, shares, trusts = path[:kept], shares[:kept], trusts[:kept]
    return {"path": path, "path_shares": tuple(shares), "path_trusts": tuple(trusts)}


def _share_of_node(weights: Float64s, nodes: Int32s, winner: int) -> float:
    total = float(weights.sum())
    return float(weights[nodes == nodes[winner]].sum()) / total if total else 0.0
