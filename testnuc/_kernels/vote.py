"""The vote, row by row. Start here to see how votes are weighed and counted.

The other kernels build on this file: `fast` gives the same results for many rows in a pool.

A weight is a fixed-point int64, a multiple of 2^-32. Integer sums are exact, so the result does
not depend on the order of summation, on blocks of rows, or on the number of threads.

Kernels receive B rows of K neighbors in a pool of N:

- ``neighbors``: (ids uint64[B * K], similarities float32[B * K], labels int32[N], confidences
  float32[N] or [0]). Ids are positions in the pool's labels and confidences; a position of N or
  more is skipped.
- ``own``: (labels int32[B], similarities float32[B], confidences float32[B]), of the texts
  themselves.
- ``policy``: float64[6], the fields below.

A label of -1 means no prediction, and a confidence of NaN none; without any, the pool's
confidences have the size 0. Kernels return the first row with an invalid value
(a similarity that is not a cosine, a label or a confidence out of range), or -1; the caller finds
out which value it is and raises.
"""

from typing import Any

import numpy as np

from testnuc._kernels.compile import given, inline, kernel, made, prefetch, types

#: The fixed-point number for a weight of 1.
ONE = 4294967296.0
#: Similarities up to here are cosines with rounding errors; above 1 they are clipped.
LIMIT = float(np.float32(1.001))

# the fields of a policy
FLOOR = 0  # 1: every similarity weighs 1; 0: its own value
USES_CONFIDENCE = 1  # 1: the weight is multiplied by the confidence
NEEDS_CONFIDENCE = 2  # 1: a vote without a confidence weighs 0
MIN_CONFIDENCE = 3
MIN_SIMILARITY = 4
OWN_WEIGHT = 5

# numba adds uint64 and int64 as floats, so all index arithmetic is unsigned; this also avoids the
# test for a negative index
FIRST = np.uintp(1)
NO_LABEL = np.int32(-1)
NO_CONFIDENCE = np.float32(np.nan)
#: A neighbor's label is prefetched this many votes before it is read.
_AHEAD = np.uintp(64)

I4, I8, F4, F8 = types.int32, types.int64, types.float32, types.float64
NEIGHBORS = types.Tuple((given(types.uint64), given(F4), given(I4), given(F4)))
OWN = types.Tuple((given(I4), given(F4), given(F4)))
#: The results, see `vote_rows`.
OUT = (made(I4, 2), made(F4, 2))


@inline
def base_weight(similarity: Any, policy: Any) -> Any:
    """Return w_i without the confidence."""
    if similarity >= policy[MIN_SIMILARITY]:
        return max(min(similarity, 1.0), policy[FLOOR])
    return 0.0


@inline
def confidence_factor(confidence: Any, policy: Any) -> Any:
    """Return c_i, times conf_i where the policy multiplies by it."""
    if confidence >= policy[MIN_CONFIDENCE]:
        return np.float64(confidence) if policy[USES_CONFIDENCE] > 0 else 1.0
    # too low or NaN; NaN counts under a policy that does not use confidences
    return 0.0 if policy[NEEDS_CONFIDENCE] > 0 else 1.0


@inline
def fixed(weight: Any) -> Any:
    """Round a weight to fixed point."""
    return np.int64(np.rint(weight * ONE))


@inline
def valid(similarity: Any, label: Any, confidence: Any, n_classes: Any) -> Any:
    """Return whether a vote can be counted."""
    return (
        abs(similarity) <= LIMIT
        and -1 <= label < n_classes
        and not (confidence < 0.0 or confidence > 1.0)
    )


@inline
def weigh(label: Any, similarity: Any, confidence: Any, scale: Any, policy: Any) -> Any:
    """Return the weight of a vote; `scale` is 1, or the policy's weight of own votes."""
    weight = base_weight(similarity, policy) * confidence_factor(confidence, policy)
    return fixed(scale * weight) if label >= 0 else np.int64(0)


@kernel(I8(NEIGHBORS, OWN, given(F8), I8, I8, I8, I8, *OUT, made(F8, 2)))
def vote_rows(
    neighbors: Any,
    own: Any,
    policy: Any,
    n_classes: Any,
    k: Any,
    start: Any,
    stop: Any,
    out_i: Any,
    out_f: Any,
    out_votes: Any,
) -> Any:
    """Vote in the rows start..stop.

    Writes ``out_i`` int32[5, B]: row 0 the label, row 1 the number of voters; its float32 view
    ``out_f``: row 2 share, row 3 margin, row 4 weight; and, unless it has no rows, ``out_votes``
    float64[B, C]: the weights of all labels.
    """
    ids, similarities, labels, confidences = neighbors
    k = np.uintp(k)
    n_pool, last = np.uintp(labels.size), np.uintp(max(ids.size - 1, 0))
    # the sum of label c is at c + 1; abstentions add 0 at 0
    sums = np.zeros(n_classes + 1, np.int64)
    # label + 1 of each vote in the row, the text's own first; 0 for an abstention
    voted = np.empty(k + FIRST, np.uintp)
    for row in range(start, stop):
        own_label, similarity, confidence = own[0][row], own[1][row], own[2][row]
        if not valid(similarity, own_label, confidence, n_classes):
            return row
        weight = weigh(own_label, similarity, confidence, policy[OWN_WEIGHT], policy)
        voted[0] = np.uintp(own_label + 1 if weight > 0 else 0)
        sums[voted[0]] = weight
        voters = np.int64(weight > 0)

        for j in range(k):
            at = np.uintp(row) * k + np.uintp(j)
            i = np.uintp(ids[at])
            # a later neighbor is somewhere in a large pool: start loading it
            later = np.int64(ids[min(at + _AHEAD, last)])
            prefetch(labels, later)
            if confidences.size > 0:
                prefetch(confidences, later)
            label, similarity, confidence = NO_LABEL, np.float32(0), NO_CONFIDENCE
            if i < n_pool:  # else there is no such neighbor, and its similarity is padding
                label, similarity = labels[i], similarities[at]
                confidence = confidences[i] if confidences.size > 0 else NO_CONFIDENCE
            if not valid(similarity, label, confidence, n_classes):
                return row
            weight = weigh(label, similarity, confidence, 1.0, policy)
            place = np.uintp(label + 1 if weight > 0 else 0)
            voted[np.uintp(j) + FIRST] = place
            sums[place] += weight
            voters += np.int64(weight > 0)

        if out_votes.shape[0] > 0:
            for c in range(n_classes):
                out_votes[row, c] = sums[c + 1] / ONE
        # Votes are sorted by similarity. The first vote of a label, from its most similar
        # supporter, reads its whole sum and resets it to 0. So a strict comparison breaks ties, and
        # `sums` is zero again for the next row.
        best, second, total, winner = np.int64(0), np.int64(0), np.int64(0), own_label
        for j in range(k + FIRST):
            place = voted[np.uintp(j)]
            value = sums[place]
            sums[place] = 0
            total += value
            second = max(second, min(best, value))
            winner = np.int32(place) - np.int32(1) if value > best else winner
            best = max(best, value)

        whole = np.float64(total) if total > 0 else 1.0
        out_i[0, row] = winner
        out_i[1, row] = voters
        out_f[2, row] = best / whole
        out_f[3, row] = (best - second) / whole
        out_f[4, row] = total / ONE
    return np.int64(-1)
