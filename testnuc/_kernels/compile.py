"""Compilation of kernels: at first use, without the GIL, cached on disk."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numba
from numba import njit

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DISABLED", "given", "inline", "kernel", "made", "types"]

types: Any = numba.types  # only partly typed
_config: Any = numba.config
#: NUMBA_DISABLE_JIT: kernels are plain Python.
DISABLED = bool(_config.DISABLE_JIT)

#: For functions that kernels call: compiled into them, and cached with them.
inline = njit(nogil=True, error_model="numpy", inline="always")


def given(dtype: Any, ndim: int = 1) -> Any:
    """Return the type of an argument that is only read."""
    return types.Array(dtype, ndim, "C", readonly=True)


def made(dtype: Any, ndim: int = 1) -> Any:
    """Return the type of an argument that is written."""
    return types.Array(dtype, ndim, "C")


def kernel(*signatures: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a getter of the kernel, compiled (or loaded from the cache) at its first use.

    The signatures have read-only arrays, which writable ones match too; by default, numba would
    compile once more for each combination of the two. With several signatures, the getter's
    argument chooses one.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.cache
        def get(variant: int = 0) -> Any:
            compiled = _jit(function)
            if not DISABLED:
                try:
                    compiled.compile(signatures[variant])
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
        return njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # "cannot cache function: no locator available": no writable directory
        return njit(nogil=True, error_model="numpy")(function)
