"""Distill what a client knows of its pool into one head."""

import asyncio

import numpy as np

from testnuc._base.arrays import Float16s
from testnuc._base.display import today
from testnuc._engine.components import Components
from testnuc._engine.labelers import judged_of
from testnuc._engine.run import Run
from testnuc.errors import InvalidInputError
from testnuc.head import Head, TrainedOn
from testnuc.trust.calibration import SetRule, chance_of, fit_line, log_odds
from testnuc.trust.certificates import Strata, certify
from testnuc.trust.head import fit_folds, fit_head, folds_of, predict_folds
from testnuc.trust.model import NEIGHBORS, most_texts, one_hot

#: Texts that a head is fitted on at most; of a larger pool, they are spread over it evenly.
_MOST_TEXTS = 50_000
_LEAST_TEXTS = 50
#: From this many judged texts on, trust is calibrated on them.
_CALIBRATED = 50


async def distill(parts: Components) -> Head:
    """Train a head on the labels that a client gives to its pool now; makes no call."""
    run, vectors = await parts.pipeline.pool_predictions.labeled(
        parts.pipeline.settings, most_texts(len(parts.labels.names), _MOST_TEXTS), NEIGHBORS
    )
    if run.batch.n_own < _LEAST_TEXTS:
        raise InvalidInputError(
            f"the pool has {run.batch.n_own} texts with a prediction; label at least "
            f"{_LEAST_TEXTS} first, by `classify_many` or `predict_pool`"
        )
    await asyncio.to_thread(run.votes.decide_by_settings)
    await parts.pipeline.settle(run)
    return await asyncio.to_thread(_trained, parts, run, vectors)


def _trained(parts: Components, run: Run, vectors: Float16s) -> Head:
    labels, learned = run.labels(), run.votes.settings.learned
    several, n_classes = parts.settings.threshold is not None, len(parts.labels.names)
    rows = np.flatnonzero(labels.known) if several else np.arange(run.batch.n_own)
    hashes = [run.batch.entries[row].hash for row in rows.tolist()]
    place = {key: row for row, key in enumerate(hashes)}
    judged = judged_of(() if learned is None else learned.used, place, parts.labels)
    labels, vectors, folds = labels.at(rows), vectors[rows], folds_of(hashes)
    taught, gold = (of.table(n_classes, of.given) for of in (labels, judged.right))
    targets = taught.astype(np.float32)
    if run.votes.settings.head_decides and "learned" in run.layers:
        shares = run.layers["learned"].labels.table(n_classes)
        targets = np.where(labels.known[:, None], shares, 0).astype(np.float32)
    # each text by a head that was fitted without its fold
    out = predict_folds(fit_folds(vectors, targets, folds, several=several), vectors, folds)
    rule = SetRule.fitted(out, taught) if several else None
    if rule is None:
        given = one_hot(out.argmax(axis=1).astype(np.int32), n_classes) > 0
        odds = log_odds(out.max(axis=1))
    else:
        given, _, odds = rule.apply(out)
    right = (given[judged.rows] == gold).all(axis=1)
    agrees = (given == taught).all(axis=1)[labels.known]
    # trust is calibrated on those that were drawn at random, if there are enough
    answered = judged.right.known
    used = np.flatnonzero(answered & judged.draws.drawn)
    by_judged = len(used) >= _CALIBRATED
    if by_judged:
        curve = fit_line(odds[judged.rows[used]], right[used], 1 / judged.draws.probability[used])
    else:
        curve = fit_line(odds[labels.known], agrees, np.ones(len(agrees)))
    certificate = None
    if judged.person[used].any():
        # as results have it
        trust = chance_of(odds, curve).astype(np.float32).astype(np.float64)
        drawn = judged.draws.uniform & judged.draws.drawn & judged.person
        strata = Strata.of(trust, judged.rows, right & answered, drawn)
        certificate = certify(strata, accuracy=0.9, confidence=0.9, endless=True)
    return Head(
        parts.labels.names,
        fit_head(vectors, targets, several=several).weights,
        curve,
        embedder=parts.embedder,
        trained_on=TrainedOn(
            texts=len(rows),
            judged=int(answered.sum()),
            model=parts.model,
            date=today(),
            labels=_source(run),
            agreement=float(agrees.mean()),
            calibrated_on="judged texts" if by_judged else "agreement with the labels",
        ),
        certificate=certificate,
        sets=rule,
    )


def _source(run: Run) -> str:
    learned = run.votes.settings.learned
    if learned is not None and learned.decides != "settings":
        kept = ", and the LLM's protected ones, which a head does not see" * bool(learned.protected)
        return f"those of {learned.name}{kept}"
    voted = run.votes.decision is None or run.votes.decision.policy is not None
    voted = voted and run.votes.settings.k > 0 and not run.votes.settings.keeps_llm_labels
    return "those of the vote of neighbors" if voted else "the LLM's own answers"
