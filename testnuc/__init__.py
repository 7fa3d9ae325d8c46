"""Label texts with LLMs, and improve the labels without labeled data.

The path of a text::

    texts -> embedder -> index (k neighbors) -> method (LLM, through the store) -> vote -> label

``await TestNUC(labels, model=..).classify_many(texts)`` calls the LLM once per distinct text. The
nearest neighbors of each text then vote on its label: the batch itself is the unlabeled data.

`client` is the entry point and `_engine` runs the steps. `embedders`, `index`, `providers`,
`methods`, `stores` and `voting` implement one step each; `protocols` defines their interfaces.
`types`, `results` and `errors` define what calls return and raise. `testing` provides test doubles.

Public names are imported lazily: ``import testnuc`` loads neither numba, aiohttp nor torch.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

from testnuc._version import __version__ as __version__

if TYPE_CHECKING:
    from testnuc.client import TestNUC
    from testnuc.errors import (
        BudgetExceededError,
        InvalidInputError,
        ProviderError,
        SmallPoolWarning,
        StoreError,
        TestNUCError,
    )
    from testnuc.head import Head
    from testnuc.label_tree import LabelTree
    from testnuc.labels import LabelSet
    from testnuc.limits import BatchPolicy, Budget, Limits, RateLimit, RetryPolicy
    from testnuc.methods import (
        BestOfN,
        Sampling,
        SelfConsistency,
        StandardPrompting,
        TopKICL,
        TopKICLP,
        WeightedBestOfN,
    )
    from testnuc.providers.anthropic import Anthropic
    from testnuc.providers.openai import OpenAI
    from testnuc.results import Results
    from testnuc.sync import SyncTestNUC
    from testnuc.trust import Certificate, Learned, Referee, Review, UncertaintySampling
    from testnuc.types import (
        Classification,
        Estimate,
        MultilabelClassification,
        Neighbor,
        Prediction,
        TreeClassification,
        Usage,
    )
    from testnuc.voting import VotePolicy

# a library leaves the handling of its log records to the application
logging.getLogger(__name__).addHandler(logging.NullHandler())


_HOMES = {
    "client": ("TestNUC",),
    "errors": (
        "BudgetExceededError",
        "InvalidInputError",
        "ProviderError",
        "SmallPoolWarning",
        "StoreError",
        "TestNUCError",
    ),
    "head": ("Head",),
    "label_tree": ("LabelTree",),
    "labels": ("LabelSet",),
    "limits": ("BatchPolicy", "Budget", "Limits", "RateLimit", "RetryPolicy"),
    "methods": (
        "BestOfN",
        "Sampling",
        "SelfConsistency",
        "StandardPrompting",
        "TopKICL",
        "TopKICLP",
        "WeightedBestOfN",
    ),
    "providers.anthropic": ("Anthropic",),
    "providers.openai": ("OpenAI",),
    "results": ("Results",),
    "sync": ("SyncTestNUC",),
    "trust": ("Certificate", "Learned", "Referee", "Review", "UncertaintySampling"),
    "types": (
        "Classification",
        "Estimate",
        "MultilabelClassification",
        "Neighbor",
        "Prediction",
        "TreeClassification",
        "Usage",
    ),
    "voting": ("VotePolicy",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
#: Where the other public names are.
_MODULES = (
    "datasets",
    "errors",
    "metrics",
    "results",
    "review",
    "scoring",
    "trust",
    "types",
    "voting",
)

__all__ = [
    "Anthropic",
    "BatchPolicy",
    "BestOfN",
    "Budget",
    "BudgetExceededError",
    "Certificate",
    "Classification",
    "Estimate",
    "Head",
    "InvalidInputError",
    "LabelSet",
    "LabelTree",
    "Learned",
    "Limits",
    "MultilabelClassification",
    "Neighbor",
    "OpenAI",
    "Prediction",
    "ProviderError",
    "RateLimit",
    "Referee",
    "Results",
    "RetryPolicy",
    "Review",
    "Sampling",
    "SelfConsistency",
    "SmallPoolWarning",
    "StandardPrompting",
    "StoreError",
    "SyncTestNUC",
    "TestNUC",
    "TestNUCError",
    "TopKICL",
    "TopKICLP",
    "TreeClassification",
    "UncertaintySampling",
    "Usage",
    "VotePolicy",
    "WeightedBestOfN",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        value: object = getattr(import_module(f"testnuc.{_HOME[name]}"), name)
    elif name in _MODULES:
        return import_module(f"testnuc.{name}")
    else:
        raise AttributeError(f"module 'testnuc' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
