"""Connections that are closed when a server sends what it was not asked for.

A proxy that sends a response twice, or late, would answer the next text with it. aiohttp looks for
such bytes when a connection becomes idle, and not when it is used again. And it parses all heads
that arrive together: ten thousand interim responses take a second.
"""

from __future__ import annotations

import logging
import select
from functools import partial
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

__all__ = ["ConnectionPool"]

_log = logging.getLogger("testnuc.transport")

#: Heads of responses in what is read at once: interim ones (1xx), and the last. In JSON a line
#: break is escaped, so a body does not look like them.
_HEAD, _MOST_HEADS = b"\nHTTP/", 32


class _Connection(ResponseHandler):
    """A connection that closes itself if bytes arrive while it is idle, or a flood of heads."""

    #: Whether no response is expected.
    idle = False
    _poll: Any = None

    def set_response_params(self, **parameters: Any) -> None:
        """Expect a response."""
        self.idle = False
        super().set_response_params(**parameters)

    def data_received(self, data: bytes) -> None:
        """Pass on what arrived, if a response is expected."""
        if data.count(_HEAD) > _MOST_HEADS:
            self.set_exception(aiohttp.ServerDisconnectedError("a flood of responses"))
            if self.transport is not None:
                self.transport.abort()
            return
        if not self.idle or not data:
            # nothing: what follows a large response may still be in the parser
            super().data_received(data)
        if self.idle and self.transport is not None and (data or self._buffer):
            _log.info("a connection is closed: a server sent what it was not asked for")
            self.close()

    def is_connected(self) -> bool:
        """Whether the connection can be used; an idle one only if nothing has arrived."""
        return super().is_connected() and not (self.idle and self._has_data())

    def _has_data(self) -> bool:
        """Whether the socket has bytes, or its end, that the event loop has not read yet."""
        if self._poll is None:
            if self.transport is None or not hasattr(select, "poll"):
                return False
            self._poll = select.poll()
            self._poll.register(self.transport.get_extra_info("socket"), select.POLLIN)
        return bool(self._poll.poll(0))


class ConnectionPool(aiohttp.TCPConnector):
    """The connections of a session.

    Parameters
    ----------
    limit : int
        The most connections.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit=limit)
        self._factory = partial(_Connection, loop=self._loop)  # type: ignore[assignment]

    def _release(self, key: Any, protocol: ResponseHandler, **options: Any) -> None:
        super()._release(key, protocol, **options)
        if isinstance(protocol, _Connection):
            protocol.idle = True
