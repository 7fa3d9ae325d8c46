"""A linear classifier on embeddings, self-trained on the LLM's own labels.

It is a softmax; where a text can have several labels, a sigmoid for each of them (one versus rest).
The head is fitted on soft labels by preconditioned L-BFGS and predicts every text out of fold, so
that no text is predicted by a head that saw its label. Folds follow the content hash: equal inputs
give equal folds. `testnuc.trust.model` joins the head with the vote of the neighbors.

Sources: self-training, Scudder 1965 and Lee 2013 (pseudo-label); class sizes by Sinkhorn scaling,
Cuturi 2013, as in SwAV (Caron et al. 2020).
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

import numpy as np

from testnuc._base.arrays import Bools, Float32s, Float64s, Floats, Int32s, Int64s
from testnuc._base.display import Brief
from testnuc.errors import InvalidInputError
from testnuc.voting.votes import processors

#: Parts of the texts; each is predicted by a head that was fitted on the others.
FOLDS = 5
#: Weight of the L2 penalty beside the mean log loss.
PENALTY = 3e-5
#: Steps of L-BFGS of a first fit, and of one that starts from an earlier fit.
_FIRST, _NEXT = 12, 6
#: Most steps of a fit to judged texts, and the part of the loss that a step gains: less is noise.
_MOVES = {"maxiter": 30, "ftol": 1e-6}
#: Log odds that the LLM's own label gets beside a model: a model changes what it is sure of.
OWN_CARE = 2.0
#: Texts that one fit sees at most; more change little and cost time.
_MOST_TEXTS = 40_000
#: Steps of Sinkhorn scaling at most; it ends where no class changes by more than `_CLOSE`.
_SINKHORN, _CLOSE = 50, 0.01
_LEAST_MASS = 1e-3
_MOST_SCALE = 1e6
#: Largest log odds: float32 has no larger e ** x than that of 88.
_STEEPEST = np.float32(60)
_FITTING = Lock()
if hasattr(os, "register_at_fork"):
    # a thread that holds it does not survive a fork
    os.register_at_fork(after_in_child=lambda: globals().update(_FITTING=Lock()))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LinearHead(Brief):
    """A fitted linear classifier: a softmax, or a sigmoid for each label."""

    #: float32[dim + 1, C]; the last row is the bias.
    weights: Float32s
    #: Whether a text can have several labels, so that each has a probability of its own.
    several: bool = False

    def probabilities(self, vectors: Floats) -> Float32s:
        """Return float32[n, C]; rows of a softmax sum to 1."""
        if vectors.shape[1] != (dim := len(self.weights) - 1):
            raise InvalidInputError(
                f"what was learned is of embeddings with {dim} dimensions, and the embedder "
                f"returns {vectors.shape[1]}; give it another `name`, or `unlearn` and learn again"
            )
        z: Float32s = vectors.astype(np.float32) @ self.weights[:-1]
        z += self.weights[-1]
        if self.several:
            return _sigmoid(z)
        z -= z.max(axis=1, keepdims=True)
        np.exp(z, out=z)
        z /= z.sum(axis=1, keepdims=True)
        return z

    def rounded(self) -> "LinearHead":
        """Return it as it is read back from a store, so that both give the same labels."""
        return LinearHead(self.weights.astype(np.float16).astype(np.float32), self.several)


def folds_of(hashes: Sequence[bytes]) -> Int64s:
    """Return the fold of each text, 0 to 4, by its content hash."""
    return np.array([h[0] % FOLDS for h in hashes], dtype=np.int64)


def fit_head(
    vectors: Floats,
    targets: Float32s,
    *,
    start: LinearHead | None = None,
    several: bool = False,
    used: Bools | None = None,
) -> LinearHead:
    """Fit a head on soft labels, float32[n, C]; a row of zeros is ignored.

    From an earlier fit, `start`, fewer steps are needed. `several`: targets are 1 for each label of
    a text, and a row of zeros has no label. `used`, bool[n]: texts that it sees; default: all.
    """
    from scipy.linalg import solve_triangular
    from scipy.optimize import minimize

    seen = np.ones(len(vectors), np.bool_) if used is None else used
    rows = np.flatnonzero(seen if several else seen & targets.any(axis=1))
    if len(rows) > _MOST_TEXTS:
        # evenly over the texts, without chance
        rows = rows[np.linspace(0, len(rows) - 1, _MOST_TEXTS).astype(np.int64)]
    x = np.empty((len(rows), vectors.shape[1] + 1), dtype=np.float32)
    x[:, :-1] = vectors[rows]
    x[:, -1] = 1
    t = targets[rows]
    total, dim, n_classes = len(rows), x.shape[1], t.shape[1]
    if not total:
        return LinearHead(np.zeros((dim, n_classes), dtype=np.float32), several)
    # The Hessian of the loss is close to X'X (Böhning 1992): in its basis few steps are needed.
    bound = 4 if several else n_classes
    # of a copy: else BLAS rounds otherwise (syrk), and the same texts give another model
    gram = x.copy().T @ x / total / bound + PENALTY * np.eye(dim, dtype=np.float32)
    root = np.linalg.cholesky(gram.astype(np.float64))
    basis = solve_triangular(root, np.eye(dim), lower=True).T.astype(np.float32)
    x = x @ basis
    mass = t.sum(axis=1)
    wt = t / total

    def loss(flat: Float64s) -> tuple[float, Float64s]:
        v = flat.reshape(dim, n_classes).astype(np.float32)
        z = x @ v
        if several:
            fit = float((wt * z).sum())
            fit -= float(np.logaddexp(0, z).sum()) / total
            z = _sigmoid(z) * (np.float32(1) / np.float32(total))
        else:
            z -= z.max(axis=1, keepdims=True)
            fit = float((wt * z).sum())
            np.exp(z, out=z)
            norm = z.sum(axis=1)
            fit -= float((mass * np.log(norm)).sum()) / total
            z *= (mass / norm / total)[:, None]
        z -= wt
        real = basis @ v
        gradient = x.T @ z + PENALTY * (basis.T @ real)
        penalty = 0.5 * PENALTY * float((real * real).sum())
        return penalty - fit, gradient.ravel().astype(np.float64)

    first = np.zeros((dim, n_classes))
    if start is not None:
        first = np.linalg.solve(basis.astype(np.float64), start.weights.astype(np.float64))
    steps = {"maxiter": _FIRST if start is None else _NEXT}
    found = minimize(loss, first.ravel(), jac=True, method="L-BFGS-B", options=steps)
    return LinearHead(basis @ found.x.reshape(dim, n_classes).astype(np.float32), several)


def fit_folds(
    vectors: Floats,
    targets: Float32s,
    folds: Int64s,
    start: Sequence[LinearHead] | None = None,
    *,
    several: bool = False,
) -> tuple[LinearHead, ...]:
    """Fit a head for each fold, on the texts of the others; `start` are earlier fits of them.

    One per core, with one thread of BLAS each.
    """

    def fit(fold: int) -> LinearHead:
        before = start[fold] if start else None
        return fit_head(vectors, targets, start=before, several=several, used=folds != fold)

    with one_thread(), ThreadPoolExecutor(min(FOLDS, processors())) as threads:
        return tuple(threads.map(fit, range(FOLDS)))


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep BLAS to one thread: on matrices of this size more threads take longer."""
    from threadpoolctl import threadpool_limits

    # the limit holds for the process: two fits at once must not restore each other's limit
    with _FITTING, threadpool_limits(1, user_api="blas"):
        yield


def class_scale(probabilities: Float32s, power: float) -> Float32s:
    """Return what probabilities are multiplied by, float32[C], so that class sizes get more equal.

    With power 0: no change; 1: all classes get the same mass (Sinkhorn scaling); 0.5: half the way.
    """
    n, n_classes = probabilities.shape
    scale = np.ones(n_classes)
    if not power or not n:
        return scale.astype(np.float32)
    for _ in range(_SINKHORN):
        norm = probabilities @ scale.astype(np.float32)
        mass = (probabilities / norm[:, None]).sum(axis=0, dtype=np.float64) * scale
        step = np.maximum(mass * n_classes / n, _LEAST_MASS)
        # a class without any mass would grow without end
        scale = np.clip(scale / step, 1 / _MOST_SCALE, _MOST_SCALE)
        if np.abs(step - 1).max() < _CLOSE:
            break
    scale /= np.exp(np.log(scale).mean())
    return (scale**power).astype(np.float32)


def fit_move(
    said: Float32s, x: Float32s, gram: Float64s, labels: Int32s, weights: Float32s, kept: float
) -> tuple[float, float, Float32s]:
    """Fit ``a * logs + b * own + x @ w``, whose softmax gives the chance of each label.

    Returns a, b and w, float32[d, C]. `said`, float32[2, m, C], are the log probabilities of a
    model, and 1 for the LLM's label; `gram` is x @ x.T. Priors are normal with a standard deviation
    of 1: a around `kept`, b around `OWN_CARE`, w around 0. Without texts these are the result.
    """
    from scipy.linalg import solve_triangular
    from scipy.optimize import minimize

    (logs, own), (m, n_classes) = said, said.shape[1:]
    prior = np.array([kept, OWN_CARE])
    if not m:
        return kept, OWN_CARE, np.zeros((x.shape[1], n_classes), dtype=np.float32)
    at, inner, root = np.arange(m), x, None
    if m < x.shape[1]:
        # what is orthogonal to all x stays 0: m coordinates suffice
        root = np.linalg.cholesky(gram + 1e-6 * np.trace(gram) / m * np.eye(m))
        inner = root.astype(np.float32)

    def loss(flat: Float64s) -> tuple[float, Float64s]:
        away = flat[:2] - prior
        v = flat[2:].reshape(-1, n_classes).astype(np.float32)
        moved = np.float32(flat[0]) * logs + np.float32(flat[1]) * own + inner @ v
        moved -= moved.max(axis=1, keepdims=True)
        fit = float((weights * moved[at, labels]).sum(dtype=np.float64))
        np.exp(moved, out=moved)
        norm = moved.sum(axis=1)
        fit -= float((weights * np.log(norm)).sum(dtype=np.float64))
        moved /= norm[:, None]
        moved[at, labels] -= 1
        moved *= weights[:, None]
        of_two = away + np.array([(moved * logs).sum(), (moved * own).sum()], dtype=np.float64)
        slope = np.concatenate([of_two, (inner.T @ moved + v).ravel()])
        return 0.5 * float((v * v).sum() + away @ away) - fit, slope

    start = np.concatenate([prior, np.zeros(inner.shape[1] * n_classes)])
    best = minimize(loss, start, jac=True, method="L-BFGS-B", options=_MOVES).x
    v = best[2:].reshape(-1, n_classes)
    if root is not None:
        v = x.T @ solve_triangular(root, v, lower=True, trans="T")
    return float(best[0]), float(best[1]), v.astype(np.float32)


def predict_folds(heads: Sequence[LinearHead], vectors: Floats, folds: Int64s) -> Float32s:
    """Predict each text by the head that was fitted without its fold; float32[n, C]."""
    found = np.empty((len(vectors), heads[0].weights.shape[1]), dtype=np.float32)
    for fold, head in enumerate(heads):
        inside = folds == fold
        found[inside] = head.probabilities(vectors[inside])
    return found


def _sigmoid(z: Float32s) -> Float32s:
    result: Float32s = np.clip(z, -_STEEPEST, _STEEPEST)
    np.exp(-result, out=result)
    return np.float32(1) / (np.float32(1) + result)
