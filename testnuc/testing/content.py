"""Model output of the test server, with or without faults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["WRONG_LABEL", "Content", "compose"]

#: The label of ``wrong-label``.
WRONG_LABEL = "zqx no such label"

_BEFORE = "Sure! I read the samples with care. Here is the result:\n\n```json\n"
_AFTER = "\n```\n\nLet me know if you need anything else."
_REFUSAL = "I'm sorry, but I can't help with that."


@dataclass(frozen=True, slots=True)
class Content:
    """Output of the model, and its stop reason."""

    text: str
    #: ``stop``, ``length``, ``refusal`` or ``empty``.
    finish: str = "stop"
    #: The labels in `text`, each with its probability, in order.
    labels: tuple[tuple[str, float], ...] = ()


def compose(
    answers: Sequence[tuple[str | Mapping[str, float | None], float | None]],
    *,
    fault: str | None = None,
    confidence: bool = True,
    prose: bool = False,
) -> Content:
    """Render answers in the format that the prompt requests.

    An answer is a label and its confidence, or a mapping of labels to their confidences. Faults
    that do not affect content are ignored. `prose`: put the JSON in a code fence and add prose
    around it.
    """
    if fault == "refusal":
        return Content(_REFUSAL, "refusal")
    if fault == "empty-choices":
        return Content("", "empty")
    if fault == "wrong-label":
        answers = [(WRONG_LABEL, stated) for _, stated in answers]
    items = [_item(label, stated, confidence=confidence) for label, stated in answers]
    if len(items) == 1:
        text = orjson.dumps(items[0]).decode()
    else:
        packed = [{"id": i, **item} for i, item in enumerate(items, 1)]
        if fault == "duplicate-ids":
            packed[1]["id"] = 1
        elif fault == "missing-ids":
            packed.pop()
        elif fault == "invented-ids":
            packed[-1]["id"] = len(packed) + 7
        text = orjson.dumps({"answers": packed}).decode()
    if fault == "length":
        return Content(text[: len(text) // 2], "length")
    if prose or fault == "prose":
        text = f"{_BEFORE}{text}{_AFTER}"
    labels = tuple(
        (orjson.dumps(label).decode()[1:-1], 1.0 if stated is None else stated)
        for label, stated in answers
        if isinstance(label, str)
    )
    return Content(text, "stop", labels)


def _item(
    label: str | Mapping[str, float | None], stated: float | None, *, confidence: bool
) -> dict[str, Any]:
    if not isinstance(label, str):
        listed = [_item(one, sure, confidence=confidence) for one, sure in label.items()]
        return {"labels": listed}
    return {"label": label, "confidence": stated} if confidence else {"label": label}
