"""OpenAI's Batch API: a file of requests goes up, two files of results come down.

Limits as documented: 50,000 requests and 200 MB in a file; how many tokens may be enqueued is of
the account and told by the provider. A batch carries metadata, by which it is found again.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import orjson

from testnuc.batch.base import BatchResultLine, QueueFullError, RemoteBatch, poll_after
from testnuc.errors import InvalidInputError, ProviderError, ServerError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from testnuc.batch.base import BatchProvider
    from testnuc.protocols import StoredBatch
    from testnuc.transport import Exchanges
    from testnuc.transport.connections import HTTPAnswer

__all__ = ["OpenAIBatches"]

_ENDPOINT = "/v1/chat/completions"
#: The key of our name in a batch's metadata.
_TAG = "testnuc"
_ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
_PAGE = 100
#: How many tokens may be enqueued, in the message that says that there are more.
_LIMIT = re.compile(r"limit:\s*([\d,]*\d)", re.IGNORECASE)
#: Codes of requests that a batch did not come to.
_LEFT = frozenset({"batch_expired", "batch_cancelled"})


class OpenAIBatches:
    """The Batch API of OpenAI, and of servers that speak it.

    Parameters
    ----------
    provider : BatchProvider
    exchanges : Exchanges
    """

    max_requests = 50_000
    max_bytes = 200_000_000

    def __init__(self, provider: BatchProvider, exchanges: Exchanges) -> None:
        if "/deployments/" in provider.identity:
            raise InvalidInputError(
                "lane='batch' does not work under the URL of an Azure deployment; give "
                "base_url='https://<resource>.openai.azure.com/openai/v1'"
            )
        self._provider = provider
        self._exchanges = exchanges

    def line(self, custom_id: str, body: bytes) -> bytes:
        """Write one request of a batch."""
        return b'{"custom_id":"%s","method":"POST","url":"%s","body":%s}\n' % (
            custom_id.encode(), _ENDPOINT.encode(), body,
        )  # fmt: skip

    async def prepare(self, name: str, lines: Sequence[bytes]) -> bytes:
        """Upload the requests as a file; returns its id."""
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
        return str(self._read(answer)["id"]).encode()

    async def create(self, name: str, prepared: bytes) -> RemoteBatch:
        """Create the batch of a file."""
        body = {
            "input_file_id": prepared.decode(),
            "endpoint": _ENDPOINT,
            "completion_window": "24h",
            "metadata": {_TAG: name},
        }
        return self._batch(await self._send("POST", "/batches", orjson.dumps(body), again=False))

    async def retrieve(self, remote_id: str) -> RemoteBatch:
        """Ask for the state of a batch."""
        return self._batch(await self._send("GET", f"/batches/{quote(remote_id, safe='')}"))

    async def cancel(self, remote_id: str) -> RemoteBatch:
        """Ask to end a batch early."""
        return self._batch(await self._send("POST", f"/batches/{quote(remote_id, safe='')}/cancel"))

    async def find(
        self,
        batch: StoredBatch,
        known: frozenset[str],  # noqa: ARG002 - the name in the metadata is enough
        wait: Callable[[float | None], Awaitable[None]],  # noqa: ARG002
    ) -> str | None:
        """Look for the batch that carries our name in its metadata."""
        name = batch.id.hex()
        query = {"limit": str(_PAGE)}
        while True:
            # in which order they come is not documented: all are looked through
            url = self._provider.at("/batches", urlencode(query))
            page = self._read(await self._exchanges.send(self._provider, "GET", url))
            found: list[dict[str, Any]] = page.get("data") or []
            for one in found:
                if (one.get("metadata") or {}).get(_TAG) == name:
                    return str(one["id"])
            if not page.get("has_more") or not found:
                return None
            query["after"] = str(found[-1]["id"])

    async def read(self, remote: RemoteBatch, take: Callable[[BatchResultLine], None]) -> None:
        """Download both files of results."""

        def each(content: bytes) -> None:
            line = _line(content)
            if line is not None:
                take(line)

        for file in remote.results:
            url = self._provider.at(f"/files/{quote(file, safe='')}/content")
            await self._exchanges.read_lines(self._provider, url, each)

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        content_type: str = "application/json",
        again: bool = True,
    ) -> HTTPAnswer:
        url = self._provider.at(path)
        return await self._exchanges.send(
            self._provider, method, url, body, content_type=content_type, again=again
        )

    def _read(self, answer: HTTPAnswer) -> dict[str, Any]:
        try:
            found = orjson.loads(answer.data)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ServerError("the batch API answered with something that is no JSON object")
        return found

    def _batch(self, answer: HTTPAnswer) -> RemoteBatch:
        found = self._read(answer)
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
            error=self._why(found) if status == "failed" else None,
            poll_after=poll_after(answer.headers),
        )

    def _why(self, found: dict[str, Any]) -> ProviderError:
        listed = (found.get("errors") or {}).get("data") or [{}]
        first = {"message": "the batch failed", **listed[0]}
        code = str(first.get("code") or "")
        if code == "token_limit_exceeded":
            told = _LIMIT.search(str(first["message"]))
            limit = int(told[1].replace(",", "")) if told else None
            return QueueFullError(str(first["message"]), limit=limit)
        # what the provider itself could not do is worth another try; what it refuses is not
        status = 500 if not code or "server" in code else 400
        error = self._provider.error(status, {}, orjson.dumps({"error": first}))
        assert isinstance(error, ProviderError)
        return error


def _line(content: bytes) -> BatchResultLine | None:
    """Read a line of results; None: it is none."""
    try:
        found = orjson.loads(content)
        custom_id, answer, error = found["custom_id"], found.get("response"), found.get("error")
        if not isinstance(custom_id, str):
            return None
        if answer and answer.get("body") is not None:
            return BatchResultLine(
                custom_id, int(answer["status_code"]), orjson.dumps(answer["body"])
            )
        error = error or {}
        why = str(error.get("code") or "no response")
        if why in _LEFT:
            return BatchResultLine(custom_id, 0, b"", why)
        return BatchResultLine(custom_id, 500, orjson.dumps({"error": error}), why)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
