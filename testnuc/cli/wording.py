"""Errors in the words of the shell: options instead of the parameters of Python."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["in_shell_words"]

#: Parameters whose option has another name.
_RENAMED = {"usd": "budget_usd", "least_trust": "head_trust"}
#: What only Python can be given.
_PYTHON_ALONE = (
    r", or give a VotePolicy",
    r", or a provider object",
    r", or an object with .*",
    r", or pass your own embedder",
    r", or testnuc\.Unsure\(.*\)",
    r", or None\b",
)


def in_shell_words(message: str, options: Iterable[str]) -> str:
    """Return a message of the library as the command line says it, in one line.

    `options` are named as parameters: `max_concurrency` is ``--max-concurrency``.
    """
    known = {name: name for name in options} | _RENAMED
    # "usd is -1": a word of the language is a parameter only where a message begins with it
    start = re.match(r"(\w+)(?= (?:is|must|has|needs)\b| ')", message)
    if start and start[1] in known:
        message = _flag(known[start[1]]) + message[start.end() :]
    for ending in _PYTHON_ALONE:
        message = re.sub(ending, "", message)
    names = "|".join(sorted(known, key=len, reverse=True))
    # advice such as "add none_label=.."
    message = re.sub(
        rf"(?<![\w-])({names})=(\S)", lambda m: f"{_flag(known[m[1]])} {m[2]}", message
    )
    # "testnuc.toml: budget_usd is .." names a setting
    spelled = "|".join(name for name in sorted(known, key=len, reverse=True) if "_" in name)
    message = re.sub(
        rf"(?<![\w.'\"-])(?<!: )({spelled})(?![\w'\"])", lambda m: _flag(known[m[1]]), message
    )
    return " ".join(message.split())


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
