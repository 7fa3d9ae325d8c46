"""Reviews: texts to be judged, judgments of several people, marks of a page, the best of runs."""

from testnuc.report import read_marks
from testnuc.trust.choice import Choice, choose
from testnuc.trust.joining import JoinedReview, join_reviews
from testnuc.trust.review import ReviewItem
from testnuc.trust.review_queue import ReviewReason, review_queue

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
