"""What is wrong with a label set, by the LLM's answers: labels confused, unused, missing.

Neighbors with two different labels are what a confused pair leaves behind, and so do two labels
that are rightly next to each other. Only near copies separate the two, as in `auto_policy`: where
they disagree, the LLM confuses labels.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from testnuc._base.arrays import Float32s, Int32s, Int64s
from testnuc._base.display import Brief, columns, one_line
from testnuc.errors import InvalidInputError
from testnuc.label_matching import fold_case, fold_punctuation
from testnuc.trust.auto_policy import MIN_PREDICTIONS, diagnose
from testnuc.trust.diagnosis import Diagnosis
from testnuc.trust.learned import Learned
from testnuc.types import Classification

#: Texts up to which labels are checked where nobody asks for it.
MOST_CHECKED = 20_000
#: Nearest neighbors of a text that are compared with it.
_NEIGHBORS = 10
#: Pairs of labels that are listed, and texts that are shown of each.
_LISTED, _SHOWN = 20, 3
#: A pair is listed if so many neighbors have it, so many times as many as by chance, and so many
#: standard errors more.
_FEWEST, _LIFT, _ERRORS = 5, 2.0, 4.0
#: Parts of the mean number of texts of a label up to which it hardly occurs, and from which it may
#: swallow others, if it is confused with so many.
_RARE, _OFTEN, _MANY = 0.1, 2.0, 3
#: Agreement of near copies that is as good as 1.
_SAME = 0.999
#: Texts for each label from which one that was never given says something.
_TEXTS_PER_LABEL = 5
#: Labels and characters of a text in one line.
_IN_LINE, _WIDTH = 8, 70
#: Words of an answer that say nothing of its topic; similarity of two that mean the same.
_EMPTY = frozenset({"inquiry", "issue", "problem", "query", "question", "request", "the"})
_SAME_MEANING = 0.85


@dataclass(frozen=True, slots=True, repr=False)
class ConfusedPair(Brief):
    """Two labels that the LLM gives to texts next to each other."""

    first: str
    second: str
    #: The share of all neighbors that have these two labels: merging them gains at most about this.
    share: float
    #: How many times as often neighbors have them as they would by chance.
    lift: float
    #: Texts side by side, most similar first: one with the first label, a neighbor with the other.
    examples: tuple[tuple[str, str], ...]
    #: Judged texts to which the LLM gave one of the labels where the other is right.
    confirmed: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class LabelCheck(Brief):
    """What stands out in a label set. ``print`` it."""

    #: Distinct texts with an answer of the LLM, and the labels.
    texts: int
    labels: tuple[str, ...]
    #: The most confused first.
    pairs: tuple[ConfusedPair, ...]
    #: Whether near copies disagree, so that these labels are confused; if not, they may as well be
    #: two labels of similar texts.
    proved: bool
    #: The share of neighbors that as many pairs have which are drawn at random.
    by_chance: float
    #: Labels that were never given, and label -> texts of those that hardly were; that no text is
    #: "none of these" is no fault.
    never: tuple[str, ...]
    rare: Mapping[str, int]
    #: Label that is given often -> labels that it may swallow.
    swallowing: Mapping[str, tuple[str, ...]]
    #: What answers outside the labels say -> how many say so, in other words as well.
    outside: Mapping[str, int]

    def grouped(self, vectors: Sequence[Sequence[float]] | Float32s) -> Self:
        """Return the check with answers `outside` that mean the same as one.

        `vectors` are embeddings of the first of them.
        """
        unit = np.asarray(vectors, dtype=np.float64)
        unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
        alike, heads = unit @ unit.T >= _SAME_MEANING, [*self.outside]
        for at, row in enumerate(alike):
            # the first one that means the same, which is the most frequent
            heads[at] = heads[min(int(row.argmax()), at)]
        groups = Counter[str]()
        for head, n in zip(heads, self.outside.values(), strict=True):
            groups[head] += n
        return replace(self, outside=dict(groups.most_common()))

    @property
    def notice(self) -> str | None:
        """What stands out, in a line; None: nothing does."""
        found = [self._unused()] if self.never else []
        if self.proved and self.pairs:
            such = f"{self.pairs[0].first!r} and {self.pairs[0].second!r}"
            found.append(f"pairs of labels that are confused: {len(self.pairs)}, such as {such}")
        return "; ".join(found) or None

    def __str__(self) -> str:
        return "\n".join([*self._pairs(), *self._labels()])

    def _pairs(self) -> Iterator[str]:
        if not self.pairs:
            counted = f"{self.texts:,} texts with an answer, {len(self.labels):,} labels"
            yield f"{counted}: no pair of labels stands out"
            return
        gain = 100 * sum(pair.share for pair in self.pairs)
        why = (
            "near copies disagree, so the LLM confuses labels"
            if self.proved
            else "near copies do not show that the LLM confuses them: judge some texts before you "
            "merge labels that may rightly differ"
        )
        rows = [["labels", "gain up to", "times chance", "confirmed by judgments"]]
        for p in self.pairs:
            cells = f"{100 * p.share:.2f}", f"{p.lift:.0f}", str(p.confirmed)
            rows.append([f"{p.first} | {p.second}", *cells])
        if not any(pair.confirmed for pair in self.pairs):
            rows = [row[:-1] for row in rows]
        merged = f"Merging all of them gains up to about {gain:.1f} points of accuracy"
        yield f"Pairs of labels that stand out in {self.texts:,} texts: {len(self.pairs)}; {why}."
        yield f"{merged}; as many random pairs {100 * self.by_chance:.1f}."
        yield from ("", columns(rows), "")
        for pair in self.pairs:
            yield f"{pair.first} | {pair.second}"
            for one, other in pair.examples:
                yield f"    {one_line(one, _WIDTH)} | {one_line(other, _WIDTH)}"

    def _unused(self) -> str:
        of = f"{len(self.never):,} of {len(self.labels):,} labels"
        return f"{of}: never given by the LLM ({_listed(self.never)})"

    def _labels(self) -> Iterator[str]:
        if self.never:
            yield self._unused()
        if self.rare:
            rare = [f"{label} ({n:,})" for label, n in self.rare.items()]
            yield f"labels that hardly occur: {_listed(rare)}"
        for label, others in self.swallowing.items():
            yield f"{label} is given often, and may swallow {_listed(others)}"
        for answer, n in [*self.outside.items()][:_IN_LINE]:
            yield f"answers outside the labels that say {answer[:_WIDTH]!r}: {n:,}"
        if more := [*self.outside.values()][_IN_LINE:]:
            yield f"answers outside the labels that say something else: {sum(more):,}"


def _listed(names: Sequence[str]) -> str:
    more = f", and {len(names) - _IN_LINE:,} more" if len(names) > _IN_LINE else ""
    return ", ".join(names[:_IN_LINE]) + more


def checked_labels(
    results: Sequence[Classification],
    names: Sequence[str],
    learned: Learned | None = None,
    diagnosis: Diagnosis | None = None,
    none_label: str | None = None,
) -> LabelCheck:
    """Check a label set by the LLM's own answers, one label for each text.

    `names` are its labels, if they are known; `diagnosis` is that of these answers, if it is made.
    """
    once = {result.text: result for result in results if result.prediction is not None}
    rows = list(once.values())
    if rows and rows[0].multilabel:
        raise InvalidInputError(
            "labels cannot be checked where a text can have several: nothing says what is confused"
        )
    given = Counter(row.own_label for row in rows if row.own_label is not None)
    names = tuple(names) or tuple(sorted(given))
    pairs, by_chance, proved = _confused(rows, names, diagnosis)
    partners = defaultdict[str, list[str]](list)
    for pair in pairs:
        partners[pair.first].append(pair.second)
        partners[pair.second].append(pair.first)
    mean = given.total() / max(len(names), 1)
    enough = len(rows) >= _TEXTS_PER_LABEL * len(names)
    seldom = [n for n in names if enough and n != none_label and given[n] <= _RARE * mean]
    listed = pairs[:_LISTED]
    return LabelCheck(
        texts=len(rows),
        labels=names,
        pairs=tuple(listed if learned is None else _confirmed(listed, once, learned)),
        proved=proved,
        by_chance=by_chance * len(listed),
        never=tuple(name for name in seldom if not given[name]),
        rare={name: given[name] for name in seldom if given[name]},
        swallowing={
            name: tuple(partners[name])
            for name in names
            if given[name] >= _OFTEN * mean and len(partners[name]) >= _MANY
        },
        outside=grouped(own.said for row in rows if (own := row.prediction) and own.unmatched),
    )


def grouped(answers: Iterable[str | None]) -> dict[str, int]:
    """Count answers, most frequent first; those that differ in spelling only are one.

    "charge back", "Chargebacks" and "chargeback request" are.
    """
    said = Counter(answer for answer in answers if answer)
    groups, first = Counter[str](), dict[str, str]()
    for answer, n in said.most_common():
        words = fold_punctuation(fold_case(answer.replace("_", " "))).split()
        telling = [word for word in words if word not in _EMPTY] or words
        form = "".join(word.removesuffix("s") for word in telling)
        groups[first.setdefault(form or answer, answer)] += n
    return dict(groups.most_common())


def _confirmed(
    pairs: Sequence[ConfusedPair], rows: Mapping[str, Classification], learned: Learned
) -> list[ConfusedPair]:
    """Return the pairs with the number of judged texts that confuse them."""
    wrong = Counter(
        frozenset((row.own_label, judgment.label))
        for judgment in learned.judged
        if judgment.label is not None and (row := rows.get(judgment.text)) is not None
    )
    return [replace(p, confirmed=wrong[frozenset((p.first, p.second))]) for p in pairs]


def _neighbors(
    rows: Sequence[Classification], names: Sequence[str]
) -> tuple[list[str], Int32s, Int64s, Float32s]:
    """Return texts, those of the rows first, their labels, and ids and similarities of neighbors.

    Arrays are as in `diagnose`.
    """
    number = {name: at for at, name in enumerate(names)}
    places = {row.text: at for at, row in enumerate(rows)}
    labels = [number.get(row.own_label or "", -1) for row in rows]
    width = max((len(row.neighbors) for row in rows), default=0)
    ids = np.full((len(rows), width), -1, dtype=np.int64)
    similarities = np.zeros((len(rows), width), dtype=np.float32)
    for at, row in enumerate(rows):
        for rank, near in enumerate(row.neighbors):
            place = places.setdefault(near.text, len(labels))
            if place == len(labels):
                labels.append(number.get(near.label or "", -1))
            ids[at, rank] = place
            # a file can say anything
            similarities[at, rank] = max(-1.0, min(1.0, near.similarity))
    return list(places), np.array(labels, dtype=np.int32), ids, similarities


def _confused(
    rows: Sequence[Classification], names: Sequence[str], diagnosis: Diagnosis | None
) -> tuple[list[ConfusedPair], float, bool]:
    """Return confused pairs, the share of a random pair, and whether near copies disagree."""
    n = len(names)
    texts, labels, ids, similarities = _neighbors(rows, names)
    # of two labels, merging leaves none to tell apart
    if n < 3 or len(rows) < MIN_PREDICTIONS or not ids.shape[1]:
        return [], 0.0, False
    row, rank = np.nonzero(ids[:, :_NEIGHBORS] >= 0)
    sides = np.stack([row, ids[row, rank]], axis=1)
    # that with the first label first; mutual neighbors count once
    order = np.lexsort((sides, labels[sides]), axis=1)
    sides, once = np.unique(np.take_along_axis(sides, order, axis=1), axis=0, return_index=True)
    known = (labels[sides] >= 0).all(axis=1)
    sides, similarity = sides[known], similarities[row, rank][once][known]
    low, high = labels[sides].T.astype(np.int64)
    total, differ = len(sides), low != high
    codes = np.where(differ, low * n + high, -1)
    places, counts = np.unique(codes[differ], return_counts=True)
    shares = np.bincount(labels[labels >= 0], minlength=n) / max((labels >= 0).sum(), 1)
    chance = 2 * shares[places // n] * shares[places % n] * total
    stands_out = (counts >= np.maximum(_FEWEST, _LIFT * chance)) & (
        counts - chance >= _ERRORS * np.sqrt(chance)
    )
    pairs = []
    for at in np.flatnonzero(stands_out)[np.argsort(-counts[stands_out], kind="stable")].tolist():
        first, second = divmod(int(places[at]), n)
        of_pair = np.flatnonzero(codes == places[at])
        of_pair = of_pair[np.argsort(-similarity[of_pair], kind="stable")]
        # those most alike, of which no two share a text
        used, chosen = set[int](), list[list[int]]()
        for pair in sides[of_pair].tolist():
            if used.isdisjoint(pair) and len(chosen) < _SHOWN:
                chosen.append(pair)
                used.update(pair)
        examples = tuple((texts[one], texts[other]) for one, other in chosen)
        share, lift = float(counts[at] / total), float(counts[at] / chance[at])
        pairs.append(ConfusedPair(names[first], names[second], share, lift, examples))
    if diagnosis is None:
        diagnosis = diagnose(ids, similarities, labels, n_classes=n)
    # there are candidates if near copies disagree, but for rounding, and agree beyond chance
    disagree = bool(diagnosis.candidates) and diagnosis.near_copies_bounds[1] < _SAME
    by_chance = differ.sum() / max(total, 1) / (n * (n - 1) / 2)
    return pairs, float(by_chance), disagree
