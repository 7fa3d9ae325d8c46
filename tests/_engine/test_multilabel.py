"""Texts with several labels, over real sockets: from the prompt to results, files and services."""

from __future__ import annotations

import json
import pickle
import sqlite3
from contextlib import closing

import numpy as np
import orjson
import pytest

import testnuc
from bench._batch_api import Batches, BatchLLM
from testnuc import BatchPolicy, Limits, Results, Sampling, TestNUC, VotePolicy
from testnuc.errors import InvalidInputError, StoreError, UnreadableReplyError
from testnuc.labels import LabelSet, as_stored
from testnuc.prompts.reading import parse_reply
from testnuc.prompts.writing import system_prompt
from testnuc.protocols import Answer, Task
from testnuc.providers._answers import answer_schema, output_limit
from testnuc.providers._dialect import Structure
from testnuc.records import result_of
from testnuc.stores.memory import MemoryStore
from testnuc.testing import HashEmbedder, LoopbackLLM
from testnuc.types import Prediction
from tests import naive
from tests.conftest import LABELS, confident, gold, messages
from tests.doubles import Says

pytestmark = pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")

SEVERAL = LabelSet(LABELS, multilabel=True)


def labels_of(text: str) -> dict[str, float | None]:
    """Return the intent, a second one in half of the messages, and nothing in some."""
    number = int(text.rsplit(" ", 1)[1])
    if number % 10 == 7:
        return {}
    first = gold(text)
    second = LABELS[(LABELS.index(first) + 1) % len(LABELS)]
    return {first: 0.9} | ({second: 0.6} if number % 2 else {})


@pytest.fixture
def nuc_of(client_of):
    return lambda llm, **more: TestNUC(**client_of(llm, multilabel=True, **more))


# -- reply and label set ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        (
            '{"labels": [{"label": "a", "confidence": 0.9}, {"label": "b"}]}',
            [("a", 0.9), ("b", None)],
        ),
        ('{"labels": []}', []),
        ('{"labels": ["b", "a"], "confidence": 0.5}', [("b", 0.5), ("a", 0.5)]),
        ('{"labels": {"a": 0.9, "b": "20%"}}', [("a", 0.9), ("b", 0.2)]),
        ('{"labels": {"a": true, "b": false, "c": 1, "d": 0}}', [("a", None), ("c", 1.0)]),
        ('{"labels": [{"label": "a", "confidence": 0}, "b"]}', [("b", None)]),
        ('{"label": "a", "confidence": 0.9}', [("a", 0.9)]),
        ('Here [1] it is:\n```json\n{"Labels": ["a"]}\n```\nsee [0] above', [("a", None)]),
        ('Of ["a", "b", "c"]: {"labels": ["a"]}, and not ["b", "c"]', [("a", None)]),
        ('["a", "b"]', [("a", None), ("b", None)]),
        ('```\n["a", "b"]\n```', [("a", None), ("b", None)]),
        ('{"answers": [{"id": 1, "labels": ["a"]}]}', [("a", None)]),
    ],
)
def test_a_reply_with_several_labels_is_read(content, labels):
    (answer,) = parse_reply(content, 1, several=True)
    assert answer == Answer("", None, tuple(labels))


@pytest.mark.parametrize(
    "content",
    [
        "none", '{"labels": null}', '{"labels": [3, {}]}', "[]", "[[]]",
        'The options are ["a", "b"]. None applies.', '{"options": ["a", "b"]}',
        '{"labels": {"a": "yes", "b": "no"}}', '{"labels": {"a": 9, "b": 2}}',
    ],
)  # fmt: skip
def test_a_reply_without_a_list_of_labels_is_an_error(content):
    (answer,) = parse_reply(content, 1, several=True)
    assert isinstance(answer, UnreadableReplyError)


def test_packed_replies_are_matched_by_id():
    content = orjson.dumps(
        {"answers": [{"id": 2, "labels": []}, {"id": 1, "labels": [{"label": "a"}]}]}
    ).decode()
    assert parse_reply(content, 2, several=True) == (
        Answer("", None, (("a", None),)),
        Answer("", None, ()),
    )
    missing = parse_reply('{"answers": [{"id": 2, "labels": ["a"]}]}', 2, several=True)
    assert missing[1] == Answer("", None, (("a", None),))
    assert isinstance(missing[0], testnuc.errors.MismatchedReplyError)


def test_invented_labels_are_dropped_duplicates_merged_and_the_order_stays():
    pairs = (("Login", 0.4), ("weather", 0.9), ("refund", None), ("login", 0.7))
    made = SEVERAL.predicted(Answer("", None, pairs))
    assert made.labels == ("login", "refund")
    assert made.confidences == (0.7, None)
    assert made.unmatched == ("weather",)
    assert (made.label, made.confidence) == ("login; refund", None)
    assert made.said == "weather"
    stored = as_stored(made)
    assert (type(stored), stored.label) == (Prediction, "login; refund")
    assert SEVERAL.restored(stored) == made, "a store returns plain predictions"
    # what was stored with an older version is the answer verbatim
    older = Prediction(made.label, None, json.dumps(pairs))
    assert SEVERAL.restored(older) == made


def test_no_label_is_an_answer_and_only_invented_labels_abstain():
    none = SEVERAL.predicted(Answer("", None, ()))
    assert (none.label, none.labels) == ("", ())
    lost = SEVERAL.predicted(Answer("", None, (("weather", 0.9),)))
    assert (lost.label, lost.labels, lost.unmatched) == (None, (), ("weather",))


def test_the_prompt_of_one_label_is_as_it_was_and_of_several_asks_for_a_list():
    one, several = system_prompt(LabelSet(LABELS)), system_prompt(SEVERAL)
    assert "Select the one label" in one
    assert '{"labels": [{"label": "<label>", "confidence": <number>}, ..]}' in several
    task = Task("", SEVERAL.names, multilabel=True)
    schema = answer_schema(task, 1, Structure.ENUM)["properties"]["labels"]
    assert schema["type"] == "array"
    assert schema["items"]["properties"]["label"]["enum"] == LABELS
    longest = orjson.dumps({"labels": [{"label": name, "confidence": 0.123} for name in LABELS]})
    assert output_limit(task, 1, Structure.ENUM) > len(longest)


# -- runs ---------------------------------------------------------------------------------------


def check(results, policy="weighted", threshold=0.5):
    """Compare every result with the naive vote on its neighbors."""
    for result in results:
        voters = [(result.prediction, 1.0)]
        by_text = {r.text: r.prediction for r in results}
        voters += [(by_text[n.text], n.similarity) for n in result.neighbors]
        expected, _, count = naive.multilabel_vote(
            [
                (
                    [
                        (LABELS.index(label), None if c is None else naive.as_float32(c))
                        for label, c in zip(p.labels, p.confidences, strict=True)
                    ],
                    similarity,
                )
                for p, similarity in voters
            ],
            naive.PRESETS[policy],
            threshold,
        )
        assert list(result.shares.items()) == [
            (LABELS[label], share) for label, share, _ in expected
        ]
        assert result.labels == tuple(LABELS[label] for label, _, given in expected if given)
        assert result.voters == count
        assert result.label == "; ".join(result.labels)
        assert result.trusts == {label: result.shares[label] for label in result.labels}


@pytest.mark.slow
@pytest.mark.parametrize("model", ["openai/test", "anthropic/test"])
@pytest.mark.parametrize("per_call", [1, 4])
async def test_a_batch_votes_for_each_label(nuc_of, model, per_call):
    texts = messages(40)
    async with (
        LoopbackLLM(labels_of) as llm,
        nuc_of(llm, model=model, k=6, sampling=Sampling(texts_per_call=per_call)) as nuc,
    ):
        results = await nuc.classify_many([*texts, texts[0]])
        assert llm.calls == nuc.usage.calls == 40 // per_call
        again = await nuc.classify_many(texts)
        assert llm.calls == 40 // per_call
    assert [dict(zip(r.prediction.labels, r.prediction.confidences, strict=True)) for r in results][
        :40
    ] == [labels_of(text) for text in texts]
    check(results)
    assert results.label_lists == [list(r.labels) for r in results]
    assert results.labels == [r.label for r in results]
    assert results.changed == sum(r.changed for r in results) > 0
    assert again.label_lists == results.label_lists[:40]


@pytest.mark.slow
async def test_a_threshold_asks_for_a_vote_under_auto_too(nuc_of):
    texts = messages(30)
    async with LoopbackLLM(labels_of) as llm:
        found = {}
        for threshold in (0.2, 0.8):
            policy = VotePolicy("auto", threshold=threshold)
            async with nuc_of(llm, policy=policy, k=6) as nuc:
                found[threshold] = await nuc.classify_many(texts)
                check(found[threshold], threshold=threshold)
    most, least = (sum(map(len, found[t].label_lists)) for t in (0.2, 0.8))
    assert most > least


async def test_by_default_labels_stay_as_the_llm_gives_them(nuc_of):
    texts = messages(40)
    silent = texts[5]
    answers = {t: labels_of(t) for t in texts if t != silent}
    async with LoopbackLLM(answers) as llm:
        async with nuc_of(llm, k=6) as nuc:
            voted = await nuc.classify_many(texts)
        async with nuc_of(llm, policy="auto", k=6) as nuc:
            assert nuc.policy == VotePolicy.auto()
            results = await nuc.classify_many(texts)
            streamed = {r.index: r async for r in nuc.stream(texts)}
            # other texts of the pool are not asked about
            await nuc.add([f"{text} please" for text in texts])
            assert (await nuc.estimate(["a new parcel 3"])).calls == 1
            calls = nuc.usage.calls
            await nuc.classify(texts[3])
            assert nuc.usage.calls == calls
    assert voted.changed > 1
    assert results.changed == 0
    assert f"would change those of {voted.changed} of 40 texts" in results.notes[0]
    assert not voted.notes
    for result, other in zip(results, voted, strict=True):
        assert dict(result.shares) == dict(other.shares)
        assert streamed[result.index].labels == result.labels
        assert streamed[result.index].trusts == result.trusts
        if result.text == silent:
            assert (result.labels, result.source) == (other.labels, "vote")
        else:
            assert set(result.labels) == set(labels_of(result.text))
            assert (result.source, result.reason.code) == ("llm", "llm_kept")
            assert dict(result.trusts) == {label: result.shares[label] for label in result.labels}


async def test_labels_outside_the_set_are_counted_and_only_they_abstain(nuc_of):
    texts = messages(12)
    answers = {t: dict(labels_of(t)) for t in texts}
    answers[texts[0]] = {"weather": 0.9, "refund": 0.8}
    answers[texts[1]] = {"weather": 0.9}
    async with LoopbackLLM(answers) as llm, nuc_of(llm, k=3) as nuc:
        results = await nuc.classify_many(texts)
    assert [r.index for r in results.unmatched] == [0, 1]
    assert "answers outside the labels, most often: 'weather' (2)" in results.summary()
    assert results[0].prediction.labels == ("refund",)
    assert results[1].own_label is None
    assert results[1].voters == 3, "its neighbors vote without it"
    assert "outside the label set, not counted: 'weather'" in results[0].explain()


async def test_a_failed_call_is_voted_on_by_the_neighbors(nuc_of):
    texts = messages(12)
    answers = {t: labels_of(t) for t in [*texts[:5], *texts[6:]]}
    async with LoopbackLLM(answers) as llm, nuc_of(llm, k=3) as nuc:
        results = await nuc.classify_many(texts)
    assert results[5].prediction is None
    assert results[5].error is not None
    assert results[5].voters == 3
    assert results[5].label is not None


async def test_known_labels_vote_without_a_call(nuc_of):
    texts = messages(12)
    async with LoopbackLLM(labels_of) as llm, nuc_of(llm, k=3) as nuc:
        await nuc.add(texts[:2], [["refund", "login"], []])
        with pytest.raises(InvalidInputError, match=r"labels 0 are 'refund'; with multilabel=True"):
            await nuc.add(texts[:1], ["refund"])
        with pytest.raises(InvalidInputError, match=r"labels 1 are \['weather'\]"):
            await nuc.add(texts[:2], [[], ["weather"]])
        results = await nuc.classify_many(texts)
        assert llm.calls == 10
    assert [r.prediction.labels for r in results[:2]] == [("refund", "login"), ()]
    assert results[0].prediction.confidences == (1.0, 1.0)


async def test_the_batch_lane_reads_lists(nuc_of):
    texts = messages(20)
    policy = BatchPolicy(max_requests=100, first_poll=0.001, longest_poll=0.002)
    async with (
        BatchLLM(labels_of, batches=Batches(validation=2, polls=2)) as llm,
        nuc_of(llm, limits=Limits(batches=policy), k=3, store=MemoryStore()) as nuc,
    ):
        results = await nuc.classify_many(texts, lane="batch")
    assert [
        dict(zip(r.prediction.labels, r.prediction.confidences, strict=True)) for r in results
    ] == [labels_of(text) for text in texts]


async def test_a_custom_provider_answers_with_labels(nuc_of):
    wrong = Says(lambda _: {"refund": 7.0})
    async with LoopbackLLM(confident) as llm:
        async with nuc_of(llm, model=Says(labels_of), base_url=None, api_key=None, k=6) as nuc:
            check(await nuc.classify_many(messages(20)))
        async with nuc_of(llm, model=wrong, base_url=None, api_key=None, k=0) as nuc:
            with pytest.raises(testnuc.errors.ReplyError, match=r"confidence is 7\.0"):
                await nuc.classify("where is my parcel")


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"none_label": "other"}, "none_label is 'other'"),
        ({"labels": ["a; b", "c"]}, "label 'a; b' contains '; '"),
        ({"labels": []}, "labels is empty"),
        ({"multilabel": "yes"}, "multilabel is 'yes'"),
        ({"method": testnuc.SelfConsistency(n=3)}, "only StandardPrompting"),
        ({"method": testnuc.TopKICL()}, "only StandardPrompting"),
        ({"sampling": Sampling(confidence="logprobs")}, "confidence is 'logprobs'"),
        ({"sampling": Sampling(score_labels=True)}, "score_labels is True"),
        ({"model": "local/zero-shot", "base_url": None}, "gives one label"),
        ({"policy": VotePolicy(prior="balanced")}, "prior is 'balanced'"),
        ({"policy": VotePolicy.auto(min_trust=0.7)}, "min_trust is 0.7"),
        ({"labeler": testnuc.UncertaintySampling()}, "labeler is UncertaintySampling"),
        ({"referee": testnuc.Referee("openai/better", 0.1)}, "escalate is 0.1"),
    ],
)
async def test_what_needs_one_label_is_refused_before_any_call(nuc_of, client_of, more, match):
    async with LoopbackLLM(labels_of) as llm:
        with pytest.raises(InvalidInputError, match=match):
            TestNUC(**client_of(llm, **{"multilabel": True, **more}))
        with pytest.raises(InvalidInputError, match="set multilabel=True"):
            TestNUC(**client_of(llm, policy=VotePolicy(threshold=0.3)))
        async with nuc_of(llm) as nuc:
            with pytest.raises(InvalidInputError, match="does not support multilabel=True"):
                await nuc.diagnose()
        assert llm.calls == 0


async def test_one_label_alone_can_apply_or_not(nuc_of):
    async with (
        LoopbackLLM(lambda text: {"refund": 0.9} if "money" in text else {}) as llm,
        nuc_of(llm, labels=["refund"], k=0) as nuc,
    ):
        results = await nuc.classify_many(["my money", "a parcel"])
    assert results.label_lists == [["refund"], []]
    assert results.labels == ["refund", ""]


# -- files, frames, services --------------------------------------------------------------------


async def test_results_are_written_and_read_back(nuc_of, tmp_path):
    texts = messages(20)
    answers = {t: labels_of(t) for t in texts} | {texts[3]: {"weather": 0.5, "login": 0.5}}
    async with LoopbackLLM(answers) as llm, nuc_of(llm, k=3) as nuc:
        results = await nuc.classify_many(texts)
    results.to_jsonl(tmp_path / "results.jsonl")
    lines = list(map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines()))
    assert lines[1]["nuc_labels"] == list(results[1].labels)
    assert lines[1]["nuc_shares"] == pytest.approx(dict(results[1].shares), abs=1e-6)
    read = Results.from_jsonl(tmp_path / "results.jsonl")
    assert read.label_lists == results.label_lists
    assert [r.prediction.labels for r in read] == [r.prediction.labels for r in results]
    assert [r.prediction.unmatched for r in read] == [r.prediction.unmatched for r in results]
    assert [r.label for r in read] == [r.label for r in results]
    assert read.summary() == results.summary()


def test_an_answer_that_an_older_file_holds_as_json_is_read():
    record = {
        "text": "a",
        "nuc_label": "login",
        "nuc_labels": ["login"],
        "nuc_own_label": "login",
        "nuc_own_labels": ["login"],
        "nuc_own_confidences": [0.5],
        "nuc_own_said": '[["login",0.5],["weather",0.5]]',
    }
    older = result_of(record, 0, "text").prediction
    assert (older.unmatched, older.said) == (("weather",), "weather")
    assert result_of({**record, "nuc_own_said": "weather"}, 0, "text").prediction == older


def test_labels_that_a_person_edited_in_a_file_count():
    record = {"text": "a", "nuc_label": "login; refund", "nuc_labels": ["login"]}
    edited = result_of(record, 0, "text")
    assert (edited.label, edited.labels) == ("login; refund", ("login", "refund"))


async def test_frames_hold_lists_and_strings(nuc_of):
    pytest.importorskip("pandas")
    pytest.importorskip("polars")
    async with LoopbackLLM(labels_of) as llm, nuc_of(llm, k=3) as nuc:
        results = await nuc.classify_many(messages(12))
    for frame in (results.to_pandas(), results.to_polars()):
        assert list(map(list, frame["labels"])) == results.label_lists
        assert list(frame["label"]) == results.labels


async def test_the_service_answers_lists(nuc_of):
    pytest.importorskip("prometheus_client")
    from jsonschema import Draft202012Validator as Draft

    from tests.server.serving import served

    texts = messages(12)
    async with LoopbackLLM(labels_of) as llm:
        nuc = nuc_of(llm, k=3)
        async with served(nuc) as (_, session):
            body = {"texts": [*texts, ""], "explain": True}
            async with session.post("/v1/classify", json=body) as response:
                answered = (await response.json())["results"]
            async with session.get("/openapi.json") as response:
                document = await response.json()
    schemas = document["components"]["schemas"]
    items = schemas["Result"]["properties"]["labels"]["items"]
    assert items == {"$ref": "#/components/schemas/Label"}
    assert schemas["Label"] == {"enum": LABELS}
    schema = {"$ref": "#/components/schemas/Result", "components": document["components"]}
    for result in answered[:12]:
        Draft(schema).validate(result)
        assert result["label"] == "; ".join(result["labels"])
        assert set(result["labels"]) <= set(result["shares"])
        assert result["own"]["labels"] == list(labels_of(result["text"]))
    assert answered[12]["error"]["type"] == "invalid_input"
    # a refused text has the fields of the others
    assert (answered[12]["labels"], answered[12]["shares"]) == ([], {})


def test_the_classifier_of_scikit_learn_takes_and_gives_indicator_matrices():
    metrics = pytest.importorskip("sklearn.metrics")
    from sklearn.base import clone

    from testnuc.sklearn import TestNUCClassifier

    texts, order = messages(30), sorted(LABELS)
    gold = np.array([[label in labels_of(text) for label in order] for text in texts], int)
    with LoopbackLLM(labels_of) as llm:
        classifier = TestNUCClassifier(
            LABELS,
            model="openai/test",
            base_url=llm.base_url,
            embedder=HashEmbedder(),
            k=3,
            policy="weighted",
            multilabel=True,
        )
        with pytest.raises(InvalidInputError, match=r"y has the shape \(30,\)"):
            classifier.fit(texts, gold[:, 0])
        predicted = classifier.fit(texts, gold).predict(texts)
        shares = classifier.predict_proba(texts)
        copy = pickle.loads(pickle.dumps(classifier))
        assert (copy.predict(texts) == predicted).all()
        classifier.close()
        copy.close()
        # by default the correct labels are learned, and win
        learned = clone(classifier).set_params(policy="auto").fit(texts, 1 - gold)
        assert (learned.predict(texts) == 1 - gold).all()
        learned.close()
        assert llm.calls == 60
    assert classifier.classes_.tolist() == order
    assert ((shares > 0.5) <= (predicted == 1)).all()
    assert ((shares >= 0.5) >= (predicted == 1)).all()
    assert 0 < metrics.f1_score(gold, predicted, average="micro") < 1


@pytest.mark.parametrize(
    "said", ['[["a"]]', '{"a":1}', "[5]", "[[[", "\0", "[" * 3_000, '[["a","x"]]', "[[1,0.5]]", "5"]
)
async def test_a_damaged_answer_is_an_error_of_the_store(nuc_of, tmp_path, said):
    texts = messages(10)
    async with LoopbackLLM(labels_of) as llm:
        async with nuc_of(llm, store=tmp_path / "s.db") as nuc:
            await nuc.classify_many(texts)
        with closing(sqlite3.connect(tmp_path / "s.db")) as store:
            store.execute("UPDATE predictions SET said = ?", (said,))
            store.commit()
        async with nuc_of(llm, store=tmp_path / "s.db") as nuc:
            try:
                stopped = (await nuc.classify_many(texts)).stopped
            except StoreError as error:
                stopped = error
            assert isinstance(stopped, StoreError)
