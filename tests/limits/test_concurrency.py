"""The bound on calls in flight, against servers that refuse and fail."""

from __future__ import annotations

from random import Random

from testnuc.limits.concurrency import Concurrency
from testnuc.limits.policies import RetryPolicy


def busy(concurrency, latency, *, seconds, outcome, most=64):
    """Keep as many calls in flight as are allowed; return how many were answered."""
    bound = Concurrency(most, RetryPolicy(deadline=3_600), Random(1))
    if concurrency is not None:
        bound = concurrency
    now, flights, answered = 0.0, [], 0
    while now < seconds:
        while now >= bound.paused_until and (
            len(flights) < bound.cap or bound.widen(now, len(flights)) == 0
        ):
            bound.sent()
            ends, what = outcome(now)
            flights.append((now + ends, now, what))
        flights.sort()
        if flights and flights[0][0] <= now:
            _, sent, what = flights.pop(0)
            if what == "ok":
                answered += 1
                bound.answered(sent, now)
            elif what == "failed":
                bound.failed(now)
            else:
                bound.refused(sent, now, what)
            continue
        now += 0.005
    return bound, answered


def test_constant_latency_costs_no_throughput():
    rng = Random(2)
    bound, answered = busy(
        None,
        0.2,
        seconds=20,
        outcome=lambda _: (0.2 * rng.uniform(0.8, 1.3), "ok"),
        most=256,
    )
    assert bound.cap == 256
    assert answered > 0.95 * 256 / 0.215 * 20


def test_a_storm_ends_in_a_few_round_trips():
    def outcome(now):
        return (0.05, None)

    bound, _ = busy(None, 0.2, seconds=3, outcome=outcome)
    assert bound.cap == 1
    assert bound.paused_until > 3


def test_an_outage_is_probed_and_overcome():
    probes = []

    def outcome(now):
        if 5 <= now < 10:
            probes.append(now)
            return (0.01, None)
        return (0.2, "ok")

    bound, answered = busy(None, 0.2, seconds=20, outcome=outcome)
    # 64 were in flight when it began; then the probes become rarer
    assert len([at for at in probes if at > 5.5]) < 40
    assert bound.cap == 64
    assert answered > 64 / 0.2 * 8


def longest_pause(*, load):
    bound = Concurrency(64, RetryPolicy(deadline=3_600), Random(1))
    now, longest = 1.0, 0.0
    for _ in range(12):
        for _ in range(40):
            bound.refused(now, now + 0.001, None, load=load)
        longest = max(longest, bound.paused_until - now)
        now = bound.paused_until + 0.01
    return longest


def test_a_server_that_is_gone_is_looked_for_steadily():
    assert longest_pause(load=False) < 0.6
    # one that is overloaded is left alone for longer and longer
    assert longest_pause(load=True) > 30


def test_single_refusals_cost_little():
    rng = Random(3)

    def outcome(_):
        return (0.01, None) if rng.random() < 0.07 else (0.2, "ok")

    bound, answered = busy(None, 0.2, seconds=30, outcome=outcome)
    assert bound.cap >= 32
    assert answered > 0.6 * 64 / 0.2 * 30


def test_after_a_pause_not_all_come_at_once():
    refused_until = 6.0
    sends = []

    def outcome(now):
        sends.append(now)
        return (0.05, max(0.1, refused_until - now)) if 5 <= now < refused_until else (0.5, "ok")

    busy(None, 0.5, seconds=8, outcome=outcome)
    between = [at for at in sends if 5.1 < at < refused_until]
    assert len(between) <= 2
    back = [at for at in sends if at >= refused_until]
    assert len([at for at in back if at < back[0] + 0.1]) <= 4
    assert len([at for at in back if at < back[0] + 1.0]) >= 64


def test_latency_is_no_overload():
    # of a client whose event loop is busy, or of a server that queues: refusals say more
    def outcome(now):
        return (0.1, "ok") if now < 5 else (0.6, "ok")

    bound, _ = busy(None, 0.1, seconds=25, outcome=outcome)
    assert bound.cap == 64


def test_failures_are_no_overload():
    bound, _ = busy(None, 0.1, seconds=5, outcome=lambda _: (0.1, "failed"))
    assert bound.cap == 64
