"""The classifier in scikit-learn's hands."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import testnuc
from testnuc.protocols import Answer, Reply, TokenUsage
from testnuc.sklearn import TestNUCClassifier
from testnuc.testing import HashEmbedder, LoopbackLLM
from tests.conftest import LABELS, confident, gold, messages

TEXTS = messages(60)
NEW = messages(90)[60:]


class Numbers:
    """Stands for an LLM that labels numbers by their sum; what it says depends on nothing else."""

    name = "test"
    model = "numbers"
    identity = "1"

    # tests are named by it
    def __repr__(self):
        return "Numbers()"

    async def answer(self, request):
        names = request.task.labels
        sums = [sum(map(float, text.split())) for text in request.texts]
        return Reply(tuple(Answer(names[int(s) % len(names)], 0.9) for s in sums), TokenUsage(0, 0))


class Coordinates:
    """Embeds numbers as what they are; has no state that a fit could change."""

    name = "coordinates"
    dim = 12

    def __repr__(self):
        return "Coordinates()"

    async def embed(self, texts):
        vectors = np.ones((len(texts), self.dim), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            numbers = np.array(text.split(), np.float32)[: self.dim - 1]
            row[1 : 1 + len(numbers)] = numbers
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class OnNumbers(TestNUCClassifier):
    """Writes rows of numbers as texts: scikit-learn's checks have nothing else to give."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.string = False
        tags.input_tags.two_d_array = True
        tags.target_tags.required = True
        tags.non_deterministic = False
        return tags

    def fit(self, X, y):  # noqa: N803 - scikit-learn's name
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        return super().fit(self._written(X), y)

    def results(self, X):  # noqa: N803
        return super().results(self._written(X))

    def _written(self, rows):
        return [" ".join(map(str, row)) for row in np.asarray(rows).tolist()]


NO_COLUMNS = "texts have no columns to count, to name or to compare between fit and predict"
ANY_TEXT = "the numbers were written as texts, and any text can be labeled"
EXPECTED = {
    "check_n_features_in": NO_COLUMNS,
    "check_n_features_in_after_fitting": NO_COLUMNS,
    "check_estimators_empty_data_messages": NO_COLUMNS,
    "check_fit1d": NO_COLUMNS,
    "check_fit2d_predict1d": NO_COLUMNS,
    "check_estimators_nan_inf": ANY_TEXT,
    "check_dtype_object": ANY_TEXT,
    "check_estimator_sparse_tag": ANY_TEXT,
    "check_estimator_sparse_array": ANY_TEXT,
    "check_estimator_sparse_matrix": ANY_TEXT,
    "check_classifiers_train": "an LLM does not learn from y, so it need not be right on X",
}


@parametrize_with_checks(
    [OnNumbers(model=Numbers(), embedder=Coordinates(), policy="weighted", k=3)],
    expected_failed_checks=lambda estimator: EXPECTED,
    xfail_strict=True,
)
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture
def llm():
    with LoopbackLLM(confident) as server:
        yield server


def classifier(llm, **more):
    given = {"embedder": HashEmbedder(), "policy": "weighted", "k": 5, **more}
    return TestNUCClassifier(LABELS, model="openai/x", base_url=llm.base_url, **given)


async def test_fit_predicts_as_classify_many_does_also_inside_a_running_loop(llm):
    fitted = classifier(llm).fit(pd.Series(TEXTS))
    assert llm.calls == len(TEXTS)
    assert fitted.classes_.tolist() == sorted(LABELS)
    predicted = fitted.predict(TEXTS)
    assert llm.calls == len(TEXTS)
    async with testnuc.TestNUC(
        LABELS, "openai/x", base_url=llm.base_url, embedder=HashEmbedder(), policy="weighted", k=5
    ) as nuc:
        expected = await nuc.classify_many(TEXTS)
    assert predicted.tolist() == expected.labels
    shares = fitted.predict_proba(TEXTS)
    assert shares.shape == (len(TEXTS), 3)
    assert shares.sum(axis=1) == pytest.approx(1)
    assert shares.max(axis=1) == pytest.approx([r.share for r in expected])
    calls = llm.calls
    assert fitted.predict(np.array(NEW)).tolist() == [gold(text) for text in NEW]
    # a new text costs its own call, and its label does not depend on its company
    assert llm.calls == calls + len(NEW)
    assert [fitted.predict([text])[0] for text in NEW[:5]] == [gold(text) for text in NEW[:5]]
    assert fitted.usage_.calls == len(TEXTS) + len(NEW)
    assert fitted.results(NEW[:2])[1].neighbors[0].text in TEXTS
    fitted.close()


def test_labels_come_from_y_and_keep_their_type(llm):
    numbers = {name: i + 10 for i, name in enumerate(LABELS)}
    with LoopbackLLM(lambda text: str(numbers[gold(text)])) as server:
        fitted = classifier(server).set_params(labels=None)
        fitted.fit(TEXTS, [numbers[gold(text)] for text in TEXTS])
        assert fitted.classes_.tolist() == [10, 11, 12]
        assert fitted.predict(NEW).tolist() == [numbers[gold(text)] for text in NEW]
        assert fitted.score(NEW, [numbers[gold(text)] for text in NEW]) == 1.0


@pytest.mark.slow
def test_labels_choose_how_votes_weigh_only_where_that_is_left_open(llm):
    texts = messages(300)
    labels = [gold(text) if i % 3 else None for i, text in enumerate(texts)]
    auto = classifier(llm, policy="auto", k=None).fit(texts, labels)
    learned = auto.learned_
    assert sum(j.source == "person" for j in learned.judged) == 200
    assert learned.texts == 300
    assert auto.predict(NEW).tolist() == [gold(text) for text in NEW]
    assert classifier(llm).fit(texts, labels).learned_ is None
    # without labels, the predictions decide; too few of them cause a warning
    assert classifier(llm, policy="auto", k=None).fit(texts).learned_ is None
    with pytest.warns(testnuc.SmallPoolWarning, match="60 predictions"):
        classifier(llm, policy="auto", k=None).fit(TEXTS)


@pytest.mark.slow
def test_pipelines_searches_and_clones(llm, tmp_path):
    strip = FunctionTransformer(lambda texts: [text.strip() for text in texts])
    steps = [("strip", strip), ("vote", None)]
    pipeline = Pipeline(steps).set_params(vote=classifier(llm, store=tmp_path / "labels.db"))
    y = [gold(text) for text in TEXTS]
    search = GridSearchCV(pipeline, {"vote__k": [1, 5], "vote__policy": ["majority", "weighted"]})
    search.fit(TEXTS, y)
    assert search.best_score_ == 1.0
    # folds and candidates share the store: each text was billed once
    assert llm.calls == len(TEXTS)
    assert cross_val_predict(pipeline, TEXTS, y, cv=3).tolist() == y
    assert llm.calls == len(TEXTS)
    copy = clone(pipeline.named_steps["vote"])
    with pytest.raises(NotFittedError):
        copy.predict(TEXTS)


@pytest.mark.slow
@pytest.mark.parametrize("stored", [True, False])
def test_a_pickled_classifier_has_all_that_was_paid_for(llm, tmp_path, stored):
    store = tmp_path / "labels.db" if stored else None
    given = {"policy": "auto", "k": None, "store": store}
    texts = messages(240)
    fitted = classifier(llm, **given).fit(texts, [gold(text) for text in texts])
    expected = fitted.predict_proba(texts)
    calls = llm.calls
    again = pickle.loads(pickle.dumps(fitted))
    fitted.close()
    assert (again.predict_proba(texts) == expected).all()
    assert again.learned_.judged == fitted.learned_.judged
    assert llm.calls == calls
    assert "key" not in repr(again)


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, pd.NaT])
def test_texts_without_a_label_are_not_learned_from(llm, missing):
    fitted = classifier(llm, policy="auto").fit(TEXTS, [*map(gold, TEXTS[:59]), missing])
    assert len(fitted.learned_.judged) == 59


def test_errors_are_raised_before_anything_is_sent(llm):
    fine = classifier(llm)
    for texts, labels, message in (
        ("one text", None, "X is 'one text'; give a list"),
        ([], None, "X has no text"),
        (["a", ""], None, "text 1 is empty"),
        (np.zeros((3, 2)), None, r"X has shape \(3, 2\)"),
        ([["a"], ["b"]], None, "text 0 is not a string but list"),
        (np.array([[["a"]]]), None, "text 0 is not a string but ndarray"),
        (None, None, "text 0 is not a string but NoneType"),
        (np.array("a"), None, "X is a ndarray"),
        (TEXTS, LABELS, "60 texts and y has 3 labels"),
        (TEXTS, ["weather"] * 60, "label 0 is 'weather'"),
    ):
        with pytest.raises(testnuc.InvalidInputError, match=message):
            fine.fit(texts, labels)
    with pytest.raises(testnuc.InvalidInputError, match="y has no label"):
        classifier(llm).set_params(labels=None).fit(TEXTS)
    with pytest.raises(testnuc.InvalidInputError, match="k is -1"):
        fine.set_params(k=-1).fit(TEXTS)
    assert llm.requests == 0


def test_a_text_without_a_label_is_no_class(llm):
    def answer(text):
        if "number 7" in text:
            return None
        return "weather" if "number 8" in text else gold(text)

    with LoopbackLLM(answer) as server:
        fitted = classifier(server, k=0).fit(TEXTS[10:])
        with pytest.raises(testnuc.ProviderError, match="400"):
            fitted.predict(TEXTS[:8])
        with pytest.raises(testnuc.TestNUCError, match="none_label='other'"):
            fitted.predict(TEXTS[8:9])
        assert fitted.predict(TEXTS[:7]).tolist() == [gold(text) for text in TEXTS[:7]]
        other = classifier(server, k=0, none_label="other").fit(TEXTS[10:])
        assert other.predict(TEXTS[8:9]).tolist() == ["other"]
        assert other.predict_proba(TEXTS[8:9])[0, other.classes_ == "other"] == 1.0


def test_threads_end_with_the_classifier(llm):
    def running():
        return {t for t in threading.enumerate() if t.name == "testnuc-sklearn"}

    before = running()
    fitted = classifier(llm).fit(TEXTS)
    fitted.fit(TEXTS[:30])
    (thread,) = running() - before
    fitted.close()
    assert not thread.is_alive()
    fitted.fit(TEXTS[:30])
    (thread,) = running() - before
    del fitted
    thread.join(10)
    assert not thread.is_alive()


SCRIPT = """
import sys
from testnuc.sklearn import TestNUCClassifier
from testnuc.testing import HashEmbedder
url, store = sys.argv[1:]
fitted = TestNUCClassifier(
    ["refund", "delivery", "login"], model="openai/x", base_url=url, store=store,
    embedder=HashEmbedder(), policy="weighted", k=1,
).fit(["money back", "delivery late", "password wrong"])
print(*fitted.predict(["money back"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("last", ["", "del fitted"])
def test_a_script_that_closes_nothing_ends_in_silence(llm, tmp_path, monkeypatch, last):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    store = tmp_path / "labels.db"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + last, llm.base_url, store],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "refund\n", "")
    # the last to close folds the log into the file
    assert [p.name for p in tmp_path.iterdir()] == ["labels.db"]


FORK = """
import multiprocessing
def child():
    try:
        fitted.predict(["money back"])
    except Exception as exc:
        print(exc)
forked = multiprocessing.get_context("fork").Process(target=child)
forked.start()
forked.join()
print(forked.exitcode)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="platform: there is no fork")
def test_a_forked_process_waits_for_no_thread_that_it_has_not(llm, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + FORK, llm.base_url, tmp_path / "labels.db"],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    before, problem, code = done.stdout.splitlines()
    assert (before, code) == ("refund", "0"), done.stderr
    assert "create one in the child process" in problem
