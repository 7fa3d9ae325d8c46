"""Anthropic's Message Batches: one upload with all requests, one download with all results.

Documented limits: 100,000 requests or 256 MB per batch. A batch has no metadata. It is found again
by the custom_ids of its requests, which only its results show.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import orjson

from testnuc.batch.base import BatchAPI, BatchResultLine, RemoteBatch
from testnuc.errors import ProviderError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from testnuc.protocols import StoredBatch

__all__ = ["AnthropicBatches"]

#: Allowed clock difference in seconds.
_SKEW = 600.0
#: HTTP status of each error type of a single request.
_STATUS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "overloaded_error": 529,
    "timeout_error": 504,
}
#: Results of requests that were not executed.
_NOT_EXECUTED = frozenset({"expired", "canceled"})


class AnthropicBatches(BatchAPI):
    """The Message Batches API."""

    max_requests = 100_000
    max_bytes = 256_000_000
    path = "/messages/batches"
    page = 1_000
    cursor = "after_id"

    def line(self, custom_id: str, body: bytes) -> bytes:
        """Write one request of a batch."""
        return b'{"custom_id":"%s","params":%s}' % (custom_id.encode(), body)

    async def prepare(self, name: str, lines: Sequence[bytes]) -> bytes:
        """Join the requests; sends nothing."""
        del name
        return b'{"requests":[' + b",\n".join(lines) + b"]}"

    async def create(self, name: str, prepared: bytes) -> RemoteBatch:
        """Create the batch."""
        del name
        return await self._batch("POST", self.path, prepared, again=False)

    async def find(
        self,
        batch: StoredBatch,
        known: frozenset[str],
        wait: Callable[[float | None], Awaitable[None]],
    ) -> str | None:
        """Search the batches of the right size and time for one with our custom_ids.

        Only ended batches show their custom_ids, so this waits for those in progress.
        """
        for candidate in await self._candidates(batch, known):
            remote = candidate
            while not remote.ended:
                await wait(remote.poll_after)
                remote = await self.retrieve(remote.id)
            if await self._is_ours(remote, f"{batch.id.hex()}-"):
                return remote.id
        return None

    async def _candidates(self, batch: StoredBatch, known: frozenset[str]) -> list[RemoteBatch]:
        candidates: list[RemoteBatch] = []
        after = ""
        while True:
            found, pause, after = await self._listed(after)
            for one in found:
                created = datetime.fromisoformat(str(one["created_at"])).timestamp()
                if created < batch.created - _SKEW:
                    # documented: newest first, so all that follow are older
                    return candidates
                remote = self._remote(one, pause)
                if remote.total == batch.requests and remote.id not in known:
                    candidates.append(remote)
            if not after:
                return candidates

    async def _is_ours(self, remote: RemoteBatch, prefix: str) -> bool:
        seen: list[str] = []
        try:
            await self.read(remote, lambda line: seen.append(line.custom_id[: len(prefix)]))
        except ProviderError as error:
            if error.status_code != 404:
                raise
        return prefix in seen

    async def discard(self, uploads: Sequence[str]) -> None:
        """Do nothing: requests are not uploaded as files."""

    async def read(self, remote: RemoteBatch, take: Callable[[BatchResultLine], None]) -> None:
        """Download the results."""
        # not the `results_url` of the response: the key is sent to the user's host only
        await self._download(f"{self._at(remote.id)}/results", take)

    def _remote(self, found: dict[str, Any], wait: float | None) -> RemoteBatch:
        counts: dict[str, int] = found.get("request_counts") or {}
        total = sum(counts.values())
        status = str(found.get("processing_status"))
        return RemoteBatch(
            id=str(found["id"]),
            status=status,
            ended=status == "ended",
            total=total,
            done=total - counts.get("processing", 0),
            results=(str(found.get("results_url") or ""),),
            poll_after=wait,
        )

    def _result(self, custom_id: str, found: dict[str, Any]) -> BatchResultLine:
        result = found["result"]
        kind = result["type"]
        if kind == "succeeded":
            return BatchResultLine(custom_id, 200, orjson.dumps(result["message"]))
        if kind in _NOT_EXECUTED:
            return BatchResultLine(custom_id, 0, b"", kind)
        error = result.get("error") or {}
        inner = error.get("error") or error
        why = str(inner.get("type"))
        return BatchResultLine(custom_id, _STATUS.get(why, 500), orjson.dumps(error), why)
