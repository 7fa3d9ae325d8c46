"""A pipeline whose model is a function of the ask, without a provider."""

from __future__ import annotations

import asyncio

from testnuc._base.checks import hash_text
from testnuc._dispatch.predictor import Predictor
from testnuc._dispatch.scheduler import Scheduler
from testnuc._engine.pipeline import Pipeline
from testnuc.embedders.cache import EmbeddingCache, embedder_name
from testnuc.index.memory_pool import Pool
from testnuc.labels import LabelSet
from testnuc.limits.budget import Meter
from testnuc.methods import Sampling, StandardPrompting
from testnuc.protocols import PoolText
from testnuc.stores.memory import MemoryStore
from testnuc.testing import HashEmbedder
from testnuc.trust.auto_policy import VoteSettings
from testnuc.types import Prediction
from testnuc.voting import VotePolicy
from tests.conftest import LABELS, gold


class NoProvider:
    """Gives the keys a name; is never asked."""

    name, model, identity = "rule", "m-1", "v1"

    async def answer(self, request):
        raise NotImplementedError


def entries_of(texts):
    return [PoolText(text, hash_text(text)) for text in texts]


class Parts:
    """A pipeline and its parts; `asked` holds the asks in the order in which they were sent."""

    def __init__(self, method=None, neighbors="predict", k=3, *, join_pool=True, policy="weighted"):
        self.asked = []
        self.said = gold
        self.labels = LabelSet(LABELS)
        self.pool = Pool()
        self.store = MemoryStore()
        embedder = HashEmbedder()
        assert self.store.pool(embedder_name(embedder)) is None
        self.embedding = EmbeddingCache(embedder, self.store, self.pool)
        self.predictor = Predictor(
            NoProvider(),
            None,
            self.labels,
            Sampling(temperature=None, top_p=None),
            instructions=None,
        )
        self.scheduler = Scheduler(
            self.answer, self.store, self.predictor.scope, meter=Meter(), workers=4
        )
        self.pipeline = Pipeline(
            VoteSettings(policy=policy and VotePolicy.of(policy), k=k, auto=policy is None),
            method or StandardPrompting(),
            neighbors,
            predictor=self.predictor,
            scheduler=self.scheduler,
            embedding=self.embedding,
            pool=self.pool,
            store=self.store,
            join_pool=join_pool,
        )

    async def answer(self, asks):
        self.asked += asks
        await asyncio.sleep(0)
        outcomes = [self.said(ask.text) for ask in asks]
        return [Prediction(o, 0.9) if isinstance(o, str) else o for o in outcomes]

    async def add(self, texts):
        entries = entries_of(texts)
        vectors = await self.embedding.vectors(entries)
        return await self.pool.add(entries, vectors)

    async def predict(self, run, *, waves=False):
        places = []
        await self.pipeline.complete(run, waves=waves, on_place=places.append)
        if run.failure is not None:
            raise run.failure
        return places

    async def close(self):
        await self.scheduler.close()
        await self.embedding.close()
        await self.pool.close()
