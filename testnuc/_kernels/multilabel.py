"""The vote where a text has several labels: one vote for each label.

The share of a label is the weight of the texts that gave it, over the weight of all texts that
voted. A text with an empty set votes: against every label. Weights are those of `vote`.

The labels of the pool are ragged. Kernels receive B rows of K neighbors:

- ``ids`` int64[B, K], positions in the pool; a position outside it is skipped;
- ``similarities`` float32[B, K];
- ``own`` int64[B], the position of the text itself;
- ``pool``: (heads int64[N + 1], labels int32[M], confidences float32[M]). A head is twice the
  offset of the text's labels, plus 1 if the text has a prediction: both are read at once.
"""

from typing import Any

import numpy as np

from testnuc._kernels.compile import given, kernel, made, types
from testnuc._kernels.vote import LIMIT, ONE, OWN_WEIGHT, base_weight, confidence_factor, fixed

I4, I8, U1 = types.int32, types.int64, types.uint8
F4, F8 = types.float32, types.float64
POOL = types.Tuple((given(I8), given(I4), given(F4)))
FIRST = np.uintp(1)
ROWS = (given(I8, 2), given(F4, 2), given(I8), POOL, given(F8), F8, I8, I8, I8)


@kernel(I8(*ROWS, made(I4), made(F4), made(U1), made(I8), made(I4), made(F4)))
def vote_labels(
    ids: Any,
    similarities: Any,
    own: Any,
    pool: Any,
    policy: Any,
    threshold: Any,
    n_classes: Any,
    start: Any,
    stop: Any,
    out_labels: Any,
    out_shares: Any,
    out_given: Any,
    out_counts: Any,
    out_voters: Any,
    out_weight: Any,
) -> Any:
    """Vote in the rows start..stop; return the first row with an invalid similarity, or -1.

    Writes the labels of these rows one after the other, largest share first, and their number to
    ``out_counts``. Equal shares rank by the most similar supporter, the text itself before all. A
    label is given above the threshold, and at the threshold where the text itself gave it.
    """
    heads, labels, confidences = pool
    n_pool, k = np.uintp(heads.size - 1), np.uintp(ids.shape[1])
    sums = np.zeros(n_classes, np.int64)
    # the last row in which the text itself gave the label
    by_itself = np.full(n_classes, -1, np.int64)
    # one more: the place after the last is written, too
    found = np.empty(n_classes + 1, np.uintp)
    to = np.uintp(0)
    for row in range(np.uintp(start), np.uintp(stop)):
        mine = np.uintp(own[row])
        total, voters = np.int64(0), np.int64(0)
        n_own, n_found = np.uintp(0), np.uintp(0)
        # not a function: passing arrays in the inner loop counts references
        for j in range(k + FIRST):
            place, similarity, scale = mine, np.float32(1), policy[OWN_WEIGHT]
            if j > 0:
                n_own = n_found if j == 1 else n_own
                place = np.uintp(ids[row, j - FIRST])
                similarity, scale = similarities[row, j - FIRST], 1.0
            if place >= n_pool:
                continue
            if not abs(similarity) <= LIMIT:
                return np.int64(row)
            head = heads[place]
            base = base_weight(similarity, policy) if head & 1 else 0.0
            weight = fixed(scale * base)
            if weight <= 0:
                continue
            total += weight
            voters += np.int64(1)
            for at in range(np.uintp(head >> 1), np.uintp(heads[place + FIRST] >> 1)):
                label = np.uintp(labels[at])
                part = fixed(scale * (base * confidence_factor(confidences[at], policy)))
                if part > 0:
                    before = sums[label]
                    sums[label] = before + part
                    found[n_found] = label
                    n_found += np.uintp(before == 0)
        n_own = n_found if k == 0 else n_own
        out_voters[row], out_weight[row] = voters, total / ONE
        first = to
        if voters == 0 and heads[mine] & 1:
            # no vote: the row gets the text's own labels
            for at in range(np.uintp(heads[mine] >> 1), np.uintp(heads[mine + FIRST] >> 1)):
                out_labels[to], out_shares[to], out_given[to] = labels[at], 0.0, 1
                to += FIRST
        for at in range(n_own):
            by_itself[found[at]] = np.int64(row)
        # insertion sort: a text and its neighbors have few labels
        for at in range(n_found):
            label = found[at]
            value = sums[label]
            i: Any = at
            while i > 0 and sums[found[i - FIRST]] < value:
                found[i] = found[i - FIRST]
                i -= FIRST
            found[i] = label
        for at in range(n_found):
            label = found[at]
            share = np.float64(sums[label]) / np.float64(total)
            sums[label] = 0
            at_threshold = share == threshold and by_itself[label] == np.int64(row)
            passed = share > threshold or at_threshold
            out_labels[to], out_shares[to], out_given[to] = label, share, np.uint8(passed)
            to += FIRST
        out_counts[row] = np.int64(to - first)
    return np.int64(-1)
