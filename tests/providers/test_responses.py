"""OpenAI's Responses API: what is sent, what is read, and which models use it."""

from __future__ import annotations

import orjson
import pytest

from testnuc.batch.apis import OpenAIBatches
from testnuc.errors import EmptyReplyError, RefusalError, TruncatedReplyError, UnknownModelError
from testnuc.protocols import TokenUsage
from testnuc.providers.openai import OpenAI
from tests.providers.chat_bodies import KEY, LOCAL, adapts, refuse, request, sent

ONLY = "This model is only supported in v1/responses and not in v1/chat/completions."


def response(text='{"label": "refund", "confidence": 0.9}', **more):
    part = {"type": "output_text", "text": text, "annotations": []}
    if "logprobs" in more:
        part["logprobs"] = more.pop("logprobs")
    if "refusal" in more:
        part = {"type": "refusal", "refusal": more.pop("refusal")}
    output = [
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "status": "completed", "content": [part]},
    ]
    usage = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 20},
        "output_tokens": 84,
        "output_tokens_details": {"reasoning_tokens": 64},
        "total_tokens": 184,
    }
    return orjson.dumps(
        {"id": "resp_1", "status": "completed", "output": output, "usage": usage, **more}
    )


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("gpt-5-codex", "responses"),
        ("o1-pro-2025-03-19", "responses"),
        ("gpt-5.2-pro", "responses"),
        ("o4-mini-deep-research", "responses"),
        ("gpt-5-mini", "chat/completions"),
        ("o3", "chat/completions"),
    ],
)
def test_models_that_need_it_by_name(model, path):
    assert OpenAI(model, api_key=KEY).url == f"https://api.openai.com/v1/{path}"
    assert OpenAI(model, base_url=LOCAL).url == f"{LOCAL}/chat/completions"
    assert OpenAI(model, api_key=KEY, responses=False).url.endswith("/chat/completions")
    assert OpenAI(model, api_key=KEY, responses=True).url.endswith("/responses")


def test_the_body():
    provider = OpenAI("gpt-5.1", api_key=KEY, responses=True, prompt_cache_key="k")
    asked = request(options={"max_tokens": 900, "text": {"verbosity": "low"}})
    body = sent(provider, asked)
    assert body["instructions"] == asked.task.system
    assert body["input"] == [{"role": "user", "content": asked.user}]
    assert body["reasoning"] == {"effort": "none"}
    assert body["text"]["verbosity"] == "low"
    form = body["text"]["format"]
    assert (form["type"], form["name"], form["strict"]) == ("json_schema", "answer", True)
    assert form["schema"]["properties"]["label"]["enum"] == list(asked.task.labels)
    assert (body["max_output_tokens"], body["store"], body["temperature"]) == (900, False, 0.7)
    assert body["prompt_cache_key"] == "k"
    assert not {"messages", "max_tokens", "response_format", "reasoning_effort"} & body.keys()
    assert provider.reserve(asked)[1] == 900


def test_the_answer():
    provider = OpenAI("gpt-5.1", api_key=KEY, responses=True)
    reply = provider.decode(request(), response(service_tier="flex"))
    assert (reply.answers[0].label, reply.answers[0].confidence) == ("refund", 0.9)
    assert reply.usage == TokenUsage(100, 84, 64, 20, "flex")
    assert reply.request_id == "resp_1"
    with pytest.raises(RefusalError, match="cannot"):
        provider.decode(request(), response(refusal="I cannot"))
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    with pytest.raises(TruncatedReplyError) as caught:
        provider.decode(request(), response('{"label": "re', **cut))
    assert caught.value.usage.output_tokens == 84
    with pytest.raises(RefusalError):
        provider.decode(request(), response("", incomplete_details={"reason": "content_filter"}))
    with pytest.raises(EmptyReplyError):
        provider.decode(request(), b'{"id": "resp_1", "output": [], "usage": null}')


@pytest.mark.parametrize("of", [{"role": "assistant", "phase": "commentary"}, {"role": "user"}])
def test_other_messages_beside_the_answer_are_not_read(of):
    body = orjson.loads(response())
    part = {"type": "output_text", "text": '{"label": "delivery", "confidence": 0.2}'}
    body["output"].insert(1, {"type": "message", "content": [part], **of})
    body["output"][-1]["phase"] = "final_answer"
    provider = OpenAI("gpt-5.3-codex", api_key=KEY)
    assert provider.decode(request(), orjson.dumps(body)).answers[0].label == "refund"


def test_log_probabilities():
    provider = OpenAI("gpt-4.1", api_key=KEY, responses=True)
    asked = request(confidence="logprobs")
    assert sent(provider, asked)["include"] == ["message.output_text.logprobs"]
    tokens = [{"token": t, "logprob": p} for t, p in (('{"label": "', 0.0), ("refund", -0.5))]
    tokens += [{"token": '"}', "logprob": 0.0}]
    reply = provider.decode(asked, response('{"label": "refund"}', logprobs=tokens))
    assert reply.answers[0].confidence == pytest.approx(0.6065, abs=1e-3)


def test_the_server_says_so():
    provider, asked = OpenAI("my-model", base_url=LOCAL), request()
    chat = provider.encode(asked)
    error = refuse(provider, ONLY, 404)
    assert isinstance(error, UnknownModelError)
    assert adapts(provider, error)
    assert provider.url == f"{LOCAL}/responses"
    assert provider.encode(asked) != chat
    assert not adapts(provider, error)  # it is not a matter of the endpoint, then
    # structured output is stepped down there, too
    assert adapts(provider, refuse(provider, "Unsupported: 'text.format' of type 'json_schema'"))
    assert sent(provider, asked)["text"]["format"] == {"type": "json_object"}
    fixed = OpenAI("my-model", base_url=LOCAL, responses=False)
    assert not adapts(fixed, refuse(fixed, ONLY, 404))


def test_batches_name_the_endpoint():
    for responses, endpoint in ((True, b"/v1/responses"), (False, b"/v1/chat/completions")):
        batches = OpenAIBatches(OpenAI("m", base_url=LOCAL, responses=responses), None)
        assert b'"url":"%s"' % endpoint in batches.line("id", b"{}")
