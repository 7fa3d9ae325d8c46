"""The batch APIs of a test server: OpenAI's files and batches, Anthropic's message batches."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from datetime import UTC, datetime
from time import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import orjson

from testnuc.testing.batch_formats import (
    Batch,
    Item,
    anthropic_line,
    openai_line,
    parse_form,
    unexecuted_line,
)
from testnuc.testing.formats import ANTHROPIC, OPENAI, count_tokens
from testnuc.testing.http_connection import HTTPRequest, Response, header, json_response
from testnuc.testing.request_checks import ErrorResponse

if TYPE_CHECKING:
    from testnuc.testing.batch_options import Batches
    from testnuc.testing.formats import WireFormat
    from testnuc.testing.request_checks import RequestChecks

__all__ = ["BatchServer"]

_OPENAI = re.compile(r"/v1/(files|batches)(?:/([\w-]+))?(?:/(content|cancel))?/?")
_ANTHROPIC = re.compile(r"/v1/messages/batches(?:/([\w-]+))?(?:/(results|cancel))?/?")
_WINDOW = 24 * 3600
#: As documented.
_OPENAI_LIMITS = (50_000, 200_000_000)
_ANTHROPIC_LIMITS = (100_000, 256_000_000)
_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PAGE = 20


class BatchServer:
    """Serves both batch APIs: creates batches, advances them per poll, returns their results."""

    def __init__(
        self,
        options: Batches,
        checks: RequestChecks,
        answer: Callable[[WireFormat, HTTPRequest], Item],
    ) -> None:
        self.options = options
        self._checks = checks
        self._answer = answer
        self.reset()

    def reset(self) -> None:
        """Delete all batches."""
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, Batch] = {}
        self.downloads = 0
        self._uploads = 0
        self._refused = 0
        self._random = random.Random(7)  # noqa: S311 - not a secret

    def respond(self, call: HTTPRequest) -> Response | None:
        """Return the response of a batch API; None if the path belongs to neither."""
        path = call.path
        found = _ANTHROPIC.fullmatch(path)
        wire: WireFormat = ANTHROPIC if found else OPENAI
        found = found or _OPENAI.fullmatch(path)
        if found is None:
            return None
        try:
            self._checks.admit(call)
            if wire is ANTHROPIC:
                if header(call.head, b"anthropic-version") is None:
                    raise ErrorResponse(400, "anthropic-version: header is required")  # noqa: TRY301
                return self._anthropic(call, found[1], found[2])
            return self._openai(call, *found.groups(""))
        except ErrorResponse as error:
            return Response(error.status, error.body(wire), error.headers)

    # -- OpenAI ----------------------------------------------------------------------------------

    def _openai(  # noqa: PLR0911 - one return for each kind of request
        self, call: HTTPRequest, kind: str, name: str, verb: str
    ) -> Response:
        match call.method, kind, verb:
            case "POST", "files", "" if not name:
                return self._upload(call)
            case "GET", "files", "content" if name in self.files or self._output(name):
                body = self.files.get(name)
                return self._download(body if body is not None else self._output(name) or b"")
            case "DELETE", "files", "" if self.files.pop(name, None) is not None:
                return json_response({"id": name, "object": "file", "deleted": True})
            case "POST", "batches", "" if not name:
                return self._create_openai(call)
            case "GET", "batches", "" if not name:
                return self._list(call, "after", OPENAI)
            case "GET", "batches", "" if name in self.batches:
                return self._retrieve(self.batches[name])
            case "POST", "batches", "cancel" if name in self.batches:
                return self._cancel(self.batches[name])
        raise ErrorResponse(404, f"No such object: {name}", code="not_found")

    def _upload(self, call: HTTPRequest) -> Response:
        self.options.notify("upload")
        parts = parse_form(call)
        if parts.get("purpose") != b"batch":
            raise ErrorResponse(400, "Invalid value for 'purpose'", param="purpose")
        self._uploads += 1
        name = f"file-{self._uploads - 1}"
        self.files[name] = parts["file"]
        return json_response(
            {
                "id": name,
                "object": "file",
                "bytes": len(parts["file"]),
                "created_at": int(time()),
                "filename": "requests.jsonl",
                "purpose": "batch",
                "status": "processed",
            }
        )

    def _create_openai(self, call: HTTPRequest) -> Response:
        self._count_creation()
        given = orjson.loads(call.body)
        content = self.files.get(given.get("input_file_id", ""))
        if content is None:
            raise ErrorResponse(400, "No such File object", param="input_file_id")
        if given.get("completion_window") != "24h":
            raise ErrorResponse(400, "Invalid completion_window", param="completion_window")
        if given.get("endpoint") != "/v1/chat/completions":
            raise ErrorResponse(400, "Invalid endpoint", param="endpoint")
        facts = {name: given.get(name) for name in ("endpoint", "input_file_id", "metadata")}
        batch = self._new("batch", OPENAI, [], facts)
        most, size = _OPENAI_LIMITS
        lines = content.splitlines()
        if len(lines) > (self.options.max_requests or most):
            batch.error = {"code": "too_many_tasks", "message": "The batch has too many requests."}
        elif len(content) > (self.options.max_bytes or size):
            batch.error = {"code": "file_too_large", "message": "The file is too large."}
        for number, line in enumerate(lines, 1):
            try:
                task = orjson.loads(line)
                batch.requests.append((task["custom_id"], task["body"]))
                wrong = task["method"] != "POST" or task["url"] != given["endpoint"]
            except (ValueError, KeyError, TypeError):
                wrong = True
            if wrong:
                message = "This line is not parseable as valid JSON."
                batch.error = {"code": "invalid_json_line", "message": message, "line": number}
        if len({name for name, _ in batch.requests}) < len(batch.requests):
            batch.error = {"code": "duplicate_custom_id", "message": "Duplicate custom_id."}
        self._check_queue(batch)
        return self._created(batch)

    def _check_queue(self, batch: Batch) -> None:
        most = self.options.enqueued_tokens
        if most is None or batch.error is not None:
            return
        enqueued = sum(_tokens(b) for b in self.batches.values() if not b.ended)
        if enqueued > most:
            batch.error = {
                "code": "token_limit_exceeded",
                "message": f"Enqueued token limit reached. Limit: {most:,} enqueued tokens. "
                "Please try again once some in_progress batches have been completed.",
            }

    def _output(self, name: str) -> bytes | None:
        found, _, kind = name.rpartition("-")
        batch = self.batches.get(found)
        if batch is None or kind not in {"output", "errors"}:
            return None
        return b"\n".join(batch.output if kind == "output" else batch.errors) + b"\n"

    # -- Anthropic -------------------------------------------------------------------------------

    def _anthropic(self, call: HTTPRequest, name: str | None, verb: str | None) -> Response:
        if name is None and call.method == "POST":
            return self._create_anthropic(call)
        if name is None:
            return self._list(call, "after_id", ANTHROPIC)
        batch = self.batches.get(name)
        if batch is None:
            raise ErrorResponse(404, f"No such batch: {name}")
        if verb == "cancel" and call.method == "POST":
            return self._cancel(batch)
        if verb == "results":
            if not batch.ended:
                raise ErrorResponse(400, "The batch has not ended")
            return self._download(b"\n".join(batch.output + batch.errors) + b"\n")
        return self._retrieve(batch)

    def _create_anthropic(self, call: HTTPRequest) -> Response:
        self._count_creation()
        most, size = _ANTHROPIC_LIMITS
        given = orjson.loads(call.body)
        requests = [(task["custom_id"], task["params"]) for task in given["requests"]]
        if len(call.body) > (self.options.max_bytes or size):
            raise ErrorResponse(413, "Request exceeds the maximum size")
        if len(requests) > (self.options.max_requests or most):
            raise ErrorResponse(400, "requests: List should have fewer items")
        names = {name for name, _ in requests}
        if len(names) < len(requests) or not all(_CUSTOM_ID.fullmatch(name) for name in names):
            raise ErrorResponse(400, "custom_id: must be unique and match ^[a-zA-Z0-9_-]{1,64}$")
        return self._created(self._new("msgbatch", ANTHROPIC, requests, {}))

    # -- both ------------------------------------------------------------------------------------

    def _count_creation(self) -> None:
        """Count a create request; raises 429 as configured."""
        self.options.notify("create")
        if self._refused < self.options.refusals:
            self._refused += 1
            raise ErrorResponse(429, "Too many batches.", headers=b"retry-after-ms: 1\r\n")

    def _new(
        self, kind: str, wire: WireFormat, requests: list[tuple[str, dict[str, Any]]], facts: Any
    ) -> Batch:
        number, ends = len(self.batches), self.options.outcomes
        outcome = ends[number] if number < len(ends) else None
        batch = Batch(f"{kind}_{number}", wire, requests, facts, time(), outcome)
        self.batches[batch.id] = batch
        return batch

    def _created(self, batch: Batch) -> Response:
        self.options.notify("created")
        response = self._state(batch)
        if len(self.batches) - 1 in self.options.lost:
            response.delivery = "reset-before"
        return response

    def _list(self, call: HTTPRequest, cursor: str, wire: WireFormat) -> Response:
        """Return a page of batches, newest first."""
        self.options.notify("list")
        query = {name: values[0] for name, values in parse_qs(call.query).items()}
        found = [_render(b) for b in reversed(self.batches.values()) if b.wire is wire]
        start = 0
        if cursor in query:
            start = [batch["id"] for batch in found].index(query[cursor]) + 1
        stop = start + int(query.get("limit", _PAGE))
        page = found[start:stop]
        return json_response(
            {
                "data": page,
                "has_more": stop < len(found),
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
            }
        )

    def _retrieve(self, batch: Batch) -> Response:
        self.options.notify("retrieve")
        if not batch.ended:
            self._advance(batch)
        return self._state(batch)

    def _download(self, content: bytes) -> Response:
        self.options.notify("download")
        self.downloads += 1
        response = Response(200, content)
        if self.downloads <= self.options.broken:
            response.delivery = "reset-within"
        return response

    def _cancel(self, batch: Batch) -> Response:
        self.options.notify("cancel")
        if not batch.ended:
            batch.cancelling, batch.outcome, batch.status = True, "cancelled", "cancelling"
        return self._state(batch)

    def _state(self, batch: Batch) -> Response:
        """Return the state of a batch, with the poll interval."""
        wait = math.ceil(self.options.poll_after * 1000)
        body = orjson.dumps(_render(batch))
        return Response(200, body, b"openai-poll-after-ms: %d\r\n" % wait)

    def _advance(self, batch: Batch) -> None:
        batch.steps += 1
        validating = batch.wire is OPENAI and batch.steps <= self.options.validation
        if validating:
            return
        if batch.error is not None or batch.outcome == "failed":
            server = {"code": "server_error", "message": "The batch failed to be processed."}
            batch.error, batch.status = batch.error or server, "failed"
        elif batch.steps <= self.options.validation + self.options.polls and not batch.cancelling:
            batch.status = "in_progress"
        else:
            self._process(batch)
            batch.status = batch.outcome or "completed"

    def _process(self, batch: Batch) -> None:
        requests, left = batch.requests, []
        if batch.outcome is not None:
            # the executed requests are a random sample
            requests = self._random.sample(requests, int(self.options.answered * len(requests)))
            done = {name for name, _ in requests}
            left = [name for name, _ in batch.requests if name not in done]
        path = "/v1/messages" if batch.wire is ANTHROPIC else "/v1/chat/completions"
        head = b"\r\nanthropic-version: 2023-06-01\r\n"
        for name, body in requests:
            if self.options.missing and self._random.random() < self.options.missing:
                continue
            item = self._answer(batch.wire, HTTPRequest("POST", path, head, orjson.dumps(body)))
            if item.delivered is not None:
                item.delivered()
            kind = "succeeded" if item.status == 200 else "errored"
            batch.counts[kind] = batch.counts.get(kind, 0) + 1
            write = anthropic_line if batch.wire is ANTHROPIC else openai_line
            (batch.output if item.status == 200 else batch.errors).append(write(name, item))
        kind = "canceled" if batch.outcome == "cancelled" else "expired"
        if left:
            batch.counts[kind] = len(left)
            batch.errors += [unexecuted_line(batch.wire, name, kind) for name in left]
        for lines in (batch.output, batch.errors):
            part = self.options.duplicates
            lines += [line for line in lines if part and self._random.random() < part]
            if self.options.shuffle:
                self._random.shuffle(lines)


def _render(batch: Batch) -> dict[str, Any]:
    return _anthropic_batch(batch) if batch.wire is ANTHROPIC else _openai_batch(batch)


def _openai_batch(batch: Batch) -> dict[str, Any]:
    created = int(batch.created)
    return {
        "id": batch.id,
        "object": "batch",
        "status": batch.status,
        "completion_window": "24h",
        "created_at": created,
        "expires_at": created + _WINDOW,
        "errors": None if batch.error is None else {"object": "list", "data": [batch.error]},
        "output_file_id": f"{batch.id}-output" if batch.output else None,
        "error_file_id": f"{batch.id}-errors" if batch.errors else None,
        "request_counts": {
            "total": len(batch.requests),
            "completed": batch.counts.get("succeeded", 0),
            "failed": sum(batch.counts.values()) - batch.counts.get("succeeded", 0),
        },
        **batch.facts,
    }


def _anthropic_batch(batch: Batch) -> dict[str, Any]:
    counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    counts |= batch.counts
    counts["processing"] = len(batch.requests) - sum(batch.counts.values())
    status = "ended" if batch.ended else "canceling" if batch.cancelling else "in_progress"
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": counts,
        "created_at": _timestamp(batch.created),
        "expires_at": _timestamp(batch.created + _WINDOW),
        "ended_at": _timestamp(batch.created) if batch.ended else None,
        "cancel_initiated_at": _timestamp(batch.created) if batch.cancelling else None,
        "archived_at": None,
        "results_url": f"/v1/messages/batches/{batch.id}/results" if batch.ended else None,
    }


def _tokens(batch: Batch) -> int:
    return sum(
        count_tokens(sum(len(str(m["content"])) for m in body["messages"]))
        for _, body in batch.requests
    )


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
