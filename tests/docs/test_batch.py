"""What docs/batch.md shows does run, and its estimate is what the code prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import testnuc
from bench._batch_api import BatchLLM
from testnuc.testing import HashEmbedder
from tests.conftest import LABELS, confident, messages

DOCS = (Path(__file__).parents[2] / "docs" / "batch.md").read_text(encoding="utf-8")


@pytest.mark.slow
async def test_the_example_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("testnuc.embedders.resolve", lambda _: HashEmbedder())
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL):
        exec(compile(block, "batch.md", "exec"), names)
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    async with BatchLLM(confident) as llm:
        results = await names["label"](messages(250), llm.base_url)
        assert (llm.calls, llm.batches, len(results.errors)) == (25, 1, 0)
    assert names["policy"].rest == "live"


@pytest.mark.slow
async def test_the_estimate_is_what_is_printed():
    limits = testnuc.Limits(tokens_per_minute=200_000)
    async with testnuc.TestNUC(
        LABELS, "openai/gpt-4o-mini", api_key="k", embedder=HashEmbedder(), limits=limits
    ) as nuc:
        assert str(await nuc.estimate(messages(100_000))) in DOCS
