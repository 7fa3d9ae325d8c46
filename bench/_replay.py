"""Replay of recorded exchanges over real sockets, through provider and transport."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import orjson
from aiohttp import web

from testnuc.errors import ProviderError
from testnuc.labels import LabelSet
from testnuc.limits.policies import Limits, RetryPolicy
from testnuc.prompts.writing import system_prompt, user_prompt
from testnuc.protocols import Request, Task
from testnuc.providers.anthropic import Anthropic
from testnuc.providers.openai import OpenAI
from testnuc.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from testnuc.protocols import Reply

__all__ = ["LABELS", "Exchange", "Seen", "read", "replay"]

LABELS = ("refund", "delivery", "login")
_TEXT = "where is my parcel?"
# shares no eight characters with an id or a text: parts of a key are removed from replies
_KEY = "sk-replayed-qXwZvKjYpQ"
#: The server's answer to a request that was changed after the recorded response.
_SAID = '{"label":"delivery","confidence":0.9}'
#: Replays at a time.
_AT_ONCE = 16
#: The names of the output limit.
_LIMITS = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens"})
#: Headers of the connection, not of the answer.
_HOP = frozenset({"content-length", "content-encoding", "transfer-encoding", "connection"})


@dataclass(frozen=True, slots=True)
class Exchange:
    """A recorded request and its response."""

    source: str
    host: str
    path: str
    #: Some of its fields.
    request: dict[str, Any]
    status: int
    headers: dict[str, str]
    body: str

    @property
    def protocol(self) -> str:
        """``"messages"``, ``"chat"``, ``"responses"``, or ``""`` for other endpoints."""
        path = self.path.partition("?")[0].rstrip("/")
        if path.endswith("/chat/completions"):
            return "chat"
        # the latter two are Claude's on Amazon Bedrock and Vertex AI
        known = ("/messages", "/invoke", ":rawPredict")
        if path.endswith(known) and "/threads/" not in path:
            return "messages"
        return "responses" if path.endswith("/responses") else ""


@dataclass(slots=True)
class Seen:
    """What the client made of one exchange."""

    #: Bodies of the requests; more than one if the client changed the format.
    sent: list[dict[str, Any]] = field(default_factory=list)
    #: Their paths.
    paths: list[str] = field(default_factory=list)
    #: The error of the recorded response; None if it was readable.
    error: ProviderError | None = None
    #: The final answer, of the recorded response or of a changed request.
    reply: Reply | None = None
    #: An exception that is not testnuc's.
    crash: Exception | None = None

    @property
    def steps(self) -> tuple[str, ...]:
        """What the client changed after the recorded response."""
        found = []
        for before, after in zip(self.sent, self.sent[1:], strict=False):
            changed = [_change(name, before, after) for name in before.keys() | after.keys()]
            found += sorted(filter(None, changed)) or ["sent again"]
        if len(set(self.paths)) > 1:
            found.append(f"path {self.paths[-1]}")
        return tuple(found)


def _change(name: str, before: dict[str, Any], after: dict[str, Any]) -> str:
    old, new = before.get(name), after.get(name)
    if old == new:
        return ""
    if name in {"messages", "input"}:
        moved = isinstance(new, list) and isinstance(old, list) and len(new) < len(old)
        return "system text into the user message" if moved else "another prompt"
    if name not in after:
        return f"without {name}"
    if name in _LIMITS and name in before:
        return ""  # follows from the other changes
    if isinstance(new, dict):
        kind = new.get("type") or ",".join(new)
        same = isinstance(old, dict) and old.get("type") == new.get("type")
        return f"another {name}" if same else f"{name}={kind}"
    return f"{name}={new}"


def read(path: Path) -> Iterator[Exchange]:
    """Yield the exchanges of a JSON Lines file."""
    for line in path.read_bytes().splitlines():
        row = orjson.loads(line)
        asked = row.get("request")
        yield Exchange(
            row["source"],
            row.get("host") or "(gateway)",
            row["path"],
            asked if isinstance(asked, dict) else {},
            row["status"],
            row.get("headers") or {},
            row["body"] if isinstance(row["body"], str) else orjson.dumps(row["body"]).decode(),
        )


async def replay(exchanges: Sequence[Exchange]) -> list[Seen]:
    """Send a request for each exchange, to a server that gives the recorded response.

    Changed requests are answered with a label.
    """
    seen = [Seen() for _ in exchanges]

    async def handle(asked: web.Request) -> web.Response:
        number = int(asked.match_info["number"])
        mine = seen[number]
        mine.sent.append(orjson.loads(await asked.read()))
        mine.paths.append(asked.path.rpartition("/v1/")[2])
        if len(mine.sent) > 1:
            return _labeled(mine.sent[-1], mine.paths[-1])
        one = exchanges[number]
        headers = {n: v for n, v in one.headers.items() if n.lower() not in _HOP}
        return web.Response(status=one.status, headers=headers, body=one.body.encode())

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/{number:[0-9]+}/{rest:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        base = f"http://127.0.0.1:{runner.addresses[0][1]}"
        permits = asyncio.Semaphore(_AT_ONCE)

        async def one(number: int) -> None:
            async with permits:
                await _one(exchanges[number], seen[number], f"{base}/{number}/v1")

        await asyncio.gather(*(one(i) for i, e in enumerate(exchanges) if e.protocol))
    finally:
        await runner.cleanup()
    return seen


async def _one(exchange: Exchange, seen: Seen, base_url: str) -> None:
    chosen = Anthropic if exchange.protocol == "messages" else OpenAI
    model = exchange.request.get("model")
    provider = chosen(str(model or "model"), base_url=base_url, api_key=_KEY)
    logprobs = bool(exchange.request.get("logprobs")) and exchange.protocol == "chat"
    confidence: Literal["logprobs", "verbalized"] = "logprobs" if logprobs else "verbalized"
    task = Task(
        system_prompt(LabelSet(LABELS), confidence=confidence),
        LABELS,
        confidence=confidence,
        options=exchange.request.get("options") or {},
    )
    transport = Transport(Limits(concurrency=1, retry=RetryPolicy(attempts=1)))

    def failed(error: ProviderError) -> None:
        seen.error = seen.error or error

    try:
        with transport.observed(failed):
            seen.reply = await transport.call(
                provider, Request(task, user_prompt((_TEXT,)), (_TEXT,))
            )
    except ProviderError as error:
        seen.error = seen.error or error
    except Exception as error:  # noqa: BLE001 - reported
        seen.crash = error
    finally:
        await transport.aclose()


def _labeled(asked: dict[str, Any], path: str) -> web.Response:
    """Return a readable answer to a request."""
    usage = {"prompt_tokens": 100, "completion_tokens": 12, "total_tokens": 112}
    if path == "messages":
        counted = {"input_tokens": 100, "output_tokens": 12}
        said = [{"type": "text", "text": _SAID}]
        return _json({"id": "msg_1", "type": "message", "content": said, "stop_reason": "end_turn",
                      "usage": counted})  # fmt: skip
    if path == "responses":
        counted = {"input_tokens": 100, "output_tokens": 12, "total_tokens": 112}
        said = [{"type": "output_text", "text": _SAID}]
        output = [{"type": "message", "role": "assistant", "content": said}]
        return _json({"id": "resp_1", "status": "completed", "output": output, "usage": counted})
    if asked.get("stream"):
        first = {"index": 0, "delta": {"content": _SAID}, "finish_reason": "stop"}
        events = [{"id": "c1", "choices": [first]}, {"id": "c1", "choices": [], "usage": usage}]
        lines = [b"data: " + orjson.dumps(event) for event in events]
        body = b"\n\n".join([*lines, b"data: [DONE]", b""])
        return web.Response(body=body, content_type="text/event-stream")
    message = {"role": "assistant", "content": _SAID}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return _json({"id": "chatcmpl-1", "choices": [choice], "usage": usage})


def _json(value: dict[str, Any]) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")
