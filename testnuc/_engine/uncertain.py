"""Leave texts to a head: to one from a file, or to one that learns the LLM's answers in a run."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import numpy as np

from testnuc._base.arrays import Float16s, Int64s
from testnuc._engine.applying import judged_classes, taught_classes, texts_among
from testnuc._engine.run import Layer, Run
from testnuc.errors import NotAnsweredError
from testnuc.head import Head
from testnuc.protocols import PoolText
from testnuc.trust.auto_policy import VoteSettings
from testnuc.trust.head import LinearHead
from testnuc.trust.model import SKIPPED_ROUNDS, HeadModel, Texts, fit_model, fits, teach
from testnuc.trust.uncertainty import UncertaintySampler, UncertaintySampling, random_part
from testnuc.voting import Labels

#: Judged texts of a run from which a model is taught again.
_TAUGHT = 20


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
    unknown = np.full(len(rows), -1, dtype=np.int32)
    texts = texts_among(run, rows, vectors[rows], unknown)
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
