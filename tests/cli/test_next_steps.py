"""The last line of a run: a command that works as it stands."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from testnuc._base.checks import hash_text
from testnuc.cli.judging import _accuracy_said, what_next
from testnuc.cli.options import Options
from testnuc.testing import LoopbackLLM
from testnuc.trust.certificates import Certificate
from testnuc.trust.review import Review
from testnuc.trust.shares import Accuracy, Share
from tests.cli.in_process import judge, ran, run_here
from tests.conftest import LABELS, confident, gold, messages
from tests.report.test_report import data_of


def test_the_command_that_a_run_ends_with_works_as_it_stands(tmp_path):
    (tmp_path / "my texts.txt").write_text("\n".join(messages(60)))
    (tmp_path / "labels.txt").write_text("\n".join(LABELS))
    with LoopbackLLM(confident) as llm:
        given = ["--labels", "labels.txt", "--model", "openai/test", "--base-url", llm.base_url]
        given += ["--instructions", "what the writer wants; it's said", "-o", "my labels.csv"]
        _, err = ran("classify", "my texts.txt", *given)
        line = err.splitlines()[-1]
        assert line.startswith("next, judge fifty texts (about three minutes): testnuc review ")
        typed = shlex.split(line.partition(": ")[2])
        assert typed[:5] == ["testnuc", "review", "my labels.csv", "-n", "50"]
        ran(*typed[1:], "--goal", "certify", key=None)
        assert llm.calls == 60
    assert (tmp_path / "review.json").exists()


def _it_draws_from_new_texts_alone():
    _, err = ran("review", "new.csv", "-n", "40", "--goal", "count", "--no-open")
    assert "texts to judge, 40 of them drawn from those that came later, written to" in err
    assert all(item.text.endswith("again") for item in Review.load("review-3.json"))
    judge("review-3.json", gold)
    out, _ = ran("learn", "new.csv", "review-3.json", "-o", "better-2.csv")
    found = re.search("In better-2.csv: (About 100 % .* of the labels of 60 texts are right)", out)[
        1
    ]
    assert found in ran("count", "new.csv")[0]
    ran("report", "new.csv", "--summary", "-o", "page.md")
    assert Path("page.md").read_text().startswith("# About 100 of 100 labels are right (")
    # a page shows all texts of its review, whichever file they are in
    ran("review", "out.csv", "-n", "9", "--goal", "correct", "--no-open")
    review, page = Review.load("review-4.json"), Path("review-4.html").read_text()
    assert any(item.text.endswith("again") for item in review)
    assert {item.text for item in review} <= {*data_of(page)["texts"]}
    # of all texts, those of before say more
    assert "of the labels of 120 texts are right" in out


def _it_says_before_an_edit_ends_the_certificate():
    written = Path("out.csv").read_text()
    Path("out.csv").write_text(re.sub(r"\n(.*?),([a-z]+),", r"\n\1,other \2,", written, count=1))
    _, err = ran("describe", "out.csv")
    assert "to take them as your judgments, which ends the certificate: testnuc learn" in err
    Path("out.csv").write_text(written)


def test_where_labels_are_proved_the_next_command_writes_them():
    Path("in.txt").write_text("\n".join(messages(60)))
    with LoopbackLLM(gold) as llm:
        given = ["--labels", ",".join(LABELS), "--model", "openai/test", "--base-url", llm.base_url]
        classify = ["classify", "in.txt", *given, "-o", "out.csv"]
        ran(*classify)
        ran("review", "out.csv", "-n", "60", "--no-open")
        judge("review.json", gold)
        ran("learn", "out.csv", "review.json")
        *said, line = ran(*classify)[1].splitlines()
        assert line.endswith("by your judgments: testnuc certify out.csv -o certified.csv")
        # what is proved of these texts is not to be written for later ones, after few draws
        _, err = ran("certify", "out.csv", "-o", "certified.csv")
        assert "not of these alone" not in err
        _it_says_before_an_edit_ends_the_certificate()
        Path("new.txt").write_text("\n".join(f"{text} again" for text in messages(60)))
        ran("classify", "new.txt", *given, "-o", "new.csv")
        ran("review", "new.csv", "-n", "1", "--goal", "certify", "--no-open")
        judge("review-2.json", gold)
        _, err = ran("learn", "new.csv", "review-2.json", "-o", "better.csv")
        code, _, none = run_here("count", "new.csv")
        assert (code, "`testnuc review new.csv -n 40 --goal count`" in none) == (2, True)
        _it_draws_from_new_texts_alone()
    assert " too: testnuc review better.csv -n 50 --goal certify" in err.splitlines()[-2]
    # a number first, then a proof
    assert err.splitlines()[-1].endswith(
        "right (what is certified of the others ends: write it first): "
        "testnuc review better.csv -n 40 --goal count"
    )
    # what `learn` said is not repeated, but for what was decided
    assert "texts are judged: " not in "".join(said)
    assert said[-1].startswith(("Nothing was applied", "Labels come from"))


@pytest.mark.parametrize(
    ("texts", "says"),
    [(5, "next, label more texts: at least 10 are"), (12, "next, judge them: testnuc review ")],
)
def test_no_run_advises_more_judgments_than_it_has_texts(tmp_path, texts, says):
    (tmp_path / "few.txt").write_text("\n".join(messages(texts)))
    with LoopbackLLM(confident) as llm:
        given = ["--labels", ",".join(LABELS), "--model", "openai/test", "--base-url", llm.base_url]
        _, _, err = run_here("classify", tmp_path / "few.txt", *given, "-o", tmp_path / "few.csv")
    assert err.splitlines()[-1].startswith(says)
    assert "fifty" not in err


def test_results_that_are_nowhere_have_no_command(tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(messages(8)))
    with LoopbackLLM(confident) as llm:
        given = ["--labels", ",".join(LABELS), "--model", "openai/test", "--base-url", llm.base_url]
        _, _, err = run_here("classify", tmp_path / "in.txt", *given)
    assert err.splitlines()[-1].startswith("next: name an output with -o")


def test_judgments_that_a_change_of_labels_leaves_unused_are_named_and_learned_from():
    """Those of day two were silently left out, also where they were given again."""
    for name, texts in (("a.txt", messages(60)), ("b.txt", messages(100)[60:])):
        Path(name).write_text("\n".join(texts))
    Path("renamed.csv").write_text("label,was\nmoney,refund\ndelivery,\nlogin,\n")

    def renamed(text):
        return "money" if gold(text) == "refund" else gold(text)

    for answer, labels, run in ((gold, ",".join(LABELS), "1"), (renamed, "renamed.csv", "2")):
        with LoopbackLLM(answer) as llm:
            given = ["--labels", labels, "--model", "openai/test", "--base-url", llm.base_url]
            for name in "ab":
                _, err = ran("classify", f"{name}.txt", *given, "-o", f"{name}{run}.csv")
                if run == "1":
                    review = ["review", f"{name}1.csv", "-n", "20", "--goal", "count", "--no-open"]
                    ran(*review, "-o", f"{name}.json")
                    judge(f"{name}.json", gold)
                    ran("learn", f"{name}1.csv", f"{name}.json")
                elif name == "a":
                    assert " learn a2.csv .testnuc/answers-" in err
                    out, _ = ran(*shlex.split(err.splitlines()[-1].partition(": ")[2])[1:])
                    assert "20 judgments are not used: of texts that came later" in out
                    assert "Label these texts first, then learn again." in out
                    # the texts of b were counted among those of a
                    assert "20 of 60 texts are judged: 20 by a person" in out
    line = err.splitlines()[-1]
    assert line == (
        "next, learn from 20 judgments of these texts that are not used yet: "
        "testnuc learn b2.csv -o better-2.csv"
    )
    out, err = ran(*shlex.split(line.partition(": ")[2])[1:])
    assert "40 of 100 texts are judged" in out
    assert "not used" not in out + err
    assert "In better-2.csv: About 100 % " in out
    code, _, err = run_here("learn", "b2.csv")
    assert (code, "no review of b2.csv with answers is in this folder" in err) == (2, True)


def test_a_file_is_named_whose_accuracy_alone_is_not_known(capsys):
    learned = SimpleNamespace(accuracy=lambda texts=None: None if texts else "of all", measured=9)
    learned.answers = {hash_text("a"): ("x", "person")}
    assert _accuracy_said(learned, "new.csv", ["a"])
    said = "How many labels of new.csv itself are right is not known: "
    assert f"{said}too few of its texts were drawn at random" in capsys.readouterr().out
    # a review of another file was taken without a word
    assert _accuracy_said(learned, "new.csv", ["b"])
    assert f"{said}no text of it is judged, and what is said" in capsys.readouterr().out


def test_a_file_of_which_nothing_is_judged_comes_before_open_judgments_of_others():
    """Judgments were carried over where its texts were labeled already."""
    learned = SimpleNamespace(
        answers={hash_text("a"): ("x", "person")},
        measured=7,
        reopened=("one", "two"),
        given={},
        accuracy=lambda _: None,
        unused=lambda _: 0,
        unfit_among=lambda _: ((), 0),
        mostly_later=lambda texts, among: texts == ["b"] and among == 7,
    )
    given = SimpleNamespace(source="o.csv", client=Options({}, ()), text_column="text")
    found = Certificate(0.9, 0.9, 0.5, 0.0, 0, judgments_needed=40, texts=9)
    assert what_next(learned, given, ["b"], found).endswith(
        "next, judge some of these texts, which say how many of their labels are right: testnuc "
        "review o.csv -n 40 --goal count"
    )
    assert "judge 2 more texts, whose judgment" in what_next(learned, given, ["a"], found)


def test_the_path_leads_to_how_many_labels_are_right():
    def after(measure, covered, judged=0, known=None, *, decide=False):
        learned = SimpleNamespace(
            to_measure=measure,
            reopened=(),
            measured=9,
            unfit_among=lambda _: ((), 0),
            wants_decisions=lambda _: decide,
            unused=lambda _: 0,
        )
        learned.accuracy = lambda _: known
        found = Certificate(0.9, 0.9, 0.5, covered, judged, judgments_needed=40)
        given = SimpleNamespace(source="o.csv", client=Options({}, ()), text_column="text")
        return what_next(learned, given, certificate=found)

    # before draws by trust
    said = after(60, 0.0)
    assert said.endswith(": testnuc review o.csv -n 60 --goal count")
    assert "which say how many labels are right" in said
    # their range can be halved, which is said first
    known = Accuracy(Share(0.5, 0.4, 0.6), Share(0.9, 0.7, 0.95), 138, texts=9)
    assert after(0, 0.0, known=known).splitlines()[0] == (
        "to halve the range of how many labels are right, now 70 to 95 %, judge others first, "
        "drawn at random: testnuc review o.csv -n 138 --goal count"
    )
    # who knows that all are as right as the certified ones need not correct the others
    assert "to correct the others" in after(0, 0.5, known=known)
    assert "correct" not in after(0, 0.5, known=replace(known, now=Share(0.95, 0.91, 0.98)))
    # of a file with a part of the texts
    said = after(0, 0.0, known=replace(known, texts=8))
    assert said.startswith("to halve the range of how many labels of o.csv are right, now 70 to 95")
    assert "halve" not in after(0, 0.0, judged=20, known=known)
    # they went on: what is learned from others ends a certificate
    assert after(60, 0.0, judged=20).endswith("testnuc review o.csv -n 40 --goal certify")
    assert after(0, 0.0).endswith("testnuc review o.csv -n 40 --goal certify")
    # the command of the draws that a certificate asks for, also where others come first
    assert after(0, 0.0, decide=True).splitlines() == [
        "to certify the labels as they are instead: testnuc review o.csv -n 40 --goal certify",
        "next, judge 50 more texts, where strategies differ: testnuc review o.csv -n 50",
    ]
    larger = after(0, 0.3, 9).splitlines()
    assert larger[0] == (
        "to prove a larger part, judge more: testnuc review o.csv -n 50 --goal certify"
    )
    assert "larger" not in after(0, 1.0, 9)
    # a file of earlier texts is not replaced
    Path("certified.csv").write_text("text\n")
    assert after(0, 1.0, 9).endswith("testnuc certify o.csv -o certified-2.csv")
