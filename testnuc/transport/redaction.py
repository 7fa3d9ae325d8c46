"""Words of servers as they may be shown: in one line, in bounded time, without keys."""

import base64
import html
import re
from functools import lru_cache

from testnuc.errors import printable

#: Characters that are read of what is shown; an error shows fewer.
_READ = 2000
#: Characters in a row that a key and a text must share; shorter keys are removed as a whole.
_SHARED = 8
#: The shortest key that is removed.
_SHORTEST = 4
#: How often characters may be escaped: an error that a gateway quotes is JSON in JSON.
_ESCAPES = 3

#: Probable keys: known prefixes, bearer tokens.
_SECRET = re.compile(
    r"(?i:bearer|basic)\s+[\w.~+/=*-]{6,}"
    r"|\b(?:sk|pk|rk|gsk|xai|hf)[-_][\w*.-]{6,}"
    r"|\bAIza[\w-]{10,}"
    r"|\beyJ[\w-]{10}[\w.-]*"
)
#: Long runs, which are probably keys if they hold letters and digits.
_RUN = re.compile(r"[\w*-]{32,}")
_ESCAPED = re.compile(
    r"%[0-9a-f]{2}|\\u00[0-9a-f]{2}|\\x[0-9a-f]{2}|\\.|&(?:#[0-9]{1,4}|#x[0-9a-f]{1,4}|[a-z]{2,6});",
    re.IGNORECASE,
)


def redacted(text: str, key: str | tuple[str, ...] | None = None) -> str:
    """Return the beginning of a foreign text without the key, and anything that looks like one."""
    text = without_key(printable(text[:_READ]), key)
    return _RUN.sub(_if_mixed, _SECRET.sub("[key]", text))


def _if_mixed(run: re.Match[str]) -> str:
    """Return "[key]" for a run with letters and digits."""
    digits = any(c.isdigit() for c in run[0])
    return "[key]" if digits and any("a" <= c.lower() <= "z" for c in run[0]) else run[0]


def without_key(text: str, key: str | tuple[str, ...] | None) -> str:
    """Return `text` without the key and parts of it, in base64 and with escapes as well.

    A part is what has eight characters or more in common with the key, in any case. `key` may be
    several.
    """
    for one in (key,) if isinstance(key, str) else key or ():
        text = _without(text, one)
    return text


def _without(text: str, key: str) -> str:
    if len(key) < _SHORTEST:
        return text
    text = text.replace(key, "[key]")
    if len(key) < _SHARED or len(text) < _SHARED:
        return text
    plain, places = _unescaped(text)
    parts = _parts(key)
    kept, at, end = [], 0, 0
    lowered = "".join(map(_lower, plain))
    while at + _SHARED <= len(lowered):
        if lowered[at : at + _SHARED] not in parts:
            at += 1
            continue
        start = at
        while lowered[at : at + _SHARED] in parts:
            at += 1
        at += _SHARED - 1
        kept.append(text[end : places[start]])
        end = places[at]
    if not kept:
        return text
    return "[key]".join([*kept, text[end:]])


def _lower(character: str) -> str:
    # one character each: some have two in lower case
    return character.lower() if character.isascii() else character


@lru_cache(maxsize=16)
def _parts(key: str) -> frozenset[str]:
    """Return all parts of a key as it may be written, in lower case."""
    raw = key.encode()
    forms = [key, raw.hex()]
    for shift in range(3):
        # it may stand anywhere in what is encoded, as in "user:key"
        encoded = base64.b64encode(b"\0" * shift + raw).decode().rstrip("=")
        inner = encoded[(0, 2, 3)[shift] : len(encoded) - ((shift + len(raw)) % 3 > 0)]
        forms += [inner, inner.replace("+", "-").replace("/", "_")]
    forms = [form.lower() for form in forms]
    return frozenset(
        form[i : i + _SHARED] for form in forms for i in range(len(form) - _SHARED + 1)
    )


def _unescaped(text: str) -> tuple[str, list[int]]:
    """Return a text without escapes, and where each of its characters begins; then the end."""
    places = list(range(len(text) + 1))
    for _ in range(_ESCAPES):
        if not any(mark in text for mark in "%\\&"):
            break
        parts: list[str] = []
        starts: list[int] = []
        at = 0
        for escape in _ESCAPED.finditer(text):
            starts += [*range(at, escape.start()), escape.start()]
            parts += [text[at : escape.start()], _character(escape[0])]
            at = escape.end()
        if not parts:
            break
        starts += range(at, len(text) + 1)
        text = "".join([*parts, text[at:]])
        places = [places[start] for start in starts]
    return text, places


def _character(escape: str) -> str:
    """Return the character that an escape stands for; another one, if it stands for several."""
    if escape[0] == "&":
        meant = html.unescape(escape)
        return meant if len(meant) == 1 else "&"
    digits = escape.lstrip("%\\uUxX")
    return chr(int(digits, 16)) if len(escape) > 2 else escape[1]
