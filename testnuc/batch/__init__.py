"""The batch lane: predictions from providers' batch APIs, at half the price, within a day.

::

    lane       BatchLane: predictions in rounds of batches; the batch API of a provider
    rounds     requests, batches, the provider's queue of tokens; which asks are sent again
    lifecycle  one batch: intent, creation, polling, results; adoption after a crash
    manifest   the stored record of a batch; result lines to predictions, by custom_id
    base       the interface of both batch APIs
    openai     files and batches
    anthropic  message batches
    manager    ``testnuc batch``: batches without a client
"""

from __future__ import annotations

from testnuc.batch.lane import BatchLane, has_batches
from testnuc.batch.manifest import BatchStore

__all__ = ["BatchLane", "BatchStore", "has_batches"]
