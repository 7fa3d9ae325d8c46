"""A client in hostile weather, over real sockets; see `python -m bench weather`."""

from __future__ import annotations

from functools import cache

import pytest

from tests.weather.checks import violations
from tests.weather.world import weather

#: Seeds of a test, without the recorded exchanges.
SEEDS, PART = 60, 10
#: Seeds of `python -m bench weather`, with the recorded exchanges, that showed faults of their own
#: kinds, since mended: labels from an extra response, also behind a large one; an endless wait for
#: a quota of zero; paid answers thrown away at the deadline; a key in the traceback of another
#: call; a long error that blocked the loop; a stray 403 with the first answer that ended a run; an
#: id with a line break; three million words of no JSON that blocked the loop.
FOUND = (6012, 45, 11006, 533, 1180, 4042, 6789, 8193, 9442, 10698, 9701578)


#: Seeds that two tests look at run once.
kept = cache(weather)


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(start, marks=[pytest.mark.slow] if start >= 2 * PART else [])
        for start in range(0, SEEDS, PART)
    ],
)
def test_nothing_hangs_leaks_or_is_lost(start):
    found = {seed: violations(kept(seed)) for seed in range(start, start + PART)}
    assert {seed: broken for seed, broken in found.items() if broken} == {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", FOUND)
def test_seeds_that_showed_a_fault(seed):
    assert violations(weather(seed, data=True)) == []


@pytest.mark.slow
def test_the_weather_is_not_fair():
    """The seeds reach what they are for."""
    worlds = [kept(seed) for seed in range(40)]
    names = {name.split()[0] for world in worlds for sent in world.sent for name in sent.names}
    assert names >= {"body", "connection", "content", "encoding", "framing", "header", "key"}
    assert {world.format for world in worlds} == {"chat", "responses", "anthropic"}
    assert {world.kind for world in worlds} == {"many", "one", "stream"}
    assert any(world.file for world in worlds)
    assert any(world.several for world in worlds)
    assert {world.parts for world in worlds} == {True, False}
