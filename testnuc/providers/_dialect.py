"""The request format that a server accepts, and its changes after a refusal."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from testnuc.providers._reasoning import least_of

#: The two names of the output limit.
LIMITS = ("max_completion_tokens", "max_tokens")
#: Refusals of an output limit that is more than the model or its context window has.
LIMIT_TOO_LARGE = re.compile(
    r"max_(completion_|output_|new_)?tokens.{0,80}(too large|less than|at most|exceed|must be <=)"
    r"|\b[1-9]\d{0,9} in the completion|requested \d+ output tokens",
    re.IGNORECASE,
)

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
    r"response[_ ]?format|schema|structured[_ ]?output|output[_ ](config|format)|json_object"
    r"|json[_ ]mode|guided|grammar|\benum\b|text\.format"
)
#: Parameters whose names are in other messages, too.
_ANY_WORD = frozenset({"include", "reasoning", "stream", "text"})
_SCHEMA = re.compile(r"schema|grammar|guided|\benum\b|structured[_ ]?output")
#: llama-cpp-python: a schema is taken beside the type of any JSON object.
_TYPED = re.compile(r"response_format\W+type\W.{0,80}should be 'text' or 'json_object'")
#: The schema is refused for its content, not as such.
_ENUM = re.compile(r"\benum|too (complex|large|many|long|big)|complexity|timed? ?out")
_EFFORT = re.compile(r"reasoning[_ .]?effort|\beffort\b")
_LOGPROBS = re.compile(r"logprobs?\b")
_THINKING = re.compile(r"enable_?[ ]?thinking")
_STREAM = re.compile(
    r"only supports? (the )?stream|stream(ing)?\W* (mode|must|is required|to be|parameter to)"
    r"|must (be )?(set )?\W*stream|stream\W*true|non-?stream\w{0,9} \w{0,9} ?not support"
)
#: OpenRouter's answer to parameters that no provider of the model has.
_NO_ENDPOINT = re.compile(r"no endpoints found that can handle the requested parameters")


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
    #: Whether responses are streamed: the server has nothing else.
    stream: bool = False
    #: The least reasoning effort that the server named; "" if it takes none, None if it was silent.
    effort: str | None = None
    #: Parameters that the server asks for, with their values.
    added: tuple[tuple[str, object], ...] = ()
    #: Whether calls go to the Responses API.
    responses: bool = False
    #: Whether a schema is sent with the type "json_object".
    typed: bool = False


def after_refusal(
    dialect: Dialect,
    message: str,
    known: Collection[Structure],
    users: Collection[str],
    sent: Mapping[str, Any],
) -> Dialect | None:
    """Return the dialect without what a server refused; None if the refusal cannot be avoided.

    It is the same one if the refused feature is not sent any more: the call was in flight while the
    dialect changed. `message` has the server's codes too; `known` are the structures of the
    protocol, `users` the options set by the user, which override structure, `sent` the parameters
    of the body.
    """
    message = message.lower()
    if _NO_ENDPOINT.search(message):
        return _with_less(dialect, known, users, sent)
    refused = _REFUSED.search(message) is not None
    after = _streamed(dialect, message) or _other_value(dialect, message, users, sent)
    after = after or (_without(dialect, message) if refused else None)
    if after is not None:
        return after
    if _STRUCTURE.search(message) and "response_format" not in users:
        kind = (sent.get("response_format") or {}).get("type")
        if _TYPED.search(message) and kind == "json_schema":
            return dialect if dialect.typed else replace(dialect, typed=True)
        if dialect.structure >= Structure.OBJECT and _SCHEMA.search(message):
            return dialect
        return less_structure(dialect, known, labels_only=_ENUM.search(message) is not None)
    ours = {name for name in sent if refused and re.search(rf"\b{re.escape(name)}\b", message)}
    ours -= {*users, *_ANY_WORD}
    return replace(dialect, dropped=dialect.dropped | ours) if ours else None


def _without(dialect: Dialect, message: str) -> Dialect | None:
    """Return the dialect without a limit's name, sampling, cache or system role that is refused."""
    if named := _LIMIT.search(message):
        use = _USE_LIMIT.search(message)
        return replace(dialect, limit=use[1] if use else LIMITS[1 - LIMITS.index(named[1])])
    if "cannot both" in message and "top_p" in message:
        return replace(dialect, dropped=dialect.dropped | {"top_p"})
    if _SAMPLING.search(message):
        return replace(dialect, dropped=dialect.dropped | {"temperature", "top_p"})
    if "cache_control" in message:
        return replace(dialect, dropped=dialect.dropped | {"cache_control"})
    if _SYSTEM.search(message):
        return replace(dialect, system_role=False)
    return None


def _streamed(dialect: Dialect, message: str) -> Dialect | None:
    """Return the dialect of a server that only streams, or that reasons only in streams."""
    if _THINKING.search(message):
        if "restricted to true" in message:
            return replace(dialect, stream=True, added=())
        return replace(dialect, added=(("enable_thinking", False),))
    return replace(dialect, stream=True) if _STREAM.search(message) else None


def _other_value(
    dialect: Dialect, message: str, users: Collection[str], sent: Mapping[str, Any]
) -> Dialect | None:
    """Return the dialect with another reasoning effort, or without log-probabilities."""
    if _LOGPROBS.search(message) and "logprobs" not in users:
        asked = "logprobs" in sent or "logprobs" in dialect.dropped
        return replace(dialect, dropped=dialect.dropped | {"logprobs"}) if asked else None
    if _EFFORT.search(message) and "reasoning_effort" not in users:
        effort = sent.get("reasoning_effort") or (sent.get("reasoning") or {}).get("effort")
        if effort:
            return replace(dialect, effort=least_of(message, effort))
        return None if dialect.effort is None else dialect
    return None


def _with_less(
    dialect: Dialect, known: Collection[Structure], users: Collection[str], sent: Mapping[str, Any]
) -> Dialect | None:
    """Return the dialect without the next of the parameters that few servers have."""
    for name in ("logprobs", "reasoning_effort"):
        if name in sent and name not in users:
            return replace(dialect, dropped=dialect.dropped | {name})
    if "response_format" in sent and "response_format" not in users:
        return less_structure(dialect, known)
    ours = {"temperature", "top_p"}.intersection(sent).difference(users)
    return replace(dialect, dropped=dialect.dropped | ours) if ours else None


def less_structure(
    dialect: Dialect, known: Collection[Structure], *, labels_only: bool = False
) -> Dialect | None:
    """Return the dialect with the next weaker structure; None if there is none.

    `labels_only`: try a schema without labels next.
    """
    least = Structure.SCHEMA if labels_only else Structure.OBJECT
    below = [s for s in known if s > dialect.structure and s >= least]
    return replace(dialect, structure=min(below)) if below else None


def stepped(dialect: Dialect, known: Collection[Structure], steps: int) -> Dialect:
    """Return the dialect of a call whose reply was unreadable `steps` times.

    Each goes to the next weaker structure, a schema without labels left out.
    """
    for _ in range(steps):
        dialect = less_structure(dialect, known) or dialect
    return dialect
