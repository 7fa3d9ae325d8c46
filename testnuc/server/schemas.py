"""The bodies of ``POST /v1/classify``: what was asked, and what is answered."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import orjson

from testnuc._base.checks import valid_text
from testnuc.server.errors import Refused, told
from testnuc.types import row

if TYPE_CHECKING:
    from testnuc.server.settings import ServerSettings
    from testnuc.types import Classification

__all__ = ["Asked", "read", "record"]

_FIELDS = ("text", "texts", "stream", "explain")
#: Fields of a result that are answered as they are.
_PLAIN = ("label", "trust", "share", "margin", "voters", "complete")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that can be answered."""

    texts: list[str]
    #: Whether `texts` was given, not `text`.
    many: bool
    #: A line for each text as soon as it has its label.
    stream: bool
    #: Whether neighbors and votes are told.
    explain: bool


def read(body: bytes, settings: ServerSettings) -> Asked:
    """Read a body; all of it is checked before anything is asked.

    Raises
    ------
    Refused
        400: not JSON; 422: not what is asked for, or beyond a limit.
    """
    given = _object(body)
    flags = {name: given.get(name, False) for name in ("stream", "explain")}
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise _invalid(f"{name} is {_kind(value)}; give true or false")
    if "texts" in given:
        _check_texts(given["texts"], settings)
        return Asked(given["texts"], many=True, **flags)
    if flags["stream"]:
        raise _invalid('"stream" goes with "texts": one text has one answer')
    _check_text("text", given["text"], settings)
    return Asked([given["text"]], many=False, **flags)


def record(result: Classification, *, explain: bool, index: bool) -> dict[str, Any]:
    """Return a result as JSON tells it.

    Without `explain` it holds no text: neighbors are texts that others sent.
    """
    fields = row(result, full=explain)
    own = result.prediction
    made: dict[str, Any] = {"index": result.index} if index else {}
    made |= {name: fields[name] for name in _PLAIN}
    made["own"] = None if own is None else {"label": own.label, "confidence": own.confidence}
    made["reason"] = result.reason
    made["error"] = None if result.error is None else told(result.error)
    if explain:
        made |= {name: fields[name] for name in ("votes", "neighbors")}
    return made


def _object(body: bytes) -> dict[str, Any]:
    """Return the fields of a body: known ones, and either "text" or "texts"."""
    try:
        given = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise Refused(400, "invalid_json", f"the body is not JSON: {exc}") from exc
    if not isinstance(given, dict):
        raise _invalid(f'the body is {_kind(given)}; send an object such as {{"text": ".."}}')
    for name in given:
        if name not in _FIELDS:
            near = get_close_matches(name[:60], _FIELDS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(_FIELDS)}"
            raise _invalid(f"unknown field {name[:60]!r}; {hint}")
    if ("text" in given) == ("texts" in given):
        raise _invalid('give either "text" or "texts"')
    return given


def _check_texts(texts: Any, settings: ServerSettings) -> None:
    if not isinstance(texts, list):
        raise _invalid(f"texts is {_kind(texts)}; give a list of strings")
    if not texts:
        raise _invalid("texts is empty; give at least one text")
    if len(texts) > settings.max_texts:
        raise _invalid(
            f"texts has {len(texts)} texts, of which at most {settings.max_texts} are taken at a "
            "time; send them in several requests"
        )
    for at, text in enumerate(texts):
        _check_text(f"texts[{at}]", text, settings)


def _check_text(name: str, text: Any, settings: ServerSettings) -> None:
    problem = valid_text(text)
    if problem is not None:
        raise _invalid(f"{name} {problem}")
    if len(text) > settings.max_text_chars:
        raise _invalid(
            f"{name} has {len(text):,} characters, of which at most {settings.max_text_chars:,} "
            "are taken; cut it, or label its parts"
        )


def _invalid(message: str) -> Refused:
    return Refused(422, "invalid_input", message)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")
