"""The provider's own rate limits, by the headers of its responses.

Some servers state limits that do not hold: nothing remains until tomorrow, in every response. Where
nothing remains for long, one call is sent soon to find out. If it is answered, and still nothing
remains, the header is ignored until the server refuses a call.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from testnuc.limits.concurrency import LONG
from testnuc.limits.headers import count, reset_delay, server_time, spell

_log = logging.getLogger("testnuc.limits")

#: Seconds to wait if nothing remains and the server does not send a reset time, and before a call
#: that finds out whether nothing remains for long.
_UNKNOWN_RESET = 1.0
_NEVER = float("inf")


@dataclass(slots=True, eq=False)
class Quota:
    """One limit of the provider: the remaining amount, and the time of its reset.

    A response may or may not include the requests in flight in the remaining amount, so they are
    subtracted: at worst, a few requests wait for responses. With none in flight, any remaining
    amount admits a request, as its tokens are only an estimate.
    """

    #: ``"requests"``, ``"tokens"``, ``"input-tokens"`` or ``"output-tokens"``.
    kind: str
    #: Names of its headers.
    limit: str
    remaining: str
    reset: str
    #: The longest wait in seconds: the headers give the time until the limit is *full* again, for a
    #: daily limit perhaps hours; one request is sent earlier as a probe.
    longest: float
    #: Whether so little remains that every request must be counted.
    low: bool = False
    #: Remaining amount, and when the limit is reset by the clock; only while `low`.
    left: float = 0.0
    until: float = 0.0
    #: Amount that may be sent after the reset, until the next response; None: unknown.
    probes: float | None = None
    #: Seconds until more remains, if that is believed.
    wait: float = 0.0
    #: When a response last had the header.
    seen: float = 0.0
    #: Since when nothing remains for longer than a wait may be.
    empty_since: float = _NEVER
    #: Whether a call was sent to find out, and whether it showed that the header is wrong.
    tested: bool = False
    ignored: bool = False
    #: Whether a long wait, and a wrong header, were logged.
    warned_wait: bool = False
    warned_wrong: bool = False

    def observe(
        self, headers: Mapping[str, str], *, flying: float, plenty: float, now: float, wall: float
    ) -> None:
        """Read the headers of a response.

        `flying` is the amount in flight; with `plenty` remaining, requests need not be counted.
        """
        remaining = count(headers.get(self.remaining))
        # a response to a limit of zero contradicts it: some gateways send zeros for "unknown"
        if remaining is None or (not remaining and count(headers.get(self.limit)) == 0):
            return
        self.seen = now
        if remaining - flying >= plenty:
            self.low = False
            self.empty_since = _NEVER
            return
        wait = reset_delay(headers.get(self.reset), server_time(headers, wall))
        if wait is None:
            wait = _UNKNOWN_RESET
        is_empty = not remaining and wait > self.longest
        if is_empty and self.ignored:
            self.low = False
            return
        self.empty_since = min(self.empty_since, now) if is_empty else _NEVER
        self.low = True
        self.left = remaining - flying
        believed = self.tested or not is_empty
        self.until = now + min(wait, self.longest if believed else _UNKNOWN_RESET)
        self.wait = wait if believed and not remaining else 0.0
        # after a shortened wait one probe is sent, if nothing else is in flight
        # a limit of zero would admit nothing for ever, and this response contradicts it
        self.probes = 1.0 if wait > self.longest else count(headers.get(self.limit)) or None

    def reopen(self, flying: float, now: float) -> bool:
        """Start again after the reset; return whether the quota is still low.

        If so, requests in flight and all that follow count, so that the waiters do not exceed the
        limit all at once. Without a response it starts again after the longest wait; soon if those
        in flight leave room for none, as what ends may say nothing of the quota.
        """
        if self.probes is None:
            self.low = False
        else:
            self.tested = self.tested or self.empty_since < _NEVER
            self.left = self.probes - flying
            self.until = now + (self.longest if self.left > 0 else _UNKNOWN_RESET)
        return self.low

    def log_wait(self) -> None:
        """Say once that requests wait for long."""
        if self.wait > LONG and not self.warned_wait:
            self.warned_wait = True
            probes = f"; one call is sent every {spell(self.longest)}"
            _log.warning(
                "the provider allows no more %s for %s (%s: 0)%s", self.kind, spell(self.wait),
                self.remaining, probes if self.wait > self.longest else "",
            )  # fmt: skip

    def answered(self, sent_at: float) -> None:
        """Ignore the header if nothing remained when a request was sent that was answered."""
        if sent_at > self.seen:
            self.low = False  # the server no longer sends it
        if sent_at <= self.empty_since:
            return
        self.low, self.ignored, self.empty_since = False, True, _NEVER
        if not self.warned_wrong:
            self.warned_wrong = True
            _log.warning(
                "the provider answers although no %s remain by its own headers (%s: 0); they are "
                "ignored until it refuses a call", self.kind, self.remaining,
            )  # fmt: skip


class ServerQuota:
    """All limits of the provider, and the requests and tokens in flight.

    With enough remaining for `max_concurrency` calls, they need not be counted. `longest` is the
    longest wait in seconds for a reset.
    """

    def __init__(self, max_concurrency: int, longest: float) -> None:
        self._max_concurrency = max_concurrency
        self._quotas = _quotas(longest)
        #: Number of quotas that are low.
        self.low = 0
        #: Requests in flight, and their input and output tokens by the estimates.
        self.flying = (0, 0, 0)

    def sent(self, size: tuple[int, int]) -> None:
        """Count a request that is sent now, with its input and output tokens."""
        requests, sent, received = self.flying
        self.flying = requests + 1, sent + size[0], received + size[1]
        if self.low:
            for quota in self._quotas:
                quota.left -= _amount(quota.kind, (1, *size))

    def ended(self, size: tuple[int, int]) -> None:
        """Count a request that is no longer in flight."""
        requests, sent, received = self.flying
        self.flying = requests - 1, sent - size[0], received - size[1]

    def observe(
        self, headers: Mapping[str, str], size: tuple[int, int], now: float, wall: float
    ) -> None:
        """Read the headers of the response to a request of this size, still in flight."""
        for quota in self._quotas:
            # most responses have few of these headers
            if quota.remaining not in headers:
                continue
            amount = _amount(quota.kind, (1, *size))
            flying = _amount(quota.kind, self.flying) - amount
            plenty = self._max_concurrency * amount
            quota.observe(headers, flying=flying, plenty=plenty, now=now, wall=wall)
        self.low = sum(quota.low for quota in self._quotas)

    def answered(self, sent_at: float) -> None:
        """Note that a request was answered, after its headers were read."""
        if self.low:
            for quota in self._quotas:
                quota.answered(sent_at)
            self.low = sum(quota.low for quota in self._quotas)

    def refused(self) -> None:
        """Believe all headers again: the server refused a request."""
        for quota in self._quotas:
            quota.ignored, quota.tested = False, True

    def delay(self, now: float, size: tuple[int, int]) -> float:
        """Return the seconds until a request of this size may be sent."""
        delay = 0.0
        for quota in self._quotas:
            if not quota.low:
                continue
            flying = _amount(quota.kind, self.flying)
            if now >= quota.until and not quota.reopen(flying, now):
                self.low -= 1
                continue
            alone = self.flying[0] == 0 and quota.left > 0
            if quota.left < _amount(quota.kind, (1, *size)) and not alone:
                delay = max(delay, quota.until - now)
                quota.log_wait()
        return delay


def _amount(kind: str, amounts: tuple[int, int, int]) -> int:
    """Return requests, input tokens, output tokens or all tokens, as a quota counts them."""
    requests, sent, received = amounts
    parts = {"requests": requests, "input-tokens": sent, "output-tokens": received}
    return parts.get(kind, sent + received)


def _quotas(longest: float) -> tuple[Quota, ...]:
    """Return a quota for every known header: OpenAI's and compatible servers', then Anthropic's."""
    names = [(kind, f"x-ratelimit-{{}}-{kind}") for kind in ("requests", "tokens")]
    kinds = ("requests", "tokens", "input-tokens", "output-tokens")
    names += [(kind, f"anthropic-ratelimit-{kind}-{{}}") for kind in kinds]
    return tuple(
        Quota(kind, name.format("limit"), name.format("remaining"), name.format("reset"), longest)
        for kind, name in names
    )
