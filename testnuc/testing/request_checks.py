"""What a provider refuses, and how it says so."""

from __future__ import annotations

from email.utils import formatdate
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any, Literal

import orjson

from testnuc.testing.faults import status_of
from testnuc.testing.formats import ANTHROPIC, Quota
from testnuc.testing.http_connection import header

if TYPE_CHECKING:
    from collections.abc import Collection

    from testnuc.testing.formats import ApiFormat, Prompt
    from testnuc.testing.http_connection import ReceivedRequest
    from testnuc.testing.rate_limit import RateLimitWindow, Violation

__all__ = ["Problem", "RequestChecks", "limit_problem", "problem_of", "quota_headers"]

_MESSAGES = {
    429: "Rate limit reached for requests. Please try again later.",
    503: "The server is currently unavailable.",
    529: "Overloaded",
}


class Problem(Exception):  # noqa: N818 - a response, not an error of this program
    """A request that is answered with an error.

    Parameters
    ----------
    status : int
        HTTP status.
    message : str
        For whoever reads the response.
    code, param : str, optional
        What OpenAI calls the problem, and the parameter it blames.
    headers : bytes
        Header lines, each ended by CRLF.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = headers


_NO_SYSTEM = "Unsupported value: 'messages[0].role' does not support 'system' with this model."

# of OpenAI, then of Anthropic, where a spent balance is no 429
_QUOTA = (
    partial(Problem, 429, "You exceeded your current quota.", code="insufficient_quota"),
    partial(Problem, 400, "Your credit balance is too low to access the Anthropic API."),
)
_FILTERED = (
    partial(Problem, 400, "The prompt triggered the content filter.", code="content_filter"),
    partial(Problem, 400, "Output blocked by content filtering policy"),
)


class RequestChecks:
    """Reads requests and refuses those that a provider would.

    Parameters
    ----------
    api_key, model : str, optional
        All others are refused.
    structured : bool or "ignore"
        False: refuse requests for structured output.
    rejects : collection of str
        Parameters to refuse.
    """

    def __init__(
        self,
        api_key: str | None,
        model: str | None,
        structured: bool | Literal["ignore"],  # noqa: FBT001
        rejects: Collection[str],
    ) -> None:
        self._api_key = None if api_key is None else api_key.encode()
        self._model = model
        self._structured = structured
        self._rejects = tuple(rejects)

    def admit(self, call: ReceivedRequest) -> None:
        """Refuse a request that does not carry the right key."""
        if self._api_key is not None:
            bearer = header(call.head, b"authorization")
            keys = (header(call.head, b"x-api-key"), header(call.head, b"api-key"))
            if bearer != b"Bearer " + self._api_key and self._api_key not in keys:
                raise Problem(401, "Incorrect API key provided.")

    def body(self, call: ReceivedRequest) -> dict[str, Any]:
        """Return the body of a request."""
        try:
            body = orjson.loads(call.body)
        except orjson.JSONDecodeError as exc:
            raise Problem(400, f"the body is not JSON: {exc}") from exc
        if not isinstance(body, dict):
            raise Problem(400, "the body is not a JSON object")
        return body

    def prompt(self, wire: ApiFormat, call: ReceivedRequest, body: dict[str, Any]) -> Prompt:
        """Return what an acceptable request asks."""
        version = header(call.head, b"anthropic-version") if wire is ANTHROPIC else None
        try:
            invalid = wire.invalid(body, version)
            prompt = None if invalid else wire.prompt(body)
        except (AttributeError, KeyError, StopIteration, TypeError) as exc:
            raise Problem(400, f"the request is malformed: {exc!r}") from exc
        if prompt is None:
            raise Problem(400, str(invalid))
        if self._model is not None and prompt.model != self._model:
            raise Problem(404, f"The model `{prompt.model}` does not exist.", param="model")
        if prompt.structured and self._structured is False:
            name = prompt.structured
            message = f"Invalid parameter: '{name}' is not supported with this model."
            raise Problem(400, message, param=name)
        for name in self._rejects:
            if name == "system" and prompt.system:
                raise Problem(400, _NO_SYSTEM, code="unsupported_value", param="messages[0].role")
            if name in body:
                message = f"Unsupported parameter: '{name}' is not supported with this model."
                raise Problem(400, message, code="unsupported_parameter", param=name)
        return prompt


def problem_of(kind: str, wire: ApiFormat, retry_after: float) -> Problem | None:
    """Return the error response that a fault is, or None where it is another kind of fault.

    Parameters
    ----------
    kind : str
        See `Faults`.
    wire : ApiFormat
        The providers word some problems differently.
    retry_after : float
        Seconds the client is told to wait.
    """
    if kind == "quota":
        return _QUOTA[wire is ANTHROPIC]()
    if kind == "content-filter":
        return _FILTERED[wire is ANTHROPIC]()
    if kind.startswith("429-"):
        line = {
            "429-retry-after": f"retry-after: {retry_after:g}",
            "429-retry-after-date": f"retry-after: {formatdate(time() + retry_after, usegmt=True)}",
            "429-retry-after-ms": f"retry-after-ms: {retry_after * 1000:g}",
        }[kind]
        return Problem(429, _MESSAGES[429], headers=f"{line}\r\n".encode())
    status = status_of(kind)
    if status is None:
        return None
    return Problem(status, _MESSAGES.get(status, "The server had an error. Sorry about that!"))


def quota_headers(wire: ApiFormat, window: RateLimitWindow) -> bytes:
    """Tell the state of the rate limit, as header lines."""
    reset = window.reset()
    limits = (
        ("requests", window.requests_limit, window.requests),
        ("tokens", window.tokens_limit, window.tokens),
    )
    return wire.quota_headers(
        [
            Quota(what, int(limit), max(0, int(limit - used)), reset)
            for what, limit, used in limits
            if limit is not None
        ]
    )


def limit_problem(
    wire: ApiFormat, window: RateLimitWindow, violation: Violation, tokens: int
) -> Problem:
    """Return the response to a request that exceeds the rate limit."""
    return Problem(
        429,
        f"Rate limit reached for {violation.what}: limit {violation.limit} per minute.",
        headers=quota_headers(wire, window) + wire.retry_headers(window.wait(tokens)),
    )
