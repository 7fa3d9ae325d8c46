"""The rule where a text has one label: the most probable one, and its trust.

The chance that a parent of a label in a tree is right is the chance of the label, and of what is
left the part that a model gives the other labels below the parent. Trust comes from
`testnuc.trust.calibration`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from testnuc._base.arrays import Array, Bools, Float32s, Float64s, Int32s
from testnuc._base.display import Brief
from testnuc.label_tree import LabelTree
from testnuc.trust.calibration import UNCALIBRATED, chances
from testnuc.trust.head import FOLDS, LinearHead
from testnuc.trust.model import MOST_CELLS, Ground, HeadModel, Texts, VoteModel
from testnuc.voting import Labels, starts_of_rows

#: Parts of `MOST_CELLS` cells that are applied one by one to more texts.
_PARTS = 8
#: Smaller shares of a label are not shown.
_LEAST_SHARE = 0.01
_TINY, _TINY_REST = 1e-4, 1e-6
#: What is stored as it is.
_FACTS = ("decides", "dissent", "referee_better", "protected")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Argmax(Brief):
    """Texts get the most probable label, or the one that the vote settings give them."""

    #: In words: what is trusted, and what a gain is measured in.
    trusted: ClassVar[str] = "a label is right"
    measured: ClassVar[str] = ""

    #: "settings": labels stay as they are without judgments; else what decides.
    decides: Literal["settings", "vote", "head"]
    #: Gives the labels, if `decides` is "head", and the probabilities behind trust in any case.
    model: HeadModel
    vote: VoteModel
    #: If the vote and all these models return the LLM's label, so does `model`; empty: no check.
    bases: tuple[HeadModel, ...]
    #: Coefficients of the trust calibration: float64[3], or, as read, those of each fold, which
    #: differ if an older version learned: float64[FOLDS, 3].
    coefficients: Float64s
    #: Texts on which a referee contradicted the LLM: another candidate agreed with it; none did.
    dissent: tuple[int, int] = (0, 0)
    #: Whether it is shown to be better, see `Dissent`: else its answers are not used.
    referee_better: bool = False
    #: Of labels in a tree: whether each level above the label was right for the judged ones,
    #: bool[depth - 1, m]; None: they are not.
    level_right: Bools | None = None
    #: The LLM's own labels that stay.
    protected: tuple[int, ...] = ()

    @property
    def follows_settings(self) -> bool:
        """Whether other vote settings give other labels."""
        return self.decides == "settings"

    def uncalibrated(self) -> Self:
        """Return the same without what judgments say of trust."""
        return replace(self, coefficients=UNCALIBRATED)

    def apply(self, texts: Texts, kept: Int32s, tree: LabelTree | None = None) -> Labels:
        """Label texts; `kept`, by the vote settings, stays unless a head decides."""
        cells, models = len(texts) * texts.n_classes, (self.model, *self.bases)
        if cells <= MOST_CELLS:
            return self._applied(texts, kept, tree, [None] * len(models))
        labels = [model.neighbor_labels(texts) for model in models]
        parts: list[Labels] = []
        for rows in np.array_split(np.arange(len(texts)), _PARTS * -(-cells // MOST_CELLS)):
            part, places = texts.part(rows)
            grounds = [m.ground(part, of[places]) for m, of in zip(models, labels, strict=True)]
            parts.append(self._applied(part, kept[rows], tree, grounds))
        return Labels.stacked(parts)

    def _applied(
        self, texts: Texts, kept: Int32s, tree: LabelTree | None, grounds: Sequence[Ground | None]
    ) -> Labels:
        """Label texts; `grounds` are those of the model and of the bases, as far as known."""
        found = self.model.probabilities(texts, grounds[0])
        label, own, head = kept, texts.own[: len(texts)], self.decides == "head"
        if head:
            label = self.model.label_of(found, texts)
            if self.bases:
                plain = replace(texts, judged=None)
                others = [self.vote.label(plain)]
                others += [
                    m.label(plain, of) for m, of in zip(self.bases, grounds[1:], strict=True)
                ]
                changed = np.any([labels != own for labels in others], axis=0)
                label = np.where(changed | (own < 0), label, own)
            label = np.where(np.isin(own, self.protected), own, label).astype(np.int32)
        coefficients = np.broadcast_to(self.coefficients, (FOLDS, 3))[texts.folds[: len(texts)]]
        trust = chances(texts, found, label, coefficients)
        return labels_of(found, label, trust, tree, shares=head)

    def packed(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return its plain values and its arrays."""
        arrays: dict[str, Array] = {
            "vote": np.array([self.vote.k, self.vote.own_weight]),
            "coefficients": np.broadcast_to(self.coefficients, (FOLDS, 3)),
        }
        if self.level_right is not None:
            arrays["level_right"] = self.level_right
        models = []
        for number, model in enumerate([self.model, *self.bases]):
            heads = np.stack([head.weights for head in model.heads]).astype(np.float16)
            arrays[f"heads{number}"] = heads
            arrays[f"scale{number}"] = model.scale
            if model.moves is not None:
                moves = model.moves.astype(np.float16)
                of_text, of_own = np.split(moves, [-len(model.scale)], axis=-2)
                if moves.ndim == 3:
                    arrays[f"moves{number}"] = of_text
                else:
                    arrays[f"moved{number}"], arrays[f"answers{number}"] = of_text, of_own
            models.append([model.care, model.power, model.temper])
        facts = {name: getattr(self, name) for name in _FACTS}
        return {**facts, "models": models}, arrays

    @classmethod
    def unpacked(cls, header: dict[str, Any], arrays: dict[str, Array]) -> Self:
        """Return what `packed` returned, from it."""
        models = [
            HeadModel(
                tuple(LinearHead(w.astype(np.float32)) for w in arrays[f"heads{number}"]),
                arrays[f"scale{number}"],
                care,
                power,
                # older versions had none
                temper[0] if temper else 1.0,
                _moves(arrays, number),
            )
            for number, (care, power, *temper) in enumerate(header["models"])
        ]
        k, own_weight = arrays["vote"].tolist()
        return cls(
            decides=header["decides"],
            model=models[0],
            vote=VoteModel(int(k), own_weight),
            bases=tuple(models[1:]),
            coefficients=arrays["coefficients"],
            dissent=tuple(header["dissent"]),
            # older versions did not compare with the chance
            referee_better=header.get("referee_better", False),
            level_right=arrays.get("level_right"),
            protected=tuple(map(int, header.get("protected", ()))),
        )


def right_by_level(given: Int32s, gold: Int32s, tree: LabelTree) -> Bools:
    """Return whether labels are right at each level above them, bool[depth - 1, m]; -1 = none."""
    known = (given >= 0) & (gold >= 0)
    nodes = [tree.nodes(level) for level in range(1, tree.depth)]
    right = [known & (of[given] == of[gold]) for of in nodes]
    return np.array(right, dtype=np.bool_).reshape(len(nodes), -1)


def _moves(arrays: dict[str, Array], number: int) -> Float32s | None:
    """Return the moves of a model that is read."""
    older = arrays.get(f"moves{number}")
    if older is not None:
        # some for each fold, and none for the LLM's label
        n_classes = older.shape[-1]
        return np.pad(older.astype(np.float32), ((0, 0), (0, n_classes), (0, 0)))
    if f"moved{number}" not in arrays:
        return None
    both = [arrays[f"moved{number}"], arrays[f"answers{number}"]]
    return np.vstack(both).astype(np.float32)


def labels_of(
    found: Float32s, label: Int32s, trust: Float64s, tree: LabelTree | None, *, shares: bool
) -> Labels:
    """Return one label for each text, and its alternative, from the probabilities of a model.

    `found`: float32[b, C], rows sum to 1; `label`: int32[b], -1 = none; `trust`: float64[b];
    `shares`: whether all labels that the model finds likely are candidates.
    """
    other, part = second(found, label)
    shown = found.copy() if shares else np.zeros_like(found)
    if shares:
        # none is larger than that of the kept label: an LLM's own one may be kept out of care
        at = np.arange(len(label))
        shown[at, label] = np.maximum(shown[at, label], shown.max(axis=1))
        shown[shown < _LEAST_SHARE] = 0
        shown /= shown.sum(axis=1, keepdims=True)
    chosen, next_best = (np.arange(found.shape[1]) == of[:, None] for of in (label, other))
    rows, columns = np.nonzero(chosen | next_best | (shown > 0))
    given = chosen[rows, columns]
    # of what is left: label and alternative together are at most 1
    rest = np.where(next_best[rows, columns], (1 - trust[rows]) * part[rows], np.nan)
    levels = np.empty((len(label), 0))
    if tree is not None:
        # the chance that a parent is right: of the label, or of its siblings
        levels = trust[:, None] + (1 - trust[:, None]) * parts_by_level(found, label, tree)
    return Labels(
        starts_of_rows(rows, len(label)),
        columns.astype(np.int32),
        # the label first, also where no shares are known
        shown[rows, columns] if shares else given.astype(np.float32),
        label >= 0,
        given,
        chance=np.where(given, trust[rows], rest),
        trust=np.where(label >= 0, trust, np.nan),
        level_trust=levels,
    ).by_share()


def second(found: Float32s, label: Int32s) -> tuple[Int32s, Float64s]:
    """Return the most probable other label, and its part of the probability of all others."""
    at = np.flatnonzero(label >= 0)
    given = found[at, label[at]].copy()
    found[at, label[at]] = 0
    other = found.argmax(axis=1).astype(np.int32)
    rest = found.sum(axis=1, dtype=np.float64)
    part = found[np.arange(len(found)), other] / np.maximum(rest, _TINY)
    found[at, label[at]] = given
    return np.where(rest > 0, other, -1).astype(np.int32), part


def parts_by_level(found: Float32s, label: Int32s, tree: LabelTree) -> Float32s:
    """Return what the other labels below each parent of a label are given, float32[b, depth - 1].

    Parts of what a model, with probabilities float32[b, C], gives all labels but the text's own.
    """
    parts = np.zeros((len(found), tree.depth - 1), dtype=np.float32)
    at = np.flatnonzero(label >= 0)
    given = label[at]
    own = found[at, given].astype(np.float64)
    rest = np.maximum(found[at].sum(axis=1, dtype=np.float64) - own, _TINY_REST)
    for level in range(1, tree.depth):
        nodes = tree.nodes(level)
        order = np.argsort(nodes, kind="stable")
        starts = np.flatnonzero(np.diff(nodes[order], prepend=-1))
        mass = np.add.reduceat(found[at][:, order], starts, axis=1, dtype=np.float64)
        below = mass[np.arange(len(at)), nodes[given]] - own
        parts[at, level - 1] = np.clip(below / rest, 0, 1)
    return parts
