"""LLM providers by name, imported on first use.

::

    openai, anthropic  the two protocols; `local`, without HTTP
    _http              their base class: encoding, adaptation, decoding
    _dialect           the request format that a server accepts
    _answers           schema, output limit and message of a call
    _reasoning         reasoning models; `_responses`, the Responses API
    _logprobs          confidence from token log-probabilities
    _streams           server-sent events
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

import orjson

from testnuc.errors import InvalidInputError

if TYPE_CHECKING:
    from testnuc.protocols import APIKey, WireProvider

__all__ = ["SERVERS", "resolve"]

#: Servers with chat completions, by the name that users may try -> their base URL. The table in
#: docs/providers.md has each of them, with how it is known to work.
SERVERS: dict[str, str] = orjson.loads((files("testnuc") / "data" / "servers.json").read_bytes())


def resolve(
    model: str, *, base_url: str | None = None, api_key: APIKey | None = None
) -> WireProvider:
    """Return the provider of a model name, ``"openai/.."`` or ``"anthropic/.."``.

    The engine itself resolves ``"local/zero-shot"``, which needs the embedder. The provider's own
    environment variables are the defaults of `base_url` and `api_key`.
    """
    if isinstance(model, str):
        kind, _, name = model.partition("/")
        if name.strip():
            if kind == "openai":
                from testnuc.providers.openai import OpenAI

                return OpenAI(name, base_url=base_url, api_key=api_key)
            if kind == "anthropic":
                from testnuc.providers.anthropic import Anthropic

                return Anthropic(name, base_url=base_url, api_key=api_key)
        server = SERVERS.get(kind.lower())
        if server is not None and name.strip():
            raise InvalidInputError(
                f"{kind} is not a kind of provider; give model='openai/{name:.100}', "
                f"base_url='{server}' and its api_key."
            )
    raise InvalidInputError(
        f'model {model!r:.120} has no known provider; use "openai/<model>" (with base_url: any '
        'OpenAI-compatible server), "anthropic/<model>" or "local/zero-shot".'
    )
