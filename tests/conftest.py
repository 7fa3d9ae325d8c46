"""What all tests share."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, settings

from testnuc import TestNUC
from testnuc._engine.parameters import client_arguments
from testnuc.testing import HashEmbedder, LoopbackLLM
from tests.stores.database import serve

# no test may reach a provider or a hub, whatever keys the machine has
for name in list(os.environ):
    if name.startswith(("OPENAI", "ANTHROPIC", "AZURE", "AWS_BEARER", "CLOUDSDK_AUTH")):
        del os.environ[name]
os.environ["HF_HUB_OFFLINE"] = "1"
# without it one of scikit-learn's checks is skipped; read when SciPy is imported
os.environ.setdefault("SCIPY_ARRAY_API", "1")

# how long an example takes depends on how busy the machine is
settings.register_profile("testnuc", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("testnuc")

LABELS = ["refund", "delivery", "login"]

#: What a test needs beyond the light part of the environment, by the fixture that brings it.
NEEDS = {
    "database": "postgres",
    "cluster": "ray",
    "browser": "browser",
    "own_embedder": "torch",
}
#: How the reasons of skips begin that no environment can avoid, or that its owner decides.
EXPECTED_SKIPS = ("platform: ", "recordings: ")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of continuous integration."""
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="a skipped test fails, except where its reason begins with "
        + " or ".join(map(repr, EXPECTED_SKIPS)),
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what fixtures need, and begin with the files that take long.

    Processes that run tests in parallel take a file each: a long one that comes last is waited for.
    """
    for item in items:
        given = getattr(item, "callspec", None)
        # such a parameter asks for the fixture when the test runs
        if given is not None and any(
            isinstance(p, str) and p == "postgres" for p in given.params.values()
        ):
            item.add_marker("postgres")
        for fixture, marker in NEEDS.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(marker)
    long = Counter(
        item.path
        for item in items
        if any(item.get_closest_marker(name) for name in ("slow", "ray", "torch"))
    )
    items.sort(key=lambda item: -long[item.path])


def _unexpected(config: pytest.Config, report: Any) -> bool:
    if not report.skipped or hasattr(report, "wasxfail") or not config.getoption("--no-skips"):
        return False
    reason = report.longrepr[2].removeprefix("Skipped: ")
    return not reason.startswith(EXPECTED_SKIPS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Let a test fail that is skipped, where none may be."""
    report = yield
    if _unexpected(item.config, report):
        report.outcome = "failed"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    """Let a file fail that is skipped, where none may be."""
    report = yield
    if _unexpected(collector.config, report):
        report.outcome = "failed"
        report.longrepr = f"skipped: {report.longrepr[2]}"
    return report


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


def arguments_for(llm: LoopbackLLM, **more: Any) -> dict[str, Any]:
    """Return the arguments of a client of a loopback server."""
    return client_arguments(
        {
            "labels": LABELS,
            "model": "openai/test",
            "base_url": llm.base_url,
            "api_key": "secret-key-123",
            "embedder": HashEmbedder(),
            # what most tests test is the vote; "auto" would not vote on so few texts
            "policy": "weighted",
            **more,
        }
    )


@pytest.fixture
def client_of() -> Any:
    """Return what makes the arguments of a client of a loopback server."""
    return arguments_for


@pytest.fixture
def loopback(client_of: Any) -> Any:
    """Return what opens a server, or one that answers as a function says, and a client of it."""

    @asynccontextmanager
    async def opened(answer: Any = confident, **more: Any) -> Any:
        server = answer if isinstance(answer, LoopbackLLM) else LoopbackLLM(answer)
        async with server as llm, TestNUC(**client_of(llm, **more)) as nuc:
            yield llm, nuc

    return opened


@pytest.fixture
async def session() -> Any:
    """Return an HTTP session, to be used against servers of this machine."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield session


@pytest.fixture(scope="session")
def database() -> Any:
    """Return a running PostgreSQL server, one for all tests of a process."""
    yield from serve()


@pytest.fixture
def recordings() -> Path:
    """Return the folder of recorded answers of a real model."""
    named = os.environ.get("TESTNUC_DATA")
    if not named:
        pytest.skip("recordings: name their folder by TESTNUC_DATA")
    return Path(named)
