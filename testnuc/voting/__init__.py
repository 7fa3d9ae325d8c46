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

from testnuc.voting.labels import Labels as Labels
from testnuc.voting.labels import places_of as places_of
from testnuc.voting.labels import starts_of_rows as starts_of_rows
from testnuc.voting.policy import VotePolicy as VotePolicy
from testnuc.voting.votes import THRESHOLD as THRESHOLD
from testnuc.voting.votes import VoteResult as VoteResult
from testnuc.voting.votes import decided as decided
from testnuc.voting.votes import keep_own as keep_own
from testnuc.voting.votes import vote as vote
from testnuc.voting.votes import vote_curve as vote_curve
from testnuc.voting.votes import vote_multilabel as vote_multilabel
from testnuc.voting.votes import vote_pool as vote_pool
