"""Providers that are late, lose results, damage them, or contradict themselves.

Nothing that may have been executed is sent again before its results were asked for for a while.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import orjson
import pytest

from bench._batch_api import Batches, BatchLLM
from testnuc import BatchPolicy, Budget, Limits, Sampling, TestNUC
from testnuc.errors import BudgetExceededError, NotAnsweredError, UnreadableReplyError
from testnuc.stores.memory import MemoryStore
from testnuc.testing import Faults
from tests.accounts import spent
from tests.batch.unreliable import Unreliable, each_line, each_result, ended
from tests.conftest import confident, gold, messages

TEXTS = messages(40)


@pytest.fixture(params=["openai/test", "anthropic/claude-test"])
def model(request):
    return request.param


@pytest.fixture
def lane(client_of):
    def make(llm, *, policy=None, limits=Limits(), **more):  # noqa: B008 - frozen
        policy = {"first_poll": 0.001, "longest_poll": 0.002, "grace": 0.1} | (policy or {})
        limits = replace(limits, batches=BatchPolicy(**policy))
        return TestNUC(**client_of(llm, limits=limits, **more))

    return make


async def billed_once(llm, lane, model, **more):
    """Label the texts: each is billed once, and counted."""
    async with lane(llm, model=model, limits=Limits(budget=Budget(calls=45)), **more) as nuc:
        results = await nuc.classify_many(TEXTS, lane="batch")
        assert not results.errors
        assert [r.prediction.label for r in results] == [gold(t) for t in TEXTS]
        assert (llm.batches, llm.calls) == (1, 40)
        assert (nuc.usage.calls, nuc.usage.input_tokens) == (40, llm.input_tokens)


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
async def test_a_file_of_results_comes_later_than_the_end(model, lane, change):
    late = for_the_first(5, change)
    async with BatchLLM(confident) as llm:
        # at Anthropic the state does not name what is downloaded, which is missing as long
        missing = [5]

        def response(kind, response):
            if kind == "download" and missing[0]:
                missing[0] -= 1
                response.status, response.body = 404, b'{"error":{"message":"not found"}}'

        if model.startswith("openai"):
            response = None
        Unreliable(llm, state=lambda b: late(b) if ended(b) else b, response=response)
        await billed_once(llm, lane, model)


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
async def test_the_first_downloads_lack_results(model, lane, change):
    async with BatchLLM(confident) as llm:
        Unreliable(llm, response=first_responses(2, "download", change))
        await billed_once(llm, lane, model)


async def test_a_batch_that_has_ended_goes_on(model, lane):
    state = for_the_first(3, lambda b: b | {"status": "completed", "processing_status": "ended"})
    async with BatchLLM(confident, batches=Batches(polls=8)) as llm:
        Unreliable(llm, state=state)
        await billed_once(llm, lane, model)


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
async def test_a_batch_that_failed_has_answers(lane, outcome, counts, first):
    errors = {"data": [{"code": "server_error", "message": "failed"}]}

    def state(batch):
        changed = {"status": outcome, "errors": errors, "request_counts": counts}
        return batch | changed if ended(batch) else batch

    async with BatchLLM(confident) as llm:
        Unreliable(llm, state=state, response=first_responses(2, "download", first))
        await billed_once(llm, lane, "openai/test")


@pytest.mark.parametrize("outcome", ["failed", "expired", "cancelled"])
@pytest.mark.parametrize("times", [1, 5])
async def test_an_end_without_results_or_a_reason_is_looked_at_again(lane, outcome, times):
    """A server with several copies of its state said so, and all was sent three times."""
    nothing = {"status": outcome, "errors": None, "output_file_id": None, "error_file_id": None}
    state = for_the_first(times, lambda batch: batch | nothing)
    async with BatchLLM(confident, batches=Batches(polls=8)) as llm:
        Unreliable(llm, state=lambda b: state(b) if b.get("status") == "in_progress" else b)
        await billed_once(llm, lane, "openai/test")


async def test_an_end_that_is_never_explained_is_believed_after_a_while(lane):
    nothing = {"status": "expired", "output_file_id": None, "error_file_id": None}
    counts = {"request_counts": {"total": 40, "completed": 0, "failed": 0}}
    first = []

    def state(batch):
        first.append(batch["id"])
        return batch | nothing | counts if batch["id"] == first[0] else batch

    async with BatchLLM(confident) as llm:
        Unreliable(llm, state=state)
        async with lane(llm, model="openai/test", policy={"patience": 0.05}) as nuc:
            results = await nuc.classify_many(TEXTS, lane="batch")
            assert not results.errors
            assert (llm.batches, nuc.usage.calls) == (2, 40)


async def test_results_say_of_answered_requests_that_they_expired(model, lane):
    """The counts say that they were answered, and so they were: all were paid for twice."""

    def expired(value):
        if "result" in value:
            value["result"] = {"type": "expired"}
        else:
            value |= {"response": None, "error": {"code": "batch_expired", "message": "expired"}}

    async with BatchLLM(confident) as llm:
        content = for_the_first(2, each_result(expired))
        Unreliable(llm, state=lambda b: _expired(b) if ended(b) else b, content=content)
        await billed_once(llm, lane, model)


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
async def test_lines_are_read_as_far_as_possible(model, lane, content):
    async with BatchLLM(confident) as llm:
        Unreliable(llm, content=content)
        await billed_once(llm, lane, model)


@pytest.mark.parametrize("inner", [False, True])
async def test_objects_that_are_written_as_strings_of_json(model, lane, inner):
    """All were paid for twice, and no text had a label."""

    def change(value):
        outer = "result" if "result" in value else "response"
        name = "message" if outer == "result" else "body"
        if inner:
            value[outer][name] = orjson.dumps(value[outer][name]).decode()
        else:
            value[outer] = orjson.dumps(value[outer]).decode()

    async with BatchLLM(confident) as llm:
        Unreliable(llm, content=each_result(change))
        await billed_once(llm, lane, model)


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
async def test_results_of_others_are_ignored(model, lane, name):
    def content(body):
        lines = body.splitlines()
        other = orjson.loads(lines[-1])
        ours = other["custom_id"].rpartition("-")[0]
        other["custom_id"] = name.format(ours) if isinstance(name, str) else name
        return b"\n".join([orjson.dumps(other), *lines])

    async with BatchLLM(confident) as llm:
        Unreliable(llm, content=content)
        await billed_once(llm, lane, model)


@pytest.mark.parametrize("body", [{"choices": []}, {"choices": [{"message": {"content": ""}}]}])
async def test_of_two_results_the_readable_one_counts(lane, body):
    def content(lines):
        doubled = []
        for line in lines.splitlines():
            value = orjson.loads(line)
            value["response"]["body"] |= body
            doubled += [orjson.dumps(value), line]
        return b"\n".join(doubled)

    async with BatchLLM(confident) as llm:
        Unreliable(llm, content=content)
        await billed_once(llm, lane, "openai/test")


@pytest.mark.parametrize("counts", [(0, 0), (90_000_000, 1), (10, 90_000_000)])
async def test_impossible_counts_of_tokens_are_booked_as_reserved(lane, counts):
    left = [20]

    def change(line):
        if left[0] and counts != (0, 0):
            left[0] = 0
        elif left[0] == 0:
            return
        usage = line["response"]["body"]["usage"]
        usage["prompt_tokens"], usage["completion_tokens"] = counts
        usage["total_tokens"] = sum(counts)

    async with BatchLLM(confident) as llm:
        Unreliable(llm, content=each_result(change))
        async with lane(llm, limits=Limits(budget=Budget(tokens=1_000_000))) as nuc:
            for run in range(2):
                texts = [f"{text} {run}" for text in TEXTS]
                results = await nuc.classify_many(texts, lane="batch")
                assert not results.errors
            assert nuc.usage.input_tokens is None
            assert 0 < spent(nuc._parts.transport.account)[1] < 1_000_000


async def test_what_a_result_of_several_texts_lacks_is_in_another(lane):
    def content(lines):
        value = orjson.loads(lines.splitlines()[0])
        message = value["response"]["body"]["choices"][0]["message"]
        answers = orjson.loads(message["content"])["answers"]
        parts = []
        for part in ([answers[-1]], answers[:5] + answers[-1:], answers[3:]):
            message["content"] = orjson.dumps({"answers": part}).decode()
            parts.append(orjson.dumps(value))
        return b"\n".join(parts)

    async with BatchLLM(confident) as llm:
        Unreliable(llm, content=content)
        packed, once = Sampling(texts_per_call=20), {"patience": 0.01, "attempts": 1}
        async with lane(llm, sampling=packed, policy=once) as nuc:
            results = await nuc.classify_many(TEXTS[:20], lane="batch")
            assert [r.prediction.label for r in results] == [gold(t) for t in TEXTS[:20]]
            assert llm.calls == nuc.usage.calls == 1


async def test_the_count_of_a_text_far_longer_than_others_is_believed(lane):
    async with BatchLLM(confident) as llm, lane(llm) as nuc:
        long = f"{TEXTS[0]} {'x' * 80_000}"
        assert not (await nuc.classify_many([long, *TEXTS[1:]], lane="batch")).errors
        assert nuc.usage.input_tokens == llm.input_tokens


async def test_an_absurd_count_of_the_only_request_is_not_believed(lane):
    def change(line):
        line["response"]["body"]["usage"]["prompt_tokens"] = 90_000_000

    limits, sampling = Limits(budget=Budget(tokens=1_000_000)), Sampling(texts_per_call=20)
    async with BatchLLM(confident) as llm:
        Unreliable(llm, content=each_result(change))
        async with lane(llm, limits=limits, sampling=sampling) as nuc:
            for run in range(2):
                texts = [f"{text} {run}" for text in TEXTS[:20]]
                assert not (await nuc.classify_many(texts, lane="batch")).errors
            assert llm.calls == 2
            assert 0 < spent(nuc._parts.transport.account)[1] < 1_000_000


@pytest.mark.parametrize("depth", [300, 970, 1_005])
@pytest.mark.parametrize("place", ["body", "status_code", "response", "line"])
async def test_a_value_that_is_nested_deeply_spoils_nothing(model, lane, depth, place):
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

    async with BatchLLM(confident) as llm:
        Unreliable(llm, content=content)
        await billed_once(llm, lane, model)


@pytest.mark.parametrize("ends", [True, False])
async def test_a_key_that_the_batch_api_quotes_is_not_shown(lane, caplog, ends):
    key = "secret-key-123"
    refused = {"code": "token_limit_exceeded", "message": f"limit reached for {key}"}

    def state(batch):
        if ends:
            return batch | {"status": "failed", "errors": {"data": [refused]}}
        return batch if ended(batch) else batch | {"status": f"in progress for {key}"}

    with caplog.at_level(logging.INFO, logger="testnuc.batch"):
        async with BatchLLM(confident) as llm:
            Unreliable(llm, state=state)
            async with lane(llm, policy={"patience": 0.01}) as nuc:
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
async def test_an_answer_is_one_whatever_its_status(lane, model, part, field, value):
    def change(line):
        line[part][field] = value
        if value == "missing":
            del line[part][field]

    async with BatchLLM(confident) as llm:
        Unreliable(llm, content=each_result(change))
        await billed_once(llm, lane, model)


# -- batches that are damaged ----------------------------------------------------------------------

STRANGE = [None, True, -1, 1.5, 10**30, "x", [], [None], {}, {"data": ["x"]}, "9" * 5_000]


@pytest.mark.parametrize("strange", STRANGE, ids=lambda value: repr(value)[:20])
async def test_a_batch_has_values_of_other_types(model, lane, strange):
    def state(batch):
        return dict.fromkeys(batch, strange)

    async with BatchLLM(confident, batches=Batches(polls=20)) as llm:
        # the first state is the response to the creation, so the batch is searched for
        api = Unreliable(llm, state=for_the_first(8, state), page=for_the_first(3, state))
        if isinstance(strange, str):
            # a wrong id is an id
            api._changes["create"] = None
        await billed_once(llm, lane, model)


@pytest.mark.parametrize("field", ["request_counts", "errors", "metadata", "created_at"])
@pytest.mark.parametrize("strange", STRANGE, ids=lambda value: repr(value)[:20])
async def test_a_field_of_a_batch_is_of_another_type(model, lane, field, strange):
    async with BatchLLM(confident) as llm:
        Unreliable(llm, state=lambda batch: batch | {field: strange})
        await billed_once(llm, lane, model)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b"{}", b'"x"'])
async def test_a_response_is_no_batch(model, lane, content):
    async with BatchLLM(confident) as llm:
        garbage = for_the_first(4, lambda _: content)
        Unreliable(llm, state=garbage, page=for_the_first(2, lambda _: content))
        await billed_once(llm, lane, model)


async def test_an_unknown_batch_is_asked_for_again(model, lane):
    async with BatchLLM(confident) as llm:
        Unreliable(llm, response=first_responses(20, "retrieve", status(404)))
        await billed_once(llm, lane, model)


async def test_an_interval_between_polls_is_no_number(model, lane):
    intervals = ["0", "-1", "٣", "x", "1e9", "1"]

    def response(kind, response):
        if kind == "retrieve":
            response.headers["openai-poll-after-ms"] = intervals.pop() if intervals else "1"

    async with BatchLLM(confident, batches=Batches(polls=8)) as llm:
        Unreliable(llm, response=response)
        await billed_once(llm, lane, model)


# -- creations that are ambiguous ------------------------------------------------------------------


@pytest.mark.parametrize("failure", ["reset-before", 500, 503, 201, "no id"])
@pytest.mark.parametrize("listed", [0, 3])
async def test_a_batch_whose_creation_seemed_to_fail_is_searched_for(model, lane, failure, listed):
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
    async with BatchLLM(confident) as llm:
        Unreliable(llm, response=response, page=page)
        await billed_once(llm, lane, model, policy={"grace": 1.0})


@pytest.mark.parametrize("model", ["openai/test"])
@pytest.mark.parametrize("metadata", [None, {}, {"testnuc": "another"}])
async def test_a_batch_without_our_metadata_is_found_by_its_file(model, lane, metadata):
    left = [1]

    def response(kind, response):
        if kind == "create" and left[0]:
            left[0] -= 1
            response.status = 500

    def page(value):
        return value | {"data": [batch | {"metadata": metadata} for batch in value["data"]]}

    async with BatchLLM(confident) as llm:
        Unreliable(llm, response=response, page=page)
        await billed_once(llm, lane, model, policy={"grace": 1.0})


async def test_a_list_without_end_ends(model, lane):
    first = []

    def page(listed):
        first.extend(listed["data"])
        other = first[0] | {"metadata": None, "request_counts": {"total": 3, "succeeded": 3}}
        return {"data": [other], "has_more": True}

    async with BatchLLM(confident, batches=Batches(lost=[0])) as llm:
        api = Unreliable(llm, page=for_the_first(5, page))
        await billed_once(llm, lane, model, policy={"grace": 1.0})
        assert api.calls["list"] < 20


# -- results that never come -----------------------------------------------------------------------


async def test_lost_answers_count_as_billed(model, lane, caplog):
    store = MemoryStore()
    half = body(lambda content: b"\n".join(content.splitlines()[::2]))
    api = BatchLLM(confident)
    async with api as llm:
        Unreliable(llm, response=lambda kind, r: kind == "download" and half(r))
        policy = {"patience": 0.05}
        budget = Budget(calls=45)
        async with lane(
            llm, model=model, policy=policy, limits=Limits(budget=budget), store=store
        ) as nuc:
            with caplog.at_level(logging.WARNING, "testnuc.batch"):
                results = await nuc.classify_many(TEXTS, lane="batch")
            # 40 billed, 20 of them lost; the budget is left with 5
            assert llm.calls <= 45
            assert nuc.usage.calls == llm.calls
            assert nuc.usage.input_tokens is None
            assert {type(r.error) for r in results.errors} <= {
                BudgetExceededError,
                NotAnsweredError,
            }
            assert 15 <= len(results.errors) <= 20
        assert "20 results are not there" in caplog.text
        counted = sum(b.usage.calls for b in await store.batches(ended=True))
        assert counted == llm.calls


async def test_texts_without_an_answer_are_sent_in_as_many_batches_as_the_policy_says(model, lane):
    async with BatchLLM(confident) as llm:
        Unreliable(llm, content=lambda _: b"")
        policy = {"patience": 0.01, "attempts": 2}
        async with lane(llm, model=model, policy=policy) as nuc:
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
async def test_what_was_executed_and_cannot_be_read_is_bought_once_more(model, lane, content):
    async with BatchLLM(confident) as llm:
        Unreliable(llm, content=content)
        async with lane(llm, model=model, policy={"patience": 0.01}) as nuc:
            results = await nuc.classify_many(TEXTS, lane="batch")
            assert len(results.errors) == 40
            assert (llm.calls, nuc.usage.calls) == (80, 80)


@pytest.mark.parametrize("readable", [True, False])
@pytest.mark.parametrize("content", UNREAD.values(), ids=UNREAD)
async def test_live_it_is_asked_for_once(model, lane, content, readable):
    faults = None if readable else Faults(1, kinds=["empty-choices"])
    async with BatchLLM(confident, faults=faults) as llm:
        Unreliable(llm, content=content)
        policy = {"patience": 0.01, "rest": "live"}
        async with lane(llm, model=model, policy=policy) as nuc:
            if readable:
                assert not (await nuc.classify_many(TEXTS, lane="batch")).errors
                assert llm.calls == 80
            else:
                with pytest.raises(UnreadableReplyError, match="first 20 texts"):
                    await nuc.classify_many(TEXTS, lane="batch")
            assert max(llm.asked.values()) == 2
            assert nuc.usage.calls == llm.calls


async def test_what_was_not_executed_is_sent_again_at_once(model, lane):
    """The default patience of an hour is not waited for."""
    batches = Batches(outcomes=["failed", "expired", "cancelled"], missing=0.1)
    async with (
        BatchLLM(confident, batches=batches) as llm,
        lane(llm, model=model, policy={"attempts": 9}) as nuc,
    ):
        results = await nuc.classify_many(TEXTS, lane="batch")
        assert not results.errors
        assert (llm.calls, nuc.usage.calls) == (40, 40)


async def test_ids_are_numbers(model, lane):
    fields = ("id", "input_file_id", "output_file_id", "error_file_id")
    numbers, names = {}, {}

    def number(name):
        if name not in numbers:
            numbers[name] = 1000 + len(numbers)
            names[str(numbers[name])] = name
        return numbers[name]

    async with BatchLLM(confident) as llm:
        answer_of = llm.batch_server.respond

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

        llm.batch_server.respond = respond
        await billed_once(llm, lane, model)
