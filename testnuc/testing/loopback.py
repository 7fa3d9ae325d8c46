"""A local HTTP server that acts as an LLM provider."""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Literal, cast, get_args

import orjson

from testnuc._base.display import shown
from testnuc.prompts.writing import samples_in
from testnuc.protocols import TokenUsage
from testnuc.testing.answers import (
    AnswerOf,
    Content,
    Latency,
    Stated,
    answer_function,
    compose,
    latency_function,
)
from testnuc.testing.faults import LOST_KINDS, Faults, RateLimitWindow, Violation
from testnuc.testing.formats import (
    ANTHROPIC,
    OPENAI,
    ErrorResponse,
    Prompt,
    WireFormat,
    count_tokens,
    error_of_fault,
    quota_headers,
)
from testnuc.testing.server import Delivery, HTTPRequest, Response, Server, json_response

# providers cache prompts of at least this many tokens, in multiples of the step
_CACHE_MINIMUM = 1024
_CACHE_STEP = 128
_NO_SYSTEM = "Unsupported value: 'messages[0].role' does not support 'system' with this model."


class LoopbackLLM(Server):
    """An LLM provider on 127.0.0.1, for tests and benchmarks of code that uses testnuc.

    Serves OpenAI's ``/v1/chat/completions`` and Anthropic's ``/v1/messages`` on one port, and
    answers the texts in a prompt with canned labels::

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
    rate_limit : Limits or mapping, optional
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
    record : int
        Number of latest requests in `bodies` and `headers`.
    port : int
        0 binds a free port.

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
        record: int = 0,
        port: int = 0,
    ) -> None:
        super().__init__(port)
        self._answer_of, self._uses_index = answer_function(answer)
        self._delay = latency_function(latency)
        self._faults = faults
        self._window = None if rate_limit is None else RateLimitWindow(rate_limit)
        self._api_key = api_key
        self._model = model
        self._structured = structured
        self._rejects = tuple(rejects)
        self._usage = usage
        self._cache = cache
        self._record = record
        self.reset()

    def reset(self) -> None:
        """Set all counts to zero and restart the fault schedule; the rate limit is not reset."""
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
        self.violations: list[Violation] = []
        #: The latest requests, parsed, and their headers with lower-case names.
        self.bodies: deque[dict[str, Any]] = deque(maxlen=self._record)
        self.headers: deque[dict[str, str]] = deque(maxlen=self._record)
        self.peak = self.in_flight
        self.abandoned = 0
        self._attempts: Counter[tuple[str, ...]] = Counter()
        self._answers: Counter[str] = Counter()
        self._drawn = 0
        self._seen: set[str] = set()

    def stats(self) -> dict[str, Any]:
        """Return all counts as JSON values."""
        numbers = {n: v for n, v in vars(self).items() if isinstance(v, int) and n[0] != "_"}
        more = {"in_flight": self.in_flight, "violations": len(self.violations)}
        return numbers | more | {"faults": dict(self.faults)}

    def respond(self, call: HTTPRequest) -> Response:
        """Return the response to a request."""
        if call.path.endswith("/chat/completions"):
            wire: WireFormat = OPENAI
        elif call.path.endswith("/messages"):
            wire = ANTHROPIC
        else:
            return self._respond_other(call)
        self.requests += 1
        request_id = f"req_{self.requests}"
        try:
            self._check_key(call)
            response = self._answer(wire, call)
        except ErrorResponse as error:
            response = error.response(wire)
        response.headers[wire.request_id] = request_id
        return response

    def _respond_other(self, call: HTTPRequest) -> Response:
        name = self._model or "loopback"
        model = {"id": name, "object": "model", "created": 1_700_000_000, "owned_by": "testnuc"}
        path = call.path.removesuffix("/")
        if path == "/v1/models":
            return json_response({"object": "list", "data": [model]})
        if path == f"/v1/models/{name}":
            return json_response(model)
        if path == "/stats":
            return json_response(self.stats())
        message = f"LoopbackLLM has no endpoint {path!r}"
        return ErrorResponse(404, message, code="unknown_url").response(OPENAI)

    def _answer(self, wire: WireFormat, call: HTTPRequest) -> Response:
        body = self._body(call)
        prompt = _prompt(wire, call, body)
        self._check(prompt, body)
        texts = _texts(prompt)
        answers = self._answers_of(texts)
        write = partial(
            compose, answers, confidence=prompt.confidence, prose=self._structured == "ignore"
        )
        content, limits = write(), {}
        if self._window is not None:
            total = prompt.tokens + count_tokens(len(content.text))
            limits = self._admit(wire, self._window, total)
        fault = self._draw(texts)
        if fault is not None and self._faults is not None:
            self.faults[fault] += 1
            error = error_of_fault(fault, wire, self._faults.retry_after)
            if error is not None:
                error.headers |= limits
                raise error
            content = write(fault=fault)
        if self._uses_index and fault not in LOST_KINDS:
            self._answers.update(texts)
        known = self._usage and fault not in {"missing-usage", "truncated"}
        tokens = self._tokens(prompt, content) if known else None
        data = wire.success(self.requests, prompt, content, tokens)
        response = Response(200, data, limits, delay=self._delay())
        response.delivered = partial(self._count, texts, tokens)
        if fault == "truncated":
            response.body = data[: len(data) // 2]
        elif fault in get_args(Delivery) and self._faults is not None:
            response.delivery = cast("Delivery", fault)
            faults = self._faults
            durations = {"refused": faults.refuse, "stalled": faults.stall, "slow": faults.slow}
            response.duration = durations.get(response.delivery, 0.0)
        return response

    def _check_key(self, call: HTTPRequest) -> None:
        if self._api_key is not None:
            names = ("authorization", "x-api-key", "api-key")
            sent = [call.headers.get(name, "").removeprefix("Bearer ") for name in names]
            if self._api_key not in sent:
                raise ErrorResponse(401, "Incorrect API key provided.")

    def _body(self, call: HTTPRequest) -> dict[str, Any]:
        try:
            body = orjson.loads(call.body)
        except orjson.JSONDecodeError as exc:
            raise ErrorResponse(400, f"the body is not JSON: {exc}") from exc
        if not isinstance(body, dict):
            raise ErrorResponse(400, "the body is not a JSON object")
        if self._record:
            self.bodies.append(body)
            self.headers.append({name.lower(): value for name, value in call.headers.items()})
        return body

    def _check(self, prompt: Prompt, body: dict[str, Any]) -> None:
        if self._model is not None and prompt.model != self._model:
            raise ErrorResponse(404, f"The model `{prompt.model}` does not exist.", param="model")
        name = prompt.structured
        if name and self._structured is False:
            message = f"Invalid parameter: '{name}' is not supported with this model."
            raise ErrorResponse(400, message, param=name)
        for name in self._rejects:
            if name == "system" and prompt.system:
                place = "messages[0].role"
                raise ErrorResponse(400, _NO_SYSTEM, code="unsupported_value", param=place)
            if name in body:
                message = f"Unsupported parameter: '{name}' is not supported with this model."
                raise ErrorResponse(400, message, code="unsupported_parameter", param=name)

    def _answers_of(self, texts: Sequence[str]) -> list[Stated]:
        answers: list[Stated] = []
        for i, text in enumerate(texts):
            sample = self._answers[text] + texts[:i].count(text) if self._uses_index else 0
            try:
                found = self._answer_of(text, sample)
                if found is not None:
                    label, confidence = (found, None) if isinstance(found, str | Mapping) else found
                    if not isinstance(label, str | Mapping):
                        raise TypeError(f"{label!r} is not a label")  # noqa: TRY301
                    answers.append((label, confidence))
            except Exception as exc:
                message = f"the answer of LoopbackLLM for {shown(text)} failed: {exc!r}"
                raise ErrorResponse(400, message) from exc
            if found is None:
                raise ErrorResponse(400, f"LoopbackLLM has no answer for the text {shown(text)}")
        return answers

    def _admit(self, wire: WireFormat, window: RateLimitWindow, tokens: int) -> dict[str, str]:
        """Check the rate limit; returns the rate-limit headers or raises a 429."""
        violation = window.admit(tokens)
        headers = quota_headers(wire, window)
        if violation is not None:
            self.violations.append(violation)
            limit = f"limit {violation.limit} per minute"
            message = f"Rate limit reached for {violation.what}: {limit}."
            headers |= wire.retry_headers(window.wait(tokens))
            raise ErrorResponse(429, message, headers=headers)
        return headers

    def _draw(self, texts: Sequence[str]) -> str | None:
        if self._faults is None:
            return None
        key = tuple(texts)
        attempt = self._attempts[key]
        self._attempts[key] = attempt + 1
        self._drawn += 1
        return self._faults.draw(key, attempt, self._drawn - 1)

    def _tokens(self, prompt: Prompt, content: Content) -> TokenUsage:
        output = count_tokens(len(content.text))
        system = count_tokens(len(prompt.system))
        if not (self._cache and prompt.cached) or system < _CACHE_MINIMUM:
            return TokenUsage(prompt.tokens, output)
        system -= system % _CACHE_STEP
        if prompt.system in self._seen:
            return TokenUsage(prompt.tokens, output, cached_tokens=system)
        self._seen.add(prompt.system)
        return TokenUsage(prompt.tokens, output, cache_write_tokens=system)

    def _count(self, texts: Sequence[str], tokens: TokenUsage | None) -> None:
        self.calls += 1
        self.texts += len(texts)
        self.asked.update(texts)
        if tokens is not None:
            self.input_tokens += tokens.input_tokens
            self.output_tokens += tokens.output_tokens
            self.cached_tokens += tokens.cached_tokens


def _prompt(wire: WireFormat, call: HTTPRequest, body: dict[str, Any]) -> Prompt:
    try:
        invalid = wire.invalid(body, call.headers.get("anthropic-version"))
        if invalid is None:
            return wire.prompt(body)
    except (AttributeError, KeyError, StopIteration, TypeError) as exc:
        invalid = f"the request is malformed: {exc!r}"
    raise ErrorResponse(400, invalid)


def _texts(prompt: Prompt) -> list[str]:
    try:
        texts = samples_in(prompt.user)
    except ValueError as exc:
        raise ErrorResponse(400, f"LoopbackLLM cannot parse the texts: {exc}") from exc
    if not texts:
        raise ErrorResponse(400, "LoopbackLLM found no text in the prompt")
    return texts
