"""LLM providers by name; each one is imported only when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testnuc.errors import InvalidInputError

if TYPE_CHECKING:
    from testnuc.protocols import WireProvider

__all__ = ["resolve"]


def resolve(model: str, *, base_url: str | None = None, api_key: str | None = None) -> WireProvider:
    """Return the provider that a model's name stands for.

    Parameters
    ----------
    model : str
        ``"openai/.."`` (any OpenAI-compatible server too) or ``"anthropic/.."``. The client itself
        resolves ``"local/zero-shot"``, which needs its embedder.
    base_url, api_key : str, optional
        Default: the provider's own environment variables.

    Raises
    ------
    InvalidInputError
        No provider has that name.
    ConfigurationError
        The key is missing or malformed.
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
        f'model {model!r:.120} names no provider; give "openai/<model>" (any OpenAI-compatible '
        'server with base_url=..), "anthropic/<model>", "local/zero-shot", or a provider object.'
    )
