"""Where calls go and with which key: base URLs, environment variables, hidden secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from testnuc.errors import ConfigurationError, InvalidInputError

__all__ = ["Endpoint", "checked_headers", "checked_key", "missing_key", "redacted"]

_DEFAULT_PORTS = {"http": 80, "https": 443}

#: Query parameters that would carry a secret into logs and keys.
_SECRET_NAME = re.compile(r"key|token|secret|passw|pwd|sig|auth|credential|^code$", re.IGNORECASE)

#: What looks like a key: the known prefixes, bearer tokens, long runs that no word has.
_SECRET = re.compile(
    r"(?i:bearer|basic)\s+[\w.~+/=*-]{6,}"
    r"|\b(?:sk|pk|rk|gsk|xai|hf)[-_][\w*.-]{6,}"
    r"|\bAIza[\w-]{10,}"
    r"|\beyJ[\w-]{10,}(?:\.[\w-]+)*"
    r"|\b(?=[\w*-]*\d)(?=[\w*-]*[A-Za-z])[\w*-]{32,}"
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A base URL, taken apart."""

    scheme: str
    host: str
    #: Host, and the port where it is not the scheme's own.
    netloc: str
    #: Without a slash at its end.
    path: str
    query: str

    @classmethod
    def parse(cls, base_url: str, *, source: str = "base_url") -> Endpoint:
        """Read a base URL; refuses what is not http(s) or would carry a secret.

        Parameters
        ----------
        base_url : str
            As the user gave it.
        source : str
            What the user knows it as, for messages.
        """
        if not isinstance(base_url, str) or not base_url.strip():
            raise InvalidInputError(f"{source} is empty; give a URL, or leave it out.")
        try:
            parts: SplitResult = urlsplit(base_url.strip())
            port = parts.port
        except ValueError:
            raise InvalidInputError(f"{source} is not a URL (bad host or port).") from None
        if parts.username is not None or parts.password is not None:
            raise InvalidInputError(
                f"{source} holds a user name or password, which would end up in logs; "
                "take it out and give the key as api_key."
            )
        for name, _ in parse_qsl(parts.query, keep_blank_values=True):
            if _SECRET_NAME.search(name):
                raise InvalidInputError(
                    f"{source} holds the query parameter {name!r}, which looks like a secret and "
                    "would end up in logs; take it out and give the key as api_key."
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
        """Return the URL of another path of this endpoint, the query kept."""
        return f"{self.scheme}://{self.netloc}{path}" + (f"?{self.query}" if self.query else "")


def checked_key(given: str | None, variables: tuple[str, ...]) -> str | None:
    """Return the key given, or that of the first environment variable that is set, or None.

    Parameters
    ----------
    given : str, optional
        The user's ``api_key``.
    variables : tuple[str, ...]
        Environment variables to look at, in order.

    Raises
    ------
    ConfigurationError
        The key could not be sent in a header. The message does not show it.
    """
    source, key = "api_key", given
    if key is None:
        for source in variables:
            key = os.environ.get(source) or None
            if key is not None:
                break
        else:
            return None
    if not isinstance(key, str) or not key:
        raise ConfigurationError(f"{source} is not a non-empty string.")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigurationError(
            f"{source} holds a character that no key has (a space, a line break, a quote mark of a "
            "word processor, ..). Copy it again, without anything around it."
        )
    return key


def checked_headers(headers: Any) -> dict[str, str]:
    """Return the user's own headers; refuses what could not be sent.

    Raises
    ------
    InvalidInputError
        It is no mapping of strings, or one holds a line break. The message shows no value.
    """
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


def missing_key(host: str, variable: str) -> ConfigurationError:
    """Return the error for a host that no key was given for.

    Parameters
    ----------
    host : str
    variable : str
        The environment variable that is to hold it.
    """
    error = ConfigurationError(f"no key for {host}: set {variable} in the environment.")
    # tracebacks show it; the command line, which has no such option, does not
    error.add_note('Or give the key as api_key="..".')
    return error


def redacted(text: str, key: str | None = None) -> str:
    """Return `text` without anything that looks like a key, nor the key itself."""
    if key and len(key) >= 4:
        text = text.replace(key, "[key]")
    return _SECRET.sub("[key]", text)
