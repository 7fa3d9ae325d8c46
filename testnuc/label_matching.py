"""Whether a reply is a label: what folding ignores, and what counts as a typo."""

import re
import unicodedata
from collections.abc import Collection, Sequence

from rapidfuzz import process
from rapidfuzz.distance import OSA

#: Letters of the shortest word that can have an s too many or too few, a letter doubled or not, or
#: another one: of shorter ones too many are words themselves, as "hotel" and "hostel".
_LETTERS, _LETTERS_IF_DOUBLED, _LETTERS_INSIDE = 5, 6, 7
_ROMAN = re.compile("[ivxlcdm]+")
#: A typo in such a word could make it another one ("nothing" and "noting").
_NEGATIONS = frozenset(
    {"barely", "cannot", "except", "hardly", "neither", "never", "nobody", "nothing", "nowhere"}
    | {"rarely", "unless", "without"}
)
#: Punctuation that is a part of what stands before it, at the end of a word: C#, A-, 50%.
_SUFFIXES = "#%-"
#: Marks that nobody sees, as copied from a page: LLMs leave them out. Spaces without width and
#: joiners, soft hyphens, directions, and how an emoji is drawn.
_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060\u2066-\u2069\ufe0e\ufe0f\ufeff]")
_MINUS = "\N{MINUS SIGN}"


def fold_case(text: str) -> str:
    """Normalize case, white space and Unicode composition."""
    text = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(unicodedata.normalize("NFKC", text).split())


def fold_punctuation(folded: str) -> str:
    """Remove marks that are not seen, and punctuation, except where it can carry the meaning.

    Symbols such as ``+`` and emoji stay; so does the punctuation of numbers (-1, 1.5, .5, 2-4,
    50%), at the end of a word or of the text (C#, A-, "A -"), alone in brackets (-), an exclamation
    mark before a word (!important), and dashes and slashes of a text without letters or digits.
    """
    if folded.isalnum():
        return folded
    folded = _UNSEEN.sub("", folded)
    signs = "" if any(map(str.isalnum, folded)) else "-/"
    characters = [
        "-" if c == _MINUS or unicodedata.category(c) == "Pd" else c for c in f" {folded} "
    ]
    kept = [
        " "
        if unicodedata.category(c)[0] == "P"
        and c not in signs
        and not _carries_meaning(characters, at)
        else c
        for at, c in enumerate(characters)
    ]
    return " ".join("".join(kept).split())


def _carries_meaning(characters: Sequence[str], at: int) -> bool:
    """Whether the punctuation at a position, which is neither the first nor the last, stays."""
    mark, before, after = characters[at], characters[at - 1], characters[at + 1]
    if before.isdigit() and after.isdigit():
        return mark != "_"
    ends = mark in _SUFFIXES and before.isalnum() and not after.isalnum() and after != mark
    if ends or (before, after) == ("(", ")"):
        return True
    alone = mark in _SUFFIXES and before == " " and at > 1 and after != mark
    if alone and not any(map(str.isalnum, characters[at:])):  # "C #" is perhaps not C
        return True
    if mark in ".," and after.isdigit():
        return not before.isalnum() and before != mark
    if mark == "!":
        return after.isalnum() and not before.isalnum()
    # a sign, also after a space: "- 1" is perhaps not 1
    number = after if after != " " or at + 2 == len(characters) else characters[at + 2]
    return mark == "-" and number.isdigit() and not before.isalnum()


def typo_of(folded: str, forms: Collection[str]) -> str | None:
    """Return the only form that a reply misspells by one letter, or None.

    One word lacks a letter, or has one too many: inside the word, which has at least seven letters
    (six where a letter is doubled), or an s at the end of one of five. Both forms of it have Latin
    letters and are neither numerals nor negations. All other words are the same. A form that
    resembles another one as closely is never returned, and neither is one with another letter in
    place of one, or with two letters that changed places: "prescribe" and "proscribe", "trial" and
    "trail" are all words.
    """
    close = _close(folded, forms)
    if len(close) != 1 or len(_close(close[0], forms)) != 1:
        return None
    words, others = folded.split(), close[0].split()
    pairs = [(a, b) for a, b in zip(words, others, strict=False) if a != b]
    misspelt = len(words) == len(others) and len(pairs) == 1 and _misspells(*pairs[0])
    return close[0] if misspelt else None


def _close(form: str, forms: Collection[str]) -> list[str]:
    """Return the forms that differ from one in at most one edit, itself included."""
    return [
        similar for similar, *_ in process.extract(form, forms, scorer=OSA.distance, score_cutoff=1)
    ]


def _misspells(word: str, other: str) -> bool:
    short, long = sorted((word, other), key=len)
    if len(short) < _LETTERS or len(long) != len(short) + 1:
        return False
    if _NEGATIONS & {short, long} or _ROMAN.fullmatch(short) or _ROMAN.fullmatch(long):
        return False
    if not all(unicodedata.name(c, "").startswith("LATIN SMALL LETTER") for c in long):
        return False
    at = next((i for i, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    if short[at:] != long[at + 1 :]:
        return False
    if at == len(short):
        return long[-1] == "s" != short[-1]
    doubled = long[at] == long[at - 1]
    # the first letter is no slip: "symptomatic" and "asymptomatic"
    return at > 0 and len(short) >= (_LETTERS_IF_DOUBLED if doubled else _LETTERS_INSIDE)
