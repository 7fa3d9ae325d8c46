"""Wire formats of OpenAI and Anthropic: parse and check requests, render responses and errors."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from time import time
from typing import Any, ClassVar, TypeAlias

import orjson

from testnuc.protocols import TokenUsage
from testnuc.testing.answers import Content
from testnuc.testing.faults import RateLimitWindow, status_of
from testnuc.testing.server import Response

_PIECE = re.compile(r"\s+|\w+|[^\w\s]")
_CHARS_PER_TOKEN = 4
#: Alternatives of a token that OpenAI reports at most.
_MOST_TOP = 20


@dataclass(frozen=True, slots=True)
class Prompt:
    """A parsed request, independent of its wire format."""

    model: str
    #: The last user message.
    user: str
    #: The system message, which the prompt cache applies to.
    system: str
    #: Estimated input tokens.
    tokens: int
    #: The parameter that requests structured output, or None.
    structured: str | None = None
    #: Whether answers have the field ``confidence``.
    confidence: bool = True
    logprobs: bool = False
    #: Number of alternatives of each token to report.
    top: int = 0
    #: The labels in the JSON schema of the answer.
    labels: tuple[str, ...] = ()
    #: Whether the prompt cache is enabled; Anthropic requires an explicit marker.
    cached: bool = True


@dataclass(eq=False)
class ErrorResponse(Exception):  # noqa: N818 - a response, not an error of this program
    """An error response to a request, in OpenAI's terms."""

    status: int
    message: str
    code: str | None = field(default=None, kw_only=True)
    param: str | None = field(default=None, kw_only=True)
    headers: dict[str, str] = field(default_factory=dict, kw_only=True)

    def response(self, wire: "WireFormat") -> Response:
        """Return the response in the format of a provider."""
        body = wire.error(self.status, self.message, self.code, self.param)
        return Response(self.status, body, self.headers)


def count_tokens(chars: int) -> int:
    """Estimate the tokens of a text: one per four characters."""
    return -(-chars // _CHARS_PER_TOKEN)


class _OpenAI:
    """``POST /v1/chat/completions``."""

    #: Name of the header with the request id, and of those with rate limits.
    request_id = "x-request-id"
    limit_header = "x-ratelimit-{name}-{what}"

    def invalid(self, body: dict[str, Any], version: object) -> str | None:  # noqa: ARG002
        if not isinstance(body.get("model"), str):
            return "you must provide a model parameter"
        top = body.get("top_logprobs")
        if top is not None and (not body.get("logprobs") or not 0 <= top <= _MOST_TOP):
            return f"'top_logprobs' needs 'logprobs', and is from 0 to {_MOST_TOP}"
        return _invalid_messages(body)

    def prompt(self, body: dict[str, Any]) -> Prompt:
        system, user, chars = _messages(body["messages"])
        asked = body.get("response_format")
        schema = ((asked or {}).get("json_schema") or {}).get("schema")
        fields, scored = _fields(schema), bool(body.get("logprobs"))
        return Prompt(
            model=body["model"],
            user=user,
            system=system,
            tokens=count_tokens(chars),
            structured=None if asked is None else "response_format",
            confidence="confidence" in fields if fields else bool(schema) or not scored,
            logprobs=scored,
            top=body.get("top_logprobs") or 0,
            labels=tuple(fields.get("label", {}).get("enum", ())),
        )

    def success(
        self, number: int, prompt: Prompt, content: Content, tokens: TokenUsage | None
    ) -> bytes:
        refused = content.finish == "refusal"
        choice = {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": None if refused else content.text,
                "refusal": content.text if refused else None,
            },
            "logprobs": {"content": _logprobs(content, prompt), "refusal": None}
            if prompt.logprobs
            else None,
            "finish_reason": "length" if content.finish == "length" else "stop",
        }
        body: dict[str, Any] = {
            "id": f"chatcmpl-loopback{number}-{time():f}",  # unlike that of a server before
            "object": "chat.completion",
            "created": 1_700_000_000 + number,
            "model": prompt.model,
            "choices": [] if content.finish == "empty" else [choice],
        }
        if tokens is not None:
            body["usage"] = {
                "prompt_tokens": tokens.input_tokens,
                "completion_tokens": tokens.output_tokens,
                "total_tokens": tokens.input_tokens + tokens.output_tokens,
                "prompt_tokens_details": {"cached_tokens": tokens.cached_tokens},
                "completion_tokens_details": {"reasoning_tokens": 0},
            }
        return orjson.dumps(body)

    #: Type and code of an error, by its status.
    _ERRORS: ClassVar = {
        401: ("invalid_request_error", "invalid_api_key"),
        403: ("request_forbidden", "unsupported_country_region_territory"),
        404: ("invalid_request_error", "model_not_found"),
        429: ("requests", "rate_limit_exceeded"),
    }

    def error(self, status: int, message: str, code: str | None, param: str | None) -> bytes:
        other = "server_error" if status >= 500 else "invalid_request_error"
        kind, usual = self._ERRORS.get(status, (other, None))
        if code == "insufficient_quota":
            kind = code
        error = {"message": message, "type": kind, "param": param, "code": code or usual}
        return orjson.dumps({"error": error})

    def reset(self, seconds: float) -> str:
        """Format the seconds until a limit is available again: ``6m0s``, ``1.5s``, ``20ms``."""
        if seconds < 1:
            return f"{math.ceil(seconds * 1000)}ms"
        minutes, rest = divmod(math.ceil(seconds * 1000) / 1000, 60)
        return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"

    def retry_headers(self, seconds: float) -> dict[str, str]:
        milliseconds = f"{math.ceil(seconds * 1000)}"
        return {"retry-after": f"{math.ceil(seconds)}", "retry-after-ms": milliseconds}


class _Anthropic:
    """``POST /v1/messages``."""

    request_id = "request-id"
    limit_header = "anthropic-ratelimit-{what}-{name}"

    def invalid(self, body: dict[str, Any], version: object) -> str | None:
        if version is None:
            return "anthropic-version: header is required"
        for name in ("model", "max_tokens"):
            if name not in body:
                return f"{name}: Field required"
        return _invalid_messages(body)

    def prompt(self, body: dict[str, Any]) -> Prompt:
        _, user, chars = _messages(body["messages"])
        system = _text(body.get("system"))
        structured = schema = None
        for name, asked in (
            ("output_config", (body.get("output_config") or {}).get("format")),
            ("output_format", body.get("output_format")),
        ):
            if asked:
                structured, schema = name, asked.get("schema")
        fields = _fields(schema)
        return Prompt(
            model=body["model"],
            user=user,
            system=system,
            tokens=count_tokens(chars + len(system)),
            structured=structured,
            confidence=not fields or "confidence" in fields,
            cached=isinstance(body.get("system"), list)
            and any("cache_control" in block for block in body["system"]),
        )

    _STOPS: ClassVar = {"length": "max_tokens", "refusal": "refusal"}

    def success(
        self, number: int, prompt: Prompt, content: Content, tokens: TokenUsage | None
    ) -> bytes:
        block: dict[str, Any] = {"type": "text", "text": content.text}
        stop = self._STOPS.get(content.finish, "end_turn")
        body: dict[str, Any] = {
            "id": f"msg_loopback{number}-{time():f}",
            "type": "message",
            "role": "assistant",
            "model": prompt.model,
            "content": [] if content.finish in {"empty", "refusal"} else [block],
            "stop_reason": stop,
            "stop_sequence": None,
        }
        if tokens is not None:
            cached, written = tokens.cached_tokens, tokens.cache_write_tokens
            body["usage"] = {
                "input_tokens": tokens.input_tokens - cached - written,
                "cache_creation_input_tokens": written,
                "cache_read_input_tokens": cached,
                "output_tokens": tokens.output_tokens,
            }
        return orjson.dumps(body)

    _ERRORS: ClassVar = {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        529: "overloaded_error",
    }

    def error(self, status: int, message: str, code: str | None, param: str | None) -> bytes:  # noqa: ARG002
        kind = self._ERRORS.get(status, "api_error")
        return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})

    def reset(self, seconds: float) -> str:
        then = datetime.now(UTC) + timedelta(seconds=math.ceil(seconds))
        return then.strftime("%Y-%m-%dT%H:%M:%SZ")

    def retry_headers(self, seconds: float) -> dict[str, str]:
        return {"retry-after": f"{math.ceil(seconds)}"}


OPENAI = _OpenAI()
ANTHROPIC = _Anthropic()
WireFormat: TypeAlias = _OpenAI | _Anthropic


def error_of_fault(kind: str, wire: WireFormat, retry_after: float) -> ErrorResponse | None:
    """Return the error response for a fault, or None if the fault is not an error response."""
    match kind:
        case "quota" if wire is OPENAI:
            return ErrorResponse(429, "You exceeded your current quota.", code="insufficient_quota")
        case "quota":  # Anthropic returns 400 for an exhausted balance
            message = "Your credit balance is too low to access the Anthropic API."
            return ErrorResponse(400, message)
        case "content-filter" if wire is OPENAI:
            message = "The prompt triggered the content filter."
            return ErrorResponse(400, message, code="content_filter")
        case "content-filter":
            return ErrorResponse(400, "Output blocked by content filtering policy")
    headers = {
        "429-retry-after": {"retry-after": f"{retry_after:g}"},
        "429-retry-after-date": {"retry-after": formatdate(time() + retry_after, usegmt=True)},
        "429-retry-after-ms": {"retry-after-ms": f"{retry_after * 1000:g}"},
    }.get(kind, {})
    status = 429 if headers else status_of(kind)
    if status is None:
        return None
    message = _MESSAGES.get(status, "The server had an error. Sorry about that!")
    return ErrorResponse(status, message, headers=headers)


_MESSAGES = {
    429: "Rate limit reached for requests. Please try again later.",
    503: "The server is currently unavailable.",
    529: "Overloaded",
}


def quota_headers(wire: WireFormat, window: RateLimitWindow) -> dict[str, str]:
    """Return the rate-limit headers."""
    reset = wire.reset(window.reset())
    return {
        wire.limit_header.format(name=name, what=what): str(value)
        for what, limit, used in (
            ("requests", window.requests_limit, window.requests),
            ("tokens", window.tokens_limit, window.tokens),
        )
        if limit is not None
        for name, value in (
            ("limit", int(limit)),
            ("remaining", max(0, int(limit - used))),
            ("reset", reset),
        )
    }


def _invalid_messages(body: dict[str, Any]) -> str | None:
    messages = body.get("messages")
    if not isinstance(messages, list) or not any(m.get("role") == "user" for m in messages):
        return "messages: at least one message of the user is required"
    return None


def _messages(messages: list[dict[str, Any]]) -> tuple[str, str, int]:
    """Return the first system message, the last user message, and the characters of all."""
    system = user = ""
    chars = 0
    for message in messages:
        text = _text(message.get("content"))
        chars += len(text)
        if message["role"] == "user":
            user = text
        elif message["role"] in {"system", "developer"} and not system:
            system = text
    return system, user, chars


def _fields(schema: dict[str, Any] | None) -> dict[str, Any]:
    """Return the fields of an answer in a JSON schema; none of an unknown schema."""
    try:
        fields: dict[str, Any] = (schema or {})["properties"]
        for name in ("answers", "labels"):
            if name in fields:
                fields = fields[name]["items"]["properties"]
    except (KeyError, TypeError):
        return {}
    return fields


def _text(content: Any) -> str:
    """Return the text of a message, which can consist of parts."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content if isinstance(content, str) else ""


def _logprobs(content: Content, prompt: Prompt) -> list[dict[str, Any]]:
    """Split the answer into tokens; the product over a label's tokens is its probability.

    The other labels share the rest: their first tokens are alternatives of the label's first token.
    """

    def rendered(token: str, logprob: float, others: Sequence[str] = ()) -> dict[str, Any]:
        part = _log((1 - math.exp(logprob)) / max(1, len(others)))
        ranked = sorted([(token, logprob), *((o, part) for o in others)], key=lambda one: -one[1])
        top = [_token(*one) for one in ranked[: prompt.top]]
        return {**_token(token, logprob), "top_logprobs": top}

    found, text = [], content.text
    for label, probability in content.labels:
        before, at, after = text.partition(label)
        if not at:
            continue
        first, *pieces = _PIECE.findall(label)
        others = [orjson.dumps(other).decode()[1:-1] for other in prompt.labels]
        others = [_PIECE.findall(other)[0] for other in others if other != label]
        found += [rendered(piece, 0.0) for piece in _PIECE.findall(before)]
        found.append(rendered(first, _log(probability), others))
        found += [rendered(piece, 0.0) for piece in pieces]
        text = after
    return found + [rendered(piece, 0.0) for piece in _PIECE.findall(text)]


def _token(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}


def _log(probability: float) -> float:
    return math.log(max(probability, 1e-30))
