"""Leave texts to a head: to one from a file, or to one that learns the LLM's answers in a run."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from testnuc._engine.applying import said_of, texts_among
from testnuc._engine.multilabel import LearnedSets, MultilabelNeighborhoods
from testnuc.trust import Sparing, Unsure, random_part
from testnuc.trust.model import SPARED_ROUNDS, fit_model, fits, teach

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from numpy.typing import NDArray

    from testnuc._engine.neighborhoods import Neighborhoods
    from testnuc.head import Head
    from testnuc.protocols import PoolText
    from testnuc.trust import Learned, VoteSettings
    from testnuc.trust.head import Softmax
    from testnuc.trust.model import HeadModel, Texts

__all__ = ["HeadRule", "ask_unsure", "asked_first"]

_log = logging.getLogger("testnuc.client")

#: Judged texts of a run from which a model is taught again.
_TAUGHT = 20
#: Texts whose probabilities of all labels are in memory at a time.
_BLOCK = 4_096


@dataclass(frozen=True, slots=True, eq=False)
class HeadRule:
    """A head labels the texts of at least a trust."""

    head: Head
    least: float
    #: int32[C], the position of each of the head's labels among the client's.
    order: NDArray[np.int32]

    def spare(
        self, neighborhoods: Neighborhoods, vectors: NDArray[np.float16], rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Label the sure ones of some own texts; returns the others."""
        if isinstance(neighborhoods, MultilabelNeighborhoods):
            found, trust = self._sets(neighborhoods, vectors, rows)
        else:
            label, trust = self.head.predict_vectors(vectors[rows])
            found = self.order[label]
        drift = self.head.drift.add(trust)
        if drift is not None:
            _log.warning("%s", drift)
            neighborhoods.notes.append(drift)
        sure = trust >= self.least
        neighborhoods.spare(rows[sure], found[sure], trust[sure])
        if sure.any():
            neighborhoods.notes.append(
                f"the head labeled {int(sure.sum()):,} of {len(vectors):,} texts, those with a "
                f"trust of at least {self.least:.2f}; {len(rows) - int(sure.sum()):,} were left to "
                "the LLM"
            )
        return rows[~sure]

    def _sets(
        self,
        neighborhoods: MultilabelNeighborhoods,
        vectors: NDArray[np.float16],
        rows: NDArray[np.int64],
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Hand over the labels of some own texts, several each; returns zeros and their trust."""
        parts = []
        trust = np.empty(len(rows), dtype=np.float32)
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            found = self.head.predict_sets(vectors[block])
            trust[start : start + _BLOCK] = found.trust
            at, label = np.nonzero(found.shown)
            parts.append(
                (
                    block[at],
                    self.order[label],
                    found.probabilities[at, label],
                    found.given[at, label],
                    found.chances[at, label],
                )
            )
        if parts:
            row, label, share, given, chance = map(np.concatenate, zip(*parts, strict=True))
            every = np.full(neighborhoods.n_own, np.nan)
            every[rows] = trust
            neighborhoods.by_head = LearnedSets.of(
                neighborhoods.n_own, row, label, share, given, chance, every
            )
        return np.zeros(len(rows), dtype=np.int32), trust


def asked_first(
    texts: Sequence[PoolText], n_classes: int, rule: Unsure, settings: VoteSettings
) -> list[int]:
    """Return the places of the texts that `ask_unsure` asks about first, without embeddings.

    Of texts that the embedder will reject it knows nothing: the part may lack a few at its end.
    """
    rows = [place for place, entry in enumerate(texts) if entry.label is None]
    if not fits(len(rows), n_classes):
        return rows
    if settings.head_decides:
        rule = rule.where_proved(len(rows), n_classes)
    return [rows[at] for at in random_part([texts[row].hash for row in rows], rule).tolist()]


async def ask_unsure(
    neighborhoods: Neighborhoods,
    vectors: NDArray[np.float16],
    rows: NDArray[np.int64],
    rule: Unsure,
) -> AsyncGenerator[list[int], None]:
    """Yield the own texts to ask about, in rounds; the others are spared at the end."""
    settings = neighborhoods.settings
    n_classes = len(neighborhoods.labels.names)
    if not fits(len(rows), n_classes):
        neighborhoods.notes.append(
            f"the LLM is asked about all texts: a model of {len(rows):,} texts x {n_classes:,} "
            "labels would be too large; label fewer texts at a time, as `stream` does, or use "
            "fewer labels"
        )
        yield rows.tolist()
        return
    proved = settings.head_decides
    if proved:
        rule = rule.where_proved(len(rows), n_classes)
    unknown = np.full(len(rows), -1, dtype=np.int32)
    texts = texts_among(neighborhoods, rows, vectors[rows], unknown)
    sparing = Sparing(texts, [neighborhoods.entries[r].hash for r in rows], rule)
    places = sparing.first
    while len(places):
        yield rows[places].tolist()
        own = neighborhoods.answers()[0][rows]
        places = await asyncio.to_thread(sparing.next, own)
    left = np.flatnonzero(~sparing.asked)
    if not len(left):
        if rule.stop < 1:
            neighborhoods.notes.append(
                f"the LLM was asked about all {len(rows):,} texts, so no call was saved: it was "
                "not proved before that a model of its answers gives at least "
                f"{rule.stop:.1%} of all labels as the LLM does; a lower stop may save calls"
            )
        return
    neighborhoods.spare(rows[left], sparing.labels[left], sparing.trust[left])
    if settings.learned is not None and proved:
        own = neighborhoods.answers()[0][rows]
        judged = _judged(neighborhoods, rows, settings.learned)
        texts = replace(texts, own=np.where(sparing.asked, own, -1).astype(np.int32), judged=judged)
        neighborhoods.refitted = await asyncio.to_thread(
            _fitted_again, settings.learned.model, texts, sparing.heads
        )
    why = (
        "judgments prove that the learned model is better than the LLM"
        if proved
        else f"at least {sparing.agreement:.1%} of all labels are as if it had been asked about "
        "every text, with 90 % confidence"
    )
    neighborhoods.notes.append(
        f"the LLM was asked about {len(rows) - len(left):,} of {len(rows):,} texts, and a model of "
        f"its answers labeled the other {len(left):,}: {why}"
    )


def _judged(
    neighborhoods: Neighborhoods, rows: NDArray[np.int64], learned: Learned
) -> NDArray[np.int32]:
    """Return the class of each judged text, -1 for the others."""
    said = said_of(neighborhoods, rows.tolist(), learned)
    return np.array([said.get(row, (-1, ""))[0] for row in rows.tolist()], dtype=np.int32)


def _fitted_again(
    model: HeadModel, texts: Texts, heads: Sequence[Softmax] | None
) -> HeadModel | None:
    """Return the model fitted on this run, in which it sees the texts that were not asked about.

    None: it has learned from judged texts, and the run has too few of them.
    """
    taught = model.moves is not None
    judged = texts.judged
    if heads is None or (taught and (judged is None or (judged >= 0).sum() < _TAUGHT)):
        return None
    plain = replace(texts, judged=None)
    made = fit_model(plain, power=model.power, care=model.care, start=heads, rounds=SPARED_ROUNDS)
    return teach(made, texts) if taught else made
