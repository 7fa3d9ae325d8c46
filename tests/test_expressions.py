"""No regular expression takes more than linear time, whatever it is searched in."""

from __future__ import annotations

import re
import time

import pytest

from tests.expressions import Expression, expressions, inputs, slow

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


#: Lengths of inputs; an expression that is slower than linear is found before it takes minutes.
LENGTHS = (16, 24, 256, 1024, 4096, 16384)
#: Seconds of CPU that any linear expression needs far less than, on any machine: it needs 5 ms.
ENOUGH = 0.15


def seconds(run, text):
    """Return the CPU of this thread that a search takes, at its best."""
    times = []
    while len(times) < 2 and (not times or times[-1] > ENOUGH):
        start = time.thread_time()
        run(text)
        times.append(time.thread_time() - start)
    return min(times)


@pytest.mark.parametrize("one", ALL, ids=lambda one: f"{one.place}-{one.pattern!r:.30}")
def test_hostile_inputs_take_linear_time(one):
    compiled = re.compile(one.pattern, one.flags)
    runs = [compiled.search] if one.searched else [compiled.match, compiled.fullmatch]
    for start, unit in inputs(one):
        for end in ("", "\0"):
            for length in LENGTHS:
                text = start + unit * (length // len(unit)) + end
                given = (
                    text.encode("latin-1", "replace") if isinstance(one.pattern, bytes) else text
                )
                for run in runs:
                    assert seconds(run, given) < ENOUGH, (one.pattern, start, unit, length)


@pytest.mark.slow
def test_the_inputs_show_what_is_slow():
    for pattern in (r"\s+$", r"```[\w-]*\s*\n?(.*?)```"):
        one = Expression("", pattern, re.DOTALL, searched=True)
        with pytest.raises(AssertionError):
            test_hostile_inputs_take_linear_time(one)
