"""What is known where a review is drawn: the page shows it beside the texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields
from typing import Any

from testnuc._base.checks import valid_text
from testnuc._base.display import Brief

#: More texts than a run can have.
_MOST = 2**53


@dataclass(frozen=True, slots=True, repr=False)
class EarlierJudgment(Brief):
    """A text that was drawn and judged before this review."""

    #: Whether a label was said to be right.
    known: bool
    #: Whether each candidate gives the right label.
    right: tuple[bool, ...]


@dataclass(frozen=True, slots=True, repr=False)
class ReviewContext(Brief):
    """The candidates, what was judged before, and the instructions for those who judge."""

    #: Name of each candidate, the LLM's own labels first.
    candidates: tuple[str, ...] = ()
    earlier: tuple[EarlierJudgment, ...] = ()
    #: Number of texts that candidates label differently; None: unknown.
    differing: int | None = None
    #: Number of texts without a label; None: unknown.
    unlabeled: int | None = None
    descriptions: Mapping[str, str] = field(default_factory=dict)
    instructions: str | None = None
    none_label: str | None = None
    #: Arguments of the command that learns from it: the results or the store, then options.
    run: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """Return the context for a review file."""
        return {field.name: getattr(self, field.name) for field in fields(self)} | {
            "earlier": [astuple(judgment) for judgment in self.earlier],
            "descriptions": dict(self.descriptions),
            # JSON has no name of a file that is not UTF-8
            "run": [] if valid_text(" ".join(self.run) or "-") else self.run,
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> ReviewContext:
        """Return the context in a review file."""
        return cls(
            # files of older versions have more of each
            candidates=tuple(
                str(given if isinstance(given, str) else given[0]) for given in record["candidates"]
            ),
            earlier=tuple(
                EarlierJudgment(bool(known), tuple(map(bool, right)))
                for *_, known, right in record["earlier"]
            ),
            differing=_count(record["differing"]),
            unlabeled=_count(record["unlabeled"]),
            descriptions={str(k): str(v) for k, v in dict(record["descriptions"]).items()},
            instructions=_string(record["instructions"]),
            none_label=_string(record["none_label"]),
            # files of older versions lack it
            run=tuple(map(str, record.get("run", ()))),
        )


def _string(value: Any) -> str | None:
    return None if value is None else str(value)


def _count(value: Any) -> int | None:
    if value is not None and not 0 <= value < _MOST:
        raise ValueError(f"a number of texts is {value!r:.40}")
    return None if value is None else int(value)
