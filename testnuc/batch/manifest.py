"""The stored record of a batch, by which any process can decode its results."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, Protocol, runtime_checkable

from testnuc import errors
from testnuc._dispatch.inflight import NONE_CHOSEN, Outcome, none_key
from testnuc.batch.base import BatchResultLine, NoneChosenError
from testnuc.labels import LabelSet, as_stored, part_of
from testnuc.protocols import (
    Request,
    Store,
    StoredBatch,
    StoredPrediction,
    Task,
    TokenUsage,
    WireProvider,
    implements,
)
from testnuc.types import Usage

_COUNT = struct.Struct("<I")
_WANTED = struct.Struct("<16s16sI")
#: Bit of a stored sample index: whether the prompt shows some of the labels.
_PARTIAL = 1 << 31
#: Decoding needs the number of texts, not the texts.
_UNKNOWN = ("",)
_NONE = "the LLM chose none of the labels that the prompt showed"


class RequestedPrediction(NamedTuple):
    """One prediction that a request asks for."""

    key: bytes
    text_hash: bytes
    sample: int
    #: Whether the prompt shows some of the labels, so that the answer can be none of them.
    partial: bool = False


#: The predictions of one request, one for each of its texts, in order.
Item = tuple[RequestedPrediction, ...]


@runtime_checkable
class BatchStore(Store, Protocol):
    """A store that supports batches; all of testnuc's own do.

    A batch is *open* until it has ended. An open batch without a remote id is claimed by the
    process that creates it, or searches it at the provider, for a limited time.
    """

    async def put_batch(self, batch: StoredBatch, owner: bytes, seconds: float) -> None:
        """Store a batch that is about to be created, claimed by `owner`."""

    async def claim_batch(self, batch: bytes, owner: bytes, seconds: float) -> bool:
        """Claim an open batch; False if another owner has a claim, or the batch has ended."""

    async def note_batch(self, batch: bytes, remote_id: str) -> None:
        """Store the provider's id of a batch."""

    async def end_batch(self, batch: bytes, outcome: str, usage: Usage) -> bool:
        """End a batch; False if it has ended already, which changes nothing."""

    async def batches(
        self, scope: bytes | None = None, *, ended: bool = False
    ) -> list[StoredBatch]:
        """Return the open batches (of a scope), oldest first; with `ended`, all batches."""


def require_batches(store: object) -> BatchStore:
    """Return the store, if it supports batches; else raise `InvalidInputError`."""
    if implements(store, BatchStore):
        return store
    raise errors.InvalidInputError(
        f"lane='batch' needs a store with the methods put_batch, claim_batch, note_batch, "
        f"end_batch and batches, which {type(store).__name__} lacks; use store='path.db' or "
        "'postgresql://..', or implement testnuc.batch.BatchStore"
    )


def pack(items: Sequence[Item]) -> bytes:
    """Encode items for the store."""
    parts = []
    for item in items:
        parts.append(_COUNT.pack(len(item)))
        parts += [
            _WANTED.pack(key, text_hash, sample | _PARTIAL * partial)
            for key, text_hash, sample, partial in item
        ]
    return b"".join(parts)


def unpack(stored: bytes) -> tuple[Item, ...]:
    """Decode stored items; raises `StoreError` if they are damaged."""
    items: list[Item] = []
    at = 0
    try:
        while at < len(stored):
            (count,) = _COUNT.unpack_from(stored, at)
            at += _COUNT.size
            stop = at + count * _WANTED.size
            items.append(
                tuple(
                    RequestedPrediction(key, text_hash, sample & ~_PARTIAL, bool(sample & _PARTIAL))
                    for key, text_hash, sample in _WANTED.iter_unpack(stored[at:stop])
                )
            )
            if len(items[-1]) != count:
                raise errors.StoreError("a stored batch is damaged: it is truncated")
            at = stop
    except struct.error as exc:
        raise errors.StoreError(f"a stored batch is damaged: {exc}") from exc
    return tuple(items)


def custom_id(name: str, number: int) -> str:
    """Return the custom_id of a request: the batch's id and the request's number in it."""
    return f"{name}-{number}"


class ResponseReader:
    """Decodes response bodies, in the process that sent the requests or in any other."""

    def __init__(self, provider: WireProvider, task: Task, labels: LabelSet) -> None:
        self.provider = provider
        self._whole = task, labels

    @cached_property
    def _part(self) -> tuple[Task, LabelSet]:
        """All labels, since it is not stored which ones a prompt showed, and "none of these"."""
        task, labels = self._whole
        part = part_of(labels, range(len(labels.names)))
        return replace(task, labels=part.names), part

    def read(
        self, body: bytes, texts: int, *, partial: bool = False
    ) -> tuple[list[Outcome], TokenUsage | None]:
        """Return the outcome of each text of a response, and its tokens.

        `partial`: whether the prompt showed some of the labels. `ProviderError`: the response is an
        error with status 200; nothing was billed.
        """
        task, labels = self._part if partial else self._whole
        try:
            reply = self.provider.decode(Request(task, "", _UNKNOWN * texts), body)
        except errors.ReplyError as error:
            return [error] * texts, getattr(error, "usage", None)
        outcomes: list[Outcome] = [
            a if isinstance(a, Exception) else labels.predicted(a) for a in reply.answers
        ]
        if partial:
            none = {None, labels.none_label}
            outcomes = [
                o if isinstance(o, Exception) or o.label not in none else NoneChosenError(_NONE)
                for o in outcomes
            ]
        return outcomes, reply.usage


class BatchOutcomes:
    """Collects the outcomes of one batch from its result lines; custom_ids begin with `name`."""

    def __init__(self, name: str, items: Sequence[Item], reader: ResponseReader) -> None:
        self._items = items
        self._reader = reader
        self._numbers = {custom_id(name, number): number for number in range(len(items))}
        self._answered: dict[int, list[Outcome]] = {}
        self._failed: dict[int, Exception] = {}
        #: Requests that were not executed, by what a line says.
        self._expired: set[int] = set()
        #: Tokens of each response; all responses are billed, malformed ones too.
        self.usages: list[TokenUsage | None] = []

    def take(self, line: BatchResultLine) -> None:
        """Add one line; unknown custom_ids are ignored, and what another line said readably."""
        number = self._numbers.get(line.custom_id)
        if number is None:
            return
        before = self._answered.get(number)
        if before is not None and not any(isinstance(outcome, Exception) for outcome in before):
            return
        if line.status != 200:
            if not line.status:
                self._expired.add(number)
            why = f"the batch ended before this request was executed ({line.why})"
            error = self._reader.provider.error(line.status, {}, line.body) if line.status else None
            self._failed.setdefault(number, error or errors.NotAnsweredError(why))
            return
        item = self._items[number]
        partial = any(wanted.partial for wanted in item)
        try:
            outcomes, usage = self._reader.read(line.body, len(item), partial=partial)
        except errors.ProviderError as error:
            self._failed.setdefault(number, error)
            return
        if before is None:
            self.usages.append(usage)
            before = outcomes
        self._answered[number] = [
            new if isinstance(old, Exception) else old
            for old, new in zip(before, outcomes, strict=True)
        ]

    def missing(self, answers: int) -> int:
        """Return how many requests have no result, of a batch with so many answers at least.

        Then lines which say that a request was not executed may be wrong, too.
        """
        found = self._answered.keys() | self._failed.keys()
        others = self._answered.keys() | (self._failed.keys() - self._expired)
        unsure = min(len(self._items), answers) - len(others)
        return max(len(self._items) - len(found), unsure)

    def outcomes(self, missing: Exception) -> Iterator[tuple[Item, list[Outcome]]]:
        """Yield each request with the outcomes of its texts; `missing` if it has no result."""
        for number, item in enumerate(self._items):
            found = self._answered.get(number)
            if found is None:
                found = [self._failed.get(number, missing)] * len(item)
            yield item, found

    def stored(self, scope: bytes) -> Iterator[StoredPrediction]:
        """Yield the predictions to be stored, and of which texts none of a shortlist was chosen."""
        for number in sorted(self._answered):
            for wanted, outcome in zip(self._items[number], self._answered[number], strict=True):
                key, text_hash, sample, _ = wanted
                if isinstance(outcome, NoneChosenError):
                    yield StoredPrediction(none_key(key), scope, text_hash, sample, NONE_CHOSEN)
                elif not isinstance(outcome, Exception):
                    yield StoredPrediction(key, scope, text_hash, sample, as_stored(outcome))
