"""The SDKs of OpenAI and Anthropic against `LoopbackLLM`: a difference is a fault of the double."""

import io
import json
import math
from contextlib import asynccontextmanager
from typing import Literal

import anthropic
import openai
import orjson
import pytest
from pydantic import BaseModel

from bench._batch_api import Batches, BatchLLM
from testnuc.testing import Faults, LoopbackLLM
from tests.providers.test_clouds import Cloud
from tests.testing.loopback_client import FORMAT, SCHEMA, chat, message

# the SDKs alone take seconds to import
pytestmark = pytest.mark.slow

ENUM = {"type": "object", "properties": {"label": {"enum": ["delivery", "refund"]}}}
GOLD = {"Where is it?": ("delivery", 0.9), "My money back!": ("refund", 0.75)}
TEXTS = list(GOLD)


class Label(BaseModel):
    label: Literal["delivery", "refund"]
    confidence: float


@asynccontextmanager
async def openai_sdk(llm, key="k"):
    async with openai.AsyncOpenAI(api_key=key, base_url=llm.base_url, max_retries=0) as client:
        yield client


@asynccontextmanager
async def anthropic_sdk(llm, key="k"):
    url = llm.base_url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(api_key=key, base_url=url, max_retries=0) as client:
        yield client


# -- one call ------------------------------------------------------------------------------------


async def test_openai_reads_a_chat_completion():
    async with LoopbackLLM(GOLD, cache=True) as llm, openai_sdk(llm) as client:
        said = await client.chat.completions.create(**chat(TEXTS[0], response_format=FORMAT))
        (choice,) = said.choices
        assert (choice.finish_reason, choice.message.role) == ("stop", "assistant")
        assert choice.message.refusal is None
        assert json.loads(choice.message.content) == {"label": "delivery", "confidence": 0.9}
        usage = said.usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (
            llm.input_tokens,
            llm.output_tokens,
        )
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        assert usage.prompt_tokens_details.cached_tokens == 0
        assert usage.completion_tokens_details.reasoning_tokens == 0
        assert said._request_id == "req_1"
        assert (said.model, said.object) == ("m", "chat.completion")


async def test_openai_parses_structured_output_into_a_model():
    async with LoopbackLLM(GOLD) as llm, openai_sdk(llm) as client:
        said = await client.chat.completions.parse(**chat(TEXTS[1]), response_format=Label)
        assert said.choices[0].message.parsed == Label(label="refund", confidence=0.75)


async def test_openai_reads_log_probabilities():
    async with LoopbackLLM(GOLD) as llm, openai_sdk(llm) as client:
        said = await client.chat.completions.create(**chat(TEXTS[0], logprobs=True))
        (choice,) = said.choices
        tokens = choice.logprobs.content
        assert "".join(token.token for token in tokens) == choice.message.content
        assert all(token.logprob <= 0 and token.top_logprobs == [] for token in tokens)
        form = {**FORMAT, "json_schema": {"name": "answer", "schema": ENUM}}
        asked = chat(TEXTS[0], logprobs=True, top_logprobs=2, response_format=form)
        said = await client.chat.completions.create(**asked)
        top = next(t for t in said.choices[0].logprobs.content if t.token == "delivery")
        assert [other.token for other in top.top_logprobs] == ["delivery", "refund"]
        assert top.top_logprobs[1].logprob == pytest.approx(math.log(0.1))
        with pytest.raises(openai.BadRequestError, match="top_logprobs"):
            await client.chat.completions.create(**chat(TEXTS[0], top_logprobs=2))


async def test_openai_lists_models():
    async with LoopbackLLM(GOLD, model="mine") as llm, openai_sdk(llm) as client:
        assert [model.id async for model in client.models.list()] == ["mine"]
        assert (await client.models.retrieve("mine")).id == "mine"


async def test_anthropic_reads_a_message():
    async with LoopbackLLM(GOLD, cache=True) as llm, anthropic_sdk(llm) as client:
        said = await client.messages.create(**message(TEXTS[0]))
        (block,) = said.content
        assert (block.type, said.stop_reason, said.role) == ("text", "end_turn", "assistant")
        assert json.loads(block.text) == {"label": "delivery", "confidence": 0.9}
        usage = said.usage
        assert (usage.input_tokens, usage.output_tokens) == (llm.input_tokens, llm.output_tokens)
        assert usage.cache_read_input_tokens == usage.cache_creation_input_tokens == 0
        assert said._request_id == "req_1"
        assert (said.model, said.type) == ("m", "message")


async def test_anthropic_reads_the_urls_of_clouds():
    texts, model = message(TEXTS[0]), "claude-haiku-4-5@20251001"
    async with Cloud(GOLD, api_key="k", model=model) as llm:
        bedrock = anthropic.AsyncAnthropicBedrock(
            api_key="k", aws_region="us-east-1", base_url=llm.base_url.removesuffix("/v1")
        )
        vertex = anthropic.AsyncAnthropicVertex(
            access_token="k", project_id="p", region="us-east5", base_url=llm.base_url
        )
        for sdk in (bedrock, vertex):
            async with sdk as client:
                said = await client.messages.create(**{**texts, "model": model})
                assert json.loads(said.content[0].text)["label"] == "delivery"
                assert said.usage.output_tokens * llm.calls == llm.output_tokens


async def test_anthropic_reads_structured_output():
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    async with LoopbackLLM(GOLD) as llm, anthropic_sdk(llm) as client:
        said = await client.messages.create(**message(TEXTS[1]), output_config=form)
        assert json.loads(said.content[0].text)["label"] == "refund"
        parsed = await client.messages.parse(**message(TEXTS[1]), output_format=Label)
        assert parsed.parsed_output == Label(label="refund", confidence=0.75)


async def test_what_is_cut_or_refused_is_read_as_such():
    faults = Faults(schedule=["length", "refusal", "length", "refusal"], kinds=["length"])
    async with LoopbackLLM(GOLD, faults=faults) as llm:
        async with openai_sdk(llm) as client:
            cut = (await client.chat.completions.create(**chat(TEXTS[0]))).choices[0]
            refused = (await client.chat.completions.create(**chat(TEXTS[1]))).choices[0]
        assert cut.finish_reason == "length"
        assert (refused.message.content, bool(refused.message.refusal)) == (None, True)
        async with anthropic_sdk(llm) as client:
            cut = await client.messages.create(**message(TEXTS[0]))
            refused = await client.messages.create(**message(TEXTS[1]))
        assert (cut.stop_reason, refused.stop_reason) == ("max_tokens", "refusal")


# -- errors --------------------------------------------------------------------------------------

CODES = {
    "401": ("invalid_api_key", "authentication_error"),
    "404": ("model_not_found", "not_found_error"),
    "429-retry-after": ("rate_limit_exceeded", "rate_limit_error"),
    "quota": ("insufficient_quota", "invalid_request_error"),
}
FAULTS = [
    ("400", openai.BadRequestError, anthropic.BadRequestError),
    ("401", openai.AuthenticationError, anthropic.AuthenticationError),
    ("403", openai.PermissionDeniedError, anthropic.PermissionDeniedError),
    ("404", openai.NotFoundError, anthropic.NotFoundError),
    ("429-retry-after", openai.RateLimitError, anthropic.RateLimitError),
    ("quota", openai.RateLimitError, anthropic.BadRequestError),
    ("500", openai.InternalServerError, anthropic.InternalServerError),
    ("529", openai.InternalServerError, anthropic.InternalServerError),
]


@pytest.mark.parametrize(("kind", "of_openai", "of_anthropic"), FAULTS)
async def test_errors_are_those_of_the_provider(kind, of_openai, of_anthropic):
    faults = Faults(schedule=[kind] * 2, retry_after=3)
    async with LoopbackLLM(GOLD, faults=faults) as llm:
        async with openai_sdk(llm) as client:
            with pytest.raises(of_openai) as mine:
                await client.chat.completions.create(**chat(TEXTS[0]))
        async with anthropic_sdk(llm) as client:
            with pytest.raises(of_anthropic) as theirs:
                await client.messages.create(**message(TEXTS[0]))
    for error in (mine.value, theirs.value):
        assert kind == "quota" or error.status_code == int(kind[:3])
        assert error.request_id
    # the SDKs hold the whole body, or what is in its field "error"
    assert mine.value.body["message"]
    assert theirs.value.body["type"] == "error"
    assert theirs.value.body["error"]["message"]
    if kind == "403":
        # LiteLLM takes any other type for a 400
        assert mine.value.type == "request_forbidden"
    if kind in CODES:
        assert (mine.value.code, theirs.value.body["error"]["type"]) == CODES[kind]
    if kind.startswith("429"):
        assert mine.value.type == "requests"
        assert mine.value.response.headers["retry-after"] == "3"


async def test_the_sdks_retry_what_a_provider_says_may_be_retried():
    faults = Faults(schedule=["429-retry-after-ms", "500", None] * 2, retry_after=0.001)
    async with LoopbackLLM(GOLD, faults=faults) as llm:
        async with openai_sdk(llm) as client:
            again = client.with_options(max_retries=2)
            assert (await again.chat.completions.create(**chat(TEXTS[0]))).choices
        async with anthropic_sdk(llm) as client:
            again = client.with_options(max_retries=2)
            assert (await again.messages.create(**message(TEXTS[0]))).content
        assert (llm.requests, llm.calls) == (6, 2)


# -- batches -------------------------------------------------------------------------------------


def batch_file():
    lines = [
        {"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": chat(text)}
        for i, text in enumerate(TEXTS)
    ]
    return io.BytesIO(b"\n".join(map(orjson.dumps, lines)))


async def test_openai_runs_a_batch():
    batches = Batches(validation=1, polls=1)
    async with BatchLLM(GOLD, batches=batches) as llm, openai_sdk(llm) as client:
        file = await client.files.create(file=("in.jsonl", batch_file()), purpose="batch")
        assert (file.purpose, file.object) == ("batch", "file")
        batch = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        seen = [batch.status]
        while batch.status not in {"completed", "failed", "expired"}:
            batch = await client.batches.retrieve(batch.id)
            seen.append(batch.status)
        assert {"validating", "in_progress", "completed"} <= set(seen)
        assert (batch.request_counts.total, batch.request_counts.completed) == (2, 2)
        assert batch.input_file_id == file.id
        content = (await client.files.content(batch.output_file_id)).content
        answers = [orjson.loads(line) for line in content.splitlines()]
        said = {answer["custom_id"]: answer["response"]["body"]["choices"][0] for answer in answers}
        labels = [json.loads(said[str(i)]["message"]["content"])["label"] for i in range(2)]
        assert labels == ["delivery", "refund"]
        assert [one.id async for one in client.batches.list()] == [batch.id]
        gone = await client.files.delete(file.id)
        assert (gone.id, gone.deleted) == (file.id, True)


async def test_openai_cancels_a_batch():
    async with BatchLLM(GOLD, batches=Batches(polls=9)) as llm, openai_sdk(llm) as client:
        file = await client.files.create(file=("in.jsonl", batch_file()), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        cancelled = await client.batches.cancel(batch.id)
        assert cancelled.status in {"cancelling", "cancelled"}
        with pytest.raises(openai.NotFoundError):
            await client.batches.retrieve("batch_unknown")


async def test_anthropic_runs_a_batch():
    requests = [{"custom_id": f"t{i}", "params": message(text)} for i, text in enumerate(TEXTS)]
    async with (
        BatchLLM(GOLD, batches=Batches(polls=1)) as llm,
        anthropic_sdk(llm) as client,
    ):
        jobs = client.messages.batches
        batch = await jobs.create(requests=requests)
        assert (batch.type, batch.processing_status) == ("message_batch", "in_progress")
        while batch.processing_status != "ended":
            batch = await jobs.retrieve(batch.id)
        assert batch.request_counts.succeeded == 2
        assert batch.ended_at >= batch.created_at
        said = {}
        async for line in await jobs.results(batch.id):
            assert line.result.type == "succeeded"
            said[line.custom_id] = json.loads(line.result.message.content[0].text)["label"]
        assert said == {"t0": "delivery", "t1": "refund"}
        assert [one.id async for one in jobs.list()] == [batch.id]


async def test_anthropic_cancels_a_batch():
    requests = [{"custom_id": "t", "params": message(TEXTS[0])}]
    async with (
        BatchLLM(GOLD, batches=Batches(polls=9)) as llm,
        anthropic_sdk(llm) as client,
    ):
        batch = await client.messages.batches.create(requests=requests)
        cancelled = await client.messages.batches.cancel(batch.id)
        assert cancelled.processing_status == "canceling"
        assert cancelled.cancel_initiated_at is not None
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.retrieve("msgbatch_unknown")
