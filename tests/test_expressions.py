"""No regular expression takes more than linear time, whatever it is searched in."""

from __future__ import annotations

import re

import pytest

from tests.expressions import Expression, expressions, slow

ALL, UNKNOWN = expressions()


def test_all_expressions_are_checked():
    assert len(ALL) > 80
    # one that a comprehension compiles: its module's table is read instead
    assert {place.partition(":")[0] for place in UNKNOWN} <= {"providers/_reasoning.py"}
    assert any(one.place == "providers/_reasoning.py" and "codex" in one.pattern for one in ALL)


def test_no_expression_can_be_slow():
    problems = [(one.place, one.pattern, sorted(set(slow(one)))) for one in ALL]
    assert [problem for problem in problems if problem[2]] == []


@pytest.mark.parametrize(
    ("pattern", "flags", "searched"),
    [
        (r"(a+)+b", 0, False),
        (r"(?:\d+(?:\.\d*)?s)+", 0, False),
        (r"(?:a|ab?)*c", 0, False),
        (r"(?:a?)*c", 0, False),
        (r"\s*\n?(.*?)```", re.DOTALL, False),
        (r"\s*(?:id)?\s*#?\s*(\d+)", 0, False),
        (r".*foo.*", 0, False),
        (r"[A-Z]+[a-z]+x", re.IGNORECASE, False),
        (r"\s+$", 0, True),
        (r"<[^>]*>", 0, True),
        (r'"(?:[^"\\]|\\.)*"', 0, True),
        (r"\b(?=[\w*-]*\d)[\w*-]{32,}", 0, True),
        (r"```[\w-]*\s*\n?(.*?)```", re.DOTALL, True),
    ],
)
def test_the_check_finds(pattern, flags, searched):
    assert list(slow(Expression("", pattern, flags, searched)))


@pytest.mark.parametrize(
    ("pattern", "flags", "searched"),
    [
        (r"<[^<>]*>", 0, True),
        (r"(?:[a-z]+;)*", 0, False),
        (r'"(?:[^"\\]|\\.?)*+(?:"|\Z)', re.DOTALL, True),
        (r"^.*foo", 0, True),
        (r"bearer\s+\w{6,}", 0, True),
        (r"\w{1,64}=", 0, True),
        (r"[\w-]{32,}", 0, True),
    ],
)
def test_the_check_accepts(pattern, flags, searched):
    assert list(slow(Expression("", pattern, flags, searched))) == []
