"""A clock that is wrong, or was set, while a batch is created."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import orjson
import pytest

from testnuc.batch.apis import AnthropicBatches
from testnuc.protocols import StoredBatch
from testnuc.providers.anthropic import Anthropic
from testnuc.transport.connections import HTTPAnswer

HERE = datetime(2026, 1, 15, 12, tzinfo=UTC)
OURS = b"\x01" * 16


class Exchanges:
    """Answers with one batch that ended, created at a moment of the provider's clock."""

    def __init__(self, created):
        self.created = created

    async def send(self, *_, **__):
        counts = dict.fromkeys(("processing", "errored", "canceled", "expired"), 0)
        one = {
            "id": "remote",
            "type": "message_batch",
            "processing_status": "ended",
            "request_counts": {**counts, "succeeded": 1},
            "created_at": self.created.isoformat(),
        }
        return HTTPAnswer(200, {}, orjson.dumps({"data": [one], "has_more": False}))

    async def read_lines(self, provider, url, take):
        found = {"type": "succeeded", "message": {"id": "msg"}}
        take(orjson.dumps({"custom_id": f"{OURS.hex()}-0", "result": found}))


@pytest.mark.parametrize("ahead", [-14, -1, 0, 1, 14])
async def test_a_batch_is_found_although_the_clocks_differ_by_hours(ahead):
    provider = Anthropic("m", base_url="http://localhost", api_key="k")
    api = AnthropicBatches(provider, Exchanges(HERE - timedelta(hours=ahead)))
    batch = StoredBatch(OURS, b"scope", {}, 1, HERE.timestamp(), b"")

    async def wait(_):
        raise AssertionError

    assert await api.find(batch, set(), wait) == "remote"
