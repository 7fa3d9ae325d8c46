"""Join the reviews of several people, and say how far they agree.

Cohen's kappa and Krippendorff's alpha (nominal) are tested against scikit-learn and the package
`krippendorff`. They are computed here since the interval needs them without each text.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TypeAlias

import numpy as np

from testnuc._base.display import Brief
from testnuc.errors import InvalidInputError
from testnuc.trust.review import Review, ReviewItem
from testnuc.trust.shares import Z_95, upper_bound

#: What is said beside the bound of `judge_error`.
BY_DIFFERENCES = "by their differences; errors that both make are not in it"
#: What each person said of a text: labels, None = none of the labels. Skipped texts are missing.
_Texts: TypeAlias = "Counter[tuple[str | None, ...]]"


@dataclass(frozen=True, slots=True, repr=False)
class Agreement(Brief):
    """Agreement of several people, each value with its 95 % interval."""

    #: The part of pairs of judgments of a text that are equal, its lowest and highest value.
    equal: tuple[float, float, float]
    #: Krippendorff's alpha; NaN where all judgments are equal.
    alpha: tuple[float, float, float]
    #: Cohen's kappa, of two people; None: there are more.
    kappa: tuple[float, float, float] | None

    def __str__(self) -> str:
        values = [] if self.kappa is None else [f"Cohen's kappa {_shown(self.kappa)}"]
        values.append(f"Krippendorff's alpha {_shown(self.alpha)}")
        equal, low, high = self.equal
        return f"{', '.join(values)}.\nJudgments agree in {equal:.1%} ({low:.1%} to {high:.1%})."


@dataclass(frozen=True, slots=True, repr=False)
class JoinedReview(Brief):
    """The answers of several people in one review. ``print`` it."""

    #: A text has the answer of most of those who judged it; without a majority it is open. Where
    #: people differ, `ReviewItem.said` holds what each said.
    review: Review
    #: Number of texts that more than one person judged.
    shared: int
    #: Number of these on which people differ.
    disagreements: int
    #: Number of those without a majority that nobody settled later.
    undecided: int
    #: Of the judgments of the shared texts; None: there are none.
    agreement: Agreement | None = None
    #: Names of two that are equal in every answer, as a copy is, and so no second judge.
    alike: tuple[str, ...] = ()
    #: Who judged -> how many of the texts have no answer, where some have none.
    unanswered: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        agreed = [at >= self.disagreements for at in range(self.shared)]
        return "\n".join([self.facts, *filter(None, [errors_of_judges(agreed)])])

    @property
    def facts(self) -> str:
        """What was judged, and how far people agree."""
        copies = "".join(
            f"\n{two}: equal in every answer. A copy is no judge: the second one is left out."
            for two in self.alike
        )
        judged = f"{len(self.review.judged):,} texts are judged here"
        if skipped := ", ".join(f"{n:,} in {name}" for name, n in sorted(self.unanswered.items())):
            judged += f" (without an answer: {skipped})"
        if not self.shared:
            return f"{judged}, none of them by several people.{copies}"
        if 0 < len(people := self.review.context.people) < self.review.context.judges:
            copies += (
                f"\nSeveral files name {', '.join(people)}: if they are of two people, name each "
                "one by `testnuc review FILE --judge NAME`."
            )
        return (
            f"{judged}; on {self.disagreements:,} of "
            f"{self.shared:,} that several people judged they differ: "
            f"{self.disagreements - self.undecided:,} settled by the majority, or later by a "
            f"person who saw the labels, {self.undecided:,} open.\n{self.agreement}{copies}"
        )


def join_reviews(
    reviews: Mapping[str, Review] | Sequence[Review], *, batches: bool = False
) -> JoinedReview:
    """Join the reviews of several people, so that `TestNUC.learn` learns from all of them.

    Parameters
    ----------
    reviews : mapping of str to Review, or sequence of Review
        Who judged, or the name of the file -> the review; without names these are "judge 1", ..
        All hold the same drawn texts, or are parts of one review, or their texts were chosen.
    batches : bool
        Take reviews of several draws, to see how far people agree; `TestNUC.learn` needs one draw.

    Raises
    ------
    InvalidInputError
        There is none, the label sets differ, or the texts were drawn in different reviews.
    """
    if not isinstance(reviews, Mapping):
        reviews = {f"judge {number}": review for number, review in enumerate(reviews, 1)}
    records = [(name, review.record()) for name, review in reviews.items()]
    copies = {b: a for (a, one), (b, two) in combinations(records, 2) if one == two}
    reviews = {name: review for name, review in reviews.items() if name not in copies}
    first = _checked(reviews, batches)
    of_text: dict[str, list[tuple[str, ReviewItem]]] = {}
    for name, review in reviews.items():
        for item in review:
            of_text.setdefault(item.text, []).append((name, item))
    disagreements = undecided = 0
    named = any(review.context.people for review in reviews.values())
    people_of = {name: _people(name, review) for name, review in reviews.items()}
    everyone = list(dict.fromkeys(who for people in people_of.values() for who in people))
    order = {who: at for at, who in enumerate(everyone)}
    shared: list[list[str | None]] = []
    #: Reviews with texts that several judged: a later one of one person is none.
    sharing: set[str] = set()
    items = []
    # of parts, in the order in which they were drawn
    ordered = sorted(of_text.values(), key=lambda said: said[0][1].position or 0)
    for index, said in enumerate(ordered):
        people = [vote for name, item in said for vote in _votes(people_of[name], item)]
        # kappa is of the first and the second one
        people.sort(key=lambda vote: order.get(vote[0], 0))
        votes = Counter(answer for _, answer in people)
        if len(people) > 1:
            shared.append([answer for _, answer in people])
            sharing.update(name for name, _ in said)
        days = sorted({item.day for _, item in said if item.source and item.day})
        day = " to ".join(dict.fromkeys(days[:1] + days[-1:]))
        joint = replace(
            said[0][1], index=index, judges=len(people), position=None, said=(), day=day
        )
        # a referee's answer, if no person gave one; of a single review what it says
        answered = next((item for _, item in said if item.source), joint)
        answer, source = answered.answer, answered.source
        if people and len(said) > 1:
            answer, most = votes.most_common(1)[0]
            tied = len(votes) > 1 and 2 * most <= len(people)
            answer, source = (None, None) if tied else (answer, "person")
        if len(votes) > 1:
            disagreements += 1
            undecided += source is None
            joint = replace(joint, said=tuple(people))
        items.append(replace(joint, answer=answer, source=source))
    review = first.with_items(items)
    # one person may judge texts twice
    twice = max(map(len, shared), default=1)
    known = tuple(everyone) if named else ()
    review.context = replace(first.context, judges=max(len(everyone), twice), people=known)
    n = max(len({who for name in sharing for who in people_of[name]}), twice)
    agreement = agreement_of(shared, n) if shared else None
    alike = tuple(f"{a}, {b}" for b, a in copies.items())
    some = [one for said in ordered for one in said if len(reviews) > 1]
    none = Counter(name for name, item in some if item.source is None)
    return JoinedReview(review, len(shared), disagreements, undecided, agreement, alike, none)


def _people(name: str, review: Review) -> Sequence[str]:
    """Return who judged a review: without names, as many as there were, for this file alone."""
    n = review.context.judges
    return review.context.people or ([name] if n == 1 else [f"{name} {one}" for one in range(n)])


def _votes(people: Sequence[str], item: ReviewItem) -> Sequence[tuple[str, str | None]]:
    """Return who said what of a text; a joined review holds it where people differ."""
    alike = max(item.judges, 1) if item.source == "person" else 0
    return item.said or [(people[0], item.answer)] * alike


def _checked(reviews: Mapping[str, Review], batches: bool) -> Review:  # noqa: FBT001
    """Return the first review if all fit together."""
    if not reviews:
        raise InvalidInputError("there is no review to join")
    first = next(iter(reviews.values()))
    chosen = batches or not any(review.drawn for review in reviews.values())
    for name, review in reviews.items():
        if review.label_set != first.label_set:
            raise InvalidInputError(f"{name} has another label set than the first review")
        rest = [item.text for other in reviews.values() if other is not review for item in other]
        if review.context.judges > 1 and {item.text for item in review}.intersection(rest):
            raise InvalidInputError(f"{name} joins several: name it alone, or those that it joins")
        if not chosen and _whole(review) != _whole(first):
            raise InvalidInputError(
                f"{name} has other texts than the first review; learn from each: judgments add up"
            )
    return first


def _whole(review: Review) -> list[object]:
    """Return what reviews that are joined have in common: the draws, or that of which parts are."""
    if any(item.position is not None for item in review):
        return [review.texts, review.ranking, review.model]
    return [(item.text, item.probability, item.floor) for item in review]


def agreement_of(answers: Sequence[Sequence[str | None]], people: int) -> Agreement:
    """Return the agreement of people.

    `answers`: what those who judged a text said of it, for each text with at least two; in the
    order of the people, if there are two.
    """
    texts: _Texts = Counter(map(tuple, answers))
    kappa = _interval(_kappa, texts) if people == 2 else None
    return Agreement(_interval(_equal, texts), _interval(_alpha, texts), kappa)


def judge_error(agreed: Sequence[bool], confidence: float = 0.9) -> float | None:
    """Return an upper bound of how often a judge errs on average; None: no text has two judgments.

    `agreed`: whether those of a text are equal. As if one of two who differ is right, and both who
    agree are: an interval of a binomial proportion (Clopper and Pearson 1934), halved.
    """
    if not agreed:
        return None
    # in tenths of a percent, as it is printed
    return math.ceil(500 * upper_bound(agreed.count(False), len(agreed), 1 - confidence)) / 1000


def errors_of_judges(agreed: Sequence[bool]) -> str:
    """Say how often judges err, as `judge_error` does; "": no text has two judgments."""
    most = judge_error(agreed)
    if most is None:
        return ""
    differ = agreed.count(False)
    about = f"about {differ / len(agreed) / 2:.1%}, " if differ else ""
    return (
        f"Judges differ on {differ:,} of {len(agreed):,} texts that several judged: each errs in "
        f"{about}at most {most:.1%} with 90% confidence, if one of two who differ is right; "
        "errors that both make are not in it."
    )


def _equal(texts: _Texts) -> float:
    pairs = sum(number * len(said) * (len(said) - 1) for said, number in texts.items())
    return _same(texts, pairs=True) / pairs


def _same(texts: _Texts, *, pairs: bool) -> float:
    """Return the number of equal pairs of judgments; else each is weighed by 1 / (judges - 1)."""
    return sum(
        number * of * (of - 1) / (1 if pairs else len(said) - 1)
        for said, number in texts.items()
        for of in Counter(said).values()
    )


def _alpha(texts: _Texts) -> float:
    """Return Krippendorff's alpha of nominal values (Krippendorff 2011)."""
    given = Counter(label for said in texts.elements() for label in said)
    n = given.total()
    different = n * n - sum(of * of for of in given.values())
    if not different:
        return math.nan
    return 1 - (n - 1) * (n - _same(texts, pairs=False)) / different


def _kappa(texts: _Texts) -> float:
    """Return Cohen's kappa of two people (Cohen 1960)."""
    n = texts.total()
    first, second = (Counter(said[who] for said in texts.elements()) for who in (0, 1))
    chance = sum(number * second[label] for label, number in first.items()) / n**2
    return math.nan if chance == 1 else (_equal(texts) - chance) / (1 - chance)


def _interval(value_of: Callable[[_Texts], float], texts: _Texts) -> tuple[float, float, float]:
    """Return a value with its 95 % interval.

    That of equal judgments is exact (Clopper and Pearson 1934). Other values are as much below 1 as
    these, times what a disagreement counts; with the jackknife, as chance is not known either.
    """
    value, n, equal = value_of(texts), texts.total(), _equal(texts)
    if math.isnan(value):
        return value, -1.0, 1.0
    # where nobody differs: what it would count if one did
    some = texts if equal < 1 else texts + Counter([(*next(iter(texts))[1:], "\0")])
    each, differ = (1 - value_of(some)) / (1 - _equal(some)), n * (1 - equal)
    low = 1 - each * upper_bound(differ, n, 0.025)
    high = 1 - each * (1 - upper_bound(n - differ, n, 0.025))
    if equal < 1 and value_of is not _equal:
        left_out = [value_of(texts - Counter([kind])) for kind in texts] if n > 1 else [math.nan]
        error = Z_95 * math.sqrt((n - 1) * np.cov(left_out, fweights=[*texts.values()], ddof=0))
        if math.isnan(error):
            return value, -1.0, 1.0
        low, high = min(low, value - error), max(high, value + error)
    return value, max(low, -1.0), min(high, 1.0)


def _shown(values: tuple[float, float, float]) -> str:
    value, low, high = values
    if math.isnan(value):
        return "unknown (all judgments are equal)"
    return f"{value:.2f} ({low:.2f} to {high:.2f})"
