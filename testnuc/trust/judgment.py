"""Judgments of texts, a model that gives them, and what was learned from them as bytes."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
import orjson

from testnuc._base.arrays import Array, Bools, Int64s
from testnuc._base.checks import checked_number
from testnuc._base.display import Brief
from testnuc.errors import StoreError
from testnuc.protocols import Provider, WireProvider
from testnuc.trust.evidence import Draws, of_all
from testnuc.voting import Labels

#: Of what is stored; a later one is refused.
_VERSION = 2
#: Bytes that are decompressed: zeros shrink to a thousandth, what was learned does not.
_MOST, _RATIO = 64 * 1024 * 1024, 100


#: Array -> kinds of its type, and its shape: n texts, c labels, m judged texts, d dimensions and
#: one, l levels, g given labels, 5 folds, p first texts.
_SHAPES = {
    "trust": ("f", "n"),
    "keys": ("u", "n"),
    **dict.fromkeys(("probability", "floor"), ("f", "m")),
    **dict.fromkeys(("right", "person", "uniform", "drawn"), ("b", "m")),
    "given": ("i", "n"),
    "before": ("i", "m"),
    # of the texts that were there when it was learned
    "differs": ("b", "p"),
    "rows": ("iu", "m"),
    **dict.fromkeys(("coefficients", "of_label"), ("f", "53")),
    "of_text": ("f", "52"),
    "limits": ("f", "5c"),
    "scale": ("f", "c"),
    **dict.fromkeys(("heads", "moves"), ("f", "5dc")),
    "moved": ("f", "dc"),
    "answers": ("f", "cc"),
    "level_trust": ("f", "ln"),
    "level_right": ("b", "lm"),
    **dict.fromkeys(("given_rows", "given_labels"), ("iu", "g")),
    "given_chances": ("f", "g"),
    "given_right": ("b", "g"),
    "vote": ("fiu", "2"),
}
#: Array of positions -> the letter of what they are positions of.
_PLACES = {"rows": "n", "given_rows": "n", "given_labels": "c"}


@dataclass(frozen=True, slots=True, repr=False)
class Judgment(Brief):
    """What was said of a text, and how the text was drawn."""

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
    #: The ranking of texts by trust that it was drawn from, to certify; "": none.
    ranking: str = ""
    #: The date when it was learned from; "": an older version did not say.
    day: str = ""
    #: Whether several people said the same; None: one judged it.
    agreed: bool | None = None
    #: Where it is not known which label was meant, as it was split since: those that it may be,
    #: None = none of the labels; (): any.
    possible: tuple[str | None, ...] = ()

    def record(self) -> list[Any]:
        """Return its values, as they are stored."""
        text, key, *rest = astuple(self)
        return [text, key.hex(), *rest]

    @classmethod
    def of(cls, record: Sequence[Any]) -> Judgment:
        """Return the judgment of a record."""
        text, key, *rest = record
        # older versions stored nothing, or a number, in place of `uniform`
        known = rest if len(rest) > 5 and isinstance(rest[5], bool) else rest[:5]
        return replace(cls(text, bytes.fromhex(key), *known[:9]), possible=tuple(*known[9:]))


@dataclass(frozen=True, slots=True)
class Referee:
    """A better model, whose answers are judgments.

    `TestNUC.classify_many` lets it judge a hundred texts once, half of them where strategies
    differ, and learns from them as `TestNUC.learn` does.

    Parameters
    ----------
    model : str or Provider
        As for `TestNUC`. A name of the same provider has the client's address and key.
    escalate : float
        The part of the texts of each `classify_many`, those of lowest trust, that it labels.
        Nothing is escalated, and none of its answers is used, unless neighbors or a model of your
        texts back its contradictions of the LLM, most of them and more often than by chance, and
        it contradicts the LLM not too often; `Results.escalated` says so.

    Examples
    --------
    ::

        TestNUC(labels, referee=Referee("openai/gpt-5", escalate=0.1))
    """

    model: str | Provider | WireProvider
    escalate: float = 0.0

    def __post_init__(self) -> None:
        checked_number("escalate", self.escalate, 0, 1)

    @classmethod
    def of(cls, given: Any) -> Referee | None:
        """Return a referee, of a model or None as well."""
        return given if given is None or isinstance(given, Referee) else cls(given)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Judged(Brief):
    """The judged texts among n, in the order they were drawn, with those that were skipped."""

    #: int64[m], their positions.
    rows: Int64s
    #: Their right labels: known, unless the text was skipped.
    right: Labels
    draws: Draws
    #: bool[m], whether a person judged it, or skipped it.
    person: Bools
    #: `Judgment.ranking` of each.
    rankings: tuple[str, ...] = ()


def draws_of(judged: Sequence[Judgment], texts: int) -> Draws:
    """Return the draws of judged texts; those that came to the pool later are taken to be alike.

    `judged` are all of them, in their order, of a pool of `texts` texts.
    """
    share = np.array([j.texts / texts for j in judged], dtype=np.float64)
    # None becomes NaN
    probability = np.array([j.probability for j in judged], dtype=np.float64)
    floor = np.array([j.floor for j in judged], dtype=np.float64)
    left = np.array([j.texts for j in judged], dtype=np.int64) - np.arange(len(judged))
    said = np.array([j.uniform is not None for j in judged], dtype=np.bool_)
    uniform = np.array([bool(j.uniform) for j in judged], dtype=np.bool_)
    uniform |= ~said & of_all(probability, floor, left)
    return Draws(texts, probability * share, floor * share, uniform)


def pack(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
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


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return what `pack` was given; refuse what a newer version of testnuc wrote."""
    most, reader = _MOST + _RATIO * len(data), zlib.decompressobj()
    raw = reader.decompress(data, most)
    if not reader.eof:
        raise ValueError(f"it is incomplete, or has more than {most:,} bytes")
    at = 8 + int.from_bytes(raw[:8], "little")
    header = orjson.loads(raw[8:at])
    if header["version"] not in range(1, _VERSION + 1):
        raise StoreError(
            "what was learned was stored by another version of testnuc; upgrade it, or learn "
            "again after `unlearn`, which sets it aside"
        )
    arrays: dict[str, Array] = {}
    for name, kind, shape in header["arrays"]:
        dtype = np.dtype(kind)
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        found = np.frombuffer(raw[at : at + size], dtype=dtype).reshape(shape)
        arrays[name] = found.astype(dtype.newbyteorder("="))
        at += size
    _check_shapes(arrays, {"c": len(header["labels"]), "n": header["texts"]})
    return header, arrays


def _check_shapes(arrays: Mapping[str, Array], sizes: dict[str, int]) -> None:
    """Raise a `ValueError` if arrays do not fit each other: others may have written the store."""
    for name, array in arrays.items():
        kind, letters = _SHAPES.get(name.rstrip("0123456789"), ("", ""))
        if not kind:
            continue
        wanted = [int(c) if c.isdigit() else sizes.get(c) for c in letters]
        if (
            array.dtype.kind not in kind
            or array.ndim != len(letters)
            or any(size not in {None, have} for size, have in zip(wanted, array.shape, strict=True))
        ):
            raise ValueError(f"{name} has the shape {array.shape} of {array.dtype}")
        sizes.update(zip(letters, array.shape, strict=True))
    for name, letter in _PLACES.items():
        places = arrays.get(name, np.zeros(0))
        if len(places) and not 0 <= places.min() <= places.max() < sizes[letter]:
            raise ValueError(f"{name} goes beyond {sizes[letter]:,}")
