"""The public names, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import testnuc
from testnuc import errors


def test_all_is_sorted_whole_and_importable():
    assert testnuc.__all__ == sorted(testnuc.__all__)
    assert set(testnuc.__all__) == set(testnuc._HOME)
    for name in testnuc.__all__:
        assert getattr(testnuc, name).__name__ == name
    assert dir(testnuc) == testnuc.__all__
    assert len(testnuc.__all__) <= 40
    # what callers catch; the others are in testnuc.errors
    assert vars(errors).keys() & set(testnuc.__all__) == {
        "BudgetExceededError", "InvalidInputError", "ProviderError", "SmallPoolWarning",
        "StoreError", "TestNUCError",
    }  # fmt: skip
    for module in testnuc._MODULES:
        assert getattr(testnuc, module).__name__ == f"testnuc.{module}"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        testnuc.nothing  # noqa: B018


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import testnuc", "numpy numba aiohttp torch usearch sqlite3 orjson"),
        ("import testnuc; testnuc.TestNUC", "numba torch sentence_transformers usearch"),
        ("import testnuc; testnuc.voting.vote", "numba torch aiohttp"),
        ("import testnuc.cli", "numpy numba aiohttp torch"),
        ("import testnuc.testing", "torch usearch"),
    ],
)
def test_imports_stay_light(statement, heavy):
    code = f"import sys; {statement}; print([m for m in {heavy.split()!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_names_that_start_with_test_are_not_collected():
    assert testnuc.TestNUC.__test__ is False
    assert testnuc.TestNUCError.__test__ is False
