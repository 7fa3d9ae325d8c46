"""The request format that a server accepts, and its changes after a refusal."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["LIMITS", "Dialect", "Structure", "after_refusal", "less_structure", "stepped"]

#: The two names of the output limit.
LIMITS = ("max_completion_tokens", "max_tokens")

_REFUSED = re.compile(
    r"unsupported|not support|n't support|unrecogni[sz]ed|unknown|unexpected|extra (inputs|fields)"
    r"|not (permitted|allowed|available|compatible)|incompatible|deprecated|only the default"
    r"|instead|cannot both|unavailable|invalid (parameter|field|argument|keyword)|does not exist"
)
_SAMPLING = re.compile(r"\b(temperature|top_p)\b")
_LIMIT = re.compile(rf"\b({'|'.join(LIMITS)})\b")
_USE_LIMIT = re.compile(rf"use\W+({'|'.join(LIMITS)})\b")
_SYSTEM = re.compile(r"system\W+(role|message|prompt|instruction)|\brole\b[^.;]{0,40}\bsystem\b")
_STRUCTURE = re.compile(
    r"response_?format|schema|structured[_ ]?output|output_config|output_format|json_object"
    r"|json[_ ]mode|guided|grammar|\benum\b"
)
_SCHEMA = re.compile(r"schema|grammar|guided|\benum\b|structured[_ ]?output")
#: The schema is refused for its content, not as such.
_ENUM = re.compile(r"\benum|too (complex|large|many|long|big)|complexity|timed? ?out")


class Structure(IntEnum):
    """How the form of an answer is enforced, strictest first."""

    ENUM = 0  # a JSON schema that holds the labels
    SCHEMA = 1  # a JSON schema, the label being any string
    OBJECT = 2  # any JSON object
    NONE = 3  # the prompt alone


@dataclass(frozen=True, slots=True)
class Dialect:
    """The request format that a server accepts, as far as known."""

    structure: Structure = Structure.ENUM
    #: Parameters that the server rejects.
    dropped: frozenset[str] = frozenset()
    #: Its name of the output limit.
    limit: str = "max_tokens"
    #: Whether our output limit has room for the answer only, not for reasoning.
    tight: bool = True
    #: Whether system messages are accepted; else their text precedes the user's.
    system_role: bool = True


def after_refusal(  # noqa: PLR0911 - one return for each thing refused
    dialect: Dialect, message: str, known: Collection[Structure], users: Collection[str]
) -> Dialect | None:
    """Return the dialect without what a server refused.

    Parameters
    ----------
    dialect : Dialect
        The present one.
    message : str
        The server's message and codes.
    known : Collection[Structure]
        The structures of the protocol.
    users : Collection[str]
        Options set by the user; they override structure.

    Returns
    -------
    Dialect or None
        The same one if the refused feature is not sent any more: the call was in flight while the
        dialect changed. None if the refusal cannot be avoided.
    """
    message = message.lower()
    if _REFUSED.search(message):
        if named := _LIMIT.search(message):
            use = _USE_LIMIT.search(message)
            return replace(dialect, limit=use[1] if use else _other(named[1]))
        if "cannot both" in message and "top_p" in message:
            return replace(dialect, dropped=dialect.dropped | {"top_p"})
        if _SAMPLING.search(message):
            return replace(dialect, dropped=dialect.dropped | {"temperature", "top_p"})
        if "cache_control" in message:
            return replace(dialect, dropped=dialect.dropped | {"cache_control"})
        if _SYSTEM.search(message):
            return replace(dialect, system_role=False)
    if _STRUCTURE.search(message) and "response_format" not in users:
        if dialect.structure >= Structure.OBJECT and _SCHEMA.search(message):
            return dialect
        return less_structure(dialect, known, labels_only=_ENUM.search(message) is not None)
    return None


def less_structure(
    dialect: Dialect, known: Collection[Structure], *, labels_only: bool = False
) -> Dialect | None:
    """Return the dialect with the next weaker structure; None if there is none.

    Parameters
    ----------
    dialect : Dialect
        The present one.
    known : Collection[Structure]
        The structures of the protocol.
    labels_only : bool
        Whether to try a schema without labels next.
    """
    least = Structure.SCHEMA if labels_only else Structure.OBJECT
    below = [s for s in known if s > dialect.structure and s >= least]
    return replace(dialect, structure=min(below)) if below else None


def stepped(dialect: Dialect, known: Collection[Structure], steps: int) -> Dialect:
    """Return the dialect of a call whose reply was unreadable `steps` times.

    Parameters
    ----------
    dialect : Dialect
        The provider's.
    known : Collection[Structure]
        The structures of the protocol.
    steps : int
        Each goes to the next weaker structure, a schema without labels left out.
    """
    for _ in range(steps):
        dialect = less_structure(dialect, known) or dialect
    return dialect


def _other(limit: str) -> str:
    return LIMITS[1 - LIMITS.index(limit)]
