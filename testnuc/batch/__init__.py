"""The batch lane: predictions from providers' batch APIs, at half the price, within a day.

::

    lane        BatchLane: asks to outcomes, in rounds of batches
    filling     asks to requests, requests to batches within the provider's limits
    courier     the life of one batch: intent, creation, waiting, results; adoption after a crash
    joining     output lines to outcomes, by custom_id alone
    records     what a store keeps of a batch
    apis        what the two batch APIs have in common
    openai      files and batches
    anthropic   message batches
    tending     what ``testnuc batch`` does without a client
"""

from __future__ import annotations

from testnuc.batch.lane import BatchLane
from testnuc.batch.manifest import BatchStore
from testnuc.batch.registry import has_batches

__all__ = ["BatchLane", "BatchStore", "has_batches"]
