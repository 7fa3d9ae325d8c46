"""What can be wrong with a server, said so that its user knows what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from testnuc.errors import MissingDependencyError, StoreError

if TYPE_CHECKING:
    from testnuc.stores.postgres.address import Address

__all__ = ["driver", "passing", "store_error"]


def driver() -> Any:
    """Return asyncpg.

    Raises
    ------
    MissingDependencyError
        It is not installed.
    """
    try:
        import asyncpg
    except ImportError as exc:
        raise MissingDependencyError(
            "a store in PostgreSQL needs asyncpg; install it with: pip install 'testnuc[postgres]'"
        ) from exc
    return asyncpg


def passing(error: BaseException) -> bool:
    """Whether the same statement may succeed a moment later, on another connection."""
    pg = driver()
    return isinstance(
        error,
        (
            # no connection, or it broke; a time limit of the connection is an OSError, too
            OSError,
            pg.PostgresConnectionError,
            pg.CannotConnectNowError,
            pg.TooManyConnectionsError,
            pg.AdminShutdownError,
            pg.CrashShutdownError,
            pg.IdleInTransactionSessionTimeoutError,
            # one of two transactions that wait for each other
            pg.DeadlockDetectedError,
            pg.SerializationError,
            # the driver lost track of a connection that broke in the middle of a statement
            pg.InternalClientError,
            # a standby that is about to become the primary
            pg.ReadOnlySQLTransactionError,
        ),
    )


def store_error(error: BaseException, address: Address) -> StoreError:
    """Return what an error of the driver or of the server means."""
    pg = driver()
    where = f"the store {address.public}"
    said = address.scrubbed(f"{type(error).__name__}: {error}")
    remedies: tuple[tuple[Any, str], ...] = (
        (
            pg.InvalidAuthorizationSpecificationError,
            "refuses the user or the password ({}); correct the URL, PGPASSWORD or ~/.pgpass",
        ),
        (pg.InvalidCatalogNameError, "does not exist ({}); create it with: createdb"),
        (
            pg.InsufficientPrivilegeError,
            f"lacks a right ({{}}); let its owner CREATE SCHEMA {address.schema} AUTHORIZATION ..",
        ),
        (pg.QueryCanceledError, "took too long over a statement, which was given up ({})"),
        (
            (pg.DiskFullError, pg.OutOfMemoryError),
            "is out of room ({}); what was stored before is intact",
        ),
    )
    for kind, problem in remedies:
        if isinstance(error, kind):
            return StoreError(f"{where} {problem.format(said)}")
    if passing(error):
        return StoreError(f"{where} cannot be reached ({said}); see that it runs, then run again")
    return StoreError(f"{where} failed: {said}")
