"""Apply what was learned to the texts of a run, and say whether later texts are like earlier."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from testnuc._base.arrays import Bools, Float16s, Float64s, Int32s, Int64s
from testnuc._engine.batch import FATAL_ERRORS
from testnuc._engine.run import Layer, Run, Said
from testnuc.embedders.cache import EmbeddingCache
from testnuc.labels import LabelSet
from testnuc.trust.argmax import Argmax
from testnuc.trust.evidence import Judged, Judgment, draws_of
from testnuc.trust.head import LinearHead, folds_of
from testnuc.trust.learned import Learned
from testnuc.trust.model import NEIGHBORS, Texts
from testnuc.trust.thresholds import LabelScores, Thresholds, scores_of
from testnuc.voting import Labels


async def apply_learned(run: Run, embedding: EmbeddingCache) -> None:
    """Label the own texts by what was learned, if anything was.

    If an error ended the run and vectors are missing, a head of several labels counts as the vote
    does; of one label, judged texts alone change, and trust of the others is unknown.
    """
    learned, vectors = run.votes.settings.learned, None
    if learned is None:
        return
    entries, rule = run.batch.entries, learned.rule
    if isinstance(rule, Thresholds):
        entries = entries[: run.batch.n_own if rule.heads else 0]
    try:
        if entries:
            # those that were searched with
            vectors, _ = await embedding.each(entries)
    except FATAL_ERRORS:
        if run.failure is None:
            raise
    label = _single if isinstance(rule, Argmax) else _several
    labels = await asyncio.to_thread(label, run, learned, vectors)
    later = learned.later([entry.hash for entry in run.batch.own])
    if any(later):
        said = about_later(learned, np.array(later), labels.trust, labels.first())
        run.notes.extend([said] if said else [])
    here = np.ones(run.batch.n_own, dtype=np.bool_)
    # without a vector, a model knows nothing
    here[[*run.batch.rejected]] = False
    run.layers["learned"] = Layer(labels, here)


def judged_of(
    judgments: Sequence[Judgment], place: Mapping[bytes, int], labels: LabelSet
) -> Judged:
    """Return the judged texts among those whose hashes have a place."""
    known = [j for j in judgments if j.hash in place]
    classes = [labels.judged(j.label, j.source) or () for j in known]
    return Judged(
        np.array([place[j.hash] for j in known], dtype=np.int64),
        Labels.of(
            [
                None if j.source is None else [(one, None) for one in given]
                for j, given in zip(known, classes, strict=True)
            ]
        ),
        draws_of(known, len(place)),
        np.array([j.source != "referee" for j in known], dtype=np.bool_),
        tuple(j.ranking for j in known),
    )


def judged_classes(run: Run, places: Iterable[int], learned: Learned) -> Said:
    """Return the judgments of texts at some places; of several labels, a text may have none."""
    answers, labels = learned.answers, run.batch.labels
    said = {place: answers.get(run.batch.entries[place].hash) for place in places}
    return {
        place: (labels.judged(*answer), answer[1])
        for place, answer in said.items()
        if answer is not None
    }


def taught_classes(run: Run, judged: Said, places: Sequence[int], learned: Learned) -> Int32s:
    """Return the class of each text of which a judgment was learned from, or -1; int32[n]."""
    taught, proving = np.full(len(places), -1, dtype=np.int32), learned.proving
    for at, place in enumerate(places if judged else ()):
        classes, _ = judged.get(place, (None, ""))
        if classes and run.batch.entries[place].hash not in proving:
            taught[at] = classes[0]
    return taught


def _single(run: Run, learned: Learned, vectors: Float16s | None) -> Labels:
    batch, n_own = run.batch, run.batch.n_own
    kept = run.labels().first()
    places = range(n_own if vectors is None else len(vectors))
    judged = judged_classes(run, places, learned)
    run.judge({place: of for place, of in judged.items() if place < n_own})
    if vectors is None:
        return Labels.single(kept)
    known = taught_classes(run, judged, places, learned)
    texts = Texts(
        vectors,
        run.answers.label,
        batch.neighbors[:, :NEIGHBORS],
        batch.similarities[:, :NEIGHBORS],
        folds_of([entry.hash for entry in batch.entries]),
        len(batch.labels.names),
        known if (known >= 0).any() else None,
    )
    rule = learned.rule
    assert isinstance(rule, Argmax)
    if run.refitted is not None:
        rule = replace(rule, model=run.refitted)
    return rule.apply(texts, kept, batch.labels.tree)


def texts_among(run: Run, rows: Int64s, vectors: Float16s, own: Int32s) -> Texts:
    """Return some own texts, with neighbors among them alone.

    `rows`: int64[n], their places; `vectors`: float16[n, dim]; `own`: int32[n], the LLM's labels,
    -1 = none.
    """
    batch = run.batch
    place = np.full(len(batch.entries) + 1, -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    near = place[batch.neighbors[rows, :NEIGHBORS]]
    # missing ones last
    order = np.argsort(near < 0, axis=1, kind="stable")
    return Texts(
        vectors,
        own,
        np.take_along_axis(near, order, axis=1),
        np.take_along_axis(batch.similarities[rows, :NEIGHBORS], order, axis=1),
        folds_of([batch.entries[row].hash for row in rows.tolist()]),
        len(batch.labels.names),
    )


def _several(run: Run, learned: Learned, vectors: Float16s | None) -> Labels:
    n, rule = run.batch.n_own, learned.rule
    assert isinstance(rule, Thresholds)
    run.judge(judged_classes(run, range(n), learned))
    return rule.apply(scores_in(run, rule.heads, vectors))


def scores_in(run: Run, heads: Sequence[LinearHead], vectors: Float16s | None) -> LabelScores:
    """Return what speaks for each label of the own texts; without vectors, no head does."""
    return scores_of(
        run.votes.of_each_label(slice(0, run.batch.n_own)),
        run.answers.labels(),
        folds_of([entry.hash for entry in run.batch.own]),
        len(run.batch.labels.names),
        heads if vectors is not None else (),
        vectors,
    )


#: Fewest later texts of which anything is said.
_LEAST = 30
#: Trust or labels differ if chance alone makes them differ as much in one of a thousand files.
_CHANCE = 1e-3
_LOW = 0.5


def about_later(learned: Learned, later: Bools, trust: Float64s, label: Int32s) -> str | None:
    """Return how trust and labels of later texts differ; None: there are few, or trust is unknown.

    `later`, bool[n], are the texts that came later, by `Learned.later`; `trust` and `label`, -1 =
    none, those of all n texts, as they are labeled now.
    """
    here = later & np.isfinite(trust)
    new = trust[here]
    if len(new) < _LEAST or not len(learned.given):
        return None
    old = learned.trust[np.isfinite(learned.trust)].astype(np.float64)
    if len(old) < _LEAST:
        return None
    kinds = len(learned.labels) + 1
    before, now = (np.bincount(of % kinds, minlength=kinds) for of in (learned.given, label[here]))
    moved = f"trust {new.mean():.2f} in the mean ({old.mean():.2f} before)"
    said = f"{len(new):,} texts came after the {learned.texts:,} that judged texts were drawn from"
    differ = [one < _CHANCE for one in (_chance_of_trust(old, new), _chance_of(before, now))]
    if not any(differ):
        return f"{said}, and are like them: {moved}"
    low = f"below {_LOW} for {(new < _LOW).mean():.0%} ({(old < _LOW).mean():.0%} before)"
    text = f"{said}, and differ: {moved}, {low}"
    if differ[1]:
        first, second = before / before.sum(), now / now.sum()
        most = int(np.abs(second - first).argmax())
        name = repr(learned.labels[most]) if most < kinds - 1 else "no label"
        text += (
            f"; {np.abs(second - first).sum() / 2:.0%} of them would need another label to have "
            f"the former shares, mostly {name} ({second[most]:.1%}, {first[most]:.1%} before)"
        )
    return f"{text}; what was proved before says nothing of them"


def _chance_of_trust(old: Float64s, new: Float64s) -> float:
    """Return how likely chance makes two means differ as much (Welch)."""
    from scipy.special import ndtr

    error = np.sqrt(old.var() / len(old) + new.var() / len(new))
    return float(2 * ndtr(-abs(new.mean() - old.mean()) / max(error, 1e-12)))


def _chance_of(before: Int64s, now: Int64s) -> float:
    """Return how likely chance makes shares of labels differ as much; rare labels are one."""
    from scipy.stats import chi2_contingency

    rare = (before + now) * min(before.sum(), now.sum()) < 5 * (before.sum() + now.sum())
    table = np.array([[*of[~rare], of[rare].sum()] for of in (before, now)])
    table = table[:, table.sum(axis=0) > 0]
    return float(chi2_contingency(table).pvalue) if table.shape[1] > 1 else 1.0
