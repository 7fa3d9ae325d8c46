"""What a recorded response says, read plainly and without the package, to compare with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench._replay import Exchange

__all__ = ["Facts", "facts"]

_BY_STATUS = {
    401: "AuthenticationError, stops",
    402: "QuotaExceededError, stops",
    403: "AuthenticationError, stops",
    404: "UnknownModelError, stops",
    429: "RateLimitedError, again",
}
#: Words of an error about one long text; the run goes on with the others.
_LONG = re.compile(
    r"too[_ ]long|too[_ ]many[_ ](prompt|input)?[_ ]?tokens|context[_ ](length|window|size)"
    r"|maximum context"
)
_FILTER = re.compile(r"content[_ ](filter|management)|responsibleai|content policy")
#: Parameters of ours that a model can refuse; without them, the same call works.
_OURS = re.compile(
    r"temperature|top_p|response_format|json_schema|structured output|output_config|output format"
    r"|max_tokens|max_completion_tokens|'system'|system (role|message|prompt)|logprobs"
    r"|reasoning_effort|enable_thinking|must set stream|streaming"
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the response holds."""

    #: ``reply``, ``error``, ``tools`` (no text), ``empty`` (neither) or ``unknown`` (no answer).
    kind: str
    text: str = ""
    finish: str = ""
    #: Input, cached and output tokens; None if not reported.
    usage: tuple[int, int, int] | None = None
    request_id: str = ""
    #: Reasoning tokens; None if not reported.
    reasoning: int | None = None
    #: Whether the model or a filter refused.
    refused: bool = False
    #: Texts of an error, which a user must see.
    words: tuple[str, ...] = ()
    #: Class of the error.
    error: str = ""
    #: Whether a parameter of ours was refused.
    ours: bool = False


def facts(exchange: Exchange) -> Facts:
    """Read a recorded response."""
    if not exchange.protocol:
        return Facts("unknown")
    try:
        value = orjson.loads(exchange.body)
    except ValueError:
        events = list(_events(exchange.body))
        value = _folded(events) if events else None
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return Facts("unknown" if exchange.status == 200 else "error", words=(exchange.body[:60],))
    if exchange.status != 200 or (value.get("error") and not value.get("choices")):
        return _error(exchange, value)
    if isinstance(value.get("choices"), list) and value["choices"]:
        return _chat(value)
    if isinstance(value.get("content"), list):
        return _message(value)
    return Facts("unknown")


def _error(exchange: Exchange, value: dict[str, Any]) -> Facts:
    leaves = list(_leaves(value))
    everything = " ".join(text for _, text in leaves).lower()
    words = tuple(
        text
        for name, text in leaves
        if name in {"message", "detail", "raw", "msg", "error"} and len(text) > 3
    )
    status = exchange.status
    if status == 200:  # a gateway's
        inner = value["error"] if isinstance(value.get("error"), dict) else {}
        status = next((inner[n] for n in ("status", "code") if isinstance(inner.get(n), int)), 500)
    lowered = {name.lower(): text for name, text in exchange.headers.items()}
    if "tool" in everything[:200]:
        return Facts("tools")
    request_id = lowered.get("x-request-id") or lowered.get("request-id") or ""
    return Facts(
        "error",
        words=words,
        request_id=request_id or str(value.get("request_id") or ""),
        error=_class(status, everything),
        ours=status in {400, 422, 500} and _OURS.search(everything) is not None,
    )


def _class(status: int, words: str) -> str:
    """Return the name of the exception, and whether it ends the run."""
    if _FILTER.search(words):
        return "ContentRefusedError"
    if "insufficient_quota" in words:
        return _BY_STATUS[402]
    if status >= 500:
        return "ServerError, again"
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return "BadRequestError" if _LONG.search(words) else "BadRequestError, stops"


def _chat(value: dict[str, Any]) -> Facts:
    choice = value["choices"][0]
    message = choice.get("message") or {}
    text = _text(message.get("content"))
    finish = choice.get("finish_reason") or (choice.get("finish_details") or {}).get("type") or ""
    refused = bool(message.get("refusal")) or finish == "content_filter"
    tools = message.get("tool_calls") or message.get("function_call")
    kind = "reply" if text.strip() or refused else "tools" if tools else "empty"
    return Facts(
        kind,
        message["refusal"] if message.get("refusal") else text,
        finish,
        _chat_usage(value.get("usage")),
        str(value.get("id") or ""),
        _reasoning(value.get("usage")),
        refused,
    )


def _reasoning(usage: Any) -> int | None:
    details = usage.get("completion_tokens_details") if isinstance(usage, dict) else None
    return details.get("reasoning_tokens") if isinstance(details, dict) else None


def _chat_usage(usage: Any) -> tuple[int, int, int] | None:
    if not isinstance(usage, dict) or usage.get("completion_tokens") is None:
        return None
    sent, received = usage.get("prompt_tokens") or 0, usage["completion_tokens"]
    details = usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens") or usage.get("prompt_cache_hit_tokens") or 0
    cached = cached or usage.get("num_cached_tokens") or usage.get("cached_tokens") or 0
    # whatever is in the total is billed, except audio, which no text has
    total = (usage.get("total_tokens") or 0) - (details.get("audio_tokens") or 0)
    return sent, min(cached, sent), max(received, total - sent)


def _message(value: dict[str, Any]) -> Facts:
    blocks = [block for block in value["content"] if isinstance(block, dict)]
    text = "".join(b.get("text") or "" for b in blocks if b.get("type") == "text")
    usage = value.get("usage") or {}
    cached, written = (
        usage.get(f"cache_{name}_input_tokens") or 0 for name in ("read", "creation")
    )
    finish = value.get("stop_reason") or ""
    tools = any("tool" in str(b.get("type")) for b in blocks)
    kind = "reply" if text.strip() else "tools" if tools else "empty"
    return Facts(
        "reply" if finish == "refusal" else kind,
        text,
        finish,
        (usage["input_tokens"] + cached + written, cached, usage["output_tokens"])
        if usage
        else None,
        str(value.get("id") or ""),
        refused=finish == "refusal",
    )


def _events(body: str) -> Iterator[dict[str, Any]]:
    for line in body.splitlines():
        name, _, data = line.strip().partition(":")
        if name != "data" or data.strip() in {"[DONE]", ""}:
            continue
        try:
            event = orjson.loads(data)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


def _folded(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the response that a stream adds up to."""
    starts = [event["message"] for event in events if event.get("type") == "message_start"]
    return _folded_message(starts[0], events) if starts else _folded_chat(events)


def _folded_message(start: dict[str, Any], events: list[dict[str, Any]]) -> dict[str, Any]:
    types = [e["content_block"]["type"] for e in events if e.get("type") == "content_block_start"]
    deltas = [event.get("delta") or {} for event in events]
    said = "".join(d.get("text") or "" for d in deltas if d.get("type") == "text_delta")
    usage = dict(start.get("usage") or {})
    for event in events:
        if event.get("type") == "message_delta":
            usage |= {k: v for k, v in (event.get("usage") or {}).items() if v is not None}
    reasons = [d["stop_reason"] for d in deltas if d.get("stop_reason")]
    blocks = [{"type": "text", "text": said}, *({"type": t} for t in types)]
    return {"id": start["id"], "content": blocks, "usage": usage,
            "stop_reason": reasons[-1] if reasons else None}  # fmt: skip


def _folded_chat(events: list[dict[str, Any]]) -> dict[str, Any]:
    chosen = [c for e in events for c in (e.get("choices") or [])[:1] if not c.get("index")]
    errors = [event for event in events if event.get("error")]
    if errors and not any(choice.get("finish_reason") == "length" for choice in chosen):
        return errors[0]
    deltas = [choice.get("delta") or {} for choice in chosen]
    usages = [event.get("usage") or (event.get("x_groq") or {}).get("usage") for event in events]
    message = {
        "content": "".join(_text(delta.get("content")) for delta in deltas),
        "refusal": "".join(delta.get("refusal") or "" for delta in deltas),
        "tool_calls": [1 for delta in deltas if delta.get("tool_calls")],
        "function_call": any(delta.get("function_call") for delta in deltas),
    }
    finishes = [choice["finish_reason"] for choice in chosen if choice.get("finish_reason")]
    return {
        "id": next((event["id"] for event in events if event.get("id")), ""),
        "choices": [{"message": message, "finish_reason": finishes[-1] if finishes else ""}],
        "usage": ([usage for usage in usages if usage] or [None])[-1],
    }


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(
            part["text"]
            for part in content
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    return content if isinstance(content, str) else ""


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, name)
    elif isinstance(value, str):
        yield name, value
