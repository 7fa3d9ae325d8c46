"""The vote, row by row. Start here to see how votes are weighed and counted.

The other kernels build on this file: `fast` gives the same results for many rows in a pool,
`curve` the winners for several k and policies, `early` the shortest prefix that settles a winner.

A weight is a fixed-point int64, a multiple of 2^-32. Integer sums are exact, so the result does
not depend on the order of summation, on blocks of rows, or on the number of threads.

Kernels receive B rows of K neighbors in a pool of N:

- ``neighbors``: (ids, similarities float32, labels int32, confidences float32). ``ids`` uint64 or
  uint32[B * K] are positions in the pool's labels and confidences; a position of N or more is
  skipped. If ids has the size 0, labels and confidences are laid out as similarities are.
- ``own``: (labels int32[B], similarities float32[B], confidences float32[B]), of the texts
  themselves.
- ``layout``: (width, skip): neighbor j of a row is at ``row * width + skip + j``.
- ``policy``: float64[6], the fields below.

A label of -1 means no prediction. If similarities has the size 0, all are 1. If confidences has the
size 0, or one is NaN, there is no confidence. Kernels return the first row with an invalid value
(a similarity that is not a cosine, a label or a confidence out of range), or -1; the caller finds
out which value it is and raises.
"""

from __future__ import annotations

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
NEIGHBORS = [
    types.Tuple((given(ids), given(F4), given(I4), given(F4)))
    for ids in (types.uint64, types.uint32)
]
OWN = types.Tuple((given(I4), given(F4), given(F4)))
LAYOUT = types.UniTuple(I8, 2)
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


@inline
def read_row(
    row: Any,
    neighbors: Any,
    layout: Any,
    n_classes: Any,
    labels: Any,
    similarities: Any,
    confidences: Any,
) -> Any:
    """Copy the labels, similarities and confidences of a row; return whether all are valid."""
    ids, all_similarities, all_labels, all_confidences = neighbors
    first = np.uintp(row) * np.uintp(layout[0]) + np.uintp(layout[1])
    for j in range(labels.size):
        at = first + np.uintp(j)
        i = np.uintp(ids[at]) if ids.size > 0 else at
        labels[j], similarities[j], confidences[j] = NO_LABEL, np.float32(0), NO_CONFIDENCE
        if i < np.uintp(all_labels.size):
            labels[j], similarities[j] = all_labels[i], all_similarities[at]
            if all_confidences.size > 0:
                confidences[j] = all_confidences[i]
        if not valid(similarities[j], labels[j], confidences[j], n_classes):
            return False
    return True


@inline
def read_own(row: Any, own: Any) -> Any:
    """Return label, similarity and confidence of the text itself."""
    labels, similarities, confidences = own
    similarity = similarities[row] if similarities.size > 0 else np.float32(1)
    confidence = confidences[row] if confidences.size > 0 else NO_CONFIDENCE
    return labels[row], similarity, confidence


@kernel(*(I8(n, OWN, given(F8), I8, LAYOUT, I8, I8, *OUT) for n in NEIGHBORS))
def vote_rows(
    neighbors: Any,
    own: Any,
    policy: Any,
    n_classes: Any,
    layout: Any,
    start: Any,
    stop: Any,
    out_i: Any,
    out_f: Any,
) -> Any:
    """Vote in the rows start..stop.

    Writes ``out_i`` int32[5, B]: row 0 the label, row 1 the number of voters; and its float32 view
    ``out_f``: row 2 share, row 3 margin, row 4 weight.
    """
    ids, similarities, labels, confidences = neighbors
    k = np.uintp(layout[0] - layout[1])
    n_pool, last = np.uintp(labels.size), np.uintp(max(ids.size - 1, 0))
    # the sum of label c is at c + 1; abstentions add 0 at 0
    sums = np.zeros(n_classes + 1, np.int64)
    # label + 1 of each vote in the row, the text's own first; 0 for an abstention
    voted = np.empty(k + FIRST, np.uintp)
    for row in range(start, stop):
        own_label, similarity, confidence = read_own(row, own)
        if not valid(similarity, own_label, confidence, n_classes):
            return row
        weight = weigh(own_label, similarity, confidence, policy[OWN_WEIGHT], policy)
        voted[0] = np.uintp(own_label + 1 if weight > 0 else 0)
        sums[voted[0]] = weight
        voters = np.int64(weight > 0)

        first = np.uintp(row) * np.uintp(layout[0]) + np.uintp(layout[1])
        for j in range(k):
            at = first + np.uintp(j)
            i = at
            if ids.size > 0:
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


@kernel(*(I8(n, OWN, given(F8), I8, LAYOUT, given(I8), made(F8, 2)) for n in NEIGHBORS))
def tally(
    neighbors: Any, own: Any, policy: Any, n_classes: Any, layout: Any, rows: Any, out: Any
) -> Any:
    """Write the weights of all labels of the chosen rows to ``out`` float64[len(rows), C]."""
    k = layout[0] - layout[1]
    labels = np.empty(k, np.int32)
    similarities = np.empty(k, np.float32)
    confidences = np.empty(k, np.float32)
    sums = np.empty(n_classes, np.int64)
    for r in range(rows.size):
        row = rows[r]
        label, similarity, confidence = read_own(row, own)
        if not (
            valid(similarity, label, confidence, n_classes)
            and read_row(row, neighbors, layout, n_classes, labels, similarities, confidences)
        ):
            return row
        sums[:] = 0
        if label >= 0:
            sums[label] = weigh(label, similarity, confidence, policy[OWN_WEIGHT], policy)
        for j in range(k):
            if labels[j] >= 0:
                sums[labels[j]] += weigh(labels[j], similarities[j], confidences[j], 1.0, policy)
        for c in range(n_classes):
            out[r, c] = sums[c] / ONE
    return np.int64(-1)
