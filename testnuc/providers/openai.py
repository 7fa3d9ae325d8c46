"""Chat completions: OpenAI, Azure OpenAI and compatible servers."""

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from testnuc import errors
from testnuc._base.foreign import count
from testnuc.prompts.writing import VERBALIZED
from testnuc.protocols import APIKey, Reply, Request, Task, TokenUsage
from testnuc.providers import _reasoning, _responses
from testnuc.providers._answers import Body, Message, answer_schema, breaks_off, output_limit
from testnuc.providers._dialect import Dialect, Structure
from testnuc.providers._http import HTTPProvider, endpoint_of
from testnuc.providers._logprobs import TOP, with_logprobs, with_scores
from testnuc.providers._streams import first_choice, text_of
from testnuc.transport.endpoint import Endpoint, checked_headers, missing_key
from testnuc.transport.keys import key_of

_log = logging.getLogger("testnuc.providers")

_DEFAULT = "https://api.openai.com/v1"
#: Batch APIs other than OpenAI's, by host.
_BATCH_FORMATS = {"api.mistral.ai": "mistral", "generativelanguage.googleapis.com": "gemini"}
_AZURE = (
    ".openai.azure.com",
    ".openai.azure.us",
    ".cognitiveservices.azure.com",
    ".services.ai.azure.com",
)

#: Where servers other than OpenAI's, such as DeepSeek's and Mistral's, count cached input tokens.
_CACHED = ("prompt_cache_hit_tokens", "num_cached_tokens", "cached_tokens")
#: Finish reasons of an answer that a limit cut off; Mistral's is "model_length".
_TRUNCATED = {"length", "max_tokens", "max_output_tokens", "model_length"}
_LOGPROBS = re.compile(r"logprobs?\b", re.IGNORECASE)
#: Reasoning models without a temperature; Azure's gpt-35-turbo is GPT-3.5.
_REASONING = re.compile(r"(o\d|gpt-(?!35)([5-9]|\d\d)|codex)(?!.{0,99}-chat)", re.IGNORECASE)


class OpenAI(HTTPProvider):
    """A model behind a chat completions endpoint, or behind the Responses API.

    Parameters
    ----------
    model : str
        The model's name; on Azure, the deployment's name.
    base_url : str, optional
        Such as ``http://localhost:8000/v1``, or the whole URL of chat completions. Default:
        ``OPENAI_BASE_URL``, or OpenAI's own. A URL without a path gets ``/v1``; Azure's query
        (``?api-version=..``) is kept.
    api_key : str or callable, optional
        A function or coroutine function that returns the key is called before the first request,
        and again when the server rejects its key (Entra ID, Vertex). Default: ``OPENAI_API_KEY``;
        on Azure's hosts ``AZURE_OPENAI_API_KEY`` before it. Only OpenAI's and Azure's own hosts
        need one.
    organization, project : str, optional
        Of the account that is billed.
    headers : mapping of str to str, optional
        Sent with every request; one of the same name replaces the provider's own.
    prompt_cache_key, prompt_cache_retention : str, optional
        Of OpenAI's prompt cache: routes calls with the same key alike, and keeps the cache longer
        (``"24h"``). They change no answer, so they are in no key of a store.
    responses : bool, optional
        Whether calls go to the Responses API. None: if the model's name or the server says so.
    trust_env : bool
        Use the proxies named in the environment; makes each call slower.

    Raises
    ------
    ConfigurationError
        The API key is missing or malformed.
    InvalidInputError
        Invalid URL or model.
    """

    name = "openai"
    batch_format: str | None = "openai"

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: APIKey | None = None,
        organization: str | None = None,
        project: str | None = None,
        headers: Mapping[str, str] | None = None,
        prompt_cache_key: str | None = None,
        prompt_cache_retention: str | None = None,
        responses: bool | None = None,
        trust_env: bool = False,
    ) -> None:
        endpoint, source = endpoint_of(base_url, "OPENAI_BASE_URL", _DEFAULT)
        azure = endpoint.host.endswith(_AZURE)
        own = azure or endpoint.host == "api.openai.com"
        variable = "AZURE_OPENAI_API_KEY" if azure else "OPENAI_API_KEY"
        key = key_of(api_key, (variable, "OPENAI_API_KEY"))
        if key is None and own:
            raise missing_key(endpoint.host, variable)
        # Entra ID's tokens are no API keys
        self._azure_key = azure and isinstance(key, str)
        account = {"OpenAI-Organization": organization, "OpenAI-Project": project}
        given = {name: value for name, value in account.items() if value is not None}
        super().__init__(
            model,
            endpoint=endpoint,
            base_path=_base_path(endpoint, azure=azure, source=source),
            call_path="/chat/completions",
            headers={},
            extra_headers=given | checked_headers(headers or {}),
            trust_env=trust_env,
            key=key,
            hint=f"Check the key in {variable}, or give another api_key.",
            dialect=Dialect(limit="max_completion_tokens" if own else "max_tokens"),
        )
        short = model.rpartition("/")[2]
        self._reasons = _REASONING.match(short) is not None
        self._thinks = self._reasons or _reasoning.thinks(short)
        self._least = _reasoning.least(short, endpoint.host)
        cache = {
            "prompt_cache_key": prompt_cache_key,
            "prompt_cache_retention": prompt_cache_retention,
        }
        self._cache = {name: value for name, value in cache.items() if value is not None}
        #: Whether a reply had the log-probabilities that scores need.
        self._scored = False
        #: Whether a refusal by the server may switch calls to the Responses API.
        self._may_switch = responses is None
        self.batch_format = _BATCH_FORMATS.get(endpoint.host, self.batch_format)
        named = endpoint.path.endswith(_responses.PATH) or (own and _responses.needs(short))
        if responses or (responses is None and named):
            self._use_responses()

    def key_headers(self, key: str) -> dict[str, str]:
        return {"api-key": key} if self._azure_key else {"Authorization": f"Bearer {key}"}

    def _use_responses(self) -> None:
        self.dialect = replace(self.dialect, responses=True)
        self.url = self.at(_responses.PATH)

    def adapt(self, error: Exception, task: Task) -> bool:
        if task.score_labels and _LOGPROBS.search(str(error)):
            return False  # there are no scores without them
        refused = isinstance(error, (errors.BadRequestError, errors.UnknownModelError))
        if refused and self._may_switch and _responses.NEEDED.search(str(error)):
            if self.dialect.responses:
                return False
            _log.info("%s: calls go to the Responses API from now on", self._where)
            self._use_responses()
            self._prepared.clear()
            return True
        return super().adapt(error, task)

    def _effort(self, task: Task, dialect: Dialect) -> str:
        """Return the reasoning effort to send, the user's option included; "": none."""
        given = task.options.get("reasoning_effort", task.reasoning_effort)
        if given != _reasoning.LEAST:
            return given if isinstance(given, str) else ""
        if "reasoning_effort" in dialect.dropped or "reasoning" in task.options:
            return ""
        return self._least if dialect.effort is None else dialect.effort

    def reasoning(self, task: Task) -> int:
        return _reasoning.tokens(self._effort(task, self.dialect), thinking=self._thinks)[1]

    def body(self, task: Task, n: int, dialect: Dialect) -> Body:
        effort = self._effort(task, dialect)
        options = dict(task.options)
        old, new = options.pop("max_tokens", None), options.pop("max_completion_tokens", None)
        limit = old if new is None else new
        if limit is None and dialect.tight:
            room, _ = _reasoning.tokens(effort, thinking=self._thinks)
            limit = output_limit(task, n, dialect.structure) + room
        parameters = self._parameters(task, n, dialect, effort) | options
        system = task.system
        if _verbalized_instead(task, dialect):
            system += f"\n\n{VERBALIZED}"
        known = limit if type(limit) is int else None
        if dialect.responses:
            sent = _responses.parameters(parameters, limit)
            return Body(_responses.opening(self.model, system), sent, known)
        if limit is not None:
            parameters[dialect.limit] = limit
        opening = b'{"model":' + orjson.dumps(self.model) + b',"messages":[{"role":'
        quoted = orjson.dumps(system)
        if dialect.system_role:
            opening += b'"system","content":' + quoted + b'},{"role":"user","content":"'
        else:
            opening += b'"user","content":' + quoted[:-1] + rb"\n\n"
        return Body(opening, parameters, known)

    def _parameters(self, task: Task, n: int, dialect: Dialect, effort: str) -> dict[str, Any]:
        """Return the parameters of a chat completion, without the output limit and options."""
        parameters: dict[str, Any] = dict(self._cache)
        sampling = {"temperature": task.temperature, "top_p": task.top_p}
        if not self._reasons or effort == "none":
            parameters |= {name: value for name, value in sampling.items() if value is not None}
        if effort:
            parameters["reasoning_effort"] = effort
        if task.confidence == "logprobs" and "logprobs" not in dialect.dropped:
            parameters["logprobs"] = True
            if task.score_labels:
                # the label does not depend on which reply was drawn
                parameters |= {"top_logprobs": TOP, "temperature": 0.0}
        form = _response_format(task, n, dialect)
        if form is not None:
            parameters["response_format"] = form
        if dialect.stream and not dialect.responses:
            parameters["stream_options"] = {"include_usage": True}
        return parameters

    def decode(self, request: Request, body: bytes) -> Reply:
        message = self._parse(request, body)
        reply, task = self._read(request, message), request.task
        if task.score_labels:
            scored = with_scores(reply.answers, message.content, message.logprobs, task)
            if scored is None:
                raise self._unscored(message)
            self._scored = True
            return replace(reply, answers=scored)
        if task.confidence == "logprobs" and "logprobs" not in self.dialect.dropped:
            answers = with_logprobs(reply.answers, message.content, message.logprobs)
            return replace(reply, answers=answers)
        return reply

    def _unscored(self, message: Message) -> errors.ReplyError:
        """Return the error of a reply without log-probabilities, which ends a run if none had."""
        error = errors.UnreadableReplyError(
            f"{self._where}: the response has no log-probabilities, which score_labels "
            "needs; choose a server that returns them (start llama-cpp-python's with "
            "--logits_all true), or leave score_labels out",
            usage=message.usage,
            request_id=message.request_id,
            status_code=200,
        )
        error.retryable, error.fatal = False, not self._scored
        return error

    def parse(self, answer: dict[str, Any]) -> Message:
        """Return the content of the first choice of a chat completion, or that of a response."""
        if isinstance(answer.get("output"), list):
            return self._parse_response(answer)
        choice = first_choice(answer)
        message, finish = choice.get("message"), choice.get("finish_reason")
        if not finish and isinstance(details := choice.get("finish_details"), dict):
            finish = details.get("type")  # of OpenAI's first models with images
        if finish == "content_filter":
            message = message or {}  # Azure sends none
        if not isinstance(message, dict):
            raise self.empty("choices", answer)
        refusal = message.get("refusal")
        if not isinstance(refusal, str) or not refusal:
            refusal = "" if finish == "content_filter" else None
        content = text_of(message.get("content"))
        truncated = isinstance(finish, str) and finish.lower() in _TRUNCATED
        # OpenRouter has the error of a server that died beside what it said
        broken = not truncated and (breaks_off(finish) or bool(choice.get("error")))
        logprobs = choice.get("logprobs")
        usage, request_id = self.usage(answer), answer.get("id")
        return Message(content, usage, request_id, refusal, truncated, logprobs, broken)

    def usage(self, answer: dict[str, Any]) -> TokenUsage | None:
        names = ("input", "output")
        if not isinstance(answer.get("output"), list):
            names = ("prompt", "completion")
        return _usage(answer.get("usage"), answer.get("service_tier"), *names)

    def _parse_response(self, answer: dict[str, Any]) -> Message:
        content, refusal, tokens = _responses.content(answer)
        details = answer.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        if reason == "content_filter":
            refusal = refusal or ""
        status = answer.get("status")
        truncated = reason == "max_output_tokens" or status == "incomplete"
        broken = not truncated and breaks_off(status)
        logprobs = {"content": tokens}
        usage, request_id = self.usage(answer), answer.get("id")
        return Message(content, usage, request_id, refusal, truncated, logprobs, broken)


def _base_path(endpoint: Endpoint, *, azure: bool, source: str) -> str:
    path = endpoint.path.removesuffix("/chat/completions").removesuffix("/responses").rstrip("/")
    # the whole URL of a server without /v1, such as Perplexity's
    if not path and not endpoint.path:
        path = "/openai/v1" if azure else "/v1"
    if azure and "/deployments/" in path and "api-version=" not in endpoint.query:
        raise errors.InvalidInputError(
            f"{source} is an Azure deployment without a version: append ?api-version=2024-10-21 "
            "(or later), or use https://<resource>.openai.azure.com/openai/v1."
        )
    return path


def _verbalized_instead(task: Task, dialect: Dialect) -> bool:
    """Whether the confidence is verbalized as the server returns no log-probabilities."""
    return task.confidence == "logprobs" and "logprobs" in dialect.dropped


def _response_format(task: Task, n: int, dialect: Dialect) -> dict[str, Any] | None:
    structure = dialect.structure
    if structure is Structure.NONE:
        return None
    if structure is Structure.OBJECT:
        return {"type": "json_object"}
    if _verbalized_instead(task, dialect):
        task = replace(task, confidence="verbalized")
    schema = answer_schema(task, n, structure)
    if dialect.typed:
        return {"type": "json_object", "schema": schema}
    form = {"name": "answer", "strict": True, "schema": schema}
    return {"type": "json_schema", "json_schema": form}


def _usage(value: Any, tier: Any, prompt: str, completion: str) -> TokenUsage | None:
    """Return the tokens of a response that names those of prompt and completion so."""
    if not isinstance(value, dict):
        return None
    sent = count(value.get(f"{prompt}_tokens"))
    received = count(value.get(f"{completion}_tokens"))
    if sent is None or received is None:
        return None
    details = value.get(f"{prompt}_tokens_details")
    details = details if isinstance(details, dict) else {}
    cached = count(details.get("cached_tokens")) or 0
    written = count(details.get("cache_write_tokens")) or 0
    audio = count(details.get("audio_tokens")) or 0
    if not cached and not value.keys().isdisjoint(_CACHED):
        cached = next(filter(None, (count(value.get(name)) for name in _CACHED)), 0)
    cached = min(cached, sent)
    written = min(written, sent - cached)
    received += _outside(value, completion, sent, received, audio)
    tier = tier or value.get("service_tier")
    return TokenUsage(sent, received, cached, written, tier if isinstance(tier, str) else "")


def _outside(usage: dict[str, Any], completion: str, sent: int, received: int, audio: int) -> int:
    """Return the billed tokens of reasoning that those of the completion do not include.

    xAI, Azure and Gemini leave them out, OpenAI includes them; the total shows which. Not all
    servers say what the rest of the total is; Mistral counts audio of the prompt apart.
    """
    total = count(usage.get("total_tokens"))
    if total is not None:
        return max(0, total - sent - received - audio)
    details = usage.get(f"{completion}_tokens_details")
    reasoning = count(details.get("reasoning_tokens")) if isinstance(details, dict) else None
    # a part cannot exceed the whole
    return reasoning if reasoning is not None and reasoning > received else 0
