"""Clients of servers with batch APIs."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from bench._batch_api import BatchLLM, model_at
from testnuc import BatchPolicy, Limits, TestNUC
from testnuc.stores.memory import MemoryStore
from tests.batch.unreliable import Unreliable
from tests.conftest import confident


@pytest.fixture
def lane(client_of):
    """Make a client with small batches; ``policy`` is the batch policy's own."""

    def make(llm, *, model="openai/test", store=None, policy=None, limits=Limits(), **more):  # noqa: B008 - frozen
        policy = {"max_requests": 100, "first_poll": 0.001, "longest_poll": 0.002} | (policy or {})
        store = MemoryStore() if store is None else store
        limits = replace(limits, batches=BatchPolicy(**policy))
        model = model_at(model, llm.base_url, "secret-key-123")
        return TestNUC(**client_of(llm, model=model, store=store, limits=limits, **more))

    return make


@pytest.fixture
def serving(lane):
    """Open a server, whose batch API is `unreliable` if that is given, and a client of it."""

    @asynccontextmanager
    async def opened(answer=confident, *, batches=None, faults=None, unreliable=None, **more):
        async with BatchLLM(answer, batches=batches, faults=faults) as llm:
            if unreliable is not None:
                Unreliable(llm, **unreliable)
            async with lane(llm, **more) as nuc:
                yield llm, nuc

    return opened
