"""The synchronous client, `SyncTestNUC`: the methods of `TestNUC`, blocking."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from testnuc._base.loop_thread import Background
from testnuc._engine.components import Components
from testnuc._engine.parameters import takes_arguments_of
from testnuc.client import Facts, TestNUC
from testnuc.types import Classification

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[TestNUC, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncTestNUC, P], T]:
    """Return a blocking form of an asynchronous method."""

    @wraps(method)
    def call(self: SyncTestNUC, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._wait(method(self._client, *args, **kwargs))

    return call


class SyncTestNUC(Facts):
    """`TestNUC` for code without ``await``; takes the same arguments.

    ``with SyncTestNUC(labels, model=..) as nuc: results = nuc.classify_many(texts)``. It is
    thread-safe: a background thread runs its event loop. In a thread with a running event loop, as
    in a notebook, it blocks that one; prefer `TestNUC` there. Ctrl-C cancels the call; answers that
    were received are stored before it returns.
    """

    @takes_arguments_of(Components.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._client = client = TestNUC(*args, **kwargs)
        # what it says of itself
        vars(self).update(vars(client))
        #: Created by the first call.
        self._background: Background | None = None
        self._lock = threading.Lock()
        self._closed = False

    add = _blocking(TestNUC.add)
    ask = _blocking(TestNUC.ask)
    classify = _blocking(TestNUC.classify)
    classify_many = _blocking(TestNUC.classify_many)
    diagnose = _blocking(TestNUC.diagnose)
    distill = _blocking(TestNUC.distill)
    evaluate = _blocking(TestNUC.evaluate)
    estimate = _blocking(TestNUC.estimate)
    forget = _blocking(TestNUC.forget)
    learn = _blocking(TestNUC.learn)
    predict_pool = _blocking(TestNUC.predict_pool)
    remove = _blocking(TestNUC.remove)
    review = _blocking(TestNUC.review)
    stats = _blocking(TestNUC.stats)
    describe = _blocking(TestNUC.describe)
    unlearn = _blocking(TestNUC.unlearn)
    warm_up = _blocking(TestNUC.warm_up)

    def stream(
        self, texts: Iterable[str] | AsyncIterable[str], *, window: int = 4_096
    ) -> Iterator[Classification]:
        """Label texts from any iterable in bounded memory; see `TestNUC.stream`.

        The iterable is read in the background thread.
        """
        results = self._client.stream(texts, window=window)
        try:
            while True:
                try:
                    yield self._wait(anext(results))
                except StopAsyncIteration:
                    return
        finally:
            # if the consumer stops early, this cancels the calls in flight
            if self._background is not None:
                self._background.end(results.aclose())

    def __enter__(self) -> Self:
        try:
            self._wait(self._client.__aenter__())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait a few seconds for calls in flight, store their answers, and close everything."""
        if self._closed:
            return
        try:
            self._wait(self._client.aclose())
        finally:
            self._closed = True
            if self._background is not None:
                self._background.close()

    def _wait(self, work: Awaitable[T]) -> T:
        if self._background is None:
            with self._lock:
                if self._background is None:
                    self._background = Background("testnuc-sync")
                    # unless it is closed before, as one that is left within a stream
                    self._background.end_with(self, self._client.aclose)
        return self._background.run(work)
