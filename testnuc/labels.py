"""The label set, and how replies are matched to its labels."""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Self

import orjson

from testnuc._base.checks import hash_text, is_chance, names_of, valid_text, values
from testnuc._base.display import shown
from testnuc.errors import InvalidInputError, StoreError
from testnuc.label_matching import fold_case, fold_punctuation, typo_of
from testnuc.label_tree import LabelTree, flattened, is_nested
from testnuc.protocols import Answer, Task
from testnuc.types import LEVELS, SEPARATOR, Classification, Prediction, split_labels

#: The label that means none of some labels, if the user's labels have none.
NONE_OF_THESE = "none of these"
#: Names below a node of the tree that describe it.
_SUCH_AS = 3
#: Unicode categories that a label must not contain.
_FORBIDDEN = {"Cc": "a control character", "Cs": "a lone surrogate"}
_FORBIDDEN |= {"Zl": "a line separator", "Zp": "a paragraph separator"}


class LabelSet:
    """The labels a text can have.

    Parameters
    ----------
    labels : Sequence[str] or Mapping[str, str]
        At least two labels, or label -> description. Labels must differ in more than case and
        white space, and must not be blank or contain line breaks. Labels such as
        ``"refund > late"`` are a tree, and so is a nested mapping (see `LabelTree`).
    none_label : str, optional
        The label that means "none of these". Added to the set if it is not in it.
    multilabel : bool
        Whether a text can have several labels, or none; one label is enough. Under policy "auto"
        labels are the LLM's own until `TestNUC.learn` chooses another strategy. Under any other, or
        with a ``threshold``, each label is voted on alone and given above it (1/2). Few-shot
        methods, a referee that labels, and `UncertaintySampling` need one label for each text.
    former : mapping of str to sequence of str, optional
        Label -> its names before. An LLM that still answers with such a name means the label, if
        one label alone has it.

    Raises
    ------
    InvalidInputError
        A label is invalid; the message names it.

    Examples
    --------
    >>> labels = LabelSet(["card_arrival", "refund"])
    >>> labels.match("Card Arrival."), labels.match("refnud"), labels.match("weather")
    (0, None, None)
    """

    def __init__(
        self,
        labels: Sequence[str] | Mapping[str, Any],
        none_label: str | None = None,
        *,
        multilabel: bool = False,
        former: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        if not isinstance(multilabel, bool):
            raise InvalidInputError(f"multilabel is {multilabel!r}; give True or False")
        names, descriptions = _parse_labels(flattened(labels) if is_nested(labels) else labels)
        if none_label is not None:
            _check_name(none_label, "none_label")
            if none_label not in names:
                names.append(none_label)
        #: Whether a text can have several labels, or none.
        self.multilabel = multilabel
        if multilabel:
            _check_several(names, none_label)
        elif len(names) < 2:
            raise InvalidInputError(
                f"labels needs at least two labels, got {names!r}. For a yes-or-no label, add a "
                "none_label, such as 'other'."
            )
        #: The labels, in the order given; an added `none_label` comes last.
        self.names: tuple[str, ...] = tuple(names)
        #: label -> description, for labels that have one.
        self.descriptions: Mapping[str, str] = MappingProxyType(descriptions)
        self.none_label = none_label
        self._index = {name: i for i, name in enumerate(self.names)}
        #: Normalized labels -> position; -1 if labels share a form: only the label itself matches.
        self._strict: dict[str, int] = {}
        self._loose: dict[str, int] = {}
        #: Longer replies are prose, not labels.
        self._too_long = 2 * max(map(len, self.names)) + 100
        for i, name in enumerate(self.names):
            folded = fold_case(name)
            first = self._strict.setdefault(folded, i)
            if first != i:
                raise InvalidInputError(
                    f"labels {self.names[first]!r} and {name!r} differ in case or white space "
                    "only, which LLMs do not distinguish. Remove or rename one of them."
                )
            folded = fold_punctuation(folded)
            if folded:  # not ":)"
                self._loose[folded] = -1 if folded in self._loose else i
        self._former = names_of("former", {} if former is None else former)
        self._strict = _renamed(self._former, self._index) | self._strict

    @cached_property
    def tree(self) -> LabelTree | None:
        """The tree that the labels are in; None: they are not, or a text can have several."""
        return None if self.multilabel else LabelTree.of(self.names)

    def task(self, system: str, **facts: Any) -> Task:
        """Return the task of calls that choose from these labels."""
        return Task(system, self.names, multilabel=self.multilabel, same=self.same, **facts)

    def some(self, names: Sequence[str]) -> "LabelSet":
        """Return a set of some of these labels, in the given order."""
        described = {name: self.descriptions.get(name, "") for name in names}
        # but those that are labels themselves, or that several had
        former = {
            n: [one for one in self._former.get(n, ()) if self.match(one) == self.index(n)]
            for n in names
        }
        return LabelSet(described, self.none_label, multilabel=self.multilabel, former=former)

    def record(self) -> dict[str, Any]:
        """Return what a store notes of the set: all but descriptions."""
        facts = {
            "none_label": self.none_label,
            "multilabel": self.multilabel,
            "former": self._former,
        }
        return {"labels": list(self.names)} | {name: of for name, of in facts.items() if of}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Return the set of a `record`."""
        several, former = record.get("multilabel", False), record.get("former")
        return cls(record["labels"], record.get("none_label"), multilabel=several, former=former)

    def index(self, name: str) -> int | None:
        """Return the position of a label, compared exactly, or None."""
        return self._index.get(name)

    def match(self, said: str) -> int | None:
        """Return the position of the label that a reply matches, or None.

        Tried in order: an exact match; a match without regard to case and white space; a unique
        match without regard to punctuation, except where it can carry the meaning (C#, A-, 1.5); a
        unique match but for a letter that is missing, or too many, inside one word of five letters
        or more. A reply that matches none is never replaced by a default label.
        """
        exact = self._index.get(said)
        if exact is not None or len(said) > self._too_long:
            return exact
        case = fold_case(said)
        folded = fold_punctuation(case)
        place = self._strict.get(case, self._loose.get(folded))
        if place is None:
            similar = typo_of(folded, self._loose.keys())
            place = -1 if similar is None else self._loose[similar]
        return None if place < 0 else place

    def same(self, said: str) -> int | None:
        """Return the position of the label that a whole reply is, but for case and punctuation."""
        if len(said) > self._too_long:
            return None
        case = fold_case(said)
        folded = fold_punctuation(case.replace("`", " "))
        place = self._strict.get(case, self._loose.get(folded, -1))
        return None if place < 0 else place

    def split(self, label: str) -> list[str]:
        """Return the labels of a text that are given in one string; where it has one, this one."""
        return split_labels(label) if self.multilabel else [label]

    def knows(self, label: str) -> bool:
        """Whether the labels of a text, in one string, are of this set."""
        return all(name in self._index for name in self.split(label))

    def judged(self, label: str | None, source: str | None) -> tuple[int, ...] | None:
        """Return the positions of the labels that a judgment gives, in one string.

        None: none of the labels is right, or (without a `source`) the text was skipped.
        """
        if label is None and source is not None:
            label = self.none_label
        if label is None or not self.knows(label):
            return None
        return tuple(self._index[name] for name in self.split(label))

    def joined(self, names: object) -> str | None:
        """Return distinct labels of one text as one string, in the order of the set, or None."""
        if isinstance(names, str) or not isinstance(names, Iterable):
            return None
        given = list(names)
        known = all(isinstance(name, str) and name in self._index for name in given)
        if not known or len(set(given)) < len(given):
            return None
        return SEPARATOR.join(name for name in self.names if name in given)

    def predicted(self, answer: Answer) -> Prediction:
        """Return an answer as a prediction, without a label if it matches none of the set."""
        if self.multilabel:
            return self._several(answer.stated)
        index = self.match(answer.label)
        label = None if index is None else self.names[index]
        said = None if label == answer.label else answer.label
        return Prediction(label, answer.confidence, said)

    def restored(self, prediction: Prediction) -> Prediction:
        """Return a prediction as it was before `as_stored`."""
        if not self.multilabel or prediction.stated is not None:
            return prediction
        if prediction.said is not None:
            return self._several(_pairs_of(prediction.said))
        names = split_labels(prediction.label)
        return self._several([(name, prediction.confidence) for name in names])

    def _several(self, pairs: Sequence[tuple[str, float | None]]) -> Prediction:
        """Return the prediction of an answer: labels with their confidences.

        Labels outside the set are dropped, and of duplicates the largest confidence counts. An
        answer that has no other labels than those outside abstains.
        """
        confidence_of: dict[int, float | None] = {}
        outside = []
        for name, confidence in pairs:
            place = self.match(name)
            if place is None:
                outside.append(name)
            else:
                both = (confidence_of.get(place), confidence)
                confidence_of[place] = max((one for one in both if one is not None), default=None)
        labels = tuple(self.names[place] for place in confidence_of)
        sure = [one for one in confidence_of.values() if one is not None]
        return Prediction(
            label=SEPARATOR.join(labels) if labels or not outside else None,
            confidence=min(sure) if sure and len(sure) == len(labels) else None,
            said=SEPARATOR.join(outside) or None,
            stated=(
                *zip(labels, confidence_of.values(), strict=True),
                *((name, None) for name in outside),
            ),
        )

    def unlabeled(self, index: int, text: str, error: Exception | None) -> Classification:
        """Return the result of a text that could not be labeled."""
        shares: dict[str, float] | None = {} if self.multilabel else None
        path = None if self.tree is None else ()
        return Classification(index, text, None, error=error, shares=shares, path=path)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def __repr__(self) -> str:
        shown = ", ".join(repr(name) for name in self.names[:5])
        more = f", .. {len(self.names) - 5} more" if len(self.names) > 5 else ""
        return f"LabelSet([{shown}{more}])"


def part_of(whole: LabelSet, shown: Sequence[int]) -> LabelSet:
    """Return some of the labels, and one that means "none of these"."""
    described = {whole.names[i]: whole.descriptions.get(whole.names[i], "") for i in shown}
    return LabelSet(described, whole.none_label or NONE_OF_THESE)


def longest_part(whole: LabelSet, n: int) -> LabelSet:
    """Return the n longest labels, in their order."""
    names, described = whole.names, whole.descriptions
    places = [i for i, name in enumerate(names) if name != whole.none_label]
    places.sort(key=lambda i: -len(names[i]) - len(described.get(names[i], "")))
    return part_of(whole, sorted(places[:n]))


def level_sets(whole: LabelSet) -> dict[tuple[str, ...], LabelSet]:
    """Return the labels of each call of a tree of labels, by the node that was chosen before."""
    tree, none_label = whole.tree, whole.none_label or NONE_OF_THESE
    assert tree is not None
    below = {node: tree.children(node) for node in [(), *tree.parents()]}
    return {
        node: LabelSet({LEVELS.join(at): _about(whole, at, node) for at in children}, none_label)
        for node, children in below.items()
        if len(children) > 1
    }


def _about(whole: LabelSet, child: tuple[str, ...], node: tuple[str, ...]) -> str:
    """Describe a node: by its description, or by what is below it."""
    assert whole.tree is not None
    below = [path[-1] for path in whole.tree.children(child) if path != child]
    if child == node or not below:
        return whole.descriptions.get(LEVELS.join(child), "")
    return f"such as {', '.join(below[:_SUCH_AS])}" + (", .." if len(below) > _SUCH_AS else "")


def labels_hash(labels: Iterable[str], descriptions: Mapping[str, str]) -> str:
    """Return what tells label sets apart for people: of names and descriptions, in their order."""
    pairs = [[name, descriptions.get(name) or ""] for name in labels]
    return hash_text(orjson.dumps(pairs).decode()).hex()[:12]


def as_stored(prediction: Prediction) -> Prediction:
    """Return a prediction as stores hold it.

    Several labels are one string, and JSON with the confidence of each: so did version 0.1.0.
    """
    if prediction.stated is None:
        return prediction
    said = orjson.dumps(prediction.stated).decode()
    return Prediction(prediction.label, prediction.confidence, said)


def _pairs_of(said: str) -> list[tuple[str, float | None]]:
    """Return labels and confidences from what `as_stored` wrote."""
    try:
        pairs = [(name, sure) for name, sure in orjson.loads(said)]
        if not all(isinstance(name, str) and is_chance(sure) for name, sure in pairs):
            raise TypeError("no labels with their confidences")  # noqa: TRY301 - as other damage
    except (TypeError, ValueError) as exc:
        raise StoreError(f"a stored answer is damaged: {said!r:.80}") from exc
    return pairs


def _check_several(names: Sequence[str], none_label: str | None) -> None:
    """Raise an `InvalidInputError` if the labels cannot be used with ``multilabel=True``."""
    if none_label is not None:
        raise InvalidInputError(
            f"none_label is {none_label!r}, but with multilabel=True a text that no label fits has "
            "no label; leave none_label out"
        )
    if not names:
        raise InvalidInputError("labels is empty; give at least one label")
    for name in names:
        if SEPARATOR in name or name != name.strip():
            raise InvalidInputError(
                f"label {name!r} contains {SEPARATOR!r}, which separates the labels of a text in "
                "files, or starts or ends with white space; rename it"
            )


def _parse_labels(labels: Sequence[str] | Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    # no set: its order, and so the prompt, would change from process to process
    names = list(values(labels, "labels", ordered=True))
    seen: set[str] = set()
    for name in names:
        _check_name(name, "label")
        if name in seen:
            raise InvalidInputError(f"duplicate label {name!r}; remove one of them.")
        seen.add(name)
    return names, _parse_descriptions(labels) if isinstance(labels, Mapping) else {}


def _parse_descriptions(labels: Mapping[str, object]) -> dict[str, str]:
    """Return the non-blank descriptions, each on one line."""
    descriptions: dict[str, str] = {}
    for name, description in labels.items():
        if description is None or (isinstance(description, str) and not description.strip()):
            continue
        if (problem := valid_text(description)) is not None:
            raise InvalidInputError(f"the description of label {name!r} {problem}")
        descriptions[name] = " ".join(str(description).split())
    return descriptions


def _renamed(former: Mapping[str, Sequence[str]], index: Mapping[str, int]) -> dict[str, int]:
    """Return the position of the label that had each former name; -1: several had it."""
    places: dict[str, int] = {}
    for name, before in former.items():
        if name not in index:
            raise InvalidInputError(f"former names {name!r}, which is not one of the labels")
        for folded in {fold_case(one) for one in before}:
            places[folded] = -1 if folded in places else index[name]
    circle = {name: {*before} - {name} for name, before in former.items()}
    while last := [name for name, before in circle.items() if not before & circle.keys()]:
        for name in last:
            del circle[name]
    if circle:
        raise InvalidInputError(
            f"the labels {', '.join(map(repr, circle))} have each other's former names: what they "
            "meant in an answer or a judgment cannot be told; give them new names"
        )
    return places


def _check_name(name: object, what: str) -> None:
    if not isinstance(name, str):
        raise InvalidInputError(f"{what} {shown(name)} is not a string.")
    if not name.strip():
        raise InvalidInputError(f"{what} {name!r} is blank; name it or remove it.")
    for character in name:
        problem = _FORBIDDEN.get(unicodedata.category(character))
        if problem:
            raise InvalidInputError(
                f"{what} {name!r:.200} contains {problem} ({character!a}); a label is one line of "
                "text. Replace the character with a space."
            )
