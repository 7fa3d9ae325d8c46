"""``classify --reuse``: answers to the labels before stand where no new label is likely.

The LLM is asked about texts near to the name of a new label, the neighbors of those that have it,
and a random part of the others, which shows how many are missed.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np

from testnuc._base.arrays import Float16s
from testnuc._base.checks import hash_text
from testnuc._engine.carried import BEFORE, added_labels, carried_over, is_kept, kept_scope
from testnuc._engine.components import Components
from testnuc._engine.reporting import shown
from testnuc._engine.shortlist import Shortlist
from testnuc.cli.memory import PROJECT, AnswerStore
from testnuc.cli.options import Options
from testnuc.cli.options_of_run import client_of, opened_store, stored_runs
from testnuc.cli.reading import to_stderr
from testnuc.client import TestNUC, parts_of
from testnuc.errors import InvalidInputError, ProviderError, ReplyError, TestNUCError
from testnuc.index.nearest import NearestVectors
from testnuc.progress import Observer
from testnuc.protocols import PoolText, StoredPrediction
from testnuc.trust.evidence import Judgment
from testnuc.trust.review import closest_label
from testnuc.trust.shares import upper_bound
from testnuc.types import Classification, Prediction

#: A text is asked about if one of the labels nearest to it is new: of a tenth, of at most five.
_PART, _NEAREST = 10, 5
#: Texts near one with a new label that are asked about, itself one; texts drawn at random.
_NEIGHBORS, _RANDOM = 11, 60
#: The part of the most texts that any run answered, from which its labels decide which is taken.
_MUCH = 0.9
#: In place of the label of a text whose call failed.
_FAILED = ""
#: How many texts a run answered, its labels, its answer to each, and its store.
_Answered = tuple[int, Sequence[str], Sequence[Prediction | None], str]


async def reuse_answers(
    nuc: TestNUC,
    given: Sequence[str],
    client: Options,
    store: AnswerStore,
    progress: Observer | bool = False,
    *,
    wanted: bool | None = None,
    lane: Literal["live", "batch"] = "live",
) -> int:
    """Store answers to the labels before as those of a client; `wanted` None: only offer that.

    Returns the number of texts that it asked about.
    """
    apart = client.get("referee") or client.get("head") or client.get("ask") == "unsure"
    if wanted and (client.several or apart):
        raise InvalidInputError(
            "--reuse is not for --multilabel, --referee, --head or --ask unsure; leave one out"
        )
    parts, labels, texts = parts_of(nuc), nuc.labels, [*dict.fromkeys(given)]
    if wanted is False:
        await _forget_kept(parts, texts)
    if wanted is False or labels.multilabel or apart:
        return 0
    found = known, old, _, _ = await _before(nuc, texts, client, store)
    calls = (await nuc.estimate(texts)).calls if known else 0
    if not calls:
        return 0
    was = client.get("former") or {}
    new = {*added_labels(labels, old, was)}
    _say_lost_names(labels.names, old, was, some_new=bool(new))
    _say_offer(known, calls, new)
    return await _reused(nuc, texts, found, new, was, progress, lane) if wanted else 0


async def _forget_kept(parts: Components, texts: Sequence[str]) -> None:
    """Delete the answers that were kept."""
    store, scope, key = parts.store, parts.predictor.scope, parts.predictor.key
    await store.forget(scope=kept_scope(scope))
    if kept := sum(map(is_kept, await store.get_predictions([key(text) for text in texts]))):
        if await store.count(scope) > kept:
            to_stderr(
                f"note: {kept:,} texts keep their answers to the labels before, as this run has "
                "asked about others since; to ask about all, name another --store"
            )
        else:
            await store.forget(scope=scope)


async def _reused(
    nuc: TestNUC,
    texts: Sequence[str],
    before: _Answered,
    new: Collection[str],
    was: Mapping[str, Sequence[str]],
    progress: Observer | bool,
    lane: Literal["live", "batch"],
) -> int:
    """Ask about some texts, and store the answers of before to the others."""
    parts, labels, (_, old, stored, place) = parts_of(nuc), nuc.labels, before
    hashes = [hash_text(text) for text in texts]
    # as judgments, which outlive a change of labels in the same way
    said = [(one.label, "referee") if one else (None, None) for one in stored]
    judged = [Judgment("", b"", label, source, None, None, 0) for label, source in said]
    by_now = carried_over(judged, old, labels, was)
    vectors = await _vectors(parts, place, [PoolText.of(text) for text in texts], progress)
    with suppress(TestNUCError):  # the run says which texts the embedder rejects
        # in their order: those that judgments were drawn from are the first ones
        await nuc.add(texts)
    size = min(_NEAREST, -(-len(labels.names) // _PART))
    first = await Shortlist(labels, size, parts.embedding).nearest(vectors)
    likely = np.isin(first, [labels.names.index(name) for name in new])
    every, asked = np.arange(len(texts)), dict[int, str | None]()
    keys = [parts.predictor.key(text) for text in texts]
    held = await parts.store.get_predictions(keys)
    # an answer that an earlier run kept is no evidence
    unasked = {at for at, one in enumerate(held) if is_kept(one)}
    # exact: a graph of all texts would take longer than the few searches
    index = NearestVectors(vectors.shape[1], exact_below=2 * len(texts) + 2)
    await asyncio.to_thread(index.add, vectors, every.astype(np.uint64))

    async def ask(places: Iterable[int]) -> None:
        """Ask about texts, and about the neighbors of those that have a new label."""
        while rows := sorted({*places} - asked.keys()):
            some = [texts[at] for at in rows]
            results = await nuc.classify_many(some, progress=progress, lane=lane)
            asked.update(zip(rows, map(_answer, results), strict=True))
            found, k = vectors[[at for at in rows if asked[at] in new]], min(_NEIGHBORS, len(texts))
            near, _ = await asyncio.to_thread(index.search, found, k, among=every)
            places = near.ravel().tolist()

    lost = [at for at, one in enumerate(by_now) if one.source is None]
    await ask([*np.unique(np.nonzero(likely)[0]).tolist(), *lost])
    others = {*range(len(texts))} - asked.keys() - unasked
    rest = sorted(others, key=lambda at: hashes[at][::-1])
    if sample := rest[: _RANDOM * bool(new)]:
        await ask(sample)
        _say_missed([asked[at] for at in sample], len(rest), new)
    kept = {
        at: replace(one, label=by_now[at].label, said=f"{one.label or one.said}{BEFORE}")
        for at, one in enumerate(stored)
        if one is not None and at not in asked
    }
    # a run has answers of its own, or the kept ones are
    scope = kept_scope(parts.predictor.scope) if asked else parts.predictor.scope
    rows = [StoredPrediction(keys[at], scope, hashes[at], 0, one) for at, one in kept.items()]
    await parts.store.put_predictions(rows)
    to_stderr(f"{len(rows):,} of {len(texts):,} texts keep their answer to the labels before")
    return len(asked)


def _answer(result: Classification) -> str | None:
    """Return the LLM's label; an error if another run may ask: it says nothing of other texts."""
    error = result.error
    if error is None or result.prediction is not None:
        return result.own_label
    final = isinstance(error, ProviderError) and not (error.retryable or error.fatal)
    if final or isinstance(error, ReplyError):
        return _FAILED
    raise InvalidInputError(
        "texts that --reuse asked about have no answer, so no others are kept; what came is "
        f"stored, run the command again: {error}"
    ) from error


def _say_offer(known: int, calls: int, new: Collection[str]) -> None:
    part = f"{_RANDOM} at random and those that could have {', '.join(map(repr, sorted(new)))}"
    to_stderr(
        f"note: {known:,} texts have answers to other labels; to ask about all takes {calls:,} "
        f"calls; --reuse asks about {part if new else 'those whose label is split or gone'} alone, "
        f"so {calls:,} are the most"
    )


def _say_missed(answers: Sequence[str | None], others: int, new: Collection[str]) -> None:
    """Say how many of so many other texts would get a new label, by some drawn at random."""
    missed, failed = sum(one in new for one in answers), answers.count(_FAILED)
    most = upper_bound(missed + failed, len(answers), 0.05)
    to_stderr(
        f"of {len(answers):,} texts drawn at random from the {others:,} others, {missed:,} got an "
        f"added label{f', and {failed:,} no answer' * bool(failed)}: at most {most:.1%} of these "
        "others would get one, but keep another (95 %); --no-reuse asks about all"
    )


def _say_lost_names(
    names: Sequence[str], old: Sequence[str], was: Mapping[str, Sequence[str]], *, some_new: bool
) -> None:
    """Say which labels of before `was` misspells, or lacks where some labels are new."""
    before = {*chain.from_iterable(was.values())}
    for name in sorted(before - {*old, *names}):
        to_stderr(
            f"note: `was` in --labels names {name!r}, which the labels before do not have"
            f"{closest_label(name, old)}; if that is wrong, stop here (Ctrl-C)"
        )
    gone = ", ".join(repr(name) for name in old if name not in {*names, *before})
    if some_new and gone:
        to_stderr(f"note: {gone} is gone; if it was renamed or split, say so in --labels: `was`")


async def _vectors(
    parts: Components, place: str, texts: Sequence[PoolText], progress: Observer | bool
) -> Float16s:
    """Return the vectors of texts; those in the store of the run before are taken from there."""
    name, hashes = parts.embedding.name, [text.hash for text in texts]
    async with opened_store(place) as opened:
        held = await opened.pool(name).stored_vectors(hashes)
    if found := {key: row for key, row in zip(hashes, held, strict=True) if row is not None}:
        await parts.store.put_vectors(name, [*found], np.stack([*found.values()]))
    with shown(parts, len(texts), progress=progress) as bar:
        bar.stage("embedding")
        return (await parts.embedding.each(texts, getattr(bar, "embedded", int)))[0]


async def _before(
    nuc: TestNUC, texts: Sequence[str], client: Options, store: AnswerStore
) -> _Answered:
    """Return what the run with other labels answered whose labels are most alike, if it is much."""
    found: list[tuple[tuple[Any, ...], _Answered]] = []
    now = nuc.labels
    names = {*now.names}.union(*(client.get("former") or {}).values())
    # without an output there is no store yet
    folder = PROJECT if store.where is None else store.folder
    beside = [] if folder is None else sorted(folder.glob("answers*.db"))
    for place in filter(None, dict.fromkeys([store.where, *map(str, beside)])):
        changed = Path(place).stat().st_mtime_ns if Path(place).exists() else 0
        for run in await stored_runs(place):
            labels, none = run.facts["labels"], run.facts.get("none_label")
            # their order is a part of the question
            if tuple(labels) != now.names:
                instead = {"labels": run.labels, "none_label": none, "store": None, "former": None}
                asked = parts_of(client_of(client, **instead, api_key="not-needed")).predictor
                async with opened_store(place) as opened:
                    stored = await opened.get_predictions([asked.key(text) for text in texts])
                said = run.facts.get("descriptions") or {}
                described = sum(said.get(n) == now.descriptions.get(n) for n in {*labels} & names)
                # of those as much alike the newest
                rank = len({*labels} & names), described, run.day, changed, run.number
                found.append((rank, (len(texts) - stored.count(None), labels, stored, place)))
    most = max((one[0] for _, one in found), default=0)
    # some texts may have failed
    much = [one for one in found if one[1][0] >= _MUCH * most]
    return max(much, key=itemgetter(0), default=((), (0, (), (), "")))[1]
