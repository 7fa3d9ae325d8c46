"""Which options texts with several labels allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from testnuc.errors import InvalidInputError
from testnuc.methods import StandardPrompting
from testnuc.voting import VotePolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testnuc.labels import LabelSet
    from testnuc.protocols import Method


def check_options(
    labels: LabelSet,
    policy: str | VotePolicy,
    model: object,
    method: Method | None,
    confidence: str,
    **others: tuple[Any, Any],
) -> None:
    """Raise an `InvalidInputError` if an option is not supported with or without several labels.

    `others`: option -> (value given, the only value that several labels allow).
    """
    threshold = policy.threshold if isinstance(policy, VotePolicy) else None
    if not labels.multilabel:
        if threshold is not None:
            raise InvalidInputError(
                f"threshold is {threshold!r}, but a text has one label, which needs none; leave "
                "threshold out, or set multilabel=True"
            )
        return
    _check_options(model, method, confidence, others)
    for name in ("prior", "min_trust"):
        value = getattr(policy, name, None)
        if value is not None:
            raise InvalidInputError(
                f"{name} is {value!r}, which multilabel=True does not support; leave {name} out"
                + (", or set the threshold of the policy" if name == "min_trust" else "")
            )


def _check_options(
    model: object,
    method: Method | None,
    confidence: str,
    others: Mapping[str, tuple[Any, Any]],
) -> None:
    if model == "local/zero-shot":
        raise InvalidInputError(
            "model 'local/zero-shot' gives one label; with multilabel=True choose an LLM"
        )
    if method is not None and not isinstance(method, StandardPrompting):
        raise InvalidInputError(
            f"method is {method!r}; with multilabel=True only StandardPrompting() is supported: "
            "leave method out"
        )
    if confidence != "verbalized":
        raise InvalidInputError(
            f"confidence is {confidence!r}; with multilabel=True the LLM states its confidence in "
            "each label: leave confidence out"
        )
    for name, (value, allowed) in others.items():
        if value is not allowed and value != allowed:
            raise InvalidInputError(
                f"{name} is {value!r}, which multilabel=True does not support yet; leave {name} out"
            )
