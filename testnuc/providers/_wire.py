"""What the wire providers have in common: prepared bodies, dialects, and stepping down.

A body is prepared once per task and number of texts; encoding a call is putting its user message
between two byte strings. How a server wants to be spoken to is a `Dialect`: a frozen value that
`adapt` replaces when the server refuses something. Encoding is a pure function of the request and
the dialect, so whether a refused body was already out of date can be seen by encoding it again.
"""

from __future__ import annotations

import logging
import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import orjson

from testnuc.errors import (
    BadRequestError,
    ContentRefusedError,
    InvalidInputError,
    ReplyError,
    TruncatedReplyError,
    UnreadableReplyError,
)
from testnuc.prompts import parse_reply
from testnuc.protocols import Answer, Reply, Request, Task, TokenUsage

__all__ = ["Dialect", "Structure", "Wire", "answer_schema", "count", "enum_fits"]

_log = logging.getLogger("testnuc.providers")

#: The limits that OpenAI documented first and others copied; later ones are wider.
MAX_ENUM = 500
MAX_ENUM_CHARACTERS = 15_000

#: Bytes of UTF-8 per token, low enough for the estimate to be rather too high.
BYTES_PER_TOKEN = 3.2
#: Tokens around the messages that no text accounts for.
OVERHEAD_TOKENS = 12
#: What is reserved for an answer without a limit: no known worst case, but much for a label.
UNLIMITED_OUTPUT = 16_384

#: So many prepared bodies are kept: a client has a few tasks and sizes of packs.
_PREPARED = 64
#: So many calls refused for what is not sent any more are sent again, before it counts as a loop.
_STALE = 4096

_REFUSED = re.compile(
    r"unsupported|not support|n't support|unrecogni[sz]ed|unknown|unexpected|extra (inputs|fields)"
    r"|not (permitted|allowed|available|compatible)|incompatible|deprecated|only the default|instead"
    r"|cannot both|invalid (parameter|field|argument|keyword)|does not exist",
    re.IGNORECASE,
)
_STRUCTURE = re.compile(
    r"response_?format|json[_ ]?schema|structured[_ ]?output|output_config|output_format|json_object"
    r"|json[_ ]mode|guided|grammar|schema|\benum\b",
    re.IGNORECASE,
)
_ENUM = re.compile(r"\benum|too (complex|large|many|long)|complexity|compil", re.IGNORECASE)
_USE_LIMIT = re.compile(r"use\W+(max_completion_tokens|max_tokens)\b", re.IGNORECASE)
_LIMITS = ("max_completion_tokens", "max_tokens")


class Structure(IntEnum):
    """How the form of the answer is enforced, strictest first."""

    ENUM = 0  # a JSON schema that holds the labels
    SCHEMA = 1  # a JSON schema, the label any string
    OBJECT = 2  # any JSON object
    NONE = 3  # the prompt alone


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a server wants to be spoken to, as far as is known."""

    structure: Structure = Structure.ENUM
    #: Parameters that the server refuses.
    dropped: frozenset[str] = frozenset()
    #: Name of the output limit.
    limit: str = "max_tokens"
    #: Whether an output limit of ours is tight; a model that thinks aloud needs more.
    tight: bool = True
    #: Whether there may be a system message; else it is put before the user's.
    system_role: bool = True


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A body with a hole where the user message goes, its opening quote left out."""

    prefix: bytes
    suffix: bytes
    static_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Body:
    """The parts of a body, before they are bytes."""

    #: What comes before the messages.
    parameters: dict[str, Any]
    #: JSON up to and with the opening quote of the user message.
    opening: bytes
    #: JSON from the closing quote on, up to the end of the messages.
    closing: bytes
    #: The most tokens an answer can have; None: no limit is sent.
    output_tokens: int | None
    extra: dict[str, Any] = field(default_factory=dict)


class Wire:
    """Base of the wire providers; see `testnuc.protocols.WireProvider`."""

    name: str
    #: The structures the protocol knows, strictest first.
    structures: tuple[Structure, ...] = tuple(Structure)
    #: Options that would make the answer unreadable or the request another one.
    reserved: frozenset[str] = frozenset({"messages", "model", "n", "stream"})

    def __init__(
        self,
        model: str,
        *,
        identity: str,
        url: str,
        headers: Mapping[str, str],
        dialect: Dialect,
    ) -> None:
        if not isinstance(model, str) or not model.strip():
            raise InvalidInputError(f"the model's name is {model!r}; give one.")
        self.model = model
        self.identity = identity
        self.url = url
        self.headers = headers
        self.dialect = dialect
        self._prepared: dict[tuple[Task, int], _Prepared] = {}
        self._sent: set[str] = set()
        self._readable = False
        self._stale = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, base_url={self.identity!r})"

    # --- encoding -----------------------------------------------------------------------------

    def encode(self, request: Request) -> bytes:
        """Return the body of a call.

        Parameters
        ----------
        request : Request
            What to ask.
        """
        prepared = self._prepared.get((request.task, len(request.texts))) or self._prepare(request)
        try:
            user = orjson.dumps(request.user)
        except TypeError as problem:
            raise InvalidInputError(f"the prompt cannot be sent: {problem}.") from problem
        return prepared.prefix + user[1:-1] + prepared.suffix

    def reserve(self, request: Request) -> tuple[int, int]:
        """Return the estimated input tokens and the most output tokens of a call.

        Without an output limit (reasoning models) there is no worst case; 16,384 stand for it.

        Parameters
        ----------
        request : Request
            What to ask.
        """
        prepared = self._prepared.get((request.task, len(request.texts))) or self._prepare(request)
        user = request.user
        size = len(user) if user.isascii() else len(user.encode("utf-8", "replace"))
        return prepared.static_tokens + int(size / BYTES_PER_TOKEN), prepared.output_tokens

    def validate(self, task: Task) -> None:
        """Refuse a task that this provider cannot serve, before anything is sent.

        Parameters
        ----------
        task : Task
            What all calls have in common.
        """
        wrong = sorted(self.reserved & task.options.keys())
        if wrong:
            raise InvalidInputError(
                f"request_options may not set {', '.join(wrong)}: testnuc sets it itself."
            )
        try:
            orjson.dumps(dict(task.options))
            orjson.dumps([task.system, *task.labels])
        except (TypeError, ValueError) as problem:
            raise InvalidInputError(
                f"request_options, instructions or labels cannot be sent as JSON: {problem}."
            ) from problem

    @abstractmethod
    def body(self, task: Task, n: int, dialect: Dialect) -> Body:
        """Return the parts of the body for `n` texts in a dialect."""

    def _prepare(self, request: Request) -> _Prepared:
        task, n = request.task, len(request.texts)
        self.validate(task)
        body = self.body(task, n, self.dialect)
        parameters = {k: v for k, v in body.parameters.items() if k not in self.dialect.dropped}
        suffix = orjson.dumps(parameters)[1:]
        comma = b"," if len(suffix) > 1 else b""
        prepared = _Prepared(
            body.opening,
            body.closing + comma + suffix,
            int((len(body.opening) + len(suffix)) / BYTES_PER_TOKEN) + OVERHEAD_TOKENS,
            UNLIMITED_OUTPUT if body.output_tokens is None else body.output_tokens,
        )
        if len(self._prepared) >= _PREPARED:
            self._prepared.clear()
        self._prepared[task, n] = prepared
        self._sent.update(body.parameters, body.extra)
        return prepared

    # --- adapting -----------------------------------------------------------------------------

    def adapt(self, error: Exception) -> bool:
        """Change how requests are encoded because of `error`; True: send the call again at once.

        A parameter that is refused is left out from then on, an output limit of another name is
        renamed, structured output is stepped down (labels in the schema, schema alone, any JSON
        object, the prompt alone), and an answer that our own tight output limit cut off makes it
        wide. Calls that were under way during a change are refused for what is not sent any more;
        they too are worth sending again. A transport that has the refused body at hand can see
        that without asking: ``provider.encode(request) != body``. It should bound how often one
        call is adapted for.

        Parameters
        ----------
        error : Exception
            Why the call failed.
        """
        if isinstance(error, ReplyError):
            changed = self._adapted_to_reply(error)
        elif isinstance(error, BadRequestError) and not isinstance(error, ContentRefusedError):
            changed = self._adapted_to_refusal(str(error))
        else:
            return False
        if changed is None:
            return False
        if changed == self.dialect:
            self._stale += 1
            return self._stale <= _STALE
        _log.warning("%r: speaking differently from now on, because of: %s", self, error)
        self.dialect = changed
        self._readable = False
        self._prepared.clear()
        self._sent.clear()
        return True

    def _adapted_to_reply(self, error: ReplyError) -> Dialect | None:
        if isinstance(error, TruncatedReplyError):
            if self.dialect.tight and not self._sent.intersection(("own_limit",)):
                return None
            return replace(self.dialect, tight=False) if self.dialect.tight else None
        if isinstance(error, UnreadableReplyError) and error.content and not self._readable:
            return self._less_structure()
        return None

    def _adapted_to_refusal(self, said: str) -> Dialect | None:
        """Return the dialect that avoids what was refused; None: nothing of ours was."""
        dialect = self.dialect
        lowered = said.lower()
        refused = _REFUSED.search(lowered) is not None
        if refused:
            named = [name for name in _LIMITS if re.search(rf"\b{name}\b", lowered)]
            if named:
                use = _USE_LIMIT.search(lowered)
                wanted = use[1] if use else _LIMITS[1 - _LIMITS.index(named[0])]
                return replace(dialect, limit=wanted)
            if "cannot both" in lowered and "top_p" in lowered:
                return replace(dialect, dropped=dialect.dropped | {"top_p"})
            if re.search(r"\b(temperature|top_p|top_k)\b", lowered):
                return replace(dialect, dropped=dialect.dropped | {"temperature", "top_p"})
            if re.search(r"system\W+(role|message|prompt|instruction)|role\W+system", lowered):
                return replace(dialect, system_role=False)
        if _STRUCTURE.search(lowered) and "own_structure" in self._sent:
            return self._less_structure(_ENUM.search(lowered) is not None)
        return None

    def _less_structure(self, enum_only: bool = False) -> Dialect | None:  # noqa: FBT001, FBT002
        now = self.dialect.structure
        below = [s for s in self.structures if s > now]
        if now is Structure.ENUM and not enum_only:
            below = [s for s in below if s is not Structure.SCHEMA]
        return replace(self.dialect, structure=below[0]) if below else None

    # --- decoding -----------------------------------------------------------------------------

    def _reply(
        self, request: Request, content: str, usage: TokenUsage | None, request_id: str | None
    ) -> Reply:
        """Read the answers; raises the first one's error where none holds a label."""
        answers = parse_reply(content, len(request.texts))
        if all(isinstance(answer, ReplyError) for answer in answers):
            error = answers[0]
            assert isinstance(error, ReplyError)
            error.usage, error.request_id, error.status_code = usage, request_id, 200
            raise error
        self._readable = True
        return Reply(answers, usage, request_id)


def answer_schema(task: Task, n: int, structure: Structure) -> dict[str, Any]:
    """Return the JSON schema of an answer to `n` texts.

    Parameters
    ----------
    task : Task
        Its labels go into the schema where `structure` says so and they are few enough.
    n : int
        How many texts are asked about.
    structure : Structure
        `ENUM` or `SCHEMA`.
    """
    label: dict[str, Any] = {"type": "string"}
    if structure is Structure.ENUM and enum_fits(task.labels):
        label["enum"] = list(task.labels)
    fields: dict[str, Any] = {"label": label}
    if task.confidence == "verbalized":
        fields["confidence"] = {"type": "number"}
    if n == 1:
        return _object(fields)
    items = _object({"id": {"type": "integer"}, **fields})
    return _object({"answers": {"type": "array", "items": items}})


def _object(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }


def enum_fits(labels: tuple[str, ...]) -> bool:
    """Whether providers take these labels as an enum of a schema."""
    return len(labels) <= MAX_ENUM and sum(map(len, labels)) <= MAX_ENUM_CHARACTERS


def output_limit(task: Task, n: int, structure: Structure) -> int:
    """Return an output limit that no well-formed answer to `n` texts reaches.

    A token is at least one byte, so the bytes of the longest possible answer suffice, with room for
    white space, a code fence, and a sentence where nothing enforces the form.
    """
    longest = max(len(orjson.dumps(label)) for label in task.labels)
    return n * (longest + 48) + (64 if structure < Structure.OBJECT else 320)


def count(value: Any) -> int | None:
    """Return a number of tokens, or None where it is none."""
    return value if type(value) is int and value >= 0 else None


def is_answer(value: Answer | ReplyError) -> bool:
    """Whether a label was read."""
    return isinstance(value, Answer)
