"""What is answered when there is no label: a status, a type to branch on, and what to do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from testnuc import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Refused", "of_error", "told"]

#: The most specific class of an error decides: its HTTP status and its type. A status of 4xx is the
#: caller's to mend, so a key that *this service* has wrong is none.
_ANSWERS: dict[type[Exception], tuple[int, str]] = {
    errors.InvalidInputError: (422, "invalid_input"),
    errors.BudgetExceededError: (503, "budget_exceeded"),
    errors.AuthenticationError: (502, "provider_authentication"),
    errors.UnknownModelError: (502, "provider_unknown_model"),
    errors.BadRequestError: (502, "provider_bad_request"),
    errors.ContentRefusedError: (422, "content_refused"),
    errors.RateLimitedError: (503, "provider_rate_limited"),
    errors.QuotaExceededError: (503, "provider_quota_exceeded"),
    errors.CallTimeoutError: (504, "provider_timeout"),
    errors.ReplyError: (502, "provider_reply"),
    errors.ProviderError: (502, "provider"),
    errors.EmbeddingError: (502, "embedding"),
    errors.StoreError: (503, "store"),
    errors.ConfigurationError: (500, "configuration"),
    errors.TestNUCError: (500, "internal"),
}


class Refused(Exception):  # noqa: N818 - it is an answer, not a fault of ours
    """A request that is answered with an error.

    Parameters
    ----------
    status : int
        Of HTTP.
    kind : str
        What programs branch on.
    message : str
        Names the value and the remedy.
    headers : mapping, optional
    close : bool
        Whether the connection ends with it, because what follows on it cannot be trusted.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.headers = dict(headers or {})
        self.close = close

    def body(self) -> dict[str, Any]:
        """Return what is sent as JSON."""
        return {"error": {"status": self.status, "type": self.kind, "message": str(self)}}


def of_error(error: Exception) -> Refused:
    """Return the answer to a request that failed."""
    status, kind = _answer(error)
    if kind == "unexpected":
        # what it says may quote a text or a path: it is in the log
        return Refused(500, kind, "the service failed; its log says why")
    after = getattr(error, "retry_after", None)
    headers = {"Retry-After": str(max(1, math.ceil(after)))} if after is not None else {}
    return Refused(status, kind, str(error), headers=headers)


def told(error: Exception) -> dict[str, str]:
    """Return what a result tells of the failure of its own call."""
    _, kind = _answer(error)
    message = type(error).__name__ if kind == "unexpected" else str(error)
    return {"type": kind, "message": message}


def _answer(error: Exception) -> tuple[int, str]:
    for kind in type(error).__mro__:
        if kind in _ANSWERS:
            return _ANSWERS[kind]
    return 500, "unexpected"
