"""What a person said wins in every output, with the source "person"."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import testnuc
from testnuc.report.page import render
from testnuc.results import Results
from testnuc.testing import HashEmbedder, LoopbackLLM
from tests.conftest import LABELS, confident, messages
from tests.doubles import Breaks
from tests.report.test_report import Elements
from tests.server.serving import served
from tests.server.test_service import post

TEXTS = messages(240)
#: Of ten texts of "refund", against LLM and neighbors; of the last one no label is right.
SAID = dict.fromkeys(TEXTS[:30:3], "login") | {TEXTS[27]: None}
NEW = "money back number 900"


def is_said(text, label, source):
    return text not in SAID or (label, source) == (SAID[text], "person")


@pytest.fixture(params=["auto", "weighted"])
async def learned(request, client_of):
    """Return a client that has learned, and the server that it asks."""
    with LoopbackLLM(confident) as llm:
        given = client_of(llm, policy=request.param)
        async with testnuc.TestNUC(**given) as nuc:
            await nuc.classify_many(TEXTS)
            await nuc.learn(list(SAID), list(SAID.values()))
            yield nuc, llm
        assert llm.calls == len(TEXTS)


async def test_in_results_files_frames_and_pages(learned, tmp_path):
    nuc, _ = learned
    results = await nuc.classify_many(TEXTS)
    assert results.labels[:30:3] == list(SAID.values())
    rows = [results[TEXTS.index(text)] for text in SAID]
    for row, label in zip(rows, SAID.values(), strict=True):
        assert (row.label, row.source, row.alternative) == (label, "person", None)
        assert row.trust == (None if label is None else 1.0)
        # no vote for another label is shown beside it
        assert dict(row.votes) == ({} if label is None else {label: 1.0})
        assert (row.share, row.margin) == ((0.0, 0.0) if label is None else (1.0, 1.0))
        assert "a person said so" in row.explain()
        assert "overruled" not in row.explain()
    assert "none of the labels is right" in rows[-1].explain()

    results.to_jsonl(tmp_path / "r.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()][:-1]
    assert all(is_said(d["text"], d["nuc_label"], d["nuc_source"]) for d in lines)
    frame = results.to_pandas()
    frame = frame.astype(object).where(frame.notna(), None)
    for text, label, source in zip(frame.text, frame.label, frame.source, strict=True):
        assert is_said(text, label, source)
    frame = results.to_polars()
    for text, label, source in zip(*(frame[c] for c in ("text", "label", "source")), strict=True):
        assert is_said(text, label, source)
    page = json.loads(Elements(render(results)).data)
    names = [*page["labels"], None]
    for row in page["rows"]:
        label = None if row["l"] is None else names[row["l"]]
        assert is_said(page["texts"][row["x"]], label, row["g"])
    assert len(page["rows"]) == len(TEXTS)


async def test_in_the_service(learned):
    nuc, _ = learned
    async with served(nuc) as (_, session):
        for text in (TEXTS[0], TEXTS[27]):
            _, answer, _ = await post(session, {"text": text})
            assert is_said(text, answer["label"], answer["source"])
        _, answer, _ = await post(session, {"texts": TEXTS[:30]})
        for text, row in zip(TEXTS[:30], answer["results"], strict=True):
            assert is_said(text, row["label"], row["source"])


@pytest.mark.slow
def test_in_scikit_learn():
    pytest.importorskip("sklearn")
    from testnuc.sklearn import TestNUCClassifier

    gold = [SAID.get(text) for text in TEXTS]
    with LoopbackLLM(confident) as llm:
        given = {"model": "openai/x", "base_url": llm.base_url, "embedder": HashEmbedder()}
        classifier = TestNUCClassifier(LABELS, **given).fit(TEXTS, gold)
        said = [text for text, label in SAID.items() if label is not None]
        assert classifier.predict(said).tolist() == ["login"] * 9
        chances = classifier.predict_proba(said)
        assert (chances[:, classifier.classes_ == "login"] == 1).all()
        assert {row.source for row in classifier.results(said)} == {"person"}
        classifier.close()


@pytest.mark.slow
async def test_though_the_run_stops_early(client_of):
    calls = []

    def answer(text):
        calls.append(text)
        return confident(text)

    embedder = Breaks()
    with LoopbackLLM(answer) as llm:
        async with testnuc.TestNUC(**client_of(llm, embedder=embedder)) as nuc:
            await nuc.classify_many(TEXTS)
            await nuc.learn(list(SAID), list(SAID.values()))
            embedder.broken = True
            with pytest.warns(testnuc.SmallPoolWarning, match="out of memory"):
                results = await nuc.classify_many([*TEXTS, NEW])
            assert results.stopped is not None
            assert all(is_said(r.text, r.label, r.source) for r in results)


async def agreed(nuc, n):
    """Judge texts, drawn by trust, as the LLM labels them; returns the review and the lesson."""
    review = await nuc.review(n, "certify")
    for item in review:
        review.answer(item.index, item.own_label)
    return review, await nuc.learn(review)


@pytest.mark.slow
async def test_under_other_vote_settings_judgments_win_and_nothing_else_is_proved(
    client_of, tmp_path
):
    """Trust and certificates are of the labels that were judged, and other votes give others."""
    with LoopbackLLM(confident) as llm:
        given = client_of(llm, policy="auto", store=tmp_path / "s.db")
        async with testnuc.TestNUC(**given) as nuc:
            await nuc.classify_many(TEXTS)
            review, learned = await agreed(nuc, 100)
            assert learned.decides == "settings"
            assert (await agreed(nuc, 60))[1].certify().coverage
        async with testnuc.TestNUC(**{**given, "policy": "majority"}) as nuc:
            results = await nuc.classify_many(TEXTS)
            made = nuc.learned.certify()
            assert not made.coverage
            assert "under other vote settings" in made.reason
            assert "learn from the same reviews again" in results.summary()
            assert results.certified(made) == []
            said = {item.text: item.answer for item in review}
            by_person = {r.text: r.label for r in results if r.source == "person"}
            assert said.items() <= by_person.items()
            assert sum(r.source == "person" for r in results) == 160
            await nuc.learn(review)
            assert (await agreed(nuc, 60))[1].certify().coverage
        async with testnuc.TestNUC(**given) as nuc:
            assert "other vote settings" in nuc.learned.certify().reason


async def test_a_certificate_says_nothing_of_labels_by_others(client_of, tmp_path):
    with LoopbackLLM(confident) as llm:
        async with testnuc.TestNUC(**client_of(llm, policy="auto")) as nuc:
            results = await nuc.classify_many(TEXTS)
            await agreed(nuc, 100)
            made = (await agreed(nuc, 60))[1].certify()
            results = await nuc.classify_many(TEXTS)
    rows = list(results.certified(made))
    assert len(rows) >= 72
    rows[0] = replace(rows[0], source="referee")
    rows[1] = replace(rows[1], source="head", prediction=None)
    assert Results(rows, results.usage, 0.0).certified(made) == rows[2:]
