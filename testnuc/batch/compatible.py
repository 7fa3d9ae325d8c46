"""The batch APIs of Mistral and Gemini, which are OpenAI's in part."""

from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import quote

import orjson

from testnuc._base.foreign import count
from testnuc.batch.apis import TAG, OpenAIBatches
from testnuc.batch.base import BatchProvider, RemoteBatch, Wait, mapping, string
from testnuc.protocols import StoredBatch
from testnuc.transport import AuxiliaryRequests

#: Mistral's statuses in OpenAI's words, where they differ.
_STATUSES = {"SUCCESS": "completed", "TIMEOUT_EXCEEDED": "expired"}


class MistralBatches(OpenAIBatches):
    """Mistral's batch jobs: files as at OpenAI, jobs with other fields.

    Documented limits: 100,000 requests and 512 MB per job.
    """

    max_requests = 100_000
    max_bytes = 512_000_000
    path = "/batch/jobs"
    limit = "page_size"
    cursor = "page"

    def line(self, custom_id: str, body: bytes) -> bytes:
        """Write one request; its path is that of the job."""
        return b'{"custom_id":"%s","body":%s}\n' % (custom_id.encode(), body)

    def _record(self, name: str, file: str) -> dict[str, Any]:
        return {
            "input_files": [file],
            "endpoint": self._endpoint,
            "model": self._provider.model,
            "metadata": {TAG: name},
        }

    def _page(self, page: dict[str, Any], number: int) -> tuple[list[dict[str, Any]], str]:
        records, _ = super()._page(page, number)
        # pages may be smaller than asked
        more = 0 < number * len(records) < (count(page.get("total")) or 0)
        return records, str(number) if more else ""

    def _remote(self, found: dict[str, Any], wait: float | None) -> RemoteBatch:
        status, files = string(found.get("status")), found.get("input_files")
        record = {
            "id": found["id"],
            "status": _STATUSES.get(status.upper(), status),
            "request_counts": {
                "total": found.get("total_requests"),
                "completed": found.get("succeeded_requests"),
                "failed": found.get("failed_requests"),
            },
            "input_file_id": files[0] if isinstance(files, list) and files else None,
            "output_file_id": found.get("output_file"),
            "error_file_id": found.get("error_file"),
            "errors": {"data": found.get("errors")},
        }
        return super()._remote(record, wait)


class GeminiBatches(OpenAIBatches):
    """Gemini's batches in OpenAI's format: files, and the list of batches, are in Google's own API.

    The list names the file of each batch, and we name the files: so a batch is found again.
    """

    tagged = False
    limit = "pageSize"
    cursor = "pageToken"

    def __init__(self, provider: BatchProvider, exchanges: AuxiliaryRequests) -> None:
        super().__init__(provider, exchanges)
        self._storage = cast("BatchProvider", _GoogleAPI(provider))

    async def prepare(self, name: str, lines: Sequence[bytes]) -> bytes:
        """Upload the requests as a file; return its id."""
        file = self._files[name] = f"files/{name}"
        facts = orjson.dumps({"file": {"name": file, "mimeType": "application/jsonl"}})
        parts = [
            b"Content-Type: application/json\r\n\r\n%s\r\n" % facts,
            b"Content-Type: application/jsonl\r\n\r\n",
        ]
        # not again: a name is given once, and the next round has another
        await self._upload("/upload/v1beta/files", "related", parts, lines, again=False)
        return file.encode()

    async def find(self, batch: StoredBatch, known: set[str], wait: Wait) -> str | None:
        """Find the batch whose file has our name."""
        self._files[batch.id.hex()] = f"files/{batch.id.hex()}"
        return await super().find(batch, known, wait)

    def _place(self, file: str, *, content: bool = False) -> str:
        return (
            f"/download/v1beta/{quote(file)}:download?alt=media" if content else f"/{quote(file)}"
        )

    def _page(self, page: dict[str, Any], number: int) -> tuple[list[dict[str, Any]], str]:  # noqa: ARG002
        records, listed = [], page.get("operations")
        for operation in map(mapping, listed if isinstance(listed, list) else ()):
            given = mapping(mapping(operation.get("metadata")).get("inputConfig"))
            records.append({"id": operation.get("name"), "input_file_id": given.get("fileName")})
        return records, string(page.get("nextPageToken"))


class _GoogleAPI:
    """A provider of Gemini's OpenAI-compatible API, as a client of Google's own API."""

    def __init__(self, provider: BatchProvider) -> None:
        self._provider = provider

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    @property
    def headers(self) -> Mapping[str, str]:
        others = dict(self._provider.headers)
        key = others.pop("Authorization", "").removeprefix("Bearer ")
        return {**others, **self.key_headers(key), "X-Goog-Upload-Protocol": "multipart"}

    def key_headers(self, key: str) -> dict[str, str]:
        return {"x-goog-api-key": key} if key else {}

    def at(self, path: str, query: str = "") -> str:
        # uploads and downloads are not below the version
        end = "/v1beta/openai" if "/v1beta/" in path else "/openai"
        return f"{self._provider.identity.removesuffix(end)}{path}{'?' if query else ''}{query}"
