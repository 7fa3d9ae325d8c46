"""Stores that version 0.1.0 wrote: they open, and what they hold is not asked again.

`CLIENTS` wrote them, in the words of that version; the script is in its history.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from testnuc import (
    LabelSet,
    Limits,
    RetryPolicy,
    Sampling,
    SelfConsistency,
    TestNUC,
    TopKICL,
    TopKICLP,
)
from testnuc._base.checks import hash_text
from testnuc.batch.manifest import unpack
from testnuc.stores import resolve
from testnuc.testing import HashEmbedder

DATA = Path(__file__).parents[1] / "data"
EXPECTED = json.loads((DATA / "store_0_1_0.json").read_text(encoding="utf-8"))
SCHEMA = "testnuc_0_1_0"
TEXTS = [
    *("money back please", "refund my order", "return my payment", "reimburse me now"),
    *("where is my parcel", "delivery is late", "package not here", "courier lost it"),
    *("cannot log in", "password is wrong", "my account is locked", "sign in fails"),
]
LABELS = ["refund", "delivery", "login"]
DESCRIBED = {"refund": "money back", "delivery": "where parcels are", "login": "access"}
#: Nothing answers there: a text that is asked about again fails.
SERVER = {"base_url": "http://localhost:9/v1", "api_key": "key"}

CLIENTS = {
    "standard": {"model": "openai/test", **SERVER},
    "anthropic": {"model": "anthropic/test", **SERVER},
    "zero_shot": {"model": "local/zero-shot"},
    "sampled": {"model": "openai/test", "method": SelfConsistency(3), **SERVER},
    "icl": {"model": "openai/test", "method": TopKICL(3), "neighbors": "stored", **SERVER},
    "iclp": {"model": "openai/test", "method": TopKICLP(3), "neighbors": "stored", **SERVER},
    "packed": {"model": "openai/test", "sampling": Sampling(texts_per_call=4), **SERVER},
    "described": {
        "model": "openai/test",
        "labels": LabelSet(DESCRIBED, none_label="other"),
        "instructions": "Label what the customer wants.",
        "sampling": Sampling(
            temperature=0.0,
            top_p=None,
            confidence="logprobs",
            request_options={"seed": 7, "max_tokens": 50},
        ),
        **SERVER,
    },
    "batched": {"model": "openai/batched", **SERVER},
    "batched_anthropic": {"model": "anthropic/batched", **SERVER},
}


@pytest.fixture(scope="module")
def restored(database):
    """A PostgreSQL store that 0.1.0 wrote."""
    # pgvector is in the database, not in the schema that was dumped
    database.sql("CREATE EXTENSION IF NOT EXISTS vector")
    database.restore(DATA / "store_0_1_0.pg.sql")
    return database.url(SCHEMA)


@pytest.fixture(params=["sqlite", "postgres"])
def old(request, tmp_path):
    """Where a store is that 0.1.0 wrote."""
    if request.param == "postgres":
        return request.getfixturevalue("restored")
    return shutil.copy(DATA / "store_0_1_0.db", tmp_path / "old.db")


def client(store, embedder, **given):
    given = {"labels": LABELS, "k": 3, "policy": "weighted", **given}
    return TestNUC(
        store=store, embedder=embedder, limits=Limits(retry=RetryPolicy(attempts=1)), **given
    )


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_run_over_the_same_texts_makes_no_call(old, name):
    embedder = HashEmbedder(16)
    lane = "batch" if name.startswith("batched") else "live"
    async with client(old, embedder, **CLIENTS[name]) as nuc:
        assert len(nuc) == len(TEXTS)
        results = await nuc.classify_many(TEXTS, lane=lane)
    assert not results.errors
    assert [
        [r.label, r.share, r.margin, r.prediction.label, r.prediction.confidence] for r in results
    ] == EXPECTED[name]
    assert nuc.usage.calls == 0
    assert nuc.usage.store_hits >= len(TEXTS)
    assert embedder.embedded == 0


async def test_it_is_written_to_as_before(old):
    text = "where is the money for my parcel"
    embedder = HashEmbedder(16)
    async with client(old, embedder, **CLIENTS["zero_shot"]) as nuc:
        first = await nuc.classify(text)
        assert nuc.usage.store_hits >= 3
    assert first.voters == 4
    async with client(old, HashEmbedder(16), **CLIENTS["zero_shot"]) as nuc:
        assert len(nuc) == len(TEXTS) + 1
        again = await nuc.classify(text)
        await nuc.remove([text])
    assert (again.label, again.share) == (first.label, first.share)


async def test_its_batches_are_there(old):
    store = resolve(old)
    await store.open()
    everything = await store.batches(ended=True)
    (unfinished,) = await store.batches()
    await store.close()
    assert [
        (batch.facts["provider"], batch.facts["model"], batch.usage.calls)
        for batch in everything
        if batch.outcome is not None
    ] == [("openai", "batched", len(TEXTS)), ("anthropic", "batched", len(TEXTS))]
    assert unfinished.remote_id is not None
    assert unfinished.facts["model"] == "open"
    assert unfinished.facts["base_url"] == SERVER["base_url"]
    # what its answers will be stored under can be read
    asked = [wanted.text_hash for item in unpack(unfinished.items) for wanted in item]
    assert sorted(asked) == sorted(hash_text(text) for text in TEXTS)
