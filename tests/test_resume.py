"""Killed at any moment, run again: only what was in flight is asked again."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import sys

import orjson
import pytest

import testnuc
from testnuc.testing import HashEmbedder, LoopbackLLM
from tests.conftest import LABELS, confident, messages

pytestmark = pytest.mark.slow

CONCURRENCY = 32
#: 3,000 texts, a few of them twice; few enough for exact search, so that labels are comparable.
TEXTS = messages(2_900) + messages(100)
#: Kills while answers come in, and while texts are embedded and added.
KILLS_ASKING, KILLS_ADDING = 5, 1

_RUN = """
import asyncio, sys
import orjson
import testnuc
from testnuc.testing import HashEmbedder
from tests.test_resume import CONCURRENCY, TEXTS, client

class Telling(HashEmbedder):
    async def embed(self, texts):
        print("embedding", flush=True)
        return await super().embed(texts)

async def main(base_url, path, count):
    async with client(base_url, path, Telling()) as nuc:
        results = await nuc.classify_many(TEXTS[: int(count)])
    assert not any(r.error for r in results)
    print(orjson.dumps([(r.label, r.share) for r in results]).decode(), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


def client(base_url, path, embedder):
    return testnuc.TestNUC(
        LABELS,
        "openai/x",
        base_url=base_url,
        api_key="k",
        embedder=embedder,
        store=path,
        limits=testnuc.Limits(concurrency=CONCURRENCY),
    )


class Killer:
    """Answers as the model does, and kills a process when it has asked so often."""

    def __init__(self):
        self.pid = None
        self.left = 0

    def __call__(self, text):
        self.left -= 1
        if self.left == 0 and self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
        return confident(text)


async def start(base_url, path, count=3_000):
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _RUN,
        base_url,
        str(path),
        str(count),
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )


def check(path):
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    (count,) = connection.execute("SELECT count(*) FROM predictions").fetchone()
    connection.close()
    return count


async def test_resumes_after_being_killed_at_random_moments(tmp_path):
    path = tmp_path / "store.db"
    chance = random.Random(5)
    killer = Killer()
    async with (
        LoopbackLLM(confident) as llm,
        client(llm.base_url, None, HashEmbedder()) as nuc,
    ):
        undisturbed = await nuc.classify_many(TEXTS)

    async with LoopbackLLM(killer, latency=(0.0, 0.01)) as llm:
        kills = 0
        for _ in range(KILLS_ADDING):
            process = await start(llm.base_url, path)
            for _ in range(chance.randint(1, 3)):
                # a batch that is stored already is not embedded again
                if await process.stdout.readline() != b"embedding\n":
                    break
            process.kill()
            await process.communicate()
            kills += process.returncode == -signal.SIGKILL
            check(path)
        for _ in range(KILLS_ASKING):
            before = llm.requests
            killer.left = chance.randint(1, 2 * len(TEXTS) // KILLS_ASKING // 2)
            process = await start(llm.base_url, path)
            killer.pid = process.pid
            await process.communicate()
            killer.pid = None
            kills += process.returncode == -signal.SIGKILL
            stored = check(path)
            # what was answered before the kill is there, but for what was in flight
            assert stored >= llm.calls - kills * CONCURRENCY
            assert llm.requests > before
        assert kills == KILLS_ADDING + KILLS_ASKING

        process = await start(llm.base_url, path)
        output, _ = await process.communicate()
        assert process.returncode == 0
        assert check(path) == len(set(TEXTS))
        labels = orjson.loads(output.splitlines()[-1])
        assert labels == [[r.label, r.share] for r in undisturbed]
        assert llm.requests <= len(set(TEXTS)) + kills * CONCURRENCY

        requests, embedder = llm.requests, HashEmbedder()
        async with client(llm.base_url, path, embedder) as nuc:
            again = await nuc.classify_many(TEXTS)
            assert nuc.usage.store_hits == len(set(TEXTS))
        assert (llm.requests, embedder.embedded) == (requests, 0)
        assert [r.label for r in again] == [r.label for r in undisturbed]
