"""The benchmarks of retrieval, scale and capacity run, and what they say adds up."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bench import _clusters, capacity, retrieval, scale
from testnuc.limits.policies import Limits


def rows(path):
    return json.loads(path.read_text())["rows"]


def test_clusters_are_unit_vectors_that_do_not_depend_on_how_they_are_read():
    made = _clusters.vectors(500, 32)
    assert np.abs(np.linalg.norm(made.astype(np.float32), axis=1) - 1).max() < 1e-2
    assert (np.concatenate(list(_clusters.parts(500, 32))) == made).all()
    others = _clusters.vectors(500, 32, seed=1)
    cosines = others.astype(np.float32) @ made.astype(np.float32).T
    # other texts of the same topics: near, and not the same
    assert 0.5 < np.median(cosines.max(axis=1)) < 0.99


def test_retrieval(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(retrieval, "_BATCH", 40)
    monkeypatch.setattr(retrieval, "_SINGLES", 3)
    retrieval.prepare(tmp_path, 400, 32)
    truth = np.load(tmp_path / "truth.npy")
    for name in ("testnuc", "numpy", "usearch"):
        found = retrieval.measure(name, tmp_path)
        assert found["index"] == name
        assert found["texts"] == 400
        assert found["recall@10"] >= 0.95
        assert found["batch q/s"] > 0
    found = np.load(tmp_path / "rows.npy").astype(np.float32)
    scores = np.load(tmp_path / "queries.npy").astype(np.float32) @ found.T
    assert truth[:, 0].tolist() == scores.argmax(axis=1).tolist()


@pytest.mark.parametrize("store", ["sqlite", "memory"])
def test_scale(tmp_path, store):
    result = tmp_path / "result.json"
    flags = f"--sizes 300 --dim 16 --batch 60 --stores {store} --without 3 --json"
    scale.main([*flags.split(), str(result)])
    found = rows(result)
    assert [row["what"] for row in found] == ["new texts", "next batch", "known texts"]
    for row in found:
        parts = [row[f"{step} us"] for step in (*scale.STEPS, "rest")]
        assert sum(parts) == pytest.approx(row["all us"], abs=0.01)


def written(path, kind, *found):
    path.write_text(json.dumps({"name": kind, "title": "", "notes": [], "rows": found}))
    return str(path)


@pytest.mark.slow
def test_capacity_multiplies_unit_costs(tmp_path, capsys):
    mebi = 1 << 20
    given = {
        "store": {"texts": 1_000, "file MiB": 2_000 / mebi * 1_000, "index MiB": 1_000e3 / mebi},
        "retrieval": {"index": "testnuc", "texts": 1_000, "memory MiB": 1_000e3 / mebi},
        "scale": {"pool": 1_000, "what": "new texts", "all us": 600.0},
        "throughput": {"client": "testnuc", "CPU us/call": 200},
    }
    result = tmp_path / "result.json"
    flags = [
        flag
        for kind, row in given.items()
        for flag in (f"--{kind}", written(tmp_path / f"{kind}.json", kind, row))
    ]
    flags += ["--json", str(result), "--model", "openai/gpt-4o-mini"]
    more = (
        "--texts 1000 1000000 --duplicates 0.5 --input-tokens 1000 --output-tokens 0 "
        "--requests-per-minute 6000 --simulated 4000"
    )
    capacity.main([*flags, *more.split()])
    few, many = rows(result)
    assert (few["calls"], many["calls"]) == (500, 500_000)
    assert many["M tokens"] == 500
    assert many["usd"] == pytest.approx(75)
    assert many["SQLite GiB"] == pytest.approx(500_000 * 2_000 / (1 << 30))
    assert many["index memory GiB"] == pytest.approx(500_000 * 1_000 / (1 << 30))
    assert many["CPU hours"] == pytest.approx(500_000 * 800e-6 / 3_600)
    # 6,000 a minute, less the guard of the limiter
    assert many["hours"] == pytest.approx(500_000 / 6_000 / 60, rel=0.05)
    assert many["PostgreSQL GiB"] is None
    assert "bench scale, a pool of 1,000" in capsys.readouterr().out


def test_capacity_names_a_file_it_cannot_read(tmp_path):
    with pytest.raises(SystemExit, match=r"none\.json is not the JSON of a benchmark"):
        capacity.main(["--store", str(tmp_path / "none.json")])


def test_the_simulation_keeps_the_limit_and_waits_for_answers():
    limit = Limits(600)
    options = {"concurrency": 50, "latency": 0.5, "tokens": (10, 1)}
    assert capacity.simulate(1_200, limit, **options) == pytest.approx(122, abs=3)
    # few calls at once: the latency decides
    slow = capacity.simulate(100, Limits(60_000), concurrency=1, latency=2.0, tokens=(1, 1))
    assert slow == pytest.approx(200, abs=2)
