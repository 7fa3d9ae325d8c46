"""What a provider's batch API may do: be late, lose, damage, repeat, or contradict itself."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testnuc.testing.server import HTTPRequest, Response

#: Each changes the responses of some of the jobs; several may meet.
KINDS = (
    "late", "no-counts", "zero-counts", "failed", "strange", "no-id", "gone", "empty", "cut",
    "nan", "noise", "no-status", "unlisted", "unread",
)  # fmt: skip
ENDED = {"completed", "failed", "expired", "cancelled"}
NOISE = (b"", b"{", b"null", b'{"custom_id":"%s"}' % (b"1" * 5000), b"\xff\xfe")


class BatchFaults:
    """Faults of a server's batch jobs, drawn from a seed; each kind ends after a few responses.

    Then results are returned while a client still asks for them.
    """

    def __init__(self, seed: int) -> None:
        # not the first draws of the world, which are alike in all worlds with jobs
        random = Random(f"jobs {seed}")
        share = random.choice((0.0, 0.1, 0.5))
        kinds = [kind for kind in KINDS if random.random() < share]
        self._left = {kind: random.randint(1, 5) for kind in kinds}

    def change(self, call: HTTPRequest, response: Response) -> None:
        """Change the response to a request."""
        if response.status != 200:
            return
        path = call.path
        if path.endswith("/content"):
            self._download(response)
        elif path.endswith("/batches") and call.method == "GET":
            if self._now("unlisted"):
                response.body = b'{"data": [], "has_more": false}'
        elif "/batches" in path:
            self._state(response, created=call.method == "POST")

    def _now(self, kind: str) -> bool:
        left = self._left.get(kind, 0)
        self._left[kind] = left - 1
        return left > 0

    def _state(self, response: Response, *, created: bool) -> None:
        batch = json.loads(response.body)
        if self._now("strange"):
            response.body = b"[1, null]"
            return
        if self._now("no-id"):
            batch["id"] = None
        if not created:
            if batch["status"] in ENDED:
                self._end(batch)
            if self._now("gone"):
                response.status, batch = 404, {"error": {"message": "not found"}}
        response.body = json.dumps(batch).encode()

    def _end(self, batch: dict) -> None:
        answered = batch["status"] in {"completed", "expired"}
        if answered and self._now("late"):
            batch["output_file_id"] = batch["error_file_id"] = None
        if answered and self._now("no-counts"):
            batch["request_counts"] = None
        if answered and self._now("zero-counts"):
            batch["request_counts"] = {"total": 0, "completed": 0, "failed": 0}
        if answered and batch["output_file_id"] and self._now("failed"):
            batch["status"] = "failed"
            batch["errors"] = {"data": [{"code": "server_error", "message": "failed"}]}

    def _download(self, response: Response) -> None:
        body = response.body
        lines = body.splitlines()
        if self._now("unread"):
            response.status, body = 404, b'{"error":{"message":"not found"}}'
        elif self._now("empty"):
            body = b""
        elif self._now("cut"):
            body = body[: len(body) // 2]
        elif self._now("nan"):
            body = body.replace(b'"response":', b'"cost":NaN,"response":')
        elif self._now("noise"):
            body = b"\xef\xbb\xbf" + b"\r\n".join([*lines, *NOISE, *lines[:3]])
        elif self._now("no-status"):
            body = body.replace(b'"status_code":200,', b"")
        response.body = body
