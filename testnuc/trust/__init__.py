"""Vote selection and label confidence: auto policy, tuning, prior correction, calibration, review.

Pure functions on arrays. `diagnose` selects the auto policy from predictions alone, `tune_votes`
from a few labeled texts. `prior` corrects the votes for over-predicted labels, `calibrate` maps the
vote share to a probability, and `review_queue` ranks results for manual review.
"""

from __future__ import annotations

import sys

from testnuc.trust import calibration
from testnuc.trust.auto_policy import MAX_NEIGHBORS, MIN_PREDICTIONS, diagnose
from testnuc.trust.calibration import Calibration, calibrate
from testnuc.trust.certificates import Certificate
from testnuc.trust.diagnosis import Candidate, Decision, Diagnosis
from testnuc.trust.learned import Applied, Judgment, Learned
from testnuc.trust.near_copies import Interval
from testnuc.trust.prior import correct, factors
from testnuc.trust.review import Review, ReviewItem
from testnuc.trust.review_queue import ReviewReason, review_queue
from testnuc.trust.sparing import Sparing, Unsure
from testnuc.trust.tuning import Tuning, tune_votes
from testnuc.trust.vote_settings import VoteSettings

__all__ = [
    "MAX_NEIGHBORS",
    "MIN_PREDICTIONS",
    "Applied",
    "Calibration",
    "Candidate",
    "Certificate",
    "Decision",
    "Diagnosis",
    "Interval",
    "Judgment",
    "Learned",
    "Review",
    "ReviewItem",
    "ReviewReason",
    "Sparing",
    "Tuning",
    "Unsure",
    "VoteSettings",
    "calibrate",
    "correct",
    "diagnose",
    "factors",
    "review_queue",
    "tune_votes",
]

# the modules that version 0.1.0 pickled these classes from; `counting` and `reviewing` have files
sys.modules[f"{__name__}.calibrating"] = calibration
