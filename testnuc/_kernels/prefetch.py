"""Software prefetching as an LLVM intrinsic, because numba has none."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.extending import intrinsic

from testnuc._kernels.compile import DISABLED, types

__all__ = ["prefetch"]

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


def _prefetch(context: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    """Start loading element `index` of a C-contiguous array; it may lie outside the array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        base = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        # integer arithmetic, because a pointer to outside of the array would be undefined
        size = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
        address = builder.add(builder.ptrtoint(base, _I64), builder.mul(arguments[1], _I64(size)))
        pointer = builder.inttoptr(address, _I8.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
        name = "llvm.prefetch.p0"
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        # for reading, to be kept in all caches, data
        builder.call(function, [pointer, _I32(0), _I32(3), _I32(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


def _without_jit(array: Any, index: Any) -> None:
    """Do nothing: prefetching changes no result."""


prefetch: Any = _without_jit if DISABLED else intrinsic(_prefetch)
