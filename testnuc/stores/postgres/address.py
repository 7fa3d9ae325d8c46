"""PostgreSQL URLs with redacted passwords."""

import re
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from testnuc.errors import InvalidInputError

_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d{0,5})?")
#: URL options that are not secret.
_PUBLIC = ("host", "port", "dbname", "user")


class Address:
    """The URL of a database, ``postgresql://user:password@host:port/database?schema=name&..``.

    Options other than ``schema`` are passed to the driver. The message about a malformed URL omits
    it, since any part may belong to the password.
    """

    __slots__ = ("_secrets", "_url", "public", "schema")

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, keep_blank_values=True))
        except ValueError:
            raise _malformed() from None
        user_info, _, hosts = parts.netloc.rpartition("@")
        valid = all(_HOST.fullmatch(host) for host in hosts.split(","))
        if parts.scheme not in {"postgresql", "postgres"} or not valid:
            raise _malformed()
        # an @ or # here is an unescaped part of the password
        if "@" in parts.path or parts.fragment:
            raise _malformed()
        self.schema = options.pop("schema", "testnuc")
        if not _SCHEMA.fullmatch(self.schema):
            raise InvalidInputError(
                f"the schema of the store is {self.schema!r}; use a name of lower-case letters, "
                "digits and underscores that does not start with pg_"
            )
        user, _, password = user_info.partition(":")
        given = {password, unquote(password), options.get("password", "")}
        self._secrets = sorted(filter(None, given), key=len, reverse=True)
        self._url = url.partition("?")[0] + ("?" + urlencode(options) if options else "")
        shown = {name: options[name] for name in _PUBLIC if name in options}
        if self.schema != "testnuc":
            shown["schema"] = self.schema
        #: The URL without secrets, for messages and logs.
        self.public = (
            f"postgresql://{user}{'@' if user else ''}{hosts}{parts.path}"
            f"{'?' if shown else ''}{urlencode(shown, safe='/')}"
        )

    def __repr__(self) -> str:
        return f"Address({self.public!r})"

    def reveal(self) -> str:
        """Return the URL with the password, for the driver."""
        return self._url

    def redact(self, message: str) -> str:
        """Replace the password in a message."""
        for secret in self._secrets:
            message = message.replace(secret, "***")
        return message


def _malformed() -> InvalidInputError:
    return InvalidInputError(
        "the URL of the store is malformed; use postgresql://user:password@host:port/database, "
        "and escape the password with urllib.parse.quote(password, safe='')"
    )
