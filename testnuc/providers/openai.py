"""Chat completions: OpenAI, Azure OpenAI, and every server that speaks the same protocol."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from testnuc.errors import (
    ConfigurationError,
    EmptyReplyError,
    InvalidInputError,
    RefusalError,
    TruncatedReplyError,
    UnreadableReplyError,
)
from testnuc.prompts import label_spans
from testnuc.protocols import Answer, Reply, Request, Task, TokenUsage
from testnuc.providers._endpoint import Endpoint, checked_key
from testnuc.providers._failures import as_error
from testnuc.providers._wire import (
    Body,
    Dialect,
    Structure,
    Wire,
    answer_schema,
    count,
    output_limit,
)

__all__ = ["OpenAI"]

_DEFAULT = "https://api.openai.com/v1"
_AZURE = (
    ".openai.azure.com",
    ".openai.azure.us",
    ".cognitiveservices.azure.com",
    ".services.ai.azure.com",
)

#: Models that think before they answer, and take no temperature while they do.
_REASONING = re.compile(r"^(o\d|gpt-(?:[5-9]|\d\d)|codex)(?!.*-chat)", re.IGNORECASE)
#: Models that think before they answer, but take a temperature.
_THINKING = re.compile(r"gpt-oss|deepseek-?r\d|reason|think|qwq|magistral", re.IGNORECASE)


class OpenAI(Wire):
    """A model behind a chat completions endpoint.

    Parameters
    ----------
    model : str
        The provider's name of it; Azure's name of the deployment.
    base_url : str, optional
        Such as ``http://localhost:8000/v1``. Default: ``OPENAI_BASE_URL``, or OpenAI's own.
    api_key : str, optional
        Default: ``OPENAI_API_KEY``; on Azure's hosts ``AZURE_OPENAI_API_KEY`` before it. Only
        OpenAI's and Azure's own hosts need one.

    Raises
    ------
    ConfigurationError
        No key, or one that cannot be sent.
    InvalidInputError
        No usable URL.
    """

    name = "openai"

    def __init__(
        self, model: str, *, base_url: str | None = None, api_key: str | None = None
    ) -> None:
        source = "base_url"
        if base_url is None and os.environ.get("OPENAI_BASE_URL"):
            base_url, source = os.environ["OPENAI_BASE_URL"], "OPENAI_BASE_URL"
        endpoint = Endpoint.parse(_DEFAULT if base_url is None else base_url, source=source)
        azure = endpoint.host.endswith(_AZURE)
        own = azure or endpoint.host == "api.openai.com"
        variables = ("AZURE_OPENAI_API_KEY",) if azure else ()
        variables += ("OPENAI_API_KEY",)
        key = checked_key(api_key, variables)
        if key is None and own:
            raise ConfigurationError(
                f"no key for {endpoint.host}: set the environment variable {variables[0]}, or "
                'give api_key=".."'
            )
        path = _base_path(endpoint, azure=azure, source=source)
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers |= {"api-key": key} if azure else {"Authorization": f"Bearer {key}"}
        super().__init__(
            model,
            identity=endpoint.at(path),
            url=endpoint.at(f"{path}/chat/completions"),
            headers=headers,
            dialect=Dialect(limit="max_completion_tokens" if own else "max_tokens"),
        )
        self._key = key
        self._where = f"{model} at {endpoint.netloc}"
        self._hint = f"Check the key in {variables[0]}, or give api_key."
        short = model.rpartition("/")[2]
        self._reasoning = _REASONING.match(short) is not None
        self._thinking = self._reasoning or _THINKING.search(short) is not None

    def body(self, task: Task, n: int, dialect: Dialect) -> Body:
        """Return the parts of the body for `n` texts in a dialect."""
        options = dict(task.options)
        quiet = options.get("reasoning_effort") == "none"
        parameters: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        if not self._reasoning or quiet:
            if task.temperature is not None:
                parameters["temperature"] = task.temperature
            if task.top_p is not None:
                parameters["top_p"] = task.top_p
        if task.confidence == "logprobs":
            parameters["logprobs"] = True
        if "response_format" not in options:
            form = _response_format(task, n, dialect.structure)
            if form is not None:
                parameters["response_format"] = form
                extra["own_structure"] = True
        limit = options.pop("max_completion_tokens", None) or options.pop("max_tokens", None)
        options.pop("max_tokens", None)
        if limit is None and dialect.tight and not (self._thinking and not quiet):
            limit = output_limit(task, n, dialect.structure)
            extra["own_limit"] = True
        if limit is not None:
            parameters[dialect.limit] = limit
        parameters |= options
        head = b'{"model":' + orjson.dumps(self.model) + b',"messages":['
        system = orjson.dumps(task.system)
        if dialect.system_role:
            opening = b'{"role":"system","content":' + system + b'},{"role":"user","content":"'
        else:
            opening = b'{"role":"user","content":' + system[:-1] + rb"\n\n"
        return Body(parameters, head + opening, b'"}]', limit, extra)

    def decode(self, request: Request, body: bytes) -> Reply:
        """Read a 200 answer.

        Parameters
        ----------
        request : Request
            What was asked.
        body : bytes
            The answer.
        """
        try:
            reply = orjson.loads(body)
        except ValueError as problem:
            raise UnreadableReplyError(
                f"{self._where}: the answer is not JSON, or not all of it ({problem})",
                status_code=200,
            ) from problem
        if not isinstance(reply, dict):
            raise UnreadableReplyError(
                f"{self._where}: the answer is not an object", status_code=200
            )
        if reply.get("error"):
            raise self.error(200, {}, body)
        usage = _usage(reply.get("usage"))
        request_id = reply["id"] if isinstance(reply.get("id"), str) else None
        facts: dict[str, Any] = {"usage": usage, "request_id": request_id, "status_code": 200}
        choices = reply.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(message, dict):
            raise EmptyReplyError(f"{self._where}: the answer has no choice", **facts)
        finish = choice.get("finish_reason")
        refusal = message.get("refusal")
        content = _text(message.get("content"))
        if refusal or finish == "content_filter":
            said = refusal if isinstance(refusal, str) else content
            raise RefusalError(
                f"{self._where}: the model declined to answer"
                + (": " + said[:200] if said else " (content filter)"),
                content=said[:2000],
                **facts,
            )
        if not content.strip():
            if finish == "length":
                raise self._truncated(content, facts)
            raise EmptyReplyError(f"{self._where}: the answer is empty", **facts)
        try:
            read = self._reply(request, content, usage, request_id)
        except (UnreadableReplyError,) as problem:
            if finish == "length":
                raise self._truncated(content, facts) from problem
            raise
        if request.task.confidence == "logprobs":
            return replace(read, answers=_with_logprobs(read, content, choice))
        return read

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

    def _truncated(self, content: str, facts: dict[str, Any]) -> TruncatedReplyError:
        return TruncatedReplyError(
            f"{self._where}: the answer was cut off by the output limit; give a larger one with "
            f'request_options={{"{self.dialect.limit}": ..}}',
            content=content[:2000],
            **facts,
        )


def _base_path(endpoint: Endpoint, *, azure: bool, source: str) -> str:
    """The path that ``/chat/completions`` is put behind."""
    path = endpoint.path.removesuffix("/chat/completions").rstrip("/")
    if not path:
        path = "/openai/v1" if azure else "/v1"
    if azure and "/deployments/" in path and "api-version=" not in endpoint.query:
        raise InvalidInputError(
            f"{source} names an Azure deployment without a version; put ?api-version=2024-10-21 "
            "(or a later one) behind it, or use https://..openai.azure.com/openai/v1."
        )
    return path


def _response_format(task: Task, n: int, structure: Structure) -> dict[str, Any] | None:
    if structure is Structure.NONE:
        return None
    if structure is Structure.OBJECT:
        return {"type": "json_object"}
    schema = answer_schema(task, n, structure)
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "strict": True, "schema": schema},
    }


def _usage(value: Any) -> TokenUsage | None:
    if not isinstance(value, dict):
        return None
    sent, received = count(value.get("prompt_tokens")), count(value.get("completion_tokens"))
    if sent is None or received is None:
        return None
    details = value.get("prompt_tokens_details")
    cached = count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return TokenUsage(sent, received, min(cached or 0, sent))


def _text(content: Any) -> str:
    """The text of a message, whether it is a string or a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [part.get("text") for part in content if isinstance(part, dict)]
    return "".join(part for part in parts if isinstance(part, str))


def _with_logprobs(read: Reply, content: str, choice: dict[str, Any]) -> tuple[Any, ...]:
    """The answers with the probability of their label's tokens as confidence."""
    tokens = _tokens(choice.get("logprobs"))
    joined = b"".join(token for token, _ in tokens)
    start = joined.find(content.encode("utf-8", "replace"))
    spans = label_spans(content, len(read.answers)) if tokens and start >= 0 else {}
    answers = []
    for i, answer in enumerate(read.answers):
        if isinstance(answer, Answer):
            confidence = None
            if i in spans:
                first, last = (
                    start + len(content[:at].encode("utf-8", "replace")) for at in spans[i]
                )
                confidence = _probability(tokens, first, last)
            answer = Answer(answer.label, confidence)  # noqa: PLW2901
        answers.append(answer)
    return tuple(answers)


def _tokens(logprobs: Any) -> list[tuple[bytes, float]]:
    """The tokens of an answer as bytes, with their log-probabilities; none if any is odd."""
    listed = logprobs.get("content") if isinstance(logprobs, dict) else None
    tokens = []
    for token in listed if isinstance(listed, list) else ():
        if not isinstance(token, dict):
            return []
        value, raw, text = token.get("logprob"), token.get("bytes"), token.get("token")
        if type(value) not in (int, float) or math.isnan(value):
            return []
        if isinstance(raw, list) and all(type(b) is int and 0 <= b < 256 for b in raw):  # noqa: PLR2004
            tokens.append((bytes(raw), float(value)))
        elif isinstance(text, str):
            tokens.append((text.encode("utf-8", "replace"), float(value)))
        else:
            return []
    return tokens


def _probability(tokens: list[tuple[bytes, float]], first: int, last: int) -> float | None:
    """The product of the probabilities of the tokens that overlap ``[first, last)``."""
    total, at, found = 0.0, 0, False
    for token, logprob in tokens:
        end = at + len(token)
        if at < last and end > first:
            total += logprob
            found = True
        at = end
    return min(1.0, math.exp(min(0.0, total))) if found else None
