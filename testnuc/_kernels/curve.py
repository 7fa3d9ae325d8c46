"""The winners for every number of neighbors and several policies, in one pass over a row."""

from __future__ import annotations

from typing import Any

import numpy as np

from testnuc._kernels.compile import given, kernel, made
from testnuc._kernels.vote import (
    F8,
    I4,
    I8,
    NEIGHBORS,
    NO_CONFIDENCE,
    NO_LABEL,
    OWN,
    OWN_WEIGHT,
    valid,
    weigh,
)


@kernel(I8(NEIGHBORS, OWN, given(F8, 2), I8, I8, I8, given(I8), made(I4, 3)))
def curve(
    neighbors: Any,
    own: Any,
    policies: Any,
    n_classes: Any,
    k: Any,
    shift: Any,
    ks: Any,
    out: Any,
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
