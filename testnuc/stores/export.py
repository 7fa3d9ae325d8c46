"""Export and import of a store's content.

A record is a dict of plain values with a ``kind``:

- ``scope``: scope, facts (model, labels);
- ``prediction``: key, scope, hash (of the text), sample, label, confidence, said;
- ``text``: embedder, text, label (known), vector: a text of the embedder's pool;
- ``vector``: embedder, hash, vector: of a text outside the pool;
- ``learned``: key, data: what was learned from judged texts.

Hashes and keys are hexadecimal, vectors base64 of little-endian float16, and data base64. Import
never overwrites stored values, so importing the same records twice changes nothing.
"""

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import groupby, islice
from typing import Any

import numpy as np

from testnuc._base.arrays import Float16s
from testnuc._base.checks import hash_text
from testnuc.errors import EmbeddingError, InvalidInputError
from testnuc.index.matching import scanned
from testnuc.protocols import Index, PoolText, StoredPrediction
from testnuc.stores.sql_store import SqlStore, pool_text, to_facts, to_prediction

Record = dict[str, Any]

#: Records read or written at a time; bounds the memory.
BATCH = 2_000
_VECTOR = np.dtype("<f2")
_HASH_BYTES = 16


async def dump(store: SqlStore) -> AsyncIterator[list[Record]]:
    """Yield all records of a store, `BATCH` at a time.

    Rows that are written during the export may or may not be included.
    """
    scopes = await store.scopes()
    if scopes:
        yield [{"kind": "scope", "scope": s.hex(), "facts": facts} for s, facts in scopes]
    after = b""
    while rows := await store.predictions(after, BATCH):
        yield [
            {
                "kind": "prediction",
                "key": row.key.hex(),
                "scope": row.scope.hex(),
                "hash": row.text_hash.hex(),
                "sample": row.sample,
                "label": row.prediction.label,
                "confidence": row.prediction.confidence,
                "said": row.prediction.said,
            }
            for row in rows
        ]
        after = rows[-1].key
    for embedder, _ in await store.embedders():
        pool = store.pool(embedder)
        try:
            async for part in _of_pool(store, pool, embedder):
                if part:
                    yield part
        finally:
            await pool.close()
    for key, data in await store.learned():
        yield [{"kind": "learned", "key": key.hex(), "data": b64encode(data).decode()}]


async def load(store: SqlStore, records: Iterable[Record]) -> Counter[str]:
    """Import records into a store; returns the number of records of each kind.

    Consecutive records of one kind are stored together. Pool texts keep their order. If a record is
    malformed (`InvalidInputError`), the records before it are stored.
    """
    pools: dict[str, Index] = {}
    counts: Counter[str] = Counter()
    try:
        for _, alike in groupby(records, _group):
            while part := list(islice(alike, BATCH)):
                counts += await _store(store, pools, part)
    finally:
        for pool in pools.values():
            await pool.close()
    return counts


async def _of_pool(store: SqlStore, pool: Index, embedder: str) -> AsyncIterator[list[Record]]:
    """Yield the texts of a pool, then the vectors of the texts outside of it."""
    async for texts in scanned(pool, BATCH):
        stored = await pool.stored_vectors([entry.hash for entry in texts])
        yield [
            {
                "kind": "text",
                "embedder": embedder,
                "text": entry.text,
                "label": entry.label,
                "vector": of_vector(vector),
            }
            for entry, vector in zip(texts, stored, strict=True)
            # None: removed since the scan
            if vector is not None
        ]
    after = b""
    while rows := await store.vectors(embedder, after, BATCH):
        after = rows[-1][0]
        pooled = await pool.stored_vectors([text_hash for text_hash, _ in rows])
        yield [
            {
                "kind": "vector",
                "embedder": embedder,
                "hash": text_hash.hex(),
                "vector": of_vector(vector),
            }
            for (text_hash, vector), there in zip(rows, pooled, strict=True)
            if there is None
        ]


def _group(record: Record) -> tuple[Any, Any]:
    return record.get("kind"), record.get("embedder")


async def _store(store: SqlStore, pools: dict[str, Index], records: list[Record]) -> Counter[str]:
    kind, embedder = _group(records[0])
    try:
        match kind:
            case "scope":
                await _describe(store, records)
            case "prediction":
                await store.put_predictions([_to_prediction(record) for record in records])
            case "text":
                await _add(store, pools, str(embedder), records)
            case "vector":
                hashes = [_to_hash(record["hash"]) for record in records]
                await store.put_vectors(str(embedder), hashes, _to_vectors(records))
            case "learned":
                for record in records:
                    data = b64decode(record["data"], validate=True)
                    # what the target has learned takes precedence
                    await store.swap_learned(_to_hash(record["key"]), None, data)
            case _:
                raise InvalidInputError(f"a record has the unknown kind {kind!r}")  # noqa: TRY301
    except InvalidInputError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, EmbeddingError) as exc:
        raise InvalidInputError(f"a record of kind {kind!r} is malformed: {exc!r}") from exc
    return Counter({str(kind): len(records)})


async def _describe(store: SqlStore, records: list[Record]) -> None:
    known = dict(await store.scopes())
    for record in records:
        scope, facts = _to_hash(record["scope"]), to_facts(record["facts"])
        # the metadata of a scope is the same in every store
        if facts and not known.get(scope):
            await store.describe(scope, facts)
            known[scope] = facts


async def _add(
    store: SqlStore, pools: dict[str, Index], embedder: str, records: list[Record]
) -> None:
    vectors = _to_vectors(records)
    entries = [pool_text((r["text"], hash_text(r["text"]), r["label"])) for r in records]
    pool = pools.get(embedder)
    if pool is None:
        pool = pools[embedder] = store.pool(embedder)
        await pool.open()
    # known labels in the target store take precedence
    known = await pool.labels([entry.hash for entry in entries])
    entries = [
        entry if label is None else PoolText(entry.text, entry.hash)
        for entry, label in zip(entries, known, strict=True)
    ]
    await pool.add(entries, vectors)


def _to_prediction(record: Record) -> StoredPrediction:
    return StoredPrediction(
        _to_hash(record["key"]),
        _to_hash(record["scope"]),
        _to_hash(record["hash"]),
        int(record["sample"]),
        to_prediction(record["label"], record["confidence"], record["said"]),
    )


def of_vector(vector: Float16s) -> str:
    """Return a vector as a record holds it."""
    return b64encode(vector.astype(_VECTOR, copy=False).tobytes()).decode()


def _to_vectors(records: Sequence[Record]) -> Float16s:
    contents = [b64decode(record["vector"], validate=True) for record in records]
    size = len(contents[0])
    if size == 0 or size % 2 or any(len(content) != size for content in contents):
        raise InvalidInputError("vectors of one embedder differ in length")
    rows = np.frombuffer(b"".join(contents), dtype=_VECTOR).reshape(len(records), -1)
    return rows.astype(np.float16, copy=False)


def _to_hash(value: str) -> bytes:
    try:
        found = bytes.fromhex(value)
    except ValueError as exc:
        raise InvalidInputError(f"{value!r} is not hexadecimal") from exc
    if len(found) != _HASH_BYTES:
        raise InvalidInputError(f"{value!r} is not a hash of {_HASH_BYTES} bytes")
    return found
