"""A review answered in the terminal."""

from dataclasses import replace

import pytest

from testnuc._base.checks import hash_text
from testnuc.cli.answering import answer
from testnuc.errors import InvalidInputError
from testnuc.trust.joining import join_reviews
from testnuc.trust.review import Review, ReviewItem
from tests.report.test_report import review_of as of_report

LABELS = ("refund", "refund status", "delivery", "login")


def review_of(n=3, labels=LABELS, candidates=("delivery", "refund")):
    items = [
        ReviewItem(
            index=at, text=f"text {at}", hash=hash_text(f"text {at}"), own_label=candidates[0],
            candidates=tuple((label, ("a model",)) for label in candidates), trust=0.5,
            neighbors=(), goal="decide", probability=0.1, floor=0.1,
        )
        for at in range(n)
    ]  # fmt: skip
    return Review(items, labels, 100, "openai/x")


def answered(review, path, lines, capsys):
    """Answer with these lines, then the end of the input; returns the answers and the output."""
    said = iter(lines)

    def read(_):
        try:
            return next(said)
        except StopIteration:
            raise EOFError from None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.input", read)
        answer(review, str(path))
    return [(item.answer, item.source) for item in review], capsys.readouterr().err


def test_a_blind_review_shows_neighbors_without_a_label(tmp_path, capsys):
    review = of_report(1).blind()
    _, said = answered(review, tmp_path / "review.json", [], capsys)
    assert "near (0.90): near" in said
    assert "None" not in said
    # it has no candidates that a number would choose
    assert said.startswith("a label or its beginning, 0 = none of these, ")


def test_a_text_does_not_control_the_terminal(tmp_path, capsys):
    (item,) = review_of(1)
    bad = replace(item, text="one\x1b[2K\ntwo\x07", neighbors=of_report(1)[0].neighbors)
    bad = replace(bad, neighbors=(replace(bad.neighbors[0], text="\x1b]0;three"),))
    _, said = answered(Review([bad], LABELS, 100, "x"), tmp_path / "review.json", [], capsys)
    assert "1 of 1: one [2K\ntwo\n" in said
    assert "]0;three" in said
    assert said.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("line", "label"),
    [
        ("2", "refund"), ("login", "login"), ("LOG", "login"), ("refund", "refund"),
        ("refund s", "refund status"), (" 1 ", "delivery"), ("0", None), ("-", None),
    ],
)  # fmt: skip
def test_an_answer_is_a_number_a_label_or_its_beginning(line, label, tmp_path, capsys):
    found, told = answered(review_of(1), tmp_path / "review.json", [line], capsys)
    assert found == [(label, "person")]
    assert "a number, a label or its beginning, 0 = none of these, " in told


@pytest.mark.parametrize(
    ("line", "says"),
    [("3", "give 1 to 2"), ("9", "give 1 to 2"), ("r", "type more of it"), ("x", "no label begins"),
     ("", "q = save and quit")],
)  # fmt: skip
def test_what_is_no_answer_is_asked_again(line, says, tmp_path, capsys):
    path = tmp_path / "review.json"
    found, told = answered(review_of(1), path, [line], capsys)
    assert found == [(None, None)]
    assert says in told
    assert not path.exists()


def test_each_answer_is_saved_and_a_review_goes_on_where_it_ended(tmp_path, capsys):
    path = tmp_path / "review.json"
    review = review_of()
    saved = []

    def read(_):
        if path.exists():
            saved.append(len(Review.load(path).judged))
        return ["1", "2", "q"][len(saved)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.input", read)
        answer(review, str(path))
    assert saved == [1, 2]
    capsys.readouterr()
    found, told = answered(Review.load(path), path, ["login"], capsys)
    assert [label for label, _ in found] == ["delivery", "refund", "login"]
    assert "3 of 3: text 2" in told
    assert "1 of 3" not in told


@pytest.mark.parametrize("gone", [False, True])
def test_what_another_terminal_saved_meanwhile_is_kept(gone, tmp_path, capsys):
    path = tmp_path / "review.json"
    review_of().save(path)

    def lines():
        yield "login"
        other = Review.load(path)
        other.answer(2, "refund")
        other.save(path)
        if gone:
            path.unlink()
        yield "refund"

    if gone:
        answered(Review.load(path), path, lines(), capsys)
        assert [item.answer for item in Review.load(path)] == ["login", "refund", None]
        return
    with pytest.raises(InvalidInputError, match="was changed meanwhile"):
        answered(Review.load(path), path, lines(), capsys)
    assert [item.answer for item in Review.load(path)] == ["login", None, "refund"]


@pytest.mark.parametrize("asked", ["", "?"])
def test_the_labels_are_listed_at_the_start_and_when_asked_for(asked, tmp_path, capsys):
    path = tmp_path / "review.json"
    _, told = answered(review_of(1), path, [asked], capsys)
    assert told.count("\nlabels: refund, refund status, delivery, login\n") == 2
    assert told.count("q = save and quit, Enter = this help\n") == 2
    many = [f"label {at}" for at in range(31)]
    _, told = answered(review_of(1, labels=many), path, [], capsys)
    assert "labels: 31; what you type lists those that begin so" in told
    assert "label 7" not in told
    # a label may be called so
    found, _ = answered(review_of(1, labels=("?", "a")), path, ["?"], capsys)
    assert found == [("?", "person")]


def test_ctrl_c_ends_as_q_does(tmp_path, capsys):
    path = tmp_path / "review.json"

    def lines():
        yield "login"
        raise KeyboardInterrupt

    found, told = answered(review_of(2), path, lines(), capsys)
    assert [label for label, _ in found] == ["login", None]
    assert [item.answer for item in Review.load(path)] == ["login", None]
    # what follows is on a line of its own
    assert told.endswith("\n\n")


def test_undo_goes_back_and_a_new_answer_replaces_the_old(tmp_path, capsys):
    path = tmp_path / "review.json"
    found, told = answered(review_of(2), path, ["u", "1", "u", "login", "2"], capsys)
    assert [label for label, _ in found] == ["login", "refund"]
    assert "this is the first text" in told
    assert "answered: delivery" in told
    assert [item.answer for item in Review.load(path)] == ["login", "refund"]


def test_undo_goes_back_to_the_text_before_also_where_others_are_agreed_on(tmp_path, capsys):
    first, second = review_of(4), review_of(4)
    for at, (one, other) in enumerate(zip("rldl", "dllr", strict=True)):
        for review, letter in ((first, one), (second, other)):
            review.answer(at, {"r": "refund", "l": "login", "d": "delivery"}[letter])
    joined = join_reviews([first, second]).review
    lines = ["u", "login", "n", "u", "u", "refund", "n", "delivery"]
    found, told = answered(joined, tmp_path / "joined.json", lines, capsys)
    assert found == [(name, "person") for name in ("refund", "login")] + [
        (None, None),
        ("delivery", "person"),
    ]
    assert told.count("this is the first text") == 1
    assert [item.index for item in joined if item.said] == [0, 2, 3]


def test_what_people_said_is_shown_where_they_differ(tmp_path, capsys):
    ann, ben = review_of(1), review_of(1)
    ann.answer(0, "login")
    ben.answer(0, None)
    joined = join_reviews({"ann": ann, "ben": ben}).review
    _, told = answered(joined, tmp_path / "review.json", [], capsys)
    assert "ann said login\n    ben said none of these" in told


def test_a_text_can_be_skipped_and_is_asked_about_later(tmp_path, capsys):
    path = tmp_path / "review.json"
    review = review_of(3)
    found, _ = answered(review, path, ["1", "n", "2"], capsys)
    assert found == [("delivery", "person"), (None, None), ("refund", "person")]
    found, printed = answered(review, path, ["0"], capsys)
    assert found[1] == (None, "person")
    assert "2 of 3" in printed
    assert "3 of 3" not in printed


def test_labels_that_are_numbers_or_commands_are_labels(tmp_path, capsys):
    labels = ("0", "2", "n", "q", "u", "-")
    review = review_of(6, labels=labels, candidates=("2", "1"))
    found, told = answered(review, tmp_path / "review.json", labels, capsys)
    assert tuple(label for label, _ in found) == labels
    assert "1 = 2" not in told
