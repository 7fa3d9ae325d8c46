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

__all__ = ["gather", "gather_rows", "weigh"]

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


def _gathering(*, strided: bool) -> Any:
    """Make `gather` (the votes of a group follow each other) or `gather_rows` (they do not)."""

    def gathering(
        context: Any,  # noqa: ARG001
        ids: Any,
        similarities: Any,
        start: Any,  # noqa: ARG001
        step: Any,  # noqa: ARG001
        records: Any,
        labels: Any,
        weights: Any,
        groups: Any,  # noqa: ARG001
        floor: Any,  # noqa: ARG001
        least: Any,  # noqa: ARG001
    ) -> Any:
        """Gather the records that ids point at, and weigh them as `weigh` does.

        Vote r of group i is the one at ``start + i * 16 + r`` of ``ids`` and ``similarities``, and
        ``step`` says how many votes later the ids stand whose records are prefetched. If strided,
        it is the one at ``start + r * step + i``: row r's, of rows of ``step`` votes, and the ids
        of 16 rows later are prefetched. All of them must be within ``ids``. ``records``
        int32[2 * (N + 1)]: label, and the bits of the weight without similarity; an id of N or
        more means the last. Labels are written as they are if strided, else as where a table of 16
        rows has the first one's sum: (label + 1) * 16.
        """

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            b = builder
            wide, pairs = ir.VectorType(I64, GROUP), ir.VectorType(I32, 2 * GROUP)
            at = {i: data(context, b, signature.args[i], arguments[i]) for i in (0, 1, 4, 5, 6)}
            first_id, near = (b.gep(at[i], [arguments[2]]) for i in (0, 1))
            records = b.bitcast(at[4], I64.as_pointer())
            size = context.make_array(signature.args[4])(context, b, arguments[4]).nitems
            nobody = b.sub(b.lshr(size, I64(1)), I64(1))
            weighing = _Weighing(b, *arguments[8:])
            step = arguments[3]
            if strided:
                lanes = [b.mul(step, I64(r)) for r in range(GROUP)]
                ahead = b.mul(step, I64(GROUP))
            else:
                lanes, ahead = [I64(r) for r in range(GROUP)], step

            def id_at(place: Any) -> Any:
                given = b.load(b.gep(first_id, [place]))
                return given if given.type == I64 else b.zext(given, I64)

            def body(i: Any) -> Any:
                first = i if strided else b.mul(i, I64(GROUP))
                places = [b.add(first, lane) for lane in lanes]
                found = ir.Constant(wide, ir.Undefined)
                for r, place in enumerate(places):
                    # there may be no such record: nothing is read from its address
                    fetch(b, b.gep(records, [id_at(b.add(place, ahead))]))
                    given = id_at(place)
                    given = b.select(b.icmp_unsigned("<", given, nobody), given, nobody)
                    one = b.load(b.gep(records, [given]))
                    one.align = 4
                    found = b.insert_element(found, one, I32(r))
                found = b.bitcast(found, pairs)
                label, bits = (
                    b.shuffle_vector(
                        found,
                        ir.Constant(pairs, ir.Undefined),
                        ir.Constant(ir.VectorType(I32, GROUP), list(range(half, 2 * GROUP, 2))),
                    )
                    for half in (0, 1)
                )
                if strided:
                    similarity = ir.Constant(weighing.single, ir.Undefined)
                    for r, place in enumerate(places):
                        one = b.load(b.gep(near, [place]))
                        similarity = b.insert_element(similarity, one, I32(r))
                else:
                    similarity = load(b, near, weighing.single, i, 4)
                factor = b.bitcast(bits, weighing.single)
                label, weight, magnitude = weighing(similarity, label, factor)
                if not strided:
                    narrow = label.type
                    label = b.mul(b.add(label, same(narrow, 1)), same(narrow, GROUP))
                store(b, at[5], label, i, 4)
                store(b, at[6], weight, i, 8)
                return magnitude

            return _each_group(b, arguments[7], body)

        number = types.int64
        return types.int32(
            ids, similarities, number, number, records, labels, weights, number, types.float32,
            types.float32,
        ), generate  # fmt: skip

    return gathering


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


def _gathering_twin(*, strided: bool) -> Any:
    def twin(
        ids: Any,
        similarities: Any,
        start: Any,
        step: Any,
        records: Any,
        labels: Any,
        weights: Any,
        groups: Any,
        floor: Any,
        least: Any,
    ) -> Any:
        group, row = np.divmod(np.arange(int(groups) * GROUP), GROUP)
        places = int(start) + (row * int(step) + group if strided else group * GROUP + row)
        ahead = int(step) * (GROUP if strided else 1)
        assert not places.size or places.max() + ahead < ids.size, "reads what is not there"
        nobody = records.size // 2 - 1
        found = [2 * min(int(i), nobody) for i in ids[places]]
        labels[: len(found)] = records[found]
        factors = records.view(np.float32)[[i + 1 for i in found]]
        worst = _weigh_twin(similarities[places], factors, labels, weights, groups, floor, least)
        if not strided:
            labels[: len(found)] = (labels[: len(found)] + 1) * GROUP
        return worst

    return twin


weigh: Any = either(_weigh, _weigh_twin)
gather: Any = either(_gathering(strided=False), _gathering_twin(strided=False))
gather_rows: Any = either(_gathering(strided=True), _gathering_twin(strided=True))
