"""Estimate the cost of a run before anything is sent."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

import orjson

from testnuc._dispatch.predictor import FULL_LABELS, Predictor
from testnuc._engine.components import Components
from testnuc._engine.inputs import without_foreign_labels
from testnuc._engine.labelers import asked_first
from testnuc._engine.shortlist import compared_part
from testnuc.batch import has_batches
from testnuc.index.matching import scanned
from testnuc.limits.budget import BYTES_PER_TOKEN, PICO, Price
from testnuc.prompts import writing
from testnuc.prompts.writing import Demonstration
from testnuc.protocols import PoolText, Request, Task, TokenUsage
from testnuc.trust.auto_policy import VoteSettings
from testnuc.types import Estimate, LaneEstimate

_Prompt: TypeAlias = tuple[str, tuple[Demonstration, ...]]
#: The texts, few-shot examples and task of a call.
_Call: TypeAlias = tuple[tuple[str, ...], tuple[Demonstration, ...], Task]

#: Texts looked up at a time.
_CHUNK = 128
#: Seconds within which a provider completes or expires a batch.
_WINDOW = 24 * 3600.0
#: A typical verbalized confidence.
_CONFIDENCE = 0.95
#: Labels of a text that can have several.
_SEVERAL = 2


class Estimator:
    """Counts the calls that texts need, and their tokens; nothing is sent, embedded or added."""

    def __init__(self, parts: Components) -> None:
        self._parts, self._pipeline = parts, parts.pipeline
        self._predictor, self._method = parts.predictor, parts.pipeline.method

    async def usage(self, entries: Sequence[PoolText]) -> Estimate:
        """Estimate the usage of labeling distinct texts, without retries."""
        estimate = await self._usage(entries, self._pipeline.settings)
        if self._pipeline.head is not None:
            estimate = replace(estimate, least_calls=0)
        elif self._pipeline.ask is not None:
            first = self._pipeline.ask.first(len(entries)) * self._method.samples
            least = -(-max(0, first - estimate.store_hits) // self._pipeline.per_call)
            estimate = replace(estimate, least_calls=min(least, estimate.calls))
        if not estimate.calls:
            return estimate
        notes = [self._pipeline.note, await self._note()]
        return replace(estimate, note="\n".join(note for note in notes if note))

    async def _note(self) -> str:
        """Return a note if the store has predictions for the same labels, shown in another way."""
        full = self._parts.full_scope
        if full is not None and (n := await self._parts.store.count(full)):
            return (
                f"the store has predictions for {n:,} texts by prompts with all labels; "
                "shortlist=None uses them"
            )
        labels = list(self._predictor.labels.names)
        for scope, facts in await self._parts.scopes():
            others = facts.get("labels") or []
            if (
                facts.get("model") == self._parts.model
                and others != labels
                and sorted(others) == sorted(labels)
                and (n := await self._parts.store.count(scope))
            ):
                return (
                    f"the store has predictions for {n:,} texts with the same labels in another "
                    f"order ({', '.join(others[:3])}, ..); the model is shown the labels in their "
                    "order, so these are not used"
                )
        return ""

    async def _usage(self, entries: Sequence[PoolText], settings: VoteSettings) -> Estimate:
        labels = await self._parts.pool.labels([entry.hash for entry in entries])
        known, samples = self._predictor.labels, range(self._method.samples)
        open_ = [
            e
            for e, label in zip(entries, labels, strict=True)
            if label is None or known.index(label) is None
        ]
        # a head or a learned model labels the neighbors: they need no call
        asks_neighbors = self._pipeline.neighbors == "predict" and not self._pipeline.skips
        asks_neighbors = asks_neighbors and not settings.head_decides
        most = settings.voters * len(entries) if asks_neighbors else 0
        # with the auto policy, neighbors are predicted after the texts themselves: another stage
        later = settings.policy is None
        if self._method.context:
            return await self._with_examples(entries, open_, most, later=later)
        missing, stored = await self._missing(open_, samples)
        if self._pipeline.ask is not None:
            rule = self._pipeline.ask
            random_part = asked_first(open_, len(known.names), rule, settings)
            # which others the LLM is asked about is not known before: only these surely save
            _, saved = await self._missing([open_[place] for place in random_part], samples)
            if settings.head_decides:
                rule = rule.where_proved(len(open_), len(known.names))
            # evenly spaced
            n = min(len(missing), max(rule.limit(len(open_)) * len(samples) - saved, 0))
            missing = [missing[i * len(missing) // n] for i in range(n)]
        others = await self._missing_in_pool(entries, most * len(samples), samples)
        stages, whole = 1 + (later and bool(others)), list[str]()
        if self._parts.full_scope is not None:
            # where a list lacks the label, another batch shows all
            stages *= 2
            compared = [open_[at] for at in compared_part(open_)]
            whole, more = await self._missing(compared, (FULL_LABELS,))
            stored += more
        return await self._sum([(text, ()) for text in [*missing, *others]], stored, stages, whole)

    async def _with_examples(
        self, entries: Sequence[PoolText], open_: Sequence[PoolText], most: int, *, later: bool
    ) -> Estimate:
        """Count all prompts as missing: their examples depend on the embedding of the text."""
        context = self._method.context
        rest = [text async for part in self._pool_texts(entries) for text in part]
        asked = [e.text for e in [*open_, *rest[:most]]]
        shown = [Demonstration(e.text) for e in [*open_, *rest][: context + 1]]
        calls: list[_Prompt] = [
            (text, tuple(d for d in shown if d.text != text)[:context])
            for text in asked
            for _ in range(self._method.samples)
        ]
        stored = 0
        if self._method.labeled:
            first, stored = await self._missing(open_, range(1))
            first += await self._missing_in_pool(entries, context * len(asked), range(1))
            calls += [(text, ()) for text in first]
        stages = 1 + self._method.labeled + (later and bool(rest[:most]))
        return await self._sum(calls, stored, stages)

    async def _missing(
        self, entries: Sequence[PoolText], samples: Sequence[int]
    ) -> tuple[list[str], int]:
        """Return the text of each sample that is not stored, and the number of stored samples."""
        missing: list[str] = []
        stored = 0
        for start in range(0, len(entries), _CHUNK):
            wanted = [(e, s) for e in entries[start : start + _CHUNK] for s in samples]
            keys = [self._predictor.key(e.text, s) for e, s in wanted]
            found = await self._parts.store.get_predictions(keys)
            missing += [e.text for (e, _), hit in zip(wanted, found, strict=True) if hit is None]
            stored += sum(hit is not None for hit in found)
            await asyncio.sleep(0)
        return missing, stored

    async def _missing_in_pool(
        self, entries: Sequence[PoolText], most: int, samples: Sequence[int]
    ) -> list[str]:
        """Return pool texts that may need a call, at most `most`."""
        missing: list[str] = []
        async for others in self._pool_texts(entries):
            if len(missing) >= most:
                break
            missing += (await self._missing(others, samples))[0]
        return missing[:most]

    async def _pool_texts(self, entries: Sequence[PoolText]) -> AsyncIterator[list[PoolText]]:
        own = {entry.hash for entry in entries}
        async for texts in scanned(self._parts.pool, _CHUNK):
            known = without_foreign_labels(texts, self._predictor.labels)
            yield [text for text in known if text.label is None and text.hash not in own]

    async def _sum(
        self, asked: Sequence[_Prompt], stored: int, stages: int, whole: Sequence[str] = ()
    ) -> Estimate:
        """Add up the calls for prompts, and for texts that are shown the whole list of labels."""
        n, predictor = self._pipeline.per_call, self._predictor
        calls = [
            (tuple(text for text, _ in asked[at : at + n]), asked[at][1], task)
            for at in range(0, len(asked), n)
            for task in predictor.steps
        ]
        calls += [(tuple(whole[at : at + n]), (), predictor.task) for at in range(0, len(whole), n)]
        live, batch = await costs_of(predictor, calls, self._parts.prices)
        known = live.input_tokens is not None
        tokens = (live.input_tokens or 0) + (live.output_tokens or 0) if known else None
        live = replace(live, least_seconds=self._seconds(live.calls, tokens))
        # stored answers take no time in either lane
        batch = replace(batch, lane="batch", most_seconds=_WINDOW * stages if live.calls else 0.0)
        batches = has_batches(predictor.provider) and self._parts.shortlist != "levels"
        return Estimate(
            calls=live.calls,
            input_tokens=live.input_tokens,
            cached_tokens=0 if known else None,
            output_tokens=live.output_tokens,
            usd=live.usd,
            store_hits=stored,
            lanes=(live, batch) if batches else (live,),
        )

    def _seconds(self, calls: int, tokens: int | None) -> float | None:
        """Return a lower bound on the seconds of the live lane, by its limits per minute."""
        limit = self._parts.limits
        minutes = [0.0] if not calls else []
        if limit.requests_per_minute is not None:
            minutes.append(calls / limit.requests_per_minute)
        if limit.tokens_per_minute is not None and tokens is not None:
            minutes.append(tokens / limit.tokens_per_minute)
        return 60 * max(minutes) if minutes else None


async def costs_of(
    predictor: Predictor, calls: Iterable[_Call], prices: Sequence[Price | None]
) -> list[LaneEstimate]:
    """Return what calls cost at each of some prices; nothing is known of most own providers."""
    reserve = getattr(predictor.provider, "reserve", None)
    number = sent = received = 0
    pico_usd = [0] * len(prices)
    for number, (part, shown, task) in enumerate(calls, 1):
        if reserve is not None:
            request = Request(task, writing.user_prompt(part, shown), part)
            tokens = TokenUsage(reserve(request)[0], _answer(predictor.provider, part, task))
            sent += tokens.input_tokens
            received += tokens.output_tokens
            for i, price in enumerate(prices):
                pico_usd[i] += 0 if price is None else price.pico(tokens)
        if number % _CHUNK == 0:
            await asyncio.sleep(0)
    known, lanes = reserve is not None or not number, []
    tokens_in, tokens_out = (sent, received) if known else (None, None)
    for price, pico in zip(prices, pico_usd, strict=True):
        priced = not number or (price is not None and (known or price.is_free))
        usd = pico / PICO if priced else None
        lanes.append(LaneEstimate("live", number, tokens_in, tokens_out, usd))
    return lanes


def _answer(provider: object, part: Sequence[str], task: Task) -> int:
    """Return the tokens of a typical answer: reasoning, median labels and confidences."""
    label = sorted(task.labels, key=len)[len(task.labels) // 2]
    said: dict[str, object] = {"label": label}
    if task.confidence == "verbalized":
        said["confidence"] = _CONFIDENCE
    if task.multilabel:
        said = {"labels": [said] * _SEVERAL}
    whole: object = said
    if len(part) > 1:
        whole = {"answers": [{"id": i, **said} for i in range(1, len(part) + 1)]}
    reasoning = getattr(provider, "reasoning", None)
    thought = reasoning(task) if callable(reasoning) else 0
    return int(len(orjson.dumps(whole)) / BYTES_PER_TOKEN) + 1 + thought
