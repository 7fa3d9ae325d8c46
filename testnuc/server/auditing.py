"""Texts of the traffic are set aside in the store, for a person to judge: `testnuc audit`."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import methodcaller
from typing import Any

import orjson

from testnuc.client import TestNUC, parts_of
from testnuc.errors import ConfigurationError, StoreError
from testnuc.trust.audit import AuditedText, AuditWeek, week_of
from testnuc.trust.review import ReviewContext
from testnuc.types import Classification

_log = logging.getLogger("testnuc.server")

#: Seconds between two writes of how many texts got each label. A text that is set aside is written
#: at once.
_SECONDS = 60.0


class TrafficSample:
    """Counts the labels that a service gives, and sets `size` texts a week aside at random."""

    def __init__(self, nuc: TestNUC, size: int, clock: Callable[[], float] = time.time) -> None:
        store = parts_of(nuc).store
        if not (store.durable and hasattr(store, "swap_learned")):
            raise ConfigurationError(
                "texts are set aside for an audit in the store, and this service has none that "
                "outlives it; add --store labels.db, or leave out --audit"
            )
        self._size, self._clock = size, clock
        #: What is not in the store yet, by week and labels.
        self._waiting: dict[tuple[str, Sequence[str]], AuditWeek] = {}
        self._wake, self._closing = asyncio.Event(), False
        self._writing: asyncio.Task[None] | None = None
        #: What the last `testnuc audit` said.
        self.summary: dict[str, Any] = {}
        self.follow(nuc)

    def follow(self, nuc: TestNUC) -> None:
        """Set texts aside for the labels of another client of the same store."""
        labels = nuc.labels
        context = ReviewContext(
            descriptions=dict(labels.descriptions),
            instructions=parts_of(nuc).instructions,
            none_label=labels.none_label,
        )
        self._store = parts_of(nuc).store
        self._facts = (labels.names, labels.multilabel, nuc.model, context, self._size)
        #: The latest week as it is in the store.
        self.latest = self._new("")

    def _new(self, week: str) -> AuditWeek:
        return AuditWeek(week, *self._facts)

    def note(self, result: Classification) -> None:
        """Count a result, and set its text aside if its random number is among the lowest."""
        if result.label is None and result.error is not None:
            return
        now, order = self._clock(), random.random()  # noqa: S311 - it draws a sample
        name = week_of(now)
        place = name, self._facts[0]
        if (week := self._waiting.get(place)) is None:
            week = self._waiting[place] = self._new(name)
        week.count(result.label)
        stored = self.latest if self.latest.week == name else week
        if len(stored.sample) < stored.size or order < stored.sample[-1].order:
            labels = result.label, result.own_label, result.alternative
            week.keep([AuditedText(result.text, now, order, *labels, result.trust)])
            self._wake.set()

    def start(self) -> None:
        """Write to the store from now on."""
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="testnuc-audit")

    async def stop(self) -> None:
        """Write for the last time."""
        self._closing = True
        self._wake.set()
        if self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        last = False
        while not last:
            with suppress(TimeoutError):
                async with asyncio.timeout(_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            last = self._closing
            await self.flush()

    async def flush(self) -> None:
        """Write what is waiting; what fails keeps waiting."""
        waiting, self._waiting = self._waiting, {}
        for place, week in sorted(waiting.items()):
            new = replace(week, texts=0, given={}, sample=[])
            try:
                stored = await changed(self._store, new, methodcaller("merge", week))
                if week.labels == self._facts[0]:
                    self.latest, self.summary = stored, await summary_of(self._store, week)
            except StoreError as exc:
                _log.warning("texts for an audit are not stored yet: %s", exc)
                self._waiting.setdefault(place, new).merge(week)


async def changed(store: Any, new: AuditWeek, change: Callable[[AuditWeek], object]) -> AuditWeek:
    """Change a week in a store, where others may change it, too; return it.

    `new`: the week, where the store has none.
    """
    while True:
        data = await store.get_learned(new.key())
        week = AuditWeek.of(data or new.to_bytes())
        change(week)
        if await store.swap_learned(new.key(), data, week.to_bytes()):
            return week


async def summary_of(store: Any, week: AuditWeek) -> dict[str, Any]:
    """Return what the last `testnuc audit` said of these labels; {} before the first."""
    data = await store.get_learned(week.key(""))
    try:
        found = dict(orjson.loads(data or b"{}"))
    except (TypeError, ValueError) as exc:
        raise StoreError(f"the summary of an audit is damaged: {exc!r}") from exc
    return {n: v for n, v in found.items() if isinstance(v, int | float) or n == "since"}


async def set_summary(store: Any, week: AuditWeek, summary: dict[str, Any]) -> None:
    """Store what an audit said."""
    data = orjson.dumps(summary)
    while not await store.swap_learned(week.key(""), await store.get_learned(week.key("")), data):
        pass
