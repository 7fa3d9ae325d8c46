"""What a provider says: formats, right answers, and exchanges to be mutated."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from testnuc.prompts.writing import samples_in

FORMATS = ("chat", "responses", "anthropic")
#: Names of tokens in the formats, the first two for input and output.
_USAGE = {
    "chat": {"prompt_tokens": 90, "completion_tokens": 12, "total_tokens": 102},
    "responses": {"input_tokens": 90, "output_tokens": 12, "total_tokens": 102},
    "anthropic": {"input_tokens": 90, "output_tokens": 12},
}


@dataclass(frozen=True)
class Exchange:
    """A response: recorded, or made up."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True)
class Asked:
    """What a request asks for."""

    format: str
    texts: list[str]
    user: str
    #: Name of the tool that takes the answer; "" if there is none.
    tool: str = ""
    #: The id of the response.
    name: str = "1"


def asked_for(path: str, body: bytes) -> Asked:
    """Parse a request in any of the formats."""
    sent = json.loads(body)
    if path.endswith("/messages"):
        form = "anthropic"
    else:
        form = "responses" if path.endswith("/responses") else "chat"
    said = sent["input" if form == "responses" else "messages"][-1]["content"]
    if not isinstance(said, str):
        said = "".join(part.get("text", "") for part in said)
    choice = sent.get("tool_choice") or {}
    tool = choice.get("name", "") if isinstance(choice, dict) else ""
    return Asked(form, samples_in(said), said, tool)


def answer_text(labels: list, *, several: bool) -> str:
    """Write the answer that the prompt asks for."""
    items = []
    for label in labels:
        if several:
            items.append({"labels": [{"label": one, "confidence": 0.9} for one in label]})
        else:
            items.append({"label": label, "confidence": 0.9})
    if len(items) == 1:
        return json.dumps(items[0])
    return json.dumps({"answers": [{"id": i, **item} for i, item in enumerate(items, 1)]})


def reply(asked: Asked, content: str, *, finish: str | None = None) -> dict:
    """Return a response with status 200, as a value."""
    usage = dict(_USAGE[asked.format])
    if asked.format == "chat":
        message = {"role": "assistant", "content": content, "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": finish or "stop"}
        return {"id": f"chatcmpl-{asked.name}", "object": "chat.completion", "model": "gpt-4o-mini",
                "choices": [choice], "usage": usage}  # fmt: skip
    if asked.format == "responses":
        part = {"type": "output_text", "text": content, "annotations": []}
        item = {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
        cut = {"reason": "max_output_tokens"} if finish == "length" else None
        return {"id": f"resp_{asked.name}", "object": "response", "error": None, "output": [item],
                "status": "incomplete" if cut else "completed", "incomplete_details": cut,
                "usage": usage}  # fmt: skip
    block: dict = {"type": "text", "text": content}
    stop = {"length": "max_tokens"}.get(finish, "end_turn")
    if asked.tool:
        try:
            given = json.loads(content)
        except ValueError:
            given = {"label": content}
        block = {"type": "tool_use", "id": "toolu_1", "name": asked.tool, "input": given}
    return {"id": f"msg_{asked.name}", "type": "message", "role": "assistant", "content": [block],
            "stop_reason": stop, "usage": usage}  # fmt: skip


def _error(status: int, message: str, kind: str, code: str | None = None) -> Exchange:
    error = {"message": message, "type": kind, "param": None, "code": code}
    return _of(status, {"error": error}, **{"x-request-id": "req_1"})


def _of(status: int, value, **headers: str) -> Exchange:
    named = (("content-type", "application/json"), *headers.items())
    return Exchange(status, named, json.dumps(value).encode())


#: Errors as providers send them.
BUILT_IN = (
    _error(400, "Invalid value for 'model'.", "invalid_request_error"),
    _error(401, "Incorrect API key provided.", "invalid_request_error", "invalid_api_key"),
    _error(403, "Your country is not supported.", "request_forbidden", "unsupported_country"),
    _error(404, "The model `x` does not exist.", "invalid_request_error", "model_not_found"),
    _error(429, "Rate limit reached.", "requests", "rate_limit_exceeded"),
    _error(500, "The server had an error.", "server_error"),
    _error(503, "The engine is overloaded.", "server_error"),
    _of(529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
    _of(413, {"type": "error", "error": {"type": "request_too_large", "message": "Too large"}}),
    _of(422, {"detail": [{"loc": ["body", "messages"], "msg": "field required", "type": "x"}]}),
    Exchange(403, (("content-type", "text/html"),), b"<html><title>Blocked</title></html>" * 9),
    Exchange(302, (("location", "http://elsewhere.invalid/login?next=/v1"),), b""),
    Exchange(502, (("content-type", "text/html"),), b"<h1>502 Bad Gateway</h1>nginx"),
    Exchange(204, (), b""),
    _of(200, {}),
    _of(200, []),
    _of(200, {"id": "chatcmpl-1", "choices": []}),
    _of(200, {"error": {"message": "Overloaded", "type": "server_error", "code": None}}),
)


@cache
def recorded() -> tuple[Exchange, ...]:
    """Return the recorded exchanges of the folder TESTNUC_DATA, if there is one."""
    path = Path(os.environ.get("TESTNUC_DATA", "nowhere"), "recorded_exchanges.jsonl")
    if not path.is_file():
        return ()
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        headers = tuple(
            (name, value) for name, value in row["headers"].items() if value.isprintable()
        )
        found.append(Exchange(row["status"], headers, row["body"].encode()))
    return tuple(found)
