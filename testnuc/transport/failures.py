"""Failures on the way, said in our own terms.

Others' messages are not passed on: they may hold a URL with credentials, or the request's headers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp

from testnuc.errors import ConfigurationError, ConnectionFailedError, ProviderError

if TYPE_CHECKING:
    from testnuc.protocols import WireProvider

__all__ = ["holds_secrets", "host", "is_retryable", "translate"]


def is_retryable(error: BaseException) -> bool:
    """Whether sending the same call again can help."""
    return isinstance(error, ProviderError) and error.retryable


def holds_secrets(raised: BaseException) -> bool:
    """Whether an error of aiohttp's keeps the request's headers, or credentials of a URL."""
    kinds = (
        aiohttp.ClientProxyConnectionError,
        aiohttp.ClientResponseError,
        aiohttp.InvalidURL,
    )
    return isinstance(raised, kinds)


def host(provider: WireProvider) -> str:
    """Name the server, without the credentials that a URL may hold."""
    try:
        parts = urlsplit(provider.url)
        name, port = parts.hostname, parts.port
    except ValueError:
        return "the base_url"
    return f"{name or 'the base_url'}:{port}" if port else name or "the base_url"


def translate(raised: BaseException, provider: WireProvider) -> BaseException:
    """Say in our own terms what went wrong on the way; others' messages may hold secrets."""
    where = host(provider)
    if isinstance(raised, aiohttp.ClientConnectorCertificateError):
        refused = ConnectionFailedError(
            f"no secure connection to {where}: its certificate is not trusted; check base_url "
            f"and this machine's certificates"
        )
        refused.retryable = False
        refused.fatal = True
        return refused
    if isinstance(raised, aiohttp.ClientConnectorError):
        return ConnectionFailedError(
            f"cannot connect to {where} ({_reason(raised)}); check base_url, the network, and "
            f"whether a proxy is needed (trust_env=True)"
        )
    if isinstance(raised, (ValueError, aiohttp.NonHttpUrlClientError)) and not isinstance(
        raised, ConfigurationError
    ):
        return ConfigurationError(
            f"calls to {where} cannot be sent: base_url is no URL, credentials in it or in "
            f".netrc contradict the key, or the key holds characters that no header may"
        )
    if isinstance(raised, (aiohttp.ClientError, OSError)):
        return ConnectionFailedError(
            f"the connection to {where} broke before the answer was whole "
            f"({type(raised).__name__}); if it goes on, lower max_concurrency"
        )
    return raised


def _reason(error: aiohttp.ClientConnectorError) -> str:
    return error.os_error.strerror or type(error.os_error).__name__
