"""``testnuc classify``: what it would cost, how far it is, and how it goes on after an end."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tqdm.auto import tqdm

from testnuc import Classification, Prediction, TestNUC, Usage
from testnuc._base import jsonl
from testnuc.cli.classify import _told, end
from testnuc.cli.memory import AnswerStore
from testnuc.errors import CallTimeoutError, RateLimitedError
from testnuc.progress import BarProgress, LineProgress
from testnuc.results import Results
from testnuc.testing import HashEmbedder, LoopbackLLM
from tests.cli.in_process import command_line, ran, rows_of, run_here
from tests.conftest import LABELS, confident, gold, messages
from tests.virtual import Clock


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text(
        "".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(messages(30)))
    )
    return path


def options(llm, model="openai/gpt-4o-mini", **more):
    given = {"labels": ",".join(LABELS), "model": model, "base-url": llm.base_url, **more}
    return [part for name, value in given.items() for part in (f"--{name}", value)]


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_temperature_and_seed_are_sent_and_known_to_later_commands(source, tmp_path):
    with LoopbackLLM(confident, record=200) as llm:
        given = ["classify", source, *options(llm), "--k", "0", "-o", "out.csv"]
        for more in ([], ["--temperature", "0", "--seed", "7", "--overwrite"]):
            ran(*given, *more)
        sent = [(body["temperature"], body.get("seed")) for body in llm.bodies]
        assert set(sent) == {(0.7, None), (0.0, 7)}
        # the environment is for new runs
        ran("review", "out.csv", "-n", "5", "--no-open", TESTNUC_SEED="3")
        code, page, err = run_here("describe", "out.csv", key=None)
        assert (code, "temperature 0.0, " in page, "seed 7" in page) == (0, True, True), err
        places = map(str, tmp_path.glob(".testnuc/*.db"))
        stores = {path: run_here("store", "runs", path)[1] for path in places}
        (store,) = (path for path, runs in stores.items() if "--temperature 0.0, --seed 7" in runs)
        ran("review", store, "-n", "5", "--no-open", "-o", "again.json")
        assert len(llm.bodies) == len(sent)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            ["--model", "anthropic/claude-haiku-4-5", "--seed", "7"],
            "Anthropic takes no seed; leave",
        ),
        (["--temperature", "3"], "Invalid value for '--temperature': Input should be less"),
        (["--seed", "-1"], "seed is -1; give an integer of at least 0"),
    ],
)
def test_a_seed_or_temperature_that_cannot_be_used_ends_the_run_before_a_call(source, more, says):
    with LoopbackLLM(confident) as llm:
        code, _, err = run_here("classify", source, *options(llm), *more)
        assert (code, says in " ".join(err.replace("│", " ").split()), llm.calls) == (2, True, 0), (
            err
        )


def live(out):
    """Return the figures of the live lane."""
    return next(line for line in out.splitlines() if line.startswith("live")).split()[1:]


def test_a_dry_run_shows_the_cost_and_sends_nothing(source, tmp_path):
    store = tmp_path / "labels.db"
    with LoopbackLLM(confident) as llm:
        given = ["classify", source, *options(llm, store=store), "--dry-run"]
        code, out, _ = run_here(*given, key=None)
        assert code == 0
        calls, tokens, *_ = live(out)
        assert calls == "30"
        assert int(tokens.replace(",", "")) > 1_000
        assert "nothing was sent; 30 texts, 30 distinct" in out
        assert llm.requests == 0
        assert not store.exists()
        # after a run of half of them the other half is left
        half = tmp_path / "half.txt"
        half.write_text("\n".join(messages(15)))
        run_here("classify", half, *options(llm, store=store), "-o", tmp_path / "out.txt")
        assert llm.calls == 15
        _, out, _ = run_here(*given)
        assert live(out)[0] == "15"
        assert "15 predictions are stored already" in out
        assert llm.calls == 15


@pytest.mark.parametrize(("name", "most"), [("calls", 7), ("tokens", 3_000)])
def test_a_budget_without_a_price(source, tmp_path, name, most):
    out = tmp_path / "out.csv"
    with LoopbackLLM(confident) as llm:
        given = ["classify", source, *options(llm, model="openai/test"), f"--budget-{name}", most]
        code, _, err = run_here(*given, "--dry-run")
        assert (code, llm.requests) == (0, 0), err
        assert re.search(rf"the run would stop early: it needs up to .* {name}, more than", err)
        code, _, err = run_here(*given, "-o", out)
        assert code == 3, err
        assert 0 < llm.calls < 30
        assert "budget" in err
        code, _, err = run_here(*given[:-2], "-o", out, "--dry-run")
        assert "stop early" not in err
        ran(*given[:-2], "-o", out, "--overwrite")
        assert llm.calls == 30


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"policy": "weighted"}, "to the pool, or give a smaller k (--k)"),
        (
            {"policy": "weighted", "neighbors": "stored"},
            "--neighbors stored) those with a stored",
        ),
    ],
)
def test_what_helps_few_texts_is_said_as_options(tmp_path, given, says):
    few = tmp_path / "few.txt"
    few.write_text("\n".join(messages(5)))
    with LoopbackLLM(confident) as llm:
        code, _, err = run_here("classify", few, *options(llm, **given))
    assert code == 0
    (note,) = [line for line in err.splitlines() if line.startswith("note: ")]
    assert says in note
    assert "='" not in note
    assert "nuc." not in note


def test_few_texts_are_said_once_under_policy_auto(tmp_path):
    (tmp_path / "few.txt").write_text("\n".join(messages(5)))
    with LoopbackLLM(confident) as llm:
        code, _, err = run_here("classify", tmp_path / "few.txt", *options(llm))
    assert code == 0
    assert err.count("5 predictions") == 1
    assert "note: " not in err


@pytest.mark.parametrize("model", ["openai/gpt-4o-mini", "anthropic/claude-haiku-4-5"])
def test_a_missing_key_is_named_by_its_variable_alone(source, model):
    code, _, err = run_here("classify", source, "--labels", "a,b", "--model", model, key=None)
    assert code == 2
    assert f"set {model.partition('/')[0].upper()}_API_KEY in the environment" in err
    assert "api_key" not in err


@pytest.mark.slow
@pytest.mark.parametrize("sent", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_ctrl_c_keeps_what_was_answered_and_the_same_command_goes_on(source, tmp_path, sent):
    if signal.getsignal(getattr(signal, sent)) is signal.SIG_IGN:
        pytest.skip("platform: the signal is ignored, as with nohup")
    out = tmp_path / "out.jsonl"
    # long enough for the signal to come in time, also where this process has to wait
    latency = 2.0
    with LoopbackLLM(
        confident, latency=lambda random: latency if llm.calls > 4 else latency / 4
    ) as llm:
        given = ["classify", source, *options(llm, model="openai/test", **{"max-concurrency": 2})]
        given += ["-o", out, "--policy", "weighted"]
        process = subprocess.Popen(
            command_line(*given),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "OPENAI_API_KEY": "key"},
        )  # fmt: skip
        try:
            while llm.calls < 5:
                assert process.poll() is None, process.communicate()
                time.sleep(0.005)
            process.send_signal(getattr(signal, sent))
            _, err = process.communicate(timeout=300)
        finally:
            process.kill()
        latency = 0.0
        assert process.returncode == 130, err
        assert re.search(
            r"stopping: calls in flight, \d, may be billed; Ctrl-C again stops at once",
            err,
        )
        assert f"interrupted: {llm.calls} of 30 texts are answered; answers are stored in" in err
        assert "run the same command again" in err
        assert "Traceback" not in err
        answered = llm.calls
        assert 5 <= answered < 30
        assert not out.exists()
        _, err = ran(*given)
        # billed once, across both
        assert (llm.calls, set(llm.asked.values())) == (30, {1})
        assert f"{answered} stored" in err
    assert [row["nuc_own_label"] for row in rows(out)] == [gold(t) for t in messages(30)]


async def test_calls_in_flight_are_waited_for_where_the_terminal_was_closed(monkeypatch):
    """The line that says so raised: what they answered was not stored, and was paid for again."""
    kept = []

    class Closed(io.StringIO):
        def write(self, text):
            raise OSError(text)

    async def labeling():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            kept.append("answers")
            raise

    async with TestNUC(LABELS, model="openai/test", api_key="key", embedder=HashEmbedder()) as nuc:
        run = asyncio.create_task(_told(labeling(), nuc))
        await asyncio.sleep(0.01)
        monkeypatch.setattr(sys, "stderr", Closed())
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    assert kept == ["answers"]


def test_parquet_in_and_out(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from datetime import UTC, datetime

    from pyarrow import parquet

    source, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    times = [datetime(2026, 1, 1 + i, tzinfo=UTC) for i in range(12)]
    table = pa.table(
        {
            "id": pa.array(range(12), pa.int16()),
            "message": [*messages(11), None],
            "at": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )
    parquet.write_table(table, source)
    with LoopbackLLM(confident) as llm:
        given = options(llm, model="openai/test", **{"text-column": "message"})
        ran("classify", source, *given, "-o", out)
        assert llm.calls == 11
        text, _ = ran("classify", source, *given)
        code, _, err = run_here("classify", source, *options(llm))
        assert code == 2
        assert "no column 'text'; it has 'id', 'message', 'at'" in err
    made = parquet.read_table(out)
    assert made.schema.names[:3] == ["id", "message", "at"]
    # the user's own columns are what they were
    assert made.select(["id", "message", "at"]).equals(table)
    assert made.column("nuc_own_label").to_pylist() == [*map(gold, messages(11)), None]
    assert (
        "empty" in made.column("nuc_error").to_pylist()[11]
        or "string" in made.column("nuc_error").to_pylist()[11]
    )
    assert [json.loads(line)["id"] for line in text.splitlines()] == list(range(12))


def test_parquet_that_is_none_and_rows_that_fit_into_none(tmp_path):
    pytest.importorskip("pyarrow")
    source, mixed, large = (tmp_path / name for name in ("in.parquet", "mixed.jsonl", "l.jsonl"))
    source.write_text("text\nhello\n")
    large.write_text(f'{{"text": "a", "n": {2**64 - 1}}}\n{{"text": "b", "n": -1}}\n')
    mixed.write_text('{"text": "a", "n": 1}\n{"text": "b", "n": "one"}\n')
    for file, output, says in (
        (source, "out.csv", "is not a Parquet file"),
        (mixed, tmp_path / "out.parquet", "cannot be written as Parquet"),
        (large, tmp_path / "out.parquet", "cannot be written as Parquet"),
    ):
        code, _, err = run_here("classify", file, "--labels", "a,b", "-o", output)
        assert code == 2, err
        assert says in err


def test_an_output_that_cannot_be_written(source, tmp_path):
    out = tmp_path / "out.csv"
    (tmp_path / ".testnuc").write_text("in the way")
    with LoopbackLLM(confident) as llm:
        given = ["classify", source, *options(llm, model="openai/test"), "-o", out]
        code, _, err = run_here(*given)
        assert (code, llm.requests) == (2, 0)
        assert ".testnuc cannot be created" in err
        # what cannot be foreseen: no billed answer is lost
        (tmp_path / ".testnuc").unlink()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jsonl, "part_of", lambda path: path.parent / "gone" / path.name)
            code, _, err = run_here(*given)
        assert code == 2
        assert "out.csv cannot be written" in err
        assert "are stored in" in err
        assert llm.calls == 30
        code, _, err = run_here(*given)
        assert (code, llm.calls) == (0, 30), err


def test_long_texts_and_odd_bytes(tmp_path):
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    long = f'text\n"refund please {"x" * 200_000}"\n"where is my parcel'
    source.write_text(f'{long} \x00"\n')
    code, _, err = run_here("classify", source, "--labels", "a,b", "-o", out)
    assert code == 2
    assert "a zero byte in line 3" in err
    source.write_text(f'{long} \x7f"\n')
    with LoopbackLLM(confident) as llm:
        code, _, err = run_here(
            "classify", source, *options(llm, model="openai/test"), "-o", out, "--k", "0"
        )
    assert code == 0, err
    csv.field_size_limit(1 << 20)
    made = rows_of(out)
    csv.field_size_limit(131_072)
    assert [row["nuc_label"] for row in made] == ["refund", "delivery"]
    assert len(made[0]["text"]) > 200_000


def said(answers):
    """Answer some texts with something else; None: decline."""
    return lambda text: answers.get(text, confident(text))


def test_answers_outside_the_list_are_counted_and_shown(source, tmp_path):
    out = tmp_path / "out.csv"
    odd = dict.fromkeys(messages(30)[::6], "weather forecast")
    with LoopbackLLM(said(odd)) as llm:
        given = options(llm, model="openai/test", k="0")
        code, _, err = run_here("classify", source, *given, "-o", out)
    # the LLM answered, so nothing failed
    assert code == 0, err
    last = err
    assert "25 labeled, 5 without a label, 5 answered outside the labels" in last
    assert "failed" not in err
    assert "answers outside the labels, most often: 'weather forecast' (5)" in err
    assert "5 texts with such answers have no label (nuc_error holds them): add" in err
    made = rows_of(out)
    said_so = "the LLM said what is no label: weather forecast"
    assert [row["nuc_error"] for row in made] == [said_so * (t in odd) for t in messages(30)]
    assert [row["nuc_label"] for row in made[::6]] == [""] * 5


@pytest.mark.parametrize(
    ("failing", "k", "status", "says"),
    [
        (0, "0", 0, "30 labeled, 30 calls"),
        (3, "0", 3, "27 labeled, 3 without a label, 3 failed, 27 calls"),
        # their neighbors label them
        (3, "10", 0, "30 labeled, 3 failed, 3 labels changed by the vote, 27 calls"),
    ],
)
def test_the_last_line_and_the_status_report_failures(source, tmp_path, failing, k, status, says):
    lost = dict.fromkeys(messages(30)[30 - failing :])
    with LoopbackLLM(said(lost)) as llm:
        more = {"policy": "weighted", "max-concurrency": "1"}
        given = options(llm, model="openai/test", k=k, **more)
        code, _, err = run_here("classify", source, *given, "-o", tmp_path / "out.csv")
    assert code == status, err
    assert says in err
    assert ("first error: " in err) == bool(failing)


def test_a_run_that_was_stopped_says_so_and_a_run_without_a_label_has_failed(capsys):
    error = RateLimitedError("quota exhausted", status_code=429)
    lost = Classification(
        0, "a text", None, 0.0, 0.0, 0, complete=True, prediction=None, error=error
    )
    fine = replace(lost, label="a", prediction=Prediction("a"), error=None)
    for rows_, status in (([lost, fine], 3), ([lost, lost], 1)):
        results = Results(rows_, Usage(), 1.0)
        results.stopped = error
        with pytest.raises(SystemExit) as exited:
            end(results, AnswerStore("a.db"))
        assert exited.value.code == status
        lines = capsys.readouterr().err.splitlines()
        assert lines[0] == "stopped early: RateLimitedError: quota exhausted"
        assert "a.db" in lines[2]
        assert lines[:2] == results.summary().splitlines()


def test_many_time_outs_name_the_option_that_helps(capsys):
    late = Classification(0, "a", None, None, None, 0, complete=True, error=CallTimeoutError("x"))
    for rows_, told in (([late, late], True), ([late], False)):
        with pytest.raises(SystemExit):
            end(Results(rows_, Usage(), 1.0), AnswerStore("a.db"))
        err = capsys.readouterr().err
        said = f"{len(rows_)} texts failed by time-out; for a slow server, give a lower --max-conc"
        assert (said in err) == told


def test_a_dry_run_says_that_the_embedder_is_not_there(source):
    with LoopbackLLM(confident) as llm:
        given = ["classify", source, *options(llm), "--dry-run", "--embedder"]
        _, err = ran(*given, "nobody/nothing", replaced=False)
        assert "note: the embedder 'nobody/nothing' is not on this machine: the run downlo" in err
        assert "not on this machine" not in ran(*given, "openai/any", replaced=False)[1]
        assert llm.requests == 0


@pytest.mark.skipif(sys.platform == "win32", reason="platform: an open file cannot be moved")
def test_a_run_whose_store_was_moved_does_not_say_that_answers_are_there(
    source, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)

    def answer(text):
        if llm.calls == 10:
            Path(".testnuc").rename("elsewhere")
        return confident(text)

    with LoopbackLLM(answer) as llm:
        given = options(llm, **{"max-concurrency": "1"})
        code, _, err = run_here("classify", source, "-o", "out.jsonl", *given)
    assert code == 3
    assert "deleted or replaced while it was open" in err
    assert "not all of the others are stored in" in err
    assert "has the answers" not in err


# -- progress --------------------------------------------------------------------------------------


def test_lines_where_there_is_no_terminal(capsys):
    clock, spent = Clock(), {"usd": 0.0}
    progress = LineProgress(lambda: Usage(**spent), clock=clock)
    progress.start(1_000)
    progress.stage("asking")
    for _ in range(500):
        clock.now += 0.125
        spent["usd"] += 0.0001
        progress.advance()
    spent["retries"] = 7
    assert progress.figures().endswith("7 retries, no call answered yet, 0:01:02 left")
    spent["calls"] = 500
    progress.close()
    lines = capsys.readouterr().err.splitlines()
    # one in ten seconds
    assert len(lines) == 6
    assert lines[0] == "asking: 80 of 1,000 texts, 8.0/s, 0.0080 USD, 0:01:55 left"
    assert progress.figures() == "8.0/s, 0.0500 USD, 7 retries, 0:01:02 left"


def test_what_was_stored_does_not_promise_a_pace():
    clock, spent = Clock(), {"store_hits": 5}
    progress = LineProgress(lambda: Usage(**spent), clock=clock)
    progress.start(1_000)
    progress.stage("asking")
    spent["store_hits"] += 900
    progress.advance(900)
    clock.now += 1
    assert progress.figures() == ""
    progress.advance(20)
    clock.now += 1
    assert progress.figures() == "10/s, 0:00:08 left"


def test_texts_that_are_embedded_count_on_their_own():
    clock = Clock()
    progress = LineProgress(lambda: Usage(usd=0.0), clock=clock)
    progress.start(1_000)
    progress.stage("embedding")
    # of stored vectors, of which nothing can be told
    clock.now += 40
    progress.embedded(5)
    clock.now += 4
    assert (progress.count, progress.figures()) == (5, "")
    progress.embedded(500)
    assert (progress.count, progress.figures()) == (505, "125/s, 0:00:04 left")
    # what Ctrl-C prints
    assert progress.done == 0
    progress.advance(3)
    assert progress.figures().endswith(", 3 asked")
    progress.embedded(495)
    # calls began before
    assert progress.count == 3


def test_the_last_error_is_shown_for_two_minutes():
    clock = Clock()
    progress = LineProgress(Usage, clock=clock)
    progress.start(1_000)
    progress.stage("asking")
    progress.note(ConnectionError("nothing\nlistens " + "x" * 500))
    figures = progress.figures()
    assert figures.startswith("last error: ConnectionError: nothing listens xxx")
    assert figures.endswith("xx..")
    assert len(figures) < 200
    clock.now += 121
    assert progress.figures() == ""


@pytest.mark.slow
async def test_lines_while_nothing_is_answered(capsys, monkeypatch):
    monkeypatch.setattr(LineProgress, "every", 0.05)
    progress = LineProgress(Usage)
    progress.start(1_000)
    progress.stage("asking")
    progress.note(ConnectionError("refused"))
    began, err = time.monotonic(), ""
    async with asyncio.timeout(60):
        while err.count("\n") < 3:
            await asyncio.sleep(0.01)
            err += capsys.readouterr().err
    progress.close()
    lines = (err + capsys.readouterr().err).splitlines()
    assert len(lines) <= (time.monotonic() - began) / LineProgress.every + 1
    assert set(lines) == {"asking: 0 of 1,000 texts, last error: ConnectionError: refused"}
    await asyncio.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal(monkeypatch):
    import io

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    clock = Clock()
    progress = BarProgress(lambda: Usage(usd=None, retries=3), clock=clock)
    progress.start(50)
    progress.stage("embedding")
    clock.now += 0.2
    progress.embedded(32)
    assert re.search(r"embedding .*32/50", shown.getvalue(), re.DOTALL)
    progress.stage("asking")
    for _ in range(50):
        clock.now += 0.2
        progress.advance()
    progress.close()
    assert re.search(r"asking.*50/50", shown.getvalue(), re.DOTALL)
    assert "price unknown, 3 retries" in shown.getvalue()


@pytest.mark.parametrize("kind", [LineProgress, BarProgress])
async def test_progress_that_cannot_be_shown_ends_no_run(monkeypatch, loopback, kind):
    class Closed(io.StringIO):
        def write(self, _):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    monkeypatch.setattr(kind, "every", 0.0)
    async with loopback(k=0) as (_, nuc):
        results = await nuc.classify_many(messages(20), progress=kind(lambda: nuc.usage))
    assert not results.errors
    # else every later bar of the process would wait for ever
    other = threading.Thread(target=lambda: tqdm(total=1, file=io.StringIO()).close(), daemon=True)
    other.start()
    await asyncio.to_thread(other.join, 60)
    assert not other.is_alive()


@pytest.mark.skipif(sys.platform == "win32", reason="platform: descriptors of POSIX")
@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&- <&-"])
@pytest.mark.slow
def test_closed_standard_files_end_no_command(tmp_path, closed):
    source, out = tmp_path / "in.txt", tmp_path / "out.csv"
    source.write_text("\n".join(messages(20)))
    with LoopbackLLM(confident) as llm:
        given = ["classify", source, "--labels", ",".join(LABELS), "--k", 0, "-o", out]
        given += ["--model", "openai/test", "--base-url", llm.base_url]
        command = f"{shlex.join(command_line(*given))} {closed}"
        env = {**os.environ, "OPENAI_API_KEY": "k"}
        done = subprocess.run(command, shell=True, env=env, check=False, timeout=300)
    assert done.returncode == 0
    assert out.read_text().count("\n") == 21
