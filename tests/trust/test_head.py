"""Heads and the models made of them: what they compute, and that judgments do not leak."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from bench._judged import regression
from testnuc.trust import head as head_module
from testnuc.trust import model as model_module
from testnuc.trust.candidates import candidates_of, choose, differing
from testnuc.trust.evidence import Draws
from testnuc.trust.head import (
    LinearHead,
    class_scale,
    fit_folds,
    fit_head,
    fit_move,
    folds_of,
    predict_folds,
)
from testnuc.trust.model import HeadModel, VoteModel, fit_model, one_hot, teach
from tests import naive
from tests.trust.arrays import clusters, sides


def log_loss(weights, x, targets, w, penalty):
    z = x @ weights
    z = z - z.max(axis=1, keepdims=True)
    logs = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    return -(w[:, None] * targets * logs).sum() / w.sum() + penalty / 2 * (weights**2).sum()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_fit_is_as_good_as_that_of_scipy(seed):
    random = np.random.default_rng(seed)
    texts, _ = clusters(150, 3, 6, seed=seed)
    targets = one_hot(texts.own, 3)
    targets[:30] = random.dirichlet(np.ones(3), 30)
    w = targets.any(axis=1).astype(np.float32)
    x = np.column_stack([texts.vectors.astype(np.float64), np.ones(len(w))])
    penalty = head_module.PENALTY

    def loss(flat):
        return log_loss(flat.reshape(x.shape[1], 3), x, targets, w, penalty)

    best = minimize(loss, np.zeros(x.shape[1] * 3), method="L-BFGS-B", options={"maxfun": 10**6})
    first = fit_head(texts.vectors, targets)
    assert loss(first.weights.astype(np.float64).ravel()) <= best.fun + 1e-3
    again = fit_head(texts.vectors, targets, start=first)
    assert loss(again.weights.astype(np.float64).ravel()) <= best.fun + 1e-3


@pytest.mark.parametrize("d", [9, 90])
def test_a_move_is_as_good_as_that_of_scipy(d):
    random = np.random.default_rng(0)
    logs = np.log(random.dirichlet(np.ones(4), 60)).astype(np.float32)
    own = one_hot(random.integers(-1, 4, 60).astype(np.int32), 4)
    x = random.normal(size=(60, d)).astype(np.float32)
    labels = random.integers(0, 4, 60).astype(np.int32)
    w = random.uniform(0.5, 2, 60).astype(np.float32)

    def loss(flat):
        odds = flat[0] * logs + flat[1] * own + x @ flat[2:].reshape(d, 4)
        odds = odds - odds.max(axis=1, keepdims=True)
        chance = odds - np.log(np.exp(odds).sum(axis=1, keepdims=True))
        away = (flat[0] - 1) ** 2 + (flat[1] - head_module.OWN_CARE) ** 2
        return -(w * chance[np.arange(60), labels]).sum() + ((flat[2:] ** 2).sum() + away) / 2

    best = minimize(loss, np.zeros(2 + 4 * d), method="L-BFGS-B", options={"maxfun": 10**6})
    temper, care, found = fit_move(np.stack([logs, own]), x, x @ x.T, labels, w, 1.0)
    assert found.shape == (d, 4)
    assert (
        loss(np.concatenate([[temper, care], found.astype(np.float64).ravel()])) <= best.fun + 0.05
    )


def test_without_judgments_a_move_is_its_prior():
    shapes = (2, 0, 3), (0, 2), (0, 0), 0, 0
    said, x, gram, labels, weights = (np.empty(shape, np.float32) for shape in shapes)
    found = fit_move(said, x, gram, labels.astype(np.int32), weights, 1.0)
    assert found[:2] == (1.0, head_module.OWN_CARE)
    assert not found[2].any()


def test_texts_without_a_label_are_ignored():
    texts, _ = clusters(120, 3, 6)
    targets = one_hot(texts.own, 3)
    targets[50:] = 0
    whole = fit_head(texts.vectors, targets)
    part = fit_head(texts.vectors[:50], targets[:50])
    assert np.array_equal(whole.weights, part.weights)
    nothing = fit_head(texts.vectors, np.zeros_like(targets))
    assert np.allclose(nothing.probabilities(texts.vectors), 1 / 3)


def test_folds_follow_the_content():
    hashes = [bytes([i, 7]) for i in range(256)]
    folds = folds_of(hashes)
    assert folds_of(hashes[::-1]).tolist() == folds[::-1].tolist()
    assert np.bincount(folds).min() >= 51
    assert len(np.bincount(folds)) == 5


def test_no_text_is_predicted_by_a_head_that_saw_its_label():
    texts, _ = clusters(200, 3, 8)
    before = fit_folds(texts.vectors, one_hot(texts.own, 3), texts.folds)
    row = 17
    changed = texts.own.copy()
    changed[row] = (changed[row] + 1) % 3
    after = fit_folds(texts.vectors, one_hot(changed, 3), texts.folds)
    same = texts.folds == texts.folds[row]
    p = predict_folds(before, texts.vectors, texts.folds)
    q = predict_folds(after, texts.vectors, texts.folds)
    assert np.array_equal(p[same], q[same])
    assert not np.array_equal(p[~same], q[~same])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6))
def test_class_sizes_become_equal(seed, n_classes):
    random = np.random.default_rng(seed)
    table = random.dirichlet(np.ones(n_classes), 60).astype(np.float32)
    even = class_scale(table, 1.0)
    masses = naive.class_masses(table.tolist(), even.tolist())
    assert masses == pytest.approx([60 / n_classes] * n_classes, rel=0.03)
    assert np.allclose(class_scale(table, 0.5), np.sqrt(even), rtol=1e-4)
    assert (class_scale(table, 0.0) == 1).all()
    assert (class_scale(table[:0], 1.0) == 1).all()


def test_class_sizes_where_a_class_has_no_mass():
    table = np.zeros((40, 3), dtype=np.float32)
    table[:, 0], table[:, 1] = 0.7, 0.3
    scale = class_scale(table, 1.0)
    assert np.isfinite(scale).all()
    assert (scale > 0).all()


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_probabilities_are_head_times_votes(seed):
    random = np.random.default_rng(seed)
    texts, gold = clusters(60, 4, 6, seed=seed)
    texts.neighbors[random.random(texts.neighbors.shape) < 0.2] = -1
    heads = tuple(LinearHead(random.normal(size=(7, 4)).astype(np.float32)) for _ in range(5))
    moves = random.normal(size=(11, 4)).astype(np.float32)
    scale = random.uniform(0.5, 2, 4).astype(np.float32)
    model = HeadModel(heads, scale, 2.0, temper=0.7, moves=moves)
    texts.own[:5] = -1
    rows = random.permutation(60)[:10]
    head = predict_folds(heads, texts.vectors, texts.folds)
    labels = head.argmax(axis=1).tolist()
    for judged in (texts, texts.with_judged(rows, gold[rows])):
        known = [-1] * 60 if judged.judged is None else judged.judged.tolist()
        expected = naive.joined(
            head.tolist(),
            texts.neighbors.tolist(),
            texts.similarities.tolist(),
            known,
            labels,
            model.scale.tolist(),
            8,
        )
        plain = HeadModel(heads, model.scale, 2.0).probabilities(judged)
        assert np.allclose(plain, expected, atol=1e-4)
        seen = np.hstack([texts.vectors, np.ones((60, 1)), one_hot(texts.own, 4)])
        moved = np.array(expected) ** 0.7 * np.exp(seen.astype(np.float64) @ moves)
        moved /= moved.sum(axis=1, keepdims=True)
        assert np.allclose(model.probabilities(judged), moved, atol=1e-3)


def test_care_is_a_log_odds_of_the_own_label():
    texts, _ = clusters(100, 3, 6)
    heads = tuple(LinearHead(np.zeros((7, 3), dtype=np.float32)) for _ in range(5))
    model = HeadModel(heads, np.ones(3, dtype=np.float32), 50.0)
    known = texts.own >= 0
    assert np.array_equal(model.label(texts)[known], texts.own[known])


def test_a_vote_without_neighbors_keeps_the_own_labels():
    texts, _ = clusters(80, 3, 6)
    assert np.array_equal(VoteModel(0).label(texts), texts.own)
    texts.neighbors[:] = -1
    assert np.array_equal(VoteModel(10, 2.0).label(texts), texts.own)


def test_models_mend_wrong_labels():
    texts, gold = clusters(500, 5, 16)
    candidates = candidates_of(texts)
    right = {c.name: (c.labels == gold).mean() for c in candidates}
    own = right.pop("the LLM's own labels")
    assert min(right.values()) > own
    assert len({c.name for c in candidates}) == len(candidates)
    rows = np.random.default_rng(0).permutation(np.flatnonzero(differing(candidates)))[:60]
    draws = Draws.at_random(500, 60, int(differing(candidates).sum()))
    verdict = choose(texts, candidates, rows, gold[rows], draws)
    assert verdict.gain.low > 0
    gain = (verdict.chosen.labels == gold).mean() - own
    assert verdict.gain.low <= gain <= verdict.gain.high


def test_no_judgment_keeps_the_own_labels():
    texts, _ = clusters(100, 3, 6)
    candidates = candidates_of(texts)
    nothing = np.empty(0, dtype=np.int64)
    draws = Draws.at_random(100, 0)
    verdict = choose(texts, candidates, nothing, nothing.astype(np.int32), draws)
    assert verdict.chosen is candidates[0]
    assert verdict.gain.low == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_fit_does_not_know_the_judgments_that_it_predicts(seed, monkeypatch):
    # which of several fits is used may depend on them
    monkeypatch.setattr(model_module, "_SPREADS", (3, 3))
    texts, gold = clusters(300, 4, 8, wrong=0.4, spread=0.4, seed=seed)
    start = fit_folds(texts.vectors, one_hot(texts.own, 4), texts.folds)
    base = fit_model(texts, power=0.5, care=2.0, start=start, rounds=1)
    rows = np.random.default_rng(seed).permutation(300)[:40]
    for row in rows[:3]:
        found = []
        for other in range(2):
            said = gold[rows].copy()
            said[rows == row] = (gold[row] + other) % 4
            judged = texts.with_judged(rows, said)
            found.append(teach([base], judged))
        one, another = (taught.probabilities for taught in found)
        assert np.array_equal(one[row], another[row])
        assert not np.array_equal(one, another)
        # of these no text of the fold knows it
        one, another = (taught.apart[texts.folds == texts.folds[row]] for taught in found)
        assert np.array_equal(one, another)


@pytest.mark.slow
def test_where_the_embedding_separates_the_labels_it_is_as_good_as_a_regression():
    """The fit clung to a base that is trained on an LLM that is wrong on whole topics."""
    found = []
    for seed in range(4):
        texts, gold = sides(seed)
        candidates = candidates_of(texts)
        for number in range(2):
            rows = np.random.default_rng(number).permutation(400)[:30]
            draws = Draws.at_random(400, 30)
            learned = choose(texts, candidates, rows, gold[rows], draws).chosen.labels
            plain = regression(texts, rows, gold[rows])
            found.append([(labels == gold).mean() for labels in (texts.own, plain, learned)])
    own, plain, learned = np.mean(found, axis=0)
    assert plain > own + 0.3
    assert learned > plain - 0.01


def test_taught_models_follow_the_judgments():
    texts, gold = clusters(300, 4, 8, wrong=0.2, seed=3)
    # the LLM gives one label for another, always
    texts.own[gold == 0] = 1
    start = fit_folds(texts.vectors, one_hot(texts.own, 4), texts.folds)
    base = fit_model(texts, power=0.0, care=2.0, start=start, rounds=1)
    rows = np.random.default_rng(0).permutation(300)[:80]
    judged = texts.with_judged(rows, gold[rows])
    rest = np.setdiff1d(np.arange(300), rows)
    before = (base.probabilities(texts).argmax(axis=1) == gold)[rest].mean()
    taught, without = teach([base], judged), teach([base], judged, parts=0)
    after = (taught.probabilities.argmax(axis=1) == gold)[rest].mean()
    assert after > before + 0.1
    # only what is said of judged texts needs fits of parts
    assert np.array_equal(taught.apart, without.apart)
    assert np.array_equal(taught.probabilities[rest], without.probabilities[rest])
    assert not np.array_equal(taught.probabilities[rows], without.probabilities[rows])
