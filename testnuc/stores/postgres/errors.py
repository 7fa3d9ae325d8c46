"""Translation of driver and server errors to `StoreError`."""

from typing import Any

from testnuc.errors import MissingDependencyError, StoreError
from testnuc.stores.postgres.address import Address


def driver() -> Any:
    """Import and return asyncpg; raises `MissingDependencyError` if it is not installed."""
    try:
        import asyncpg
    except ImportError as exc:
        raise MissingDependencyError(
            "the PostgreSQL store needs asyncpg; install it with: pip install 'testnuc[postgres]'"
        ) from exc
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
    return not isinstance(error, _of_poolers()) and isinstance(
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
            # raised by the driver for a connection lost during a statement
            pg.InternalClientError,
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
