"""The batch lane: predictions from providers' batch APIs, at half the price, within a day."""

from testnuc.batch.lane import BatchLane, has_batches
from testnuc.batch.manifest import BatchStore

__all__ = ["BatchLane", "BatchStore", "has_batches"]
