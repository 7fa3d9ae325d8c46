"""The vote, compiled: gather, weigh, tally, for blocks of rows.

All kernels and all they inline stand in this one file, because numba's cache does not notice a
change in another one.

A weight is a fixed-point int64, a multiple of 2^-32: integer sums are exact, so that no order of
summation, no block size and no thread count can change a bit of the answer.

What the kernels are given, B rows of K neighbors in a pool of N:

- ``neighbors``: (ids, similarities float32, labels int32, confidences float32). ``ids`` uint64 or
  uint32[B * K] point into the pool's labels and confidences, an id of N or more at nobody. With
  ids of size 0, neighbor j of a row has its label and confidence where its similarity is.
- ``own``: (labels int32[B], similarities float32[B], confidences float32[B]).
- ``layout``: (width, skip): similarity j of a row is at ``row * width + skip + j``.
- ``policy`` float64[6], see the constants below.

A label of -1 is no prediction. Similarities of size 0 are all 1; confidences of size 0, and those
that are NaN, were not given. Kernels return the first row they refuse (a similarity that is no
cosine, a label or a confidence out of range), or -1; what is wrong there is for the caller to say.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from testnuc._kernels.compile import given, inline, kernel, made, types
from testnuc._kernels.lanes import (
    LANES,
    WIDE,
    count_lanes,
    differing,
    leaders,
    lowest_bit,
    prefetch,
    split,
)

__all__ = ["curve", "decide", "pack", "packed", "tally", "vote_direct", "vote_lanes", "vote_packed"]

#: One unit of weight.
ONE = 4294967296.0
#: Rounding noise of a cosine is forgiven up to here, and clipped.
LIMIT = 1.001

#: Digest of lanes.py, so that a change there changes this file, and numba's cache notices.
LANES_DIGEST = "9bbbfdecd8d20853"

# the fields of a policy
FLOOR = 0  # 1: every similarity weighs 1; 0: its own value
USES_CONFIDENCE = 1  # 1: the weight is multiplied by the confidence
NEEDS_CONFIDENCE = 2  # 1: who has no confidence abstains
MIN_CONFIDENCE = 3
MIN_SIMILARITY = 4
OWN_WEIGHT = 5

# numba makes a float of a uint64 and an int64: indices and what is added to them are all unsigned,
# which also spares them the test for a negative index
_NONE, _ONE, _TWO = np.uintp(0), np.uintp(1), np.uintp(2)
#: A record is prefetched so many votes before it is read.
_AHEAD = np.uintp(64)
#: Votes weighed at once: few enough to stay in the nearest cache.
_BLOCK = np.uintp(1024)
_BITS = np.uintp(64)
#: Up to so many neighbors, comparing all votes of 16 rows is faster than a table (measured).
_FEW = 40
#: From so many neighbors on, the table of sums is read as a whole, if it has at most as many
#: entries, instead of by the votes that filled it (measured).
_MANY = np.uintp(200)
_NOBODY = np.int32(-1)
_F4_ZERO, _F4_ONE = np.float32(0), np.float32(1)
_LIMIT_BITS = np.float32(LIMIT).view(np.int32)
_MAGNITUDE = np.int32(0x7FFFFFFF)
#: A weight of at most 1 added to this is rounded to a multiple of 2^-32 (to even, where it is
#: halfway), and their bits differ by that many multiples.
_ROUND = np.float64(1.5 * 2**20)
_ROUND_BITS = _ROUND.view(np.int64)

_I4, _I8, _F4, _F8 = types.int32, types.int64, types.float32, types.float64
_NEIGHBORS = [
    types.Tuple((given(ids), given(_F4), given(_I4), given(_F4)))
    for ids in (types.uint64, types.uint32)
]
_OWN = types.Tuple((given(_I4), given(_F4), given(_F4)))
_LAYOUT = types.UniTuple(_I8, 2)
_VOTES = (made(_I4, 2), made(_F4, 2))


@inline
def _gate(confidence: Any, policy: Any) -> Any:
    """Return c_i, times conf_i where the policy says so."""
    if confidence >= policy[MIN_CONFIDENCE]:
        return confidence if policy[USES_CONFIDENCE] > 0 else 1.0
    # too low, or NaN: then it counts only under a policy that never asks for it
    return 0.0 if policy[NEEDS_CONFIDENCE] > 0 else 1.0


@inline
def _base(similarity: Any, policy: Any) -> Any:
    """Return what a similarity weighs."""
    if similarity >= policy[MIN_SIMILARITY]:
        return max(min(similarity, 1.0), policy[FLOOR])
    return 0.0


@inline
def _fixed(weight: Any) -> Any:
    return np.int64(np.rint(weight * ONE))


@inline
def _valid(similarity: Any, label: Any, confidence: Any, n_classes: Any) -> Any:
    return (
        abs(similarity) <= LIMIT
        and -1 <= label < n_classes
        and not (confidence < 0.0 or confidence > 1.0)
    )


@inline
def _own_vote(row: Any, own: Any, policy: Any, n_classes: Any) -> Any:
    """Return the label, the weight and the validity of the text's own vote."""
    labels, similarities, confidences = own
    label = labels[row]
    similarity = np.float64(similarities[row]) if similarities.size > 0 else 1.0
    confidence = np.float64(confidences[row]) if confidences.size > 0 else np.nan
    if not _valid(similarity, label, confidence, n_classes):
        return label, np.int64(0), False
    if label < 0:
        return label, np.int64(0), True
    weight = policy[OWN_WEIGHT] * (_base(similarity, policy) * _gate(confidence, policy))
    return label, _fixed(weight), True


@inline
def _load(
    row: Any,
    to: Any,
    k: Any,
    neighbors: Any,
    layout: Any,
    n_classes: Any,
    lab: Any,
    conf: Any,
    near: Any,
) -> Any:
    """Copy what is known of a row's neighbors to place `to`; returns whether all of it is valid."""
    ids, similarities, labels, confidences = neighbors
    first = np.uintp(row) * np.uintp(layout[0]) + np.uintp(layout[1])
    place = np.uintp(row) * k
    for j in range(k):
        at = to + np.uintp(j)
        i = first + np.uintp(j)
        if ids.size > 0:
            if ids[place + np.uintp(j)] >= np.uintp(labels.size):
                # no such neighbor: its similarity is padding
                lab[at], conf[at], near[at] = _NOBODY, np.float32(np.nan), _F4_ZERO
                continue
            i = np.uintp(ids[place + np.uintp(j)])
        lab[at] = labels[i]
        conf[at] = confidences[i] if confidences.size > 0 else np.float32(np.nan)
        near[at] = similarities[first + np.uintp(j)]
        if not _valid(near[at], lab[at], conf[at], n_classes):
            return False
    return True


@inline
def _open_gates(lab: Any, conf: Any, n: Any, policy: Any, wt: Any) -> Any:
    """Turn confidences into the factors that similarities are weighed with."""
    least = np.float32(policy[MIN_CONFIDENCE])
    uses = policy[USES_CONFIDENCE] > 0
    otherwise = _F4_ZERO if policy[NEEDS_CONFIDENCE] > 0 else _F4_ONE
    for j in range(n):
        factor = conf[j] if uses else _F4_ONE
        factor = factor if conf[j] >= least else otherwise
        wt[j] = factor if lab[j] >= 0 else _F4_ZERO


@inline
def _gather(ids: Any, records: Any, weights: Any, start: Any, n: Any, lab: Any, wt: Any) -> Any:
    """Copy the records that n ids from `start` on point at."""
    nobody = np.uintp(records.size // 2 - 1)
    ahead = n  # how many have one so far ahead of them
    if start + n + _AHEAD > np.uintp(ids.size):
        ahead = np.uintp(max(np.int64(ids.size) - np.int64(start + _AHEAD), np.int64(0)))
    for p in range(ahead):
        prefetch(records, np.int64(min(ids[start + p + _AHEAD], nobody)) * 2)
        i = np.uintp(min(ids[start + p], nobody)) * _TWO
        lab[p] = records[i]
        wt[p] = weights[i + _ONE]
    for p in range(ahead, n):
        i = np.uintp(min(ids[start + p], nobody)) * _TWO
        lab[p] = records[i]
        wt[p] = weights[i + _ONE]


@inline
def _weigh(
    similarities: Any, start: Any, lab: Any, wt: Any, x: Any, to: Any, n: Any, policy: Any
) -> Any:
    """Turn n votes from place `to` on into weights `x`; who weighs nothing loses its label.

    Returns the largest similarity by magnitude, as the bits of a float32: NaN exceeds all others.
    """
    floor = np.float32(policy[FLOOR])
    least = np.float32(policy[MIN_SIMILARITY])
    bits = similarities.view(np.int32)
    worst = np.int32(0)
    # comparisons instead of min and max, which care for NaN, and vectorize badly
    for p in range(n):
        s = similarities[start + p]
        worst = np.int32(max(worst, np.int32(bits[start + p] & _MAGNITUDE)))
        base = s if s < _F4_ONE else _F4_ONE  # noqa: FURB136
        base = base if base > floor else floor  # noqa: FURB136
        base = base if s >= least else _F4_ZERO
        product = np.float64(np.float64(base) * np.float64(wt[to + p]))
        weight = np.float64(product + _ROUND).view(np.int64) - _ROUND_BITS
        x[to + p] = weight
        lab[to + p] = lab[to + p] if weight > 0 else _NOBODY
    return worst


@inline
def _first_bad(ids: Any, similarities: Any, n_pool: Any, start: Any, n: Any) -> Any:
    """Return the place of the first similarity that is no cosine, and not mere padding; or -1."""
    for at in range(start, start + n):
        if not abs(similarities[at]) <= LIMIT and ids[at] < n_pool:
            return np.int64(at)
    return np.int64(-1)


@inline
def _write(
    row: Any, winner: Any, voters: Any, best: Any, second: Any, total: Any, out_i: Any, out_f: Any
) -> Any:
    out_i[0, row] = winner
    out_i[1, row] = voters
    whole = np.float64(max(total, 1))
    out_f[2, row] = best / whole
    out_f[3, row] = (best - second) / whole
    out_f[4, row] = total / ONE


@inline
def _guess(own: Any, lab: Any, start: Any) -> Any:
    """Return the label that most of a row probably vote for: the median of the first three."""
    first, then = lab[start], lab[start + _ONE]
    return np.int32(max(min(own, first), min(max(own, first), then)))


@inline
def _with_guessed(
    own: Any, guess: Any, guessed: Any, winner: Any, best: Any, second: Any, lab: Any, start: Any
) -> Any:
    """Return winner, best and second of all labels from those of all but the guessed one."""
    second = max(second, min(best, guessed))
    if guessed > best:
        return guess, guessed, second
    if guessed == best and best > 0 and own != winner:
        if own == guess:
            return guess, best, second
        at = start
        while lab[at] != guess and lab[at] != winner:
            at += _ONE
        return lab[at], best, second
    return winner, best, second


@inline
def _count(
    row: Any,
    own_label: Any,
    own_weight: Any,
    lab: Any,
    x: Any,
    start: Any,
    k: Any,
    acc: Any,
    others: Any,
    out_i: Any,
    out_f: Any,
) -> Any:
    """Count the votes of one row, and leave `acc` zeroed.

    Most votes are for one label, which is guessed: its sum needs no table, in which each addition
    would wait for the one before. Bits tell the other votes, which are few.
    """
    own = own_label if own_weight > 0 else _NOBODY
    guess = _guess(own, lab, start)
    guessed = np.int64(0)
    voters = np.int64(own_weight > 0)
    end = start + k
    for j in range(start, end):
        guessed += x[j] if lab[j] == guess else np.int64(0)
        voters += np.int64(lab[j] >= 0)
    n = _NONE
    if own == guess:
        guessed += own_weight
    else:
        others[n] = own
        n += _ONE
        acc[np.uintp(own + 1)] = own_weight
    for block in range(start, end, _BITS):
        bits = differing(lab, np.int64(block), guess)
        if end - np.uintp(block) < _BITS:
            bits &= (np.uint64(1) << np.uint64(end - np.uintp(block))) - np.uint64(1)
        while bits != 0:
            i = np.uintp(block) + np.uintp(lowest_bit(bits))
            bits &= bits - np.uint64(1)
            others[n] = lab[i]
            n += _ONE
            acc[np.uintp(lab[i] + 1)] += x[i]
    best, second, total, winner = np.int64(0), np.int64(0), guessed, own_label
    # each label is met first where its most similar supporter stands, with its whole sum, and as 0
    # from then on: so a strict comparison settles ties
    for j in range(n):
        at = np.uintp(others[j] + 1)
        v = acc[at]
        acc[at] = 0
        total += v
        second = max(second, min(best, v))
        winner = others[j] if v > best else winner
        best = max(best, v)
    winner, best, second = _with_guessed(own, guess, guessed, winner, best, second, lab, start)
    _write(row, winner, voters, best, second, total, out_i, out_f)


@inline
def _count_all(
    row: Any,
    own_label: Any,
    own_weight: Any,
    lab: Any,
    x: Any,
    start: Any,
    k: Any,
    acc: Any,
    out_i: Any,
    out_f: Any,
) -> Any:
    """Count as `_count` does, reading the whole table of sums; ``acc.size`` is in whole vectors."""
    own = own_label if own_weight > 0 else _NOBODY
    guess = _guess(own, lab, start)
    guessed = np.int64(0)
    voters = np.int64(own_weight > 0)
    end = start + k
    if own == guess:
        guessed += own_weight
    else:
        acc[np.uintp(own + 1)] = own_weight
    for block in range(start, end, _BITS):
        n = min(end - np.uintp(block), _BITS)
        bits, same, voted = split(lab, x, np.int64(block), np.int64(n), guess)
        guessed += same
        voters += voted
        while bits != 0:
            i = np.uintp(block) + np.uintp(lowest_bit(bits))
            bits &= bits - np.uint64(1)
            acc[np.uintp(lab[i] + 1)] += x[i]
    best, second, place, total = leaders(acc, np.int64(acc.size // WIDE))
    total += guessed
    winner = np.int32(place - 1) if best > 0 else own_label
    if best > 0 and best == second and not (own >= 0 and own == winner):
        # the tied label with the most similar supporter
        winner = own
        if own < 0 or own == guess or acc[np.uintp(own + 1)] != best:
            at = start
            while lab[at] == guess or acc[np.uintp(lab[at] + 1)] != best:
                at += _ONE
            winner = lab[at]
    for entry in range(acc.size):
        acc[entry] = 0
    winner, best, second = _with_guessed(own, guess, guessed, winner, best, second, lab, start)
    _write(row, winner, voters, best, second, total, out_i, out_f)


@kernel(*(_I8(n, _OWN, given(_F8), _I8, _LAYOUT, _I8, _I8, *_VOTES) for n in _NEIGHBORS))
def vote_direct(
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
    """Vote on the rows start..stop, reading labels and confidences where they are.

    ``out_i`` int32[5, B]: label, voters; ``out_f``, its float32 view: from row 2 on, share,
    margin, weight.
    """
    k = np.uintp(layout[0] - layout[1])
    rows = max(_ONE, min(_BLOCK // max(k, _ONE), np.uintp(stop - start)))
    size = (rows * k + _BITS) // _BITS * _BITS  # whole vectors
    lab = np.full(size + _BITS, _NOBODY, np.int32)  # `_count` reads so far beyond a row
    conf = np.zeros(size, np.float32)
    near = np.zeros(size, np.float32)
    wt = np.empty(size, np.float32)
    x = np.empty(size, np.int64)
    acc = np.zeros(n_classes + 1, np.int64)
    others = np.empty(k + _ONE, np.int32)
    block = np.uintp(start)
    while block < np.uintp(stop):
        count = min(rows, np.uintp(stop) - block)
        for r in range(count):
            row = block + np.uintp(r)
            to = np.uintp(r) * k
            if not _load(row, to, k, neighbors, layout, n_classes, lab, conf, near):
                return np.int64(row)
        _open_gates(lab, conf, size, policy, wt)
        _weigh(near, _NONE, lab, wt, x, _NONE, size, policy)
        for r in range(count):
            row = block + np.uintp(r)
            own_label, own_weight, valid = _own_vote(row, own, policy, n_classes)
            if not valid:
                return np.int64(row)
            at = np.uintp(r) * k
            _count(row, own_label, own_weight, lab, x, at, k, acc, others, out_i, out_f)
        block += count
    return np.int64(-1)


@kernel(_I8(given(_I4), given(_F4), given(_F8), _I8, made(_I4), made(_F4)))
def pack(
    labels: Any, confidences: Any, policy: Any, n_classes: Any, records: Any, weights: Any
) -> Any:
    """Write N + 1 records (label, weight without similarity) for `vote_packed`.

    ``records`` int32[2 * (N + 1)], ``weights`` its float32 view: one access to memory fetches
    both. Record N is the neighbor that does not exist; it weighs nothing, and so does who
    abstains. Returns the first bad prediction, or -1.
    """
    n = labels.size
    for i in range(n):
        label = labels[i]
        confidence = confidences[i] if confidences.size > 0 else np.float32(np.nan)
        if not _valid(0.0, label, confidence, n_classes):
            return i
        records[2 * i] = max(label, 0)
        weights[2 * i + 1] = _gate(confidence, policy) if label >= 0 else 0.0
    records[2 * n] = 0
    weights[2 * n + 1] = 0.0
    return -1


@kernel(*(_I8(n, _OWN, given(_F8), _I8, _I8, _I8, _I8, *_VOTES) for n in _NEIGHBORS))
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
    """Vote on the rows start..stop as `vote_direct` does, the pool packed by `pack`.

    ``neighbors``: (ids, similarities, records, weights).
    """
    ids, similarities, records, weights = neighbors
    n_pool = np.uintp(records.size // 2 - 1)
    width = np.uintp(k)
    rows = max(_ONE, _BLOCK // max(width, _ONE))
    lab = np.zeros(rows * width + _BITS, np.int32)  # `_count` reads so far beyond a row
    wt = np.empty(rows * width, np.float32)
    x = np.empty(rows * width + _BITS, np.int64)
    whole = width >= _MANY and np.uintp(n_classes) < width
    entries = np.uintp(n_classes) // np.uintp(WIDE) * np.uintp(WIDE) + np.uintp(WIDE)
    acc = np.zeros(entries, np.int64)
    others = np.empty(width + _ONE, np.int32)
    block = np.uintp(start)
    while block < np.uintp(stop):
        count = min(rows, np.uintp(stop) - block)
        first, n = block * width, count * width
        _gather(ids, records, weights, first, n, lab, wt)
        if _weigh(similarities, first, lab, wt, x, _NONE, n, policy) > _LIMIT_BITS:
            bad = _first_bad(ids, similarities, n_pool, first, n)
            if bad >= 0:
                return bad // k
        for r in range(count):
            row = block + np.uintp(r)
            own_label, own_weight, valid = _own_vote(row, own, policy, n_classes)
            if not valid:
                return np.int64(row)
            at = np.uintp(r) * width
            if whole:
                _count_all(row, own_label, own_weight, lab, x, at, width, acc, out_i, out_f)
            else:
                _count(row, own_label, own_weight, lab, x, at, width, acc, others, out_i, out_f)
        block += count
    return np.int64(-1)


@kernel(*(_I8(n, _OWN, given(_F8), _I8, _I8, _I8, _I8, *_VOTES) for n in _NEIGHBORS))
def vote_lanes(
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
    """Vote as `vote_packed` does, on 16 rows at once; faster where k is small."""
    ids, similarities, records, weights = neighbors
    nobody = np.uintp(records.size // 2 - 1)
    width = np.uintp(k)
    lanes = np.uintp(LANES)
    votes = (width + _TWO) // _TWO * _TWO  # with the own one, rounded up to an even number
    lab = np.full(votes * lanes, _NOBODY, np.int32)
    wt = np.zeros(votes * lanes, np.float32)
    near = np.zeros(votes * lanes, np.float32)
    x = np.zeros(votes * lanes, np.int64)
    sums = np.zeros(3 * LANES, np.int64)
    winners = np.zeros(2 * LANES, np.int32)
    block = np.uintp(start)
    last = np.uintp(max(ids.size, 1) - 1)
    while block < np.uintp(stop):
        count = min(lanes, np.uintp(stop) - block)
        for r in range(count):
            row = block + np.uintp(r)
            own_label, own_weight, valid = _own_vote(row, own, policy, n_classes)
            if not valid:
                return np.int64(row)
            lab[r] = own_label if own_weight > 0 else _NOBODY
            x[r] = own_weight
            at = np.uintp(r)
            for p in range(row * width, row * width + width):
                prefetch(records, np.int64(min(ids[min(np.uintp(p) + _AHEAD, last)], nobody)) * 2)
                at += lanes
                i = np.uintp(min(ids[p], nobody)) * _TWO
                lab[at] = records[i]
                wt[at] = weights[i + _ONE]
                near[at] = similarities[p]
        if _weigh(near, lanes, lab, wt, x, lanes, lanes * width, policy) > _LIMIT_BITS:
            bad = _first_bad(ids, similarities, nobody, block * width, count * width)
            if bad >= 0:
                return bad // k
        count_lanes(lab, x, np.int64(votes), sums, winners)
        for r in range(count):
            row = block + np.uintp(r)
            at = np.uintp(r)
            total = sums[at + lanes + lanes]
            winner = winners[at] if total > 0 else own[0][row]
            _write(
                row, winner, winners[at + lanes], sums[at], sums[at + lanes], total, out_i, out_f
            )
        block += count
    return np.int64(-1)


def packed(k: int) -> Any:
    """Return the getter of the kernel for a packed pool that is faster with k neighbors."""
    return vote_lanes if k <= _FEW else vote_packed


@kernel(*(_I8(n, _OWN, given(_F8), _I8, _LAYOUT, given(_I8), made(_F8, 2)) for n in _NEIGHBORS))
def tally(
    neighbors: Any, own: Any, policy: Any, n_classes: Any, layout: Any, rows: Any, out: Any
) -> Any:
    """Write the weights of all labels of the chosen rows to ``out`` float64[len(rows), C]."""
    k = np.uintp(layout[0] - layout[1])
    lab = np.empty(k, np.int32)
    conf = np.empty(k, np.float32)
    near = np.empty(k, np.float32)
    wt = np.empty(k, np.float32)
    x = np.empty(k, np.int64)
    acc = np.empty(n_classes + 1, np.int64)
    for r in range(rows.size):
        row = rows[r]
        label, weight, valid = _own_vote(row, own, policy, n_classes)
        if not (valid and _load(row, _NONE, k, neighbors, layout, n_classes, lab, conf, near)):
            return row
        _open_gates(lab, conf, k, policy, wt)
        _weigh(near, _NONE, lab, wt, x, _NONE, k, policy)
        acc[:] = 0
        acc[label + 1] = weight
        for j in range(k):
            acc[np.uintp(lab[j] + 1)] += x[j]
        for c in range(n_classes):
            out[r, c] = acc[c + 1] / ONE
    return -1


@kernel(
    *(_I8(n, _OWN, given(_F8, 2), _I8, _LAYOUT, _I8, given(_I8), made(_I4, 3)) for n in _NEIGHBORS)
)
def curve(
    neighbors: Any,
    own: Any,
    policies: Any,
    n_classes: Any,
    layout: Any,
    shift: Any,
    ks: Any,
    out: Any,
) -> Any:
    """Write the winners after each of ``ks`` (ascending) to ``out`` int32[policies, len(ks), B].

    ``shift``: low bits of a sum that hold a rank; 2 ** shift must exceed K + 1.
    """
    k = np.uintp(layout[0] - layout[1])
    n = (k + _BITS) // _BITS * _BITS  # whole vectors
    pool_lab = np.full(n, _NOBODY, np.int32)
    lab = np.empty(n, np.int32)
    conf = np.zeros(n, np.float32)
    near = np.zeros(n, np.float32)
    wt = np.empty(n, np.float32)
    x = np.empty(n, np.int64)
    acc = np.zeros(n_classes + 1, np.int64)
    for row in range(own[0].size):
        if not _load(row, _NONE, k, neighbors, layout, n_classes, pool_lab, conf, near):
            return row
        for p in range(policies.shape[0]):
            policy = policies[p]
            own_label, own_weight, valid = _own_vote(row, own, policy, n_classes)
            if not valid:
                return row
            lab[:] = pool_lab
            _open_gates(lab, conf, n, policy, wt)
            _weigh(near, _NONE, lab, wt, x, _NONE, n, policy)
            # a sum carries in its low bits the rank of the label's first supporter, so that
            # comparing sums settles ties; only the label that grows can become the winner; and
            # who does not vote has a rank too, but none that exceeds the one of the text itself
            best, winner = (own_weight << shift) + np.int64(k + _ONE), own_label
            if own_weight > 0:
                acc[np.uintp(own_label + 1)] = best
            done = _NONE
            for i in range(ks.size):
                for j in range(done, np.uintp(ks[i])):
                    # without a branch: under a filter it is hard to guess who votes
                    at = np.uintp(lab[j] + 1)
                    v = max(acc[at], np.int64(k - np.uintp(j))) + (x[j] << shift)
                    acc[at] = v
                    winner = lab[j] if v > best else winner
                    best = max(best, v)
                done = np.uintp(ks[i])
                out[p, i, row] = winner
            acc[np.uintp(own_label + 1)] = 0
            for j in range(done):
                acc[np.uintp(lab[j] + 1)] = 0
    return -1


@kernel(
    _I8(*map(given, (_F4, _I4, _F4, _F8)), _I8, _I8, given(_I8), given(_I8), made(_I8)),
)
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
    """Find how few leading columns settle the winner of each row, whatever the others say.

    Of a row of ``width`` columns, those from ``columns[row]`` on do not exist, and those from
    ``known[row]`` on may yet vote for any label with any confidence. ``out`` int64[B]: the length
    of the shortest known prefix that settles it; known[row] + 1 where none does.
    """
    acc = np.zeros(n_classes, np.int64)
    order = np.empty(width + 1, np.int32)  # labels by their first supporter
    for row in range(known.size):
        rest = np.int64(0)  # what the columns after the prefix can weigh together
        for j in range(columns[row]):
            similarity = np.float64(similarities[row * width + j])
            if not abs(similarity) <= LIMIT:
                return row
            scale = policy[OWN_WEIGHT] if j == 0 else 1.0
            rest += _fixed(scale * _base(similarity, policy))
        n = 0
        out[row] = known[row] + 1
        for j in range(known[row]):
            at = row * width + j
            label = labels[at]
            similarity = np.float64(similarities[at])
            confidence = np.float64(confidences[at]) if confidences.size > 0 else np.nan
            if not _valid(similarity, label, confidence, n_classes):
                return row
            if out[row] <= known[row]:
                continue  # settled before; the others are only validated
            scale = policy[OWN_WEIGHT] if j == 0 else 1.0
            base = _base(similarity, policy)
            rest -= _fixed(scale * base)
            weight = _fixed(scale * (base * _gate(confidence, policy)))
            if label >= 0 and weight > 0:
                if acc[label] == 0:
                    order[n] = label
                    n += 1
                acc[label] += weight
            if _settled(order, n, acc, rest, n_classes, labels[row * width]):
                out[row] = j + 1
        for i in range(n):
            acc[order[i]] = 0
    return -1


@inline
def _settled(order: Any, n: Any, acc: Any, rest: Any, n_classes: Any, own_label: Any) -> Any:
    """Return whether votes of the weight `rest`, in any split, leave the winner as it is."""
    if rest == 0:
        return True
    if n == 0:  # nobody voted: the own label stands only where there is no other
        return n_classes == 1 and own_label == 0
    place = 0
    for i in range(n):
        if acc[order[i]] > acc[order[place]]:
            place = i
    best = acc[order[place]]
    # a label not seen yet must exceed the winner, because its first supporter comes later
    if n < n_classes and rest > best:
        return False
    for i in range(n):
        most = acc[order[i]] + rest
        if i != place and (most > best or (most == best and i < place)):
            return False
    return True
