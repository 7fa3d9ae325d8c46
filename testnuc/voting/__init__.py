"""The vote: who may vote, how much a vote weighs, and who wins.

The neighborhood of a text x is x itself and its K most similar texts of the pool. Each member i has
a predicted label y_i, a confidence conf_i and a similarity sim_i to x (1 for x itself), and ::

    label(x) = argmax_y  sum_i  c_i * w_i * 1(y_i = y)

    majority               c_i = 1                     w_i = 1
    weighted               c_i = 1                     w_i = sim_i
    confidence-weighted    c_i = 1                     w_i = sim_i * conf_i
    filtered               c_i = 1(conf_i >= theta)    w_i = sim_i

(TestNUC, arXiv 2502.19163.) A weight is rounded to a multiple of 2^-32 and summed exactly, so that
the same inputs give the same bits in any order, at any batch size and thread count. Similarities
and confidences are read as float32, and thresholds compared as float32.

- A similarity below 0 weighs 0 where the similarity weighs; who weighs 0 does not vote.
- Who has no prediction abstains; so does, where the policy asks for a confidence, who has none.
- A tie goes to the tied label with the most similar supporter: the text itself before all, then
  the neighbors in the order of their columns.
- Where nobody votes the label is the text's own prediction, or -1, and share and margin are 0.
"""

from __future__ import annotations

from testnuc.voting.curves import vote_curve, vote_curve_pool, vote_curves, vote_curves_pool
from testnuc.voting.early import decided, deciding_prefix
from testnuc.voting.policy import VotePolicy
from testnuc.voting.votes import VoteResult, vote, vote_pool

__all__ = [
    "VotePolicy",
    "VoteResult",
    "decided",
    "deciding_prefix",
    "vote",
    "vote_curve",
    "vote_curve_pool",
    "vote_curves",
    "vote_curves_pool",
    "vote_pool",
]
