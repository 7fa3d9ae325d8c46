"""Compilation of kernels at first use, without the GIL, cached on disk; and prefetching."""

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba.extending import intrinsic

types: Any = numba.types  # only partly typed
_config: Any = numba.config
#: NUMBA_DISABLE_JIT: kernels are plain Python.
DISABLED = bool(_config.DISABLE_JIT)

#: For functions that kernels call: compiled into them, and cached with them.
inline = numba.njit(nogil=True, error_model="numpy", inline="always")

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


def given(dtype: Any, ndim: int = 1) -> Any:
    """Return the type of an argument that is only read."""
    return types.Array(dtype, ndim, "C", readonly=True)


def made(dtype: Any, ndim: int = 1) -> Any:
    """Return the type of an argument that is written."""
    return types.Array(dtype, ndim, "C")


def kernel(signature: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a getter of the kernel, compiled (or loaded from the cache) at its first use.

    The signature has read-only arrays, which writable ones match too; by default, numba would
    compile once more for each combination of the two.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.cache
        def get() -> Any:
            compiled = _jit(function)
            if not DISABLED:
                try:
                    compiled.compile(signature)
                except OSError:  # compiled, but the cache could not be written
                    if not compiled.overloads:
                        raise
                compiled.disable_compile()
            return compiled

        return functools.update_wrapper(get, function)

    return decorate


@functools.cache
def sources() -> str:
    """Return a digest of the source of all kernels."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _jit(function: Callable[..., Any]) -> Any:
    # numba compiles a kernel again after a change of its own file, but not of the files whose
    # functions it calls; the name of a cached kernel includes its qualified name
    function.__qualname__ = f"{function.__name__}_{sources()}"
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # "cannot cache function: no locator available": no writable directory
        return numba.njit(nogil=True, error_model="numpy")(function)


def _prefetch(context: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    """Start loading element `index` of a C-contiguous array; it may lie outside the array.

    An LLVM intrinsic, because numba has no prefetching.
    """

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


prefetch: Any = (lambda *_: None) if DISABLED else intrinsic(_prefetch)
