"""Validation of the arrays of a vote, and conversion where necessary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from testnuc._base.checks import checked_whole
from testnuc.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

#: With own weights up to 1000, the sums of this many votes and their ranks fit in an int64.
_MAX_NEIGHBORS = 16_384
#: A similarity beyond this is not a cosine with rounding errors.
_LIMIT = 1.001
#: Labels are int32.
_MAX_CLASSES = 2**31 - 1

# dtypes of native byte order are singletons, so `is` suffices to recognize them
_INT32, _FLOAT32 = np.dtype(np.int32), np.dtype(np.float32)

_INT64, _UINT64, _UINT32 = np.dtype(np.int64), np.dtype(np.uint64), np.dtype(np.uint32)
_UNSIGNED: dict[np.dtype[Any], np.dtype[Any]] = {
    _INT64: _UINT64,
    _UINT64: _UINT64,
    _INT32: _UINT32,
    _UINT32: _UINT32,
}

_NO_IDS = np.empty(0, np.uint32)
_NO_NUMBERS = np.empty(0, np.float32)


def _fits(value: object, dtype: np.dtype[Any], ndim: int) -> bool:
    return (
        type(value) is np.ndarray
        and value.dtype is dtype
        and value.ndim == ndim
        and value.flags.c_contiguous
    )


def _checked(value: ArrayLike, name: str, kinds: str, ndim: int) -> NDArray[Any]:
    array = np.asarray(value)
    if array.ndim != ndim:
        raise InvalidInputError(
            f"{name} has the shape {array.shape}; give an array of {ndim} dimension(s)"
        )
    if array.dtype.kind not in kinds and array.size > 0:
        wanted = "integers" if kinds == "iu" else "numbers"
        raise InvalidInputError(f"{name} has the dtype {array.dtype}; give {wanted}")
    return array


def integers(value: ArrayLike, name: str, ndim: int) -> NDArray[np.int32]:
    """Return `value` as a contiguous int32 array."""
    if _fits(value, _INT32, ndim):
        return cast("NDArray[np.int32]", value)
    array = _checked(value, name, "iu", ndim)
    if array.dtype != np.int32:
        if array.size > 0:
            for extreme in (array.min(), array.max()):
                if not -(2**31) <= int(extreme) < 2**31:
                    raise InvalidInputError(f"{name} holds {extreme}, which is not a label")
        array = array.astype(np.int32)
    return np.ascontiguousarray(array)


def numbers(value: ArrayLike | None, name: str, ndim: int) -> NDArray[np.float32]:
    """Return `value` as a contiguous float32 array; without one, an array of size 0."""
    if value is None:
        return _NO_NUMBERS
    if _fits(value, _FLOAT32, ndim):
        return cast("NDArray[np.float32]", value)
    array = _checked(value, name, "fiu", ndim)
    if array.dtype != np.float32:
        with np.errstate(over="ignore"):  # too large becomes infinite, which is rejected
            array = array.astype(np.float32)
    return np.ascontiguousarray(array)


def _positions(value: ArrayLike) -> NDArray[Any]:
    """Return ids as contiguous uint64 or uint32; a negative one becomes very large."""
    if _fits(value, _INT64, 2):
        return cast("NDArray[Any]", value).view(_UINT64)
    array = np.ascontiguousarray(_checked(value, "neighbor_ids", "iu", 2))
    unsigned = _UNSIGNED.get(array.dtype)
    if unsigned is None:
        array, unsigned = array.astype(np.int64), _UINT64
    ids: NDArray[Any] = array.view(unsigned)
    return ids


def _same_shape(name: str, array: NDArray[Any], shape: tuple[int, ...], other: str) -> None:
    if array.shape != shape:
        raise InvalidInputError(
            f"{name} has the shape {array.shape}; give {shape}, as {other} says"
        )


@dataclass(slots=True, eq=False)  # not frozen: that costs 10 % of the time of a small vote
class Ballots:
    """The arrays of a vote as the kernels take them; see `testnuc._kernels.vote`."""

    neighbors: tuple[NDArray[Any], NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]
    own: tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]
    layout: tuple[int, int]
    n_classes: int

    @property
    def rows(self) -> int:
        """B, the number of texts to vote on."""
        return self.own[0].size

    @property
    def k(self) -> int:
        """K, the maximum number of neighbors."""
        return self.layout[0] - self.layout[1]

    @property
    def gathered(self) -> bool:
        """Whether labels are laid out like similarities, instead of in a pool."""
        return self.layout[1] == 1

    @property
    def variant(self) -> int:
        """Index of the kernel signature for these arrays."""
        return int(self.neighbors[0].itemsize == 4)

    @classmethod
    def of_rows(
        cls,
        labels: ArrayLike,
        similarities: ArrayLike,
        confidences: ArrayLike | None,
        n_classes: int,
    ) -> Ballots:
        """Create from rows of the text itself (column 0) and its neighbors."""
        lab = integers(labels, "labels", 2)
        sim = numbers(similarities, "similarities", 2)
        conf = numbers(confidences, "confidences", 2)
        if lab.shape[1] == 0:
            raise InvalidInputError(
                f"labels has the shape {lab.shape}; column 0 is the text itself (-1 = no label)"
            )
        _same_shape("similarities", sim, lab.shape, "the shape of labels")
        if confidences is not None:
            _same_shape("confidences", conf, lab.shape, "the shape of labels")
        own = (
            lab[:, 0].copy(),
            sim[:, 0].copy(),
            conf[:, 0].copy() if confidences is not None else conf,
        )
        neighbors = (_NO_IDS, sim.ravel(), lab.ravel(), conf.ravel())
        return cls(
            neighbors,
            own,
            _layout(lab.shape[1], 1),
            checked_whole("n_classes", n_classes, least=1, most=_MAX_CLASSES),
        )

    @classmethod
    def of_pool(
        cls,
        neighbor_ids: ArrayLike,
        similarities: ArrayLike,
        pool_labels: ArrayLike,
        pool_confidences: ArrayLike | None,
        own_labels: ArrayLike,
        own_confidences: ArrayLike | None,
        n_classes: int,
    ) -> Ballots:
        """Create from rows of neighbor positions in a pool."""
        ids = _positions(neighbor_ids)
        sim = numbers(similarities, "similarities", 2)
        lab = integers(pool_labels, "pool_labels", 1)
        conf = numbers(pool_confidences, "pool_confidences", 1)
        own_lab = integers(own_labels, "own_labels", 1)
        own_conf = numbers(own_confidences, "own_confidences", 1)
        _same_shape("similarities", sim, ids.shape, "the shape of neighbor_ids")
        _same_shape("own_labels", own_lab, ids.shape[:1], "the number of rows of neighbor_ids")
        if pool_confidences is not None:
            _same_shape("pool_confidences", conf, lab.shape, "the shape of pool_labels")
        if own_confidences is not None:
            _same_shape("own_confidences", own_conf, own_lab.shape, "the shape of own_labels")
        return cls(
            (ids.reshape(-1), sim.reshape(-1), lab, conf),
            (own_lab, _NO_NUMBERS, own_conf),
            _layout(ids.shape[1], 0),
            checked_whole("n_classes", n_classes, least=1, most=_MAX_CLASSES),
        )

    def refuse(self, row: int) -> InvalidInputError:
        """Return the error for a row that a kernel rejected."""
        ids, similarities, labels, confidences = self.neighbors
        width, skip = self.layout
        where = "column" if self.gathered else "neighbor"
        own_labels, own_similarities, own_confidences = self.own
        at = slice(row, row + 1)
        found = self._fault(f"row {row}", own_similarities[at], own_labels[at], own_confidences[at])
        if found is not None:
            return found
        for j in range(self.k):
            offset = row * width + skip + j
            i = offset if self.gathered else int(ids[offset])
            if i < labels.size:
                found = self._fault(
                    f"row {row}, {where} {j + skip}",
                    similarities[offset : offset + 1],
                    labels[i : i + 1],
                    confidences[i : i + 1],
                )
                if found is not None:
                    return found
        raise AssertionError(f"nothing is wrong with row {row}")

    def refuse_pool(self, i: int) -> InvalidInputError:
        """Return the error for a pool prediction that a kernel rejected."""
        _, _, labels, confidences = self.neighbors
        found = self._fault(f"pool position {i}", _NO_NUMBERS, labels[i:], confidences[i : i + 1])
        assert found is not None
        return found

    def _fault(
        self,
        where: str,
        similarity: NDArray[np.float32],
        label: NDArray[np.int32],
        confidence: NDArray[np.float32],
    ) -> InvalidInputError | None:
        """Return the error for an invalid value; each array has the size 1, or 0 if not given."""
        if similarity.size > 0 and not abs(similarity[0]) <= _LIMIT:
            return InvalidInputError(
                f"{where}: the similarity is {similarity[0]}; give cosines, -1 to 1"
            )
        if not -1 <= label[0] < self.n_classes:
            return InvalidInputError(
                f"{where}: the label is {label[0]}, but n_classes is {self.n_classes}; give"
                f" 0 to {self.n_classes - 1}, or -1 for no prediction"
            )
        if confidence.size > 0 and (confidence[0] < 0 or confidence[0] > 1):
            return InvalidInputError(
                f"{where}: the confidence is {confidence[0]}; give 0 to 1, or NaN for none"
            )
        return None


def _layout(width: int, skip: int) -> tuple[int, int]:
    if width - skip > _MAX_NEIGHBORS:
        raise InvalidInputError(
            f"{width - skip} neighbors in a row; at most {_MAX_NEIGHBORS} can vote"
        )
    return width, skip
