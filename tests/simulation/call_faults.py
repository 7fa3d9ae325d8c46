"""What may happen to a single call, and what a text does to every call that holds it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from testnuc.testing.answers import Content
from testnuc.testing.formats import OPENAI
from tests.weather.bodies import body
from tests.weather.mutations import COUNTS, RESETS, WAITS
from tests.weather.response import Response

if TYPE_CHECKING:
    from random import Random

    from multidict import CIMultiDict

#: What may happen to a single call.
CALL_FAULTS = (
    "429", "429-wait", "429-hour", "429-absurd", "500", "503", "stall", "reset-before",
    "reset-after", "slow", "cut", "empty", "garbage", "no-usage", "error-200", "lie", "lie",
    "stray-401", "stray-403", "stray-404", "stray-302", "draft", "lenient", "lenient", "bytes",
)  # fmt: skip
#: What a text does to every call that holds it.
NATURES = (
    "refused-400", "filtered-400", "too-long-400", "unreadable", "refusal", "outside",
    "stray-401", "stray-403", "stray-404", "stray-302",
)  # fmt: skip
#: Faults with status 200 after which nothing can be read from the response, for certain.
UNUSABLE = frozenset({"cut", "empty", "garbage", "reset-after", "error-200", "draft", "bytes"})

_STRAY = {
    "stray-401": (401, OPENAI.error(401, "Incorrect API key provided.", "invalid_api_key", None)),
    "stray-403": (403, b"<html><title>Attention required! | Cloudflare</title></html>"),
    "stray-404": (404, OPENAI.error(404, "No route matches.", None, None)),
    "stray-302": (302, b""),
}


def stray(fault: str | None) -> tuple[int, bytes] | None:
    """Return the response of something between client and server; None: it lets the call pass."""
    return _STRAY.get(fault or "")


def change_headers(random: Random, fault: str | None, headers: CIMultiDict[str]) -> None:
    """Add what a fault says in headers."""
    match fault:
        case "lie":
            kind = random.choice(("requests", "tokens"))
            headers[f"x-ratelimit-limit-{kind}"] = random.choice(("1000", *COUNTS))
            headers[f"x-ratelimit-remaining-{kind}"] = random.choice(COUNTS)
            headers[f"x-ratelimit-reset-{kind}"] = random.choice(("3s", "9h", *RESETS))
        case "429-wait":
            headers["retry-after"] = random.choice(("2", "20", "0", "-7", "never"))
        case "429-hour":
            headers["retry-after"] = "3600"
        case "429-absurd":
            headers[random.choice(("retry-after", "retry-after-ms"))] = random.choice(WAITS)
        case "stray-302":
            headers["location"] = "https://login.invalid/"


def draft(random: Random, labels: list[str]) -> Content:
    """Return an answer whose last word on the label was cut off."""
    first, last = (
        json.dumps({"label": one, "confidence": 0.6}) for one in random.sample(labels, 2)
    )
    several = json.dumps({"labels": [{"label": one, "confidence": 0.6} for one in labels[:2]]})
    whole = random.choice((f"{first}\nNo, rather\n{last}", f"Perhaps {first}. {last}", several))
    return Content(whole[: -random.randint(2, 20)], "length")


def change_body(random: Random, fault: str | None, data: bytes) -> bytes:
    """Change the bytes of a response: so that it can still be read ("lenient"), or in any way."""
    if fault == "cut":
        return data[: len(data) // 2]
    if fault == "lenient":
        before = random.choice(
            (b'{"x":NaN,', b'{"x":-Infinity,', b'{"x":"\\ud800",', b"\xef\xbb\xbf{", b"\n \n{")
        )
        return before + data[1:]
    if fault == "bytes":
        response = Response(200, [], data)
        body(random, response)
        return response.body
    return data
