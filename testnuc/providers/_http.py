"""Base class of the HTTP providers: encoding, adaptation and decoding.

A body is prepared once per task and number of texts; encoding a call joins its user message with
two byte strings. The request format is a `Dialect`, a frozen value that `adapt` replaces after a
refusal. Encoding is a pure function of request and dialect, so a refused body was outdated if
encoding its request again gives another one.
"""

from __future__ import annotations

import logging
import re
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
from testnuc.labels import LabelSet
from testnuc.prompts import parse_reply, without_thinking
from testnuc.protocols import Answer, Reply, Request, Task
from testnuc.providers._answers import Body, Message
from testnuc.providers._dialect import (
    LIMIT_TOO_LARGE,
    LIMITS,
    Dialect,
    Structure,
    after_refusal,
    less_structure,
    stepped,
)
from testnuc.providers._reasoning import LEAST
from testnuc.providers._streams import joined
from testnuc.transport.api_errors import as_error
from testnuc.transport.endpoint import checked_headers
from testnuc.transport.keys import KeySource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testnuc.transport.endpoint import Endpoint

__all__ = ["HTTPProvider"]

_log = logging.getLogger("testnuc.providers")

#: Bytes of UTF-8 per token; low, so that estimates are rather too high.
BYTES_PER_TOKEN = 3.2
#: Tokens of the message format.
OVERHEAD_TOKENS = 12
#: Reserved for a call without an output limit; ample for a label.
UNLIMITED_OUTPUT = 16_384

#: Size of the cache of prepared bodies; a client has few tasks and pack sizes.
_PREPARED = 64
#: Most retries of outdated bodies; more would be a loop.
_STALE = 1024


@dataclass(frozen=True, slots=True)
class _Prepared:
    prefix: bytes
    suffix: bytes
    static_tokens: int
    output_tokens: int


class HTTPProvider(ABC):
    """Base class of the HTTP providers; see `testnuc.protocols.WireProvider`."""

    name: str
    #: Format of the provider's batch API, a key of `testnuc.batch.registry`; None: not supported.
    batch_format: str | None = None
    #: The structures of the protocol.
    structures: ClassVar[tuple[Structure, ...]] = tuple(Structure)
    #: Whether requests without an output limit are refused.
    needs_limit: ClassVar[bool] = False
    #: Options that users must not set: they would change the meaning of the response.
    reserved: ClassVar[frozenset[str]] = frozenset({"messages", "model", "n", "stream", "system"})

    def __init__(
        self,
        model: str,
        *,
        endpoint: Endpoint,
        base_path: str,
        call_path: str,
        headers: Mapping[str, str],
        key: str | KeySource | None,
        hint: str,
        dialect: Dialect,
        extra_headers: Mapping[str, str] | None = None,
        trust_env: bool = False,
    ) -> None:
        if not isinstance(model, str) or not model.strip():
            raise InvalidInputError(f"the model name is {model!r}; give a non-empty string.")
        self.model = model
        self.identity = endpoint.at(base_path)
        self.url = endpoint.at(base_path + call_path)
        self._endpoint = endpoint
        self._base_path = base_path
        #: Asks for a key that can expire; None if it is fixed.
        self.keys = key if isinstance(key, KeySource) else None
        own = checked_headers(extra_headers or {})
        taken = {name.lower() for name in own}
        # the user's own win, in whatever case they are written
        fixed = self.key_headers(key) if isinstance(key, str) else {}
        kept = {n: v for n, v in {**headers, **fixed}.items() if n.lower() not in taken}
        self.headers: Mapping[str, str] = {"Content-Type": "application/json", **kept, **own}
        #: Whether connections use the proxies of the environment.
        self.trust_env = trust_env
        self.dialect = dialect
        self._where = f"{model} at {endpoint.netloc}"
        self._key = key if isinstance(key, str) else None
        self._hint = hint
        self._prepared: dict[tuple[Task, int, int], _Prepared] = {}
        #: The labels of the last task, to recognize a reply that is one of them.
        self._labels: tuple[Task, LabelSet] | None = None
        self._users: set[str] = set()
        #: Parameters of the last body that was prepared.
        self._sent: Mapping[str, Any] = {}
        self._readable = False
        self._stale = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, base_url={self.identity!r})"

    def key_headers(self, key: str) -> dict[str, str]:
        """Return the headers that carry a key."""
        return {"Authorization": f"Bearer {key}"}

    def at(self, path: str, query: str = "") -> str:
        """Return the URL of another path of this API, such as ``/batches``."""
        url = self._endpoint.at(self._base_path + path)
        return f"{url}{'&' if '?' in url else '?'}{query}" if query else url

    # --- encoding -----------------------------------------------------------------------------

    def encode(self, request: Request) -> bytes:
        """Return the body of a call."""
        prepared = self._of(request)
        try:
            user = orjson.dumps(request.user)
        except TypeError as problem:
            raise InvalidInputError(f"the prompt cannot be sent: {problem}.") from problem
        return prepared.prefix + user[1:-1] + prepared.suffix

    def reserve(self, request: Request) -> tuple[int, int]:
        """Return the estimated input tokens and the most output tokens of a call.

        Without an output limit, the latter are 16,384.
        """
        prepared = self._of(request)
        user = request.user
        size = len(user) if user.isascii() else len(user.encode("utf-8", "replace"))
        return prepared.static_tokens + int(size / BYTES_PER_TOKEN), prepared.output_tokens

    def validate(self, task: Task) -> None:
        """Raise an error if this provider does not support a task, or an option is reserved."""
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

    def _of(self, request: Request) -> _Prepared:
        key = (request.task, len(request.texts), request.step)
        return self._prepared.get(key) or self._prepare(request)

    def _prepare(self, request: Request) -> _Prepared:
        task, n = request.task, len(request.texts)
        self.validate(task)
        self._users.update(task.options)
        if task.reasoning_effort not in (LEAST, None):
            self._users.add("reasoning_effort")
        body = self.body(task, n, stepped(self.dialect, self.structures, request.step))
        given = {**dict(self.dialect.added), **body.parameters}
        if self.dialect.stream:
            given["stream"] = True
        self._sent = sent = {k: v for k, v in given.items() if k not in self.dialect.dropped}
        suffix = body.closing + (b"," + orjson.dumps(sent)[1:] if sent else b"}")
        prepared = _Prepared(
            body.opening,
            suffix,
            int((len(body.opening) + len(suffix)) / BYTES_PER_TOKEN) + OVERHEAD_TOKENS,
            UNLIMITED_OUTPUT if body.output_tokens is None else body.output_tokens,
        )
        if len(self._prepared) >= _PREPARED:
            self._prepared.clear()
        self._prepared[task, n, request.step] = prepared
        return prepared

    def reasoning(self, task: Task) -> int:  # noqa: ARG002
        """Return the tokens of reasoning about a text that a task typically takes."""
        return 0

    # --- adapting -----------------------------------------------------------------------------

    def adapt(self, error: Exception) -> bool:
        """Change how requests are encoded because of `error`; True: send the call again at once.

        Refused sampling parameters are omitted from then on; the output limit is renamed;
        structured output is weakened (labels in the schema, the schema alone, any JSON object, the
        prompt alone); our output limit is raised if it truncated an answer.

        Calls in flight at that time may be refused for the same reason, and should be sent again. A
        caller that has the refused body checks ``provider.encode(request) != body`` first.
        """
        before = self.dialect
        after: Dialect | None = None
        if isinstance(error, TruncatedReplyError):
            if before.tight and self._users.isdisjoint(LIMITS):
                after = replace(before, tight=False)
        elif isinstance(error, UnreadableReplyError):
            if error.content and not self._readable and "response_format" not in self._users:
                after = less_structure(before, self.structures)
        elif isinstance(error, BadRequestError):
            after = self._after_refusal(error)
        if after is None or isinstance(error, ContentRefusedError):
            return False
        if after == before:
            self._stale += 1
            return self._stale <= _STALE
        if after.dropped != before.dropped:
            lost = ", ".join(sorted(after.dropped - before.dropped))
            then = "; confidence will be verbalized" if "logprobs" in lost else ""
            _log.warning("%s does not accept %s; omitted from now on%s", self._where, lost, then)
        else:
            _log.info("%s: request format changed to %s", self._where, after)
        self.dialect = after
        self._readable = False
        self._prepared.clear()
        return True

    def _after_refusal(self, error: BadRequestError) -> Dialect | None:
        if (
            self.dialect.tight
            and not self.needs_limit
            and self._users.isdisjoint(LIMITS)
            and LIMIT_TOO_LARGE.search(str(error))
        ):
            return replace(self.dialect, tight=False)
        if not error.fatal:
            return None
        # a model's name says nothing about the refusal
        name = rf"(?<![\w-]){re.escape(self.model)}(?![\w-])"
        message = re.sub(name, "", str(error))
        return after_refusal(self.dialect, message, self.structures, self._users, self._sent)

    # --- decoding -----------------------------------------------------------------------------

    @abstractmethod
    def parse(self, answer: dict[str, Any]) -> Message:
        """Return the content of a 200 response; raises EmptyReplyError if it has none."""

    def decode(self, request: Request, body: bytes) -> Reply:
        """Decode a 200 response; raises `ReplyError`, which has the tokens, or `ProviderError`."""
        return self._read(request, self._parse(body))

    def _parse(self, body: bytes) -> Message:
        try:
            answer = orjson.loads(body)
        except ValueError as problem:
            answer = joined(body)
            if answer is None:
                page = body.lstrip()[:1] == b"<"
                why = "a web page, not JSON; check base_url" if page else f"no JSON ({problem})"
                raise UnreadableReplyError(
                    f"{self._where}: the response is {why}", status_code=200
                ) from problem
        if not isinstance(answer, dict):
            raise UnreadableReplyError(
                f"{self._where}: the response is not a JSON object", status_code=200
            )
        if answer.get("error"):
            raise self.error(200, {}, orjson.dumps(answer))
        return self.parse(answer)

    def _read(self, request: Request, message: Message) -> Reply:
        content = message.content
        several = request.task.multilabel
        answers = (
            parse_reply(content, len(request.texts), multilabel=several) if content.strip() else ()
        )
        if len(answers) == 1 and isinstance(answers[0], UnreadableReplyError):
            answers = self._label_alone(request.task, message) or answers
        if message.refusal is None and any(isinstance(answer, Answer) for answer in answers):
            self._readable = True
            return Reply(answers, message.usage, message.request_id)
        facts: dict[str, Any] = {
            "content": content[:2000],
            "usage": message.usage,
            "request_id": message.request_id,
            "status_code": 200,
        }
        if message.refusal is not None:
            words = message.refusal or content
            facts["content"] = words[:2000]
            why = words[:200] or "stopped by the provider's content filter"
            raise RefusalError(f"{self._where} declined to answer: {why}", **facts)
        if message.truncated:
            raise TruncatedReplyError(
                f"{self._where}: the answer was truncated by the output limit; set a larger one, "
                f'such as request_options={{"{self.dialect.limit}": 4096}}',
                **facts,
            )
        if not answers:
            raise EmptyReplyError(f"{self._where}: the answer is empty", **facts)
        error = answers[0]
        assert isinstance(error, ReplyError)
        raise type(error)(f"{self._where}: {error}", **facts)

    def _label_alone(self, task: Task, message: Message) -> tuple[Answer, ...]:
        """Return the answer of a reply that is a label and nothing else; () if it is not."""
        if message.truncated:  # perhaps the beginning of a longer label
            return ()
        if self._labels is None or self._labels[0] is not task:
            try:
                self._labels = (task, LabelSet(task.labels, multilabel=task.multilabel))
            except InvalidInputError:
                return ()
        labels = self._labels[1]
        place = labels.same(without_thinking(message.content))
        return () if place is None else (Answer(labels.names[place]),)

    def recover(self, request: Request, error: UnreadableReplyError) -> Reply:
        """Read what the model said from an error: some servers refuse their models' answers."""
        return self._read(request, Message(error.content or "", None, error.request_id))

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> Exception:
        """Return the error of a non-200 response."""
        key = self._key if self.keys is None else self.keys.key
        return as_error(status, headers, body, where=self._where, key=key, hint=self._hint)
