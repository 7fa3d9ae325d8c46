"""``python -m testnuc.testing``: a test server on the command line."""

import argparse
import asyncio
import contextlib
import sys
from pathlib import Path

import orjson

from testnuc._base.loop_thread import run_to_end
from testnuc.testing.answers import by_hash
from testnuc.testing.faults import Faults
from testnuc.testing.loopback import LoopbackLLM


def main(arguments: list[str] | None = None) -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m testnuc.testing",
        description="Run a local LLM provider with canned answers and print its base URL.",
    )
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--answers", help="JSON file: text -> label or [label, confidence]")
    given.add_argument("--labels", help="comma-separated labels, assigned to texts by hash")
    parser.add_argument(
        "--port", type=int, default=0, help="port to listen on; default: a free port"
    )
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--fault-rate", type=float, default=0.0, help="share of requests that fail")
    options = parser.parse_args(arguments)
    if options.answers:
        answers = orjson.loads(Path(options.answers).read_bytes())
    else:
        answers = by_hash(list(map(str.strip, options.labels.split(","))))
    faults = Faults(rate=options.fault_rate) if options.fault_rate else None
    llm = LoopbackLLM(answers, port=options.port, latency=options.latency, faults=faults)
    with contextlib.suppress(KeyboardInterrupt):
        run_to_end(_serve(llm))


async def _serve(llm: LoopbackLLM) -> None:
    async with llm:
        sys.stdout.write(orjson.dumps({"base_url": llm.base_url}).decode() + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
