"""What was learned from judged texts: how texts are labeled, and what trust means.

`apply` labels texts; it works for new ones. Without a proof that a candidate is better than the
LLM's own labels, labels stay as the vote settings make them, and only trust is learned.

Trust comes from `testnuc.trust.calibration`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from testnuc._base.checks import checked_whole
from testnuc.errors import InvalidInputError
from testnuc.label_tree import LabelTree
from testnuc.trust.applied import (
    Applied,
    joined,
    parts_by_level,
    second,
    shown_shares,
    trust_of_level,
)
from testnuc.trust.calibration import chances
from testnuc.trust.certificates import proved
from testnuc.trust.head import Softmax
from testnuc.trust.judgment import FromJudgments
from testnuc.trust.model import MOST_CELLS, HeadModel, VoteModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from testnuc.trust.candidates import LabelCandidate
    from testnuc.trust.certificates import Certificate
    from testnuc.trust.model import Ground, Texts

__all__ = ["Learned", "chosen_parts", "rounded"]

#: Parts of `MOST_CELLS` cells that are applied one by one to more texts.
_PARTS = 8


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Learned(FromJudgments):
    """How texts are labeled since `TestNUC.learn`, and why. ``print`` it."""

    #: "settings": labels stay as they are without judgments; else what decides.
    decides: Literal["settings", "vote", "head"]
    #: Gives the labels, if `decides` is "head", and the probabilities behind trust in any case.
    model: HeadModel
    vote: VoteModel
    #: If the vote and all these models return the LLM's label, so does `model`; empty: no check.
    bases: tuple[HeadModel, ...]
    #: float64[FOLDS, 3]: coefficients of the trust calibration.
    coefficients: NDArray[np.float64]
    #: Counts of texts on which a referee contradicted the LLM: another candidate agreed with the
    #: referee; none did.
    dissent: tuple[int, int] = (0, 0)
    #: Of labels in a tree: trust of all texts at each level above the label, float32[depth - 1,
    #: texts], and whether the level was right for those in `rows`; None: they are not.
    level_trust: NDArray[np.float32] | None = None
    level_right: NDArray[np.bool_] | None = None

    @property
    def tree(self) -> LabelTree | None:
        """The tree that the labels are in."""
        return _tree_of(self.labels)

    @property
    def referee_better(self) -> bool:
        """Whether `dissent` suggests that the referee is more accurate than the LLM.

        Its answers that contradict the LLM are then more often than not those of another candidate:
        neighbors and model do not know them, so mistakes rarely agree.
        """
        backed, alone = self.dissent
        return backed > alone

    def certify(
        self, accuracy: float = 0.9, confidence: float = 0.9, *, level: int | None = None
    ) -> Certificate:
        """Return the trust above which labels are right to `accuracy`, proved by the judged texts.

        Parameters
        ----------
        accuracy : float
        confidence : float
            Over the draw of the judged texts.
        level : int, optional
            Of labels in a tree: the level to certify, 1 = the top. Default: whole labels.

        Raises
        ------
        InvalidInputError
            The labels have no such level.
        """
        trust, right = self.trust, self.right
        if level is not None:
            levels = 0 if self.level_trust is None else len(self.level_trust)
            checked_whole("level", level, least=1)
            if level > levels:
                most = f"give 1 to {levels}" if levels else "the labels have no levels"
                raise InvalidInputError(
                    f"level is {level}; {most}, or leave level out for the labels themselves"
                )
            assert self.level_trust is not None
            assert self.level_right is not None
            trust, right = self.level_trust[level - 1], self.level_right[level - 1]
        return replace(self._certified(trust, right, accuracy, confidence), level=level)

    def apply(self, texts: Texts, kept: NDArray[np.int32]) -> Applied:
        """Label texts; `kept`, by the vote settings, stays unless a head decides."""
        cells = len(texts) * texts.n_classes
        if cells <= MOST_CELLS:
            return self._applied(texts, kept)
        models = (self.model, *self.bases)
        labels = [model.neighbor_labels(texts) for model in models]
        made = []
        for rows in np.array_split(np.arange(len(texts)), _PARTS * -(-cells // MOST_CELLS)):
            part, places = texts.part(rows)
            grounds = [m.ground(part, of[places]) for m, of in zip(models, labels, strict=True)]
            # the shares of all labels of all texts would be too large
            made.append(replace(self._applied(part, kept[rows], grounds), shares=None))
        return joined(made)

    def _applied(
        self, texts: Texts, kept: NDArray[np.int32], grounds: Sequence[Ground] = ()
    ) -> Applied:
        found = self.model.probabilities(texts, grounds[0] if grounds else None)
        label = self.label(texts, kept, found, grounds[1:])
        shown = shown_shares(found, label) if self.decides == "head" else None
        parts = parts_by_level(found, label, self.tree)
        return Applied(
            label,
            chances(texts, found, label, self.coefficients),
            shown,
            *second(found, label),
            parts,
        )

    def label(
        self,
        texts: Texts,
        kept: NDArray[np.int32],
        found: NDArray[np.float32],
        grounds: Sequence[Ground] = (),
    ) -> NDArray[np.int32]:
        """Return int32[b], the label of each text.

        `found`, float32[b, C], are the probabilities of the model, and `grounds` those of the
        bases.
        """
        if self.decides != "head":
            return kept
        label, own = self.model.label_of(found, texts), texts.own[: len(texts)]
        if self.bases:
            given: Sequence[Ground | None] = grounds or [None] * len(self.bases)
            plain = replace(texts, judged=None)
            others = [self.vote.label(plain)]
            others += [m.label(plain, of) for m, of in zip(self.bases, given, strict=True)]
            changed = np.any([labels != own for labels in others], axis=0)
            label = np.where(changed | (own < 0), label, own).astype(np.int32)
        return label

    def with_levels(
        self,
        trust: NDArray[np.float64],
        parts: NDArray[np.float32] | None,
        given: NDArray[np.int32],
        gold: NDArray[np.int32],
    ) -> Learned:
        """Return the same, with the trust of all texts at each level of a tree of labels.

        `trust` is that of their labels, and `parts` are as `Applied.levels`. `given` and `gold` are
        label and right label, -1 = none, of the texts in `rows`.
        """
        tree = self.tree
        if tree is None or parts is None:
            return self
        known = (given >= 0) & (gold >= 0)
        nodes = [tree.nodes(level) for level in range(1, tree.depth)]
        levels = [trust_of_level(trust, part) for part in parts.T]
        right = [known & (of[given] == of[gold]) for of in nodes]
        return replace(
            self,
            level_trust=np.array(levels, dtype=np.float32).reshape(len(nodes), -1),
            level_right=np.array(right, dtype=np.bool_).reshape(len(nodes), -1),
        )

    def __str__(self) -> str:
        people = sum(j.source == "person" for j in self.judged)
        referee = sum(j.source == "referee" for j in self.judged)
        by = [f"{people:,} by a person" if people else "", f"{referee:,} by a referee"]
        said = " and ".join(part for part in by[: 2 if referee else 1] if part) or "none"
        proving = int(self.draws.drawn.sum())
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
        lines.append(proved(self))
        return "\n".join(lines)

    def _packed(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        arrays: dict[str, NDArray[Any]] = {
            "vote": np.array([self.vote.k, self.vote.own_weight]),
            "coefficients": self.coefficients,
        }
        if self.level_trust is not None and self.level_right is not None:
            arrays |= {"level_trust": self.level_trust, "level_right": self.level_right}
        models = []
        for number, model in enumerate([self.model, *self.bases]):
            heads = np.stack([head.weights for head in model.heads]).astype(np.float16)
            arrays[f"heads{number}"] = heads
            arrays[f"scale{number}"] = model.scale
            if model.moves is not None:
                arrays[f"moves{number}"] = model.moves.astype(np.float16)
            models.append([model.care, model.power])
        return {"decides": self.decides, "dissent": self.dissent, "models": models}, arrays

    @classmethod
    def _unpacked(cls, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
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
        return {
            "decides": header["decides"],
            "model": models[0],
            "vote": VoteModel(int(k), own_weight),
            "bases": tuple(models[1:]),
            "coefficients": arrays["coefficients"],
            "dissent": tuple(header["dissent"]),
            "level_trust": arrays.get("level_trust"),
            "level_right": arrays.get("level_right"),
        }


@lru_cache(maxsize=8)
def _tree_of(labels: tuple[str, ...]) -> LabelTree | None:
    return LabelTree.of(labels)


def rounded(model: HeadModel) -> HeadModel:
    """Return a model as it is read back from a store, so that both give the same labels."""
    heads = tuple(head.rounded() for head in model.heads)
    moves = None if model.moves is None else _float32(model.moves.astype(np.float16))
    return replace(model, heads=heads, moves=moves)


def _float32(array: NDArray[Any] | None) -> NDArray[np.float32] | None:
    return None if array is None else array.astype(np.float32)


def chosen_parts(
    candidates: Sequence[LabelCandidate],
) -> tuple[VoteModel, tuple[HeadModel, ...]]:
    """Return the vote and the heads among the candidates."""
    vote = next(c.model for c in candidates if isinstance(c.model, VoteModel) and c.model.k)
    return vote, tuple(c.model for c in candidates if isinstance(c.model, HeadModel))
