"""Labels from unlabeled texts: clusters of texts, which an LLM names, merges and tries out."""

import asyncio
import tomllib
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from importlib.resources import files
from math import isqrt
from typing import Any

import numpy as np
import orjson

from testnuc._base.arrays import Float32s
from testnuc._base.checks import checked_whole, hash_text, needing
from testnuc._base.display import Brief
from testnuc._engine.components import Components, Internals
from testnuc._engine.inputs import checked_texts, distinct
from testnuc.errors import (
    AuthenticationError,
    BadRequestError,
    InvalidInputError,
    ProviderError,
    ReplyError,
    UnknownModelError,
    printable,
)
from testnuc.label_matching import fold_case, fold_punctuation
from testnuc.label_tree import path_of
from testnuc.labels import LabelSet
from testnuc.limits.budget import BYTES_PER_TOKEN, PICO
from testnuc.prompts import writing
from testnuc.protocols import (
    Answer,
    Provider,
    Request,
    StoredPrediction,
    Task,
    TokenUsage,
    WireProvider,
)
from testnuc.scoring import wilson
from testnuc.transport.calls import MAY_SEND
from testnuc.types import LEVELS, Prediction, Usage

#: The model that names clusters by their words, without an LLM.
KEYWORDS = "local/keywords"
#: The command line draws so many texts of more.
MOST_TEXTS = 20_000
#: Fewest texts; texts for each cluster, as many as name it, if the number of labels is not given.
_FEWEST, _PER_CLUSTER, _MOST_CLUSTERS = 20, 15, 300
#: Texts times clusters up to which first centers are chosen by distance.
_BY_DISTANCE = 1_000_000
#: Clusters for each label.
_FINENESS = 3
#: Central and border texts that name a cluster, their characters, and central texts that are
#: labeled to try out the labels; random ones, which say how many texts fit none; these in a call.
_CENTRAL, _BORDER, _CHARACTERS, _TRIED, _RANDOM, _PACKED = 10, 5, 300, 2, 100, 10
#: Rejected texts, or unreadable answers in a row, that end a run: fewer may be due to the texts.
_MOST_REJECTED = 20
#: Similarity of two labels, by names and texts, from which the LLM is asked whether they are one.
_ALIKE = 0.6
#: For estimates: a label with its description, tokens of a prompt, and of an answer.
_LABEL_BYTES, _OVERHEAD, _OUTPUT = 90, 300, 40
_NONE = "none of these"
#: Words of a name without an LLM, and of its description; examples of a label.
_WORDS, _DESCRIBING, _EXAMPLES, _LONGEST = 3, 9, 3, 80
_PROMPTS = tomllib.loads((files("testnuc.prompts") / "discovery.toml").read_text("utf-8"))
_NAMING, _FORM, _REFINING, _TOPIC, _SAME = (
    _PROMPTS[name] for name in ("naming", "form", "refining", "topic", "same")
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Discovery(Brief):
    """Labels that were found in texts. ``print`` it."""

    #: Label -> description; given labels first, then those of most texts.
    labels: Mapping[str, str]
    #: Label -> some of its most central texts.
    examples: Mapping[str, tuple[str, ...]]
    #: Label -> number of texts in its clusters.
    sizes: Mapping[str, int]
    #: Labels that were not given.
    new: tuple[str, ...]
    usage: Usage
    #: Names that no text got on trial.
    dropped: tuple[str, ...] = ()
    #: Number of texts drawn at random, and those of them that fit no label.
    drawn: int = 0
    misfits: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{len(self.labels):,} labels, {len(self.new):,} new, {len(self.dropped)} dropped"]
        for label, description in self.labels.items():
            said = f": {description}" if description else ""
            lines.append(f"  {label}{said} ({self.sizes.get(label, 0):,} texts)")
        if self.drawn:
            share = wilson(len(self.misfits), self.drawn)
            lines.append(
                f"by the LLM, {share.value:.0%} of all texts fit none ({share.low:.0%} to "
                f"{share.high:.0%}): {len(self.misfits)} of {self.drawn} drawn at random"
            )
            lines += [f"  {' '.join(text.split())[:90]}" for text in self.misfits[:_EXAMPLES]]
        return "\n".join(lines)


async def discover(
    texts: Iterable[str],
    model: str | Provider | WireProvider = "openai/gpt-4o-mini",
    *,
    labels: Sequence[str] | Mapping[str, str] | None = None,
    n: int | None = None,
    tree: bool = False,
    instructions: str | None = None,
    seed: int = 0,
    **client: Any,
) -> Discovery:
    """Find labels for texts that have none.

    Texts are embedded and clustered more finely than needed. The LLM names each cluster by its
    central texts and those at its border, says which similar labels are the same, refines the whole
    list once, and labels some texts: labels that none of these has are dropped. Answers are stored,
    so that an interrupted run resumes.

    Parameters
    ----------
    texts : iterable of str
    model : str or provider
        As for `TestNUC`; ``"local/keywords"`` names clusters by their words, without an LLM.
    labels : sequence of str or mapping, optional
        Labels that are kept; others are added.
    n : int, optional
        About how many labels there are. Default: by the number of texts.
    tree : bool
        Put new labels in a tree of two levels, ``"topic > label"``: see `LabelTree`.
    instructions : str, optional
        What the texts are, and what labels are for.
    seed : int
        Of clusters and of the texts drawn.
    **client
        ``embedder``, ``store``, ``limits``, ``base_url``, .. as for `TestNUC`.

    Raises
    ------
    InvalidInputError
        There are too few texts, or an argument is invalid.
    MissingDependencyError
        scikit-learn is not installed.
    ProviderError
        A call failed; the answers before are stored. A text that is rejected, as by a content
        filter, is skipped; twenty of them end the run.
    """
    checked_whole("seed", seed, least=0, most=2**32 - 1)
    entries, _ = await distinct(await checked_texts(texts))
    clusters = _clusters_of(len(entries), n, model)
    given: dict[str, str] = {}
    if labels:
        kept = LabelSet(labels, _NONE)
        given = {name: kept.descriptions.get(name, "") for name in kept.names if name != _NONE}
    parts = _parts(model, client)
    try:
        await parts.ready()
        plain = [entry.text for entry in entries]
        vectors = await parts.embedding.embed(plain)
        found = await asyncio.to_thread(_clustered, plain, vectors, clusters, seed)
        run = _Run(parts, found, instructions, given, tree, dict(given))
        if model == KEYWORDS:
            return run.discovery(await run.in_tree(run.named(_keywords(found)), words=True))
        return await run.discovered(np.random.default_rng(seed))
    finally:
        await parts.aclose()


def expected_cost(
    texts: Sequence[str], model: str, n: int | None, *, tree: bool = False, **client: Any
) -> tuple[int, int, float | None]:
    """Return the most calls for distinct texts, about how many input tokens, and US dollars."""
    clusters = _clusters_of(len(texts), n, model)
    if model == KEYWORDS:
        return 0, 0, 0.0
    text = sum(len(text.encode()[:_CHARACTERS]) for text in texts) / len(texts)
    # the list is tried out, refined, tried out again, and the last time with random texts
    tried, listed = _TRIED * clusters, clusters / _FINENESS * _LABEL_BYTES
    several = [tried, clusters, tried, tried + _RANDOM]
    packed, topics = sum(-(-n // _PACKED) for n in several), isqrt(clusters) if tree else 0
    size = (2 * clusters * (_CENTRAL + _BORDER) + sum(several)) * text
    size += (packed + bool(topics)) * listed
    calls = 2 * clusters + packed + topics
    answers = calls + sum(several) - packed
    usage = TokenUsage(int(size / BYTES_PER_TOKEN) + _OVERHEAD * calls, _OUTPUT * answers)
    price = _parts(model, client).prices[0]
    pico = None if price is None else price.charge(usage)
    return calls, usage.input_tokens, None if pico is None else pico / PICO


def _parts(model: str | Provider | WireProvider, client: Mapping[str, Any]) -> Components:
    """Return the parts of a client, whose own labels are not used."""
    name = "local/zero-shot" if model == KEYWORDS else model
    return Components(Internals(kernels=False), list(_SAME), name, **client)


def _clusters_of(texts: int, n: int | None, model: object) -> int:
    """Return the number of clusters of so many texts, with about `n` labels."""
    if texts < _FEWEST:
        raise InvalidInputError(
            f"different texts: {texts}; give {_FEWEST} at least, or write the labels by hand"
        )
    if model == "local/zero-shot":
        raise InvalidInputError(
            f"model {model!r} chooses among labels and names none; give an LLM, or {KEYWORDS!r}"
        )
    if n is None:
        fine = min(max(texts // _PER_CLUSTER, 2 * _FINENESS), _MOST_CLUSTERS)
    else:
        fine = _FINENESS * checked_whole("n", n, least=2)
    # names by words cannot be merged
    return min(fine // _FINENESS if model == KEYWORDS else fine, texts // 2)


@dataclass(frozen=True, slots=True, eq=False)
class _Clusters:
    """Clusters of texts, by unit vectors."""

    texts: Sequence[str]
    centers: Float32s
    #: Rows of the texts of each cluster: most central first, and those at its border first.
    members: Sequence[Sequence[int]]
    borders: Sequence[Sequence[int]]

    def first(self, cluster: int, number: int) -> list[str]:
        return [self.texts[row] for row in self.members[cluster][:number]]


def _clustered(texts: Sequence[str], wide: Float32s, clusters: int, seed: int) -> _Clusters:
    with needing("discover needs scikit-learn: pip install 'testnuc[sklearn]'"):
        from sklearn.cluster import KMeans
    # the choice by distance would take most of the time, and many centers are as good at random
    init = "k-means++" if clusters * len(wide) <= _BY_DISTANCE else "random"
    means = KMeans(clusters, init=init, n_init=1, max_iter=20, random_state=seed).fit(wide)
    centers = means.cluster_centers_
    centers /= np.maximum(np.linalg.norm(centers, axis=1, keepdims=True), 1e-9)
    similar, rows = wide @ centers.T, np.arange(len(wide))
    place = similar.argmax(axis=1)
    own = similar[rows, place]
    similar[rows, place] = -np.inf
    # how much nearer a text is to its center than to the next
    margin = own - similar.max(axis=1)
    kept = np.unique(place)
    groups = [np.flatnonzero(place == cluster) for cluster in kept]
    members = [group[np.argsort(-own[group], kind="stable")].tolist() for group in groups]
    borders = [group[np.argsort(margin[group], kind="stable")].tolist() for group in groups]
    return _Clusters(texts, centers[kept], members, borders)


def _keywords(found: _Clusters) -> list[str]:
    """Return the words that set each cluster apart, as a name and a description: its tf-idf."""
    from sklearn.feature_extraction.text import CountVectorizer

    joined = [" ".join(found.texts[row] for row in members) for members in found.members]
    letters = r"\b[^\W\d_]{2,}\b"
    counter = CountVectorizer(stop_words="english", token_pattern=letters)
    try:
        counts = counter.fit_transform(joined).toarray().astype(np.float64)
    except ValueError:
        raise InvalidInputError("the texts have no words; give an LLM as the model") from None
    words = counter.get_feature_names_out()
    frequency = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    weights = frequency * np.log1p(counts.sum() / len(counts) / counts.sum(axis=0))
    ranked = [words[np.argsort(-row, kind="stable")[:_DESCRIBING]].tolist() for row in weights]
    return [f"{' '.join(best[:_WORDS])}: texts with {', '.join(best)}" for best in ranked]


@dataclass(slots=True, eq=False)
class _Run:
    """One discovery: its calls, and what they say of clusters."""

    parts: Components
    found: _Clusters
    instructions: str | None
    given: Mapping[str, str]
    tree: bool
    #: Every name so far, with its description.
    described: dict[str, str]
    answered: bool = False
    rejected: list[ProviderError] = field(default_factory=list)
    #: Of answers about one text, the last ones in a row that could not be read.
    unreadable: list[ReplyError] = field(default_factory=list)

    async def discovered(self, random: np.random.Generator) -> Discovery:
        """Name clusters, merge names, and drop those that no text has."""
        found = self.found
        names = await self._merged(self.named(await self._asked_names()))
        if not any(names):
            raise InvalidInputError("no cluster has a name: no answer of the LLM was readable")
        tried = [text for c in range(len(names)) for text in found.first(c, _TRIED)]
        names = await self._refined(names, tried)
        drawn = [found.texts[row] for row in random.permutation(len(found.texts))[:_RANDOM]]
        answers = await self._tried(names, [*drawn, *tried])
        used = {*answers, *self.given}
        fits = zip(drawn, answers, strict=False)
        return replace(
            self.discovery(await self.in_tree([name if name in used else None for name in names])),
            dropped=tuple(name for name in self._listed(names) if name not in used),
            drawn=len(drawn),
            misfits=tuple(text for text, label in fits if label == _NONE),
        )

    def discovery(self, names: Sequence[str | None]) -> Discovery:
        """Return the labels by the name of each cluster."""
        sizes, examples = defaultdict[str, int](int), defaultdict[str, list[str]](list)
        for cluster, name in enumerate(names):
            if name is not None:
                sizes[name] += len(self.found.members[cluster])
                examples[name] += self.found.first(cluster, _EXAMPLES)
        new = sorted(
            sizes.keys() - self.given.keys(),
            key=lambda name: (path_of(name)[:-1], -sizes[name], name),
        )
        return Discovery(
            {name: self.described[name] for name in [*self.given, *new]},
            {name: tuple(texts[:_EXAMPLES]) for name, texts in examples.items()},
            dict(sizes),
            tuple(new),
            self.parts.meter.since(),
        )

    async def in_tree(self, names: list[str | None], *, words: bool = False) -> list[str | None]:
        """Return new names as paths, below topics of similar names, if a tree is wanted."""
        new = [name for name in dict.fromkeys(names) if name and name not in self.given]
        if not self.tree or isqrt(len(new)) < 2:
            return names
        said = [self._said(name) for name in new]
        vectors = await self.parts.embedding.embed(said)
        found = await asyncio.to_thread(_clustered, said, vectors, isqrt(len(new)), 0)
        lists = [_lines([said[at] for at in members]) for members in found.members]
        asked = _keywords(found) if words else await self._asked(f"{_TOPIC}\n\n{_FORM}", (), lists)
        paths = dict[str | None, str | None]()
        for topic, members in zip(self.named(asked), found.members, strict=True):
            for name in (new[at] for at in members):
                path = LEVELS.join(filter(None, (topic, name)))
                paths[name], self.described[path] = path, self.described[name]
        return [paths.get(name, name) for name in names]

    def _said(self, name: str) -> str:
        return f"{name}: {self.described[name]}".removesuffix(": ")

    async def _asked_names(self) -> list[str | None]:
        found, lines = self.found, [_NAMING]
        if self.given:
            known = ", ".join(writing.text_json(name).decode() for name in self.given)
            lines.append(f"If one of these labels fits, give it as the name: [{known}]")
        groups = [
            f"Central texts:\n{_lines(found.first(c, _CENTRAL))}\n\nTexts at the border:\n"
            + _lines([found.texts[row] for row in border[:_BORDER]])
            for c, border in enumerate(found.borders)
        ]
        return await self._asked(self._naming(*lines), (), groups)

    def _naming(self, *lines: str) -> str:
        guide = f"Guidelines:\n{self.instructions.strip()}" if self.instructions else None
        return "\n\n".join(filter(None, [*lines, guide, _FORM]))

    def named(self, answers: Iterable[str | None]) -> list[str | None]:
        """Return the name of each cluster; spellings of one name are one."""
        known_as: dict[str, str | None] = {"": None, _form(_NONE): None}
        known_as |= {_form(name): name for name in self.described}
        names = []
        for answer in answers:
            whole = printable(answer or "")
            name, _, description = whole.partition(": ")
            # a label with this sign is in a tree
            name = name.replace(">", "-").strip(" :\"'")[:_LONGEST].strip()
            form = _form(whole) if _form(whole) in known_as else _form(name)
            known = known_as.setdefault(form, name)
            names.append(known)
            if known is not None:
                self.described.setdefault(known, description)
        return names

    async def _merged(self, names: Sequence[str | None]) -> list[str | None]:
        """Return the name of each cluster, with one name for those that mean the same."""
        found, clusters = self.found, defaultdict[str, list[int]](list)
        for cluster, name in enumerate(names):
            if name is not None:
                clusters[name].append(cluster)
        known = list(clusters)
        said = [self._said(name) for name in known]
        words = await self.parts.embedding.embed(said)
        centers = np.array([found.centers[clusters[name]].mean(axis=0) for name in known])
        alike = (words @ words.T + centers @ centers.T) / 2 if known else np.empty((0, 0))
        pairs = np.argwhere(np.triu(alike >= _ALIKE, 1))
        pairs = pairs[np.argsort(-alike[pairs[:, 0], pairs[:, 1]], kind="stable")][: len(known)]
        shown = [
            f"Label {said[at]}\n{_lines(found.first(clusters[known[at]][0], _BORDER))}"
            for at in range(len(known))
        ]
        both = [f"{shown[first]}\n\n{shown[second]}" for first, second in pairs.tolist()]
        answers = await self._labeled(LabelSet(_SAME), both)
        one = {name: name for name in known}
        for pair, answer in zip(pairs.tolist(), answers, strict=True):
            # the one that was given stays, or that of more clusters
            both_of = (one[known[at]] for at in pair)
            kept, other = sorted(both_of, key=lambda n: (n not in self.given, -len(clusters[n])))
            if answer == "same" and other not in self.given:
                one = {name: kept if to == other else to for name, to in one.items()}
        return [None if name is None else one[name] for name in names]

    async def _refined(self, names: Sequence[str | None], tried: Sequence[str]) -> list[str | None]:
        """Return the names after the LLM saw the list and what fits it.

        A label stays as it was if a text that had it would fit none.
        """
        found, texts_of = self.found, defaultdict[str, list[str]](list)
        before = await self._tried(names, tried)
        for text, label in zip(tried, before, strict=True):
            texts_of[label].append(text)
        misfits = texts_of.pop(_NONE, [])
        # labels, and clusters whose texts fit none
        shown: dict[str | int | None, str] = {
            name: f"Label {self._said(name)}\n{_lines(texts[:_BORDER])}"
            for name, texts in texts_of.items()
            if name not in self.given
        }
        for cluster in range(len(names)):
            if set(misfits).issuperset(found.first(cluster, _TRIED)):
                shown[cluster] = f"Central texts:\n{_lines(found.first(cluster, _CENTRAL))}"
        system = self._naming(_REFINING, _lines([*map(self._said, self._listed(names))]))
        answers = await self._asked(system, (), list(shown.values()), _PACKED)
        better = dict(zip(shown, self.named(answers), strict=True))
        refined = [better.get(at) or better.get(name) or name for at, name in enumerate(names)]
        after = dict(zip(tried, await self._tried(refined, tried), strict=True))
        kept = {name for name, fit in texts_of.items() if _NONE in map(after.get, fit)}
        return [old if old in kept else new for old, new in zip(names, refined, strict=True)]

    def _listed(self, names: Iterable[str | None]) -> list[str]:
        """Return the labels: those that were given, and these."""
        return list(dict.fromkeys([*self.given, *filter(None, names)]))

    async def _tried(self, names: Sequence[str | None], texts: Sequence[str]) -> list[str]:
        """Return the label of each text by this list, or none of these."""
        labels = LabelSet({name: self.described[name] for name in self._listed(names)}, _NONE)
        return [label or _NONE for label in await self._labeled(labels, texts, _PACKED)]

    async def _labeled(
        self, labels: LabelSet, texts: Sequence[str], packed: int = 1
    ) -> list[str | None]:
        """Return the LLM's label of each text; None: it is none of these labels."""
        system = writing.system_prompt(
            labels, instructions=self.instructions, texts_per_call=packed
        )
        answers = await self._asked(system, labels.names, texts, packed)
        places = [None if answer is None else labels.match(answer) for answer in answers]
        return [None if place is None else labels.names[place] for place in places]

    async def _asked(
        self, system: str, names: tuple[str, ...], texts: Sequence[str], packed: int = 1
    ) -> list[str | None]:
        """Return the answer to each text, from the store if it is there; None: unreadable."""
        provider, store = self.parts.predictor.provider, self.parts.store
        task = replace(
            self.parts.predictor.task,
            system=system, labels=names, confidence="verbalized", score_labels=False,
        )  # fmt: skip
        facts = provider.name, provider.model, provider.identity, system, names
        sent = task.temperature, task.top_p, task.options, task.reasoning_effort
        scope = blake2b(orjson.dumps(["discover", *facts, *sent]), digest_size=16).digest()
        keys = [blake2b(scope + hash_text(text), digest_size=16).digest() for text in texts]
        stored = dict(zip(keys, await store.get_predictions(keys), strict=True))

        of_keys = dict(zip(keys, texts, strict=True))
        missing = [pair for pair in of_keys.items() if stored[pair[0]] is None]
        before = len(self.rejected)

        async def ask(*part: tuple[bytes, str]) -> None:
            answers = await self._answers(task, tuple(text for _, text in part))
            for (key, text), answer in zip(part, answers, strict=True):
                if answer is not None:
                    made = Prediction(answer.label, answer.confidence)
                    row = StoredPrediction(key, scope, hash_text(text), 0, made)
                    (stored[key],) = await store.put_predictions([row])

        while missing and not self.answered:
            await ask(missing.pop())
        parts = [missing[at : at + packed] for at in range(0, len(missing), packed)]
        await self._together([ask(*part) for part in parts])
        if len(self.rejected) > before and not self.answered and not any(stored.values()):
            raise self.rejected[before]
        return [None if (answer := stored[key]) is None else answer.label for key in keys]

    async def _together(self, calls: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Make calls at once; those that are sent when it is cancelled are completed, as paid."""
        going = True
        token = MAY_SEND.set(lambda: going)
        tasks = [asyncio.create_task(call) for call in calls]
        MAY_SEND.reset(token)
        try:
            if tasks:
                await asyncio.wait(tasks)
        except asyncio.CancelledError:
            going = False
            await asyncio.wait(tasks, timeout=self.parts.pipeline.lanes["live"].drain)
            raise
        finally:
            for task in tasks:
                task.cancel()
        for error in [task.exception() for task in tasks]:
            if error is not None:
                raise error

    async def _answers(self, task: Task, texts: tuple[str, ...]) -> list[Answer | None]:
        """Ask about texts in one call; None: the answer is unreadable, or the text is rejected."""
        answers: Sequence[Answer | ProviderError]
        if len(self.unreadable) >= _MOST_REJECTED:
            # each is paid for
            raise ReplyError(f"{len(self.unreadable)} answers in a row: {self.unreadable[-1]}")
        try:
            request = Request(task, writing.user_prompt(texts), texts)
            answers = (await self.parts.predictor.call(request)).answers
        except (AuthenticationError, BadRequestError, ReplyError, UnknownModelError) as error:
            answers = [error] * len(texts)
        found: list[Answer | None] = []
        for text, answer in zip(texts, answers, strict=True):
            if not isinstance(answer, Answer) and len(texts) > 1:
                # one of them may be at fault
                found += await self._answers(task, (text,))
                continue
            if isinstance(answer, Answer):
                self.answered = True
                self.unreadable.clear()
            elif isinstance(answer, ReplyError):
                self.answered = True
                self.unreadable.append(answer)
            else:
                self.rejected.append(answer)
                # because of this text, if others are answered; a wrong key fails once
                known = self.answered or isinstance(answer, BadRequestError)
                if not known or len(self.rejected) >= _MOST_REJECTED:
                    raise answer
            found.append(answer if isinstance(answer, Answer) else None)
        return found


def _lines(texts: Sequence[str]) -> str:
    return "\n".join(f"- {' '.join(text.split())[:_CHARACTERS]}" for text in texts)


def _form(name: str) -> str:
    """Return what two spellings of one name have in common."""
    return fold_punctuation(fold_case(name.replace("_", " ")))
