"""Which batch API a provider has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testnuc.errors import InvalidInputError

if TYPE_CHECKING:
    from testnuc.batch.base import BatchAPI
    from testnuc.transport import AuxiliaryRequests

__all__ = ["batch_api", "has_batches"]


def batch_api(provider: object, exchanges: AuxiliaryRequests) -> BatchAPI:
    """Return the batch API of a provider.

    Raises
    ------
    InvalidInputError
        It has none that we speak.
    """
    from testnuc.providers.anthropic import Anthropic
    from testnuc.providers.openai import OpenAI

    if isinstance(provider, OpenAI):
        from testnuc.batch.openai import OpenAIBatches

        return OpenAIBatches(provider, exchanges)
    if isinstance(provider, Anthropic):
        from testnuc.batch.anthropic import AnthropicBatches

        return AnthropicBatches(provider, exchanges)
    name = getattr(provider, "name", type(provider).__name__)
    raise InvalidInputError(
        f"lane='batch' needs a provider with a batch API, and {name!r} has none that testnuc "
        "speaks; use an openai/.. or anthropic/.. model, or lane='live'"
    )


def has_batches(provider: object) -> bool:
    """Whether a provider has a batch API that we speak."""
    from testnuc.providers.anthropic import Anthropic
    from testnuc.providers.openai import OpenAI

    return isinstance(provider, Anthropic | OpenAI)
