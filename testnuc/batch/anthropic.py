"""Anthropic's Message Batches: one upload with all requests, one download with all results.

Documented limits: 100,000 requests or 256 MB per batch. A batch has no metadata. It is found again
by the custom_ids of its requests, which only its results show.
"""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from testnuc._base.foreign import count
from testnuc.batch.base import (
    BatchAPI,
    BatchResultLine,
    RemoteBatch,
    Wait,
    identifier,
    mapping,
    string,
    written,
)
from testnuc.errors import ProviderError, ServerError, printable
from testnuc.protocols import StoredBatch
from testnuc.transport.api_errors import STATUS

#: Allowed clock difference in seconds: a batch that is not found is paid for twice.
_SKEW = 86_400.0
#: Results of requests that were not executed.
_NOT_EXECUTED = frozenset({"expired", "canceled"})
_COUNTS = ("processing", "succeeded", "errored", "canceled", "expired")


class AnthropicBatches(BatchAPI):
    """The Message Batches API."""

    max_requests = 100_000
    max_bytes = 256_000_000
    path = "/messages/batches"
    page = 1_000
    cursor = "after_id"

    def line(self, custom_id: str, body: bytes) -> bytes:
        return b'{"custom_id":"%s","params":%s}' % (custom_id.encode(), body)

    async def prepare(self, name: str, lines: Sequence[bytes]) -> bytes:
        """Join the requests; sends nothing."""
        del name
        return b'{"requests":[' + b",\n".join(lines) + b"]}"

    async def create(self, name: str, prepared: bytes) -> RemoteBatch:
        del name
        return await self._batch("POST", self.path, prepared, again=False)

    async def find(self, batch: StoredBatch, known: set[str], wait: Wait) -> str | None:
        """Search the batches of the right size and time for one with our custom_ids.

        Only ended batches show their custom_ids, so this waits for those in progress.
        """
        unread = None
        for candidate in await self._candidates(batch, known, wait):
            remote = candidate
            while not remote.ended:
                await wait(remote.poll_after)
                remote = await self.retrieve(remote.id)
            try:
                ours = await self._is_ours(remote, batch)
            except ProviderError as error:
                if error.status_code != 404:
                    raise
                unread = error
                continue
            if ours:
                return remote.id
            known.add(remote.id)
        if unread is not None:
            raise unread
        return None

    async def _candidates(
        self, batch: StoredBatch, known: set[str], wait: Wait
    ) -> list[RemoteBatch]:
        candidates: list[RemoteBatch] = []
        async with aclosing(self._pages(wait)) as pages:
            async for listed, pause in pages:
                for one in listed:
                    created = _moment(one.get("created_at"))
                    if created is not None and created < batch.created - _SKEW:
                        # documented: newest first, so all that follow are older
                        return candidates
                    remote = self._remote(one, pause)
                    if remote.total in {0, batch.requests} and remote.id not in known:
                        candidates.append(remote)
        return candidates

    async def _is_ours(self, remote: RemoteBatch, batch: StoredBatch) -> bool:
        """Whether a batch has our custom_ids; raises 404 if it should show some, and shows none."""
        prefix = f"{batch.id.hex()}-"
        #: Whether there are results, and whether some are ours: other batches are large.
        seen = [False, False]

        def look(line: BatchResultLine) -> None:
            seen[0], seen[1] = True, seen[1] or line.custom_id.startswith(prefix)

        await self.read(remote, look)
        if not seen[0] and remote.most_answers(batch.requests):
            raise ServerError("a batch that may be ours has no results yet", status_code=404)
        return seen[1]

    async def discard(self, uploads: Sequence[str]) -> None:
        """Do nothing: requests are not uploaded as files."""

    async def read(self, remote: RemoteBatch, take: Callable[[BatchResultLine], None]) -> None:
        """Download the results."""
        # not the `results_url` of the response: the key is sent to the user's host only
        await self._download(f"{self._at(remote.id)}/results", take)

    def _remote(self, found: dict[str, Any], wait: float | None) -> RemoteBatch:
        stated = mapping(found.get("request_counts"))
        counts = {name: count(stated.get(name)) or 0 for name in _COUNTS}
        total, answered = sum(counts.values()), counts["succeeded"]
        status = self._words(found.get("processing_status")).lower()
        return RemoteBatch(
            id=printable(identifier(found["id"])),
            status=status,
            ended=status == "ended",
            total=total,
            done=total - counts["processing"],
            answered=answered,
            unanswered=total - counts["processing"] - answered,
            results=(string(found.get("results_url")),),
            poll_after=wait,
        )

    def _result(self, custom_id: str, found: dict[str, Any]) -> BatchResultLine | None:
        result = mapping(found.get("result"))
        kind, message = string(result.get("type")), mapping(result.get("message"))
        if message and kind != "errored":
            return BatchResultLine(custom_id, 200, written(message))
        if kind in _NOT_EXECUTED:
            return BatchResultLine(custom_id, 0, b"", kind)
        error = result.get("error")
        if kind != "errored" and not error:
            return None
        inner = mapping(mapping(error).get("error")) or mapping(error)
        why = self._words(inner.get("type"))
        return BatchResultLine(custom_id, STATUS.get(why, 500), written(error), why)


def _moment(stated: object) -> float | None:
    """Return a time as a UNIX timestamp; None if it is none."""
    try:
        moment = datetime.fromisoformat(str(stated))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
