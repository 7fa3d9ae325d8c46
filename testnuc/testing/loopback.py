"""A local HTTP server that acts as an LLM provider."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from time import process_time
from typing import Any, Literal, Self, cast

from testnuc.errors import InvalidInputError
from testnuc.prompts import samples_in
from testnuc.testing.answers import AnswerOf, Latency, answer_function, latency_function
from testnuc.testing.batch_api import BatchServer
from testnuc.testing.batch_formats import Item
from testnuc.testing.batch_options import Batches
from testnuc.testing.content import Content, compose
from testnuc.testing.faults import LOST_KINDS, Faults
from testnuc.testing.formats import ANTHROPIC, OPENAI, Prompt, Tokens, WireFormat, count_tokens
from testnuc.testing.http_connection import Delivery, HTTPRequest, Response, json_response
from testnuc.testing.listener import HOST, Listener
from testnuc.testing.rate_limit import RateLimitWindow, Violation
from testnuc.testing.request_checks import (
    ErrorResponse,
    RequestChecks,
    error_of_fault,
    model_in,
    quota_headers,
    rate_limit_error,
)

__all__ = ["LoopbackLLM"]

# providers cache prompts of at least this many tokens, in multiples of the step
_CACHE_MINIMUM = 1024
_CACHE_STEP = 128
_MAX_SHOWN = 80
_DELIVERIES = frozenset({"reset-before", "reset-within", "reset-after", "stalled", "slow"})


class LoopbackLLM:
    """An LLM provider on 127.0.0.1, for tests and benchmarks of code that uses testnuc.

    Serves OpenAI's ``/v1/chat/completions``, Anthropic's ``/v1/messages`` and the batch APIs of
    both on one port, and answers the texts in a prompt with canned labels::

        async with LoopbackLLM({"where is my card?": ("delivery", 0.9)}) as llm:
            async with testnuc.TestNUC(labels, "openai/any", base_url=llm.base_url, ..) as nuc:
                ...
            assert llm.calls == 1

    ``with LoopbackLLM(..)`` serves from a background thread, for synchronous code.

    Parameters
    ----------
    answer : mapping or callable
        Returns the label, or ``(label, confidence)``, of a text: a mapping, a callable of the text,
        or a callable of the text and a zero-based sample index. Several labels are a mapping of
        label to confidence. A text without an answer (missing, or None) gets a 400 that quotes it.
    latency : float, (float, float) or callable
        Seconds before an answer, a range of seconds, or a callable of a seeded `random.Random`.
        Errors are returned immediately.
    faults : Faults, optional
        The faults to inject.
    rate_limit : RateLimit or mapping, optional
        ``requests_per_minute`` and ``tokens_per_minute`` (input and output), enforced in a sliding
        window of 60 s. A request beyond them gets a 429 and is recorded in `violations`. Responses
        have the rate-limit headers of the provider.
    api_key : str, optional
        Other keys get a 401.
    model : str, optional
        Other models get a 404.
    structured : bool or "ignore"
        False: a request for structured output gets a 400. "ignore": the answer is JSON in a code
        fence, within prose.
    rejects : collection of str
        Parameters that get a 400, such as ``temperature``; ``system`` means a system message.
    usage : bool
        False omits token usage from responses.
    cache : bool
        Report repeated system messages of at least 1,024 tokens as cached; in Anthropic's format
        only those marked with ``cache_control``.
    batches : Batches, optional
        Duration, outcomes and faults of batches.
    record : int
        Number of latest requests in `bodies` and `headers`.
    port : int
        0 binds a free port.
    seed : int
        Seed of the random latency.

    Raises
    ------
    InvalidInputError
        An argument is invalid.
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
        self._answer_of, self._uses_index = answer_function(answer)
        self._delay = latency_function(latency, seed)
        self._faults = faults
        self._window = None if rate_limit is None else RateLimitWindow(rate_limit)
        self._checks = RequestChecks(api_key, model, structured, rejects)
        self._model = model
        self._prose = structured == "ignore"
        self._usage = usage
        self._cache = cache
        self._record = record
        self._listener = Listener(self._respond, port)
        #: The provider's side of batch jobs; tests may change its files, batches and options.
        self.batch_server = BatchServer(batches or Batches(), self._checks, self._item)
        self.reset()

    def reset(self) -> None:
        """Set all counts to zero and restart the fault schedule; the rate limit is not reset."""
        #: Requests received.
        self.requests = 0
        #: Requests that got a complete 200 response, which a provider bills.
        self.calls = 0
        #: Texts in these calls.
        self.texts = 0
        #: Text -> number of its occurrences in these calls.
        self.asked: Counter[str] = Counter()
        #: Tokens of these calls, as reported to the client.
        self.input_tokens = 0
        self.output_tokens = 0
        self.cached_tokens = 0
        #: Fault -> number of injections.
        self.faults: Counter[str] = Counter()
        #: Requests beyond the rate limit.
        self.violations: list[Violation] = []
        #: The latest requests, parsed, and their headers with lower-case names.
        self.bodies: deque[dict[str, Any]] = deque(maxlen=self._record)
        self.headers: deque[dict[str, str]] = deque(maxlen=self._record)
        self._listener.peak = self._listener.in_flight
        self._listener.abandoned = 0
        self._attempts: Counter[tuple[str, ...]] = Counter()
        self._answers: Counter[str] = Counter()
        self._drawn = 0
        self._seen: set[str] = set()
        self.batch_server.reset()

    @property
    def base_url(self) -> str:
        """Base URL for clients."""
        if not self._listener.port:
            raise InvalidInputError("LoopbackLLM has no address until it is started")
        return f"http://{HOST}:{self._listener.port}/v1"

    @property
    def peak(self) -> int:
        """Maximum number of concurrent requests."""
        return self._listener.peak

    @property
    def in_flight(self) -> int:
        """Current number of requests in flight."""
        return self._listener.in_flight

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._listener.connections)

    @property
    def batches(self) -> int:
        """Number of batches created."""
        return len(self.batch_server.batches)

    @property
    def abandoned(self) -> int:
        """Requests whose client disconnected before the response was written."""
        return self._listener.abandoned

    def stats(self) -> dict[str, Any]:
        """Return all counts as JSON values; ``cpu`` is the CPU time of the process in seconds."""
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

    # -- start and stop --------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen; after a `stop`, on the same port."""
        await self._listener.start()

    async def stop(self) -> None:
        """Refuse connections and reset open ones, like a killed server."""
        await self._listener.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._listener.close()

    def __enter__(self) -> Self:
        self._listener.start_thread()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._listener.stop_thread()

    # -- answering -------------------------------------------------------------------------------

    def _respond(self, call: HTTPRequest) -> Response:
        if call.path.endswith("/chat/completions"):
            wire: WireFormat = OPENAI
        elif call.path.endswith("/messages") or model_in(call.path):
            wire = ANTHROPIC
        else:
            return self._respond_other(call)
        self.requests += 1
        request_id = f"{wire.request_id}: req_{self.requests}\r\n".encode()
        try:
            self._checks.admit(call)
            response = self._answer(wire, call)
        except ErrorResponse as error:
            response = Response(error.status, error.body(wire), error.headers)
        response.headers += request_id
        return response

    def _respond_other(self, call: HTTPRequest) -> Response:
        batch = self.batch_server.respond(call)
        if batch is not None:
            return batch
        path = call.path.removesuffix("/")
        if path.startswith("/v1/models"):
            return self._models(path)
        match path:
            case "/stats":
                return json_response(self.stats())
            case "/stats/asked":
                return json_response(dict(self.asked))
            case "/stats/reset" if call.method == "POST":
                self.reset()
                return json_response(self.stats())
        return _unknown(call.path)

    def _models(self, path: str) -> Response:
        name = self._model or "loopback"
        model = {"id": name, "object": "model", "created": 1_700_000_000, "owned_by": "testnuc"}
        if path == "/v1/models":
            return json_response({"object": "list", "data": [model]})
        return json_response(model) if path == f"/v1/models/{name}" else _unknown(path)

    def _item(self, wire: WireFormat, call: HTTPRequest) -> Item:
        """Execute one request of a batch."""
        self.requests += 1
        try:
            response = self._answer(wire, call, limited=False)
        except ErrorResponse as error:
            return Item(error.status, error.body(wire))
        if response.delivery not in {"whole", "slow", "reset-after"} or response.spoiled:
            # batch requests have no connection: a lost response becomes a server error
            return Item(500, wire.error(500, "The server had an error.", None, None))
        return Item(200, response.body, response.delivered)

    def _answer(self, wire: WireFormat, call: HTTPRequest, *, limited: bool = True) -> Response:
        prompt, texts = self._texts(wire, call)
        answers = self._answers_of(texts)
        content = compose(answers, confidence=prompt.confidence, prose=self._prose)
        limits = b""
        if limited:
            limits = self._admit(wire, prompt.tokens + count_tokens(len(content.text)))
        fault = self._draw(texts)
        error = None
        if fault is not None and self._faults is not None:
            self.faults[fault] += 1
            error = error_of_fault(fault, wire, self._faults.retry_after)
            content = compose(answers, fault=fault, confidence=prompt.confidence, prose=self._prose)
        if error is not None:
            error.headers += limits
            raise error
        if self._uses_index and fault not in LOST_KINDS:
            self._answers.update(texts)
        known = self._usage and fault not in {"missing-usage", "truncated"}
        tokens = self._tokens(prompt, content) if known else None
        response = Response(
            200,
            wire.success(self.requests, prompt, content, tokens),
            limits,
            delay=self._delay(),
            delivered=partial(self._delivered, texts, tokens),
        )
        if fault is not None:
            self._inject(response, fault)
        return response

    def _inject(self, response: Response, fault: str) -> None:
        """Inject a fault into the delivery of a response."""
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

    def _tokens(self, prompt: Prompt, content: Content) -> Tokens:
        output = count_tokens(len(content.text))
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

    def _texts(self, wire: WireFormat, call: HTTPRequest) -> tuple[Prompt, list[str]]:
        """Parse a request and extract its texts."""
        body = self._checks.body(call)
        if self._record:
            self.bodies.append(body)
            lines = call.head.decode("latin-1").split("\r\n")
            pairs = (line.partition(":") for line in lines if line)
            self.headers.append({name.lower(): value.strip() for name, _, value in pairs})
        prompt = self._checks.prompt(wire, call, body)
        try:
            texts = samples_in(prompt.user)
        except ValueError as exc:
            raise ErrorResponse(400, f"LoopbackLLM cannot parse the texts: {exc}") from exc
        if not texts:
            raise ErrorResponse(400, "LoopbackLLM found no text in the prompt")
        return prompt, texts

    def _answers_of(
        self, texts: Sequence[str]
    ) -> list[tuple[str | Mapping[str, float | None], float | None]]:
        answers: list[tuple[str | Mapping[str, float | None], float | None]] = []
        for i, text in enumerate(texts):
            sample = self._answers[text] + texts[:i].count(text) if self._uses_index else 0
            try:
                found = self._answer_of(text, sample)
                if isinstance(found, str | Mapping):
                    answers.append((found, None))
                elif found is not None:
                    label, confidence = found
                    if not isinstance(label, str):
                        raise TypeError(f"{label!r} is not a label")  # noqa: TRY301
                    answers.append((label, confidence))
            except Exception as exc:
                message = f"the answer of LoopbackLLM for {_cut(text)} failed: {exc!r}"
                raise ErrorResponse(400, message) from exc
            if found is None:
                raise ErrorResponse(400, f"LoopbackLLM has no answer for the text {_cut(text)}")
        return answers

    def _admit(self, wire: WireFormat, tokens: int) -> bytes:
        """Check the rate limit; returns the rate-limit headers, raises a 429 `ErrorResponse`."""
        if self._window is None:
            return b""
        violation = self._window.admit(tokens)
        if violation is not None:
            self.violations.append(violation)
            raise rate_limit_error(wire, self._window, violation, tokens)
        return quota_headers(wire, self._window)

    def _draw(self, texts: Sequence[str]) -> str | None:
        if self._faults is None:
            return None
        key = tuple(texts)
        attempt = self._attempts[key]
        self._attempts[key] = attempt + 1
        self._drawn += 1
        return self._faults.draw(key, attempt, self._drawn - 1)


def _unknown(path: str) -> Response:
    message = f"LoopbackLLM has no endpoint {path!r}"
    return Response(404, OPENAI.error(404, message, "unknown_url", None))


def _cut(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..")
