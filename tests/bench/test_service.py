"""``python -m bench service`` in small: what it counts, and what it calls a fault."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from tests.transport.small_server import raw

pytest.importorskip("prometheus_client")
pytest.importorskip("bench")

from bench._http_load import load, post
from bench._report import Report
from bench.service import _faults

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="platform: memory is read on Linux alone"),
    pytest.mark.slow,
]


def test_a_small_run_answers_all_and_counts_all(tmp_path):
    file = tmp_path / "service.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench", "service", "--requests", "600", "--connections", "16",
         "--json", str(file)],
        check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert file.exists(), done.stderr
    rows = json.loads(file.read_text())["rows"]
    # how long it takes is the machine's matter; that nothing fails is not
    assert [row["errors"] for row in rows] == [0, 0, 0, 0]
    assert [row["requests"] for row in rows] == [600] * 4
    assert [row["429"] for row in rows[:3]] == [0, 0, 0]
    assert rows[3]["429"] > 0
    assert all(row["p99 ms"] >= row["p50 ms"] > 0 for row in rows)
    assert rows[0]["by CPU"] is None
    assert rows[1]["by CPU"] > 1
    assert rows[1]["CPU us/request"] > rows[0]["CPU us/request"] > 0
    assert "x the median" in done.stderr if done.returncode else not done.stderr


def report(**more):
    made = Report("service", "")
    fine = {"errors": 0, "p99/p50": 2.0, "by CPU": 2.0, "MB by tenths": [50.0] * 11}
    for what in ("bare aiohttp.web", "new texts", "2,000 repeated texts", "limited to 64 pending"):
        made.row(what=what, **(fine | (more if what.startswith("2,000") else {})))
    return made


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, None),
        ({"errors": 3}, "3 errors"),
        ({"p99/p50": 9.0, "by CPU": 5.1}, "5.1 x the median"),
        ({"p99/p50": 5.2, "by CPU": None}, "5.2 x the median"),
        # the machine had other things to do
        ({"p99/p50": 9.0}, None),
        ({"MB by tenths": [float(50 + i) for i in range(11)]}, "memory grew"),
        # what grows once, at the beginning, does not grow
        ({"MB by tenths": [20.0, 40.0, *[50.0] * 9]}, None),
    ],
)
def test_what_is_a_fault(more, says):
    found = _faults(report(**more))
    assert (says is None and not found) or (len(found) == 1 and says in found[0])


async def test_broken_connections_and_other_statuses_are_errors():
    statuses = iter([200, 429, 500, None, 200, 200])

    async def respond(number, writer):
        status = next(statuses)
        if status is None:
            raise ConnectionError
        # in two parts, as a network may
        for part in (f"HTTP/1.1 {status} X\r\nContent-Le", "ngth: 2\r\n\r\n{}"):
            writer.write(part.encode())
            await writer.drain()
            await asyncio.sleep(0.001)

    async with raw(respond) as (wire, _):
        port = urlsplit(wire.url).port
        requests = iter([post("localhost", "/", b"{}")] * 6)
        first = await load("127.0.0.1", port, requests, 1)
    assert (first.statuses[200], first.statuses[429], first.statuses[500]) == (1, 1, 1)
    assert (first.broken, first.errors, len(first.latencies)) == (1, 2, 1)
    assert first.worst.startswith(b"HTTP/1.1 500")
