"""JSON that others wrote."""

import json
import math

import pytest

from testnuc._base.foreign import _ESCAPES, count, read_json, write_json


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        (b'{"a": "\xff\xfe"}', {"a": "\ufffd\ufffd"}),
        (rb'{"a": "\ud83d\ude00"}', {"a": "\U0001f600"}),
        (rb'{"a": "\ud800"}', {"a": "\ufffd"}),
        (rb'{"\udc00": "x\uD83D y"}', {"\ufffd": "x\ufffd y"}),
        (rb'{"a": "\ud800\ud83d\ude00"}', {"a": "\ufffd\U0001f600"}),
        # an escaped backslash, then letters
        (b'{"a": "\\\\ud800", "b": NaN}', {"a": "\\ud800", "b": math.nan}),
        (b'{"a": -Infinity, "b": Infinity}', {"a": -math.inf, "b": math.inf}),
        (b'{"a": 1e400}', {"a": math.inf}),
        # more digits than Python reads
        (b'{"a": %s, "b": -%s}' % (b"1" * 6_000, b"1" * 6_000), {"a": math.inf, "b": -math.inf}),
        (b'{"a": "tab\there\x00"}', {"a": "tab\there\x00"}),
    ],
)
def test_what_some_servers_write_is_read(data, value):
    read = read_json(data)
    assert repr(read) == repr(value)
    write_json(read).decode()


def test_what_is_escaped_takes_no_call_each():
    """A function that was called for each took 0.2 s of the event loop for a megabyte."""
    text = "".join(f'{c}\\"\\n\\\\{c}\\u00e9' for c in "abc") * 1000
    assert len(list(_ESCAPES.finditer(text))) == 1
    assert read_json(b'["%s\\ud800", NaN]' % text.encode())[0] == json.loads(f'"{text}"') + "\ufffd"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"<html>",
        b"[" * 100_000,
        b'{"a":' * 5_000,
        b"1" * 5_000 + b"\xff",
        b"\xff\xfe{\x00}\x00",
        b"[0," * 1_500_000,
        b"[" + b"{}," * 1_500_000 + b"0]",
        b"[" + b" " * 2_000_000 + b"NaN]",
    ],
)
def test_what_cannot_be_read_is_a_value_error(data):
    with pytest.raises(ValueError, match=r"."):
        read_json(data)


@pytest.mark.parametrize("depth", [250, 300, 900, 1500])
def test_what_is_nested_deeply_is_written_or_null(depth):
    try:
        value = read_json(b"[" * depth + b"]" * depth)
    except ValueError:
        assert depth > 900
        return
    assert write_json(value) in {b"[" * depth + b"]" * depth, b"null"}


@pytest.mark.parametrize("value", [-1, True, 1.5, "-7", None, 10**30, 1e30, 2**63, [1], math.nan])
def test_no_number_of_tokens(value):
    assert count(value) is None


def test_a_number_of_tokens():
    assert [count(n) for n in (0, 7, "7", 7.0, 10**7)] == [0, 7, 7, 7, 10**7]
