"""A test server with batch APIs: those of OpenAI, Anthropic, Mistral and Gemini."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from time import time
from typing import Any, Final

import orjson

from testnuc.errors import InvalidInputError
from testnuc.providers.openai import OpenAI
from testnuc.testing import LoopbackLLM
from testnuc.testing.faults import LOST_KINDS
from testnuc.testing.formats import ANTHROPIC, OPENAI, ErrorResponse, WireFormat, count_tokens
from testnuc.testing.server import HTTPRequest, Response, json_response

_OPENAI = re.compile(r"/v1/(files|batches)(?:/([\w-]+))?(?:/(content|cancel))?/?")
_ANTHROPIC = re.compile(r"/v1/messages/(batches)(?:/([\w-]+))?(?:/(results|cancel))?/?")
_MISTRAL = re.compile(r"/v1/batch/(jobs)(?:/([\w-]+))?(?:/(cancel))?/?")
#: Gemini's batches are in OpenAI's format; files and the list are in Google's own API.
_GEMINI = re.compile(r"/v1beta/openai/(batches)(?:/(batches%2F[\w-]+))?(?:/(cancel))?/?")
_GOOGLE = re.compile(r"/(?:upload/|download/)?v1beta/(files|batches)(/[\w-]+)?(?::(download))?/?")
_WINDOW = 24 * 3600
#: Requests and bytes of a batch, as documented.
_LIMITS = {OPENAI: (50_000, 200_000_000), ANTHROPIC: (100_000, 256_000_000)}
_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PAGE = 20
_COUNTS = ("processing", "succeeded", "errored", "canceled", "expired")
_MISTRALS = {
    "validating": "QUEUED",
    "cancelling": "CANCELLATION_REQUESTED",
    "completed": "SUCCESS",
    "failed": "FAILED",
    "expired": "TIMEOUT_EXCEEDED",
    "cancelled": "CANCELLED",
}
#: Final statuses of a batch other than completed (None).
BATCH_OUTCOMES: Final = ("expired", "cancelled", "failed")


@dataclass(frozen=True, slots=True)
class Batches:
    """Options of the batch APIs of `BatchLLM`.

    A batch advances one step per poll, so tests do not wait for real time. The server's `Faults`
    apply to the requests of a batch, except for connection faults; each retry draws a new fault.

    Parameters
    ----------
    validation : int
        Polls during which a new batch is ``validating`` (OpenAI).
    polls : int
        Polls after that during which it is in progress.
    outcomes : sequence of (str or None)
        Final status of each batch, in order of creation. ``"expired"`` and ``"cancelled"`` batches
        have answers for some of their requests, ``"failed"`` ones for none. None, and every batch
        past the end of the sequence, means completed.
    answered : float
        Share of requests that are answered in an expired or cancelled batch, 0..1.
    shuffle : bool
        Shuffle the output lines.
    duplicates, missing : float
        Share of output lines that are duplicated or missing, 0..1. A request whose line is missing
        was not executed, and counts as failed.
    refusals : int
        Number of create requests that return 429 before the first success.
    lost : sequence of int
        Zero-based numbers of batches that are created although the response is lost (connection
        reset).
    broken : int
        Number of result downloads that are cut off before the first complete one.
    max_requests, max_bytes, enqueued_tokens : int, optional
        Limits; a batch that exceeds them is rejected or fails validation, as with the provider.
        `enqueued_tokens` limits the total of all open batches.
    page : int
        Most batches in a page of the list, whatever is asked for.
    poll_after : float
        Poll interval that the server requests from clients, in seconds.
    step : callable, optional
        Called with the name of each step before the response is sent: ``upload``, ``create``
        (before the batch exists), ``created``, ``list``, ``retrieve``, ``cancel``, ``download``.

    Raises
    ------
    InvalidInputError
        An outcome is unknown, or a share is not in 0..1.
    """

    validation: int = 0
    polls: int = 1
    outcomes: Sequence[str | None] = ()
    answered: float = 0.5
    shuffle: bool = False
    duplicates: float = 0.0
    missing: float = 0.0
    refusals: int = 0
    lost: Sequence[int] = ()
    broken: int = 0
    max_requests: int | None = None
    max_bytes: int | None = None
    enqueued_tokens: int | None = None
    page: int = 1_000
    poll_after: float = 0.001
    step: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        for outcome in self.outcomes:
            if outcome is not None and outcome not in BATCH_OUTCOMES:
                raise InvalidInputError(
                    f"unknown outcome {outcome!r}; choose from {', '.join(BATCH_OUTCOMES)}, None"
                )
        for name in ("answered", "duplicates", "missing"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidInputError(
                    f"{name} is {getattr(self, name)!r}; give a share between 0 and 1"
                )

    def notify(self, step: str) -> None:
        """Call the `step` callback."""
        if self.step is not None:
            self.step(step)


@dataclass(slots=True)
class _Batch:
    id: str
    wire: WireFormat
    #: custom_id and body of each request.
    requests: list[tuple[str, dict[str, Any]]]
    #: OpenAI's endpoint, input file and metadata.
    facts: dict[str, Any] = field(default_factory=dict)
    #: Whose batch it is, of those with OpenAI's files.
    of: str = "openai"
    created: float = field(default_factory=time)
    #: Planned final status.
    outcome: str | None = None
    steps: int = 0
    status: str = "validating"
    cancelling: bool = False
    error: dict[str, Any] | None = None
    counts: Counter[str] = field(default_factory=Counter)
    #: Lines of answers, and of requests that failed.
    output: list[bytes] = field(default_factory=list)
    errors: list[bytes] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.status in {"completed", *BATCH_OUTCOMES}

    def render(self) -> dict[str, Any]:
        """Return the state of the batch, as its provider does."""
        total, done = len(self.requests), sum(self.counts.values())
        if self.wire is OPENAI:
            succeeded = self.counts["succeeded"]
            if self.of == "mistral":
                return self._mistral(total, succeeded, done)
            counts = {"total": total, "completed": succeeded, "failed": done - succeeded}
            prefix = f"files/{self.id.removeprefix('batches/')}" if self.of == "gemini" else self.id
            return {
                "id": self.id,
                "object": "batch",
                "status": self.status,
                "completion_window": "24h",
                "created_at": int(self.created),
                "expires_at": int(self.created) + _WINDOW,
                "errors": None if self.error is None else {"object": "list", "data": [self.error]},
                "output_file_id": f"{prefix}-output" if self.output else None,
                "error_file_id": f"{prefix}-errors" if self.errors else None,
                "request_counts": counts,
                **self.facts,
            }
        counts = {name: self.counts[name] for name in _COUNTS}
        counts["errored" if self.status == "failed" else "processing"] += total - done
        running = "canceling" if self.cancelling else "in_progress"
        created = _timestamp(self.created)
        return {
            "id": self.id,
            "type": "message_batch",
            "processing_status": "ended" if self.ended else running,
            "request_counts": counts,
            "created_at": created,
            "expires_at": _timestamp(self.created + _WINDOW),
            "ended_at": created if self.ended else None,
            "cancel_initiated_at": created if self.cancelling else None,
            "archived_at": None,
            "results_url": f"/v1/messages/batches/{self.id}/results" if self.ended else None,
        }

    def _mistral(self, total: int, succeeded: int, done: int) -> dict[str, Any]:
        status = _MISTRALS.get(self.status, "RUNNING")
        return {
            "id": self.id,
            "object": "batch",
            "input_files": [self.facts["input_file_id"]],
            "metadata": self.facts["metadata"],
            "endpoint": self.facts["endpoint"],
            "model": self.facts["model"],
            "output_file": f"{self.id}-output" if self.output else None,
            "error_file": f"{self.id}-errors" if self.errors else None,
            "errors": [] if self.error is None else [{"message": self.error["message"]}],
            "status": status,
            "created_at": int(self.created),
            "total_requests": total,
            "completed_requests": done,
            "succeeded_requests": succeeded,
            "failed_requests": done - succeeded,
        }

    def google(self) -> dict[str, Any]:
        """Return the batch as Google's own list has it."""
        facts = {"inputConfig": {"fileName": self.facts["input_file_id"]}, "name": self.id}
        return {"name": self.id, "metadata": facts, "done": self.ended}

    def add(self, name: str, kind: str, answer: Response | None = None) -> None:
        """Add the result of a request; without an answer, it was not executed."""
        self.counts[kind] += 1
        body = orjson.Fragment(answer.body) if answer else None
        result: dict[str, Any] = {"custom_id": name}
        if self.wire is ANTHROPIC:
            place = "message" if kind == "succeeded" else "error"
            result["result"] = {"type": kind} | ({place: body} if answer else {})
        else:
            code = "batch_expired" if kind == "expired" else "batch_cancelled"
            message = "This request could not be executed before the batch ended."
            result |= {
                "id": f"batch_req_{name}",
                "response": answer
                and {"status_code": answer.status, "request_id": "req_1", "body": body},
                "error": None if answer else {"code": code, "message": message},
            }
        (self.output if kind == "succeeded" else self.errors).append(orjson.dumps(result))


class BatchLLM(LoopbackLLM):
    """A `LoopbackLLM` with the batch APIs of both providers.

    Parameters
    ----------
    answer : mapping or callable
    batches : Batches, optional
        Duration, outcomes and faults of batches.
    **options
        Options of `LoopbackLLM`.
    """

    def __init__(self, answer: Any, *, batches: Batches | None = None, **options: Any) -> None:
        #: The provider's side of batch jobs; tests may change its files, batches and options.
        self.batch_server = BatchServer(batches or Batches(), self._check_key, self._item)
        super().__init__(answer, **options)

    _in_batch = False

    def reset(self) -> None:
        """Reset the server, and delete all batches."""
        super().reset()
        self.batch_server.reset()

    @property
    def batches(self) -> int:
        """Number of batches created."""
        return len(self.batch_server.batches)

    def respond(self, call: HTTPRequest) -> Response:
        """Return the response to a request."""
        return self.batch_server.respond(call) or super().respond(call)

    def _item(self, wire: WireFormat, call: HTTPRequest) -> Response:
        self.requests += 1
        # a batch has limits of its own
        window, self._window, self._in_batch = self._window, None, True
        try:
            return self._answer(wire, call)
        except ErrorResponse as error:
            return error.response(wire)
        finally:
            self._window, self._in_batch = window, False

    def _draw(self, texts: Sequence[str]) -> str | None:
        fault = super()._draw(texts)
        # requests of a batch have no connection: a lost response becomes a server error
        lost = self._in_batch and fault in {*LOST_KINDS, "truncated"}
        return "500" if lost else fault


class BatchServer:
    """Serves all batch APIs: creates batches, advances them per poll, returns their results."""

    def __init__(
        self,
        options: Batches,
        check_key: Callable[[HTTPRequest], None],
        answer: Callable[[WireFormat, HTTPRequest], Response],
    ) -> None:
        self.options = options
        self._check_key = check_key
        self._answer = answer
        self.reset()

    def reset(self) -> None:
        """Delete all batches."""
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, _Batch] = {}
        self.downloads = 0
        self._uploads = 0
        self._refused = 0
        self._random = random.Random(7)

    def respond(self, call: HTTPRequest) -> Response | None:
        """Return the response of a batch API; None if the path belongs to neither."""
        found = _ANTHROPIC.fullmatch(call.path)
        wire: WireFormat = ANTHROPIC if found else OPENAI
        for one in (_OPENAI, _MISTRAL, _GEMINI):
            found = found or one.fullmatch(call.path)
        if google := _GOOGLE.fullmatch(call.path):
            return self._google(call, *google.groups(""))
        if found is None:
            return None
        try:
            self._check_key(call)
            if wire is ANTHROPIC and "anthropic-version" not in call.headers:
                raise ErrorResponse(400, "anthropic-version: header is required")  # noqa: TRY301
            return self._serve(call, wire, *found.groups(""))
        except ErrorResponse as error:
            return error.response(wire)

    def _google(self, call: HTTPRequest, kind: str, name: str, verb: str) -> Response:
        """Return a response of Google's own API: of files, and of the list of batches."""
        headers = {key: value for key, value in call.headers.items() if key != "authorization"}
        headers["authorization"] = f"Bearer {headers.get('x-goog-api-key', '')}"
        try:
            if "authorization" in call.headers:
                raise ErrorResponse(401, "Expected OAuth 2 access token.")  # noqa: TRY301
            self._check_key(replace(call, headers=headers))
            content = self._content(name.removeprefix("/"))
            content = self.files.get(f"files{name}") if content is None else content
            match call.method, kind, verb:
                case "POST", "files", "" if call.path.startswith("/upload/"):
                    return self._upload_to_google(call)
                case "GET", "files", "download" if content is not None:
                    return self._download(content)
                case "DELETE", "files", "" if self.files.pop(f"files{name}", None) is not None:
                    return json_response({})
                case "GET", "batches", "" if not name:
                    return self._list(call, OPENAI)
            raise ErrorResponse(404, f"No such object: {name}", code="not_found")  # noqa: TRY301
        except ErrorResponse as error:
            return error.response(OPENAI)

    def _upload_to_google(self, call: HTTPRequest) -> Response:
        self.options.notify("upload")
        kind = call.headers.get("content-type", "")
        if not kind.startswith("multipart/related") or (
            call.headers.get("x-goog-upload-protocol") != "multipart"
        ):
            raise ErrorResponse(400, "Expected an upload of metadata and content.")
        boundary = kind.partition("boundary=")[2].encode()
        parts = [part.partition(b"\r\n\r\n")[2] for part in call.body.split(b"--" + boundary)[1:-1]]
        facts, content = (part.removesuffix(b"\r\n") for part in parts)
        name = orjson.loads(facts)["file"]["name"]
        if not re.fullmatch(r"files/[a-z0-9-]{1,40}", name):
            raise ErrorResponse(400, "Invalid name of a file.")
        if name in self.files:
            raise ErrorResponse(409, "Requested entity already exists")
        self.files[name] = content
        return json_response({"file": {"name": name, "sizeBytes": str(len(content))}})

    def _serve(
        self, call: HTTPRequest, wire: WireFormat, kind: str, name: str, verb: str
    ) -> Response:
        kind, name = kind.replace("jobs", "batches"), name.replace("%2F", "/")
        content, batch = self._content(name), self.batches.get(name)
        match call.method, kind, verb:
            case "POST", "files", "" if not name:
                return self._upload(call)
            case "GET", "files", "content" if content is not None:
                return self._download(content)
            case "DELETE", "files", "" if self.files.pop(name, None) is not None:
                return json_response({"id": name, "object": "file", "deleted": True})
            case "POST", "batches", "" if not name:
                return self._create(call, wire)
            case "GET", "batches", "" if not name:
                return self._list(call, wire)
            case method, "batches", _ if batch is not None:
                return self._serve_batch(batch, method, verb)
        raise ErrorResponse(404, f"No such object: {name}", code="not_found")

    def _serve_batch(self, batch: _Batch, method: str, verb: str) -> Response:
        if verb == "results":
            if not batch.ended:
                raise ErrorResponse(400, "The batch has not ended")
            return self._download(b"\n".join(batch.output + batch.errors) + b"\n")
        self.options.notify("cancel" if method == "POST" else "retrieve")
        if method == "POST" and not batch.ended:
            batch.cancelling, batch.outcome, batch.status = True, "cancelled", "cancelling"
        elif not batch.ended:
            self._advance(batch)
        return self._state(batch)

    def _upload(self, call: HTTPRequest) -> Response:
        self.options.notify("upload")
        parts = _parse_form(call)
        if parts.get("purpose") != b"batch":
            raise ErrorResponse(400, "Invalid value for 'purpose'", param="purpose")
        name, content = f"file-{self._uploads}", parts["file"]
        self._uploads += 1
        self.files[name] = content
        facts = {"filename": "requests.jsonl", "purpose": "batch", "status": "processed"}
        state = {"bytes": len(content), "created_at": int(time())}
        return json_response({"id": name, "object": "file"} | facts | state)

    def _content(self, name: str) -> bytes | None:
        found, _, kind = name.rpartition("-")
        batch = self.batches.get(found) or self.batches.get(f"batches/{found}")
        if batch is None or kind not in {"output", "errors"}:
            return self.files.get(name)
        return b"\n".join(batch.output if kind == "output" else batch.errors) + b"\n"

    def _create(self, call: HTTPRequest, wire: WireFormat) -> Response:
        options, number = self.options, len(self.batches)
        options.notify("create")
        if self._refused < options.refusals:
            self._refused += 1
            raise ErrorResponse(429, "Too many batches.", headers={"retry-after-ms": "1"})
        most, largest = _LIMITS[wire]
        make = self._of_file if wire is OPENAI else _of_requests
        batch = make(call, number, options.max_requests or most, options.max_bytes or largest)
        batch.outcome = options.outcomes[number] if number < len(options.outcomes) else None
        self.batches[batch.id] = batch
        limit = options.enqueued_tokens
        if wire is OPENAI and batch.error is None and limit is not None:
            enqueued = sum(
                count_tokens(sum(len(str(m["content"])) for m in body["messages"]))
                for one in self.batches.values()
                if not one.ended
                for _, body in one.requests
            )
            if enqueued > limit:
                message = (
                    f"Enqueued token limit reached. Limit: {limit:,} enqueued tokens. "
                    "Please try again once some in_progress batches have been completed."
                )
                batch.error = {"code": "token_limit_exceeded", "message": message}
        options.notify("created")
        response = self._state(batch)
        if number in options.lost:
            response.delivery = "reset-before"
        return response

    def _of_file(self, call: HTTPRequest, number: int, most: int, largest: int) -> _Batch:
        given = orjson.loads(call.body)
        of, name = "openai", f"batch_{number}"
        if call.path.startswith("/v1/batch/jobs"):
            of, given["input_file_id"] = "mistral", given.pop("input_files")[0]
        elif call.path.startswith("/v1beta/"):
            of, name = "gemini", f"batches/g{number}"
        content = self.files.get(given.get("input_file_id", ""))
        if content is None:
            raise ErrorResponse(400, "No such File object", param="input_file_id")
        kept = _check_job(of, given)
        batch = _Batch(name, OPENAI, [], kept, of)
        lines = content.splitlines()
        if len(lines) > most:
            batch.error = {"code": "too_many_tasks", "message": "The batch has too many requests."}
        elif len(content) > largest:
            batch.error = {"code": "file_too_large", "message": "The file is too large."}
        for i, line in enumerate(lines, 1):
            try:
                task = orjson.loads(line)
                batch.requests.append((task["custom_id"], task["body"]))
                sent = task.get("method"), task.get("url")
                wrong = sent != ((None,) * 2 if of == "mistral" else ("POST", given["endpoint"]))
            except (ValueError, KeyError, TypeError):
                wrong = True
            if wrong:
                message = "This line is not parseable as valid JSON."
                batch.error = {"code": "invalid_json_line", "message": message, "line": i}
        if len(dict(batch.requests)) < len(batch.requests):
            batch.error = {"code": "duplicate_custom_id", "message": "Duplicate custom_id."}
        return batch

    def _list(self, call: HTTPRequest, wire: WireFormat) -> Response:
        self.options.notify("list")
        found = [batch for batch in reversed(self.batches.values()) if batch.wire is wire]
        names = [batch.id for batch in found]
        if call.path.startswith("/v1/batch/jobs"):
            size = min(self.options.page, int(call.query.get("page_size", _PAGE)))
            start = size * int(call.query.get("page", 0))
            listed = [batch.render() for batch in found[start : start + size]]
            return json_response({"object": "list", "data": listed, "total": len(found)})
        if call.path.startswith("/v1beta/"):
            start = int(call.query.get("pageToken", 0))
            stop = start + min(self.options.page, int(call.query.get("pageSize", _PAGE)))
            more = {"nextPageToken": str(stop)} if stop < len(found) else {}
            return json_response({"operations": [one.google() for one in found[start:stop]]} | more)
        after = call.query.get("after" if wire is OPENAI else "after_id")
        start = 0 if after is None else names.index(after) + 1
        stop = start + min(self.options.page, int(call.query.get("limit", _PAGE)))
        page = names[start:stop]
        return json_response(
            {
                "data": [batch.render() for batch in found[start:stop]],
                "has_more": stop < len(found),
                "first_id": page[0] if page else None,
                "last_id": page[-1] if page else None,
            }
        )

    def _download(self, content: bytes) -> Response:
        self.options.notify("download")
        self.downloads += 1
        broken = self.downloads <= self.options.broken
        return Response(200, content, delivery="reset-within" if broken else "whole")

    def _state(self, batch: _Batch) -> Response:
        """Return the state of a batch, with the poll interval."""
        response = json_response(batch.render())
        response.headers["openai-poll-after-ms"] = f"{math.ceil(self.options.poll_after * 1000)}"
        return response

    def _advance(self, batch: _Batch) -> None:
        batch.steps += 1
        validation = self.options.validation
        if batch.wire is OPENAI and batch.steps <= validation:
            return
        if batch.error is not None or batch.outcome == "failed":
            server = {"code": "server_error", "message": "The batch failed to be processed."}
            batch.error, batch.status = batch.error or server, "failed"
        elif batch.steps <= validation + self.options.polls and not batch.cancelling:
            batch.status = "in_progress"
        else:
            self._process(batch)
            batch.status = batch.outcome or "completed"

    def _process(self, batch: _Batch) -> None:
        options, requests = self.options, batch.requests
        if batch.outcome is not None:
            # the executed requests are a random sample
            requests = self._random.sample(requests, int(options.answered * len(requests)))
        path = "/v1/messages" if batch.wire is ANTHROPIC else "/v1/chat/completions"
        headers = {"anthropic-version": "2023-06-01"}
        for name, body in requests:
            if options.missing and self._random.random() < options.missing:
                batch.counts["errored"] += 1
                continue
            call = HTTPRequest("POST", path, headers, orjson.dumps(body))
            answer = self._answer(batch.wire, call)
            answer.delivered()
            batch.add(name, "succeeded" if answer.status == 200 else "errored", answer)
        done = dict(requests)
        for name, _ in batch.requests:
            if name not in done:
                batch.add(name, "canceled" if batch.outcome == "cancelled" else "expired")
        for lines in (batch.output, batch.errors):
            part = options.duplicates
            lines += [line for line in lines if part and self._random.random() < part]
            if options.shuffle:
                self._random.shuffle(lines)


def _check_job(of: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of the record of a new batch; raises if a field is wrong or unknown."""
    fixed: dict[str, Any] = {"endpoint": "/v1/chat/completions"}
    fixed |= {} if of == "mistral" else {"completion_window": "24h"}
    free = {"openai": {"metadata"}, "mistral": {"metadata", "model"}, "gemini": set[str]()}[of]
    for name in given.keys() | fixed.keys():
        if given.get(name) != fixed.get(name) and name not in free | {"input_file_id"}:
            raise ErrorResponse(400, f"Invalid {name}", param=name)
    return {name: given.get(name) for name in ("endpoint", "input_file_id", *sorted(free))}


def model_at(model: str, base_url: str, api_key: str) -> Any:
    """Return a model of any kind at a `BatchLLM`; for "mistral/.." and "gemini/..", a provider.

    At their own hosts, ``"openai/.."`` takes their batch APIs by itself.
    """
    kind, _, name = model.partition("/")
    if kind not in {"mistral", "gemini"}:
        return model
    path = "beta/openai" if kind == "gemini" else ""
    provider = OpenAI(name, base_url=base_url + path, api_key=api_key)
    provider.batch_format = kind
    return provider


def _of_requests(call: HTTPRequest, number: int, most: int, largest: int) -> _Batch:
    given = orjson.loads(call.body)["requests"]
    requests = [(task["custom_id"], task["params"]) for task in given]
    if len(call.body) > largest:
        raise ErrorResponse(413, "Request exceeds the maximum size")
    if len(requests) > most:
        raise ErrorResponse(400, "requests: List should have fewer items")
    names = dict(requests)
    if len(names) < len(requests) or not all(_CUSTOM_ID.fullmatch(name) for name in names):
        raise ErrorResponse(400, "custom_id: must be unique and match ^[a-zA-Z0-9_-]{1,64}$")
    return _Batch(f"msgbatch_{number}", ANTHROPIC, requests)


def _parse_form(call: HTTPRequest) -> dict[str, bytes]:
    boundary = re.search(r'boundary="?([^";]+)', call.headers.get("content-type", ""))
    if boundary is None:
        raise ErrorResponse(400, "expected multipart/form-data")
    parts = {}
    for part in call.body.split(b"--" + boundary[1].encode())[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        name = re.search(rb'name="([^"]+)"', head)
        if name is not None:
            parts[name[1].decode()] = content.removesuffix(b"\r\n")
    if "file" not in parts:
        raise ErrorResponse(400, "Missing required parameter: 'file'", param="file")
    return parts


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
