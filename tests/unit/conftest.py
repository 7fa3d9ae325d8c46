"""What all unit tests share."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("OPENAI", "AZURE", "ANTHROPIC")):
            monkeypatch.delenv(name)
