"""Classify a stream of texts, window by window; results are yielded as they complete."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from testnuc._base.checks import valid_text, values
from testnuc._base.loop_thread import is_cancelled
from testnuc._engine.batch import FATAL_ERRORS
from testnuc._engine.escalation import Escalation
from testnuc._engine.inputs import distinct
from testnuc._engine.pipeline import Pipeline
from testnuc._engine.rows import classification
from testnuc._engine.run import Run
from testnuc.errors import InvalidInputError
from testnuc.protocols import PoolText
from testnuc.transport.calls import PATIENCE
from testnuc.types import Classification

_log = logging.getLogger("testnuc.client.runs")


async def stream_windows(
    pipeline: Pipeline, texts: Iterable[str] | AsyncIterable[str], size: int, escalation: Escalation
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
    stream = _Stream(pipeline, escalation)
    producer = asyncio.create_task(stream.produce(texts, size), name="testnuc-stream")
    try:
        while (item := await stream.ready.get()) is not None:
            if isinstance(item, Exception):
                raise item
            window, position = item
            yield window.result(position, stream)
            window.untaken -= 1
            # creating results takes CPU time: yield to other tasks in between
            await asyncio.sleep(0)
            if not window.untaken:
                stream.slots.release()
    finally:
        producer.cancel()
        await asyncio.gather(producer, return_exceptions=True)


@dataclass(eq=False)
class _Window:
    """Texts that are labeled together."""

    #: The position of each text in the stream.
    indices: Sequence[int]
    texts: list[str]

    def __post_init__(self) -> None:
        #: Results not yet consumed.
        self.untaken = len(self.texts)
        #: What is wrong with the text at each position; None: nothing.
        self.problems = list(map(valid_text, self.texts))
        #: The place in the run of the text at each position.
        self.places: dict[int, int] = {}
        #: None: an error ended the stream before.
        self.run: Run | None = None

    def result(self, position: int, stream: "_Stream") -> Classification:
        text, index, problem = self.texts[position], self.indices[position], self.problems[position]
        if problem is None and self.run is not None:
            return classification(self.run, self.places[position], index, text)
        error = stream.stopped if problem is None else InvalidInputError(f"text {index} {problem}")
        return stream.pipeline.predictor.labels.unlabeled(index, text, error)


@dataclass(eq=False)
class _Stream:
    """A result is queued once all predictions that it needs are known."""

    pipeline: Pipeline
    escalation: Escalation
    #: A window and the position of a completed text in it; an error; None at the end.
    ready: asyncio.Queue[tuple[_Window, int] | Exception | None] = field(
        default_factory=asyncio.Queue
    )
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    #: The error that ended the run.
    stopped: Exception | None = None
    #: Windows in progress.
    _open: list[Run] = field(default_factory=list)
    _any_answered: bool = False

    @property
    def _answered(self) -> bool:
        return self._any_answered or any(run.answers.any_own for run in self._open)

    async def produce(self, texts: Iterable[str] | AsyncIterable[str], size: int) -> None:
        """Put the results of all windows on the queue, then None or the exception.

        If the source of texts fails, what it has given is labeled before.
        """
        failed: Exception | None = None
        try:
            async with asyncio.TaskGroup() as tasks, aclosing(_batches(texts, size)) as batches:
                start = 0
                async for batch in batches:
                    if isinstance(batch, Exception):
                        failed = batch
                        break
                    for places in await self._in_turn(batch):
                        await self.slots.acquire()
                        indices = [start + place for place in places]
                        window = _Window(indices, [batch[place] for place in places])
                        # the pool grows in the order of the windows
                        predict = await self._prepare(window)
                        if predict is not None:
                            tasks.create_task(predict, name="testnuc-window")
                    start += len(batch)
        except (BaseExceptionGroup, Exception) as exc:  # noqa: BLE001 - raised in the consumer
            failed = _first(exc)
        self.ready.put_nowait(failed)

    async def _in_turn(self, texts: list[str]) -> list[list[int]]:
        """Return places of texts that are labeled together; of a request, first what needs no call.

        It is stored, or a person labeled it.
        """
        places = list(range(len(texts)))
        if PATIENCE.get().seconds is None:
            return [places]
        entries = [PoolText.of(text) for text in texts]
        stored = await self.pipeline.retriever.stored(entries)
        labels = await self.pipeline.pool.labels([entry.hash for entry in entries])
        known = [p for p, *of in zip(places, stored, labels, strict=True) if of != [None, None]]
        return [part for part in (known, sorted({*places} - {*known})) if part]

    def _hand_over(self, window: _Window, positions: Iterable[int]) -> None:
        for position in positions:
            self.ready.put_nowait((window, position))

    async def _prepare(self, window: _Window) -> Coroutine[None, None, None] | None:
        """Add the texts to the pool and retrieve neighbors; returns a coroutine that predicts."""
        valid = [at for at, problem in enumerate(window.problems) if problem is None]
        self._hand_over(window, [at for at in range(len(window.texts)) if window.problems[at]])
        entries, places = await distinct([window.texts[at] for at in valid])
        if not entries:
            return None
        window.places = dict(zip(valid, places.tolist(), strict=True))
        try:
            run = await self.pipeline.prepare(
                entries, together=True, ask_first=self.stopped is None, partial=True
            )
        except FATAL_ERRORS as error:
            if not self._answered:
                raise
            self.stopped = self.stopped or error
            self._hand_over(window, valid)
            return None
        self._open.append(run)
        window.run = run
        return self._predict(window, run)

    async def _predict(self, window: _Window, run: Run) -> None:
        """Predict, and hand over each text when its vote can be counted."""
        left: list[list[int]] = [[] for _ in range(run.batch.n_own)]
        for position, place in window.places.items():
            left[place].append(position)

        def complete(place: int) -> None:
            positions, left[place] = left[place], []
            self._hand_over(window, positions)

        run.failure = run.failure or self.stopped
        one_by_one, waves = self._when_known(run)
        on_place: Callable[[int], object] = int
        if one_by_one and run.failure is None:
            # with "stored", neighbors outside the window already have predictions
            stored = self.pipeline.neighbors == "stored"
            known = run.batch.n_own if stored else len(run.batch.entries)
            on_place = await asyncio.to_thread(_countdown, run, known, complete)
            on_place(-1)
        try:
            await self.pipeline.complete(run, waves=waves, on_place=on_place)
            if run.failure is None and not one_by_one:
                window.run, note = await self.escalation.settle(run)
                if note is not None:
                    _log.info("texts %d to %d: %s", window.indices[0], window.indices[-1], note)
        except FATAL_ERRORS as error:
            if not self._answered:
                raise
            run.failure = error
        self._any_answered = self._answered
        self._open.remove(run)
        if run.failure is not None:
            self.stopped = self.stopped or run.failure
            await self.pipeline.settle(run)
        for place in range(run.batch.n_own):
            complete(place)

    def _when_known(self, run: Run) -> tuple[bool, bool]:
        """Return whether texts are completed one by one, and whether neighbors come in waves.

        With waves, a winner is known at the end of a wave; the auto policy and the prior correction
        need the predictions of the whole window.
        """
        settings = run.votes.settings
        late = settings.policy is None or settings.prior is not None or self.pipeline.skips
        late = late or settings.learned is not None or settings.needs_no_neighbors
        late, join_pool = late or self.escalation.referee is not None, self.pipeline.join_pool
        return not late and join_pool, not (late or join_pool)


def _first(error: BaseException) -> Exception:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, Exception) else RuntimeError(repr(error))


def _countdown(run: Run, end: int, complete: Callable[[int], None]) -> Callable[[int], None]:
    """Return what completes the own texts that waited for nothing but one more prediction.

    Of places below `end` without an outcome; -1 completes the texts that wait for none.
    """
    waits, waits_for = [0] * run.batch.n_own, defaultdict[int, list[int]](list)
    for place in range(run.batch.n_own):
        for other in (place, *run.batch.neighbors[place].tolist()):
            if 0 <= other < end and not run.answers.has_outcome(other):
                waits[place] += 1
                waits_for[other].append(place)
        if not waits[place]:
            waits[place] = 1
            waits_for[-1].append(place)

    def count_down(other: int) -> None:
        for place in waits_for.get(other, ()):
            waits[place] -= 1
            if not waits[place]:
                complete(place)

    return count_down


async def _batches(
    texts: Iterable[str] | AsyncIterable[str], size: int
) -> AsyncGenerator[list[str] | Exception, None]:
    """Yield the texts in lists; if their source fails, its error at last."""
    batch, failed = list[str](), None
    try:
        async for text in texts if isinstance(texts, AsyncIterable) else _one_by_one(texts):
            batch.append(text)
            if len(batch) == size:
                yield batch
                batch = []
    except (Exception, asyncio.CancelledError) as exc:  # raised after what was given
        if is_cancelled():
            raise
        failed = _first(exc)
    if batch:
        yield batch
    if failed is not None:
        yield failed


async def _one_by_one(texts: Iterable[str]) -> AsyncGenerator[str, None]:
    for text in texts:
        yield text
