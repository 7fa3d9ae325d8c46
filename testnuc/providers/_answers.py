"""What both ends of a call share in any protocol: body, schema and output limit, message."""

from dataclasses import dataclass
from typing import Any

import orjson

from testnuc.protocols import Task, TokenUsage
from testnuc.providers._dialect import Structure

#: Limits of enums, as first documented by OpenAI and copied by other servers.
MAX_ENUM = 500
MAX_ENUM_CHARACTERS = 15_000
#: Labels of one text that an answer has room for.
MAX_LABELS = 32
#: Why answers end that are whole, by the names of different servers; others broke off, as by
#: ``"error"``, ``"abort"``, DeepSeek's ``"insufficient_system_resource"``.
_WHOLE = frozenset(
    {"stop", "end_turn", "stop_sequence", "eos", "eos_token", "end_of_turn", "tool_calls"}
    | {"tool_use", "function_call", "complete", "completed", "finished", "done", "success"}
)


@dataclass(frozen=True, slots=True)
class Body:
    """The parts of a body."""

    #: JSON up to and with the opening quote of the user message.
    opening: bytes
    #: After the messages, which end with the user message.
    parameters: dict[str, Any]
    #: Output limit; None if none is sent.
    output_tokens: int | None


@dataclass(frozen=True, slots=True)
class Message:
    """The content of a 200 response, in any protocol."""

    content: str
    usage: TokenUsage | None
    request_id: str | None
    #: The model's refusal, "" if it has no text; None if it did not refuse.
    refusal: str | None = None
    #: Whether the output limit cut it off.
    truncated: bool = False
    #: Log-probabilities of the content's tokens, as received.
    logprobs: Any = None
    #: Whether it broke off for another reason.
    broken: bool = False

    @property
    def whole(self) -> bool:
        """Whether it ended by itself."""
        return not (self.truncated or self.broken)


def breaks_off(reason: Any) -> bool:
    """Whether an answer broke off, by the reason why it ended; without one it did not.

    A number, as Gemini has inside, can be any reason.
    """
    return bool(reason) and not (isinstance(reason, str) and reason.lower() in _WHOLE)


def answer_schema(task: Task, n: int, structure: Structure) -> dict[str, Any]:
    """Return the JSON schema of an answer to `n` texts; `ENUM` adds the labels if they fit."""
    label: dict[str, Any] = {"type": "string"}
    fits = len(task.labels) <= MAX_ENUM and sum(map(len, task.labels)) <= MAX_ENUM_CHARACTERS
    # without labels, the answer is any string
    if structure is Structure.ENUM and task.labels and fits:
        label["enum"] = list(task.labels)
    fields: dict[str, Any] = {"label": label}
    if task.confidence == "verbalized":
        fields["confidence"] = {"type": "number"}
    if task.multilabel:
        fields = {"labels": {"type": "array", "items": _object(fields)}}
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


def output_limit(task: Task, n: int, structure: Structure) -> int:
    """Return an output limit above any well-formed answer to `n` texts.

    A token has at least one byte, so a label needs at most as many tokens as the longest label has
    bytes. The rest is for the JSON syntax, and for prose or a code fence if no schema is enforced.
    """
    longest = max((len(orjson.dumps(label)) for label in task.labels), default=0)
    if task.multilabel:
        longest = min(len(task.labels), MAX_LABELS) * (longest + 32)
    return n * (longest + 48) + (64 if structure < Structure.OBJECT else 320)
