"""The label set: which labels there are, and which of them a reply means."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from rapidfuzz import fuzz, process

from testnuc.errors import InvalidInputError
from testnuc.types import Prediction

if TYPE_CHECKING:
    from testnuc.protocols import Answer

__all__ = ["LabelSet"]

#: A reply at least this similar (0..1) to one label, and to no other as much, means that label.
MIN_RATIO = 0.9

#: How many replies outside the set are remembered with what they meant.
MEMORY = 8192

_DIGITS = re.compile(r"\d+")

#: What a label may not hold: line breaks, other control characters, and halves of characters.
_FORBIDDEN = {"Cc": "a control character", "Cs": "a lone surrogate"}
_FORBIDDEN |= {"Zl": "a line separator", "Zp": "a paragraph separator"}


class LabelSet:
    """The labels a text can have.

    Parameters
    ----------
    labels : Sequence[str] or Mapping[str, str]
        At least two labels, or label -> description. Exact duplicates, labels that differ in case
        or white space only, blank labels and labels with line breaks are refused.
    none_label : str, optional
        The label that means "none of these". It is added to the set where it is not in it.

    Raises
    ------
    InvalidInputError
        The labels cannot be used; the message names the label and what to do.

    Examples
    --------
    >>> labels = LabelSet(["card_arrival", "refund"])
    >>> labels.match("Card Arrival."), labels.match("refnud"), labels.match("weather")
    (0, None, None)
    """

    __slots__ = (
        "_index",
        "_loose",
        "_meant",
        "_strict",
        "_too_long",
        "descriptions",
        "names",
        "none_label",
    )

    def __init__(
        self, labels: Sequence[str] | Mapping[str, str], none_label: str | None = None
    ) -> None:
        names, descriptions = _listed(labels)
        if none_label is not None:
            _check_name(none_label, "none_label")
            if none_label not in names:
                names.append(none_label)
        if len(names) < 2:
            raise InvalidInputError(
                f"labels needs at least two labels, got {names!r}. A text can only be labeled by "
                'choosing between labels; to tell one label from all else, add none_label="other".'
            )
        #: The labels, in the order given; `none_label` last where it was added.
        self.names: tuple[str, ...] = tuple(names)
        #: label -> description, for those that have one.
        self.descriptions: Mapping[str, str] = MappingProxyType(descriptions)
        self.none_label = none_label
        self._index = {name: i for i, name in enumerate(self.names)}
        #: Folded forms; -1 where two labels share one, so that it means neither.
        self._strict: dict[str, int] = {}
        self._loose: dict[str, int] = {}
        self._meant: dict[str, int | None] = {}
        #: Longer replies are prose, whatever they hold.
        self._too_long = 2 * max(map(len, self.names)) + 100
        for i, name in enumerate(self.names):
            folded = _fold_case(name)
            first = self._strict.setdefault(folded, i)
            if first != i:
                raise InvalidInputError(
                    f"labels {self.names[first]!r} and {name!r} differ in case or white space "
                    "only, which an LLM does not keep apart. Remove one, or reword it."
                )
            folded = _fold_punctuation(folded)
            self._loose[folded] = -1 if folded in self._loose else i

    def index(self, name: str) -> int | None:
        """Return the position of exactly this label, or None."""
        return self._index.get(name)

    def match(self, said: str) -> int | None:
        """Return the position of the label that a reply means, or None where that is unsure.

        A reply means a label that it equals; or equals but for case and white space; or but for
        punctuation as well, if only one label does; or else the one label most similar to it, if
        the similarity (rapidfuzz's ratio of the folded forms) is at least 0.9, no other label is as
        similar, and both hold the same numbers. It is never guessed beyond that.

        Parameters
        ----------
        said : str
            The label as the LLM gave it.

        Returns
        -------
        int or None
            Position in `names`.
        """
        exact = self._index.get(said)
        if exact is not None:
            return exact
        if len(said) > self._too_long:
            return None
        try:
            return self._meant[said]
        except KeyError:
            pass
        meant = self._match_folded(said)
        if len(self._meant) >= MEMORY:
            self._meant.clear()
        self._meant[said] = meant
        return meant

    def _match_folded(self, said: str) -> int | None:
        folded = _fold_case(said)
        found = self._strict.get(folded)
        if found is not None:
            return found
        folded = _fold_punctuation(folded)
        if not folded:
            return None
        found = self._loose.get(folded)
        if found is not None:
            return None if found < 0 else found
        best = process.extract(
            folded, self._loose.keys(), scorer=fuzz.ratio, limit=2, score_cutoff=100 * MIN_RATIO
        )
        if not best or (len(best) > 1 and best[0][1] == best[1][1]):
            return None
        similar = best[0][0]
        if _DIGITS.findall(similar) != _DIGITS.findall(folded):
            return None  # "level 1" is no spelling of "level 10"
        found = self._loose[similar]
        return None if found < 0 else found

    def predicted(self, answer: Answer) -> Prediction:
        """Return the prediction that an answer is.

        Parameters
        ----------
        answer : Answer
            What the model said of a text.

        Returns
        -------
        Prediction
            Without a label where the answer means none of the set.
        """
        index = self.match(answer.label)
        label = None if index is None else self.names[index]
        said = None if label == answer.label else answer.label
        return Prediction(label, answer.confidence, said)

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


def _listed(labels: Sequence[str] | Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return names and descriptions, each one checked."""
    if isinstance(labels, str | bytes):
        raise InvalidInputError(
            f"labels is one string, {labels!r:.80}; give a list of labels, such as "
            '["refund", "card lost"].'
        )
    try:
        names = list(labels)
    except TypeError:
        raise InvalidInputError(f"labels must be a list of strings, got {labels!r:.80}.") from None
    seen: set[str] = set()
    for name in names:
        _check_name(name, "label")
        if name in seen:
            raise InvalidInputError(f"label {name!r} is given twice; remove one of them.")
        seen.add(name)
    return names, _described(labels) if isinstance(labels, Mapping) else {}


def _described(labels: Mapping[str, object]) -> dict[str, str]:
    """Return the descriptions on one line each, without the blank ones."""
    descriptions: dict[str, str] = {}
    for name, description in labels.items():
        if description is None:
            continue
        if not isinstance(description, str):
            raise InvalidInputError(
                f"the description of label {name!r} is {description!r:.80}, not a string; "
                "labels as a mapping is label -> description."
            )
        if any("\ud800" <= character <= "\udfff" for character in description):
            raise InvalidInputError(
                f"the description of label {name!r} holds a lone surrogate, which is half a "
                "character; decode the text it came from correctly."
            )
        if description.strip():
            descriptions[name] = " ".join(description.split())
    return descriptions


def _check_name(name: object, what: str) -> None:
    if not isinstance(name, str):
        raise InvalidInputError(f"{what} {name!r:.80} is not a string; write it as one.")
    if not name.strip():
        raise InvalidInputError(f"{what} {name!r} is blank; give it a name, or remove it.")
    for character in name:
        problem = _FORBIDDEN.get(unicodedata.category(character))
        if problem:
            raise InvalidInputError(
                f"{what} {name!r:.200} holds {problem} ({character!a}); a label is one line of "
                "text. Replace it by a space."
            )


def _fold_case(text: str) -> str:
    """Return one form for all that differ in case, white space or Unicode composition only."""
    text = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(unicodedata.normalize("NFKC", text).split())


def _fold_punctuation(folded: str) -> str:
    """Return it without punctuation; symbols such as ``+`` and emoji mean something and stay."""
    if folded.isalnum():
        return folded
    return " ".join(
        "".join(" " if unicodedata.category(c)[0] == "P" else c for c in folded).split()
    )
