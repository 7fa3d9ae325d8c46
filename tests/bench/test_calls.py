"""bench calls and bench distill run, and print what they measure."""

from __future__ import annotations

import json

import pytest

from bench import calls, distill
from tests.bench.test_evidence import folder  # noqa: F401 - a fixture

pytestmark = pytest.mark.slow


def test_the_tables_and_the_picture(folder, capsys):  # noqa: F811
    out, plot = folder / "out.json", folder / "calls.svg"
    calls.main(
        f"--data {folder} --cache {folder / 'cache'} --seeds 2 --curve-seeds 1 --plot {plot} "
        f"--json {out}".split()
    )
    rows = json.loads(out.read_text())["rows"]
    default = [row for row in rows if row["part"] == "unsure"]
    assert [row["set"] for row in default] == ["tickets.strong", "tickets.weak"]
    # too few texts to prove anything: all are asked about
    assert all(row["asked"] == 1 and row["gain"] == 0 for row in default)
    curve = [row for row in rows if row["part"] == "curve"]
    assert len(curve) == 12
    for row in curve:
        assert 0 < row["10%"] <= 1
        if row["labels"] == "own labels":
            assert row["all"] == pytest.approx(
                next(d["alone"] for d in default if d["set"] == row["set"])
            )
    printed = capsys.readouterr().out
    assert "tickets.weak" in printed
    picture = plot.read_text()
    assert "tickets.weak" in picture
    # two runs that differ in the parts make the same rows
    halves = [folder / "one.json", folder / "two.json"]
    for half, dropped in zip(halves, (["25%", "50%"], ["10%", "15%"]), strict=True):
        kept = [{name: row[name] for name in row if name not in dropped} for row in rows]
        half.write_text(json.dumps({"rows": kept}))
    calls.main(["--earlier", *map(str, halves), "--plot", str(plot)])
    assert capsys.readouterr().out == printed
    assert plot.read_text().count("tickets") == picture.count("tickets")


def test_a_head_labels_many_texts(tmp_path, capsys):
    out = tmp_path / "out.json"
    distill.main(["--quick", "--repeats", "1", "--labels", "20", "--json", str(out)])
    rate, asked, predicted, served = json.loads(out.read_text())["rows"]
    assert rate["per_second"] > 0
    assert (asked["texts"], predicted["texts"], served["texts"]) == (2_000, 20_000, 20_000)
    # the simulated LLM is right on seven of ten
    assert predicted["accuracy"] == served["accuracy"] > 0.9
    assert 0 < served["early_mib"] <= served["peak_mib"]
    assert "vectors to labels" in capsys.readouterr().out
