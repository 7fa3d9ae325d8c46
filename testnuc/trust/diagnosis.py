"""The diagnosis of a pool's predictions, and the vote selected from it."""

from dataclasses import dataclass
from typing import Any

from testnuc._base.display import Brief, new_figure
from testnuc.trust.shares import Share
from testnuc.voting import VotePolicy

#: Texts of a first review.
FIRST_REVIEW = 50


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate vote and its estimated effect."""

    #: Number of neighbors.
    k: int
    #: Weight of the text's own vote.
    own_weight: float
    #: Share of labels that the vote changes.
    changed: float
    #: Expected gain in accuracy: how much more often a held-out near neighbor agrees with the vote
    #: than with the text's own label, extrapolated to similarity 1, and two standard errors around.
    gain: Share
    #: Share of labels that the vote changes, extrapolated to similarity 1.
    overruled: float


@dataclass(frozen=True, slots=True, repr=False)
class Decision(Brief):
    """The selected vote."""

    #: None: no vote; the LLM's own labels are kept.
    policy: VotePolicy | None
    #: Neighbors that vote; 0 without a vote.
    k: int
    #: The reason, for display.
    reason: str
    #: Indices of labels that the vote never changes, because held-out near neighbors of their texts
    #: disagree with the vote.
    kept: tuple[int, ...] = ()
    #: Texts whose nearest neighbor is less similar keep their labels.
    min_nearest: float = -1.0


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis(Brief):
    """Agreement statistics of predictions, and the vote selected from them."""

    #: Number of predictions in the diagnosis.
    predictions: int
    #: Chance-corrected agreement between a text and its neighbor of rank 1, 2, ..
    kappa: tuple[float, ...]
    #: (mean similarity, kappa, pairs) per similarity bin, least similar first.
    agreement: tuple[tuple[float, float, int], ...]
    #: Kappa extrapolated to similarity 1; below 1 by the rate of random errors.
    near_copies: float
    #: Its lower bound, and its highest upper bound over several bandwidths.
    near_copies_bounds: tuple[float, float]
    #: The candidate votes; empty if the bounds already decide.
    candidates: tuple[Candidate, ...]
    decision: Decision
    warnings: tuple[str, ...]
    #: Number of these labels that a plain vote of ten neighbors would change.
    differing: int = 0

    def sentence(self, judging: str | None = "`await nuc.review(50)`") -> str:
        """Return what was decided and why, what a vote would change, and what would help.

        Parameters
        ----------
        judging : str | None
            How to draw texts to be judged; None: some are judged.
        """
        chosen, decided = self.decision, "The LLM's own labels are kept"
        if chosen.policy is not None:
            decided = f"{chosen.k} neighbors vote, with own weight {chosen.policy.own_weight:g}"
        found = (
            f"{decided}: {chosen.reason}. Ten neighbors would give another label to "
            f"{self.differing:,} of {self.predictions:,} texts, rightly or not"
        )
        if judging is None:
            return found
        judged = "fifty judgments" if self.predictions >= FIRST_REVIEW else "judged texts"
        return (
            f"{found}. How many labels are right is unknown before some texts are judged; {judged} "
            f"also decide between these labels, a vote and a model of your texts: {judging}"
        )

    def __str__(self) -> str:
        return self.describe()

    def describe(self, judging: str = "`await nuc.review(50)`") -> str:
        """Return all that was found, in lines.

        Parameters
        ----------
        judging : str
            How to draw texts to be judged.
        """
        lines = [f"{self.predictions} predictions"]
        if self.kappa:
            ranks = [r for r in (1, 5, 10, 20, 30) if r <= len(self.kappa)]
            shown = ", ".join(f"{self.kappa[r - 1]:.2f} (rank {r})" for r in ranks)
            lines.append(f"agreement with neighbors beyond chance: {shown}")
        low, high = self.near_copies_bounds
        lines.append(f"agreement of near copies: {self.near_copies:.2f} ({low:.2f} to {high:.2f})")
        lines.extend("warning: " + warning for warning in self.warnings)
        return "\n".join([*lines, self.sentence(judging)])

    def plot(self) -> Any:
        """Return a matplotlib figure of kappa by neighbor rank and similarity (extra ``plots``)."""
        figure = new_figure(9, 3.6)
        left, right = figure.subplots(1, 2, sharey=True)
        left.plot(range(1, len(self.kappa) + 1), self.kappa, marker=".")
        left.set(xlabel="rank of the neighbor", ylabel="agreement beyond chance (kappa)")
        right.plot([b[0] for b in self.agreement], [b[1] for b in self.agreement], marker="o")
        low, high = self.near_copies_bounds
        if low > -1 and high < 2:
            middle, marks = self.near_copies, {"fmt": "s", "color": "tab:red", "capsize": 3}
            errors = [[max(middle - low, 0)], [max(high - middle, 0)]]
            right.errorbar([1.0], [middle], errors, **marks, label="near copies (bounds)")
            right.legend(loc="upper left", frameon=False)
        right.set(xlabel="similarity")
        left.set_ylim(min(0.0, *self.kappa) if self.kappa else 0.0, 1.05)
        chosen, title = self.decision, "no vote"
        if chosen.policy is not None:
            title = f"vote of {chosen.k}, own weight {chosen.policy.own_weight:g}"
        figure.suptitle(f"{title} ({self.predictions} predictions)")
        return figure
