"""What a look at the predictions found, and what was decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from testnuc.errors import MissingDependencyError
from testnuc.trust.evidence import GainEstimate

if TYPE_CHECKING:
    from testnuc.voting import VotePolicy

__all__ = ["Candidate", "Decision", "Diagnosis"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A vote that was considered."""

    #: Neighbors.
    k: int
    #: Weight of the text's own vote.
    own_weight: float
    #: Share of all labels that it changes.
    changed: float
    #: How much more often a near neighbor sides with the vote than with the text's own label,
    #: over all texts, extrapolated to similarity 1: the expected gain in accuracy there.
    gain: GainEstimate
    #: Share of the labels it changes, extrapolated to similarity 1.
    overruled: float


@dataclass(frozen=True, slots=True)
class Decision:
    """How to vote."""

    #: None: each text keeps its own prediction.
    policy: VotePolicy | None
    #: Neighbors that vote; 0 without a vote.
    k: int
    #: Why, in words.
    reason: str
    #: Label indices: a text that the LLM gave one of these keeps it, because near neighbors that
    #: were kept out side against the vote there.
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What predictions say of themselves, without any label."""

    #: How many predictions were looked at.
    predictions: int
    #: Chance-corrected agreement of a text's prediction with that of its neighbor of rank 1, 2, ..
    kappa: tuple[float, ...]
    #: (mean similarity, kappa, pairs) of bins of pairs, least similar first.
    agreement: tuple[tuple[float, float, int], ...]
    #: Kappa extrapolated to similarity 1: 1 less what is wrong by accident.
    near_copies: float
    #: Its lower bound, and its highest upper bound over several bandwidths.
    near_copies_bounds: tuple[float, float]
    #: The votes that were considered; none where the bounds already decide.
    candidates: tuple[Candidate, ...]
    decision: Decision
    warnings: tuple[str, ...]

    @property
    def expected_gain(self) -> GainEstimate:
        """The expected effect on accuracy of what was decided; 0 without a vote."""
        chosen = self.decision
        for candidate in self.candidates:
            if chosen.policy is not None and (candidate.k, candidate.own_weight) == (
                chosen.k,
                chosen.policy.own_weight,
            ):
                return candidate.gain
        return GainEstimate(0.0, 0.0)

    def __str__(self) -> str:
        lines = [f"{self.predictions} predictions"]
        if self.kappa:
            ranks = [r for r in (1, 5, 10, 20, 30) if r <= len(self.kappa)]
            shown = ", ".join(f"{self.kappa[r - 1]:.2f} (rank {r})" for r in ranks)
            lines.append(f"agreement with neighbors beyond chance: {shown}")
        lines.append("vote: " + self.decision.reason)
        lines.extend("warning: " + warning for warning in self.warnings)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from testnuc._base.html import facts, grid

        low, high = self.near_copies_bounds
        told = facts(
            f"Diagnosis of {self.predictions} predictions",
            [
                ("vote", self.decision.reason),
                ("near copies agree", f"{self.near_copies:.2f} ({low:.2f} to {high:.2f})"),
                *(("warning", warning) for warning in self.warnings),
            ],
        )
        if not self.candidates:
            return told
        head = ["neighbors", "own weight", "labels changed", "expected gain", "at least", "at most"]
        rows = [
            (c.k, c.own_weight, c.changed, c.gain.value, c.gain.low, c.gain.high)
            for c in self.candidates
        ]
        return told + grid(head, rows)

    def plot(self) -> Any:
        """Draw kappa over the rank and over the similarity; returns a matplotlib figure.

        Raises
        ------
        MissingDependencyError
            matplotlib is not installed (extra ``plots``).
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as exc:
            raise MissingDependencyError(
                "plots need matplotlib: pip install 'testnuc[plots]'"
            ) from exc
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        left.plot(range(1, len(self.kappa) + 1), self.kappa, marker=".")
        left.set(xlabel="rank of the neighbor", ylabel="agreement beyond chance (kappa)")
        right.plot([b[0] for b in self.agreement], [b[1] for b in self.agreement], marker="o")
        low, high = self.near_copies_bounds
        if low > -1 and high < 2:
            right.errorbar(
                [1.0],
                [self.near_copies],
                yerr=[[max(self.near_copies - low, 0)], [max(high - self.near_copies, 0)]],
                fmt="s",
                color="tab:red",
                capsize=3,
                label="near copies (bounds)",
            )
            right.legend(loc="upper left", frameon=False)
        right.set(xlabel="similarity")
        left.set_ylim(min(0.0, *self.kappa) if self.kappa else 0.0, 1.05)
        chosen = self.decision
        title = (
            "no vote"
            if chosen.policy is None
            else (f"vote of {chosen.k}, own weight {chosen.policy.own_weight:g}")
        )
        figure.suptitle(f"{title} ({self.predictions} predictions)")
        return figure
