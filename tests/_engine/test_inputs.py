"""Texts and labels as columns of pandas, polars and Arrow."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from testnuc import InvalidInputError, TestNUC
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
