"""Messages: Anthropic, Claude on Amazon Bedrock and Vertex AI, and compatible servers.

The clouds have the Messages API under a URL for each model.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote

import orjson

from testnuc._base.checks import checked_choice
from testnuc._base.foreign import count
from testnuc.errors import ConfigurationError, InvalidInputError
from testnuc.protocols import APIKey, Task, TokenUsage
from testnuc.providers import _reasoning
from testnuc.providers._answers import Body, Message, answer_schema, breaks_off, output_limit
from testnuc.providers._dialect import Dialect, Structure
from testnuc.providers._http import HTTPProvider, endpoint_of
from testnuc.providers._streams import text_of
from testnuc.transport.endpoint import Endpoint, missing_key
from testnuc.transport.keys import key_of

_DEFAULT = "https://api.anthropic.com"
_VERSION = "2023-06-01"

#: Output tokens for reasoning; supported by all models since Claude 3.5.
_REASONING_TOKENS = 8_192

#: ``claude-<family>-<major>-<minor>``; a date is not a minor version.
_MODEL = re.compile(r"claude-[a-z]+-(\d{1,2})(?:[-.](\d{1,2})(?!\d))?(?!\d)", re.IGNORECASE)
#: First version without a temperature.
_NO_SAMPLING = (4, 7)
#: The path of a location of Vertex AI.
_VERTEX = re.compile(r"/projects/[^/]+/locations/[^/]+$")


@dataclass(frozen=True, slots=True)
class _Cloud:
    """What differs from Anthropic's own API: the URL, the key, and two fields of the body."""

    base_path: str
    #: With the model's name, which is not in the body.
    call_path: str
    #: ``anthropic_version`` in the body.
    version: str
    #: The environment variable of the key, a bearer token.
    variable: str
    #: Whether it is the cloud's own host, which needs a key.
    own: bool


def _cloud_of(endpoint: Endpoint, model: str) -> _Cloud | None:
    """Return the cloud that a base URL belongs to; None: Anthropic's own API, or one like it.

    A gateway in front of Bedrock is recognized by a path that ends in ``/model``, one in front of
    Vertex AI by the path of a location.
    """
    host, path, name = endpoint.host, endpoint.path, quote(model, safe=":@")
    own = "bedrock-runtime" in host
    if own or path.endswith("/model"):
        call, version = f"/model/{name}/invoke", "bedrock-2023-05-31"
        return _Cloud(path.removesuffix("/model"), call, version, "AWS_BEARER_TOKEN_BEDROCK", own)
    own = "aiplatform." in host and host.endswith(".googleapis.com")
    if _VERTEX.search(path):
        call, version = f"/publishers/anthropic/models/{name}:rawPredict", "vertex-2023-10-16"
        return _Cloud(path, call, version, "CLOUDSDK_AUTH_ACCESS_TOKEN", own)
    if own:
        raise InvalidInputError(
            f"base_url has no project and location; give https://{host}/v1/projects/<project>/"
            "locations/<location>, such as .../locations/global"
        )
    return None


class Anthropic(HTTPProvider):
    """A model behind a Messages endpoint.

    Anthropic rejects ``temperature`` together with ``top_p``, so the default `top_p` of 1 is not
    sent. Models since Claude 4.7 accept neither.

    Parameters
    ----------
    model : str
        Such as ``claude-haiku-4-5``.
    base_url : str, optional
        Default: ``ANTHROPIC_BASE_URL``, or Anthropic's own. With or without ``/v1``. Bedrock:
        ``https://bedrock-runtime.<region>.amazonaws.com``; Vertex AI:
        ``https://aiplatform.googleapis.com/v1/projects/<project>/locations/<location>``.
    api_key : str or callable, optional
        A function or coroutine function is asked for the key, and again when the server rejects
        it; its key is sent as a bearer token. Default: ``ANTHROPIC_API_KEY``, on Bedrock
        ``AWS_BEARER_TOKEN_BEDROCK``, on Vertex AI ``CLOUDSDK_AUTH_ACCESS_TOKEN``. Only
        Anthropic's, Bedrock's and Vertex AI's own hosts need one.
    headers : mapping of str to str, optional
        Sent with every request; one of the same name replaces the provider's own.
    cache_ttl : {"5m", "1h"}, optional
        How long the prompt cache keeps what all calls begin with; default: the server's, 5 minutes
        after the last use. An hour costs more to write: for batch jobs, and for calls with long
        pauses. It changes no answer, so it is in no key of a store.
    trust_env : bool
        Use the proxies named in the environment; makes each call slower.

    Raises
    ------
    ConfigurationError
        The API key is missing or malformed.
    InvalidInputError
        Invalid URL or model.
    """

    name = "anthropic"
    batch_format: str | None = "anthropic"
    needs_limit: ClassVar[bool] = True
    structures: ClassVar[tuple[Structure, ...]] = (Structure.ENUM, Structure.SCHEMA, Structure.NONE)

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: APIKey | None = None,
        headers: Mapping[str, str] | None = None,
        cache_ttl: str | None = None,
        trust_env: bool = False,
    ) -> None:
        if cache_ttl is not None:
            checked_choice("cache_ttl", cache_ttl, ("5m", "1h"))
        #: Of the prompt cache.
        self.cache_ttl = cache_ttl
        endpoint, _ = endpoint_of(base_url, "ANTHROPIC_BASE_URL", _DEFAULT)
        self._cloud = cloud = _cloud_of(endpoint, model) if isinstance(model, str) else None
        variable = "ANTHROPIC_API_KEY" if cloud is None else cloud.variable
        key = key_of(api_key, (variable,))
        if key is None and (endpoint.host == "api.anthropic.com" if cloud is None else cloud.own):
            raise missing_key(endpoint.host, variable)
        if cloud is None:
            path = endpoint.path.removesuffix("/messages").rstrip("/")
            base_path, call_path = path if path.endswith("/v1") else f"{path}/v1", "/messages"
        else:
            base_path, call_path = cloud.base_path, cloud.call_path
            self.batch_format = None
        super().__init__(
            model,
            endpoint=endpoint,
            base_path=base_path,
            call_path=call_path,
            headers={"anthropic-version": _VERSION} if cloud is None else {},
            extra_headers=headers,
            trust_env=trust_env,
            key=key,
            hint=f"Check the key in {variable}, or give another api_key.",
            dialect=Dialect(),
        )
        version = _MODEL.search(model)
        self._samples = version is None or ((int(version[1]), int(version[2] or 0)) < _NO_SAMPLING)

    def key_headers(self, key: str) -> dict[str, str]:
        """Return the headers that carry a key; one that is asked for is a token of a gateway."""
        bearer = self._cloud is not None or self.keys is not None
        return {"Authorization": f"Bearer {key}"} if bearer else {"x-api-key": key}

    def validate(self, task: Task) -> None:
        super().validate(task)
        if task.confidence == "logprobs":
            raise ConfigurationError(
                "Anthropic does not return token log-probabilities; use the verbalized confidence."
            )
        if "seed" in task.options:
            raise ConfigurationError("Anthropic takes no seed; leave it out, or use temperature 0.")

    def body(self, task: Task, n: int, dialect: Dialect) -> Body:
        options = dict(task.options)
        thinking: Any = options.get("thinking")
        thinks = isinstance(thinking, dict) and thinking.get("type") != "disabled"
        parameters: dict[str, Any] = {}
        if self._samples and not thinks:
            if task.temperature is not None:
                parameters["temperature"] = task.temperature
            if task.top_p is not None and task.top_p != 1.0:
                parameters["top_p"] = task.top_p
        effort = task.reasoning_effort
        # Claude does not reason unless it is asked to, so the least is to say nothing
        effort = effort if effort not in (_reasoning.LEAST, "none", None) else None
        limit = options.pop("max_tokens", None)
        if limit is None:
            limit = output_limit(task, n, dialect.structure)
            if thinks or effort or not dialect.tight:
                own = count(thinking.get("budget_tokens")) if thinks else None
                limit += own or _REASONING_TOKENS
        parameters["max_tokens"] = limit
        config = options.pop("output_config", None)
        config = dict(config) if isinstance(config, dict) else {}
        if dialect.structure <= Structure.SCHEMA:
            schema = answer_schema(task, n, dialect.structure)
            config = {"format": {"type": "json_schema", "schema": schema}, **config}
        if effort:
            config = {"effort": effort, **config}
        if config:
            parameters["output_config"] = config
        parameters |= options
        system: dict[str, Any] = {"type": "text", "text": task.system}
        if "cache_control" not in dialect.dropped:
            ttl = {} if self.cache_ttl is None else {"ttl": self.cache_ttl}
            system["cache_control"] = {"type": "ephemeral", **ttl}
        cloud = self._cloud
        named = {"model": self.model} if cloud is None else {"anthropic_version": cloud.version}
        head = orjson.dumps({**named, "system": [system]})[:-1]
        opening = head + b',"messages":[{"role":"user","content":"'
        return Body(opening, parameters, limit if type(limit) is int else None)

    def parse(self, answer: dict[str, Any]) -> Message:
        """Return the content of a message."""
        reason, blocks = answer.get("stop_reason"), answer.get("content")
        if isinstance(blocks, list):
            blocks = [b for b in blocks if isinstance(b, dict) and b.get("type") == "text"]
        elif not isinstance(blocks, str):
            raise self.empty("content", answer)
        truncated = reason in ("max_tokens", "model_context_window_exceeded")
        refused = reason == "refusal"
        return Message(
            text_of(blocks),
            self.usage(answer),
            answer.get("id"),
            "" if refused else None,
            truncated=truncated,
            broken=not (truncated or refused) and breaks_off(reason),
        )

    def usage(self, answer: dict[str, Any]) -> TokenUsage | None:
        # ``input_tokens`` exclude cached ones
        value = answer.get("usage")
        if not isinstance(value, dict):
            return None
        sent, received = count(value.get("input_tokens")), count(value.get("output_tokens"))
        if sent is None or received is None:
            return None
        cached = count(value.get("cache_read_input_tokens")) or 0
        written = count(value.get("cache_creation_input_tokens")) or 0
        tier = value.get("service_tier")
        tier = tier if isinstance(tier, str) else ""
        return TokenUsage(sent + cached + written, received, cached, written, tier)
