"""A head in a file: labels and trust from embeddings, without an LLM."""

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from hashlib import sha256
from itertools import pairwise
from time import perf_counter
from typing import Any, Self, TypeAlias

import numpy as np
import orjson

from testnuc import embedders
from testnuc._base.arrays import DAMAGED, Array, Float16s, Float32s, Floats, Int32s, read_archive
from testnuc._base.checks import checked_number, valid_text, values
from testnuc._base.foreign import read_as
from testnuc._base.jsonl import bytes_of, write_whole
from testnuc._base.loop_thread import Background
from testnuc.embedders.cache import EmbeddingCache, embedder_name
from testnuc.errors import EmbeddingError, InvalidInputError, with_note
from testnuc.index.memory_pool import Pool
from testnuc.protocols import Answer, Embedder, PoolText, Reply, Request
from testnuc.results import Results
from testnuc.stores.memory import MemoryStore
from testnuc.trust.calibration import SetRule, chance_of, log_odds
from testnuc.trust.certificates import Certificate
from testnuc.trust.head import LinearHead
from testnuc.types import SEPARATOR, Classification, Usage
from testnuc.voting import Labels, starts_of_rows

#: A label, whether the text has it, its share, and the chance that it applies.
_Candidate: TypeAlias = tuple[str, bool, float, float]
_VERSION = 1
#: Texts whose probabilities are in memory at a time.
_BLOCK = 4_096
#: Sums and differences of such numbers are numbers.
_LARGEST = 1e38
#: Labels that are at least this probable are shown with a text that can have several.
_SHOWN = 0.05


@dataclass(frozen=True, slots=True)
class TrainedOn:
    """What a head was trained on."""

    #: Texts, and those of them with a judged label.
    texts: int
    judged: int
    #: The LLM, as ``provider/name``.
    model: str
    #: Day, as YYYY-MM-DD.
    date: str
    #: Where the labels came from, in plain words.
    labels: str
    #: Part of the texts that the head labels as it was taught, each predicted without its fold.
    agreement: float
    #: What trust is calibrated on: "judged texts", or "agreement with the labels".
    calibrated_on: str


class Head:
    """A classifier of embeddings, from `TestNUC.distill`: labels and trust without an LLM.

    Parameters
    ----------
    labels : sequence of str
    weights : float32[dim + 1, C]
        The last row is the bias.
    curve : tuple of float
        Intercept and slope of the log odds that the label, or all labels of a text, are right, by
        those of the classifier.
    embedder : str or Embedder
        An object, or a name that testnuc can load.
    trained_on : TrainedOn
    certificate : Certificate, optional
        The trust above which nine of ten labels are right, if judged texts prove it.
    sets : SetRule, optional
        How a text gets several labels; None: each text has one, by `curve`.

    Attributes
    ----------
    least_trust : float
        The trust from which a head in front of an LLM labels a text; 0: all texts. By default that
        of the certificate, else 0.9.

    Examples
    --------
    ::

        head = testnuc.Head.load("tickets.head")
        results = head.predict(texts)
    """

    #: As a provider: a client that never asks an LLM takes a head in place of a model.
    name = "head"

    def __init__(
        self,
        labels: Sequence[str],
        weights: Float32s,
        curve: tuple[float, float],
        *,
        embedder: str | Embedder,
        trained_on: TrainedOn,
        certificate: Certificate | None = None,
        sets: SetRule | None = None,
    ) -> None:
        self.labels = tuple(labels)
        self.weights = weights
        self.curve = curve
        self.trained_on = trained_on
        self.certificate = certificate
        self.sets = sets
        proved = certificate is not None and np.isfinite(certificate.trust)
        self.least_trust = certificate.trust if certificate is not None and proved else 0.9
        self._embedder = None if isinstance(embedder, str) else embedder
        #: Whether the embedder was created here, and is closed here.
        self._own_embedder = False
        self._background: Background | None = None
        #: The name of the embedder.
        self.embedder = embedder if isinstance(embedder, str) else embedder_name(embedder)
        self.model = f"{trained_on.model} {trained_on.date}"
        #: Whether testnuc can load the embedder by its name.
        known = type(embedder).__module__.startswith("testnuc.embedders.")
        self.loadable = isinstance(embedder, str) or known

    def __repr__(self) -> str:
        on = self.trained_on
        return f"<Head {len(self.labels)} labels, {on.texts:,} texts, {on.model}, {on.date}>"

    def __str__(self) -> str:
        on = self.trained_on
        lines = [
            f"A head for {len(self.labels)} labels on embeddings of {self.embedder}.",
            f"Trained on {on.texts:,} texts ({on.judged:,} judged), {on.model}, {on.date}.",
            f"The labels were {on.labels}.",
            f"Predicted out of fold, {on.agreement:.1%} of these texts get the same label.",
            f"Trust is calibrated on {on.calibrated_on}.",
        ]
        if self.certificate is not None:
            lines.append(f"Certificate: {self.certificate}.")
        return "\n".join(lines)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_background": None}

    @cached_property
    def identity(self) -> str:
        """As a model: what tells its stored answers from those of another head."""
        rule = None if self.sets is None else asdict(self.sets) | {"of_text": self.curve}
        said = repr((self.labels, *self.curve, rule))
        return sha256(np.ascontiguousarray(self.weights).tobytes() + said.encode()).hexdigest()

    @property
    def dim(self) -> int:
        """Dimensions of the embeddings."""
        return len(self.weights) - 1

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file: arrays and JSON, without pickle."""
        proved = None
        # JSON has no infinity: a certificate of nothing is not kept
        if self.certificate is not None and self.certificate.coverage:
            proved = asdict(self.certificate)
            # a head is certified for all labels
            del proved["label"]
        header = {
            "format": "testnuc head",
            "version": _VERSION,
            "labels": self.labels,
            "embedder": self.embedder,
            "loadable": self.loadable,
            "curve": self.curve,
            "trained_on": asdict(self.trained_on),
            "sets": None if self.sets is None else asdict(self.sets),
            "certificate": proved,
        }
        buffer, encoded = io.BytesIO(), np.frombuffer(orjson.dumps(header), np.uint8)
        np.savez(buffer, weights=self.weights.astype("<f4"), header=encoded)
        write_whole(path, [buffer.getvalue()])

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        embedder: str | Embedder | None = None,
        *,
        least_trust: float | None = None,
    ) -> Self:
        """Read a file that `TestNUC.distill` or `save` wrote.

        Parameters
        ----------
        path : str or path
        embedder : str or Embedder, optional
            Needed where the head was trained with an embedder object of your own, a model in a
            folder, or one that is neither of OpenAI nor of sentence-transformers.
        least_trust : float, optional
            The trust from which it labels in front of an LLM, 0 to 1; see `Head`.

        Raises
        ------
        InvalidInputError
            The file cannot be read, is damaged, or belongs to another embedder; or `least_trust` is
            not between 0 and 1.
        """
        if least_trust is not None:
            checked_number("least_trust", least_trust, 0, 1)
        try:
            raw, stored = read_archive(bytes_of(path), "header", "weights")
            header: dict[str, Any] = orjson.loads(raw.tobytes())
            if header["format"] != "testnuc head" or header["version"] != _VERSION:
                raise InvalidInputError(  # noqa: TRY301
                    f"{path} is not a head that this version of testnuc can read; upgrade testnuc, "
                    "or distill again"
                )
            made = cls._of(header, stored, embedder)
        except InvalidInputError:
            raise
        except DAMAGED as exc:
            # what numpy advises about the file helps no one
            raise InvalidInputError(f"{path} is damaged, or is not a head from `distill`") from exc
        if least_trust is not None:
            made.least_trust = least_trust
        return made

    @classmethod
    def _of(cls, header: dict[str, Any], stored: Array, embedder: str | Embedder | None) -> Self:
        """Return the head in a file; raises one of `DAMAGED`."""
        labels, name = header["labels"], header["embedder"]
        given, sets = header["certificate"], header.get("sets")
        if stored.dtype.kind != "f":
            raise ValueError("the weights are no floating-point numbers")
        with np.errstate(all="ignore"):
            weights = stored.astype(np.float32)
        start, slope = map(float, header["curve"])
        if (
            not all(isinstance(one, str) for one in [name, *labels])
            or len(set(labels)) != len(labels)
            or (weights.ndim, weights.shape[-1]) != (2, len(labels))
            or not np.max([*np.abs(weights).sum(axis=0, dtype=float), abs(start), abs(slope)])
            < _LARGEST
        ):
            raise ValueError("the weights do not fit the labels")
        made = cls(
            labels,
            weights,
            (start, slope),
            embedder=name,
            trained_on=read_as(TrainedOn, header["trained_on"]),
            certificate=None if given is None else Certificate.of(given),
            sets=None if sets is None else read_as(SetRule, sets),
        )
        # else whoever made the file would say what is loaded here
        made.loadable = bool(header["loadable"]) and embedders.is_known(name)
        # what is wrong with a value of the header shows when it is used
        text = np.zeros((1, made.dim), np.float16)
        rated = made.labels_of(text).trust
        if not str(made) or not np.isfinite([made.least_trust, *rated]).all():
            raise ValueError("trust is not a number")
        if embedder is not None:
            made._embedder = made.checked_embedder(embedders.resolve(embedder))
            made._own_embedder = isinstance(embedder, str)
        return made

    def checked_embedder(self, embedder: Embedder) -> Embedder:
        """Return the embedder if it is the one that the head was trained with."""
        name = embedder_name(embedder)
        if name != self.embedder:
            raise InvalidInputError(
                f"the head was trained on embeddings of {self.embedder!r}, and the embedder is "
                f"{name!r}; use {self.embedder!r}, or distill a head with {name!r}"
            )
        return embedder

    def for_labels(self, labels: Sequence[str]) -> Int32s:
        """Return the position of each of the head's labels in another order of the same labels.

        Raises
        ------
        InvalidInputError
            The label sets differ.
        """
        if set(labels) != set(self.labels):
            ours, theirs = set(self.labels) - set(labels), set(labels) - set(self.labels)
            only = [f"{sorted(ours)[:3]} only in the head"] if ours else []
            only += [f"{sorted(theirs)[:3]} only in the client"] if theirs else []
            raise InvalidInputError(
                f"the head has another label set: {', '.join(only)}; distill one for these labels"
            )
        return np.array([labels.index(name) for name in self.labels], dtype=np.int32)

    def labels_of(self, vectors: Floats) -> Labels:
        """Label embeddings, with one label or several each.

        Parameters
        ----------
        vectors : float[n, dim]
            Unit norm.

        Returns
        -------
        Labels
            Of the head's labels by position, with the trust of each text.
        """
        if vectors.ndim != 2 or vectors.shape[1] != self.dim:
            raise InvalidInputError(
                f"the vectors have shape {vectors.shape}; the head takes [n, {self.dim}]"
            )
        label = self._one if self.sets is None else self._several
        starts = range(0, max(len(vectors), 1), _BLOCK)
        return Labels.stacked([label(vectors[at : at + _BLOCK]) for at in starts])

    def _one(self, vectors: Floats) -> Labels:
        probabilities = self._linear.probabilities(vectors)
        label = probabilities.argmax(axis=1).astype(np.int32)
        odds = log_odds(probabilities.max(axis=1))
        return Labels.single(label, trust=chance_of(odds, self.curve))

    def _several(self, vectors: Floats) -> Labels:
        assert self.sets is not None
        probabilities = self._linear.probabilities(vectors)
        given, chances, odds = self.sets.apply(probabilities)
        rows, label = np.nonzero(given | (probabilities >= _SHOWN))
        return Labels(
            starts_of_rows(rows, len(vectors)),
            label.astype(np.int32),
            probabilities[rows, label],
            np.ones(len(vectors), np.bool_),
            given[rows, label],
            chances[rows, label].astype(np.float64),
            chance_of(odds, self.curve).astype(np.float32).astype(np.float64),
        ).by_share()

    def probabilities(self, texts: Sequence[str]) -> Float32s:
        """Return float32[n, C], uncalibrated; rows sum to 1, but for several labels."""
        vectors, errors = self._embedded(list(values(texts)))
        for at, error in errors.items():
            raise with_note(error, f"text {at} has no embedding")
        return self._linear.probabilities(vectors)

    @property
    def _linear(self) -> LinearHead:
        return LinearHead(self.weights, several=self.sets is not None)

    def predict(self, texts: Iterable[str]) -> Results:
        """Label texts; makes no LLM call.

        Returns
        -------
        Results
            One `Classification` for each text, with `source` "head". One that the embedder rejects
            has an `error` instead of a label.

        Raises
        ------
        InvalidInputError
            A text is empty or not a string, or the embedder is not known.
        """
        given, started = list(values(texts)), perf_counter()
        for at, text in enumerate(given):
            if (problem := valid_text(text)) is not None:
                raise InvalidInputError(f"text {at} {problem}")
        vectors, errors = self._embedded(given)
        rows = []
        for at, (text, (trust, said)) in enumerate(zip(given, self._said(vectors), strict=True)):
            error = errors.get(at)
            candidates = [] if error is not None else said
            has = {name: chance for name, is_given, _, chance in candidates if is_given}
            made = Classification(at, text, None, error=error)
            if error is None:
                made = replace(made, label=SEPARATOR.join(has), trust=trust, source="head")
            if self.sets is not None:
                shares = {name: share for name, _, share, _ in candidates}
                made = replace(made, shares=shares, trusts=has)
            rows.append(made)
        seconds, model = perf_counter() - started, f"head of {self.trained_on.model}"
        return Results(rows, Usage(), seconds, model=model, choices=self.labels)

    def _said(self, vectors: Float16s) -> Iterator[tuple[float, list[_Candidate]]]:
        """Yield the trust of each text, and the labels that anything speaks for."""
        labels = self.labels_of(vectors)
        names = [self.labels[one] for one in labels.label.tolist()]
        given, share = labels.given.tolist(), labels.share.tolist()
        candidates = list(zip(names, given, share, labels.chance.tolist(), strict=True))
        ends = pairwise(labels.starts.tolist())
        for trust, (first, end) in zip(labels.trust.tolist(), ends, strict=True):
            yield trust, candidates[first:end]

    async def answer(self, request: Request) -> Reply:
        """Label texts as a provider, with trust as the confidence."""
        vectors, errors = await self._vectors(request.texts)
        answers: list[Any] = []
        for at, (_, candidates) in enumerate(self._said(vectors)):
            said = tuple((name, chance) for name, given, _, chance in candidates if given)
            made = Answer(*said[0]) if self.sets is None else Answer("", None, said)
            answers.append(errors.get(at, made))
        return Reply(tuple(answers))

    def _loaded(self) -> Embedder:
        if self._embedder is None:
            if not self.loadable:
                raise InvalidInputError(
                    f"the head was trained with an embedder of your own, {self.embedder!r}, which "
                    "is not loaded because a file names it; give it, as Head.load(path, "
                    "embedder=..)"
                )
            self._embedder, self._own_embedder = embedders.resolve(self.embedder), True
        return self._embedder

    def _embedded(self, texts: list[str]) -> tuple[Float16s, dict[int, Exception]]:
        embedder = self._loaded()
        if self._background is None:
            # one loop for all calls: an embedder may keep connections
            self._background = Background("testnuc-head")
            # a head has no `close`: its thread and its connections end with it, or at exit
            own = embedder if self._own_embedder else None
            self._background.end_with(self, partial(_closed, own))
        return self._background.run(self._vectors(texts))

    async def _vectors(self, texts: Sequence[str]) -> tuple[Float16s, dict[int, Exception]]:
        """Return the vector of each text, and the errors of those that the embedder rejects."""
        cache = EmbeddingCache(self._loaded(), MemoryStore(), Pool())
        vectors, errors = await cache.each([PoolText.of(text) for text in texts])
        if len(errors) == len(texts):
            if errors and all(isinstance(error, EmbeddingError) for error in errors.values()):
                # not one text is at fault, but the embedder
                raise errors[0]
            return np.zeros((len(texts), self.dim), np.float16), errors
        if vectors.shape[1] != self.dim:
            raise InvalidInputError(
                f"the embedder {self.embedder!r} returns {vectors.shape[1]} dimensions; the head "
                f"takes {self.dim}"
            )
        return vectors, errors


async def _closed(embedder: Any) -> None:
    close = getattr(embedder, "close", None)
    if close is not None:
        await close()
