"""What OpenTelemetry and the log receive, and what they never do."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import testnuc
from testnuc import Limits
from testnuc.testing import Faults, LoopbackLLM
from testnuc.transport.telemetry import Telemetry
from tests.conftest import confident, messages

TEXTS = messages(12)
KEY = "secret-key-123"


class Exported:
    def __init__(self):
        self.exporter = InMemorySpanExporter()
        self.tracing = TracerProvider()
        self.tracing.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.metering = MeterProvider([self.reader])

    def spans(self, start=""):
        return [s for s in self.exporter.get_finished_spans() if s.name.startswith(start)]

    def points(self, name):
        data = self.reader.get_metrics_data()
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def everything(self):
        spans = [(s.name, dict(s.attributes), s.events, s.status.description) for s in self.spans()]
        return repr(spans) + repr(self.reader.get_metrics_data())


@pytest.fixture
def exported(monkeypatch):
    """A program that has set OpenTelemetry up."""
    exported = Exported()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: exported.tracing)
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: exported.metering)
    monkeypatch.setattr(trace, "get_tracer", exported.tracing.get_tracer)
    monkeypatch.setattr(metrics, "get_meter", exported.metering.get_meter)
    yield exported
    exported.tracing.shutdown()
    exported.metering.shutdown()


async def test_calls_are_exported_by_the_conventions_and_agree_with_usage(exported, loopback):
    async with loopback(
        LoopbackLLM(confident, api_key=KEY),
        k=3,
        sampling=testnuc.Sampling(request_options={"max_tokens": 50}),
    ) as (llm, nuc):
        with exported.tracing.get_tracer("app").start_as_current_span("job") as job:
            await nuc.classify_many(TEXTS)
        usage = nuc.usage
        port = int(llm.base_url.removesuffix("/v1").rpartition(":")[2])
    chats = exported.spans("chat test")
    assert len(chats) == usage.calls == 12
    asked = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "test",
        "server.address": "127.0.0.1",
        "server.port": port,
    }
    for span in chats:
        assert span.kind is trace.SpanKind.CLIENT
        assert asked.items() <= dict(span.attributes).items()
        assert span.attributes["gen_ai.request.temperature"] == 0.7
        assert span.attributes["gen_ai.request.max_tokens"] == 50
        assert span.attributes["testnuc.sends"] == 1
    tokens = "gen_ai.usage.input_tokens"
    assert sum(span.attributes[tokens] for span in chats) == usage.input_tokens
    # calls are made by workers that serve many: each is in the trace of who wanted it
    (many,) = exported.spans("testnuc.classify_many")
    assert many.parent.span_id == job.get_span_context().span_id
    # the calls are made while texts are embedded
    (prepare,) = exported.spans("testnuc.prepare")
    assert [span.parent.span_id for span in chats] == [prepare.context.span_id] * 12
    assert many.attributes["testnuc.texts"] == 12
    assert many.attributes["testnuc.calls"] == 12
    (embedding,) = exported.spans("embeddings")
    assert embedding.attributes["gen_ai.operation.name"] == "embeddings"
    (duration,) = [
        p
        for p in exported.points("gen_ai.client.operation.duration")
        if p.attributes["gen_ai.operation.name"] == "chat"
    ]
    assert duration.count == 12
    assert dict(duration.attributes) == asked
    assert tuple(duration.explicit_bounds[:3]) == (0.01, 0.02, 0.04)
    kinds = {
        p.attributes["gen_ai.token.type"]: p.sum
        for p in exported.points("gen_ai.client.token.usage")
    }
    assert kinds == {"input": usage.input_tokens, "output": usage.output_tokens}
    assert [p.value for p in exported.points("testnuc.client.texts")] == [12]


async def test_two_runs_that_share_workers_keep_their_traces(exported, loopback):
    import asyncio

    async with loopback(
        LoopbackLLM(confident, latency=0.005), k=0, limits=Limits(concurrency=2)
    ) as (_, nuc):
        await asyncio.gather(nuc.classify_many(TEXTS[:6]), nuc.classify_many(TEXTS[6:]))
    parents = [span.context.span_id for span in exported.spans("testnuc.prepare")]
    chats = [span.parent.span_id for span in exported.spans("chat")]
    assert sorted(map(chats.count, parents)) == [6, 6]


async def test_failures_are_exported_by_their_kind_alone(exported, loopback, caplog):
    caplog.set_level(logging.INFO, "testnuc")
    faults = Faults(schedule=["500", *["refusal"] * 30], kinds=("500", "refusal"))
    retry = testnuc.RetryPolicy(initial_wait=0.001, max_wait=0.001)
    async with loopback(
        LoopbackLLM(confident, faults=faults, api_key=KEY), k=0, limits=Limits(retry=retry)
    ) as (_, nuc):
        results = await nuc.classify_many(TEXTS)
        assert len(results.errors) == len(TEXTS)
    spans = exported.spans("chat")
    assert {span.attributes["error.type"] for span in spans} == {"RefusalError"}
    assert all(span.status.status_code is trace.StatusCode.ERROR for span in spans)
    assert max(span.attributes["testnuc.sends"] for span in spans) == 2
    # an answer that cannot be used was billed all the same
    assert sum(p.count for p in exported.points("gen_ai.client.token.usage")) == 24
    (point,) = [
        p
        for p in exported.points("gen_ai.client.operation.duration")
        if "error.type" in p.attributes
    ]
    assert point.count == len(TEXTS)
    said = exported.everything() + caplog.text
    assert KEY not in said
    assert not any(text in said for text in TEXTS)
    assert "12 failed" in caplog.text
    assert [r.levelname for r in caplog.records if r.name == "testnuc.client.runs"] == ["WARNING"]


async def test_a_wrong_key_is_exported_and_the_key_never_is(exported, loopback, caplog):
    caplog.set_level(logging.DEBUG, "testnuc")
    async with loopback(LoopbackLLM(confident, api_key="another"), k=0) as (_, nuc):
        with pytest.raises(testnuc.errors.AuthenticationError):
            await nuc.classify_many(TEXTS)
    assert {s.attributes["error.type"] for s in exported.spans("chat")} <= {"401", "CancelledError"}
    assert "error.type" in exported.spans("testnuc.classify_many")[0].attributes
    assert KEY not in exported.everything() + caplog.text
    assert "AuthenticationError" in caplog.text


async def test_one_text_is_a_trace_too(exported, loopback):
    async with loopback(k=0) as (_, nuc):
        await nuc.classify(TEXTS[0])
    (one,) = exported.spans("testnuc.classify")
    (chat,) = exported.spans("chat")
    assert chat.parent.span_id == one.context.span_id
    assert one.attributes["testnuc.voters"] == 1


def test_servers_are_named_as_the_conventions_name_them(exported):
    for url, name in (
        ("https://api.openai.com/v1/chat/completions", "openai"),
        ("https://me.openai.azure.com/openai", "azure.ai.openai"),
        ("https://user:word@api.groq.com/openai/v1", "groq"),
        ("https://notapi.groq.com.evil.example/v1", "openai"),
        ("http://[broken", "openai"),
    ):
        telemetry = Telemetry("openai", "m", url)
        assert telemetry._chat["gen_ai.provider.name"] == name
        assert "word" not in repr(telemetry._chat)


def test_without_an_sdk_a_client_has_no_telemetry(client_of):
    # the API is imported here, and its providers do nothing
    assert Telemetry.of("openai", "m", None) is None


@pytest.mark.slow
def test_nothing_is_imported_for_who_does_not_trace():
    code = (
        "import asyncio, sys, testnuc\n"
        "from testnuc.testing import HashEmbedder, LoopbackLLM\n"
        "async def main():\n"
        "    async with LoopbackLLM({'a': 'x'}) as llm, testnuc.TestNUC(['x', 'y'], 'openai/m',\n"
        "        base_url=llm.base_url, embedder=HashEmbedder(), k=0) as nuc:\n"
        "        await nuc.classify('a')\n"
        "asyncio.run(main())\n"
        "assert not [m for m in sys.modules if m.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_the_log_is_silent_until_its_user_wants_it():
    handlers = logging.getLogger("testnuc").handlers
    assert any(isinstance(handler, logging.NullHandler) for handler in handlers)


async def test_a_run_is_logged_with_what_it_cost(loopback, caplog):
    caplog.set_level(logging.INFO, "testnuc")
    async with loopback(k=2) as (_, nuc):
        await nuc.classify_many([*TEXTS, TEXTS[0]])
    (record,) = [r for r in caplog.records if r.name == "testnuc.client.runs"]
    assert record.levelno == logging.INFO
    assert "13 texts in" in record.message
    assert ", 12 calls" in record.message


def run(*arguments):
    return subprocess.run(
        [sys.executable, *arguments], check=True, timeout=300, capture_output=True, text=True
    ).stdout


@pytest.mark.slow
def test_the_example_of_the_docs_prints_what_they_say():
    text = (Path(__file__).parents[2] / "docs" / "observability.md").read_text(encoding="utf-8")
    _, example = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (said,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    # in a process of its own: a provider is set once for all
    assert run("-c", example) == said


@pytest.mark.slow
def test_the_benchmark_runs():
    lines = run("-m", "bench", "telemetry", "--repeats", "1").splitlines()
    assert sum(line.startswith("| ") for line in lines) == 5
