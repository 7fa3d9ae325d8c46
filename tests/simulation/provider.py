"""The provider of a world: it answers, fails, lies, stalls and bills."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from types import SimpleNamespace
from typing import TYPE_CHECKING

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from bench._batch_api import Batches, BatchServer
from testnuc.prompts.writing import samples_in, user_prompt
from testnuc.protocols import TokenUsage
from testnuc.testing.answers import Content, compose
from testnuc.testing.formats import OPENAI
from testnuc.testing.server import HTTPRequest, Response
from testnuc.transport.connections import HTTPAnswer
from tests.simulation.batch_faults import BatchFaults
from tests.simulation.call_faults import (
    CALL_FAULTS,
    UNUSABLE,
    change_body,
    change_headers,
    draft,
    stray,
)
from tests.simulation.records import LABELS, Payment, label, labels

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

#: llama-cpp-python's answer to a request for structured output.
NO_STRUCTURE = OPENAI.error(
    500,
    "[{'type': 'literal_error', 'loc': ('body', 'response_format', 'type'), "
    "'msg': \"Input should be 'text' or 'json_object'\"}]",
    None,
    None,
)


class Server:
    """Answers the calls of all processes."""

    def __init__(self, world: World) -> None:
        self.world, random = world, world.random
        self.latency = random.choice((0.01, 0.2, 2.0))
        self.rate = random.choice((0.0, 0.05, 0.2, 0.5, 0.9))
        self.kinds = random.sample(CALL_FAULTS, random.randint(1, 8))
        #: What becomes of the whole server, and when, in answered calls and in seconds.
        self.fate = random.choice((None,) * 8 + ("quota", "revoked", "model-gone", "down", "pause",
                                                 "absent", "no-structure-500"))  # fmt: skip
        self.after = random.choice((0, 1, 5, 20))
        self.outage: tuple[float, float] | None = None
        self.structured = random.random() < 0.9
        self.answered = 0
        #: Calls for structured output that this server answered with a 500, which arrived: a client
        #: that disconnects before has learned nothing. A batch job is sent as a whole.
        self.unstructured = 0
        self.jobs = BatchServer(
            Batches(
                validation=random.randint(0, 1),
                polls=random.choice((1, 3, 20)),
                poll_after=random.choice((5.0, 600.0, 3600.0)),
                outcomes=[random.choice((None, None, *("expired", "failed"))) for _ in range(4)],
                shuffle=random.random() < 0.5,
                duplicates=random.choice((0.0, 0.3)),
                missing=random.choice((0.0, 0.2)),
                refusals=random.choice((0, 0, 2)),
                lost=random.choice(((), (0,))),
                broken=random.choice((0, 1)),
            ),
            lambda call: None,
            self._item,
        )
        self.job_faults = BatchFaults(world.seed)
        #: When each request of a job was answered, by its body.
        self.answered_in_jobs: dict[bytes, list[float]] = defaultdict(list)

    async def post(self, process: Process, body: bytes, key: str | None = None) -> HTTPAnswer:
        """Answer a call, fail, stall or disconnect."""
        world, random = self.world, self.world.random
        prompt = OPENAI.prompt(json.loads(body))
        texts = samples_in(prompt.user)
        process.arrived(texts)
        fault = random.choice(self.kinds) if random.random() < self.rate else None
        latency = self.latency * random.uniform(0.5, 1.5)
        if fault == "slow":
            latency += 12.0
        down = self._down()
        world.note("call", process.name, texts, fault, down)
        began = world.loop.time()
        if down:
            await asyncio.sleep(random.uniform(0.0, 0.01))
            raise refused()
        try:
            await asyncio.sleep(1e7 if fault == "stall" else latency)
        except asyncio.CancelledError:
            # the server does not notice: it answers, and bills
            if fault in {None, "slow", "stall"} and self._status(prompt, texts)[0] == 200:
                self._pay(process, prompt, texts, usable=True, delivered=False, began=began)
            raise
        if self._down() or fault == "reset-before":
            raise aiohttp.ServerDisconnectedError
        if key is not None and not process.keys.is_valid(key):
            return HTTPAnswer(*rejected())
        headers = CIMultiDict({"x-request-id": "req"})
        change_headers(random, fault, headers)
        status, data = self._status(prompt, texts, fault)
        if status == 200:
            usable = fault not in UNUSABLE
            if fault == "error-200":
                data = OPENAI.error(500, "The engine is overloaded.", None, None)
            # nor does a client pay for what other bytes make an error
            elif not data.startswith(b'{"error"'):
                delivered = fault != "reset-after"
                broken = fault in {"cut", "empty", "bytes"}
                self._pay(
                    process,
                    prompt,
                    texts,
                    usable=usable,
                    delivered=delivered,
                    broken=broken,
                    began=began,
                )
        if fault == "reset-after":
            raise aiohttp.ClientPayloadError("cut off")
        self.unstructured += data == NO_STRUCTURE
        return HTTPAnswer(status, headers, data)

    def _down(self) -> bool:
        """Whether the server is down."""
        if self.fate == "absent":
            return True
        if self.answered < self.after or self.fate not in {"down", "pause"}:
            return False
        now = self.world.loop.time()
        if self.outage is None:
            length = 1e9 if self.fate == "down" else self.world.random.choice((3.0, 60.0, 600.0))
            self.outage = now, now + length
        return self.outage[0] <= now < self.outage[1]

    def _status(self, prompt, texts, fault=None) -> tuple[int, bytes]:
        """Return status and body of a response."""
        error = OPENAI.error
        if self.answered >= self.after:
            match self.fate:
                case "quota":
                    return 429, error(429, "You exceeded your quota.", "insufficient_quota", None)
                case "revoked":
                    return 401, error(401, "Incorrect API key provided.", "invalid_api_key", None)
                case "model-gone":
                    return 404, error(404, "The model does not exist.", "model_not_found", None)
        if fault is not None and fault[:3] in {"429", "500", "503"}:
            return int(fault[:3]), error(int(fault[:3]), "Try again.", None, None)
        if prompt.structured and not self.structured:
            message = "response_format is not supported"
            return 400, error(400, message, "unsupported_parameter", "response_format")
        if prompt.structured and self.fate == "no-structure-500":
            return 500, NO_STRUCTURE
        natures = {self.world.nature.get(text) for text in texts}
        for name in (fault, *sorted(natures - {None})):
            answer = stray(name)
            if answer is not None:
                return answer
        if "refused-400" in natures:
            message = "Invalid prompt: your prompt was blocked for safety reasons."
            return 400, error(400, message, "invalid_prompt", None)
        if "filtered-400" in natures:
            return 400, error(400, "The response was filtered.", "content_filter", "prompt")
        if "too-long-400" in natures:
            message = "The input token count (9000) exceeds the maximum number of tokens allowed."
            return 400, error(400, message, None, None)
        content = self._content(prompt, texts, fault)
        tokens = None
        if fault != "no-usage":
            tokens = TokenUsage(prompt.tokens, 5 + 10 * len(texts))
        data = OPENAI.success(self.answered, prompt, content, tokens)
        return 200, change_body(self.world.random, fault, data)

    def _content(self, prompt, texts, fault) -> Content:
        natures = {self.world.nature.get(text) for text in texts}
        if fault == "empty":
            return compose([("x", None)], fault="empty-choices")
        if fault == "garbage":
            return Content("I would rather talk about the weather.")
        if fault == "draft":
            return draft(self.world.random, LABELS)
        if "refusal" in natures:
            return compose([("x", None)], fault="refusal")
        if "unreadable" in natures:
            return Content("That is a hard one. Could you say more?")
        outside = {text for text in texts if self.world.nature.get(text) == "outside"}
        answers = [("nothing of this" if text in outside else label(text), 0.8) for text in texts]
        if self.world.several:
            answers = [
                (
                    dict.fromkeys(["nothing of this"] if text in outside else labels(text), 0.8),
                    1,
                )
                for text in texts
            ]
        return compose(answers, confidence=prompt.confidence)

    def _pay(
        self,
        process,
        prompt,
        texts,
        *,
        usable,
        delivered,
        lane="live",
        broken=False,
        began=None,
    ) -> None:
        self.answered += delivered
        world = self.world
        scope = None if process is None else process.scope
        natures = {world.nature.get(text) for text in texts}
        readable = usable and not natures & {"unreadable", "refusal"}
        for text in texts:
            # few-shot examples are a part of the key
            whole = process is not None and process.per_call == 1
            asked = (scope, text, prompt.user if whole else None)
            now = world.loop.time()
            # an example is labeled by a prompt without examples, unlike a text of such a method
            own = not (whole and process.context) or prompt.user != user_prompt((text,), ())
            paid = Payment(process, now, asked, text, readable, delivered, lane, broken, own)
            paid.asleep = process is not None and process.slept_since(began)
            world.payments.append(paid)
            world.note("paid", text, readable, delivered, lane)

    # -- batch jobs --

    def _item(self, wire, call) -> Response:
        prompt = wire.prompt(json.loads(call.body))
        texts = samples_in(prompt.user)
        status, data = self._status(prompt, texts)
        if status == 200:
            self._pay(None, prompt, texts, usable=True, delivered=True, lane="batch")
            if not {self.world.nature.get(text) for text in texts} & {"unreadable", "refusal"}:
                self.answered_in_jobs[call.body].append(self.world.loop.time())
        return Response(status, data)

    async def job(self, process, method, url, head, body) -> HTTPAnswer:
        """Answer a request to the batch API."""
        address = URL(url)
        path = address.path
        self.world.note("job", process.name, method, path)
        if self._down():
            raise refused()
        await asyncio.sleep(self.latency)
        if self.world.random.random() < self.rate / 2:
            raise aiohttp.ServerDisconnectedError
        call = HTTPRequest(method, path, head, body, address.query)
        response = self.jobs.respond(call)
        self.job_faults.change(call, response)
        if response.delivery != "whole":
            raise aiohttp.ServerDisconnectedError
        return HTTPAnswer(response.status, CIMultiDict(response.headers), response.body)


def rejected() -> tuple[int, CIMultiDict[str], bytes]:
    """Return the response to a key that has expired."""
    return 401, CIMultiDict(), OPENAI.error(401, "The token is expired.", "invalid_api_key", None)


def refused() -> aiohttp.ClientConnectorError:
    key = SimpleNamespace(host="api.openai.com", port=443, ssl=True, is_ssl=True)
    return aiohttp.ClientConnectorError(key, ConnectionRefusedError(111, "Connection refused"))
