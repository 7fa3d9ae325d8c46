"""The first neighbors of a row: their winner for each number, and whether it is certain."""

from typing import Any

import numpy as np

from testnuc._kernels.compile import given, inline, kernel, made, types
from testnuc._kernels.vote import (
    F4,
    F8,
    I4,
    I8,
    LIMIT,
    NEIGHBORS,
    NO_CONFIDENCE,
    NO_LABEL,
    OWN,
    OWN_WEIGHT,
    base_weight,
    fixed,
    valid,
    weigh,
)


@kernel(I8(NEIGHBORS, OWN, given(F8, 2), I8, I8, I8, given(I8), made(I4, 3)))
def curve(
    neighbors: Any, own: Any, policies: Any, n_classes: Any, k: Any, shift: Any, ks: Any, out: Any
) -> Any:
    """Write the winners after each of ``ks`` (ascending) to ``out`` int32[policies, len(ks), B].

    ``shift``: low bits of a sum that hold a rank; 2 ** shift must exceed K + 1. The other
    parameters and the return value are those of `vote_rows`.
    """
    ids, all_similarities, all_labels, all_confidences = neighbors
    labels = np.empty(k, np.int32)
    similarities = np.empty(k, np.float32)
    confidences = np.empty(k, np.float32)
    sums = np.zeros(n_classes, np.int64)
    for row in range(own[0].size):
        own_label, similarity, confidence = own[0][row], own[1][row], own[2][row]
        fit = valid(similarity, own_label, confidence, n_classes)
        for j in range(k):
            at = np.uintp(row * k + j)
            place = np.uintp(ids[at])
            labels[j], similarities[j], confidences[j] = NO_LABEL, np.float32(0), NO_CONFIDENCE
            if place < np.uintp(all_labels.size):
                labels[j], similarities[j] = all_labels[place], all_similarities[at]
                if all_confidences.size > 0:
                    confidences[j] = all_confidences[place]
            fit &= valid(similarities[j], labels[j], confidences[j], n_classes)
        if not fit:
            return row
        for p in range(policies.shape[0]):
            policy = policies[p]
            winner = own_label
            weight = weigh(own_label, similarity, confidence, policy[OWN_WEIGHT], policy)
            # The low bits of a sum hold the rank of the label's first supporter, so comparing sums
            # breaks ties. Only the label whose sum grows can become the winner.
            best = np.int64(0)
            if weight > 0:
                best = (weight << shift) + k + 1
                sums[winner] = best
            done = np.int64(0)
            for i in range(ks.size):
                for j in range(done, ks[i]):
                    label = labels[j]
                    weight = weigh(label, similarities[j], confidences[j], 1.0, policy)
                    if weight > 0:
                        total = max(sums[label], k - j) + (weight << shift)
                        sums[label] = total
                        if total > best:
                            best, winner = total, label
                out[p, i, row] = winner
                done = ks[i]
            if own_label >= 0:
                sums[own_label] = 0
            for j in range(done):
                if labels[j] >= 0:
                    sums[labels[j]] = 0
    return np.int64(-1)


@kernel(I8(given(F4), given(I4), given(F4), given(F8), I8, I8, given(I8), made(types.uint8)))
def decide(
    similarities: Any,
    labels: Any,
    confidences: Any,
    policy: Any,
    n_classes: Any,
    width: Any,
    known: Any,
    out: Any,
) -> Any:
    """Write whether the first columns of each row decide it, for any votes in the others.

    A row has ``width`` votes, that of the text itself first. Those from ``known[row]`` on may be
    for any label with any confidence; without a known one, nothing is decided. Returns the first
    invalid row, or -1.
    """
    sums = np.zeros(n_classes, np.int64)
    order = np.empty(width + 1, np.int32)  # labels by their first supporter
    for row in range(known.size):
        rest = np.int64(0)  # upper bound on the weight of the unknown columns
        for j in range(known[row], width):
            similarity = similarities[row * width + j]
            if not abs(similarity) <= LIMIT:
                return row
            scale = policy[OWN_WEIGHT] if j == 0 else 1.0
            rest += fixed(scale * base_weight(similarity, policy))
        n = 0
        for j in range(known[row]):
            at = row * width + j
            label = labels[at]
            similarity = similarities[at]
            confidence = confidences[at] if confidences.size > 0 else NO_CONFIDENCE
            if not valid(similarity, label, confidence, n_classes):
                return row
            scale = policy[OWN_WEIGHT] if j == 0 else 1.0
            weight = weigh(label, similarity, confidence, scale, policy)
            if weight > 0:
                if sums[label] == 0:
                    order[n] = label
                    n += 1
                sums[label] += weight
        settled = _settled(order, n, sums, rest, n_classes, labels[row * width])
        out[row] = np.uint8(known[row] > 0 and settled)
        for i in range(n):
            sums[order[i]] = 0
    return -1


@inline
def _settled(order: Any, n: Any, sums: Any, rest: Any, n_classes: Any, own_label: Any) -> Any:
    """Return whether votes of total weight `rest`, however split, cannot change the winner."""
    if rest == 0:
        return True
    if n == 0:  # without votes, the own label is the winner only if there is no other label
        return n_classes == 1 and own_label == 0
    place = 0
    for i in range(n):
        if sums[order[i]] > sums[order[place]]:
            place = i
    best = sums[order[place]]
    # a label without votes must exceed the winner, because its first supporter comes later
    if n < n_classes and rest > best:
        return False
    for i in range(n):
        most = sums[order[i]] + rest
        if i != place and (most > best or (most == best and i < place)):
            return False
    return True
