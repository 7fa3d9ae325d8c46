"""Responses of real providers, rebuilt with texts of our own, through provider and transport.

``answers.jsonl``: fields, codes and figures of recorded exchanges; ``source`` is the repository
that recorded them. ``errors.jsonl``: those of recorded exchanges, and of errors that users or the
provider's documents report (``provider: repository#issue``).
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import orjson
import pytest

from bench import recorded
from bench._replay import read, replay
from bench.recorded import outcome, report, usage_of

HERE = Path(__file__).parent
FILES = ("answers.jsonl", "errors.jsonl")


def expected(name):
    return [orjson.loads(line)["expect"] for line in (HERE / name).read_bytes().splitlines()]


async def played(name):
    exchanges = list(read(HERE / name))
    return list(zip(exchanges, expected(name), await replay(exchanges), strict=True))


def wrong(name, one, want, got):
    return (
        f"{name}, {one.host} {one.status} {one.request.get('model')} ({one.source}): {want} {got}"
    )


@pytest.mark.slow
async def test_answers_are_read_as_the_provider_counted_them():
    problems = []
    for one, want, seen in await played("answers.jsonl"):
        counted = usage_of(seen)
        found = {
            "usage": counted
            and [counted.input_tokens, counted.cached_tokens, counted.output_tokens]
        }
        if seen.error is not None:
            found["error"] = type(seen.error).__name__
            found["error"] += ", then answered" if seen.reply is not None else ""
        elif seen.reply is not None:
            found["label"] = seen.reply.answers[0].label
        found["id"] = getattr(seen.error or seen.reply, "request_id", None) or ""
        if seen.crash is not None or found != {"id": "", **want}:
            problems.append(wrong("answers", one, want, seen.crash or found))
    assert problems == []


async def test_errors_lead_to_what_helps():
    problems = []
    for one, want, seen in await played("errors.jsonl"):
        shown = str(seen.error)
        found = {"outcome": outcome(seen)}
        if "steps" in want:
            found["steps"] = list(seen.steps)
        if "id" in want:
            found["id"] = seen.error.request_id
        if "retry_after" in want:
            found["retry_after"] = seen.error.retry_after
        if "path_used" in want:
            found["path_used"] = seen.paths[-1]
        if "shown" in want:
            found["shown"] = [words for words in want["shown"] if words in shown]
        if "hidden" in want:
            found["hidden"] = [words for words in want["hidden"] if words not in shown]
        if seen.crash is not None or found != want:
            problems.append(wrong("errors", one, want, f"{seen.crash or found} {shown}"))
    assert problems == []


@pytest.mark.slow
async def test_nothing_differs_from_a_plain_reading():
    for name in FILES:
        # those that were recorded, not reported
        exchanges = [one for one in read(HERE / name) if ":" not in one.source]
        _, listed = report(exchanges, await replay(exchanges))
        assert listed == []


def test_the_benchmark(capsys, tmp_path):
    recorded.main(["--exchanges", str(HERE / "answers.jsonl")])
    shown = capsys.readouterr().out
    assert "| api.openai.com " in shown
    assert "114 exchanges, 0 differences" in shown
    # a difference fails: this is counted otherwise than it says
    row = orjson.loads((HERE / "answers.jsonl").read_bytes().splitlines()[0])
    row["headers"]["x-request-id"] = "req_1"
    row["status"], row["body"] = 418, {"error": {"message": "a teapot"}, "request_id": 7}
    file = tmp_path / "one.jsonl"
    file.write_bytes(orjson.dumps(row))
    recorded.main(["--exchanges", str(file)])
    row["status"] = 503
    row["body"] = {"error": {"message": "content filter is down", "code": "x"}}
    file.write_bytes(orjson.dumps(row))
    with pytest.raises(SystemExit, match="1"):
        recorded.main(["--exchanges", str(file)])
    assert "expected ContentRefusedError" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="does not exist"):
        recorded.main(["--exchanges", str(tmp_path / "nothing")])


@pytest.mark.slow
def test_the_recorded_exchanges_of_the_data_folder(capsys):
    file = Path(os.environ.get("TESTNUC_DATA", "")) / "recorded_exchanges.jsonl"
    if not file.is_file():
        pytest.skip("recordings: TESTNUC_DATA has no recorded_exchanges.jsonl")
    recorded.main(["--exchanges", str(file)])
    assert " 0 differences" in capsys.readouterr().out


def test_every_exchange_names_its_source_and_no_text_of_it():
    rows = [
        orjson.loads(line) for name in FILES for line in (HERE / name).read_bytes().splitlines()
    ]
    assert 100 <= len(rows) <= 200
    for row in rows:
        assert "/" in row["source"] or ": documents" in row["source"]
    assert Counter(row["host"] for row in rows)["api.openai.com"] > 10
