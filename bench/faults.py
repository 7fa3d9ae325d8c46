"""Fault tolerance: lost answers, duplicate calls, exceeded limits and runtime per kind of fault."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

from bench._report import Report
from testnuc import Limits, Sampling, SmallPoolWarning, TestNUC
from testnuc.errors import ReplyError
from testnuc.testing import CURABLE_KINDS, Faults, HashEmbedder, LoopbackLLM, by_hash
from testnuc.testing.faults import PACKED_KINDS

if TYPE_CHECKING:
    from testnuc.results import Results
    from testnuc.types import Usage

_LABELS = [f"intent number {i}" for i in range(20)]
_answer = by_hash(_LABELS)
_RATE = 0.2
#: Each `refused` fault closes all connections, so the default rate would be a permanent outage.
_REFUSED_RATE = 0.02
#: Billed 200 responses without a usable answer, which are retried.
_UNUSABLE = ("truncated", "empty-choices", *PACKED_KINDS)
_PACK = 10


def _texts(n: int) -> list[str]:
    return [f"message {i}: what a customer writes of it" for i in range(n)]


async def _run(
    texts: list[str],
    *,
    kinds: tuple[str, ...] = (),
    per_call: int = 1,
    killed_for: float = 0.0,
    limit: Limits | None = None,
) -> dict[str, Any]:
    rate = _REFUSED_RATE if kinds == ("refused",) else _RATE
    faults = Faults(rate, kinds, seed=1, stall=0.2) if kinds else None
    latency = 0.02 if killed_for else 0.0
    async with (
        LoopbackLLM(_answer, faults=faults, rate_limit=limit, latency=latency) as llm,
        TestNUC(
            _LABELS,
            model="openai/test",
            base_url=llm.base_url,
            api_key="key",
            embedder=HashEmbedder(),
            k=0,
            sampling=Sampling(texts_per_call=per_call),
            limits=limit or Limits(),
        ) as nuc,
    ):
        started = time.perf_counter()
        run = asyncio.create_task(nuc.classify_many(texts))
        if killed_for:
            while llm.texts < len(texts) // 3:  # noqa: ASYNC110 - the server has no event to wait for
                await asyncio.sleep(0.01)
            await llm.stop()
            await asyncio.sleep(killed_for)
            await llm.start()
        results = await run
        seconds = time.perf_counter() - started
        return _row(results, nuc.usage, llm, seconds, per_call)


def _row(
    results: Results, usage: Usage, llm: LoopbackLLM, seconds: float, per_call: int
) -> dict[str, Any]:
    # three unusable answers to one text are billed, and end its call
    lost = sum(r.prediction is None and not isinstance(r.error, ReplyError) for r in results)
    wrong = sum(
        r.prediction is not None and r.prediction.label != _answer(r.text)[0] for r in results
    )
    unusable = sum(llm.faults[kind] for kind in _UNUSABLE)
    if per_call == 1:
        # one call per text, plus one per unusable answer
        duplicate = max(0, llm.calls - (len(results) - lost) - unusable)
    else:
        # an unusable packed answer is retried in two halves, and one of a half alone
        most = -(-len(results) // per_call) + max(2, per_call // 2) * unusable
        duplicate = max(0, llm.calls - most)
    return {
        "texts": len(results),
        "requests": llm.requests,
        "faults": llm.faults.total(),
        "lost": lost,
        "wrong": wrong,
        "calls": llm.calls,
        "duplicate calls": duplicate,
        "miscounted": abs(llm.calls - usage.calls),
        "retries": usage.retries,
        "violations": len(llm.violations),
        "seconds": round(seconds, 2),
    }


async def _all(n: int, killed_for: float, kinds: tuple[str, ...]) -> Report:
    report = Report(
        "faults",
        f"{_RATE:.0%} of all requests fail with the fault; default client settings; "
        f"mixed, packed and killed: {n:,} texts, single kinds: {max(1, n // 10):,}",
    )
    single, many = _texts(max(1, n // 10)), _texts(n)
    report.row(fault="none", **await _run(single))
    for kind in kinds:
        if kind in PACKED_KINDS:
            row = await _run(single, kinds=(kind,), per_call=_PACK)
        else:
            row = await _run(single, kinds=(kind,))
        report.row(fault=kind, **row)
    report.row(fault="all kinds mixed", **await _run(many, kinds=kinds))
    report.row(
        fault=f"mixed, {_PACK} texts per call", **await _run(many, kinds=kinds, per_call=_PACK)
    )
    for per_call in (1, _PACK):
        row = await _run(many, per_call=per_call, killed_for=killed_for)
        packed = f", {per_call} texts per call" if per_call > 1 else ""
        report.row(fault=f"server killed for {killed_for:g} s{packed}", **row)
    # takes six seconds at the rate limit
    limit = Limits(requests_per_minute=n * 10)
    row = await _run(many[: n // 2], kinds=kinds, limit=limit)
    report.row(fault=f"mixed, limit of {n * 10:,} requests per minute", **row)
    report.note(
        f"refused: {_REFUSED_RATE:.0%} of the requests; each also closes all other connections, "
        "which the column retries includes and the column faults does not"
    )
    report.note("lost: texts without an answer, except after three unusable ones")
    report.note("duplicate calls: calls beyond one per text and one per unusable answer")
    report.note("miscounted: difference between the server's count of calls and nuc.usage")
    report.note("violations: requests that exceeded the server's sliding-window rate limit")
    return report


def main(argv: list[str]) -> None:
    """Run each kind of fault, then a mix; exit code 1 if an answer is lost or a call duplicated."""
    import warnings

    parser = argparse.ArgumentParser(prog="python -m bench faults", description=__doc__)
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--killed-for", type=float, default=5.0, help="seconds")
    parser.add_argument("--kinds", default=",".join(CURABLE_KINDS), help="comma-separated kinds")
    parser.add_argument("--json", help="write the result to this file")
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore", SmallPoolWarning)
    kinds = tuple(arguments.kinds.split(","))
    report = asyncio.run(_all(arguments.texts, arguments.killed_for, kinds))
    report.show()
    if arguments.json:
        report.write(arguments.json)
    bad = ("lost", "wrong", "duplicate calls", "miscounted", "violations")
    failed = [row["fault"] for row in report.rows if any(row[name] for name in bad)]
    if failed:
        sys.exit(f"bench faults: failed for {', '.join(failed)}")
