"""The benchmark of shortlists: its figures are those of its data."""

from __future__ import annotations

import numpy as np

from bench.evaluation.recording import KnownVectors
from bench.labels import _Data, _report
from testnuc._engine.shortlist import described
from testnuc.labels import LabelSet
from testnuc.testing import HashEmbedder


async def test_the_figures_follow_from_the_answers():
    words = ["ant", "bee", "cat", "dog", "elk"]
    labels = LabelSet([f"about {word}" for word in words])
    # a text names its label, except those of "elk", whose neighbors alone give it away
    said = [f"about {word}" for word in words[:4]] + ["antlers and a bee in the woods"]
    texts = [f"{said[i % 5]} number {i}" for i in range(60)]
    gold = np.arange(60, dtype=np.int32) % 5
    embedder = HashEmbedder()
    vectors = (await embedder.embed(texts)).astype(np.float16)
    data = _Data(
        "made", labels, texts, gold, gold, vectors, await embedder.embed(described(labels)),
        KnownVectors(texts, vectors, embedder),
    )  # fmt: skip
    report = await _report(data, 20, 3, [2])
    short, whole = report.rows
    assert short["by names alone"] < short["and neighbors"] <= 1
    assert short["and neighbors"] >= 0.8
    assert short["labels"] == 2
    assert whole["labels"] == 5
    assert whole["calls"] == 1 <= short["calls"]
