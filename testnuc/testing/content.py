"""What the model of a test server says, well or badly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["WRONG_LABEL", "Content", "compose"]

#: The label of ``wrong-label``.
WRONG_LABEL = "zqx no such label"

_BEFORE = "Sure! I read the samples with care. Here is the result:\n\n```json\n"
_AFTER = "\n```\n\nLet me know if you need anything else."
_REFUSAL = "I'm sorry, but I can't help with that."


@dataclass(frozen=True, slots=True)
class Content:
    """What the model says, and why it stopped."""

    text: str
    #: ``stop``, ``length``, ``refusal`` or ``empty``.
    finish: str = "stop"
    #: The parts of `text` that are labels, with the probability of each, in order.
    labels: tuple[tuple[str, float], ...] = ()


def compose(
    told: Sequence[tuple[str, float | None]],
    *,
    fault: str | None = None,
    confidence: bool = True,
    prose: bool = False,
) -> Content:
    """Write the answers the way the prompt asks for them.

    Parameters
    ----------
    told : sequence of (str, float or None)
        Label and confidence of each text.
    fault : str, optional
        What to do wrong; kinds that are no matter of content are ignored.
    confidence : bool
        Whether the answers have the field ``confidence``.
    prose : bool
        Fence the JSON and wrap it in prose.
    """
    if fault == "refusal":
        return Content(_REFUSAL, "refusal")
    if fault == "empty-choices":
        return Content("", "empty")
    if fault == "wrong-label":
        told = [(WRONG_LABEL, sure) for _, sure in told]
    items: list[dict[str, Any]] = [
        {"label": label, "confidence": sure} if confidence else {"label": label}
        for label, sure in told
    ]
    if len(items) == 1:
        text = orjson.dumps(items[0]).decode()
    else:
        answers = [{"id": i, **item} for i, item in enumerate(items, 1)]
        if fault == "duplicate-ids":
            answers[1]["id"] = 1
        elif fault == "missing-ids":
            answers.pop()
        elif fault == "invented-ids":
            answers[-1]["id"] = len(answers) + 7
        text = orjson.dumps({"answers": answers}).decode()
    if fault == "length":
        return Content(text[: len(text) // 2], "length")
    if prose or fault == "prose":
        text = f"{_BEFORE}{text}{_AFTER}"
    labels = tuple(
        (orjson.dumps(label).decode()[1:-1], 1.0 if sure is None else sure) for label, sure in told
    )
    return Content(text, "stop", labels)
