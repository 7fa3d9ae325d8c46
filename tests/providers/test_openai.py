"""Chat completions: where calls go, with which key, and what is sent."""

import traceback

import orjson
import pytest

from testnuc.errors import (
    ConfigurationError,
    InvalidInputError,
)
from testnuc.protocols import WireProvider
from testnuc.providers import resolve
from testnuc.providers.openai import OpenAI
from tests.providers.chat_bodies import KEY, LABELS, LOCAL, adapts, refuse, request, sent, task

# --- where and with which key ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base_url", "url", "identity"),
    [
        (None, "https://api.openai.com/v1/chat/completions", "https://api.openai.com/v1"),
        ("http://localhost:8000", LOCAL + "/chat/completions", LOCAL),
        ("http://localhost:8000/v1/", LOCAL + "/chat/completions", LOCAL),
        ("HTTP://LocalHost:8000/v1//", LOCAL + "/chat/completions", LOCAL),
        (LOCAL + "/chat/completions", LOCAL + "/chat/completions", LOCAL),
        (LOCAL + "/responses", LOCAL + "/responses", LOCAL),
        (
            "https://api.perplexity.ai/chat/completions",
            "https://api.perplexity.ai/chat/completions",
            "https://api.perplexity.ai",
        ),
        ("https://h.example:443/api/v1", "https://h.example/api/v1/chat/completions", None),
        ("http://[::1]:80/v1", "http://[::1]/v1/chat/completions", "http://[::1]/v1"),
        (
            "https://x.openai.azure.com/openai/deployments/d?api-version=2024-10-21",
            (
                "https://x.openai.azure.com/openai/deployments/d/chat/completions"
                "?api-version=2024-10-21"
            ),
            "https://x.openai.azure.com/openai/deployments/d?api-version=2024-10-21",
        ),
        (
            "https://x.openai.azure.com/",
            "https://x.openai.azure.com/openai/v1/chat/completions",
            "https://x.openai.azure.com/openai/v1",
        ),
    ],
)
def test_urls(base_url, url, identity):
    provider = OpenAI("m", base_url=base_url, api_key=KEY)
    assert provider.url == url
    assert identity is None or provider.identity == identity


def test_is_a_wire_provider():
    provider = resolve("openai/org/model", base_url=LOCAL)
    assert isinstance(provider, WireProvider)
    assert (provider.name, provider.model) == ("openai", "org/model")


@pytest.mark.parametrize("model", ["gpt-4o-mini", "openai/", "nobody/x", "", None, "openai/ "])
def test_unknown_providers_are_an_error_with_the_choices(model):
    with pytest.raises(InvalidInputError, match=r"openai/.*anthropic/.*local/zero-shot"):
        resolve(model)


def test_keys(monkeypatch):
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        OpenAI("m")
    assert "Authorization" not in OpenAI("m", base_url=LOCAL).headers
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    assert OpenAI("m").headers["Authorization"] == "Bearer from-environment"
    assert OpenAI("m", api_key=KEY).headers["Authorization"] == f"Bearer {KEY}"
    monkeypatch.setenv("OPENAI_BASE_URL", LOCAL)
    assert OpenAI("m").identity == LOCAL


def test_the_error_in_python_names_the_argument_for_the_key():
    with pytest.raises(ConfigurationError, match="set OPENAI_API_KEY") as caught:
        OpenAI("m")
    assert "api_key=" in "".join(traceback.format_exception(caught.value))


def test_azure_key(monkeypatch):
    url = "https://x.openai.azure.com/openai/v1/"
    with pytest.raises(ConfigurationError, match="AZURE_OPENAI_API_KEY"):
        OpenAI("m", base_url=url)
    monkeypatch.setenv("OPENAI_API_KEY", "other")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
    headers = OpenAI("m", base_url=url).headers
    assert headers["api-key"] == KEY
    assert "Authorization" not in headers
    with pytest.raises(InvalidInputError, match="api-version"):
        OpenAI("m", base_url="https://x.openai.azure.com/openai/deployments/d")


@pytest.mark.parametrize("key", ["sec\nret", "sec ret", "secr\u00e9t", "sec\x00ret", "", 5])
def test_keys_that_cannot_be_sent(key):
    with pytest.raises(ConfigurationError) as caught:
        OpenAI("m", base_url=LOCAL, api_key=key)
    assert "secr" not in str(caught.value)
    assert "ret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8000",
        "ftp://x/v1",
        "http://",
        "http://user:hunter2@host/v1",
        "http://host/v1?api_key=hunter2",
        "http://host/v1?sig=hunter2",
        "http://host:99999/v1",
        "http://[::1/v1",
    ],
)
def test_urls_that_cannot_be_used(url):
    with pytest.raises(InvalidInputError) as caught:
        OpenAI("m", base_url=url)
    assert "hunter2" not in str(caught.value)


# --- what is sent ------------------------------------------------------------------------------


def test_body():
    asked = request()
    body = sent(OpenAI("gpt-4o-mini", api_key=KEY), asked)
    assert body["model"] == "gpt-4o-mini"
    assert body["messages"] == [
        {"role": "system", "content": asked.task.system},
        {"role": "user", "content": asked.user},
    ]
    assert body["temperature"] == 0.7
    assert body["top_p"] == 1.0
    assert body["max_completion_tokens"] >= 64
    form = body["response_format"]["json_schema"]
    assert form["strict"] is True
    schema = form["schema"]
    assert schema["properties"]["label"] == {"type": "string", "enum": list(LABELS)}
    assert schema["required"] == ["label", "confidence"]
    assert schema["additionalProperties"] is False


def test_body_for_several_texts():
    provider = OpenAI("m", base_url=LOCAL)
    shared = task()
    packed, single = sent(provider, request(3, task=shared)), sent(provider, request(task=shared))
    items = packed["response_format"]["json_schema"]["schema"]["properties"]["answers"]["items"]
    assert items["required"] == ["id", "label", "confidence"]
    assert packed["max_tokens"] > single["max_tokens"]
    assert "label" in single["response_format"]["json_schema"]["schema"]["properties"]


@pytest.mark.parametrize(
    "labels", [[f"label {i}" for i in range(501)], [f"{'x' * 400}{i}" for i in range(40)]]
)
def test_labels_beyond_the_limits_of_an_enum(labels):
    body = sent(OpenAI("m", base_url=LOCAL), labels=labels)
    schema = body["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["label"] == {"type": "string"}
    assert len(orjson.dumps(body)) < 60_000


def test_options_are_the_users():
    options = {"max_tokens": 5, "seed": 1, "temperature": 0.1}
    body = sent(OpenAI("m", base_url=LOCAL), options=options, top_p=None)
    assert (body["max_tokens"], body["seed"], body["temperature"]) == (5, 1, 0.1)
    assert "top_p" not in body
    body = sent(OpenAI("gpt-4o", api_key=KEY), options=options)
    assert body["max_completion_tokens"] == 5  # OpenAI's own name of it
    assert "max_tokens" not in body


@pytest.mark.parametrize("options", [{"messages": []}, {"model": "x"}, {"stream": True}, {"n": 2}])
def test_options_that_cannot_be(options):
    provider = OpenAI("m", base_url=LOCAL)
    with pytest.raises(InvalidInputError, match="request_options"):
        provider.encode(request(options=options))


@pytest.mark.parametrize(
    ("model", "effort", "room"),
    [
        ("o1", "low", 4_096),
        ("o3-mini", "low", 4_096),
        ("o4-mini", "low", 4_096),
        ("gpt-5", "minimal", 1_024),
        ("gpt-5-nano-2025-08-07", "minimal", 1_024),
        ("gpt-6", "low", 4_096),
        ("o1-mini", None, 8_192),
        ("gpt-5-pro", None, 8_192),
    ],
)
def test_reasoning_models_reason_least_and_have_room_for_it(model, effort, room):
    provider = OpenAI(model, api_key=KEY, responses=False)
    body = sent(provider)
    assert not {"temperature", "top_p", "max_tokens"} & body.keys()
    assert body.get("reasoning_effort") == effort
    assert room < body["max_completion_tokens"] < room + 400
    assert provider.reserve(request())[1] == body["max_completion_tokens"]
    limited = request(options={"max_completion_tokens": 900})
    assert provider.reserve(limited)[1] == 900


def test_an_effort_of_the_users_own():
    provider = OpenAI("gpt-5", api_key=KEY)
    assert sent(provider, reasoning_effort="high")["reasoning_effort"] == "high"
    assert "reasoning_effort" not in sent(provider, reasoning_effort=None)
    body = sent(provider, options={"reasoning_effort": "low"})
    assert body["reasoning_effort"] == "low"
    assert provider.reasoning(task(reasoning_effort="high")) > provider.reasoning(task()) == 0


@pytest.mark.parametrize(
    "model",
    [
        "gpt-4o",
        "gpt-4.1-mini",
        "gpt-35-turbo",
        "gpt-5-chat-latest",
        "olmo-2",
        "o-x",
        "gemini-2.0-flash",
    ],
)
def test_other_models_get_both(model):
    body = sent(OpenAI(model, api_key=KEY))
    assert {"temperature", "top_p", "max_completion_tokens"} <= body.keys()
    assert "reasoning_effort" not in body
    assert body["max_completion_tokens"] < 400


def test_reasoning_that_is_switched_off():
    for options in ({}, {"reasoning_effort": "none"}):
        body = sent(OpenAI("gpt-5.1", api_key=KEY), options=options)
        assert {"temperature", "max_completion_tokens"} <= body.keys()
        assert body["reasoning_effort"] == "none"
        assert body["max_completion_tokens"] < 400


@pytest.mark.parametrize(
    ("model", "effort"),
    [
        ("openai/gpt-oss-20b", "low"),
        ("gemini-2.5-pro", "low"),
        ("google/gemini-2.5-flash", "none"),
        ("grok-4-0709", None),
        ("grok-4.5", "low"),
        ("deepseek-reasoner", None),
    ],
)
def test_thinking_models_have_room(model, effort):
    body = sent(OpenAI(model, base_url=LOCAL))
    assert body.get("reasoning_effort") == effort
    assert (body["max_tokens"] > 4_000) == (effort != "none")
    assert "temperature" in body


@pytest.mark.parametrize("model", ["grok-4-1-fast-non-reasoning", "qwen3-30b-a3b-instruct-2507"])
def test_models_without_reasoning_have_a_tight_limit(model):
    body = sent(OpenAI(model, base_url=LOCAL))
    assert "reasoning_effort" not in body
    assert body["max_tokens"] < 400


def test_default_limit_suffices_for_the_longest_answer():
    provider = OpenAI("m", base_url=LOCAL)
    label = "\u00fc\u65e5" * 100
    answers = [{"id": i, "label": label, "confidence": 0.123456} for i in range(10)]
    body = sent(provider, n=10, labels=["a", label])
    assert body["max_tokens"] >= len(
        orjson.dumps({"answers": answers})
    )  # a token is a byte or more


def test_reserve_is_near_and_not_below():
    provider = OpenAI("m", base_url=LOCAL)
    asked = request()
    tokens, output = provider.reserve(asked)
    characters = len(asked.task.system) + len(asked.user)
    assert characters / 4 < tokens < characters
    assert output == sent(provider, asked)["max_tokens"]


def test_prepared_bodies_are_bounded():
    provider = OpenAI("m", base_url=LOCAL)
    for _ in range(200):
        provider.encode(request())
    assert len(provider._prepared) <= 64


def test_prompt_caching_is_no_part_of_the_identity():
    plain = OpenAI("m", base_url=LOCAL)
    cached = OpenAI("m", base_url=LOCAL, prompt_cache_key="k", prompt_cache_retention="24h")
    body = sent(cached)
    assert (body["prompt_cache_key"], body["prompt_cache_retention"]) == ("k", "24h")
    assert cached.identity == plain.identity
    assert adapts(cached, refuse(cached, "Unknown parameter: 'prompt_cache_retention'."))
    assert "prompt_cache_retention" not in sent(cached)
    assert sent(cached)["prompt_cache_key"] == "k"
