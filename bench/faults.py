"""What a failing provider costs: answers lost, calls doubled, limits exceeded, seconds."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

from bench._report import Report
from testnuc import RateLimit, Sampling, SmallPoolWarning, TestNUC
from testnuc.testing import CURABLE_KINDS, Faults, HashEmbedder, LoopbackLLM, by_hash
from testnuc.testing.faults import PACKED_KINDS

if TYPE_CHECKING:
    from testnuc.results import Results
    from testnuc.types import Usage

_LABELS = [f"intent number {i}" for i in range(20)]
_answer = by_hash(_LABELS)
_RATE = 0.2
#: A refusal breaks all connections at once: of these a fifth would be an outage without end.
_REFUSED_RATE = 0.02
#: 200s that hold nothing of use: paid for, and asked again.
_USELESS = ("truncated", "empty-choices", *PACKED_KINDS)
_PACK = 10


def _texts(n: int) -> list[str]:
    return [f"message {i}: what a customer writes of it" for i in range(n)]


async def _run(
    texts: list[str],
    *,
    kinds: tuple[str, ...] = (),
    per_call: int = 1,
    killed_for: float = 0.0,
    limit: RateLimit | None = None,
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
            rate_limit=limit,
        ) as nuc,
    ):
        started = time.perf_counter()
        run = asyncio.create_task(nuc.classify_many(texts))
        if killed_for:
            while llm.texts < len(texts) // 3:  # noqa: ASYNC110 - the server tells nobody
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
    lost = sum(r.prediction is None for r in results)
    wrong = sum(
        r.prediction is not None and r.prediction.label != _answer(r.text)[0] for r in results
    )
    useless = sum(llm.faults[kind] for kind in _USELESS)
    if per_call == 1:
        # a text is paid for once, and once more for each answer that was of no use
        doubled = max(0, llm.calls - (len(results) - lost) - useless)
    else:
        # what an answer lacks is asked again in two halves
        doubled = max(0, llm.calls - -(-len(results) // per_call) - 2 * useless)
    return {
        "texts": len(results),
        "requests": llm.requests,
        "faults": llm.faults.total(),
        "lost": lost,
        "wrong": wrong,
        "calls": llm.calls,
        "calls doubled": doubled,
        "not counted": abs(llm.calls - usage.calls),
        "retries": usage.retries,
        "violations": len(llm.violations),
        "seconds": round(seconds, 2),
    }


async def _all(n: int, killed_for: float, kinds: tuple[str, ...]) -> Report:
    report = Report(
        "faults",
        f"{_RATE:.0%} of all requests fail in the way named; the client's settings are the "
        f"defaults; mixed, packed and killed: {n:,} texts, single kinds: {max(1, n // 10):,}",
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
        fault=f"mixed, {_PACK} texts a call", **await _run(many, kinds=kinds, per_call=_PACK)
    )
    for per_call in (1, _PACK):
        row = await _run(many, per_call=per_call, killed_for=killed_for)
        packed = f", {per_call} texts a call" if per_call > 1 else ""
        report.row(fault=f"server killed for {killed_for:g} s{packed}", **row)
    # six seconds' worth at the limit's pace, mixed faults and all
    limit = RateLimit(requests_per_minute=n * 10)
    row = await _run(many[: n // 2], kinds=kinds, limit=limit)
    report.row(fault=f"mixed, limit of {n * 10:,} requests a minute", **row)
    report.note(
        f"refused: {_REFUSED_RATE:.0%} of the requests; each breaks all other connections as well, "
        "which the server does not see: the retries count them"
    )
    report.note("calls doubled: paid for beyond one for each text and each answer of no use")
    report.note("not counted: calls that the server and nuc.usage count differently")
    report.note("violations: requests that the server's sliding minute had no room for")
    return report


def main(argv: list[str]) -> None:
    """Try each kind of fault, then all of them; exit code 1 if anything was lost or doubled."""
    import warnings

    parser = argparse.ArgumentParser(prog="python -m bench faults", description=__doc__)
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--killed-for", type=float, default=5.0, help="seconds")
    parser.add_argument("--kinds", default=",".join(CURABLE_KINDS), help="separated by commas")
    parser.add_argument("--json", help="write the result to this file")
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore", SmallPoolWarning)
    kinds = tuple(arguments.kinds.split(","))
    report = asyncio.run(_all(arguments.texts, arguments.killed_for, kinds))
    report.show()
    if arguments.json:
        report.write(arguments.json)
    bad = ("lost", "wrong", "calls doubled", "not counted", "violations")
    failed = [row["fault"] for row in report.rows if any(row[name] for name in bad)]
    if failed:
        sys.exit(f"bench faults: lost, doubled or exceeded with {', '.join(failed)}")
