"""Validation of the arrays of a vote, and conversion where necessary."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from testnuc._base.arrays import Array, Float32s, Int32s
from testnuc._base.checks import checked_whole
from testnuc.errors import InvalidInputError

#: With own weights up to 1000, the sums of this many votes fit in an int64.
_MAX_NEIGHBORS = 16_384
#: A similarity beyond this is not a cosine with rounding errors.
_LIMIT = 1.001
#: Labels are int32.
_MAX_CLASSES = 2**31 - 1

_NO_NUMBERS = np.empty(0, np.float32)
_ONE, _NAN = np.ones(1, np.float32), np.full(1, np.nan, np.float32)


def _checked(value: ArrayLike, name: str, kinds: str, ndim: int) -> Array:
    array = np.asarray(value)
    if array.ndim != ndim:
        raise InvalidInputError(
            f"{name} has the shape {array.shape}; give an array of {ndim} dimension(s)"
        )
    if array.dtype.kind not in kinds and array.size > 0:
        wanted = "integers" if kinds == "iu" else "numbers"
        raise InvalidInputError(f"{name} has the dtype {array.dtype}; give {wanted}")
    return array


def integers(value: ArrayLike, name: str, ndim: int) -> Int32s:
    """Return `value` as a contiguous int32 array."""
    array = _checked(value, name, "iu", ndim)
    if array.dtype != np.int32 and array.size > 0:
        for extreme in (array.min(), array.max()):
            if not -(2**31) <= int(extreme) < 2**31:
                raise InvalidInputError(f"{name} holds {extreme}, which is not a label")
    return np.ascontiguousarray(array, np.int32)


def numbers(value: ArrayLike, name: str, ndim: int) -> Float32s:
    """Return `value` as a contiguous float32 array."""
    array = _checked(value, name, "fiu", ndim)
    if array.dtype != np.float32:
        with np.errstate(over="ignore"):  # too large becomes infinite, which is rejected
            array = array.astype(np.float32)
    return np.ascontiguousarray(array)


def classes(value: int) -> int:
    """Return `n_classes` if labels are below it."""
    return checked_whole("n_classes", value, least=1, most=_MAX_CLASSES)


def _like(value: ArrayLike | None, name: str, shape: tuple[int, ...], other: str) -> Float32s:
    """Return numbers of a shape that another array has; without any, an array of size 0."""
    if value is None:
        return _NO_NUMBERS
    array = numbers(value, name, len(shape))
    same_shape(name, array, shape, other)
    return array


def _few_enough(k: int) -> None:
    if k > _MAX_NEIGHBORS:
        raise InvalidInputError(f"{k} neighbors in a row; at most {_MAX_NEIGHBORS} can vote")


def same_shape(name: str, array: Array, shape: tuple[int, ...], other: str) -> None:
    """Check that an array has a shape that follows from another argument."""
    if array.shape != shape:
        raise InvalidInputError(
            f"{name} has the shape {array.shape}; give {shape}, as {other} says"
        )


def rows_of(
    labels: ArrayLike, similarities: ArrayLike, confidences: ArrayLike | None
) -> tuple[Int32s, Float32s, Float32s]:
    """Return the arrays of rows that hold the text itself in column 0; confidences [0] without."""
    lab = integers(labels, "labels", 2)
    if lab.shape[1] == 0:
        raise InvalidInputError(
            f"labels has the shape {lab.shape}; column 0 is the text itself (-1 = no label)"
        )
    _few_enough(lab.shape[1] - 1)
    sim = _like(similarities, "similarities", lab.shape, "the shape of labels")
    return lab, sim, _like(confidences, "confidences", lab.shape, "the shape of labels")


@dataclass(slots=True, eq=False)  # not frozen: that costs 10 % of the time of a small vote
class Ballots:
    """The arrays of a vote as the kernels take them; see `testnuc._kernels.vote`."""

    neighbors: tuple[Array, ...]
    own: tuple[Array, ...]
    #: K, the maximum number of neighbors.
    k: int
    n_classes: int
    #: Whether the pool is made of rows, whose columns messages name.
    of_columns: bool = False

    @property
    def rows(self) -> int:
        """B, the number of texts to vote on."""
        return self.own[0].size

    @classmethod
    def of_rows(
        cls,
        labels: ArrayLike,
        similarities: ArrayLike,
        confidences: ArrayLike | None,
        n_classes: int,
    ) -> Self:
        """Create from rows of the text itself (column 0) and its neighbors: they are the pool."""
        lab, sim, conf = rows_of(labels, similarities, confidences)
        ids = np.arange(lab.size, dtype=np.uint64).reshape(lab.shape)[:, 1:]
        own_conf = conf[:, 0].copy() if conf.size else _NAN.repeat(len(lab))
        return cls(
            (ids.ravel(), sim[:, 1:].ravel(), lab.ravel(), conf.ravel()),
            (lab[:, 0].copy(), sim[:, 0].copy(), own_conf),
            ids.shape[1],
            classes(n_classes),
            of_columns=True,
        )

    @classmethod
    def of_pool(
        cls,
        neighbor_ids: ArrayLike,
        similarities: ArrayLike,
        pool: tuple[ArrayLike, ArrayLike | None],
        own: tuple[ArrayLike, ArrayLike | None],
        n_classes: int,
    ) -> Self:
        """Create from rows of neighbor positions in a pool; both have labels and confidences."""
        (pool_labels, pool_confidences), (own_labels, own_confidences) = pool, own
        given = _checked(neighbor_ids, "neighbor_ids", "iu", 2)
        _few_enough(given.shape[1])
        # a negative position becomes a very large one
        ids = np.ascontiguousarray(given, np.int64).view(np.uint64)
        sim = _like(similarities, "similarities", ids.shape, "the shape of neighbor_ids")
        lab = integers(pool_labels, "pool_labels", 1)
        own_lab = integers(own_labels, "own_labels", 1)
        same_shape("own_labels", own_lab, ids.shape[:1], "the number of rows of neighbor_ids")
        conf = _like(pool_confidences, "pool_confidences", lab.shape, "the shape of pool_labels")
        sure = _like(own_confidences, "own_confidences", own_lab.shape, "the shape of own_labels")
        own_conf = sure if sure.size else _NAN.repeat(len(own_lab))
        near = (ids.reshape(-1), sim.reshape(-1), lab, conf)
        alone = (own_lab, _ONE.repeat(len(own_lab)), own_conf)
        return cls(near, alone, ids.shape[1], classes(n_classes))

    def nearest(self, k: int) -> Self:
        """Return the same rows with their first k neighbors."""
        ids, similarities, *pool = self.neighbors
        first = (of.reshape(self.rows, self.k)[:, :k].ravel() for of in (ids, similarities))
        return replace(self, neighbors=(*first, *pool), k=k)

    def refuse(self, row: int) -> InvalidInputError:
        """Return the error for a row that a kernel rejected."""
        ids, similarities, labels, confidences = self.neighbors
        faults = [self._fault(f"row {row}", *(array[row:] for array in self.own))]
        for at in range(row * self.k, (row + 1) * self.k):
            if (i := int(ids[at])) < labels.size:
                j = at - row * self.k
                where = f"column {j + 1}" if self.of_columns else f"neighbor {j}"
                vote = labels[i:], similarities[at:], confidences[i:]
                faults.append(self._fault(f"row {row}, {where}", *vote))
        return next(filter(None, faults))

    def refuse_pool(self, i: int) -> InvalidInputError:
        """Return the error for a pool prediction that a kernel rejected."""
        _, _, labels, confidences = self.neighbors
        fault = self._fault(f"pool position {i}", labels[i:], _ONE, confidences[i:])
        assert fault is not None
        return fault

    def _fault(
        self, where: str, label: Array, similarity: Array, confidence: Array
    ) -> InvalidInputError | None:
        """Return the error for an invalid value; of no confidence, the array has the size 0."""
        if not abs(similarity[0]) <= _LIMIT:
            said = f"the similarity is {similarity[0]}; give cosines, -1 to 1"
        elif not -1 <= label[0] < self.n_classes:
            said = (
                f"the label is {label[0]}, but n_classes is {self.n_classes}; give"
                f" 0 to {self.n_classes - 1}, or -1 for no prediction"
            )
        elif confidence.size > 0 and (confidence[0] < 0 or confidence[0] > 1):
            said = f"the confidence is {confidence[0]}; give 0 to 1, or NaN for none"
        else:
            return None
        return InvalidInputError(f"{where}: {said}")
