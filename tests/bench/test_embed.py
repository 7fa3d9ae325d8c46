"""The benchmarks of embedders, and of embedding while calls are made."""

from __future__ import annotations

import json
from argparse import Namespace

import numpy as np
import pytest

from bench import overlap
from bench.embed import _report
from testnuc import embedders
from testnuc.testing import HashEmbedder


class Noisy(HashEmbedder):
    """Vectors that say little about the text."""

    async def embed(self, texts):
        rng = np.random.default_rng(len(texts[0]))
        return await super().embed(texts) + 3 * rng.normal(size=(len(texts), self.dim))


@pytest.mark.slow
def test_a_worse_embedder_shows(tmp_path, monkeypatch):
    words = ["ant", "bee", "cat", "dog"]
    rows = [
        {"text": f"{words[i % 4]} number {i}", "gold": words[i % 4], "prediction": words[i % 4]}
        for i in range(120)
    ]
    for row in rows[::10]:
        row["prediction"] = "dog"
    path = tmp_path / "made.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    known = {"plain": HashEmbedder(), "noisy": Noisy()}
    monkeypatch.setattr(embedders, "resolve", lambda name: known[name])
    given = Namespace(texts=None, embedders=["plain", "noisy", "absent"], others=[])
    report = _report(path, given)
    plain, noisy = report.rows
    assert (plain["recall"], plain["padding"]) == (1, None)
    assert noisy["recall"] < 0.9
    assert plain["vote"] > noisy["vote"]
    assert plain["head"] > noisy["head"]
    # what cannot be loaded is a note
    assert report.notes == ["absent: KeyError: 'absent'"]


@pytest.mark.slow
def test_a_run_beside_its_halves(tmp_path, monkeypatch):
    monkeypatch.setattr(embedders, "resolve", lambda name: HashEmbedder() if name == "x" else name)
    out = tmp_path / "out.json"
    overlap.main(f"--embedder x --texts 100 --latency 0.01 --rounds 1 --json {out}".split())
    (row,) = json.loads(out.read_text())["rows"]
    assert row["calls"] == 100
    longer = max(row["embedding, s"], row["asking, s"])
    assert row["both / the longer"] == pytest.approx(row["both, s"] / longer)
