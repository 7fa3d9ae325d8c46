"""Foreign bytes: a reader returns, or raises an error of ours, and takes bounded time."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testnuc.errors import TestNUCError
from tests.fuzz.readers import LONGEST, changed, readers, tried

#: Examples for each reader; `python -m bench fuzz --seconds 600` tries many more.
EXAMPLES, MORE = 40, 200
#: Readers that open a database or a workbook, which takes milliseconds.
SLOW = {"stores", "workbooks", "reviews", "marks", "results", "heads"}


@pytest.mark.parametrize("name", readers())
def test_samples_are_read(name):
    for sample in readers()[name].samples:
        assert tried(readers()[name], sample, (TestNUCError,)) < LONGEST


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in readers()]
)
def test_bytes_that_were_changed(name):
    reader = readers()[name]

    @settings(max_examples=EXAMPLES if name in SLOW else MORE, database=None)
    @given(seed=st.integers(0, 2**32), sample=st.sampled_from(range(len(reader.samples))))
    def check(seed, sample):
        data = changed(Random(seed), reader.samples[sample])
        assert tried(reader, data, (TestNUCError,)) < LONGEST

    check()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in readers()]
)
def test_any_bytes(name):
    reader = readers()[name]

    @settings(max_examples=EXAMPLES, database=None)
    @given(data=st.binary(max_size=3000))
    def check(data):
        assert tried(reader, data, (TestNUCError,)) < LONGEST

    check()
