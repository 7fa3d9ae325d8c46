"""A stand-in for an LLM provider: a real HTTP server on this machine."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence
from functools import partial
from time import process_time
from types import TracebackType
from typing import Any, Literal, Self, cast

import orjson

from testnuc.errors import InvalidInputError
from testnuc.prompts import samples_in
from testnuc.testing.answers import AnswerOf, Latency, asker, delays
from testnuc.testing.batch_api import BatchDesk, Item
from testnuc.testing.batch_options import Batches
from testnuc.testing.content import Content, compose
from testnuc.testing.faults import LOST_KINDS, Faults
from testnuc.testing.formats import ANTHROPIC, OPENAI, ApiFormat, Prompt, Tokens, count_tokens
from testnuc.testing.http_connection import Delivery, ReceivedRequest, Response
from testnuc.testing.listener import HOST, Listener
from testnuc.testing.rate_limit import RateLimitWindow, Violation
from testnuc.testing.request_checks import (
    Problem,
    RequestChecks,
    limit_problem,
    problem_of,
    quota_headers,
)

__all__ = ["LoopbackLLM"]

# what providers cache: prompts from this many tokens on, in such steps
_CACHE_MINIMUM = 1024
_CACHE_STEP = 128
_SHOWN = 80
_DELIVERIES = frozenset({"reset-before", "reset-within", "reset-after", "stalled", "slow"})


class LoopbackLLM:
    """An LLM provider on 127.0.0.1, for tests and benchmarks of code that uses testnuc.

    It speaks OpenAI's ``/v1/chat/completions`` and Anthropic's ``/v1/messages``, and the batch APIs
    of both, on one port, finds the texts in the prompt and answers with the labels it was given::

        async with LoopbackLLM({"where is my card?": ("delivery", 0.9)}) as llm:
            async with testnuc.TestNUC(labels, "openai/any", base_url=llm.base_url, ..) as nuc:
                ...
            assert llm.calls == 1

    ``with LoopbackLLM(..)`` serves from a background thread, for code without an event loop.

    Parameters
    ----------
    answer : mapping or callable
        Tells the label, or ``(label, confidence)``, of a text: a mapping, a callable of the text,
        or a callable of the text and of how many answers to it came before (0-based). A text that
        is not in the mapping, or for which the callable returns None, is a 400 that names it.
    latency : float, (float, float) or callable
        Seconds until an answer, or a range of them, or a callable of a seeded `random.Random`.
        Errors are answered at once.
    faults : Faults, optional
        What goes wrong, and how often.
    rate_limit : RateLimit or mapping, optional
        ``requests_per_minute`` and ``tokens_per_minute`` (input and output), enforced in a sliding
        window of 60 s: a request beyond them gets a 429 and is recorded in `violations`. The state
        of the limit is told in each provider's own headers.
    api_key : str, optional
        Other keys get a 401.
    model : str, optional
        Other models get a 404.
    structured : bool or "ignore"
        False: a request for structured output gets a 400. "ignore": it is answered with prose
        around fenced JSON.
    rejects : collection of str
        Other parameters of a request that get a 400, such as ``temperature``; ``system`` stands for
        a system message.
    usage : bool
        False: tokens are never told.
    cache : bool
        Whether system messages of 1,024 tokens or more are told as cached once they were seen; at
        Anthropic's format only those marked with ``cache_control``.
    batches : Batches, optional
        How long batches take, and what goes wrong with them.
    record : int
        How many of the last requests `bodies` and `headers` keep.
    port : int
        0 takes a free one.
    seed : int
        Of the random latency.
    """

    def __init__(
        self,
        answer: AnswerOf,
        *,
        latency: Latency = 0.0,
        faults: Faults | None = None,
        rate_limit: object = None,
        api_key: str | None = None,
        model: str | None = None,
        structured: bool | Literal["ignore"] = True,
        rejects: Collection[str] = (),
        usage: bool = True,
        cache: bool = False,
        batches: Batches | None = None,
        record: int = 0,
        port: int = 0,
        seed: int = 0,
    ) -> None:
        self._ask, self._counts_asks = asker(answer)
        self._delay = delays(latency, seed)
        self._faults = faults
        self._window = None if rate_limit is None else RateLimitWindow(rate_limit)
        self._gate = RequestChecks(api_key, model, structured, rejects)
        self._model = model
        self._prose = structured == "ignore"
        self._usage = usage
        self._cache = cache
        self._record = record
        self._listener = Listener(self._respond, port)
        self._desk = BatchDesk(batches or Batches(), self._gate, self._item)
        self.reset()

    def reset(self) -> None:
        """Set all counts to zero; the schedule of faults starts anew, the rate limit does not."""
        #: Requests received, whatever became of them.
        self.requests = 0
        #: Requests answered with a 200 whose whole body was written: what a provider bills.
        self.calls = 0
        #: Texts in these calls.
        self.texts = 0
        #: Text -> how often it was in these calls.
        self.asked: Counter[str] = Counter()
        #: Tokens of these calls, as told to the client.
        self.input_tokens = 0
        self.output_tokens = 0
        self.cached_tokens = 0
        #: Fault -> how often it was injected.
        self.faults: Counter[str] = Counter()
        #: Requests beyond the rate limit.
        self.violations: list[Violation] = []
        #: The last requests, parsed, and their headers with names in lower case.
        self.bodies: deque[dict[str, Any]] = deque(maxlen=self._record)
        self.headers: deque[dict[str, str]] = deque(maxlen=self._record)
        self._listener.peak = self._listener.in_flight
        self._listener.abandoned = 0
        self._attempts: Counter[tuple[str, ...]] = Counter()
        self._answers: Counter[str] = Counter()
        self._drawn = 0
        self._seen: set[str] = set()
        self._desk.reset()

    @property
    def base_url(self) -> str:
        """What to pass to a client as its base URL."""
        if not self._listener.port:
            raise InvalidInputError("LoopbackLLM has no address before it is started")
        return f"http://{HOST}:{self._listener.port}/v1"

    @property
    def peak(self) -> int:
        """The most requests that were in flight at once."""
        return self._listener.peak

    @property
    def in_flight(self) -> int:
        """Requests in flight now."""
        return self._listener.in_flight

    @property
    def batches(self) -> int:
        """Batches that were created."""
        return len(self._desk.batches)

    @property
    def abandoned(self) -> int:
        """Requests whose client went away before the response was written."""
        return self._listener.abandoned

    def stats(self) -> dict[str, Any]:
        """Return all counts, ready for JSON; ``cpu`` is the CPU time of the process in seconds."""
        names = ("requests", "calls", "texts", "input_tokens", "output_tokens", "cached_tokens")
        stats: dict[str, Any] = {name: getattr(self, name) for name in names}
        return stats | {
            "faults": dict(self.faults),
            "violations": len(self.violations),
            "peak": self.peak,
            "in_flight": self.in_flight,
            "abandoned": self.abandoned,
            "distinct": len(self.asked),
            "batches": self.batches,
            "cpu": process_time(),
        }

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen; after a `stop`, on the same port as before."""
        await self._listener.start()

    async def stop(self) -> None:
        """Refuse connections and reset all that are open, as a killed server would."""
        await self._listener.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._listener.close()

    def __enter__(self) -> Self:
        self._listener.start_thread()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.stop_thread()

    # -- answering -------------------------------------------------------------------------------

    def _respond(self, call: ReceivedRequest) -> Response:
        if call.path.endswith("/chat/completions"):
            wire = OPENAI
        elif call.path.endswith("/messages"):
            wire = ANTHROPIC
        else:
            return self._respond_else(call)
        self.requests += 1
        request_id = f"{wire.request_id}: req_{self.requests}\r\n".encode()
        try:
            self._gate.admit(call)
            response = self._answer(wire, call)
        except Problem as problem:
            body = wire.error(problem.status, problem.message, problem.code, problem.param)
            response = Response(problem.status, body, problem.headers)
        response.headers += request_id
        return response

    def _respond_else(self, call: ReceivedRequest) -> Response:
        batch = self._desk.respond(call)
        if batch is not None:
            return batch
        match call.path.removesuffix("/"):
            case "/v1/models":
                model = {"id": self._model or "loopback", "object": "model", "owned_by": "testnuc"}
                return _json({"object": "list", "data": [model]})
            case "/stats":
                return _json(self.stats())
            case "/stats/asked":
                return _json(dict(self.asked))
            case "/stats/reset" if call.method == "POST":
                self.reset()
                return _json(self.stats())
        message = f"LoopbackLLM serves nothing at {call.path!r}"
        return Response(404, OPENAI.error(404, message, "unknown_url", None))

    def _item(self, wire: ApiFormat, call: ReceivedRequest) -> Item:
        """Answer one request of a batch."""
        self.requests += 1
        try:
            response = self._answer(wire, call, limited=False)
        except Problem as problem:
            body = wire.error(problem.status, problem.message, problem.code, problem.param)
            return Item(problem.status, body)
        if response.delivery not in {"whole", "slow", "reset-after"} or response.spoiled:
            # no connection can break here: what would be lost on it failed at the provider
            return Item(500, wire.error(500, "The server had an error.", None, None))
        return Item(200, response.body, response.delivered)

    def _answer(self, wire: ApiFormat, call: ReceivedRequest, *, limited: bool = True) -> Response:
        prompt, texts = self._texts(wire, call)
        told = self._told(texts)
        said = compose(told, confidence=prompt.confidence, prose=self._prose)
        limits = b""
        if limited:
            limits = self._admit(wire, prompt.tokens + count_tokens(len(said.text)))
        fault = self._draw(texts)
        problem = None
        if fault is not None and self._faults is not None:
            self.faults[fault] += 1
            problem = problem_of(fault, wire, self._faults.retry_after)
            said = compose(told, fault=fault, confidence=prompt.confidence, prose=self._prose)
        if problem is not None:
            problem.headers += limits
            raise problem
        if self._counts_asks and fault not in LOST_KINDS:
            self._answers.update(texts)
        known = self._usage and fault not in {"missing-usage", "truncated"}
        tokens = self._tokens(prompt, said) if known else None
        response = Response(
            200,
            wire.success(self.requests, prompt, said, tokens),
            limits,
            delay=self._delay(),
            delivered=partial(self._delivered, texts, tokens),
        )
        if fault is not None:
            self._spoil(response, fault)
        return response

    def _spoil(self, response: Response, fault: str) -> None:
        """Let the delivery of a response go wrong."""
        assert self._faults is not None
        if fault == "truncated":
            response.body = response.body[: len(response.body) // 2]
            response.spoiled = True
        elif fault == "refused":
            self._listener.refuse(self._faults.refuse)
            response.delivery = "reset-before"
        elif fault in _DELIVERIES:
            response.delivery = cast("Delivery", fault)
            response.duration = self._faults.slow if fault == "slow" else self._faults.stall

    def _tokens(self, prompt: Prompt, said: Content) -> Tokens:
        output = count_tokens(len(said.text))
        system = count_tokens(len(prompt.system))
        if not (self._cache and prompt.cached) or system < _CACHE_MINIMUM:
            return Tokens(prompt.tokens, output)
        system -= system % _CACHE_STEP
        if prompt.system in self._seen:
            return Tokens(prompt.tokens, output, cached=system)
        self._seen.add(prompt.system)
        return Tokens(prompt.tokens, output, written=system)

    def _delivered(self, texts: Sequence[str], tokens: Tokens | None) -> None:
        self.calls += 1
        self.texts += len(texts)
        for text in texts:
            self.asked[text] += 1
        if tokens is not None:
            self.input_tokens += tokens.input
            self.output_tokens += tokens.output
            self.cached_tokens += tokens.cached

    def _texts(self, wire: ApiFormat, call: ReceivedRequest) -> tuple[Prompt, list[str]]:
        """Read the request, and find the texts it asks about."""
        body = self._gate.body(call)
        if self._record:
            self.bodies.append(body)
            lines = call.head.decode("latin-1").split("\r\n")
            pairs = (line.partition(":") for line in lines if line)
            self.headers.append({name.lower(): value.strip() for name, _, value in pairs})
        prompt = self._gate.prompt(wire, call, body)
        try:
            texts = samples_in(prompt.user)
        except ValueError as exc:
            raise Problem(400, f"LoopbackLLM cannot read the samples: {exc}") from exc
        if not texts:
            raise Problem(400, "LoopbackLLM finds no testing sample in the prompt")
        return prompt, texts

    def _told(self, texts: Sequence[str]) -> list[tuple[str, float | None]]:
        """Ask the test what the model says."""
        told: list[tuple[str, float | None]] = []
        for i, text in enumerate(texts):
            time_asked = self._answers[text] + texts[:i].count(text) if self._counts_asks else 0
            try:
                found = self._ask(text, time_asked)
                if isinstance(found, str):
                    told.append((found, None))
                elif found is not None:
                    label, confidence = found
                    if not isinstance(label, str):
                        raise TypeError(f"{label!r} is no label")  # noqa: TRY301
                    told.append((label, confidence))
            except Exception as exc:
                shown = _cut(text)
                raise Problem(400, f"LoopbackLLM's answer to {shown} failed: {exc!r}") from exc
            if found is None:
                raise Problem(400, f"LoopbackLLM was given no answer for the text {_cut(text)}")
        return told

    def _admit(self, wire: ApiFormat, tokens: int) -> bytes:
        """Hold the request against the rate limit; return the headers that tell its state."""
        if self._window is None:
            return b""
        violation = self._window.admit(tokens)
        if violation is not None:
            self.violations.append(violation)
            raise limit_problem(wire, self._window, violation, tokens)
        return quota_headers(wire, self._window)

    def _draw(self, texts: Sequence[str]) -> str | None:
        if self._faults is None:
            return None
        key = tuple(texts)
        attempt = self._attempts[key]
        self._attempts[key] = attempt + 1
        self._drawn += 1
        return self._faults.draw(key, attempt, self._drawn - 1)


def _cut(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..")


def _json(value: object) -> Response:
    return Response(200, orjson.dumps(value))
