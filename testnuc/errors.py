"""Every exception that testnuc raises on purpose, and its warning.

::

    TestNUCError
      InvalidInputError (ValueError)     an argument or a text is wrong; nothing was sent
      ConfigurationError                 a key, a file or a setting is missing or wrong
        MissingDependencyError (ImportError)   an optional package is not installed
      ProviderError                      the LLM provider did not give a usable answer
        AuthenticationError              401, 403: the key is wrong; stops the run
        UnknownModelError                404: no such model or endpoint; stops the run
        BadRequestError                  400, 413, 422 ..: the request is refused; stops the run
          ContentRefusedError            the provider's filter refused this one text
        RateLimitedError                 429: too many requests
          QuotaExceededError             429 that waiting does not cure; stops the run
        ServerError                      5xx
        ConnectionFailedError            no connection, or it broke before the answer was whole
        CallTimeoutError                 no answer within the deadline
        NotAnsweredError                 its batch ended before it was executed
        ReplyError                       answered, but no label can be read from the answer
          RefusalError                   the model declined to answer
          TruncatedReplyError            the answer was cut off by the output limit
          EmptyReplyError                no choice, or an empty one
          UnreadableReplyError           not the JSON that was asked for
          MismatchedReplyError           a packed answer lacks, doubles or invents an id
      BudgetExceededError                the next call could exceed the budget; it was not sent
      EmbeddingError                     the embedder failed or returned unusable vectors
      StoreError                         the store cannot be read or written

Errors carry facts, not prose to parse: see the attributes of `ProviderError`. The only warning is
`SmallPoolWarning`.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AuthenticationError",
    "BadRequestError",
    "BudgetExceededError",
    "CallTimeoutError",
    "ConfigurationError",
    "ConnectionFailedError",
    "ContentRefusedError",
    "EmbeddingError",
    "EmptyReplyError",
    "InvalidInputError",
    "MismatchedReplyError",
    "MissingDependencyError",
    "NotAnsweredError",
    "ProviderError",
    "QuotaExceededError",
    "RateLimitedError",
    "RefusalError",
    "ReplyError",
    "ServerError",
    "SmallPoolWarning",
    "StoreError",
    "TestNUCError",
    "TruncatedReplyError",
    "UnknownModelError",
    "UnreadableReplyError",
]


class TestNUCError(Exception):
    """Base of all errors of testnuc."""

    __test__ = False


class InvalidInputError(TestNUCError, ValueError):
    """An argument or a text is wrong. Nothing was sent or changed."""


class ConfigurationError(TestNUCError):
    """A key, a file or a setting is missing or wrong."""


class MissingDependencyError(ConfigurationError, ImportError):
    """An optional package is not installed; the message says how to install it."""


class ProviderError(TestNUCError):
    """The LLM provider did not give a usable answer.

    Parameters
    ----------
    message : str
        What happened and what to do. Never holds a secret.
    status_code : int, optional
        HTTP status, where there was one.
    request_id : str, optional
        The provider's id of the request, for its support.
    retry_after : float, optional
        Seconds the provider asked to wait.
    attempts : int
        How many times the call was sent before this error was final.
    """

    #: Whether sending the same call again can help.
    retryable: bool = False
    #: Whether every other call of the run would fail the same way.
    fatal: bool = False

    def __init__(
        self,
        message: str,
        *,
        status_code: int | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        attempts: int = 1,
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.request_id = request_id
        self.retry_after = retry_after
        self.attempts = attempts


class AuthenticationError(ProviderError):
    """The key is missing, wrong, or not allowed to use the model (401, 403)."""

    fatal = True


class UnknownModelError(ProviderError):
    """The provider knows no such model or endpoint (404)."""

    fatal = True


class BadRequestError(ProviderError):
    """The provider refuses the request itself (400, 413, 422 and other 4xx)."""

    fatal = True


class ContentRefusedError(BadRequestError):
    """The provider's content filter refused this one text; other texts are unaffected."""

    fatal = False


class RateLimitedError(ProviderError):
    """Too many requests or tokens (429)."""

    retryable = True


class QuotaExceededError(RateLimitedError):
    """The account's quota is used up (429 that waiting does not cure)."""

    retryable = False
    fatal = True


class ServerError(ProviderError):
    """The provider failed or is overloaded (408, 409, 5xx)."""

    retryable = True


class ConnectionFailedError(ProviderError):
    """No connection to the provider, or it broke before the answer was whole."""

    retryable = True


class CallTimeoutError(ProviderError):
    """No whole answer within the deadline of the call."""

    retryable = True


class NotAnsweredError(ProviderError):
    """The batch ended (expired, cancelled) before this request was executed; nothing was billed."""

    retryable = True


class ReplyError(ProviderError):
    """The provider answered, but no label can be read from the answer.

    Parameters
    ----------
    content : str, optional
        What the model said, cut to a readable length.
    usage : TokenUsage, optional
        The tokens of the call, where the provider counted them: an answer that cannot be used has
        been paid for all the same.
    """

    retryable = True

    def __init__(
        self,
        message: str,
        *,
        content: str | None = None,
        usage: Any = None,
        status_code: int | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        attempts: int = 1,
    ) -> None:
        super().__init__(
            message,
            status_code=status_code,
            request_id=request_id,
            retry_after=retry_after,
            attempts=attempts,
        )
        self.content = content
        self.usage = usage


class RefusalError(ReplyError):
    """The model declined to answer."""

    retryable = False


class TruncatedReplyError(ReplyError):
    """The answer was cut off by the output limit; raise ``max_tokens``."""

    retryable = False


class EmptyReplyError(ReplyError):
    """The answer has no choice, or an empty one."""


class UnreadableReplyError(ReplyError):
    """The answer is not the JSON that was asked for."""


class MismatchedReplyError(ReplyError):
    """A packed answer lacks, doubles or invents an id."""


class BudgetExceededError(TestNUCError):
    """The worst case of the next call exceeds what is left of the budget; it was not sent."""


class EmbeddingError(TestNUCError):
    """The embedder failed, or returned vectors of a wrong shape or with NaN."""


class StoreError(TestNUCError):
    """The store cannot be opened, read or written; the message says why."""


class SmallPoolWarning(UserWarning):
    """There are too few neighbors, or too few predictions, for the vote that was asked for.

    Parameters
    ----------
    problem : str
        What there is too little of, and the consequence.
    remedy : str
        What to do, in Python.
    options : str
        What to do, in options of the command line.
    """

    def __init__(self, problem: str, remedy: str = "", options: str = "") -> None:
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        #: The message without the remedy.
        self.problem = problem
        #: The remedy in options of the command line.
        self.options = options
