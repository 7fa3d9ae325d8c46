"""Leases: who asks for a prediction just now, so that nobody else pays for it, too.

Times are those of the server's clock: the clocks of the processes need not agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["drop_stale", "lease", "release", "renew"]


async def lease(
    connection: Any, keys: Sequence[bytes], owner: bytes, call: int, seconds: float
) -> set[bytes]:
    """Take the keys that nobody holds and nobody has answered; returns them.

    `call` tells a repetition, after a connection broke, from a second wish for the same key.
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
    # A lease ends in the transaction that stores its answer. So this one may have been free because
    # the answer came after the caller had looked; a statement begun now sees that answer.
    answered = [
        row["key"]
        for row in await connection.fetch(
            "SELECT key FROM predictions WHERE key = ANY($1)", granted
        )
    ]
    if answered:
        await release(connection, answered, owner)
    return set(granted) - set(answered)


async def renew(connection: Any, keys: Sequence[bytes], owner: bytes, seconds: float) -> set[bytes]:
    """Hold on to keys for longer; returns those that are still held."""
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
    """Let others ask."""
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
    """Clear away what processes left behind that are no more."""
    await connection.execute(
        """
        DELETE FROM leases WHERE key IN (
            SELECT key FROM leases WHERE until < clock_timestamp() - interval '1 hour'
            ORDER BY key FOR UPDATE SKIP LOCKED
        )
        """
    )
