"""Leases on predictions: at most one worker requests a prediction at a time.

Expiry uses the server's clock, so the clocks of the workers need not agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["drop_stale", "lease", "release", "renew"]


async def lease(
    connection: Any, keys: Sequence[bytes], owner: bytes, call: int, seconds: float
) -> set[bytes]:
    """Acquire leases on the keys that are neither leased nor stored; returns these keys.

    `call` makes a retry after a lost connection idempotent: the same owner and call get the same
    lease again, while another call of that owner does not.
    """
    granted = [
        row["key"]
        for row in await connection.fetch(
            """
            INSERT INTO leases (key, owner, call, until)
            SELECT u.key, $2, $3, clock_timestamp() + make_interval(secs => $4)
            FROM unnest($1::bytea[]) u (key) ORDER BY u.key
            ON CONFLICT (key) DO UPDATE
            SET owner = excluded.owner, call = excluded.call, until = excluded.until
            WHERE leases.until <= clock_timestamp()
               OR (leases.owner = excluded.owner AND leases.call = excluded.call)
            RETURNING key
            """,
            sorted(set(keys)),
            owner,
            call,
            seconds,
        )
    ]
    if not granted:
        return set()
    # A lease ends in the transaction that stores its prediction, so it may be free because the
    # prediction was stored after the caller's lookup. A new statement sees that commit.
    stored = [
        row["key"]
        for row in await connection.fetch(
            "SELECT key FROM predictions WHERE key = ANY($1)", granted
        )
    ]
    if stored:
        await release(connection, stored, owner)
    return set(granted) - set(stored)


async def renew(connection: Any, keys: Sequence[bytes], owner: bytes, seconds: float) -> set[bytes]:
    """Extend leases; returns the keys that are still held."""
    rows = await connection.fetch(
        """
        UPDATE leases SET until = clock_timestamp() + make_interval(secs => $3)
        WHERE key IN (
            SELECT key FROM leases WHERE key = ANY($1) AND owner = $2 ORDER BY key FOR UPDATE
        )
        RETURNING key
        """,
        keys,
        owner,
        seconds,
    )
    return {row["key"] for row in rows}


async def release(connection: Any, keys: Sequence[bytes], owner: bytes) -> None:
    """Release leases without storing a prediction."""
    await connection.execute(
        """
        DELETE FROM leases WHERE key IN (
            SELECT key FROM leases WHERE key = ANY($1) AND owner = $2 ORDER BY key FOR UPDATE
        )
        """,
        keys,
        owner,
    )


async def drop_stale(connection: Any) -> None:
    """Delete the leases of processes that ended long ago."""
    await connection.execute(
        """
        DELETE FROM leases WHERE key IN (
            SELECT key FROM leases WHERE until < clock_timestamp() - interval '1 hour'
            ORDER BY key FOR UPDATE SKIP LOCKED
        )
        """
    )
