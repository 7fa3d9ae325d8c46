"""Speaking as a server wants to be spoken to."""

import logging

import pytest

from testnuc.errors import (
    TruncatedReplyError,
    UnreadableReplyError,
)
from testnuc.providers._dialect import Structure
from testnuc.providers.openai import OpenAI
from tests.providers.chat_bodies import LOCAL, completion, refuse, request, sent


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
    assert provider.adapt(refuse(provider, message)) is True
    assert structure(provider, asked) == "json_object"
    assert provider.adapt(refuse(provider, "response_format json_object is not supported")) is True
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
    assert provider.adapt(refuse(provider, message)) is True
    assert structure(provider, asked) == "schema"
    assert provider.adapt(refuse(provider, message)) is True
    assert structure(provider, asked) == "json_object"


def test_a_call_refused_for_what_is_not_sent_any_more_goes_again():
    provider = OpenAI("m", base_url=LOCAL)
    error = refuse(provider, "json_schema is not supported")
    assert provider.adapt(error)
    assert provider.adapt(error)  # was under way
    assert provider.dialect.structure is Structure.OBJECT
    error = refuse(provider, "Unsupported parameter: 'temperature'")
    assert provider.adapt(error)
    before = provider.dialect
    assert provider.adapt(error)
    assert provider.dialect == before
    provider._stale = 10**6
    assert not provider.adapt(error)  # a loop


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
        assert provider.adapt(refuse(provider, message))
    assert "temperature" in caplog.text  # the user asked for it, so it is told
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
    assert provider.adapt(error)
    assert provider.adapt(error)
    after = sent(provider, asked)
    assert after["max_completion_tokens"] == body["max_tokens"] == (limit or body["max_tokens"])
    assert "max_tokens" not in after
    assert provider.adapt(refuse(provider, "Unrecognized request argument: max_completion_tokens"))
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
    assert provider.adapt(refuse(provider, said))
    assert sent(provider, asked)["messages"] == [
        {"role": "user", "content": f"{asked.task.system}\n\n{asked.user}"}
    ]


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("This model's maximum context length is 4096 tokens, schema included", 400),
        ("max_tokens is too large: 99999. This model supports at most 16384", 400),
        ("We could not parse the JSON body of your request.", 400),
        ("Unsupported: 'temperature'", 500),
        ("The schema of your account is blocked", 401),
    ],
)
def test_what_cannot_be_adapted(message, status):
    provider = OpenAI("m", base_url=LOCAL)
    before = provider.dialect
    assert not provider.adapt(refuse(provider, message, status))
    assert not provider.adapt(ValueError("temperature unsupported"))
    assert provider.dialect == before


def test_the_users_own_format_stays():
    provider = OpenAI("m", base_url=LOCAL)
    asked = request(options={"response_format": {"type": "text"}})
    assert sent(provider, asked)["response_format"] == {"type": "text"}
    assert not provider.adapt(refuse(provider, "response_format is not supported"))


def test_a_server_that_ignores_the_schema():
    provider, asked = OpenAI("m", base_url=LOCAL), request()
    for expected in ("json_object", None):
        with pytest.raises(UnreadableReplyError) as caught:
            provider.decode(asked, completion("It is about a refund."))
        assert provider.adapt(caught.value)
        assert structure(provider, asked) == expected
    assert not provider.adapt(caught.value)


def test_one_bad_reply_among_good_ones_changes_nothing():
    provider, asked = OpenAI("m", base_url=LOCAL), request()
    provider.decode(asked, completion())
    with pytest.raises(UnreadableReplyError) as caught:
        provider.decode(asked, completion("garbage"))
    assert not provider.adapt(caught.value)
    with pytest.raises(UnreadableReplyError) as caught:
        provider.decode(asked, b'{"choices": [')  # broken on the way, no matter of structure
    assert not OpenAI("m", base_url=LOCAL).adapt(caught.value)


def test_a_tight_limit_is_dropped_when_the_model_thinks_aloud():
    provider, asked = OpenAI("m", base_url=LOCAL), request()
    with pytest.raises(TruncatedReplyError) as caught:
        provider.decode(asked, completion("<think>Let me see", "length"))
    assert provider.adapt(caught.value)
    assert "max_tokens" not in sent(provider, asked)
    assert not provider.adapt(caught.value)
    limited = OpenAI("m", base_url=LOCAL)
    limited.encode(request(options={"max_tokens": 5}))
    assert not limited.adapt(caught.value)  # the user's own limit
