"""Traces and metrics with OpenTelemetry, if the program has set it up (extra ``otel``).

Names follow the semantic conventions for generative AI: a span and a duration for every chat and
embedding, tokens as billed. Active only in a program that has imported OpenTelemetry and configured
a provider; otherwise nothing of it is imported here, and a client has no `Telemetry`. Spans and
metrics contain no texts, prompts, answers or keys.
"""

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Self
from urllib.parse import urlsplit

from testnuc.protocols import Reply, Request, TokenUsage

_SCOPE = "testnuc"
#: Bucket boundaries of the conventions.
_TOKENS = [4**i for i in range(14)]
_SECONDS = [0.01 * 2**i for i in range(14)]
#: Servers with OpenAI's protocol -> their names in the conventions.
_SERVERS = {
    "openai.azure.com": "azure.ai.openai",
    "services.ai.azure.com": "azure.ai.inference",
    "api.deepseek.com": "deepseek",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral_ai",
    "api.perplexity.ai": "perplexity",
    "api.x.ai": "x_ai",
}
_PICO = 10**12
_REFUSED = 400

#: Attributes that differ from call to call: not dimensions of metrics.
_OF_SPANS = ("testnuc.", "gen_ai.output.", "gen_ai.request.t", "gen_ai.request.max")


def operation(
    telemetry: "Telemetry | None", name: str, **facts: Any
) -> contextlib.AbstractContextManager[Any]:
    """Return a context manager for an operation of the client, such as ``"classify_many"``.

    Its ``set`` adds attributes, each named ``testnuc.<fact>``.
    """
    return _SILENT if telemetry is None else telemetry.operation(name, facts)


def context() -> Any:
    """Return the present trace context; None: this program does not trace."""
    module = sys.modules.get("opentelemetry.context")
    return None if module is None else module.get_current()


def attach(found: Any) -> None:
    """Continue in the trace context of another task, until the next one is attached."""
    sys.modules["opentelemetry.context"].attach(found)


def _is_set_up(provider: Any) -> bool:
    """Whether a provider is more than the no-op of OpenTelemetry's API without an SDK."""
    return not type(provider).__module__.startswith(
        ("opentelemetry.trace", "opentelemetry.metrics")
    )


class Telemetry:
    """Traces and metrics of one client; without `url`, its model is in this process."""

    def __init__(self, provider: str, model: str, url: str | None) -> None:
        from opentelemetry import metrics, trace

        self._trace: Any = trace
        self._tracer = trace.get_tracer(_SCOPE)
        meter = metrics.get_meter(_SCOPE)
        self._duration = meter.create_histogram(
            "gen_ai.client.operation.duration",
            unit="s",
            description="GenAI operation duration.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self._cost = meter.create_counter(
            "testnuc.client.cost", unit="USD", description="Cost of calls by the price list."
        )
        self._texts = meter.create_counter(
            "testnuc.client.texts", unit="{text}", description="Texts that were labeled, or not."
        )
        server = _server(url)
        host = server.get("server.address", "")
        ends = _SERVERS if provider == "openai" else {}
        known = [name for end, name in ends.items() if f".{host}".endswith(f".{end}")]
        self._chat = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": known[0] if known else provider,
            "gen_ai.request.model": model,
            **server,
        }
        kinds = trace.SpanKind
        self._kind = kinds.INTERNAL if url is None else kinds.CLIENT

    @classmethod
    def of(cls, provider: str, model: str, url: str | None) -> Self | None:
        """Return None if the program has no provider of traces or metrics at present.

        A program with one has imported OpenTelemetry, so others do not wait for its import.
        """
        trace = sys.modules.get("opentelemetry.trace")
        metrics = sys.modules.get("opentelemetry.metrics")
        listens = (trace is not None and _is_set_up(trace.get_tracer_provider())) or (
            metrics is not None and _is_set_up(metrics.get_meter_provider())
        )
        return cls(provider, model, url) if listens else None

    @contextlib.contextmanager
    def operation(self, name: str, facts: Mapping[str, Any]) -> "Iterator[_Operation]":
        """Trace an operation of the client; see the function of that name."""
        with self._span(f"testnuc.{name}", {}, self._trace.SpanKind.INTERNAL) as span:
            operation = _Operation(span)
            operation.set(**facts)
            yield operation

    @contextlib.contextmanager
    def chat(self, request: Request) -> "Iterator[_Chat]":
        """Trace a call, with all attempts and waits."""
        task = request.task
        asked: dict[str, Any] = {**self._chat, "testnuc.texts": len(request.texts)}
        if self._kind is self._trace.SpanKind.CLIENT:
            asked["gen_ai.output.type"] = "json"
            most = task.options.get("max_tokens", task.options.get("max_completion_tokens"))
            sent = {"temperature": task.temperature, "top_p": task.top_p, "max_tokens": most}
            for name, value in sent.items():
                if isinstance(value, int | float):
                    asked[f"gen_ai.request.{name}"] = value
        with self._span(f"chat {self._chat['gen_ai.request.model']}", asked, self._kind) as span:
            yield _Chat(span)

    @contextlib.contextmanager
    def embeddings(self, name: str, texts: int) -> Iterator[Any]:
        """Trace a batch of embeddings."""
        maker, _, model = name.rpartition("/")
        remote = maker == "openai"
        asked = {
            "gen_ai.operation.name": "embeddings",
            "gen_ai.provider.name": maker if remote else "local",
            "gen_ai.request.model": model if remote else name,
            "testnuc.texts": texts,
        }
        kind = self._trace.SpanKind.CLIENT if remote else self._trace.SpanKind.INTERNAL
        with self._span(f"embeddings {asked['gen_ai.request.model']}", asked, kind) as span:
            yield span

    def billed(self, usage: TokenUsage | None, pico_usd: int | None) -> None:
        """Count tokens and cost of an answer, usable or not."""
        if usage is not None:
            for kind, tokens in (("input", usage.input_tokens), ("output", usage.output_tokens)):
                self._tokens.record(tokens, {**self._chat, "gen_ai.token.type": kind})
        if pico_usd:
            self._cost.add(pico_usd / _PICO, self._chat)

    def texts(self, outcome: str, number: int) -> None:
        """Count texts by outcome: ``"labeled"`` or ``"unlabeled"``."""
        if number:
            self._texts.add(number, {"testnuc.outcome": outcome})

    @contextlib.contextmanager
    def _span(self, name: str, asked: Mapping[str, Any], kind: Any) -> Iterator[Any]:
        started = time.perf_counter()
        metered = {k: v for k, v in asked.items() if not k.startswith(_OF_SPANS)}
        # without the error message: it can hold a text
        with self._tracer.start_as_current_span(
            name, kind=kind, attributes=asked, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except BaseException as error:
                # both have few values
                status = getattr(error, "status_code", None)
                said = isinstance(status, int) and status >= _REFUSED
                metered["error.type"] = str(status) if said else type(error).__name__
                span.set_attribute("error.type", metered["error.type"])
                span.set_status(self._trace.StatusCode.ERROR)
                raise
            finally:
                # operations of the client have nothing but a span
                if asked:
                    self._duration.record(time.perf_counter() - started, metered)


class _Operation:
    def __init__(self, span: Any = None) -> None:
        self._span = span

    def set(self, **facts: Any) -> None:
        """Add attributes, except those that are None: unknown."""
        for name, value in facts.items():
            if self._span is not None and value is not None:
                self._span.set_attribute(f"testnuc.{name}", value)


#: Without telemetry; created once, because it is entered with every call.
_SILENT = contextlib.nullcontext(_Operation())


class _Chat(_Operation):
    def answered(self, reply: Reply, sends: int) -> None:
        self.set(sends=sends)
        usage = reply.usage
        if usage is not None:
            self._span.set_attribute("gen_ai.usage.input_tokens", usage.input_tokens)
            self._span.set_attribute("gen_ai.usage.output_tokens", usage.output_tokens)
            if usage.cached_tokens:
                self._span.set_attribute(
                    "gen_ai.usage.cache_read.input_tokens", usage.cached_tokens
                )
        failed = [answer for answer in reply.answers if isinstance(answer, Exception)]
        self.set(unreadable=len(failed) or None)


def _server(url: str | None) -> dict[str, Any]:
    """Return the server's attributes, without credentials of its URL."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(url or "")
        port = parts.port or (80 if parts.scheme == "http" else 443)
        return {"server.address": parts.hostname, "server.port": port} if parts.hostname else {}
    return {}
