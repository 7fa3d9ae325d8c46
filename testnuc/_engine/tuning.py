"""Tune how a client votes from labeled texts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from testnuc._engine.inputs import values
from testnuc.errors import InvalidInputError
from testnuc.trust import MAX_NEIGHBORS, Decision, tune_votes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from testnuc._engine.pipeline import Pipeline
    from testnuc.labels import LabelSet
    from testnuc.protocols import PoolText
    from testnuc.trust import Tuning, VoteSettings

__all__ = ["gold_labels", "tune"]


def gold_labels(labels: Sequence[str], texts: int, known: LabelSet) -> NDArray[np.int32]:
    """Return the class indices of the user's labels, int32[texts]."""
    if isinstance(labels, str) or len(labels) != texts:
        raise InvalidInputError(f"there are {texts} texts; give a list of as many labels")
    numbers = []
    for position, label in enumerate(values(labels, "labels")):
        index = known.index(label) if isinstance(label, str) else None
        if index is None:
            raise InvalidInputError(f"label {position} is {label!r}, which is not in the label set")
        numbers.append(index)
    return np.array(numbers, dtype=np.int32)


async def tune(
    pipeline: Pipeline,
    entries: Sequence[PoolText],
    places: NDArray[np.int64],
    gold: NDArray[np.int32],
) -> Tuning:
    """Tune a pipeline's vote settings; calls the LLM for the given texts only.

    The settings are replaced once, at the end: a failure leaves them unchanged, and concurrent runs
    never see a partial change.
    """
    before = pipeline.settings
    wide = replace(before, k=max(before.k, MAX_NEIGHBORS))
    neighborhoods = await pipeline.prepare(entries, together=True, settings=wide)
    await pipeline.predict_own(neighborhoods)
    # a duplicate text is one observation
    _, once = np.unique(places, return_index=True)
    winners, confidences = neighborhoods.answers()
    tuning = await asyncio.to_thread(
        tune_votes,
        neighborhoods.neighbors,
        neighborhoods.similarities,
        winners,
        confidences,
        places[once],
        gold[once],
        n_classes=len(pipeline.labels.names),
    )
    # without a tuned vote, the auto policy continues to decide from the predictions
    if tuning.policy is not None or not before.auto:
        # not `before`: a concurrent call may have calibrated the settings meanwhile
        pipeline.settings = _tuned(pipeline.settings, wide.k, tuning, len(pipeline.labels.names))
    return tuning


def _tuned(settings: VoteSettings, k: int, tuning: Tuning, n_labels: int) -> VoteSettings:
    decision = Decision(tuning.policy, tuning.k, str(tuning))
    settings = replace(settings, policy=None, auto=True, k=k, decision=decision)
    if not tuning.prior_power:
        return settings
    balanced = np.full(n_labels, 1 / n_labels)
    return replace(settings, prior=balanced, prior_power=tuning.prior_power)
