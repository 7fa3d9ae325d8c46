"""``python -m testnuc.testing``: a test server on the command line."""

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    given.add_argument("--stdin", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--port", type=int, default=0, help="port to listen on; default: a free port"
    )
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--fault-rate", type=float, default=0.0, help="share of requests that fail")
    options = parser.parse_args(arguments)
    if options.stdin:
        serve(orjson.loads(sys.stdin.buffer.readline()), until_eof=True)
        return
    config: dict[str, Any] = {"port": options.port, "latency": options.latency}
    if options.fault_rate:
        config["faults"] = {"rate": options.fault_rate}
    config["answers"] = options.answers or list(map(str.strip, options.labels.split(",")))
    serve(config, until_eof=False)


def serve(config: Mapping[str, Any], *, until_eof: bool) -> None:
    """Serve until standard input is closed or the process is interrupted; runs in the child.

    `config` has ``answers``, a mapping, the path of one, or labels; and options of `LoopbackLLM`.
    """
    options = dict(config)
    answers = options.pop("answers")
    if isinstance(answers, str):
        answers = orjson.loads(Path(answers).read_bytes())
    elif isinstance(answers, list):
        answers = by_hash(answers)
    if options.get("faults") is not None:
        options["faults"] = Faults(**options["faults"])
    llm = LoopbackLLM(answers, **options)
    with contextlib.suppress(KeyboardInterrupt):
        run_to_end(_serve(llm, until_eof=until_eof))


async def _serve(llm: LoopbackLLM, *, until_eof: bool) -> None:
    ended = asyncio.Event()

    def read() -> None:
        if not os.read(0, 4096):
            ended.set()

    async with llm:
        if until_eof:
            asyncio.get_running_loop().add_reader(0, read)
        sys.stdout.write(orjson.dumps({"base_url": llm.base_url}).decode() + "\n")
        sys.stdout.flush()
        await ended.wait()


if __name__ == "__main__":
    main()
