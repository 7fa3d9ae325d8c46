"""A batch API whose responses are changed on their way: late, lost, damaged, or wrong."""

from __future__ import annotations

import json
from collections import Counter

import orjson

ENDED = {"completed", "failed", "expired", "cancelled"}


class Unreliable:
    """Changes the responses of a server's batch API.

    Parameters
    ----------
    llm : BatchLLM
    state : callable, optional
        Changes the JSON of a batch that is created or retrieved; it may return bytes.
    page : callable, optional
        Changes the JSON of a list of batches.
    content : callable, optional
        Changes the bytes of a download.
    response : callable, optional
        Is given the kind of each request and its response, to change it in any way.
    """

    def __init__(self, llm, *, state=None, page=None, content=None, response=None):
        self._changes = {"create": state, "retrieve": state, "list": page, "download": content}
        self._response = response
        #: Requests of each kind.
        self.calls = Counter()
        self._respond = llm.batch_server.respond
        llm.batch_server.respond = self.respond

    def respond(self, call):
        response = self._respond(call)
        if response is None:
            return None
        kind = _kind(call)
        self.calls[kind] += 1
        change = self._changes.get(kind)
        if change is not None and response.status == 200:
            if kind == "download":
                response.body = change(response.body)
            else:
                value = change(orjson.loads(response.body))
                response.body = value if isinstance(value, bytes) else json.dumps(value).encode()
        if self._response is not None:
            self._response(kind, response)
        return response


def _kind(call):
    path = call.path.rstrip("/")
    if path.endswith(("/content", "/results")):
        return "download"
    if path.endswith("batches"):
        return "create" if call.method == "POST" else "list"
    if call.method == "POST":
        return "upload" if path.endswith("files") else "cancel"
    return "retrieve" if call.method == "GET" else "delete"


def ended(batch):
    """Whether a batch has ended, in either format."""
    return batch.get("status") in ENDED or batch.get("processing_status") == "ended"


def each_line(change):
    """Return a change of a download that changes each of its lines, as bytes."""

    def changed(body):
        return b"\n".join(change(number, line) for number, line in enumerate(body.splitlines()))

    return changed


def each_result(change):
    """Return a change of a download that changes each of its lines, as JSON."""

    def changed(_, line):
        value = orjson.loads(line)
        change(value)
        return orjson.dumps(value)

    return each_line(changed)
