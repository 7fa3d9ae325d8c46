"""Texts of the traffic are set aside in the store, for a person to judge: `testnuc audit`."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from testnuc.client import TestNUC, parts_of
from testnuc.errors import ConfigurationError, StoreError
from testnuc.trust.audit import AuditedText, AuditWeek, week_of
from testnuc.trust.review_context import ReviewContext

if TYPE_CHECKING:
    from testnuc.types import Classification

_log = logging.getLogger("testnuc.server")

#: Seconds between two writes of how many texts got each label. A text that is set aside is written
#: at once.
_SECONDS = 60.0


class TrafficSample:
    """Counts the labels that a service gives, and sets texts aside at random.

    Parameters
    ----------
    nuc : TestNUC
        Its store keeps them.
    size : int
        Texts a week.
    clock : callable
        Returns seconds since the epoch.

    Raises
    ------
    ConfigurationError
        The store does not outlive the process.
    """

    def __init__(self, nuc: TestNUC, size: int, clock: Callable[[], float] = time.time) -> None:
        parts = parts_of(nuc)
        self._store: Any = parts.store
        if not (parts.store.durable and hasattr(parts.store, "swap_learned")):
            raise ConfigurationError(
                "texts are set aside for an audit in the store, and this service has none that "
                "outlives it; add --store labels.db, or leave out --audit"
            )
        context = ReviewContext(
            descriptions=dict(nuc.labels.descriptions),
            instructions=parts.instructions,
            none_label=nuc.labels.none_label,
        )
        self._facts = (nuc.labels.names, nuc.labels.multilabel, nuc.model, context, size)
        self._clock = clock
        #: What is not in the store yet, by week.
        self._waiting: dict[str, AuditWeek] = {}
        self._wake, self._closing = asyncio.Event(), False
        #: The latest week as it is in the store.
        self.latest = self._new("")
        #: What the last `testnuc audit` said.
        self.summary: dict[str, Any] = {}

    def _new(self, week: str) -> AuditWeek:
        return AuditWeek(week, *self._facts)

    def note(self, result: Classification) -> None:
        """Count a result, and set its text aside if its random number is among the lowest."""
        if result.label is None and result.error is not None:
            return
        now, order = self._clock(), random.random()  # noqa: S311 - it draws a sample
        name = week_of(now)
        week = self._waiting.setdefault(name, self._new(name))
        week.count(result.label)
        stored = self.latest if self.latest.week == name else week
        if len(stored.sample) < stored.size or order < stored.sample[-1].order:
            week.keep([AuditedText.of(result, now, order)])
            self._wake.set()

    async def running(self, _: web.Application) -> AsyncIterator[None]:
        """Write to the store while an application runs, and at its end."""
        task = asyncio.create_task(self._write(), name="testnuc-audit")
        yield
        self._closing = True
        self._wake.set()
        await task

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
        for name, week in sorted(waiting.items()):
            try:
                self.latest = await changed(self._store, self._new(name), partial(_merge, week))
                self.summary = await summary_of(self._store, week)
            except StoreError as exc:
                _log.warning("texts for an audit are not stored yet: %s", exc)
                self._waiting.setdefault(name, self._new(name)).merge(week)

    @property
    def accuracy(self) -> float:
        """The accuracy of all judged texts by the last `testnuc audit`; NaN: none is judged."""
        return float(self.summary.get("accuracy", math.nan))


def _merge(week: AuditWeek, stored: AuditWeek) -> None:
    stored.merge(week)


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
