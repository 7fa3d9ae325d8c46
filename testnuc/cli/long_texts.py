"""Texts that are too long for the embedder or the LLM, noted before the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testnuc.client import parts_of
from testnuc.embedders.openai import OpenAIEmbedder
from testnuc.limits import context_window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testnuc.client import TestNUC

#: As in the providers: low, so that estimates are rather too high.
_BYTES_PER_TOKEN = 3.2


async def about_embedder(nuc: TestNUC, texts: Sequence[str]) -> str | None:
    """Return how many texts the embedder reads in part or rejects; loads a local model."""
    embedder = parts_of(nuc).embedder
    measure = getattr(embedder, "cut", None)
    if measure is None:
        return None
    number, tokens = await measure(texts)
    if not number:
        return None
    if isinstance(embedder, OpenAIEmbedder):
        return (
            f"about {_of(number, texts)} longer than the {tokens:,} tokens that the embedder takes,"
            " and will fail; shorten or split them, or choose another --embedder"
        )
    return (
        f"{_of(number, texts)} longer than the {tokens:,} tokens that the embedder reads: their "
        "neighbors are found by the beginning alone, while the LLM reads all; if what matters "
        "comes later, shorten or split them, or choose another --embedder"
    )


def about_model(nuc: TestNUC, texts: Sequence[str]) -> str | None:
    """Return about how many texts do not fit into one call of the LLM."""
    provider = parts_of(nuc).predictor.provider
    window = context_window(provider.name, provider.model, getattr(provider, "url", None))
    if window is None:
        return None
    # a character has at most four bytes
    long = (text for text in texts if 4 * len(text) > window * _BYTES_PER_TOKEN)
    number = sum(len(text.encode("utf-8", "replace")) > window * _BYTES_PER_TOKEN for text in long)
    if not number:
        return None
    return (
        f"about {_of(number, texts)} longer than the {window:,} tokens that {nuc.model} reads, and "
        "will be refused; shorten or split them"
    )


def _of(number: int, texts: Sequence[str]) -> str:
    return f"{number:,} of {len(texts):,} texts " + ("is" if number == 1 else "are")
