"""The estimate that docs/batch.md shows is what the code prints."""

from __future__ import annotations

from pathlib import Path

import pytest

import testnuc
from testnuc.testing import HashEmbedder
from tests.conftest import LABELS, messages

DOCS = (Path(__file__).parents[2] / "docs" / "batch.md").read_text(encoding="utf-8")


@pytest.mark.slow
async def test_the_estimate_is_what_is_printed():
    limits = testnuc.Limits(tokens_per_minute=200_000)
    async with testnuc.TestNUC(
        LABELS, "openai/gpt-4o-mini", api_key="k", embedder=HashEmbedder(), limits=limits
    ) as nuc:
        assert str(await nuc.estimate(messages(100_000))) in DOCS
