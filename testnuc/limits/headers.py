"""Parsers of rate limit headers.

Every function is pure, and returns None for a header that it cannot parse: a malformed header never
fails a call.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["count", "duration", "http_date", "reset_delay", "retry_after", "timestamp"]

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
_PART = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|\u00b5s|\u03bcs|ms|s|m|h|d)"
_PARTS = re.compile(_PART)
_DURATION = re.compile(rf"(?:{_PART})+")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")
_COUNT = re.compile(r"[0-9]+(?:\.0*)?")
#: A bare number this large is a moment in seconds since 1970 (in milliseconds: times 1000).
_EPOCH = 1e9


def _number(text: str) -> float | None:
    if not _NUMBER.fullmatch(text):
        return None
    return float(text)


def _short(text: str | None) -> str | None:
    if text is None or len(text) > _LONGEST:
        return None
    return text.strip() or None


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

    A duration, a number of seconds, a moment in RFC 3339, or one in (milli)seconds since 1970.
    `now` is the server's time.
    """
    seconds = duration(text)
    if seconds is None:
        moment = timestamp(text)
        return None if moment is None else max(0.0, moment - now)
    if seconds >= _EPOCH:
        moment = seconds / 1000 if seconds >= _EPOCH * 1000 else seconds
        return max(0.0, moment - now)
    return seconds


def _get(headers: Mapping[str, str], name: str) -> str | None:
    """Look up a header in a mapping that may be case-sensitive."""
    value = headers.get(name)
    return headers.get(name.title()) if value is None else value


def server_time(headers: Mapping[str, str], now: float) -> float:
    """Return the server's time, so that a wrong local clock does not matter.

    `now`, the local time in seconds since 1970, is for servers that do not send ``Date``.
    """
    date = http_date(_get(headers, "date"))
    return now if date is None else date


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Read the wait that the server asks for: ``retry-after-ms``, or ``Retry-After`` in any form.

    `now`: the local time in seconds since 1970, for dates in responses without ``Date``.
    """
    text = _short(_get(headers, "retry-after-ms"))
    if text is not None:
        milliseconds = _number(text)
        if milliseconds is not None:
            return milliseconds / 1000
    text = _get(headers, "retry-after")
    seconds = duration(text)
    if seconds is not None:
        return seconds
    moment = http_date(text)
    if moment is None:
        moment = timestamp(text)
    return None if moment is None else max(0.0, moment - server_time(headers, now))
