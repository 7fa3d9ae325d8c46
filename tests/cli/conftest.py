"""Commands run in a folder of their own: the stores of their runs are there."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
