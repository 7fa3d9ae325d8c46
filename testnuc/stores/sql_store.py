"""What SQLite and PostgreSQL have in common: the statements that both understand."""

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import numpy as np
import orjson

from testnuc._base.arrays import Float16s
from testnuc._base.checks import is_chance
from testnuc.errors import EmbeddingError, StoreError
from testnuc.protocols import Index, PoolText, Store, StoredBatch, StoredPrediction
from testnuc.types import Prediction, Usage

#: A lease that ends later, in seconds from now, was taken before the clock was set back: else it
#: would hold others up for as long as that.
LONGEST_LEASE = 600.0
#: Vectors per transaction; bounds how long other writers wait.
_CHUNK = 2_000
_OF_SCOPE = "FROM predictions WHERE scope = (SELECT id FROM scopes WHERE scope = $1)"
#: Facts of a scope that are texts.
TEXT_FACTS = ("base_url", "embedder", "instructions", "model", "none_label")


def migrations(package: str) -> tuple[tuple[str, ...], ...]:
    """Return the statements of each version of a schema, which are in ``schema.sql``."""
    text = files(package).joinpath("schema.sql").read_text("utf-8")
    return tuple(
        tuple(statement for part in version.split(";\n") if (statement := part.strip()))
        for version in re.split(r"-- version \d+\n", text)[1:]
    )


class DamagedRowError(ValueError):
    """A stored row has a value that this package does not write."""


#: What reading a damaged row raises.
DAMAGE = (ValueError, TypeError, LookupError, AttributeError, OverflowError)


def damaged(place: object, error: Exception) -> StoreError:
    """Return the error for a damaged row of a store."""
    found = str(error) if isinstance(error, DamagedRowError) else f"{type(error).__name__}: {error}"
    return StoreError(
        f"the store {place} is damaged ({found}); restore a backup, or delete it and start with an "
        "empty store"
    )


@contextmanager
def rows_of(place: object) -> Iterator[None]:
    """Raise `StoreError` where what is read from a store is damaged."""
    try:
        yield
    except DAMAGE as exc:
        raise damaged(place, exc) from exc


def of_types(row: Any, *types: type | tuple[type, ...]) -> tuple[Any, ...]:
    """Return a stored row; raises `DamagedRowError` if a value is not of its type."""
    for value, expected in zip(row, types, strict=True):
        if not isinstance(value, expected):
            raise DamagedRowError(f"a value is {value!r:.40}")
    return tuple(row)


def pool_text(row: Any) -> PoolText:
    """Return the text, hash and label of a stored row; raises `DamagedRowError`."""
    return PoolText(*of_types(row, str, bytes, (str, type(None))))


def to_facts(value: Any) -> dict[str, Any]:
    """Return the metadata of a scope; raises `DamagedRowError` if a value is not of its type."""
    facts: dict[str, Any] = of_types((value,), dict)[0]
    of_types((facts.get("labels", []), facts.get("descriptions", {})), list, dict)
    of_types([facts.get(name, "") for name in TEXT_FACTS], *[str] * len(TEXT_FACTS))
    names = [*facts.get("labels", []), *facts.get("descriptions", {}).values()]
    of_types(names, *[str] * len(names))
    return facts


def to_prediction(label: Any, confidence: Any, said: Any) -> Prediction:
    """Return a stored prediction; raises `DamagedRowError` if it is none."""
    if {type(label), type(said)} <= {str, type(None)} and is_chance(confidence):
        return Prediction(label, confidence, said)
    raise DamagedRowError(f"a prediction is {label!r:.40}, {confidence!r:.40}, {said!r:.40}")


def check_vectors(embedder: str, dim: int, vectors: Float16s) -> None:
    """Raise an error if vectors do not fit those that are stored, of dimension `dim`."""
    if vectors.shape[1] != dim:
        raise StoreError(
            f"the store contains vectors of dimension {dim} of the embedder {embedder!r}, which "
            f"now returns vectors of dimension {vectors.shape[1]}; give the embedder another "
            "`name`, or use another store"
        )
    # NaN or infinity would corrupt every index that is built from them
    if not np.isfinite(vectors).all():
        raise EmbeddingError("the embedder returned a vector with NaN or infinity")


class SqlStore(Store):
    """Everything that a database store does, except predictions by key, vectors and pools.

    `testnuc.stores.export` reads and fills any of them.

    Statements are idempotent, and have parameters ``$1``, ``$2``, ..
    """

    durable = True
    #: SQL for the current time, and for one second of it.
    _now = ""
    _second = ""

    def __init__(self, database: Any, place: str) -> None:
        self.database = database
        #: Calls of `open` that no `close` has ended.
        self._users = 0
        #: Its path or URL, without a password.
        self.place = place

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.place!r})"

    async def open(self) -> None:
        """Connect, or create the file if missing, and apply pending migrations."""
        self._users += 1
        self.database.closed = False
        try:
            await self.database.open()
            await self._tidy()
        except BaseException:
            await self.close()
            raise

    async def _tidy(self) -> None:
        """Delete what is of no use any more."""

    async def close(self) -> None:
        """Complete pending work and close the database, unless another user opened it, too."""
        self._users = max(0, self._users - 1)
        if not self._users:
            await self.database.close()

    async def _rows(self, statement: str, *values: Any) -> list[Any]:
        raise NotImplementedError

    def _typed(self, rows: Sequence[Any], *types: type) -> list[Any]:
        """Return stored rows; raises `StoreError` if a value is not of its type."""
        with rows_of(self.place):
            return [of_types(row, *types) for row in rows]

    async def _change(self, statement: str, *values: Any) -> int:
        """Run a statement to completion, even if the caller is cancelled; return changed rows."""
        raise NotImplementedError

    def pool(self, embedder: str) -> Index:
        raise NotImplementedError

    async def vectors(
        self, embedder: str, after: bytes = b"", count: int = 1_000
    ) -> list[tuple[bytes, Float16s]]:
        """Return up to `count` vectors after a text hash, ordered by hash; empty at the end."""
        raise NotImplementedError

    async def _put_vectors(self, embedder: str, hashes: Sequence[bytes], vectors: Float16s) -> None:
        raise NotImplementedError

    async def put_vectors(self, embedder: str, hashes: Sequence[bytes], vectors: Float16s) -> None:
        for start in range(0, len(hashes), _CHUNK):
            part = slice(start, start + _CHUNK)
            await self._put_vectors(embedder, hashes[part], vectors[part])

    async def describe(self, scope: bytes, facts: Mapping[str, Any]) -> None:
        statement = (
            "INSERT INTO scopes (scope, facts) VALUES ($1, $2) ON CONFLICT (scope) "
            "DO UPDATE SET facts = excluded.facts WHERE scopes.facts <> excluded.facts"
        )
        await self._change(statement, scope, orjson.dumps(dict(facts)).decode())

    async def count(self, scope: bytes) -> int:
        ((found,),) = await self._rows(f"SELECT count(DISTINCT text) {_OF_SCOPE}", scope)
        return int(found)

    async def predicted(self, scope: bytes) -> list[bytes]:
        """Return the hashes of the texts with a prediction in this scope."""
        return [text for (text,) in await self._rows(f"SELECT DISTINCT text {_OF_SCOPE}", scope)]

    async def forget(self, *, model: str | None = None, scope: bytes | None = None) -> int:
        found = [
            known
            for known, facts in await self.scopes()
            if known == scope or (model is not None and facts.get("model") == model)
        ]
        if not found:
            return 0
        # one statement: all or nothing, and one pass over the predictions
        marks = ", ".join(f"${i}" for i in range(1, len(found) + 1))
        scopes = f"(SELECT id FROM scopes WHERE scope IN ({marks}))"
        return await self._change(f"DELETE FROM predictions WHERE scope IN {scopes}", *found)

    async def swap_learned(self, scope: bytes, before: bytes | None, data: bytes) -> bool:
        """Store what was learned, if `before` (None: nothing) is still there; returns whether."""
        if before is None:
            statement = "INSERT INTO learned (scope, data) VALUES ($1, $2) ON CONFLICT DO NOTHING"
            return await self._change(statement, scope, data) == 1
        statement = "UPDATE learned SET data = $2 WHERE scope = $1 AND data = $3"
        return await self._change(statement, scope, data, before) == 1

    async def get_learned(self, scope: bytes) -> bytes | None:
        """Return what was learned; None if nothing was."""
        rows = await self._rows("SELECT data FROM learned WHERE scope = $1", scope)
        return self._typed(rows, bytes)[0][0] if rows else None

    async def drop_learned(self, scope: bytes) -> None:
        """Delete what was learned."""
        await self._change("DELETE FROM learned WHERE scope = $1", scope)

    async def put_batch(self, batch: StoredBatch, owner: bytes, seconds: float) -> None:
        """Store a batch that is about to be submitted, leased by `owner`."""
        statement = (
            "INSERT INTO batches (id, scope, facts, requests, created, items, owner, until) VALUES "
            f"($1, $2, $3, $4, $5, $6, $7, {self._now} + $8 * {self._second}) "
            "ON CONFLICT DO NOTHING"
        )
        facts = orjson.dumps(dict(batch.facts)).decode()
        fields = batch.id, batch.scope, facts, batch.requests, batch.created, batch.items
        await self._change(statement, *fields, owner, seconds)

    async def claim_batch(self, batch: bytes, owner: bytes, seconds: float) -> bool:
        """Take or extend the lease of an open batch; False if it is leased or has ended."""
        statement = (
            f"UPDATE batches SET owner = $2, until = {self._now} + $3 * {self._second} "
            f"WHERE id = $1 AND outcome IS NULL AND (owner = $2 OR until <= {self._now} "
            # the clock was set back: a lease that no process takes for so long
            f"OR until > {self._now} + $4 * {self._second})"
        )
        longest = max(seconds, LONGEST_LEASE)
        return await self._change(statement, batch, owner, seconds, longest) == 1

    async def note_batch(self, batch: bytes, remote_id: str) -> None:
        """Store the provider's id of a batch."""
        await self._change("UPDATE batches SET remote = $2 WHERE id = $1", batch, remote_id)

    async def end_batch(self, batch: bytes, outcome: str, usage: Usage) -> bool:
        """Mark a batch as ended; False if it had ended already (nothing is changed then)."""
        statement = (
            "UPDATE batches SET outcome = $2, usage = $3, items = $4, owner = $5 "
            "WHERE id = $1 AND (outcome IS NULL OR owner = $5)"
        )
        # unique per call: distinguishes a retry after a lost connection from a second call
        call = secrets.token_bytes(16)
        spent = orjson.dumps(usage).decode()
        return await self._change(statement, batch, outcome, spent, b"", call) == 1

    async def batches(
        self, scope: bytes | None = None, *, ended: bool = False
    ) -> list[StoredBatch]:
        """Return the open batches (of a scope), oldest first; `ended` includes ended ones."""
        statement = (
            "SELECT id, scope, facts, requests, created, items, remote, outcome, usage "
            "FROM batches WHERE coalesce($1, scope) = scope AND ($2 OR outcome IS NULL) "
            "ORDER BY created, id"
        )
        rows, text = await self._rows(statement, scope, ended), (str, type(None))
        kinds = (bytes, bytes, str, int, (float, int), bytes, text, text, text)
        # in the order of the fields of `StoredBatch`
        found = []
        with rows_of(self.place):
            for row in rows:
                fields = list(of_types(row, *kinds))
                fields[2] = dict(orjson.loads(fields[2]))
                if fields[-1] is not None:
                    fields[-1] = Usage(**orjson.loads(fields[-1]))
                found.append(StoredBatch(*fields))
        return found

    async def scopes(self) -> list[tuple[bytes, dict[str, Any]]]:
        """Return all scopes and their metadata."""
        rows = await self._rows("SELECT scope, facts FROM scopes ORDER BY id")
        with rows_of(self.place):
            return [
                (of_types((scope,), bytes)[0], to_facts(orjson.loads(facts)))
                for scope, facts in rows
            ]

    async def embedders(self) -> list[tuple[str, int]]:
        """Return the name and dimension of each embedder in the store."""
        rows = await self._rows("SELECT name, dim FROM embedders ORDER BY id")
        return self._typed(rows, str, int)

    async def counts(self) -> tuple[dict[bytes, int], dict[str, int]]:
        """Return the number of texts predicted in each scope, and in the pool of each embedder."""
        predictions = await self._rows(
            "SELECT s.scope, count(DISTINCT p.text) FROM predictions p "
            "JOIN scopes s ON s.id = p.scope GROUP BY s.scope"
        )
        texts = await self._rows("SELECT name, size - removals FROM embedders")
        return dict(self._typed(predictions, bytes, int)), dict(self._typed(texts, str, int))

    async def learned(self) -> list[tuple[bytes, bytes]]:
        """Return all that was learned, with its key."""
        rows = await self._rows("SELECT scope, data FROM learned ORDER BY scope")
        return self._typed(rows, bytes, bytes)

    async def predictions(self, after: bytes = b"", count: int = 1_000) -> list[StoredPrediction]:
        """Return up to `count` predictions after a key, ordered by key; empty at the end."""
        statement = (
            "SELECT p.key, s.scope, p.text, p.sample, p.label, p.confidence, p.said "
            "FROM predictions p JOIN scopes s ON s.id = p.scope "
            "WHERE p.key > $1 ORDER BY p.key LIMIT $2"
        )
        rows = await self._rows(statement, after, count)
        with rows_of(self.place):
            for row in rows:
                of_types(tuple(row)[:4], bytes, bytes, bytes, int)
            return [
                StoredPrediction(key, scope, text, sample, to_prediction(*said))
                for key, scope, text, sample, *said in rows
            ]
