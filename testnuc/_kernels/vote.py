"""The vote, compiled: gather, weigh, tally, for blocks of rows.

All kernels stand in this one file, with all they inline but what is written for the compiler
itself (vectors.py, weighing.py, lanes.py): numba's cache does not notice a change in another file.

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
from testnuc._kernels.lanes import LANES, POLICIES, climb, count_lanes, lead
from testnuc._kernels.vectors import GROUP, differing, lowest_bit, prefetch, voting
from testnuc._kernels.weighing import WEIGHT_BITS, gather, gather_rows, weigh

__all__ = ["curve", "decide", "pack", "packed", "tally", "vote_direct", "vote_lanes", "vote_packed"]

#: One unit of weight.
ONE = 4294967296.0
#: Rounding noise of a cosine is forgiven up to here, and clipped.
LIMIT = float(np.float32(1.001))

#: Digest of what is inlined from other files, so that a change there changes this one, and numba's
#: cache notices.
INLINED_DIGEST = "4a24471da4b9918b"

# the fields of a policy
FLOOR = 0  # 1: every similarity weighs 1; 0: its own value
USES_CONFIDENCE = 1  # 1: the weight is multiplied by the confidence
NEEDS_CONFIDENCE = 2  # 1: who has no confidence abstains
MIN_CONFIDENCE = 3
MIN_SIMILARITY = 4
OWN_WEIGHT = 5

# numba makes a float of a uint64 and an int64: indices and what is added to them are all unsigned,
# which also spares them the test for a negative index
_NONE, _ONE = np.uintp(0), np.uintp(1)
_GROUP = np.uintp(GROUP)
#: A record is prefetched so many votes before it is read.
_AHEAD = np.uintp(128)
#: Votes weighed at once (measured).
_BLOCK = np.uintp(4096)
_BITS = np.uintp(64)
#: Up to so many neighbors, comparing all votes of 16 rows is faster than a table (measured).
_FEW = 32
_LANES = np.uintp(LANES)
_WEIGHT_BITS, _WEIGHT = np.uintp(WEIGHT_BITS), np.int64(2**WEIGHT_BITS - 1)
#: Entries of a table that fit beside a weight.
_LARGEST = 2**30
#: Rows whose own votes are read, and whose results are written, at once; a multiple of 16.
_STRETCH = 1024
#: Up to so many labels for each neighbor, the table of sums is read as a whole instead of by the
#: votes that filled it (measured).
_DENSE = 3
_NOBODY = np.int32(-1)
_F4_ZERO, _F4_ONE, _F4_NAN = np.float32(0), np.float32(1), np.float32(np.nan)
_LIMIT_BITS = np.float32(LIMIT).view(np.int32)

_I4, _I8, _F4, _F8 = types.int32, types.int64, types.float32, types.float64
_NEIGHBORS = [
    types.Tuple((given(ids), given(_F4), given(_I4), given(_F4)))
    for ids in (types.uint64, types.uint32)
]
_PACKED = [
    types.Tuple((given(ids), given(_F4), given(_I4))) for ids in (types.uint64, types.uint32)
]
_OWN = types.Tuple((given(_I4), given(_F4), given(_F4)))
_LAYOUT = types.UniTuple(_I8, 2)
_VOTES = (made(_I4, 2), made(_F4, 2))


@inline
def _gates(policy: Any) -> Any:
    """Return what `_open` needs of a policy; read once, as a loop in vectors cannot."""
    # too low, or NaN: then it counts only under a policy that never asks for it
    otherwise = _F4_ZERO if policy[NEEDS_CONFIDENCE] > 0 else _F4_ONE
    return np.float32(policy[MIN_CONFIDENCE]), otherwise, policy[USES_CONFIDENCE] > 0


@inline
def _open(confidence: Any, gates: Any) -> Any:
    """Return c_i, times conf_i where the policy says so."""
    least, otherwise, uses = gates
    factor = confidence if uses else _F4_ONE
    return factor if confidence >= least else otherwise


@inline
def _gate(confidence: Any, policy: Any) -> Any:
    return _open(confidence, _gates(policy))


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
def _own_votes(
    first: Any, rows: Any, own: Any, policy: Any, n_classes: Any, lab: Any, x: Any
) -> Any:
    """Write the own votes of some rows, a label of -1 where one weighs nothing.

    Returns the first row that is refused, or -1.
    """
    labels, similarities, confidences = own
    if similarities.size > 0 or confidences.size > 0:
        for r in range(rows):
            label, weight, valid = _own_vote(first + np.uintp(r), own, policy, n_classes)
            if not valid:
                return np.int64(first + np.uintp(r))
            lab[r] = label if weight > 0 else _NOBODY
            x[r] = weight
        return np.int64(-1)
    # all weigh the same
    weight = _fixed(policy[OWN_WEIGHT] * (_base(1.0, policy) * _gate(np.nan, policy)))
    wrong = False
    for r in range(rows):
        label = labels[first + np.uintp(r)]
        wrong |= label < -1 or label >= n_classes
        votes = label >= 0 and weight > 0
        lab[r] = label if votes else _NOBODY
        x[r] = weight if votes else np.int64(0)
    if wrong:
        for r in range(rows):
            if not -1 <= labels[first + np.uintp(r)] < n_classes:
                return np.int64(first + np.uintp(r))
    return np.int64(-1)


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
def _open_gates(lab: Any, conf: Any, n: Any, policy: Any, factors: Any) -> Any:
    """Turn confidences into the factors that similarities are weighed with."""
    gates = _gates(policy)
    for j in range(n):
        factors[j] = _open(conf[j], gates) if lab[j] >= 0 else _F4_ZERO


@inline
def _weigh(near: Any, factors: Any, lab: Any, x: Any, n: Any, policy: Any) -> Any:
    """Weigh n votes, n in whole groups."""
    floor, least = np.float32(policy[FLOOR]), np.float32(policy[MIN_SIMILARITY])
    weigh(near, factors, lab, x, np.int64(n // _GROUP), floor, least)


@inline
def _gather(
    ids: Any, similarities: Any, records: Any, start: Any, n: Any, policy: Any, votes: Any
) -> Any:
    """Gather and weigh n votes from `start` on; writes up to 15 more.

    Returns the largest similarity by magnitude, as the bits of a float32.
    """
    floor, least = np.float32(policy[FLOOR]), np.float32(policy[MIN_SIMILARITY])
    groups = (n + _GROUP - _ONE) // _GROUP
    ahead, whole = np.int64(_AHEAD), np.int64(groups)
    if start + groups * _GROUP + _AHEAD <= np.uintp(ids.size):
        at = np.int64(start)
        return gather(ids, similarities, at, ahead, records, votes, whole, floor, least)
    # the last ones: what follows them is not theirs to read
    some = np.full(groups * _GROUP + _AHEAD, records.size // 2 - 1, ids.dtype)
    near = np.zeros(groups * _GROUP, np.float32)
    some[:n] = ids[start : start + n]
    near[:n] = similarities[start : start + n]
    return gather(some, near, np.int64(0), ahead, records, votes, whole, floor, least)


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
def _write_rows(
    first: Any, rows: Any, own: Any, winners: Any, sums: Any, out_i: Any, out_f: Any
) -> Any:
    """Write what `count_lanes` found."""
    # a loop for each field: so they become vectors
    for r in range(rows):
        total = sums[2 * _STRETCH + r]
        out_i[0, first + np.uintp(r)] = winners[r] if total > 0 else own[first + np.uintp(r)]
    for r in range(rows):
        out_i[1, first + np.uintp(r)] = winners[_STRETCH + r]
    for r in range(rows):
        whole = np.float64(max(sums[2 * _STRETCH + r], 1))
        out_f[2, first + np.uintp(r)] = sums[r] / whole
    for r in range(rows):
        whole = np.float64(max(sums[2 * _STRETCH + r], 1))
        out_f[3, first + np.uintp(r)] = (sums[r] - sums[_STRETCH + r]) / whole
    for r in range(rows):
        out_f[4, first + np.uintp(r)] = sums[2 * _STRETCH + r] / ONE


@inline
def _guess(own: Any, lab: Any, start: Any) -> Any:
    """Return the label that most of a row probably vote for: the median of the first three.

    With fewer neighbors it is some other number, and a bad guess.
    """
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
def _entry(vote: Any) -> Any:
    """Return where the table of 16 rows has the sums of what is voted for."""
    return np.uintp(vote) >> _WEIGHT_BITS


@inline
def _add_rows(
    votes: Any, start: Any, k: Any, acc: Any, ids: Any, similarities: Any, upcoming: Any
) -> Any:
    """Add the votes of each of 16 rows to its sums.

    The rows take turns, each with sums of its own, so that no addition waits for the one before;
    and nothing depends on what the labels are, which no processor could guess. Meanwhile the memory
    brings the ids and similarities of as many votes from `upcoming` on, to be gathered later.
    """
    for j in range(k):
        at = start + np.uintp(j)
        later = np.int64(upcoming) + np.int64(j) * LANES
        prefetch(ids, later)
        prefetch(ids, later + LANES // 2)  # 16 of them may take two lines of the cache
        prefetch(similarities, later)
        for r in range(LANES):
            acc[_entry(votes[at]) + np.uintp(r)] += votes[at] & _WEIGHT
            at += k


@inline
def _take_rows(votes: Any, start: Any, k: Any, own: Any, acc: Any, sums: Any, leading: Any) -> Any:
    """Read the sums of 16 rows by the votes that filled them, and leave `acc` zeroed."""
    # each label is met first where its most similar supporter stands, with its whole sum, and as 0
    # from then on: so a strict comparison settles ties
    for r in range(LANES):
        entry = _entry(own[r]) + np.uintp(r)
        sums[r] = acc[entry]
        acc[entry] = 0
    for j in range(k):
        at = start + np.uintp(j)
        to = np.uintp(j + _ONE) * _LANES
        for r in range(LANES):
            entry = _entry(votes[at]) + np.uintp(r)
            sums[to + np.uintp(r)] = acc[entry]
            acc[entry] = 0
            at += k
    lead(sums, np.int64(k + _ONE), leading)
    for r in range(LANES):
        place = leading[3 * LANES + r]
        vote = own[r]
        if place > 0:
            vote = votes[start + np.uintp(r) * k + np.uintp(place - 1)]
        leading[3 * LANES + r] = np.int64(_entry(vote)) // LANES - 1


@inline
def _read_rows(votes: Any, start: Any, k: Any, own: Any, acc: Any, leading: Any) -> Any:
    """Read the sums of 16 rows label by label, and leave `acc` zeroed."""
    lead(acc, np.int64(acc.size // _LANES), leading)
    for r in range(LANES):
        best = leading[r]
        if 0 < best == leading[LANES + r]:
            # of equal labels, the one with the most similar supporter
            vote = own[r]
            at = start + np.uintp(r) * k
            while acc[_entry(vote) + np.uintp(r)] != best:
                vote = votes[at]
                at += _ONE
            leading[3 * LANES + r] = np.int64(_entry(vote)) // LANES
        leading[3 * LANES + r] -= 1  # labels start at 1
    acc[:] = 0


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
    factors = np.empty(size, np.float32)
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
        _open_gates(lab, conf, size, policy, factors)
        _weigh(near, factors, lab, x, size, policy)
        for r in range(count):
            row = block + np.uintp(r)
            own_label, own_weight, valid = _own_vote(row, own, policy, n_classes)
            if not valid:
                return np.int64(row)
            at = np.uintp(r) * k
            _count(row, own_label, own_weight, lab, x, at, k, acc, others, out_i, out_f)
        block += count
    return np.int64(-1)


@inline
def _record(label: Any, factor: Any) -> Any:
    return np.int64(max(label, np.int32(0))) | np.int64(np.float32(factor).view(np.int32)) << 32


@kernel(_I8(given(_I4), given(_F4), given(_F8), _I8, made(_I8)))
def pack(labels: Any, confidences: Any, policy: Any, n_classes: Any, records: Any) -> Any:
    """Write N + 1 records (label, weight without similarity) for `vote_lanes` and `vote_packed`.

    ``records`` int64[N + 1]: an int32 and the bits of a float32, so that one access to memory
    fetches both. Record N is the neighbor that does not exist; it weighs nothing, and so does who
    abstains. Returns the first bad prediction, or -1.
    """
    n, gates = labels.size, _gates(policy)
    records[n] = 0
    # what is bad is looked for afterwards: nothing in this loop may end it
    bad = False
    for i in range(n):
        label = labels[i]
        confidence = confidences[i] if confidences.size > 0 else _F4_NAN
        bad |= not _valid(0.0, label, confidence, n_classes)
        records[i] = _record(label, _open(confidence, gates) if label >= 0 else _F4_ZERO)
    if bad:
        for i in range(n):
            confidence = confidences[i] if confidences.size > 0 else _F4_NAN
            if not _valid(0.0, labels[i], confidence, n_classes):
                return i
    return -1


@kernel(*(_I8(n, _OWN, given(_F8), _I8, _I8, _I8, _I8, *_VOTES) for n in _PACKED))
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

    ``neighbors``: (ids, similarities, records). 16 rows take turns in a table of sums
    int64[(C + 1) * 16]: label c of row r at ``(c + 1) * 16 + r``, at ``r`` who votes for nobody.
    """
    ids, similarities, records = neighbors
    width = np.uintp(k)
    dense = n_classes <= _DENSE * k
    rows = max(_LANES, _BLOCK // max(width, _ONE) // _LANES * _LANES)
    votes = np.zeros(rows * width + _GROUP, np.int64)
    acc = np.zeros(np.uintp(n_classes + 1) * _LANES, np.int64)
    sums = np.empty(_NONE if dense else (width + _ONE) * _LANES, np.int64)
    own_lab = np.empty(LANES, np.int32)
    own_votes = np.empty(LANES, np.int64)
    leading = np.empty(4 * LANES, np.int64)
    block = np.uintp(start)
    while block < np.uintp(stop):
        count = min(rows, np.uintp(stop) - block)
        first, n = block * width, count * width
        if _gather(ids, similarities, records, first, n, policy, votes) > _LIMIT_BITS:
            bad = _first_bad(ids, similarities, np.uintp(records.size // 2 - 1), first, n)
            if bad >= 0:
                return bad // k
        for group in range(_NONE, count, _LANES):
            row, at = block + np.uintp(group), np.uintp(group) * width
            some = min(_LANES, count - np.uintp(group))
            # always 16 rows: where there are fewer, earlier votes stand in the others' place
            own_lab[:] = _NOBODY
            leading[:] = 0
            bad = _own_votes(row, some, own, policy, n_classes, own_lab, leading)
            if bad >= 0:
                return bad
            for r in range(LANES):
                # without its weight, which may exceed 33 bits
                own_votes[r] = np.int64(own_lab[r] + 1) * LANES << WEIGHT_BITS
                acc[_entry(own_votes[r]) + np.uintp(r)] = leading[r]
            _add_rows(votes, at, width, acc, ids, similarities, first + n + at)
            if dense:
                _read_rows(votes, at, width, own_votes, acc, leading)
            else:
                _take_rows(votes, at, width, own_votes, acc, sums, leading)
            for r in range(some):
                best, second, total = leading[r], leading[LANES + r], leading[2 * LANES + r]
                winner = leading[3 * LANES + r] if total > 0 else own[0][row]
                voters = voting(votes, np.int64(at), k) + np.int64(own_lab[r] >= 0)
                _write(row, winner, voters, best, second, total, out_i, out_f)
                row += _ONE
                at += width
        block += count
    return np.int64(-1)


@kernel(*(_I8(n, _OWN, given(_F8), _I8, _I8, _I8, _I8, *_VOTES) for n in _PACKED))
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
    """Vote as `vote_packed` does, comparing the votes of 16 rows; faster where k is small."""
    ids, similarities, records = neighbors
    width = np.uintp(k)
    votes = width + _ONE  # with the own one
    lab = np.full((votes + _ONE) * _LANES, _NOBODY, np.int32)
    x = np.zeros((votes + _ONE) * _LANES, np.int64)
    nobody = np.uintp(records.size // 2 - 1)
    # the last rows: what would follow them is not there to be read
    last_ids = np.full(2 * _LANES * width, nobody, ids.dtype)
    last_near = np.zeros(_LANES * width, np.float32)
    own_lab = np.empty(_STRETCH, np.int32)
    own_x = np.empty(_STRETCH, np.int64)
    sums = np.empty(3 * _STRETCH, np.int64)
    winners = np.empty(2 * _STRETCH, np.int32)
    floor, least = np.float32(policy[FLOOR]), np.float32(policy[MIN_SIMILARITY])
    stretch = np.uintp(start)
    while stretch < np.uintp(stop):
        rows = min(np.uintp(_STRETCH), np.uintp(stop) - stretch)
        bad = _own_votes(stretch, rows, own, policy, n_classes, own_lab, own_x)
        if bad >= 0:
            return bad
        for place in range(_NONE, rows, _LANES):
            done = np.uintp(place)
            first, n = (stretch + done) * width, min(_LANES, rows - done) * width
            # 16 streams at once are more than a processor foresees
            for p in range(first + 4 * _LANES * width, first + 5 * _LANES * width, 8):
                prefetch(ids, np.int64(p))
            for p in range(first + 3 * _LANES * width, first + 4 * _LANES * width, 16):
                prefetch(similarities, np.int64(p))
            if first + 2 * _LANES * width <= np.uintp(ids.size):
                worst = gather_rows(
                    ids, similarities, np.int64(first), k, records, lab[_LANES:], x[_LANES:], k,
                    floor, least,
                )  # fmt: skip
            else:
                last_ids[:n] = ids[first : first + n]
                last_ids[n:] = nobody
                last_near[:n] = similarities[first : first + n]
                worst = gather_rows(
                    last_ids, last_near, np.int64(0), k, records, lab[_LANES:], x[_LANES:], k,
                    floor, least,
                )  # fmt: skip
            if worst > _LIMIT_BITS:
                bad = _first_bad(ids, similarities, nobody, first, n)
                if bad >= 0:
                    return bad // k
            # lanes beyond the last row hold anything; they are not written out
            for lane in range(_LANES):
                lab[lane] = own_lab[done + np.uintp(lane)]
                x[lane] = own_x[done + np.uintp(lane)]
            count_lanes(lab, x, np.int64(votes), np.int64(done), sums, winners)
        _write_rows(stretch, rows, own[0], winners, sums, out_i, out_f)
        stretch += rows
    return np.int64(-1)


def packed(rows: int, k: int, n_classes: int) -> Any:
    """Return the getter of the kernel that is fastest with a packed pool.

    None where that would not pay: `vote_packed` counts 16 rows at a time, whether there are so
    many or not, in a table that must not outgrow the votes.
    """
    if k <= _FEW:
        return vote_lanes
    fits = rows >= LANES and n_classes * LANES <= min(rows * k, _LARGEST)
    return vote_packed if fits else None


@kernel(*(_I8(n, _OWN, given(_F8), _I8, _LAYOUT, given(_I8), made(_F8, 2)) for n in _NEIGHBORS))
def tally(
    neighbors: Any, own: Any, policy: Any, n_classes: Any, layout: Any, rows: Any, out: Any
) -> Any:
    """Write the weights of all labels of the chosen rows to ``out`` float64[len(rows), C]."""
    k = np.uintp(layout[0] - layout[1])
    n = (k + _GROUP - _ONE) // _GROUP * _GROUP
    lab = np.full(n, _NOBODY, np.int32)
    conf = np.zeros(n, np.float32)
    near = np.zeros(n, np.float32)
    factors = np.empty(n, np.float32)
    x = np.empty(n, np.int64)
    acc = np.empty(n_classes + 1, np.int64)
    for r in range(rows.size):
        row = rows[r]
        label, weight, valid = _own_vote(row, own, policy, n_classes)
        if not (valid and _load(row, _NONE, k, neighbors, layout, n_classes, lab, conf, near)):
            return row
        _open_gates(lab, conf, n, policy, factors)
        _weigh(near, factors, lab, x, n, policy)
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
    n = (k + _GROUP - _ONE) // _GROUP * _GROUP
    lab = np.full(n, _NOBODY, np.int32)
    voting_lab = np.empty(n, np.int32)
    conf = np.zeros(n, np.float32)
    near = np.zeros(n, np.float32)
    factors = np.empty(n, np.float32)
    x = np.zeros(POLICIES * n, np.int64)
    acc = np.zeros(POLICIES * (n_classes + 1), np.int64)
    state = np.zeros(2 * POLICIES, np.int64)
    rank = np.int64(k)
    for row in range(own[0].size):
        if not _load(row, _NONE, k, neighbors, layout, n_classes, lab, conf, near):
            return row
        for first in range(0, policies.shape[0], POLICIES):
            some = min(POLICIES, policies.shape[0] - first)
            x[:] = 0
            for p in range(some):
                policy = policies[first + p]
                own_label, own_weight, valid = _own_vote(row, own, policy, n_classes)
                if not valid:
                    return row
                voting_lab[:] = lab
                _open_gates(lab, conf, n, policy, factors)
                _weigh(near, factors, voting_lab, x[np.uintp(p) * n :], n, policy)
                # a sum carries in its low bits the rank of the label's first supporter, so that
                # comparing sums settles ties; only the label that grows can become the winner;
                # an own label that weighs nothing has a rank alone, which any weight exceeds
                state[p] = (own_weight << shift) + rank + 1
                state[POLICIES + p] = own_label
                if own_weight > 0:
                    acc[POLICIES * (own_label + 1) + p] = state[p]
            done = np.int64(0)
            for i in range(ks.size):
                climb(lab, x, done, ks[i], rank, shift, acc, state)
                done = ks[i]
                for p in range(some):
                    out[first + p, i, row] = state[POLICIES + p]
            for p in range(POLICIES):
                acc[POLICIES * (own[0][row] + 1) + p] = 0
                for j in range(done):
                    acc[POLICIES * (lab[j] + 1) + p] = 0
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
