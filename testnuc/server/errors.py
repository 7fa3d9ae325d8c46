"""Error responses: an HTTP status, a type to branch on, and a message with the remedy."""

import math
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any

from testnuc import errors
from testnuc.limits.headers import usable_wait

#: HTTP status and type, by the most specific class of an error. 4xx means that the caller can fix
#: the request, so a wrong provider key of the service is not 4xx.
_RESPONSES: dict[type[Exception], tuple[int, str]] = {
    errors.InvalidInputError: (422, "invalid_input"),
    errors.BudgetExceededError: (503, "budget_exceeded"),
    errors.BudgetReservedError: (503, "budget_reserved"),
    errors.AuthenticationError: (502, "provider_authentication"),
    errors.UnknownModelError: (502, "provider_unknown_model"),
    errors.BadRequestError: (502, "provider_bad_request"),
    errors.ContentRefusedError: (422, "content_refused"),
    errors.RateLimitedError: (503, "provider_rate_limited"),
    errors.QuotaExceededError: (503, "provider_quota_exceeded"),
    errors.ProviderDownError: (503, "provider_down"),
    errors.CallTimeoutError: (504, "provider_timeout"),
    errors.ReplyError: (502, "provider_reply"),
    errors.ProviderError: (502, "provider"),
    errors.EmbeddingError: (502, "embedding"),
    errors.StoreError: (503, "store"),
    errors.ConfigurationError: (500, "configuration"),
    errors.TestNUCError: (500, "internal"),
    Exception: (500, "unexpected"),
}
#: Types of the error of a text.
ERROR_TYPES = frozenset(kind for _, kind in _RESPONSES.values())
#: Seconds after which callers ask again, whatever the provider asked for: it may answer sooner.
_LONGEST_WAIT = 120


@dataclass(eq=False, repr=False)
class RequestError(Exception):
    """A request that gets an error response.

    `kind` is machine-readable, `retry_after` whole seconds; `close` closes the connection, whose
    remaining bytes are undefined.
    """

    status: int
    kind: str
    message: InitVar[str]
    _: KW_ONLY
    headers: dict[str, str] = field(default_factory=dict)
    retry_after: InitVar[int | None] = None
    close: bool = False

    def __post_init__(self, message: str, retry_after: int | None) -> None:
        super().__init__(message)
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)

    def body(self) -> dict[str, Any]:
        """Return the JSON body."""
        return {"error": {"status": self.status, "type": self.kind, "message": str(self)}}


def request_error(error: Exception) -> RequestError:
    """Return the error response for an exception."""
    known = (_RESPONSES[kind] for kind in type(error).__mro__ if kind in _RESPONSES)
    status, kind = next(known)
    # others may name addresses and settings of the service
    hidden = f"{kind.replace('_', ' ')} error; the log of the service has the details"
    message = str(error) if isinstance(error, errors.InvalidInputError) else hidden
    # a disk has room again, or a lock is gone, as soon as somebody sees to it
    after = usable_wait(getattr(error, "retry_after", 5.0 if kind == "store" else None))
    seconds = None if after is None else max(1, math.ceil(min(after, _LONGEST_WAIT)))
    return RequestError(status, kind, message, retry_after=seconds)


def error_fields(error: Exception) -> dict[str, str]:
    """Return the error of a single text in a result."""
    found = request_error(error)
    return {"type": found.kind, "message": str(found)}
