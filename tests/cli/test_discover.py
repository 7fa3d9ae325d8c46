"""``testnuc discover``: from texts to a label file."""

import shlex
from pathlib import Path

import pytest

from testnuc.cli.label_files import read_labels, write_labels
from testnuc.testing import LoopbackLLM
from tests.cli.in_process import ran, run_here
from tests.test_discovery import LABELS, Namer, texts_of


@pytest.fixture
def tickets():
    Path("tickets.csv").write_text("text\n" + "\n".join(texts_of()))
    return "tickets.csv"


def test_texts_become_a_label_file(tickets):
    pytest.importorskip("yaml")
    with LoopbackLLM(Namer()) as llm:
        options = ["-n", "4", "--base-url", llm.base_url]
        out, _ = ran("discover", tickets, *options, "--dry-run")
        assert "nothing was sent; at most 45 calls" in out
        assert llm.calls == 0
        out, err = ran("discover", tickets, *options)
        assert "4 labels, 4 new, 0 dropped" in out
        assert "embedding and clustering 160 different texts; then openai/gpt-4o-mini names" in err
        assert f"{llm.calls} calls, 4 labels, written to labels.yaml" in err
        assert "testnuc classify tickets.csv" in err
        labels = read_labels("labels.yaml")
        assert labels == {label: f"about {label}" for label in labels}
        assert set(labels) == set(LABELS)
        assert "  # " in Path("labels.yaml").read_text(encoding="utf-8")
        calls = llm.calls
        code, _, err = run_here("discover", tickets, *options)
        assert code == 2
        assert "labels.yaml exists" in err
        # the answers are beside the output
        ran("discover", tickets, *options, "--overwrite")
        assert llm.calls == calls


def test_words_name_labels_without_a_key(tickets):
    given = ["--model", "local/keywords", "--labels", "refund,other", "-o", "found.json", "--tree"]
    _, err = ran("discover", tickets, *given)
    labels = read_labels("found.json")
    assert list(labels)[:2] == ["refund", "other"]
    assert len(labels) > 2
    assert "these are words that set texts apart: edit found.json" in err
    assert "--model" not in err.rpartition("next, label the texts")[2]
    out, _ = ran("discover", tickets, "-n", "16", "--tree", "--dry-run")
    # 48 clusters: their names, as many pairs, 96 texts on trial, the list, the same texts
    # again and with 100 more, topics of up to 48 labels
    assert f"at most {48 + 48 + 10 + 5 + 10 + 20 + 6} calls" in out


def test_a_label_file_is_read_as_it_was_written(tmp_path):
    pytest.importorskip("yaml")
    labels = {"no": "", 'it\'s: 5 "quoted" \N{GRINNING FACE}': "a\x85b # no comment", "x": "y"}
    for name in ("labels.yaml", "labels.json"):
        path = str(tmp_path / name)
        write_labels(path, labels, {"no": ["first\nsecond\x7f"]})
        assert read_labels(path) == labels
    write_labels(path, {"a": "", "b": ""})
    assert read_labels(path) == ["a", "b"]


def test_the_next_command_can_be_run_as_it_stands():
    """It lacked the column of texts, and wrote to a file that was there."""
    pytest.importorskip("yaml")
    Path("tickets.csv").write_text("message\n" + "\n".join(texts_of()))
    Path("out.csv").write_text("of another run")
    namer = Namer()
    namer.labels = LABELS[:2]
    with LoopbackLLM(namer) as llm:
        options = ["--text-column", "message", "-n", "4", "--base-url", llm.base_url]
        _, err = ran("discover", "tickets.csv", *options)
        assert "after Ctrl-C, the same command goes on" in err
        assert "many texts fit none of the labels: a higher -n finds more labels" in err
        words = shlex.split(err.rpartition("next, label the texts: testnuc ")[2])
        ran(*words)
        assert Path("out-2.csv").exists()


def test_without_labels_or_a_key_nothing_is_written(tickets):
    before = {*Path().iterdir()}
    code, _, err = run_here("discover", tickets, "-n", "4", key=None)
    assert code == 2, err
    assert "OPENAI_API_KEY" in err
    assert {*Path().iterdir()} == before
    namer = Namer()
    namer.labels = []
    with LoopbackLLM(namer) as llm:
        code, _, err = run_here("discover", tickets, "-n", "4", "--base-url", llm.base_url)
    assert code == 2, err
    assert "no text has any label that openai/gpt-4o-mini named" in err
    assert "next" not in err
    assert not Path("labels.yaml").exists()
