"""The vote: which predictions count, their weights, and the winner.

The neighborhood of a text x is x itself and its K most similar texts of the pool. Each member i has
a predicted label y_i, a confidence conf_i and a similarity sim_i to x (1 for x itself), and ::

    label(x) = argmax_y  sum_i  c_i * w_i * 1(y_i = y)

    majority               c_i = 1                     w_i = 1
    weighted               c_i = 1                     w_i = sim_i
    confidence-weighted    c_i = 1                     w_i = sim_i * conf_i
    filtered               c_i = 1(conf_i >= theta)    w_i = sim_i

(TestNUC, arXiv 2502.19163.) A weight is rounded to a multiple of 2^-32 and summed exactly, so that
results are bit-identical in any order, at any batch size and thread count. Similarities and
confidences are float32, and thresholds are compared as float32.

- A negative similarity gives the weight 0 (except under "majority"). Members with weight 0 do not
  vote.
- A member without a prediction abstains, and so does a member without a confidence if the policy
  uses confidences.
- A tie goes to the tied label with the most similar supporter: the text itself first, then the
  neighbors in column order.
- Where a text has several labels (`vote_multilabel`), each is voted on alone: its share is the
  weight of the texts that gave it over the weight of all voters.
- Without any vote, the label is the text's own prediction, or -1; share and margin are 0.
"""

from testnuc.voting.labels import Labels, places_of, starts_of
from testnuc.voting.multilabel import THRESHOLD, keep_own, vote_multilabel
from testnuc.voting.policy import VotePolicy
from testnuc.voting.votes import VoteResult, decided, vote, vote_curve, vote_pool

__all__ = [
    "THRESHOLD",
    "Labels",
    "VotePolicy",
    "VoteResult",
    "decided",
    "keep_own",
    "places_of",
    "starts_of",
    "vote",
    "vote_curve",
    "vote_multilabel",
    "vote_pool",
]
