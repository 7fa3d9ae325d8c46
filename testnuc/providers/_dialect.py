"""How a server wants to be spoken to, and what to change when it refuses something."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["LIMITS", "Dialect", "Structure", "after_refusal", "less_structure"]

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
#: The schema is refused for what it holds, not for being one.
_ENUM = re.compile(r"\benum|too (complex|large|many|long|big)|complexity|timed? ?out")


class Structure(IntEnum):
    """How the form of an answer is enforced, strictest first."""

    ENUM = 0  # a JSON schema that holds the labels
    SCHEMA = 1  # a JSON schema, the label being any string
    OBJECT = 2  # any JSON object
    NONE = 3  # the prompt alone


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a server wants to be spoken to, as far as it is known."""

    structure: Structure = Structure.ENUM
    #: Parameters that the server refuses.
    dropped: frozenset[str] = frozenset()
    #: Its name of the output limit.
    limit: str = "max_tokens"
    #: Whether our own output limit has room for the answer alone, or for thoughts before it.
    tight: bool = True
    #: Whether there may be a system message; else its text goes before the user's.
    system_role: bool = True


def after_refusal(  # noqa: PLR0911 - one return for each thing refused
    dialect: Dialect, said: str, known: Collection[Structure], users: Collection[str]
) -> Dialect | None:
    """Return the dialect that avoids what a server refused.

    Parameters
    ----------
    dialect : Dialect
        The present one.
    said : str
        The server's message with its codes.
    known : Collection[Structure]
        The structures that the protocol has.
    users : Collection[str]
        Options that the user set; what they say about structure is the user's.

    Returns
    -------
    Dialect or None
        The same one where what was refused is not sent any more: the call was under way while the
        dialect changed. None where nothing that can be changed was refused.
    """
    said = said.lower()
    if _REFUSED.search(said):
        if named := _LIMIT.search(said):
            use = _USE_LIMIT.search(said)
            return replace(dialect, limit=use[1] if use else _other(named[1]))
        if "cannot both" in said and "top_p" in said:
            return replace(dialect, dropped=dialect.dropped | {"top_p"})
        if _SAMPLING.search(said):
            return replace(dialect, dropped=dialect.dropped | {"temperature", "top_p"})
        if "cache_control" in said:
            return replace(dialect, dropped=dialect.dropped | {"cache_control"})
        if _SYSTEM.search(said):
            return replace(dialect, system_role=False)
    if _STRUCTURE.search(said) and "response_format" not in users:
        if dialect.structure >= Structure.OBJECT and _SCHEMA.search(said):
            return dialect
        return less_structure(dialect, known, labels_only=_ENUM.search(said) is not None)
    return None


def less_structure(
    dialect: Dialect, known: Collection[Structure], *, labels_only: bool = False
) -> Dialect | None:
    """Return the dialect that enforces less of the answer's form; None: there is nothing less.

    Parameters
    ----------
    dialect : Dialect
        The present one.
    known : Collection[Structure]
        The structures that the protocol has.
    labels_only : bool
        Whether a schema without labels is worth trying.
    """
    least = Structure.SCHEMA if labels_only else Structure.OBJECT
    below = [s for s in known if s > dialect.structure and s >= least]
    return replace(dialect, structure=min(below)) if below else None


def _other(limit: str) -> str:
    return LIMITS[1 - LIMITS.index(limit)]
