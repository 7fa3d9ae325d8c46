"""Authentication: by token or, without one, from this machine only."""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import TYPE_CHECKING

from testnuc.server.errors import RequestError
from testnuc.server.settings import is_loopback

if TYPE_CHECKING:
    from aiohttp import web

    from testnuc.server.settings import ServerSettings

__all__ = ["require_caller"]

#: For load balancers, client generators and pages; these responses contain no texts.
_OPEN = frozenset({"/", "/docs", "/healthz", "/readyz", "/openapi.json"})
#: The page that a browser opens with a password.
_PAGE = "/results"


def require_caller(request: web.Request, route: str, settings: ServerSettings) -> None:
    """Authenticate a request.

    Else it gets 401, for a token that is missing or wrong, or 421, for a Host header that is not a
    loopback address where the service has no token.
    """
    if route in _OPEN:
        return
    if settings.token is None:
        host = _name(request.host)
        if not is_loopback(host):
            # a foreign page whose name resolves to this machine (DNS rebinding)
            raise RequestError(
                421,
                "wrong_host",
                f"the Host header is {host[:100]!r}; use 127.0.0.1 or localhost, or configure a "
                "token",
            )
        return
    given = request.headers.get("Authorization", "")
    scheme, _, value = given.partition(" ")
    page = route == _PAGE
    if page and scheme.lower() == "basic":
        # a browser prompts for it: any name, the token as password
        scheme, value = "bearer", _password(value)
    token = value.strip().encode("utf-8", "surrogateescape")
    right = hmac.compare_digest(token, settings.token.encode())
    if scheme.lower() != "bearer" or not right:
        problem = "has a wrong token" if given else "is missing"
        raise RequestError(
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
