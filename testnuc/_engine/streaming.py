"""Classify a stream of texts, window by window; results are yielded as they complete."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Coroutine, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from testnuc._base.checks import valid_text
from testnuc._engine.batch import FATAL_ERRORS
from testnuc._engine.inputs import distinct, values
from testnuc._engine.rows import classification
from testnuc.errors import InvalidInputError
from testnuc.types import Classification

if TYPE_CHECKING:
    from typing import TypeAlias

    from testnuc._engine.escalation import Escalation
    from testnuc._engine.pipeline import Pipeline
    from testnuc._engine.run import Run

    #: A window and the position of a completed text in it; an error; None at the end.
    _Ready: TypeAlias = "tuple[_StreamedWindow, int] | Exception | None"

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
    """Put the results of all windows on the queue, then None or the exception.

    If the source of texts fails, what it has given is labeled before.
    """
    failed: Exception | None = None
    try:
        async with asyncio.TaskGroup() as tasks, aclosing(_batches(texts, size)) as batches:
            stream = _Stream(escalation)
            while True:
                try:
                    start, batch = await anext(batches)
                except StopAsyncIteration:
                    break
                except Exception as exc:  # noqa: BLE001 - raised in the consumer
                    failed = exc
                    break
                await slots.acquire()
                window = _StreamedWindow(pipeline, start, batch, ready, stream)
                # the pool grows in the order of the windows
                predict = await window.prepare()
                if predict is not None:
                    tasks.create_task(predict, name="testnuc-window")
    except BaseExceptionGroup as group:
        ready.put_nowait(_first(group))
    except Exception as exc:  # noqa: BLE001 - raised in the consumer
        ready.put_nowait(exc)
    else:
        ready.put_nowait(failed)


def _first(error: BaseException) -> Exception:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, Exception) else RuntimeError(repr(error))


@dataclass
class _Stream:
    """What the windows of a stream have in common."""

    escalation: Escalation
    #: The error that ended the run.
    stopped: Exception | None = None
    #: Windows in progress.
    open: list[Run] = field(default_factory=list)
    _answered: bool = False

    def end(self, run: Run) -> None:
        """Remove a completed window."""
        self._answered = self.answered
        self.open.remove(run)

    @property
    def answered(self) -> bool:
        """Whether any text was answered."""
        return self._answered or any(window.answers.any_own for window in self.open)


@dataclass(eq=False)
class _StreamedWindow:
    """One window: a result is queued once all predictions that it needs are known."""

    pipeline: Pipeline
    start: int
    batch: list[str]
    ready: asyncio.Queue[_Ready]
    stream: _Stream

    def __post_init__(self) -> None:
        #: Results not yet consumed.
        self.untaken = len(self.batch)
        self._problems: dict[int, str] = {}
        self._places: dict[int, int] = {}
        self._run: Run | None = None

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
        stream = self.stream
        try:
            run = await self.pipeline.prepare(
                entries, together=True, ask_first=stream.stopped is None, partial=True
            )
        except FATAL_ERRORS as error:
            if not stream.answered:
                raise
            stream.stopped = stream.stopped or error
            for position in positions:
                self.ready.put_nowait((self, position))
            return None
        stream.open.append(run)
        self._run = run
        self._places = dict(zip(positions, places.tolist(), strict=True))
        positions_of: list[list[int]] = [[] for _ in entries]
        for position, place in self._places.items():
            positions_of[place].append(position)
        return self._predict(run, positions_of)

    def result(self, position: int) -> Classification:
        """Return the classification of a completed text."""
        text, index = self.batch[position], self.start + position
        if position in self._problems:
            error: Exception | None = InvalidInputError(f"text {index} {self._problems[position]}")
        elif self._run is None:
            error = self.stream.stopped
        else:
            return classification(self._run, self._places[position], index, text)
        return Classification(
            index, text, None, 0.0, 0.0, 0, complete=True, prediction=None, error=error
        )

    async def _predict(self, run: Run, positions_of: list[list[int]]) -> None:
        stream = self.stream
        left = set(range(run.batch.n_own))
        try:
            if stream.stopped is None:
                async with aclosing(self._completed(run)) as places:
                    async for place in places:
                        left.discard(place)
                        self._hand_over(positions_of[place])
        except FATAL_ERRORS as error:
            stream.stopped = stream.stopped or error
            if not (await self.pipeline.salvage(run, error) or stream.answered):
                raise
        else:
            if stream.stopped is not None and left:
                await self.pipeline.salvage(run, stream.stopped)
        stream.end(run)
        if left:
            await self.pipeline.settle(run, stopped=True)
        for place in sorted(left):
            self._hand_over(positions_of[place])

    def _hand_over(self, positions: list[int]) -> None:
        for position in positions:
            self.ready.put_nowait((self, position))

    def _completed(self, run: Run) -> AsyncGenerator[int, None]:
        """Predict, and yield each own text when its vote can be counted."""
        # with waves, a winner is known at the end of a wave; the auto policy and the prior
        # correction need the predictions of the whole window
        settings = run.votes.settings
        learned = settings.learned is not None
        refereed = self.stream.escalation.referee is not None
        late = settings.policy is None or settings.prior is not None or learned or refereed
        late = late or self.pipeline.skips or settings.needs_no_neighbors
        waves = not late and not self.pipeline.join_pool
        if late or waves:
            return self._at_the_end(run, waves=waves)
        return self._one_by_one(run)

    async def _at_the_end(self, run: Run, *, waves: bool) -> AsyncGenerator[int, None]:
        """Predict everything, then yield each own text."""
        async with aclosing(self.pipeline.predict(run, waves=waves)) as answered:
            async for _ in answered:
                pass
        self._run, note = await self.stream.escalation.settle(run)
        if note is not None:
            _log.info("texts %d to %d: %s", self.start, self.start + len(self.batch) - 1, note)
        for place in range(run.batch.n_own):
            yield place

    async def _one_by_one(self, run: Run) -> AsyncGenerator[int, None]:
        """Yield each own text as soon as it and its neighbors have outcomes."""
        # with "stored", neighbors outside the window already have predictions
        stored = self.pipeline.neighbors == "stored"
        end = run.batch.n_own if stored else len(run.batch.entries)
        waits, waits_for = await asyncio.to_thread(_waiting, run, end)
        for place, missing in enumerate(waits):
            if not missing:
                yield place
        async with aclosing(self.pipeline.predict(run, waves=False)) as answered:
            async for other in answered:
                for place in waits_for[other]:
                    waits[place] -= 1
                    if not waits[place]:
                        yield place


def _waiting(run: Run, end: int) -> tuple[list[int], list[list[int]]]:
    """Return the number of open predictions of each own text, and the texts that wait for each.

    Counts only places below `end` without an outcome.
    """
    waits = [0] * run.batch.n_own
    waits_for: list[list[int]] = [[] for _ in run.batch.entries]
    for place in range(run.batch.n_own):
        for other in (place, *run.batch.neighbors[place].tolist()):
            if 0 <= other < end and not run.answers.has_outcome(other):
                waits[place] += 1
                waits_for[other].append(place)
    return waits, waits_for


async def _batches(
    texts: Iterable[str] | AsyncIterable[str], size: int
) -> AsyncGenerator[tuple[int, list[str]], None]:
    start, batch, failed = 0, list[str](), None
    given = _items(texts)
    while failed is None:
        try:
            batch.append(await anext(given))
        except StopAsyncIteration:
            break
        except Exception as exc:  # noqa: BLE001 - raised after what was given before it
            failed = exc
        if len(batch) == size:
            yield start, batch
            start, batch = start + size, []
    if batch:
        yield start, batch
    if failed is not None:
        raise failed


async def _items(texts: Iterable[str] | AsyncIterable[str]) -> AsyncGenerator[str, None]:
    if isinstance(texts, AsyncIterable):
        async for text in texts:
            yield text
    else:
        for text in texts:
            yield text
