"""The labelers above the vote: what was learned, a head from a file, one that learns the answers.

What was learned also says whether later texts are like those that judged ones were drawn from.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from testnuc._base.arrays import Bools, Float16s, Float64s, Int32s, Int64s
from testnuc._engine.batch import FATAL_ERRORS
from testnuc._engine.run import Layer, Run, Said
from testnuc.embedders.cache import EmbeddingCache
from testnuc.errors import NotAnsweredError
from testnuc.head import Head
from testnuc.labels import LabelSet
from testnuc.protocols import PoolText
from testnuc.trust.argmax import Argmax
from testnuc.trust.auto_policy import VoteSettings
from testnuc.trust.evidence import Judged, Judgment, draws_of
from testnuc.trust.head import LinearHead, folds_of
from testnuc.trust.learned import Learned
from testnuc.trust.model import NEIGHBORS, SKIPPED_ROUNDS, HeadModel, Texts, fit_model, fits, teach
from testnuc.trust.thresholds import LabelScores, Thresholds, scores_of
from testnuc.trust.uncertainty import UncertaintySampler, UncertaintySampling, random_part
from testnuc.voting import Labels

#: Judged texts of a run from which a model is taught again.
_TAUGHT = 20


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
    right = [
        None if j.source is None else [(c, None) for c in labels.judged(j.label, j.source) or ()]
        for j in known
    ]
    return Judged(
        np.array([place[j.hash] for j in known], dtype=np.int64),
        Labels.of(right),
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
    return rule.decide(scores_in(run, rule.heads, vectors)).by_share()


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
#: By so much the mean trust of texts that a model was fitted on may be higher than that of others:
#: up to .074 in simulations, see tests/trust/test_later_texts.py.
_FITTED = 0.08
_LOW = 0.5


def about_later(learned: Learned, later: Bools, trust: Float64s, label: Int32s) -> str | None:
    """Return how trust and labels of later texts differ; None: there are few, or trust is unknown.

    `later`, bool[n], are the texts that came later, by `Learned.later`; `trust` and `label`, -1 =
    none, those of all n texts, as they are labeled now.
    """
    here = later & np.isfinite(trust)
    new = trust[here]
    old = learned.trust[np.isfinite(learned.trust)].astype(np.float64)
    if min(len(new), len(old)) < _LEAST or not len(learned.given):
        return None
    kinds = len(learned.labels) + 1
    before, now = (np.bincount(of % kinds, minlength=kinds) for of in (learned.given, label[here]))
    moved = f"{new.mean():.2f} in the mean ({old.mean():.2f} before)"
    said = f"{len(new):,} texts came after the {learned.texts:,} that judged texts were drawn from"
    differ = [one < _CHANCE for one in (_chance_of_trust(old, new), _chance_of(before, now))]
    if not any(differ):
        return (
            f"{said}; trust and labels do not show that they differ: trust {moved}; only judged "
            "texts say how many labels are right"
        )
    low = f"below {_LOW} for {(new < _LOW).mean():.0%} ({(old < _LOW).mean():.0%} before)"
    text = f"{said}, and differ: trust {moved}, {low}"
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
    """Return how likely chance makes two means differ by as much more than `_FITTED` (Welch)."""
    from scipy.special import ndtr

    error = np.sqrt(old.var() / len(old) + new.var() / len(new))
    differ = max(abs(new.mean() - old.mean()) - _FITTED, 0.0)
    return float(2 * ndtr(-differ / max(error, 1e-12)))


def _chance_of(before: Int64s, now: Int64s) -> float:
    """Return how likely chance makes shares of labels differ as much; rare labels are one."""
    from scipy.stats import chi2_contingency

    rare = (before + now) * min(before.sum(), now.sum()) < 5 * (before.sum() + now.sum())
    table = np.array([[*of[~rare], of[rare].sum()] for of in (before, now)])
    table = table[:, table.sum(axis=0) > 0]
    return float(chi2_contingency(table).pvalue) if table.shape[1] > 1 else 1.0


def label_by_head(head: Head, run: Run, vectors: Float16s, rows: Int64s) -> Int64s:
    """Label those of some own texts that a head trusts enough; returns the others."""
    labels = head.labels_of(vectors[rows])
    labels = replace(labels, label=head.for_labels(run.batch.labels.names)[labels.label])
    sure = labels.trust >= head.least_trust
    run.layers["head"] = Layer.of(run.batch.n_own, rows[sure], labels.at(np.flatnonzero(sure)))
    if sure.any():
        run.notes.append(
            f"the head labeled {int(sure.sum()):,} of {len(vectors):,} texts, those with a trust "
            f"of at least {head.least_trust:.2f}; {len(rows) - int(sure.sum()):,} were left to the "
            "LLM"
        )
    return rows[~sure]


def asked_first(
    texts: Sequence[PoolText], n_classes: int, rule: UncertaintySampling, settings: VoteSettings
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
    run: Run, vectors: Float16s, rows: Int64s, rule: UncertaintySampling
) -> AsyncGenerator[list[int], None]:
    """Yield the own texts to ask about, in rounds; the others are skipped at the end."""
    settings = run.votes.settings
    n_classes = len(run.batch.labels.names)
    if not fits(len(rows), n_classes):
        run.notes.append(
            f"the LLM is asked about all texts: a model of {len(rows):,} texts x {n_classes:,} "
            "labels would be too large; label fewer texts at a time, as `stream` does, or use "
            "fewer labels"
        )
        yield rows.tolist()
        return
    proved = settings.head_decides
    if proved:
        rule = rule.where_proved(len(rows), n_classes)
    texts = texts_among(run, rows, vectors[rows], np.full(len(rows), -1, dtype=np.int32))
    sampler = UncertaintySampler(texts, [run.batch.entries[r].hash for r in rows], rule)
    places = sampler.first
    while len(places):
        yield rows[places].tolist()
        own = run.answers.label[rows]
        places = await asyncio.to_thread(sampler.next, own)
    skipped = np.flatnonzero(~sampler.asked)
    if not len(skipped):
        if rule.min_agreement < 1:
            run.notes.append(
                f"the LLM was asked about all {len(rows):,} texts, so no call was saved: it was "
                "not proved before that a model of its answers gives at least "
                f"{rule.min_agreement:.1%} of all labels as the LLM does; a lower min_agreement "
                "(--stop) may save calls"
            )
        return
    own = run.answers.label[rows[sampler.asked]]
    if 2 * (own >= 0).sum() < len(own):
        # a model of hardly any answers says nothing
        asked = rows[sampler.asked].tolist()
        first = next((run.answers.errors[at] for at in asked if at in run.answers.errors), None)
        problem = NotAnsweredError(
            f"the LLM gave {int((own >= 0).sum()):,} of {len(own):,} texts a label, too few for a "
            "model of its answers to label this text"
            + (f"; the first error: {first}" if first else "")
        )
        for place in rows[skipped].tolist():
            run.answers.put(place, problem)
        return
    labels = Labels.single(sampler.labels[skipped], trust=sampler.trust[skipped].astype(np.float64))
    run.layers["sampler"] = Layer.of(run.batch.n_own, rows[skipped], labels)
    if settings.learned is not None and settings.argmax is not None and proved:
        own = run.answers.label[rows]
        said = judged_classes(run, rows.tolist(), settings.learned)
        judged = taught_classes(run, said, rows.tolist(), settings.learned)
        texts = replace(texts, own=np.where(sampler.asked, own, -1).astype(np.int32), judged=judged)
        run.refitted = await asyncio.to_thread(
            _fitted_again, settings.argmax.model, texts, sampler.heads
        )
    why = (
        "judgments prove that the learned model is better than the LLM"
        if proved
        else f"at least {sampler.agreement:.1%} of all labels are as if it had been asked about "
        "every text, with 90 % confidence"
    )
    run.notes.append(
        f"the LLM was asked about {len(rows) - len(skipped):,} of {len(rows):,} texts, and a model "
        f"of its answers labeled the other {len(skipped):,}: {why}"
    )


def _fitted_again(
    model: HeadModel, texts: Texts, heads: Sequence[LinearHead] | None
) -> HeadModel | None:
    """Return the model fitted on this run, in which it sees the texts that were not asked about.

    None: it has learned from judged texts, and the run has too few of them.
    """
    taught = model.moves is not None
    judged = texts.judged
    if heads is None or (taught and (judged is None or (judged >= 0).sum() < _TAUGHT)):
        return None
    plain = replace(texts, judged=None)
    fitted = fit_model(
        plain, power=model.power, care=model.care, start=heads, rounds=SKIPPED_ROUNDS
    )
    return teach([fitted], texts, parts=0).model if taught else fitted
