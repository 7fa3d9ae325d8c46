"""Label sets, and what a reply means."""

import time

import pytest

from testnuc.errors import InvalidInputError
from testnuc.labels import LabelSet


def meant(labels, said, **options):
    found = LabelSet(labels, **options)
    i = found.match(said)
    return None if i is None else found.names[i]


def test_names_descriptions_and_positions():
    labels = LabelSet({"refund": " wants\nmoney  back ", "other": "", "lost": None})
    assert labels.names == ("refund", "other", "lost")
    assert dict(labels.descriptions) == {"refund": "wants money back"}
    assert labels.index("other") == 1
    assert labels.index("Other") is None
    assert len(labels) == 3
    assert list(labels) == ["refund", "other", "lost"]
    assert "refund" in labels
    assert "Refund" not in labels
    assert repr(LabelSet(list("abcdefg"))) == "LabelSet(['a', 'b', 'c', 'd', 'e', .. 2 more])"


def test_none_label_joins_the_set():
    assert LabelSet(["spam"], none_label="none").names == ("spam", "none")
    assert LabelSet(["none", "spam"], none_label="none").names == ("none", "spam")


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ("refund", "list of labels"),
        (b"refund", "list of labels"),
        (7, "list of strings"),
        ([], "at least two"),
        (["a"], "at least two"),
        (["a", "a"], "duplicate label"),
        (["Refund", "refund "], "case or white space"),
        (["\u00e9", "e\u0301"], "case or white space"),
        (["a", ""], "blank"),
        (["a", " \u3000"], "blank"),
        (["a", 3], "not a string"),
        (["a", None], "not a string"),
        (["a", "b\nc"], "control character"),
        (["a", "b\u2028c"], "line separator"),
        (["a", "b\ud800"], "lone surrogate"),
        ({"a": 1, "b": "x"}, "description of label 'a'"),
        ({"a": "\ud800", "b": "x"}, "lone surrogate"),
    ],
)
def test_refuses_labels_and_says_why(labels, says):
    with pytest.raises(InvalidInputError, match=says):
        LabelSet(labels)


@pytest.mark.parametrize("none_label", ["", 5, "a\tb", "A"])
def test_refuses_a_none_label(none_label):
    with pytest.raises(InvalidInputError):
        LabelSet(["a", "b"], none_label=none_label)


@pytest.mark.parametrize(
    ("said", "label"),
    [
        ("card_arrival", "card_arrival"),
        ("  Card Arrival. ", "card_arrival"),
        ('"card-arrival"', "card_arrival"),
        ("card_arival", "card_arrival"),
        ("\uff43ard_arrival", "card_arrival"),  # full width c
        ("card", None),
        ("weather", None),
        ("", None),
        ("...", None),
        ("card_arrival or refund", None),
    ],
)
def test_matching(said, label):
    labels = ["card_arrival", "card_linking", "refund"]
    assert meant(labels, said) == label
    assert meant(labels, said) == label  # from memory as well


def test_ratio_is_at_least_nine_tenths():
    assert meant(["abcdefghi", "zzzz"], "abcdefghix") == "abcdefghi"  # 2*9/19 = 0.947
    assert meant(["abcdefghi", "zzzz"], "abcdefgxx") is None  # 2*7/18 = 0.78
    assert meant(["abcdefghi", "zzzz"], "abcdefgh") == "abcdefghi"  # 2*8/17 = 0.94


def test_two_labels_as_similar_mean_neither():
    assert meant(["transfer_in_x", "transfer_in_y"], "transfer_in_z") is None


def test_numbers_are_no_spelling_of_each_other():
    assert meant(["level 1", "level 2"], "level 10") is None
    assert meant(["level 1", "level 2"], "Level: 2") == "level 2"


def test_punctuation_and_symbols_may_carry_the_meaning():
    labels = ["C", "C++", "C#", "\U0001f44d", "\U0001f44e", "?"]
    for label in labels:
        assert meant(labels, label) == label
    assert meant(labels, "c#") == "C#"
    assert meant(labels, "c++") == "C++"
    assert meant(labels, "C.") is None  # C or C#
    assert meant(labels, "!") is None


def test_labels_that_need_escaping():
    labels = [
        'say "no"',
        "back\\slash",
        "comma, semi;",
        "emoji \U0001f600",
        "\u65e5\u672c\u8a9e",
        "it's",
    ]
    for label in labels:
        assert meant(labels, label) == label
    assert meant(labels, "say no") == 'say "no"'


def test_many_and_long_labels_are_quick():
    names = [f"{'long ' * 40}intent number {i} of the set" for i in range(1500)]
    labels = LabelSet(names)
    start = time.process_time()
    for i in range(0, 1500, 10):
        assert labels.match(names[i].upper()) == i
    for i in range(100):
        assert labels.match(f"nothing like it {i}") is None
    assert time.process_time() - start < 5


def test_prose_is_no_label():
    assert meant(["a", "b"], "a" + " " * 1000) is None


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr("testnuc.labels.CACHE_SIZE", 10)
    labels = LabelSet(["a", "b"])
    for i in range(100):
        labels.match(f"A {i}")
    assert len(labels._matched) <= 10


@pytest.mark.parametrize("kind", [set, frozenset])
def test_a_set_of_labels_is_refused_because_its_order_changes(kind):
    with pytest.raises(InvalidInputError, match=r"order changes.*sorted\(labels\)"):
        LabelSet(kind(["refund", "delivery"]))
    assert LabelSet({"refund": "", "delivery": ""}.keys()).names == ("refund", "delivery")


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ("refund", 0),
        (" **Refund**.\n", 0),
        ('"card arrival"', 1),
        ("```\nrefund\n```", 0),
        ("refnud", None),
        ("It is a refund", None),
        ("", None),
        ("...", None),
    ],
)
def test_a_whole_reply_that_is_a_label(said, place):
    assert LabelSet(["refund", "card_arrival"]).same(said) == place
