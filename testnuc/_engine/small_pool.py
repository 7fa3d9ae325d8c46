"""Warnings about a pool that is too small for the requested vote."""

from __future__ import annotations

from testnuc.errors import SmallPoolWarning
from testnuc.trust import MIN_PREDICTIONS


def few_predictions(found: int, more: str = "label more texts at once") -> SmallPoolWarning | None:
    """Return a warning if there are too few predictions for the auto policy.

    `more` says how to get more of them, for the message.
    """
    if found >= MIN_PREDICTIONS:
        return None
    return SmallPoolWarning(
        f"policy 'auto' has {found} predictions and needs {MIN_PREDICTIONS}: the LLM's own labels "
        "are kept",
        f"{more}, or judge fifty texts: `await nuc.review(50)`",
        "label more texts at once, or judge fifty of them: testnuc review",
    )


def few_neighbors(
    k: int,
    texts: int,
    found: int,
    *,
    stored: bool,
    more: str = "add unlabeled texts with `await nuc.add(texts)`",
) -> SmallPoolWarning | None:
    """Return a warning if fewer than k neighbors can vote: `found` at most of `texts` in the pool.

    `stored`: only texts with a stored prediction vote; `more` says how to get more texts.
    """
    if found >= k:
        return None
    voters = f"at most {found} neighbors vote" if found else "only the text itself votes"
    remedy = f"{more}, or give a smaller k"
    options = "label more texts at once, or give a smaller --k"
    if stored:
        remedy += "; with neighbors='stored' only texts with a prediction vote, see predict_pool"
        options += "; with --neighbors stored only texts with a stored answer vote"
    return SmallPoolWarning(
        f"k is {k}, but the pool holds {texts} texts: {voters}", remedy, options
    )
