"""The lines that a batch's results are made of, and the form that its requests come in."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from testnuc.testing.connection import Call, header
from testnuc.testing.gate import Problem
from testnuc.testing.wire import ANTHROPIC

if TYPE_CHECKING:
    from testnuc.testing.wire import Wire

__all__ = ["Item", "anthropic_line", "form_of", "left_line", "openai_line"]


@dataclass(slots=True)
class Item:
    """What became of one request: status and body, and what is to be done once it is told."""

    status: int
    body: bytes
    delivered: Callable[[], None] | None = None


def openai_line(name: str, item: Item) -> bytes:
    """Write a line of an output or error file."""
    return (
        b'{"id":"batch_req_%s","custom_id":"%s","response":{"status_code":%d,'
        b'"request_id":"req_1","body":%s},"error":null}'
        % (name.encode(), name.encode(), item.status, item.body)
    )


def anthropic_line(name: str, item: Item) -> bytes:
    """Write a line of Anthropic's results."""
    kind, field = (b"succeeded", b"message") if item.status == 200 else (b"errored", b"error")
    return b'{"custom_id":"%s","result":{"type":"%s","%s":%s}}' % (
        name.encode(), kind, field, item.body,
    )  # fmt: skip


def left_line(wire: Wire, name: str, kind: str) -> bytes:
    """Write the line of a request that was not executed."""
    if wire is ANTHROPIC:
        return orjson.dumps({"custom_id": name, "result": {"type": kind}})
    code = "batch_expired" if kind == "expired" else "batch_cancelled"
    error = {"code": code, "message": "This request could not be executed before the batch ended."}
    return orjson.dumps({"id": f"batch_req_{name}", "custom_id": name, "response": None,
                         "error": error})  # fmt: skip


def form_of(call: Call) -> dict[str, bytes]:
    """Return the parts of a form by name."""
    kind = (header(call.head, b"content-type") or b"").decode("latin-1")
    boundary = re.search(r'boundary="?([^";]+)', kind)
    if boundary is None:
        raise Problem(400, "expected multipart/form-data")
    parts = {}
    for part in call.body.split(b"--" + boundary[1].encode())[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        name = re.search(rb'name="([^"]+)"', head)
        if name is not None:
            parts[name[1].decode()] = content.removesuffix(b"\r\n")
    if "file" not in parts:
        raise Problem(400, "Missing required parameter: 'file'", param="file")
    return parts
