"""Neighbors that have a prediction, against the nearest of all texts that have one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testnuc._engine.retrieval import Retriever
from testnuc.methods import SelfConsistency, StandardPrompting, TopKICL
from testnuc.protocols import PoolText, StoredPrediction
from testnuc.types import Prediction
from tests._engine.engine_parts import Parts, entries_of

DIM = 8


def unit(n, seed, *, coarse):
    random = np.random.default_rng(seed)
    rows = random.integers(-1, 2, (n, DIM)) if coarse else random.standard_normal((n, DIM))
    rows = rows.astype(np.float32)
    rows[~rows.any(axis=1)] = 1
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


def naive(query, own, k, pool, voting):
    """Return the k nearest voting texts of a query, compared one by one."""
    scored = [
        (-min(float(query.astype(np.float64) @ v.astype(np.float64)), 1.0), e.hash)
        for e, v in pool
        if e.hash in voting and e.hash != own
    ]
    scored = [(round(s, 5), h) for s, h in scored]
    return [h for _, h in sorted(scored)[:k]]


async def put(one, entries, samples=1):
    await one.store.put_predictions(
        [
            StoredPrediction(
                one.predictor.key(e.text, s), one.predictor.scope, e.hash, s, Prediction("refund")
            )
            for e in entries
            for s in range(samples)
        ]
    )


@pytest.mark.slow
@given(
    n=st.integers(1, 120),
    predicted=st.floats(0, 1),
    half=st.floats(0, 0.5),
    labeled=st.integers(0, 4),
    k=st.integers(0, 5),
    together=st.booleans(),
    late=st.integers(0, 20),
    samples=st.sampled_from([1, 2]),
    capable=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
async def test_stored_neighbors_are_the_nearest_texts_that_have_a_prediction(
    n, predicted, half, labeled, k, together, late, samples, capable, seed
):
    method = StandardPrompting() if samples == 1 else SelfConsistency(n=2)
    one = Parts(method, neighbors="stored", k=k)
    if not capable:
        # a store of a user's own: all texts of the pool are checked
        one.store.predicted = None
    try:
        random = np.random.default_rng(seed)
        texts = entries_of([f"text {i}" for i in range(n)])
        known = random.choice(n, min(labeled, n), replace=False).tolist()
        for i, row in enumerate(known):
            # every other label is of another label set
            label = "login" if i % 2 else "a label of other people"
            texts[row] = PoolText(texts[row].text, texts[row].hash, label)
        vectors = unit(n, seed, coarse=True)
        queries = entries_of(["text 0", "a query", "another"])
        asked = np.concatenate([vectors[:1], unit(2, seed + 1, coarse=True)])
        upto = await one.pool.add(texts, vectors)
        if together:
            upto = await one.pool.add(queries, asked)
        later = entries_of([f"late {i}" for i in range(late)])
        if later:
            await one.pool.add(later, unit(late, seed + 2, coarse=True))
        full = [e for e in texts if random.random() < predicted]
        partly = [e for e in texts if random.random() < half]
        await put(one, full + later, samples)
        await put(one, partly)
        removed = [e for e in texts if random.random() < 0.1]
        await one.pool.remove([e.hash for e in removed])

        pool = [(e, v) for e, v in zip(texts, vectors, strict=True) if e not in removed]
        voting = {e.hash for e in full} | {e.hash for e in texts if e.label == "login"}
        if samples == 1:
            voting |= {e.hash for e in partly}
        if together:
            inside = {e.hash for e, _ in pool} | {e.hash for e in removed}
            pool += [(e, v) for e, v in zip(queries, asked, strict=True) if e.hash not in inside]
            voting |= {e.hash for e in queries}
        found = await one.pipeline.retriever.search(queries, asked, k, upto=upto, together=together)
        got = [[e.hash for e in await one.pool.fetch(row[row >= 0])] for row in found.ids]
        assert got == [
            naive(q, e.hash, k, pool, voting) for e, q in zip(queries, asked, strict=True)
        ]
        assert ((found.similarities != 0) <= (found.ids >= 0)).all()
    finally:
        await one.close()


class Counted:
    """Counts the rows that a search returns and the texts that are fetched."""

    def __init__(self, pool):
        self._pool = pool
        self.returned = self.fetched = self.widest = 0

    def __getattr__(self, name):
        return getattr(self._pool, name)

    def __len__(self):
        return len(self._pool)

    async def search(self, vectors, k, **more):
        self.returned += len(vectors) * k
        self.widest = max(self.widest, k)
        return await self._pool.search(vectors, k, **more)

    async def fetch(self, ids):
        self.fetched += len(ids)
        return await self._pool.fetch(ids)


@pytest.mark.slow
@pytest.mark.parametrize("predicted", [0, 3, 40])
@pytest.mark.parametrize("method", [StandardPrompting(), TopKICL(k=2)])
async def test_a_pool_with_few_predictions_is_not_read_for_each_text(predicted, method):
    one = Parts(method, neighbors="stored")
    try:
        n, k = 6_000, 3
        texts = entries_of([f"text {i}" for i in range(n)])
        await one.pool.add(texts, unit(n, 0, coarse=False))
        if one.pipeline.examples is None:
            await put(one, texts[-predicted:] if predicted else [])
        else:
            await one.pipeline.examples.remember(
                [(e, Prediction("refund")) for e in (texts[-predicted:] if predicted else [])]
            )
        pool = Counted(one.pool)
        retriever = Retriever(
            method,
            "stored",
            predictor=one.predictor,
            pool=pool,
            store=one.store,
            examples=one.pipeline.examples,
        )
        queries = entries_of([f"query {i}" for i in range(20)])
        found = await retriever.search(queries, unit(20, 1, coarse=False), k)
        assert (found.ids >= 0).sum(axis=1).tolist() == [min(k, predicted)] * 20
        assert set(np.unique(found.ids).tolist()) <= {-1, *range(n - predicted, n)}
        assert pool.widest <= 16 * k
        assert pool.returned <= 20 * 23 * k
        # each at most once in the run
        assert pool.fetched <= min(n, 20 * 17 * k)
    finally:
        await one.close()
