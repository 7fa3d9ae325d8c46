"""Judgments of texts, and what everything that is learned from them has in common."""

from __future__ import annotations

import zlib
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import orjson

from testnuc._base.display import brief
from testnuc.errors import StoreError
from testnuc.trust.certificates import certify
from testnuc.trust.evidence import Draws, Gain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from testnuc.trust.certificates import Certificate

__all__ = ["FromJudgments", "Judgment"]

#: Of what is stored; another is refused.
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Judgment:
    """What was said of a text, and how the text was drawn."""

    __repr__ = brief

    text: str
    hash: bytes
    #: None: no label is right, or the text was skipped.
    label: str | None
    #: "person" or "referee"; None: skipped.
    source: str | None
    #: None: it was not drawn at random, and proves nothing.
    probability: float | None
    floor: float | None
    #: Number of texts that it was drawn from.
    texts: int
    #: Whether it was drawn at random from all texts that were left; None: an older version of
    #: testnuc did not say.
    uniform: bool | None = None

    def record(self) -> list[Any]:
        """Return its values, as they are stored."""
        text, key, *rest = astuple(self)
        return [text, key.hex(), *rest]

    @classmethod
    def of(cls, record: Sequence[Any]) -> Judgment:
        """Return the judgment of a record."""
        text, key, *rest = record
        # older versions stored nothing, or a number, in place of `uniform`
        known = rest if isinstance(rest[-1], bool) else rest[:5]
        return cls(text, bytes.fromhex(key), *known)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FromJudgments:
    """What was learned from judgments, where a text has one label or several."""

    __repr__ = brief

    #: The label set.
    labels: tuple[str, ...]
    #: What gives the labels, in plain words.
    name: str
    #: Over all texts: of the labels, or in the mean Jaccard index where a text has several.
    gain: Gain
    #: All judged texts, in the order they were drawn; several labels are one string.
    judged: tuple[Judgment, ...]
    #: Size of the pool that it was learned on.
    texts: int
    #: float32[texts]: trust of all texts.
    trust: NDArray[np.float32]
    #: Position in `trust` of each judged text, whether it had exactly the right label or labels,
    #: and whether a person judged or skipped it: certificates count these.
    rows: NDArray[np.int64]
    right: NDArray[np.bool_]
    person: NDArray[np.bool_]
    draws: Draws = field(repr=False)

    @property
    def answers(self) -> dict[bytes, tuple[str | None, str]]:
        """The label (several in one string) and the source of each judged text, by its hash."""
        return {j.hash: (j.label, j.source) for j in self.judged if j.source is not None}

    def _certified(
        self,
        trust: NDArray[np.float32],
        right: NDArray[np.bool_],
        accuracy: float,
        confidence: float,
    ) -> Certificate:
        return certify(
            trust.astype(np.float64),
            self.rows,
            right,
            self.draws.uniform,
            self.person,
            accuracy=accuracy,
            confidence=confidence,
        )

    def to_bytes(self) -> bytes:
        """Return everything as bytes, without pickle."""
        header, arrays = self._packed()
        return _pack(
            {
                "labels": self.labels,
                "name": self.name,
                "gain": [self.gain.value, self.gain.low, self.gain.high],
                "texts": self.texts,
                "population": self.draws.texts,
                "judged": [judgment.record() for judgment in self.judged],
                **header,
            },
            {
                "trust": self.trust,
                "rows": self.rows,
                "right": self.right,
                "person": self.person,
                **self.draws.arrays(),
                **arrays,
            },
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return what `to_bytes` wrote.

        Raises
        ------
        StoreError
            It is damaged, or a newer version of testnuc wrote it.
        """
        try:
            header, arrays = _unpack(data)
            return cls(
                labels=tuple(header["labels"]),
                name=header["name"],
                gain=Gain(*header["gain"]),
                texts=header["texts"],
                judged=tuple(map(Judgment.of, header["judged"])),
                draws=Draws.taken_from(arrays, header["population"]),
                **{name: arrays.pop(name) for name in ("trust", "rows", "right", "person")},
                **cls._unpacked(header, arrays),
            )
        except (zlib.error, orjson.JSONDecodeError, KeyError, TypeError, ValueError) as exc:
            raise StoreError(f"what was learned is damaged in the store: {exc!r}") from exc

    def _packed(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the plain values and the arrays that a subclass adds."""
        raise NotImplementedError

    @classmethod
    def _unpacked(cls, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        """Return the fields that a subclass adds, from what `_packed` returned."""
        raise NotImplementedError


def _pack(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return a header of plain values, and arrays, as bytes."""
    listed = [
        [name, array.dtype.newbyteorder("<").str, array.shape] for name, array in arrays.items()
    ]
    # a gain may be a scalar of numpy
    head = orjson.dumps(
        {"version": _VERSION, **header, "arrays": listed}, option=orjson.OPT_SERIALIZE_NUMPY
    )
    body = b"".join(
        np.ascontiguousarray(a, dtype=a.dtype.newbyteorder("<")).tobytes() for a in arrays.values()
    )
    return zlib.compress(len(head).to_bytes(8, "little") + head + body, 1)


def _unpack(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return what `_pack` was given.

    Raises
    ------
    StoreError
        A newer version of testnuc wrote it.
    """
    raw = zlib.decompress(data)
    at = 8 + int.from_bytes(raw[:8], "little")
    header = orjson.loads(raw[8:at])
    if header["version"] != _VERSION:
        raise StoreError(
            "what was learned was stored by another version of testnuc; upgrade it, or learn "
            "again after `unlearn`"
        )
    arrays: dict[str, NDArray[Any]] = {}
    for name, kind, shape in header["arrays"]:
        dtype = np.dtype(kind)
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        found = np.frombuffer(raw[at : at + size], dtype=dtype).reshape(shape)
        arrays[name] = found.astype(dtype.newbyteorder("="))
        at += size
    return header, arrays
