"""Vote selection and trust: auto policy, reviews, learning from judgments, prior correction."""

from testnuc.trust.auto_policy import MAX_NEIGHBORS, MIN_PREDICTIONS, diagnose
from testnuc.trust.certificates import Certificate
from testnuc.trust.diagnosis import Candidate, Decision, Diagnosis, Interval
from testnuc.trust.joining import JoinedReview, join_reviews
from testnuc.trust.judgment import Judgment, Referee
from testnuc.trust.learned import Learned
from testnuc.trust.review import Review, ReviewItem
from testnuc.trust.review_queue import ReviewReason, review_queue
from testnuc.trust.uncertainty import UncertaintySampler, UncertaintySampling, random_part
from testnuc.trust.vote_settings import VoteSettings, correct, factors

__all__ = [
    "MAX_NEIGHBORS",
    "MIN_PREDICTIONS",
    "Candidate",
    "Certificate",
    "Decision",
    "Diagnosis",
    "Interval",
    "JoinedReview",
    "Judgment",
    "Learned",
    "Referee",
    "Review",
    "ReviewItem",
    "ReviewReason",
    "UncertaintySampler",
    "UncertaintySampling",
    "VoteSettings",
    "correct",
    "diagnose",
    "factors",
    "join_reviews",
    "random_part",
    "review_queue",
]
