"""Base class of the HTTP providers: encoding, adaptation and decoding.

A body is prepared once per task and number of texts; encoding a call joins its user message with
two byte strings. The request format is a `Dialect`, a frozen value that `adapt` replaces after a
refusal. Encoding is a pure function of request and dialect, so a refused body was outdated if
encoding its request again gives another one.
"""

import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import orjson

from testnuc import errors
from testnuc._base.foreign import read_json, write_json
from testnuc.errors import printable
from testnuc.limits.budget import BYTES_PER_TOKEN
from testnuc.prompts.reading import parse_reply, without_thinking
from testnuc.protocols import Answer, Answers, Reply, Request, Task, TokenUsage
from testnuc.providers import _dialect
from testnuc.providers._answers import Body, Message
from testnuc.providers._dialect import LIMITS, Dialect, Structure
from testnuc.providers._reasoning import LEAST
from testnuc.providers._streams import joined
from testnuc.transport.api_errors import as_error, without_key
from testnuc.transport.endpoint import Endpoint, checked_headers, secrets_in, secrets_of_proxies
from testnuc.transport.keys import KeySource

_log = logging.getLogger("testnuc.providers")

#: Tokens of the message format.
OVERHEAD_TOKENS = 12
#: Reserved for a call without an output limit; ample for a label.
UNLIMITED_OUTPUT = 16_384

#: Most characters of a request id, and of an answer that is no label.
_IDENTIFIER, _SHOWN = 200, 10_000

#: Most models that responses may name.
_MODELS = 20
#: Most values in a response, and how many more for each text whose labels are scored by the
#: alternatives of each token.
_MOST_VALUES, _SCORED = 100_000, 6_000
#: Most characters of the labels in a reply that are not in the set, and how many are counted for
#: each in addition: it is compared with the whole set.
_MOST_OTHERS, _EACH = 200_000, 100
#: Most bytes of an error in a 200 response.
_MOST_OF_ERROR = 2**18

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


def endpoint_of(base_url: str | None, variable: str, default: str) -> tuple[Endpoint, str]:
    """Return the address of a server, and what names it: an argument or environment variable."""
    if base_url is None and os.environ.get(variable):
        return Endpoint.parse(os.environ[variable], source=variable), variable
    return Endpoint.parse(default if base_url is None else base_url, source="base_url"), "base_url"


class HTTPProvider(ABC):
    """Base class of the HTTP providers; see `testnuc.protocols.WireProvider`."""

    name: str
    #: Format of the provider's batch API, see `testnuc.batch.lane`; None: not supported.
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
            raise errors.InvalidInputError(f"the model name is {model!r}; give a non-empty string.")
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
        #: A fixed key, and those of gateways in the user's own headers.
        self._secrets = (*((key,) if isinstance(key, str) else ()), *secrets_in(own))
        self._hint = hint
        self._prepared: dict[tuple[Task, int, int], _Prepared] = {}
        self._readable = False
        self._stale = 0
        #: The names of models that responses reported, such as dated versions; a few.
        self.served: set[str] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, base_url={self.identity!r})"

    def key_headers(self, key: str) -> dict[str, str]:
        """Return the headers that carry a key."""
        return {"Authorization": f"Bearer {key}"}

    def at(self, path: str, query: str = "") -> str:
        """Return the URL of another path of this API, such as ``/batches``."""
        url = self._endpoint.at(self._base_path + path)
        return f"{url}{'&' if '?' in url else '?'}{query}" if query else url

    def encode(self, request: Request) -> bytes:
        """Return the body of a call."""
        prepared = self._of(request)
        try:
            user = orjson.dumps(request.user)
        except TypeError as problem:
            raise errors.InvalidInputError(f"the prompt cannot be sent: {problem}.") from problem
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
            raise errors.InvalidInputError(
                f"request_options may not set {', '.join(wrong)}: testnuc sets it itself."
            )

    @abstractmethod
    def body(self, task: Task, n: int, dialect: Dialect) -> Body:
        """Return the parts of the body for `n` texts."""

    def _of(self, request: Request) -> _Prepared:
        key = task, n, step = request.task, len(request.texts), request.step
        if (known := self._prepared.get(key)) is not None:
            return known
        self.validate(task)
        body, sent = self._parts(task, n, step)
        suffix = b'"}]' + (b"," + orjson.dumps(sent)[1:] if sent else b"}")
        sent_tokens = int((len(body.opening) + len(suffix)) / BYTES_PER_TOKEN) + OVERHEAD_TOKENS
        most = UNLIMITED_OUTPUT if body.output_tokens is None else body.output_tokens
        if len(self._prepared) >= _PREPARED:
            self._prepared.clear()
        self._prepared[key] = _Prepared(body.opening, suffix, sent_tokens, most)
        return self._prepared[key]

    def _parts(self, task: Task, n: int, step: int) -> tuple[Body, dict[str, Any]]:
        """Return the parts of a body, and its parameters as they are sent."""
        body = self.body(task, n, _dialect.stepped(self.dialect, self.structures, step))
        given = {**dict(self.dialect.added), **body.parameters}
        if self.dialect.stream:
            given["stream"] = True
        return body, {k: v for k, v in given.items() if k not in self.dialect.dropped}

    def reasoning(self, task: Task) -> int:  # noqa: ARG002
        """Return the tokens of reasoning about a text that a task typically takes."""
        return 0

    def adapt(self, error: Exception, task: Task) -> bool:
        """Change how requests are encoded because of `error`; True: send the call again at once.

        `task` is that of the call which met the error; others may share this provider.

        Refused sampling parameters are omitted from then on; the output limit is renamed;
        structured output is weakened (labels in the schema, the schema alone, any JSON object, the
        prompt alone); our output limit is raised if it truncated an answer.

        Calls in flight at that time may be refused for the same reason, and should be sent again. A
        caller that has the refused body checks ``provider.encode(request) != body`` first.
        """
        before = self.dialect
        after: Dialect | None = None
        # what the user has set stays
        users = set(task.options)
        if task.reasoning_effort not in (LEAST, None):
            users.add("reasoning_effort")
        if isinstance(error, errors.TruncatedReplyError):
            if before.tight and users.isdisjoint(LIMITS):
                after = replace(before, tight=False)
        elif isinstance(error, errors.UnreadableReplyError):
            if error.content and not self._readable and "response_format" not in users:
                after = _dialect.less_structure(before, self.structures)
        elif isinstance(error, errors.BadRequestError):
            after = self._after_refusal(error, task, users)
        if after is None or isinstance(error, errors.ContentRefusedError):
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

    def _after_refusal(
        self, error: errors.BadRequestError, task: Task, users: set[str]
    ) -> Dialect | None:
        ours = self.dialect.tight and not self.needs_limit and users.isdisjoint(LIMITS)
        if ours and _dialect.LIMIT_TOO_LARGE.search(str(error)):
            return replace(self.dialect, tight=False)
        if not error.fatal:
            return None
        # a model's name says nothing about the refusal
        message = re.sub(rf"(?<![\w-]){re.escape(self.model)}(?![\w-])", "", str(error))
        _, sent = self._parts(task, 1, 0)
        return _dialect.after_refusal(self.dialect, message, self.structures, users, sent)

    @abstractmethod
    def parse(self, answer: dict[str, Any]) -> Message:
        """Return the content of a 200 response; raises `empty` if it has none.

        Its ``id`` is a string or None.
        """

    @abstractmethod
    def usage(self, answer: dict[str, Any]) -> TokenUsage | None:
        """Return the tokens that a 200 response reports; None: unknown."""

    def decode(self, request: Request, body: bytes) -> Reply:
        """Decode a 200 response; raises `ReplyError`, which has the tokens, or `ProviderError`."""
        return self._read(request, self._parse(request, body))

    def _parse(self, request: Request, body: bytes) -> Message:
        ended, stream = True, None
        more = _SCORED * len(request.texts) if request.task.score_labels else 0
        try:
            answer = read_json(body, most=_MOST_VALUES + more)
        except ValueError as problem:
            stream = joined(body)
            if stream is None:
                page = body.lstrip()[:1] == b"<"
                why = "a web page, not JSON; check base_url" if page else f"no JSON ({problem})"
                reason = f"{self._where}: the response is {why}"
                raise errors.UnreadableReplyError(reason, status_code=200) from problem
            answer, ended = stream
        if not isinstance(answer, dict):
            reason = f"{self._where}: the response is not a JSON object"
            raise errors.UnreadableReplyError(reason, status_code=200)
        if answer.get("error"):
            raise self._error_within(answer, body if stream is None else write_json(answer))
        given = answer.get("id")
        known = self.shown(printable(given[:_IDENTIFIER])) if isinstance(given, str) else None
        served = answer.get("model")
        if isinstance(served, str) and served not in self.served and len(self.served) < _MODELS:
            self.served.add(self.shown(printable(served[:_IDENTIFIER])))
        message = self.parse({**answer, "id": known})
        # a stream that broke off
        return message if ended else replace(message, broken=True)

    def empty(self, what: str, answer: dict[str, Any]) -> errors.EmptyReplyError:
        """Return the error of a 200 response without an answer."""
        return errors.EmptyReplyError(
            f"{self._where}: the response has no {what}",
            usage=self.usage(answer),
            request_id=answer.get("id"),
            status_code=200,
        )

    def _error_within(self, answer: dict[str, Any], body: bytes) -> Exception:
        """Return the error that a 200 response holds; it is billed if the model wrote something."""
        error, usage = self.error(200, {}, body[:_MOST_OF_ERROR]), self.usage(answer)
        billed = usage is not None and usage.output_tokens > 0
        if not (billed and isinstance(error, errors.ProviderError) and error.retryable):
            return error
        facts: dict[str, Any] = {"usage": usage, "request_id": error.request_id}
        return errors.UnreadableReplyError(str(error), **facts, status_code=200)

    def _read(self, request: Request, message: Message) -> Reply:
        content = message.content
        several, n = request.task.multilabel, len(request.texts)
        answers: Answers = ()
        if content.strip():
            answers = parse_reply(content, n, several=several, truncated=not message.whole)
        if len(answers) == 1 and isinstance(answers[0], errors.UnreadableReplyError):
            answers = self._label_alone(request.task, message) or answers
        elif n > 1 or several:
            answers = _without_crowd(answers, request.task)
        if message.refusal is None and any(isinstance(answer, Answer) for answer in answers):
            self._readable = True
            shown = tuple(self._without_key(answer, request.task) for answer in answers)
            return Reply(shown, message.usage, message.request_id)
        facts: dict[str, Any] = {
            "content": self.shown(content[:2000]),
            "usage": message.usage,
            "request_id": message.request_id,
            "status_code": 200,
        }
        if message.refusal is not None:
            words = facts["content"] = self.shown((message.refusal or content)[:2000])
            why = words[:200] or "stopped by the provider's content filter"
            raise errors.RefusalError(f"{self._where} declined to answer: {why}", **facts)
        if message.broken:
            facts["content"] = None  # which would be a reason to ask for another format
            raise errors.UnreadableReplyError(
                f"{self._where}: the answer broke off before its end", **facts
            )
        if message.truncated:
            raise errors.TruncatedReplyError(
                f"{self._where}: the answer was truncated by the output limit; set a larger one, "
                f'such as request_options={{"{self.dialect.limit}": 4096}}',
                **facts,
            )
        if not answers:
            raise errors.EmptyReplyError(f"{self._where}: the answer is empty", **facts)
        error = answers[0]
        assert isinstance(error, errors.ReplyError)
        raise type(error)(f"{self._where}: {self.shown(str(error))}", **facts)

    def shown(self, text: str) -> str:
        """Return words of the server without the key."""
        return without_key(text, self._hidden)

    @property
    def _hidden(self) -> tuple[str, ...]:
        proxies = secrets_of_proxies() if self.trust_env else ()
        return (*(() if self.keys is None else self.keys.latest), *self._secrets, *proxies)

    def _without_key(
        self, answer: Answer | errors.ReplyError, task: Task
    ) -> Answer | errors.ReplyError:
        """Return an answer that quotes no key, which would be stored; a label is no secret."""
        if isinstance(answer, errors.ReplyError):
            return type(answer)(self.shown(str(answer)), content=self.shown(answer.content or ""))
        kept = tuple(
            (name if name in task.labels else self.shown(name[:_SHOWN]), sure)
            for name, sure in answer.stated
        )
        if kept == answer.stated:
            return answer
        several = answer.labels is not None
        return replace(answer, labels=kept) if several else replace(answer, label=kept[0][0])

    def _label_alone(self, task: Task, message: Message) -> tuple[Answer, ...]:
        """Return the answer of a reply that is a label and nothing else; () if it is not."""
        content = message.content.strip()
        if not message.whole:  # perhaps the beginning of a longer label
            return ()
        if task.multilabel and content.startswith("[") and not content.endswith("]"):
            return ()
        place = None if task.same is None else task.same(without_thinking(content))
        return () if place is None else (Answer(task.labels[place]),)

    def recover(self, request: Request, error: errors.UnreadableReplyError) -> Reply:
        """Read what the model said from an error: some servers refuse their models' answers.

        The output limit may have cut it off after a draft, which is why it was refused.
        """
        said = Message(error.content or "", None, error.request_id)
        if not self._label_alone(request.task, said):
            said = replace(said, truncated=True)
        try:
            return self._read(request, said)
        except errors.TruncatedReplyError:
            raise error from None

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> Exception:
        """Return the error of a non-200 response."""
        return as_error(status, headers, body, where=self._where, key=self._hidden, hint=self._hint)


def _without_crowd(answers: Answers, task: Task) -> Answers:
    """Return the answers; an error, if so many of their labels are unknown that it takes long."""
    given = [answer for answer in answers if isinstance(answer, Answer)]
    others = {name for a in given for name, _ in a.stated}.difference(task.labels)
    if sum(map(len, others)) + len(others) * (_EACH + len(task.labels)) <= _MOST_OTHERS:
        return answers
    return (
        errors.UnreadableReplyError(
            f"the reply has {len(others):,} labels that are not in the set"
        ),
    )
