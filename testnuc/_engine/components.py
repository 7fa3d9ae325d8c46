"""The components of one client: created from its arguments, wired, opened and closed together."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from testnuc import embedders, methods, providers, stores
from testnuc._base.checks import checked_choice
from testnuc._base.display import today
from testnuc._dispatch.predictor import Predictor
from testnuc._dispatch.scheduler import Scheduler
from testnuc._engine.parameters import check_options
from testnuc._engine.pipeline import Pipeline
from testnuc._engine.shortlist import Shortlist, checked_shortlist
from testnuc._engine.votes import load_kernels
from testnuc._version import __version__
from testnuc.batch import BatchLane
from testnuc.embedders.cache import EmbeddingCache, embedder_name
from testnuc.errors import InvalidInputError, StoreError, TestNUCError
from testnuc.head import Head
from testnuc.index.memory_pool import Pool
from testnuc.labels import LabelSet
from testnuc.limits.budget import Meter, Price, require_price
from testnuc.limits.policies import Limits
from testnuc.methods import Sampling
from testnuc.protocols import (
    APIKey,
    Embedder,
    Index,
    Method,
    Provider,
    Store,
    WireProvider,
    implements,
)
from testnuc.transport import Transport
from testnuc.transport.telemetry import Telemetry
from testnuc.trust.auto_policy import VoteSettings, given_policy
from testnuc.trust.evidence import Referee
from testnuc.trust.uncertainty import UncertaintySampling
from testnuc.voting import VotePolicy

T = TypeVar("T")

#: First date, last date, version: what is noted of a model that answered.
_NOTED = 3
#: What a scope names of the sampling, where it is not the default.
_SAMPLED = ("texts_per_call", "score_labels", "reasoning_effort", "temperature")


@dataclass(frozen=True)
class Internals:
    """What is no argument of `TestNUC`.

    `pool` replaces the store's own. `kernels`: whether `ready` loads the voting kernels, which
    takes seconds. `transport` creates the transport; the simulation gives it another clock and
    other connections. `shared`: whether what is learned is kept in the store, and read from there.
    """

    pool: Index | None = None
    kernels: bool = True
    transport: Callable[..., Transport] = Transport
    shared: bool = True


class Components:
    """Embedder, index, provider, store and the objects that connect them; parameters as `TestNUC`.

    `TestNUC` takes its parameters, except the first one, from here.
    """

    #: The process that opened it; threads and connections do not survive a fork.
    _process: int | None = None
    _store_open = False
    #: Created when the batch lane is first used.
    batch_lane: BatchLane | None = None
    #: Whether a warning of a small pool was given.
    warned = False
    #: Gives the store the dates of the answers.
    _noting: asyncio.Task[None] | None = None

    def __init__(
        self,
        internals: Internals,
        /,
        labels: Sequence[str] | Mapping[str, Any] | LabelSet,
        model: str | Provider | WireProvider = "openai/gpt-4o-mini",
        *,
        base_url: str | None = None,
        api_key: APIKey | None = None,
        embedder: str | Embedder = "sentence-transformers/all-MiniLM-L6-v2",
        store: str | os.PathLike[str] | Store | None = None,
        k: int | None = None,
        policy: str | VotePolicy = "auto",
        instructions: str | None = None,
        method: Method | None = None,
        sampling: Sampling | None = None,
        neighbors: Literal["predict", "stored"] = "predict",
        join_pool: bool = True,
        limits: Limits | None = None,
        referee: str | Provider | WireProvider | Referee | None = None,
        labeler: Literal["llm"] | UncertaintySampling | Head = "llm",
    ) -> None:
        self.labels = labels if isinstance(labels, LabelSet) else LabelSet(labels)
        self.sampling = _checked("sampling", sampling, Sampling)
        if labeler != "llm" and not isinstance(labeler, UncertaintySampling | Head):
            raise InvalidInputError(
                f"labeler is {labeler!r}; give 'llm', testnuc.UncertaintySampling(..) or "
                "testnuc.Head.load(..)"
            )
        shortlist = self.sampling.shortlist
        self.referee = Referee.of(referee)
        #: As the user gave them; `pipeline.settings` may add what was learned.
        self.policy = given_policy(policy)
        check_options(self.labels, self.policy, model, method, self.sampling, self.referee, labeler)
        self.settings = settings = VoteSettings.of(self.policy, k, self.labels)
        self.limits = _checked("limits", limits, Limits)
        checked_choice("neighbors", neighbors, ("predict", "stored"))
        if instructions is not None and not isinstance(instructions, str):
            raise InvalidInputError(f"instructions is {instructions!r}; give a string or None")
        per_call = self.sampling.texts_per_call
        method = methods.resolve(method, texts_per_call=per_call)
        self.store, self.embedder = stores.resolve(store), embedders.resolve(embedder)
        # an embedder created here is closed here; one that the user passed stays open
        self._own_embedder = isinstance(embedder, str)
        pool = internals.pool
        if pool is None:
            pool = self.store.pool(embedder_name(self.embedder))
        # not `pool or ..`: an empty pool is falsy
        self.pool: Index = Pool() if pool is None else pool
        self.embedding = EmbeddingCache(self.embedder, self.store, self.pool)
        provider = self.provider(model, base_url, api_key)
        self.model = f"{provider.name}/{provider.model}"
        url, ttl = getattr(provider, "url", None), getattr(provider, "cache_ttl", None)
        priced = partial(Price.of, provider.name, provider.model, url, cache_ttl=ttl)
        price = priced(tier=self.sampling.request_options.get("service_tier"))
        require_price(self.limits.budget, price, self.model, base_url)
        self.meter = Meter(price)
        self.telemetry = Telemetry.of(provider.name, provider.model, url)
        self.embedding.telemetry = self.telemetry
        self.transport = internals.transport(
            self.limits,
            trust_env=getattr(provider, "trust_env", False),
            meter=self.meter,
            telemetry=self.telemetry,
        )

        def predictor_of(shortlist: int | str | None) -> Predictor:
            way: Any = ("levels",) if shortlist == "levels" else (shortlist, self.embedding.name)
            return Predictor(
                provider,
                self.transport,
                self.labels,
                self.sampling,
                instructions=instructions,
                shortlist=None if shortlist is None else way,
                store=self.store,
            )

        #: Labels in a prompt, or "levels"; None: all.
        self.shortlist, note = checked_shortlist(
            shortlist,
            self.labels,
            method,
            per_call,
            predictor_of,
            over_http=implements(provider, WireProvider),
        )
        self.predictor, self._automatic = predictor_of(self.shortlist), shortlist == "auto"
        self.scheduler = Scheduler(
            self.predictor.answer,
            self.store,
            self.predictor.scope,
            meter=self.meter,
            workers=self.limits.concurrency,
            per_call=per_call,
        )
        self.pipeline = Pipeline(
            settings,
            method,
            neighbors,
            predictor=self.predictor,
            scheduler=self.scheduler,
            embedding=self.embedding,
            pool=self.pool,
            store=self.store,
            join_pool=join_pool,
            per_call=per_call,
            ask=labeler if isinstance(labeler, UncertaintySampling) else None,
            head=self._checked_head(labeler) if isinstance(labeler, Head) else None,
            shortlist=None
            if not isinstance(self.shortlist, int)
            else Shortlist(self.labels, self.shortlist, self.embedding),
            note=note,
        )
        #: In the live lane and in the batch lane; None: unknown.
        self.prices = price, priced(batch=True)
        #: Where prompts show some labels: the scope of predictions by prompts with all labels.
        self.full_scope = None if self.shortlist is None else predictor_of(None).scope
        self.instructions = instructions
        sampled = [(name, getattr(self.sampling, name)) for name in _SAMPLED]
        #: What is noted in the store: commands about it need not repeat these options.
        self.facts = _known(
            model=self.model,
            **self.labels.record(),
            # a password may be part of an address
            base_url=None if base_url is None or "@" in base_url else base_url,
            embedder=embedder if isinstance(embedder, str) else None,
            instructions=instructions,
            shortlist=self.shortlist,
            **{n: value for n, value in sampled if value != getattr(Sampling(), n)},
            seed=self.sampling.request_options.get("seed"),
            k=k,
            policy=policy if isinstance(policy, str) else None,
            descriptions=dict(self.labels.descriptions) or None,
        )
        self._address = (model, base_url, api_key)
        #: The date from which on it may have made calls.
        self._since = today()
        self.internals = internals
        self._opening: asyncio.Task[None] | None = None
        self._closed = False
        #: Set when everything is closed.
        self._ended = asyncio.Event()

    async def ready(
        self, lane: str = "live", *, opened: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Open everything that a lane needs, and call `opened`; later calls return at once."""
        checked_choice("lane", lane, ("live", "batch"))
        self._check_process()
        self.transport.require_loop()
        self._process = os.getpid()
        if lane == "batch" and self.shortlist == "levels" and not self._automatic:
            raise InvalidInputError(
                "lane is 'batch', but shortlist='levels' would take a batch job for each level; "
                "give a number of labels or leave Sampling(shortlist=..) out, or use lane='live'"
            )
        if lane == "batch" and self.batch_lane is None:
            self.batch_lane = BatchLane(
                self.predictor,
                self.store,
                self.transport,
                policy=self.limits.batches,
                price=self.prices[1],
                per_call=self.sampling.texts_per_call,
                live=self.scheduler,
            )
            self.pipeline.lanes["batch"] = self.batch_lane.scheduler
        if self._closed:
            raise TestNUCError("this client is closed; make a new one")
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(opened), name="testnuc-open")
        await asyncio.shield(self._opening)
        if self.meter.calls and self._noting is None:
            # a service runs for long, and may be killed; no caller waits for this write
            self._noting = asyncio.create_task(self._note(), name="testnuc-note")
        if lane == "batch" and self.batch_lane is not None:
            # resumes the open batches of earlier runs, even if this run does not need them
            await self.batch_lane.resume()

    async def aclose(self, close_referees: Callable[[], Awaitable[None]] | None = None) -> None:
        """Wait a few seconds for calls in flight, store their answers, and close everything."""
        self._check_process()
        if self._closed:
            # another caller is closing everything
            await self._ended.wait()
            return
        self._closed = True
        # a stack, so that everything is closed even on cancellation
        async with AsyncExitStack() as closing:
            closing.callback(self._ended.set)
            close_embedder = getattr(self.embedder, "close", None)
            if close_embedder is not None and self._own_embedder:
                closing.push_async_callback(close_embedder)
            closing.push_async_callback(self._close_store)
            closing.push_async_callback(self.pool.close)
            closing.push_async_callback(self.transport.aclose)
            if close_referees is not None:
                closing.push_async_callback(close_referees)
            closing.push_async_callback(self.embedding.close)
            if self.batch_lane is not None:
                closing.push_async_callback(self.batch_lane.close)
            for scheduler in self.pipeline.lanes.values():
                closing.push_async_callback(scheduler.close)
            if self._opening is not None:
                await asyncio.wait([self._opening])

    async def _close_store(self) -> None:
        # one close for each open: other clients may use the store, too
        if not self._store_open:
            return
        try:
            if self._noting is not None:
                await self._noting
            if self.meter.calls:
                await self._note()
        finally:
            await self.store.close()

    async def _note(self) -> None:
        """Store what answered so far, if the store takes it."""
        with suppress(StoreError):
            await self._describe()

    async def _describe(self) -> None:
        """Store the facts of the scope: options, and what answered so far."""
        await self.store.describe(
            self.predictor.scope, self.facts | _known(answered=await self.answered() or None)
        )

    async def scopes(self) -> list[tuple[bytes, dict[str, Any]]]:
        """Return all scopes of the store and their facts, if it knows them."""
        known = getattr(self.store, "scopes", None)
        return [] if known is None else [*await known()]

    async def answered(self) -> dict[str, list[str]]:
        """Return which models answered, by the name that the provider reported ("": none).

        Of each the first and the last date, and the version of testnuc.
        """
        found = dict(await self.scopes()).get(self.predictor.scope, {}).get("answered")
        # older versions did not note it, and others may write to a store
        known = {
            str(name): list(map(str, of))
            for name, of in (found.items() if isinstance(found, dict) else ())
            if isinstance(of, list) and len(of) == _NOTED
        }
        if self.meter.calls:
            for name in getattr(self.predictor.provider, "served", None) or [""]:
                first = known.get(name, [self._since])[0]
                known[name] = [min(first, self._since), today(), __version__]
        return known

    async def referees(self) -> list[str]:
        """Return which referees answered about these labels, as far as the store notes them."""
        labels, noted = [*self.labels.names], [facts for _, facts in await self.scopes()]
        alike = (f for f in noted if f.get("referee") is True and f.get("labels") == labels)
        return sorted({str(facts.get("model")) for facts in alike})

    def _check_process(self) -> None:
        if self._process not in {None, os.getpid()}:
            raise TestNUCError(
                "this client was used before fork(); create one in the child process"
            )

    async def _open(self, opened: Callable[[], Awaitable[None]] | None) -> None:
        opening = [self._open_store(opened)]
        if self.internals.kernels:
            opening.append(asyncio.to_thread(load_kernels, self.labels, self.pipeline.settings))
        await asyncio.gather(*opening)

    async def _open_store(self, opened: Callable[[], Awaitable[None]] | None) -> None:
        await self.store.open()
        self._store_open = True
        await self.pool.open()
        await self._require_address()
        # a wrong embedder has an empty pool: it must not be remembered
        if len(self.pool) or not await self.store.count(self.predictor.scope):
            await self._describe()
        if opened is not None:
            await opened()

    async def _require_address(self) -> None:
        """Check that no address was forgotten: texts would be sent to another company."""
        model, base_url, _ = self._address
        named = base_url is not None or not isinstance(model, str)
        if named or await self.store.count(self.predictor.scope):
            return
        for scope, facts in await self.scopes():
            alike = all(facts.get(name) == self.facts[name] for name in ("model", "labels"))
            if alike and (url := facts.get("base_url")) and await self.store.count(scope):
                raise InvalidInputError(
                    f"the store has answers of {model} with these labels from {url}, embedder "
                    f"{facts.get('embedder')}; give base_url={url!r}, or the one that is meant"
                )

    def _checked_head(self, head: Head) -> Head:
        head.checked_embedder(self.embedder)
        head.for_labels(self.labels.names)
        if (head.sets is not None) != self.labels.multilabel:
            several = "several labels" if head.sets is not None else "one label"
            raise InvalidInputError(
                f"the head gives {several} for a text, but multilabel is "
                f"{self.labels.multilabel}; give LabelSet(.., multilabel={head.sets is not None}), "
                "or distill another head"
            )
        return head

    def referee_provider(self, model: str | Provider | WireProvider) -> Provider | WireProvider:
        """Return the provider of a referee; one of the client's kind has its address and key."""
        own, base_url, api_key = self._address
        alike = isinstance(own, str) and isinstance(model, str)
        if not alike or str(own).partition("/")[0] != str(model).partition("/")[0]:
            base_url = api_key = None
        return self.provider(model, base_url, api_key)

    def provider(
        self, model: str | Provider | WireProvider, base_url: str | None, api_key: APIKey | None
    ) -> Provider | WireProvider:
        """Return the provider of a model."""
        if not isinstance(model, str):
            if not (implements(model, WireProvider) or callable(getattr(model, "answer", None))):
                raise InvalidInputError(
                    f"model is {model!r}; give a name such as 'openai/gpt-4o-mini', or an object "
                    "with `async answer(request)`"
                )
            return model
        if model == "local/zero-shot":
            from testnuc.providers.local import ZeroShot

            return ZeroShot(self.embedding, self.labels)
        return providers.resolve(model, base_url=base_url, api_key=api_key)


def _checked(name: str, given: Any, kind: type[T]) -> T:
    """Return a group of settings, by default that of all defaults."""
    if given is None:
        return kind()
    if not isinstance(given, kind):
        raise InvalidInputError(f"{name} is {given!r}; give testnuc.{kind.__name__}(..)")
    return given


def _known(**facts: Any) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}
