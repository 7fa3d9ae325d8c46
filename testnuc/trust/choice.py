"""Which of several runs labels best, proved by judged texts on which they differ.

Texts come in an order drawn at random. Where two runs give one label they are equally right,
whichever label is right, so nothing is judged; elsewhere a judgment says which one is. So a pair of
runs is a sequence of draws whose values are known up to the first text that is not judged, and bets
on it bound the difference of the accuracies at any time, see `evidence`. Runs that are proved to be
worse than another drop out: texts on which only these differ are not judged.

A wrong choice needs a wrong bound between the best run and the chosen one: the error is split among
as many pairs as there are other runs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import chain

import numpy as np

from testnuc._base.arrays import Bools, Float64s, Int32s
from testnuc._base.checks import checked_number, checked_whole, hash_text, valid_text
from testnuc.errors import InvalidInputError
from testnuc.trust.evidence import Draws, capital
from testnuc.trust.review import Review, ReviewContext, ReviewItem
from testnuc.trust.shares import Share
from testnuc.types import Classification

#: Parts of the capital that are bet: small ones for runs that are nearly as good.
_BETS = np.array([0.1, 0.25, 0.5, 0.8])
#: Steps of the search for a bound: to less than a thousandth of a point.
_STEPS = 17
#: The goal of the items, and the name of each run for those who judge: they must not know it.
_GOAL, _ONE = "choose", "a run"


class Choice:
    """The best of several runs, as far as judgments prove it. ``print`` it."""

    #: The run that is chosen; None: not decided yet.
    chosen: str | None
    #: The chosen run, or the one that looks best.
    leading: str
    #: Other runs that are proved to be within the margin of the best.
    equal: tuple[str, ...]
    #: Runs that are proved to be worse than another.
    worse: tuple[str, ...]
    #: Run -> its accuracy minus that of `leading`, with bounds.
    differences: Mapping[str, Share]

    def __init__(
        self,
        runs: Mapping[str, Sequence[Classification]],
        judged: Review | None,
        order: Sequence[str],
        among: int | None,
    ) -> None:
        #: Number of distinct texts that all runs label, and of those that they are a sample of.
        self.texts = n = len(order)
        self.among = n if among is None else checked_whole("among", among, least=1)
        if self.among < n:
            raise InvalidInputError(f"among is {among:,}, but the runs have {n:,} texts")
        self._order, self._runs = order, runs
        given = [{row.text: row.label for row in run} for run in runs.values()]
        self._names = sorted({name for run in given for name in run.values() if name})
        number = {name: at for at, name in enumerate(self._names)}
        # int32[runs, texts]; -1: no label, which is never right
        self._labels: Int32s = np.array(
            [[number.get(run[text] or "", -1) for text in order] for run in given], np.int32
        )
        # in the order of a client, which takes the review
        choices = [getattr(run, "choices", None) or () for run in runs.values()]
        self._all = tuple(dict.fromkeys(chain(*choices, self._names)))
        self._items = {} if judged is None else {item.text: item for item in judged}
        new = {*self._all}.difference(() if judged is None else judged.labels)
        for text, judgment in [*self._items.items()]:
            label = judgment.answer
            if label is not None and label not in self._all:
                raise InvalidInputError(
                    f"the review judges {text[:60]!r} to be {label!r}, which is no label of these "
                    "runs: begin another review (--review FILE)"
                )
            if judgment.source and label is None and new:
                del self._items[text]  # a label that is new since may fit
        last = max((item.index for item in self._items.values() if item.source), default=-1)
        correct = np.full(n, -2, np.int32)
        # bool[texts]: whether a text is judged, and whether it was skipped
        self._judged, self._skipped = np.zeros((2, n), np.bool_)
        for at, text in enumerate(order):
            item = self._items.get(text)
            if item is not None and item.index <= last:
                self._judged[at], self._skipped[at] = item.source is not None, item.source is None
                correct[at] = number.get(item.answer or "", -2)
        # whether each run is right about each judged text, bool[runs, texts]
        self._right: Bools = self._labels == correct
        differ = self._differ([*range(len(given))])
        #: Number of texts on which runs differ, and of those of them that are judged or skipped.
        self.differing, self.judged = int(differ.sum()), int((differ & self._judged).sum())
        self.skipped = int((differ & self._skipped).sum())

    def decide(
        self, margin: float, confidence: float, costs: Mapping[str, float], *, cheapest: bool
    ) -> None:
        """Choose, as described at `choose`."""
        self._said = margin, confidence, costs, cheapest
        names, every = [*self._runs], range(len(self._runs))
        self._needed = float(np.log((len(names) - 1) / max(1 - confidence, 1e-12)))
        price = [costs.get(name, np.inf) if cheapest else 0.0 for name in names]

        def beaten(run: int, by_dearer: float) -> bool:
            """Whether another run is proved to be better; a dearer one by more than this."""
            return any(
                self._better(other, run, 0.0 if price[other] <= price[run] else by_dearer)
                for other in every
                if other != run
            )

        worse = [run for run in every if beaten(run, 0.0)]
        left = [run for run in every if not beaten(run, margin)] or [*every]
        within = [
            run
            for run in every
            if all(other in {run, *worse} or self._better(run, other, -margin) for other in every)
        ]
        right = self._right[:, self._judged].sum(axis=1)
        lowest = min(price[run] for run in left)
        decided = [run for run in left if run in within and price[run] == lowest]
        leading = max(decided or left, key=lambda run: right[run])
        self.leading, self.chosen = names[leading], names[leading] if decided else None
        self.equal = tuple(names[run] for run in within if run != leading)
        self.worse = tuple(names[run] for run in worse)
        self.differences = {name: self._difference(r, leading) for r, name in enumerate(names)}
        open_ = self._differ(left) & ~self._judged & ~self._skipped
        self._next: list[int] = np.flatnonzero(open_).tolist()

    @property
    def open(self) -> int:
        """Number of texts, not judged, on which runs differ that can still be chosen."""
        return len(self._next)

    def review(self, n: int = 50) -> Review:
        """Return a review of the texts judged so far and the next n; give it to `choose`.

        Those who judge do not see which run gave which label.
        """
        known = np.flatnonzero(self._judged | self._skipped).tolist()
        # a text that was skipped stays between those that were judged
        before = sorted((self._items[self._order[at]] for at in known), key=lambda item: item.index)
        items = [replace(item, index=at) for at, item in enumerate(before)]
        for at in self._next[: checked_whole("n", n, least=1)]:
            numbers = np.unique(self._labels[:, at]).tolist()
            labels = tuple((self._names[of], (_ONE,)) for of in numbers if of >= 0)
            text, place = self._order[at], len(items)
            items.append(ReviewItem(place, text, hash_text(text), None, labels, goal=_GOAL))
        described = dict[str, str]()
        for run in self._runs.values():
            described |= getattr(run, "descriptions", None) or {}
        context = ReviewContext(differing=self.differing, descriptions=described)
        return Review(items, self._all, self.texts, "", context)

    def __str__(self) -> str:
        margin, confidence, costs, cheapest = self._said
        points, of = f"{100 * margin:g} points", f"on {self.among:,} texts"
        counted = f"{self.texts:,} texts are in all runs, on {self.differing:,} labels differ"
        lines = [f"{counted}; {self.judged:,} of these are judged"]
        lines[0] += f", {self.skipped:,} were skipped" * bool(self.skipped)
        if self.among > self.texts:
            of += f", of which these {self.texts:,} are a sample"
        if self.chosen is not None:
            what = f"most accurate run, or within {points} of it"
            if cheapest:
                what = f"cheapest run within {points} of the most accurate one"
            lines.append(f"choose {self.chosen}: the {what}, {of} ({confidence:.0%} confidence)")
        elif self.open:
            lines.append("not decided yet: judge more texts")
        else:
            lines.append(f"not decided {of}, though no text is left to judge: label more texts")
        for run, of_run in self.differences.items():
            value, low, high = (f"{100 * v:+.1f}" for v in (of_run.value, of_run.low, of_run.high))
            said = f"{value} points ({low} to {high})"
            if run == self.leading:
                said = "leads" if self.chosen is None else "chosen"
            said += f", equal within {points}" if run in self.equal else ""
            said += ", worse" if run in self.worse else ""
            said += f", {costs[run]:.3g} USD for 1,000 texts" if run in costs else ""
            lines.append(f"  {run}: {said}")
        return "\n".join(lines)

    def _differ(self, runs: list[int]) -> Bools:
        """Return whether the labels of some runs differ, bool[texts]."""
        some = self._labels[runs]
        differ: Bools = (some != some[0]).any(axis=0)
        return differ

    def _values(self, one: int, other: int) -> Float64s:
        """Return which of two runs is right, 1 or -1, on each text up to the first open one."""
        differ = self._labels[one] != self._labels[other]
        unknown = differ & ~self._judged & ~self._skipped
        m = int(unknown.argmax()) if unknown.any() else len(differ)
        found = self._right[one, :m].astype(np.float64) - self._right[other, :m]
        # the worst case
        found[differ[:m] & self._skipped[:m]] = -1.0
        return found

    def _better(self, one: int, other: int, by: float) -> bool:
        """Whether one accuracy is proved to be higher than another by more than this."""
        values = self._values(one, other)
        if len(values) == self.among:
            return float(values.mean()) > by
        draws = Draws.at_random(self.among, len(values))
        return bool(capital(values, draws, np.array([by]), _BETS)[0] >= self._needed)

    def _difference(self, one: int, other: int) -> Share:
        """Return the accuracy of one run minus another's, with bounds."""
        if one == other:
            return Share(0.0, 0.0, 0.0)
        values = self._values(one, other)
        high = -self._least(other, one)
        # what was proved once may be contradicted by what was judged since
        low = min(self._least(one, other), high)
        middle = float(values.mean()) if len(values) else 0.0
        return Share(float(np.clip(middle, low, high)), low, high)

    def _least(self, one: int, other: int) -> float:
        low, high = -1.0, 1.0
        for _ in range(_STEPS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self._better(one, other, middle) else (low, middle)
        return low


def choose(
    runs: Mapping[str, Sequence[Classification]],
    judged: Review | None = None,
    *,
    margin: float = 0.02,
    confidence: float = 0.95,
    costs: Mapping[str, float] | None = None,
    cheapest: bool = False,
    among: int | None = None,
) -> Choice:
    """Choose the best of several runs on the same texts, such as of different models or prompts.

    Only texts on which runs differ are judged: those of ``choice.review()``. Give the review back,
    judged as a whole or in part; repeat this after any number of judgments.

    Parameters
    ----------
    runs : mapping of str to Results
        Name -> results. Texts are matched by their wording; those that a run lacks are left out.
    judged : Review, optional
        Judged texts, of ``choice.review()`` or of any review of these texts.
    margin : float
        Accuracies that differ by at most this are as good as equal, 0 to 1.
    confidence : float
        With which the chosen run is within `margin` of the most accurate one, over the order of the
        texts, however often one looks.
    costs : mapping of str to float, optional
        Name -> US dollars for 1,000 texts.
    cheapest : bool
        Choose the cheapest run within `margin`; a cost that is not known is more than all others.
    among : int, optional
        Number of distinct texts of which these are a random sample. Default: they are all.

    Raises
    ------
    InvalidInputError
        There are fewer than two runs, they have no text in common, or texts have several labels.

    Examples
    --------
    ::

        runs = {"small": await small.classify_many(texts)}
        runs["large"] = await large.classify_many(texts)
        review = testnuc.review.choose(runs).review()
        await nuc.ask(review, "openai/gpt-5")  # or a person: review.save("choose.json")
        print(testnuc.review.choose(runs, review))
    """
    checked_number("margin", margin, 0, 1)
    checked_number("confidence", confidence, 0, 1)
    if len(runs) < 2:
        raise InvalidInputError("there is one run; give two or more to choose from")
    if any(row.multilabel for run in runs.values() for row in run):
        raise InvalidInputError("texts have several labels; choose compares runs of one label")
    texts = [{row.text for row in run if valid_text(row.text) is None} for run in runs.values()]
    if not (shared := set.intersection(*texts)):
        raise InvalidInputError("the runs have no text in common; give runs on the same texts")
    choice = Choice(runs, judged, in_order(shared), among)
    choice.decide(margin, confidence, dict(costs or {}), cheapest=cheapest)
    return choice


def in_order(texts: Iterable[str]) -> list[str]:
    """Return texts in an order that is random, and the same among whatever other texts."""
    return sorted(texts, key=lambda text: blake2b(hash_text(text)).digest())
