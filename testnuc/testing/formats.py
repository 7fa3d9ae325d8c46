"""Server side of the OpenAI and Anthropic wire formats: parse requests, render responses."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import orjson

if TYPE_CHECKING:
    from testnuc.testing.content import Content

__all__ = ["ANTHROPIC", "OPENAI", "Prompt", "ReportedLimit", "Tokens", "WireFormat", "count_tokens"]

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
    #: Number of characters in all messages.
    chars: int
    #: The parameter that requests structured output, or None.
    structured: str | None = None
    #: Whether answers have the field ``confidence``.
    confidence: bool = True
    #: Name of the tool that receives the answer, if any.
    tool: str | None = None
    logprobs: bool = False
    #: Number of alternatives of each token to report.
    top: int = 0
    #: The labels in the JSON schema of the answer.
    labels: tuple[str, ...] = ()
    #: Whether the prompt cache is enabled; Anthropic requires an explicit marker.
    cached: bool = True

    @property
    def tokens(self) -> int:
        """Estimated input tokens."""
        return count_tokens(self.chars)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of a call, as reported."""

    #: All input tokens, including cached ones.
    input: int
    output: int
    #: Input tokens read from the prompt cache, and written to it.
    cached: int = 0
    written: int = 0


@dataclass(frozen=True, slots=True)
class ReportedLimit:
    """One rate limit, as reported in headers."""

    what: str
    limit: int
    remaining: int
    #: Seconds until the full limit is available again.
    reset: float


def count_tokens(chars: int) -> int:
    """Estimate the tokens of a text: one per four characters."""
    return -(-chars // _CHARS_PER_TOKEN)


class _OpenAI:
    """``POST /v1/chat/completions``."""

    #: Name of the header with the request id.
    request_id = "x-request-id"

    def invalid(self, body: dict[str, Any], version: object) -> str | None:  # noqa: ARG002
        """Return the validation error of a request, or None."""
        if not isinstance(body.get("model"), str):
            return "you must provide a model parameter"
        top = body.get("top_logprobs")
        if top is not None and (not body.get("logprobs") or not 0 <= top <= _MOST_TOP):
            return f"'top_logprobs' needs 'logprobs', and is from 0 to {_MOST_TOP}"
        return _invalid_messages(body)

    def prompt(self, body: dict[str, Any]) -> Prompt:
        system, user, chars = _messages(body["messages"])
        asked = body.get("response_format")
        schema = None
        if asked is not None:
            schema = (asked.get("json_schema") or {}).get("schema")
        return Prompt(
            model=body["model"],
            user=user,
            system=system,
            chars=chars,
            structured=None if asked is None else "response_format",
            confidence=_has_confidence(schema) if schema else not body.get("logprobs"),
            logprobs=bool(body.get("logprobs")),
            top=body.get("top_logprobs") or 0,
            labels=_labels(schema),
        )

    def success(
        self, number: int, prompt: Prompt, content: Content, tokens: Tokens | None
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
            "id": f"chatcmpl-loopback{number}",
            "object": "chat.completion",
            "created": 1_700_000_000 + number,
            "model": prompt.model,
            "choices": [] if content.finish == "empty" else [choice],
        }
        if tokens is not None:
            body["usage"] = {
                "prompt_tokens": tokens.input,
                "completion_tokens": tokens.output,
                "total_tokens": tokens.input + tokens.output,
                "prompt_tokens_details": {"cached_tokens": tokens.cached},
                "completion_tokens_details": {"reasoning_tokens": 0},
            }
        return orjson.dumps(body)

    _TYPES: ClassVar = {
        401: "invalid_request_error",
        403: "request_forbidden",
        429: "requests",
    }
    _CODES: ClassVar = {
        401: "invalid_api_key",
        403: "unsupported_country_region_territory",
        404: "model_not_found",
        429: "rate_limit_exceeded",
    }

    def error(self, status: int, message: str, code: str | None, param: str | None) -> bytes:
        kind = "server_error" if status >= 500 else "invalid_request_error"
        kind = (
            "insufficient_quota" if code == "insufficient_quota" else self._TYPES.get(status, kind)
        )
        error = {
            "message": message,
            "type": kind,
            "param": param,
            "code": code or self._CODES.get(status),
        }
        return orjson.dumps({"error": error})

    def quota_headers(self, quotas: list[ReportedLimit]) -> bytes:
        return "".join(
            f"x-ratelimit-limit-{quota.what}: {quota.limit}\r\n"
            f"x-ratelimit-remaining-{quota.what}: {quota.remaining}\r\n"
            f"x-ratelimit-reset-{quota.what}: {_duration(quota.reset)}\r\n"
            for quota in quotas
        ).encode()

    def retry_headers(self, seconds: float) -> bytes:
        milliseconds = math.ceil(seconds * 1000)
        return b"retry-after: %d\r\nretry-after-ms: %d\r\n" % (math.ceil(seconds), milliseconds)


class _Anthropic:
    """``POST /v1/messages``."""

    request_id = "request-id"

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
        structured = schema = tool = None
        for name, asked in (
            ("output_config", (body.get("output_config") or {}).get("format")),
            ("output_format", body.get("output_format")),
        ):
            if asked:
                structured, schema = name, asked.get("schema")
        choice = body.get("tool_choice") or {}
        if choice.get("type") == "tool":
            structured, tool = "tools", choice["name"]
            schema = next(t.get("input_schema") for t in body["tools"] if t["name"] == tool)
        return Prompt(
            model=body["model"],
            user=user,
            system=system,
            chars=chars + len(system),
            structured=structured,
            confidence=not schema or _has_confidence(schema),
            tool=tool,
            cached=isinstance(body.get("system"), list)
            and any("cache_control" in block for block in body["system"]),
        )

    _STOPS: ClassVar = {"length": "max_tokens", "refusal": "refusal"}

    def success(
        self, number: int, prompt: Prompt, content: Content, tokens: Tokens | None
    ) -> bytes:
        block: dict[str, Any] = {"type": "text", "text": content.text}
        stop = self._STOPS.get(content.finish, "end_turn")
        if prompt.tool and content.text.startswith("{") and stop == "end_turn":
            given = orjson.loads(content.text)
            name = prompt.tool
            block = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": given}
            stop = "tool_use"
        body: dict[str, Any] = {
            "id": f"msg_loopback{number}",
            "type": "message",
            "role": "assistant",
            "model": prompt.model,
            "content": [] if content.finish in {"empty", "refusal"} else [block],
            "stop_reason": stop,
            "stop_sequence": None,
        }
        if tokens is not None:
            body["usage"] = {
                "input_tokens": tokens.input - tokens.cached - tokens.written,
                "cache_creation_input_tokens": tokens.written,
                "cache_read_input_tokens": tokens.cached,
                "output_tokens": tokens.output,
            }
        return orjson.dumps(body)

    _TYPES: ClassVar = {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        529: "overloaded_error",
    }

    def error(self, status: int, message: str, code: str | None, param: str | None) -> bytes:  # noqa: ARG002
        kind = self._TYPES.get(status, "api_error")
        return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})

    def quota_headers(self, quotas: list[ReportedLimit]) -> bytes:
        now = datetime.now(UTC)
        lines = []
        for quota in quotas:
            reset = (now + timedelta(seconds=math.ceil(quota.reset))).strftime("%Y-%m-%dT%H:%M:%SZ")
            lines.append(
                f"anthropic-ratelimit-{quota.what}-limit: {quota.limit}\r\n"
                f"anthropic-ratelimit-{quota.what}-remaining: {quota.remaining}\r\n"
                f"anthropic-ratelimit-{quota.what}-reset: {reset}\r\n"
            )
        return "".join(lines).encode()

    def retry_headers(self, seconds: float) -> bytes:
        return b"retry-after: %d\r\n" % math.ceil(seconds)


OPENAI = _OpenAI()
ANTHROPIC = _Anthropic()
WireFormat: TypeAlias = _OpenAI | _Anthropic


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


def _has_confidence(schema: dict[str, Any]) -> bool:
    """Return whether a JSON schema of answers has the field; True for an unknown schema."""
    fields = _fields(schema)
    return fields is None or "confidence" in fields


def _labels(schema: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the labels that a JSON schema of answers allows; none if it allows any."""
    fields = _fields(schema) if schema else None
    try:
        return tuple((fields or {})["label"]["enum"])
    except (KeyError, TypeError):
        return ()


def _fields(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fields of an answer in a JSON schema; None for an unknown schema."""
    try:
        fields: dict[str, Any] = schema["properties"]
        if "answers" in fields:
            fields = fields["answers"]["items"]["properties"]
        if "labels" in fields:
            fields = fields["labels"]["items"]["properties"]
    except (KeyError, TypeError):
        return None
    return fields


def _text(content: Any) -> str:
    """Return the text of a message, which can consist of parts."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content if isinstance(content, str) else ""


def _duration(seconds: float) -> str:
    """Format a duration as OpenAI does: ``6m0s``, ``1.5s``, ``20ms``."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds * 1000) / 1000, 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"


def _logprobs(content: Content, prompt: Prompt) -> list[dict[str, Any]]:
    """Split the answer into tokens; the product over a label's tokens is its probability.

    The other labels share the rest: their first tokens are alternatives of the label's first token.
    """
    tokens: list[tuple[str, float, list[tuple[str, float]]]] = []
    at = 0
    for label, probability in content.labels:
        start = content.text.find(label, at)
        if start < 0:
            continue
        tokens += [(piece, 0.0, []) for piece in _PIECE.findall(content.text[at:start])]
        pieces = _PIECE.findall(label)
        if prompt.top:
            rest = [orjson.dumps(other).decode()[1:-1] for other in prompt.labels]
            rest = [_PIECE.findall(other)[0] for other in rest if other != label]
            part = _log((1 - probability) / max(1, len(rest)))
            first, *pieces = pieces
            tokens.append((first, _log(probability), [(other, part) for other in rest]))
            tokens += [(piece, 0.0, []) for piece in pieces]
        else:
            share = _log(probability) / len(pieces)
            tokens += [(piece, share, []) for piece in pieces]
        at = start + len(label)
    tokens += [(piece, 0.0, []) for piece in _PIECE.findall(content.text[at:])]
    found = []
    for token, logprob, others in tokens:
        ranked = sorted([(token, logprob), *others], key=lambda one: -one[1])
        top = [_token(*one) for one in ranked[: prompt.top]]
        found.append({**_token(token, logprob), "top_logprobs": top})
    return found


def _token(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}


def _log(probability: float) -> float:
    return math.log(max(probability, 1e-30))
