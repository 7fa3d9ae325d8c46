"""Validation of requests, and the provider's error responses."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import orjson

from testnuc.testing.faults import status_of
from testnuc.testing.formats import ANTHROPIC, ReportedLimit
from testnuc.testing.http_connection import header

if TYPE_CHECKING:
    from collections.abc import Collection

    from testnuc.testing.formats import Prompt, WireFormat
    from testnuc.testing.http_connection import HTTPRequest
    from testnuc.testing.rate_limit import RateLimitWindow, Violation

__all__ = [
    "ErrorResponse",
    "RequestChecks",
    "error_of_fault",
    "model_in",
    "quota_headers",
    "rate_limit_error",
]

#: The path of a call of Claude on Amazon Bedrock and on Vertex AI.
_CLOUD = re.compile(r"/model/([^/]+)/invoke$|/publishers/anthropic/models/([^/]+):rawPredict$")

_MESSAGES = {
    429: "Rate limit reached for requests. Please try again later.",
    503: "The server is currently unavailable.",
    529: "Overloaded",
}


def model_in(path: str) -> str | None:
    """Return the model in the path of a cloud; None for other paths."""
    found = _CLOUD.search(path)
    return unquote(found[1] or found[2]) if found else None


@dataclass(eq=False)
class ErrorResponse(Exception):  # noqa: N818 - a response, not an error of this program
    """An error response to a request, in OpenAI's terms; header lines end with CRLF."""

    status: int
    message: str
    code: str | None = field(default=None, kw_only=True)
    param: str | None = field(default=None, kw_only=True)
    headers: bytes = field(default=b"", kw_only=True)

    def body(self, wire: WireFormat) -> bytes:
        """Return the body in the format of a provider."""
        return wire.error(self.status, self.message, self.code, self.param)


_NO_SYSTEM = "Unsupported value: 'messages[0].role' does not support 'system' with this model."

# OpenAI, then Anthropic, which returns 400 for an exhausted balance
_QUOTA = (
    partial(ErrorResponse, 429, "You exceeded your current quota.", code="insufficient_quota"),
    partial(ErrorResponse, 400, "Your credit balance is too low to access the Anthropic API."),
)
_FILTERED = (
    partial(ErrorResponse, 400, "The prompt triggered the content filter.", code="content_filter"),
    partial(ErrorResponse, 400, "Output blocked by content filtering policy"),
)


class RequestChecks:
    """Parses requests and rejects invalid ones, as a provider does; see `LoopbackLLM`."""

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

    def admit(self, call: HTTPRequest) -> None:
        """Raise a 401 `ErrorResponse` if the API key is wrong."""
        if self._api_key is not None:
            bearer = header(call.head, b"authorization")
            keys = (header(call.head, b"x-api-key"), header(call.head, b"api-key"))
            if bearer != b"Bearer " + self._api_key and self._api_key not in keys:
                raise ErrorResponse(401, "Incorrect API key provided.")

    def body(self, call: HTTPRequest) -> dict[str, Any]:
        """Return the parsed body; raises a 400 `ErrorResponse`."""
        try:
            body = orjson.loads(call.body)
        except orjson.JSONDecodeError as exc:
            raise ErrorResponse(400, f"the body is not JSON: {exc}") from exc
        if not isinstance(body, dict):
            raise ErrorResponse(400, "the body is not a JSON object")
        model = model_in(call.path)
        if model is not None:
            if "model" in body:
                raise ErrorResponse(400, "model: Extra inputs are not permitted")
            body["model"] = model
        return body

    def prompt(self, wire: WireFormat, call: HTTPRequest, body: dict[str, Any]) -> Prompt:
        """Return the prompt of a valid request; raises `ErrorResponse`."""
        version: object = None
        if wire is ANTHROPIC and model_in(call.path) is None:
            version = header(call.head, b"anthropic-version")
        elif wire is ANTHROPIC:
            version = body.get("anthropic_version")
        try:
            invalid = wire.invalid(body, version)
            prompt = None if invalid else wire.prompt(body)
        except (AttributeError, KeyError, StopIteration, TypeError) as exc:
            raise ErrorResponse(400, f"the request is malformed: {exc!r}") from exc
        if prompt is None:
            raise ErrorResponse(400, str(invalid))
        if self._model is not None and prompt.model != self._model:
            raise ErrorResponse(404, f"The model `{prompt.model}` does not exist.", param="model")
        if prompt.structured and self._structured is False:
            name = prompt.structured
            message = f"Invalid parameter: '{name}' is not supported with this model."
            raise ErrorResponse(400, message, param=name)
        for name in self._rejects:
            if name == "system" and prompt.system:
                raise ErrorResponse(
                    400, _NO_SYSTEM, code="unsupported_value", param="messages[0].role"
                )
            if name in body:
                message = f"Unsupported parameter: '{name}' is not supported with this model."
                raise ErrorResponse(400, message, code="unsupported_parameter", param=name)
        return prompt


def error_of_fault(kind: str, wire: WireFormat, retry_after: float) -> ErrorResponse | None:
    """Return the error response for a fault, or None if the fault is not an error response."""
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
        return ErrorResponse(429, _MESSAGES[429], headers=f"{line}\r\n".encode())
    status = status_of(kind)
    if status is None:
        return None
    return ErrorResponse(
        status, _MESSAGES.get(status, "The server had an error. Sorry about that!")
    )


def quota_headers(wire: WireFormat, window: RateLimitWindow) -> bytes:
    """Return the rate-limit headers."""
    reset = window.reset()
    limits = (
        ("requests", window.requests_limit, window.requests),
        ("tokens", window.tokens_limit, window.tokens),
    )
    return wire.quota_headers(
        [
            ReportedLimit(what, int(limit), max(0, int(limit - used)), reset)
            for what, limit, used in limits
            if limit is not None
        ]
    )


def rate_limit_error(
    wire: WireFormat, window: RateLimitWindow, violation: Violation, tokens: int
) -> ErrorResponse:
    """Return the 429 for a request that exceeds the rate limit."""
    return ErrorResponse(
        429,
        f"Rate limit reached for {violation.what}: limit {violation.limit} per minute.",
        headers=quota_headers(wire, window) + wire.retry_headers(window.wait(tokens)),
    )
