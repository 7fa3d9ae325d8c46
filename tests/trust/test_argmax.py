"""The levels of a tree of labels, and models that are applied to a part of the texts at a time."""

from dataclasses import replace

import numpy as np
import pytest

from testnuc.errors import InvalidInputError
from testnuc.label_tree import LabelTree
from testnuc.trust import argmax as argmax_module
from testnuc.trust.argmax import Argmax, parts_by_level
from testnuc.trust.head import fit_folds
from testnuc.trust.model import VoteModel, fit_model, most_texts, one_hot, teach
from tests.trust.arrays import clusters


def test_a_parent_is_as_likely_as_the_labels_below_it():
    tree = LabelTree(["a > x > 1", "a > x > 2", "b > z", "a > y", "c"])
    random = np.random.default_rng(0)
    found = random.dirichlet(np.ones(5), size=50).astype(np.float32)
    label = np.where(random.random(50) < 0.1, -1, random.integers(0, 5, 50)).astype(np.int32)
    parts = parts_by_level(found, label, tree)
    for row, (given, chances) in enumerate(zip(label.tolist(), found.tolist(), strict=True)):
        for level in (1, 2):
            if given < 0:
                assert parts[row, level - 1] == 0
                continue
            node = tree.paths[given][:level]
            below = sum(
                p for p, path in zip(chances, tree.paths, strict=True) if path[:level] == node
            )
            # a label trusted as the model does has parents that are trusted as the model does
            trust = chances[given] + (1 - chances[given]) * parts[row, level - 1]
            assert trust == pytest.approx(below, abs=1e-5)


@pytest.mark.parametrize("decides", ["settings", "head"])
def test_parts_of_the_texts_are_labeled_as_all_of_them(monkeypatch, decides):
    texts, gold = clusters(n=300, n_classes=6)
    own = one_hot(texts.own, 6)
    start = fit_folds(texts.vectors, own, texts.folds)
    models = [fit_model(texts, power=p, care=2.0, start=start, rounds=1) for p in (0.0, 1.0)]
    tree = LabelTree(("a > 1", "a > 2", "b > 1", "b > 2", "c > 1", "c > 2"))
    rule = Argmax(
        decides=decides,
        model=models[0],
        vote=VoteModel(10, 2.0),
        bases=tuple(models),
        coefficients=np.array([0.0, 0.7, 1.0]),
    )
    rows = np.arange(40)
    judged = texts.with_judged(rows, gold[rows])
    # own texts first, then neighbors only
    judged = replace(
        judged, neighbors=judged.neighbors[:250], similarities=judged.similarities[:250]
    )
    kept = judged.own[:250]
    whole = rule.apply(judged, kept, tree)
    monkeypatch.setattr(argmax_module, "MOST_CELLS", 400)
    parts = rule.apply(judged, kept, tree)
    assert parts.first().tolist() == whole.first().tolist()
    assert parts.trust == pytest.approx(whole.trust, abs=1e-5, nan_ok=True)
    assert parts.level_trust == pytest.approx(whole.level_trust, abs=1e-5, nan_ok=True)
    assert parts.label.tolist() == whole.label.tolist()
    assert parts.chance == pytest.approx(whole.chance, abs=1e-5, nan_ok=True)


def test_models_of_older_versions_are_read():
    texts, gold = clusters(n=120, n_classes=3)
    start = fit_folds(texts.vectors, one_hot(texts.own, 3), texts.folds)
    base = fit_model(texts, power=0.0, care=2.0, start=start, rounds=1)
    taught = teach([base], texts.with_judged(np.arange(60), gold[:60])).model
    rule = Argmax(
        decides="head", model=taught, vote=VoteModel(10, 2.0), bases=(base,),
        coefficients=np.array([0.1, 0.7, 1.0]),
    )  # fmt: skip
    header, arrays = rule.packed()
    again = Argmax.unpacked(header, arrays)
    kept = texts.own
    assert again.apply(texts, kept).trust == pytest.approx(
        rule.apply(texts, kept).trust, nan_ok=True
    )
    # moves for each fold, none for the LLM's label, which had a care instead
    moves = np.random.default_rng(0).normal(size=(5, 17, 3)).astype(np.float16)
    older = {k: v for k, v in arrays.items() if k not in {"moved0", "answers0"}} | {"moves0": moves}
    by_fold = np.random.default_rng(1).normal(size=(5, 3))
    model = Argmax.unpacked(
        header | {"models": [[2.0, 0.0], [2.0, 0.0]]}, older | {"coefficients": by_fold}
    ).model
    seen = np.hstack([texts.vectors, np.ones((120, 1))]).astype(np.float64)
    odds = np.einsum("nd,ndc->nc", seen, moves[texts.folds].astype(np.float64))
    expected = base.rounded().probabilities(texts) * np.exp(odds)
    expected /= expected.sum(axis=1, keepdims=True)
    assert model.probabilities(texts) == pytest.approx(expected, abs=1e-3)
    assert (model.care, model.temper) == (2.0, 1.0)
    packed = replace(rule, model=model).packed()[1]
    assert np.array_equal(packed["moves0"], moves)


def test_thousands_of_labels_are_learned_from_fewer_texts_or_not_at_all():
    assert most_texts(77, 200_000) == 200_000
    assert most_texts(2_000, 200_000) == 20_000
    with pytest.raises(InvalidInputError, match="there are 10,000 labels"):
        most_texts(10_000, 200_000)
