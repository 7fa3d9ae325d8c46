"""The results of a run: a sequence of classifications, kept as JSON Lines and read back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, overload, runtime_checkable

import orjson

from testnuc._base.html import facts, grid
from testnuc._base.jsonl import table, write_whole
from testnuc.errors import InvalidInputError, MissingDependencyError, TestNUCError
from testnuc.types import UNKNOWN, Classification, Neighbor, Prediction, Usage

if TYPE_CHECKING:
    import os

    import pandas as pd
    import polars as pl

__all__ = ["Results", "cells", "results_of", "run_record"]

#: Rows that a notebook shows.
_SHOWN = 10
#: The field of the one record that is of the run, not of a text.
_RUN = "nuc_run"


def cells(result: Classification) -> dict[str, Any]:
    """Return all of a result but its text; the prefix keeps the names apart from a user's own."""
    own = result.prediction
    return {
        "nuc_label": result.label,
        "nuc_trust": _rounded(result.trust),
        "nuc_share": _rounded(result.share),
        "nuc_margin": _rounded(result.margin),
        "nuc_voters": result.voters,
        "nuc_complete": result.complete,
        "nuc_own_label": result.own_label,
        "nuc_own_confidence": None if own is None else own.confidence,
        "nuc_own_said": None if own is None else own.said,
        "nuc_error": _told(result.error),
        "nuc_reason": result.reason,
        "nuc_votes": {label: _rounded(weight) for label, weight in result.votes.items()},
        "nuc_neighbors": [
            {
                "text": neighbor.text,
                "similarity": _rounded(neighbor.similarity),
                "label": neighbor.label,
                "confidence": neighbor.confidence,
            }
            for neighbor in result.neighbors
        ],
    }


def run_record(results: Results) -> dict[str, Any]:
    """Return what is known of a run as a whole."""
    return {
        _RUN: {
            "model": results.model,
            "labels": list(results.choices),
            "seconds": _rounded(results.seconds),
            "usage": asdict(results.usage),
        }
    }


def write_jsonl(results: Results, path: str | os.PathLike[str]) -> None:
    """Write a line for each text, then one for the run; a file is there whole or not at all."""

    def lines() -> Iterator[bytes]:
        for result in results:
            yield _line({"text": result.text, **cells(result)})
        yield _line(run_record(results))

    write_whole(path, lines())


def results_of(
    records: Iterable[Mapping[str, Any]], source: str, text_column: str = "text"
) -> Results:
    """Make results of what `cells` became in a file, or of as much of it as a file holds.

    Parameters
    ----------
    records : iterable of mapping
        One for each text; numbers may be text, as a CSV file has them.
    source : str
        Where they are from, for messages.
    text_column : str
        Which field holds the text.

    Raises
    ------
    InvalidInputError
        A record holds no text or no label, or a value is not what it should be.
    """
    rows: list[Classification] = []
    usage, run = UNKNOWN, dict[str, Any]()
    for record in records:
        if _RUN in record:
            run = record[_RUN] or {}
            continue
        for needed in (text_column, "nuc_label"):
            if needed not in record:
                raise InvalidInputError(
                    f"{source}, record {len(rows) + 1} has no field {needed!r}, only "
                    f"{', '.join(map(repr, record)) or 'nothing'}: "
                    + (
                        "name the one with the texts by --text-column"
                        if needed == text_column
                        else "give a file that `testnuc classify` or `Results.to_jsonl` wrote"
                    )
                )
        try:
            rows.append(_row(record, len(rows), text_column))
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            raise InvalidInputError(
                f"{source}, record {len(rows) + 1} is not what testnuc writes: {exc!r}"
            ) from exc
    if not rows:
        raise InvalidInputError(f"{source} holds no results")
    try:
        known = {field.name for field in fields(Usage)}
        if spent := run.get("usage"):
            usage = Usage(**{name: value for name, value in spent.items() if name in known})
        seconds, labels = float(run.get("seconds") or 0.0), tuple(map(str, run.get("labels") or ()))
    except (ValueError, TypeError, AttributeError) as exc:
        raise InvalidInputError(f"{source}: {_RUN} is not what testnuc writes: {exc!r}") from exc
    return Results(rows, usage, seconds, model=run.get("model"), choices=labels)


def _row(record: Mapping[str, Any], index: int, text_column: str) -> Classification:
    own = _text(record.get("nuc_own_label"))
    said = _text(record.get("nuc_own_said"))
    confidence = _number(record.get("nuc_own_confidence"))
    error = _text(record.get("nuc_error"))
    asked = own is not None or said is not None or confidence is not None
    text = record[text_column]
    return Classification(
        index=index,
        text=text if isinstance(text, str) else "" if text is None else str(text),
        label=_text(record["nuc_label"]),
        share=_number(record.get("nuc_share")) or 0.0,
        margin=_number(record.get("nuc_margin")) or 0.0,
        voters=int(_number(record.get("nuc_voters")) or 0),
        complete=record.get("nuc_complete") not in {False, "False", "false"},
        prediction=Prediction(own, confidence, said) if asked else None,
        neighbors=tuple(
            Neighbor(
                str(near["text"]),
                _number(near["similarity"]) or 0.0,
                _text(near["label"]),
                _number(near["confidence"]),
            )
            for near in _structure(record.get("nuc_neighbors"), [])
        ),
        votes={
            str(label): _number(weight) or 0.0
            for label, weight in _structure(record.get("nuc_votes"), {}).items()
        },
        error=None if error is None else TestNUCError(error),
        trust=_number(record.get("nuc_trust")),
        reason=_text(record.get("nuc_reason")),
    )


def _structure(value: Any, nothing: Any) -> Any:
    """Return a list or an object, which a CSV file has as JSON."""
    if value is None or value == "":
        return nothing
    return orjson.loads(value) if isinstance(value, str) else value


def _text(value: Any) -> str | None:
    """Return a string; a CSV file has nothing where there is none."""
    return None if value is None or value == "" else str(value)


def _number(value: Any) -> float | None:
    if value is None or value == "":
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _told(error: Exception | None) -> str | None:
    if error is None:
        return None
    # an error that was read from a file says its own type
    return str(error) if type(error) is TestNUCError else f"{type(error).__name__}: {error}"


def _line(record: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE, default=str)
    except TypeError:
        # half a character, which UTF-8 cannot hold: such a text was refused, but is told of
        mended = {
            name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
            for name, value in record.items()
        }
        return orjson.dumps(mended, option=orjson.OPT_APPEND_NEWLINE, default=str)


def pandas_frame(results: Results) -> pd.DataFrame:
    """Return a row for each text, without neighbors and votes."""
    made: pd.DataFrame = _library("pandas").DataFrame(_columns(results))
    return made


def polars_frame(results: Results) -> pl.DataFrame:
    """Return a row for each text, without neighbors and votes."""
    library = _library("polars")
    # the types of columns that may hold nothing but None
    typed = {
        **dict.fromkeys(("label", "own_label", "error", "reason"), library.String),
        **dict.fromkeys(("trust", "own_confidence"), library.Float64),
    }
    made: pl.DataFrame = library.DataFrame(_columns(results), schema_overrides=typed)
    return made


def _columns(results: Results) -> dict[str, list[Any]]:
    """Return the columns of a data frame."""
    rows = list(results)
    return {
        "text": [row.text for row in rows],
        "label": [row.label for row in rows],
        "trust": [row.trust for row in rows],
        "share": [row.share for row in rows],
        "margin": [row.margin for row in rows],
        "voters": [row.voters for row in rows],
        "complete": [row.complete for row in rows],
        "own_label": [row.own_label for row in rows],
        "own_confidence": [row.prediction and row.prediction.confidence for row in rows],
        "error": [_told(row.error) for row in rows],
        "reason": [row.reason for row in rows],
    }


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as exc:
        raise MissingDependencyError(
            f"this needs {name}: pip install 'testnuc[frames]', or pip install {name}"
        ) from exc


@runtime_checkable
class _Columns(Protocol):
    """Rows that can tell labels and failures without being made."""

    def labels(self) -> list[str | None]: ...

    def failed(self) -> list[int]: ...

    def changed(self) -> int: ...

    def __getitem__(self, index: int, /) -> Classification: ...


class Results(Sequence[Classification]):
    """The classifications of `classify_many`, in the order of the texts.

    Rows may be made only when they are looked at, so that a million results stay small.
    """

    def __init__(
        self,
        rows: Sequence[Classification],
        usage: Usage,
        seconds: float,
        *,
        model: str | None = None,
        choices: Sequence[str] = (),
    ) -> None:
        self._rows = rows
        #: What these results cost, this run alone.
        self.usage = usage
        #: Wall-clock seconds of the run.
        self.seconds = seconds
        #: The model that was asked, as ``provider/name``; None where it is not known.
        self.model = model
        #: The labels that were to choose from; empty where they are not known.
        self.choices = tuple(choices)

    @property
    def labels(self) -> list[str | None]:
        """The label of each text."""
        if isinstance(self._rows, _Columns):
            return self._rows.labels()
        return [row.label for row in self._rows]

    @property
    def errors(self) -> list[Classification]:
        """The results that carry an error."""
        if isinstance(self._rows, _Columns):
            return [self._rows[at] for at in self._rows.failed()]
        return [row for row in self._rows if row.error is not None]

    @property
    def changed(self) -> int:
        """How many texts have another label than their own prediction's."""
        if isinstance(self._rows, _Columns):
            return self._rows.changed()
        return sum(row.changed for row in self)

    def to_pandas(self) -> pd.DataFrame:
        """Return a pandas data frame with a row for each text, without neighbors and votes.

        Raises
        ------
        MissingDependencyError
            pandas is not installed.
        """
        return pandas_frame(self)

    def to_polars(self) -> pl.DataFrame:
        """Return a polars data frame with a row for each text, without neighbors and votes.

        Raises
        ------
        MissingDependencyError
            polars is not installed.
        """
        return polars_frame(self)

    def to_jsonl(self, path: str | os.PathLike[str]) -> None:
        """Write all of it as JSON Lines: a line for each text, the last one for the run.

        ``testnuc report`` makes a page of such a file, and `from_jsonl` reads it back.
        """
        write_jsonl(self, path)

    @classmethod
    def from_jsonl(cls, path: str | os.PathLike[str], *, text_column: str = "text") -> Results:
        """Read what `to_jsonl` or ``testnuc classify -o FILE.jsonl`` wrote.

        Raises
        ------
        InvalidInputError
            It cannot be read, or was not written by testnuc.
        """
        return results_of(table(path), str(path), text_column)

    def to_html(self, path: str | os.PathLike[str], *, title: str | None = None) -> None:
        """Write a page to look at these results with: one file that needs nothing else.

        It shows labels, trust, cost and what the vote changed, what to review first, and for any
        text its neighbors and votes. What is marked there as right or wrong can be downloaded;
        `read_marks` makes it the arguments of `TestNUC.tune` and `TestNUC.calibrate`.
        """
        from testnuc.report import write

        write(self, path, title=title)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Classification: ...

    @overload
    def __getitem__(self, index: slice) -> list[Classification]: ...

    def __getitem__(self, index: int | slice) -> Classification | list[Classification]:
        if isinstance(index, slice):
            return [self._rows[i] for i in range(*index.indices(len(self._rows)))]
        return self._rows[index]

    def __iter__(self) -> Iterator[Classification]:
        return iter(self._rows)

    def __repr__(self) -> str:
        failed = len(self.errors)
        more = f", {failed} with an error" if failed else ""
        return f"<Results of {len(self)} texts{more}, {self.usage.calls} calls>"

    def _repr_html_(self) -> str:
        usage = self.usage
        told = facts(
            f"Results of {len(self)} texts",
            [
                ("model", self.model),
                ("changed by the vote", self.changed),
                ("with an error", len(self.errors) or None),
                ("calls", usage.calls),
                ("US dollars", None if usage.usd is None else f"{usage.usd:.4f}"),
                ("seconds", f"{self.seconds:.1f}"),
            ],
        )
        shown = [(row.label, row.trust, row.own_label, row.text) for row in self[:_SHOWN]]
        more = len(self) - len(shown)
        tail = f"<p>and {more:,} more</p>" if more else ""
        return told + grid(["label", "trust", "the LLM said", "text"], shown) + tail
