"""What is left of the provider's own limits, as its latest answer says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testnuc.limits.headers import count, reset_delay, server_time

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Gate", "gates"]

#: Seconds to hold off where nothing is left and the server does not say for how long.
_UNKNOWN_RESET = 1.0


class Gate:
    """One limit of the provider: how much of it is left, and until when.

    Requests in flight may or may not be part of what an answer says is left, so they are taken off:
    at worst a few requests wait for the answers of those before them.

    Parameters
    ----------
    kind : str
        ``"requests"``, ``"tokens"``, ``"input-tokens"`` or ``"output-tokens"``.
    remaining, reset : str
        The names of its headers.
    """

    __slots__ = ("_remaining", "_reset", "closed", "kind", "left", "until")

    def __init__(self, kind: str, remaining: str, reset: str) -> None:
        self.kind = kind
        self._remaining = remaining
        self._reset = reset
        #: Whether so little is left that every request must be counted.
        self.closed = False
        #: What may still be sent; only while `closed`.
        self.left = 0.0
        #: Moment of the clock from which on nothing is known any more; only while `closed`.
        self.until = 0.0

    def observe(
        self,
        headers: Mapping[str, str],
        *,
        flying: float,
        plenty: float,
        longest: float,
        now: float,
        wall: float,
    ) -> bool:
        """Read an answer's headers.

        Parameters
        ----------
        headers : mapping
            Of the answer.
        flying : float
            The amount in flight.
        plenty : float
            With at least so much left there is nothing to count.
        longest : float
            Seconds to hold off at most. The headers tell when the limit is *full* again, which for
            a daily limit can be hours; then one request goes out to see.
        now, wall : float
            Seconds of the clock, and since 1970.

        Returns
        -------
        bool
            Whether the gate is closed now.
        """
        text = headers.get(self._remaining)
        if text is None:
            return self.closed
        remaining = count(text)
        if remaining is None:
            return self.closed
        if remaining - flying >= plenty:
            self.closed = False
            return False
        wait = reset_delay(headers.get(self._reset), server_time(headers, wall))
        if wait is None:
            wait = _UNKNOWN_RESET
        self.closed = True
        self.left = remaining - flying
        self.until = now + min(wait, longest)
        return True


def gates() -> tuple[Gate, ...]:
    """Make a gate for every limit that a provider is known to report.

    Returns
    -------
    tuple of Gate
        OpenAI's and those of the many that follow it, then Anthropic's.
    """
    own = [
        Gate(kind, f"x-ratelimit-remaining-{kind}", f"x-ratelimit-reset-{kind}")
        for kind in ("requests", "tokens")
    ]
    prefix = "anthropic-ratelimit"
    own += [
        Gate(kind, f"{prefix}-{kind}-remaining", f"{prefix}-{kind}-reset")
        for kind in ("requests", "tokens", "input-tokens", "output-tokens")
    ]
    return tuple(own)
