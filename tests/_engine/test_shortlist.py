"""Shortlists: each text is shown a few of many labels, and the whole list if none of them fits."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from bench._batch_api import BatchLLM
from testnuc import BatchPolicy, Budget, InvalidInputError, Limits, Sampling, TestNUC, TopKICL
from testnuc._base.checks import hash_text
from testnuc._engine.shortlist import (
    compared_part,
    coverage,
    nearest_labels,
    similar_together,
    with_head,
)
from testnuc.batch.manager import BatchManager
from testnuc.cli.options import Options, client_options
from testnuc.cli.options_of_run import opened_store, with_options_of_run
from testnuc.client import parts_of
from testnuc.errors import BadRequestError
from testnuc.labels import LabelSet
from testnuc.prompts.writing import samples_in
from testnuc.protocols import Answer, PoolText, Reply, TokenUsage
from testnuc.testing import HashEmbedder, LoopbackLLM
from testnuc.trust.head import FOLDS, LinearHead
from testnuc.trust.model import HeadModel
from tests.cli.in_process import run_here
from tests.conftest import arguments_for
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

WORDS = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen", "ibex", "jay", "koala", "lynx"]
LABELS = [f"about_{word}" for word in WORDS]
TEXTS = [f"about {word} number {i}" for i, word in enumerate(WORDS)]


def right(text: str) -> tuple[str, float]:
    """Answer with the label of the word in the text."""
    return f"about_{text.split()[1]}", 0.9


def rejecting(text: str, index: int) -> tuple[str, float]:
    """Choose none of a shortlist, then answer rightly."""
    return right(text) if index else ("none of these", 0.9)


def client(llm: LoopbackLLM, **more: Any) -> TestNUC:
    """Return a client that asks about each text alone."""
    return TestNUC(**arguments_for(llm, **{"labels": LABELS, "k": 0, "shortlist": 3, **more}))


def shown(body: dict[str, Any], labels: list[str] = LABELS) -> list[str]:
    """Return the labels that the prompt of a request names."""
    system = body["messages"][0]["content"]
    return [label for label in labels if f'"{label}"' in system]


def own(results: Any) -> list[str | None]:
    """Return the LLM's own labels."""
    return [result.own_label for result in results]


async def test_a_prompt_shows_the_nearest_labels_and_none_of_these() -> None:
    async with LoopbackLLM(right, record=100) as llm, client(llm) as nuc:
        results = await nuc.classify_many(TEXTS)
        assert own(results) == LABELS
        assert llm.calls == len(TEXTS)
    for body in llm.bodies:
        text = body["messages"][-1]["content"]
        options = shown(body)
        assert len(options) == 3
        assert right(text[text.index("about") :])[0] in options
        assert "none of these" in body["messages"][0]["content"]
        # the reply is bound to what is shown
        assert str(body["response_format"]).count("about_") == 3


@pytest.mark.parametrize(
    ("said", "more"),
    [
        ("none of these", {"join_pool": False}),
        ("something else", {}),
        ("other", {"none_label": "other"}),
    ],
)
async def test_where_none_is_chosen_the_whole_list_is_asked_once(said: str, more: Any) -> None:
    def unsure(text: str, index: int) -> str:
        return right(text)[0] if index else said

    async with LoopbackLLM(unsure, record=10) as llm, client(llm, **more) as nuc:
        assert (await nuc.classify(TEXTS[4])).own_label == LABELS[4]
        assert [len(shown(body)) for body in llm.bodies] == [3, 12]
        assert "none of these" not in llm.bodies[1]["messages"][0]["content"]
        systems = [body["messages"][0]["content"] for body in llm.bodies]
        assert all("other" in system for system in systems) or "none_label" not in more
        assert nuc.usage.calls == 2


async def test_a_label_that_was_not_shown_is_not_taken_for_one_that_was() -> None:
    labels = dict.fromkeys(LABELS, "") | {"about_koalas": "herds that roam the cold north"}
    async with (
        LoopbackLLM(lambda text: "about_koalas", record=10) as llm,
        client(llm, labels=labels, shortlist=2) as nuc,
    ):
        result = await nuc.classify(TEXTS[10])
        assert shown(llm.bodies[0], [*labels]) == ["about_jay", "about_koala"]
        assert result.own_label == "about_koalas"


async def test_none_of_a_list_is_not_paid_for_again_where_the_next_call_failed(
    tmp_path: Path,
) -> None:
    """As where the whole list is longer than the model's context."""
    calls, known = Counter[str](), ["refused"]

    class Strict:
        name, model, identity = "strict", "test", "1"

        async def answer(self, request: Any) -> Reply:
            short = len(request.task.labels) < len(LABELS)
            calls["short" if short else "whole"] += 1
            if not short and known:
                raise BadRequestError("the prompt is too long", status_code=400)
            said = [("none of these", 0.9) if short else right(text) for text in request.texts]
            return Reply(tuple(Answer(*one) for one in said), TokenUsage(10, 5))

    arguments = {"embedder": HashEmbedder(), "sampling": Sampling(shortlist=3), "k": 0}
    for failing in (True, True, False):
        known[:] = ["refused"] * failing
        async with TestNUC(LABELS, Strict(), store=tmp_path / "s.db", **arguments) as nuc:
            results = await nuc.classify_many(TEXTS)
    assert own(results) == LABELS
    assert calls == {"short": len(TEXTS), "whole": 3 * len(TEXTS)}


async def test_packed_texts_share_a_list() -> None:
    # of fewer than a hundred texts none is compared with the whole list
    texts = [f"about {word} number {i}" for i in range(8) for word in WORDS]
    packed = Sampling(texts_per_call=8)
    async with (
        LoopbackLLM(right, record=100) as llm,
        client(llm, sampling=packed, shortlist=2) as nuc,
    ):
        estimate = await nuc.estimate(texts)
        results = await nuc.classify_many(texts)
        assert own(results) == [right(text)[0] for text in texts]
        assert llm.calls == estimate.calls == 12
        # the lists of eight texts, which mostly have the same label
        assert all(len(shown(body)) < len(LABELS) for body in llm.bodies)
        assert estimate.input_tokens is not None
        assert llm.input_tokens <= estimate.input_tokens
    for body in llm.bodies:
        options = shown(body)
        assert all(
            right(text)[0] in options for text in samples_in(body["messages"][-1]["content"])
        )


async def test_packed_texts_whose_list_lacks_the_label_are_asked_again_together() -> None:
    def rejecting_two(text: str, index: int) -> tuple[str, float]:
        return rejecting(text, index) if "elk" in text or "fox" in text else right(text)

    async with (
        LoopbackLLM(rejecting_two, record=10) as llm,
        client(llm, sampling=Sampling(texts_per_call=4), shortlist=2) as nuc,
    ):
        texts = [f"{TEXTS[4]} {i}" for i in range(2)] + [f"{TEXTS[5]} {i}" for i in range(2)]
        results = await nuc.classify_many(texts)
        assert own(results) == [right(text)[0] for text in texts]
        assert [len(shown(body)) for body in llm.bodies][1:] == [12]
        assert llm.calls == nuc.usage.calls == 2


def test_texts_that_share_labels_follow_each_other() -> None:
    rng = np.random.default_rng(0)
    kinds = np.array([[0, 1, 9], [0, 2, 8], [0, 3, 7]], dtype=np.int32)
    lists = kinds[rng.integers(3, size=60)]
    ordered = lists[similar_together(lists)]
    changes = (ordered[1:] != ordered[:-1]).any(axis=1).sum()
    assert changes == 2
    assert sorted(map(tuple, ordered)) == sorted(map(tuple, lists))


async def test_keys_differ_by_length_and_embedder_and_without_a_list_are_as_ever() -> None:
    def scope(llm: LoopbackLLM, **more: Any) -> bytes:
        return client(llm, **more)._parts.predictor.scope

    async with LoopbackLLM(right) as llm:
        whole = scope(llm, shortlist=None)
        scopes = {
            scope(llm),
            scope(llm, shortlist=4),
            scope(llm, embedder=HashEmbedder(128)),
            whole,
        }
        assert len(scopes) == 4
        # off, so the same prompts and keys
        assert scope(llm, shortlist=12) == whole


async def test_labels_of_neighbors_are_in_the_list() -> None:
    async with LoopbackLLM(right, record=10) as llm, client(llm, k=2) as nuc:
        text = "zebra number one"
        near = [f"{text} again {i}" for i in range(2)]
        await nuc.add(near, labels=["about_lynx", "about_lynx"])
        await nuc.classify(text)
        assert "about_lynx" in shown(llm.bodies[0])


async def test_an_estimate_foresees_fewer_tokens() -> None:
    async with LoopbackLLM(right) as llm:
        async with client(llm, shortlist=None) as nuc:
            whole = await nuc.estimate(TEXTS)
        async with client(llm) as nuc:
            short = await nuc.estimate(TEXTS)
            await nuc.classify_many(TEXTS)
            assert short.calls == nuc.usage.calls == whole.calls
        hours = [lane.most_seconds and lane.most_seconds / 3600 for lane in short.lanes]
        assert hours == [None, 48]
        assert short.input_tokens is not None
        assert whole.input_tokens is not None
        assert short.input_tokens < whole.input_tokens


async def test_a_list_as_long_as_the_labels_is_off_and_says_so() -> None:
    async with LoopbackLLM(right, record=10) as llm, client(llm, shortlist=12) as nuc:
        results = await nuc.classify_many(TEXTS[:1])
        assert list(results.notes) == ["shortlist=12 is off: there are only 12 labels"]
        assert "none of these" not in llm.bodies[0]["messages"][0]["content"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"shortlist": 1}, "shortlist is 1"),
        ({"shortlist": "many"}, "shortlist is 'many'"),
        ({"shortlist": "levels"}, "the labels are not in a tree"),
        ({"multilabel": True}, "shortlist is 3, which multilabel=True does not support"),
        ({"method": TopKICL()}, "few-shot examples"),
        ({"labels": [*LABELS, "None of these!"]}, "none_label='None of these!'"),
    ],
)
async def test_what_a_shortlist_does_not_support_is_refused(
    more: dict[str, Any], words: str
) -> None:
    async with LoopbackLLM(right) as llm:
        with pytest.raises(InvalidInputError, match=words):
            client(llm, **more)


@pytest.mark.parametrize(("rest", "batches"), [("batch", 2), ("live", 1)])
@pytest.mark.parametrize("packed", [1, 3])
async def test_in_the_batch_lane_another_batch_shows_all_labels(
    rest: Any, batches: int, packed: int
) -> None:
    def rejecting_two(text: str, index: int) -> tuple[str, float]:
        return rejecting(text, index) if "elk" in text or "fox" in text else right(text)

    policy = BatchPolicy(rest=rest, first_poll=0.001, longest_poll=0.002)
    sampling = Sampling(texts_per_call=packed)
    async with (
        BatchLLM(rejecting_two, record=100) as llm,
        client(llm, limits=Limits(batches=policy), sampling=sampling, shortlist=2) as nuc,
    ):
        results = await nuc.classify_many(TEXTS, lane="batch")
        assert own(results) == LABELS
        assert results.coverage["about_ant"] >= 1
        assert (llm.batches, llm.calls) == (batches, nuc.usage.calls)
        lists = [len(shown(body)) for body in llm.bodies if "messages" in body]
        assert lists[-1] == len(LABELS)
        assert sum(n == len(LABELS) for n in lists) == (2 if packed == 1 else 1)
        # the live lane has the same keys
        assert (await nuc.classify_many(TEXTS)).usage.calls == 0


async def test_none_of_a_list_is_billed_once_where_a_budget_ends_a_batch_run(
    tmp_path: Path,
) -> None:
    policy = BatchPolicy(first_poll=0.001, longest_poll=0.002)
    limits = Limits(batches=policy, budget=Budget(calls=len(TEXTS)))
    async with BatchLLM(rejecting, record=100) as llm:
        for calls in (1, 2, 2):
            async with client(llm, limits=limits, store=tmp_path / "s.db") as nuc:
                results = await nuc.classify_many(TEXTS, lane="batch")
            assert llm.calls == calls * len(TEXTS)
        lists = [len(shown(body)) for body in llm.bodies if "messages" in body]
    assert lists == [3] * len(TEXTS) + [len(LABELS)] * len(TEXTS)
    assert own(results) == LABELS


async def test_a_list_of_which_none_was_chosen_is_no_second_answer(tmp_path: Path) -> None:
    policy = BatchPolicy(first_poll=0.001, longest_poll=0.002)
    async with (
        BatchLLM(rejecting) as llm,
        client(llm, limits=Limits(batches=policy), store=tmp_path / "s.db") as nuc,
    ):
        results = await nuc.classify_many(TEXTS, lane="batch")
        assert own(results) == LABELS
        counts, _ = await parts_of(nuc).store.counts()
        assert [*counts.values()] == [len(TEXTS)]


@pytest.mark.parametrize("by", ["the next run", "batch resume"])
async def test_none_of_a_list_is_billed_once_where_a_batch_run_is_stopped(
    tmp_path: Path, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, policy = tmp_path / "s.db", BatchPolicy(first_poll=0.001, longest_poll=0.002)
    async with BatchLLM(rejecting, record=100) as llm:
        slow = Limits(batches=BatchPolicy(first_poll=3600.0, longest_poll=3600.0))
        stopped = client(llm, limits=slow, store=store)
        run = asyncio.create_task(stopped.classify_many(TEXTS, lane="batch"))
        await until(lambda: llm.batches)
        run.cancel()
        await asyncio.wait([run])
        await stopped.aclose()
        if by == "batch resume":
            monkeypatch.setattr("testnuc.batch.manager.BatchPolicy", lambda: policy)
            async with (
                opened_store(str(store)) as opened,
                BatchManager(opened, llm.base_url) as manager,
            ):
                (state,) = await manager.resume(await manager.pick(), lambda _: None)
            assert state.remote is not None
        async with client(llm, limits=Limits(batches=policy), store=store) as nuc:
            results = await nuc.classify_many(TEXTS, lane="batch")
        lists = [len(shown(body)) for body in llm.bodies if "messages" in body]
    assert lists == [3] * len(TEXTS) + [len(LABELS)] * len(TEXTS)
    assert own(results) == LABELS


async def test_levels_in_the_batch_lane_are_refused_before_any_call() -> None:
    labels = ["a > b", "a > c", "d"]
    async with LoopbackLLM(right) as llm, client(llm, labels=labels, shortlist="levels") as nuc:
        with pytest.raises(InvalidInputError, match="a batch job for each level"):
            await nuc.classify_many(TEXTS, lane="batch")
        assert llm.requests == 0


def test_the_command_line_has_it_and_later_commands_know_it(tmp_path: Path) -> None:
    source, store = tmp_path / "in.jsonl", tmp_path / "answers.db"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    with LoopbackLLM(right, record=100) as llm:
        options = ["--labels", ",".join(LABELS), "--model", "openai/test", "--store", store]
        asked = [*options, "--base-url", llm.base_url, "--k", "0", "-o", tmp_path / "out.csv"]
        code, _, err = run_here("classify", source, *asked, "--shortlist", "3")
        assert code == 0, err
        assert {len(shown(body)) for body in llm.bodies} == {3}
    client = Options({**client_options(), "labels": None}, frozenset())
    facts, _ = asyncio.run(with_options_of_run(client, str(store)))
    assert facts["shortlist"] == 3


def test_the_nearest_labels_are_those_of_a_plain_sort() -> None:
    rng = np.random.default_rng(0)
    labels = rng.normal(size=(50, 8)).astype(np.float32)
    labels[7] = 0
    vectors = rng.normal(size=(40, 8)).astype(np.float16)
    first = [rng.choice(50, size=i % 3, replace=False).tolist() for i in range(40)]
    first = [[label for label in of if label != 7] for of in first]
    found = nearest_labels(labels, vectors, 5, first)
    for vector, of, row in zip(vectors, first, found.tolist(), strict=True):
        similar = {i: float(labels[i] @ vector.astype(np.float32)) for i in range(50) if i != 7}
        order = sorted(similar, key=lambda i: (i not in of, -similar[i]))
        assert row == sorted(order[:5])


MANY = [f"about_{word}_{i}" for i in range(20) for word in WORDS]
MANY_TEXTS = [f"{word} {i} number {j}" for j in range(1) for i in range(20) for word in WORDS]


def right_of_many(text: str) -> tuple[str, float]:
    word, i, *_ = text.split()
    return f"about_{word}_{i}", 0.9


async def test_more_than_two_hundred_labels_have_a_shortlist_and_fewer_have_none() -> None:
    async with LoopbackLLM(right_of_many, record=1_000) as llm:
        async with client(llm, labels=MANY, shortlist="auto") as nuc:
            (note,) = (await nuc.classify_many(MANY_TEXTS[:3])).notes
            assert "240 labels are many: a prompt shows the 50" in note
            assert "240 labels are many" in (await nuc.estimate(["another"])).note
            assert {len(shown(body, MANY)) for body in llm.bodies} == {50}
            # the batch lane shows them all, as it has no second call
            await nuc._parts.ready("batch")
        for labels, more in ((MANY[:200], {}), (MANY, {"shortlist": None})):
            asked = client(llm, labels=labels, **{"shortlist": "auto", **more})
            assert asked._parts.shortlist is None
            assert not asked._parts.pipeline.note
        shown_with = client(llm, labels=MANY, shortlist="auto", method=TopKICL())
        assert shown_with._parts.shortlist is None
        assert "every prompt shows all 240 labels" in shown_with._parts.pipeline.note


@pytest.mark.slow
async def test_answers_are_compared_with_those_of_the_whole_list(tmp_path: Path) -> None:
    """A model that never says none follows lists that lack the right label."""

    def follows(text: str, index: int) -> tuple[str, float]:
        # the second call is that of the comparison
        return ("about_ant_0" if index else shown(llm.bodies[-1], MANY)[0]), 0.9

    async with (
        LoopbackLLM(right_of_many) as llm,
        client(llm, labels=MANY, shortlist=100, store=tmp_path / "answers.db") as nuc,
    ):
        before = await nuc.estimate(MANY_TEXTS)
        results = await nuc.classify_many(MANY_TEXTS)
        # every tenth of 240 or so, at least 20 texts
        assert before.calls == nuc.usage.calls == llm.calls == len(MANY_TEXTS) + 20
        notes = " ".join(results.notes)
        assert "20 texts were also sent" in notes
        assert "the same for 100.0 % (83.9 to 100.0 %, 95 %)" in notes
        assert "reduce accuracy" not in notes
        # a second run asks nothing
        await nuc.classify_many(MANY_TEXTS)
        assert llm.calls == len(MANY_TEXTS) + 20
        assert (await nuc.estimate(MANY_TEXTS)).calls == 0
    async with (
        LoopbackLLM(follows, record=1) as llm,
        client(llm, labels=MANY, shortlist=5, limits=Limits(concurrency=1)) as nuc,
    ):
        # no label has these words
        texts = [f"zebra{i} {i % 20} number" for i in range(100)]
        results = await nuc.classify_many(texts)
        notes = " ".join(results.notes)
        assert "the shorter prompts reduce accuracy" in notes
        never = [label for label, held in results.coverage.items() if not held]
        assert f"{len(never)} labels of 240 are in the shortlist of no text" in results.summary()


async def test_labels_that_no_list_holds_are_in_the_notes() -> None:
    async with (
        LoopbackLLM(lambda _: (MANY[0], 0.5)) as llm,
        client(llm, labels=MANY[:40], shortlist=5) as nuc,
    ):
        results = await nuc.classify_many([f"{WORDS[0]} 0 number {i}" for i in range(80)])
    never = [label for label, held in results.coverage.items() if not held]
    assert never
    expected = f"no shortlist of 80 texts holds {len(never)} of the 40 labels"
    assert any(note.startswith(expected) for note in results.notes)


def test_what_is_compared_depends_on_the_texts_alone() -> None:
    entries = [PoolText(str(i), hash_text(str(i))) for i in range(3_000)]
    chosen = {entries[at].text for at in compared_part(entries)}
    assert len(chosen) == 60
    assert {entries[::-1][at].text for at in compared_part(entries[::-1])} == chosen
    assert len(compared_part(entries[:100])) == 20
    assert not compared_part(entries[:99])


def test_a_label_in_no_list_is_reported() -> None:
    lists = np.array([[0, 1], [0, 2]] * 40, dtype=np.int32)
    labels = LabelSet(["a", "b", "c", "d", "none"], "none")

    def run_of(lists: Any) -> Any:
        return SimpleNamespace(batch=SimpleNamespace(labels=labels, shortlists=lists), notes=[])

    run, few = run_of(lists), run_of(lists[:4])
    assert coverage(run) == {"a": 80, "b": 40, "c": 40, "d": 0}
    assert run.notes[0].startswith("no shortlist of 80 texts holds 1 of the 4 labels ('d')")
    coverage(few)
    assert few.notes == [], "too few texts to compare"


def test_a_learned_head_proposes_labels() -> None:
    rng = np.random.default_rng(0)
    heads = tuple(LinearHead(rng.normal(size=(9, 40)).astype(np.float32)) for _ in range(FOLDS))
    model = HeadModel(heads, np.ones(40, np.float32), 0.0)
    vectors = rng.normal(size=(30, 8)).astype(np.float16)
    hashes = [bytes([i]) * 16 for i in range(30)]
    first = [[3, 5] if i % 2 else [] for i in range(30)]
    with_head(first, model, vectors, hashes, 8, 7)
    for i, row in enumerate(first):
        likely = heads[i % FOLDS].probabilities(vectors[i : i + 1])[0]
        wanted = [
            c for c in np.argsort(-likely).tolist() if c != 7 and c not in ([3, 5] if i % 2 else [])
        ]
        known = [3, 5] if i % 2 else []
        assert row == [*known, *wanted[: 6 - len(known)]]
