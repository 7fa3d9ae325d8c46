"""What all tests share."""

from __future__ import annotations

import os
from typing import Any

import aiohttp
import pytest

from testnuc.testing import HashEmbedder, LoopbackLLM
from tests.stores.database import serve

# no test may reach a provider or a hub, whatever keys the machine has
for name in list(os.environ):
    if name.startswith(("OPENAI", "ANTHROPIC", "AZURE")):
        del os.environ[name]
os.environ["HF_HUB_OFFLINE"] = "1"

LABELS = ["refund", "delivery", "login"]

WORDS = {
    "refund": ["money back", "refund please", "return my payment", "reimburse me"],
    "delivery": ["where is my parcel", "delivery late", "package not here", "courier lost it"],
    "login": ["cannot log in", "password wrong", "account locked", "sign in fails"],
}


def messages(n: int) -> list[str]:
    """Return n distinct messages, the intents in turn."""
    made = []
    for i in range(n):
        label = LABELS[i % len(LABELS)]
        phrase = WORDS[label][(i // 3) % 4]
        made.append(f"{phrase} number {i}")
    return made


def gold(text: str) -> str:
    """Return the intent of a message."""
    return next(label for label in LABELS if any(w in text for w in WORDS[label]))


def confident(text: str) -> tuple[str, float]:
    """Answer rightly, with a confidence that differs from text to text."""
    return gold(text), 0.5 + (len(text) % 5) / 10


@pytest.fixture
def client_of() -> Any:
    """Return what makes the arguments of a client of a loopback server."""

    def arguments(llm: LoopbackLLM, **more: Any) -> dict[str, Any]:
        return {
            "labels": LABELS,
            "model": "openai/test",
            "base_url": llm.base_url,
            "api_key": "secret-key-123",
            "embedder": HashEmbedder(),
            # what most tests test is the vote; "auto" would not vote on so few texts
            "policy": "weighted",
            **more,
        }

    return arguments


@pytest.fixture
async def session() -> Any:
    """Return an HTTP session, to be used against servers of this machine."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        yield session


@pytest.fixture(scope="session")
def database() -> Any:
    """Return a running PostgreSQL server, one for all tests of a process."""
    yield from serve()
