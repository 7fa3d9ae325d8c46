"""Replies that the output limit cut off: what is complete as JSON counts, and nothing else."""

from __future__ import annotations

import json

import orjson
import pytest
from aiohttp import web

from testnuc import Limits, RetryPolicy, Sampling, TestNUC
from testnuc.batch.manifest import ResponseReader
from testnuc.errors import ReplyError, TruncatedReplyError
from testnuc.labels import LabelSet
from testnuc.protocols import Answer, Request, Task
from testnuc.providers.anthropic import Anthropic
from testnuc.providers.openai import OpenAI
from testnuc.testing import HashEmbedder
from tests.providers.chat_bodies import LOCAL, completion
from tests.providers.test_anthropic import message
from tests.providers.test_responses import response
from tests.transport.small_server import serving

LABELS = ("refund", "card", "delivery")
CUT = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
#: Protocols: a provider, and the body of a reply that is whole or was cut off.
PROTOCOLS = {
    "chat": (
        OpenAI("m", base_url=LOCAL),
        lambda text, cut: completion(text, "length" if cut else "stop"),
    ),
    "mistral": (
        OpenAI("m", base_url=LOCAL),
        lambda text, cut: completion(text, "model_length" if cut else "stop"),
    ),
    "responses": (
        OpenAI("m", base_url=LOCAL, responses=True),
        lambda text, cut: response(text, **(CUT if cut else {})),
    ),
    "responses, unexplained": (
        OpenAI("m", base_url=LOCAL, responses=True),
        lambda text, cut: response(text, **({"status": "incomplete"} if cut else {})),
    ),
    "anthropic": (
        Anthropic("m", base_url="http://localhost:1", api_key="k" * 20),
        lambda text, cut: message(text, "max_tokens" if cut else "end_turn"),
    ),
}
DRAFTS = [
    "",
    'A draft: {"label": "card", "confidence": 0.2, "labels": ["card"]}. No, the answer is ',
    '<think>{"label": "card", "labels": [{"label": "card"}]}</think>',
    '```json\n{"label": "card", "labels": ["card"]}\n```\nOn second thought:\n',
    '[{"id": 1, "label": "card", "labels": ["card"]}] or rather ',
    '{"id": 1, "label": "card"}\n{"id": 2, "label": "card"}\nI am not sure. ',
]
ONE = {"label": "refund", "confidence": 0.9}
SEVERAL = [{"label": "refund", "confidence": 0.9}, {"label": "delivery", "confidence": 0.8}]
PACKED = [{"id": i, "label": label, "confidence": 0.9} for i, label in enumerate(LABELS, 1)]
BOTH = [{"id": i, "labels": SEVERAL[:i]} for i in (1, 2)]
WHOLE = {
    "one label": (1, False, json.dumps(ONE)),
    "one label in a list": (1, False, json.dumps({"answers": [{"id": 1, **ONE}]})),
    "several labels": (1, True, json.dumps({"labels": SEVERAL})),
    "several labels by name": (1, True, json.dumps({"labels": {"refund": 0.9, "delivery": 0.8}})),
    "several labels alone": (1, True, json.dumps(["refund", "delivery"])),
    "packed": (3, False, json.dumps({"answers": PACKED})),
    "packed, indented": (3, False, f"```json\n{json.dumps({'answers': PACKED}, indent=1)}\n```"),
    "packed, a list": (3, False, json.dumps(PACKED)),
    "packed, lines": (3, False, "\n".join(map(json.dumps, PACKED))),
    "packed, several labels": (2, True, json.dumps({"answers": BOTH})),
}  # fmt: skip


def answers(protocol, text, n, several, *, cut):
    """Return the answers to the texts; None: the reply was not read, as it was cut off."""
    provider, body = PROTOCOLS[protocol]
    request = Request(Task("s", LABELS, multilabel=several), "u", ("t",) * n)
    try:
        return provider.decode(request, body(text, cut)).answers
    except TruncatedReplyError:
        assert cut
        return None


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("form", WHOLE)
def test_only_what_is_complete_counts(protocol, form):
    n, several, whole = WHOLE[form]
    expected = answers(protocol, whole, n, several, cut=False)
    assert all(isinstance(answer, Answer) for answer in expected)
    # a whole answer at the limit
    assert answers(protocol, whole, n, several, cut=True) == expected
    counted = set()
    for draft in DRAFTS:
        # of the first of several lines nothing tells that there are more
        for end in range(len(whole)):
            got = answers(protocol, draft + whole[:end], n, several, cut=True)
            for answer, right in zip(got or (), expected, strict=False):
                assert isinstance(answer, ReplyError) or answer == right, draft + whole[:end]
            counted.add(sum(isinstance(answer, Answer) for answer in got or ()))
    # what was complete before the cut is paid for, and used
    assert counted >= set(range(n)), counted


@pytest.mark.parametrize(("several", "form"), [(True, "several labels"), (False, "one label")])
def test_a_reply_whose_end_is_missing_without_a_word(several, form):
    _, _, whole = WHOLE[form]
    right = answers("chat", whole, 1, several, cut=False)
    provider, body = PROTOCOLS["chat"]
    request = Request(Task("s", LABELS, multilabel=several), "u", ("t",))
    for draft in DRAFTS[1:4]:
        for end in range(1, len(whole)):
            try:
                got = provider.decode(request, body(draft + whole[:end], False)).answers
            except ReplyError:
                continue
            # a closing bracket alone may be missing
            assert got == right
            assert end > len(whole) - 3


def test_scores_of_labels_need_a_whole_answer():
    provider = PROTOCOLS["chat"][0]
    request = Request(Task("s", LABELS, confidence="logprobs", score_labels=True), "u", ("t",))
    for text in ('{"label": "refund"} or {"label": "ca', '{"label": "re'):
        listed = [{"token": c, "logprob": -0.1, "top_logprobs": []} for c in text]
        with pytest.raises(TruncatedReplyError):
            provider.decode(request, completion(text, "length", logprobs={"content": listed}))


def test_results_of_batch_jobs_are_read_alike():
    labels = LabelSet(LABELS, multilabel=True)
    reader = ResponseReader(PROTOCOLS["chat"][0], Task("s", LABELS, multilabel=True), labels)
    text = '{"labels": [{"label": "refund", "confidence": 0.9}, {"label": "deli'
    (outcome,), usage = reader.read(completion(text, "length"), 1)
    assert isinstance(outcome, TruncatedReplyError)
    assert usage.output_tokens == 7


@pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")
@pytest.mark.parametrize("several", [False, True])
async def test_nothing_is_stored_of_an_answer_that_was_cut_off(several, tmp_path):
    one = '{"label": "refund", "confidence": 0.9}'
    draft = f'{{"labels": [{one}, {{"label": "del' if several else f"{one} or {{"
    finish = ["length"]

    def answer(_, request):
        text = draft if finish[0] == "length" else WHOLE["one label"][2]
        if several and finish[0] != "length":
            text = WHOLE["several labels"][2]
        body = orjson.loads(completion(text, finish[0]))
        return web.json_response(body)

    labels = LabelSet(LABELS, multilabel=several)
    async with serving(answer) as (wire, seen):
        options = {
            "base_url": wire.url, "api_key": "k" * 20, "embedder": HashEmbedder(), "k": 0,
            "store": tmp_path / "labels.db",
            "limits": Limits(retry=RetryPolicy(attempts=2, initial_wait=0.001)),
            "sampling": Sampling(request_options={"max_tokens": 20}),
        }  # fmt: skip
        async with TestNUC(labels, "openai/test", **options) as nuc:
            result = (await nuc.classify_many(["where is my money"]))[0]
        assert isinstance(result.error, TruncatedReplyError)
        calls, finish[0] = len(seen), "stop"
        async with TestNUC(labels, "openai/test", **options) as nuc:
            result = (await nuc.classify_many(["where is my money"]))[0]
        assert result.label == ("refund; delivery" if several else "refund")
        assert len(seen) == calls + 1
