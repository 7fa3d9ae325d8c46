"""What the compiled code must compute, as plainly as possible: one loop after the other.

Imports nothing of testnuc. A policy is (weight, min_confidence, min_similarity, own_weight); a
voter is (label or -1, similarity, confidence or None), the text itself first.
"""

from __future__ import annotations

import itertools
import math
import operator
import struct
from fractions import Fraction

PRESETS = {
    "majority": ("uniform", None, None, 1.0),
    "weighted": ("similarity", None, None, 1.0),
    "confidence_weighted": ("similarity*confidence", None, None, 1.0),
    "filtered": ("similarity", 0.7, None, 1.0),
}


def as_float32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def voter(label, similarity, confidence=math.nan):
    """Read one cell of each array."""
    confidence = float(confidence)
    return int(label), float(similarity), None if math.isnan(confidence) else confidence


def weight(who, policy, *, own=False):
    """Weight of one vote in units of 2^-32."""
    label, similarity, confidence = who
    kind, min_confidence, min_similarity, own_weight = policy
    if label < 0:
        return 0
    if min_similarity is not None and similarity < as_float32(min_similarity):
        return 0
    if min_confidence is not None and (
        confidence is None or confidence < as_float32(min_confidence)
    ):
        return 0
    w = Fraction(1) if kind == "uniform" else Fraction(max(0.0, min(1.0, similarity)))
    if kind == "similarity*confidence":
        w *= 0 if confidence is None else Fraction(confidence)
    if own:
        w = Fraction(own_weight * float(w))
    return round(w * 2**32)  # to even, where it is halfway


def tally(voters, policy):
    """Label -> summed weight, in the order of the labels' first supporters."""
    sums = {}
    for i, who in enumerate(voters):
        w = weight(who, policy, own=i == 0)
        if w > 0:
            sums[who[0]] = sums.get(who[0], 0) + w
    return sums


def winner(voters, policy):
    sums = tally(voters, policy)
    best = max(sums.values(), default=0)
    for label, w in sums.items():
        if w == best:
            return label
    return voters[0][0]


def vote(voters, policy):
    """Return label, share, margin, weight, number of voters."""
    sums = tally(voters, policy)
    total = sum(sums.values())
    count = sum(weight(who, policy, own=i == 0) > 0 for i, who in enumerate(voters))
    if total == 0:
        return voters[0][0], 0.0, 0.0, 0.0, 0
    first, second = sorted([0, *sums.values()])[:-3:-1]
    return (
        winner(voters, policy),
        as_float32(first / total),
        as_float32((first - second) / total),
        as_float32(total / 2**32),
        count,
    )


def multilabel_vote(voters, policy, threshold):
    """Return [(label, share, given)], the weight of all voters, and their number.

    A voter is (its labels with their confidences, or None, and its similarity).
    """
    kind, _, min_similarity, own_weight = policy
    sums, total, count = {}, 0, 0
    for i, (given, similarity) in enumerate(voters):
        # with a full confidence, a vote has the weight of its text
        whole = weight((0, similarity, 1.0), (kind, None, min_similarity, own_weight), own=i == 0)
        if given is None or whole == 0:
            continue
        total, count = total + whole, count + 1
        for label, confidence in given:
            w = weight((label, similarity, confidence), policy, own=i == 0)
            if w > 0:
                sums[label] = sums.get(label, 0) + w
    own = voters[0][0] or []
    if count == 0:
        return [(label, 0.0, True) for label, _ in own], 0.0, 0
    by_text = {label for label, c in own if weight((label, voters[0][1], c), policy, own=True) > 0}
    ranked = sorted(sums, key=lambda label: -sums[label])
    shares = {label: sums[label] / total for label in ranked}
    return (
        [
            (
                label,
                as_float32(shares[label]),
                shares[label] > threshold or (shares[label] == threshold and label in by_text),
            )
            for label in ranked
        ],
        as_float32(total / 2**32),
        count,
    )


def gather(ids, similarities, pool_labels, pool_confidences, own_label, own_confidence):
    """Return the voters of one row of a pool vote; who is not in the pool is left out."""
    voters = [voter(own_label, 1.0, own_confidence)]
    for i, similarity in zip(ids, similarities, strict=True):
        if 0 <= int(i) < len(pool_labels):
            voters.append(voter(pool_labels[i], similarity, pool_confidences[i]))
    return voters


def completions(voters, known, n_classes, policy):
    """Every completion that can be the worst for the winner: the unknown all say the same."""
    for label in range(n_classes):
        yield [who if i < known else (label, who[1], 1.0) for i, who in enumerate(voters)]
    yield [who if i < known else (-1, who[1], None) for i, who in enumerate(voters)]


def decided(voters, known, n_classes, policy):
    """Whether all completions have the same winner."""
    if known == 0:
        return False
    return len({winner(c, policy) for c in completions(voters, known, n_classes, policy)}) == 1


def half(bits):
    """Read the 16 bits of a float16."""
    return struct.unpack("e", struct.pack("H", int(bits)))[0]


def cosine(query, vector_bits):
    """Dot product of unit vectors, the second given by its float16 bits."""
    return math.fsum(float(a) * half(b) for a, b in zip(query, vector_bits, strict=True))


def rank(ids, similarities, hashes, k):
    """Return the k best (id, similarity), equal ones by hash, then by place."""
    candidates = [
        (-float(s), int(hashes[i]), place, int(i))
        for place, (i, s) in enumerate(zip(ids, similarities, strict=True))
        if 0 <= i < len(hashes) and not math.isnan(s)
    ]
    best = [(i, -s) for s, _, _, i in sorted(candidates)[:k]]
    return best + [(-1, math.nan)] * (k - len(best))


def self_consistency(samples):
    """Label of most (label or None, confidence or None) samples, and its part of them."""
    best = (None, 0)
    for label, _ in samples:
        count = sum(other == label for other, _ in samples)
        if label is not None and count > best[1]:
            best = (label, count)
    return best[0], best[1] / len(samples) if best[0] is not None else None


def best_of_n(samples):
    """The surest sample that has a label."""
    best = None
    for label, confidence in samples:
        if label is None:
            continue
        sure = -1 if confidence is None else confidence
        if best is None or sure > (-1 if best[1] is None else best[1]):
            best = (label, confidence)
    return samples[0] if best is None else best


def weighted_best_of_n(samples):
    """Label with the most confidence, and its part of all confidence."""
    total = sum(Fraction(c) for _, c in samples if c is not None)
    sums = {}
    for label, confidence in samples:
        if label is not None and confidence is not None:
            sums[label] = sums.get(label, 0) + Fraction(confidence)
    if not sums or total == 0:
        return next((label for label, _ in samples if label is not None), None), None
    winner = next(label for label, w in sums.items() if w == max(sums.values()))
    return winner, float(sums[winner] / total)


def purity(labels, neighbors, k):
    """Mean over texts of the part of their k neighbors that have their label (eq. 1)."""
    total = Fraction(0)
    for i, ids in enumerate(neighbors):
        near = [j for j in ids[:k] if j >= 0]
        if near:
            total += Fraction(sum(labels[j] == labels[i] for j in near), len(near))
    return float(total / len(neighbors))


def most_similar(vectors, i, k, pool=None):
    """The k rows of the pool nearest to row i, which is not among them, and their cosines."""
    others = [j for j in (range(len(vectors)) if pool is None else pool) if j != i]
    scored = [(math.fsum(map(operator.mul, vectors[i], vectors[j])), j) for j in others]
    scored.sort(key=lambda pair: -pair[0])
    return [j for _, j in scored[:k]], [s for s, _ in scored[:k]]


def inconsistency(runs):
    """Mean over texts of the part of the runs that differ from the text's most frequent label."""
    n = len(runs[0])
    parts = []
    for i in range(n):
        given = [run[i] for run in runs]
        parts.append(1 - max(given.count(label) for label in given) / len(runs))
    return math.fsum(parts) / n


def log_capital(values, probabilities, floors, texts, mean, bets):
    """Log of the most that bettors had on average against "the mean of all is at most `mean`"."""
    money, known, had = [1.0] * len(bets), 0.0, []
    for value, chance, floor in zip(values, probabilities, floors, strict=True):
        seen = value / chance / texts + known
        # the lowest that `seen` can be, so that a bet never loses more than its stake
        least = 1 / floor / texts + max(mean - known, 0)
        for i, bet in enumerate(bets):
            money[i] *= 1 + bet * max((seen - mean) / least, -1)
        known += value / texts
        had.append(sum(money) / len(bets))
    return math.log(max(had, default=1.0))


def log_evidence(left, draws, wrong, budget, accuracy):
    """Return the log evidence that fewer than `budget` of the texts left are wrong.

    Lists over strata of lists over cohorts: texts left before the draws, the draws, the wrong ones
    among them.
    """
    a, b = 1.0, 7 / (1 - accuracy)
    predicted = 0.0
    for n, w in zip(map(sum, draws), map(sum, wrong), strict=True):
        for i in range(w):
            predicted += math.log((a + i) / (a + b + i))
        for i in range(n - w):
            predicted += math.log((b + i) / (a + b + w + i))
    highest = -math.inf
    left, draws, wrong = (list(itertools.chain(*of)) for of in (left, draws, wrong))
    ranges = [range(w, m - n + w + 1) for m, n, w in zip(left, draws, wrong, strict=True)]
    for of in itertools.product(*ranges):
        if sum(of) < budget:
            continue
        total = 0.0
        for m, n, w, count in zip(left, draws, wrong, of, strict=True):
            for i in range(w):
                total += math.log((count - i) / (m - i))
            for i in range(n - w):
                total += math.log((m - count - i) / (m - w - i))
        highest = max(highest, total)
    return predicted - highest


def class_masses(rows, scale):
    """Mass of each class after rows are multiplied by a scale and brought to a sum of 1."""
    masses = [0.0] * len(scale)
    for row in rows:
        scaled = [p * s for p, s in zip(row, scale, strict=True)]
        for c, p in enumerate(scaled):
            masses[c] += p / sum(scaled)
    return masses


def joined(head, neighbors, similarities, judged, own_labels, scale, extra):
    """Head times votes times scale, rows brought to a sum of 1; judged neighbors count more."""
    out = []
    for row, ids, close in zip(head, neighbors, similarities, strict=False):
        votes = [0.0] * len(row)
        for u, s in zip(ids, close, strict=True):
            if u < 0:
                continue
            label = judged[u] if judged[u] >= 0 else own_labels[u]
            if label >= 0:
                votes[label] += max(0.0, min(1.0, s)) * (extra if judged[u] >= 0 else 1)
        product = [h * (v + 0.3) * c for h, v, c in zip(row, votes, scale, strict=True)]
        out.append([p / sum(product) for p in product])
    return out


def head_of(vector, weights, curve):
    """Label and trust of a linear softmax classifier; the last row of the weights is the bias."""
    scores = [
        sum(x * row[c] for x, row in zip(vector, weights, strict=False)) + weights[-1][c]
        for c in range(len(weights[0]))
    ]
    label = max(range(len(scores)), key=lambda c: scores[c])
    chance = 1 / sum(math.exp(score - scores[label]) for score in scores)
    chance = min(max(chance, 1e-4), 1 - 1e-4)
    odds = curve[0] + curve[1] * math.log(chance / (1 - chance))
    return label, 1 / (1 + math.exp(-odds))


def binomial_tail(most, tries, rate):
    """Probability of at most `most` successes."""
    return sum(math.comb(tries, k) * rate**k * (1 - rate) ** (tries - k) for k in range(most + 1))
