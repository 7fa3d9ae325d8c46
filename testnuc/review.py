"""Reviews: texts to be judged, judgments of several people, marks of a page, the best of runs."""

from testnuc.report import read_marks
from testnuc.trust import JoinedReview, ReviewItem, ReviewReason, join_reviews, review_queue
from testnuc.trust.choice import Choice, choose

__all__ = [
    "Choice",
    "JoinedReview",
    "ReviewItem",
    "ReviewReason",
    "choose",
    "join_reviews",
    "read_marks",
    "review_queue",
]
