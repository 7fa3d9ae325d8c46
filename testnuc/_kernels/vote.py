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

__all__ = ["curve", "decide", "pack", "tally", "vote_direct", "vote_packed"]

#: One unit of weight.
ONE = 4294967296.0
#: Rounding noise of a cosine is forgiven up to here, and clipped.
LIMIT = 1.001

# the fields of a policy
FLOOR = 0  # 1: every similarity weighs 1; 0: its own value
USES_CONFIDENCE = 1  # 1: the weight is multiplied by the confidence
NEEDS_CONFIDENCE = 2  # 1: who has no confidence abstains
MIN_CONFIDENCE = 3
MIN_SIMILARITY = 4
OWN_WEIGHT = 5

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
def _neighbor_vote(at: Any, offset: Any, neighbors: Any, policy: Any, n_classes: Any) -> Any:
    """Return the label, the weight and the validity of one neighbor's vote.

    ``at`` is its place in the ids, ``offset`` that of its similarity.
    """
    ids, similarities, labels, confidences = neighbors
    i = np.intp(offset)
    if ids.size > 0:
        if ids[at] >= labels.size:  # no such neighbor: its similarity is padding
            return np.int32(0), np.int64(0), True
        i = np.intp(ids[at])
    similarity = np.float64(similarities[offset])
    label = labels[i]
    confidence = np.float64(confidences[i]) if confidences.size > 0 else np.nan
    if not _valid(similarity, label, confidence, n_classes):
        return np.int32(0), np.int64(0), False
    if label < 0:
        return np.int32(0), np.int64(0), True
    return label, _fixed(_base(similarity, policy) * _gate(confidence, policy)), True


@inline
def _count(
    row: Any, own_label: Any, n: Any, lab: Any, wt: Any, acc: Any, out_i: Any, out_f: Any
) -> Any:
    """Sum the n votes by label, write the result of the row, and leave `acc` zeroed."""
    for j in range(n):
        acc[lab[j]] += wt[j]
    best = np.int64(0)
    second = np.int64(0)
    total = np.int64(0)
    winner = own_label
    # each label is met first where its most similar supporter stands, with its whole sum, and as 0
    # from then on: so a strict comparison settles ties
    for j in range(n):
        v = acc[lab[j]]
        acc[lab[j]] = 0
        total += v
        second = max(second, min(best, v))
        if v > best:
            winner = lab[j]
        best = max(best, v)
    out_i[0, row] = winner
    out_i[1, row] = n
    if total > 0:
        out_f[2, row] = best / total
        out_f[3, row] = (best - second) / total
    else:
        out_f[2, row] = 0.0
        out_f[3, row] = 0.0
    out_f[4, row] = total / ONE


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
    width, skip = layout
    k = width - skip
    acc = np.zeros(n_classes, np.int64)
    lab = np.empty(k + 1, np.int32)
    wt = np.empty(k + 1, np.int64)
    for row in range(start, stop):
        own_label, weight, valid = _own_vote(row, own, policy, n_classes)
        if not valid:
            return row
        n = 0
        if weight > 0:
            lab[0] = own_label
            wt[0] = weight
            n = 1
        for j in range(k):
            label, weight, valid = _neighbor_vote(
                row * k + j, row * width + skip + j, neighbors, policy, n_classes
            )
            if not valid:
                return row
            if weight > 0:
                lab[n] = label
                wt[n] = weight
                n += 1
        _count(row, own_label, n, lab, wt, acc, out_i, out_f)
    return -1


@kernel(_I8(given(_I4), given(_F4), given(_F8), _I8, made(_I4), made(_F4)))
def pack(
    labels: Any, confidences: Any, policy: Any, n_classes: Any, records: Any, weights: Any
) -> Any:
    """Write N + 1 records (label, weight without similarity) for `vote_packed`.

    ``records`` int32[2 * (N + 1)], ``weights`` its float32 view. Record N is the neighbor that
    does not exist; it weighs nothing, and so does who abstains. Returns the first bad prediction.
    """
    n = labels.size
    for i in range(n):
        label = labels[i]
        confidence = np.float64(confidences[i]) if confidences.size > 0 else np.nan
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
    nobody = np.intp(records.size // 2 - 1)
    acc = np.zeros(n_classes, np.int64)
    lab = np.empty(k + 1, np.int32)
    wt = np.empty(k + 1, np.int64)
    for row in range(start, stop):
        own_label, weight, valid = _own_vote(row, own, policy, n_classes)
        if not valid:
            return row
        n = 0
        if weight > 0:
            lab[0] = own_label
            wt[0] = weight
            n = 1
        for j in range(k):
            at = row * k + j
            if ids[at] >= nobody:
                continue
            i = np.intp(ids[at])
            similarity = np.float64(similarities[at])
            if not abs(similarity) <= LIMIT:
                return row
            weight = _fixed(_base(similarity, policy) * np.float64(weights[2 * i + 1]))
            if weight > 0:
                lab[n] = records[2 * i]
                wt[n] = weight
                n += 1
        _count(row, own_label, n, lab, wt, acc, out_i, out_f)
    return -1


@kernel(*(_I8(n, _OWN, given(_F8), _I8, _LAYOUT, given(_I8), made(_F8, 2)) for n in _NEIGHBORS))
def tally(
    neighbors: Any, own: Any, policy: Any, n_classes: Any, layout: Any, rows: Any, out: Any
) -> Any:
    """Write the weights of all labels of the chosen rows to ``out`` float64[len(rows), C]."""
    width, skip = layout
    k = width - skip
    for r in range(rows.size):
        row = rows[r]
        acc = np.zeros(n_classes, np.int64)
        label, weight, valid = _own_vote(row, own, policy, n_classes)
        if not valid:
            return row
        if weight > 0:
            acc[label] = weight
        for j in range(k):
            label, weight, valid = _neighbor_vote(
                row * k + j, row * width + skip + j, neighbors, policy, n_classes
            )
            if not valid:
                return row
            acc[label] += weight
        for c in range(n_classes):
            out[r, c] = acc[c] / ONE
    return -1


@inline
def _add(
    p: Any, label: Any, weight: Any, rank: Any, shift: Any, acc: Any, best: Any, winner: Any
) -> Any:
    """Add a vote to policy p's sums, and keep its winner.

    A sum carries in its low bits the rank of the label's first supporter, so that comparing sums
    settles ties; only the label that grows can become the winner.
    """
    if weight > 0:
        at = label * best.size + p
        v = acc[at]
        if v == 0:
            v = rank
        v += weight << shift
        acc[at] = v
        if v > best[p]:
            best[p] = v
            winner[p] = label


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
    width, skip = layout
    k = width - skip
    n_policies = policies.shape[0]
    acc = np.zeros(n_classes * n_policies, np.int64)
    touched = np.zeros(k + 1, np.int32)
    best = np.empty(n_policies, np.int64)
    winner = np.empty(n_policies, np.int32)
    for row in range(own[0].size):
        own_label = own[0][row]
        for p in range(n_policies):
            best[p] = 0
            winner[p] = own_label
            label, weight, valid = _own_vote(row, own, policies[p], n_classes)
            if not valid:
                return row
            _add(p, label, weight, np.int64(k + 1), shift, acc, best, winner)
        touched[0] = max(own_label, 0)
        done = 0
        for at in range(ks.size):
            while done < ks[at]:
                label = np.int32(0)
                for p in range(n_policies):
                    label, weight, valid = _neighbor_vote(
                        row * k + done,
                        row * width + skip + done,
                        neighbors,
                        policies[p],
                        n_classes,
                    )
                    if not valid:
                        return row
                    _add(p, label, weight, np.int64(k - done), shift, acc, best, winner)
                done += 1
                touched[done] = label
            for p in range(n_policies):
                out[p, at, row] = winner[p]
        for j in range(done + 1):
            for p in range(n_policies):
                acc[touched[j] * n_policies + p] = 0
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
