"""Few-shot examples: which texts are shown, with which labels, and what is stored."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testnuc._engine.batch import Snapshot
from testnuc._engine.examples import ExampleFinder
from testnuc.errors import ServerError
from testnuc.methods import TopKICL, TopKICLP
from testnuc.types import Prediction
from tests._engine.engine_parts import Parts, entries_of
from tests.conftest import gold, messages


def finder_of(parts, method):
    return ExampleFinder(
        method,
        predictor=parts.predictor,
        embedding=parts.embedding,
        pool=parts.pool,
        store=parts.store,
    )


@pytest.fixture
async def parts():
    made = Parts()
    yield made
    await made.close()


@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 25), k=st.integers(1, 8), later=st.integers(0, 5))
async def test_examples_are_the_nearest_texts_of_the_snapshot_but_never_the_text(n, k, later):
    parts = Parts()
    texts = messages(n + later)
    finder = finder_of(parts, TopKICL(k))
    await parts.add(texts[:n])
    snapshot = Snapshot(await finder.snapshot())
    if later:
        await parts.add(texts[n:])
    entries = entries_of(texts[:n])
    found = await finder.examples(entries, snapshot, parts.scheduler)
    vectors = await parts.embedding.vectors(entries)
    for row, (own, shown) in enumerate(zip(texts, found, strict=False)):
        assert len(shown) == min(k, n - 1)
        names = [example.text for example in shown]
        assert own not in names
        assert set(names) <= set(texts[:n])
        nearness = [float(vectors[row] @ vectors[texts.index(name)]) for name in names]
        assert all(a >= b - 1e-2 for a, b in pairwise(nearness))
        assert {example.label for example in shown} <= {None}
    assert not parts.asked
    await parts.close()


async def test_labels_of_examples_are_asked_once_by_standard_prompting(parts):
    texts = messages(20)
    finder = finder_of(parts, TopKICLP(3))
    await parts.add(texts)
    snapshot = Snapshot(await finder.snapshot())
    for _ in range(2):
        found = await finder.examples(entries_of(texts), snapshot, parts.scheduler)
        for shown in found:
            assert all(example.label == gold(example.text) for example in shown)
    keys = [ask.key for ask in parts.asked]
    assert len(keys) == len(set(keys))
    assert set(keys) <= {parts.predictor.key(text) for text in texts}


async def test_an_example_whose_prediction_failed_has_no_label(parts):
    parts.said = lambda text: ServerError("503") if gold(text) == "login" else gold(text)
    texts = messages(12)
    finder = finder_of(parts, TopKICLP(4))
    await parts.add(texts)
    found = await finder.examples(
        entries_of(texts), Snapshot(await finder.snapshot()), parts.scheduler
    )
    for shown in found:
        for example in shown:
            label = gold(example.text)
            assert example.label == (None if label == "login" else label)


async def test_only_askable_texts_are_asked_for_their_label(parts):
    texts = messages(12)
    entries = entries_of(texts)
    finder = finder_of(parts, TopKICLP(11))
    await parts.add(texts)
    # a prediction that this method made with examples serves where there is none without
    await finder.remember([(entries[4], Prediction("login", 0.5))])
    snapshot = Snapshot(
        await finder.snapshot(), askable=frozenset(entry.hash for entry in entries[:3])
    )
    (shown,) = await finder.examples(entries[:1], snapshot, parts.scheduler)
    labels = {example.text: example.label for example in shown}
    assert labels.pop(texts[4]) == "login"
    assert {labels.pop(text) for text in texts[1:3]} == {gold(text) for text in texts[1:3]}
    assert set(labels.values()) == {None}
    assert {ask.text for ask in parts.asked} == set(texts[1:3])


async def test_the_first_prediction_with_any_examples_stays(parts):
    finder = finder_of(parts, TopKICL(2))
    entry, other = entries_of(["refund please", "delivery late"])
    assert await finder.stored([entry, other]) == [None, None]
    await finder.remember([(entry, Prediction("refund", 0.9))])
    await finder.remember([(entry, Prediction("login", 0.1)), (other, Prediction("delivery"))])
    assert await finder.stored([entry, other]) == [
        Prediction("refund", 0.9),
        Prediction("delivery"),
    ]
    # another method's, or another number of examples, is another prediction
    for method in (TopKICLP(2), TopKICL(3)):
        assert await finder_of(parts, method).stored([entry]) == [None]


async def test_keys_without_examples_are_those_of_the_first_version(parts):
    (entry,) = entries_of(["refund please"])
    await finder_of(parts, TopKICL(2)).remember([(entry, Prediction("refund"))])
    (row,) = parts.store.rows()
    assert row.key == parts.predictor.key_of(
        "testnuc.methods.topk_icl.TopKICL/2/False/1", entry.hash
    )
