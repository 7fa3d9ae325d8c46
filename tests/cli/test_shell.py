"""The command line speaks the shell's words, and remembers what a store holds."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from testnuc import __version__, cli
from testnuc.cli import options_of_run
from testnuc.cli.options import Options
from testnuc.errors import ConfigurationError
from testnuc.testing import LoopbackLLM
from tests.cli.in_process import ran, run_here
from tests.conftest import LABELS, confident, messages
from tests.report.test_report import data_of


def store_of(embedders):
    """Return what opens a store that has vectors of these embedders alone."""

    class Held:
        async def embedders(self):
            return [(name, 384) for name in embedders]

    @asynccontextmanager
    async def opened(_):
        yield Held()

    return opened


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("\n".join(messages(24)))
    return path


def test_version_and_short_help():
    code, out, _ = run_here("--version")
    assert (code, out.split()[:2]) == (0, ["testnuc", __version__])
    for command in ([], ["classify"], ["store"], ["store", "runs"]):
        code, out, _ = run_here(*command, "-h")
        assert code == 0
        assert "--help" in out


def test_an_interrupt_while_the_command_line_is_made_is_one_line(monkeypatch):
    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupted)
    assert run_here("--version") == (130, "", "testnuc: interrupted\n")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--k", "-1"], "'--k'"),
        (["--max-concurrency", "0"], "'--max-concurrency'"),
        (["--texts-per-call", "0"], "'--texts-per-call'"),
        (["--min-trust", "2"], "'--min-trust'"),
        (["--budget-usd", "-1"], "'--budget-usd'"),
        (["--requests-per-minute", "0"], "'--requests-per-minute'"),
        (["--policy", "best"], "'best' is not one of 'auto', 'weighted', "),
        (["--neighbors", "some"], "'--neighbors'"),
        (["--lane", "fast"], "'--lane'"),
        (["--ask", "some"], "'some' is not one of 'all', 'unsure'"),
        (["--rest", "never"], "'--rest'"),
        (["--polisy", "auto"], "--policy"),
        (["--model", "gpt-4o"], "model 'gpt-4o' has no known provider"),
        (["--base-url", "foo"], "base_url must be a URL"),
        (["--shortlist", "x"], "give a number of labels, 'auto', 'levels' or 'all'\n"),
        (["--labels", "a,"], "add a none_label"),
        (["--text-column", "x"], "did you mean --text-column 'text'?"),
    ],
)
def test_errors_name_options_and_nothing_of_python(tmp_path, given, says):
    file = tmp_path / "in.csv"
    file.write_text("text\nhello\nthere\n")
    labels = [] if "--labels" in given else ["--labels", "a,b"]
    code, out, err = run_here("classify", file, *labels, *given)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1
    for word in ("VotePolicy", "Provider", "UncertaintySampling", "NoneType", "None"):
        assert word not in err


def classified(llm, source, store):
    given = ["--labels", ",".join(LABELS), "--model", "openai/test", "--base-url", llm.base_url]
    ran("classify", source, *given, "--store", store)
    return ["--model", "openai/test", "--base-url", llm.base_url]


def test_diagnose_and_report_read_a_store(source, tmp_path):
    store, page = tmp_path / "answers.db", tmp_path / "report.html"
    with LoopbackLLM(confident) as llm:
        given = classified(llm, source, store)
        calls = llm.calls
        # the labels are those of the store
        out, _ = ran("diagnose", store, *given, key=None)
        assert out
        _, err = ran("report", store, "-o", page, *given, key=None)
        assert f"24 texts, written to {page}" in err
        assert llm.calls == calls
    data = data_of(page.read_text(encoding="utf-8"))
    assert {data["texts"][row["x"]] for row in data["rows"]} == set(messages(24))
    assert all(row["k"] for row in data["rows"])


@pytest.mark.parametrize(
    ("held", "given", "taken"),
    [
        (["openai/small"], None, "openai/small"),
        (["openai/small"], "another", "another"),
        (["our/embedder"], "our/embedder", "our/embedder"),
        (["our/embedder", "second"], None, options_of_run.EMBEDDER),
        ([], None, options_of_run.EMBEDDER),
    ],
)
async def test_an_option_wins_over_the_embedder_of_the_store(
    tmp_path, monkeypatch, held, given, taken
):
    place = tmp_path / "answers.db"
    place.write_bytes(b"")
    monkeypatch.setattr(options_of_run, "opened_store", store_of(held))
    client = Options({"embedder": given}, frozenset())
    assert (await options_of_run.with_embedder(client, str(place)))["embedder"] == taken
    without = (await options_of_run.with_embedder(client, None))["embedder"]
    assert without == (given or options_of_run.EMBEDDER)


@pytest.mark.parametrize("name", ["./minilm", "minilm", "our/embedder", "/tmp/m", "Mine/64"])
async def test_a_store_does_not_say_which_folder_is_loaded(tmp_path, monkeypatch, name):
    place = tmp_path / "answers.db"
    place.write_bytes(b"")
    monkeypatch.setattr(options_of_run, "opened_store", store_of([name]))
    with pytest.raises(ConfigurationError, match=f"is loaded only if you name it.*{name}$"):
        await options_of_run.with_embedder(Options({"embedder": None}, frozenset()), str(place))


def test_a_text_that_is_not_a_string_is_described_in_words(tmp_path):
    file = tmp_path / "in.json"
    file.write_text(json.dumps([{"text": 5}, {"text": None}, {"text": ["a"]}]))
    code, _, err = run_here("classify", file, "--labels", "a,b")
    assert code == 2
    assert "row 1 is a number, not a text; put it in quotes or leave it out" in err


def test_a_head_brings_its_embedder_and_labels_where_none_were_named(monkeypatch):
    name = "sentence-transformers/another-model"
    head = SimpleNamespace(embedder=name, loadable=True, labels=("a", "b"), sets=None)
    monkeypatch.setattr(options_of_run.Head, "load", lambda _: head)
    client = {"embedder": None, "head": "file.head", "labels": None, "multilabel": False}
    client["store"] = None
    options, _ = options_of_run.completed(Options(client, frozenset()), None)
    assert (options["embedder"], options["labels"]) == (name, ["a", "b"])
    options, _ = options_of_run.completed(options.but(embedder="my/own", labels="c,d"), None)
    assert (options["embedder"], options["labels"]) == ("my/own", ["c", "d"])
