"""Distill what a client knows of its pool into one head."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from testnuc._engine.applying import apply_learned
from testnuc._engine.judgments import class_of, draws_of
from testnuc.errors import InvalidInputError
from testnuc.head import Head, TrainedOn, TrustDrift
from testnuc.trust.calibration import chance_of, fit_line, log_odds
from testnuc.trust.certificates import certify
from testnuc.trust.head import fit_folds, fit_head, folds_of, predict_folds
from testnuc.trust.model import NEIGHBORS, one_hot

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from testnuc._engine.components import Components
    from testnuc._engine.neighborhoods import Neighborhoods

__all__ = ["distill"]

#: Texts that a head is fitted on at most; of a larger pool, they are spread over it evenly.
_MOST_TEXTS = 50_000
_LEAST_TEXTS = 50
#: From this many judged texts on, trust is calibrated on them.
_CALIBRATED = 50


async def distill(parts: Components) -> Head:
    """Train a head on the labels that a client gives to its pool now; makes no call."""
    await parts.ready()
    found, vectors = await parts.pipeline.labeled_pool(_MOST_TEXTS, NEIGHBORS)
    if found.n_own < _LEAST_TEXTS:
        raise InvalidInputError(
            f"the pool has {found.n_own} texts with a prediction; label at least {_LEAST_TEXTS} "
            "first, by `classify_many` or `predict_pool`"
        )
    await asyncio.to_thread(found.decide_by_settings)
    await asyncio.to_thread(found.balance)
    if found.settings.learned is not None:
        await apply_learned(found, parts.embedding)
    return await asyncio.to_thread(_fitted, parts, found, vectors)


def _fitted(parts: Components, found: Neighborhoods, vectors: NDArray[np.float16]) -> Head:
    n, names = found.n_own, parts.labels.names
    label = found.vote(slice(0, n)).label
    targets = one_hot(label, len(names))
    if found.applied is not None and found.applied.shares is not None:
        targets = np.where((label >= 0)[:, None], found.applied.shares, 0).astype(np.float32)
    weights = np.ones(n, dtype=np.float32)
    hashes = [entry.hash for entry in found.entries[:n]]
    folds = folds_of(hashes)
    out = predict_folds(fit_folds(vectors, targets, weights, folds), vectors, folds)
    made = out.argmax(axis=1)
    odds = log_odds(out[np.arange(n), made])
    learned = found.settings.learned
    place = {key: row for row, key in enumerate(hashes)}
    judged = [j for j in learned.judged if j.hash in place] if learned is not None else []
    judged = [j for j in judged if j.source is not None]
    drawn = [j for j in judged if j.probability is not None]
    rows = np.array([place[j.hash] for j in drawn], dtype=np.int64)
    gold = np.array([class_of(j.label, j.source, parts.labels) for j in drawn], dtype=np.int64)
    right = made[rows] == gold
    draws = draws_of(drawn, n)
    by_judges = len(rows) >= _CALIBRATED
    some = rows if by_judges else np.flatnonzero(label >= 0)
    curve = fit_line(
        odds[some],
        right if by_judges else made[some] == label[some],
        1 / draws.probability if by_judges else np.ones(len(some)),
    )
    trust = chance_of(odds, curve)
    person = np.array([j.source == "person" for j in drawn], dtype=np.bool_)
    certificate = None
    if person.any():
        certificate = certify(
            trust, rows[person], right[person], draws.only(person), accuracy=0.9, confidence=0.9
        )
    return Head(
        names,
        fit_head(vectors, targets, weights).weights,
        curve,
        embedder=parts.embedder,
        trained_on=TrainedOn(
            texts=n,
            judged=len(judged),
            model=parts.model,
            date=datetime.now(UTC).date().isoformat(),
            labels=_source(found),
            agreement=float((made == label)[label >= 0].mean()),
            calibrated_on="judged texts" if by_judges else "agreement with the labels",
        ),
        drift=TrustDrift(float(trust.mean()), float(trust.std()), n),
        certificate=certificate,
    )


def _source(found: Neighborhoods) -> str:
    learned = found.settings.learned
    if learned is not None and learned.decides != "settings":
        return f"those of {learned.name}"
    voted = found.decision is None or found.decision.policy is not None
    return (
        "those of the vote of neighbors" if voted and found.settings.k else "the LLM's own answers"
    )
