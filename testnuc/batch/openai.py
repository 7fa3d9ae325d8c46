"""OpenAI's Batch API: one uploaded file of requests, two downloaded files of results.

Documented limits: 50,000 requests and 200 MB per file. The limit of enqueued tokens depends on the
account; the error of a refused batch states it. A batch is found again by its metadata.
"""

from __future__ import annotations

import logging
import re
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import orjson

from testnuc.batch.base import (
    BatchAPI,
    BatchResultLine,
    QueueFullError,
    RemoteBatch,
    json_object,
)
from testnuc.errors import InvalidInputError, ProviderError, TestNUCError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from testnuc.batch.base import BatchProvider
    from testnuc.protocols import StoredBatch
    from testnuc.transport import AuxiliaryRequests

__all__ = ["OpenAIBatches"]

_log = logging.getLogger("testnuc.batch")

_CHAT, _RESPONSES = "/v1/chat/completions", "/v1/responses"
#: Key in a batch's metadata; the value is our id.
_TAG = "testnuc"
_ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
#: The limit of enqueued tokens, in the error of a batch that exceeds it.
_LIMIT = re.compile(r"limit:\s*([\d,]*\d)", re.IGNORECASE)
#: Error codes of requests that were not executed.
_NOT_EXECUTED = frozenset({"batch_expired", "batch_cancelled"})


class OpenAIBatches(BatchAPI):
    """The Batch API of OpenAI and compatible servers."""

    max_requests = 50_000
    max_bytes = 200_000_000
    path = "/batches"
    page = 100
    cursor = "after"

    def __init__(self, provider: BatchProvider, exchanges: AuxiliaryRequests) -> None:
        if "/deployments/" in provider.identity:
            raise InvalidInputError(
                "lane='batch' does not work under the URL of an Azure deployment; give "
                "base_url='https://<resource>.openai.azure.com/openai/v1'"
            )
        super().__init__(provider, exchanges)
        path = provider.url.partition("?")[0]
        self._endpoint = _RESPONSES if path.endswith("/responses") else _CHAT

    def line(self, custom_id: str, body: bytes) -> bytes:
        """Write one request of a batch."""
        return b'{"custom_id":"%s","method":"POST","url":"%s","body":%s}\n' % (
            custom_id.encode(), self._endpoint.encode(), body,
        )  # fmt: skip

    async def prepare(self, name: str, lines: Sequence[bytes]) -> bytes:
        """Upload the requests as a file; return its id."""
        boundary = secrets.token_hex(16)
        form = b"".join(
            [
                b'--%s\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--%s\r\n'
                b'Content-Disposition: form-data; name="file"; filename="testnuc-%s.jsonl"\r\n'
                b"Content-Type: application/jsonl\r\n\r\n"
                % (boundary.encode(), boundary.encode(), name.encode()),
                *lines,
                b"\r\n--%s--\r\n" % boundary.encode(),
            ]
        )
        kind = f"multipart/form-data; boundary={boundary}"
        answer = await self._send("POST", "/files", form, content_type=kind)
        return str(json_object(answer)["id"]).encode()

    async def create(self, name: str, prepared: bytes) -> RemoteBatch:
        """Create the batch of a file."""
        body = {
            "input_file_id": prepared.decode(),
            "endpoint": self._endpoint,
            "completion_window": "24h",
            "metadata": {_TAG: name},
        }
        return await self._batch("POST", self.path, orjson.dumps(body), again=False)

    async def find(
        self,
        batch: StoredBatch,
        known: frozenset[str],  # noqa: ARG002 - the name in the metadata is enough
        wait: Callable[[float | None], Awaitable[None]],  # noqa: ARG002
    ) -> str | None:
        """Find the batch with our id in its metadata."""
        name = batch.id.hex()
        after = ""
        while True:
            # the order is not documented: search all pages
            found, _, after = await self._listed(after)
            for one in found:
                if (one.get("metadata") or {}).get(_TAG) == name:
                    return str(one["id"])
            if not after:
                return None

    async def read(self, remote: RemoteBatch, take: Callable[[BatchResultLine], None]) -> None:
        """Download both files of results."""
        for file in remote.results:
            await self._download(f"/files/{quote(file, safe='')}/content", take)

    async def discard(self, uploads: Sequence[str]) -> None:
        """Delete uploaded files, which hold texts and count against the account's storage."""
        for file in uploads:
            try:
                await self._send("DELETE", f"/files/{quote(file, safe='')}", again=False)
            except TestNUCError as error:  # the client may be closing
                _log.info("the uploaded file %s was not deleted: %s", file, error)

    def _remote(self, found: dict[str, Any], wait: float | None) -> RemoteBatch:
        counts = found.get("request_counts") or {}
        files = (found.get("output_file_id"), found.get("error_file_id"))
        status = str(found.get("status"))
        return RemoteBatch(
            id=str(found["id"]),
            status=status,
            ended=status in _ENDED,
            total=counts.get("total") or 0,
            done=(counts.get("completed") or 0) + (counts.get("failed") or 0),
            results=tuple(str(file) for file in files if file),
            uploads=tuple(str(file) for file in (found.get("input_file_id"),) if file),
            error=self._error(found) if status == "failed" else None,
            poll_after=wait,
        )

    def _result(self, custom_id: str, found: dict[str, Any]) -> BatchResultLine:
        answer, error = found.get("response"), found.get("error") or {}
        if answer and answer.get("body") is not None:
            return BatchResultLine(
                custom_id, int(answer["status_code"]), orjson.dumps(answer["body"])
            )
        why = str(error.get("code") or "no response")
        if why in _NOT_EXECUTED:
            return BatchResultLine(custom_id, 0, b"", why)
        return BatchResultLine(custom_id, 500, orjson.dumps({"error": error}), why)

    def _error(self, found: dict[str, Any]) -> ProviderError:
        listed = (found.get("errors") or {}).get("data") or [{}]
        first = {"message": "the batch failed", **listed[0]}
        code = str(first.get("code") or "")
        if code == "token_limit_exceeded":
            stated = _LIMIT.search(str(first["message"]))
            limit = int(stated[1].replace(",", "")) if stated else None
            return QueueFullError(str(first["message"]), limit=limit)
        # a failure of the provider is retried, a refusal is not
        status = 500 if not code or "server" in code else 400
        error = self._provider.error(status, {}, orjson.dumps({"error": first}))
        assert isinstance(error, ProviderError)
        return error
