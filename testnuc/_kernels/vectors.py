"""What the kernels say to the compiler in its own terms: prefetching, and vectors of votes.

Each has a twin in Python, for when the JIT is off. numba's cache does not notice a change in this
file or in those that build on it: `testnuc._kernels.vote` holds a digest of all of them, compared
by a test, so that it changes with them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from testnuc._kernels.compile import DISABLED, types

__all__ = ["GROUP", "differing", "lowest_bit", "prefetch", "voting"]

#: Votes that are read at once.
GROUP = 16

I1, I32, I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)


def data(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    """Return the address of an array's first element."""
    return context.make_array(kind)(context, builder, array).data


def load(builder: Any, base: Any, kind: Any, index: Any, align: int) -> Any:
    """Load vector number `index` of an array whose start is no more aligned than its elements."""
    pointer = builder.gep(builder.bitcast(base, kind.as_pointer()), [index])
    loaded = builder.load(pointer)
    loaded.align = align
    return loaded


def store(builder: Any, base: Any, value: Any, index: Any, align: int) -> None:
    """Store vector number `index` of an array, the counterpart of `load`."""
    pointer = builder.gep(builder.bitcast(base, value.type.as_pointer()), [index])
    builder.store(value, pointer).align = align


def same(kind: Any, value: Any) -> Any:
    """Return a constant vector whose elements are all `value`."""
    return ir.Constant(kind, [value] * kind.count)


def splat(builder: Any, kind: Any, value: Any) -> Any:
    """Return a vector whose elements are all `value`."""
    nothing = ir.Constant(kind, ir.Undefined)
    one = builder.insert_element(nothing, value, I32(0))
    return builder.shuffle_vector(
        one, nothing, ir.Constant(ir.VectorType(I32, kind.count), [0] * kind.count)
    )


def call(builder: Any, name: str, arguments: Any, kind: Any) -> Any:
    """Call one of LLVM's own functions, which returns `kind`."""
    function = builder.module.globals.get(name) or ir.Function(
        builder.module, ir.FunctionType(kind, [value.type for value in arguments]), name
    )
    return builder.call(function, arguments)


def _name(kind: Any) -> str:
    return f"v{kind.count}{kind.element.intrinsic_name}"


def reduce(builder: Any, operation: str, value: Any) -> Any:
    """Return the sum ("add") or the maximum ("smax") of a vector of integers."""
    name = f"llvm.vector.reduce.{operation}.{_name(value.type)}"
    return call(builder, name, [value], value.type.element)


def largest(builder: Any, a: Any, b: Any) -> Any:
    """Return the larger of each pair of signed integers."""
    return call(builder, f"llvm.smax.{_name(a.type)}", [a, b], a.type)


def smallest(builder: Any, a: Any, b: Any) -> Any:
    """Return the smaller of each pair of signed integers."""
    return call(builder, f"llvm.smin.{_name(a.type)}", [a, b], a.type)


def fetch(builder: Any, pointer: Any) -> None:
    """Start loading what stands at an address."""
    # for reading, to be kept in all caches, data
    arguments = [builder.bitcast(pointer, ir.IntType(8).as_pointer()), I32(0), I32(3), I32(1)]
    call(builder, "llvm.prefetch.p0", arguments, ir.VoidType())


def _prefetch(context: Any, array: Any, offset: Any) -> Any:  # noqa: ARG001
    """Start loading element `offset` of a C-contiguous array; it may as well lie outside."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        base = data(context, builder, signature.args[0], arguments[0])
        # the arithmetic of addresses is done on integers: an element outside is no pointer
        size = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
        address = builder.add(builder.ptrtoint(base, I64), builder.mul(arguments[1], I64(size)))
        fetch(builder, builder.inttoptr(address, ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


def _lowest_bit(context: Any, bits: Any) -> Any:  # noqa: ARG001
    """Return the place of the lowest set bit of a uint64 that is not 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.cttz(arguments[0], I1(1))

    return types.uint64(types.uint64), generate


def _differing(context: Any, labels: Any, start: Any, label: Any) -> Any:  # noqa: ARG001
    """Return as bits of a uint64 which of 64 labels int32 from `start` on differ from `label`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.VectorType(I32, 64)
        base = builder.gep(data(context, builder, signature.args[0], arguments[0]), [arguments[1]])
        loaded = load(builder, base, kind, I64(0), 4)
        return builder.bitcast(
            builder.icmp_signed("!=", loaded, splat(builder, kind, arguments[2])), I64
        )

    return types.uint64(labels, types.int64, types.int32), generate


def _voting(context: Any, votes: Any, start: Any, n: Any) -> Any:  # noqa: ARG001
    """Return how many of the n votes int64 from `start` on are not 0; reads up to 15 more."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        b = builder
        wide = ir.VectorType(I64, GROUP)
        base = b.gep(data(context, b, signature.args[0], arguments[0]), [arguments[1]])
        entry, loop, done = b.block, b.append_basic_block("loop"), b.append_basic_block("done")
        b.cbranch(b.icmp_signed(">", arguments[2], I64(0)), loop, done)

        b.position_at_end(loop)
        i, count = b.phi(I64), b.phi(I64)
        left = b.sub(arguments[2], b.mul(i, I64(GROUP)))
        counted = b.and_(
            b.icmp_signed("!=", load(b, base, wide, i, 8), same(wide, 0)),
            b.icmp_signed(
                "<",
                ir.Constant(wide, list(range(GROUP))),
                splat(b, wide, left),
            ),
        )
        more = b.add(count, b.zext(b.ctpop(b.bitcast(counted, ir.IntType(GROUP))), I64))
        following = b.add(i, I64(1))
        for phi, next_ in ((i, following), (count, more)):
            phi.add_incoming(I64(0), entry)
            phi.add_incoming(next_, loop)
        b.cbranch(b.icmp_signed(">", left, I64(GROUP)), loop, done)

        b.position_at_end(done)
        result = b.phi(I64)
        result.add_incoming(I64(0), entry)
        result.add_incoming(more, loop)
        return result

    return types.int64(votes, types.int64, types.int64), generate


def _prefetch_twin(array: Any, offset: Any) -> None:
    """Do nothing: without the JIT there is no time to win."""


def _lowest_bit_twin(bits: Any) -> int:
    return (int(bits) & -int(bits)).bit_length() - 1


def _differing_twin(labels: Any, start: Any, label: Any) -> Any:
    return np.uint64(sum(1 << i for i in range(64) if labels[start + i] != label))


def _voting_twin(votes: Any, start: Any, n: Any) -> Any:
    return np.int64(np.count_nonzero(votes[start : start + n]))


def either(generator: Any, twin: Any) -> Any:
    """Return the intrinsic, or without the JIT its twin."""
    return twin if DISABLED else intrinsic(generator)


prefetch: Any = either(_prefetch, _prefetch_twin)
lowest_bit: Any = either(_lowest_bit, _lowest_bit_twin)
differing: Any = either(_differing, _differing_twin)
voting: Any = either(_voting, _voting_twin)
