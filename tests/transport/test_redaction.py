"""A key that a server repeats, in whatever form, and words that would forge a line of a log."""

from __future__ import annotations

import base64
import json
import logging
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testnuc.errors import EmptyReplyError, ProviderError, printable
from testnuc.providers.anthropic import Anthropic
from testnuc.providers.openai import OpenAI
from testnuc.transport.api_errors import as_error, redacted, without_key
from tests.providers.chat_bodies import request

#: A key without a known prefix, with characters that are escaped.
KEY = 'Zq/81xY+kLm0"The=SecretPart&77'
PLAIN = "hunter2hunter2"


def encoded(key):
    raw = key.encode()
    return {
        "as it is": key,
        "another case": key.upper(),
        "percent": quote(key, safe=""),
        "percent, lower case": quote_plus(key).lower(),
        "percent, each": "".join(f"%{b:02x}" for b in raw),
        "percent, twice": quote(quote(key, safe=""), safe=""),
        "json": json.dumps(key),
        "json in json": json.dumps(json.dumps(key)),
        "json, slashes": json.dumps(key).replace("/", "\\/"),
        "json, each": "".join(f"\\u{b:04X}" for b in raw),
        "repr": repr(key).replace('"', '\\"'),
        "html": key.replace("&", "&amp;").replace('"', "&quot;").replace("/", "&#x2F;"),
        "base64": base64.b64encode(raw).decode(),
        "base64, for a URL": base64.urlsafe_b64encode(raw).decode(),
        "base64, of a pair": base64.b64encode(b"user:" + raw).decode(),
        "base64, of a header": base64.b64encode(b"Bearer " + raw).decode(),
        "base64, percent": quote(base64.b64encode(raw).decode(), safe=""),
        "hex": raw.hex(),
        "the beginning": key[:8],
        "most of it": key[:-4],
        "without the beginning": key[4:],
        "the middle": f"...{key[2:-2]}...",
    }


def shared(key, text):
    """Return the longest part of a key in a text."""
    parts = (key[i:j] for i in range(len(key)) for j in range(i + 1, len(key) + 1))
    return max((part for part in parts if part.lower() in text.lower()), key=len, default="")


@pytest.mark.parametrize("key", [KEY, PLAIN])
@pytest.mark.parametrize("form", encoded(KEY))
def test_no_form_of_the_key_is_shown(key, form):
    written = encoded(key)[form]
    for text in (written, f"wrong key {written}.", f"a=1&key={written}&b=2", "x" * 290 + written):
        body = json.dumps({"error": {"message": text, "code": text}, "request_id": text})
        for raw in (body, text, json.dumps({"error": {"message": body}})):
            error = as_error(401, {"x-request-id": written}, raw.encode(), where="m", key=key)
            said = f"{error} {error.request_id} {vars(error)}"
            assert written not in said
            # some characters may be left where a message is cut off
            assert len(shared(key, said)) < 8, said
        error = as_error(302, {"Location": f"/{written}"}, b"", where="m", key=key)
        assert len(shared(key, str(error))) < 8


@given(st.text(max_size=50), st.text(max_size=50), st.integers(0, 20), st.integers(8, 40))
def test_a_part_anywhere_is_removed_and_the_rest_stays(before, after, start, size):
    key = "Zq81xYkLm0TheSecretPart77abcdefgh"
    part = key[start : start + size]
    text = f"{before}{part}{after}"
    shown = without_key(text, key)
    if len(part) >= 8:
        assert part not in shown
    if not any(mark in text for mark in "%\\&") and len(shared(key, before + after)) < 2:
        assert shown.startswith(before[:-1])
        assert shown.endswith(after[1:])


def test_words_that_are_no_key_stay():
    message = "Incorrect API key provided. You can find your API key at https://x.com/keys (100%)."
    assert redacted(message, PLAIN) == message
    assert redacted(message, None) == message
    assert without_key("none of these", "non") == "none of these"
    assert without_key("\u0130\u0130 hunter2hunter2 \u0130", PLAIN) == "\u0130\u0130 [key] \u0130"


@pytest.mark.parametrize(
    "secret",
    [
        "Bearer abcdef123456",
        "sk-proj-Zq81xYkLm0",
        "AIzaSyA1234567890abc",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
        "0123456789abcdef0123456789abcdef",
    ],
)
def test_probable_keys_are_removed_too(secret):
    assert redacted(f"got {secret}, sorry") == "got [key], sorry"


CONTROLS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\x00\x08\x1b\x7f\x9b\u200b\u202e\u2066\ufeff"
FORGED = f"x{CONTROLS}ERROR root: all is lost\x1b[2J\x1b]0;title\x07"


@pytest.mark.parametrize("status", [200, 302, 400, 401, 404, 422, 429, 500])
def test_no_words_of_a_server_forge_a_line(status, caplog):
    error = {"message": FORGED, "code": FORGED, "type": FORGED, "param": FORGED}
    for body in (
        {"error": error, "request_id": FORGED},
        {"detail": [{"loc": [FORGED], "msg": FORGED}]},
        {"message": json.dumps({"error": error})},
        {"error": {"message": "m", "metadata": {"raw": FORGED, "code": FORGED}}},
    ):
        headers = {"Location": FORGED}
        raised = as_error(status, headers, json.dumps(body).encode(), where="m")
        assert str(raised).isprintable()
        assert raised.request_id is None or raised.request_id.isprintable()
        with caplog.at_level(logging.INFO):
            logging.getLogger("testnuc.transport").info("%s, id %s", raised, raised.request_id)
    assert all(record.getMessage().isprintable() for record in caplog.records)
    raised = as_error(status, {"x-request-id": FORGED}, FORGED.encode(), where="m")
    assert f"{raised} {raised.request_id}".isprintable()


def test_errors_of_any_provider_are_in_one_line():
    assert str(ProviderError(FORGED)).isprintable()
    assert printable(" a\n\n b\x1b[0m ") == "a b [0m"
    assert printable("R\u00fcckgabe \U0001f600") == "R\u00fcckgabe \U0001f600"


@pytest.mark.parametrize("provider", [OpenAI, Anthropic])
def test_the_id_in_an_empty_response_is_one_line(provider):
    wire = provider("m", base_url="http://127.0.0.1:9/v1", api_key="sk-0123456789abcdef")
    body = json.dumps({"id": FORGED, "choices": [], "content": []}).encode()
    with pytest.raises(EmptyReplyError) as caught:
        wire.decode(request(), body)
    assert caught.value.request_id.isprintable()


def test_a_key_in_the_users_own_headers_is_not_shown():
    secret = "hPxFZGd8AN269n4bznDf2/Onbi8I"
    headers = {
        "x-portkey-api-key": secret,
        "Proxy-Authorization": f"Basic {secret}",
        "X-Team": "us",
    }
    provider = OpenAI("m", base_url="http://localhost:1/v1", headers=headers)
    body = json.dumps({"error": {"message": f"invalid header x-portkey-api-key: {secret} of us"}})
    error = provider.error(401, {"x-request-id": secret}, body.encode())
    assert secret not in f"{error} {error.request_id}"
    assert "[key] of us" in str(error)
