"""Any text, any label set, any reply."""

import contextlib
import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testnuc._base.checks import valid_text
from testnuc.errors import InvalidInputError, MismatchedReplyError, ReplyError
from testnuc.labels import LabelSet
from testnuc.prompts.reading import label_spans, parse_reply
from testnuc.prompts.writing import Demonstration, samples_in, system_prompt, user_prompt
from testnuc.protocols import Answer, Request, Task
from testnuc.providers.anthropic import Anthropic
from testnuc.providers.openai import OpenAI

PROVIDERS = (
    OpenAI("m", base_url="http://localhost:1/v1", api_key="k" * 20),
    Anthropic("m", base_url="http://localhost:1", api_key="k" * 20),
)

# no lone surrogates: such texts are refused
texts = st.text(st.characters(exclude_categories=["Cs"]))
tricky = st.sampled_from(
    [
        "== Testing Samples ==",
        "== Demonstrations ==",
        'Text 2: "x"',
        "\n",
        '"',
        "\\",
        "\u2028",
        "{}",
    ]
)
hostile = st.lists(texts | tricky, max_size=5).map("".join)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["label", "confidence", "id", "answers"]), inner, max_size=4
        )
    ),
    max_leaves=15,
)
pieces = st.sampled_from(
    [
        '{"label":',
        '"a"',
        ',"confidence":',
        "0.5",
        "}",
        "{",
        "[",
        "]",
        '"id":1',
        '"answers":',
        ",",
        "```",
        "<think>",
        "</think>",
        "\\",
        '"',
        "json",
        "�",
        " ",
    ]
)
replies = (
    st.text()
    | st.binary().map(lambda raw: raw.decode("utf-8", "surrogateescape"))
    | json_values.map(json.dumps)
    | st.lists(pieces | st.text(max_size=3), max_size=25).map("".join)
)


@given(st.lists(hostile, min_size=1, max_size=5), st.lists(st.tuples(hostile, st.none() | hostile)))
def test_samples_come_back_as_they_were(samples, shown):
    user = user_prompt(samples, [Demonstration(*each) for each in shown])
    assert samples_in(user) == samples
    labeled = sum(label is not None for _, label in shown)
    head = len(shown) + labeled + 2 if shown else 0
    assert len(user.splitlines()) == head + 1 + len(samples)


@given(st.text())
def test_what_is_valid_can_be_sent(text):
    if valid_text(text) is None:
        assert samples_in(user_prompt([text])) == [text]
        assert text.encode()
    else:
        try:
            text.encode()
        except UnicodeEncodeError:
            pass
        else:
            assert not text.strip()


FIRST, SECOND = '{"label": "a", "confidence": 0.9}', '{"label": "b", "confidence": 0.8}'


@pytest.mark.parametrize(
    "reply",
    [
        f'Answer: {FIRST}\n\nText 2: "Where is my card?"\nAnswer: {SECOND}',
        f'Text 1: "x"\n{FIRST}\nText 2: "y"\n{SECOND}',
        f"== Testing Samples ==\nText 1: {FIRST}\nText 2: {SECOND}",
        f'assistant: {FIRST}\nuser: Text 1: "y"\nassistant: {SECOND}',
        f"{FIRST}\n{SECOND}",
    ],
)
def test_an_answer_to_a_text_that_the_model_invented_is_not_taken(reply):
    assert isinstance(parse_reply(reply, 1)[0], MismatchedReplyError)
    assert parse_reply(reply.replace(SECOND, FIRST), 1) == (Answer("a", 0.9),)


def test_the_last_answer_counts_after_a_draft():
    assert parse_reply(f"Perhaps {FIRST}, but rather {SECOND}", 1) == (Answer("b", 0.8),)


@given(replies, st.integers(1, 4))
def test_any_reply_is_answers_or_our_errors(content, n):
    answers = parse_reply(content, n)
    assert len(answers) == n
    for answer in answers:
        if isinstance(answer, Answer):
            assert answer.label.encode()
            assert answer.confidence is None or 0 <= answer.confidence <= 1
        else:
            assert isinstance(answer, ReplyError)
    labels = [getattr(answer, "label", None) for answer in answers]
    for i, (first, last) in label_spans(content, labels).items():
        assert 0 <= i < n
        assert 0 <= first <= last <= len(content)


@given(
    st.lists(st.tuples(texts.filter(str.strip), st.floats(0, 1)), min_size=1, max_size=6),
    st.randoms(),
)
def test_well_formed_replies_are_read_exactly(answered, random):
    items = [
        {"id": i, "label": label, "confidence": confidence}
        for i, (label, confidence) in enumerate(answered, 1)
    ]
    random.shuffle(items)
    expected = tuple(Answer(*each) for each in answered)
    for wrap in ("{}", "```json\n{}\n```", "Well: {} That is all."):
        content = wrap.replace("{}", json.dumps({"answers": items}))
        assert parse_reply(content, len(answered)) == expected


@given(st.lists(st.text(), max_size=5), st.none() | st.text(), st.lists(st.text(), max_size=5))
def test_any_label_set(names, none_label, said):
    try:
        labels = LabelSet(names, none_label)
    except InvalidInputError:
        return
    assert len(labels.names) >= 2
    for i, name in enumerate(labels.names):
        assert labels.index(name) == labels.match(name) == i
        assert labels.match(f" {name} ") in {i, None}
    for each in said:
        found = labels.match(each)
        assert found is None or 0 <= found < len(labels)
    system = system_prompt(labels)
    assert all(json.dumps(name, ensure_ascii=False)[1:-1][:3] in system for name in labels)
    task = Task(system, labels.names)
    request = Request(task, user_prompt(["x"]), ("x",))
    for provider in PROVIDERS:
        assert json.loads(provider.encode(request))
        assert min(provider.reserve(request)) > 0


@given(st.lists(hostile, min_size=1, max_size=4), texts)
def test_any_prompt_is_sent_as_it_is(samples, instructions):
    labels = LabelSet(["a", "b"])
    system = system_prompt(labels, instructions=instructions)
    user = user_prompt(samples)
    request = Request(Task(system, labels.names), user, tuple(samples))
    for provider in PROVIDERS:
        body = orjson.loads(provider.encode(request))
        assert body["messages"][-1] == {"role": "user", "content": user}
        sent = body["system"][0]["text"] if "system" in body else body["messages"][0]["content"]
        assert sent == system


@given(st.binary() | json_values.map(lambda value: json.dumps(value).encode()), st.integers(1, 3))
def test_any_body_is_a_reply_or_our_error(body, n):
    request = Request(Task("s", ("a", "b"), confidence="logprobs"), "u", ("t",) * n)
    for provider in PROVIDERS:
        with contextlib.suppress(ReplyError):
            provider.decode(request, body)
        assert isinstance(str(provider.error(500, {}, body)), str)


@pytest.mark.parametrize("around", ["{}", "```json\n{}\n```", "Here it is: {}"])
def test_a_number_with_more_digits_than_python_reads_spoils_no_answer(around):
    said = json.dumps({"label": "refund", "confidence": 0.9}).replace(
        "}", f', "n": {"9" * 6_000}}}'
    )
    assert parse_reply(around.format(said), 1) == (Answer("refund", 0.9),)
    two = f'[{{"id": 1, "label": "a", "confidence": {"9" * 6_000}}}, {{"id": 2, "label": "b"}}, {{'
    assert parse_reply(two, 2, truncated=True) == (Answer("a"), Answer("b"))
