"""Shortlists: of many labels, the few that the prompt of one text shows; and what they cost."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import numpy as np

from testnuc._base.arrays import Float16s, Float32s, Int32s, Int64s
from testnuc._dispatch.predictor import FULL_LABELS, Predictor
from testnuc._dispatch.scheduler import Scheduler
from testnuc._engine.batch import FATAL_ERRORS, TextBatch
from testnuc._engine.rows import nearest
from testnuc._engine.run import Run
from testnuc.embedders.cache import EmbeddingCache
from testnuc.errors import InvalidInputError
from testnuc.label_tree import LabelTree
from testnuc.labels import NONE_OF_THESE, LabelSet
from testnuc.protocols import Method, PoolText
from testnuc.scoring import wilson
from testnuc.trust.argmax import Argmax
from testnuc.trust.head import folds_of, predict_folds
from testnuc.trust.model import HeadModel
from testnuc.types import Prediction

#: "auto" shows all of so many labels; of more, a list of the second number.
AUTOMATIC_ABOVE, _AUTOMATIC = 200, 50
#: Texts whose lists are computed between two turns of the event loop.
_BLOCK = 1_024
#: Labels that are compared exactly, besides those of a list.
_SPARE = 16
#: Similarities of texts and labels that are in memory at a time.
_CELLS = 4_000_000
_NO_TREE = (
    "shortlist is 'levels', but the labels are not in a tree; name them as 'refund > late', or "
    "leave shortlist out"
)
_PACKED = (
    "shortlist is 'levels', which asks about each text alone; leave texts_per_call or shortlist out"
)
#: A label in no list is reported if chance would put it in at least so many.
_EXPECTED = 10
_NAMED = 3
#: The part of the texts that is also asked about with all labels, the fewest and the most; of fewer
#: than the last number, none is.
_COMPARED, _LEAST, _MOST, _FROM = 0.02, 20, 200, 100
#: A list is called harmful where it lacks the label for at least this part of the texts.
_HARM = 0.02


def checked_shortlist(
    size: int | str | None,
    labels: LabelSet,
    method: Method,
    texts_per_call: int,
    predictor_of: Callable[[int | str], Predictor],
    *,
    over_http: bool,
) -> tuple[int | Literal["levels"] | None, str]:
    """Return the length of shortlists, and a note; None: every prompt shows all labels.

    `predictor_of` returns the predictor of a length of shortlists, or of "levels"; `over_http`:
    labels in a prompt cost tokens.
    """
    if size is None:
        return None, ""
    n = len(labels.names) - (labels.none_label is not None)
    problem = _problem(labels, method)
    if size == "auto":
        many = n > AUTOMATIC_ABOVE and over_http and not labels.multilabel
        tree = None if texts_per_call > 1 else labels.tree
        return _automatic(n, problem, tree, predictor_of) if many else (None, "")
    if size == "levels":
        problem = problem or _NO_TREE * (labels.tree is None) or _PACKED * (texts_per_call > 1)
    if problem:
        raise InvalidInputError(problem)
    if not isinstance(size, int):
        return "levels", ""
    return (size, "") if size < n else (None, f"shortlist={size} is off: there are only {n} labels")


def _automatic(
    n: int, problem: str, tree: LabelTree | None, predictor_of: Callable[[int | str], Predictor]
) -> tuple[int | Literal["levels"] | None, str]:
    if problem:
        return None, f"every prompt shows all {n:,} labels: {problem}"
    if tree is not None:
        one, levels = predictor_of(_AUTOMATIC), predictor_of("levels")
        if levels.prompt_bytes < one.prompt_bytes:
            return "levels", (
                f"{n:,} labels are many: they are asked level by level, in shorter prompts than "
                f"lists of {_AUTOMATIC} take, and all at once if the LLM chooses none (shortlist)"
            )
    return _AUTOMATIC, (
        f"{n:,} labels are many: a prompt shows the {_AUTOMATIC} that are likely for its text, and "
        "another one all of them if the LLM chooses none (shortlist)"
    )


def _problem(labels: LabelSet, method: Method) -> str:
    """Return why the labels of a prompt cannot be chosen for each text; "" if they can."""
    if method.context:
        return (
            f"method is {method!r}, whose few-shot examples shortlist does not support; leave "
            "method or shortlist out"
        )
    clash = labels.match(NONE_OF_THESE) if labels.none_label is None else None
    if clash is not None:
        name = labels.names[clash]
        return (
            f"the label {name!r} reads as {NONE_OF_THESE!r}, the answer to a shortlist that lacks "
            f"the right label; rename it, or give it as none_label={name!r}"
        )
    return ""


def described(labels: LabelSet) -> list[str]:
    """Return what is embedded of each label: its name, and its description if it has one."""
    readable = {name: name.replace("_", " ") for name in labels.names}
    about = {name: f": {text}" for name, text in labels.descriptions.items() if text}
    return [f"{words}{about.get(name, '')}" for name, words in readable.items()]


def nearest_labels(
    labels: Float32s, vectors: Float16s, size: int, first: Sequence[Sequence[int]] | None = None
) -> Int32s:
    """Return the labels in the list of each text, int32[len(vectors), size], in label order.

    `labels`: float32[n_labels, dim], unit vectors; a row of zeros is never in a list that the
    others fill. `vectors`: float16[n, dim]. `first`: labels of each text that are in its list
    wherever they rank, at most `size`.
    """
    found = np.empty((len(vectors), size), dtype=np.int32)
    absent = np.logical_not(labels.any(axis=1))
    wide = min(size + _SPARE, len(labels))
    rows = max(1, _CELLS // len(labels))
    for start in range(0, len(vectors), rows):
        part = vectors[start : start + rows].astype(np.float32)
        rough = part @ labels.T
        rough[:, absent] = -np.inf
        near = np.sort(np.argpartition(-rough, wide - 1, axis=1)[:, :wide], axis=1)
        for row, vector in enumerate(part, start):
            # the last bits of a product of many texts depend on their number: again, one at a time
            places = near[row - start]
            similarities = labels[places] @ vector
            similarities[absent[places]] = -np.inf
            best = places[np.argsort(-similarities, kind="stable")].tolist()
            known = [] if first is None else list(first[row])
            best = [*known, *(label for label in best if label not in known)]
            found[row] = sorted(best[:size])
    return found


def neighbors_labels(known: Sequence[int], neighbors: Int64s, size: int) -> list[list[int]]:
    """Return the labels that most neighbors of each text have, up to half of a list of `size`.

    `known`: the label at each place, -1 = unknown; `neighbors`: int64[n, K], places, most similar
    first, padded with -1.
    """
    found = []
    for row in neighbors.tolist():
        labels = (known[place] for place in row if place >= 0)
        # of equally frequent ones, that of the nearest neighbor comes first
        counted = Counter(label for label in labels if label >= 0)
        found.append([label for label, _ in counted.most_common(size // 2)])
    return found


def with_head(
    first: list[list[int]],
    model: HeadModel,
    vectors: Float16s,
    hashes: Sequence[bytes],
    size: int,
    none: int | None,
) -> None:
    """Add the labels that a learned model finds most likely, up to three quarters of each list.

    `first`: the labels of each list of `size` so far; `none`: the label that no list holds.
    """
    folds, most = folds_of(hashes), 3 * size // 4
    for start in range(0, len(vectors), _BLOCK):
        part = slice(start, start + _BLOCK)
        found = predict_folds(model.heads, vectors[part], folds[part])
        if none is not None:
            found[:, none] = -1
        for row, likely in zip(first[part], np.argsort(-found, axis=1)[:, :most], strict=True):
            new = [label for label in likely.tolist() if label not in row]
            row.extend(new[: most - len(row)])


def coverage(run: Run) -> dict[str, int]:
    """Return the number of shortlists that hold each label, and note those that none holds."""
    labels, lists = run.batch.labels, run.batch.shortlists
    if lists is None:
        return {}
    counts = np.bincount(lists.reshape(-1), minlength=len(labels)).tolist()
    # every prompt shows the label that means none
    held = {n: texts for n, texts in zip(labels, counts, strict=True) if n != labels.none_label}
    never = [name for name, n in held.items() if not n]
    if never and lists.size >= _EXPECTED * len(held):
        named = ", ".join(map(repr, never[:_NAMED])) + (", .." if len(never) > _NAMED else "")
        run.notes.append(
            f"no shortlist of {len(lists):,} texts holds {len(never):,} of the {len(held):,} "
            f"labels ({named}): describe them, or give a longer shortlist"
        )
    return held


def similar_together(lists: Int32s) -> Int64s:
    """Return an order of texts, with int32[n, size] labels each, in which like follows like."""
    # by the commonest labels first, as in an FP-tree
    rank = np.argsort(np.argsort(-np.bincount(lists.ravel()), kind="stable"))
    return np.lexsort(np.sort(rank[lists], axis=1).T[::-1])


@dataclass
class Shortlist:
    """Chooses the labels that the prompt of each text shows.

    Up to half of a list are labels of the neighbors, as given by the user or stored before the run,
    up to another quarter those that a model learned from judgments finds likely; the rest are those
    whose name and description are nearest to the text.
    """

    labels: LabelSet
    #: Labels in a list, besides the one that means "none of these".
    size: int
    embedding: EmbeddingCache
    _vectors: Float32s | None = None

    async def of_batch(
        self,
        batch: TextBatch,
        vectors: Float16s,
        learned: Argmax | None,
        look_up: Callable[[Sequence[PoolText]], Awaitable[list[Prediction | None]]],
    ) -> Int32s:
        """Return the lists of the own texts, from their vectors and what is known of neighbors.

        Predictions that arrive during the run are not used, so that lists do not depend on the
        order in which calls are answered.
        """
        entries = batch.entries
        said = [
            entry.label or (None if stored is None else stored.label)
            for entry, stored in zip(entries, await look_up(entries), strict=True)
        ]
        none = self.labels.none_label
        # of labels that a list may hold
        places = {name: at for at, name in enumerate(self.labels) if name != none}
        known = [places.get(label or "", -1) for label in said]
        first = neighbors_labels(known, batch.neighbors, self.size)
        if learned is not None:
            hashes = [entry.hash for entry in entries[: len(first)]]
            place = None if none is None else self.labels.index(none)
            await asyncio.to_thread(
                with_head, first, learned.model, vectors, hashes, self.size, place
            )
        return await self.nearest(vectors, first)

    async def lists(self, run: Run, places: Sequence[int]) -> Int32s:
        """Return the labels to show for the texts at some places, in label order."""
        own, at = run.batch.shortlists, np.array(places, dtype=np.int64)
        found = np.empty((len(places), self.size), dtype=np.int32)
        others = at >= (0 if own is None else run.batch.n_own)
        if own is not None:
            found[~others] = own[at[~others]]
        for rows in np.split(np.flatnonzero(others), range(_BLOCK, int(others.sum()), _BLOCK)):
            entries = [run.batch.entries[place] for place in at[rows].tolist()]
            found[rows] = await self.nearest(await self.embedding.vectors(entries))
        return found

    async def nearest(
        self, vectors: Float16s, first: Sequence[Sequence[int]] | None = None
    ) -> Int32s:
        """Return the labels nearest to each text, as `nearest_labels`."""
        if self._vectors is None:
            labels = await self.embedding.embed(described(self.labels))
            if self.labels.none_label is not None:
                # in every prompt anyway
                labels[self.labels.names.index(self.labels.none_label)] = 0
            self._vectors = labels
        return await asyncio.to_thread(nearest_labels, self._vectors, vectors, self.size, first)


def compared_part(entries: Sequence[PoolText]) -> list[int]:
    """Return the positions of those that are compared, of distinct texts without a known label."""
    if len(entries) < _FROM:
        return []
    # another order than that of the hashes, by which folds and samples are chosen
    ranks = [blake2b(one.hash, digest_size=8, key=b"whole list").digest() for one in entries]
    order = sorted(range(len(entries)), key=ranks.__getitem__)
    return order[: min(max(_LEAST, int(_COMPARED * len(entries))), _MOST)]


async def compare_with_full_labels(run: Run, predictor: Predictor, scheduler: Scheduler) -> None:
    """Ask about a part of the own texts with the whole list, and note how often answers agree.

    A shortlist that lacks the right label can make an LLM choose a wrong one: how often is seen
    where it is shown all labels besides. Which texts these are depends on their content alone, so
    that a second run makes no call. An error ends the comparison, not the run.
    """
    own = [*enumerate(run.batch.own)]
    places = [at for at, entry in own if entry.label is None and not run.is_skipped(at)]
    entries = [run.batch.entries[place] for place in places]
    asks = [
        predictor.ask(entries[at].text, entries[at].hash, places[at], FULL_LABELS)
        for at in compared_part(entries)
    ]
    pairs: list[tuple[int, str, str]] = []
    with suppress(*FATAL_ERRORS):
        async with aclosing(scheduler.run(asks)) as outcomes:
            async for ask, outcome in outcomes:
                given = run.answers.predictions[ask.place]
                if isinstance(outcome, Exception) or given is None:
                    continue
                if given.label is not None and outcome.label is not None:
                    pairs.append((ask.place, given.label, outcome.label))
    if pairs:
        run.notes.extend(_summary(run, pairs))


def _summary(run: Run, pairs: Sequence[tuple[int, str, str]]) -> list[str]:
    """Return what the comparison shows: place of a text, its label, its label by the whole list."""
    other = [(place, short, whole) for place, short, whole in pairs if short != whole]
    agree = wilson(len(pairs) - len(other), len(pairs))
    summary = (
        f"{len(pairs):,} texts were also sent with all labels, as a check: the label is "
        f"the same for {100 * agree.value:.1f} % ({100 * agree.low:.1f} to {100 * agree.high:.1f} "
        "%, 95 %)"
    )
    if not other:
        return [summary]
    sides = [_side(run, *pair) for pair in other]
    summary += (
        f"; of the {len(other):,} others, the neighbors agree with the prompt of all labels for "
        f"{sides.count(1):,}, with the shorter one for {sides.count(-1):,}"
    )
    notes = [summary]
    lacked = wilson(sum(_lacks(run, *pair) for pair in other), len(pairs))
    if lacked.low > _HARM:
        notes.append(
            f"the shorter prompts reduce accuracy: for {100 * lacked.value:.1f} % of these texts "
            f"(at least {100 * lacked.low:.1f} %) they lack the label that the LLM gives where it "
            "sees all; describe the labels, give a longer shortlist, or shortlist=None"
        )
    return notes


def _side(run: Run, place: int, short: str, whole: str) -> int:
    """Return 1 if the neighbors of a text side with the label by the whole list, -1, or 0."""
    weights = {short: 0.0, whole: 0.0}
    for near in nearest(run, place, run.batch.neighbors.shape[1]):
        if near.label in weights:
            weights[near.label] += max(near.similarity, 0.0)
    return (weights[whole] > weights[short]) - (weights[whole] < weights[short])


def _lacks(run: Run, place: int, short: str, whole: str) -> bool:
    """Whether the label by the whole list was not among those that a text was shown."""
    labels, lists = run.batch.labels, run.batch.shortlists
    if lists is not None:
        return labels.index(whole) not in lists[place].tolist()
    # level by level: another top level hides it
    assert labels.tree is not None
    first, second = (labels.tree.paths[labels.names.index(label)][0] for label in (short, whole))
    return first != second
