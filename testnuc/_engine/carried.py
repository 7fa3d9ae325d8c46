"""Judgments as those of a client's label set, also where they were made with other labels."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b

from testnuc._base.checks import note_label
from testnuc._base.display import shown
from testnuc.errors import InvalidInputError
from testnuc.labels import LabelSet
from testnuc.trust.evidence import Judgment
from testnuc.trust.learned import Learned
from testnuc.trust.review import Review, ReviewItem
from testnuc.trust.thresholds import Thresholds
from testnuc.types import SEPARATOR, Prediction

#: Ends what the LLM said, if it was shown other labels than those of now.
BEFORE = " (of the labels before)"


def is_kept(prediction: Prediction | None) -> bool:
    """Whether it is an answer to the labels before that was kept."""
    return prediction is not None and (prediction.said or "").endswith(BEFORE)


def kept_scope(scope: bytes) -> bytes:
    """Return the scope of answers that were kept from other labels, so that they can be dropped."""
    return blake2b(scope, digest_size=16, key=b"reused").digest()


def judgments_of(
    judged: Review | Learned, labels: LabelSet, was: Mapping[str, Sequence[str]] | None
) -> list[Judgment]:
    """Return the judgments as those of a label set; `was` as for `TestNUC.learn`."""
    several = (
        isinstance(judged.rule, Thresholds) if isinstance(judged, Learned) else judged.multilabel
    )
    if several != labels.multilabel:
        counts = ("one label", "several labels")
        raise InvalidInputError(
            f"the judgments are of {counts[several]} for a text, and this client gives "
            f"{counts[labels.multilabel]}; judge texts of this run"
        )
    if was is None and tuple(judged.labels) != labels.names:
        raise InvalidInputError(
            "the judgments are of another label set than this client's; give was={}, with the "
            "former names of labels that were renamed, merged or split"
        )
    if {*labels.names}.union(*(was or {}).values()).isdisjoint(judged.labels):
        old, new = (shown(", ".join(names)) for names in (judged.labels, labels.names))
        raise InvalidInputError(
            f"the judgments have no label in common with this client: theirs are {old}, its own "
            f"{new}; learn from a review of this run, or say which labels were renamed: `was`"
        )
    found = [*judged.judged] if isinstance(judged, Learned) else _judgments_in(judged)
    if tuple(judged.labels) == labels.names and not was:
        return found
    return carried_over(found, judged.labels, labels, was or {})


def _judgments_in(review: Review) -> list[Judgment]:
    if not review.judged:
        raise InvalidInputError("the review has no answer yet; answer some of its items")
    answers: dict[bytes, str | None] = {}
    for item in review.judged:
        note_label(answers, item.hash, item.text, item.answer)
    last = review.judged[-1].index
    # a person who confirms some answers of a referee chooses which
    mixed = {item.source for item in review} >= {"person", "referee"}
    blind, people = review.context.blind, review.context.people
    n = len(people) or review.context.judges
    names = f" ({', '.join(people)})" if people else ""
    saw = {None: "", True: ", blind: no label was shown", False: ", who saw the labels given"}

    def by(item: ReviewItem) -> str:
        one = "one person" if n == 1 else f"one of {n} people"
        who = f"{item.judges} people" if min(item.judges, n) > 1 else one
        return f"{who}{names}{saw[blind]}"

    settler = f"{review.context.settler}," if review.context.settler else "a person"
    settled = f"{settler} who saw the answers of judges who differed"
    return [
        Judgment(
            item.text,
            item.hash,
            item.answer,
            item.source,
            item.probability,
            item.floor,
            review.texts,
            (item.goal == "later" or item.probability is not None)
            and item.goal in {"certify", "count", "later"}
            and not (mixed and item.source == "person"),
            review.ranking,
            day=item.day,
            agreed=not item.said if item.judges > 1 else None,
            by=(settled if item.settled else by(item)) if item.source == "person" else "",
        )
        for item in review[: last + 1]
    ]


def added_labels(
    labels: LabelSet, old: Iterable[str], was: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return the labels that are new: neither old ones, nor of those that `was` says they were."""
    before = {*old}
    return [name for name in labels.names if before.isdisjoint([name, *was.get(name, ())])]


def carried_over(
    judgments: Sequence[Judgment],
    old: Sequence[str],
    labels: LabelSet,
    was: Mapping[str, Sequence[str]],
) -> list[Judgment]:
    """Return judgments of another label set as those of `labels`.

    `was`: label -> the labels of before that it stands for; other labels are what they were. What
    is judged to be a label that is gone, or that several stand for, counts as not answered; so
    does what had none of the labels, if labels are new. `Judgment.possible` says what it may be; of
    several labels, also which new ones it may have besides.
    """
    new_names: dict[str, set[str]] = {name: {name} for name in old if name in labels}
    for name, before in was.items():
        for one in before:
            new_names.setdefault(one, set()).add(name)
    added = added_labels(labels, old, was)

    def now(label: str | None) -> list[set[str | None]]:
        """Return what each label that is given may be by now; nothing: any."""
        if label is None or (label == labels.none_label and not labels.multilabel):
            return [{label, *added}]
        return [{*new_names.get(one, ())} for one in labels.split(label)]

    carried = []
    for judgment in judgments:
        known = judgment.source is not None
        maybe = [of for one in judgment.possible for of in now(one)]
        found = now(judgment.label) if known else maybe
        given = set[str | None]().union(*found)
        here = [name for name in labels.names if name in given]
        if known and all(len(of) == 1 for of in found):
            label = None if None in given else SEPARATOR.join(here)
            new = {*added} if labels.multilabel else set[str | None]()
            besides = new.union(*maybe) - given
            also = tuple(name for name in labels.names if name in besides)
            carried.append(replace(judgment, label=label, possible=also))
        else:
            could_be = (*here, *given & {None}) if all(found) else ()
            carried.append(replace(judgment, label=None, source=None, possible=could_be))
    return carried
