"""Answer a review in the terminal, for those who judge without the page."""

import re
from pathlib import Path

from testnuc._base.jsonl import bytes_of
from testnuc.cli.reading import to_stderr
from testnuc.errors import InvalidInputError
from testnuc.trust.review import Review, ReviewItem

_NUMBER = re.compile(r"\d+")
_HELP = (
    "a number, a label or its beginning, 0 = none of these, n = skip, u = back, q = save and quit"
)
#: The keys of the page; the second for labels of which one is "0".
_NONE = ("0", "-")
#: Labels that are listed when the beginning of a label is ambiguous.
_LISTED = 8
#: Neighbors that are shown with a text.
_NEIGHBORS = 3


class ReviewFile:
    """The file of a review that is judged; what somebody else writes to it meanwhile is kept."""

    def __init__(self, review: Review, path: str) -> None:
        self._review, self.path = review, path
        #: What this process read or wrote; empty where there is no file.
        self.held = self._content()

    def save(self) -> None:
        """Write the review, unless somebody else has written the file."""
        if self._content() not in {b"", self.held}:
            raise InvalidInputError(
                f"{self.path} was changed meanwhile, perhaps by another `testnuc review`, and is "
                "kept; end this one, and judge the rest there"
            )
        self._review.save(self.path)
        self.held = self._content()

    def _content(self) -> bytes:
        return bytes_of(self.path) if Path(self.path).exists() else b""


def answer(review: Review, path: str) -> None:
    """Ask for the label of each open item, in order; saves to `path` after each answer."""
    # the numbers of candidates would be ambiguous among labels such as "1"
    numbered = not any(map(_NUMBER.fullmatch, review.labels))
    file, at = ReviewFile(review, path), _next_open(review, 0)
    hint = _HELP if numbered else _HELP.removeprefix("a number, ").replace("0 =", "- =")
    to_stderr(f"several labels, separated by commas; each {hint}" if review.multilabel else hint)
    while at < len(review):
        item = review[at]
        shown = _show(item, numbered=numbered, of=len(review))
        try:
            said = input("label> ").strip()
        except EOFError:
            break
        # a label may be called as a key is
        key = None if said in review.labels else said
        if key == "q":
            break
        if key == "n":
            at = _next_open(review, at + 1)
            continue
        if key == "u":
            if at == 0:
                to_stderr("this is the first text")
            at = max(at - 1, 0)
            continue
        try:
            label = (_labels if review.multilabel else _label)(said, review, shown)
        except InvalidInputError as problem:
            to_stderr(str(problem))
            continue
        review.answer(at, label)
        file.save()
        to_stderr(review[at].answer or "none of these")
        at = _next_open(review, at + 1)


def _next_open(review: Review, start: int) -> int:
    """Return the position of the first item without an answer, from `start` on."""
    return next((at for at in range(start, len(review)) if review[at].source is None), len(review))


def _show(item: ReviewItem, *, numbered: bool, of: int) -> list[str]:
    """Print an item; returns the labels that a number chooses."""
    labels = [label for label, _ in item.candidates if label is not None]
    to_stderr(f"\n{item.index + 1} of {of}: {item.text}")
    for near in item.neighbors[:_NEIGHBORS]:
        to_stderr(f"    near ({near.similarity:.2f}, {near.label}): {near.text[:80]}")
    for number, label in enumerate(labels, 1):
        to_stderr(f"  {number} = {label}" if numbered else f"  {label}")
    for name, answer in item.said:
        to_stderr(f"    {name} said {answer or 'none of these'}")
    if item.source is not None:
        to_stderr(f"  answered: {item.answer or 'none of these'}")
    return labels if numbered else []


def _label(said: str, review: Review, shown: list[str]) -> str | None:
    """Return the label that a line names: whole, by its number, or by its beginning."""
    if said in review.labels:
        return said
    if said in _NONE:
        return None
    if not said:
        raise InvalidInputError(_HELP)
    if shown and _NUMBER.fullmatch(said):
        if not 1 <= int(said) <= len(shown):
            raise InvalidInputError(f"there is no number {said}; give 1 to {len(shown)}")
        return shown[int(said) - 1]
    start = said.casefold()
    found = [label for label in review.labels if label.casefold().startswith(start)]
    exact = [label for label in found if label.casefold() == start]
    if len(exact) == 1 or len(found) == 1:
        return (exact or found)[0]
    if not found:
        raise InvalidInputError(f"no label begins with {said!r}")
    more = "" if len(found) <= _LISTED else f" and {len(found) - _LISTED} more"
    raise InvalidInputError(f"{said!r} begins {', '.join(found[:_LISTED])}{more}; type more of it")


def _labels(said: str, review: Review, shown: list[str]) -> list[str]:
    """Return the labels, separated by commas, of a text that can have several."""
    if said in _NONE and said not in review.labels:
        return []
    parts = [said] if said in review.labels else said.split(",")
    names = [_label(part.strip(), review, shown) for part in parts]
    if None in names:
        raise InvalidInputError(f"{said!r} names labels and none; give either")
    return [name for name in names if name is not None]
