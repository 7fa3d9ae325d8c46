"""Distill what a client knows of its pool into one head."""

import asyncio
from typing import NamedTuple

import numpy as np

from testnuc._base.arrays import Bools, Float16s, Float32s, Float64s, Int64s
from testnuc._engine.applying import judged_of
from testnuc._engine.components import Components, today
from testnuc._engine.run import Run
from testnuc.errors import InvalidInputError
from testnuc.head import Head, TrainedOn
from testnuc.trust.calibration import SetRule, chance_of, fit_line, fit_set_rule, log_odds
from testnuc.trust.certificates import Strata, certify
from testnuc.trust.evidence import Judged
from testnuc.trust.head import fit_folds, fit_head, folds_of, predict_folds
from testnuc.trust.model import NEIGHBORS, most_texts, one_hot
from testnuc.voting import Labels

#: Texts that a head is fitted on at most; of a larger pool, they are spread over it evenly.
_MOST_TEXTS = 50_000
_LEAST_TEXTS = 50
#: From this many judged texts on, trust is calibrated on them.
_CALIBRATED = 50


async def distill(parts: Components) -> Head:
    """Train a head on the labels that a client gives to its pool now; makes no call."""
    most = most_texts(len(parts.labels.names), _MOST_TEXTS)
    run, vectors = await parts.pipeline.pool_predictions.labeled(
        parts.pipeline.settings, most, NEIGHBORS
    )
    if run.batch.n_own < _LEAST_TEXTS:
        raise InvalidInputError(
            f"the pool has {run.batch.n_own} texts with a prediction; label at least "
            f"{_LEAST_TEXTS} first, by `classify_many` or `predict_pool`"
        )
    await asyncio.to_thread(run.votes.decide_by_settings)
    await parts.pipeline.settle(run)
    return await asyncio.to_thread(_trained, parts, run, vectors)


class _Sample(NamedTuple):
    """The texts that a head is fitted on."""

    labels: Labels
    vectors: Float16s
    folds: Int64s
    judged: Judged
    #: Of the judged texts those that trust is calibrated on; None: on agreement.
    used: Int64s | None

    def weights(self) -> Float64s:
        """Return how many texts each of `used` stands for."""
        return 1 / self.judged.draws.probability[self.used]


class _Trained(NamedTuple):
    weights: Float32s
    curve: tuple[float, float]
    #: Of all texts, out of fold.
    trust: Float64s
    #: Whether the label or labels of each judged text are right.
    right: Bools
    agreement: float
    rule: SetRule | None = None


def _trained(parts: Components, run: Run, vectors: Float16s) -> Head:
    """Return the head, with a certificate by what a person judged."""
    labels, learned = run.labels(), run.votes.settings.learned
    several = parts.settings.threshold is not None
    rows = np.flatnonzero(labels.known) if several else np.arange(run.batch.n_own)
    hashes = [run.batch.entries[row].hash for row in rows.tolist()]
    place = {key: row for row, key in enumerate(hashes)}
    judged = judged_of(() if learned is None else learned.used, place, parts.labels)
    answered = judged.right.known
    # trust is calibrated on those that were drawn at random, if there are enough
    used = np.flatnonzero(answered & judged.draws.drawn)
    by_judged = len(used) >= _CALIBRATED
    sample = _Sample(
        labels.at(rows), vectors[rows], folds_of(hashes), judged, used if by_judged else None
    )
    trained = _several(run, sample) if several else _one(run, sample)
    certificate = None
    if judged.person[used].any():
        right, drawn = trained.right & answered, judged.draws.uniform & judged.person
        strata = Strata.of(trained.trust, judged.rows, right, drawn)
        certificate = certify(strata, accuracy=0.9, confidence=0.9, endless=True)
    return Head(
        parts.labels.names,
        trained.weights,
        trained.curve,
        embedder=parts.embedder,
        trained_on=TrainedOn(
            texts=len(rows),
            judged=int(answered.sum()),
            model=parts.model,
            date=today(),
            labels=_source(run),
            agreement=trained.agreement,
            calibrated_on="judged texts" if by_judged else "agreement with the labels",
        ),
        certificate=certificate,
        sets=trained.rule,
    )


def _one(run: Run, sample: _Sample) -> _Trained:
    """Fit a head that gives one label."""
    labels, vectors, folds, judged, used = sample
    n_classes, label = len(run.batch.labels.names), labels.first()
    targets = one_hot(label, n_classes)
    if run.votes.settings.head_decides and "learned" in run.layers:
        shares = run.layers["learned"].labels.table(n_classes)
        targets = np.where((label >= 0)[:, None], shares, 0).astype(np.float32)
    out = predict_folds(fit_folds(vectors, targets, folds), vectors, folds)
    predicted = out.argmax(axis=1)
    odds = log_odds(out[np.arange(len(out)), predicted])
    right, agrees = predicted[judged.rows] == judged.right.first(), predicted == label
    some = np.flatnonzero(label >= 0)
    if used is None:
        curve = fit_line(odds[some], agrees[some], np.ones(len(some)))
    else:
        curve = fit_line(odds[judged.rows[used]], right[used], sample.weights())
    weights = fit_head(vectors, targets).weights
    return _Trained(weights, curve, chance_of(odds, curve), right, float(agrees[some].mean()))


def _several(run: Run, sample: _Sample) -> _Trained:
    """Fit a head that gives several labels."""
    labels, vectors, folds, judged, used = sample
    n_classes = len(run.batch.labels.names)
    taught = labels.table(n_classes, labels.given)
    gold = judged.right.table(n_classes, judged.right.given)
    targets = taught.astype(np.float32)
    out = predict_folds(fit_folds(vectors, targets, folds, several=True), vectors, folds)
    by = None if used is None else (judged.rows[used], gold[used], sample.weights())
    rule = fit_set_rule(out, taught, by)
    given, _, trust = rule.apply(out)
    return _Trained(
        fit_head(vectors, targets, several=True).weights,
        rule.of_text,
        trust.astype(np.float64),
        (given[judged.rows] == gold).all(axis=1),
        float((given == taught).all(axis=1).mean()),
        rule,
    )


def _source(run: Run) -> str:
    learned = run.votes.settings.learned
    if learned is not None and learned.decides != "settings":
        kept = ", and the LLM's protected ones, which a head does not see" * bool(learned.protected)
        return f"those of {learned.name}{kept}"
    voted = run.votes.decision is None or run.votes.decision.policy is not None
    voted = voted and run.votes.settings.k > 0 and not run.votes.settings.keeps_llm_labels
    return "those of the vote of neighbors" if voted else "the LLM's own answers"
