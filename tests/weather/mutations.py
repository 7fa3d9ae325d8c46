"""Random mutations of a response: status, headers, framing, timing, connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.weather.bodies import body, bomb, content, encoding, quoted_key, size
from tests.weather.response import MiB

if TYPE_CHECKING:
    from random import Random

    from tests.weather.response import Response

#: Bytes of an endless response that a client may take from the server, buffers of the kernel
#: included.
ENDLESS = 64 * MiB

STATUSES = (
    100, 101, 102, 103, 201, 202, 204, 205, 206, 226, 299, 300, 301, 302, 303, 304, 307, 308, 400,
    401, 402, 403, 404, 405, 406, 407, 408, 409, 410, 411, 412, 413, 414, 415, 418, 421, 422, 423,
    424, 425, 426, 428, 429, 431, 444, 451, 498, 499, 500, 501, 502, 503, 504, 505, 507, 508, 511,
    520, 522, 524, 525, 529, 530, 599, 600, 700, 999,
)  # fmt: skip
WAITS = (
    "0", "1", "2.5", "-1", "60", "3600", "86400", "1000000000", "1795413366", "1795413366000",
    "99999999999999999999", "1e9", "1e400", "inf", "nan", "soon", "", " 3 ", "3, 4", "0x10",
    "Fri, 31 Dec 2099 23:59:59 GMT", "Thu, 01 Jan 1970 00:00:00 GMT", "2099-01-01T00:00:00Z",
    "Fri, 31 Dec 9999 23:59:59 -9999", "31 Dec 99999", "12h30m", "9" * 400, "\u0661\u0662",
)  # fmt: skip
COUNTS = ("0", "1", "-5", "9" * 30, "many", "", "0.0", "1e3", "10000")
RESETS = ("24h", "0s", "1h", "3s", "365d", "-4s", "soon", "1795413366", "2099-01-01T00:00:00Z", "")
QUOTAS = (
    ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    (
        "anthropic-ratelimit-requests-limit",
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset",
    ),
    (
        "anthropic-ratelimit-output-tokens-limit",
        "anthropic-ratelimit-output-tokens-remaining",
        "anthropic-ratelimit-output-tokens-reset",
    ),
    ("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"),
)


def mutate(random: Random, response: Response, key: str, other: bytes) -> None:
    """Mutate a response in place; `other` is the body of an answer to another text."""
    kinds = (status, headers, headers, quotas, body, body, body, content, quoted_key, size,
             encoding, framing, timing, connection, connection)  # fmt: skip
    drawn = random.sample(range(len(kinds)), random.choice((1, 1, 1, 2, 3)))
    for place in sorted(drawn):  # what is sent in parts is whole by then
        kind = kinds[place]
        if kind is connection:
            kind(random, response, other)
        elif kind is quoted_key:
            kind(random, response, key)
        else:
            kind(random, response)


def status(random: Random, response: Response) -> None:
    response.status = random.choice(STATUSES)
    response.names.append(f"status {response.status}")
    if response.status in {301, 302, 303, 307, 308}:
        where = random.choice(
            ("http://elsewhere.invalid/x", "//x", "", "javascript:1", "\x7f", "/")
        )
        response.set("location", where)


def headers(random: Random, response: Response) -> None:
    kind = random.choice(("wait", "wait", "wait-ms", "date", "id", "type", "many", "long", "odd"))
    response.names.append(f"header {kind}")
    if kind == "wait":
        response.set("retry-after", random.choice(WAITS))
    elif kind == "wait-ms":
        response.set("retry-after-ms", random.choice(WAITS))
    elif kind == "date":
        response.set("date", random.choice(WAITS))
        response.set("retry-after", random.choice(WAITS))
    elif kind == "id":
        ids = ("x" * 5000, "a\x1b[31mred", "\u00e9\u00e9", "id 2026-01-01 ERROR forged", "", "%0a")
        response.set(random.choice(("x-request-id", "request-id")), random.choice(ids))
    elif kind == "type":
        types = ("text/html; charset=utf-7", "application/json; charset=rot13", "a/b; charset=zlib",
                 "text/event-stream", "application/json; charset=utf-16", ";;;", "")  # fmt: skip
        response.set("content-type", random.choice(types))
    elif kind == "many":
        n = random.choice((60, 200, 3000))
        response.framed = response.framed and n < 100  # the client's HTTP library has a limit
        response.headers += [(f"x-{i}", "y") for i in range(n)]
    elif kind == "long":
        n = random.choice((8000, 9000, 70_000))
        response.framed = response.framed and n < 8190
        response.headers.append(("x-long", "y" * n))
    else:
        odd = (("set-cookie", "a=b; path=/"), ("trailer", "x"), ("upgrade", "h2c"), ("x", ""),
               ("connection", "upgrade"), ("alt-svc", 'h3=":443"'), ("x-should-retry", "true"),
               ("content-range", "bytes 0-1/2"), ("x-\u00fc", "y"), ("x y", "z"))  # fmt: skip
        name, value = random.choice(odd)
        response.framed = response.framed and name in {"set-cookie", "alt-svc", "x-should-retry"}
        response.headers.append((name, value))


def quotas(random: Random, response: Response) -> None:
    response.names.append("quota headers")
    for limit, remaining, reset in random.sample(QUOTAS, random.choice((1, 2))):
        response.set(limit, random.choice(COUNTS))
        response.set(remaining, random.choice(COUNTS))
        response.set(reset, random.choice(RESETS))


def framing(random: Random, response: Response) -> None:
    """Lie about the length or write the head in an odd way."""
    n = len(response.body)
    kind = random.choice(("short", "long", "text", "twice", "both", "none", "line", "old", "junk",
                          "chunks", "huge", "lf", "fold", "nul", "continue"))  # fmt: skip
    response.names.append(f"framing {kind}")
    response.framed = False
    if kind == "short":
        response.set("content-length", str(max(0, n - random.choice((1, 5, n)))))
    elif kind == "long":
        response.set("content-length", str(n + random.choice((1, 1000, 10**12))))
        response.after = [random.choice((("close",), ("reset",), ("wait", 1e6)))]
    elif kind == "text":
        lengths = ("-1", "many", "", "1e3", "+5", "0x5", "5 5", "9" * 400, "\u0665")
        response.set("content-length", random.choice(lengths))
    elif kind == "twice":
        response.headers += [("content-length", str(n)), ("content-length", str(n + 1))]
    elif kind == "both":
        response.headers += [("content-length", str(n)), ("transfer-encoding", "chunked")]
    elif kind == "none":
        response.set("connection", "close")
        response.steps = [("send", response.body), ("close",)]
    elif kind == "chunks":
        response.set("transfer-encoding", "chunked")
        bad = (b"ZZ\r\nabc\r\n", b"-5\r\n", b"fffffffff\r\nabc", b"5\r\nabcdefghi\r\n0\r\n\r\n",
               b"5;" + b"x" * 20_000, b"\r\n\r\n", b"0\r\n")  # fmt: skip
        response.steps = [("send", random.choice(bad)), random.choice((("close",), ("wait", 1e6)))]
    elif kind == "huge":
        response.head = b"HTTP/1.1 200 OK\r\n"
        response.steps = [("endless", b"x-more: " + b"y" * 1000 + b"\r\n")]
    elif kind == "continue":
        response.head = b""
        response.steps = [("endless", b"HTTP/1.1 100 Continue\r\n\r\n" * 40)]
    else:
        lines = {
            "line": b"HTTP/1.1 \r\n\r\n",
            "old": b"HTTP/1.0 200 OK\r\n\r\n",
            "lf": b"HTTP/1.1 200\n\n",
            "junk": random.randbytes(200),
            "nul": b"HTTP/1.1 200 O\0K\r\n\r\n",
            "fold": b"HTTP/1.1 200 OK\r\nx: a\r\n b\r\ncontent-length: 0\r\n\r\n",
        }
        response.head = lines[kind]
        response.steps = [("send", response.body), random.choice((("close",), ("wait", 1e6)))]


def timing(random: Random, response: Response) -> None:
    kind = random.choice(("late", "late", "never", "drip", "pause"))
    response.names.append(f"timing {kind}")
    data = response.body
    if kind == "late":
        response.steps = [("wait", random.choice((0.5, 3.0, 30.0))), ("send", data)]
    elif kind == "never":
        response.framed, response.head, response.steps = False, b"", [("wait", 1e6)]
    elif kind == "drip":
        step = max(1, len(data) // 20)
        response.steps = []
        for at in range(0, len(data), step):
            response.steps += [("wait", 0.2), ("send", data[at : at + step])]
    else:
        response.framed = False
        response.steps = [("send", data[: len(data) // 2]), ("wait", 1e6)]


def connection(random: Random, response: Response, other: bytes) -> None:
    kind = random.choice(("reset-before", "close-before", "reset-middle", "close-middle", "half",
                          "extra", "extra-late", "extra-junk", "extra-part", "extra-again", "lie",
                          "close-late", "endless", "endless-error", "endless-gzip"))  # fmt: skip
    response.names.append(f"connection {kind}")
    data = response.body
    middle = [("send", data[: len(data) // 2])]
    extra = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    extra = extra % len(other) + other
    if kind == "reset-before":
        response.framed, response.head, response.steps = False, b"", [("reset",)]
    elif kind == "close-before":
        response.framed, response.head, response.steps = False, b"", [("close",)]
    elif kind == "reset-middle":
        response.framed, response.steps = False, [*middle, ("reset",)]
    elif kind == "close-middle":
        response.framed, response.steps = False, [*middle, ("close",)]
    elif kind == "half":
        response.after = [("half",)]
    elif kind.startswith("extra"):
        # what comes with the response breaks it
        response.framed = False
        response.after = _extra(random, kind, extra)
    elif kind == "lie":
        response.set("keep-alive", "timeout=600, max=1000")
        response.set("connection", "keep-alive")
        response.after = [random.choice((("close",), ("reset",)))]
        # a reset may overtake the response
        response.framed = False
    elif kind == "close-late":
        response.after = [("wait", random.choice((0.0, 0.001, 0.5))), ("close",)]
    else:
        response.framed = False
        if kind == "endless-error":
            response.status = random.choice((400, 429, 500))
        piece = b"x" * 65_536
        if kind == "endless-gzip":
            response.set("content-encoding", "gzip")
            piece = bomb()
        response.set("transfer-encoding", "chunked")
        response.steps = [("endless", b"%x\r\n%s\r\n" % (len(piece), piece))]


def _extra(random: Random, kind: str, extra: bytes) -> list[tuple]:
    """Return what a faulty proxy does after a response: `extra` is another one."""
    pause = ("wait", random.choice((0.0, 0.001, 0.1)))
    if kind == "extra":
        return [("send", extra)]
    if kind == "extra-late":
        return [pause, ("send", extra)]
    if kind == "extra-junk":
        return [pause, ("send", b"\r\n\r\nxyz")]
    if kind == "extra-again":
        return [pause, ("again",)]
    return [pause, ("send", extra[: random.randint(1, len(extra) - 1)])]
