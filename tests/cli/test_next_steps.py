"""The last line of a run: a command that works as it stands."""

from __future__ import annotations

import shlex

import pytest

from testnuc.testing import LoopbackLLM
from tests.cli.in_process import ran, run_here
from tests.conftest import LABELS, confident, messages


def test_the_command_that_a_run_ends_with_works_as_it_stands(tmp_path):
    (tmp_path / "my texts.txt").write_text("\n".join(messages(60)))
    (tmp_path / "labels.txt").write_text("\n".join(LABELS))
    with LoopbackLLM(confident) as llm:
        given = ["--labels", "labels.txt", "--model", "openai/test", "--base-url", llm.base_url]
        given += ["--instructions", "what the writer wants; it's said", "-o", "my labels.csv"]
        _, err = ran("classify", "my texts.txt", *given)
        line = err.splitlines()[-1]
        assert line.startswith("next, judge fifty texts (about three minutes): testnuc review ")
        typed = shlex.split(line.partition(": ")[2])
        assert typed[:5] == ["testnuc", "review", "my labels.csv", "-n", "50"]
        ran(*typed[1:], "--goal", "certify", key=None)
        assert llm.calls == 60
    assert (tmp_path / "review.json").exists()


@pytest.mark.parametrize(
    ("texts", "says"),
    [(5, "next, label more texts: at least 10 are"), (12, "next, judge them: testnuc review ")],
)
def test_no_run_advises_more_judgments_than_it_has_texts(tmp_path, texts, says):
    (tmp_path / "few.txt").write_text("\n".join(messages(texts)))
    with LoopbackLLM(confident) as llm:
        given = ["--labels", ",".join(LABELS), "--model", "openai/test", "--base-url", llm.base_url]
        _, _, err = run_here("classify", tmp_path / "few.txt", *given, "-o", tmp_path / "few.csv")
    assert err.splitlines()[-1].startswith(says)
    assert "fifty" not in err


def test_results_that_are_nowhere_have_no_command(tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(messages(8)))
    with LoopbackLLM(confident) as llm:
        given = ["--labels", ",".join(LABELS), "--model", "openai/test", "--base-url", llm.base_url]
        _, _, err = run_here("classify", tmp_path / "in.txt", *given)
    assert err.splitlines()[-1].startswith("next: name an output with -o")
