"""The vote of `vote_rows` for many rows in a pool, two to three times as fast; the same results.

Three things make it faster:

- The pool is packed first: a record holds a label and its confidence factor under the policy,
  so that a neighbor costs one memory access, and its validity is checked once.
- The votes of a block of rows are gathered in one loop and weighed in another, which the compiler
  turns into vector instructions.
- 16 rows are interleaved, in a table of 16 sums for each label: consecutive additions to the sums
  of one row would depend on each other.
"""

from typing import Any

import numpy as np

from testnuc._kernels.compile import given, inline, kernel, made, prefetch, types
from testnuc._kernels.vote import (
    F4,
    F8,
    FIRST,
    FLOOR,
    I4,
    I8,
    LIMIT,
    MIN_SIMILARITY,
    NO_CONFIDENCE,
    ONE,
    OUT,
    OWN,
    OWN_WEIGHT,
    confidence_factor,
    valid,
    weigh,
)

#: Interleaved rows.
ROWS = 16
_ROWS = np.uintp(ROWS)
#: Approximate number of votes in a block.
_BLOCK = np.uintp(4096)
#: A record is prefetched this many votes before it is read.
_AHEAD = np.uintp(128)
#: Up to this ratio of labels to neighbors, all sums of the table are read; above, only those with
#: votes (measured).
_DENSE = 3
#: With fewer votes, packing and compiling two more kernels do not pay off.
_MANY = 50_000
#: Nor with fewer votes than this per prediction of the pool (measured).
_POOL = 2

# a vote is an int64: the weight, at most 2^32, in the low bits, the place in the table above them
_WEIGHT_BITS = np.uintp(33)
_WEIGHT = np.int64(2**33 - 1)
_LARGEST_TABLE = 2**30
#: Adding this rounds a float64 of at most 1 to a multiple of 2^-32, as `fixed` does; the bits of
#: the sum count these multiples. Vector instructions do that faster.
_ROUND = 1.5 * 2**20
_ROUND_BITS = np.int64(np.float64(_ROUND).view(np.int64))
_ZERO, _F4_ONE = np.uintp(0), np.float32(1)

_PACKED = types.Tuple((given(types.uint64), given(F4), given(I8)))


def pays(rows: int, k: int, n_classes: int, n_pool: int) -> bool:
    """Return whether `vote_packed` is faster than `vote_rows`, including the time to pack."""
    votes = rows * k
    return (
        rows >= ROWS
        and votes >= max(_MANY, _POOL * n_pool)
        # allocating the table must not cost more than the votes
        and n_classes * ROWS <= min(votes, _LARGEST_TABLE)
    )


@kernel(I8(given(I4), given(F4), given(F8), I8, made(I8)))
def pack(labels: Any, confidences: Any, policy: Any, n_classes: Any, records: Any) -> Any:
    """Write N + 1 ``records`` int64: the label, and the bits of its float32 factor above it.

    The last record is for missing neighbors; it has the weight 0, as has a record without a label.
    Returns the first invalid prediction, or -1.
    """
    records[labels.size] = 0
    wrong = False
    # without an exit from the loop, the compiler can use vector instructions
    for i in range(labels.size):
        confidence = confidences[i] if confidences.size > 0 else NO_CONFIDENCE
        wrong |= not valid(0.0, labels[i], confidence, n_classes)
        factor = confidence_factor(confidence, policy) if labels[i] >= 0 else 0.0
        bits = np.int64(np.float32(factor).view(np.int32))
        records[i] = bits << 32 | np.int64(max(labels[i], np.int32(0)))
    if wrong:
        for i in range(labels.size):
            confidence = confidences[i] if confidences.size > 0 else NO_CONFIDENCE
            if not valid(0.0, labels[i], confidence, n_classes):
                return i
    return -1


@inline
def _gather(
    ids: Any, similarities: Any, records: Any, first: Any, policy: Any, found: Any, votes: Any
) -> Any:
    """Gather and weigh the votes from `first` on; return whether a similarity is not a cosine."""
    none = np.uintp(records.size - 1)
    n = found.size
    ahead = _AHEAD if first + np.uintp(n) + _AHEAD <= np.uintp(ids.size) else _ZERO
    for p in range(n):
        at = first + np.uintp(p)
        prefetch(records, np.int64(ids[at + ahead]))
        found[p] = records[min(np.uintp(ids[at]), none)]
    floor, least = np.float32(policy[FLOOR]), np.float32(policy[MIN_SIMILARITY])
    wrong = False
    for p in range(n):
        similarity = similarities[first + np.uintp(p)]
        base = max(min(similarity, _F4_ONE), floor) if similarity >= least else np.float32(0)
        factor = np.int32(found[p] >> 32).view(np.float32)
        product = np.float64(base) * np.float64(factor)
        weight = np.float64(product + _ROUND).view(np.int64) - _ROUND_BITS
        place = ((found[p] & np.int64(0xFFFFFFFF)) + np.int64(1)) * np.int64(ROWS)
        votes[p] = place << np.int64(33) | weight if weight > 0 else np.int64(0)
        wrong |= not abs(similarity) <= LIMIT
    return wrong


@inline
def _place(vote: Any) -> Any:
    """Return the table index of the label's sums; 0 for an abstention."""
    return np.uintp(vote) >> _WEIGHT_BITS


@inline
def _lead(sums: Any, n: Any, leads: Any) -> Any:
    """Find the largest and second largest of n sums, in each of 16 rows.

    ``sums[i * 16 + r]`` is sum i of row r. Writes ``leads`` int64[4 * 16]: the largest sum of each
    row, the second largest, the total, and the first index i of the largest.
    """
    leads[:] = 0
    for i in range(n):
        at = np.uintp(i) * _ROWS
        for r in range(ROWS):
            value = sums[at + np.uintp(r)]
            best = leads[r]
            leads[r] = max(best, value)
            leads[ROWS + r] = max(leads[ROWS + r], min(best, value))
            leads[2 * ROWS + r] += value
            leads[3 * ROWS + r] = np.int64(i) if value > best else leads[3 * ROWS + r]


@inline
def _write(
    row: Any,
    labels: Any,
    winner: Any,
    voters: Any,
    best: Any,
    second: Any,
    total: Any,
    out_i: Any,
    out_f: Any,
) -> Any:
    """Write the results of a block of rows; one loop for each, for vector instructions."""
    n = winner.size
    for r in range(n):
        out_i[0, row + np.uintp(r)] = winner[r] if total[r] > 0 else labels[row + np.uintp(r)]
    for r in range(n):
        out_i[1, row + np.uintp(r)] = voters[r]
    for r in range(n):
        out_f[2, row + np.uintp(r)] = best[r] / np.float64(max(total[r], 1))
    for r in range(n):
        out_f[3, row + np.uintp(r)] = (best[r] - second[r]) / np.float64(max(total[r], 1))
    for r in range(n):
        out_f[4, row + np.uintp(r)] = total[r] / ONE


@kernel(I8(_PACKED, OWN, given(F8), I8, I8, I8, I8, *OUT))
def vote_packed(
    neighbors: Any,
    own: Any,
    policy: Any,
    n_classes: Any,
    k: Any,
    start: Any,
    stop: Any,
    out_i: Any,
    out_f: Any,
) -> Any:
    """Vote as `vote_rows` does; ``neighbors``: (ids, similarities, records of `pack`).

    The table of sums int64[(C + 1) * 16] has label c of row r at ``(c + 1) * 16 + r``, and at ``r``
    abstentions.
    """
    ids, similarities, records = neighbors
    own_labels, _, own_confidences = own
    dense = n_classes <= _DENSE * k
    k = np.uintp(k)
    rows = max(_ROWS, _BLOCK // max(k, FIRST) // _ROWS * _ROWS)
    found = np.empty(rows * k, np.int64)
    votes = np.zeros(rows * k, np.int64)
    own_weights = np.empty(rows, np.int64)
    table = np.zeros(np.uintp(n_classes + 1) * _ROWS, np.int64)
    read = np.empty(_ZERO if dense else (k + FIRST) * _ROWS, np.int64)
    places = np.empty(ROWS, np.uintp)
    leads = np.empty(4 * ROWS, np.int64)
    best, second = np.empty(rows, np.int64), np.empty(rows, np.int64)
    total, winner = np.empty(rows, np.int64), np.empty(rows, np.int64)
    voters = np.empty(rows, np.int64)
    block = np.uintp(start)
    while block < np.uintp(stop):
        count = min(rows, np.uintp(stop) - block)
        first, n = block * k, count * k
        if _gather(ids, similarities, records, first, policy, found[:n], votes):
            for p in range(first, first + n):
                # the similarity of a missing neighbor may have any value
                if not abs(similarities[p]) <= LIMIT and ids[p] < np.uintp(records.size - 1):
                    return np.int64(p // k)

        own_weights[:] = 0
        for r in range(count):
            label = own_labels[block + np.uintp(r)]
            confidence = own_confidences[block + np.uintp(r)]
            if not valid(0.0, label, confidence, n_classes):
                return np.int64(block + np.uintp(r))
            own_weights[r] = weigh(label, 1.0, confidence, policy[OWN_WEIGHT], policy)

        # always 16 rows: if fewer are left, the others repeat votes of an earlier block
        for group in range(_ZERO, count, _ROWS):
            start_at = np.uintp(group) * k
            for r in range(ROWS):
                row = np.uintp(group) + np.uintp(r)
                voted = own_weights[row] > 0
                places[r] = _ZERO
                if voted:
                    places[r] = _ROWS * np.uintp(own_labels[block + row] + 1)
                table[places[r] + np.uintp(r)] = own_weights[row]
                voters[row] = np.int64(voted)
            for j in range(k):
                # meanwhile, start loading ids and similarities of the next block
                later = np.int64(first + n + start_at) + np.int64(j) * ROWS
                prefetch(ids, later)
                prefetch(ids, later + ROWS // 2)  # 16 of them may take two lines of the cache
                prefetch(similarities, later)
                at = start_at + np.uintp(j)
                for r in range(ROWS):
                    table[_place(votes[at]) + np.uintp(r)] += votes[at] & _WEIGHT
                    voters[np.uintp(group) + np.uintp(r)] += np.int64(votes[at] != 0)
                    at += k

            if dense:
                _lead(table, n_classes + 1, leads)
                for r in range(ROWS):
                    if 0 < leads[r] == leads[ROWS + r]:
                        # a tie: the first vote for one of the tied labels decides
                        place = places[r]
                        at = start_at + np.uintp(r) * k
                        while table[place + np.uintp(r)] != leads[r]:
                            place = _place(votes[at])
                            at += FIRST
                        leads[3 * ROWS + r] = np.int64(place // _ROWS)
                table[:] = 0
            else:
                # as in `vote_rows`, the first vote of a label is its most similar supporter
                for r in range(ROWS):
                    place = places[r] + np.uintp(r)
                    read[r] = table[place]
                    table[place] = 0
                for j in range(k):
                    at = start_at + np.uintp(j)
                    to = np.uintp(j + FIRST) * _ROWS
                    for r in range(ROWS):
                        place = _place(votes[at]) + np.uintp(r)
                        read[to + np.uintp(r)] = table[place]
                        table[place] = 0
                        at += k
                _lead(read, k + FIRST, leads)
                for r in range(ROWS):
                    i = leads[3 * ROWS + r]
                    place = places[r]
                    if i > 0:
                        place = _place(votes[start_at + np.uintp(r) * k + np.uintp(i - 1)])
                    leads[3 * ROWS + r] = np.int64(place // _ROWS)
            for r in range(ROWS):
                row = np.uintp(group) + np.uintp(r)
                best[row], second[row] = leads[r], leads[ROWS + r]
                total[row], winner[row] = leads[2 * ROWS + r], leads[3 * ROWS + r] - 1
        _write(block, own_labels, winner[:count], voters, best, second, total, out_i, out_f)
        block += count
    return np.int64(-1)
