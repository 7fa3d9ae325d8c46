"""Judgments as those of a client's label set, also where they were made with other labels."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from testnuc.errors import InvalidInputError
from testnuc.labels import LabelSet
from testnuc.trust.judgment import Judgment
from testnuc.trust.learned import Learned
from testnuc.trust.review import Review
from testnuc.trust.thresholds import Thresholds
from testnuc.types import SEPARATOR

#: Ends what the LLM said, if it was shown other labels than those of now.
BEFORE = " (of the labels before)"


def judgments_of(
    judged: Review | Learned, labels: LabelSet, was: Mapping[str, Sequence[str]] | None
) -> list[Judgment]:
    """Return the judgments as those of a label set; `was` as for `TestNUC.learn`."""
    several = (
        isinstance(judged.rule, Thresholds) if isinstance(judged, Learned) else judged.multilabel
    )
    if several != labels.multilabel or (was is None and tuple(judged.labels) != labels.names):
        raise InvalidInputError(
            "the judgments are of another label set than this client's; give was={}, with the "
            "former names of labels that were renamed, merged or split"
        )
    found = [*judged.judged] if isinstance(judged, Learned) else _judgments_in(judged)
    if tuple(judged.labels) == labels.names and not was:
        return found
    return carried_over(found, judged.labels, labels, was or {})


def _judgments_in(review: Review) -> list[Judgment]:
    if not review.judged:
        raise InvalidInputError("the review has no answer yet; answer some of its items")
    last = review.judged[-1].index
    # a person who confirms some answers of a referee chooses which
    mixed = {item.source for item in review} >= {"person", "referee"}
    return [
        Judgment(
            item.text,
            item.hash,
            item.answer,
            item.source,
            item.probability,
            item.floor,
            review.texts,
            item.goal in {"certify", "count"}
            and item.probability is not None
            and not (mixed and item.source == "person"),
            review.ranking,
            agreed=not item.said if item.judges > 1 else None,
        )
        for item in review[: last + 1]
    ]


def added_labels(labels: LabelSet, old: Iterable[str], was: Iterable[str]) -> list[str]:
    """Return the labels that are new: neither old ones, nor such as say what they were."""
    before = {*old, *was}
    return [name for name in labels.names if name not in before]


def carried_over(
    judgments: Sequence[Judgment],
    old: Sequence[str],
    labels: LabelSet,
    was: Mapping[str, Sequence[str]],
) -> list[Judgment]:
    """Return judgments of another label set as those of `labels`.

    `was`: label -> the labels of before that it stands for; other labels are what they were. What
    is judged to be a label that is gone, or that several stand for, counts as not answered; so
    does what had none of the labels, if labels are new.
    """
    new_names: dict[str, set[str]] = {name: {name} for name in old if name in labels}
    for name, before in was.items():
        for one in before:
            new_names.setdefault(one, set()).add(name)
    added = added_labels(labels, old, was)

    def now(label: str | None) -> str | None:
        """Return the label that a judgment gives by now; raises KeyError if it gives none."""
        if label is None or (label == labels.none_label and not labels.multilabel):
            if added:
                raise KeyError(label)
            return label
        names = [new_names.get(one, set()) for one in labels.split(label)]
        if any(len(found) != 1 for found in names):
            raise KeyError(label)
        given = set().union(*names)
        return SEPARATOR.join(name for name in labels.names if name in given)

    carried = []
    for judgment in judgments:
        label, source = judgment.label, judgment.source
        try:
            label = None if source is None else now(label)
        except KeyError:
            label = source = None
        carried.append(replace(judgment, label=label, source=source))
    return carried
