"""Messages: what is sent, and what answers mean."""

import orjson
import pytest

from testnuc.errors import (
    AuthenticationError,
    BadRequestError,
    ConfigurationError,
    EmptyReplyError,
    InvalidInputError,
    QuotaExceededError,
    RateLimitedError,
    RefusalError,
    ServerError,
    TruncatedReplyError,
    UnknownModelError,
    UnreadableReplyError,
)
from testnuc.labels import LabelSet
from testnuc.prompts.writing import system_prompt, user_prompt
from testnuc.protocols import Answer, Request, Task, TokenUsage, WireProvider
from testnuc.providers import resolve
from testnuc.providers.anthropic import Anthropic
from tests.providers import chat_bodies
from tests.providers.chat_bodies import adapts

KEY = "sk-ant-test-0123456789"
LABELS = ("refund", 'say "no"')
LOCAL = "http://localhost:8000"


def request(n=1, labels=LABELS, **more):
    texts = tuple(f"text {i}" for i in range(n))
    task = Task(system_prompt(LabelSet(labels)), tuple(labels), **more)
    return Request(task, user_prompt(texts), texts)


def sent(provider, asked=None, **more):
    return chat_bodies.sent(provider, asked or request(**more))


def refuse(provider, message, status=400, kind="invalid_request_error"):
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    return provider.error(status, {"request-id": "req_1"}, orjson.dumps(body))


def message(text='{"label": "refund", "confidence": 0.9}', stop="end_turn", **more):
    usage = {
        "input_tokens": 10,
        "output_tokens": 7,
        "cache_read_input_tokens": 64,
        "cache_creation_input_tokens": 32,
    }
    content = [{"type": "thinking", "thinking": "{}"}, {"type": "text", "text": text}]
    body = {"id": "msg_1", "type": "message", "content": content, "stop_reason": stop}
    return orjson.dumps({**body, "usage": usage, **more})


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        (None, "https://api.anthropic.com/v1/messages"),
        ("https://api.anthropic.com/", "https://api.anthropic.com/v1/messages"),
        ("https://api.anthropic.com/v1/", "https://api.anthropic.com/v1/messages"),
        (LOCAL + "/v1/messages", LOCAL + "/v1/messages"),
        ("https://gate.example/anthropic", "https://gate.example/anthropic/v1/messages"),
    ],
)
def test_urls(base_url, url):
    provider = Anthropic("m", base_url=base_url, api_key=KEY)
    assert provider.url == url
    assert provider.identity + "/messages" == url


def test_keys_and_headers(monkeypatch):
    with pytest.raises(ConfigurationError, match="ANTHROPIC_API_KEY"):
        Anthropic("m")
    provider = resolve("anthropic/claude-haiku-4-5", api_key=KEY)
    assert isinstance(provider, WireProvider)
    assert provider.headers == {
        "Content-Type": "application/json",
        "anthropic-version": "2023-06-01",
        "x-api-key": KEY,
    }
    assert KEY not in repr(provider)
    assert "x-api-key" not in Anthropic("m", base_url=LOCAL).headers
    monkeypatch.setenv("ANTHROPIC_API_KEY", "from-environment")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", LOCAL)
    provider = Anthropic("m")
    assert provider.headers["x-api-key"] == "from-environment"
    assert provider.identity == LOCAL + "/v1"


def test_body():
    asked = request()
    provider = Anthropic("claude-haiku-4-5", api_key=KEY)
    body = sent(provider, asked)
    assert body["system"] == [
        {"type": "text", "text": asked.task.system, "cache_control": {"type": "ephemeral"}}
    ]
    assert body["messages"] == [{"role": "user", "content": asked.user}]
    assert body["temperature"] == 0.7
    assert "top_p" not in body  # refused beside a temperature
    form = body["output_config"]["format"]
    assert form["type"] == "json_schema"
    assert form["schema"]["properties"]["label"]["enum"] == list(LABELS)
    assert provider.reserve(asked)[1] == body["max_tokens"]


def test_the_prompt_cache_can_last_an_hour():
    provider = Anthropic("claude-haiku-4-5", api_key=KEY, cache_ttl="1h")
    marked = sent(provider, request())["system"][0]
    assert marked["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    with pytest.raises(InvalidInputError, match="cache_ttl is '2h'; choose from 5m, 1h"):
        Anthropic("m", api_key=KEY, cache_ttl="2h")


def test_top_p_is_sent_where_it_says_something():
    body = sent(Anthropic("m", base_url=LOCAL), temperature=None, top_p=0.9)
    assert body["top_p"] == 0.9
    assert "temperature" not in body


@pytest.mark.parametrize(
    ("model", "samples"),
    [
        ("claude-3-5-haiku-20241022", True),
        ("claude-sonnet-4-20250514", True),
        ("claude-opus-4-6", True),
        ("claude-haiku-4-5-20251001", True),
        ("claude-opus-4-7", False),
        ("claude-opus-4.8", False),
        ("claude-sonnet-5", False),
        ("my-own", True),
    ],
)
def test_newer_models_get_no_temperature(model, samples):
    assert ("temperature" in sent(Anthropic(model, base_url=LOCAL))) is samples


def test_thinking():
    tight = sent(Anthropic("m", base_url=LOCAL))["max_tokens"]
    options = {"thinking": {"type": "enabled", "budget_tokens": 2000}}
    body = sent(Anthropic("m", base_url=LOCAL), options=options)
    assert body["max_tokens"] == tight + 2000
    assert "temperature" not in body
    body = sent(Anthropic("m", base_url=LOCAL), options={"thinking": {"type": "adaptive"}})
    assert body["max_tokens"] > tight + 4000
    body = sent(Anthropic("m", base_url=LOCAL), options={"thinking": {"type": "disabled"}})
    assert body["max_tokens"] == tight


def test_options_are_merged():
    options = {"output_config": {"effort": "low"}, "max_tokens": 9}
    body = sent(Anthropic("m", base_url=LOCAL), options=options)
    assert body["output_config"]["effort"] == "low"
    assert body["output_config"]["format"]["type"] == "json_schema"
    assert body["max_tokens"] == 9


def test_no_logprobs():
    with pytest.raises(ConfigurationError, match="log-probabilities"):
        Anthropic("m", base_url=LOCAL).encode(request(confidence="logprobs"))


def test_structure_is_stepped_down():
    provider, asked = Anthropic("m", base_url=LOCAL), request()
    assert adapts(provider, refuse(provider, "The compiled grammar is too large, which would .."))
    assert "enum" not in str(sent(provider, asked)["output_config"])
    assert adapts(
        provider, refuse(provider, "output_config.format: Extra inputs are not permitted")
    )
    assert "output_config" not in sent(provider, asked)
    assert sent(provider, asked)["messages"]


def test_sampling_is_left_out():
    provider, asked = Anthropic("m", base_url=LOCAL), request(top_p=0.9)
    assert {"temperature", "top_p"} <= sent(provider, asked).keys()
    both = "`temperature` and `top_p` cannot both be specified for this model. Please use only one."
    assert adapts(provider, refuse(provider, both))
    assert "temperature" in sent(provider, asked)
    assert "top_p" not in sent(provider, asked)
    assert adapts(provider, refuse(provider, "`temperature` is deprecated for this model."))
    assert "temperature" not in sent(provider, asked)


def test_cache_control_is_left_out():
    provider, asked = Anthropic("m", base_url=LOCAL), request()
    said = "system.0.cache_control: Extra inputs are not permitted"
    assert adapts(provider, refuse(provider, said))
    assert "cache_control" not in sent(provider, asked)["system"][0]


def test_a_cut_off_answer_gets_room_once():
    provider, asked = Anthropic("m", base_url=LOCAL), request()
    tight = sent(provider, asked)["max_tokens"]
    with pytest.raises(TruncatedReplyError) as caught:
        provider.decode(asked, message("", "max_tokens"))
    assert adapts(provider, caught.value)
    assert sent(provider, asked)["max_tokens"] > tight + 4000
    assert not adapts(provider, caught.value)


def test_an_answer():
    reply = Anthropic("m", base_url=LOCAL).decode(request(), message())
    assert reply.answers == (Answer("refund", 0.9),)
    assert reply.usage == TokenUsage(106, 7, 64, 32)  # the cached ones come on top
    assert reply.request_id == "msg_1"


@pytest.mark.parametrize("usage", [None, {}, {"input_tokens": 5}, []])
def test_missing_usage_is_unknown(usage):
    assert Anthropic("m", base_url=LOCAL).decode(request(), message(usage=usage)).usage is None


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (message("", "refusal"), RefusalError),
        (message('{"label": "re', "max_tokens"), TruncatedReplyError),
        (message("", "model_context_window_exceeded"), TruncatedReplyError),
        (message(""), EmptyReplyError),
        (message(content=[]), EmptyReplyError),
        (message(content=None), EmptyReplyError),
        (message("hm"), UnreadableReplyError),
    ],
)
def test_answers_without_a_label(body, kind):
    with pytest.raises(kind) as caught:
        Anthropic("m", base_url=LOCAL).decode(request(), body)
    assert type(caught.value) is kind
    assert caught.value.usage == TokenUsage(106, 7, 64, 32)


@pytest.mark.parametrize(
    ("status", "kind", "said", "expected"),
    [
        (400, "invalid_request_error", "messages: field required", BadRequestError),
        (400, "invalid_request_error", "Your credit balance is too low to ..", QuotaExceededError),
        (
            400,
            "invalid_request_error",
            "You have reached your specified API usage limits.",
            QuotaExceededError,
        ),
        (400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum", BadRequestError),
        (401, "authentication_error", "invalid x-api-key", AuthenticationError),
        (402, "billing_error", "pay", QuotaExceededError),
        (403, "permission_error", "no", AuthenticationError),
        (404, "not_found_error", "model: claude-x", UnknownModelError),
        (413, "request_too_large", "too large", BadRequestError),
        (429, "rate_limit_error", "slow", RateLimitedError),
        (500, "api_error", "oops", ServerError),
        (529, "overloaded_error", "Overloaded", ServerError),
    ],
)
def test_failures(status, kind, said, expected):
    provider = Anthropic("claude-x", api_key=KEY)
    error = refuse(provider, said, status, kind)
    assert type(error) is expected
    assert said in str(error)
    assert error.request_id == "req_1"
    body = orjson.dumps({"type": "error", "error": {"type": kind, "message": said}})
    with pytest.raises(expected):
        provider.decode(request(), body)  # as a 200


def test_an_effort_leaves_room_for_reasoning():
    provider = Anthropic("claude-opus-4-6", api_key="key")
    plain, asked = sent(provider), sent(provider, request(reasoning_effort="low"))
    assert "effort" not in plain["output_config"]
    assert asked["output_config"]["effort"] == "low"
    assert asked["max_tokens"] > plain["max_tokens"] + 4_000
    assert sent(provider, request(reasoning_effort="none")) == plain
