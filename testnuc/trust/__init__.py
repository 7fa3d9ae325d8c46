"""Vote selection and trust: auto policy, reviews, learning from judgments, prior correction.

::

    auto_policy     whether and how neighbors vote, by predictions alone; `diagnosis`
    vote_settings   policy, k, decision, prior and what was learned, replaced as a whole
    review          texts to be judged; `review_context`, `joining` of several people's
    agreement       how far their judgments agree
    review_queue    results ranked for a look by hand
    judgment        judgments, a referee that gives them, and what was learned as bytes
    dissent         whether a referee is shown to be better than the LLM
    candidates      labeling strategies, and the choice between them by `evidence`
    model           the LLM's label, votes and a `head` joined into one labeler
    learned         what was learned, with its rule
    argmax          the rule where a text has one label
    thresholds      that where it can have several, by `label_scores`
    certificates    the trust above which labels are proved to be right
    later_texts     whether texts that came later are like those
    accuracy        how many labels are right, before and after learning
    calibration     trust: the chance that a label is right, also of a head
    counts          how many texts have each label; `shares`, their intervals
    choice          the best of several runs
    label_check     labels that are confused, unused or missing
    audit           texts of a service's traffic, judged by week; `moves`, whether a share changed
    uncertainty     uncertainty sampling: which texts skip the LLM
"""

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
