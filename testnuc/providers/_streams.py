"""Server-sent events, joined into the response that they stream.

The client does not ask for streams, except of servers that have nothing else; some gateways stream
whatever is asked for.
"""

from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import orjson

from testnuc._base.foreign import count_values, read_json

#: Types of parts in which a model drafts its answer.
_REASONING = ("reasoning", "thinking", "thought", "reasoning_text", "summary_text")
_OTHERS = (b"event:", b"id:", b":", b"retry:")
#: Most lines of a stream, its events, of which each token has one, and their values.
_MOST_LINES, _MOST_EVENTS, _MOST_VALUES = 100_000, 10_000, 100_000
_MOST_BYTES = 4 << 20
#: Bytes of events that are read leniently, each as long as `_LEAST` at least: that takes long.
_LENIENT, _LEAST = 200_000, 100
#: Bytes at the end of a stream in which its mark is looked for.
_MARK = 1_000


def joined(body: bytes) -> tuple[dict[str, Any], bool] | None:
    """Return the response of a stream, in any protocol; None if the body is no stream of an answer.

    One of an answer has fewer events than 10,000. Also whether the stream says that it has ended:
    else the response may be incomplete. An event that holds an error is returned as it is.
    """
    body = body.removeprefix(BOM_UTF8)
    if not body.lstrip()[:8].startswith((b"data:", *_OTHERS)) or not _is_short(body):
        return None
    try:
        events = list(_events(body))
    except ValueError:
        return None
    finishes = [why for event in events if (why := _choice(event).get("finish_reason"))]
    cut = "length" in finishes
    for event in events:
        # OpenRouter reports an error after an answer that the output limit cut off
        if event.get("error") and not cut:
            return event, True
        # the Responses API sends the whole response at its end
        if isinstance(event.get("response"), dict) and event["response"].get("output"):
            return dict(event["response"]), True
    start = next((e["message"] for e in events if isinstance(e.get("message"), dict)), None)
    if start is not None:
        message = _message(start, events)
        ended = any(event.get("type") == "message_stop" for event in events)
        return message, ended or _is_done(body) or bool(message["stop_reason"])
    return _chat(events, finishes), _is_done(body) or bool(finishes)


def _is_short(body: bytes) -> bool:
    lines = max(body.count(b"\n"), body.count(b"\r"))
    many = body.count(b"data:") > _MOST_EVENTS or count_values(body) > _MOST_VALUES
    many = many or len(body) > _MOST_BYTES
    return lines <= _MOST_LINES and not many


def _is_done(body: bytes) -> bool:
    """Whether a stream ends as OpenAI's do."""
    last = body[-_MARK:].splitlines()
    return any(line.startswith(b"data:") and line[5:].strip() == b"[DONE]" for line in last)


def _events(body: bytes) -> Iterator[dict[str, Any]]:
    """Yield the objects of a stream; raises ValueError if it has what cannot be read.

    The last line may, which is perhaps cut off. Only so much may be no strict JSON.
    """
    left = _LENIENT
    *_, end = blocks = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n")
    for block in blocks:
        lines = _data(block)
        for at, line in enumerate(lines, 1):
            try:
                event = orjson.loads(line)
            except ValueError:
                left -= max(_LEAST, len(line))
                try:
                    event = read_json(line if left >= 0 else b"")
                except ValueError:
                    if line == b"[DONE]" or (block is end and at == len(lines)):
                        continue
                    raise
            if isinstance(event, dict):
                yield event


def _data(block: bytes) -> list[bytes]:
    """Return the JSON of an event: one of all its lines, or, from some servers, one of each."""
    lines = [
        line.removeprefix(b"data:").strip()
        for line in map(bytes.strip, block.splitlines())
        if line not in (b"", b"data:") and not line.startswith(_OTHERS)
    ]
    if len(lines) > 1:
        whole = b"\n".join(lines)
        with suppress(ValueError):
            orjson.loads(whole)
            return [whole]
    return lines


def first_choice(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the choice with the lowest index, or an empty one."""
    choices = answer.get("choices")
    given = [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []
    return given[0] if len(given) == 1 else min(given, key=_index, default={})


def _index(choice: dict[str, Any]) -> int:
    # only a whole number says that it is another one
    return index if type(index := choice.get("index")) is int else 0


def _choice(event: dict[str, Any]) -> dict[str, Any]:
    """Return the first choice of a stream in an event, or an empty one."""
    choice = first_choice(event)
    return choice if _index(choice) <= 0 else {}


def _chat(events: list[dict[str, Any]], finishes: list[Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    content: list[str] = []
    refusal: list[str] = []
    tokens: list[Any] = []
    for event in events:
        # Groq reports the usage in a field of its own
        own = event.get("x_groq")
        usage = event.get("usage") or (own.get("usage") if isinstance(own, dict) else None)
        answer |= {name: event[name] for name in ("id", "service_tier") if event.get(name)}
        answer |= {"usage": usage} if usage else {}
        choice = _choice(event)
        delta = choice.get("delta") or choice.get("message")
        if isinstance(delta, dict):
            content.append(text_of(delta.get("content")))
            refusal.append(text_of(delta.get("refusal")))
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict) and isinstance(logprobs.get("content"), list):
            tokens += logprobs["content"]
    message = {"content": "".join(content), "refusal": "".join(refusal)}
    finish = finishes[-1] if finishes else None
    choice = {"message": message, "finish_reason": finish, "logprobs": {"content": tokens}}
    return {**answer, "choices": [choice]} if content or finish else answer


def text_of(content: Any) -> str:
    """Return the text of a message: a string, or a list of parts, but for those of reasoning."""
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict)]
        texts = (part.get("text") for part in parts if part.get("type") not in _REASONING)
        return "".join(text for text in texts if isinstance(text, str))
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
