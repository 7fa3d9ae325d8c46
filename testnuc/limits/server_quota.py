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
    at worst a few requests wait for the answers of those before them. With none in flight, whatever
    is left may be tried: our estimate of a request's tokens is only an estimate.

    Parameters
    ----------
    kind : str
        ``"requests"``, ``"tokens"``, ``"input-tokens"`` or ``"output-tokens"``.
    limit, remaining, reset : str
        The names of its headers.
    """

    __slots__ = ("_limit", "_probes", "_remaining", "_reset", "closed", "kind", "left", "until")

    def __init__(self, kind: str, limit: str, remaining: str, reset: str) -> None:
        self.kind = kind
        self._limit = limit
        self._remaining = remaining
        self._reset = reset
        #: What may be sent after the reset, until an answer says more; None: unknown.
        self._probes: float | None = None
        #: Whether so little is left that every request must be counted.
        self.closed = False
        #: What may still be sent; only while `closed`.
        self.left = 0.0
        #: Moment of the clock when the limit is reset; only while `closed`.
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
        # a wait that was cut short leads to one request, which is let through if nothing else flies
        limit = None if wait > longest else count(headers.get(self._limit))
        self._probes = 1.0 if wait > longest else limit
        return True

    def reopen(self, flying: float, until: float) -> bool:
        """Start anew after the reset.

        Parameters
        ----------
        flying : float
            The amount in flight.
        until : float
            Moment of the clock to start anew again, should no answer tell more until then.

        Returns
        -------
        bool
            Whether the gate is still closed: what was in flight counts, and so do all that follow,
            so that those who waited do not exceed the limit all at once.
        """
        if self._probes is None:
            self.closed = False
        else:
            self.left = self._probes - flying
            self.until = until
        return self.closed


def gates() -> tuple[Gate, ...]:
    """Make a gate for every limit that a provider is known to report.

    Returns
    -------
    tuple of Gate
        OpenAI's and those of the many that follow it, then Anthropic's.
    """
    own = [
        Gate(kind, *(f"x-ratelimit-{fact}-{kind}" for fact in ("limit", "remaining", "reset")))
        for kind in ("requests", "tokens")
    ]
    own += [
        Gate(
            kind,
            *(f"anthropic-ratelimit-{kind}-{fact}" for fact in ("limit", "remaining", "reset")),
        )
        for kind in ("requests", "tokens", "input-tokens", "output-tokens")
    ]
    return tuple(own)
