"""Headers: every documented form is read, and no junk ever raises."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime, formatdate
from http.client import HTTPMessage

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from multidict import CIMultiDict

from testnuc.limits import headers

NOW = datetime(2025, 1, 15, 14, 24, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("6m0s", 360),
        ("20ms", 0.02),
        ("1s", 1),
        ("1h2m3.5s", 3723.5),
        ("0s", 0),
        ("7m12s", 432),
        ("2m59.56s", 179.56),
        ("59.56", 59.56),
        ("17", 17),
        ("1d2h", 93600),
        ("250us", 0.00025),
        ("3\u00b5s", 0.000003),
        ("5ns", 5e-9),
        (" 1.5s ", 1.5),
        (".5s", 0.5),
    ],
)
def test_durations_as_documented(text, seconds):
    assert headers.duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [None, "", " ", "-1", "-1s", "s", "1x", "1s ago", "nan", "inf", "1e5", "٣s", "9" * 400, "1 s"],
)
def test_junk_is_no_duration(text):
    assert headers.duration(text) is None


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999_999))
def test_durations_of_any_size(hours, minutes, seconds, micros):
    expected = hours * 3600 + minutes * 60 + seconds + micros / 1e6
    assert headers.duration(f"{hours}h{minutes}m{seconds}.{micros:06d}s") == pytest.approx(expected)
    assert headers.duration(f"{micros / 1000}ms") == pytest.approx(micros / 1e6)


moments = st.datetimes(
    datetime(1980, 1, 1),  # noqa: DTZ001 - the strategy adds the zone
    datetime(2090, 1, 1),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5.5)), timezone(-timedelta(hours=8))]),
)


@given(moments)
def test_rfc_3339(moment):
    text = moment.isoformat()
    assert headers.timestamp(text) == pytest.approx(moment.timestamp())
    utc = moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    assert headers.timestamp(utc) == pytest.approx(moment.timestamp())
    assert headers.timestamp(utc.replace("Z", "z").replace("T", "t")) is not None
    assert headers.reset_delay(utc, NOW) == pytest.approx(max(0.0, moment.timestamp() - NOW))


@given(moments)
def test_http_dates_in_all_three_forms(moment):
    moment = moment.astimezone(UTC).replace(microsecond=0)
    fixed = format_datetime(moment, usegmt=True)
    assert headers.http_date(fixed) == moment.timestamp()
    assert headers.http_date(moment.strftime("%a %b %d %H:%M:%S %Y")) == moment.timestamp()
    if 1980 <= moment.year < 2060:  # two digits cannot say more
        assert headers.http_date(moment.strftime("%A, %d-%b-%y %H:%M:%S GMT")) == moment.timestamp()


@given(st.floats(0, 1e6))
def test_epochs(ahead):
    assert headers.reset_delay(f"{NOW + ahead:.3f}", NOW) == pytest.approx(ahead, abs=0.01)
    assert headers.reset_delay(f"{(NOW + ahead) * 1000:.0f}", NOW) == pytest.approx(ahead, abs=0.01)


@pytest.mark.parametrize(
    ("given_headers", "seconds"),
    [
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "junk", "retry-after": "9"}, 9),
        ({"Retry-After": "2.5"}, 2.5),
        ({"retry-after": "20s"}, 20),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "soon"}, None),
        ({}, None),
        ({"retry-after": formatdate(NOW + 30, usegmt=True)}, 30),
        ({"retry-after": formatdate(NOW - 30, usegmt=True)}, 0),
        # the server's clock is an hour off: what counts is its own present
        (
            {
                "retry-after": formatdate(NOW + 3630, usegmt=True),
                "date": formatdate(NOW + 3600, usegmt=True),
            },
            30,
        ),
    ],
)
def test_retry_after(given_headers, seconds):
    assert headers.retry_after(given_headers, NOW) == seconds
    assert headers.retry_after(CIMultiDict(given_headers), NOW) == seconds


@pytest.mark.parametrize("name", ["retry-after", "retry-after-ms"])
@pytest.mark.parametrize("unit", [1, 1e3, 1e6, 1e9])
@given(ahead=st.integers(-100_000, 100_000))
def test_a_moment_to_wait_for(name, unit, ahead):
    if name.endswith("-ms") and unit == 1:
        return
    moment = {name: f"{(NOW + ahead) * unit:.0f}"}
    assert headers.retry_after(moment, NOW) == pytest.approx(max(0, ahead), abs=0.01)
    # by the server's clock, if it says what time it is
    there = {**moment, "date": formatdate(NOW + ahead - 7, usegmt=True)}
    assert headers.retry_after(there, NOW + 1e6) == pytest.approx(7, abs=0.01)


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "-inf", "9" * 400, "1e999", "0x10", "\u0663"])
def test_a_wait_that_is_no_number_is_none(text):
    assert headers.retry_after({"retry-after": text, "retry-after-ms": text}, NOW) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "0.2 s"), (61, "61 s"), (7200, "2 h"), (86_400, "24 h"), (1e9, "11,574 days")],
)
def test_durations_are_spelled(seconds, text):
    assert headers.spell(seconds) == text


@pytest.mark.parametrize(
    ("text", "number"),
    [("149984", 149984), ("0", 0), ("12.0", 12), ("-1", None), ("1.5", None), ("many", None)],
)
def test_counts(text, number):
    assert headers.count(text) == number


@pytest.mark.slow
@given(st.text(max_size=80) | st.from_regex(r"\A[0-9.hmsdnu:TZ+, -]{0,70}\Z"))
@example("0001-01-01T00:00:00+23:59")
@example("9999-12-31T23:59:59-23:59")
@example("Mon, 99 Jan 99999999999 00:00:00 GMT")
@example("1" * 64 + "h")
@example("\x00")
def test_junk_never_raises(text):
    for read in (headers.duration, headers.timestamp, headers.http_date, headers.count):
        value = read(text)
        assert value is None or (math.isfinite(value) and isinstance(value, (int, float)))
    delay = headers.reset_delay(text, NOW)
    assert delay is None or (math.isfinite(delay) and delay >= 0)
    for name in ("retry-after", "retry-after-ms", "date"):
        wait = headers.retry_after({name: text}, NOW)
        assert wait is None or (math.isfinite(wait) and wait >= 0)
    # Retry-After is asked for together with a date that may be junk as well
    both = HTTPMessage()
    both["retry-after"] = "Wed, 15 Jan 2025 14:24:30 GMT"
    both["date"] = text.replace("\n", "").replace("\r", "")
    assert headers.retry_after({k.lower(): str(v) for k, v in both.items()}, NOW) is not None
