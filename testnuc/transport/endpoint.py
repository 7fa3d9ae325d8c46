"""Base URLs and API keys."""

import os
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit
from urllib.request import getproxies

from testnuc.errors import ConfigurationError, InvalidInputError
from testnuc.transport.api_errors import redacted

_DEFAULT_PORTS = {"http": 80, "https": 443}

#: Names of query parameters that probably hold a secret, which would appear in logs and keys.
_SECRET_NAME = re.compile(r"key|token|secret|passw|pwd|sig|auth|credential|^code$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The parts of a base URL."""

    scheme: str
    host: str
    #: Host, and the port unless it is the scheme's default.
    netloc: str
    #: Without a trailing slash.
    path: str
    query: str

    @classmethod
    def parse(cls, base_url: str, *, source: str = "base_url") -> Self:
        """Parse a base URL, named `source` in errors; rejects secrets, and schemes but http(s)."""
        if not isinstance(base_url, str) or not base_url.strip():
            raise InvalidInputError(f"{source} is empty; give a URL, or omit it.")
        try:
            parts: SplitResult = urlsplit(base_url.strip())
            port = parts.port
        except ValueError:
            raise InvalidInputError(f"{source} is not a URL (bad host or port).") from None
        if parts.username is not None or parts.password is not None:
            raise InvalidInputError(
                f"{source} holds a user name or password, which would appear in logs; "
                "remove it and give the key as api_key."
            )
        for name, _ in parse_qsl(parts.query, keep_blank_values=True):
            if _SECRET_NAME.search(name):
                raise InvalidInputError(
                    f"{source} holds the query parameter {name!r}, which looks like a secret and "
                    "would appear in logs; remove it and give the key as api_key."
                )
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            raise InvalidInputError(
                f"{source} must be a URL such as http://localhost:8000/v1, "
                f"got {redacted(base_url)!r:.200}."
            )
        host = parts.hostname
        netloc = f"[{host}]" if ":" in host else host
        if port is not None and port != _DEFAULT_PORTS[parts.scheme]:
            netloc += f":{port}"
        return cls(parts.scheme, host, netloc, parts.path.rstrip("/"), parts.query)

    def at(self, path: str) -> str:
        """Return the URL of another path of this endpoint, with the same query."""
        return f"{self.scheme}://{self.netloc}{path}" + (f"?{self.query}" if self.query else "")


def checked_key(given: str | None, variables: tuple[str, ...]) -> str | None:
    """Return the given key, else that of the first environment variable that is set, else None.

    Refuses a key that cannot be sent in a header; the message does not contain it.
    """
    source, key = "api_key", given
    if key is None:
        source = next(filter(os.environ.get, variables), "")
        key = os.environ.get(source)
        if key is None:
            return None
    if not isinstance(key, str) or not key:
        raise ConfigurationError(f"{source} is not a non-empty string.")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigurationError(
            f"{source} holds a character that is invalid in a key (a space, a line break, a "
            "typographic quote, ..). Copy it again, without surrounding characters."
        )
    return key


def checked_headers(headers: Any) -> dict[str, str]:
    """Return the user's own headers; refuses what could not be sent, and shows no value."""
    if not isinstance(headers, Mapping):
        raise InvalidInputError("headers is not a mapping; give {'X-Team': 'support'}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidInputError(f"header {name!r:.60} is not a pair of strings; convert it")
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or not value.isprintable():
            raise InvalidInputError(
                f"header {name!r:.60} holds a character that cannot be sent, such as a line break"
            )
    return dict(headers)


def secrets_in(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of headers that are probably keys, by their names."""
    secret = (value for name, value in headers.items() if _SECRET_NAME.search(name))
    return tuple(value.rpartition(" ")[2] for value in secret)


def secrets_of_proxies() -> tuple[str, ...]:
    """Return the passwords of the environment's proxies, in the forms that a proxy may quote."""
    found: list[str] = []
    for url in getproxies().values():
        try:
            parts = urlsplit(url)
            user, word = unquote(parts.username or ""), unquote(parts.password or "")
        except ValueError:
            continue
        if word:
            # aiohttp encodes them in Latin-1, others in UTF-8
            pairs = {f"{user}:{word}".encode(kind, "replace") for kind in ("latin-1", "utf-8")}
            found += [word, parts.password or "", *(b64encode(pair).decode() for pair in pairs)]
    return tuple(found)


def missing_key(host: str, variable: str) -> ConfigurationError:
    """Return the error for a host without a key, which the environment variable can hold."""
    error = ConfigurationError(f"no key for {host}: set {variable} in the environment.")
    # a note: tracebacks show it, but not the command line, which has no such option
    error.add_note('Or give the key as api_key="..".')
    return error
