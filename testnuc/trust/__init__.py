"""Vote selection and trust: auto policy, reviews, learning from judgments, prior correction.

`diagnose` selects the auto policy from predictions alone. `Review` holds texts to be judged, and
`Learned` what their judgments taught. `prior` corrects the votes for over-predicted labels, and
`review_queue` ranks results for manual review.
"""

from __future__ import annotations

from testnuc.trust import old_pickles  # noqa: F401 - found under its old names
from testnuc.trust.applied import Applied
from testnuc.trust.auto_policy import MAX_NEIGHBORS, MIN_PREDICTIONS, diagnose
from testnuc.trust.certificates import Certificate
from testnuc.trust.diagnosis import Candidate, Decision, Diagnosis
from testnuc.trust.joining import JoinedReview, join_reviews
from testnuc.trust.judgment import Judgment
from testnuc.trust.learned import Learned
from testnuc.trust.multilabel import MultilabelLearned
from testnuc.trust.near_copies import Interval
from testnuc.trust.prior import correct, factors
from testnuc.trust.review import Review, ReviewItem
from testnuc.trust.review_queue import ReviewReason, review_queue
from testnuc.trust.sparing import Sparing, Unsure, random_part
from testnuc.trust.vote_settings import VoteSettings

__all__ = [
    "MAX_NEIGHBORS",
    "MIN_PREDICTIONS",
    "Applied",
    "Candidate",
    "Certificate",
    "Decision",
    "Diagnosis",
    "Interval",
    "JoinedReview",
    "Judgment",
    "Learned",
    "MultilabelLearned",
    "Review",
    "ReviewItem",
    "ReviewReason",
    "Sparing",
    "Unsure",
    "VoteSettings",
    "correct",
    "diagnose",
    "factors",
    "join_reviews",
    "random_part",
    "review_queue",
]
