"""Weights of votes: 16 at a time, gathered from a pool's records or given."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from testnuc._kernels.compile import types
from testnuc._kernels.vectors import (
    GROUP,
    I32,
    I64,
    data,
    either,
    fetch,
    largest,
    load,
    reduce,
    same,
    splat,
    store,
)

__all__ = ["WEIGHT_BITS", "gather", "gather_rows", "weigh"]

#: Bits of a weight: 1 is 2^32.
WEIGHT_BITS = 33

#: A weight of at most 1 added to this is rounded to a multiple of 2^-32 (to even, where it is
#: halfway), and their bits differ by that many multiples.
ROUND = 1.5 * 2**20
_ROUND_BITS = int(np.float64(ROUND).view(np.int64))

_F32, _F64 = ir.FloatType(), ir.DoubleType()


class _Weighing:
    """What `gather` and `weigh` share: votes of one group, weighed."""

    def __init__(self, builder: Any, floor: Any, least: Any) -> None:
        self.builder = builder
        self.single = ir.VectorType(_F32, GROUP)
        self.floor, self.least = (splat(builder, self.single, value) for value in (floor, least))

    def __call__(self, similarity: Any, label: Any, factor: Any) -> tuple[Any, Any, Any]:
        """Return labels (-1 for who weighs nothing), weights, magnitudes of similarities."""
        b = self.builder
        narrow, wide = ir.VectorType(I32, GROUP), ir.VectorType(I64, GROUP)
        double = ir.VectorType(_F64, GROUP)
        zero, one = same(self.single, 0.0), same(self.single, 1.0)
        size = b.and_(b.bitcast(similarity, narrow), same(narrow, 0x7FFFFFFF))
        # comparisons instead of min and max, which care for NaN
        base = b.select(b.fcmp_ordered("<", similarity, one), similarity, one)
        base = b.select(b.fcmp_ordered(">", base, self.floor), base, self.floor)
        base = b.select(b.fcmp_ordered(">=", similarity, self.least), base, zero)
        product = b.fmul(b.fpext(base, double), b.fpext(factor, double))
        rounded = b.bitcast(b.fadd(product, same(double, ROUND)), wide)
        weight = b.sub(rounded, same(wide, _ROUND_BITS))
        voted = b.icmp_signed(">", weight, same(wide, 0))
        return b.select(voted, label, same(narrow, -1)), weight, size


def _each_group(builder: Any, groups: Any, body: Any) -> Any:
    """Run ``body(i)`` for groups 0..groups; return the largest of what it returned, at least 0."""
    b = builder
    narrow = ir.VectorType(I32, GROUP)
    entry, loop, done = b.block, b.append_basic_block("loop"), b.append_basic_block("done")
    b.cbranch(b.icmp_signed(">", groups, I64(0)), loop, done)

    b.position_at_end(loop)
    i, worst = b.phi(I64), b.phi(narrow)
    now = largest(b, body(i), worst)
    following = b.add(i, I64(1))
    for phi, first, next_ in ((i, I64(0), following), (worst, same(narrow, 0), now)):
        phi.add_incoming(first, entry)
        phi.add_incoming(next_, loop)
    b.cbranch(b.icmp_signed("<", following, groups), loop, done)

    b.position_at_end(done)
    last = b.phi(narrow)
    last.add_incoming(same(narrow, 0), entry)
    last.add_incoming(now, loop)
    return reduce(b, "smax", last)


def _weigh(
    context: Any,  # noqa: ARG001
    similarities: Any,
    factors: Any,
    labels: Any,
    weights: Any,
    groups: Any,  # noqa: ARG001
    floor: Any,  # noqa: ARG001
    least: Any,  # noqa: ARG001
) -> Any:
    """Turn the first ``groups * 16`` votes into weights; who weighs nothing loses its label.

    ``similarities``, ``factors`` float32, ``labels`` int32; writes ``labels`` and ``weights``
    int64, multiples of 2^-32. Returns the largest similarity by magnitude, as the bits of a
    float32: NaN exceeds all others.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        b = builder
        narrow = ir.VectorType(I32, GROUP)
        at = [data(context, b, signature.args[i], arguments[i]) for i in range(4)]
        weighing = _Weighing(b, *arguments[5:])

        def body(i: Any) -> Any:
            similarity, factor = (load(b, at[j], weighing.single, i, 4) for j in (0, 1))
            label, weight, size = weighing(similarity, load(b, at[2], narrow, i, 4), factor)
            store(b, at[2], label, i, 4)
            store(b, at[3], weight, i, 8)
            return size

        return _each_group(b, arguments[4], body)

    return types.int32(
        similarities, factors, labels, weights, types.int64, types.float32, types.float32
    ), generate


def _gathered(
    context: Any,
    builder: Any,
    signature: Any,
    arguments: Any,
    ahead: Any,
    stride: Any,
    write: Any,
) -> Any:
    """Gather and weigh groups of votes: what `gather` and `gather_rows` share.

    ``arguments`` are theirs, of which the first five and the last three mean the same. With a
    ``stride``, the votes of a group stand so far from one another, else they follow one another.
    ``write(i, labels, weights)`` keeps what was found of group i.
    """
    b = builder
    wide, pairs = ir.VectorType(I64, GROUP), ir.VectorType(I32, 2 * GROUP)
    ids, near, table = (data(context, b, signature.args[i], arguments[i]) for i in (0, 1, 4))
    first_id, first_near = (b.gep(base, [arguments[2]]) for base in (ids, near))
    records = b.bitcast(table, I64.as_pointer())
    size = context.make_array(signature.args[4])(context, b, arguments[4]).nitems
    nobody = b.sub(b.lshr(size, I64(1)), I64(1))
    *_, groups, floor, least = arguments
    weighing = _Weighing(b, floor, least)
    lanes = [I64(r) if stride is None else b.mul(stride, I64(r)) for r in range(GROUP)]

    def id_at(place: Any) -> Any:
        given = b.load(b.gep(first_id, [place]))
        return given if given.type == I64 else b.zext(given, I64)

    def body(i: Any) -> Any:
        first = b.mul(i, I64(GROUP)) if stride is None else i
        places = [b.add(first, lane) for lane in lanes]
        found = ir.Constant(wide, ir.Undefined)
        similarity = ir.Constant(weighing.single, ir.Undefined)
        for r, place in enumerate(places):
            # there may be no such record: nothing is read from its address
            fetch(b, b.gep(records, [id_at(b.add(place, ahead))]))
            given = id_at(place)
            given = b.select(b.icmp_unsigned("<", given, nobody), given, nobody)
            one = b.load(b.gep(records, [given]))
            one.align = 4
            found = b.insert_element(found, one, I32(r))
            if stride is not None:
                one = b.load(b.gep(first_near, [place]))
                similarity = b.insert_element(similarity, one, I32(r))
        if stride is None:
            similarity = load(b, first_near, weighing.single, i, 4)
        found = b.bitcast(found, pairs)
        label, bits = (
            b.shuffle_vector(
                found,
                ir.Constant(pairs, ir.Undefined),
                ir.Constant(ir.VectorType(I32, GROUP), list(range(half, 2 * GROUP, 2))),
            )
            for half in (0, 1)
        )
        label, weight, size = weighing(similarity, label, b.bitcast(bits, weighing.single))
        write(i, label, weight)
        return size

    return _each_group(b, groups, body)


def _gather(
    context: Any,  # noqa: ARG001
    ids: Any,
    similarities: Any,
    start: Any,  # noqa: ARG001
    ahead: Any,  # noqa: ARG001
    records: Any,
    votes: Any,
    groups: Any,  # noqa: ARG001
    floor: Any,  # noqa: ARG001
    least: Any,  # noqa: ARG001
) -> Any:
    """Gather the records that ids point at, and weigh them as `weigh` does.

    Vote r of group i is the one at ``start + i * 16 + r`` of ``ids`` and ``similarities``; the ids
    ``ahead`` votes later, whose records are prefetched, must be within ``ids`` as well.
    ``records`` int32[2 * (N + 1)]: label, and the bits of the weight without similarity; an id of N
    or more means the last. Writes ``votes`` int64: a weight in the low 33 bits, and above them
    where a table of 16 rows has the sums of the label, (label + 1) * 16; 0 for who does not vote.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        b = builder
        wide = ir.VectorType(I64, GROUP)
        target = data(context, b, signature.args[5], arguments[5])

        def write(i: Any, label: Any, weight: Any) -> None:
            entry = b.mul(b.add(label, same(label.type, 1)), same(label.type, GROUP))
            vote = b.or_(b.shl(b.zext(entry, wide), same(wide, WEIGHT_BITS)), weight)
            store(b, target, vote, i, 8)

        return _gathered(context, b, signature, arguments, arguments[3], None, write)

    number, single = types.int64, types.float32
    return types.int32(
        ids, similarities, number, number, records, votes, number, single, single
    ), generate


def _gather_rows(
    context: Any,  # noqa: ARG001
    ids: Any,
    similarities: Any,
    start: Any,  # noqa: ARG001
    width: Any,  # noqa: ARG001
    records: Any,
    labels: Any,
    weights: Any,
    groups: Any,  # noqa: ARG001
    floor: Any,  # noqa: ARG001
    least: Any,  # noqa: ARG001
) -> Any:
    """Gather as `gather` does, 16 rows of ``width`` votes side by side.

    Vote r of group i is vote i of row r, at ``start + r * width + i``; the ids of the 16 rows that
    follow must be within ``ids`` as well. Writes ``labels`` int32, -1 for who does not vote, and
    ``weights`` int64.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        b, width = builder, arguments[3]
        targets = [data(context, b, signature.args[i], arguments[i]) for i in (5, 6)]

        def write(i: Any, label: Any, weight: Any) -> None:
            store(b, targets[0], label, i, 4)
            store(b, targets[1], weight, i, 8)

        ahead = b.mul(width, I64(GROUP))
        return _gathered(context, b, signature, arguments, ahead, width, write)

    number, single = types.int64, types.float32
    return types.int32(
        ids, similarities, number, number, records, labels, weights, number, single, single
    ), generate


def _weigh_twin(
    similarities: Any,
    factors: Any,
    labels: Any,
    weights: Any,
    groups: Any,
    floor: Any,
    least: Any,
) -> Any:
    worst = np.int32(0)
    for i in range(groups * GROUP):
        similarity = similarities[i]
        magnitude = np.abs(similarity).view(np.int32)
        worst = max(worst, magnitude)
        base = max(min(similarity, np.float32(1)), floor) if similarity >= least else 0.0
        product = np.float64(base) * np.float64(factors[i])
        weights[i] = np.int64(np.rint(product * 2.0**32))
        labels[i] = labels[i] if weights[i] > 0 else -1
    return worst


def _gathered_twin(
    ids: Any, similarities: Any, places: Any, records: Any, floor: Any, least: Any
) -> Any:
    """Return the worst similarity, labels and weights."""
    nobody = records.size // 2 - 1
    found = [2 * min(int(i), nobody) for i in ids[places]]
    labels, weights = records[found], np.empty(len(found), np.int64)
    factors = records.view(np.float32)[[i + 1 for i in found]]
    near = similarities[places]
    worst = _weigh_twin(near, factors, labels, weights, len(found) // GROUP, floor, least)
    return worst, labels, weights


def _gather_twin(
    ids: Any,
    similarities: Any,
    start: Any,
    ahead: Any,
    records: Any,
    votes: Any,
    groups: Any,
    floor: Any,
    least: Any,
) -> Any:
    places = int(start) + np.arange(int(groups) * GROUP)
    assert not places.size or places[-1] + ahead < ids.size, "reads what is not there"
    worst, labels, weights = _gathered_twin(ids, similarities, places, records, floor, least)
    entries = (labels.astype(np.int64) + 1) * GROUP
    votes[: len(places)] = (entries << WEIGHT_BITS) | weights
    return worst


def _gather_rows_twin(
    ids: Any,
    similarities: Any,
    start: Any,
    width: Any,
    records: Any,
    labels: Any,
    weights: Any,
    groups: Any,
    floor: Any,
    least: Any,
) -> Any:
    vote, row = np.divmod(np.arange(int(groups) * GROUP), GROUP)
    places = int(start) + row * int(width) + vote
    assert not places.size or places.max() + GROUP * width < ids.size, "reads what is not there"
    found = slice(0, len(places))
    worst, labels[found], weights[found] = _gathered_twin(
        ids, similarities, places, records, floor, least
    )
    return worst


weigh: Any = either(_weigh, _weigh_twin)
gather: Any = either(_gather, _gather_twin)
gather_rows: Any = either(_gather_rows, _gather_rows_twin)
