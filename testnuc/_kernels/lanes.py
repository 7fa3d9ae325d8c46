"""Vectors whose lanes are rows, or policies: what waits for nothing that another lane does."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from testnuc._kernels.compile import types
from testnuc._kernels.vectors import (
    GROUP,
    I32,
    I64,
    data,
    either,
    largest,
    load,
    same,
    smallest,
    splat,
    store,
)

__all__ = ["LANES", "POLICIES", "climb", "count_lanes", "lead"]

#: Rows that are counted at once; `gather` reckons with as many.
LANES = GROUP
#: Policies that `climb` follows at once.
POLICIES = 4


def _count_lanes(
    context: Any,  # noqa: ARG001
    labels: Any,
    weights: Any,
    n: Any,  # noqa: ARG001
    at: Any,  # noqa: ARG001
    sums: Any,
    winners: Any,
) -> Any:
    """Count the votes of 16 rows at once, each a lane of the vectors.

    ``labels`` int32[n * 16] and ``weights`` int64[n * 16] hold vote i of row r at ``i * 16 + r``;
    who does not vote has the label -1 and the weight 0, and so does vote n if n is odd, for votes
    are read in pairs. Writes, from row `at` on, ``sums`` int64[3 * R]: the winner's weight, the
    second's, the total; ``winners`` int32[2 * R]: the winner (the first vote's label where nobody
    voted), the number of voters.

    Every vote's label is compared with those of all later votes. That is quadratic, but has no
    branch, no table to reset and no store that a load must wait for. The sum at a label's first
    vote is its whole weight, later ones are parts of it, so that they can neither win nor, once
    the winner's own are left out, be second with too much; a strict comparison settles ties.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        b = builder
        narrow, wide = ir.VectorType(I32, LANES), ir.VectorType(I64, LANES)
        n = arguments[2]
        base = [data(context, b, signature.args[i], arguments[i]) for i in (0, 1, 4, 5)]
        rows = b.udiv(
            context.make_array(signature.args[5])(context, b, arguments[5]).nitems, I64(2)
        )
        zero, one = ir.Constant(wide, [0] * LANES), ir.Constant(narrow, [1] * LANES)
        none = ir.Constant(narrow, [0] * LANES)

        def vote(i: Any) -> tuple[Any, Any]:
            return load(b, base[0], narrow, i, 4), load(b, base[1], wide, i, 8)

        def add(total: Any, label: Any, other: Any, weight: Any) -> Any:
            return b.select(b.icmp_signed("==", label, other), b.add(total, weight), total)

        entry = b.block
        outer, inner, after, done = (
            b.append_basic_block(name) for name in ("outer", "inner", "after", "done")
        )
        first, _ = vote(I64(0))
        b.branch(outer)

        # two votes at a time, so that a later vote is loaded once for both
        b.position_at_end(outer)
        i = b.phi(I64)
        state = [b.phi(kind) for kind in (wide, wide, wide, narrow, narrow)]
        i.add_incoming(I64(0), entry)
        for phi, value in zip(state, (zero, zero, zero, first, none), strict=True):
            phi.add_incoming(value, entry)
        following = b.add(i, I64(2))
        label0, weight0 = vote(i)
        label1, weight1 = vote(b.add(i, I64(1)))
        start0 = add(weight0, label0, label1, weight1)
        more = b.icmp_signed("<", following, n)
        b.cbranch(more, inner, after)

        b.position_at_end(inner)
        j, sum0, sum1 = b.phi(I64), b.phi(wide), b.phi(wide)
        label, weight = vote(j)
        next0, next1 = add(sum0, label0, label, weight), add(sum1, label1, label, weight)
        step = b.add(j, I64(1))
        for phi, value, changed in (
            (j, following, step),
            (sum0, start0, next0),
            (sum1, weight1, next1),
        ):
            phi.add_incoming(value, outer)
            phi.add_incoming(changed, inner)
        b.cbranch(b.icmp_signed("<", step, n), inner, after)

        b.position_at_end(after)
        whole0, whole1 = b.phi(wide), b.phi(wide)
        for phi, value, changed in ((whole0, start0, next0), (whole1, weight1, next1)):
            phi.add_incoming(value, outer)
            phi.add_incoming(changed, inner)
        best, second, total, winner, count = state
        for label, weight, whole in ((label0, weight0, whole0), (label1, weight1, whole1)):
            wins = b.icmp_signed(">", whole, best)
            rival = b.select(wins, best, whole)
            rival = b.select(b.icmp_signed("==", label, winner), zero, rival)
            second = b.select(b.icmp_signed(">", rival, second), rival, second)
            best, winner = b.select(wins, whole, best), b.select(wins, label, winner)
            total = b.add(total, weight)
            voted = b.icmp_signed(">", weight, zero)
            count = b.add(count, b.select(voted, one, none))
        i.add_incoming(following, after)
        result = (best, second, total, winner, count)
        for phi, value in zip(state, result, strict=True):
            phi.add_incoming(value, after)
        b.cbranch(more, outer, done)

        b.position_at_end(done)
        for part, value in enumerate(result):
            target, field, align = (base[2], part, 8) if part < 3 else (base[3], part - 3, 4)
            place = b.add(b.mul(rows, I64(field)), arguments[3])
            store(b, b.gep(target, [place]), value, I64(0), align)
        return context.get_dummy_value()

    number = types.int64
    return types.void(labels, weights, number, number, sums, winners), generate


def _lead(context: Any, sums: Any, n: Any, out: Any) -> Any:  # noqa: ARG001
    """Find the winners of 16 rows at once, each a lane of the vectors.

    ``sums`` int64[n * 16] holds at ``i * 16 + r`` sum i of row r, each of another label, or 0.
    Writes ``out`` int64[4 * 16]: the largest, the second (as large, where two are), all of them
    together, and which is the first that is as large.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        b = builder
        wide = ir.VectorType(I64, LANES)
        base, target = (data(context, b, signature.args[i], arguments[i]) for i in (0, 2))
        entry, loop, done = b.block, b.append_basic_block("loop"), b.append_basic_block("done")
        b.branch(loop)

        b.position_at_end(loop)
        i, state = b.phi(I64), [b.phi(wide) for _ in range(4)]
        best, second, total, place = state
        value = load(b, base, wide, i, 8)
        result = (
            largest(b, best, value),
            largest(b, second, smallest(b, best, value)),
            b.add(total, value),
            b.select(b.icmp_signed(">", value, best), splat(b, wide, i), place),
        )
        following = b.add(i, I64(1))
        i.add_incoming(I64(0), entry)
        i.add_incoming(following, loop)
        for phi, changed in zip(state, result, strict=True):
            phi.add_incoming(same(wide, 0), entry)
            phi.add_incoming(changed, loop)
        b.cbranch(b.icmp_signed("<", following, arguments[1]), loop, done)

        b.position_at_end(done)
        for row, value in enumerate(result):
            store(b, target, value, I64(row), 8)
        return context.get_dummy_value()

    return types.void(sums, types.int64, out), generate


def _climb(
    context: Any,  # noqa: ARG001
    labels: Any,
    weights: Any,
    start: Any,  # noqa: ARG001
    stop: Any,  # noqa: ARG001
    rank: Any,  # noqa: ARG001
    shift: Any,  # noqa: ARG001
    sums: Any,
    state: Any,
) -> Any:
    """Count the votes start..stop of one row under 4 policies at once, each a lane.

    ``labels`` int32[n], ``weights`` int64[4 * n]: policy p's weight of vote i at ``p * n + i``, 0
    where it does not vote. ``sums`` int64[4 * (C + 1)], of label c from ``4 * (c + 1)`` on: shifted
    by ``shift`` bits, in which stands the rank of the label's first supporter, ``rank - i`` for
    vote i. ``state`` int64[8]: the largest sum, which starts as the text's own, and whose it is.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        b = builder
        wide = ir.VectorType(I64, POLICIES)
        lab, weight, _, _, _, _, acc, kept = (
            data(context, b, kind, value) if isinstance(kind, types.Array) else value
            for kind, value in zip(signature.args, arguments, strict=True)
        )
        start, stop, rank, shift = arguments[2:6]
        n = context.make_array(signature.args[0])(context, b, arguments[0]).nitems
        initial = [load(b, kept, wide, I64(part), 8) for part in (0, 1)]
        entry, loop, done = b.block, b.append_basic_block("loop"), b.append_basic_block("done")
        b.cbranch(b.icmp_signed("<", start, stop), loop, done)

        b.position_at_end(loop)
        i, best, winner = b.phi(I64), b.phi(wide), b.phi(wide)
        label = b.sext(b.load(b.gep(lab, [i])), I64)
        added = ir.Constant(wide, ir.Undefined)
        for p in range(POLICIES):
            one = b.load(b.gep(weight, [b.add(i, b.mul(n, I64(p)))]))
            added = b.insert_element(added, one, I32(p))
        at = b.add(label, I64(1))
        before = load(b, acc, wide, at, 8)
        after = b.add(
            largest(b, before, splat(b, wide, b.sub(rank, i))),
            b.shl(added, splat(b, wide, shift)),
        )
        after = b.select(b.icmp_signed(">", added, same(wide, 0)), after, before)
        store(b, acc, after, at, 8)
        now = (
            largest(b, best, after),
            b.select(b.icmp_signed(">", after, best), splat(b, wide, label), winner),
        )
        following = b.add(i, I64(1))
        i.add_incoming(start, entry)
        i.add_incoming(following, loop)
        for phi, first, next_ in zip((best, winner), initial, now, strict=True):
            phi.add_incoming(first, entry)
            phi.add_incoming(next_, loop)
        b.cbranch(b.icmp_signed("<", following, stop), loop, done)

        b.position_at_end(done)
        last = [b.phi(wide) for _ in now]
        for phi, first, next_ in zip(last, initial, now, strict=True):
            phi.add_incoming(first, entry)
            phi.add_incoming(next_, loop)
        for part, value in enumerate(last):
            store(b, kept, value, I64(part), 8)
        return context.get_dummy_value()

    number = types.int64
    return types.void(labels, weights, number, number, number, number, sums, state), generate


def _count_lanes_twin(labels: Any, weights: Any, n: Any, at: Any, sums: Any, winners: Any) -> None:
    rows = winners.size // 2
    for lane in range(LANES):
        votes: dict[int, int] = {}
        count = 0
        for i in range(lane, n * LANES, LANES):
            if weights[i] > 0:
                votes[labels[i]] = votes.get(labels[i], 0) + int(weights[i])
                count += 1
        order = [*sorted(votes, key=lambda label: -votes[label]), labels[lane]]
        most = [*sorted(votes.values(), reverse=True), 0, 0]
        sums[at + lane :: rows] = most[0], most[1], sum(most)
        winners[at + lane :: rows] = order[0], count


def _lead_twin(sums: Any, n: Any, out: Any) -> None:
    for row in range(LANES):
        values = [int(value) for value in sums[row : n * LANES : LANES]]
        order = sorted(range(n), key=lambda i: -values[i])
        second = values[order[1]] if n > 1 else 0
        out[row::LANES] = values[order[0]], second, sum(values), order[0]


def _climb_twin(
    labels: Any,
    weights: Any,
    start: Any,
    stop: Any,
    rank: Any,
    shift: Any,
    sums: Any,
    state: Any,
) -> None:
    for i in range(int(start), int(stop)):
        for p in range(POLICIES):
            weight, at = int(weights[p * labels.size + i]), POLICIES * (int(labels[i]) + 1) + p
            if weight > 0:
                sums[at] = max(int(sums[at]), int(rank) - i) + (weight << int(shift))
                if sums[at] > state[p]:
                    state[p], state[POLICIES + p] = sums[at], labels[i]


count_lanes: Any = either(_count_lanes, _count_lanes_twin)
lead: Any = either(_lead, _lead_twin)
climb: Any = either(_climb, _climb_twin)
