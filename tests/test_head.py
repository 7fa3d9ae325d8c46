"""A head in a file: distilled from a client, loaded, refused, in front of an LLM."""

from __future__ import annotations

import asyncio
import copy
import csv
import gc
import io
import pickle
import threading
import zipfile
from pathlib import Path

import numpy as np
import orjson
import pandas as pd
import pyarrow as pa
import pytest

from testnuc import Head, InvalidInputError, TestNUC, embedders
from testnuc.cli.memory import RunNote
from testnuc.head import TrainedOn
from testnuc.testing import HashEmbedder, LoopbackLLM
from testnuc.trust.calibration import SetRule
from tests import naive
from tests._engine.test_learning import (
    LABELS,
    Clustered,
    Says,
    accuracy,
    client,
    gold,
    judge,
    texts_of,
)
from tests.cli.in_process import ran, run_here

CLASSES, DIM = 5, 8
ON = TrainedOn(100, 0, "some/model", "2026-01-01", "its own", 0.9, "agreement with the labels")


class Wide(Clustered):
    """Has as many dimensions as a small head."""

    name, dim = "wide", DIM

    async def embed(self, texts):
        return (await super().embed(texts))[:, :DIM]


def small(seed=0, **more):
    random = np.random.default_rng(seed)
    weights = random.normal(size=(DIM + 1, CLASSES)).astype(np.float32)
    given = {"embedder": "clustered", "trained_on": ON}
    return Head([f"l{c}" for c in range(CLASSES)], weights, (0.3, 0.8), **(given | more))


async def distilled(path, *, judged=0):
    model = Says()
    async with client(model, policy="majority", k=0) as nuc:
        await nuc.classify_many(texts_of(600))
        if judged:
            review = await nuc.review(judged, "certify")
            judge(review)
            await nuc.learn(review)
        calls = len(model.asked)
        made = await nuc.distill(path)
        assert len(model.asked) == calls
    return made


def test_vectors_are_labeled_as_by_the_formula():
    head = small()
    vectors = np.random.default_rng(1).normal(size=(5_000, DIM)).astype(np.float16)
    labels = head.labels_of(vectors)
    for row in (0, 1, 4_095, 4_096, 4_999):
        label, chance = naive.head_of(vectors[row].tolist(), head.weights.tolist(), head.curve)
        assert labels.label[row] == label
        assert labels.trust[row] == pytest.approx(chance, abs=1e-3)
    assert len(head.labels_of(vectors[:0])) == 0
    with pytest.raises(InvalidInputError, match=r"takes \[n, 8\]"):
        head.labels_of(vectors[:, :3])


def test_columns_of_data_frames_are_texts_and_the_frames_are_not():
    head = small()
    head = Head(head.labels, head.weights, head.curve, embedder=Wide(), trained_on=ON)
    texts = texts_of(20)
    expected = head.predict(texts).labels
    for column in (pa.array(texts), pa.chunked_array([texts[:7], texts[7:]]), pd.Series(texts)):
        assert head.predict(column).labels == expected
        assert head.probabilities(column).shape == (20, CLASSES)
    for table in (pd.DataFrame({"text": texts}), pa.table({"text": texts})):
        # the names of its columns were labeled
        with pytest.raises(InvalidInputError, match="give one of its columns"):
            head.predict(table)


async def test_a_distilled_head_labels_new_texts_without_an_llm(tmp_path):
    path = tmp_path / "topics.head"
    made = await distilled(path)
    assert made.trained_on.texts == 600
    assert made.certificate is None
    assert "LLM's own" in str(made)
    head = Head.load(path, Clustered())
    new = texts_of(600, 5_000)
    results = head.predict(new)
    # the labels that it was trained on are right in seven of ten texts
    assert accuracy(results) > 0.9
    assert {row.source for row in results} == {"head"}
    assert results.usage.calls == 0
    assert results.labels == made.predict(new).labels
    assert all(0 < row.trust < 1 for row in results)


@pytest.mark.slow
async def test_judged_texts_calibrate_trust_and_certify(tmp_path):
    made = await distilled(tmp_path / "judged.head", judged=200)
    read = Head.load(tmp_path / "judged.head", Clustered())
    assert read.trained_on.calibrated_on == "judged texts"
    assert read.trained_on.judged == 200
    assert read.certificate == made.certificate
    assert read.certificate.coverage >= 0.3
    assert read.least_trust == read.certificate.trust
    results = read.predict(texts_of(600, 9_000))
    assert np.mean([r.trust for r in results]) == pytest.approx(accuracy(results), abs=0.06)


async def test_distill_needs_predictions(tmp_path):
    async with client(Says()) as nuc:
        with pytest.raises(InvalidInputError, match="label at least 50 first"):
            await nuc.distill(tmp_path / "x.head")
    assert not (tmp_path / "x.head").exists()


def test_damaged_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "a.head"
    small().save(path)
    whole = path.read_bytes()
    for at in range(0, len(whole), 13):
        path.write_bytes(whole[:at])
        with pytest.raises(InvalidInputError):
            Head.load(path)
    weights = whole.index(b"\x93NUMPY") + 150
    path.write_bytes(whole[:weights] + bytes([whole[weights] ^ 255]) + whole[weights + 1 :])
    with pytest.raises(InvalidInputError, match="damaged"):
        Head.load(path)
    # the compression method in the directory of the archive
    method = whole.index(b"PK\x01\x02") + 10
    path.write_bytes(whole[:method] + b"\x63" + whole[method + 1 :])
    with pytest.raises(InvalidInputError, match="damaged"):
        Head.load(path)
    for wrong in ({"curve": "x"}, {"curve": [1.0]}, {"embedder": 5}):
        with np.load(io.BytesIO(whole)) as file:
            header = orjson.dumps(orjson.loads(file["header"].tobytes()) | wrong)
            np.savez(
                tmp_path / "w.npz", weights=file["weights"], header=np.frombuffer(header, "u1")
            )
        with pytest.raises(InvalidInputError, match="damaged"):
            Head.load(tmp_path / "w.npz")
    for huge in ({"weights": np.full_like(small().weights, 3e38)}, {"curve": (-1e39, 1.0)}):
        head = small()
        vars(head).update(huge)
        # a product with a text would be infinite, and trust no number
        head.save(tmp_path / "huge.head")
        with pytest.raises(InvalidInputError, match="damaged"):
            Head.load(tmp_path / "huge.head")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        Head.load(tmp_path / "missing.head")
    np.savez(path.with_suffix(".npz"), other=np.zeros(3))
    with pytest.raises(InvalidInputError, match="damaged, or is not a head"):
        Head.load(path.with_suffix(".npz"))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InvalidInputError, match=r"not a head from `distill`$"):
        Head.load(tmp_path / "objects.npy")
    (tmp_path / "labels.json").write_text('["refund"]')
    with pytest.raises(InvalidInputError, match=r"not a head from `distill`$"):
        Head.load(tmp_path / "labels.json")


def parts_of(path):
    with np.load(path) as file:
        return orjson.loads(file["header"].tobytes()), file["weights"]


def array_of(shape, content=b"", kind="<f4"):
    """Return an array whose header declares any shape."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


def archive(path, header, weights, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("header.npy", header)
        file.writestr("weights.npy", weights)


@pytest.mark.parametrize(
    "shape", ["(10000000000000,)", "(100000, 100000000)", "(-1, 4)", "(2, 10000000000)", "(0, 4)"]
)
def test_a_shape_that_the_file_does_not_hold_is_refused(tmp_path, shape):
    path = tmp_path / "a.head"
    small().save(path)
    header = orjson.dumps(parts_of(path)[0])
    head = array_of(f"({len(header)},)", header, "|u1")
    archive(path, head, array_of(shape, bytes(64)))
    with pytest.raises(InvalidInputError, match="damaged"):
        Head.load(path)


def test_a_compressed_head_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "bomb.head"
    archive(path, array_of("(100000000,)", bytes(100_000_000), "|u1"), b"", zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 200_000
    monkeypatch.setattr(zipfile.ZipFile, "open", None)
    with pytest.raises(InvalidInputError, match="damaged"):
        Head.load(path)


def test_any_value_of_the_header_is_refused_or_works(tmp_path):
    """No other error than the one that names the file, and trust that is a number."""
    path, wrong = tmp_path / "a.head", tmp_path / "b.head"
    small().save(path)
    header, weights = parts_of(path)
    values = (None, 5, -1, 1e400, "x", [], {}, [[1]], [None, None], ["a", "a"], ["a", 5], {"a": 1})
    for name in header:
        for value in values:
            raw = orjson.dumps({**header, name: value})
            np.savez(wrong, weights=weights, header=np.frombuffer(raw, "u1"))
            wrong.with_name("b.head.npz").replace(wrong)
            try:
                found = Head.load(wrong, Clustered() if name == "loadable" else None)
            except InvalidInputError:
                continue
            assert str(found)
            assert np.isfinite(found.labels_of(np.ones((2, found.dim))).trust).all()


async def test_answers_of_one_head_are_not_those_of_another(tmp_path):
    """As a model: two heads of the same day, trained on the same LLM."""
    embedder, texts = HashEmbedder(DIM), texts_of(60)
    one, two = small(seed=0, embedder=embedder), small(seed=1, embedder=embedder)
    expected = [await asyncio.to_thread(head.predict, texts) for head in (one, two)]
    assert expected[0].labels != expected[1].labels
    for head, predicted in zip((one, two, one), (*expected, expected[0]), strict=True):
        async with TestNUC(
            head.labels, model=head, embedder=embedder, store=tmp_path / "s.db", k=0
        ) as nuc:
            assert (await nuc.classify_many(texts)).labels == predicted.labels
    # one that was trained here, whose labels are a tuple, and the same one from its file
    trained = Head(one.labels, one.weights, one.curve, embedder=embedder, trained_on=ON)
    trained.save(tmp_path / "a.head")
    assert Head.load(tmp_path / "a.head", embedder).identity == trained.identity == one.identity


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused(tmp_path, bad):
    path = tmp_path / "a.head"
    small().save(path)
    header, weights = parts_of(path)
    for made in (np.full_like(weights, bad), weights.astype("f8") * 1e200, weights.astype("c8")):
        np.savez(path, weights=made, header=np.frombuffer(orjson.dumps(header), "u1"))
        with pytest.raises(InvalidInputError, match="damaged"):
            Head.load(path.with_name("a.head.npz"))


@pytest.mark.parametrize("name", ["./minilm", "minilm", "someone/model", "/tmp/m", "../m"])
def test_a_file_does_not_say_which_folder_is_loaded(tmp_path, monkeypatch, name):
    path = tmp_path / "a.head"
    small(embedder=name).save(path)
    loaded = []
    monkeypatch.setattr(embedders, "resolve", lambda name: loaded.append(name) or Clustered())
    with pytest.raises(InvalidInputError, match="is not loaded because a file names it"):
        Head.load(path).predict(["c1 text"])
    assert not loaded


def test_another_embedder_or_label_set_is_refused(tmp_path):
    path = tmp_path / "a.head"
    small(embedder=Clustered()).save(path)

    class Other(Clustered):
        name = "other"

    with pytest.raises(InvalidInputError, match="'clustered', and the embedder is 'other'"):
        Head.load(path, Other())
    with pytest.raises(InvalidInputError, match="embedder of your own"):
        Head.load(path).predict(["c1 text"])
    with pytest.raises(InvalidInputError, match="label set"):
        TestNUC(["l0", "l1"], model=Says(), embedder=Clustered(), labeler=Head.load(path))
    labels = [f"l{c}" for c in range(CLASSES)]
    with pytest.raises(InvalidInputError, match="'other'"):
        TestNUC(labels, model=Says(), embedder=Other(), labeler=Head.load(path))
    with pytest.raises(InvalidInputError, match="least_trust"):
        Head.load(path, least_trust=1.5)


@pytest.mark.slow
async def test_only_texts_below_a_trust_go_to_the_llm(tmp_path):
    path = tmp_path / "topics.head"
    made = await distilled(path)
    new = texts_of(400, 7_000)
    trust = [row.trust for row in made.predict(new)]
    least = float(np.median(trust))
    for labels in (LABELS, LABELS[::-1]):
        model = Says(gold)
        async with TestNUC(
            labels, model=model, embedder=Clustered(), labeler=Head.load(path, least_trust=least)
        ) as nuc:
            estimate = await nuc.estimate(new)
            assert (estimate.least_calls, estimate.calls) == (0, 400)
            results = await nuc.classify_many(new)
            assert sorted(model.asked) == sorted(
                text for text, chance in zip(new, trust, strict=True) if chance < least
            )
            assert [r.source == "head" for r in results] == [chance >= least for chance in trust]
            for row, expected in zip(results, made.predict(new), strict=True):
                if row.source == "head":
                    assert row.label == expected.label
                    assert row.trust == pytest.approx(expected.trust)
                    assert row.explain()
            assert "the head labeled" in results.notes[0]
            streamed = {r.index: r.label async for r in nuc.stream(new)}
            assert [streamed[i] for i in range(400)] == results.labels
            one = await nuc.classify(new[int(np.argmax(trust))])
            assert one.source == "head"


async def test_without_any_llm(tmp_path):
    path = tmp_path / "topics.head"
    made = await distilled(path)
    head = Head.load(path, Clustered(), least_trust=0)
    new = texts_of(50, 7_000)
    async with TestNUC(
        LABELS, model=head, embedder=Clustered(), labeler=head, k=0, join_pool=False
    ) as nuc:
        results = await nuc.classify_many(new)
        assert results.labels == made.predict(new).labels
        assert results.usage.calls == 0


def test_invalid_texts_are_refused(tmp_path):
    head = small(embedder=Clustered())
    for wrong in ([""], ["c1 fine", 3]):
        with pytest.raises(InvalidInputError, match="text"):
            head.predict(wrong)


def test_a_text_that_the_embedder_rejects_fails_alone():
    class Choosy(Wide):
        async def embed(self, texts):
            if any("forbidden" in text for text in texts):
                raise InvalidInputError("the text is not allowed")
            return await super().embed(texts)

    head, texts = small(embedder=Choosy()), [*texts_of(5), "c1 forbidden", *texts_of(9)[5:]]
    fine = [at for at, text in enumerate(texts) if "forbidden" not in text]
    results = head.predict(texts)
    failed = results[5]
    assert (failed.label, failed.trust, failed.source) == (None, None, None)
    assert "not allowed" in str(failed.error)
    assert results.errors == [failed]
    expected = head.predict([texts[at] for at in fine])
    assert [results.labels[at] for at in fine] == expected.labels
    with pytest.raises(InvalidInputError, match="not allowed; text 5 has no embedding"):
        head.probabilities(texts)
    assert head.predict(["c1 forbidden"]).labels == [None]


def test_a_head_that_is_dropped_leaves_no_thread_and_no_open_embedder(tmp_path, monkeypatch):
    closed = []

    class Own(Wide):
        async def close(self):
            closed.append(threading.current_thread())

    monkeypatch.setattr(embedders, "resolve", lambda _: Own())
    small(embedder="wide").save(file := tmp_path / "x.head")
    makers = {
        "by name": lambda: small(embedder="own"),
        "read by name": lambda: Head.load(file, "own"),
        # an embedder that was passed stays open
        "passed": lambda: small(embedder=Own()),
    }
    for made in makers.values():
        head = made()
        head.predict(["c1 text"])
        thread = head._background._thread
        del head
        gc.collect()
        thread.join(60)
        assert not thread.is_alive()
    assert len(closed) == 2


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
@pytest.mark.parametrize("labeler", [False, True])
async def test_as_a_model_it_labels_no_vector_without_a_direction(bad, labeler):
    class Odd(Wide):
        async def embed(self, texts):
            rows = await super().embed(texts)
            rows[[at for at, text in enumerate(texts) if "odd" in text]] = bad
            return rows

    head = small(embedder=Odd())
    head.least_trust = 0.0
    given = {"labeler": head} if labeler else {}
    texts = ["c1 odd", *texts_of(9)]
    expected = await asyncio.to_thread(head.predict, texts)
    async with TestNUC(
        head.labels, model=head, embedder=Odd(), k=0, join_pool=False, **given
    ) as nuc:
        results = await nuc.classify_many(texts)
    assert results.labels == expected.labels
    assert results.labels[0] is None
    assert "zero vector" in str(results[0].error)
    assert len(results.errors) == 1


def test_a_stage_of_ray_adds_label_and_trust(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("ray")
    from testnuc.ray import LabelByHead

    head = small(embedder=Wide())
    head.save(tmp_path / "a.head")
    texts = texts_of(20)
    stage = LabelByHead(str(tmp_path / "a.head"), column="body", embedder=Wide())
    table = stage(pa.table({"id": list(range(20)), "body": texts}))
    assert table.column_names == ["id", "body", "nuc_label", "nuc_trust", "nuc_error"]
    expected = head.predict(texts)
    assert table["nuc_label"].to_pylist() == expected.labels
    assert table["nuc_trust"].to_pylist() == [row.trust for row in expected]
    small(embedder=Wide(), sets=SetRule(0.5, (0.0, 1.0))).save(tmp_path / "b.head")
    stage = LabelByHead(str(tmp_path / "b.head"), column="body", embedder=Wide())
    table = stage(pa.table({"body": texts}))
    sets = Head.load(tmp_path / "b.head", Wide()).predict(texts).label_lists
    assert table["nuc_labels"].to_pylist() == sets
    assert len({len(labels) for labels in sets}) > 1


def test_a_head_that_was_used_can_be_pickled():
    head = small(embedder=Wide())
    labels = head.predict(texts_of(20)).labels
    assert pickle.loads(pickle.dumps(head)).predict(texts_of(20)).labels == labels
    assert copy.deepcopy(head).predict(texts_of(20)).labels == labels


def test_a_classifier_of_scikit_learn(tmp_path):
    pytest.importorskip("sklearn")
    from sklearn.base import clone

    from testnuc.sklearn import HeadClassifier

    head = small(embedder=Wide())
    head.save(tmp_path / "a.head")
    texts = texts_of(20)
    made = clone(HeadClassifier(tmp_path / "a.head", Wide())).fit()
    assert made.predict(texts).tolist() == head.predict(texts).labels
    assert made.predict_proba(texts).sum(axis=1) == pytest.approx(np.ones(20), abs=1e-5)
    again = pickle.loads(pickle.dumps(made))
    assert again.predict(texts).tolist() == made.predict(texts).tolist()


@pytest.mark.slow
def test_a_file_is_used_from_the_shell(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = [f"{word} number {i}" for i in range(60) for word in ("refund money", "parcel late")]
    Path("in.txt").write_text("\n".join(texts))
    with LoopbackLLM(lambda text: ("refund" if "refund" in text else "delivery", 0.9)) as llm:
        given = ["--labels", "refund,delivery", "--model", "openai/test"]
        given += ["--base-url", llm.base_url]
        ran("classify", "in.txt", *given, "--store", "a.db", "-o", "out.csv")
        calls = llm.calls
        out, _ = ran("distill", "a.db", *given, "-o", "x.head")
        assert "Trained on 120 texts" in out
        _, err = ran("classify", "in.txt", "--head", "x.head", "-o", "b.csv", key=None)
        assert "the head labeled 120 of 120 texts" in err
        # no answer of an LLM is there to be judged
        assert err.splitlines()[-1] == "next, look at the labels: testnuc report b.csv"
        assert "LLM's own labels" not in err
        ran("report", "b.csv")
        with Path("b.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [row["nuc_label"] for row in rows] == ["refund", "delivery"] * 60
        assert {row["nuc_source"] for row in rows} == {"head"}
        code, out, _ = run_here(
            "classify", "in.txt", "--head", "x.head", "--head-trust", "0.9", *given, "--dry-run"
        )
        assert code == 0
        assert "0 to 120" in out
        assert llm.calls == calls
        # the embedder of the head is found by its name, also by later commands
        with np.load("x.head") as file:
            named = orjson.dumps(orjson.loads(file["header"].tobytes()) | {"loadable": True})
            np.savez("y.npz", weights=file["weights"], header=np.frombuffer(named, "u1"))
        ran("classify", "in.txt", "--head", "y.npz", "--head-trust", "1", *given, "-o", "c.csv")
        assert RunNote.of("c.csv").options["embedder"] == HashEmbedder().name
        several = [*given, "--multilabel", "--store", "m.db"]
        ran("classify", "in.txt", *several, "-o", "m.csv")
        ran("distill", "m.db", "-o", "m.head")
        ran("classify", "in.txt", "--head", "m.head", "-o", "n.jsonl", key=None)
        found = [orjson.loads(line) for line in Path("n.jsonl").read_bytes().splitlines()]
        assert [row["nuc_labels"] for row in found[:120]] == [["refund"], ["delivery"]] * 60
        assert {row["nuc_source"] for row in found[:120]} == {"head"}
        code, _, err = run_here("classify", "in.txt")
        assert (code, "--labels" in err) == (2, True)
        code, out, _ = run_here(
            "classify", "in.txt", *given, "--store", "fresh.db", "--ask", "unsure", "--dry-run"
        )
        assert (code, "120 to 120" in out) == (0, True)
        code, _, err = run_here("classify", "in.txt", "--head", "x.head", "--ask", "unsure")
        assert (code, "a head labels the texts" in err) == (2, True)
        code, _, err = run_here("classify", "in.txt", *given, "--ask", "some", "--dry-run")
        assert (code, "'unsure'" in err) == (2, True)
