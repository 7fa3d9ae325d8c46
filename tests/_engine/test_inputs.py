"""Texts and labels as columns of pandas, polars and Arrow."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from testnuc import InvalidInputError, RetryPolicy, TestNUC, VotePolicy
from testnuc.testing import LoopbackLLM
from tests.conftest import confident, gold, messages

TEXTS = messages(30)
NULL = "leave such rows out"


def columns(values):
    return {
        "list": list(values),
        "pandas": pd.Series(values, index=[f"row{i}" for i in range(len(values))]),
        "pandas object": pd.Series(values, dtype=object),
        "pandas arrow": pd.Series(values, dtype="string[pyarrow]"),
        "pandas category": pd.Series(values, dtype="category"),
        "pandas index": pd.Index(values),
        "polars": pl.Series(values),
        "polars category": pl.Series(values, dtype=pl.Categorical),
        "arrow": pa.array(values),
        "arrow large": pa.array(values, type=pa.large_string()),
        "arrow dictionary": pa.array(values).dictionary_encode(),
        "arrow chunks": pa.chunked_array([values[:7], [], values[7:]], type=pa.string()),
        "numpy": np.array(values),
    }


@pytest.mark.parametrize("kind", columns(TEXTS))
async def test_columns_are_texts_as_a_list_is(client_of, kind):
    with LoopbackLLM(confident) as llm:
        async with TestNUC(**client_of(llm)) as nuc:
            results = await nuc.classify_many(columns(TEXTS)[kind])
            assert [r.text for r in results] == TEXTS
            assert {type(r.text) for r in results} <= {str, np.str_}
            streamed = [r async for r in nuc.stream(columns(TEXTS)[kind], window=8)]
            assert sorted((r.index, r.text) for r in streamed) == list(enumerate(TEXTS))
            assert not any(r.error for r in streamed)
        assert llm.calls == len(TEXTS)


@pytest.mark.parametrize("kind", columns(TEXTS))
async def test_columns_are_labels_as_a_list_is(client_of, kind):
    labels = [gold(text) for text in TEXTS]
    with LoopbackLLM(confident) as llm:
        async with TestNUC(**client_of(llm)) as nuc:
            await nuc.add(columns(TEXTS)[kind], labels=columns(labels)[kind])
            result = await nuc.classify("money back number 999")
            assert len(nuc) == 31
            assert result.neighbors[0].confidence == 1.0
        assert llm.calls == 1


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pd.Series(["a", None], index=["x", "y"]), rf"text 1 is null \(row 'y'\); {NULL}"),
        (pd.Series(["a", float("nan")], dtype=object), rf"text 1 is null \(row 1\); {NULL}"),
        (pd.Series(["a", pd.NA], dtype="string[pyarrow]"), rf"text 1 is null \(row 1\); {NULL}"),
        (pl.Series(["a", None]), f"text 1 is null; {NULL}"),
        (pa.array(["a", None]), f"text 1 is null; {NULL}"),
        (pa.chunked_array([["a"], [None]], type=pa.string()), f"text 1 is null; {NULL}"),
        (["a", None], "text 1 is not a string but NoneType"),
        (pd.Series(["a", 7], dtype=object), "text 1 is not a string but int"),
        (pd.DataFrame({"text": ["a"]}), "texts is a DataFrame; give one of its columns"),
        (pl.DataFrame({"text": ["a"]}), "texts is a DataFrame; give one of its columns"),
        (pa.table({"text": ["a"]}), "texts is a Table; give one of its columns"),
        (np.array("a"), "texts is a ndarray"),
    ],
)
async def test_what_is_no_column_of_texts_is_refused_before_any_call(client_of, column, says):
    with LoopbackLLM(confident) as llm:
        async with TestNUC(**client_of(llm)) as nuc:
            for take in (nuc.classify_many, nuc.add, nuc.estimate):
                with pytest.raises(InvalidInputError, match=says):
                    await take(column)
            assert len(nuc) == 0
        assert llm.calls == 0


@pytest.mark.parametrize("kind", columns(TEXTS))
async def test_columns_are_known_labels_and_groups_as_a_list_is(client_of, kind):
    right = [gold(text) for text in TEXTS]
    groups = ["odd", "even"] * 15
    with LoopbackLLM(confident) as llm:
        async with TestNUC(**client_of(llm)) as nuc:
            known = columns(right)[kind]
            assert str(await nuc.evaluate(TEXTS, known)) == str(await nuc.evaluate(TEXTS, right))
            learned = await nuc.learn(TEXTS, known)
            results = await nuc.classify_many(TEXTS)
    counts = results.count_labels(learned, columns(groups)[kind])
    assert counts.records() == results.count_labels(learned, groups).records()
    # values of several types have no order
    mixed = results.count_labels(learned, [1 if group == "odd" else "even" for group in groups])
    assert {count.group for count in mixed} == {None, "1", "even"}


@pytest.mark.parametrize(
    "missing",
    [
        pd.Series(["refund", None] * 10),
        pd.Series(["refund", None] * 10, dtype="string"),
        pl.Series(["refund", None] * 10),
        pa.array(["refund", None] * 10),
    ],
    ids=["pandas", "pandas string", "polars", "arrow"],
)
async def test_a_null_is_no_judgment_and_no_group(client_of, missing):
    # None in a list says that none of the labels is right; a null of a column that it is unknown
    texts, right = TEXTS[:20], [gold(text) for text in TEXTS[:20]]
    with LoopbackLLM(confident) as llm:
        async with TestNUC(**client_of(llm)) as nuc:
            with pytest.raises(InvalidInputError, match=r"label 1 is null.*in a list, None"):
                await nuc.learn(texts, missing)
            assert llm.calls == 0
            learned = await nuc.learn(texts, right)
            results = await nuc.classify_many(texts)
    counts = results.count_labels(learned, missing)
    assert {count.group for count in counts} == {None, "refund"}
    assert any("10 rows are in no such group" in note for note in counts.notes)


async def test_a_table_has_no_place_in_a_stream_either(client_of):
    with LoopbackLLM(confident) as llm:
        async with TestNUC(**client_of(llm)) as nuc:
            with pytest.raises(InvalidInputError, match="texts is a DataFrame"):
                async for _ in nuc.stream(pd.DataFrame({"text": TEXTS})):
                    pass
            results = [r async for r in nuc.stream(pl.Series([*TEXTS, None]))]
        assert [r.index for r in results if r.error] == [30]
        assert llm.calls == 30


async def test_odd_arguments_are_named_before_any_call(client_of):
    with LoopbackLLM(confident) as llm:
        async with TestNUC(**client_of(llm)) as nuc:
            await nuc.classify_many(TEXTS)
            review = await nuc.review(5)
            review.answer(0, gold(review[0].text))
    async with TestNUC(**client_of(llm)) as nuc:
        for call, says in (
            (nuc.classify_many(3), "texts is 3; give a list"),
            (nuc.evaluate(None, ["even"]), "texts is None"),
            (nuc.evaluate(TEXTS, 5), "labels is 5"),
            (nuc.evaluate(TEXTS, "even"), "labels is 'even'"),
            (nuc.evaluate(TEXTS[:2], {"even", "odd"}), "labels is {'"),
            (nuc.classify_many(TEXTS, progress=None), "progress is None; give True, False or"),
            (nuc.classify_many(TEXTS, lane=np.array(["live", "batch"])), "lane is array"),
            (nuc.review(5, np.array(["decide", "count"])), "goal is array"),
            (nuc.review(5, seed=-1), "seed is -1; give an integer of at least 0"),
            (nuc.review(5, seed="x"), "seed is 'x'"),
            (nuc.learn(review, was="even"), "was is 'even'; give a mapping"),
            (nuc.learn(review, was={"even": None}), r"was\['even'\] is None; give a list"),
            (nuc.learn(review, protect=3), "protect is 3; give a list"),
            (nuc.learn(review, protect=[None]), "protect: None is not in the label set"),
            (nuc.ask(TEXTS, "openai/m"), "review is .*; give what `review` returned"),
        ):
            with pytest.raises(InvalidInputError, match=says):
                await call
        assert nuc.usage.calls == 0
    for seed in (-1, "x", None):
        with pytest.raises(InvalidInputError, match="seed is"):
            review.split(2, seed=seed)
    with pytest.raises(InvalidInputError, match="at most 1000"):
        review.split(10**400)
    with pytest.raises(InvalidInputError, match="own_weight is 1000"):
        VotePolicy(own_weight=10**400)
    with pytest.raises(InvalidInputError, match="deadline is 1000"):
        RetryPolicy(deadline=10**400)
