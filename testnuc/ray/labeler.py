"""The one client of a job that calls the LLM, in an actor of its own.

So limits and budget of a job are those of a client, and a call needs nothing of other processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from testnuc._base.arrays import Float16s
from testnuc.errors import TestNUCError
from testnuc.labels import as_stored
from testnuc.protocols import PoolText
from testnuc.ray.workers import Outcome, Settings, Vectors, without_votes
from testnuc.types import Prediction, error_text

if TYPE_CHECKING:
    from testnuc._engine.components import Components
    from testnuc.limits.budget import Mark

#: Seconds for an answer of a `Labeler` about errors, which takes milliseconds.
PATIENCE = 60.0


@contextmanager
def reporting_errors(labeler: Any) -> Iterator[None]:
    """Report an error of testnuc to the job: Ray passes on its text only."""
    import ray

    try:
        yield
    except TestNUCError as error:
        with suppress(ray.exceptions.RayError):
            ray.get(labeler.fail.remote(error), timeout=PATIENCE)
        raise


class Labeler:
    """Predicts batches, several at a time; keeps why the job fails.

    If its process dies, Ray starts another one, which answers what the first one had not. Under a
    budget the job ends instead: nobody knows what the dead process has spent. `again`: whether this
    is such another process.
    """

    def __init__(self, settings: Settings, *, again: bool | None = None) -> None:
        self._settings = settings
        if again is None:
            import ray

            again = ray.get_runtime_context().was_current_actor_reconstructed
        self._again = again
        self._failure: Exception | None = None
        self._parts: Components | None = None
        self._reported: Mark = ()
        #: Of the texts that are predicted now, for a provider that uses them.
        self._vectors = Vectors()

    async def predict(
        self, entries: Sequence[PoolText], vectors: dict[bytes, Float16s]
    ) -> tuple[list[Outcome], Mark]:
        """Return the prediction of each text, or its error; and the usage since the last report.

        Raises an error if no call can succeed.
        """
        try:
            if self._parts is None:
                self._parts = without_votes(self._settings, self._vectors)
                self._reported = self._parts.meter.mark()
            if self._again and self._parts.limits.budget is not None:
                raise TestNUCError(  # noqa: TRY301
                    "the process that calls the LLM has died, and what it spent of the budget is "
                    "unknown; run the job again: stored answers are reused"
                )
            await self._parts.ready()
            self._vectors.of |= vectors
            pipeline = self._parts.pipeline
            run = pipeline.retriever.alone(entries, pipeline.settings)
            try:
                await pipeline.predict_own(run)
            finally:
                for text_hash in vectors:
                    self._vectors.of.pop(text_hash, None)
        except TestNUCError as error:
            await self.fail(error)
            raise
        before, self._reported = self._reported, self._parts.meter.mark()
        known = run.answers
        found = [known.predictions[i] or known.errors[i] for i in range(len(entries))]
        return (
            [as_stored(one) if isinstance(one, Prediction) else error_text(one) for one in found],
            tuple(now - then for now, then in zip(self._reported, before, strict=True)),
        )

    async def close(self) -> None:
        """Close the store and the connections."""
        if self._parts is not None:
            await self._parts.aclose()

    async def fail(self, error: Exception) -> None:
        """Note why the job fails; the first error stays."""
        self._failure = self._failure or error

    async def failure(self) -> Exception | None:
        """Return why the job failed: Ray's own exception holds only the text of ours."""
        return self._failure
