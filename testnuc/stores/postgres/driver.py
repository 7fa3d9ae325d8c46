"""The driver: URLs with redacted passwords, and its errors as `StoreError`."""

import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from testnuc._base.checks import needing
from testnuc.errors import InvalidInputError, StoreError

_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d{0,5})?")
#: URL options that are not secret.
_PUBLIC = ("host", "port", "dbname", "user")


class Address:
    """The URL of a database, ``postgresql://user:password@host:port/database?schema=name&..``.

    Options other than ``schema`` are passed to the driver. The message about a malformed URL omits
    it, since any part may belong to the password.
    """

    __slots__ = ("_secrets", "public", "schema", "url")

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
        #: The URL with the password, for the driver.
        self.url = url.partition("?")[0] + ("?" + urlencode(options) if options else "")
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


def driver() -> Any:
    """Import and return asyncpg; raises `MissingDependencyError` if it is not installed."""
    with needing(
        "the PostgreSQL store needs asyncpg; install it with: pip install 'testnuc[postgres]'"
    ):
        import asyncpg
    return asyncpg


def _of_poolers() -> tuple[Any, ...]:
    """Return the errors behind a pooler that refuses or drops the settings of a session."""
    pg = driver()
    return (
        pg.InvalidSQLStatementNameError,
        pg.DuplicatePreparedStatementError,
        # an unsupported startup parameter
        pg.ProtocolViolationError,
        # the search path was dropped
        pg.UndefinedTableError,
    )


def is_transient(error: BaseException) -> bool:
    """Return whether a retry on another connection can succeed."""
    pg = driver()
    # a value that cannot be sent is an InterfaceError and a ValueError
    return not isinstance(error, (*_of_poolers(), ValueError)) and isinstance(
        error,
        (
            # connection failed or was lost; a connection timeout is an OSError as well
            OSError,
            pg.PostgresConnectionError,
            pg.CannotConnectNowError,
            pg.TooManyConnectionsError,
            pg.AdminShutdownError,
            pg.CrashShutdownError,
            pg.IdleInTransactionSessionTimeoutError,
            # the server aborted one of the conflicting transactions
            pg.DeadlockDetectedError,
            pg.SerializationError,
            # a database that is closed for maintenance, or a lock_timeout
            pg.ObjectNotInPrerequisiteStateError,
            # raised by the driver for a connection lost during a statement, or in a transaction
            pg.InternalClientError,
            pg.InterfaceError,
            # a standby that is being promoted
            pg.ReadOnlySQLTransactionError,
        ),
    )


def store_error(error: BaseException, address: Address, *, timed_out: bool = False) -> StoreError:
    """Translate an error of the driver or the server.

    `timed_out`: a statement that was canceled had run for as long as its timeout.
    """
    pg = driver()
    where = f"the store {address.public}"
    message = address.redact(f"{type(error).__name__}: {error}")
    remedies: tuple[tuple[Any, str], ...] = (
        (
            pg.InvalidAuthorizationSpecificationError,
            "rejected the user or the password ({}); correct the URL, PGPASSWORD or ~/.pgpass",
        ),
        (pg.InvalidCatalogNameError, "does not exist ({}); create it with: createdb"),
        (
            pg.InsufficientPrivilegeError,
            f"denies a permission ({{}}); run CREATE SCHEMA {address.schema} AUTHORIZATION ..",
        ),
        (
            pg.QueryCanceledError,
            "canceled a statement that exceeded its timeout ({})"
            if timed_out
            else "canceled a statement before its timeout ({}); does an administrator, a setting "
            "of the role or a pooler cancel statements? Run again",
        ),
        (
            (pg.DiskFullError, pg.OutOfMemoryError),
            "is out of disk space or memory ({}); data stored before is intact",
        ),
    )
    for kind, problem in remedies:
        if isinstance(error, kind):
            return StoreError(f"{where} {problem.format(message)}")
    if isinstance(error, _of_poolers()):
        return StoreError(
            f"{where} lost a setting or a prepared statement of its session ({message}); is a "
            "pooler such as pgbouncer in between, in transaction mode? Connect to the server, or "
            "to a pooler in session mode that passes the startup parameters on"
        )
    if is_transient(error):
        return StoreError(
            f"{where} cannot be reached ({message}); check that the server is running, then retry"
        )
    return StoreError(f"{where} failed: {message}")
