"""Estimate the cost of a run before anything is sent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import orjson

from testnuc import prompts
from testnuc._dispatch.predictor import FULL_LABELS
from testnuc._engine.full_labels import compared_part
from testnuc._engine.inputs import without_foreign_labels
from testnuc._engine.uncertain import asked_first
from testnuc.index import scanned
from testnuc.limits import PICO, RateLimit
from testnuc.prompts import Demonstration
from testnuc.protocols import Request, TokenUsage
from testnuc.types import Estimate, LaneEstimate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from testnuc._dispatch.predictor import Predictor
    from testnuc.limits import Price
    from testnuc.protocols import Index, Method, PoolText, Store, Task
    from testnuc.trust import UncertaintySampling, VoteSettings

#: Texts looked up at a time.
_CHUNK = 128
#: As in the providers: low, so that estimates are rather too high.
_BYTES_PER_TOKEN = 3.2
#: Seconds within which a provider completes or expires a batch.
_WINDOW = 24 * 3600.0
#: A typical verbalized confidence.
_CONFIDENCE = 0.95
#: Labels of a text that can have several.
_SEVERAL = 2


@dataclass(frozen=True, slots=True)
class Estimator:
    """Counts the calls that texts need, and their tokens; nothing is sent, embedded or added."""

    predictor: Predictor
    store: Store
    pool: Index
    method: Method
    #: Whether neighbors without a prediction are predicted, too.
    neighbors: bool
    texts_per_call: int
    price: Price | None
    batch_price: Price | None = None
    #: Whether the provider has a batch lane.
    batches: bool = False
    rate_limit: RateLimit | None = None
    ask: UncertaintySampling | None = None
    #: Whether a head labels the texts that it is sure of.
    head: bool = False
    #: Where prompts show some labels, and a part of the texts is asked about with all of them
    #: besides: the scope of predictions by prompts with all labels.
    full_scope: bytes | None = None
    #: On the labels that prompts show.
    note: str = ""

    async def usage(self, entries: Sequence[PoolText], settings: VoteSettings) -> Estimate:
        """Estimate the usage of labeling distinct texts, without retries."""
        estimate = await self._usage(entries, settings)
        if self.head:
            estimate = replace(estimate, least_calls=0)
        elif self.ask is not None:
            first = self.ask.first(len(entries)) * self.method.samples - estimate.store_hits
            least = -(-max(0, first) // self.texts_per_call)
            estimate = replace(estimate, least_calls=min(least, estimate.calls))
        if not estimate.calls:
            return estimate
        notes = [self.note, await self._note()]
        return replace(estimate, note="\n".join(note for note in notes if note))

    async def of_calls(self, texts: Sequence[str]) -> Estimate:
        """Estimate the usage of asking about texts, whatever is stored."""
        return await self._sum([(text, ()) for text in texts], 0, 1)

    async def _note(self) -> str:
        """Return a note if the store has predictions for the same labels, shown in another way."""
        if self.full_scope is not None and (n := await self.store.count(self.full_scope)):
            return (
                f"the store has predictions for {n:,} texts by prompts with all labels; "
                "shortlist=None uses them"
            )
        scopes = getattr(self.store, "scopes", None)
        labels = list(self.predictor.labels.names)
        model = f"{self.predictor.provider.name}/{self.predictor.provider.model}"
        for scope, facts in await scopes() if scopes is not None else ():
            others = facts.get("labels") or []
            if (
                facts.get("model") == model
                and others != labels
                and sorted(others) == sorted(labels)
                and (n := await self.store.count(scope))
            ):
                return (
                    f"the store has predictions for {n:,} texts with the same labels in another "
                    f"order ({', '.join(others[:3])}, ..); the model is shown the labels in their "
                    "order, so these are not used"
                )
        return ""

    async def _usage(self, entries: Sequence[PoolText], settings: VoteSettings) -> Estimate:
        labels = await self.pool.labels([entry.hash for entry in entries])
        known = self.predictor.labels
        open_ = [
            e
            for e, label in zip(entries, labels, strict=True)
            if label is None or known.index(label) is None
        ]
        asks_neighbors = self.neighbors and self.ask is None and not self.head
        # a learned model labels the neighbors: they need no call
        asks_neighbors = asks_neighbors and not settings.head_decides
        most = settings.voters * len(entries) if asks_neighbors else 0
        # with the auto policy, neighbors are predicted after the texts themselves: another stage
        later = settings.policy is None
        if not self.method.context:
            missing, stored = await self._missing(open_, range(self.method.samples))
            if self.ask is not None:
                rule = self.ask
                if settings.head_decides:
                    rule = rule.where_proved(len(open_), len(known.names))
                limit = rule.limit(len(open_)) * self.method.samples
                random_part = asked_first(open_, len(known.names), self.ask, settings)
                # which others the LLM is asked about is not known before: only these surely save
                _, saved = await self._missing(
                    [open_[place] for place in random_part], range(self.method.samples)
                )
                missing = _spread(missing, limit - saved)
            most *= self.method.samples
            others = await self._missing_in_pool(entries, most, self.method.samples)
            stages = 1 + (later and bool(others))
            # where a list lacks the label, another batch shows all
            stages *= 1 if self.full_scope is None else 2
            whole: list[str] = []
            if self.full_scope is not None:
                compared = [open_[at] for at in compared_part(open_)]
                whole, known_ = await self._missing(compared, (FULL_LABELS,))
                stored += known_
            wanted: list[tuple[str, tuple[Demonstration, ...]]]
            wanted = [(text, ()) for text in [*missing, *others]]
            return await self._sum(wanted, stored, stages, whole)
        # the examples of a prompt depend on the embedding of its text: count all as missing
        rest = [text async for text in self._pool_texts(entries)]
        asked = [e.text for e in [*open_, *rest[:most]]]
        shown = [Demonstration(e.text) for e in [*open_, *rest][: self.method.context + 1]]
        calls = [
            (text, tuple(d for d in shown if d.text != text)[: self.method.context])
            for text in asked
            for _ in range(self.method.samples)
        ]
        stored = 0
        if self.method.labeled:
            first, stored = await self._missing(open_, range(1))
            most = self.method.context * len(asked)
            first += await self._missing_in_pool(entries, most, 1)
            calls += [(text, ()) for text in first]
        stages = 1 + self.method.labeled + (later and bool(rest[:most]))
        return await self._sum(calls, stored, stages)

    async def _missing(
        self, entries: Sequence[PoolText], samples: Sequence[int]
    ) -> tuple[list[str], int]:
        """Return the text of each sample that is not stored, and the number of stored samples."""
        missing: list[str] = []
        stored = 0
        for start in range(0, len(entries), _CHUNK):
            wanted = [(e, s) for e in entries[start : start + _CHUNK] for s in samples]
            keys = [self.predictor.key(e.text, s) for e, s in wanted]
            found = await self.store.get_predictions(keys)
            missing += [e.text for (e, _), hit in zip(wanted, found, strict=True) if hit is None]
            stored += sum(hit is not None for hit in found)
            await asyncio.sleep(0)
        return missing, stored

    async def _missing_in_pool(
        self, entries: Sequence[PoolText], most: int, samples: int
    ) -> list[str]:
        """Return pool texts that may need a call, at most `most`."""
        missing: list[str] = []
        others: list[PoolText] = []
        if most:
            async for other in self._pool_texts(entries):
                others.append(other)
                if len(others) == _CHUNK:
                    missing += (await self._missing(others, range(samples)))[0]
                    others = []
                    if len(missing) >= most:
                        break
        return [*missing, *(await self._missing(others, range(samples)))[0]][:most]

    async def _pool_texts(self, entries: Sequence[PoolText]) -> AsyncIterator[PoolText]:
        """Yield the unlabeled texts of the pool, except `entries`."""
        own = {entry.hash for entry in entries}
        async for texts in scanned(self.pool, _CHUNK):
            for text in without_foreign_labels(texts, self.predictor.labels):
                if text.label is None and text.hash not in own:
                    yield text

    async def _sum(
        self,
        texts: Sequence[tuple[str, tuple[Demonstration, ...]]],
        stored: int,
        stages: int,
        whole: Sequence[str] = (),
    ) -> Estimate:
        """Add up the calls for texts, and for those that are shown the whole list of labels."""
        reserve = getattr(self.predictor.provider, "reserve", None)
        sent = received = calls = 0
        pico_usd = [0, 0]
        prices = (self.price, self.batch_price)
        for part, shown, task in self._calls(texts, whole):
            calls += 1
            if reserve is not None:
                user = prompts.user_prompt(part, shown)
                tokens = TokenUsage(reserve(Request(task, user, part))[0], self._answer(part, task))
                sent += tokens.input_tokens
                received += tokens.output_tokens
                for i, price in enumerate(prices):
                    pico_usd[i] += 0 if price is None else price.pico(tokens)
            if calls % _CHUNK == 0:
                await asyncio.sleep(0)
        known = reserve is not None or not calls
        live, batch = (
            LaneEstimate(
                lane,
                calls,
                sent if known else None,
                received if known else None,
                self._usd(price, pico, known=known, calls=calls),
            )
            for lane, price, pico in zip(("live", "batch"), prices, pico_usd, strict=True)
        )
        live = replace(live, least_seconds=self._seconds(calls, sent + received if known else None))
        # stored answers take no time in either lane
        batch = replace(batch, most_seconds=_WINDOW * stages if calls else 0.0)
        return Estimate(
            calls=calls,
            input_tokens=live.input_tokens,
            cached_tokens=0 if known else None,
            output_tokens=live.output_tokens,
            usd=live.usd,
            store_hits=stored,
            lanes=(live, batch) if self.batches else (live,),
        )

    def _calls(
        self, texts: Sequence[tuple[str, tuple[Demonstration, ...]]], whole: Sequence[str]
    ) -> Iterator[tuple[tuple[str, ...], tuple[Demonstration, ...], Task]]:
        """Yield the texts, few-shot examples and task of each call."""
        for start in range(0, len(texts), self.texts_per_call):
            part = tuple(text for text, _ in texts[start : start + self.texts_per_call])
            for task in self.predictor.steps:
                yield part, texts[start][1], task
        for start in range(0, len(whole), self.texts_per_call):
            yield tuple(whole[start : start + self.texts_per_call]), (), self.predictor.task

    @staticmethod
    def _usd(price: Price | None, pico_usd: int, *, known: bool, calls: int) -> float | None:
        priced = price is not None and (known or price.is_free)
        return pico_usd / PICO if priced or not calls else None

    def _seconds(self, calls: int, tokens: int | None) -> float | None:
        """Return a lower bound on the seconds of the live lane, by its limits per minute."""
        limit = self.rate_limit or RateLimit()
        minutes = [0.0] if not calls else []
        if limit.requests_per_minute is not None:
            minutes.append(calls / limit.requests_per_minute)
        if limit.tokens_per_minute is not None and tokens is not None:
            minutes.append(tokens / limit.tokens_per_minute)
        return 60 * max(minutes) if minutes else None

    def _answer(self, part: Sequence[str], task: Task) -> int:
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
        reasoning = getattr(self.predictor.provider, "reasoning", None)
        thought = reasoning(task) if callable(reasoning) else 0
        return int(len(orjson.dumps(whole)) / _BYTES_PER_TOKEN) + 1 + thought


def _spread(texts: Sequence[str], most: int) -> list[str]:
    """Return at most so many of some texts, evenly spaced."""
    n = min(len(texts), max(most, 0))
    return [texts[i * len(texts) // n] for i in range(n)]
