"""Network failures as testnuc's exceptions.

Messages of other libraries are dropped: they may hold a URL with credentials, or request headers.
"""

from contextlib import suppress
from urllib.parse import urlsplit

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from testnuc.errors import ConfigurationError, ConnectionFailedError, ProviderError
from testnuc.protocols import WireProvider

#: Raised before anything of a call is sent; a proxy that refuses has seen the host alone.
NEVER_SENT = (
    aiohttp.ClientConnectorError,
    aiohttp.ClientHttpProxyError,
    aiohttp.ConnectionTimeoutError,
)

_LOG_IN = 407


def is_retryable(error: BaseException) -> bool:
    """Whether the same call may succeed later."""
    return isinstance(error, ProviderError) and error.retryable


def safe_cause(raised: BaseException) -> BaseException | None:
    """Return an error as the cause of ours.

    None if it, or what it came from, holds request headers, credentials or bytes of a response.
    """
    secret = (
        aiohttp.ClientProxyConnectionError,
        aiohttp.ClientResponseError,
        aiohttp.InvalidURL,
        HttpProcessingError,
        ValueError,  # quotes a part of the URL of a proxy
    )
    link: BaseException | None = raised
    while link is not None:
        of_proxy = getattr(getattr(link, "_conn_key", None), "proxy_auth", None)
        if isinstance(link, secret) or of_proxy is not None:
            return None
        link = link.__cause__ or link.__context__
    return raised


def host(provider: WireProvider) -> str:
    """Return the server's name, without credentials of its URL."""
    with suppress(ValueError):
        parts = urlsplit(provider.url)
        name = parts.hostname or "the base_url"
        return f"{name}:{parts.port}" if parts.port else name
    return "the base_url"


def translate(raised: BaseException, provider: WireProvider) -> BaseException:
    """Return testnuc's exception for a network failure; others are returned as they are."""
    where = host(provider)
    if isinstance(raised, aiohttp.ClientConnectorCertificateError):
        refused = ConnectionFailedError(
            f"no secure connection to {where}: its certificate is not trusted; check base_url, or "
            "name the file of your own authority in the environment variable SSL_CERT_FILE"
        )
        refused.retryable = False
        refused.fatal = True
        return refused
    if isinstance(raised, NEVER_SENT):
        return ConnectionFailedError(f"cannot connect to {where} {_why(raised)}")
    malformed = isinstance(raised, (ValueError, aiohttp.NonHttpUrlClientError))
    if malformed and not isinstance(raised, ConfigurationError):
        return ConfigurationError(
            f"calls to {where} cannot be sent: base_url is not a URL, credentials in it or in "
            f".netrc conflict with the key, or the key holds characters not allowed in a header"
        )
    if isinstance(raised, (aiohttp.ClientError, OSError)):
        return ConnectionFailedError(
            f"the connection to {where} broke before the response was complete "
            f"({type(raised).__name__}); if other calls are answered, lower the concurrency"
        )
    return raised


def _why(raised: BaseException) -> str:
    if isinstance(raised, aiohttp.ClientHttpProxyError):
        remedy = "check HTTPS_PROXY, and NO_PROXY for hosts that need none"
        if raised.status == _LOG_IN:
            remedy = "give its user name and password in HTTPS_PROXY"
        return f"(the proxy refuses with {raised.status}); {remedy}"
    reason = "no reply"
    if isinstance(raised, aiohttp.ClientConnectorError):
        reason = raised.os_error.strerror or type(raised.os_error).__name__
    return f"({reason}); check base_url, the network, and whether a proxy is needed (trust_env)"
