"""``testnuc choose``: from files of results to a choice."""

import csv
from pathlib import Path

from testnuc.trust.review import Review
from tests.cli.in_process import run_here

TEXTS = [f"{'invoice' if at % 2 else 'parcel'} {at}" for at in range(200)]


def right(text):
    return "money" if "invoice" in text else "delivery"


def wrong_at(every):
    def label(text):
        other = {"money": "delivery", "delivery": "money"}[right(text)]
        return other if int(text.split()[1]) % every == 0 else right(text)

    return label


def write(file, label_of, texts=TEXTS):
    with Path(file).open("w", newline="") as opened:
        rows = [[text, label_of(text), label_of(text)] for text in texts]
        csv.writer(opened).writerows([["text", "nuc_label", "nuc_own_label"], *rows])


def judge(path="choose.json"):
    review = Review.load(path)
    for item in review:
        review.answer(item.index, right(item.text))
    review.save(path)


def test_files_are_judged_until_one_is_chosen():
    write("good.csv", right)
    write("poor.csv", wrong_at(3))
    code, out, err = run_here("choose", "good.csv", "poor.csv", "--no-open", "-n", "5")
    assert code == 0, err
    assert not out
    assert "5 texts to judge, written to choose.json" in err
    assert "run: testnuc choose good.csv poor.csv --no-open -n 5" in err
    assert "testnuc review choose.json --answer" in err
    assert Path("choose.html").exists()
    judge()
    code, out, err = run_here("choose", "good.csv", "poor.csv", "--no-open", "-n", "60")
    assert code == 0, err
    assert "not decided yet: judge more texts" in out
    judge()
    code, out, err = run_here("choose", "good.csv", "poor.csv")
    assert code == 0, err
    assert "choose good.csv: the most accurate run" in out
    assert "worse" in out
    # the judgments are of other texts
    write("other.csv", right, ["parcel 900", "parcel 901"])
    write("more.csv", wrong_at(2), ["parcel 900", "parcel 901"])
    code, _, err = run_here("choose", "other.csv", "more.csv")
    assert code == 2
    assert "choose.json is a review of other texts, and is kept" in err


def test_texts_are_judged_in_the_terminal(monkeypatch):
    write("good.csv", right)
    write("poor.csv", wrong_at(2))
    monkeypatch.setattr("testnuc.cli.answering.input", lambda _: "q", raising=False)
    code, out, err = run_here("choose", "good.csv", "poor.csv", "--answer", "--margin", "1")
    assert code == 0, err
    assert "next, judge more texts: testnuc choose good.csv poor.csv --answer --margin 1" in err
    assert "not decided yet" in out


def test_runs_that_do_not_fit_are_refused():
    write("a.csv", right)
    write("b.csv", lambda text: right(text).upper())
    write("c.csv", wrong_at(2), TEXTS[:50])
    Path("plain.csv").write_text("text\na\nb\n")
    for files, problem in [
        (["a.csv"], "two or more different files"),
        (["a.csv", "./a.csv"], "two or more different files"),
        (["a.csv", "b.csv"], "different labels"),
        (["a.csv", "plain.csv"], "nuc_label"),
    ]:
        code, _, err = run_here("choose", *files)
        assert code == 2, err
        assert problem in err
    code, _, err = run_here("choose", "a.csv", "c.csv", "--no-open")
    assert code == 0, err
    assert "150 texts of a.csv are not in all files" in err
