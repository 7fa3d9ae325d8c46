"""Streams, joined: as servers send them, cut off, and as no server should."""

from __future__ import annotations

import orjson
import pytest

from testnuc.errors import (
    RateLimitedError,
    ReplyError,
    TruncatedReplyError,
    UnreadableReplyError,
)
from testnuc.protocols import TokenUsage
from testnuc.providers._streams import joined
from testnuc.providers.anthropic import Anthropic
from testnuc.providers.openai import OpenAI
from tests.providers.chat_bodies import LOCAL, request

SAID = '{"label": "refund", "confidence": 0.9}'


def stream(*events, ends=b"data: [DONE]\n\n"):
    lines = (event if isinstance(event, bytes) else orjson.dumps(event) for event in events)
    return b"".join(b"data: " + line + b"\n\n" for line in lines) + ends


def chunk(content=None, finish=None, **more):
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return {"id": "c1", "choices": [choice], **more}


@pytest.mark.parametrize("split", [1, 7, len(SAID)])
def test_a_chat_in_pieces(split):
    pieces = [chunk(SAID[i : i + split]) for i in range(0, len(SAID), split)]
    usage = {"prompt_tokens": 100, "completion_tokens": 12, "total_tokens": 112}
    body = b": PROCESSING\n\n" + stream(
        *pieces, chunk(finish="stop"), {"id": "c1", "choices": [], "usage": usage}
    )
    reply = OpenAI("m", base_url=LOCAL).decode(request(), body)
    assert (reply.answers[0].label, reply.usage) == ("refund", TokenUsage(100, 12))
    assert reply.request_id == "c1"


def test_a_message_in_pieces():
    start = {"id": "msg_1", "content": [], "usage": {"input_tokens": 9, "output_tokens": 1}}
    texts = [
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": part}}
        for part in (SAID[:9], SAID[9:])
    ]
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
    body = b"event: message_start\n" + stream(
        {"type": "message_start", "message": start}, *texts, {**end, "usage": {"output_tokens": 12}}
    )
    reply = Anthropic("m", base_url=LOCAL).decode(request(), body)
    assert (reply.answers[0].label, reply.usage) == ("refund", TokenUsage(9, 12))


def test_a_response_in_pieces():
    part = {"type": "output_text", "text": SAID}
    output = [{"type": "message", "content": [part]}]
    whole = {"id": "resp_1", "output": output, "usage": {"input_tokens": 9, "output_tokens": 12}}
    started = {"type": "response.created", "response": {"id": "resp_1", "output": []}}
    body = stream(started, {"type": "response.completed", "response": whole})
    reply = OpenAI("m", base_url=LOCAL, responses=True).decode(request(), body)
    assert (reply.answers[0].label, reply.usage) == ("refund", TokenUsage(9, 12))


def anthropic(*parts, end=()):
    start = {"id": "msg_1", "content": [], "usage": {"input_tokens": 9, "output_tokens": 1}}
    events = [{"delta": {"type": "text_delta", "text": part}} for part in parts]
    return stream({"type": "message_start", "message": start}, *events, *end, ends=b"")


def chat(*parts, end=()):
    return stream(*map(chunk, parts), *end, ends=b"")


@pytest.mark.parametrize(("provider", "cut"), [(OpenAI, chat), (Anthropic, anthropic)])
@pytest.mark.parametrize(
    "said",
    ['Perhaps {"label": "refund"}, but no: ', "refund", '{"label": "refund"} or {"label": "x'],
)
def test_what_a_stream_says_before_it_breaks_off_is_no_answer(provider, cut, said):
    provider = provider("m", base_url=LOCAL)
    with pytest.raises(UnreadableReplyError, match="before its end") as raised:
        provider.decode(request(), cut(said))
    assert raised.value.retryable
    # but for a whole answer, which is paid for
    assert provider.decode(request(), cut(SAID[:5], SAID[5:])).answers[0].label == "refund"
    several = '{"answers": [{"id": 1, "label": "refund"}, {"id": 2, "label": "re'
    first, second = provider.decode(request(2), cut(several)).answers
    assert first.label == "refund"
    assert isinstance(second, ReplyError)


@pytest.mark.parametrize(
    "body",
    [
        chat("so: " + SAID, end=[chunk(finish="stop")]),
        chat("so: " + SAID, end=[b"[DONE]"]),
        anthropic("so: " + SAID, end=[{"delta": {"stop_reason": "end_turn"}}]),
        anthropic("so: " + SAID, end=[{"type": "message_stop"}]),
    ],
)
def test_a_stream_may_say_in_several_ways_that_it_has_ended(body):
    provider = Anthropic if b"msg_1" in body else OpenAI
    assert provider("m", base_url=LOCAL).decode(request(), body).answers[0].label == "refund"


PARTS = ('{"label": "', "refund not", ' due"}')
EVENTS = [orjson.dumps(chunk(part)) for part in PARTS]
HEAD, REST = EVENTS[1][:11], EVENTS[1][11:]


@pytest.mark.parametrize(
    "event",
    [
        b"data: %b\ndata: %b\n\n" % (HEAD, REST),
        b"data: %b\r\ndata: %b\r\n\r\n" % (HEAD, REST),
        b": of an event\ndata: %b\nid: 7\ndata:%b\n\n" % (HEAD, REST),
        b"data: %b\n" % EVENTS[1],
        b"%b\n" % EVENTS[1],
        stream(
            {"choices": [{"index": 1, "delta": {"content": "x"}}, chunk(PARTS[1])["choices"][0]]}
        ),
    ],
)
def test_no_event_of_a_stream_is_left_out(event):
    around = b"data: %b\n\n"
    body = around % EVENTS[0] + event + around % EVENTS[2] + stream(chunk(finish="stop"))
    reply = OpenAI("m", base_url=LOCAL).decode(request(), body)
    assert reply.answers[0].label == "refund not due"


@pytest.mark.parametrize(
    "event", [b"data: " + HEAD, b"data: " + REST, b"data :" + EVENTS[1], b"dat: " + EVENTS[1]]
)
@pytest.mark.parametrize("end", [b"\n\n", b"\n"])
@pytest.mark.parametrize("rest", [b"data: [DONE]\n\n", stream(chunk(finish="stop"))])
def test_a_stream_with_an_event_that_cannot_be_read_is_no_answer(event, end, rest):
    around = b"data: %b" + end
    body = around % EVENTS[0] + event + end + around % EVENTS[2] + rest
    with pytest.raises(UnreadableReplyError, match="no JSON"):
        OpenAI("m", base_url=LOCAL).decode(request(), body)


def test_log_probabilities_of_a_stream():
    def piece(token, logprob):
        found = chunk(token)
        found["choices"][0]["logprobs"] = {"content": [{"token": token, "logprob": logprob}]}
        return found

    body = stream(piece('{"label": "', 0.0), piece("refund", -0.5), piece('"}', 0.0))
    asked = request(confidence="logprobs")
    reply = OpenAI("m", base_url=LOCAL).decode(asked, body)
    assert reply.answers[0].confidence == pytest.approx(0.6065, abs=1e-3)


def test_errors_in_a_stream():
    provider = OpenAI("m", base_url=LOCAL)
    limit = {"error": {"message": "slower", "code": 429}}
    with pytest.raises(RateLimitedError, match="slower"):
        provider.decode(request(), stream(chunk("{"), limit))
    # OpenRouter calls an answer that was cut off an error, too
    with pytest.raises(TruncatedReplyError):
        late = {"error": {"message": "the limit is reached", "code": 400}}
        provider.decode(request(), stream(chunk("{", "length"), late))


def test_what_is_no_stream():
    for body in (b"", b"{", b"<html>", b"[1]", b"datum: 1"):
        assert joined(body) is None
