"""Conversion of batch rows, for both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from testnuc.protocols import StoredBatch
from testnuc.types import Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["from_row"]


def from_row(row: Sequence[Any]) -> StoredBatch:
    """Convert a database row to a batch.

    Parameters
    ----------
    row : sequence
        id, scope, facts (JSON), requests, created, items, remote, outcome, usage (JSON or None).
    """
    number, scope, facts, requests, created, items, remote, outcome, usage = row
    return StoredBatch(
        id=number,
        scope=scope,
        facts=orjson.loads(facts),
        requests=requests,
        created=created,
        items=items,
        remote_id=remote,
        outcome=outcome,
        usage=None if usage is None else Usage(**orjson.loads(usage)),
    )
