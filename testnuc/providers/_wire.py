"""What the wire providers have in common: prepared bodies, adapting, and reading answers.

A body is prepared once per task and number of texts; encoding a call is putting its user message
between two byte strings. How a server wants to be spoken to is a `Dialect`, a frozen value that
`adapt` replaces when the server refuses something. Encoding is a pure function of the request and
the dialect, so whether a refused body was out of date already can be seen by encoding it again.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import orjson

from testnuc.errors import (
    BadRequestError,
    ContentRefusedError,
    EmptyReplyError,
    InvalidInputError,
    RefusalError,
    ReplyError,
    TruncatedReplyError,
    UnreadableReplyError,
)
from testnuc.prompts import parse_reply
from testnuc.protocols import Answer, Reply, Request, Task, TokenUsage
from testnuc.providers._dialect import (
    LIMITS,
    Dialect,
    Structure,
    after_refusal,
    less_structure,
)
from testnuc.transport.api_errors import as_error
from testnuc.transport.endpoint import checked_headers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testnuc.transport.endpoint import Endpoint

__all__ = ["Body", "Said", "Wire"]

_log = logging.getLogger("testnuc.providers")

#: Bytes of UTF-8 per token; low, so that the estimate is rather too high.
BYTES_PER_TOKEN = 3.2
#: Tokens around the messages that no text accounts for.
OVERHEAD_TOKENS = 12
#: Reserved for an answer without a limit: there is no worst case, but this is much for a label.
UNLIMITED_OUTPUT = 16_384

#: So many prepared bodies are kept; a client has a few tasks and sizes of packs.
_PREPARED = 64
#: So many calls that were refused for what is not sent any more are sent again; then it is a loop.
_STALE = 1024


@dataclass(frozen=True, slots=True)
class Body:
    """The parts of a body."""

    #: JSON up to and with the opening quote of the user message.
    opening: bytes
    #: JSON from its closing quote up to the end of the messages.
    closing: bytes
    #: What follows the messages.
    parameters: dict[str, Any]
    #: The most tokens an answer can have; None: no limit is sent.
    output_tokens: int | None


@dataclass(frozen=True, slots=True)
class Said:
    """What a 200 answer holds, whatever the protocol."""

    content: str
    usage: TokenUsage | None
    request_id: str | None
    #: The model's own words of refusal, "" where it gave none; None: it did not refuse.
    refusal: str | None = None
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class _Prepared:
    prefix: bytes
    suffix: bytes
    static_tokens: int
    output_tokens: int


class Wire(ABC):
    """Base of the wire providers; see `testnuc.protocols.WireProvider`."""

    name: str
    #: The structures that the protocol has.
    structures: ClassVar[tuple[Structure, ...]] = tuple(Structure)
    #: Options that would make it another request, or its answer unreadable.
    reserved: ClassVar[frozenset[str]] = frozenset({"messages", "model", "n", "stream", "system"})

    def __init__(
        self,
        model: str,
        *,
        endpoint: Endpoint,
        base_path: str,
        call_path: str,
        headers: Mapping[str, str],
        key: str | None,
        hint: str,
        dialect: Dialect,
        extra_headers: Mapping[str, str] | None = None,
        trust_env: bool = False,
    ) -> None:
        if not isinstance(model, str) or not model.strip():
            raise InvalidInputError(f"the model's name is {model!r}; give one.")
        self.model = model
        self.identity = endpoint.at(base_path)
        self.url = endpoint.at(base_path + call_path)
        self._endpoint = endpoint
        self._base_path = base_path
        own = checked_headers(extra_headers or {})
        taken = {name.lower() for name in own}
        # the user's own win, in whatever case they are written
        kept = {n: v for n, v in headers.items() if n.lower() not in taken}
        self.headers: Mapping[str, str] = {"Content-Type": "application/json", **kept, **own}
        #: Whether connections use the proxies of the environment.
        self.trust_env = trust_env
        self.dialect = dialect
        self._where = f"{model} at {endpoint.netloc}"
        self._key = key
        self._hint = hint
        self._prepared: dict[tuple[Task, int], _Prepared] = {}
        self._users: set[str] = set()
        self._readable = False
        self._stale = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, base_url={self.identity!r})"

    def at(self, path: str, query: str = "") -> str:
        """Return the URL of another path of this API.

        Parameters
        ----------
        path : str
            Behind the base path, such as ``/batches``.
        query : str
            Parameters of this request, such as ``limit=100``.
        """
        url = self._endpoint.at(self._base_path + path)
        return f"{url}{'&' if '?' in url else '?'}{query}" if query else url

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

        Where no output limit is sent (reasoning models), 16,384 stands for it.

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
        """Refuse a task that this provider cannot serve; nothing is sent.

        Parameters
        ----------
        task : Task
            What the calls have in common.

        Raises
        ------
        InvalidInputError
            An option that testnuc sets itself, or what cannot be sent as JSON.
        ConfigurationError
            The provider cannot do what is asked for.
        """
        wrong = sorted(self.reserved & task.options.keys())
        if wrong:
            raise InvalidInputError(
                f"request_options may not set {', '.join(wrong)}: testnuc sets it itself."
            )
        try:
            orjson.dumps([dict(task.options), task.system, *task.labels])
        except TypeError as problem:
            raise InvalidInputError(
                f"request_options, instructions or labels cannot be sent as JSON: {problem}."
            ) from problem

    @abstractmethod
    def body(self, task: Task, n: int, dialect: Dialect) -> Body:
        """Return the parts of the body for `n` texts."""

    def _prepare(self, request: Request) -> _Prepared:
        task, n = request.task, len(request.texts)
        self.validate(task)
        self._users.update(task.options)
        body = self.body(task, n, self.dialect)
        sent = {k: v for k, v in body.parameters.items() if k not in self.dialect.dropped}
        suffix = body.closing + (b"," + orjson.dumps(sent)[1:] if sent else b"}")
        prepared = _Prepared(
            body.opening,
            suffix,
            int((len(body.opening) + len(suffix)) / BYTES_PER_TOKEN) + OVERHEAD_TOKENS,
            UNLIMITED_OUTPUT if body.output_tokens is None else body.output_tokens,
        )
        if len(self._prepared) >= _PREPARED:
            self._prepared.clear()
        self._prepared[task, n] = prepared
        return prepared

    # --- adapting -----------------------------------------------------------------------------

    def adapt(self, error: Exception) -> bool:
        """Change how requests are encoded because of `error`; True: send the call again at once.

        Sampling parameters that are refused are left out from then on; the output limit is
        renamed; structured output is stepped down (labels in the schema, the schema alone, any
        JSON object, the prompt alone); an output limit of ours that cut an answer off is widened.

        Calls under way while that happens are refused for what is not sent any more; they too are
        worth sending again. Whoever has the refused body at hand sees that without asking, by
        ``provider.encode(request) != body``, and asks only otherwise.

        Parameters
        ----------
        error : Exception
            Why a call failed.
        """
        before = self.dialect
        after: Dialect | None = None
        if isinstance(error, TruncatedReplyError):
            if before.tight and self._users.isdisjoint(LIMITS):
                after = replace(before, tight=False)
        elif isinstance(error, UnreadableReplyError):
            if error.content and not self._readable and "response_format" not in self._users:
                after = less_structure(before, self.structures)
        elif isinstance(error, BadRequestError) and error.fatal:
            after = after_refusal(before, str(error), self.structures, self._users)
        if after is None or isinstance(error, ContentRefusedError):
            return False
        if after == before:
            self._stale += 1
            return self._stale <= _STALE
        if after.dropped != before.dropped:
            lost = ", ".join(sorted(after.dropped - before.dropped))
            _log.warning("%s takes no %s: left out from now on", self._where, lost)
        else:
            _log.info("%s is spoken to differently from now on: %s", self._where, after)
        self.dialect = after
        self._readable = False
        self._prepared.clear()
        return True

    # --- decoding -----------------------------------------------------------------------------

    @abstractmethod
    def said(self, answer: dict[str, Any]) -> Said:
        """Return what a 200 answer holds; raises EmptyReplyError where it has no message."""

    def decode(self, request: Request, body: bytes) -> Reply:
        """Read a 200 answer.

        Parameters
        ----------
        request : Request
            What was asked.
        body : bytes
            The answer.

        Raises
        ------
        ReplyError
            It answers none of the texts; the tokens it took are the error's `usage`.
        ProviderError
            It is an error that came as a 200.
        """
        return self._read(request, self._said(body))

    def _said(self, body: bytes) -> Said:
        try:
            answer = orjson.loads(body)
        except ValueError as problem:
            raise UnreadableReplyError(
                f"{self._where}: the answer is not JSON, or not all of it ({problem})",
                status_code=200,
            ) from problem
        if not isinstance(answer, dict):
            raise UnreadableReplyError(f"{self._where}: the answer is no object", status_code=200)
        if answer.get("error"):
            raise self.error(200, {}, body)
        return self.said(answer)

    def _read(self, request: Request, said: Said) -> Reply:
        content = said.content
        answers = parse_reply(content, len(request.texts)) if content.strip() else ()
        if said.refusal is None and any(isinstance(answer, Answer) for answer in answers):
            self._readable = True
            return Reply(answers, said.usage, said.request_id)
        facts: dict[str, Any] = {
            "content": content[:2000],
            "usage": said.usage,
            "request_id": said.request_id,
            "status_code": 200,
        }
        if said.refusal is not None:
            words = said.refusal or content
            facts["content"] = words[:2000]
            why = words[:200] or "its provider's filter stopped it"
            raise RefusalError(f"{self._where} declined to answer: {why}", **facts)
        if said.truncated:
            raise TruncatedReplyError(
                f"{self._where}: the answer was cut off by the output limit; give a larger one, "
                f'such as request_options={{"{self.dialect.limit}": 4096}}',
                **facts,
            )
        if not answers:
            raise EmptyReplyError(f"{self._where}: the answer is empty", **facts)
        error = answers[0]
        assert isinstance(error, ReplyError)
        raise type(error)(f"{self._where}: {error}", **facts)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> Exception:
        """Turn a non-200 answer into a `ProviderError`.

        Parameters
        ----------
        status : int
            HTTP status.
        headers : Mapping[str, str]
            Headers of the answer.
        body : bytes
            Its body.
        """
        return as_error(status, headers, body, where=self._where, key=self._key, hint=self._hint)
