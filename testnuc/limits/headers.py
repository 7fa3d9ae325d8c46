"""Parsers of rate limit headers.

Every function is pure, and returns None for a header that it cannot parse: a malformed header never
fails a call.
"""

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

#: Longer values are malformed, and not worth a regular expression.
_LONGEST = 64
_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "\u00b5s": 1e-6,
    "\u03bcs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_PART = r"([0-9]{1,64}(?:\.[0-9]{0,64})?|\.[0-9]{1,64})(ns|us|\u00b5s|\u03bcs|ms|s|m|h|d)"
_PARTS = re.compile(_PART)
_DURATION = re.compile(rf"(?:{_PART})++")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")
_COUNT = re.compile(r"[0-9]+(?:\.0*)?")
#: A number from here on is a moment in seconds since 1970; a thousand times larger, and larger
#: still, in milli-, micro- or nanoseconds.
_EPOCH = 1e9


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def _short(text: str | None) -> str | None:
    return None if text is None or len(text) > _LONGEST else text.strip() or None


def count(text: str | None) -> int | None:
    """Read a number of requests or tokens; None also for ``-1``, Azure's value for unknown."""
    text = _short(text)
    if text is None or not _COUNT.fullmatch(text):
        return None
    return int(text.partition(".")[0])


def duration(text: str | None) -> float | None:
    """Read a duration such as ``6m0s``, ``20ms``, ``1h2m3.5s`` or a plain number of seconds."""
    text = _short(text)
    if text is None:
        return None
    text = text.lower()
    seconds = _number(text)
    if seconds is None:
        if not _DURATION.fullmatch(text):
            return None
        seconds = math.fsum(float(n) * _SECONDS[unit] for n, unit in _PARTS.findall(text))
    return seconds if math.isfinite(seconds) else None


def timestamp(text: str | None) -> float | None:
    """Read a moment in RFC 3339, UTC without an offset, as seconds since 1970."""
    return _moment(text, lambda text: datetime.fromisoformat(text.upper()))


def http_date(text: str | None) -> float | None:
    """Read an HTTP date in any of its three forms, as seconds since 1970."""
    return _moment(text, parsedate_to_datetime)


def _moment(text: str | None, parse: Callable[[str], datetime]) -> float | None:
    text = _short(text)
    if text is None:
        return None
    try:
        moment = parse(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment.timestamp()
    except (ValueError, TypeError, IndexError, OverflowError, AttributeError):
        return None


def reset_delay(text: str | None, now: float) -> float | None:
    """Read the reset time of a limit, in any known form, as seconds from `now`, at least 0.

    A duration, a number of seconds, a moment in RFC 3339, an HTTP date, or (milli)seconds since
    1970. `now` is the server's time.
    """
    seconds = duration(text)
    if seconds is not None:
        return _ahead(seconds, now)
    moment = http_date(text)
    if moment is None:
        moment = timestamp(text)
    return None if moment is None else max(0.0, moment - now)


def _ahead(seconds: float, now: float) -> float:
    """Return a number of seconds, or the seconds until the moment that it stands for."""
    if seconds < _EPOCH:
        return seconds
    while seconds >= _EPOCH * 1000:
        seconds /= 1000
    return max(0.0, seconds - now)


def spell(seconds: float) -> str:
    """Write a duration in the unit that people would use."""
    if seconds >= 100 * 365 * _SECONDS["d"]:
        return "more than 100 years"
    for unit, size in (("days", _SECONDS["d"]), ("h", _SECONDS["h"])):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.{0 if seconds >= 10 else 1}f} s"


def usable_wait(seconds: float | None) -> float | None:
    """Return a wait that a provider states, or None if it is no number of seconds."""
    return seconds if seconds is not None and 0 <= seconds < math.inf else None


def header(headers: Mapping[str, str], *names: str) -> str | None:
    """Return the first of these headers that a response has; `names` are in lower case."""
    lowered = {name.lower(): value for name, value in headers.items()}
    return next((lowered[name] for name in names if lowered.get(name)), None)


def server_time(headers: Mapping[str, str], now: float) -> float:
    """Return the server's time, so that a wrong local clock does not matter.

    `now`, the local time in seconds since 1970, is for servers that do not send ``Date``.
    """
    date = http_date(header(headers, "date"))
    return now if date is None else date


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Read the wait that the server asks for: ``retry-after-ms``, or ``Retry-After`` in any form.

    `now`: the local time in seconds since 1970, for moments in responses without ``Date``.
    """
    there = server_time(headers, now)
    text = _short(header(headers, "retry-after-ms"))
    milliseconds = None if text is None else _number(text)
    if milliseconds is not None:
        return _ahead(milliseconds / 1000, there)
    return reset_delay(header(headers, "retry-after"), there)
