"""Speaking as a server wants to be spoken to."""

import logging

import pytest

from testnuc.errors import (
    TruncatedReplyError,
    UnreadableReplyError,
)
from testnuc.providers._dialect import Structure
from testnuc.providers.openai import OpenAI
from tests.providers.chat_bodies import LOCAL, adapts, completion, refuse, request, sent


def structure(provider, asked):
    form = sent(provider, asked).get("response_format")
    if form is None or form["type"] == "json_object":
        return form and form["type"]
    return "enum" if "enum" in str(form) else "schema"


@pytest.mark.parametrize(
    "message",
    [
        "'response_format' of type 'json_schema' is not supported with this model.",
        "response_format.type `json_schema` is unavailable now",
        "This response_format type is unavailable now",
        "guided decoding backend not installed",
        "Structured outputs are not supported",
    ],
)
def test_structure_is_stepped_down(message):
    provider, asked = OpenAI("m", base_url=LOCAL), request()
    assert structure(provider, asked) == "enum"
    assert adapts(provider, refuse(provider, message)) is True
    assert structure(provider, asked) == "json_object"
    assert adapts(provider, refuse(provider, "response_format json_object is not supported"))
    assert structure(provider, asked) is None


@pytest.mark.parametrize(
    "message",
    [
        (
            "Invalid schema for response_format 'answer': Expected at most 500 enum values in "
            "total within a single schema when using structured outputs, but received 520."
        ),
        "The compiled grammar is too large, which would cause performance issues.",
    ],
)
def test_a_schema_too_large_loses_its_labels_first(message):
    provider, asked = OpenAI("m", base_url=LOCAL), request()
    assert adapts(provider, refuse(provider, message)) is True
    assert structure(provider, asked) == "schema"
    assert adapts(provider, refuse(provider, message)) is True
    assert structure(provider, asked) == "json_object"


def test_a_call_refused_for_what_is_not_sent_any_more_goes_again():
    provider = OpenAI("m", base_url=LOCAL)
    error = refuse(provider, "json_schema is not supported")
    assert adapts(provider, error)
    assert adapts(provider, error)  # was under way
    assert provider.dialect.structure is Structure.OBJECT
    error = refuse(provider, "Unsupported parameter: 'temperature'")
    assert adapts(provider, error)
    before = provider.dialect
    assert adapts(provider, error)
    assert provider.dialect == before
    provider._stale = 10**6
    assert not adapts(provider, error)  # a loop


@pytest.mark.parametrize(
    "message",
    [
        (
            "Unsupported value: 'temperature' does not support 0.7 with this model. "
            "Only the default (1) value is supported."
        ),
        "`temperature` is deprecated for this model.",
        "top_p: Extra inputs are not permitted",
    ],
)
def test_sampling_is_left_out(message, caplog):
    provider, asked = OpenAI("m", base_url=LOCAL), request(options={"temperature": 0.2})
    sent(provider, asked)
    with caplog.at_level(logging.WARNING):
        assert adapts(provider, refuse(provider, message))
    assert "temperature" in caplog.text  # the user asked for it, so it is logged
    assert not {"temperature", "top_p"} & sent(provider, asked).keys()


@pytest.mark.parametrize("limit", [None, 77])
def test_the_limit_is_renamed(limit):
    options = {} if limit is None else {"max_tokens": limit}
    provider, asked = OpenAI("m", base_url=LOCAL), request(options=options)
    body = sent(provider, asked)
    error = refuse(
        provider,
        "Unsupported parameter: 'max_tokens' is not supported with this model. "
        "Use 'max_completion_tokens' instead.",
        param="max_tokens",
        code="unsupported_parameter",
    )
    assert adapts(provider, error)
    assert adapts(provider, error)
    after = sent(provider, asked)
    assert after["max_completion_tokens"] == body["max_tokens"] == (limit or body["max_tokens"])
    assert "max_tokens" not in after
    assert adapts(provider, refuse(provider, "Unrecognized argument: max_completion_tokens"))
    assert "max_tokens" in sent(provider, asked)


@pytest.mark.parametrize(
    "said",
    [
        "System role not supported",
        "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
    ],
)
def test_models_without_a_system_role(said):
    provider, asked = OpenAI("gemma", base_url=LOCAL), request()
    assert adapts(provider, refuse(provider, said))
    assert sent(provider, asked)["messages"] == [
        {"role": "user", "content": f"{asked.task.system}\n\n{asked.user}"}
    ]


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("This model's maximum context length is 4096 tokens, schema included", 400),
        ("We could not parse the JSON body of your request.", 400),
        ("Unsupported: 'temperature'", 500),
        ("The schema of your account is blocked", 401),
    ],
)
def test_what_cannot_be_adapted(message, status):
    provider = OpenAI("m", base_url=LOCAL)
    before = provider.dialect
    assert not adapts(provider, refuse(provider, message, status))
    assert not adapts(provider, ValueError("temperature unsupported"))
    assert provider.dialect == before


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens is too large: 9999. This model supports at most 4096 completion tokens.",
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 8300. This model's maximum "
            "context length is 4096 tokens and your request has 350 input tokens."
        ),
    ],
)
def test_a_limit_that_is_too_large_is_not_sent(message):
    provider = OpenAI("qwq-32b", base_url=LOCAL)
    assert sent(provider)["max_tokens"] > 8_192
    assert adapts(provider, refuse(provider, message))
    assert "max_tokens" not in sent(provider)
    assert not adapts(provider, refuse(provider, message)) or "too large" not in message
    limited = OpenAI("qwq-32b", base_url=LOCAL)
    sent(limited, options={"max_tokens": 9_999})
    assert not adapts(limited, refuse(limited, message)) or sent(limited)["max_tokens"] == 9_999


@pytest.mark.parametrize(
    ("model", "message", "effort"),
    [
        (
            "gpt-5.9",
            (
                "Unsupported value: 'none' is not supported with the 'gpt-5.9' model. Supported "
                "values are: 'low', 'medium', and 'high'. [reasoning.effort]"
            ),
            "low",
        ),
        ("gpt-5", "Invalid reasoning_effort: minimal. Valid values are: high, low, none", "none"),
        ("gpt-5", "Model does not support parameter reasoningEffort", None),
        ("gpt-5", "Unrecognized request argument supplied: reasoning_effort", None),
    ],
)
def test_the_effort_is_the_least_that_is_listed(model, message, effort):
    provider = OpenAI(model, base_url=LOCAL)
    sent(provider)
    assert adapts(provider, refuse(provider, message))
    assert sent(provider).get("reasoning_effort") == effort
    own = OpenAI("gpt-5.9", base_url=LOCAL)
    sent(own, reasoning_effort="xhigh")
    assert not adapts(own, refuse(own, "This model does not support effort level 'xhigh'."))


@pytest.mark.parametrize(
    "message",
    [
        "logprobs is not supported with this model.",
        (
            '{"detail":[{"type":"extra_forbidden","loc":["body","logprobs"],"msg":"Extra inputs '
            'are not permitted","input":true}]}'
        ),
        'Invalid JSON payload received. Unknown name "logprobs": Cannot find field.',
        "No endpoints found that can handle the requested parameters.",
    ],
)
def test_without_logprobs_the_confidence_is_verbalized(message, caplog):
    provider, asked = OpenAI("m", base_url=LOCAL), request(confidence="logprobs")
    assert sent(provider, asked)["logprobs"] is True
    with caplog.at_level(logging.WARNING):
        assert adapts(provider, refuse(provider, message, 404 if "endpoints" in message else 400))
    assert "confidence will be verbalized" in caplog.text
    body = sent(provider, asked)
    assert "logprobs" not in body
    schema = body["response_format"]["json_schema"]["schema"]
    assert "confidence" in schema["properties"]
    assert '"confidence": <number>' in body["messages"][0]["content"]
    assert provider.decode(asked, completion()).answers[0].confidence == 0.9


@pytest.mark.parametrize(
    "message",
    [
        "This model only support stream mode, please enable the stream parameter.",
        "Streaming is required for this model",
        "stream must be true",
    ],
)
def test_a_server_that_only_streams(message):
    provider, asked = OpenAI("m", base_url=LOCAL), request()
    assert adapts(provider, refuse(provider, message))
    body = sent(provider, asked)
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert adapts(provider, refuse(provider, "Unknown parameter: 'stream_options'"))
    assert "stream_options" not in sent(provider, asked)


def test_thinking_that_only_streams_is_switched_off():
    provider = OpenAI("qwen3-32b", base_url=LOCAL)
    words = "parameter.enable_thinking must be set to false for non-streaming calls"
    assert adapts(provider, refuse(provider, words))
    assert sent(provider)["enable_thinking"] is False
    words = "The value of the enable_thinking parameter is restricted to True."
    assert adapts(provider, refuse(provider, words))
    assert sent(provider)["stream"] is True
    assert "enable_thinking" not in sent(provider)


def test_parameters_that_no_endpoint_handles_are_left_out_one_by_one():
    provider, words = OpenAI("gpt-oss-20b", base_url=LOCAL), "No endpoints found that can handle"
    error = refuse(provider, f"{words} the requested parameters.", 404)
    gone = []
    before = sent(provider)
    while adapts(provider, error):
        after = sent(provider)
        gone += [sorted(before.keys() - after.keys())]
        before = after
        assert len(gone) < 9
    assert [name for names in gone for name in names] == [
        "reasoning_effort",
        "response_format",
        "temperature",
        "top_p",
    ]


def test_the_users_own_format_stays():
    provider = OpenAI("m", base_url=LOCAL)
    asked = request(options={"response_format": {"type": "text"}})
    assert sent(provider, asked)["response_format"] == {"type": "text"}
    assert not adapts(provider, refuse(provider, "response_format is not supported"))


def test_a_server_that_ignores_the_schema():
    provider, asked = OpenAI("m", base_url=LOCAL), request()
    for expected in ("json_object", None):
        with pytest.raises(UnreadableReplyError) as caught:
            provider.decode(asked, completion("It is about a refund."))
        assert adapts(provider, caught.value)
        assert structure(provider, asked) == expected
    assert not adapts(provider, caught.value)


def test_one_bad_reply_among_good_ones_changes_nothing():
    provider, asked = OpenAI("m", base_url=LOCAL), request()
    provider.decode(asked, completion())
    with pytest.raises(UnreadableReplyError) as caught:
        provider.decode(asked, completion("garbage"))
    assert not adapts(provider, caught.value)
    with pytest.raises(UnreadableReplyError) as caught:
        provider.decode(asked, b'{"choices": [')  # broken on the way, no matter of structure
    assert not adapts(OpenAI("m", base_url=LOCAL), caught.value)


def test_a_tight_limit_is_dropped_when_the_model_thinks_aloud():
    provider, asked = OpenAI("m", base_url=LOCAL), request()
    with pytest.raises(TruncatedReplyError) as caught:
        provider.decode(asked, completion("<think>Let me see", "length"))
    assert adapts(provider, caught.value)
    assert "max_tokens" not in sent(provider, asked)
    assert not adapts(provider, caught.value)
    limited = OpenAI("m", base_url=LOCAL)
    sent(limited, options={"max_tokens": 5})
    assert not adapts(limited, caught.value)  # the user's own limit


def test_a_schema_goes_beside_json_object_where_the_server_takes_it_there():
    provider, asked = OpenAI("m", base_url=LOCAL), request()
    schema = sent(provider, asked)["response_format"]["json_schema"]["schema"]
    said = (
        "1 validation error: {'type': 'literal_error', 'loc': ('body', 'response_format', 'type'), "
        "'msg': \"Input should be 'text' or 'json_object'\", 'input': 'json_schema'}"
    )
    error = refuse(provider, said)
    assert adapts(provider, error)
    form = {"type": "json_object", "schema": schema}
    assert sent(provider, asked)["response_format"] == form
    assert adapts(provider, refuse(provider, "response_format: failed to parse grammar"))
    assert sent(provider, asked)["response_format"] == {"type": "json_object"}


def test_a_server_that_refuses_what_it_asks_for_is_sent_less():
    provider, asked = OpenAI("m", base_url=LOCAL), request()
    said = "('body', 'response_format', 'type'), 'msg': \"Input should be 'text' or 'json_object'\""
    forms = []
    while "response_format" in sent(provider, asked):
        forms.append(sent(provider, asked)["response_format"]["type"])
        assert adapts(provider, refuse(provider, said))
    assert forms[:2] == ["json_schema", "json_object"]
    assert len(forms) <= 4


def test_a_models_name_says_nothing_about_a_refusal():
    provider, asked = OpenAI("json-schema", base_url=LOCAL), request()
    said = "Invalid parameter: 'response_format' is not supported. Received Model Group=json-schema"
    assert adapts(provider, refuse(provider, said))
    assert sent(provider, asked)["response_format"]["type"] == "json_object"
    assert adapts(provider, refuse(provider, said))
    assert "response_format" not in sent(provider, asked)


def test_what_another_client_sent_by_the_same_provider_decides_nothing():
    provider, asked = OpenAI("m", base_url=LOCAL), request(confidence="logprobs")
    mine = sent(provider, asked)
    assert mine["logprobs"]
    form = {"response_format": {"type": "json_object"}}
    provider.encode(request(options=form, reasoning_effort="high"))
    refusal = refuse(provider, "logprobs is not supported with this model")
    assert provider.adapt(refusal, asked.task)
    assert "logprobs" not in sent(provider, asked)
    refusal = refuse(provider, "response_format json_schema is not supported")
    assert provider.adapt(refusal, asked.task)
    assert structure(provider, asked) == "json_object"
