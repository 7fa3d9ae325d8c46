"""Providers that are late, lose results, damage them, or contradict themselves.

Nothing that may have been executed is sent again before its results were asked for for a while.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import orjson
import pytest

from bench._batch_api import Batches
from testnuc import Budget, Limits, Sampling
from testnuc.errors import BudgetExceededError, NotAnsweredError, UnreadableReplyError
from testnuc.stores.memory import MemoryStore
from testnuc.testing import Faults
from tests.accounts import spent
from tests.batch.unreliable import Unreliable, each_line, each_result, ended
from tests.conftest import gold, messages

TEXTS = messages(40)


@pytest.fixture(params=["openai/test", "anthropic/claude-test"])
def model(request):
    return request.param


@pytest.fixture
def lane(lane):
    """Make a client that soon looks for a batch whose creation seemed to fail."""

    def make(llm, *, policy=None, **more):
        return lane(llm, policy={"grace": 0.1} | (policy or {}), **more)

    return make


@pytest.fixture
def billed_once(serving):
    """Label the texts by an unreliable batch API: each is billed once, and counted."""

    async def label(model="openai/test", *, batches=None, policy=None, begin=None, **unreliable):
        limits = Limits(budget=Budget(calls=45))
        given = {"model": model, "batches": batches, "policy": policy, "limits": limits}
        async with serving(**given) as (llm, nuc):
            api = Unreliable(llm, **unreliable)
            if begin is not None:
                begin(api)
            results = await nuc.classify_many(TEXTS, lane="batch")
            assert not results.errors
            assert [r.prediction.label for r in results] == [gold(t) for t in TEXTS]
            assert (llm.batches, llm.calls) == (1, 40)
            assert (nuc.usage.calls, nuc.usage.input_tokens) == (40, llm.input_tokens)
        return api

    return label


def for_the_first(times, change):
    """Return a change that is no longer applied after so many times."""
    left = [times]

    def changed(value):
        if not left[0]:
            return value
        left[0] -= 1
        return change(value)

    return changed


# -- results that come late ------------------------------------------------------------------------


def without_files(batch):
    return batch | dict.fromkeys(("output_file_id", "error_file_id", "results_url"))


def with_counts(counts):
    def change(batch):
        return without_files(batch) | {"request_counts": counts}

    return change


COUNTS = [
    {"total": 0, "completed": 0, "failed": 0},
    {"total": 40, "completed": 20, "failed": 0},
    {"total": "40", "completed": [40], "failed": None},
    {"total": 40.5, "completed": -3, "failed": True, "succeeded": "all"},
    {"processing": 40, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0},
    {"total": 10**30, "completed": 10**30, "failed": 0},
    [40],
    "forty",
    None,
]


@pytest.mark.parametrize("change", [without_files, *map(with_counts, COUNTS)])
async def test_a_file_of_results_comes_later_than_the_end(model, billed_once, change):
    late = for_the_first(5, change)
    # at Anthropic the state does not name what is downloaded, which is missing as long
    missing = [5]

    def response(kind, response):
        if kind == "download" and missing[0]:
            missing[0] -= 1
            response.status, response.body = 404, b'{"error":{"message":"not found"}}'

    if model.startswith("openai"):
        response = None
    await billed_once(model, state=lambda b: late(b) if ended(b) else b, response=response)


def first_responses(times, kind, change):
    """Change so many responses of a kind."""
    changed = for_the_first(times, change)
    return lambda this, response: changed(response) if this == kind else None


def status(code):
    def change(response):
        response.status, response.body = code, b'{"error":{"message":"not found"}}'

    return change


def body(change):
    def changed(response):
        response.body = change(response.body)

    return changed


@pytest.mark.parametrize(
    "change",
    [
        status(404),
        status(410),
        status(403),
        status(500),
        body(lambda _: b""),
        body(lambda _: b"\n\n"),
        body(lambda _: b"<html>please wait</html>"),
        body(lambda content: content[: len(content) // 2]),
        body(lambda content: b"\n".join(content.splitlines()[::2])),
        body(lambda content: b"x" * 9_000_000 + b"\n" + content[len(content) // 2 :]),
    ],
)
async def test_the_first_downloads_lack_results(model, billed_once, change):
    await billed_once(model, response=first_responses(2, "download", change))


async def test_a_batch_that_has_ended_goes_on(model, billed_once):
    state = for_the_first(3, lambda b: b | {"status": "completed", "processing_status": "ended"})
    await billed_once(model, batches=Batches(polls=8), state=state)


@pytest.mark.parametrize("outcome", ["failed", "expired", "cancelled"])
@pytest.mark.parametrize(
    ("counts", "first"),
    [
        ({}, status(404)),
        (None, status(404)),
        ({"total": 40, "completed": 40, "failed": 0}, status(404)),
        # counts that its output contradicts
        ({"total": 0, "completed": 0, "failed": 0}, body(lambda _: b"")),
    ],
)
async def test_a_batch_that_failed_has_answers(billed_once, outcome, counts, first):
    errors = {"data": [{"code": "server_error", "message": "failed"}]}

    def state(batch):
        changed = {"status": outcome, "errors": errors, "request_counts": counts}
        return batch | changed if ended(batch) else batch

    await billed_once(state=state, response=first_responses(2, "download", first))


@pytest.mark.parametrize("outcome", ["failed", "expired", "cancelled"])
@pytest.mark.parametrize("times", [1, 5])
async def test_an_end_without_results_or_a_reason_is_looked_at_again(billed_once, outcome, times):
    """A server with several copies of its state said so, and all was sent three times."""
    nothing = {"status": outcome, "errors": None, "output_file_id": None, "error_file_id": None}
    state = for_the_first(times, lambda batch: batch | nothing)
    batches = Batches(polls=8)
    await billed_once(
        batches=batches, state=lambda b: state(b) if b.get("status") == "in_progress" else b
    )


async def test_an_end_that_is_never_explained_is_believed_after_a_while(serving):
    nothing = {"status": "expired", "output_file_id": None, "error_file_id": None}
    counts = {"request_counts": {"total": 40, "completed": 0, "failed": 0}}
    first = []

    def state(batch):
        first.append(batch["id"])
        return batch | nothing | counts if batch["id"] == first[0] else batch

    async with serving(unreliable={"state": state}, policy={"patience": 0.05}) as (llm, nuc):
        results = await nuc.classify_many(TEXTS, lane="batch")
        assert not results.errors
        assert (llm.batches, nuc.usage.calls) == (2, 40)


async def test_results_say_of_answered_requests_that_they_expired(model, billed_once):
    """The counts say that they were answered, and so they were: all were paid for twice."""

    def expired(value):
        if "result" in value:
            value["result"] = {"type": "expired"}
        else:
            value |= {"response": None, "error": {"code": "batch_expired", "message": "expired"}}

    content = for_the_first(2, each_result(expired))
    await billed_once(model, state=lambda b: _expired(b) if ended(b) else b, content=content)


def _expired(batch):
    return batch | {"status": "expired"} if "status" in batch else batch


# -- results that are damaged ----------------------------------------------------------------------


def inserted(into):
    """Return a change of the lines that replaces a value of each by raw bytes."""

    def change(number, line):
        name = b'"usage":' if b'"usage":' in line else b'"custom_id":'
        return line.replace(name, b'"more":%s,%s' % (into, name), 1)

    return each_line(change)


BROKEN = [b"", b"{", b"null", b"[1]", b"\xff\xfe", b'{"custom_id":{}}', b'{"custom_id":"x"}']


@pytest.mark.parametrize(
    "content",
    [
        inserted(b"NaN"),
        inserted(b"[-Infinity,1e999]"),
        inserted(b'"\\ud800"'),
        inserted(b'"\xff\xc3"'),
        inserted(b"1" * 300),
        lambda content: b"\xef\xbb\xbf" + content,
        lambda content: content.replace(b"\n", b"\r\n"),
        lambda content: b"\n".join([*BROKEN, *content.splitlines(), *BROKEN]),
        lambda content: b"\n".join(reversed(content.splitlines())),
        lambda content: b"\n".join([*content.splitlines()] * 3),
        lambda content: b"[" * 100_000 + b"\n" + content,
    ],
)
async def test_lines_are_read_as_far_as_possible(model, billed_once, content):
    await billed_once(model, content=content)


@pytest.mark.parametrize("inner", [False, True])
async def test_objects_that_are_written_as_strings_of_json(model, billed_once, inner):
    """All were paid for twice, and no text had a label."""

    def change(value):
        outer = "result" if "result" in value else "response"
        name = "message" if outer == "result" else "body"
        if inner:
            value[outer][name] = orjson.dumps(value[outer][name]).decode()
        else:
            value[outer] = orjson.dumps(value[outer]).decode()

    await billed_once(model, content=each_result(change))


@pytest.mark.parametrize(
    "name",
    [
        "{}" + "1" * 5_000,
        "{}-" + "1" * 5_000,
        "{}-99999",
        "{}--1",
        "{}-٣",
        "{}-003",
        "{}-1e1",
        "another-3",
        "",
        7,
    ],
)
async def test_results_of_others_are_ignored(model, billed_once, name):
    def content(body):
        lines = body.splitlines()
        other = orjson.loads(lines[-1])
        ours = other["custom_id"].rpartition("-")[0]
        other["custom_id"] = name.format(ours) if isinstance(name, str) else name
        return b"\n".join([orjson.dumps(other), *lines])

    await billed_once(model, content=content)


@pytest.mark.parametrize("body", [{"choices": []}, {"choices": [{"message": {"content": ""}}]}])
async def test_of_two_results_the_readable_one_counts(billed_once, body):
    def content(lines):
        doubled = []
        for line in lines.splitlines():
            value = orjson.loads(line)
            value["response"]["body"] |= body
            doubled += [orjson.dumps(value), line]
        return b"\n".join(doubled)

    await billed_once(content=content)


@pytest.mark.parametrize("counts", [(0, 0), (90_000_000, 1), (10, 90_000_000)])
async def test_impossible_counts_of_tokens_are_booked_as_reserved(serving, counts):
    left = [20]

    def change(line):
        if left[0] and counts != (0, 0):
            left[0] = 0
        elif left[0] == 0:
            return
        usage = line["response"]["body"]["usage"]
        usage["prompt_tokens"], usage["completion_tokens"] = counts
        usage["total_tokens"] = sum(counts)

    unreliable, limits = {"content": each_result(change)}, Limits(budget=Budget(tokens=1_000_000))
    async with serving(unreliable=unreliable, limits=limits) as (_, nuc):
        for run in range(2):
            texts = [f"{text} {run}" for text in TEXTS]
            results = await nuc.classify_many(texts, lane="batch")
            assert not results.errors
        assert nuc.usage.input_tokens is None
        assert 0 < spent(nuc._parts.transport.account)[1] < 1_000_000


async def test_what_a_result_of_several_texts_lacks_is_in_another(serving):
    def content(lines):
        value = orjson.loads(lines.splitlines()[0])
        message = value["response"]["body"]["choices"][0]["message"]
        answers = orjson.loads(message["content"])["answers"]
        parts = []
        for part in ([answers[-1]], answers[:5] + answers[-1:], answers[3:]):
            message["content"] = orjson.dumps({"answers": part}).decode()
            parts.append(orjson.dumps(value))
        return b"\n".join(parts)

    given = {"sampling": Sampling(texts_per_call=20), "policy": {"patience": 0.01, "attempts": 1}}
    async with serving(unreliable={"content": content}, **given) as (llm, nuc):
        results = await nuc.classify_many(TEXTS[:20], lane="batch")
        assert [r.prediction.label for r in results] == [gold(t) for t in TEXTS[:20]]
        assert llm.calls == nuc.usage.calls == 1


async def test_the_count_of_a_text_far_longer_than_others_is_believed(serving):
    async with serving() as (llm, nuc):
        long = f"{TEXTS[0]} {'x' * 80_000}"
        assert not (await nuc.classify_many([long, *TEXTS[1:]], lane="batch")).errors
        assert nuc.usage.input_tokens == llm.input_tokens


async def test_an_absurd_count_of_the_only_request_is_not_believed(serving):
    def change(line):
        line["response"]["body"]["usage"]["prompt_tokens"] = 90_000_000

    limits, sampling = Limits(budget=Budget(tokens=1_000_000)), Sampling(texts_per_call=20)
    unreliable = {"content": each_result(change)}
    async with serving(unreliable=unreliable, limits=limits, sampling=sampling) as (llm, nuc):
        for run in range(2):
            texts = [f"{text} {run}" for text in TEXTS[:20]]
            assert not (await nuc.classify_many(texts, lane="batch")).errors
        assert llm.calls == 2
        assert 0 < spent(nuc._parts.transport.account)[1] < 1_000_000


@pytest.mark.parametrize("depth", [300, 970, 1_005])
@pytest.mark.parametrize("place", ["body", "status_code", "response", "line"])
async def test_a_value_that_is_nested_deeply_spoils_nothing(model, billed_once, depth, place):
    def content(lines):
        first, *rest = lines.splitlines()
        line, deep = orjson.loads(first), "[" * depth + "]" * depth
        parts = {"line": line} | {"response": line.get("response", line.get("result"))}
        parts["body"] = parts["response"].get("body", parts["response"].get("message"))
        at = {"status_code": "response"}.get(place, place)
        parts[at]["status_code" if place == "status_code" else "junk"] = "@"
        made = orjson.dumps(line).replace(b'"@"', deep.encode())
        # orjson reads 1,024 levels
        return b"\n".join([made, *rest])

    await billed_once(model, content=content)


@pytest.mark.parametrize("ends", [True, False])
async def test_a_key_that_the_batch_api_quotes_is_not_shown(serving, caplog, ends):
    key = "secret-key-123"
    refused = {"code": "token_limit_exceeded", "message": f"limit reached for {key}"}

    def state(batch):
        if ends:
            return batch | {"status": "failed", "errors": {"data": [refused]}}
        return batch if ended(batch) else batch | {"status": f"in progress for {key}"}

    with caplog.at_level(logging.INFO, logger="testnuc.batch"):
        async with serving(unreliable={"state": state}, policy={"patience": 0.01}) as (_, nuc):
            results = await nuc.classify_many(TEXTS, lane="batch")
    errors = " ".join(str(r.error) for r in results)
    assert "[key]" in (errors if ends else caplog.text)
    assert key not in errors + caplog.text


CODES = ["missing", None, "200", 0, "ok", 200.0, True, [], 299, 500]
KINDS = ["missing", None, "success", 1, "errored"]


@pytest.mark.parametrize(
    ("model", "part", "field", "value"),
    [("openai/test", "response", "status_code", code) for code in CODES]
    + [("anthropic/claude-test", "result", "type", kind) for kind in KINDS],
)
async def test_an_answer_is_one_whatever_its_status(billed_once, model, part, field, value):
    def change(line):
        line[part][field] = value
        if value == "missing":
            del line[part][field]

    await billed_once(model, content=each_result(change))


# -- batches that are damaged ----------------------------------------------------------------------

STRANGE = [None, True, -1, 1.5, 10**30, "x", [], [None], {}, {"data": ["x"]}, "9" * 5_000]


@pytest.mark.parametrize("strange", STRANGE, ids=lambda value: repr(value)[:20])
async def test_a_batch_has_values_of_other_types(model, billed_once, strange):
    def state(batch):
        return dict.fromkeys(batch, strange)

    def begin(api):
        if isinstance(strange, str):
            # a wrong id is an id
            api._changes["create"] = None

    # the first state is the response to the creation, so the batch is searched for
    changes = {"state": for_the_first(8, state), "page": for_the_first(3, state)}
    await billed_once(model, batches=Batches(polls=20), begin=begin, **changes)


@pytest.mark.parametrize("field", ["request_counts", "errors", "metadata", "created_at"])
@pytest.mark.parametrize("strange", STRANGE, ids=lambda value: repr(value)[:20])
async def test_a_field_of_a_batch_is_of_another_type(model, billed_once, field, strange):
    await billed_once(model, state=lambda batch: batch | {field: strange})


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b"{}", b'"x"'])
async def test_a_response_is_no_batch(model, billed_once, content):
    garbage = for_the_first(4, lambda _: content)
    await billed_once(model, state=garbage, page=for_the_first(2, lambda _: content))


async def test_an_unknown_batch_is_asked_for_again(model, billed_once):
    await billed_once(model, response=first_responses(20, "retrieve", status(404)))


async def test_an_interval_between_polls_is_no_number(model, billed_once):
    intervals = ["0", "-1", "٣", "x", "1e9", "1"]

    def response(kind, response):
        if kind == "retrieve":
            response.headers["openai-poll-after-ms"] = intervals.pop() if intervals else "1"

    await billed_once(model, batches=Batches(polls=8), response=response)


# -- creations that are ambiguous ------------------------------------------------------------------


@pytest.mark.parametrize("failure", ["reset-before", 500, 503, 201, "no id"])
@pytest.mark.parametrize("listed", [0, 3])
async def test_a_batch_whose_creation_seemed_to_fail_is_searched_for(
    model, billed_once, failure, listed
):
    left = [1]

    def response(kind, response):
        if kind == "create" and left[0]:
            left[0] -= 1
            if failure == "no id":
                response.body = b'{"id":null,"object":"batch"}'
            elif isinstance(failure, int):
                response.status = failure
            else:
                response.delivery = failure

    page = for_the_first(listed, lambda page: page | {"data": [], "has_more": False})
    await billed_once(model, response=response, page=page, policy={"grace": 1.0})


@pytest.mark.parametrize("model", ["openai/test"])
@pytest.mark.parametrize("metadata", [None, {}, {"testnuc": "another"}])
async def test_a_batch_without_our_metadata_is_found_by_its_file(model, billed_once, metadata):
    left = [1]

    def response(kind, response):
        if kind == "create" and left[0]:
            left[0] -= 1
            response.status = 500

    def page(value):
        return value | {"data": [batch | {"metadata": metadata} for batch in value["data"]]}

    await billed_once(model, response=response, page=page, policy={"grace": 1.0})


async def test_a_list_without_end_ends(model, billed_once):
    first = []

    def page(listed):
        first.extend(listed["data"])
        other = first[0] | {"metadata": None, "request_counts": {"total": 3, "succeeded": 3}}
        return {"data": [other], "has_more": True}

    lost = Batches(lost=[0])
    api = await billed_once(model, batches=lost, page=for_the_first(5, page), policy={"grace": 1.0})
    assert api.calls["list"] < 20


# -- results that never come -----------------------------------------------------------------------


async def test_lost_answers_count_as_billed(model, serving, caplog):
    store, limits = MemoryStore(), Limits(budget=Budget(calls=45))
    half = body(lambda content: b"\n".join(content.splitlines()[::2]))
    unreliable = {"response": lambda kind, r: kind == "download" and half(r)}
    given = {"model": model, "policy": {"patience": 0.05}, "limits": limits, "store": store}
    async with serving(unreliable=unreliable, **given) as (llm, nuc):
        with caplog.at_level(logging.WARNING, "testnuc.batch"):
            results = await nuc.classify_many(TEXTS, lane="batch")
        # 40 billed, 20 of them lost; the budget is left with 5
        assert llm.calls <= 45
        assert nuc.usage.calls == llm.calls
        assert nuc.usage.input_tokens is None
        kinds = {type(r.error) for r in results.errors}
        assert kinds <= {BudgetExceededError, NotAnsweredError}
        assert 15 <= len(results.errors) <= 20
        assert "20 results are not there" in caplog.text
        counted = sum(b.usage.calls for b in await store.batches(ended=True))
        assert counted == llm.calls


async def test_texts_without_an_answer_are_sent_in_as_many_batches_as_the_policy_says(
    model, serving
):
    policy = {"patience": 0.01, "attempts": 2}
    unreliable = {"content": lambda _: b""}
    async with serving(unreliable=unreliable, model=model, policy=policy) as (llm, nuc):
        results = await nuc.classify_many(TEXTS, lane="batch")
        assert len(results.errors) == 40
        assert "answered 40 requests more than it has returned" in str(results[0].error)
        assert (llm.batches, llm.calls, nuc.usage.calls) == (2, 80, 80)


def of_no_shape(line):
    result = line.get("response", line.get("result"))
    result["body" if "body" in result else "message"] = {"weird": [1]}


UNREAD = {
    "no shape": each_result(of_no_shape),
    "no JSON": lambda _: b"?\n" * 40,
    "prose": lambda lines: lines.replace(b"label", b"weather"),
}


@pytest.mark.parametrize("content", UNREAD.values(), ids=UNREAD)
async def test_what_was_executed_and_cannot_be_read_is_bought_once_more(model, serving, content):
    given = {"model": model, "policy": {"patience": 0.01}}
    async with serving(unreliable={"content": content}, **given) as (llm, nuc):
        results = await nuc.classify_many(TEXTS, lane="batch")
        assert len(results.errors) == 40
        assert (llm.calls, nuc.usage.calls) == (80, 80)


@pytest.mark.parametrize("readable", [True, False])
@pytest.mark.parametrize("content", UNREAD.values(), ids=UNREAD)
async def test_live_it_is_asked_for_once(model, serving, content, readable):
    faults = None if readable else Faults(1, kinds=["empty-choices"])
    given = {"faults": faults, "policy": {"patience": 0.01, "rest": "live"}}
    async with serving(unreliable={"content": content}, model=model, **given) as (llm, nuc):
        if readable:
            assert not (await nuc.classify_many(TEXTS, lane="batch")).errors
            assert llm.calls == 80
        else:
            with pytest.raises(UnreadableReplyError, match="first 20 texts"):
                await nuc.classify_many(TEXTS, lane="batch")
        assert max(llm.asked.values()) == 2
        assert nuc.usage.calls == llm.calls


async def test_what_was_not_executed_is_sent_again_at_once(model, serving):
    """The default patience of an hour is not waited for."""
    batches = Batches(outcomes=["failed", "expired", "cancelled"], missing=0.1)
    async with serving(batches=batches, model=model, policy={"attempts": 9}) as (llm, nuc):
        results = await nuc.classify_many(TEXTS, lane="batch")
        assert not results.errors
        assert (llm.calls, nuc.usage.calls) == (40, 40)


async def test_ids_are_numbers(model, billed_once):
    fields = ("id", "input_file_id", "output_file_id", "error_file_id")
    numbers, names = {}, {}

    def number(name):
        if name not in numbers:
            numbers[name] = 1000 + len(numbers)
            names[str(numbers[name])] = name
        return numbers[name]

    def begin(api):
        answer_of = api._respond

        def respond(call):
            path = "/".join(names.get(part, part) for part in call.path.split("/"))
            body = call.body
            if body[:1] == b"{":
                asked = orjson.loads(body)
                given = asked.get("input_file_id")
                body = orjson.dumps(asked | ({"input_file_id": names[given]} if given else {}))
            response = answer_of(replace(call, path=path, body=body))
            if response is not None and not path.endswith(("/content", "/results")):
                value = orjson.loads(response.body)
                value |= {name: number(value[name]) for name in fields if value.get(name)}
                response.body = orjson.dumps(value)
            return response

        api._respond = respond

    await billed_once(model, begin=begin)
