"""A better model that judges texts, and labels those of the lowest trust."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from testnuc._base.checks import checked_number

if TYPE_CHECKING:
    from testnuc.protocols import Provider, WireProvider


@dataclass(frozen=True, slots=True)
class Referee:
    """A better model, whose answers are judgments.

    `TestNUC.classify_many` lets it judge a hundred texts on which strategies differ, once, and
    learns from them as `TestNUC.learn` does.

    Parameters
    ----------
    model : str or Provider
        As for `TestNUC`. A name of the same provider has the client's address and key.
    escalate : float
        The part of the texts of each `classify_many`, those of lowest trust, that it labels.
        Nothing is escalated unless the neighbors or a model of your texts agree with most of its
        answers that contradict the LLM; `Results.escalated` says so.

    Examples
    --------
    ::

        TestNUC(labels, referee=Referee("openai/gpt-5", escalate=0.1))
    """

    model: str | Provider | WireProvider
    escalate: float = 0.0

    def __post_init__(self) -> None:
        checked_number("escalate", self.escalate, 0, 1)

    @classmethod
    def of(cls, given: Any) -> Referee | None:
        """Return a referee, of a model or None as well."""
        return given if given is None or isinstance(given, Referee) else cls(given)
