"""Clients that are closed during a run leave no thread and no open file, and end it with an error
of this package."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import pytest

import testnuc
from testnuc.errors import TestNUCError
from testnuc.testing import HashEmbedder, LoopbackLLM
from tests.conftest import LABELS, confident, messages

_FILES = Path("/proc/self/fd")


def open_files(folder):
    """Return the files of a folder that this process has open."""
    found = []
    for file in _FILES.iterdir():
        try:
            target = str(file.readlink())
        except FileNotFoundError:
            continue
        if target.startswith(str(folder)):
            found.append(target)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="platform: open files are read from /proc")
# a text that is labeled before the pool has any
@pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")
@pytest.mark.parametrize("kind", ["sqlite", "memory"])
@pytest.mark.slow
async def test_closing_during_a_run_leaves_nothing_open(tmp_path, kind):
    # other tests may have left threads, which end when they are collected
    before = set(threading.enumerate())
    errors = []
    async with LoopbackLLM(confident, latency=(0.0, 0.004)) as llm:
        for number in range(16):
            nuc = testnuc.TestNUC(
                LABELS,
                "openai/test",
                base_url=llm.base_url,
                api_key="k",
                embedder=HashEmbedder(),
                store=tmp_path / f"{number % 7}.db" if kind == "sqlite" else None,
                policy="weighted",
            )
            texts = [f"{text} {number}" for text in messages(150)]
            runs = [
                asyncio.create_task(nuc.classify_many(texts)),
                asyncio.create_task(nuc.add(texts)),
                asyncio.create_task(nuc.classify(texts[0])),
            ]
            await asyncio.sleep(number * 0.008)
            await nuc.aclose()
            errors += await asyncio.gather(*runs, return_exceptions=True)
    errors = [error for error in errors if isinstance(error, BaseException)]
    assert {type(error) for error in errors if not isinstance(error, TestNUCError)} == set()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("testnuc"):
            # a pool's threads end a moment after they are told to
            thread.join(20)
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name.startswith("testnuc")]
    assert open_files(tmp_path) == []
    assert not list(tmp_path.glob("*-wal"))
