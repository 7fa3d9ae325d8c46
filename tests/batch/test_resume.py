"""Killed at any step of the batch lane and run again: nothing is lost or billed twice."""

from __future__ import annotations

from uuid import uuid4

import pytest

from bench.batch import live_labels, run

pytestmark = pytest.mark.slow

TEXTS = 800


@pytest.mark.parametrize(
    ("provider", "kind"),
    [
        ("anthropic", "sqlite"),
        ("openai", "postgres"),
        ("mistral", "sqlite"),
        ("gemini", "sqlite"),
    ],
)
async def test_every_fault_and_three_kills(provider, kind, tmp_path, request):
    store = str(tmp_path / "store.db")
    if kind == "postgres":
        store = request.getfixturevalue("database").url(f"t{uuid4().hex}")
    done = await run(provider, TEXTS, store, k=5)
    assert len(done.kills) == 3
    assert done.errors == 0
    # all answered, each once
    assert len(done.asked) == TEXTS
    assert set(done.asked.values()) == {1}
    # what the server billed is what all processes together have counted
    assert done.counted == done.served
    assert done.labels == await live_labels(TEXTS, 5)
    ends = [batch.outcome for batch in done.batches]
    assert {"ended" if provider == "anthropic" else "completed", "never created"} <= set(ends)
    assert None not in ends
    assert done.steps["list"] >= 2
