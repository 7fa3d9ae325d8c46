"""Who may ask: whoever has the token or, without one, programs of this machine."""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import TYPE_CHECKING

from testnuc.server.errors import Refused
from testnuc.server.settings import is_loopback

if TYPE_CHECKING:
    from aiohttp import web

    from testnuc.server.settings import ServerSettings

__all__ = ["require_caller"]

#: What a load balancer and a generator of clients ask, and tells nothing of anybody's texts.
_OPEN = frozenset({"/healthz", "/readyz", "/openapi.json"})


def require_caller(request: web.Request, route: str, settings: ServerSettings) -> None:
    """Let a request pass, or not.

    Raises
    ------
    Refused
        401: no token, or a wrong one. 421: without a token, the address that was asked for is none
        of this machine.
    """
    if route in _OPEN:
        return
    if settings.token is None:
        host = _name(request.host)
        if not is_loopback(host):
            # a page from elsewhere whose name now leads here (DNS rebinding)
            raise Refused(
                421,
                "wrong_host",
                f"this service is asked as {host[:100]!r}; ask 127.0.0.1 or localhost, or give the "
                "service a token",
            )
        return
    given = request.headers.get("Authorization", "")
    scheme, _, value = given.partition(" ")
    page = route == "/"
    if page and scheme.lower() == "basic":
        # a browser asks its user for it: any name, the token as password
        scheme, value = "bearer", _password(value)
    token = value.strip().encode("utf-8", "surrogateescape")
    right = hmac.compare_digest(token, settings.token.encode())
    if scheme.lower() != "bearer" or not right:
        problem = "holds another token" if given else "is missing"
        raise Refused(
            401,
            "unauthorized",
            f"the Authorization header {problem}; send 'Authorization: Bearer TOKEN'",
            headers={"WWW-Authenticate": 'Basic realm="testnuc"' if page else "Bearer"},
        )


def _name(host: str) -> str:
    """Return a host without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _password(credentials: str) -> str:
    try:
        decoded = base64.b64decode(credentials, validate=True).decode("utf-8", "surrogateescape")
    except (binascii.Error, ValueError):
        return ""
    return decoded.partition(":")[2]
