"""Methods: how one text gets its own prediction, before its neighbors vote."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum
from typing import Any, ClassVar, Literal

from testnuc._base.checks import checked_choice, checked_number, checked_whole
from testnuc._base.display import Brief
from testnuc.errors import InvalidInputError
from testnuc.protocols import Method, implements
from testnuc.types import Prediction


@dataclass(frozen=True, slots=True, repr=False)
class Sampling(Brief):
    """How the model is asked for one answer.

    Parameters
    ----------
    temperature, top_p : float, optional
        By default the paper's; None: the provider's own.
    confidence : {"verbalized", "logprobs"}
        The source of the LLM's confidence: its own words, or its token log-probabilities.
    score_labels : bool
        Choose the label by token log-probabilities, at temperature 0: each label gets the
        probability of the tokens that lead to it, whatever the reply says. The confidence is the
        winner's share. For small models; the server must return ``top_logprobs``.
    texts_per_call : int
        Texts packed in one prompt.
    request_options : mapping
        Passed to the provider unchanged: ``max_tokens``, ``service_tier``, ..
    shortlist : int or {"auto", "levels", "all"}, optional
        Show each text only so many labels: those whose names and descriptions are nearest to it,
        those of its neighbors as far as they are known before the run, and those that a model
        learned from judgments finds likely. "levels": of labels in a tree, those of a level at a
        time. Where the LLM chooses none of them, another call shows the whole list; `estimate` does
        not foresee these calls. 20 to 200 texts of `classify_many`, of at least 100, are also sent
        with all labels, as a check: `Results.notes` compares the answers. "auto": 50 of more than
        200 labels, or levels if these prompts are shorter. None or "all": all labels.
    reasoning_effort : str, optional
        How much a reasoning model reasons: ``"none"``, ``"minimal"``, ``"low"``, ``"medium"``,
        ``"high"``, .. By default ``"least"``: the least that the model is known to accept. None:
        the provider's own.
    """

    temperature: float | None = 0.7
    top_p: float | None = 1.0
    confidence: Literal["verbalized", "logprobs"] = "verbalized"
    texts_per_call: int = 1
    request_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    reasoning_effort: str | None = "least"
    score_labels: bool = False
    shortlist: int | Literal["auto", "levels", "all"] | None = "auto"

    def __post_init__(self) -> None:
        checked_number("temperature", self.temperature, 0.0, 2.0, none=True)
        checked_number("top_p", self.top_p, 0.0, 1.0, none=True)
        checked_choice("confidence", self.confidence, ("verbalized", "logprobs"))
        checked_whole("texts_per_call", self.texts_per_call, least=1)
        if not isinstance(self.score_labels, bool):
            raise InvalidInputError(f"score_labels is {self.score_labels!r}; give True or False")
        if not isinstance(self.request_options, Mapping):
            raise InvalidInputError(
                f"request_options is {self.request_options!r}; give a mapping such as "
                "{'max_tokens': 100}"
            )
        if isinstance(self.shortlist, str) and self.shortlist not in {"auto", "levels", "all"}:
            raise InvalidInputError(
                f"shortlist is {self.shortlist!r}; give a number of labels, 'auto', 'levels' or "
                "'all'"
            )
        if self.shortlist == "all":
            object.__setattr__(self, "shortlist", None)
        if not isinstance(self.shortlist, str | None):
            checked_whole("shortlist", self.shortlist, least=2)
        effort = self.reasoning_effort
        if effort is not None and (not isinstance(effort, str) or not effort.strip()):
            raise InvalidInputError(
                f"reasoning_effort is {effort!r}; give a string such as 'low', or None"
            )
        if effort != "least" and "reasoning_effort" in self.request_options:
            raise InvalidInputError(
                "reasoning_effort is in request_options, too; give it once, as "
                f"Sampling(reasoning_effort={effort!r})"
            )


class _Method:
    """One sample, without few-shot examples."""

    __slots__ = ()
    #: Whether the few-shot examples carry labels.
    labeled: ClassVar[bool] = False

    @property
    def samples(self) -> int:
        """Number of samples per text."""
        return 1

    @property
    def context(self) -> int:
        """Number of neighbors in the prompt as few-shot examples."""
        return 0

    def reduce(self, samples: Sequence[Prediction]) -> Prediction:
        """Return the only sample."""
        return samples[0]


@dataclass(frozen=True, slots=True)
class _Sampling(_Method):
    n: int = 10

    def __post_init__(self) -> None:
        checked_whole("n", self.n, least=1)

    @property
    def samples(self) -> int:
        """Number of samples per text: ``n``."""
        return self.n


@dataclass(frozen=True, slots=True)
class StandardPrompting(_Method):
    """One sample per text is its prediction (the paper's baseline)."""


@dataclass(frozen=True, slots=True)
class SelfConsistency(_Sampling):
    """Majority vote over n samples (the paper's Self-Consistency).

    The confidence is the winner's share of all successful samples. Answers outside the label set
    count as samples but cannot win. A tie goes to the label with the lowest sample index.

    Parameters
    ----------
    n : int
        Samples per text. Each is stored separately: raising n requests only the additional ones.
    """

    def reduce(self, samples: Sequence[Prediction]) -> Prediction:
        """Return the most frequent label, with its share of the samples as confidence."""
        # a Counter keeps the order of first appearance, and `most_common` breaks ties by it
        counts = Counter(sample.label for sample in samples if sample.label is not None)
        if not counts:
            return replace(samples[0], confidence=None)
        winner, count = counts.most_common(1)[0]
        first = next(sample for sample in samples if sample.label == winner)
        return replace(first, confidence=count / len(samples))


@dataclass(frozen=True, slots=True)
class BestOfN(_Sampling):
    """The sample with the highest confidence out of n (Best-of-N).

    Answers outside the label set cannot win. Samples without a confidence rank last. A tie goes to
    the lowest sample index.

    Parameters
    ----------
    n : int
        Samples per text, each stored separately.
    """

    def reduce(self, samples: Sequence[Prediction]) -> Prediction:
        """Return the sample with the highest confidence, unchanged."""
        usable = [sample for sample in samples if sample.label is not None]
        if not usable:
            return samples[0]
        return max(usable, key=lambda s: -1.0 if s.confidence is None else s.confidence)


@dataclass(frozen=True, slots=True)
class WeightedBestOfN(_Sampling):
    """Vote over n samples, weighted by their confidence (Weighted Best-of-N).

    The confidence is the winner's share of the total confidence. Samples without a confidence
    abstain; if all abstain, the first sample is returned without a confidence. A tie goes to the
    label with the lowest sample index.

    Parameters
    ----------
    n : int
        Samples per text, each stored separately.
    """

    def reduce(self, samples: Sequence[Prediction]) -> Prediction:
        """Return the label with the largest total confidence, and its share as confidence."""
        by_label: dict[str, list[float]] = {}
        for sample in samples:
            if sample.label is not None and sample.confidence is not None:
                by_label.setdefault(sample.label, []).append(sample.confidence)
        # fsum: the order of the samples must not decide between equal sums
        sums = {label: fsum(parts) for label, parts in by_label.items()}
        total = fsum(s.confidence for s in samples if s.confidence is not None)
        if not sums or total <= 0:
            first = next((s for s in samples if s.label is not None), samples[0])
            return replace(first, confidence=None)
        winner = max(sums, key=sums.__getitem__)
        first = next(sample for sample in samples if sample.label == winner)
        return replace(first, confidence=min(1.0, sums[winner] / total))


@dataclass(frozen=True, slots=True)
class TopKICL(_Method):
    """The k nearest texts of the pool as few-shot examples, without labels (the paper's KNN-ICL).

    Parameters
    ----------
    k : int
        Examples per prompt, most similar first. The client's own ``k`` sets how many neighbors
        vote.
    """

    k: int = 10

    def __post_init__(self) -> None:
        checked_whole("k", self.k, least=1)

    @property
    def context(self) -> int:
        """Number of neighbors in the prompt as few-shot examples: ``k``."""
        return self.k


@dataclass(frozen=True, slots=True)
class TopKICLP(TopKICL):
    """The k nearest texts with their predicted labels as examples (the paper's KNN-ICL-P).

    The label of an example is its prediction by `StandardPrompting`, which shares stored answers
    with that method. An example whose prediction failed has no label; once it has one, the prompt
    is another one, and its text is asked about again. With ``neighbors="stored"``
    the LLM is not called for examples outside the batch: an example without such a prediction uses
    the one that this method stored for it, or has no label.

    Parameters
    ----------
    k : int
        Examples per prompt, most similar first. The client's own ``k`` sets how many neighbors
        vote.
    """

    labeled: ClassVar[bool] = True


def resolve(method: Any, *, texts_per_call: int = 1) -> Method:
    """Return the method to use, which fits the texts of a call; None is `StandardPrompting`."""
    if method is None:
        return StandardPrompting()
    if isinstance(method, type) or not implements(method, Method):
        raise InvalidInputError(
            f"method is {method!r}; pass an object such as SelfConsistency(n=10) or TopKICL(k=10)"
        )
    checked_whole("method.samples", method.samples, least=1)
    checked_whole("method.context", method.context, least=0)
    if method.context and texts_per_call > 1:
        raise InvalidInputError(
            f"texts_per_call is {texts_per_call}, but {method!r} needs a separate prompt for each "
            "text; set texts_per_call=1, or use a method without few-shot examples"
        )
    return method
