"""Network failures as testnuc's exceptions.

Messages of other libraries are dropped: they may hold a URL with credentials, or request headers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp

from testnuc.errors import ConfigurationError, ConnectionFailedError, ProviderError

if TYPE_CHECKING:
    from testnuc.protocols import WireProvider

__all__ = ["host", "is_retryable", "safe_cause", "translate"]


def is_retryable(error: BaseException) -> bool:
    """Whether the same call may succeed later."""
    return isinstance(error, ProviderError) and error.retryable


def safe_cause(raised: BaseException) -> BaseException | None:
    """Return an error as the cause of ours; None if it holds request headers or credentials."""
    secret = (
        aiohttp.ClientProxyConnectionError,
        aiohttp.ClientResponseError,
        aiohttp.InvalidURL,
    )
    return None if isinstance(raised, secret) else raised


def host(provider: WireProvider) -> str:
    """Return the server's name, without credentials of its URL."""
    try:
        parts = urlsplit(provider.url)
        name, port = parts.hostname, parts.port
    except ValueError:
        return "the base_url"
    return f"{name or 'the base_url'}:{port}" if port else name or "the base_url"


def translate(raised: BaseException, provider: WireProvider) -> BaseException:
    """Return testnuc's exception for a network failure; others are returned as they are."""
    where = host(provider)
    if isinstance(raised, aiohttp.ClientConnectorCertificateError):
        refused = ConnectionFailedError(
            f"no secure connection to {where}: its certificate is not trusted; check base_url "
            f"and this machine's certificates"
        )
        refused.retryable = False
        refused.fatal = True
        return refused
    if isinstance(raised, aiohttp.ConnectionTimeoutError):
        return ConnectionFailedError(
            f"cannot connect to {where} (no reply); check base_url, the network, and whether a "
            f"proxy is needed (trust_env=True)"
        )
    if isinstance(raised, aiohttp.ClientConnectorError):
        return ConnectionFailedError(
            f"cannot connect to {where} ({_reason(raised)}); check base_url, the network, and "
            f"whether a proxy is needed (trust_env=True)"
        )
    if isinstance(raised, (ValueError, aiohttp.NonHttpUrlClientError)) and not isinstance(
        raised, ConfigurationError
    ):
        return ConfigurationError(
            f"calls to {where} cannot be sent: base_url is not a URL, credentials in it or in "
            f".netrc conflict with the key, or the key holds characters not allowed in a header"
        )
    if isinstance(raised, (aiohttp.ClientError, OSError)):
        return ConnectionFailedError(
            f"the connection to {where} broke before the response was complete "
            f"({type(raised).__name__}); if this persists, lower max_concurrency"
        )
    return raised


def _reason(error: aiohttp.ClientConnectorError) -> str:
    return error.os_error.strerror or type(error.os_error).__name__
