"""The form of an answer: its JSON schema, the tokens it can take, and the tokens it took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from testnuc.providers._dialect import Structure

if TYPE_CHECKING:
    from testnuc.protocols import Task

__all__ = ["answer_schema", "count", "enum_fits", "output_limit"]

#: The limits that OpenAI documented first and other servers copied; its own are wider by now.
MAX_ENUM = 500
MAX_ENUM_CHARACTERS = 15_000


def answer_schema(task: Task, n: int, structure: Structure) -> dict[str, Any]:
    """Return the JSON schema of an answer to `n` texts.

    Parameters
    ----------
    task : Task
        Its labels go into the schema where `structure` says so and they are few enough.
    n : int
        How many texts are asked about.
    structure : Structure
        `ENUM` or `SCHEMA`.
    """
    label: dict[str, Any] = {"type": "string"}
    if structure is Structure.ENUM and enum_fits(task.labels):
        label["enum"] = list(task.labels)
    fields: dict[str, Any] = {"label": label}
    if task.confidence == "verbalized":
        fields["confidence"] = {"type": "number"}
    if n == 1:
        return _object(fields)
    items = _object({"id": {"type": "integer"}, **fields})
    return _object({"answers": {"type": "array", "items": items}})


def _object(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }


def enum_fits(labels: tuple[str, ...]) -> bool:
    """Whether providers take these labels as an enum of a schema."""
    return len(labels) <= MAX_ENUM and sum(map(len, labels)) <= MAX_ENUM_CHARACTERS


def output_limit(task: Task, n: int, structure: Structure) -> int:
    """Return an output limit that no well-formed answer to `n` texts reaches.

    A token is at least a byte, so the bytes of the longest label suffice for it; the rest is room
    for the JSON around it, and for a sentence or a code fence where nothing enforces the form.

    Parameters
    ----------
    task : Task
        Its labels are what an answer can hold.
    n : int
        How many texts are asked about.
    structure : Structure
        What enforces the form.
    """
    longest = max((len(orjson.dumps(label)) for label in task.labels), default=0)
    return n * (longest + 48) + (64 if structure < Structure.OBJECT else 320)


def count(value: Any) -> int | None:
    """Return a number of tokens, or None where a provider gives none."""
    return value if type(value) is int and value >= 0 else None
