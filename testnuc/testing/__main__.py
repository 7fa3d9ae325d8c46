"""``python -m testnuc.testing``: a test server on the command line."""

import argparse
import sys
from typing import Any

import orjson

from testnuc.testing.subprocess_server import serve


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


if __name__ == "__main__":
    main()
