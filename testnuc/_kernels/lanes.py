"""What the kernels say to the compiler in its own terms: prefetching, and vectors of rows.

Each has a twin in Python, for when the JIT is off. numba's cache does not notice a change in this
file: `testnuc._kernels.vote` holds a digest of it, compared by a test, so that both change.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from testnuc._kernels.compile import DISABLED, types

__all__ = [
    "LANES",
    "WIDE",
    "count_lanes",
    "differing",
    "leaders",
    "lowest_bit",
    "prefetch",
    "split",
]

#: Rows that `count_lanes` counts at once.
LANES = 16

#: `leaders` reads so many sums at once.
WIDE = 8

_I1, _I32, _I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)


def _data(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    return context.make_array(kind)(context, builder, array).data


def _load(builder: Any, base: Any, kind: Any, index: Any, align: int) -> Any:
    """Load vector number `index` of an array whose start is no more aligned than its elements."""
    pointer = builder.gep(builder.bitcast(base, kind.as_pointer()), [index])
    loaded = builder.load(pointer)
    loaded.align = align
    return loaded


def _prefetch(context: Any, array: Any, offset: Any) -> Any:  # noqa: ARG001
    """Start loading element `offset` of a C-contiguous array; it may as well lie outside."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        base = _data(context, builder, signature.args[0], arguments[0])
        # the arithmetic of addresses is done on integers: an element outside is no pointer
        size = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
        address = builder.add(builder.ptrtoint(base, _I64), builder.mul(arguments[1], _I64(size)))
        pointer = builder.inttoptr(address, ir.IntType(8).as_pointer())
        function = builder.module.globals.get("llvm.prefetch.p0") or ir.Function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32]),
            "llvm.prefetch.p0",
        )
        # for reading, to be kept in all caches, data
        builder.call(function, [pointer, _I32(0), _I32(3), _I32(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


def _lowest_bit(context: Any, bits: Any) -> Any:  # noqa: ARG001
    """Return the place of the lowest set bit of a uint64 that is not 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.cttz(arguments[0], _I1(1))

    return types.uint64(types.uint64), generate


def _differing(context: Any, labels: Any, start: Any, label: Any) -> Any:  # noqa: ARG001
    """Return as bits of a uint64 which of 64 labels int32 from `start` on differ from `label`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.VectorType(_I32, 64)
        base = builder.gep(_data(context, builder, signature.args[0], arguments[0]), [arguments[1]])
        one = builder.insert_element(ir.Constant(kind, ir.Undefined), arguments[2], _I32(0))
        all_same = builder.shuffle_vector(
            one, ir.Constant(kind, ir.Undefined), ir.Constant(kind, [0] * 64)
        )
        loaded = _load(builder, base, kind, _I64(0), 4)
        return builder.bitcast(builder.icmp_signed("!=", loaded, all_same), _I64)

    return types.uint64(labels, types.int64, types.int32), generate


def _splat(builder: Any, kind: Any, value: Any) -> Any:
    """Return a vector whose elements are all `value`."""
    nothing = ir.Constant(kind, ir.Undefined)
    one = builder.insert_element(nothing, value, _I32(0))
    return builder.shuffle_vector(
        one, nothing, ir.Constant(ir.VectorType(_I32, kind.count), [0] * kind.count)
    )


def _reduce(builder: Any, operation: str, value: Any) -> Any:
    """Return the sum ("add") or the maximum ("smax") of a vector of int64."""
    name = f"llvm.vector.reduce.{operation}.v{value.type.count}i64"
    function = builder.module.globals.get(name) or ir.Function(
        builder.module, ir.FunctionType(_I64, [value.type]), name
    )
    return builder.call(function, [value])


def _split(context: Any, labels: Any, weights: Any, start: Any, n: Any, label: Any) -> Any:  # noqa: ARG001
    """Part the n votes (at most 64) from `start` on: those for `label`, those for others.

    Returns which vote for another label (bits of a uint64), the weight of those for `label`, how
    many vote at all. 64 labels and weights are read, whatever n is.
    """
    returned = types.Tuple((types.uint64, types.int64, types.int64))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        b = builder
        narrow, wide = ir.VectorType(_I32, 64), ir.VectorType(_I64, 64)
        places = [b.gep(_data(context, b, signature.args[i], arguments[i]), [arguments[2]])
                  for i in (0, 1)]  # fmt: skip
        found = _load(b, places[0], narrow, _I64(0), 4)
        weight = _load(b, places[1], wide, _I64(0), 8)
        within = b.icmp_signed(
            "<",
            ir.Constant(narrow, list(range(64))),
            _splat(b, narrow, b.trunc(arguments[3], _I32)),
        )
        same = b.icmp_signed("==", found, _splat(b, narrow, arguments[4]))
        votes = b.and_(b.icmp_signed(">=", found, ir.Constant(narrow, [0] * 64)), within)
        others = b.bitcast(b.and_(b.not_(same), votes), _I64)
        kept = b.select(b.and_(same, votes), weight, ir.Constant(wide, [0] * 64))
        count = b.ctpop(b.bitcast(votes, _I64))
        return context.make_tuple(b, returned, [others, _reduce(b, "add", kept), count])

    return returned(labels, weights, types.int64, types.int64, types.int32), generate


def _leaders(context: Any, sums: Any, n: Any) -> Any:  # noqa: ARG001
    """Return the largest of the first ``n * WIDE`` sums, the second, a place of the first, all.

    Sums are int64 and not negative. Two equal largest are both returned, as first and second.
    """
    returned = types.UniTuple(types.int64, 4)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        b = builder
        wide = ir.VectorType(_I64, WIDE)
        zero = ir.Constant(wide, [0] * WIDE)
        base = _data(context, b, signature.args[0], arguments[0])
        entry, loop, done = b.block, b.append_basic_block("loop"), b.append_basic_block("done")
        b.branch(loop)

        b.position_at_end(loop)
        i = b.phi(_I64)
        i.add_incoming(_I64(0), entry)
        state = [b.phi(wide) for _ in range(4)]
        for phi in state:
            phi.add_incoming(zero, entry)
        first, second, place, total = state
        value = _load(b, base, wide, i, 8)
        wins = b.icmp_signed(">", value, first)
        lesser = b.select(wins, first, value)
        following = b.add(i, _I64(1))
        result = (
            b.select(wins, value, first),
            b.select(b.icmp_signed(">", lesser, second), lesser, second),
            b.select(wins, _splat(b, wide, i), place),
            b.add(total, value),
        )
        i.add_incoming(following, loop)
        for phi, changed in zip(state, result, strict=True):
            phi.add_incoming(changed, loop)
        b.cbranch(b.icmp_signed("<", following, arguments[1]), loop, done)

        b.position_at_end(done)
        first, second, place, total = result
        best = _reduce(b, "smax", first)
        leads = b.icmp_signed("==", first, _splat(b, wide, best))
        rival = b.select(leads, zero, first)
        rival = _reduce(b, "smax", b.select(b.icmp_signed(">", rival, second), rival, second))
        several = b.icmp_unsigned(
            ">", b.ctpop(b.bitcast(leads, ir.IntType(WIDE))), ir.IntType(WIDE)(1)
        )
        places = b.add(
            b.mul(place, ir.Constant(wide, [WIDE] * WIDE)), ir.Constant(wide, list(range(WIDE)))
        )
        where = _reduce(b, "smax", b.select(leads, places, zero))
        return context.make_tuple(
            b, returned, [best, b.select(several, best, rival), where, _reduce(b, "add", total)]
        )

    return returned(sums, types.int64), generate


def _count_lanes(context: Any, labels: Any, weights: Any, n: Any, sums: Any, winners: Any) -> Any:  # noqa: ARG001
    """Count the votes of 16 rows at once, each a lane of the vectors.

    ``labels`` int32[n * 16] and ``weights`` int64[n * 16] hold vote i of row r at ``i * 16 + r``; n
    is even, and who does not vote has the label -1 and the weight 0. Writes ``sums`` int64[3 * 16]:
    the winner's weight, the second's, the total; ``winners`` int32[2 * 16]: the winner (the first
    vote's label where nobody voted), the number of voters.

    Every vote's label is compared with those of all later votes. That is quadratic, but has no
    branch, no table to reset and no store that a load must wait for. The sum at a label's first
    vote is its whole weight, later ones are parts of it, so that they can neither win nor, once
    the winner's own are left out, be second with too much; a strict comparison settles ties.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        b = builder
        narrow, wide = ir.VectorType(_I32, LANES), ir.VectorType(_I64, LANES)
        n = arguments[2]
        base = [
            _data(context, b, signature.args[i], arguments[i]) if i != 2 else None for i in range(5)
        ]
        zero, one = ir.Constant(wide, [0] * LANES), ir.Constant(narrow, [1] * LANES)
        none = ir.Constant(narrow, [0] * LANES)

        def vote(i: Any) -> tuple[Any, Any]:
            return _load(b, base[0], narrow, i, 4), _load(b, base[1], wide, i, 8)

        def add(total: Any, label: Any, other: Any, weight: Any) -> Any:
            return b.select(b.icmp_signed("==", label, other), b.add(total, weight), total)

        entry = b.block
        outer, inner, after, done = (
            b.append_basic_block(name) for name in ("outer", "inner", "after", "done")
        )
        first, _ = vote(_I64(0))
        b.branch(outer)

        # two votes at a time, so that a later vote is loaded once for both
        b.position_at_end(outer)
        i = b.phi(_I64)
        state = [b.phi(kind) for kind in (wide, wide, wide, narrow, narrow)]
        i.add_incoming(_I64(0), entry)
        for phi, value in zip(state, (zero, zero, zero, first, none), strict=True):
            phi.add_incoming(value, entry)
        following = b.add(i, _I64(2))
        label0, weight0 = vote(i)
        label1, weight1 = vote(b.add(i, _I64(1)))
        start0 = add(weight0, label0, label1, weight1)
        more = b.icmp_signed("<", following, n)
        b.cbranch(more, inner, after)

        b.position_at_end(inner)
        j, sum0, sum1 = b.phi(_I64), b.phi(wide), b.phi(wide)
        label, weight = vote(j)
        next0, next1 = add(sum0, label0, label, weight), add(sum1, label1, label, weight)
        step = b.add(j, _I64(1))
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
        for place, value in enumerate(result):
            wide_part = place < 3
            kind, at = (wide, place) if wide_part else (narrow, place - 3)
            target = b.bitcast(base[3 if wide_part else 4], kind.as_pointer())
            b.store(value, b.gep(target, [_I64(at)])).align = 8 if wide_part else 4
        return context.get_dummy_value()

    return types.void(labels, weights, types.int64, sums, winners), generate


def _prefetch_twin(array: Any, offset: Any) -> None:
    """Do nothing: without the JIT there is no time to win."""


def _lowest_bit_twin(bits: Any) -> int:
    return (int(bits) & -int(bits)).bit_length() - 1


def _differing_twin(labels: Any, start: Any, label: Any) -> Any:
    return np.uint64(sum(1 << i for i in range(64) if labels[start + i] != label))


def _split_twin(labels: Any, weights: Any, start: Any, n: Any, label: Any) -> Any:
    bits, same, count = 0, 0, 0
    for i in range(n):
        other = labels[start + i]
        if other >= 0:
            count += 1
            if other == label:
                same += int(weights[start + i])
            else:
                bits |= 1 << i
    return np.uint64(bits), np.int64(same), np.int64(count)


def _leaders_twin(sums: Any, n: Any) -> Any:
    values = [int(value) for value in sums[: n * WIDE]]
    order = sorted(range(len(values)), key=lambda i: -values[i])
    first, second = values[order[0]], values[order[1]]
    return np.int64(first), np.int64(second), np.int64(order[0]), np.int64(sum(values))


def _count_lanes_twin(labels: Any, weights: Any, n: Any, sums: Any, winners: Any) -> None:
    for lane in range(LANES):
        votes: dict[int, int] = {}
        count = 0
        for i in range(lane, n * LANES, LANES):
            if weights[i] > 0:
                votes[labels[i]] = votes.get(labels[i], 0) + int(weights[i])
                count += 1
        order = [*sorted(votes, key=lambda label: -votes[label]), labels[lane]]
        most = [*sorted(votes.values(), reverse=True), 0, 0]
        sums[lane::LANES] = most[0], most[1], sum(most)
        winners[lane::LANES] = order[0], count


def _either(generator: Any, twin: Any) -> Any:
    return twin if DISABLED else intrinsic(generator)


prefetch: Any = _either(_prefetch, _prefetch_twin)
lowest_bit: Any = _either(_lowest_bit, _lowest_bit_twin)
differing: Any = _either(_differing, _differing_twin)
count_lanes: Any = _either(_count_lanes, _count_lanes_twin)
split: Any = _either(_split, _split_twin)
leaders: Any = _either(_leaders, _leaders_twin)
