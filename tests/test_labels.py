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


def test_a_former_name_means_the_label_unless_two_labels_had_it():
    former = {"money back": ["refund", "login"], "late": ["delivery"], "lost": ["Delivery"]}
    labels = LabelSet(["money back", "late", "lost", "login"], former=former)
    said = ("refund", " Refund", "login", "delivery", "refunds", "late")
    assert [labels.match(name) for name in said] == [0, 0, 3, None, None, 1]
    again = LabelSet.of(labels.record())
    assert [again.match(name) for name in said] == [0, 0, 3, None, None, 1]
    # a prompt that shows some labels knows their former names, but those that mean others, too
    some = labels.some(["money back", "lost", "login"])
    assert [some.same(name) for name in ("refund", "Delivery", "login", "late")] == [
        0,
        None,
        2,
        None,
    ]
    assert "former" not in LabelSet(["a", "b"]).record()
    with pytest.raises(InvalidInputError, match="former names 'c'"):
        LabelSet(["a", "b"], former={"c": ["a"]})
    # one former name is a name, and not its letters
    one = LabelSet(["money back", "late"], former={"money back": "refund"})
    assert [one.match(name) for name in ("refund", "r", "f")] == [0, None, None]
    for wrong in ("refund", ["refund"], {"late": None}):
        with pytest.raises(InvalidInputError, match=r"former.* is .*; give a"):
            LabelSet(["money back", "late"], former=wrong)


@pytest.mark.parametrize(
    ("former", "said"),
    [
        ({"a": ["b"], "b": ["a"]}, "'a', 'b'"),
        ({"a": ["b"], "b": ["x", "c"], "c": ["a"], "d": ["e"], "e": []}, "'a', 'b', 'c'"),
        # split, merged, and a name that moved: an answer tells what it means
        ({"a": ["a", "b"], "b": ["x"], "c": ["c"], "d": ["a"]}, None),
    ],
)
def test_labels_that_swap_their_names_are_refused(former, said):
    """The prompt is the same, so answers and judgments of before were taken for those of now."""
    if said is None:
        assert LabelSet([*"abcde"], former=former).names == (*"abcde",)
        return
    with pytest.raises(InvalidInputError, match=f"the labels {said} have each other's former"):
        LabelSet([*"abcde"], former=former)


def test_none_label_joins_the_set():
    assert LabelSet(["spam"], none_label="none").names == ("spam", "none")
    assert LabelSet(["none", "spam"], none_label="none").names == ("none", "spam")


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ("refund", "give a list"),
        (b"refund", "give a list"),
        (7, "give a list"),
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


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("card_arrival", "card arival"),
        ("cancelled order", "canceled order"),
        ("transfer failed", "Tranfer failed."),
        ("refund request", "refund requests"),
        ("refunds", "refund"),
        ("R\u00fcckgabe der Ware", "r\u00fcckgbe der ware"),
    ],
)
def test_a_letter_too_many_or_too_few_is_a_typo(label, said):
    assert meant([label, "zzzz"], said) == label
    assert meant([said.strip("."), "zzzz"], label) == said.strip(".")


OPPOSITES = [
    ("the contract is valid", "the contract is invalid"),
    ("hepatitis A", "hepatitis B"),
    ("can log in", "can't log in"),
    ("can log in", "cant log in"),
    ("can log in", "cannot log in"),
    ("phase II", "phase III"),
    ("phase XVIII of the trial", "phase XVIIII of the trial"),
    ("able to pay the invoice", "unable to pay the invoice"),
    ("the patient is symptomatic", "the patient is asymptomatic"),
    ("moral behavior", "amoral behavior"),
    ("legal advice", "illegal advice"),
    ("regular payments", "irregular payments"),
    ("possible to deliver", "impossible to deliver"),
    ("connected to the network", "disconnected to the network"),
    ("compliant with the rules", "noncompliant with the rules"),
    ("antigen positive test", "antigen negative test"),
    ("hypertension treatment", "hypotension treatment"),
    ("interstate transport rules", "intrastate transport rules"),
    ("overpaid by the customer", "underpaid by the customer"),
    ("preoperative complications", "postoperative complications"),
    ("prescribed medication list", "proscribed medication list"),
    ("complaint of an employer", "complaint of an employee"),
    ("result of the trial", "result of the trail"),
    ("hotel", "hostel"),
    ("country", "county"),
    ("the price of it", "the prince of it"),
    ("plant", "planet"),
    ("later", "latter"),
    ("hip abduction exercise", "hip adduction exercise"),
    ("upload of documents", "unload of documents"),
    ("nothing was delivered", "noting was delivered"),
    ("with a refund requested", "without a refund requested"),
    ("is a refund request", "is not a refund request"),
    ("a refund request", "no refund request"),
    ("notable request of a refund", "not able request of a refund"),
    ("level 1", "level 10"),
    ("level 1 of support", "level 2 of support"),
    ("version 1.5", "version 15"),
    ("version 1.5", "version 1 5"),
    ("1", "-1"),
    ("1", "\u22121"),
    ("-1", "1"),
    ("- 1", "1"),
    ("1", "- 1"),
    ("-1", "+1"),
    ("level 1", "level -1"),
    ("50", "50%."),
    ("1-5 days", "1.5 days"),
    ("\u2265 5 days", "\u2264 5 days"),
    ("> 5 days of waiting", "< 5 days of waiting"),
    ("C", "C#"),
    ("C", "C++"),
    ("C", '"C#".'),
    ("C", "C #"),
    ("A", "A-"),
    ("A-", "A"),
    ("A", "A -."),
    ("100", "100 %"),
    ("5", ".5"),
    ("grade 1", "grade .1"),
    ("AB+", "AB-"),
    ("Rh (-)", "Rh"),
    ("(-) menthol", "menthol"),
    ("HIV-", "HIV"),
    ("important", "!important"),
    ("refund", "!refund"),
    (":)", ":("),
    ("+", "+/-"),
    ("+", "+-"),
    ("+", "-\u2013+"),
    (":)", "..."),
    ("a/b", "ab"),
    ("refund", "not refund"),
    ("refund", "label: not refund"),
    ("refund", "refund or card"),
    ("refund", '"refund", "card"'),
    ("refund", "anything but refund"),
    ("\u5bf9\u670d\u52a1\u6ee1\u610f", "\u5bf9\u670d\u52a1\u4e0d\u6ee1\u610f"),
    ("\u0432\u044a\u0435\u0437\u0434\u044b", "\u0432\u044b\u0435\u0437\u0434\u044b"),
    (
        "\u05d0\u05e4\u05e9\u05e8\u05d9 \u05dc\u05e9\u05dc\u05dd",
        "\u05d0\u05e4\u05e9\u05e8\u05d9 \u05dc\u05d1\u05e9\u05dc\u05dd",
    ),
]


@pytest.mark.parametrize(("label", "said"), OPPOSITES)
def test_an_answer_never_becomes_another_one(label, said):
    labels = LabelSet([label, "zzzz"])
    assert labels.match(said) is None
    assert labels.same(said) is None
    # nor the other way around
    assert meant([said, "zzzz"], label) is None
    assert meant([label, said], said.upper().lower()) in {said, None}


def test_labels_that_resemble_each_other_are_not_matched_by_a_typo():
    labels = ["transfer request", "transfer requests"]
    assert [meant(labels, label.upper()) for label in labels] == labels
    assert meant(labels, "transfr request") is None
    assert meant(["transfer_in_x", "transfer_in_y"], "transfer_in_z") is None
    # "tranfer request" is one letter from the first alone, which is one from the second
    assert meant(["transfer request", "transfer bequest"], "tranfer request") is None


def test_labels_that_differ_in_punctuation_alone_match_exactly_alone():
    labels = ["log in", "log-in", "refund"]
    assert [meant(labels, label) for label in labels] == labels
    assert meant(labels, "LOG-IN") == "log-in"
    assert meant(labels, "log_in") is None


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("level 2", "Level: 2"),
        ("level-2", "level 2"),
        ("intent_1_2", "intent 1 2"),
        ("1 Sports", "1. sports"),
        ("3: Business", "3 - Business"),
        ("can't log in", "Can\u2019t log in."),
        ("C#", "**c#**"),
        ("-1", "\u22121"),
        ("50%", '"50%"'),
        ("2-4 days", "2\u20134 days"),
        ("N/A", "n a"),
        ("A-", "a-."),
        ("+", "**+**."),
        ("+/-", '"+/-"'),
    ],
)
def test_punctuation_that_carries_no_meaning_is_ignored(label, said):
    assert meant([label, "zzzz"], said) == label


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("re\u200bfund", "refund"),
        ("\u200frefund", "Refund."),
        ("re\u00adfund", "refund"),
        ("\u2764\ufe0f", "\u2764"),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647", "\u0645\u06cc\u062e\u0648\u0627\u0647"),
    ],
)
def test_marks_that_nobody_sees_are_ignored_unless_labels_differ_in_them(label, said):
    assert meant([label, "zzzz"], said) == label
    assert meant([said, "zzzz"], label) == said
    assert [meant([label, said], one) for one in (label, said)] == [label, said]


def test_punctuation_and_symbols_may_carry_the_meaning():
    labels = ["C", "C++", "C#", "\U0001f44d", "\U0001f44e", "?"]
    for label in labels:
        assert meant(labels, label) == label
    assert meant(labels, "c#") == "C#"
    assert meant(labels, "c++") == "C++"
    assert meant(labels, "C.") == "C"
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


@pytest.mark.parametrize("kind", [set, frozenset])
def test_a_set_of_labels_is_refused_because_its_order_changes(kind):
    with pytest.raises(InvalidInputError, match="give a list"):
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


def test_several_labels_are_one_string_in_the_order_of_the_set():
    labels = LabelSet(["a", "b", "c"], multilabel=True)
    assert labels.joined(["c", "a"]) == labels.joined(["a", "c"]) == "a; c"
    assert labels.joined([]) == ""
    assert labels.joined(["a", "a"]) is labels.joined("a") is None
