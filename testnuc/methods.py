"""Methods: how one text gets its own prediction, before its neighbors vote."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import fsum
from typing import TYPE_CHECKING, Any, Literal

from testnuc._base.checks import checked_choice, checked_number, checked_whole
from testnuc.errors import InvalidInputError
from testnuc.protocols import Method

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testnuc.types import Prediction

__all__ = [
    "BestOfN",
    "Sampling",
    "SelfConsistency",
    "StandardPrompting",
    "TopKICL",
    "TopKICLP",
    "WeightedBestOfN",
    "resolve",
]

# the modules that version 0.1.0 pickled its methods from
for _old in ("best_of_n", "self_consistency", "standard", "topk_icl"):
    sys.modules[f"{__name__}.{_old}"] = sys.modules[__name__]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the model is asked for one answer.

    Parameters
    ----------
    temperature, top_p : float, optional
        By default the paper's; None: the provider's own.
    confidence : {"verbalized", "logprobs"}
        The source of the LLM's confidence: its own words, or its token log-probabilities.
    texts_per_call : int
        Texts packed in one prompt.
    request_options : mapping
        Passed to the provider unchanged: ``max_tokens``, ``reasoning_effort``, ..

    Examples
    --------
    ::

        TestNUC(labels, sampling=Sampling(temperature=0.0, texts_per_call=10))
    """

    temperature: float | None = 0.7
    top_p: float | None = 1.0
    confidence: Literal["verbalized", "logprobs"] = "verbalized"
    texts_per_call: int = 1
    request_options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        checked_number("temperature", self.temperature, 0.0, 2.0)
        checked_number("top_p", self.top_p, 0.0, 1.0)
        checked_choice("confidence", self.confidence, ("verbalized", "logprobs"))
        checked_whole("texts_per_call", self.texts_per_call, least=1)
        if not isinstance(self.request_options, Mapping):
            raise InvalidInputError(
                f"request_options is {self.request_options!r}; give a mapping such as "
                "{'max_tokens': 100}"
            )


@dataclass(frozen=True, slots=True)
class StandardPrompting:
    """Ask once; the answer is the prediction (the paper's baseline)."""

    @property
    def samples(self) -> int:
        """One."""
        return 1

    @property
    def context(self) -> int:
        """No examples in the prompt."""
        return 0

    @property
    def labeled(self) -> bool:
        """No examples, no labels of them."""
        return False

    def reduce(self, samples: Sequence[Prediction]) -> Prediction:
        """Return the only sample."""
        return samples[0]


@dataclass(frozen=True, slots=True)
class SelfConsistency:
    """Ask n times; the label most samples give is the prediction (the paper's Self-Consistency).

    The confidence is the winner's part of the samples that were answered. Answers outside the
    label set win nothing, but count among these. A tie goes to the label of the lowest sample
    number.

    Parameters
    ----------
    n : int
        Samples of one text. They are stored one by one: a larger n pays for the difference alone.
    """

    n: int = 10

    def __post_init__(self) -> None:
        checked_whole("n", self.n, least=1)

    @property
    def samples(self) -> int:
        """``n``."""
        return self.n

    @property
    def context(self) -> int:
        """No examples in the prompt."""
        return 0

    @property
    def labeled(self) -> bool:
        """No examples, no labels of them."""
        return False

    def reduce(self, samples: Sequence[Prediction]) -> Prediction:
        """Return the label of most samples; its confidence is its part of them."""
        # a Counter keeps the order of first appearance, and `most_common` ties by it
        counts = Counter(sample.label for sample in samples if sample.label is not None)
        if not counts:
            return replace(samples[0], confidence=None)
        winner, count = counts.most_common(1)[0]
        first = next(sample for sample in samples if sample.label == winner)
        return replace(first, confidence=count / len(samples))


@dataclass(frozen=True, slots=True)
class BestOfN:
    """Ask n times; the sample with the highest confidence is the prediction (Best-of-N).

    Answers outside the label set win nothing; a sample without a confidence wins only where none
    has one. A tie goes to the lowest sample number.

    Parameters
    ----------
    n : int
        Samples of one text, stored one by one.
    """

    n: int = 10

    def __post_init__(self) -> None:
        checked_whole("n", self.n, least=1)

    @property
    def samples(self) -> int:
        """``n``."""
        return self.n

    @property
    def context(self) -> int:
        """No examples in the prompt."""
        return 0

    @property
    def labeled(self) -> bool:
        """No examples, no labels of them."""
        return False

    def reduce(self, samples: Sequence[Prediction]) -> Prediction:
        """Return the sample with the highest confidence, as it is."""
        usable = [sample for sample in samples if sample.label is not None]
        if not usable:
            return samples[0]
        return max(usable, key=_confidence)


@dataclass(frozen=True, slots=True)
class WeightedBestOfN:
    """Ask n times; each sample votes with its confidence (Weighted Best-of-N).

    The prediction's confidence is the winner's part of all samples' confidence. A sample without a
    confidence abstains; where none has one, the first sample stands, without a confidence. A tie
    goes to the label of the lowest sample number.

    Parameters
    ----------
    n : int
        Samples of one text, stored one by one.
    """

    n: int = 10

    def __post_init__(self) -> None:
        checked_whole("n", self.n, least=1)

    @property
    def samples(self) -> int:
        """``n``."""
        return self.n

    @property
    def context(self) -> int:
        """No examples in the prompt."""
        return 0

    @property
    def labeled(self) -> bool:
        """No examples, no labels of them."""
        return False

    def reduce(self, samples: Sequence[Prediction]) -> Prediction:
        """Return the label with the most confidence; its confidence is its part of all."""
        given: dict[str, list[float]] = {}
        for sample in samples:
            if sample.label is not None and sample.confidence is not None:
                given.setdefault(sample.label, []).append(sample.confidence)
        # fsum: the order of the samples must not decide between equal sums
        sums = {label: fsum(parts) for label, parts in given.items()}
        total = fsum(s.confidence for s in samples if s.confidence is not None)
        if not sums or total <= 0:
            first = next((s for s in samples if s.label is not None), samples[0])
            return replace(first, confidence=None)
        winner = max(sums, key=sums.__getitem__)
        first = next(sample for sample in samples if sample.label == winner)
        return replace(first, confidence=min(1.0, sums[winner] / total))


def _confidence(sample: Prediction) -> float:
    return -1.0 if sample.confidence is None else sample.confidence


@dataclass(frozen=True, slots=True)
class TopKICL:
    """Show the LLM the k most similar texts of the pool, without labels (the paper's KNN-ICL).

    Parameters
    ----------
    k : int
        Texts shown, most similar first; how many neighbors vote is the client's own ``k``.
    """

    k: int = 10

    def __post_init__(self) -> None:
        checked_whole("k", self.k, least=1)

    @property
    def samples(self) -> int:
        """One."""
        return 1

    @property
    def context(self) -> int:
        """``k``."""
        return self.k

    @property
    def labeled(self) -> bool:
        """The texts alone."""
        return False

    def reduce(self, samples: Sequence[Prediction]) -> Prediction:
        """Return the only sample."""
        return samples[0]


@dataclass(frozen=True, slots=True)
class TopKICLP:
    """Show the LLM the k most similar texts with their predicted labels (the paper's KNN-ICL-P).

    The label of a text shown is its own prediction by `StandardPrompting`, shared with that method
    and stored like any other; a text whose prediction failed is shown without a label. With
    ``neighbors="stored"`` no text outside the batch is asked about for this: a text that has no
    such prediction is shown with the one that this method stored for it, or without a label.

    Parameters
    ----------
    k : int
        Texts shown, most similar first; how many neighbors vote is the client's own ``k``.
    """

    k: int = 10

    def __post_init__(self) -> None:
        checked_whole("k", self.k, least=1)

    @property
    def samples(self) -> int:
        """One."""
        return 1

    @property
    def context(self) -> int:
        """``k``."""
        return self.k

    @property
    def labeled(self) -> bool:
        """The texts with their predictions."""
        return True

    def reduce(self, samples: Sequence[Prediction]) -> Prediction:
        """Return the only sample."""
        return samples[0]


def resolve(method: Any, *, texts_per_call: int = 1) -> Method:
    """Return the method to use; None is `StandardPrompting`.

    Raises
    ------
    InvalidInputError
        It is no method, or it shows examples in prompts that hold several texts.
    """
    if method is None:
        return StandardPrompting()
    if isinstance(method, type) or not isinstance(method, Method):
        raise InvalidInputError(
            f"method is {method!r}; give an object such as SelfConsistency(n=10) or TopKICL(k=10)"
        )
    checked_whole("method.samples", method.samples, least=1)
    checked_whole("method.context", method.context, least=0)
    if method.context and texts_per_call > 1:
        raise InvalidInputError(
            f"texts_per_call is {texts_per_call}, but {method!r} shows each text examples of its "
            "own; use texts_per_call=1, or a method without examples"
        )
    return method
