"""Reviews: texts to be judged, the judgments of several people, and the marks of a page."""

from testnuc.report import read_marks
from testnuc.trust import JoinedReview, ReviewItem, ReviewReason, join_reviews, review_queue

__all__ = [
    "JoinedReview",
    "ReviewItem",
    "ReviewReason",
    "join_reviews",
    "read_marks",
    "review_queue",
]
