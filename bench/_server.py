"""The test server in a separate process, so that it does not compete with the client for CPU time.

The child reads its configuration from the first line of standard input and prints its base URL as
one line of JSON. It exits when standard input is closed, also if the parent is killed.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import orjson

from testnuc._base.loop_thread import run_to_end
from testnuc.errors import InvalidInputError, TestNUCError
from testnuc.testing.answers import by_hash
from testnuc.testing.faults import Faults
from testnuc.testing.loopback import LoopbackLLM
from testnuc.testing.server import HOST

_TIMEOUT = 5.0


class ServerProcess:
    """A `LoopbackLLM` in another process: its base URL for clients, and its process id."""

    def __init__(self, base_url: str, pid: int) -> None:
        self.base_url = base_url
        self.pid = pid
        self._port = int(base_url.removesuffix("/v1").rpartition(":")[2])

    def stats(self) -> dict[str, Any]:
        """Return `LoopbackLLM.stats`."""
        connection = HTTPConnection(HOST, self._port, timeout=_TIMEOUT)
        with contextlib.closing(connection):
            connection.request("GET", "/stats")
            fetched: dict[str, Any] = orjson.loads(connection.getresponse().read())
            return fetched


@contextlib.contextmanager
def serve_in_process(
    answers: Mapping[str, Any] | Path | Sequence[str], **options: Any
) -> Iterator[ServerProcess]:
    """Context manager that runs a `LoopbackLLM` in another process.

    Parameters
    ----------
    answers : mapping, path or sequence of str
        Text -> label or (label, confidence); a JSON file with such a mapping; or labels, assigned
        to texts by `by_hash`.
    **options
        Options of `LoopbackLLM` that JSON can represent (no callables). `faults` is a mapping with
        the arguments of `Faults`.

    Yields
    ------
    ServerProcess
        The running server.

    Raises
    ------
    InvalidInputError
        An option cannot be serialized as JSON.
    TestNUCError
        The process exited before it was ready.
    """
    if isinstance(answers, Path):
        source: Any = os.fspath(answers.absolute())
    else:
        source = dict(answers) if isinstance(answers, Mapping) else list(answers)
    try:
        config = orjson.dumps({"answers": source} | options)
    except TypeError as exc:
        raise InvalidInputError(f"an option cannot be sent to another process: {exc}") from exc
    package = os.fspath(Path(__file__).parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-m", "bench._server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(config + b"\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise TestNUCError(f"the server exited with code {process.wait()}; see its stderr")
        yield ServerProcess(orjson.loads(line)["base_url"], process.pid)
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _serve(config: Mapping[str, Any]) -> None:
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
    with contextlib.suppress(KeyboardInterrupt):
        run_to_end(_until_eof(LoopbackLLM(answers, **options)))


async def _until_eof(llm: LoopbackLLM) -> None:
    ended = asyncio.Event()

    def read() -> None:
        if not os.read(0, 4096):
            ended.set()

    async with llm:
        asyncio.get_running_loop().add_reader(0, read)
        sys.stdout.write(orjson.dumps({"base_url": llm.base_url}).decode() + "\n")
        sys.stdout.flush()
        await ended.wait()


if __name__ == "__main__":
    _serve(orjson.loads(sys.stdin.buffer.readline()))
