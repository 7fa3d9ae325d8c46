"""Distill what a client knows of its pool into one head."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from testnuc._engine.applying import apply_taught
from testnuc._engine.judgment_arrays import Judged, class_of
from testnuc._engine.multilabel import MultilabelNeighborhoods
from testnuc.errors import InvalidInputError
from testnuc.head import Head, TrainedOn, TrustDrift
from testnuc.trust.calibration import chance_of, fit_line, log_odds
from testnuc.trust.certificates import certify
from testnuc.trust.head import (
    fit_folds,
    fit_head,
    fit_one_vs_rest,
    fit_several,
    folds_of,
    predict_folds,
)
from testnuc.trust.model import NEIGHBORS, most_texts, one_hot
from testnuc.trust.set_rule import fit_set_rule
from testnuc.types import split_labels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from testnuc._engine.components import Components
    from testnuc._engine.neighborhoods import Neighborhoods
    from testnuc.trust.set_rule import SetRule

__all__ = ["distill"]

#: Texts that a head is fitted on at most; of a larger pool, they are spread over it evenly.
_MOST_TEXTS = 50_000
_LEAST_TEXTS = 50
#: From this many judged texts on, trust is calibrated on them.
_CALIBRATED = 50


async def distill(parts: Components) -> Head:
    """Train a head on the labels that a client gives to its pool now; makes no call."""
    await parts.ready()
    most = most_texts(len(parts.labels.names), _MOST_TEXTS)
    found, vectors = await parts.pipeline.pool_predictions.labeled(
        parts.pipeline.settings, most, NEIGHBORS
    )
    if found.n_own < _LEAST_TEXTS:
        raise InvalidInputError(
            f"the pool has {found.n_own} texts with a prediction; label at least {_LEAST_TEXTS} "
            "first, by `classify_many` or `predict_pool`"
        )
    await asyncio.to_thread(found.decide_by_settings)
    await asyncio.to_thread(found.balance)
    await apply_taught(found, parts.embedding)
    if isinstance(found, MultilabelNeighborhoods):
        return await asyncio.to_thread(_fitted_sets, parts, found, vectors)
    return await asyncio.to_thread(_fitted, parts, found, vectors)


def _fitted(parts: Components, found: Neighborhoods, vectors: NDArray[np.float16]) -> Head:
    n, names = found.n_own, parts.labels.names
    label = found.vote(slice(0, n)).label
    targets = one_hot(label, len(names))
    if found.applied is not None and found.applied.shares is not None:
        targets = np.where((label >= 0)[:, None], found.applied.shares, 0).astype(np.float32)
    hashes = [entry.hash for entry in found.entries[:n]]
    folds = folds_of(hashes)
    out = predict_folds(fit_folds(vectors, targets, folds), vectors, folds)
    made = out.argmax(axis=1)
    odds = log_odds(out[np.arange(n), made])
    judged = _judged_of(found, hashes)
    gold = [class_of(j.label, j.source, parts.labels) for j in judged.known]
    right = made[judged.rows] == np.array(gold, dtype=np.int64)
    used = judged.used
    some = judged.rows[used] if judged.calibrate else np.flatnonzero(label >= 0)
    curve = fit_line(
        odds[some],
        right[used] if judged.calibrate else made[some] == label[some],
        1 / judged.draws.probability[used] if judged.calibrate else np.ones(len(some)),
    )
    return judged.head(
        parts,
        fit_head(vectors, targets).weights,
        curve,
        trust=chance_of(odds, curve),
        right=right,
        labels=_source(found),
        agreement=float((made == label)[label >= 0].mean()),
    )


def _fitted_sets(
    parts: Components, found: MultilabelNeighborhoods, vectors: NDArray[np.float16]
) -> Head:
    """Fit a head that gives several labels, on the labels that texts have now."""
    every, n_classes = slice(0, found.n_own), len(parts.labels.names)
    voted = found.voted(every)
    rows = np.flatnonzero(found.result(voted, every).label >= 0)
    taught = np.zeros((found.n_own, n_classes), dtype=np.bool_)
    taught[voted.rows[voted.given], voted.labels[voted.given]] = True
    hashes = [found.entries[row].hash for row in rows.tolist()]
    taught, vectors, folds = taught[rows], vectors[rows], folds_of(hashes)
    targets = taught.astype(np.float32)
    out = predict_folds(fit_one_vs_rest(vectors, targets, folds), vectors, folds)
    judged = _judged_of(found, hashes)
    gold = np.zeros((len(judged.known), n_classes), dtype=np.bool_)
    for row, judgment in enumerate(judged.known):
        gold[row, list(map(parts.labels.names.index, split_labels(judgment.label)))] = True
    used = judged.used
    fit = (judged.rows[used], gold[used], 1 / judged.draws.probability[used])
    rule = fit_set_rule(out, taught, fit if judged.calibrate else None)
    given, _, trust = rule.apply(out)
    return judged.head(
        parts,
        fit_several(vectors, targets).weights,
        rule.of_text,
        trust=trust.astype(np.float64),
        right=(given[judged.rows] == gold).all(axis=1),
        labels=_source(found),
        agreement=float((given == taught).all(axis=1).mean()),
        sets=rule,
    )


class _Judged(Judged):
    """The judged texts among those that a head is fitted on."""

    @cached_property
    def used(self) -> NDArray[np.bool_]:
        """Those that trust is calibrated on: they were drawn at random."""
        return self.answered & self.draws.drawn

    @property
    def calibrate(self) -> bool:
        """Whether trust is calibrated on them."""
        return int(self.used.sum()) >= _CALIBRATED

    def head(
        self,
        parts: Components,
        weights: NDArray[np.float32],
        curve: tuple[float, float],
        *,
        trust: NDArray[np.float64],
        right: NDArray[np.bool_],
        labels: str,
        agreement: float,
        sets: SetRule | None = None,
    ) -> Head:
        """Return the head, with a certificate by what a person judged."""
        certificate = None
        if (self.person & self.used).any():
            certificate = certify(
                trust,
                self.rows,
                right & self.answered,
                self.draws.uniform,
                self.person,
                accuracy=0.9,
                confidence=0.9,
            )
        return Head(
            parts.labels.names,
            weights,
            curve,
            embedder=parts.embedder,
            trained_on=TrainedOn(
                texts=len(trust),
                judged=int(self.answered.sum()),
                model=parts.model,
                date=datetime.now(UTC).date().isoformat(),
                labels=labels,
                agreement=agreement,
                calibrated_on="judged texts" if self.calibrate else "agreement with the labels",
            ),
            drift=TrustDrift(float(trust.mean()), float(trust.std()), len(trust)),
            certificate=certificate,
            sets=sets,
        )


def _judged_of(found: Neighborhoods, hashes: Sequence[bytes]) -> _Judged:
    learned = found.settings.taught
    place = {key: row for row, key in enumerate(hashes)}
    return _Judged.of(() if learned is None else learned.judged, place)


def _source(found: Neighborhoods) -> str:
    learned = found.settings.taught
    if learned is not None and learned.decides != "settings":
        return f"those of {learned.name}"
    voted = found.decision is None or found.decision.policy is not None
    voted = voted and found.settings.k > 0 and not found.settings.keeps_own
    return "those of the vote of neighbors" if voted else "the LLM's own answers"
