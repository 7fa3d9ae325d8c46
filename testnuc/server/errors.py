"""Error responses: an HTTP status, a type to branch on, and a message with the remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from testnuc import errors
from testnuc.limits import usable_wait

#: HTTP status, type and message, by the most specific class of an error. 4xx means that the caller
#: can fix the request, so a wrong provider key of the service is not 4xx. The error itself may name
#: addresses and settings of the service: it is in the log. None: it is about the request.
_RESPONSES: dict[type[Exception], tuple[int, str, str | None]] = {
    errors.InvalidInputError: (422, "invalid_input", None),
    errors.BudgetExceededError: (503, "budget_exceeded", "the budget of the service is spent"),
    errors.AuthenticationError: (
        502, "provider_authentication", "the LLM provider refused the key of the service",
    ),
    errors.UnknownModelError: (
        502, "provider_unknown_model", "the LLM provider does not know the model of the service",
    ),
    errors.BadRequestError: (
        502, "provider_bad_request", "the LLM provider rejected the call for this text",
    ),
    errors.ContentRefusedError: (
        422, "content_refused", "the LLM provider does not answer about this text",
    ),
    errors.RateLimitedError: (
        503, "provider_rate_limited", "the LLM provider accepts no more calls now; retry later",
    ),
    errors.QuotaExceededError: (
        503, "provider_quota_exceeded", "the quota at the LLM provider is used up",
    ),
    errors.CallTimeoutError: (
        504, "provider_timeout", "the LLM provider did not answer in time; retry",
    ),
    errors.ReplyError: (502, "provider_reply", "the answer of the LLM cannot be read; retry"),
    errors.ProviderError: (502, "provider", "the LLM provider failed or is not reached; retry"),
    errors.EmbeddingError: (502, "embedding", "the text cannot be embedded; retry"),
    errors.StoreError: (503, "store", "the store of the service failed; retry"),
    errors.ConfigurationError: (500, "configuration", "the service is set up wrongly"),
    errors.TestNUCError: (500, "internal", "the service failed"),
    Exception: (500, "unexpected", "internal error; see the log of the service"),
}  # fmt: skip
#: Seconds after which callers ask again, whatever the provider asked for: it may answer sooner.
_LONGEST_WAIT = 120


class RequestError(Exception):
    """A request that gets an error response.

    `kind` is machine-readable, `retry_after` whole seconds; `close` closes the connection, whose
    remaining bytes are undefined.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        retry_after: int | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)
        self.close = close

    def body(self) -> dict[str, Any]:
        """Return the JSON body."""
        return {"error": {"status": self.status, "type": self.kind, "message": str(self)}}


def request_error(error: Exception) -> RequestError:
    """Return the error response for an exception."""
    status, kind, message = _response(error)
    after = usable_wait(getattr(error, "retry_after", None))
    seconds = None if after is None else max(1, math.ceil(min(after, _LONGEST_WAIT)))
    return RequestError(status, kind, message, retry_after=seconds)


def error_fields(error: Exception) -> dict[str, str]:
    """Return the error of a single text in a result."""
    _, kind, message = _response(error)
    return {"type": kind, "message": message}


def _response(error: Exception) -> tuple[int, str, str]:
    known = (_RESPONSES[kind] for kind in type(error).__mro__ if kind in _RESPONSES)
    status, kind, message = next(known)
    return status, kind, str(error) if message is None else message
