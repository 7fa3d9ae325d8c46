"""LLM providers by name, imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testnuc.errors import InvalidInputError

if TYPE_CHECKING:
    from testnuc.protocols import APIKey, WireProvider

__all__ = ["KINDS", "resolve"]

#: The part of a model's name before the first slash -> what it names.
KINDS = {
    "openai": "any server with chat completions or the Responses API",
    "anthropic": "any server with the Messages API",
    "local": "local/zero-shot, without an LLM",
}


def resolve(
    model: str,
    *,
    base_url: str | None = None,
    api_key: APIKey | None = None,
) -> WireProvider:
    """Return the provider of a model name.

    Parameters
    ----------
    model : str
        ``"openai/.."`` (any OpenAI-compatible server too) or ``"anthropic/.."``. The engine itself
        resolves ``"local/zero-shot"``, which needs the embedder.
    base_url : str, optional
        Default: the provider's own environment variable.
    api_key : str or callable, optional
        A function or coroutine function is asked for the key, and again when it expires. Default:
        the provider's own environment variable.

    Raises
    ------
    InvalidInputError
        Unknown provider.
    ConfigurationError
        The API key is missing or malformed.
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
    raise InvalidInputError(
        f'model {model!r:.120} has no known provider; use "openai/<model>" (any OpenAI-compatible '
        'server with base_url=..), "anthropic/<model>", "local/zero-shot", or a provider object.'
    )
