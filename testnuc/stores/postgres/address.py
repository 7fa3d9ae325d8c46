"""The URL of a database, without ever showing its password."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from testnuc.errors import InvalidInputError

__all__ = ["Address"]

_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d{0,5})?")
#: Options in the URL that may be shown.
_SHOWN = ("host", "port", "dbname", "user")


class Address:
    """Where a database is.

    Parameters
    ----------
    url : str
        ``postgresql://user:password@host:port/database?schema=name&..``; all options but
        ``schema`` are the driver's.

    Raises
    ------
    InvalidInputError
        It cannot be read. The message does not repeat it: what was misread may be a password.
    """

    __slots__ = ("_secrets", "_url", "public", "schema")

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, keep_blank_values=True))
        except ValueError:
            raise _unreadable() from None
        user_info, _, hosts = parts.netloc.rpartition("@")
        readable = all(_HOST.fullmatch(host) for host in hosts.split(","))
        if parts.scheme not in {"postgresql", "postgres"} or not readable:
            raise _unreadable()
        # an @ or # here was meant to be part of a password
        if "@" in parts.path or parts.fragment:
            raise _unreadable()
        self.schema = options.pop("schema", "testnuc")
        if not _SCHEMA.fullmatch(self.schema):
            raise InvalidInputError(
                f"the schema of the store is {self.schema!r}; give a name of lower-case letters, "
                "digits and underscores that does not begin with pg_"
            )
        user, _, password = user_info.partition(":")
        given = {password, unquote(password), options.get("password", "")}
        self._secrets = sorted(filter(None, given), key=len, reverse=True)
        self._url = url.partition("?")[0] + ("?" + urlencode(options) if options else "")
        shown = {name: options[name] for name in _SHOWN if name in options}
        if self.schema != "testnuc":
            shown["schema"] = self.schema
        #: The URL as it may be shown.
        self.public = (
            f"postgresql://{user}{'@' if user else ''}{hosts}{parts.path}"
            f"{'?' if shown else ''}{urlencode(shown, safe='/')}"
        )

    def __repr__(self) -> str:
        return f"Address({self.public!r})"

    def reveal(self) -> str:
        """Return the URL for the driver, password included."""
        return self._url

    def scrubbed(self, message: str) -> str:
        """Return a message from elsewhere without the password, should it be in there."""
        for secret in self._secrets:
            message = message.replace(secret, "***")
        return message


def _unreadable() -> InvalidInputError:
    return InvalidInputError(
        "the URL of the store cannot be read; give postgresql://user:password@host:port/database, "
        "with special characters of the password escaped by urllib.parse.quote(password, safe='')"
    )
