"""Server-sent events, joined into the response that they stream.

The client does not ask for streams, except of servers that have nothing else; some gateways stream
whatever is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["joined", "text_of"]

_STARTS = (b"data:", b"event:", b"id:", b":", b"retry:")


def joined(body: bytes) -> dict[str, Any] | None:
    """Return the response of a stream, in any protocol; None if the body is not a stream.

    An event that holds an error is returned as it is.
    """
    if not body.lstrip()[:8].startswith(_STARTS):
        return None
    events = list(_events(body))
    cut = any(_finish(event) == "length" for event in events)
    for event in events:
        # OpenRouter reports an error after an answer that the output limit cut off
        if event.get("error") and not cut:
            return event
        # the Responses API sends the whole response at its end
        if isinstance(event.get("response"), dict) and event["response"].get("output"):
            return dict(event["response"])
    start = next((e["message"] for e in events if isinstance(e.get("message"), dict)), None)
    return _chat(events) if start is None else _message(start, events)


def _events(body: bytes) -> Iterator[dict[str, Any]]:
    for line in body.splitlines():
        name, _, data = line.strip().partition(b":")
        if name == b"data":
            try:
                event = orjson.loads(data)
            except ValueError:  # [DONE], or a line that was cut off
                continue
            if isinstance(event, dict):
                yield event


def _choice(event: dict[str, Any]) -> dict[str, Any]:
    """Return the first choice of an event, or an empty one."""
    choices = event.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    return choice if isinstance(choice, dict) and not choice.get("index") else {}


def _finish(event: dict[str, Any]) -> Any:
    return _choice(event).get("finish_reason")


def _chat(events: list[dict[str, Any]]) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    content: list[str] = []
    refusal: list[str] = []
    tokens: list[Any] = []
    finish = None
    for event in events:
        # Groq reports the usage in a field of its own
        own = event.get("x_groq")
        usage = event.get("usage") or (own.get("usage") if isinstance(own, dict) else None)
        answer |= {name: event[name] for name in ("id", "service_tier") if event.get(name)}
        answer |= {"usage": usage} if usage else {}
        choice = _choice(event)
        finish = _finish(event) or finish
        delta = choice.get("delta") or choice.get("message")
        if isinstance(delta, dict):
            content.append(text_of(delta.get("content")))
            refusal.append(text_of(delta.get("refusal")))
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict) and isinstance(logprobs.get("content"), list):
            tokens += logprobs["content"]
    message = {"content": "".join(content), "refusal": "".join(refusal)}
    choice = {"message": message, "finish_reason": finish, "logprobs": {"content": tokens}}
    return {**answer, "choices": [choice]} if content or finish else answer


def text_of(content: Any) -> str:
    """Return the text of a message: a string, or a list of parts."""
    if isinstance(content, list):
        return "".join(text_of(part.get("text")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _message(start: dict[str, Any], events: list[dict[str, Any]]) -> dict[str, Any]:
    usage = start.get("usage")
    usage = dict(usage) if isinstance(usage, dict) else {}
    said: list[str] = []
    reason = start.get("stop_reason")
    for event in events:
        delta = event.get("delta")
        if isinstance(delta, dict):
            said.append(text_of(delta.get("text")) if delta.get("type") == "text_delta" else "")
            reason = delta.get("stop_reason") or reason
        if event.get("type") == "message_delta" and isinstance(event.get("usage"), dict):
            usage |= {name: value for name, value in event["usage"].items() if value is not None}
    content = [{"type": "text", "text": "".join(said)}]
    return {**start, "content": content, "stop_reason": reason, "usage": usage}
