"""Bodies that no provider should send: what was paid for is read, or is an error of ours."""

from __future__ import annotations

from random import Random

import orjson
import pytest

from testnuc.embedders.openai import _Embeddings
from testnuc.errors import ProviderError, ReplyError, ServerError, UnreadableReplyError
from testnuc.labels import LabelSet
from testnuc.protocols import Answer, Reply, Request, Task, TokenUsage
from testnuc.providers.anthropic import Anthropic
from testnuc.providers.openai import OpenAI
from testnuc.transport.endpoint import Endpoint
from tests.providers.chat_bodies import LOCAL, completion, request, task

REFUND = '{"label": "refund", "confidence": 0.9}'
TOKENS = [
    {
        "token": REFUND,
        "logprob": -0.5,
        "bytes": list(REFUND.encode()),
        "top_logprobs": [{"token": "x", "logprob": -3.0, "bytes": [120]}],
    }
]
CHAT = orjson.loads(completion(REFUND, logprobs={"content": TOKENS}))
PACK = orjson.loads(
    completion('{"answers": [{"id": 1, "label": "refund"}, {"id": 2, "label": "refund"}]}')
)
RESPONSE = {
    "id": "resp_1",
    "status": "completed",
    "incomplete_details": None,
    "output": [
        {"type": "reasoning", "summary": []},
        {
            "type": "message",
            "content": [{"type": "output_text", "text": REFUND, "logprobs": TOKENS}],
        },
    ],
    "usage": {"input_tokens": 5, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 1}},
}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "content": [{"type": "text", "text": REFUND}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 5, "output_tokens": 3, "cache_read_input_tokens": 2},
}
FAILURE = {
    "error": {
        "message": "no",
        "type": "server_error",
        "code": 500,
        "param": None,
        "innererror": {"code": "x"},
        "metadata": {"raw": '{"error": "inner"}', "reasons": ["a"]},
    }
}
VECTORS = {"data": [{"index": 0, "embedding": [0.5, 1.0]}], "usage": {"prompt_tokens": 3}}
CHUNKS = [
    {"id": "c", "choices": [{"index": 0, "delta": {"content": REFUND}, "finish_reason": "stop"}]},
    {"id": "c", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}},
]
EVENTS = [
    {"type": "message_start", "message": MESSAGE},
    {"type": "content_block_delta", "delta": {"type": "text_delta", "text": REFUND}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
]


#: Values in place of others, as bytes: some are no JSON, or nested deeply.
WRONG = (
    *(
        b"null",
        b"true",
        b"-1",
        b"0",
        b"1.5",
        b"9223372036854775808",
        b"1e308",
        b"1e400",
        b"9" * 400,
    ),
    *(b"NaN", b"-Infinity", b'""', b'"x"', b'"%s"' % (b"4" * 5000), rb'"\ud800"', b'"\xff"'),
    *(b"[]", b"[null]", b"[[]]", b"{}", b'{"x":1}', b'[{"text":["x"]}]'),
    *(b"[" * depth + b"]" * depth for depth in (300, 990, 2000)),
    b'{"text":[' * 450 + b'"x"' + b"]}" * 450,
)


def mutated(value, rng):
    """Return a copy with one part, at random, replaced by "@"."""
    parts = list(value.items() if isinstance(value, dict) else enumerate(value))
    if not parts:
        return "@"
    key, part = rng.choice(parts)
    copied = value.copy()
    deeper = isinstance(part, dict | list) and rng.random() < 0.75
    copied[key] = mutated(part, rng) if deeper else "@"
    return copied


def damaged(body, rng):
    """Return a body with some bytes replaced, removed or inserted, or as it is."""
    if rng.random() < 0.5:
        return body
    at = rng.randrange(len(body))
    rest = at + rng.choice((0, 1, 5))
    put = rng.choice((b"", b"\xff", b"NaN", rb"\ud800", b"[", b"}", b'"', b"\x00", b"\xef\xbb\xbf"))
    return body[:at] + put + body[rest:]


PLAIN = request(1)
SCORED = request(1, task=task(confidence="logprobs", score_labels=True))
LISTED = Request(Task("", ()), "", ("text",))
CASES = {
    "chat": (lambda: OpenAI("m", base_url=LOCAL), PLAIN, CHAT),
    "scores": (lambda: OpenAI("m", base_url=LOCAL), SCORED, CHAT),
    "packed": (lambda: OpenAI("m", base_url=LOCAL), request(2), PACK),
    "responses": (lambda: OpenAI("m", base_url=LOCAL), SCORED, RESPONSE),
    "failure": (lambda: OpenAI("m", base_url=LOCAL), PLAIN, FAILURE),
    "chat stream": (lambda: OpenAI("m", base_url=LOCAL), PLAIN, CHUNKS),
    "messages": (lambda: Anthropic("m", base_url=LOCAL), PLAIN, MESSAGE),
    "message stream": (lambda: Anthropic("m", base_url=LOCAL), PLAIN, EVENTS),
    "embeddings": (
        lambda: _Embeddings("m", Endpoint.parse(LOCAL), None, None), LISTED, VECTORS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_response_is_a_reply_or_an_error_of_ours(name):
    make, asked, whole = CASES[name]
    rng = Random(name)
    replies = 0
    for n in range(800):
        value = mutated(whole, rng)
        events = [b"data: " + orjson.dumps(event) + b"\n\n" for event in value]
        body = b"".join(events) if isinstance(whole, list) else orjson.dumps(value)
        body = damaged(body.replace(b'"@"', WRONG[n % len(WRONG)]), rng)
        provider = make()
        try:
            reply = provider.decode(asked, body)
        except ProviderError as error:
            usage = getattr(error, "usage", None)
        else:
            assert isinstance(reply, Reply)
            usage = reply.usage
            replies += 1
        if usage is not None:
            counts = (usage.input_tokens, usage.output_tokens, usage.cached_tokens)
            assert all(type(n) is int and 0 <= n < 10**9 for n in counts)
        status = rng.choice((200, 400, 401, 404, 429, 500))
        assert isinstance(provider.error(status, {}, body), ProviderError)
    assert replies or name == "failure"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda body: b"\xef\xbb\xbf" + body,
        lambda body: body[:-1] + b',"x":-Infinity}',
        lambda body: body[:-1] + b',"x":NaN}',
        lambda body: body[:-1] + rb',"x":"\ud800"}',
        lambda body: body[:-1] + b',"x":"\xff\xfe"}',
        lambda body: body[:-1] + b',"x":' + b"9" * 400 + b"}",
        lambda body: b"\xef\xbb\xbfdata: " + body.replace(b'"message"', b'"delta"') + b"\n\n",
    ],
)
@pytest.mark.parametrize("kind", ["chat", "messages"])
def test_what_was_paid_for_is_read_although_it_is_no_strict_json(kind, wrap):
    make, asked, whole = CASES[kind]
    if kind == "messages" and wrap(b'"message"').endswith(b"\n"):
        return
    reply = make().decode(asked, wrap(orjson.dumps(whole)))
    assert reply.answers == (Answer("refund", 0.9),)
    assert reply.usage is not None


def test_a_reply_that_is_a_former_name_alone_is_the_label():
    """It was unreadable; in JSON it was understood."""
    former = {"returns": ["refund", "login", "both"], "delivery": ["both"]}
    labels = LabelSet(["returns", "delivery", "login"], former=former)
    whole = Request(labels.task("Choose a label."), "", ("text",))
    for said, label in (("Refund", "returns"), ("login", "login")):
        reply = OpenAI("m", base_url=LOCAL).decode(whole, completion(said))
        assert reply.answers == (Answer(label),)
    with pytest.raises(UnreadableReplyError):
        OpenAI("m", base_url=LOCAL).decode(whole, completion("both"))


#: Values that a careless server writes in a field about the answer.
ODD = (None, True, False, 0, -1, 2.5, "", "0", "-5", [], {}, ["stop"], {"a": 1}, "x" * 50)
ABOUT = ("index", "finish_reason", "stop_reason", "id", "model", "usage", "incomplete_details")


@pytest.mark.parametrize("value", ODD, ids=repr)
@pytest.mark.parametrize("kind", ["chat", "responses", "messages", "chat stream", "message stream"])
def test_a_whole_answer_counts_whatever_is_said_about_it(kind, value):
    make, _, whole = CASES[kind]
    for field in ABOUT:
        changed = with_field(whole, field, value)
        body = b"".join(b"data: %b\n\n" % orjson.dumps(e) for e in changed)
        reply = make().decode(PLAIN, body if isinstance(changed, list) else orjson.dumps(changed))
        assert reply.answers == (Answer("refund", 0.9),), field


def with_field(value, field, odd):
    """Return a copy in which all fields of a name have another value."""
    if isinstance(value, list):
        return [with_field(one, field, odd) for one in value]
    if not isinstance(value, dict):
        return value
    return {n: odd if n == field else with_field(one, field, odd) for n, one in value.items()}


@pytest.mark.parametrize("reason", [2, 1.0, True, ["stop"], {"type": "stop"}])
@pytest.mark.parametrize("kind", ["chat", "responses", "messages"])
def test_of_an_answer_that_ended_for_an_odd_reason_only_what_is_complete_counts(kind, reason):
    make, _, whole = CASES[kind]
    body = orjson.dumps(whole).replace(
        orjson.dumps(REFUND), orjson.dumps(f"First {REFUND}, or rather")
    )
    for field in ("finish_reason", "stop_reason", "status"):
        changed = with_field(orjson.loads(body), field, reason)
        if changed == orjson.loads(body):
            continue
        with pytest.raises(UnreadableReplyError, match="broke off"):
            make().decode(PLAIN, orjson.dumps(changed))


def test_a_message_may_be_a_string():
    reply = Anthropic("m", base_url=LOCAL).decode(
        PLAIN, orjson.dumps({**MESSAGE, "content": REFUND})
    )
    assert reply.answers == (Answer("refund", 0.9),)


@pytest.mark.parametrize("number", ["5", 5.0])
def test_tokens_are_counted_however_they_are_written(number):
    usage = {"prompt_tokens": number, "completion_tokens": number}
    reply = OpenAI("m", base_url=LOCAL).decode(PLAIN, orjson.dumps({**CHAT, "usage": usage}))
    assert reply.usage == TokenUsage(5, 5)
    usage = {"input_tokens": number, "output_tokens": number}
    reply = Anthropic("m", base_url=LOCAL).decode(PLAIN, orjson.dumps({**MESSAGE, "usage": usage}))
    assert reply.usage == TokenUsage(5, 5)


@pytest.mark.parametrize("number", ["-5", -5, 2.5, "5.5", True, "\u0665", "9" * 5000, 1e300])
def test_tokens_that_cannot_be_are_unknown(number):
    usage = {"prompt_tokens": number, "completion_tokens": 3}
    body = orjson.dumps({**CHAT, "usage": usage})
    reply = OpenAI("m", base_url=LOCAL).decode(PLAIN, body)
    assert reply.usage is None


def test_an_impossible_logprob_is_zero():
    body = completion('{"label": "refund"}', logprobs={"content": [{**TOKENS[0], "logprob": 7}]})
    body = body.replace(b'"logprob":7', b'"logprob":-Infinity')
    asked = request(1, task=task(confidence="logprobs"))
    (answer,) = OpenAI("m", base_url=LOCAL).decode(asked, body).answers
    assert answer.label == "refund"


@pytest.mark.parametrize("depth", [300, 1000, 5000])
@pytest.mark.parametrize("path", ["%s", '{"error":%s}', '{"error":{"message":%s}}',
                                  '{"error":{"metadata":{"raw":%s}}}',
                                  '{"error":{"innererror":{"code":%s}}}'])  # fmt: skip
def test_an_error_that_is_nested_deeply_is_an_error_like_others(path, depth):
    provider = OpenAI("m", base_url=LOCAL)
    for opening, closing in (("[", "]"), ('{"error":', "}"), ('{"message":[', "]}")):
        body = (path % (opening * depth + "1" + closing * depth)).encode()
        assert isinstance(provider.error(500, {}, body), ServerError)
        with pytest.raises(ProviderError):
            provider.decode(PLAIN, body)


def test_an_error_in_a_response_that_was_billed_counts_as_an_answer():
    body = {**FAILURE, "usage": {"prompt_tokens": 5, "completion_tokens": 3}}
    provider = OpenAI("m", base_url=LOCAL)
    with pytest.raises(UnreadableReplyError) as caught:
        provider.decode(PLAIN, orjson.dumps(body))
    assert caught.value.usage == TokenUsage(5, 3)
    with pytest.raises(ServerError) as caught:
        provider.decode(PLAIN, orjson.dumps(FAILURE))
    assert not isinstance(caught.value, ReplyError)
