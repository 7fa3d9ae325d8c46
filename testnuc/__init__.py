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
        AuthenticationError,
        BadRequestError,
        BudgetExceededError,
        CallTimeoutError,
        ConfigurationError,
        ConnectionFailedError,
        ContentRefusedError,
        EmbeddingError,
        EmptyReplyError,
        InvalidInputError,
        MismatchedReplyError,
        MissingDependencyError,
        NotAnsweredError,
        ProviderError,
        QuotaExceededError,
        RateLimitedError,
        RefusalError,
        ReplyError,
        ServerError,
        SmallPoolWarning,
        StoreError,
        TestNUCError,
        TruncatedReplyError,
        UnknownModelError,
        UnreadableReplyError,
    )
    from testnuc.head import Head
    from testnuc.label_tree import LabelTree
    from testnuc.labels import LabelSet
    from testnuc.limits import BatchPolicy, Budget, RateLimit, RetryPolicy
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
    from testnuc.report import read_marks
    from testnuc.results import Results
    from testnuc.scoring import Comparison, Evaluation, Measured, compare
    from testnuc.sync import SyncTestNUC
    from testnuc.trust import (
        Certificate,
        Diagnosis,
        JoinedReview,
        Learned,
        MultilabelLearned,
        Review,
        ReviewItem,
        ReviewReason,
        Unsure,
        join_reviews,
        review_queue,
    )
    from testnuc.types import (
        Classification,
        Estimate,
        LaneEstimate,
        MultilabelClassification,
        MultilabelPrediction,
        Neighbor,
        PoolStats,
        Prediction,
        Reason,
        TreeClassification,
        Usage,
    )
    from testnuc.voting import VotePolicy, VoteResult, decided, vote, vote_curve, vote_pool

# a library leaves the handling of its log records to the application
logging.getLogger(__name__).addHandler(logging.NullHandler())


_HOMES = {
    "client": ("TestNUC",),
    "errors": (
        "AuthenticationError",
        "BadRequestError",
        "BudgetExceededError",
        "CallTimeoutError",
        "ConfigurationError",
        "ConnectionFailedError",
        "ContentRefusedError",
        "EmbeddingError",
        "EmptyReplyError",
        "InvalidInputError",
        "MismatchedReplyError",
        "MissingDependencyError",
        "NotAnsweredError",
        "ProviderError",
        "QuotaExceededError",
        "RateLimitedError",
        "RefusalError",
        "ReplyError",
        "ServerError",
        "SmallPoolWarning",
        "StoreError",
        "TestNUCError",
        "TruncatedReplyError",
        "UnknownModelError",
        "UnreadableReplyError",
    ),
    "head": ("Head",),
    "label_tree": ("LabelTree",),
    "labels": ("LabelSet",),
    "limits": ("BatchPolicy", "Budget", "RateLimit", "RetryPolicy"),
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
    "report": ("read_marks",),
    "results": ("Results",),
    "scoring": ("Comparison", "Evaluation", "Measured", "compare"),
    "sync": ("SyncTestNUC",),
    "trust": (
        "Certificate",
        "Diagnosis",
        "JoinedReview",
        "Learned",
        "MultilabelLearned",
        "Review",
        "ReviewItem",
        "ReviewReason",
        "join_reviews",
        "Unsure",
        "review_queue",
    ),
    "types": (
        "Classification",
        "Estimate",
        "LaneEstimate",
        "MultilabelClassification",
        "MultilabelPrediction",
        "Neighbor",
        "PoolStats",
        "Prediction",
        "Reason",
        "TreeClassification",
        "Usage",
    ),
    "voting": ("VotePolicy", "VoteResult", "decided", "vote", "vote_curve", "vote_pool"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Anthropic",
    "AuthenticationError",
    "BadRequestError",
    "BatchPolicy",
    "BestOfN",
    "Budget",
    "BudgetExceededError",
    "CallTimeoutError",
    "Certificate",
    "Classification",
    "Comparison",
    "ConfigurationError",
    "ConnectionFailedError",
    "ContentRefusedError",
    "Diagnosis",
    "EmbeddingError",
    "EmptyReplyError",
    "Estimate",
    "Evaluation",
    "Head",
    "InvalidInputError",
    "JoinedReview",
    "LabelSet",
    "LabelTree",
    "LaneEstimate",
    "Learned",
    "Measured",
    "MismatchedReplyError",
    "MissingDependencyError",
    "MultilabelClassification",
    "MultilabelLearned",
    "MultilabelPrediction",
    "Neighbor",
    "NotAnsweredError",
    "OpenAI",
    "PoolStats",
    "Prediction",
    "ProviderError",
    "QuotaExceededError",
    "RateLimit",
    "RateLimitedError",
    "Reason",
    "RefusalError",
    "ReplyError",
    "Results",
    "RetryPolicy",
    "Review",
    "ReviewItem",
    "ReviewReason",
    "Sampling",
    "SelfConsistency",
    "ServerError",
    "SmallPoolWarning",
    "StandardPrompting",
    "StoreError",
    "SyncTestNUC",
    "TestNUC",
    "TestNUCError",
    "TopKICL",
    "TopKICLP",
    "TreeClassification",
    "TruncatedReplyError",
    "UnknownModelError",
    "UnreadableReplyError",
    "Unsure",
    "Usage",
    "VotePolicy",
    "VoteResult",
    "WeightedBestOfN",
    "compare",
    "decided",
    "join_reviews",
    "read_marks",
    "review_queue",
    "vote",
    "vote_curve",
    "vote_pool",
]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'testnuc' has no attribute {name!r}")
    value: object = getattr(import_module(f"testnuc.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
