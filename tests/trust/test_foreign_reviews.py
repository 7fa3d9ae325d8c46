"""Files of reviews and marks that hold anything: the error names the file."""

from __future__ import annotations

import copy
import csv
import difflib
import zlib
from collections import Counter

import orjson
import pytest

from testnuc import InvalidInputError
from testnuc.errors import StoreError
from testnuc.report.marks import read_marks
from testnuc.report.page import write
from testnuc.trust.learned import Learned
from testnuc.trust.review import Review, closest_label
from tests.report.test_report import review_of

VALUES = [
    None, True, 5, 1e308, 10**18, "", "x", "[", [], {}, [[]], [5], [None], {"a": [1]}, ["a", "a"]
]  # fmt: skip


def places(value, path=()):
    """Yield the path of each value, of lists for the first two items."""
    yield path
    inside = value.items() if isinstance(value, dict) else ()
    inside = list(enumerate(value))[:2] if isinstance(value, list) else inside
    for name, below in inside:
        yield from places(below, (*path, name))


def changed(record, path, value):
    if not path:
        return value
    made = copy.deepcopy(record)
    at = made
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    return made


@pytest.mark.slow
def test_any_value_of_a_review_is_refused_or_works(tmp_path):
    file = tmp_path / "review.json"
    review_of(3).save(file)
    record = orjson.loads(file.read_bytes())
    record["items"][0] |= {"answer": record["labels"][0], "source": "person"}
    read = 0
    for path in places(record):
        for value in VALUES:
            file.write_bytes(orjson.dumps(changed(record, path, value)))
            try:
                found = Review.load(file)
            except InvalidInputError as exc:
                said = str(exc)
                assert said
                continue
            read += 1
            assert len(found.judged) <= len(found)
            found.save(tmp_path / "again.json")
            write(None, tmp_path / "page.html", review=found)
    assert read


@pytest.mark.parametrize("value", VALUES)
def test_any_mark_is_refused_or_works(tmp_path, value):
    """A cell may hold JSON, as of several labels."""
    file = tmp_path / "marks.csv"
    for cell in (value, [value], {"items": value}):
        with file.open("w", newline="") as out:
            rows = csv.writer(out)
            rows.writerows([("text", "right_label"), ("a text", orjson.dumps(cell).decode())])
        texts, labels = read_marks(file)
        assert texts == ["a text"]
        assert len(labels) == 1


@pytest.mark.slow
def test_what_was_learned_is_not_unpacked_without_end():
    bomb = zlib.compress(bytes(200_000_000), 9)
    assert len(bomb) < 300_000
    with pytest.raises(StoreError, match="incomplete, or has more than"):
        Learned.from_bytes(bomb)
    with pytest.raises(StoreError, match="incomplete"):
        Learned.from_bytes(bomb[: len(bomb) // 100])


def test_labels_are_compared_in_bounded_time():
    work = Counter()
    long = ["ab" * 20_000, "ba" * 20_000, "refund"]

    class Counted(difflib.SequenceMatcher):
        def set_seq1(self, a):
            work["characters"] += len(a)
            super().set_seq1(a)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(difflib, "SequenceMatcher", Counted)
        assert not closest_label("ab" * 20_001, long)
        assert "refund" in closest_label("refnud", long)
    assert work["characters"] < 1_000
