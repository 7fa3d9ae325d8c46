"""The warnings about a pool that is too small for the vote that was asked for."""

from __future__ import annotations

from testnuc.errors import SmallPoolWarning
from testnuc.trust import MIN_PREDICTIONS

__all__ = ["few_neighbors", "few_predictions"]


def few_predictions(found: int, more: str = "label more texts at once") -> SmallPoolWarning | None:
    """Return the warning that the auto policy cannot decide by so few predictions, if it cannot.

    Parameters
    ----------
    found : int
        Predictions.
    more : str
        How the caller gets more of them.
    """
    if found >= MIN_PREDICTIONS:
        return None
    return SmallPoolWarning(
        f"policy 'auto' has {found} predictions to judge by and needs {MIN_PREDICTIONS}: each text "
        "keeps its own",
        f"{more}, or choose policy='weighted'",
        "label more texts at once, or choose --policy weighted",
    )


def few_neighbors(
    k: int,
    texts: int,
    found: int,
    *,
    stored: bool,
    more: str = "add unlabeled texts with `await nuc.add(texts)`",
) -> SmallPoolWarning | None:
    """Return the warning that fewer than k neighbors vote, if that is so.

    Parameters
    ----------
    k : int
        Neighbors that were asked for.
    texts : int
        Texts in the pool.
    found : int
        The most neighbors that one text has.
    stored : bool
        Whether only texts with a stored prediction vote.
    more : str
        How the caller gets more texts.
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
