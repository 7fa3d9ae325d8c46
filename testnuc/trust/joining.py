"""Join the reviews of several people."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from testnuc._base.display import Brief
from testnuc.errors import InvalidInputError
from testnuc.trust.agreement import Agreement, agreement_of
from testnuc.trust.review import Review, ReviewItem


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
    #: Number of those without a majority.
    undecided: int
    #: Of the judgments of the shared texts; None: there are none.
    agreement: Agreement | None = None

    def __str__(self) -> str:
        if not self.shared:
            return f"{len(self.review.judged):,} texts are judged, none of them by several people."
        settled = self.disagreements - self.undecided
        return (
            f"{len(self.review.judged):,} texts are judged; on {self.disagreements:,} of "
            f"{self.shared:,} that several people judged they differ: {settled:,} settled by the "
            f"majority, {self.undecided:,} open.\n{self.agreement}"
        )


def join_reviews(reviews: Mapping[str, Review] | Sequence[Review]) -> JoinedReview:
    """Join the reviews of several people, so that `TestNUC.learn` learns from all of them.

    Parameters
    ----------
    reviews : mapping of str to Review, or sequence of Review
        Who judged, or the name of the file -> the review; without names these are "judge 1", ..
        All hold the same drawn texts, or are parts of one review, or their texts were chosen.

    Raises
    ------
    InvalidInputError
        There is none, the label sets differ, or the texts were drawn in different reviews.
    """
    if not isinstance(reviews, Mapping):
        reviews = {f"judge {number}": review for number, review in enumerate(reviews, 1)}
    first = _checked(reviews)
    of_text: dict[str, list[tuple[str, ReviewItem]]] = {}
    for name, review in reviews.items():
        for item in review:
            of_text.setdefault(item.text, []).append((name, item))
    disagreements = undecided = 0
    shared: list[list[str | None]] = []
    items = []
    # of parts, in the order in which they were drawn
    ordered = sorted(of_text.values(), key=lambda said: said[0][1].position or 0)
    for index, said in enumerate(ordered):
        people = [(name, item) for name, item in said if item.source == "person"]
        votes = Counter(item.answer for _, item in people)
        if len(people) > 1:
            shared.append([item.answer for _, item in people])
        disagreements += len(votes) > 1
        joint = replace(said[0][1], index=index, judges=len(people), position=None)
        # a referee's answer, if no person gave one
        answered = people[0][1] if people else next((i for _, i in said if i.source), joint)
        answer, source = answered.answer, answered.source
        if len(votes) > 1:
            answer, most = votes.most_common(1)[0]
            if 2 * most <= len(people):
                undecided += 1
                answer = source = None
            joint = replace(joint, said=tuple((name, item.answer) for name, item in people))
        joint = replace(joint, answer=answer, source=source)
        items.append(joint)
    return JoinedReview(
        first.with_items(items),
        len(shared),
        disagreements,
        undecided,
        agreement_of(shared, len(reviews)) if shared else None,
    )


def _checked(reviews: Mapping[str, Review]) -> Review:
    """Return the first review if all fit together."""
    if not reviews:
        raise InvalidInputError("there is no review to join")
    first = next(iter(reviews.values()))
    chosen = not any(review.drawn for review in reviews.values())
    for name, review in reviews.items():
        if review.label_set != first.label_set:
            raise InvalidInputError(f"{name} has another label set than the first review")
        if not chosen and _whole(review) != _whole(first):
            raise InvalidInputError(
                f"{name} has other texts than the first review; learn from one after the other: "
                "judgments add up"
            )
    return first


def _whole(review: Review) -> list[object]:
    """Return what reviews that are joined have in common: the draws, or that of which parts are."""
    if any(item.position is not None for item in review):
        return [review.texts, review.ranking, review.model]
    return [(item.text, item.probability, item.floor) for item in review]
