"""The two ends of a call, in any protocol: the parts of a body, and what a response says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testnuc.protocols import TokenUsage

__all__ = ["Body", "Message"]


@dataclass(frozen=True, slots=True)
class Body:
    """The parts of a body."""

    #: JSON up to and with the opening quote of the user message.
    opening: bytes
    #: JSON from its closing quote up to the end of the messages.
    closing: bytes
    #: After the messages.
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
    truncated: bool = False
    #: Log-probabilities of the content's tokens, as received.
    logprobs: Any = None
