"""What a few labeled texts teach a client: how to vote, and how far to trust a share."""

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
    from testnuc.trust import Tuning

__all__ = ["gold_labels", "tune"]


def gold_labels(labels: Sequence[str], texts: int, known: LabelSet) -> NDArray[np.int32]:
    """Return labels that a person gave as numbers."""
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
    """Choose how a pipeline votes; asks about nothing but the texts themselves."""
    pipeline.k = max(pipeline.k, MAX_NEIGHBORS)
    neighborhoods = await pipeline.prepare(entries, together=True)
    await pipeline.predict_own(neighborhoods)
    # a text that was given twice is one observation
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
    if tuning.policy is None and pipeline.settings.auto:
        # what the predictions themselves say is still to be had
        return tuning
    settings = replace(pipeline.settings, policy=None, auto=True, k=pipeline.k)
    if tuning.prior_power:
        n_labels = len(pipeline.labels.names)
        settings = replace(
            settings, prior=np.full(n_labels, 1 / n_labels), prior_power=tuning.prior_power
        )
    pipeline.settings = settings
    pipeline.decision = Decision(tuning.policy, tuning.k, str(tuning))
    return tuning
