"""The batch lane: predictions from providers' batch APIs, at half the price, within a day.

::

    lane          BatchLane: predictions in rounds of batches
    packing       requests, batches within the provider's limits, and its queue of tokens
    lifecycle     one batch: intent, creation, polling, results; adoption after a crash
    decoding      result lines to predictions, by custom_id
    manifest      the stored record of a batch
    retry_rounds  which requests go into another batch
    base          the interface of both batch APIs
    registry      the batch API of a provider
    openai        files and batches
    anthropic     message batches
    manager       ``testnuc batch``: batches without a client
"""

from __future__ import annotations

from testnuc.batch.lane import BatchLane
from testnuc.batch.manifest import BatchStore
from testnuc.batch.registry import has_batches

__all__ = ["BatchLane", "BatchStore", "has_batches"]
