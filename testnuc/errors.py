"""Exceptions, all of them a `TestNUCError`.

Do not parse messages: the attributes of `ProviderError` hold status, request id and attempts. The
only warning is `SmallPoolWarning`.
"""

from copy import copy
from typing import Any


def printable(text: str) -> str:
    """Return a text in one line, without the characters that control a terminal or a log."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(text.split())


class TestNUCError(Exception):
    """Base class of all testnuc exceptions."""

    __test__ = False


class InvalidInputError(TestNUCError, ValueError):
    """An argument or a text is invalid. Nothing was sent or changed."""


class ConfigurationError(TestNUCError):
    """A key, a file or a setting is missing or invalid."""


class MissingDependencyError(ConfigurationError, ImportError):
    """An optional package is not installed; the message shows the install command."""


class ProviderError(TestNUCError):
    """The LLM provider did not return a usable answer.

    Parameters
    ----------
    message : str
        What happened and how to fix it. Never contains a secret.
    status_code : int, optional
        HTTP status of the response, if there was one.
    request_id : str, optional
        The provider's request id, for support requests.
    retry_after : float, optional
        Seconds to wait before the next attempt, as returned by the provider.
    attempts : int
        Number of attempts before the call failed.
    """

    #: Whether a retry can succeed.
    retryable: bool = False
    #: Whether every other call of the run would fail in the same way.
    fatal: bool = False
    #: Whether the request was executed, so that it is billed.
    answered: bool = False
    #: Unreadable replies to the call and those before it, for the same texts.
    unreadable: int = 1

    def __init__(
        self,
        message: str,
        *,
        status_code: int | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        attempts: int = 1,
    ) -> None:
        # of a server's words none forges a line of a log
        super().__init__(printable(str(message)))
        self.status_code = status_code
        self.request_id = request_id
        self.retry_after = retry_after
        self.attempts = attempts


class AuthenticationError(ProviderError):
    """The API key is missing, invalid, or not allowed to use the model (401, 403)."""

    fatal = True


class UnknownModelError(ProviderError):
    """The model or the endpoint does not exist (404), or is elsewhere (3xx)."""

    fatal = True


class BadRequestError(ProviderError):
    """The provider, or a firewall before it, rejected the request (400, 413, 422, other 4xx)."""

    fatal = True


class ContentRefusedError(BadRequestError):
    """The provider's content filter rejected this text; other texts are unaffected."""

    fatal = False


class RateLimitedError(ProviderError):
    """Too many requests or tokens (429)."""

    retryable = True


class QuotaExceededError(RateLimitedError):
    """The account's quota is exhausted (a 429 that a retry cannot fix)."""

    retryable = False
    fatal = True


class ServerError(ProviderError):
    """The provider failed or is overloaded (408, 409, 5xx)."""

    retryable = True


class ProviderDownError(ServerError):
    """The provider failed one call after the other, and a service did not send this one."""

    fatal = True


class ConnectionFailedError(ProviderError):
    """The connection failed, or was closed before the full response arrived."""

    retryable = True


class CallTimeoutError(ProviderError):
    """No full response within the deadline of the call."""

    retryable = True


class NotAnsweredError(ProviderError):
    """The batch ended without a result for this request.

    It was not executed, or the provider does not return its result; the message says which.
    """

    retryable = True


class ReplyError(ProviderError):
    """The provider responded, but no label can be read from the response.

    Parameters
    ----------
    content : str, optional
        The model's output, truncated.
    usage : TokenUsage, optional
        The tokens of the call, if reported: unusable answers are billed as well.
    """

    retryable = True
    answered = True

    def __init__(
        self, message: str, *, content: str | None = None, usage: Any = None, **facts: Any
    ) -> None:
        super().__init__(message, **facts)
        self.content = content
        self.usage = usage


class RefusalError(ReplyError):
    """The model declined to answer."""

    retryable = False


class TruncatedReplyError(ReplyError):
    """The output limit cut off the answer; raise ``max_tokens``."""

    retryable = False


class EmptyReplyError(ReplyError):
    """The response has no choice, or an empty one."""


class UnreadableReplyError(ReplyError):
    """The answer is not the requested JSON."""


class MismatchedReplyError(ReplyError):
    """Ids of a packed answer are missing, duplicate or unknown."""


class BudgetExceededError(TestNUCError):
    """The worst case of the next call exceeds the remaining budget; it was not sent."""


class BudgetReservedError(BudgetExceededError):
    """Calls in flight have reserved what is left of the budget; ask again when some have ended."""

    retry_after = 5.0


class EmbeddingError(TestNUCError):
    """The embedder failed, or returned vectors of the wrong shape or with NaN or infinity."""


class StoreError(TestNUCError):
    """The store cannot be opened, read or written; the message says why."""


def with_count(error: Exception, answered: int) -> Exception:
    """Return a copy of an error that ended a run, with the number of texts answered before."""
    return with_note(error, f"texts answered and stored before: {answered:,}")


def with_note(error: Exception, note: str) -> Exception:
    """Return a copy of an error whose message ends with a note."""
    noted = copy(error)
    noted.args = (f"{error}; {note}", *error.args[1:])
    return noted


class SmallPoolWarning(UserWarning):
    """There are too few neighbors, or too few predictions, for the vote that was asked for."""
