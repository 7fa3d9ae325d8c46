"""Whether a share has moved, by batches of judged texts, however often one looks.

Given all judged texts so far, the number of hits among the latest is hypergeometric as long as the
share is the same, whatever it is. Its place in that distribution is uniform, and independent from
batch to batch (a conformal p-value). Bets on its normal score multiply to a test martingale, which
exceeds 1 / e with a chance of at most e, however often one looks (Ville). The martingale is a
mixture over the size of the change, and over the batch that it came with.

Source: Vovk 2021, "Testing randomness online" (Statistical Science).
"""

import numpy as np

from testnuc._base.arrays import Float64s, Int64s

#: The chance of a false alarm: half of it is for the first kind, the rest is shared by the others.
ERROR = 0.05
#: Changes that are bet on, in standard errors of a batch.
_SIZES = np.array([-1.5, -0.75, 0.75, 1.5])
#: A change is as likely in the first so many batches as in all later ones.
_EARLY = 26
#: Places in a distribution are at least so far from its ends.
_TINY = 1e-12


def found_moves(judged: Int64s, hits: Int64s) -> list[tuple[int, int, int]]:
    """Return the kinds of hits whose share is proved to have moved.

    Each as (kind, batch that proved it, batch that it most likely came with). `judged` and `hits`,
    int64[T, K]: texts and hits of each batch, the earliest first, for each kind.
    """
    if not len(judged):
        return []
    # the same ones for the same judgments, whatever is judged later
    between = np.array(
        [np.random.default_rng([k]).random(len(judged)) for k in range(judged.shape[1])]
    )
    evidence, since = log_evidence(judged, hits, between.T)
    error = np.full(judged.shape[1], ERROR / 2)
    error[1:] /= max(len(error) - 1, 1)
    proved = evidence >= -np.log(error)
    return [
        (kind, int(proved[:, kind].argmax()), int(since[kind]))
        for kind in np.flatnonzero(proved.any(axis=0)).tolist()
    ]


def log_evidence(judged: Int64s, hits: Int64s, between: Float64s) -> tuple[Float64s, Int64s]:
    """Return the log evidence after each batch that shares have moved, and since which batch.

    Arrays [T, K], and int64[K]. `between` are uniform random numbers in 0 to 1, which break ties.
    """
    from scipy.special import ndtri
    from scipy.stats import hypergeom

    steps, kinds = judged.shape
    so_far = judged.cumsum(axis=0), hits.cumsum(axis=0), judged
    place = hypergeom.cdf(hits - 1, *so_far) + between * hypergeom.pmf(hits, *so_far)
    score = ndtri(np.clip(place, _TINY, 1 - _TINY))[..., None]
    # the first batch is compared with nothing
    compared = ((judged > 0) & (so_far[0] > judged))[..., None]
    gains = np.where(compared, score * _SIZES - _SIZES**2 / 2, 0).cumsum(axis=0)
    at = np.arange(steps)[:, None, None]
    before = np.concatenate([np.zeros((1, kinds, len(_SIZES))), gains])[:-1]
    # what is bet from each batch on: all together is 1
    staked = np.log(_EARLY / ((at + _EARLY) * (at + _EARLY + 1)) / len(_SIZES)) - before
    capital = gains + np.logaddexp.accumulate(staked, axis=0)
    kept = -np.log1p((at[..., 0] + 1) / _EARLY)
    evidence: Float64s = np.logaddexp(np.logaddexp.reduce(capital, axis=2), kept)
    # where the evidence is highest, which bet is worth most
    best = evidence.argmax(axis=0)
    worth = np.logaddexp.reduce(staked + gains[best, np.arange(kinds)], axis=2)
    since = np.where(np.arange(steps)[:, None] <= best, worth, -np.inf).argmax(axis=0)
    return evidence, since
