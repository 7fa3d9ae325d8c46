"""Formats of the batch APIs: result lines and upload forms."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from testnuc.testing.formats import ANTHROPIC
from testnuc.testing.http_connection import HTTPRequest, header
from testnuc.testing.request_checks import ErrorResponse

if TYPE_CHECKING:
    from testnuc.testing.formats import WireFormat

__all__ = ["Batch", "Item", "anthropic_line", "openai_line", "parse_form", "unexecuted_line"]


@dataclass(slots=True)
class Item:
    """Result of one request."""

    status: int
    body: bytes
    #: Called when the result is stored in the output of the batch.
    delivered: Callable[[], None] | None = None


@dataclass(slots=True)
class Batch:
    """A batch on the server."""

    id: str
    wire: WireFormat
    #: custom_id and body of each request.
    requests: list[tuple[str, dict[str, Any]]]
    #: OpenAI's endpoint, input file and metadata.
    facts: dict[str, Any]
    created: float
    #: Planned final status.
    outcome: str | None
    steps: int = 0
    status: str = "validating"
    cancelling: bool = False
    error: dict[str, Any] | None = None
    counts: dict[str, int] = field(default_factory=dict)
    #: Lines of answers, and of requests that failed.
    output: list[bytes] = field(default_factory=list)
    errors: list[bytes] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether the batch has a final status."""
        return self.status in {"completed", "failed", "expired", "cancelled"}


def openai_line(name: str, item: Item) -> bytes:
    """Render a line of OpenAI's output or error file."""
    return (
        b'{"id":"batch_req_%s","custom_id":"%s","response":{"status_code":%d,'
        b'"request_id":"req_1","body":%s},"error":null}'
        % (name.encode(), name.encode(), item.status, item.body)
    )


def anthropic_line(name: str, item: Item) -> bytes:
    """Render a line of Anthropic's results."""
    kind, field = (b"succeeded", b"message") if item.status == 200 else (b"errored", b"error")
    return b'{"custom_id":"%s","result":{"type":"%s","%s":%s}}' % (
        name.encode(), kind, field, item.body,
    )  # fmt: skip


def unexecuted_line(wire: WireFormat, name: str, kind: str) -> bytes:
    """Render the line of a request that was not executed."""
    if wire is ANTHROPIC:
        return orjson.dumps({"custom_id": name, "result": {"type": kind}})
    code = "batch_expired" if kind == "expired" else "batch_cancelled"
    error = {"code": code, "message": "This request could not be executed before the batch ended."}
    return orjson.dumps({"id": f"batch_req_{name}", "custom_id": name, "response": None,
                         "error": error})  # fmt: skip


def parse_form(call: HTTPRequest) -> dict[str, bytes]:
    """Parse multipart/form-data; returns the parts by name."""
    kind = (header(call.head, b"content-type") or b"").decode("latin-1")
    boundary = re.search(r'boundary="?([^";]+)', kind)
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
