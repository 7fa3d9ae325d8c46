"""What was learned from judged texts: how texts are labeled, and what trust means.

`apply` labels texts; it works for new ones. Without a proof that a candidate is better than the
LLM's own labels, labels stay as the vote settings make them, and only trust is learned.

Trust comes from `testnuc.trust.chances`.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import orjson

from testnuc._base.display import brief
from testnuc.errors import StoreError
from testnuc.trust.candidates import LabelCandidate, differing
from testnuc.trust.certificates import certify
from testnuc.trust.chances import chances
from testnuc.trust.evidence import Draws, Gain
from testnuc.trust.head import Softmax
from testnuc.trust.model import HeadModel, VoteModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from testnuc.trust.certificates import Certificate
    from testnuc.trust.model import Texts

__all__ = ["Applied", "Judgment", "Learned", "chosen_parts", "rounded"]

_VERSION = 1
#: Judgments that prove a gain worth having where there is one.
_ENOUGH = 200
#: Smaller shares of a label are not shown.
_LEAST_SHARE = 0.01
_TINY = 1e-4


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
    #: None: it was not drawn by chance, and proves nothing.
    probability: float | None
    floor: float | None
    #: Number of texts that it was drawn from.
    texts: int
    #: None: an older version of testnuc did not say.
    lowest: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """Labels of texts, from a `Learned`.

    Parameters
    ----------
    label : int32[b]
        -1 = none.
    trust : float64[b]
    shares : float32[b, C], optional
        What speaks for each label, rows sum to 1; None: the votes.
    other : int32[b], optional
        The label that is trusted most, except `label`; -1 = none.
    part : float64[b], optional
        Its part of what speaks for all labels except `label`.
    """

    __repr__ = brief

    label: NDArray[np.int32]
    trust: NDArray[np.float64]
    shares: NDArray[np.float32] | None = None
    other: NDArray[np.int32] | None = None
    part: NDArray[np.float64] | None = None
    #: bool[b]: whether a judgment gave the label.
    judged: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "judged", np.zeros(len(self.label), dtype=np.bool_))

    def alternative(self, row: int) -> tuple[int, float] | None:
        """Return the other label of a text, and the chance that it is right; None: unknown."""
        if self.other is None or self.part is None or self.other[row] < 0:
            return None
        # of what is left: both together are at most 1
        trust = (1 - float(self.trust[row])) * float(self.part[row])
        return (int(self.other[row]), trust) if trust > 0 else None


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """How texts are labeled since `TestNUC.learn`, and why. ``print`` it."""

    __repr__ = brief

    #: The label set.
    labels: tuple[str, ...]
    #: The candidate that was chosen, in plain words.
    name: str
    #: "settings": labels stay as they are without judgments; else what decides.
    decides: Literal["settings", "vote", "head"]
    #: Of the chosen candidate, over all texts.
    gain: Gain
    #: All judged texts, in the order they were drawn.
    judged: tuple[Judgment, ...]
    #: Size of the pool that it was learned on.
    texts: int
    #: Gives the labels, if `decides` is "head", and the probabilities behind trust in any case.
    model: HeadModel
    vote: VoteModel
    #: Where all of these keep the LLM's label the model does, too; empty: no such condition.
    bases: tuple[HeadModel, ...]
    #: float64[FOLDS, 3]: what trust is made of.
    coefficients: NDArray[np.float64]
    #: float32[texts]: trust of all texts.
    trust: NDArray[np.float32]
    #: Position in `trust` of each judged text that was drawn by chance, and whether its label was
    #: right.
    rows: NDArray[np.int64]
    right: NDArray[np.bool_]
    #: Whether a person judged it, or skipped it; certificates count these.
    person: NDArray[np.bool_]
    draws: Draws = field(repr=False)
    #: Where a referee contradicted the LLM: how often another candidate agreed with it, and how
    #: often none did.
    dissent: tuple[int, int] = (0, 0)

    @property
    def answers(self) -> dict[bytes, tuple[str | None, str]]:
        """The label and the source of each judged text, by its hash."""
        return {j.hash: (j.label, j.source) for j in self.judged if j.source is not None}

    @property
    def referee_better(self) -> bool:
        """Whether a referee is taken to be better than the LLM.

        Its answers that contradict the LLM are then more often than not those of another candidate:
        neighbors and model do not know them, so mistakes rarely agree.
        """
        backed, alone = self.dissent
        return backed > alone

    def certify(self, accuracy: float = 0.9, confidence: float = 0.9) -> Certificate:
        """Return the trust above which labels are right to `accuracy`, proved by the judged texts.

        Parameters
        ----------
        accuracy : float
        confidence : float
            Over the draw of the judged texts.
        """
        used = self.person
        return certify(
            self.trust.astype(np.float64),
            self.rows[used],
            self.right[used],
            self.draws.only(used),
            accuracy=accuracy,
            confidence=confidence,
        )

    def apply(self, texts: Texts, kept: NDArray[np.int32]) -> Applied:
        """Label texts.

        Parameters
        ----------
        texts : Texts
        kept : int32[b]
            Labels by the vote settings; they stay unless `decides` is "head".
        """
        found = self.model.probabilities(texts)
        label = self.label(texts, kept, found)
        shown = _shown(found, label) if self.decides == "head" else None
        return Applied(label, self.trusts(texts, found, label), shown, *_second(found, label))

    def label(
        self, texts: Texts, kept: NDArray[np.int32], found: NDArray[np.float32]
    ) -> NDArray[np.int32]:
        """Return int32[b], the label of each text.

        Parameters
        ----------
        texts, kept
            As for `apply`.
        found : float32[b, C]
            The probabilities of the model.
        """
        if self.decides != "head":
            return kept
        label, own = self.model.label_of(found, texts), texts.own[: len(texts)]
        if self.bases:
            plain = replace(texts, judged=None)
            plan: list[HeadModel | VoteModel] = [VoteModel(0), self.vote, *self.bases]
            made = [LabelCandidate("", 1.0, m, m.label(plain)) for m in plan]
            label = np.where(differing(made) | (own < 0), label, own).astype(np.int32)
        return label

    def trusts(
        self, texts: Texts, found: NDArray[np.float32], label: NDArray[np.int32]
    ) -> NDArray[np.float64]:
        """Return the chance that each label is right, float64[b]; NaN for texts without one."""
        return chances(texts, found, label, self.coefficients)

    def __str__(self) -> str:
        people = sum(j.source == "person" for j in self.judged)
        referee = sum(j.source == "referee" for j in self.judged)
        by = [f"{people:,} by a person" if people else "", f"{referee:,} by a referee"]
        said = " and ".join(part for part in by[: 2 if referee else 1] if part) or "none"
        proving = len(self.rows)
        wide = self.gain.high - self.gain.low
        lines = [f"{people + referee:,} of {self.texts:,} texts are judged: {said}."]
        if self.decides == "settings":
            lines.append(
                "No way to label is proved to be better than the LLM's own labels: labels stay as "
                "they are, but for the judged texts."
            )
        else:
            low, high = 100 * self.gain.low, 100 * self.gain.high
            lines.append(
                f"Labels come from {self.name}: expected gain {100 * self.gain.value:+.1f} points "
                f"over all texts (from {low:+.1f} to {high:+.1f})."
            )
        lines.append(
            f"Trust is the chance that a label is right, calibrated on {proving:,} judged texts."
            if proving
            else "Trust is the model's own probability: no judged text was drawn at random."
        )
        if proving < 50:
            more = f"{50 - proving} more judgments of a review would help most"
        elif self.decides == "settings" and proving < _ENOUGH:
            more = "another 50 judgments would help most: they may prove a gain"
        elif wide > 0.1:
            more = "another 50 judgments would help most: the gain is not known well yet"
        else:
            more = "judging the least trusted texts (a review with goal 'correct') would help most"
        lines.append(more[0].upper() + more[1:] + ".")
        return "\n".join(lines)

    def to_bytes(self) -> bytes:
        """Return everything as bytes, without pickle."""
        arrays: dict[str, NDArray[Any]] = {
            "vote": np.array([self.vote.k, self.vote.own_weight]),
            "coefficients": self.coefficients,
            "trust": self.trust,
            "rows": self.rows,
            "right": self.right,
            "person": self.person,
            "probability": self.draws.probability,
            "floor": self.draws.floor,
        }
        if self.draws.lowest is not None:
            arrays["lowest"] = self.draws.lowest
        models = []
        for number, model in enumerate([self.model, *self.bases]):
            heads = np.stack([head.weights for head in model.heads]).astype(np.float16)
            arrays[f"heads{number}"] = heads
            arrays[f"scale{number}"] = model.scale
            if model.moves is not None:
                arrays[f"moves{number}"] = model.moves.astype(np.float16)
            models.append([model.care, model.power])
        header = {
            "version": _VERSION,
            "labels": self.labels,
            "name": self.name,
            "decides": self.decides,
            "gain": [self.gain.value, self.gain.low, self.gain.high],
            "texts": self.texts,
            "population": self.draws.texts,
            "dissent": self.dissent,
            "models": models,
            "judged": [
                [j.text, j.hash.hex(), j.label, j.source, j.probability, j.floor, j.texts, j.lowest]
                for j in self.judged
            ],
            "arrays": [
                [name, array.dtype.newbyteorder("<").str, array.shape]
                for name, array in arrays.items()
            ],
        }
        # a gain may be a scalar of numpy
        head = orjson.dumps(header, option=orjson.OPT_SERIALIZE_NUMPY)
        body = b"".join(
            np.ascontiguousarray(a, dtype=a.dtype.newbyteorder("<")).tobytes()
            for a in arrays.values()
        )
        return zlib.compress(len(head).to_bytes(8, "little") + head + body, 1)

    @classmethod
    def from_bytes(cls, data: bytes) -> Learned:
        """Return what `to_bytes` wrote.

        Raises
        ------
        StoreError
            It is damaged, or a newer version of testnuc wrote it.
        """
        try:
            raw = zlib.decompress(data)
            at = 8 + int.from_bytes(raw[:8], "little")
            header = orjson.loads(raw[8:at])
            if header["version"] != _VERSION:
                raise StoreError(
                    "what was learned was stored by another version of testnuc; upgrade it, or "
                    "learn again after `unlearn`"
                )
            arrays: dict[str, NDArray[Any]] = {}
            for name, kind, shape in header["arrays"]:
                dtype = np.dtype(kind)
                size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
                found = np.frombuffer(raw[at : at + size], dtype=dtype).reshape(shape)
                arrays[name] = found.astype(dtype.newbyteorder("="))
                at += size
            models = [
                HeadModel(
                    tuple(Softmax(w.astype(np.float32)) for w in arrays[f"heads{number}"]),
                    arrays[f"scale{number}"],
                    care,
                    power,
                    _float32(arrays.get(f"moves{number}")),
                )
                for number, (care, power) in enumerate(header["models"])
            ]
            k, own_weight = arrays["vote"].tolist()
            return cls(
                labels=tuple(header["labels"]),
                name=header["name"],
                decides=header["decides"],
                gain=Gain(*header["gain"]),
                judged=tuple(
                    Judgment(text, bytes.fromhex(key), *rest)
                    for text, key, *rest in header["judged"]
                ),
                texts=header["texts"],
                model=models[0],
                vote=VoteModel(int(k), own_weight),
                bases=tuple(models[1:]),
                coefficients=arrays["coefficients"],
                trust=arrays["trust"],
                rows=arrays["rows"],
                right=arrays["right"],
                person=arrays["person"],
                draws=Draws(
                    header["population"],
                    arrays["probability"],
                    arrays["floor"],
                    arrays.get("lowest"),
                ),
                dissent=tuple(header["dissent"]),
            )
        except (zlib.error, orjson.JSONDecodeError, KeyError, TypeError, ValueError) as exc:
            raise StoreError(f"what was learned is damaged in the store: {exc!r}") from exc


def rounded(model: HeadModel) -> HeadModel:
    """Return a model as it is read back from a store, so that both give the same labels."""
    heads = tuple(
        Softmax(head.weights.astype(np.float16).astype(np.float32)) for head in model.heads
    )
    moves = None if model.moves is None else _float32(model.moves.astype(np.float16))
    return replace(model, heads=heads, moves=moves)


def _float32(array: NDArray[Any] | None) -> NDArray[np.float32] | None:
    return None if array is None else array.astype(np.float32)


def _second(
    found: NDArray[np.float32], label: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Return the most probable other label, and its part of the probability of all others."""
    at = np.flatnonzero(label >= 0)
    given = found[at, label[at]].copy()
    found[at, label[at]] = 0
    other = found.argmax(axis=1).astype(np.int32)
    rest = found.sum(axis=1, dtype=np.float64)
    part = found[np.arange(len(found)), other] / np.maximum(rest, _TINY)
    found[at, label[at]] = given
    return np.where(rest > 0, other, -1).astype(np.int32), part


def _shown(found: NDArray[np.float32], label: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return the shares that are shown: none is larger than that of the kept label."""
    shown = found.copy()
    at = np.arange(len(label))
    # an LLM's own label that was kept out of care
    shown[at, label] = np.maximum(shown[at, label], shown.max(axis=1))
    shown[shown < _LEAST_SHARE] = 0
    result: NDArray[np.float32] = shown / shown.sum(axis=1, keepdims=True)
    return result


def chosen_parts(
    candidates: Sequence[LabelCandidate],
) -> tuple[VoteModel, tuple[HeadModel, ...]]:
    """Return the vote and the heads among the candidates."""
    vote = next(c.model for c in candidates if isinstance(c.model, VoteModel) and c.model.k)
    return vote, tuple(c.model for c in candidates if isinstance(c.model, HeadModel))
