"""How kernels are compiled: at their first use, without the GIL, into a cache on disk."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numba
from llvmlite import ir
from numba import njit
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["given", "inline", "kernel", "made", "prefetch", "types"]

# numba is only partly typed
types: Any = numba.types
cgutils: Any = _cgutils
_config: Any = numba.config

#: For what kernels call: compiled into them, and cached with them.
inline = njit(nogil=True, error_model="numpy")


def given(dtype: Any, ndim: int = 1) -> Any:
    """Return the type of an argument that is only read."""
    return types.Array(dtype, ndim, "C", readonly=True)


def made(dtype: Any, ndim: int = 1) -> Any:
    """Return the type of an argument that is written."""
    return types.Array(dtype, ndim, "C")


def kernel(*signatures: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a getter of the kernel, compiled (or loaded from the cache) at its first use.

    The signatures take read-only arrays, which writable ones match too; left to itself, numba
    would compile once more for each combination of the two. With several signatures, the getter's
    argument chooses one.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.cache
        def get(variant: int = 0) -> Any:
            compiled = _jit(function)
            if not _config.DISABLE_JIT:
                try:
                    compiled.compile(signatures[variant])
                except OSError:  # compiled, but the cache could not be written
                    if not compiled.overloads:
                        raise
                compiled.disable_compile()
            return compiled

        return functools.update_wrapper(get, function)

    return decorate


def _jit(function: Callable[..., Any]) -> Any:
    try:
        return njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # "cannot cache function: no locator available": nowhere to write
        return njit(nogil=True, error_model="numpy")(function)


def _prefetch(context: Any, array: Any, offset: Any) -> Any:  # noqa: ARG001
    """Start loading element `offset` of a C-contiguous array into the cache; it may lie outside.

    Changes no result, so that it may stand outside the kernels' file.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        base = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        # the arithmetic of addresses is done on integers: an element outside is no pointer
        size = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
        word = arguments[1].type
        address = builder.add(builder.ptrtoint(base, word), builder.mul(arguments[1], word(size)))
        pointer = builder.inttoptr(address, ir.IntType(8).as_pointer())
        flag = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [pointer.type, flag, flag, flag]),
            "llvm.prefetch.p0",
        )
        # for reading, to be kept in all caches, data
        builder.call(function, [pointer, flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(array, offset), generate


def _no_prefetch(array: Any, offset: Any) -> None:
    """Do nothing: without the JIT there is no time to win."""


prefetch: Any = _no_prefetch if _config.DISABLE_JIT else intrinsic(_prefetch)
