"""Error responses of real servers, as exceptions."""

from __future__ import annotations

import orjson
import pytest

from testnuc.errors import (
    AuthenticationError,
    BadRequestError,
    ContentRefusedError,
    RateLimitedError,
    ServerError,
    UnknownModelError,
    UnreadableReplyError,
)
from testnuc.transport.api_errors import as_error, parse_error

LITERAL = (
    "[{'type': 'literal_error', 'loc': ('body', 'response_format', 'type'), "
    "'msg': \"Input should be 'text' or 'json_object'\", 'input': 'json_schema'}]"
)


def error(status, message, **fields):
    body = orjson.dumps({"error": {"message": message, **fields}})
    return as_error(status, {}, body, where="m at host")


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "The input token count (1048577) exceeds the maximum number of tokens allowed (1)."),
        (
            422,
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096.",
        ),
        (422, "Input validation error: inputs tokens + max_new_tokens must be <= 4096."),
    ],
)
def test_a_text_that_is_too_long_concerns_this_text_alone(status, message):
    found = error(status, message)
    assert type(found) is BadRequestError
    assert not found.fatal
    assert "shorten it" in str(found)


@pytest.mark.parametrize(
    ("status", "fields", "kind"),
    [
        (498, {"message": "Flex tier capacity exceeded", "code": "capacity_exceeded"}, None),
        (200, {"message": "Flex tier capacity exceeded", "code": 498}, None),
        (429, {"message": "See error-code#token-limit", "code": "insufficient_quota"}, None),
        (424, {"message": "The request failed due to an error of the model."}, ServerError),
        (499, {"message": "client closed request"}, ServerError),
    ],
)
def test_failures_that_may_pass(status, fields, kind):
    found = as_error(status, {}, orjson.dumps({"error": fields}), where="m at host")
    assert type(found) is (kind or RateLimitedError)
    assert found.retryable


def test_a_403_that_asks_to_wait_is_a_rate_limit():
    body = b'{"message": "You have exceeded a secondary rate limit."}'
    assert type(as_error(403, {"Retry-After": "1"}, body, where="m")) is RateLimitedError
    assert type(as_error(403, {}, body, where="m")) is AuthenticationError


@pytest.mark.parametrize(
    "label",
    ["moderation", "flagged", "context window", "max_tokens", "credit balance is too low"],
)
def test_what_a_validator_quotes_of_a_request_says_nothing(label):
    quoted = {"name": "answer", "schema": {"type": "string", "enum": [label, "fine"]}}
    wrong = {"type": "extra_forbidden", "loc": ["body", "response_format", "json_schema"]}
    wrong |= {"msg": "Extra inputs are not permitted", "input": quoted, "ctx": {"x": label}}
    text = f"1 validation error [type=extra_forbidden, input_value={quoted}, input_type=dict]"
    for body in (
        {"detail": [wrong]},
        {"error": {"message": repr([wrong, wrong])}},
        {"error": {"message": f"response_format: {text}"}},
    ):
        message, _ = parse_error(orjson.dumps(body))
        assert "response_format" in message
        assert "extra_forbidden" in message
        assert label not in message.replace("'ctx': {'x': '" + label, "")
        found = as_error(422, {}, orjson.dumps(body), where="m at host")
        assert type(found) is BadRequestError
        assert found.fatal


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"<html><title>Attention Required! | Cloudflare</title></html>", BadRequestError),
        (b"<HTML><HEAD><TITLE>Access Denied</TITLE></HEAD></HTML>", BadRequestError),
        (b"error code: 1020", BadRequestError),
        (b'{"error": {"message": "Your request has been blocked."}}', BadRequestError),
        (b'{"error": {"message": "Denied by Virtual Network/Firewall rules."}}', BadRequestError),
        (b"", AuthenticationError),
        (b'{"message": "Forbidden"}', AuthenticationError),
        (b'{"error": {"message": "the model is not allowed"}}', AuthenticationError),
    ],
)
def test_a_firewall_knows_nothing_about_the_key(body, kind):
    found = as_error(403, {}, body, where="m at host", hint="Check the key in VARIABLE.")
    assert type(found) is kind
    assert ("Check the key" in str(found)) == (kind is AuthenticationError)
    assert ("firewall in front" in str(found)) == (kind is BadRequestError)
    # before any answer it may be every request
    assert found.fatal


def test_a_redirect_names_its_target():
    headers = {"Location": "https://llm.example/v1/chat?code=secret"}
    found = as_error(301, headers, b"", where="m at host")
    assert type(found) is UnknownModelError
    assert found.fatal
    assert "redirects to https://llm.example/v1/chat; " in str(found)


def test_an_invalid_prompt_is_a_refusal_of_the_text():
    message = "Invalid prompt: we've limited access to this content."
    found = error(400, message, type="invalid_request_error", code="invalid_prompt")
    assert type(found) is ContentRefusedError
    assert not found.fatal


def test_an_answer_that_failed_validation_is_an_unreadable_reply():
    found = error(
        400, "Failed to generate JSON.", code="json_validate_failed", failed_generation="refund"
    )
    assert type(found) is UnreadableReplyError
    assert found.retryable
    assert not found.fatal
    assert found.content == "refund"
    assert error(400, "Failed to generate JSON.", code="json_validate_failed").content == ""


@pytest.mark.parametrize(
    "message",
    [
        LITERAL,
        f"litellm.InternalServerError: InternalServerError: OpenAIException - {LITERAL}",
        "structured output is not implemented",
        "failed to parse grammar",
    ],
)
def test_a_500_about_the_format_is_a_bad_request(message):
    assert type(error(500, message, type="internal_server_error")) is BadRequestError
    assert type(error(503, message)) is ServerError


def test_other_500s_stay_server_errors():
    assert type(error(500, "The server had an error")) is ServerError


@pytest.mark.parametrize("form", ["object", "string", "text"])
def test_the_error_behind_openrouter_is_read(form):
    inner = {"error": {"message": "maximum context length is 10", "code": "too_long_x"}}
    raw = {"object": inner, "string": orjson.dumps(inner).decode(), "text": "context length"}[form]
    found = error(400, "Provider returned error", code=400, metadata={"raw": raw})
    assert not found.fatal
    assert "Provider returned error: " in str(found)
    assert ("too_long_x" in str(found)) == (form != "text")


def test_a_limit_behind_openrouter_is_a_rate_limit():
    raw = "some/model is temporarily rate-limited upstream. Please retry shortly."
    found = error(429, "Provider returned error", code=429, metadata={"raw": raw})
    assert type(found) is RateLimitedError
    assert "upstream" in str(found)


def test_raw_errors_do_not_nest_for_ever():
    body = b"{}"
    for _ in range(5):
        raw = body.decode()
        body = orjson.dumps({"error": {"message": "m", "metadata": {"raw": raw}}})
    assert parse_error(body)[0].count("m") <= 3
