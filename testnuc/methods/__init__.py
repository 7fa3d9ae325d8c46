"""Methods: how one text gets its own prediction, before its neighbors vote."""

from __future__ import annotations

from typing import Any

from testnuc.errors import InvalidInputError
from testnuc.intake import checked_whole
from testnuc.methods.standard import StandardPrompting
from testnuc.protocols import Method

__all__ = ["resolve"]


def resolve(method: Any, *, texts_per_call: int = 1) -> Method:
    """Return the method to use; None is `StandardPrompting`.

    Raises
    ------
    InvalidInputError
        It is no method, or it shows examples in prompts that hold several texts.
    """
    if method is None:
        return StandardPrompting()
    if isinstance(method, type) or not isinstance(method, Method):
        raise InvalidInputError(
            f"method is {method!r}; give an object such as SelfConsistency(n=10) or TopKICL(k=10)"
        )
    checked_whole("method.samples", method.samples, least=1)
    checked_whole("method.context", method.context, least=0)
    if method.context and texts_per_call > 1:
        raise InvalidInputError(
            f"texts_per_call is {texts_per_call}, but {method!r} shows each text examples of its "
            "own; use texts_per_call=1, or a method without examples"
        )
    return method
