"""Ask about a random part of the texts with the whole list of labels too, and compare the answers.

A shortlist that lacks the right label can make an LLM choose a wrong one. How often it does is seen
where the LLM is shown all labels besides. Which texts these are depends on their content alone, so
that a second run makes no call.
"""

from collections.abc import Sequence
from contextlib import aclosing
from hashlib import blake2b

from testnuc._dispatch.predictor import FULL_LABELS, Predictor
from testnuc._dispatch.scheduler import Scheduler
from testnuc._engine.batch import FATAL_ERRORS
from testnuc._engine.rows import nearest
from testnuc._engine.run import Run
from testnuc.protocols import PoolText
from testnuc.scoring import wilson

#: The part of the texts that is compared, the fewest and the most; of fewer than `_FROM`, none is.
_PART, _LEAST, _MOST, _FROM = 0.02, 20, 200, 100
#: A list is called harmful where it lacks the label for at least this part of the texts.
_HARM = 0.02


def compared_part(entries: Sequence[PoolText]) -> list[int]:
    """Return the positions of those that are compared, of distinct texts without a known label."""
    if len(entries) < _FROM:
        return []
    order = sorted(range(len(entries)), key=lambda at: _rank(entries[at].hash))
    return order[: min(max(_LEAST, int(_PART * len(entries))), _MOST)]


def _rank(text_hash: bytes) -> bytes:
    # another order than that of the hashes, by which folds and samples are chosen
    return blake2b(text_hash, digest_size=8, key=b"whole list").digest()


async def compare_with_full_labels(run: Run, predictor: Predictor, scheduler: Scheduler) -> None:
    """Ask about a part of the own texts with the whole list, and note how often answers agree.

    An error ends the comparison, not the run: its texts are labeled.
    """
    own = range(run.batch.n_own)
    places = [
        place
        for place in own
        if run.batch.entries[place].label is None and not run.is_skipped(place)
    ]
    entries = [run.batch.entries[place] for place in places]
    asks = [
        predictor.ask(entries[at].text, entries[at].hash, places[at], FULL_LABELS)
        for at in compared_part(entries)
    ]
    pairs: list[tuple[int, str, str]] = []
    try:
        async with aclosing(scheduler.run(asks)) as outcomes:
            async for ask, outcome in outcomes:
                given = run.answers.predictions[ask.place]
                if isinstance(outcome, Exception) or given is None:
                    continue
                if given.label is not None and outcome.label is not None:
                    pairs.append((ask.place, given.label, outcome.label))
    except FATAL_ERRORS:
        pass
    if pairs:
        run.notes.extend(_summary(run, pairs))


def _summary(run: Run, pairs: Sequence[tuple[int, str, str]]) -> list[str]:
    """Return what the comparison shows: place of a text, its label, its label by the whole list."""
    other = [(place, short, whole) for place, short, whole in pairs if short != whole]
    agree = wilson(len(pairs) - len(other), len(pairs))
    summary = (
        f"{len(pairs):,} texts were also sent with all labels, as a check: the label is "
        f"the same for {100 * agree.value:.1f} % ({100 * agree.low:.1f} to {100 * agree.high:.1f} "
        "%, 95 %)"
    )
    if not other:
        return [summary]
    sides = [_side(run, *pair) for pair in other]
    summary += (
        f"; of the {len(other):,} others, the neighbors agree with the prompt of all labels for "
        f"{sides.count(1):,}, with the shorter one for {sides.count(-1):,}"
    )
    notes = [summary]
    lacked = wilson(sum(_lacks(run, *pair) for pair in other), len(pairs))
    if lacked.low > _HARM:
        notes.append(
            f"the shorter prompts reduce accuracy: for {100 * lacked.value:.1f} % of these texts "
            f"(at least {100 * lacked.low:.1f} %) they lack the label that the LLM gives where it "
            "sees all; describe the labels, give a longer shortlist, or shortlist=None"
        )
    return notes


def _side(run: Run, place: int, short: str, whole: str) -> int:
    """Return 1 if the neighbors of a text side with the label by the whole list, -1, or 0."""
    weights = {short: 0.0, whole: 0.0}
    for near in nearest(run, place, run.batch.neighbors.shape[1]):
        if near.label in weights:
            weights[near.label] += max(near.similarity, 0.0)
    return (weights[whole] > weights[short]) - (weights[whole] < weights[short])


def _lacks(run: Run, place: int, short: str, whole: str) -> bool:
    """Whether the label by the whole list was not among those that a text was shown."""
    labels, lists = run.batch.labels, run.batch.shortlists
    if lists is not None:
        return labels.index(whole) not in lists[place].tolist()
    # level by level: another top level hides it
    assert labels.tree is not None
    paths = labels.tree.paths
    first, second = (paths[labels.names.index(label)][0] for label in (short, whole))
    return first != second
