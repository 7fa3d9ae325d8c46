"""Chat completions: what answers and failures mean."""

import math

import orjson
import pytest

from testnuc.errors import (
    AuthenticationError,
    BadRequestError,
    ContentRefusedError,
    EmptyReplyError,
    MismatchedReplyError,
    QuotaExceededError,
    RateLimitedError,
    RefusalError,
    ServerError,
    TruncatedReplyError,
    UnknownModelError,
    UnreadableReplyError,
)
from testnuc.protocols import Answer, TokenUsage
from testnuc.providers.openai import OpenAI
from tests.providers.chat_bodies import KEY, LOCAL, completion, refuse, request, sent


def test_an_answer():
    reply = OpenAI("m", base_url=LOCAL).decode(request(), completion())
    assert reply.answers == (Answer("refund", 0.9),)
    assert reply.usage == TokenUsage(100, 7, 64)
    assert reply.request_id.startswith("chatcmpl-")


def test_an_answer_beside_an_error_is_not_whole():
    broken = {"message": {"content": "refund"}, "finish_reason": "stop", "error": {"code": 502}}
    with pytest.raises(UnreadableReplyError, match="broke off") as caught:
        OpenAI("m", base_url=LOCAL).decode(request(), completion(choices=[broken]))
    assert caught.value.content is None


@pytest.mark.parametrize(
    ("indices", "expected"), [((1, 0), "b"), ((2, 1), "b"), ((None, 1), "a"), ((3,), "a")]
)
def test_of_several_choices_that_of_the_lowest_index_counts(indices, expected):
    choices = [
        {"index": index, "message": {"content": f'{{"label": "{label}"}}'}}
        for index, label in zip(indices, "abc", strict=False)
    ]
    for given in (choices, [None, *choices]):
        reply = OpenAI("m", base_url=LOCAL).decode(request(), completion(choices=given))
        assert reply.answers == (Answer(expected),)


def test_content_in_parts():
    parts = [
        {"type": "text", "text": '{"label": "a",'},
        {"type": "text", "text": '"confidence": 1}'},
    ]
    reply = OpenAI("m", base_url=LOCAL).decode(request(), completion(parts))
    assert reply.answers == (Answer("a", 1.0),)
    # what the model thought is no part of the answer
    thought = {"type": "reasoning", "text": '{"label": "b"}, or rather'}
    reply = OpenAI("m", base_url=LOCAL).decode(request(), completion([thought, *parts]))
    assert reply.answers == (Answer("a", 1.0),)
    with pytest.raises(EmptyReplyError):
        OpenAI("m", base_url=LOCAL).decode(request(), completion([thought]))


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        "x",
        {"prompt_tokens": 5},
        {"prompt_tokens": -1, "completion_tokens": 2},
        {"prompt_tokens": 1.5, "completion_tokens": True},
    ],
)
def test_missing_usage_is_unknown(usage):
    assert OpenAI("m", base_url=LOCAL).decode(request(), completion(usage=usage)).usage is None


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (completion(None, refusal="I cannot help with that."), RefusalError),
        (completion("", finish="content_filter"), RefusalError),
        (completion('{"label": "ref', finish="length"), TruncatedReplyError),
        (completion(None, finish="length"), TruncatedReplyError),
        # a draft, and the beginning of a longer label, of an answer that broke off
        (completion('Perhaps {"label": "refund"}, but', finish="error"), UnreadableReplyError),
        (completion("refund", finish="insufficient_system_resource"), UnreadableReplyError),
        (completion("refund", finish="abort"), UnreadableReplyError),
        (completion(""), EmptyReplyError),
        (completion(None), EmptyReplyError),
        (completion(choices=[]), EmptyReplyError),
        (completion(choices=None), EmptyReplyError),
        (completion(choices=[{"message": None}]), EmptyReplyError),
        (completion("no idea"), UnreadableReplyError),
        (completion('{"id": 3, "label": "a"}'), MismatchedReplyError),
    ],
)
def test_answers_without_a_label(body, kind):
    with pytest.raises(kind) as caught:
        OpenAI("m", base_url=LOCAL).decode(request(), body)
    assert type(caught.value) is kind
    assert caught.value.usage == TokenUsage(100, 7, 64)  # billed all the same
    assert caught.value.status_code == 200
    assert caught.value.request_id.startswith("chatcmpl-")


def test_refusals_and_truncation_are_explained():
    provider = OpenAI("m", base_url=LOCAL)
    with pytest.raises(RefusalError, match="I cannot help"):
        provider.decode(request(), completion(None, refusal="I cannot help with that."))
    with pytest.raises(TruncatedReplyError, match=r'request_options=\{"max_tokens"'):
        provider.decode(request(), completion(None, finish="length"))


def test_a_whole_answer_at_the_limit_counts():
    reply = OpenAI("m", base_url=LOCAL).decode(request(), completion(finish="length"))
    assert reply.answers == (Answer("refund", 0.9),)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        *((body, "the response is no") for body in (b"", b"{", b"\xff", b"[]", b"null", b'"x"')),
        (b"\n<html>", "a web page, not JSON; check base_url"),
    ],
)
def test_bodies_that_are_no_answer(body, says):
    with pytest.raises(UnreadableReplyError, match=says):
        OpenAI("m", base_url=LOCAL).decode(request(), body)


def test_packed_answers():
    content = '{"answers": [{"id": 2, "label": "b", "confidence": 0.5}]}'
    reply = OpenAI("m", base_url=LOCAL).decode(request(2), completion(content))
    assert isinstance(reply.answers[0], MismatchedReplyError)
    assert reply.answers[1] == Answer("b", 0.5)


# --- log-probabilities -------------------------------------------------------------------------


def tokens(*pairs, raw=True):
    return {
        "content": [
            {"token": text, "logprob": logprob, "bytes": list(text.encode()) if raw else None}
            for text, logprob in pairs
        ]
    }


PIECES = [('{"', -9.0), ("label", -9.0), ('":"', -9.0), ("re", -0.1), ("fund", -0.2), ('"}', -9.0)]


@pytest.mark.parametrize("raw", [True, False])
def test_logprobs(raw):
    provider, asked = OpenAI("m", base_url=LOCAL), request(confidence="logprobs")
    body = sent(provider, asked)
    assert body["logprobs"] is True
    schema = body["response_format"]["json_schema"]["schema"]
    assert schema["required"] == ["label"]
    content = "".join(text for text, _ in PIECES)
    reply = provider.decode(asked, completion(content, logprobs=tokens(*PIECES, raw=raw)))
    (answer,) = reply.answers
    assert answer.label == "refund"
    assert math.isclose(answer.confidence, math.exp(-0.3))
    assert reply.usage == TokenUsage(100, 7, 64)


def test_logprobs_of_characters_split_between_tokens():
    word = "\u65e5".encode()
    listed = [
        {"token": '{"label":"', "logprob": -1.0, "bytes": list(b'{"label":"')},
        {"token": "?", "logprob": -0.25, "bytes": list(word[:2])},
        {"token": '?"', "logprob": -0.5, "bytes": [*word[2:], 34]},
        {"token": "}", "logprob": -1.0, "bytes": [125]},
        {"token": "<|end|>", "logprob": -1.0, "bytes": list(b"<|end|>")},
    ]
    asked = request(confidence="logprobs")
    body = completion('{"label":"\u65e5"}', logprobs={"content": listed})
    (answer,) = OpenAI("m", base_url=LOCAL).decode(asked, body).answers
    assert math.isclose(answer.confidence, math.exp(-0.75))


def test_logprobs_of_packed_answers():
    pieces = [('{"answers":[{"id":2,"label":"', -9.0), ("b", -0.5), ('"},{"id":1,"label":"', -9.0)]
    pieces += [("a", -0.25), ('"}]}', -9.0)]
    body = completion("".join(t for t, _ in pieces), logprobs=tokens(*pieces))
    asked = request(2, confidence="logprobs")
    reply = OpenAI("m", base_url=LOCAL).decode(asked, body)
    assert [a.label for a in reply.answers] == ["a", "b"]
    assert [a.confidence for a in reply.answers] == pytest.approx([math.exp(-0.25), math.exp(-0.5)])


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {},
        {"content": None},
        {"content": []},
        tokens(("other", -1.0)),
        {"content": [3]},
        {"content": [{"token": "x", "logprob": None}]},
        "x",
    ],
)
def test_logprobs_that_are_not_given(logprobs):
    asked = request(confidence="logprobs")
    reply = OpenAI("m", base_url=LOCAL).decode(asked, completion(logprobs=logprobs))
    assert reply.answers == (Answer("refund", None),)  # never the verbalized one


# --- failures ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error", "kind", "fatal"),
    [
        (400, {"message": "bad", "type": "invalid_request_error"}, BadRequestError, True),
        (401, {"message": "Incorrect API key provided"}, AuthenticationError, True),
        (403, {"message": "not allowed"}, AuthenticationError, True),
        (404, {"message": "The model `x` does not exist"}, UnknownModelError, True),
        (402, {"message": "pay"}, QuotaExceededError, True),
        (429, {"message": "slow down", "code": "rate_limit_exceeded"}, RateLimitedError, False),
        (429, {"message": "quota", "code": "insufficient_quota"}, QuotaExceededError, True),
        (
            429,
            {"message": "Rate limit reached. Add a payment method at ../account/billing."},
            RateLimitedError,
            False,
        ),
        (
            429,
            {"message": "Request too large for gpt-4o on tokens per min: Limit 1, Requested 2"},
            BadRequestError,
            False,
        ),
        (
            400,
            {"message": "maximum context length", "code": "context_length_exceeded"},
            BadRequestError,
            False,
        ),
        (413, {"message": "too big"}, BadRequestError, False),
        (422, {"message": "unprocessable"}, BadRequestError, True),
        (
            400,
            {
                "message": "The response was filtered due to the prompt triggering ..",
                "code": "content_filter",
                "innererror": {"code": "ResponsibleAIPolicyViolation"},
            },
            ContentRefusedError,
            False,
        ),
        (403, {"message": "Your input was flagged", "code": 403}, ContentRefusedError, False),
        (408, {"message": "timeout"}, ServerError, False),
        (409, {"message": "conflict"}, ServerError, False),
        (500, {"message": "oops"}, ServerError, False),
        (503, {"message": "overloaded"}, ServerError, False),
        (529, {"message": "overloaded"}, ServerError, False),
    ],
)
def test_failures(status, error, kind, fatal):
    provider = OpenAI("gpt-4o", api_key=KEY)
    found = provider.error(status, {"X-Request-Id": "req_1"}, orjson.dumps({"error": error}))
    assert type(found) is kind
    assert found.fatal is fatal
    assert found.status_code == status
    assert found.request_id == "req_1"
    assert found.retry_after is None
    assert error["message"] in str(found)
    assert "gpt-4o at api.openai.com" in str(found)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"error": "model not found, pull it first"}', "pull it first"),  # Ollama
        (b'{"object": "error", "message": "bad thing", "code": 400}', "bad thing"),  # vLLM
        (b'{"detail": "Not authenticated"}', "Not authenticated"),  # FastAPI
        (b'{"detail": [{"loc": ["body"], "msg": "field required"}]}', "field required"),
        (b'[{"error": {"message": "Gemini says no", "code": 400}}]', "Gemini says no"),
        (b"<html><h1>502 Bad\nGateway</h1></html>", "502 Bad Gateway"),
        (b"", "without a message"),
        (b"null", "without a message"),
        (b"\xff\xfe", "\ufffd"),
    ],
)
def test_shapes_of_errors(body, says):
    assert says in str(OpenAI("m", base_url=LOCAL).error(502, {}, body))


def test_messages_are_cut():
    error = refuse(OpenAI("m", base_url=LOCAL), "word " * 1000)
    assert len(str(error)) < 400


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "slow", "code": 429}, RateLimitedError),
        ({"message": "slow", "type": "rate_limit_error"}, RateLimitedError),
        ({"message": "bad", "code": 400}, BadRequestError),
        ({"message": "no credit", "code": 402}, QuotaExceededError),
        ({"message": "upstream broke"}, ServerError),
        ("plain", ServerError),
    ],
)
def test_errors_inside_of_a_200(error, kind):
    with pytest.raises(kind):
        OpenAI("m", base_url=LOCAL).decode(request(), orjson.dumps({"error": error}))


# --- usage and failed generations --------------------------------------------------------------


def test_the_service_tier_is_read():
    provider = OpenAI("m", base_url=LOCAL)
    body = completion(service_tier="flex")
    assert provider.decode(request(), body).usage.tier == "flex"
    body = completion(
        usage={"prompt_tokens": 1, "completion_tokens": 1, "service_tier": "standard"}
    )
    assert provider.decode(request(), body).usage.tier == "standard"
    assert provider.decode(request(), completion(service_tier=None)).usage.tier == ""


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        # a total beyond the sum is reasoning, whatever is said of it
        (
            {"total_tokens": 300, "completion_tokens_details": {"reasoning_tokens": 0}},
            (100, 200, 0, 0),
        ),
        (
            {"total_tokens": 300, "completion_tokens_details": {"reasoning_tokens": 40}},
            (100, 200, 0, 0),
        ),
        (
            {"total_tokens": 107, "completion_tokens_details": {"reasoning_tokens": 5}},
            (100, 7, 0, 0),
        ),
        # xAI's is outside of completion_tokens, OpenAI's inside; Gemini has no details
        (
            {"total_tokens": 201, "completion_tokens_details": {"reasoning_tokens": 94}},
            (100, 101, 0, 0),
        ),
        (
            {
                "completion_tokens": 101,
                "total_tokens": 201,
                "completion_tokens_details": {"reasoning_tokens": 94},
            },
            (100, 101, 0, 0),
        ),
        ({"total_tokens": 134}, (100, 34, 0, 0)),
        ({"total_tokens": 3}, (100, 7, 0, 0)),
        # without a total, a part that is larger than the whole is outside
        ({"completion_tokens_details": {"reasoning_tokens": 94}}, (100, 101, 0, 0)),
        (
            {"completion_tokens": 101, "completion_tokens_details": {"reasoning_tokens": 94}},
            (100, 101, 0, 0),
        ),
        # Mistral: the rest is audio of the prompt
        ({"total_tokens": 482, "prompt_tokens_details": {"audio_tokens": 375}}, (100, 7, 0, 0)),
        # cached tokens have several names
        ({"num_cached_tokens": 32, "prompt_tokens_details": {"cached_tokens": 0}}, (100, 7, 32, 0)),
        ({"prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36}, (100, 7, 64, 0)),
        ({"cached_tokens": 500}, (100, 7, 100, 0)),
        # OpenAI bills what is written to the cache, too
        (
            {"prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 90}},
            (100, 7, 0, 90),
        ),
        (
            {"prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 90}},
            (100, 7, 60, 40),
        ),
    ],
)
def test_tokens_that_servers_count_otherwise(usage, expected):
    body = orjson.loads(completion())
    body["usage"] = {"prompt_tokens": 100, "completion_tokens": 7, **usage}
    found = OpenAI("m", base_url=LOCAL).decode(request(), orjson.dumps(body)).usage
    counted = (
        found.input_tokens,
        found.output_tokens,
        found.cached_tokens,
        found.cache_write_tokens,
    )
    assert counted == expected
