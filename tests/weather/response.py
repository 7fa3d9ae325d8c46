"""A response as its parts, so that each can be mutated."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

MiB = 1 << 20


@dataclass
class Response:
    """What a server sends, as its parts; `steps` are what it does in their place."""

    status: int | str
    headers: list[tuple[str, str]]
    body: bytes
    #: Names of the mutations.
    names: list[str] = field(default_factory=list)
    #: Whether it is well-formed HTTP with an end.
    framed: bool = True
    #: The line and headers as bytes, if they are written by hand.
    head: bytes | None = None
    #: After the head: ("send", bytes), ("wait", seconds), ("reset",), ("close",), ("half",),
    #: ("endless", bytes).
    steps: list[tuple] | None = None
    #: The body before it was encoded, if it was.
    plain: bytes | None = None
    #: After the response.
    after: list[tuple] = field(default_factory=list)

    def set(self, name: str, value: str) -> None:
        """Replace a header."""
        self.headers = [(n, v) for n, v in self.headers if n.lower() != name]
        self.headers.append((name, value))

    def value(self):
        """Return the body as a value, None if it is not JSON."""
        try:
            return json.loads(self.body if self.plain is None else self.plain)
        except (ValueError, RecursionError):
            return None
