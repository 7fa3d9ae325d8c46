"""The batch APIs of OpenAI and Anthropic; of Mistral and Gemini, which are OpenAI's in part."""

import logging
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast
from urllib.parse import quote

import orjson

from testnuc._base.foreign import count
from testnuc.batch.base import (
    BatchAPI,
    BatchProvider,
    BatchResultLine,
    QueueFullError,
    RemoteBatch,
    Wait,
    identifier,
    json_object,
    mapping,
    string,
    written,
)
from testnuc.errors import InvalidInputError, ProviderError, ServerError, TestNUCError, printable
from testnuc.limits.headers import timestamp
from testnuc.protocols import StoredBatch
from testnuc.transport import AuxiliaryRequests
from testnuc.transport.api_errors import ERROR_STATUS, STATUS
from testnuc.transport.connections import HTTPAnswer

_log = logging.getLogger("testnuc.batch")

_CHAT, _RESPONSES = "/v1/chat/completions", "/v1/responses"
#: Key in a batch's metadata; the value is our id.
TAG = "testnuc"
_ENDED = frozenset({"completed", "failed", "expired", "cancelled", "canceled"})
#: The limit of enqueued tokens, in the error of a batch that exceeds it.
_LIMIT = re.compile(r"limit: {0,9}([0-9][0-9,]{0,20})", re.IGNORECASE)
#: Error codes of requests that were not executed.
_NOT_EXECUTED = frozenset({"batch_expired", "batch_cancelled"})
#: A field of each answer: chat completions, responses.
_ANSWER = ("choices", "output")
#: Mistral's statuses in OpenAI's words, where they differ.
_STATUSES = {"SUCCESS": "completed", "TIMEOUT_EXCEEDED": "expired"}


class OpenAIBatches(BatchAPI):
    """The Batch API of OpenAI and compatible servers.

    One uploaded file of requests, two downloaded files of results. Documented limits: 50,000
    requests and 200 MB per file. The limit of enqueued tokens depends on the account; the error of
    a refused batch states it. A batch is found again by its metadata or its file.
    """

    max_requests = 50_000
    max_bytes = 200_000_000
    path = "/batches"
    page = 100
    cursor = "after"
    #: Whether records have metadata; unknown fields may be refused.
    tagged = True

    def __init__(self, provider: BatchProvider, exchanges: AuxiliaryRequests) -> None:
        if "/deployments/" in provider.identity:
            raise InvalidInputError(
                "lane='batch' does not work under the URL of an Azure deployment; give "
                "base_url='https://<resource>.openai.azure.com/openai/v1'"
            )
        super().__init__(provider, exchanges)
        path = provider.url.partition("?")[0]
        self._endpoint = _RESPONSES if path.endswith("/responses") else _CHAT
        #: Uploaded files by our id, for servers that drop metadata.
        self._files: dict[str, str] = {}

    def line(self, custom_id: str, body: bytes) -> bytes:
        return b'{"custom_id":"%s","method":"POST","url":"%s","body":%s}\n' % (
            custom_id.encode(), self._endpoint.encode(), body,
        )  # fmt: skip

    async def prepare(self, name: str, lines: Sequence[bytes]) -> bytes:
        """Upload the requests as a file; return its id."""
        parts = [
            b'Content-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n',
            b'Content-Disposition: form-data; name="file"; filename="testnuc-%s.jsonl"\r\n'
            b"Content-Type: application/jsonl\r\n\r\n" % name.encode(),
        ]
        answer = await self._upload("/files", "form-data", parts, lines)
        return str(json_object(answer)["id"]).encode()

    async def _upload(
        self,
        path: str,
        kind: str,
        parts: list[bytes],
        lines: Sequence[bytes],
        *,
        again: bool = True,
    ) -> HTTPAnswer:
        """Upload a form whose parts begin like this, the last one with the lines."""
        boundary = secrets.token_hex(16)
        mark = b"--%s\r\n" % boundary.encode()
        form = b"".join([mark, mark.join(parts), *lines, b"\r\n--%s--\r\n" % boundary.encode()])
        kind = f"multipart/{kind}; boundary={boundary}"
        return await self._store("POST", path, form, content_type=kind, again=again)

    async def create(self, name: str, prepared: bytes) -> RemoteBatch:
        self._files[name] = file = prepared.decode()
        body = orjson.dumps(self._record(name, file))
        return await self._batch("POST", self.path, body, again=False)

    def _record(self, name: str, file: str) -> dict[str, Any]:
        return {
            "input_file_id": file,
            "endpoint": self._endpoint,
            "completion_window": "24h",
            **({"metadata": {TAG: name}} if self.tagged else {}),
        }

    def _place(self, file: str, *, content: bool = False) -> str:
        """Return the path of a file."""
        return f"/files/{quote(file, safe='')}{'/content' if content else ''}"

    async def find(
        self,
        batch: StoredBatch,
        known: set[str],  # noqa: ARG002 - the name or the file is enough
        wait: Wait,
    ) -> str | None:
        """Find the batch with our id in its metadata, or with the file that we uploaded."""
        name = batch.id.hex()
        file = self._files.get(name, "")
        # the order is not documented: search all pages
        async with aclosing(self._records(wait)) as records:
            async for one, _ in records:
                tag = mapping(one.get("metadata")).get(TAG)
                if tag == name or (file and identifier(one.get("input_file_id")) == file):
                    return str(one["id"])
        return None

    async def read(self, remote: RemoteBatch, take: Callable[[BatchResultLine], None]) -> None:
        """Download both files of results."""
        failed = None
        for file in remote.results:
            try:
                await self._download(self._place(file, content=True), take)
            except ProviderError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    async def discard(self, uploads: Sequence[str]) -> None:
        """Delete uploaded files, which hold texts and count against the account's storage."""
        for file in uploads:
            try:
                await self._store("DELETE", self._place(file), again=False)
            except TestNUCError as error:  # the client may be closing
                _log.info("the uploaded file %s was not deleted: %s", file, error)

    def _remote(self, found: dict[str, Any], wait: float | None) -> RemoteBatch:
        counts = mapping(found.get("request_counts"))
        completed, failed = count(counts.get("completed")), count(counts.get("failed")) or 0
        files = [identifier(found.get(name)) for name in ("output_file_id", "error_file_id")]
        results = tuple(filter(None, files))
        status = self._words(found.get("status")).lower()
        total, done = count(counts.get("total")) or 0, (completed or 0) + failed
        error = self._error(found) if status == "failed" else None
        answered, unanswered = completed or 0, None
        if status == "completed":
            # all others were answered, whatever the count says
            unanswered = failed
        elif not completed and (files[0] or (completed is None and (error is None or results))):
            # an output contradicts a count of 0
            unanswered = 0
        uploaded = identifier(found.get("input_file_id"))
        return RemoteBatch(
            id=printable(identifier(found["id"])),
            status=status,
            # servers have other words, too
            ended=status in _ENDED or bool(results and 0 < total <= done),
            total=total,
            done=done,
            answered=answered,
            unanswered=unanswered,
            results=results,
            uploads=(uploaded,) if uploaded else (),
            error=error,
            poll_after=wait,
        )

    def _result(self, custom_id: str, found: dict[str, Any]) -> BatchResultLine | None:
        response, error = mapping(found.get("response")), found.get("error")
        failed = ERROR_STATUS.fullmatch(identifier(response.get("status_code")))
        status = int(failed[0]) if failed else None
        body = mapping(response.get("body")) or response.get("body")
        answered = any(mapping(body).get(field) for field in _ANSWER)
        if answered or (body and status is None):
            return BatchResultLine(custom_id, 200, written(body))
        if not error and status is None:
            return None
        why = self._words(mapping(error).get("code") or "no response")
        if why in _NOT_EXECUTED:
            return BatchResultLine(custom_id, 0, b"", why)
        return BatchResultLine(custom_id, status or 500, written(body or {"error": error}), why)

    def _error(self, found: dict[str, Any]) -> ProviderError | None:
        """Return why a batch failed; None if it does not say."""
        listed = mapping(found.get("errors")).get("data")
        first = mapping(listed[0]) if isinstance(listed, list) and listed else {}
        if not first:
            return None
        message = string(first.get("message")) or "the batch failed"
        code = string(first.get("code"))
        if code == "token_limit_exceeded":
            stated = _LIMIT.search(message)
            limit = int(stated[1].replace(",", "")) if stated else None
            return QueueFullError(self._words(message), limit=limit)
        # a failure of the provider is retried, a refusal is not
        status = 500 if not code or "server" in code else 400
        error = self._provider.error(status, {}, written({"error": {**first, "message": message}}))
        return error if isinstance(error, ProviderError) else ServerError(self._words(message))


#: Allowed clock difference in seconds: a batch that is not found is paid for twice.
_SKEW = 86_400.0
#: Results of Anthropic's requests that were not executed.
_ENDED_BEFORE = frozenset({"expired", "canceled"})
_COUNTS = ("processing", "succeeded", "errored", "canceled", "expired")


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


class AnthropicBatches(BatchAPI):
    """The Message Batches API: one upload with all requests, one download with all results.

    Documented limits: 100,000 requests or 256 MB per batch. A batch has no metadata. It is found
    again by the custom_ids of its requests, which only its results show.
    """

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
        async with aclosing(self._records(wait)) as records:
            async for one, pause in records:
                created = timestamp(string(one.get("created_at")))
                if created is not None and created < batch.created - _SKEW:
                    # documented: newest first, so all that follow are older
                    break
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
        if message and (kind != "errored" or message.get("content")):
            return BatchResultLine(custom_id, 200, written(message))
        if kind in _ENDED_BEFORE:
            return BatchResultLine(custom_id, 0, b"", kind)
        error = result.get("error")
        if kind != "errored" and not error:
            return None
        inner = mapping(mapping(error).get("error")) or mapping(error)
        why = self._words(inner.get("type"))
        return BatchResultLine(custom_id, STATUS.get(why, 500), written(error), why)
