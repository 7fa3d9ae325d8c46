"""Label texts with LLMs, and improve the labels without labeled data.

The path of a text::

    texts -> embedder -> index (k neighbors) -> method (LLM, through the store) -> vote -> label

``await TestNUC(labels, model=..).classify_many(texts)`` calls the LLM once per distinct text. The
nearest neighbors of each text then vote on its label: the batch itself is the unlabeled data.

Public names are imported lazily: ``import testnuc`` loads neither numba, aiohttp nor torch.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING

from testnuc._version import __version__ as __version__

if TYPE_CHECKING:
    from testnuc.client import TestNUC as TestNUC
    from testnuc.discovery import discover as discover
    from testnuc.errors import BudgetExceededError as BudgetExceededError
    from testnuc.errors import InvalidInputError as InvalidInputError
    from testnuc.errors import ProviderError as ProviderError
    from testnuc.errors import SmallPoolWarning as SmallPoolWarning
    from testnuc.errors import StoreError as StoreError
    from testnuc.errors import TestNUCError as TestNUCError
    from testnuc.head import Head as Head
    from testnuc.label_tree import LabelTree as LabelTree
    from testnuc.labels import LabelSet as LabelSet
    from testnuc.limits.policies import BatchPolicy as BatchPolicy
    from testnuc.limits.policies import Budget as Budget
    from testnuc.limits.policies import Limits as Limits
    from testnuc.limits.policies import RetryPolicy as RetryPolicy
    from testnuc.methods import BestOfN as BestOfN
    from testnuc.methods import Sampling as Sampling
    from testnuc.methods import SelfConsistency as SelfConsistency
    from testnuc.methods import StandardPrompting as StandardPrompting
    from testnuc.methods import TopKICL as TopKICL
    from testnuc.methods import TopKICLP as TopKICLP
    from testnuc.methods import WeightedBestOfN as WeightedBestOfN
    from testnuc.providers.anthropic import Anthropic as Anthropic
    from testnuc.providers.openai import OpenAI as OpenAI
    from testnuc.results import Results as Results
    from testnuc.sync import SyncTestNUC as SyncTestNUC
    from testnuc.trust.certificates import Certificate as Certificate
    from testnuc.trust.evidence import Referee as Referee
    from testnuc.trust.learned import Learned as Learned
    from testnuc.trust.review import Review as Review
    from testnuc.trust.uncertainty import UncertaintySampling as UncertaintySampling
    from testnuc.types import Classification as Classification
    from testnuc.types import Estimate as Estimate
    from testnuc.types import Neighbor as Neighbor
    from testnuc.types import Prediction as Prediction
    from testnuc.types import Usage as Usage
    from testnuc.voting import VotePolicy as VotePolicy

# a library leaves the handling of its log records to the application
logging.getLogger(__name__).addHandler(logging.NullHandler())

#: Module -> its public names.
_HOMES = {
    "client": "TestNUC",
    "discovery": "discover",
    "errors": "BudgetExceededError InvalidInputError ProviderError SmallPoolWarning StoreError "
    "TestNUCError",
    "head": "Head",
    "label_tree": "LabelTree",
    "labels": "LabelSet",
    "limits.policies": "BatchPolicy Budget Limits RetryPolicy",
    "methods": "BestOfN Sampling SelfConsistency StandardPrompting TopKICL TopKICLP "
    "WeightedBestOfN",
    "providers.anthropic": "Anthropic",
    "providers.openai": "OpenAI",
    "results": "Results",
    "sync": "SyncTestNUC",
    "trust.certificates": "Certificate",
    "trust.evidence": "Referee",
    "trust.learned": "Learned",
    "trust.review": "Review",
    "trust.uncertainty": "UncertaintySampling",
    "types": "Classification Estimate Neighbor Prediction Usage",
    "voting": "VotePolicy",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}
#: Where the other public names are.
_MODULES = ("errors", "metrics", "results", "review", "scoring", "types", "voting")

__all__ = sorted(_HOME)  # noqa: PLE0605 - type checkers see the imports above


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
