"""What a run reports: progress, notes, warnings, a summary in the log."""

import asyncio
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from testnuc._engine.components import Components
from testnuc._engine.run import Run
from testnuc._engine.shortlist import compare_with_full_labels, coverage_of
from testnuc._engine.votes import note_of_kept
from testnuc.errors import EmbeddingError, SmallPoolWarning
from testnuc.progress import Observer, start_progress
from testnuc.results import Results
from testnuc.trust.auto_policy import MIN_PREDICTIONS
from testnuc.types import error_text

_log = logging.getLogger("testnuc.client")

#: `stacklevel` of warnings: the code that called the client.
_CALLER = 4


@contextmanager
def shown(parts: Components, total: int, *, progress: bool | Observer) -> Iterator[Observer]:
    """Show progress; failed attempts are passed on to an observer that wants them."""
    before = parts.meter.mark()
    bar = start_progress(progress, total, lambda: parts.meter.since(before))
    try:
        with parts.transport.observed(getattr(bar, "note", None)):
            yield bar
    finally:
        bar.close()


async def compare(parts: Components, run: Run, lane: str) -> None:
    """Note what a vote would change, and how prompts that show some labels compare."""
    if parts.referee is None:
        note = await asyncio.to_thread(note_of_kept, run.votes, run.batch.n_own)
        run.notes.append(note)
    if parts.shortlist is not None and lane == "live":
        live = parts.pipeline.lanes["live"]
        await compare_with_full_labels(run, parts.predictor, live)


def coverage(parts: Components, run: Run) -> dict[str, int]:
    """Return how many shortlists hold each label, and note those that none holds."""
    labels, lists = parts.labels, run.batch.shortlists
    if lists is None:
        return {}
    counts, note = coverage_of(lists, labels.names, labels.none_label)
    run.notes.append(note)
    return counts


def summarize(parts: Components, results: Results, distinct_texts: int) -> None:
    """Log a summary of a run, and record its texts in the telemetry."""
    usage, failed, outside = results.usage, len(results.errors), len(results.unmatched)
    unlabeled = results.labels.count(None)
    _log.log(
        logging.WARNING if failed or outside else logging.INFO,
        "%s: %d texts (%d distinct), %d calls, %d predictions from the store, %d texts whose "
        "own call failed, %d answers outside the labels, %d texts without a label, %s USD, "
        "%.1f s",
        parts.model,
        len(results),
        distinct_texts,
        usage.calls,
        usage.store_hits,
        failed,
        outside,
        unlabeled,
        "unknown" if usage.usd is None else f"{usage.usd:.6f}",
        results.seconds,
    )
    if results.learned is None and results.diagnosis is not None:
        _log.info("%s", results.diagnosis.sentence())
    telemetry = parts.telemetry
    if telemetry is not None:
        telemetry.texts("labeled", len(results) - unlabeled)
        telemetry.texts("unlabeled", unlabeled)


def warn_of_few(parts: Components, run: Run) -> None:
    """Warn, once for each client, if few neighbors or none can vote, or if policy auto has few."""
    settings = run.votes.settings
    if run.failure is not None:
        if isinstance(run.failure, EmbeddingError):
            problem = f"no neighbor votes, as the embedder failed: {error_text(run.failure)}"
            _warn(parts, SmallPoolWarning(problem))
        return
    if run.votes.diagnosis is not None:
        _warn(parts, few_predictions(run.votes.diagnosis.predictions))
    if settings.policy is not None and not settings.needs_no_neighbors:
        most = int((run.batch.neighbors >= 0).sum(axis=1).max(initial=0))
        stored = parts.pipeline.neighbors == "stored"
        _warn(parts, few_neighbors(settings.k, len(parts.pool), most, stored=stored))


def _warn(parts: Components, warning: SmallPoolWarning | None) -> None:
    if warning is not None and not parts.warned:
        parts.warned = True
        warnings.warn(warning, stacklevel=_CALLER)


def few_predictions(found: int, more: str = "label more texts at once") -> SmallPoolWarning | None:
    """Return a warning if there are too few predictions for the auto policy.

    `more` says how to get more of them, for the message.
    """
    if found >= MIN_PREDICTIONS:
        return None
    return SmallPoolWarning(
        f"policy 'auto' has {found} predictions and needs {MIN_PREDICTIONS}: the LLM's own labels "
        "are kept",
        f"{more}, or judge fifty texts: `await nuc.review(50)`",
        "label more texts at once, or judge fifty of them: testnuc review",
    )


def few_neighbors(
    k: int,
    texts: int,
    found: int,
    *,
    stored: bool,
    more: str = "add unlabeled texts with `await nuc.add(texts)`",
) -> SmallPoolWarning | None:
    """Return a warning if fewer than k neighbors can vote: `found` at most of `texts` in the pool.

    `stored`: only texts with a stored prediction vote; `more` says how to get more texts.
    """
    if found >= k:
        return None
    voters = f"at most {found} neighbors vote" if found else "only the text itself votes"
    remedy = f"{more}, or give a smaller k"
    options = "label more texts at once, or give a smaller --k"
    if stored:
        remedy += "; with neighbors='stored' only texts with a prediction vote, see predict_pool"
        options += "; with --neighbors stored only texts with a stored answer vote"
    return SmallPoolWarning(
        f"k is {k}, but the pool holds {texts} texts: {voters}", remedy, options
    )
