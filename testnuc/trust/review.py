"""Texts to be judged: drawn with known probabilities, saved to a file, answered by a person."""

import difflib
import os
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from math import ceil
from typing import Annotated, Any, Literal, Self, TypeAlias

import numpy as np
import orjson

from testnuc._base.arrays import Bools, Floats
from testnuc._base.checks import checked_number, checked_whole, hash_text, valid_text
from testnuc._base.display import Brief, Listed, today
from testnuc._base.foreign import Within, read_as
from testnuc._base.jsonl import bytes_of, write_whole
from testnuc.errors import InvalidInputError
from testnuc.labels import LabelSet
from testnuc.types import SEPARATOR, Neighbor, split_labels

#: What a review is for; None, the default, is a mixture of the first two.
GOALS = ("decide", "certify", "count", "later", "correct")
#: The part of a mixture that is drawn from the texts on which candidates differ.
_DECIDE = 0.5
#: The record of a review file.
_FORMAT, _VERSION = "testnuc.review", 1
#: Numbers, and chances, that a file may hold; a sum of shares is rounded.
Count: TypeAlias = Annotated[int, Within(0, 2**53 - 1)]
Chance: TypeAlias = Annotated[float, Within(0, 1.000001)]
_SHOWN = 5
#: Characters of labels that are compared: difflib takes time by their square.
_COMPARED = 200


@dataclass(frozen=True, slots=True)
class Drawn:
    """One draw of a review, see `ReviewItem`."""

    row: int
    goal: str
    probability: float | None = None
    floor: float | None = None


@dataclass(frozen=True, slots=True, repr=False)
class ReviewContext(Brief):
    """What is known where a review is drawn: the page shows it beside the texts."""

    #: Name of each candidate, the LLM's own labels first.
    candidates: tuple[str, ...] = ()
    #: Of each text that was drawn and judged before: whether a label was said to be right, and
    #: whether each candidate gives it.
    earlier: tuple[tuple[bool, tuple[bool, ...]], ...] = ()
    #: Number of texts that candidates label differently; None: unknown.
    differing: Count | None = None
    #: Number of texts without a label; None: unknown.
    unlabeled: Count | None = None
    descriptions: Mapping[str, str] = field(default_factory=dict)
    instructions: str | None = None
    none_label: str | None = None
    #: Arguments of the command that learns from it: the results or the store, the files of all
    #: parts where texts are shared out, then options.
    run: tuple[str, ...] = ()
    #: Whether labels of the LLM, candidates and neighbors are hidden; None: unknown.
    blind: bool | None = None
    #: How many people judged it.
    judges: Count = 1
    #: Their names; (): not known.
    people: tuple[str, ...] = ()
    #: Who settled what they differ on; "": not known.
    settler: str = ""

    def record(self) -> dict[str, Any]:
        """Return the context for a review file."""
        return {field.name: getattr(self, field.name) for field in fields(self)} | {
            "descriptions": dict(self.descriptions),
            # JSON has no name of a file that is not UTF-8
            "run": [] if valid_text(" ".join(self.run) or "-") else self.run,
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Return the context in a review file."""
        # files of older versions have more of each
        names = [one if isinstance(one, str) else one[0] for one in record["candidates"]]
        earlier = [one[-2:] for one in record["earlier"]]
        return read_as(cls, {**record, "candidates": names, "earlier": earlier})


@dataclass(frozen=True, slots=True, repr=False)
class ReviewItem(Brief):
    """A text to be judged."""

    #: Position in the review.
    index: int
    text: str
    #: The key of the text: 16 bytes.
    hash: bytes
    #: The LLM's label; None: it matches no label.
    own_label: str | None = None
    #: Each label that a candidate gives, with the names of these candidates.
    candidates: tuple[tuple[str | None, tuple[str, ...]], ...] = ()
    #: The trust of `label`, as results have it; None: unknown.
    trust: Chance | None = None
    neighbors: tuple[Neighbor, ...] = ()
    #: What its draw was for: "decide", from the texts on which candidates differ; "certify", from
    #: all, or by trust where a review has a ranking; "count", all; "later", new ones; "correct".
    goal: str = "correct"
    #: With which it was drawn from all, given the earlier draws; None: not so, or by trust.
    probability: Chance | None = None
    #: The probability, at this draw, of a text on which candidates differ.
    floor: Chance | None = None
    #: The right label; None: none of the labels is right, or not answered (`source` is None).
    #: Where a text can have several labels: all of them in one string, "" for none.
    answer: str | None = None
    #: "person" or "referee"; None: not answered.
    source: str | None = None
    #: What several people said, if they differ: names and labels.
    said: tuple[tuple[str, str | None], ...] = ()
    #: The label that is kept now.
    label: str | None = None
    #: How many people judged it.
    judges: Count = 1
    #: Position in the whole review, of which this one is the part of a judge; None: it is whole.
    position: Count | None = None
    #: The date of the answer, of several people the first "to" the last; "": it was not noted.
    day: str = ""

    @property
    def settled(self) -> bool:
        """Whether a person answered who saw what others said, as no label had a majority."""
        votes = Counter(label for _, label in self.said)
        return self.source == "person" and 2 * votes[self.answer] <= len(self.said) > 0


class Review(Listed[ReviewItem]):
    """Texts to be judged, from `TestNUC.review`; judge them by `answer` or `ask`.

    Judge the items in their order, and stop at any of them: `TestNUC.learn` counts an item that was
    skipped, up to the last one that is answered, as unknown. It bounds gains by the worst case, and
    a certificate counts it as wrong.

    Parameters
    ----------
    items : sequence of ReviewItem
    labels : sequence of str or LabelSet
        The label set; a `LabelSet` also says `multilabel`.
    texts : int
        Number of texts that the items were drawn from.
    model : str
        The model whose labels are judged.
    context : ReviewContext, optional
        What is known where it was drawn.
    multilabel : bool
        Whether a text can have several labels, or none.
    ranking : str
        The ranking of texts by trust whose parts all items were drawn from, to certify; "": none.
    """

    def __init__(
        self,
        items: Sequence[ReviewItem],
        labels: Sequence[str] | LabelSet,
        texts: int,
        model: str,
        context: ReviewContext | None = None,
        *,
        multilabel: bool = False,
        ranking: str = "",
    ) -> None:
        self._rows: list[ReviewItem] = list(items)
        self.labels = tuple(labels)
        self.texts = texts
        self.model = model
        self.context = ReviewContext() if context is None else context
        self.multilabel = labels.multilabel if isinstance(labels, LabelSet) else multilabel
        self.ranking = ranking
        #: Asks a referee; set by the client that made this review.
        self.asks: Callable[..., Awaitable[None]] | None = None

    @property
    def label_set(self) -> tuple[tuple[str, ...], bool]:
        """The labels, and whether a text can have several of them."""
        return self.labels, self.multilabel

    @property
    def drawn(self) -> bool:
        """Whether texts were drawn at random, not chosen."""
        return bool(self.ranking) or any(
            i.goal == "later" or i.probability is not None for i in self
        )

    @property
    def judged(self) -> list[ReviewItem]:
        """The items that have an answer."""
        return [item for item in self._rows if item.source is not None]

    def answer(
        self,
        item: str | int | ReviewItem,
        label: str | Sequence[str] | None,
        source: Literal["person", "referee"] = "person",
    ) -> None:
        """Answer an item; a second answer replaces the first.

        Parameters
        ----------
        item : str, int or ReviewItem
            The text, its position in the review, or the item itself.
        label : str or None
            The right label; None: none of the labels is right. Where a text can have several
            labels: the list of them, [] for none.
        source : {"person", "referee"}

        Raises
        ------
        InvalidInputError
            There is no such item, or the label is not in the set.
        """
        item = item.text if isinstance(item, ReviewItem) else item
        if isinstance(item, str):
            places = [one.index for one in self if one.text == item]
            if not places:
                raise InvalidInputError(f"the text {item[:60]!r} is not in this review")
            item = places[-1]
        elif item not in range(len(self)):
            raise InvalidInputError(f"item {item} does not exist; there are {len(self)} items")
        answer = self._checked(label)
        if source not in {"person", "referee"}:
            raise InvalidInputError(f"source is {source!r}; choose 'person' or 'referee'")
        at = int(item)
        self._rows[at] = replace(self._rows[at], answer=answer, source=source, day=today())

    def as_given(self, answer: str | None) -> str | list[str] | None:
        """Return the answer of an item, which is one string, as `answer` takes it."""
        return split_labels(answer) if self.multilabel else answer

    def with_items(self, items: Sequence[ReviewItem]) -> Self:
        """Return a review of the same labels with other items."""
        made = copy(self)
        made._rows = list(items)  # noqa: SLF001
        made.asks = None
        return made

    def blind(self) -> Self:
        """Return it without what the LLM, candidates and neighbors say: no judge sees it."""
        items = list[ReviewItem]()
        hidden = dict[str, Any](own_label=None, label=None, candidates=(), trust=None)
        for item in self:
            near = tuple(Neighbor(n.text, n.similarity, None, None) for n in item.neighbors)
            items.append(replace(item, **hidden, neighbors=near))
        made = self.with_items(items)
        made.context = replace(
            self.context, candidates=(), earlier=(), differing=None, unlabeled=None, blind=True
        )
        return made

    def split(self, judges: int = 2, overlap: float = 0.1, *, seed: int = 0) -> list[Self]:
        """Return a part for each of several judges; some texts are in all of them.

        `join_reviews` joins the parts. How often judges differ on the texts that all of them have
        says how often they err.

        Parameters
        ----------
        judges : int
            1: the whole review, and a second one with some of its texts, for the same person on
            another day.
        overlap : float
            The part of the texts that is in all.
        seed : int
        """
        checked_whole("judges", judges, least=1, most=1_000)
        checked_whole("seed", seed, least=0)
        checked_number("overlap", overlap, 0, 1)
        order = np.random.default_rng(seed).permutation(len(self)).tolist()
        both, rest = np.split(np.array(order, np.int64), [ceil(overlap * len(order))])
        parts = [[*both, *rest[judge::judges]] for judge in range(judges)]
        parts += [[*both]] * (judges == 1)
        placed = (enumerate(sorted(map(int, places))) for places in parts)
        return [
            self.with_items([replace(self[at], index=n, position=at) for n, at in part])
            for part in placed
        ]

    def withdraw(self, index: int) -> None:
        """Take the answer of an item back.

        Parameters
        ----------
        index : int
            Its position in the review.
        """
        self._rows[index] = replace(self._rows[index], answer=None, source=None)

    def _checked(self, said: str | Sequence[str] | None) -> str | None:
        """Return an answer as an item holds it."""
        if not self.multilabel:
            return None if said is None else self._known(said)
        if isinstance(said, str) or not isinstance(said, Iterable):
            raise InvalidInputError(
                f"the answer is {said!r}, but a text can have several labels; give a list, or []"
            )
        names = [self._known(name) for name in said]
        # in one order, so that equal answers are equal strings
        return SEPARATOR.join(name for name in self.labels if name in names)

    def _known(self, label: Any) -> str:
        # NA, or an array, is equal to nothing that is true or false
        if not isinstance(label, str) or label not in self.labels:
            close = closest_label(label, self.labels)
            raise InvalidInputError(f"the label {label!r} is not in the label set{close}")
        return str(label)

    async def ask(self, model: Any, *, shown: Literal["all", "candidates"] = "all") -> None:
        """Let a better model answer the items that have no answer yet.

        The calls use the client's store, limits and budget. A text whose call fails stays open.

        Parameters
        ----------
        model : str or Provider
        shown : {"all", "candidates"}
            The labels that it chooses from: all, or those that a candidate gives to the text.

        Raises
        ------
        InvalidInputError
            This review was loaded from a file; use `TestNUC.ask`.
        """
        if self.asks is None:
            raise InvalidInputError("this review has no client; use `await nuc.ask(review, model)`")
        await self.asks(self, model, shown=shown)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the review to a JSON file, atomically."""
        write_whole(path, [orjson.dumps(self.record(), option=orjson.OPT_INDENT_2)])

    def record(self) -> dict[str, Any]:
        """Return the review as the plain values that `save` writes."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "model": self.model,
            "labels": list(self.labels),
            "texts": self.texts,
            "context": self.context.record(),
            **({"multilabel": True} if self.multilabel else {}),
            **({"ranking": self.ranking} if self.ranking else {}),
            "items": [self._record(item) for item in self._rows],
        }

    def _record(self, item: ReviewItem) -> dict[str, Any]:
        # all but the index
        record = {field.name: getattr(item, field.name) for field in fields(item)[1:]}
        record["hash"] = item.hash.hex()
        record["neighbors"] = [
            [n.text, n.similarity, n.label, n.confidence] for n in item.neighbors
        ]
        if self.multilabel:
            for name in ("own_label", "answer", "label"):
                record[name] = None if record[name] is None else split_labels(record[name])
            record["said"] = [[name, split_labels(label)] for name, label in item.said]
        return record

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a review that `save` wrote, or the page; answers may be added by hand.

        Raises
        ------
        InvalidInputError
            The file cannot be read, or is not a review.
        """
        # editors of Windows write a byte order mark
        data = bytes_of(path).removeprefix(BOM_UTF8)
        try:
            record = orjson.loads(data)
        except orjson.JSONDecodeError as exc:
            # a person may have written answers into it
            raise InvalidInputError(f"{path} is not a review: {exc}") from exc
        if not isinstance(record, dict) or record.get("format") != _FORMAT:
            raise InvalidInputError(
                f"{path} is not a review; name a file that `review` wrote, or its page saved"
            )
        if record.get("version") != _VERSION:
            raise InvalidInputError(f"{path} is not a review of this version; save it again")
        try:
            every = [_plain(index, given) for index, given in enumerate(record["items"])]
            items = read_as(list[ReviewItem], every)
            context = record.get("context")
            review = cls(
                items,
                read_as(list[str], record["labels"]),
                read_as(Count, record["texts"]),
                str(record["model"]),
                None if context is None else ReviewContext.of(context),
                multilabel=bool(record.get("multilabel", False)),
                ranking=str(record.get("ranking", "")),
            )
        except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as exc:
            raise InvalidInputError(f"{path} is not a review: {exc!r}") from exc
        for item in items:
            if item.source is not None:
                try:
                    # where there can be several, null is no answer: [] is
                    answer = None if item.answer is None else review.as_given(item.answer)
                    review.answer(item.index, answer, item.source)  # type: ignore[arg-type]
                    review._rows[item.index] = replace(review[item.index], day=item.day)
                except InvalidInputError as exc:
                    raise InvalidInputError(f"{path}, item {item.index + 1}: {exc}") from exc
        return review

    def __repr__(self) -> str:
        return f"<Review of {len(self)} texts, {len(self.judged)} judged>"

    def __str__(self) -> str:
        lines = [f"{len(self)} of {self.texts:,} texts to judge, {len(self.judged)} are judged"]
        for item in self._rows[:_SHOWN]:
            given = ", ".join(repr(label) for label, _ in item.candidates)
            lines.append(f"{item.index + 1}. {item.text[:60]!r}: {given}")
        if len(self) > _SHOWN:
            lines.append(f"and {len(self) - _SHOWN} more")
        return "\n".join(lines)


def closest_label(label: Any, labels: Sequence[str]) -> str:
    """Return "; did you mean ..?", or "" if no label is close."""
    if not isinstance(label, str) or len(label) > _COMPARED:
        return ""
    short = [name for name in labels if len(name) <= _COMPARED]
    close = difflib.get_close_matches(label, short, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def draw(
    n: int,
    goal: str | None,
    differing: Bools,
    open_: Bools,
    trust: Floats,
    rng: np.random.Generator,
) -> list[Drawn]:
    """Draw texts without replacement.

    `differing`, bool[N], are texts on which candidates differ, and `open_` those not judged before.
    """
    if goal == "correct":
        rows = np.flatnonzero(open_)
        order = rows[np.argsort(trust[rows], kind="stable")][:n]
        return [Drawn(row, goal) for row in order.tolist()]
    every = np.flatnonzero(open_).tolist()
    rng.shuffle(every)
    some = [row for row in every if differing[row]]
    rng.shuffle(some)
    taken: set[int] = set()
    part = {None: _DECIDE, "decide": 1.0}.get(goal, 0.0)
    at_random = goal if goal in {"count", "later"} else "certify"
    found: list[Drawn] = []
    left, left_some = len(every), len(some)
    while len(found) < n and left:
        if goal == "decide" and not left_some:
            break
        share = part if left_some else 0.0
        deciding = bool(rng.random() < share)
        source = some if deciding else every
        # the next one of a shuffled list that is still there: uniform over those that are
        while source[-1] in taken:
            source.pop()
        row = source.pop()
        taken.add(row)
        rest = (1 - share) / left
        floor = share / left_some + rest if left_some else rest
        chances = (floor if differing[row] else rest, floor) if goal != "later" else ()
        found.append(Drawn(row, "decide" if deciding else at_random, *chances))
        left -= 1
        left_some -= bool(differing[row])
    return found


def _plain(index: int, given: dict[str, Any]) -> dict[str, Any]:
    one = _one_string
    return {
        **given,
        "index": index,
        "hash": hash_text(given["text"]),
        "own_label": one(given["own_label"]),
        "candidates": [(one(label), names) for label, names in given["candidates"]],
        "neighbors": [
            {"text": text, "similarity": near, "label": one(label), "confidence": confidence}
            for text, near, label, confidence in given["neighbors"]
        ],
        # nothing that was drawn had no chance
        "probability": given["probability"] or None,
        "answer": one(given["answer"]),
        # who writes an answer into the file need not say that a person gave it
        "source": given["source"] or (None if given["answer"] is None else "person"),
        "said": [(name, one(label)) for name, label in given.get("said", ())],
        # files of older versions lack it
        "label": one(given.get("label", given["own_label"])),
    }


def _one_string(said: str | Sequence[str] | None) -> str | None:
    """Return a label, or several in one string."""
    return said if said is None or isinstance(said, str) else SEPARATOR.join(said)
