"""Pickles of version 0.1.0 load: classes that moved since are found under their old names.

``tests/data/classifier_0_1_0.pickle.gz`` was made with version 0.1.0 by::

    words = {"refund": "money back", "delivery": "parcel late", "login": "password wrong"}
    texts = [f"{said} number {i}" for i in range(30) for said in words.values()]

    def answer(text):
        right = next(label for label, said in words.items() if text.startswith(said))
        return ("login" if int(text.rsplit(" ", 1)[1]) % 5 == 0 else right), 0.9

    with LoopbackLLM(answer) as llm:
        classifier = TestNUCClassifier(
            list(words), model="openai/test", base_url=llm.base_url,
            embedder=HashEmbedder(dim=16), method=SelfConsistency(n=2),
        )
        classifier.fit(texts, list(words) * 30)
        path.write_bytes(gzip.compress(pickle.dumps(classifier)))
"""

from __future__ import annotations

import gzip
import importlib
import pickle
from pathlib import Path

import pytest

import testnuc
from testnuc.trust import VoteSettings

pytest.importorskip("sklearn")

DATA = Path(__file__).parent / "data"
LABELS = ["refund", "delivery", "login"]
WORDS = ["money back", "parcel late", "password wrong"]
TEXTS = [f"{said} number {i}" for i in range(30) for said in WORDS]


def test_a_classifier_predicts_what_it_did_without_a_call():
    data = gzip.decompress((DATA / "classifier_0_1_0.pickle.gz").read_bytes())
    for name in ("trust.counting", "methods.self_consistency", "protocols", "results"):
        assert f"testnuc.{name}".encode() in data
    # of the test's own making: nothing else may be unpickled
    classifier = pickle.loads(data)
    try:
        # its server is gone: a call would raise
        assert classifier.predict(TEXTS).tolist() == LABELS * 30
        results = classifier.results(TEXTS)
        assert sum(r.changed for r in results) == 12
        assert {r.prediction.confidence for r in results} == {1.0}
        assert classifier.usage_.calls == 0
        assert classifier.method == testnuc.SelfConsistency(n=2)
        assert classifier.learned_ is None
        again = pickle.loads(pickle.dumps(classifier))
        assert again.predict(TEXTS).tolist() == LABELS * 30
        again.close()
    finally:
        classifier.close()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("trust.counting", "Counting"),
        ("trust.calibrating", "Calibration"),
        ("trust.reviewing", "Review"),
        ("trust.tuning", "Tuning"),
        ("protocols", "StoredPrediction"),
        ("results", "Prediction"),
        ("results", "Classification"),
        ("methods.standard", "StandardPrompting"),
        ("methods.self_consistency", "SelfConsistency"),
        ("methods.best_of_n", "WeightedBestOfN"),
        ("methods.topk_icl", "TopKICLP"),
    ],
)
def test_old_names_are_found(module, name):
    found = getattr(importlib.import_module(f"testnuc.{module}"), name)
    renamed = {"Counting": VoteSettings, "Review": testnuc.ReviewReason}
    current = renamed.get(name) or getattr(testnuc, name, found)
    assert found is current


def test_states_with_fewer_fields_get_the_defaults_of_the_others():
    settings = VoteSettings.__new__(VoteSettings)
    # the last one was a calibration
    settings.__setstate__([None, 30, True, False, None, 0.5, 0.2, len])
    assert (settings.k, settings.prior_power, settings.min_trust) == (30, 0.5, 0.2)
    assert settings.decision is settings.learned is None
    policy = testnuc.VotePolicy.filtered()
    old = testnuc.VotePolicy.__new__(testnuc.VotePolicy)
    old.__setstate__(["similarity", 0.7, None, 1.0, policy.fields])
    assert old == policy
