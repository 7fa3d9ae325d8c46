"""Providers, embedders and servers that tests make of a function."""

from __future__ import annotations

import zlib
from contextlib import asynccontextmanager

import numpy as np
from aiohttp import web

from testnuc.protocols import Answer, Reply, TokenUsage
from testnuc.testing import HashEmbedder


class Says:
    """A provider that answers by a function of the text, and notes what it was asked.

    The function returns a label, (label, confidence), or label -> confidence of several labels.
    """

    name, identity = "double", "v1"

    def __init__(self, say, model="small"):
        self.say = say
        self.model = model
        self.asked = []

    def said(self, text):
        found = self.say(text)
        if isinstance(found, dict):
            return Answer("", None, tuple(found.items()))
        return Answer(*(found if isinstance(found, tuple) else (found, 0.9)))

    async def answer(self, request):
        self.asked += request.texts
        return Reply(tuple(map(self.said, request.texts)), TokenUsage(10, 5))


class Clustered:
    """Embeds texts such as ``c3 number 17`` near each other by their digit after a letter."""

    name, dim, noise, center = "clustered", 16, 0.15, 1.0

    async def embed(self, texts):
        made = []
        for text in texts:
            rng = np.random.default_rng(zlib.crc32(text.encode()))
            vector = self.noise * rng.normal(size=self.dim)
            vector[int(text[1])] += self.center
            made.append(vector / np.linalg.norm(vector))
        return np.array(made, dtype=np.float32)


class Breaking:
    """Before an embedder in the bases of a class: it fails on demand."""

    broken = False
    error: Exception = RuntimeError("out of memory")

    async def embed(self, texts):
        if self.broken:
            raise self.error
        return await super().embed(texts)


class Breaks(Breaking, HashEmbedder):
    """Fails on demand."""


@asynccontextmanager
async def posts_to(handle):
    """Serve a handler of POST requests; yields its base URL."""
    app = web.Application(client_max_size=2**24)
    app.router.add_post("/v1{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()
