"""Random mutations of what a response says: its body, its encoding, the model's words."""

from __future__ import annotations

import gzip
import json
import zlib
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import quote

from tests.weather.response import MiB

if TYPE_CHECKING:
    from random import Random

    from tests.weather.response import Response

WRONG = (
    None, True, False, 0, -1, 1.5, 10**40, "", " ", "x" * 3000, [], {}, [[]], [None], {"": None},
    "NaN", "\u0000", "\u2028", "\U0001f600" * 50, "null", ["refund", "other"], {"label": {}},
)  # fmt: skip
#: In place of a value of the JSON, byte for byte.
RAW = (
    b"NaN", b"-Infinity", b"1e999", b"-0", b"1" * 5000, b'"\\ud800"', b'"\\udfff\\ud800"', b"\xff",
    b"'x'", b"undefined", b"{,}", b"[1,]", b"0123", b'"\x00"', b'"\\u0000"', b"true false",
)  # fmt: skip


def body(random: Random, response: Response) -> None:
    kind = random.choice(("flip", "flip", "cut", "delete", "repeat", "wrap", "value", "value",
                          "value", "raw", "raw", "drop", "nest", "stream", "empty"))  # fmt: skip
    data = response.body
    value = response.value()
    response.names.append(f"body {kind}")
    if kind == "flip":
        changed = bytearray(data)
        for _ in range(random.choice((1, 3, 30)) if data else 0):
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
        data = bytes(changed)
    elif kind == "cut":
        data = data[: random.randint(0, len(data))]
    elif kind in {"delete", "repeat"}:
        a, b = sorted(random.randint(0, len(data)) for _ in range(2))
        data = data[:a] + data[b:] if kind == "delete" else data[:b] + data[a:]
    elif kind == "wrap":
        before, after = random.choice(
            ((b"\xef\xbb\xbf", b""), (b"\n\n\n", b"\n"), (b")]}',\n", b""), (b"", b"\x00"),
             (b"[", b"]"), (b"", data), (b"<html>", b"</html>"), (b"", b"\n\n{}"))
        )  # fmt: skip
        data = before + data + after
    elif kind in {"value", "drop"} and value is not None:
        place, name = _place(random, value)
        if place is None:
            value = random.choice(WRONG)
        elif kind == "drop":
            del place[name]
        else:
            place[name] = random.choice(WRONG)
        data = json.dumps(value).encode()
    elif kind == "raw" and value is not None:
        place, name = _place(random, value)
        if place is not None:
            place[name] = "@raw@"
        data = json.dumps(value).encode().replace(b'"@raw@"', random.choice(RAW))
    elif kind == "nest":
        depth = random.choice((50, 300, 1200, 100_000))
        open_, close = random.choice(((b"[", b"]"), (b'{"error":', b"}"), (b'{"message":', b"}")))
        data = open_ * depth + random.choice((b"1", b'"x"', data)) + close * depth
    elif kind == "stream":
        data = b"data: " + data.replace(b"\n", b"") + b"\n\ndata: [DONE]\n\n"
        response.set("content-type", "text/event-stream")
    elif kind == "empty":
        data = random.choice((b"", b" ", b"null", b"{}", b"[]", b'""'))
    response.body = data


def _place(random: Random, value):
    """Return a random container of a value, and a key of it; None for a value without any."""
    places = []
    stack = [value]
    while stack:
        one = stack.pop()
        names = (
            list(one) if isinstance(one, dict) else range(len(one) if isinstance(one, list) else 0)
        )
        for name in names:
            places.append((one, name))
            stack.append(one[name])
    return random.choice(places) if places else (None, None)


def content(random: Random, response: Response) -> None:
    """Change what the model says."""
    said = random.choice((
        "I would rather talk about the weather.", "```json\n{", "```" + " " * 40_000, "[" * 990,
        "{" * 50_000, '{"label": "refund"' + " " * 30_000, "<think>" * 3000, '"' * 20_000,
        '{"label": null}', '{"label": "no such label"}', '{"labels": []}', "{}", "null", "",
        '{"label": "\\ud800"}', '{"label": 1e999, "confidence": NaN}', "\\" * 20_001,
        '{"answers": [{"id": 0, "label": "refund"}]}', '{"answers": []}', "\u202e\u0000\x1b[2J",
        '{"id": ' + "1" * 5000 + ', "label": "refund"}', "`" * 30_000, "\n" * 50_000,
        '{"label": "no such label", "confidence": "' + "9" * 5000 + '%"}',
        '{"category": "?", "alternatives": [{"label": "no such label"}]}',
        [{"type": "reasoning", "text": '{"label": "no such label"} or'}],
    ))  # fmt: skip
    response.names.append(f"content {said[:16]!r}")
    value = response.value()
    if not isinstance(value, dict):
        return
    try:
        if "choices" in value:
            value["choices"][0]["message"]["content"] = said
            if random.random() < 0.2:
                value["choices"][0]["finish_reason"] = random.choice(
                    ("length", "content_filter", "tool_calls", None, 7)
                )
        elif "output" in value:
            value["output"][0]["content"][0]["text"] = said
        else:
            value["content"] = [{"type": "text", "text": said}]
            if random.random() < 0.2:
                value["stop_reason"] = random.choice(("max_tokens", "refusal", "pause_turn", None))
    except (KeyError, TypeError, IndexError):
        return
    response.body = json.dumps(value).encode()


def quoted_key(random: Random, response: Response, key: str) -> None:
    """Quote the key of the request, whole or in part, as a careless server does."""
    half = len(key) // 2
    said = random.choice(
        (key, quote(key, safe=""), quote(quote(key, safe=""), safe=""), key[:half], key[half:],
         key[:-4] + "****", f"Bearer {key}", json.dumps({"k": key}), key.replace("/", "\\/"),
         f"{key[:6]}...{key[-6:]}", key[:half] + "\n" + key[half:], "x" * 290 + key)
    )  # fmt: skip
    kind = random.choice(("message", "code", "id", "location", "label", "refusal", "page"))
    response.names.append(f"key in {kind}")
    flat = said.replace("\n", " ")
    if kind == "message":
        message = f"Incorrect API key provided: {said}. You can find your key at .."
        error = {"message": message, "type": "invalid_request_error", "code": "x"}
        response.status, response.body = (
            random.choice((400, 401, 403, 500)),
            _json({"error": error}),
        )
    elif kind == "code":
        code = f"{said}\n2026 ERROR forged"
        error = {"message": "no", "type": said, "code": code, "param": said}
        response.status = random.choice((400, 401, 500))
        response.body = _json({"error": error})
    elif kind == "id":
        response.set("x-request-id", flat)
        response.set("request-id", flat)
    elif kind == "location":
        response.status = 302
        response.set("location", f"http://elsewhere.invalid/{flat}")
    elif kind == "page":
        response.status, response.body = 500, f"<pre>Authorization: {said}</pre>".encode()
    else:
        value = response.value()
        try:
            if kind == "label":
                value["choices"][0]["message"]["content"] = json.dumps({"label": said})
            else:
                value["choices"][0]["message"]["refusal"] = f"I cannot use {said}"
        except (KeyError, TypeError, IndexError):
            return
        response.body = _json(value)


def _json(value) -> bytes:
    return json.dumps(value).encode()


def size(random: Random, response: Response) -> None:
    """Make a body large, now and then."""
    n = random.choice((50_000, 300_000, 300_000, 3 * MiB))
    filler = random.choice((b" ", b"a", b"[", b"sk-", b"<", b'"a",', b"{", b"Bearer "))
    text = filler * (n // len(filler))
    response.names.append(f"{n} bytes of {filler!r}")
    if random.random() < 0.5:
        response.status = random.choice((400, 422, 500, 200))
        if random.random() < 0.5:
            text = _json({"error": {"message": text.decode(), "type": "x"}})
        response.body = text
    else:
        response.body += text


def encoding(random: Random, response: Response) -> None:
    kind = random.choice(("gzip", "deflate", "lie", "cut", "bomb", "unknown", "double", "chunked"))
    response.names.append(f"encoding {kind}")
    data = response.plain = response.body
    if kind == "gzip":
        response.body = gzip.compress(data, 1, mtime=0)
    elif kind == "deflate":
        response.set("content-encoding", "deflate")
        response.body = zlib.compress(data)
        return
    elif kind == "cut":
        response.body = gzip.compress(data, 1, mtime=0)[: random.randint(0, 60)]
        response.framed = False
    elif kind == "bomb":
        response.body = bomb()
    elif kind == "unknown":
        unknown = ("br", "zstd", "compress", "x" * 100, "gzip, gzip", "identity", "utf-8")
        response.set("content-encoding", random.choice(unknown))
        response.framed = False
        return
    elif kind == "double":
        response.body = gzip.compress(gzip.compress(data, 1, mtime=0), 1, mtime=0)
    elif kind == "chunked":
        at = random.randint(0, len(data))
        parts = [part for part in (data[:at], data[at:]) if part]
        response.body = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"
        response.set("transfer-encoding", "chunked")
        return
    else:
        response.framed = False
    response.set("content-encoding", "gzip")


@cache
def bomb() -> bytes:
    """Return a few hundred kilobytes that unpack to 300 MiB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(MiB)
    return b"".join(packer.compress(zeros) for _ in range(300)) + packer.flush()
