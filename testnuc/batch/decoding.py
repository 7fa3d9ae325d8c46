"""Decode result lines: matched by custom_id, in any order, with duplicates."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from testnuc._dispatch.partial_labels import part_of
from testnuc.batch.base import NoneChosenError
from testnuc.errors import NotAnsweredError, ProviderError, ReplyError
from testnuc.labels import as_stored
from testnuc.protocols import Request, StoredPrediction

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from testnuc._dispatch.inflight import Outcome
    from testnuc.batch.base import BatchResultLine
    from testnuc.batch.manifest import Item
    from testnuc.labels import LabelSet
    from testnuc.protocols import Task, TokenUsage, WireProvider

#: Decoding needs the number of texts, not the texts.
_UNKNOWN = ("",)
#: Most digits of a request's number.
_DIGITS = 9
_NONE = "the LLM chose none of the labels that the prompt showed"


def custom_id(name: str, number: int) -> str:
    """Return the custom_id of a request: the batch's id and the request's number in it."""
    return f"{name}-{number}"


class ResponseReader:
    """Decodes response bodies, in the process that sent the requests or in any other."""

    def __init__(self, provider: WireProvider, task: Task, labels: LabelSet) -> None:
        self._provider = provider
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
            reply = self._provider.decode(Request(task, "", _UNKNOWN * texts), body)
        except ReplyError as error:
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

    def error(self, status: int, body: bytes) -> Exception:
        """Return the error of a failed request."""
        return self._provider.error(status, {}, body)


class BatchOutcomes:
    """Collects the outcomes of one batch from its result lines; custom_ids begin with `name`."""

    def __init__(self, name: str, items: Sequence[Item], reader: ResponseReader) -> None:
        self._name = name
        self._items = items
        self._reader = reader
        self._answered: dict[int, list[Outcome]] = {}
        self._failed: dict[int, Exception] = {}
        #: Tokens of each response; all responses are billed, malformed ones too.
        self.usages: list[TokenUsage | None] = []

    def take(self, line: BatchResultLine) -> None:
        """Add one line; unknown custom_ids are ignored, and what another line said readably."""
        number = self._number(line.custom_id)
        if number is None:
            return
        before = self._answered.get(number)
        if before is not None and not any(isinstance(outcome, Exception) for outcome in before):
            return
        if line.status != 200:
            self._failed.setdefault(number, self._error(line))
            return
        item = self._items[number]
        partial = any(wanted.partial for wanted in item)
        try:
            outcomes, usage = self._reader.read(line.body, len(item), partial=partial)
        except ProviderError as error:
            self._failed.setdefault(number, error)
            return
        if before is None:
            self.usages.append(usage)
            before = outcomes
        self._answered[number] = [
            new if isinstance(old, Exception) else old
            for old, new in zip(before, outcomes, strict=True)
        ]

    @property
    def missing(self) -> int:
        """How many requests have no result."""
        return len(self._items) - len(self._answered.keys() | self._failed.keys())

    def outcomes(self, missing: Exception) -> Iterator[tuple[Item, list[Outcome]]]:
        """Yield each request with the outcomes of its texts; `missing` if it has no result."""
        for number, item in enumerate(self._items):
            found = self._answered.get(number)
            if found is None:
                found = [self._failed.get(number, missing)] * len(item)
            yield item, found

    def stored(self, scope: bytes) -> Iterator[StoredPrediction]:
        """Yield the predictions to be stored."""
        for number in sorted(self._answered):
            pairs = zip(self._items[number], self._answered[number], strict=True)
            for wanted, outcome in pairs:
                if not isinstance(outcome, Exception):
                    yield StoredPrediction(
                        wanted.key, scope, wanted.text_hash, wanted.sample, as_stored(outcome)
                    )

    def _number(self, name: str) -> int | None:
        """Return the number of a request from its custom_id; None if it is none of ours."""
        digits = name.rpartition("-")[2]
        # longer numbers are not read
        if len(digits) > _DIGITS or not digits.isdecimal():
            return None
        number = int(digits)
        ours = number < len(self._items) and name == custom_id(self._name, number)
        return number if ours else None

    def _error(self, line: BatchResultLine) -> Exception:
        if line.status:
            return self._reader.error(line.status, line.body)
        return NotAnsweredError(f"the batch ended before this request was executed ({line.why})")
