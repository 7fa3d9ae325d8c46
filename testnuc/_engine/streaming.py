"""Classify a stream of texts, window by window; results are yielded as they complete."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Coroutine, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from testnuc._base.checks import valid_text
from testnuc._engine.inputs import distinct, values
from testnuc._engine.pipeline import STOPS
from testnuc._engine.rows import classification
from testnuc.errors import InvalidInputError
from testnuc.types import Classification

if TYPE_CHECKING:
    from typing import TypeAlias

    from testnuc._engine.escalation import Escalation
    from testnuc._engine.neighborhoods import Neighborhoods
    from testnuc._engine.pipeline import Pipeline

    #: A window and the position of a completed text in it; an error; None at the end.
    _Ready: TypeAlias = "tuple[_StreamedWindow, int] | Exception | None"

__all__ = ["stream_windows"]

_log = logging.getLogger("testnuc.client")


async def stream_windows(
    pipeline: Pipeline,
    texts: Iterable[str] | AsyncIterable[str],
    size: int,
    escalation: Escalation,
) -> AsyncGenerator[Classification, None]:
    """Yield the classification of each text, in completion order.

    With a referee, each window is settled as a run of `classify_many` is: its least trusted part is
    escalated.

    If an error ends the run after a text was answered, no further call is made: the texts that
    follow get stored predictions and votes, or carry the error.

    At most two windows are open (in progress, or not fully consumed): two, so that workers are not
    idle during the last slow calls of a window; at most, so that a slow consumer does not fill the
    memory.
    """
    if not isinstance(texts, AsyncIterable):
        texts = values(texts)
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable | AsyncIterable):
        raise InvalidInputError(f"texts is {texts!r:.60}; give an iterable of texts")
    ready: asyncio.Queue[_Ready] = asyncio.Queue()
    slots = asyncio.Semaphore(2)
    producer = asyncio.create_task(
        _produce(pipeline, texts, size, ready, slots, escalation), name="testnuc-stream"
    )
    try:
        while (item := await ready.get()) is not None:
            if isinstance(item, Exception):
                raise item
            window, position = item
            yield window.result(position)
            window.untaken -= 1
            # creating results takes CPU time: yield to other tasks in between
            await asyncio.sleep(0)
            if not window.untaken:
                slots.release()
    finally:
        producer.cancel()
        await asyncio.gather(producer, return_exceptions=True)


async def _produce(
    pipeline: Pipeline,
    texts: Iterable[str] | AsyncIterable[str],
    size: int,
    ready: asyncio.Queue[_Ready],
    slots: asyncio.Semaphore,
    escalation: Escalation,
) -> None:
    """Put the results of all windows on the queue, then None or the exception."""
    try:
        async with asyncio.TaskGroup() as tasks, aclosing(_batches(texts, size)) as batches:
            run = _StreamedRun(escalation)
            async for start, batch in batches:
                await slots.acquire()
                window = _StreamedWindow(pipeline, start, batch, ready, run)
                # the pool grows in the order of the windows
                predict = await window.prepare()
                if predict is not None:
                    tasks.create_task(predict, name="testnuc-window")
    except BaseExceptionGroup as group:
        ready.put_nowait(_first(group))
    except Exception as exc:  # noqa: BLE001 - raised in the consumer
        ready.put_nowait(exc)
    else:
        ready.put_nowait(None)


def _first(error: BaseException) -> Exception:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, Exception) else RuntimeError(repr(error))


@dataclass
class _StreamedRun:
    """What the windows of a stream have in common."""

    escalation: Escalation
    #: The error that ended the run.
    stopped: Exception | None = None
    #: Windows in progress.
    open: list[Neighborhoods] = field(default_factory=list)
    _answered: bool = False

    def end(self, neighborhoods: Neighborhoods) -> None:
        """Remove a completed window."""
        self._answered = self.answered
        self.open.remove(neighborhoods)

    @property
    def answered(self) -> bool:
        """Whether any text was answered."""
        return self._answered or any(window.any_answered for window in self.open)


@dataclass(eq=False)
class _StreamedWindow:
    """One window: a result is queued once all predictions that it needs are known."""

    pipeline: Pipeline
    start: int
    batch: list[str]
    ready: asyncio.Queue[_Ready]
    run: _StreamedRun

    def __post_init__(self) -> None:
        #: Results not yet consumed.
        self.untaken = len(self.batch)
        self._problems: dict[int, str] = {}
        self._places: dict[int, int] = {}
        self._neighborhoods: Neighborhoods | None = None

    async def prepare(self) -> Coroutine[None, None, None] | None:
        """Add the texts to the pool and retrieve neighbors; returns a coroutine that predicts."""
        valid: list[str] = []
        positions: list[int] = []
        for position, text in enumerate(self.batch):
            problem = valid_text(text)
            if problem is None:
                valid.append(text)
                positions.append(position)
            else:
                self._problems[position] = problem
                self.ready.put_nowait((self, position))
        entries, places = await distinct(valid)
        if not entries:
            return None
        run = self.run
        try:
            neighborhoods = await self.pipeline.prepare(
                entries, together=True, ask_first=run.stopped is None, partial=True
            )
        except STOPS as error:
            if not run.answered:
                raise
            run.stopped = run.stopped or error
            for position in positions:
                self.ready.put_nowait((self, position))
            return None
        run.open.append(neighborhoods)
        self._neighborhoods = neighborhoods
        self._places = dict(zip(positions, places.tolist(), strict=True))
        positions_of: list[list[int]] = [[] for _ in entries]
        for position, place in self._places.items():
            positions_of[place].append(position)
        return self._predict(neighborhoods, positions_of)

    def result(self, position: int) -> Classification:
        """Return the classification of a completed text."""
        text, index = self.batch[position], self.start + position
        if position in self._problems:
            error: Exception | None = InvalidInputError(f"text {index} {self._problems[position]}")
        elif self._neighborhoods is None:
            error = self.run.stopped
        else:
            return classification(self._neighborhoods, self._places[position], index, text)
        return Classification(
            index, text, None, 0.0, 0.0, 0, complete=True, prediction=None, error=error
        )

    async def _predict(self, neighborhoods: Neighborhoods, positions_of: list[list[int]]) -> None:
        run = self.run
        left = set(range(neighborhoods.n_own))
        try:
            if run.stopped is None:
                async with aclosing(self._completed(neighborhoods)) as places:
                    async for place in places:
                        left.discard(place)
                        self._hand_over(positions_of[place])
        except STOPS as error:
            run.stopped = run.stopped or error
            if not (await self.pipeline.salvage(neighborhoods, error) or run.answered):
                raise
        else:
            if run.stopped is not None and left:
                await self.pipeline.salvage(neighborhoods, run.stopped)
        run.end(neighborhoods)
        if left:
            await self.pipeline.settle(neighborhoods, stopped=True)
        for place in sorted(left):
            self._hand_over(positions_of[place])

    def _hand_over(self, positions: list[int]) -> None:
        for position in positions:
            self.ready.put_nowait((self, position))

    def _completed(self, neighborhoods: Neighborhoods) -> AsyncGenerator[int, None]:
        """Predict, and yield each own text when its vote can be counted."""
        # with waves, a winner is known at the end of a wave; the auto policy and the prior
        # correction need the predictions of the whole window
        settings = neighborhoods.settings
        learned = settings.taught is not None
        refereed = self.run.escalation.referee is not None
        late = settings.policy is None or settings.prior is not None or learned or refereed
        late = late or self.pipeline.spares or settings.needs_no_neighbors
        waves = not late and not self.pipeline.join_pool
        if late or waves:
            return self._at_the_end(neighborhoods, waves=waves)
        return self._one_by_one(neighborhoods)

    async def _at_the_end(
        self, neighborhoods: Neighborhoods, *, waves: bool
    ) -> AsyncGenerator[int, None]:
        """Predict everything, then yield each own text."""
        async with aclosing(self.pipeline.predict(neighborhoods, waves=waves)) as answered:
            async for _ in answered:
                pass
        self._neighborhoods, note = await self.run.escalation.settle(neighborhoods)
        if note is not None:
            _log.info("texts %d to %d: %s", self.start, self.start + len(self.batch) - 1, note)
        for place in range(neighborhoods.n_own):
            yield place

    async def _one_by_one(self, neighborhoods: Neighborhoods) -> AsyncGenerator[int, None]:
        """Yield each own text as soon as it and its neighbors have outcomes."""
        # with "stored", neighbors outside the window already have predictions
        stored = self.pipeline.neighbors == "stored"
        end = neighborhoods.n_own if stored else len(neighborhoods.entries)
        waits, waits_for = await asyncio.to_thread(_waiting, neighborhoods, end)
        for place, missing in enumerate(waits):
            if not missing:
                yield place
        async with aclosing(self.pipeline.predict(neighborhoods, waves=False)) as answered:
            async for other in answered:
                for place in waits_for[other]:
                    waits[place] -= 1
                    if not waits[place]:
                        yield place


def _waiting(neighborhoods: Neighborhoods, end: int) -> tuple[list[int], list[list[int]]]:
    """Return the number of open predictions of each own text, and the texts that wait for each.

    Counts only places below `end` without an outcome.
    """
    waits = [0] * neighborhoods.n_own
    waits_for: list[list[int]] = [[] for _ in neighborhoods.entries]
    for place in range(neighborhoods.n_own):
        for other in (place, *neighborhoods.neighbors[place].tolist()):
            if 0 <= other < end and not neighborhoods.has_outcome(other):
                waits[place] += 1
                waits_for[other].append(place)
    return waits, waits_for


async def _batches(
    texts: Iterable[str] | AsyncIterable[str], size: int
) -> AsyncGenerator[tuple[int, list[str]], None]:
    start = 0
    if not isinstance(texts, AsyncIterable):
        given = iter(texts)
        while batch := list(islice(given, size)):
            yield start, batch
            start += size
        return
    batch = []
    async for text in texts:
        batch.append(text)
        if len(batch) == size:
            yield start, batch
            start, batch = start + size, []
    if batch:
        yield start, batch
