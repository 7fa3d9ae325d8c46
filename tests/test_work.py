"""What a server may send takes bounded work: a loop that reads it is not blocked."""

from __future__ import annotations

import contextlib
import json
import time

import pytest

from testnuc.errors import ReplyError, TestNUCError, UnreadableReplyError
from testnuc.labels import LabelSet
from testnuc.prompts.reading import label_spans, parse_reply
from testnuc.protocols import Request, Task
from testnuc.providers.openai import OpenAI
from testnuc.transport.api_errors import redacted
from tests.providers.chat_bodies import KEY, LOCAL, completion

PROVIDER = OpenAI("m", base_url=LOCAL, api_key=KEY)
LABELS = ("refund", "delivery")
#: Characters of an input, and seconds of CPU that it may take: it takes a fifth of them.
LENGTH, ENOUGH = 200_000, 0.5

UNITS = {
    "spaces": " ",
    "a fence and spaces": "``` ",
    "fences": "```",
    "brackets": "[",
    "braces": "{",
    "objects": '{"a":',
    "strings": '["',
    "escaped quotes": '\\"',
    "ids": '"id" ',
    "labels": '"label" : "',
    "thinking": "<think>",
    "thinking ends": "</think>",
    "tags": "<",
    "digits": "1",
    "a key": KEY[:-1] + "-",
    "hyphens": "a-",
    "escapes": "%2",
    "entities": "&#4",
    "backslashes": "\\",
    "numbers": "1,",
    "bearers": "bearer ",
    "lines": "\n",
    "escape sequences": "\x1b[31m",
}


def hostile(unit):
    """Return inputs of a repeated unit, as it is and in JSON that does not end."""
    repeated = unit * (LENGTH // len(unit))
    nested = "[" * 990 + unit * 40_000
    return ["```" + repeated, repeated, nested, '{"label": "refund"} ' + nested, f'{{"x": "{unit}']


def seconds(call, *given, **options):
    start = time.thread_time()
    call(*given, **options)
    return time.thread_time() - start


def quick(call, *given, **options):
    """Whether a call takes little CPU, once of three times: other processes share the caches."""
    return any(seconds(call, *given, **options) < ENOUGH for _ in range(3))


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_a_reply(unit):
    for content in hostile(unit):
        for n, several in ((1, False), (1, True), (20, False)):
            for cut in (False, True):
                assert quick(parse_reply, content, n, several=several, truncated=cut)
        assert quick(label_spans, content, ["refund"])


def decoded(body, *, several):
    request = Request(Task("s", LABELS, multilabel=several), "u", ("t",))
    with contextlib.suppress(TestNUCError):
        PROVIDER.decode(request, body)


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_a_response(unit):
    for content in hostile(unit):
        body = completion(content)
        assert quick(decoded, body, several=True)
        label = completion(json.dumps({"label": content}))
        assert quick(decoded, label, several=False)


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_an_error(unit):
    headers = {"x-request-id": unit * 1000, "location": unit * 1000}
    for content in hostile(unit):
        error = {"message": content, "code": content, "type": content, "param": content}
        for body in (
            json.dumps({"error": error, "request_id": content}).encode(),
            json.dumps({"detail": [{"loc": ["body"], "input": content}]}).encode(),
            json.dumps({"error": {"message": json.dumps({"error": error})}}).encode(),
            content.encode(),
        ):
            assert quick(PROVIDER.error, 422, headers, body)
            raised = PROVIDER.error(422, headers, body)
            assert len(str(raised)) < 2000
            assert len(raised.request_id or "") <= 300


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_words_without_keys(unit):
    for content in hostile(unit):
        assert quick(redacted, content, KEY)
        assert quick(PROVIDER.shown, content[:10_000])


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_a_label(unit):
    labels = LabelSet([f"{'long ' * 100}label {i}" for i in range(500)])
    for size in (5, 50, 500):
        said = (unit * size)[:500]
        assert quick(labels.match, said)
        assert quick(labels.same, said)


#: Replies of so many answers that reading them all takes seconds, in JSON that is whole.
CROWDS = {
    "labels": lambda: {"labels": [f"refund {i}" for i in range(250_000)]},
    "labels and confidences": lambda: {"labels": {f"refund {i}": 0.5 for i in range(250_000)}},
    "answers": lambda: {"answers": [{"id": i % 20 + 1, "label": "a"} for i in range(200_000)]},
    "a list": lambda: [{"label": "refund"}] * 250_000,
    "fields": lambda: {**{f"field {i}": [] for i in range(250_000)}, "label": "refund"},
}


@pytest.mark.parametrize("crowd", CROWDS.values(), ids=CROWDS)
def test_a_reply_with_many_answers(crowd):
    content = json.dumps(crowd())
    for n, several in ((1, False), (1, True), (20, False), (20, True)):
        assert quick(parse_reply, content, n, several=several)
        answers = parse_reply(content, n, several=several)
        assert all(isinstance(answer, ReplyError) for answer in answers)


def test_as_many_answers_as_are_asked_for():
    answers = [
        {"id": i, "labels": [{"label": f"label {j}", "confidence": 0.5} for j in range(32)]}
        for i in range(1, 101)
    ]
    read = parse_reply(json.dumps({"answers": answers}), 100, several=True)
    assert [len(answer.labels) for answer in read] == [32] * 100


PIECE = b'data: {"choices":[{"index":0,"delta":{"content":"ab"}}]}\n\n'
ANSWER = json.dumps({"label": "refund"})


def surrogates():
    return b'data: {"id":"' + b"\\ud800" * 140_000 + b'"}\n'


#: Bodies that take seconds to read as a whole, and what is said of them; made when they are used.
BODIES = {
    "fields": (lambda: completion(ANSWER, extra={f"f{i}": 1 for i in range(490_000)}), "no JSON"),
    "fields of an error": (
        lambda: json.dumps({"error": {f"f{i}": 1 for i in range(490_000)}}).encode(),
        "no JSON",
    ),
    "a long error": (lambda: json.dumps({"error": {"message": "x" * 15_000_000}}).encode(), "500"),
    "escapes": (lambda: b'{"id":"' + b"\\n" * 490_000 + b'\xff"}', "no JSON"),
    "pieces": (lambda: PIECE * 45_000, "no JSON"),
    "events that are no JSON": (lambda: b"data: x\n" * 90_000, "no JSON"),
    "long events that are no JSON": (lambda: surrogates() * 18, "no JSON"),
    "lists in events": (lambda: (b'data: {"a":[' + b"[]," * 290_000 + b"1]}\n") * 18, "no JSON"),
    "a long reply": (lambda: completion(ANSWER + " " * 5_000_000), "too long"),
}


@pytest.mark.parametrize(("made", "said"), BODIES.values(), ids=BODIES)
def test_a_body_that_takes_long_is_not_read_as_a_whole(made, said):
    body = made()
    with pytest.raises(TestNUCError, match=said):
        PROVIDER.decode(Request(Task("s", LABELS), "u", ("t",)), body)
    assert quick(decoded, body, several=False)


@pytest.mark.parametrize(("n", "size"), [(9_900, 8), (1000, 900)])
def test_many_labels_outside_of_the_set(n, size):
    labels = [(f"{i} refunds " * size)[:size] for i in range(n)]
    body = completion(json.dumps({"labels": labels}))
    with pytest.raises(UnreadableReplyError, match="not in the set"):
        PROVIDER.decode(Request(Task("s", LABELS, multilabel=True), "u", ("t",)), body)
    assert quick(decoded, body, several=True)


def test_scores_of_many_texts():
    labels = tuple(f"refund of kind {i}" for i in range(500))
    said = json.dumps({"answers": [{"id": i, "label": labels[i]} for i in range(1, 101)]})
    top = [{"token": f"{i}", "logprob": -1.0} for i in range(20)]
    tokens = [
        {"token": said[i : i + 2], "logprob": -0.1, "top_logprobs": top}
        for i in range(0, len(said), 2)
    ]
    choice = {"message": {"content": said}, "logprobs": {"content": tokens}}
    body = json.dumps({"choices": [choice]}).encode()
    task = Task("s", labels, confidence="logprobs", score_labels=True)
    request = Request(task, "u", tuple(f"text {i}" for i in range(100)))
    reply = PROVIDER.decode(request, body)
    assert [answer.label for answer in reply.answers] == list(labels[1:101])
    assert quick(PROVIDER.decode, request, body)
