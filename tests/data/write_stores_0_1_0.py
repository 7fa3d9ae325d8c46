"""Write the stores of this folder, with testnuc 0.1.0 as it was released.

Run it as ``python write_stores_0_1_0.py STORE EXPECTED``: where 0.1.0 is imported from, on an
empty store (a path, or the URL of a PostgreSQL database). It writes labels and votes to EXPECTED,
as JSON. `tests/stores/test_old_stores.py` says the same clients in the words of today.

A SQLite store is then copied by ``VACUUM INTO``; a PostgreSQL store is dumped by ``pg_dump
--no-owner --schema=SCHEMA``, without the lines ``\\restrict`` and ``\\unrestrict``, which older
programs do not read.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from testnuc import BatchPolicy, Limits, SelfConsistency, TestNUC, TopKICL, TopKICLP, __version__
from testnuc.providers import resolve
from testnuc.testing import Batches, HashEmbedder, LoopbackLLM

TEXTS = [
    *("money back please", "refund my order", "return my payment", "reimburse me now"),
    *("where is my parcel", "delivery is late", "package not here", "courier lost it"),
    *("cannot log in", "password is wrong", "my account is locked", "sign in fails"),
]
LABELS = ["refund", "delivery", "login"]
DESCRIBED = {"refund": "money back", "delivery": "where parcels are", "login": "access"}
#: Nothing answers there: the address is a part of every key, so it is the same each time.
BASE_URL = "http://localhost:9/v1"

CLIENTS = {
    "standard": {"model": "openai/test"},
    "anthropic": {"model": "anthropic/test"},
    "zero_shot": {"model": "local/zero-shot"},
    "sampled": {"model": "openai/test", "method": SelfConsistency(3)},
    "icl": {"model": "openai/test", "method": TopKICL(3), "neighbors": "stored"},
    "iclp": {"model": "openai/test", "method": TopKICLP(3), "neighbors": "stored"},
    "packed": {"model": "openai/test", "texts_per_call": 4},
    "described": {
        "model": "openai/test",
        "labels": DESCRIBED,
        "none_label": "other",
        "instructions": "Label what the customer wants.",
        "request_options": {"seed": 7, "max_tokens": 50},
        "temperature": 0.0,
        "top_p": None,
        "confidence": "logprobs",
    },
    "batched": {"model": "openai/batched"},
    "batched_anthropic": {"model": "anthropic/batched"},
}


def answer(text: str) -> tuple[str, float]:
    return LABELS[TEXTS.index(text) // 4], 0.5 + len(text) % 5 / 10


def client(llm: LoopbackLLM, store: str, given: dict) -> TestNUC:
    given = {"labels": LABELS, "embedder": HashEmbedder(16), "k": 3, "policy": "weighted", **given}
    if not given["model"].startswith("local/"):
        provider = resolve(given["model"], base_url=llm.base_url, api_key="key")
        provider.identity = BASE_URL
        given["model"] = provider
    return TestNUC(
        store=store,
        limits=Limits(batches=BatchPolicy(first_poll=0.001, longest_poll=0.01)),
        **given,
    )


async def write(place: str) -> dict:
    expected = {}
    async with LoopbackLLM(answer, batches=Batches()) as llm:
        for name, given in CLIENTS.items():
            async with client(llm, place, given) as nuc:
                await nuc.add(["take me out"])
                await nuc.remove(["take me out"])
                lane = "batch" if name.startswith("batched") else "live"
                results = await nuc.classify_many(TEXTS, lane=lane)
            expected[name] = [
                [r.label, r.share, r.margin, r.prediction.label, r.prediction.confidence]
                for r in results
            ]
    async with LoopbackLLM(answer, batches=Batches(polls=10**9)) as llm:
        # its process ends before the batch does
        nuc = client(llm, place, {"model": "openai/open"})
        run = asyncio.create_task(nuc.classify_many(TEXTS, lane="batch"))
        while not llm.batches:  # noqa: ASYNC110 - a batch is no event
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        await nuc.aclose()
    return expected


if __name__ == "__main__":
    if __version__ != "0.1.0":
        sys.exit(f"this is testnuc {__version__}")
    found = asyncio.run(write(sys.argv[1]))
    lines = [f"{json.dumps(name)}: {json.dumps(rows)}" for name, rows in found.items()]
    Path(sys.argv[2]).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
