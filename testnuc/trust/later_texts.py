"""Whether texts that came later are like those that judged texts were drawn from."""

import numpy as np

from testnuc._base.arrays import Bools, Float64s, Int32s, Int64s
from testnuc.trust.learned import Learned

#: Fewest later texts of which anything is said.
_LEAST = 30
#: Trust or labels differ if chance alone makes them differ as much in one of a thousand files.
_CHANCE = 1e-3
_LOW = 0.5


def about_later(learned: Learned, later: Bools, trust: Float64s, label: Int32s) -> str | None:
    """Return how trust and labels of later texts differ; None: there are few, or trust is unknown.

    `later`, bool[n], are the texts that came later, by `Learned.later`; `trust` and `label`, -1 =
    none, those of all n texts, as they are labeled now.
    """
    here = later & np.isfinite(trust)
    new = trust[here]
    if len(new) < _LEAST or not len(learned.given):
        return None
    old = learned.trust[np.isfinite(learned.trust)].astype(np.float64)
    if len(old) < _LEAST:
        return None
    kinds = len(learned.labels) + 1
    before, now = (np.bincount(of % kinds, minlength=kinds) for of in (learned.given, label[here]))
    moved = f"trust {new.mean():.2f} in the mean ({old.mean():.2f} before)"
    said = f"{len(new):,} texts came after the {learned.texts:,} that judged texts were drawn from"
    differ = [one < _CHANCE for one in (_chance_of_trust(old, new), _chance_of(before, now))]
    if not any(differ):
        return f"{said}, and are like them: {moved}"
    low = f"below {_LOW} for {(new < _LOW).mean():.0%} ({(old < _LOW).mean():.0%} before)"
    text = f"{said}, and differ: {moved}, {low}"
    if differ[1]:
        first, second = before / before.sum(), now / now.sum()
        most = int(np.abs(second - first).argmax())
        name = repr(learned.labels[most]) if most < kinds - 1 else "no label"
        text += (
            f"; {np.abs(second - first).sum() / 2:.0%} of them would need another label to have "
            f"the former shares, mostly {name} ({second[most]:.1%}, {first[most]:.1%} before)"
        )
    return f"{text}; what was proved before says nothing of them"


def _chance_of_trust(old: Float64s, new: Float64s) -> float:
    """Return how likely chance makes two means differ as much (Welch)."""
    from scipy.special import ndtr

    error = np.sqrt(old.var() / len(old) + new.var() / len(new))
    return float(2 * ndtr(-abs(new.mean() - old.mean()) / max(error, 1e-12)))


def _chance_of(before: Int64s, now: Int64s) -> float:
    """Return how likely chance makes shares of labels differ as much; rare labels are one."""
    from scipy.stats import chi2_contingency

    rare = (before + now) * min(before.sum(), now.sum()) < 5 * (before.sum() + now.sum())
    table = np.array([[*of[~rare], of[rare].sum()] for of in (before, now)])
    table = table[:, table.sum(axis=0) > 0]
    return float(chi2_contingency(table).pvalue) if table.shape[1] > 1 else 1.0
