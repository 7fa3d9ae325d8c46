"""The batch API of a provider, by the format that it names in ``batch_format``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from testnuc.batch.anthropic import AnthropicBatches
from testnuc.batch.openai import OpenAIBatches
from testnuc.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from testnuc.batch.base import BatchAPI
    from testnuc.transport import AuxiliaryRequests

_FORMATS: dict[object, Callable[[Any, AuxiliaryRequests], BatchAPI]] = {
    "anthropic": AnthropicBatches,
    "openai": OpenAIBatches,
}


def batch_api(provider: object, exchanges: AuxiliaryRequests) -> BatchAPI:
    """Return the batch API of a provider; raises `InvalidInputError` if it has none."""
    if not has_batches(provider):
        name = repr(getattr(provider, "name", type(provider).__name__))
        url = getattr(provider, "url", "")
        raise InvalidInputError(
            f"lane='batch' needs a provider with a batch API, and {name}{url and f' at {url}'} "
            "names no supported batch_format ('openai', 'anthropic'); use an openai/.. or "
            "anthropic/.. model of their own APIs, or lane='live'"
        )
    return _FORMATS[provider.batch_format](provider, exchanges)  # type: ignore[attr-defined]


def has_batches(provider: object) -> bool:
    """Whether a provider has a supported batch API."""
    return getattr(provider, "batch_format", None) in _FORMATS
