"""Apply what was learned to the texts of a run."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from testnuc._base.arrays import Float16s, Int32s, Int64s
from testnuc._engine.batch import FATAL_ERRORS
from testnuc._engine.run import Layer, Run, Said
from testnuc.embedders.cache import EmbeddingCache
from testnuc.labels import LabelSet
from testnuc.trust.argmax import Argmax
from testnuc.trust.head import folds_of
from testnuc.trust.judgment import Judged, Judgment, draws_of
from testnuc.trust.label_scores import scores_of
from testnuc.trust.later_texts import about_later
from testnuc.trust.learned import Learned
from testnuc.trust.model import NEIGHBORS, Texts
from testnuc.trust.thresholds import Thresholds
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
    if any(later) and labels.trust is not None:
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
        return Labels.single(kept, trust=np.full(n_own, np.nan))
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
    scores = scores_of(
        run.votes.of_each_label(slice(0, n)),
        run.answers.labels(),
        folds_of([entry.hash for entry in run.batch.own]),
        len(run.batch.labels.names),
        rule.heads if vectors is not None else (),
        vectors,
    )
    return rule.apply(scores)
