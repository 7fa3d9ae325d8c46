"""The vote where a text has several labels: one vote for each label.

The share of a label is the weight of the texts that gave it, over the weight of all texts that
voted. A text with an empty set votes: against every label. Weights are those of `vote`.

The labels of the pool are ragged: those of text i are at ``offsets[i]:offsets[i + 1]``. Kernels
receive B rows of K neighbors:

- ``ids`` int64[B, K], positions in the pool; a position outside it is skipped;
- ``similarities`` float32[B, K];
- ``own`` int64[B], the position of the text itself;
- ``pool``: (offsets int64[N + 1], labels int32[M], confidences float32[M] or [0], voted
  uint8[N]); where ``voted`` is 0 the text has no prediction.

The labels of a row with a weight above 0 are counted first, so that the results are ragged as well
and threads write to disjoint parts of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from testnuc._kernels.compile import given, inline, kernel, made, types
from testnuc._kernels.vote import (
    LIMIT,
    NO_CONFIDENCE,
    ONE,
    OWN_WEIGHT,
    base_weight,
    confidence_factor,
    fixed,
)

__all__ = ["check_labels", "count_labels", "vote_labels"]

I4, I8, U1 = types.int32, types.int64, types.uint8
F4, F8 = types.float32, types.float64
POOL = types.Tuple((given(I8), given(I4), given(F4), given(U1)))
ROWS = (given(I8, 2), given(F4, 2), given(I8), POOL, given(F8))


@kernel(I8(given(I8), given(I4), given(F4), I8))
def check_labels(offsets: Any, labels: Any, confidences: Any, n_classes: Any) -> Any:
    """Return the first text with an invalid or a duplicate label or confidence; -1: none."""
    last = np.full(n_classes, -1, np.int64)
    for i in range(offsets.size - 1):
        for at in range(offsets[i], offsets[i + 1]):
            label = labels[at]
            if not 0 <= label < n_classes or last[label] == i:
                return i
            last[label] = i
            if confidences.size > 0 and (confidences[at] < 0.0 or confidences[at] > 1.0):
                return i
    return np.int64(-1)


@inline
def add(
    place: Any,
    similarity: Any,
    scale: Any,
    pool: Any,
    policy: Any,
    sums: Any,
    found: Any,
    n_found: Any,
) -> Any:
    """Add the votes of a text to `sums`; return the number of labels found and its weight."""
    offsets, labels, confidences, voted = pool
    base = base_weight(similarity, policy) if voted[place] > 0 else 0.0
    weight = fixed(scale * base)
    if weight > 0:
        for at in range(offsets[place], offsets[place + 1]):
            label = labels[at]
            confidence = confidences[at] if confidences.size > 0 else NO_CONFIDENCE
            part = fixed(scale * (base * confidence_factor(confidence, policy)))
            if part > 0:
                if sums[label] == 0:
                    found[n_found] = label
                    n_found += 1
                sums[label] += part
    return n_found, weight


@inline
def add_neighbors(
    row: Any,
    ids: Any,
    similarities: Any,
    pool: Any,
    policy: Any,
    sums: Any,
    found: Any,
    n_found: Any,
) -> Any:
    """Add the votes of the neighbors; return labels found (-1: invalid), weight and voters."""
    total, voters = np.int64(0), np.int64(0)
    n_pool = pool[3].size
    for j in range(ids.shape[1]):
        place = ids[row, j]
        if 0 <= place < n_pool:
            if not abs(similarities[row, j]) <= LIMIT:
                return np.int64(-1), total, voters
            n_found, weight = add(
                place, similarities[row, j], 1.0, pool, policy, sums, found, n_found
            )
            total += weight
            voters += np.int64(weight > 0)
    return n_found, total, voters


@kernel(I8(*ROWS, I8, I8, I8, made(I8)))
def count_labels(
    ids: Any,
    similarities: Any,
    own: Any,
    pool: Any,
    policy: Any,
    n_classes: Any,
    start: Any,
    stop: Any,
    counts: Any,
) -> Any:
    """Count the labels of the rows start..stop; return the first invalid row, or -1."""
    sums = np.zeros(n_classes, np.int64)
    found = np.empty(n_classes, np.int32)
    for row in range(start, stop):
        place = own[row]
        none = np.int64(0)
        n_found, weight = add(
            place, np.float32(1), policy[OWN_WEIGHT], pool, policy, sums, found, none
        )
        n_found, _, voters = add_neighbors(
            row, ids, similarities, pool, policy, sums, found, n_found
        )
        if n_found < 0:
            return row
        for at in range(n_found):
            sums[found[at]] = 0
        counts[row] = n_found
        if weight == 0 and voters == 0 and pool[3][place] > 0:
            # no vote: the row gets the text's own labels
            counts[row] = pool[0][place + 1] - pool[0][place]
    return np.int64(-1)


@kernel(I8(*ROWS, F8, I8, given(I8), I8, I8, made(I4), made(F4), made(U1), made(I4), made(F4)))
def vote_labels(
    ids: Any,
    similarities: Any,
    own: Any,
    pool: Any,
    policy: Any,
    threshold: Any,
    n_classes: Any,
    starts: Any,
    start: Any,
    stop: Any,
    out_labels: Any,
    out_shares: Any,
    out_given: Any,
    out_voters: Any,
    out_weight: Any,
) -> Any:
    """Vote in the rows start..stop, whose labels are counted and valid.

    ``starts`` int64[B + 1] is where the labels of each row go, largest share first. Equal shares
    rank by the most similar supporter, the text itself before all. A label is given above the
    threshold, and at the threshold where the text itself gave it.
    """
    sums = np.zeros(n_classes, np.int64)
    found = np.empty(n_classes, np.int32)
    offsets, labels, _, voted = pool
    for row in range(start, stop):
        place, first = own[row], starts[row]
        none = np.int64(0)
        n_own, weight = add(
            place, np.float32(1), policy[OWN_WEIGHT], pool, policy, sums, found, none
        )
        n_found, total, voters = add_neighbors(
            row, ids, similarities, pool, policy, sums, found, n_own
        )
        total += weight
        voters += np.int64(weight > 0)
        out_voters[row], out_weight[row] = voters, total / ONE
        if voters == 0:
            if voted[place] > 0:
                for at in range(offsets[place], offsets[place + 1]):
                    to = first + at - offsets[place]
                    out_labels[to], out_shares[to], out_given[to] = labels[at], 0.0, 1
            continue
        for at in range(n_found):
            label = found[at]
            share = np.float64(sums[label]) / np.float64(total)
            passed = share > threshold or (share == threshold and at < n_own)
            # insertion sort: a text and its neighbors have few labels
            to = first + at
            while to > first and sums[out_labels[to - 1]] < sums[label]:
                out_labels[to], out_shares[to] = out_labels[to - 1], out_shares[to - 1]
                out_given[to] = out_given[to - 1]
                to -= 1
            out_labels[to], out_shares[to], out_given[to] = label, share, np.uint8(passed)
        for at in range(n_found):
            sums[found[at]] = 0
    return np.int64(-1)
