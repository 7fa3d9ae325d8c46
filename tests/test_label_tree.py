"""Labels in a tree: paths, nested mappings, and the trust of each level."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from testnuc import (
    Budget,
    InvalidInputError,
    LabelSet,
    LabelTree,
    Limits,
    Results,
    Sampling,
    TestNUC,
    VotePolicy,
)
from testnuc.testing import HashEmbedder, LoopbackLLM
from tests.cli.in_process import ran

if TYPE_CHECKING:
    from pathlib import Path

NESTED: dict[str, Any] = {
    "refund": {"late": "Not there yet.", "twice": None},
    "card": ["lost", "stolen"],
    "other": None,
}
PATHS = ["refund > late", "refund > twice", "card > lost", "card > stolen", "other"]


def client(llm: LoopbackLLM, labels: Any = NESTED, **more: Any) -> TestNUC:
    options: dict[str, Any] = {"embedder": HashEmbedder(), "policy": "weighted", "k": 2, **more}
    return TestNUC(labels, "openai/test", base_url=llm.base_url, api_key="k", **options)


def test_all_forms_are_the_same_labels() -> None:
    tree = LabelTree(NESTED)
    assert list(tree) == list(LabelTree(PATHS)) == PATHS
    assert tree.depth == 2
    assert tree.children() == [("refund",), ("card",), ("other",)]
    assert tree.children(("card",)) == [("card", "lost"), ("card", "stolen")]
    assert tree.nodes(1).tolist() == [0, 0, 1, 1, 2]
    for labels in (NESTED, tree, dict.fromkeys(PATHS, ""), PATHS):
        given = LabelSet(labels)
        assert given.names == tuple(PATHS)
        assert given.tree is not None
    assert dict(LabelSet(NESTED).descriptions) == {"refund > late": "Not there yet."}


def test_a_label_can_have_labels_below_it() -> None:
    tree = LabelTree(["card > lost", "card", "card > stolen"])
    assert tree.children() == [("card",)]
    assert tree.children(("card",)) == [("card",), ("card", "lost"), ("card", "stolen")]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({"a": {"b": 3}}, "the label 'b' below 'a' has the value 3"),
        ({"a": {}, "b": ["c"]}, "the label 'a' has the value {}"),
        ({"a": {" ": None}}, "label ' ' below 'a' is blank"),
        ({"a": ["b", "b"]}, "'a > b' is given twice"),
    ],
)
def test_what_is_no_tree_is_refused(labels: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        LabelSet(labels)


@pytest.mark.parametrize("labels", [["a", "b"], ["x > y", "z > w"], [" > a", "b > "]])
def test_flat_labels_are_no_tree(labels: list[str]) -> None:
    assert LabelSet(labels).tree is None


async def test_levels_have_the_shares_of_the_labels_below_them() -> None:
    known = {"my money is late": "refund > late", "my money is late again": "refund > twice"}
    async with LoopbackLLM(lambda _: ("refund > late", 0.9)) as llm, client(llm) as nuc:
        await nuc.add(list(known), list(known.values()))
        result = await nuc.classify("my money is late today")
    assert result.label == "refund > late"
    assert result.path == ("refund", "late")
    assert result.path_shares == pytest.approx((1.0, result.share))
    assert result.path_trusts == pytest.approx((1.0, result.trust))
    assert result.share < 0.8
    assert result.votes_at(1) == {"refund": pytest.approx(sum(result.votes.values()))}
    assert "by level: 'refund' 1.00, 'late' 0." in result.explain()


async def test_a_withheld_label_keeps_the_levels_that_are_trusted() -> None:
    known = {"my money is late": "refund > late", "my money is late again": "refund > twice"}
    policy = VotePolicy(min_trust=0.9)
    async with (
        LoopbackLLM(lambda _: ("refund > late", 0.9)) as llm,
        client(llm, policy=policy) as nuc,
    ):
        await nuc.add(list(known), list(known.values()))
        result = await nuc.classify("my money is late today")
    assert result.label is None
    assert result.path == ("refund",)
    assert result.path_trusts == (pytest.approx(1.0),)


async def test_a_tree_has_the_keys_of_its_flat_labels(tmp_path: Path) -> None:
    store = tmp_path / "answers.db"
    async with LoopbackLLM(lambda _: ("other", 0.9)) as llm:
        async with client(llm, dict.fromkeys(PATHS), store=store) as nuc:
            await nuc.classify_many(["one", "two", "three"])
        async with client(llm, LabelTree(PATHS), store=store) as nuc:
            await nuc.classify_many(["one", "two", "three"])
            assert nuc.usage.calls == 0


async def test_levels_are_asked_one_at_a_time() -> None:
    def right(text: str, call: int) -> tuple[str, float]:
        path = text.split(" | ", maxsplit=1)[0].split(" > ")
        return " > ".join(path[: call + 1]), 0.8

    async with (
        LoopbackLLM(right, record=20) as llm,
        client(llm, sampling=Sampling(shortlist="levels"), k=0) as nuc,
    ):
        results = await nuc.classify_many(["refund > twice | a", "card > lost | b", "other | c"])
        assert [r.label for r in results] == ["refund > twice", "card > lost", "other"]
        assert nuc.usage.calls == 5
        # the product of the levels' confidences
        assert [r.prediction.confidence for r in results if r.prediction] == pytest.approx(
            [0.64, 0.64, 0.8]
        )
    shown = [
        body["response_format"]["json_schema"]["schema"]["properties"]["label"]["enum"]
        for body in llm.bodies
    ]
    assert shown.count(["refund", "card", "other", "none of these"]) == 3
    assert ["refund > late", "refund > twice", "none of these"] in shown


async def test_levels_that_were_paid_for_are_kept_when_a_run_ends(tmp_path: Path) -> None:
    right = {
        "one": ["refund", "refund > late"],
        "two": ["card", "card > lost"],
        "three": ["none of these", "refund > twice"],
        "four": ["other"],
        "five": ["card", "none of these", "refund > late"],
    }
    limits = Limits(concurrency=5, budget=Budget(calls=5))
    with LoopbackLLM(lambda text, call: right[text][call]) as llm:
        for _ in range(2):
            async with client(
                llm,
                sampling=Sampling(shortlist="levels"),
                k=0,
                store=tmp_path / "s.db",
                limits=limits,
            ) as nuc:
                results = await nuc.classify_many([*right])
        # no call is made twice
        assert [row.label for row in results] == [labels[-1] for labels in right.values()]
        assert llm.calls == sum(map(len, right.values()))


async def test_where_no_label_of_a_level_fits_the_whole_list_is_asked() -> None:
    said = ["refund", "none of these", "card > lost"]
    async with (
        LoopbackLLM(lambda _, call: (said[call], 0.8)) as llm,
        client(llm, sampling=Sampling(shortlist="levels"), k=0) as nuc,
    ):
        assert (await nuc.classify("a text")).label == "card > lost"
        assert nuc.usage.calls == 3


async def test_a_label_of_another_branch_is_not_taken_for_one_of_the_level() -> None:
    said = ["refunds", "refund > late", "refund > late"]
    async with (
        LoopbackLLM(lambda _, index: said[index]) as llm,
        client(
            llm,
            {"refund": ["late", "lost"], "refunds": ["late", "lost"]},
            sampling=Sampling(shortlist="levels"),
            k=0,
        ) as nuc,
    ):
        assert (await nuc.classify("my money is late")).own_label == "refund > late"


async def test_many_labels_are_asked_by_level_if_that_is_shorter() -> None:
    description = "What this label means, in a few more words."
    few_below = {f"topic {i}": {f"kind {j}": description for j in range(15)} for i in range(15)}
    flat = {f"topic {i}": {"only": None, "one": None} for i in range(150)}
    async with LoopbackLLM(lambda _: ("x", 0.9)) as llm:
        async with client(llm, few_below) as nuc:
            estimate = await nuc.estimate(["a text"])
            assert "level by level" in estimate.note
            assert estimate.calls == 2
            assert nuc._parts.shortlist == "levels"
        async with client(llm, flat) as nuc:
            assert nuc._parts.shortlist == 50


@pytest.mark.slow
async def test_a_level_is_certified(tmp_path: Path) -> None:
    """The kind of refund is a guess, that it is a refund is right."""
    rng = np.random.default_rng(0)
    kinds = [f"{top} {kind}" for top in ("refund", "card") for kind in ("late", "twice")]
    texts = [f"{kinds[i % 4].split()[0]} text {i}" for i in range(400)]
    gold = [f"{text.split()[0]} > {('a', 'b')[int(rng.random() < 0.5)]}" for text in texts]
    labels = ["refund > a", "refund > b", "card > a", "card > b"]
    said = {text: (f"{text.split()[0]} > a", 0.9) for text in texts}
    store = tmp_path / "answers.db"
    async with LoopbackLLM(said) as llm:
        async with client(llm, labels, policy="auto", k=None, store=store) as nuc:
            await nuc.classify_many(texts)
            await nuc.learn(texts[:100], gold[:100])
            review = await nuc.review(100, "certify")
            for item in review:
                review.answer(item.index, gold[texts.index(item.text)])
            learned = await nuc.learn(review)
            whole, top = learned.certify(0.9), learned.certify(0.9, level=1)
            assert not whole.coverage
            assert top.coverage >= 0.3
            assert "at level 1 of the labels" in str(top)
            with pytest.raises(InvalidInputError, match="level is 2; give 1 to 1, or"):
                learned.certify(level=2)
            results = await nuc.classify_many(texts)
            covered = results.certified(top)
            assert len(covered) >= 120
            assert all(row.trust is not None and row.trust >= top.trust for row in covered)
        async with client(llm, labels, policy="auto", k=None, store=store) as nuc:
            # as it was kept in the store
            assert (await nuc.classify(texts[0])).explain() == results[0].explain()
            again = nuc.learned
            assert again is not None
            assert again.certify(0.9, level=1) == top


def test_the_command_line_reads_a_nested_file_and_writes_levels(tmp_path: Path) -> None:
    (tmp_path / "labels.json").write_text(json.dumps(NESTED))
    (tmp_path / "lines.txt").write_text("\n".join(PATHS))
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    with LoopbackLLM(lambda _: ("card > lost", 0.9)) as llm:
        for labels, output in (("labels.json", "out.jsonl"), ("lines.txt", "out.csv")):
            given = ["--labels", tmp_path / labels, "--model", "openai/test", "--k", "1"]
            ran(
                "classify", tmp_path / "in.jsonl", *given, "-o", tmp_path / output,
                "--base-url", llm.base_url, "--full",
            )  # fmt: skip
    for output in ("out.jsonl", "out.csv"):
        results = Results.from_jsonl(tmp_path / output) if output.endswith("jsonl") else None
        if results is None:
            assert '"[""card"",""lost""]"' in (tmp_path / output).read_text()
            continue
        (first, _) = results
        assert first.path == ("card", "lost")
        assert results.to_pandas()["path"][0] == ["card", "lost"]
        page = tmp_path / "page.html"
        results.to_html(page)
        assert '"p":[["card",' in page.read_text()
