"""Scikit-learn classifiers: `TestNUCClassifier` and `HeadClassifier` (extra ``sklearn``).

``fit`` makes its texts the pool; ``predict`` asks the LLM about each text and lets its neighbors in
that pool vote. A background thread runs the event loop, so that the classifier also works where a
loop already runs, as in a notebook.
"""

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, Literal, Self

import numpy as np

from testnuc._base.arrays import Array, Float64s
from testnuc._base.checks import is_null, needing, valid_text, values
from testnuc._base.loop_thread import Background
from testnuc._engine.components import Internals
from testnuc._engine.learning import LEAST_TEXTS
from testnuc._engine.parameters import client_arguments
from testnuc._engine.reporting import few_predictions
from testnuc.client import TestNUC
from testnuc.errors import InvalidInputError, TestNUCError, with_count
from testnuc.head import Head
from testnuc.index.memory_pool import Pool
from testnuc.label_tree import flattened, is_nested
from testnuc.limits.policies import Limits
from testnuc.protocols import Embedder, Method, PoolText, Provider, StoredPrediction, WireProvider
from testnuc.results import Results
from testnuc.stores.memory import MemoryStore
from testnuc.types import Classification, Usage
from testnuc.voting import VotePolicy

with needing("testnuc.sklearn needs scikit-learn: pip install 'testnuc[sklearn]'"):
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d

__all__ = ["HeadClassifier", "TestNUCClassifier"]


@dataclass(eq=False, repr=False)
class TestNUCClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Label texts with an LLM and the vote of their nearest unlabeled neighbors.

    Parameters
    ----------
    labels : sequence of str or mapping of str to str, optional
        The labels to choose from, or label -> description; default: those of ``y``.
    model, base_url, embedder, k, policy, method, instructions, none_label
        As for `TestNUC`.
    multilabel : bool
        Whether a text can have several labels. Then ``y`` and predictions are indicator matrices,
        int[n, n_classes], and ``y`` is not learned from.
    limits
        As for `TestNUC`. The key comes from the provider's environment variable, so that neither
        ``repr`` nor a pickle contains it.
    temperature, top_p, confidence, texts_per_call, request_options, reasoning_effort
        As for `Sampling`; flat, so that a search can vary them.
    score_labels, shortlist
        As for `Sampling`.
    store : str or path, optional
        Stores predictions and embeddings: with it, fits on the same texts (clones, folds of a
        search) ask about each text once. Default: in the memory of this estimator.

    Attributes
    ----------
    classes_ : array
        The labels, sorted.
    learned_ : Learned or None
        What was learned from the labels, if ``fit`` was given any and the policy is "auto".

    Examples
    --------
    ::

        classifier = TestNUCClassifier(["refund", "delivery"], model="openai/gpt-4o-mini")
        classifier.fit(unlabeled_texts).predict(new_texts)
    """

    __test__ = False

    labels: Sequence[str] | Mapping[str, str] | None = None
    _: KW_ONLY
    model: str | Provider | WireProvider = "openai/gpt-4o-mini"
    base_url: str | None = None
    embedder: str | Embedder = "sentence-transformers/all-MiniLM-L6-v2"
    store: str | os.PathLike[str] | None = None
    k: int | None = None
    policy: str | VotePolicy = "auto"
    method: Method | None = None
    instructions: str | None = None
    none_label: str | None = None
    multilabel: bool = False
    request_options: Mapping[str, Any] | None = None
    texts_per_call: int = 1
    temperature: float | None = 0.7
    top_p: float | None = 1.0
    confidence: Literal["verbalized", "logprobs"] = "verbalized"
    reasoning_effort: str | None = "least"
    score_labels: bool = False
    shortlist: int | Literal["auto", "levels", "all"] | None = "auto"
    limits: Limits | None = None

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: N803 - scikit-learn's names
        """Make the texts the pool, and predict each distinct text.

        Parameters
        ----------
        X : sequence of str
            Lists, Series of pandas or polars, arrays.
        y : sequence of labels, optional
            Correct labels, None for texts without one. With policy "auto" the classifier learns
            from them, as `TestNUC.learn` does: they choose and train how texts are labeled, and
            their texts get them in every result. Under any other policy they only set `classes_`,
            if ``labels`` is None. They never vote.

        Raises
        ------
        InvalidInputError
            A text is empty or not a string, or a label is not in the set; nothing was sent.
        ProviderError
            No call can succeed: a wrong key, an unknown model.
        """
        texts = _column(X)
        gold = self._sets(y, len(texts)) if self.multilabel else _gold(y, len(texts))
        classes, asked = self._classes(None if self.multilabel else gold)
        known = set(classes.tolist())
        # the first one of duplicates
        labels: dict[str, Any] = {}
        for position, (text, label) in enumerate(zip(texts, gold or (), strict=bool(gold))):
            if isinstance(label, list):
                labels.setdefault(text, label)
            elif label in known:
                labels.setdefault(text, str(label))
            elif label is not None:
                raise InvalidInputError(
                    f"label {position} is {label!r}, which is not in labels; add it there, or give "
                    "None for a text without a label"
                )
        fitted = _Fitted(self._client_arguments(asked), self.store)
        fitted.run(fitted.fit(texts, labels))
        self.close()
        self.classes_ = classes
        self.learned_ = fitted.learned
        self._fitted = fitted
        predicted = fitted.predicted
        if predicted is not None:
            warning = few_predictions(predicted, "fit more texts")
            if warning is not None:
                warnings.warn(warning, stacklevel=2)
        return self

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the label of each text; with `multilabel`, 1 for each of its labels, else 0.

        Raises
        ------
        TestNUCError
            A text has no label: its call failed (answers to the others are stored), or the LLM
            named none of the labels and ``none_label`` is not set.
        """
        results = self.results(X)
        stopped = results.stopped
        if stopped is not None and None in results.labels:
            answered = sum(row.prediction is not None for row in results)
            raise with_count(stopped, answered) from stopped
        if self.multilabel:
            return _indicator(results, self.classes_)
        return self.classes_[[self._place(row) for row in results]]

    def predict_proba(self, X: Any) -> Float64s:  # noqa: N803
        """Return each label's share of the vote, float64[n, n_classes].

        Not a calibrated probability; in a tie, `predict` returns the label of the most similar
        voter. With `multilabel` the shares of a text do not sum to 1.
        """
        results = self.results(X)
        places = {str(label): i for i, label in enumerate(self.classes_.tolist())}
        shares = np.zeros((len(results), len(self.classes_)))
        for at, result in enumerate(results):
            parts = result.votes if result.shares is None else result.shares
            for label, weight in parts.items():
                shares[at, places[label]] = weight
            if not self.multilabel and not shares[at].any():
                # without any vote, the label is the text's own
                shares[at, self._place(result)] = 1.0
        if not self.multilabel:
            shares /= shares.sum(axis=1, keepdims=True)
        return shares

    def _sets(self, y: Any, n: int) -> list[list[str]] | None:
        """Return the correct labels of each text, from a matrix of 0 and 1."""
        if self.labels is None:
            raise InvalidInputError("labels is None; with multilabel=True give labels=[..]")
        if y is None:
            return None
        given, wanted = np.asarray(y), (n, len(self.labels))
        if given.shape != wanted or not np.isin(given, (0, 1)).all():
            raise InvalidInputError(
                f"y has the shape {given.shape}; with multilabel=True give a matrix of 0 and 1, "
                f"{wanted}: a column for each label, in alphabetical order"
            )
        names = self._classes(None)[0].tolist()
        return [[names[place] for place in np.flatnonzero(row)] for row in given]

    def results(self, X: Any) -> Results:  # noqa: N803
        """Return the full results: labels, votes, neighbors, trust.

        Texts do not vote on each other, so that a result depends on its own text only.
        """
        check_is_fitted(self)
        return self._fitted.run(self._fitted.classify_many(_column(X)))

    @property
    def usage_(self) -> Usage:
        """Usage since `fit` began, in this process."""
        check_is_fitted(self)
        return self._fitted.usage

    def close(self) -> None:
        """Stop the thread and close the connections; call `fit` to start again."""
        fitted = self.__dict__.pop("_fitted", None)
        if fitted is not None:
            fitted.close()

    def __sklearn_is_fitted__(self) -> bool:
        return "_fitted" in self.__dict__

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.target_tags.required = False
        tags.classifier_tags.multi_label = self.multilabel
        # LLM answers can vary between calls; stored answers are reused
        tags.non_deterministic = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        fitted = state.pop("_fitted", None)
        if fitted is not None:
            state["_learned"] = fitted.run(fitted.state())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        learned = state.pop("_learned", None)
        super().__setstate__(state)
        if learned is not None:
            fitted = _Fitted(self._client_arguments(learned["labels"]), self.store)
            fitted.run(fitted.restore(learned))
            self._fitted = fitted

    def _client_arguments(self, labels: Any) -> dict[str, Any]:
        given = self.get_params(deep=False) | {"labels": labels}
        # `_Fitted` has a store of its own
        del given["store"]
        return client_arguments(given)

    def _classes(self, gold: list[Any] | None) -> tuple[Array, Any]:
        """Return the sorted classes, and the labels that the LLM chooses from."""
        if self.labels is not None:
            names = list(flattened(self.labels) if is_nested(self.labels) else self.labels)
            if self.none_label is not None and self.none_label not in names:
                names.append(self.none_label)
            return np.unique(names), self.labels
        known = [] if gold is None else [label for label in gold if label is not None]
        if self.none_label is not None:
            known.append(self.none_label)
        classes = np.unique(known)
        if len(classes) < 2:
            raise InvalidInputError(
                "labels is None, and y has "
                + (f"only 1 class, {classes[0]!r}" if len(classes) else "no label")
                + "; give labels=[..], at least two"
            )
        return classes, [str(label) for label in classes.tolist()]

    def _place(self, result: Classification) -> int:
        """Return the position of a result's label in `classes_`."""
        label = result.label
        if label is None and result.error is None:
            label = self.none_label
        if label is None:
            if result.error is not None:
                raise result.error
            raise TestNUCError(
                f"text {result.index} ({result.text[:60]!r}) has no label: the LLM's answer is "
                "none of them; give none_label='other' for such texts"
            )
        return [str(known) for known in self.classes_.tolist()].index(label)


@dataclass(eq=False, repr=False)
class HeadClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Label texts by a head from `TestNUC.distill`, without an LLM.

    Parameters
    ----------
    head : str or path
        The file.
    embedder : str or Embedder, optional
        As for `Head.load`.

    Attributes
    ----------
    classes_ : array
        The labels, sorted.
    """

    __test__ = False

    head: str | os.PathLike[str] = "labels.head"
    embedder: str | Embedder | None = None

    def fit(self, X: Any = None, y: Any = None) -> Self:  # noqa: ARG002, N803 - it is trained
        """Read the file; the texts are not used.

        Raises
        ------
        InvalidInputError
            The file cannot be read, or belongs to another embedder.
        """
        self._head = Head.load(self.head, self.embedder)
        self.classes_ = np.array(sorted(self._head.labels))
        return self

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the label of each text; of a head for several labels, 1 for each, else 0."""
        check_is_fitted(self)
        if self._head.sets is not None:
            return _indicator(self._head.predict(_column(X)), self.classes_)
        predicted: Array = self.classes_[self.predict_proba(X).argmax(axis=1)]
        return predicted

    def predict_proba(self, X: Any) -> Float64s:  # noqa: N803
        """Return float64[n, n_classes], the probability of each label in `classes_`."""
        check_is_fitted(self)
        order = np.argsort(np.array(self._head.labels))
        return self._head.probabilities(_column(X))[:, order].astype(float)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        # read again where it is unpickled
        state.pop("_head", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "classes_" in state:
            self.fit()


class _Fitted(TestNUC):
    """A fitted client and its event loop thread; its pool holds the texts given to `fit`."""

    def __init__(self, arguments: Mapping[str, Any], store: Any) -> None:
        self._memory = MemoryStore() if store is None else None
        # what one fit learns is no other's: a fold of a search must not see the labels of another
        self._internals = Internals(pool=Pool(), shared=False)
        own = store if self._memory is None else self._memory
        super().__init__(**arguments, store=own, neighbors="stored", join_pool=False)
        self._texts: list[str] = []
        #: Number of predictions behind the auto policy's decision; None: no such decision.
        self.predicted: int | None = None
        self._background = Background("testnuc-sklearn")
        self.run = self._background.run
        self._finalizer = self._background.end_with(
            self, partial(self._parts.aclose, self._escalation.aclose)
        )

    def close(self) -> None:
        if self._finalizer.detach() is None:
            return
        try:
            self.run(self.aclose())
        finally:
            self._background.close()

    async def fit(self, texts: Sequence[str], labels: Mapping[str, Any]) -> None:
        """Predict the pool, and decide the vote unless the policy is fixed."""
        pipeline = self._parts.pipeline
        self._texts = list(dict.fromkeys(texts))
        await self.add(texts)
        await self.predict_pool()
        settings = pipeline.settings
        if settings.policy is not None and not settings.llm_by_default:
            return
        if labels and len(self._texts) >= LEAST_TEXTS:
            await self.learn(list(labels), list(labels.values()))
        if settings.llm_by_default:
            return
        if pipeline.settings.decision is None and not pipeline.settings.head_decides:
            found = await self.diagnose()
            if self.learned is None:
                self.predicted = found.predictions
            pipeline.settings = replace(pipeline.settings, decision=found.decision)

    async def state(self) -> dict[str, Any]:
        """Return the fitted state, for `restore` (pickling)."""
        rows: list[StoredPrediction] = [] if self._memory is None else self._memory.rows()
        labels, entries = self._parts.labels, [PoolText.of(text) for text in self._texts]
        return {
            "labels": {n: labels.descriptions.get(n, "") for n in labels.names},
            "texts": self._texts,
            "vectors": await self._parts.embedding.vectors(entries),
            "rows": rows,
            "settings": self._parts.pipeline.settings,
        }

    async def restore(self, learned: Mapping[str, Any]) -> None:
        await self._ready()
        self._texts = learned["texts"]
        entries = [PoolText.of(text) for text in self._texts]
        if entries:
            await self._parts.pool.add(entries, learned["vectors"])
        if self._memory is not None:
            await self._memory.put_predictions(learned["rows"])
        self._parts.pipeline.settings = learned["settings"]


def _column(texts: Any) -> list[str]:
    """Return the texts of a list, a Series, or a table with one column."""
    shape: tuple[int, ...] = getattr(texts, "shape", ())
    if len(shape) == 2:
        if shape[1] != 1:
            raise InvalidInputError(f"X has shape {shape}; give a list of texts, or one column")
        texts = np.asarray(texts, dtype=object).ravel()
    given = _listed(texts, "X")
    if not given:
        raise InvalidInputError("X has no text; give at least one")
    for position, text in enumerate(given):
        if (problem := valid_text(text)) is not None:
            raise InvalidInputError(f"text {position} {problem}")
    return given


def _listed(column: Any, name: str) -> list[Any]:
    listed = column if isinstance(column, Iterable) else np.atleast_1d(np.asarray(column))
    return list(values(listed, name))


def _indicator(results: Results, classes: Array) -> Array:
    """Return 1 for each label of a text, int[n, n_classes]."""
    places = {str(label): i for i, label in enumerate(classes.tolist())}
    found = np.zeros((len(results), len(places)), np.int64)
    for at, labels in enumerate(results.label_lists):
        if labels is None:
            raise results[at].error or TestNUCError(
                f"text {at} ({results[at].text[:60]!r}) has no labels: the LLM's answer is "
                "outside the label set"
            )
        found[at, [places[label] for label in labels]] = 1
    return found


def _gold(y: Any, n: int) -> list[Any] | None:
    """Return the label of each text, None without one."""
    if y is None:
        return None
    if len(getattr(y, "shape", ())) == 2:
        y = column_or_1d(y, warn=True)
    labels = _listed(y, "y")
    if len(labels) != n:
        raise InvalidInputError(f"X has {n} texts and y has {len(labels)} labels")
    gold = []
    for position, label in enumerate(labels):
        if isinstance(label, float) and np.isinf(label):
            raise InvalidInputError(f"Input y contains infinity: label {position} is {label!r}")
        # converts NumPy scalars to Python objects
        gold.append(None if is_null(label) else getattr(label, "item", lambda own=label: own)())
    known = [label for label in gold if label is not None]
    if known:
        # rejects continuous targets, as other classifiers do
        check_classification_targets(known)
    return gold
