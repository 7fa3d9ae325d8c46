"""Servers with a real model, of the environment that `make real` installs."""

import json
import os
import subprocess
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pytest

#: The Python of that environment.
PYTHON = os.environ.get("TESTNUC_REAL")
# a busy machine: two threads that wait for each other take many times as long as one
THREADS = os.environ.get("TESTNUC_REAL_THREADS", "1")

DATA = files("testnuc") / "data"


def pytest_collection_modifyitems(items):
    """Leave these tests out unless `make real` runs them."""
    if PYTHON is None:
        items[:] = [item for item in items if item.get_closest_marker("real") is None]


@contextmanager
def serving(kind):
    """Start a server; gives its base URL."""
    assert PYTHON is not None
    script = str(Path(__file__).with_name("serve.py"))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen(
        [PYTHON, script, kind, "--threads", THREADS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        text=True,
    ) as server:
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()
            server.wait(timeout=30)


@pytest.fixture(scope="module", params=["llama-cpp-python", "llama.cpp"])
def base_url(request):
    with serving(request.param) as url:
        yield url


@pytest.fixture(scope="module")
def embeddings_url():
    with serving("embeddings") as url:
        yield url


@pytest.fixture(scope="session")
def labels():
    return json.loads((DATA / "support_labels.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def messages():
    lines = (DATA / "support_messages.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
