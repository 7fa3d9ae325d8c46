"""Early exit: the shortest prefix of a row that decides its winner."""

from __future__ import annotations

from typing import Any

import numpy as np

from testnuc._kernels.compile import given, inline, kernel, made
from testnuc._kernels.vote import (
    F4,
    F8,
    I4,
    I8,
    LIMIT,
    NO_CONFIDENCE,
    OWN_WEIGHT,
    base_weight,
    confidence_factor,
    fixed,
    valid,
)


@kernel(I8(given(F4), given(I4), given(F4), given(F8), I8, I8, given(I8), given(I8), made(I8)))
def decide(
    similarities: Any,
    labels: Any,
    confidences: Any,
    policy: Any,
    n_classes: Any,
    width: Any,
    known: Any,
    columns: Any,
    out: Any,
) -> Any:
    """Find the fewest leading columns that decide each row, for any votes in the others.

    A row of ``width`` columns, the text itself first, has ``columns[row]`` votes. Those from
    ``known[row]`` on may be for any label with any confidence. ``out`` int64[B]: the length of the
    shortest known prefix that decides the winner; known[row] + 1 if none does. Returns the first
    invalid row, or -1.
    """
    sums = np.zeros(n_classes, np.int64)
    order = np.empty(width + 1, np.int32)  # labels by their first supporter
    for row in range(known.size):
        rest = np.int64(0)  # upper bound on the weight of the columns after the prefix
        for j in range(columns[row]):
            similarity = similarities[row * width + j]
            if not abs(similarity) <= LIMIT:
                return row
            scale = policy[OWN_WEIGHT] if j == 0 else 1.0
            rest += fixed(scale * base_weight(similarity, policy))
        n = 0
        out[row] = known[row] + 1
        for j in range(known[row]):
            at = row * width + j
            label = labels[at]
            similarity = similarities[at]
            confidence = confidences[at] if confidences.size > 0 else NO_CONFIDENCE
            if not valid(similarity, label, confidence, n_classes):
                return row
            if out[row] <= known[row]:
                continue  # already decided; the rest is only validated
            scale = policy[OWN_WEIGHT] if j == 0 else 1.0
            base = base_weight(similarity, policy)
            rest -= fixed(scale * base)
            weight = fixed(scale * (base * confidence_factor(confidence, policy)))
            if label >= 0 and weight > 0:
                if sums[label] == 0:
                    order[n] = label
                    n += 1
                sums[label] += weight
            if _settled(order, n, sums, rest, n_classes, labels[row * width]):
                out[row] = j + 1
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
