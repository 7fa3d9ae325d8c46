"""``testnuc review``, ``learn``, ``certify``, ``unlearn``: from labels to better labels."""

import csv
import json
import os
import random
import re
import shlex
import shutil
import sqlite3
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from testnuc.cli import judging
from testnuc.cli.options_of_run import command
from testnuc.cli.reading import read_table
from testnuc.testing import HashEmbedder, LoopbackLLM
from testnuc.trust.review import Review, ReviewContext
from tests.cli.in_process import judge, ran, rows_of, run_here
from tests.report.test_report import data_of

WORDS = {
    "refund": "money back refund charged twice",
    "delivery": "parcel courier late address",
    "login": "password locked account sign",
}
LABELS = tuple(WORDS)


def true_label(text):
    return LABELS[int(text.split("#")[1]) % 3]


def text_of(i):
    dice = random.Random(i)
    words = WORDS[LABELS[i % 3]].split()
    return " ".join([*dice.choices(words, k=4), f"#{i}"])


TEXTS = [text_of(i) for i in range(240)]


def wrong_at_random(text):
    """Right on two of three texts."""
    number = int(text.split("#")[1])
    label = true_label(text)
    return (LABELS[(LABELS.index(label) + 1) % 3] if number % 10 < 3 else label), 0.9


@pytest.fixture
def tickets(tmp_path):
    path = tmp_path / "tickets.csv"
    path.write_text("text\n" + "\n".join(TEXTS))
    return path


def options(llm):
    return ["--labels", ",".join(LABELS), "--model", "openai/test", "--base-url", llm.base_url]


judged = partial(judge, right=true_label)


def accuracy(path):
    rows = rows_of(path)
    assert len(rows) == len(TEXTS)
    return sum(row["nuc_label"] == true_label(row["text"]) for row in rows) / len(rows)


@pytest.mark.slow
def test_labels_stay_those_of_the_policy_of_the_run(tickets):
    """Too few judgments prove anything, so that nothing but the judged texts may change."""
    with LoopbackLLM(wrong_at_random) as llm:
        given = [*options(llm), "--policy", "majority"]
        ran("classify", tickets, *given, "-o", "before.csv")
    ran("review", "before.csv", "-n", "5", "-o", "review.json")
    judged("review.json")
    # the newest review is taken; an editor leaves a link to nothing, and a pipe would never end
    Path(".#review.json").symlink_to("nobody@nowhere.1")
    os.mkfifo("pipe.json")
    code, out, err = run_here("learn", "before.csv", "-o", "after.csv")
    assert "learning from review.json, judged last\n" in err
    assert (code, "Nothing was applied: labels stay as they are" in out) == (0, True), err
    assert re.search(
        r"strategies differ on [0-5] of the judged texts, and too few show a gain", out
    )
    # there is no certificate that further judgments could end
    assert 'drawn at random (goal "count").' in out
    before, after = (read_table(f, "text").rows for f in ("before.csv", "after.csv"))
    assert any(row["nuc_label"] != row["nuc_own_label"] for row in before)
    for old, new in zip(before, after, strict=True):
        assert new["nuc_source"] == "person" or new["nuc_label"] == old["nuc_label"]


def test_texts_of_a_run_that_was_a_mistake_are_named_when_drawn(tickets):
    rows = [f"id-{at},{text}" for at, text in enumerate(TEXTS[:20])]
    Path("ids.csv").write_text("\n".join(["id,text", *rows]))
    with LoopbackLLM(lambda _: ("login", 0.9)) as llm:
        _, wrong = ran("classify", "ids.csv", *options(llm), "--text-column", "id", "-o", "w.csv")
        assert "note: the texts in 'id' look like ids, as 'id-0'; if those in 'text' are" in wrong
        _, err = ran("classify", "ids.csv", *options(llm), "-o", "out.csv")
        assert "look like ids" not in err
    _, _, err = run_here("review", "out.csv", "-n", "40", "--goal", "count")
    assert re.search(r"note: 20 of these 40 texts are not in out.csv, as 'id-\d+': they", err), err


@pytest.mark.slow
def test_a_certificate_says_how_many_texts_came_after_the_draws(tickets):
    given = ["--store", "labels.db", "-o"]
    with LoopbackLLM(wrong_at_random) as llm:
        ran("classify", tickets, *options(llm), *given, "old.csv")
        assert (
            run_here("review", "old.csv", "-n", "30", "--goal", "certify", *given, "r.json")[0] == 0
        )
        judged("r.json")
        code, out, err = run_here("learn", "old.csv", "r.json", "--store", "labels.db")
        assert (code, "came after" in out) == (0, False), err
        certify = ["--accuracy", "0.5", "--store", "labels.db"]
        assert "came after" not in run_here("certify", "old.csv", *certify)[2]
        Path("new.txt").write_text("\n".join(map(text_of, range(240, 290))))
        ran("classify", "new.txt", *options(llm), *given, "new.csv")
        # the draws say nothing of them
        _, err = ran("classify", "new.txt", *options(llm), *given, "new.csv", "--overwrite")
        more = "testnuc review new.csv -n 40 --goal count"
        assert err.splitlines()[-1].startswith(
            f"next, judge some of these texts, which say how many of their labels are right: {more}"
        )
        code, _, err = run_here("certify", "new.csv", *certify, "-o", "c.csv")
        assert (code, "note: 50 of 50 texts came after the draws" in err) == (3, True), err
        assert more in err
        assert err.endswith("c.csv was not written: no text would be in it\n")
        page, _ = ran("report", "new.csv", "--summary", "--store", "labels.db", "-o", "p.md")
        page = Path("p.md").read_text()
        assert page.startswith("# How many of these labels are right is not known yet")
        assert "50 of them came after the draws, and what is known is of other" in page
        assert "What follows is of 240 other texts" in page
        table = page.partition("## Labels")[2].partition("## What is proved")[0]
        assert "%" not in table
        assert f"`{more}" in page.partition("## Next")[2]
        assert "certify new.csv -o" not in page
        assert "came after" not in run_here("certify", "old.csv", *certify)[2]
        # but draws among them, with the former ones, do
        draw = ["review", "new.csv", "-n", "60", "--goal", "certify", *given, "r2.json"]
        ran(*draw)
        judged("r2.json")
        ran("learn", "new.csv", "r2.json", "--store", "labels.db")
        code, out, err = run_here("certify", "new.csv", *certify, "-o", "c.csv")
        assert (code, "came after the draws" in err) == (0, False), err
        assert "of 290 distinct texts" in out
        assert "what is certified is proved of all 290 texts, not of these alone" in err


def next_command(err):
    """Return the last line's command, as it is typed."""
    return shlex.split(err.splitlines()[-1].partition(": testnuc ")[2])


@pytest.mark.slow
def test_each_command_ends_with_the_next_and_nothing_is_named_twice(tickets, monkeypatch):
    with tickets.open("w", newline="") as file:
        csv.writer(file).writerows([["message", "id"], *[[text, "x"] for text in TEXTS]])
    embedded = []
    embed = HashEmbedder.embed
    monkeypatch.setattr(
        HashEmbedder, "embed", lambda self, texts: embedded.extend(texts) or embed(self, texts)
    )
    with LoopbackLLM(wrong_at_random) as llm:
        classify = ["classify", tickets, *options(llm), "--text-column", "message", "-o", "out.csv"]
        _, err = ran(*classify)
        assert ".testnuc has the answers, the embeddings" in err
        embedded.clear()
        # as short as the README has it: labels, model, embedder and column are known
        _, err = ran("review", "out.csv", "-n", "16")
        judged("review.json")
        # nothing is learned where the outcome cannot be written
        code, _, refused = run_here("learn", "out.csv", "review.json", "-o", "better.doc")
        assert (code, "better.doc is neither" in refused) == (2, True)
        assert "nothing was learned" in run_here("unlearn", "out.csv")[2]
        learn = next_command(err)
        assert learn == ["learn", "out.csv", "review.json", "-o", "better.csv"]
        # a review that is continued knows its results, too
        _, _, err = run_here("review", "review.json")
        assert next_command(err) == learn
        assert data_of(Path("review.html").read_text(encoding="utf-8"))["then"] == shlex.join(
            ["testnuc", *learn]
        )
        out, err = ran(*learn)
        assert "none was judged since trust was learned" in out
        more = int(re.search(r"about (\d+) more drawn there", out)[1])
        assert f"next, judge {more} more texts, drawn by trust, to prove" in err
        review = next_command(err)
        # of the file that was written
        assert "how many texts have each label: testnuc count better.csv" in err
        assert review[:2] == ["review", "better.csv"]
        assert review[2:6] == ["-n", str(more), "--goal", "certify"]
        # the first review is not replaced, and neither is the file of the first labels
        before = Path("review.json").read_bytes()
        _, err = ran(*review)
        # it has no open text
        assert "to continue it" not in err
        assert Path("review.json").read_bytes() == before
        data = data_of(Path("review-2.html").read_text(encoding="utf-8"))
        assert data["file"] == "review-2.json"
        judged("review-2.json")
        learn = next_command(err)
        assert learn[:5] == ["learn", "better.csv", "review-2.json", "-o", "better-2.csv"]
        # what was judged and not learned from is named, in place of more texts to judge
        for name in ("better.csv", "out.csv"):
            _, err = ran("certify", name)
            assert f"{more} answers in review-2.json are not learned from yet: " in err
            assert next_command(err) == learn
        assert next_command(ran("count", "better.csv")[1]) == learn
        out, err = ran(*learn)
        assert f"{16 + more} of 240 texts are judged" in out
        last = next_command(err)
        assert last[:2] in (["certify", "better-2.csv"], ["review", "better-2.csv"])
        assert "not learned" not in ran(*last[:2])[1]
        # the review of a file of the same texts is known, too
        assert "learning from review-2.json, judged last" in ran("learn", "out.csv")[1]
        assert embedded == []
        assert llm.calls == 240
    assert {row["id"] for row in rows_of("better-2.csv")} == {"x"}


@pytest.mark.slow
def test_protected_labels_are_remembered_until_none_is(tickets):
    def kept(path):
        return [
            row["nuc_label"] == "login"
            for row in read_table(path, "text").rows
            if row["nuc_own_label"] == "login" and row["nuc_source"] != "person"
        ]

    with LoopbackLLM(wrong_at_random) as llm:
        classify = ["classify", tickets, *options(llm), "-o", "out.csv"]
        ran(*classify)
        ran("review", "out.csv")
        judged("review.json")
        learn = ["learn", "out.csv", "review.json", "--overwrite", "-o", "better.csv"]
        code, _, err = run_here(*learn, "--protect", "log in")
        assert code == 2
        assert "protect: 'log in' is not in the label set; did you mean 'login'?" in err
        code, out, err = run_here(*learn, "--protect", "login", "--protect", "refund")
        assert (code, "from a text: 'refund', 'login'" in out) == (0, True), err
        assert all(kept("better.csv"))
        # as before
        assert "from a text: 'refund', 'login'" in run_here(*learn)[1]
        assert "Protected" not in run_here(*learn, "--protect", "")[1]
        assert not all(kept("better.csv"))
        Path("testnuc.toml").write_text('[learn]\nprotect = ["login"]\n')
        assert "from a text: 'login'" in run_here(*learn)[1]
        ran(*classify)
        assert all(kept("out.csv"))
        Path("testnuc.toml").write_text('protect = "refund"\n')
        assert "from a text: 'refund'" in run_here(*learn)[1]
        code, out, err = run_here("distill", "out.csv")
        assert (code, "protected ones, which a head does not see" in out) == (0, True), err
        ran("classify", tickets, "--head", "labels.head", "-o", "by-head.csv")
        code, _, err = run_here("review", "by-head.csv")
        assert (code, "a head labeled by-head.csv, and no LLM" in err) == (2, True), err


@pytest.mark.slow
def test_results_without_a_store_keep_what_was_learned_beside_them(tickets):
    with LoopbackLLM(wrong_at_random) as llm:
        command = ["classify", tickets, *options(llm), "-o", "out.csv"]
        run_here(*command)
        before = accuracy("out.csv")
        code, _, err = run_here("certify", "out.csv")
        assert (code, "nothing was learned" in err) == (2, True)
        ran("review", "out.csv")
        judged("review.json")
        ran("learn", "out.csv", "review.json")
        _, err = ran(*command)
        assert accuracy("out.csv") > before
        assert "Labels come from" in err
        # labels that were changed by hand are not replaced
        content = Path("out.csv").read_text()
        Path("out.csv").write_text(content.replace("refund,", "login,", 1))
        code, _, err = run_here(*command)
        assert (code, "add --overwrite" in err) == (2, True)
        assert llm.calls == 240
        # other texts join them
        other = tickets.with_name("other.csv")
        other.write_text("text\n" + "\n".join(f"parcel {i} #{i}" for i in range(30)))
        ran("classify", other, *options(llm), "-o", "out.csv", "--overwrite")
        code, _, err = run_here("review", "out.csv", "--goal", "certify", "-n", "9")
        assert "9 of 270 texts to judge" in err


@pytest.mark.slow
def test_results_without_their_store_need_options_and_embed(tickets, tmp_path):
    with LoopbackLLM(wrong_at_random) as llm:
        run_here("classify", tickets, *options(llm), "-o", "out.csv")
        Path("out.csv").rename("moved.csv")
        # else it would be known by its content
        shutil.rmtree(".testnuc")
        code, _, err = run_here("review", "moved.csv")
        assert (code, "--labels" in err) == (2, True)
        assert not (tmp_path / "moved.csv.resume").exists()
        _, err = ran("review", "moved.csv", *options(llm))
        assert "embedding 240 texts" in err
        assert llm.calls == 240


@pytest.mark.slow
def test_options_that_are_given_win_over_those_of_the_store(tickets):
    with LoopbackLLM(wrong_at_random) as llm:
        given = [*options(llm), "--store", "labels.db"]
        run_here("classify", tickets, *given)
        code, _, err = run_here("review", "labels.db", "--base-url", "http://127.0.0.1:1/v1")
        assert code == 2
        assert "no answer of openai/test with these labels and settings" in err
        code, _, err = run_here("review", "labels.db", "--labels", "a,b")
        assert code == 2
        assert f"240 answers, openai/test at {llm.base_url}, 3 labels" in err
        assert "(refund, delivery, login)" in err
        # of two runs the newest, and the other by its number
        run_here("classify", tickets, *given, "--instructions", "Be strict.")
        code, out, _ = run_here("store", "runs", "labels.db")
        first, second, texts = out.splitlines()
        # what failed above before the first answer has its number, which stays
        assert (code, first.split(", ")[0], second.split(", ")[0]) == (0, "run 1", "run 4")
        assert "--instructions 'Be strict.'" in second
        assert "Be strict." not in first
        assert texts.startswith("240 texts, ")
        for number, strict in ((None, True), ("1", False), ("4", True)):
            named = [] if number is None else ["--run", number]
            _, err = ran("review", "labels.db", "-n", "20", *named, "-o", "r.json")
            assert ("the newest is used: run 4" in err) is (number is None)
            assert (Review.load("r.json").context.instructions == "Be strict.") is strict
            Path("r.json").unlink()
        ran("review", "labels.db", "-n", "20", "--run", "1", "-o", "r.json")
        judged("r.json")
        ran("learn", "labels.db", "r.json", "--run", "1")
        code, _, err = run_here("certify", "labels.db")
        assert (code, "but of another one: add --run 1 (run 1, " in err) == (2, True)
        first, second, _ = run_here("store", "runs", "labels.db")[1].splitlines()
        assert ("with judgments" in first, "with judgments" in second) == (True, False)
        assert run_here("certify", "labels.db", "--run", "1")[0] == 0
        code, _, err = run_here("review", "labels.db", "--run", "3")
        assert code == 2
        assert "labels.db has no run 3; labels.db holds: run 1, " in err
        # which stays its number when it gets more answers, so that a command names the same run
        with sqlite3.connect("labels.db") as store:
            (facts,) = store.execute("SELECT facts FROM scopes ORDER BY id").fetchone()
            today = json.loads(facts)["answered"].popitem()[1][1]
            later = facts.replace(today, "2999-01-01")
            store.execute("UPDATE scopes SET facts = ? WHERE facts = ?", (later, facts))
        *_, newest, _ = run_here("store", "runs", "labels.db")[1].splitlines()
        assert newest.startswith("run 1, 2999-01-01")
        assert run_here("certify", "labels.db", "--run", "1")[0] == 0
        # a run with one label more names the judgments that it does not use
        wider = [*options(llm), "--store", "labels.db", "--labels", "refund,delivery,login,other"]
        _, _, err = run_here("classify", tickets, *wider, "-o", "wider.csv")
        assert "labels.db has judgments of run 1, whose answers are to another question" in err
        assert "next, carry the judgments over: testnuc learn wider.csv labels.db" in err


def labels_in(path):
    """Return text -> label of a file of results."""
    path = Path(path)
    if path.suffix == ".txt":
        return dict(zip(TEXTS, path.read_text().splitlines(), strict=True))
    if path.suffix == ".csv":
        rows = rows_of(path)
    elif path.suffix == ".parquet":
        rows = pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    else:
        rows = [r for r in map(json.loads, path.read_text().splitlines()) if "text" in r]
    assert len(rows) == len(TEXTS)
    return {row["text"]: row["nuc_label"] or None for row in rows}


@pytest.mark.slow
def test_after_a_review_every_output_has_the_corrected_labels(tickets):
    with LoopbackLLM(wrong_at_random) as llm:
        given = options(llm)
        classify = ["classify", tickets, *given, "--store", "labels.db"]
        run_here(*classify, "--full", "-o", "before.jsonl")
        ran("review", "labels.db", *given, "-n", "60")
        review = judged("review.json")
        # none of the labels is right: no output has a label there
        review.answer(3, None)
        review.save("review.json")
        right = {item.text: item.answer for item in review}
        learn = ["learn", "before.jsonl", "review.json", *given, "--store", "labels.db"]
        for name in ("learned.jsonl", "learned.csv"):
            _, err = ran(*learn, "-o", name)
            said = "239 labels, 59 of them judged by a person; no label: 1 that a person"
            assert f"{said} judged to have none, written to {name}" in err
        for name, more in {
            "a.csv": [],
            "b.jsonl": ["--full"],
            "c.jsonl": ["--policy", "weighted", "--k", "5"],
            "d.parquet": ["--policy", "majority"],
            "e.csv": ["--k", "0"],
            "f.csv": ["--min-trust", "0.99"],
            "g.txt": [],
        }.items():
            ran(*classify, *more, "-o", name)
        for path in ("learned.jsonl", "learned.csv", "a.csv", "b.jsonl", "c.jsonl", "d.parquet",
                     "e.csv", "f.csv", "g.txt"):  # fmt: skip
            found = labels_in(path)
            nothing = "" if path == "g.txt" else None
            assert {t: found[t] for t in right} == {t: r or nothing for t, r in right.items()}, path
        ran("report", "b.jsonl")
        data = data_of(Path("report.html").read_text(encoding="utf-8"))
        shown = {data["texts"][r["x"]]: r["l"] for r in data["rows"]}
        for text, label in right.items():
            assert label == (None if shown[text] is None else data["labels"][shown[text]])
        said = f"of the labels of {len(TEXTS)} texts are right by your judgments"
        assert said in data["learned"]
        assert llm.calls == 240


@pytest.mark.slow
def test_a_review_has_a_page(tickets, monkeypatch):
    shown = []
    monkeypatch.setattr("webbrowser.open", lambda url: shown.append(url) or True)
    with LoopbackLLM(wrong_at_random) as llm:
        given = [*options(llm), "--instructions", "Read it."]
        run_here("classify", tickets, *given, "--full", "-o", "out.jsonl")
        _, err = ran("review", "out.jsonl", *given)
        assert "or open review.html in a browser" in err
        assert shown == []
        data = data_of(Path("review.html").read_text(encoding="utf-8"))
        # all texts are there, and those that were drawn are asked for
        assert (data["total"], len(data["review"]["items"]), data["only"]) == (240, 50, False)
        assert data["instructions"] == "Read it."
        assert data["then"] in err
        command = shlex.split(data["then"])
        assert command[:4] == ["testnuc", "learn", "out.jsonl", "review.json"]
        judged("review.json")
        out, _ = ran(*command[1:])
        assert "50 of 240 texts are judged" in out
        # continued: the page is made again
        code, _, err = run_here("review", "review.json", "--no-open")
        assert (code, shown) == (0, []), err
        told = data_of(Path("review.html").read_text(encoding="utf-8"))
        assert [item["answer"] for item in told["review"]["items"]] == [
            true_label(item["text"]) for item in told["review"]["items"]
        ]


@pytest.mark.slow
@pytest.mark.parametrize("named", [False, True])
def test_a_review_that_another_terminal_drew_meanwhile_is_kept(named, tickets, monkeypatch):
    monkeypatch.chdir(tickets.parent)
    with LoopbackLLM(wrong_at_random) as llm:
        ran("classify", "tickets.csv", *options(llm), "-o", "out.csv")
    run_to_end = judging.run_to_end

    def slow(work):
        Path("review.json").write_text("of the other terminal")
        return run_to_end(work)

    monkeypatch.setattr(judging, "run_to_end", slow)
    code, _, err = run_here("review", "out.csv", "-n", "9", *["-o", "review.json"] * named)
    assert Path("review.json").read_text() == "of the other terminal"
    assert (code, "review.json exists; continue it" in err) == ((2, True) if named else (0, False))
    assert named or len(Review.load("review-2.json")) == 9


def test_no_password_is_written_into_the_page():
    made = command("learn", "postgresql://me:secret@db/x", {"k": 3}, "review.json")
    assert made == "testnuc learn STORE review.json --k 3"


@pytest.mark.slow
def test_reviews_of_several_people_are_joined(tickets):
    with LoopbackLLM(wrong_at_random) as llm:
        given = options(llm)
        run_here("classify", tickets, *given, "--store", "labels.db", "-o", "out.csv")
        run_here("review", "labels.db", *given, "-n", "40", "-o", "ann.json")
        Path("ben.json").write_bytes(Path("ann.json").read_bytes())
        review = judged("ann.json")
        judged("ben.json")
        other = Review.load("ben.json")
        wrong = [next(x for x in LABELS if x != true_label(i.text)) for i in review]
        for at in range(4):
            other.answer(at, wrong[at])
        other.save("ben.json")
        out, err = ran("learn", "labels.db", "ann.json", "ben.json", *given)
        assert "on 4 of 40 that several people judged they differ: 0 settled" in err
        assert "testnuc review ann.json ben.json -o joined.json" in err
        assert "36 of 240 texts are judged" in out
        _, err = ran("review", "ann.json", "ben.json", "-o", "joined.json")
        # it is done
        assert "to settle those" not in err
        joined = Review.load("joined.json")
        assert [item.source for item in joined[:5]] == [None] * 4 + ["person"]
        assert joined[0].said == (("ann.json", true_label(joined[0].text)), ("ben.json", wrong[0]))
        assert Path("joined.html").exists()
        code, _, err = run_here("review", "ann.json", "out.csv", *given)
        assert (code, "only reviews (.json) can be joined" in err) == (2, True)
        code, _, err = run_here("learn", "labels.db", "ann.json", "out.csv", *given)
        assert (code, "can be joined" in err) == (2, True)


@pytest.mark.slow
def test_marks_correct_but_prove_nothing(tickets):
    wrong = [t for t in TEXTS if wrong_at_random(t)[0] != true_label(t)][:20]
    # from a page of results that do not hold the label set
    nothing = {
        "own_label": None, "candidates": [], "trust": None, "neighbors": [], "goal": "correct",
        "probability": None, "floor": None, "source": "person",
    }  # fmt: skip
    items = [{"text": text, "answer": true_label(text), **nothing} for text in wrong]
    marks = {
        "format": "testnuc.review", "version": 1, "model": "", "labels": sorted(LABELS),
        "texts": 240, "items": items,
    }  # fmt: skip
    Path("marks.json").write_text(json.dumps(marks))
    with LoopbackLLM(wrong_at_random) as llm:
        given = options(llm)
        command = ["classify", tickets, *given, "--store", "labels.db", "-o", "out.csv"]
        run_here(*command)
        out, err = ran("learn", "labels.db", "marks.json", *given)
        assert "20 of 240 texts are judged" in out
        assert "Nothing was applied" in out
        assert "chosen, not drawn" in err
        said = "learned from 20 judgments: applied to the judged texts alone\n"
        assert said in run_here(*command)[2]
        labels = {row["text"]: row["nuc_label"] for row in rows_of("out.csv")}
        assert all(labels[text] == true_label(text) for text in wrong)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["review", "no.db"], "no store no.db"),
        (["review", "no.csv"], "no file no.csv"),
        (["review", "no.json"], "no file no.json"),
        (["review", "tickets.csv", "--labels", "a,b"], "nuc_label"),
        (["review", "labeled.csv", "--labels", "a,b"], "--labels of the run"),
        (["review", "tickets.csv", "--goal", "best"], "'decide', 'certify', 'count', 'correct'"),
        (["review", "tickets.csv", "-o", "review.csv"], ".json"),
        (["distill", "labeled.csv", "-o", "tickets.csv"], "name a .head file"),
        (["learn", "tickets.csv", "no.json", "--labels", "a,b"], "no file no.json"),
        (["learn", "tickets.csv", "tickets.csv", "--labels", "a,b"], "nuc_label"),
        (["learn", "tickets.csv"], "no review of tickets.csv with answers is in this folder"),
        (["classify", "tickets.csv", "--labels", "a,b", "--escalate", "10%"], "--referee MODEL"),
        (
            ["classify", "tickets.csv", "--labels", "a,b", "--referee", "x", "--escalate", "200%"],
            "such as 10% or 0.1",
        ),
    ],
)
def test_errors_name_what_to_do(tickets, arguments, says):
    Path("labeled.csv").write_text("text,nuc_label,nuc_own_label\nhello,c,c\n")
    code, _, err = run_here(*arguments)
    assert code == 2
    assert says in err
    assert "Traceback" not in err
    Path("labeled.csv").unlink()
    assert [path.name for path in tickets.parent.iterdir()] == ["tickets.csv"]


@pytest.mark.slow
def test_results_whose_file_name_is_not_utf8(tickets, tmp_path):
    out = tmp_path / "aus_\udce4.csv"
    try:
        out.touch()
    except OSError:
        pytest.skip("file names are UTF-8 here")
    out.unlink()
    with LoopbackLLM(wrong_at_random) as llm:
        ran("classify", tickets, *options(llm), "-o", out)
        ran("review", out, "-n", "4", "--no-open", "-o", "review.json")
        judged("review.json")
        code, _, err = run_here("learn", out, "review.json", "-o", "better.csv")
    assert code == 0, err


def by_text(path):
    return {row["text"]: row for row in rows_of(path)}


@pytest.mark.slow
def test_texts_that_were_not_asked_about_keep_their_labels(tickets):
    with LoopbackLLM(lambda text: (true_label(text), 0.9)) as llm:
        asked = ["--ask", "unsure", "--most", "0.5"]
        ran("classify", tickets, *options(llm), *asked, "-o", "out.csv")
        sent, before = llm.requests, by_text("out.csv")
        ran("review", "out.csv", "-n", "20", "--no-open", "-o", "r.json")
        review = judged("r.json")
        _, err = ran("learn", "out.csv", "r.json", "-o", "better.csv")
        assert "texts keep what out.csv says of them" in err
        more = ["-n", "20", "--goal", "certify", "--no-open", "-o", "more.json"]
        ran("review", "out.csv", *more)
        judged("more.json")
        ran("learn", "out.csv", "more.json", "-o", "better.csv", "--overwrite")
        _, err = ran("certify", "out.csv", "--accuracy", "0.7", "-o", "sure.csv")
        assert "the certificate says nothing of" in err
        assert llm.requests == sent
    after, sure = by_text("better.csv"), by_text("sure.csv")
    unasked = {text for text, row in before.items() if not row["nuc_own_label"]}
    assert 0 < len(unasked) < len(TEXTS)
    assert after.keys() == before.keys()
    assert all(after[text]["nuc_label"] == before[text]["nuc_label"] for text in unasked)
    assert not unasked & sure.keys()
    assert all(after[item.text]["nuc_label"] == item.answer for item in review)


@pytest.mark.slow
def test_labels_of_a_referee_stay_but_for_those_of_a_person(tickets):
    seen = set()

    def two(text):
        """The model's answer, then that of the referee, which is asked by the same server."""
        first = text not in seen
        seen.add(text)
        return wrong_at_random(text) if first else (true_label(text), 0.9)

    with LoopbackLLM(two) as llm:
        referee = ["--referee", "openai/better", "--escalate", "20%"]
        ran("classify", tickets, *options(llm), *referee, "-o", "out.csv")
        before = by_text("out.csv")
        ran("review", "out.csv", "-n", "10", "--no-open", "-o", "r.json")
        review = judged("r.json")
        ran("learn", "out.csv", "r.json", "-o", "better.csv")
    after, by_hand = by_text("better.csv"), {item.text for item in review}
    given = {text for text, row in before.items() if row["nuc_source"] == "referee"} - by_hand
    assert len(given) >= 0.2 * len(TEXTS) - len(by_hand)
    assert {after[text]["nuc_source"] for text in given} == {"referee"}
    assert all(after[text]["nuc_label"] == true_label(text) for text in given | by_hand)
    assert {after[text]["nuc_source"] for text in by_hand} == {"person"}


def test_the_answers_of_a_referee_are_no_run_of_a_store(tickets):
    """After a killed run, without a date, they were taken to be the newest one."""
    with LoopbackLLM(wrong_at_random) as llm:
        more = ["--referee", "openai/better", "--store", "s.db", "-o", "out.csv"]
        ran("classify", str(tickets), *options(llm), *more)
        (line,) = [x for x in ran("store", "runs", "s.db")[0].splitlines() if "run " in x]
        assert line.startswith("run 1, ")


@pytest.mark.parametrize(
    "names", [{"other": "all else", **WORDS}, {**WORDS, "other": "all else"}, ["other", *WORDS]]
)
def test_a_run_whose_label_for_none_is_first_or_described_is_found(tickets, names):
    with LoopbackLLM(wrong_at_random) as llm:
        Path("labels.json").write_text(json.dumps(names))
        named = ["--labels", "labels.json", "--none-label", "other"]
        given = [*options(llm), *named, "--store", "s.db"]
        ran("classify", str(tickets), *given, "-o", "out.csv")
        for more in ([], ["--run", "1"], named, named[:2]):
            _, err = ran("review", "s.db", "-n", "5", "--no-open", *more, key=None)
            assert "5 of 240 texts to judge" in err
    assert "4 labels (" in ran("store", "runs", "s.db", key=None)[0]


@pytest.mark.slow
def test_labels_that_a_run_withheld_are_withheld_after_learning(tickets):
    with LoopbackLLM(wrong_at_random) as llm:
        withheld = ["--min-trust", "0.9"]
        ran("classify", tickets, *options(llm), *withheld, "-o", "out.csv")
        ran("review", "out.csv", "-n", "5", "--no-open", "-o", "r.json")
        judged("r.json")
        ran("learn", "out.csv", "r.json", "-o", "better.csv")
    after = by_text("better.csv").values()
    assert 0 < sum(not row["nuc_label"] for row in after) < len(TEXTS)
    assert all(float(row["nuc_trust"]) >= 0.9 for row in after if row["nuc_label"])


@pytest.mark.slow
def test_after_a_change_of_instructions_the_same_reviews_are_learned_again(tickets):
    with LoopbackLLM(wrong_at_random) as llm:
        ran("classify", tickets, *options(llm), "-o", "out.csv")
        ran("review", "out.csv", "-n", "20", "--no-open", "-o", "r.json")
        review = judged("r.json")
        ran("learn", "out.csv", "r.json")
        changed = [*options(llm), "--instructions", "Read each ticket twice."]
        ran("classify", tickets, *changed, "-o", "new.csv")
        saved = Path("r.json")
        # by an editor of Windows
        saved.write_bytes(b"\xef\xbb\xbf" + saved.read_bytes())
        ran("learn", "new.csv", "r.json", "-o", "better.csv")
    after = by_text("better.csv")
    assert all(after[item.text]["nuc_label"] == item.answer for item in review)


@pytest.mark.slow
def test_a_review_and_a_report_start_from_what_the_newest_file_says(tickets):
    """One label is never given by the LLM, and one text is judged to have none of the labels."""
    given = ["--labels", ",".join([*LABELS, "praise"]), "--model", "openai/test"]
    answers = {
        text: ("nonsense" if i % 10 == 9 else wrong_at_random(text)[0], 0.9)
        for i, text in enumerate(TEXTS)
    }
    with LoopbackLLM(answers) as llm:
        run = ["classify", tickets, *given, "--base-url", llm.base_url, "-o", "labeled.csv"]
        ran(*run)

    def drawn(source, name):
        ran("review", source, "-n", "30", "-o", name, "--no-open")
        return Review.load(name)

    def agrees(review, file):
        rows = by_text(file)
        for item in review:
            row = rows[item.text]
            assert (item.label or "") == row["nuc_label"]
            assert row["nuc_trust"] == "" or item.trust == pytest.approx(
                float(row["nuc_trust"]), abs=1e-5
            )
            assert (item.trust is None) == (row["nuc_trust"] == "")

    review = drawn("labeled.csv", "first.json")
    agrees(review, "labeled.csv")
    none = review[0].text
    judged("first.json")
    answered = Review.load("first.json")
    answered.answer(none, None)
    answered.save("first.json")
    ran("learn", "labeled.csv", "first.json", "-o", "better.csv")

    # somebody removed what looks like leftovers of a run
    shutil.rmtree("labeled.csv.resume")
    review = drawn("labeled.csv", "second.json")
    agrees(review, "better.csv")
    better = by_text("better.csv")
    left = sum(row["nuc_label"] == "" and row["nuc_source"] != "person" for row in better.values())
    assert review.context.unlabeled == left
    agrees(drawn("better.csv", "third.json"), "better.csv")
    data = data_of(Path("third.html").read_text(encoding="utf-8"))
    assert {data["texts"][row["x"]]: row["l"] for row in data["rows"]}.keys() == {*TEXTS}
    assert data["learned"]

    ran("report", "better.csv", "-o", "better.html")
    data = data_of(Path("better.html").read_text(encoding="utf-8"))
    assert data["labels"][: data["choices"]] == [*LABELS, "praise"]
    assert data["learned"] == "labels and trust are learned from judgments, 30 of these texts"
    assert none not in {data["texts"][row["x"]] for row in data["rows"] if row["q"]}


@pytest.mark.slow
def test_two_judges_get_parts_with_a_tenth_in_common_and_what_they_say_of_it_is_counted(tickets):
    with LoopbackLLM(wrong_at_random) as llm:
        ran("classify", tickets, *options(llm), "-o", "before.csv")
    draw = ["review", "before.csv", "-n", "40", "--judges", "2", "--blind", "-o", "review.json"]
    _, err = ran(*draw, "--no-open")
    assert "or open review-2.html in a browser, move the review-2.json that it saves here" in err
    assert Path("review-1.html").exists()
    assert "to compare judges on all texts, give each a copy of one review" in err
    assert "22 texts to judge, written to review-1.json: testnuc review review-1.json" in err
    assert "when all are judged: testnuc learn before.csv review-1.json review-2.json" in err
    assert {item.own_label for part in (1, 2) for item in Review.load(f"review-{part}.json")} == {
        None
    }
    assert not Path("review.json").exists()
    for part in (1, 2):
        judged(f"review-{part}.json")
    # who judges a part is not told to learn from it alone
    _, _, err = run_here("review", "review-1.json", "--answer")
    assert "learns from review-1.json and the other files together" in err
    assert "testnuc learn" not in err
    # the page of a part names all of them
    _, err = ran("review", "review-2.json", "--no-open")
    assert "run: testnuc learn before.csv review-1.json review-2.json" in err
    code, out, err = run_here("learn", "before.csv")
    assert "learning from review-1.json, review-2.json, judged last" in err
    assert (code, "40 texts are judged" in err) == (0, True), err
    assert "Judges differ on 0 of 4 texts that several judged" in out
    # they are not drawn again
    assert "review-1.json exists" in run_here(*draw)[2]
    # joined, they are one file: the command that follows names this one alone
    differ = Review.load("review-2.json")
    item = next(i for i in differ if i.text in {one.text for one in Review.load("review-1.json")})
    differ.answer(item.index, next(x for x in LABELS if x != item.answer))
    differ.save("review-2.json")
    _, err = ran("review", "review-1.json", "review-2.json", "-o", "joined.json", "--no-open")
    words = shlex.split(err.rpartition("run: ")[2])
    assert words == ["testnuc", "learn", "before.csv", "joined.json", "-o", "better.csv"]
    ran(*words[1:])
    assert "learning from joined.json, judged last" in ran("learn", "before.csv")[1]
    assert Path("better.csv").exists()
    # names may be given later, and corrected
    _, _, err = run_here("review", "review-1.json", "--judge", "An", "--answer")
    assert "judged by An; if that is not who judges: --judge NAME" in err
    for part, who in enumerate(("Ann", "Ben"), 1):
        _, _, err = run_here("review", f"review-{part}.json", "--judge", who, "--answer")
        assert ("review-1.json was judged by An until now" in err) == (part == 1)
    ran("review", "review-1.json", "review-2.json", "-o", "named.json", "--no-open")
    ran("learn", "before.csv", "named.json", "-o", "named.csv")
    page = ran("describe", "named.csv", "named.json")[0]
    assert "one of 2 people (Ann, Ben), blind" in page
    assert "Cohen's kappa" in page
    # who settles what they differ on
    run_here("review", "named.json", "--judge", "Cleo", "--no-open")
    judged("named.json")
    ran("learn", "before.csv", "named.json", "-o", "settled.csv")
    page = ran("describe", "settled.csv", "named.json")[0]
    assert "1 judged by Cleo, who saw the answers of judges who differed" in page


def test_a_review_of_another_run_is_refused(tickets):
    """Not one of its labels is here: it was learned from, and widened every interval."""
    with LoopbackLLM(lambda _: ("card", 0.9)) as llm:
        ran("classify", tickets, *options(llm), "-o", "out.csv")
        labels = ["--labels", "card,transfer"]
        ran("classify", tickets, *options(llm), *labels, "-o", "other.csv")
        ran("classify", tickets, *options(llm), "--labels", "card,login", "-o", "some.csv")
    for name in ("other", "some"):
        ran("review", f"{name}.csv", "-n", "6", "-o", f"{name}.json", "--no-open")
    judge("other.json", lambda _: "card")
    judge("some.json", lambda text: "card" if int(text.split("#")[1]) % 2 else "login")
    code, _, err = run_here("learn", "out.csv", "other.json")
    assert (code, "no label in common" in err) == (2, True), err
    assert "theirs are 'card, transfer', its own 'refund, delivery, login'" in err
    assert "nothing was learned" in run_here("unlearn", "out.csv")[2]
    # one that has some of them is not refused, but it is said how to undo that
    _, err = ran("learn", "out.csv", "some.json")
    assert "to undo this: `testnuc unlearn RESULTS`, then `testnuc learn` the right file" in err


def _judged_by_two(tickets):
    """Label texts; two judges of eight of them differ. Returns the second one's review, texts."""
    with LoopbackLLM(wrong_at_random) as llm:
        ran("classify", tickets, *options(llm), "-o", "out.csv")
    ran("review", "out.csv", "-n", "8", "--blind", "-o", "ann.json", "--no-open")
    texts = [item.text for item in judged("ann.json")]
    shutil.copy("ann.json", "ben.json")
    ben = judge("ben.json", lambda text: "login" if text in texts[:3] else true_label(text))
    return ben, texts


def test_the_last_answer_learns_from_all_who_judged_these_texts_or_says_how(tickets):
    _judged_by_two(tickets)
    _, _, err = run_here("review", "ben.json", "--answer")
    then = "all who judged them: testnuc learn out.csv ann.json ben.json -o better.csv"
    assert f"next: {then}" in err
    assert not Path("better.csv").exists()
    Path("ann.json").unlink()
    assert "next: all who" not in run_here("review", "ben.json", "--answer")[2]
    assert Path("better.csv").exists()


def test_what_joins_reviews_goes_before_its_parts_where_dates_of_files_are_lost(tickets):
    """As in a folder that was copied: one judge's answers took the place of settled ones."""
    ben, texts = _judged_by_two(tickets)
    differ = sum(true_label(item.text) != "login" for item in ben[:3])
    ran("review", "ann.json", "ben.json", "-o", "joined.json", "--no-open")
    shutil.copy("joined.json", "open.json")
    judged("joined.json")
    for at, name in enumerate(["joined.json", "ann.json", "open.json", "ben.json"]):
        os.utime(name, (1e9 + at, 1e9 + at))
    _, err = ran("learn", "out.csv")
    assert "learning from joined.json, which has the answers of ben.json, too" in err
    assert "replaced" not in err
    # but what was judged since is not in it
    _, err = ran("learn", "out.csv", "ben.json")
    assert f"note: {differ} settled answers are replaced" in err
    ben.answer(7, next(label for label in LABELS if label != true_label(texts[7])))
    ben.save("ben.json")
    assert "learning from ann.json, ben.json, judged last" in ran("learn", "out.csv")[1]


def test_a_copy_of_a_folder_without_its_store_gets_no_empty_one(tickets, monkeypatch):
    """Who then moved the right folder there had it inside the new one."""
    with LoopbackLLM(wrong_at_random) as llm:
        ran("classify", tickets, *options(llm), "-o", "out.csv")
    shutil.copytree(".", "copy", ignore=shutil.ignore_patterns(".testnuc", "copy"))
    monkeypatch.chdir("copy")
    code, _, err = run_here("count", "out.csv")
    assert (code, "copy its hidden .testnuc, too" in err) == (2, True), err
    assert "nothing was judged in out.csv yet" in err
    assert [*Path().glob("**/*.db")] == []
    assert not Path(".testnuc").exists()


def test_the_files_of_several_judges_are_named_in_one_command(tickets):
    """One command each let the judge who was learned from last overwrite the other."""
    ben, _ = _judged_by_two(tickets)
    # an earlier state of a file is not a judge
    ben.withdraw(7)
    ben.save("ben-before.json")
    both = ["learn", "out.csv", "ann.json", "ben.json", "-o", "better.csv"]
    code, _, err = run_here("count", "out.csv")
    assert (code, err.count("not learned from yet")) == (2, 1)
    assert (
        f"8 answers in ann.json, ben.json are not learned from yet: testnuc {shlex.join(both)}"
        in err
    )
    _, err = ran("learn", "out.csv")
    assert (
        "learning from ann.json, ben.json, which has the answers of ben-before.json, too; of" in err
    )
    assert "of 8 that several people judged they differ" in err
    # parts that are shared out, too
    draw = ["review", "out.csv", "-n", "8", "--judges", "2", "--blind", "-o", "part.json"]
    ran(*draw, "--no-open")
    for part in (1, 2):
        judged(f"part-{part}.json")
    _, err = ran("certify", "out.csv")
    assert err.count("not learned from yet") == 1
    assert "testnuc learn out.csv part-1.json part-2.json -o" in err


@pytest.mark.slow
def test_judgments_carry_over_to_other_labels(tickets):
    """One label is new, and one is renamed, which the file of labels says."""
    old = ["--labels", ",".join(LABELS), "--model", "openai/test"]
    new = [{"label": "money back", "was": ["refund"]}, {"label": "delivery"}, {"label": "login"}]
    Path("renamed.json").write_text(json.dumps(new))
    Path("more.csv").write_text("label,was\nmoney back,refund\ndelivery,\nlogin,\npraise,\n")

    praised: set[str] = set()

    def renamed(text):
        label = wrong_at_random(text)[0]
        return ("praise" if text in praised else "money back" if label == "refund" else label), 0.9

    with LoopbackLLM(wrong_at_random) as llm:
        run = ["classify", tickets, *old, "--base-url", llm.base_url, "-o", "old.csv"]
        ran(*run)
    ran("review", "old.csv", "-n", "41", "-o", "old.json", "--no-open")
    judged("old.json")
    answered = Review.load("old.json")
    answered.answer(0, None)
    answered.save("old.json")
    # one is skipped, as in an editor
    content = json.loads(Path("old.json").read_text())
    content["items"][1] |= {"answer": None, "source": None}
    Path("old.json").write_text(json.dumps(content))
    ran("learn", "old.csv", "old.json")
    (store,) = Path(".testnuc").glob("*.db")

    with LoopbackLLM(renamed) as llm:
        for labels, output in (("renamed.json", "renamed.csv"), ("more.csv", "new.csv")):
            if output == "new.csv":
                praised |= {text for text in TEXTS if int(text.split("#")[1]) % 4 == 0}
            given = ["--labels", labels, "--model", "openai/test", "--base-url", llm.base_url]
            _, err = ran("classify", tickets, *given, "-o", output)
            assert f"`testnuc learn FILE {store}` carries the judgments over, but no certif" in err
            assert next_command(err) == ["learn", output, str(store), "-o", "better.csv"]
    code, out, err = run_here("learn", "renamed.csv", store, "-o", "better.csv")
    assert (code, "40 judgments of other labels are carried over\n" in err) == (0, True), err
    assert "40 of 240 texts are judged: 40 by a person." in out
    rows = read_table("better.csv", "text").rows
    people = [row for row in rows if row["nuc_source"] == "person"]
    assert len(people) == 40
    names = {"refund": "money back"}
    none = answered[0].text
    for row in people:
        label = true_label(row["text"])
        assert row["nuc_label"] == ("" if row["text"] == none else names.get(label, label))

    # of a text without a label, the new one may be right
    code, _, err = run_here("learn", "new.csv", "old.json", "-o", "better-2.csv")
    # those that the LLM gives the new label were counted as carried over
    kept = sum(item.text not in praised | {none} for item in answered.judged)
    said = f"{kept} judgments of other labels are carried over, {40 - kept} are not"
    assert (code, said in err) == (0, True), err
    assert "texts that the LLM gives a new label ('praise') count as not judged" in err
    assert "renamed or split" not in err
    rows = read_table("better-2.csv", "text").rows
    people = {row["text"] for row in rows if row["nuc_source"] == "person"}
    # nobody who judged could choose the new label
    assert people == {item.text for item in answered if item.text not in praised | {none}}
    # nor does learning take it away from texts of which nothing is known
    assert all(row["nuc_label"] == "praise" for row in rows if row["text"] in praised)
    code, _, err = run_here("learn", "new.csv", "no.db")
    assert (code, "no.db" in err) == (2, True)


def _a_copy_can_be_edited():
    """A spreadsheet saved better.csv under another name, with its own delimiter."""
    rows = rows_of("better.csv")
    rows[0]["nuc_label"] = next(label for label in LABELS if label != rows[0]["nuc_label"])
    with Path("mine.csv").open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=";")
        writer.writeheader()
        writer.writerows(rows)
    # what a model changed since is no judgment, whichever output is named
    judged = [ran("learn", name, "mine.csv")[0] for name in ("out.csv", "better.csv")]
    assert ["4 of 240 texts are judged: " in out for out in judged] == [True, True]
    _, _, err = run_here("learn", "mine.csv", "mine.csv")
    assert "name what it was copied from first: testnuc learn OUTPUT mine.csv" in err
    _, _, err = run_here("learn", "better.csv")
    assert "are judgments by: testnuc learn better.csv better.csv -o better-2.csv" in err


def _says_what_was_edited(page, err):
    assert "note: labels in out.csv that were edited and are not used: 3, as " in err
    # nothing was judged since
    assert "`out.csv` holds labels that were edited in it, and are not used: 3. This page" in page
    assert "have changed since" not in page + err


@pytest.mark.slow
def test_labels_that_are_edited_in_the_results_are_named_and_can_be_taken(tickets):
    """They were ignored without a word."""

    def edited(rows):
        with Path("out.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)

    with LoopbackLLM(wrong_at_random) as llm:
        ran("classify", tickets, *options(llm), "-o", "out.csv")
    code, _, err = run_here("learn", "out.csv", "out.csv", "-o", "better.csv")
    assert code == 2
    assert "no label in out.csv differs from what was written there" in err
    rows = rows_of("out.csv")
    wrong = [row for row in rows if row["nuc_label"] != true_label(row["text"])][:3]
    for row in wrong:
        row["nuc_label"] = true_label(row["text"])
    # a spreadsheet sorts, and has rows of its own
    rows.sort(key=lambda row: row["text"], reverse=True)
    edited([*rows, {**rows[0], "text": "a row that nobody asked about"}])

    page, err = ran("describe", "out.csv")
    _says_what_was_edited(page, err)
    assert "testnuc learn out.csv out.csv -o better.csv" in err
    out, err = ran("learn", "out.csv", "./out.csv", "-o", "better.csv")
    # nor does what is beside the new text say what the LLM would
    assert "3 of 240 texts are judged: 3 by a person" in out
    assert "3 of 241 labels in ./out.csv differ from what was written: taken as judgments" in err
    # they were chosen, and prove nothing
    assert "marked texts were chosen, not drawn" in err
    assert "testnuc count" not in err
    _, page, _ = run_here("describe", "out.csv")
    assert "0 texts were drawn with known probabilities, 0 of them at random from all" in page
    assert "3 more were chosen, not drawn: they correct labels, and prove nothing." in page
    assert "were edited" not in err
    better = {row["text"]: row for row in rows_of("better.csv")}
    assert {better[row["text"]]["nuc_label"] == row["nuc_label"] for row in wrong} == {True}
    assert {better[row["text"]]["nuc_source"] for row in wrong} == {"person"}
    for file in ("out.csv", "better.csv"):
        _, err = ran("describe", file)
        assert "were edited" not in err
    _a_copy_can_be_edited()

    code, _, err = run_here("learn", "out.csv", "out.csv", "--at-random")
    assert code == 2
    # two rows of one text that were edited to two labels
    two = [{**rows[0], "nuc_label": label} for label in LABELS]
    edited([*rows, *two])
    code, _, err = run_here("learn", "out.csv", "out.csv")
    assert code == 2
    assert "give each text one label" in err
    # a label that is not in the set
    rows[0]["nuc_label"] = "refnd"
    edited(rows)
    code, _, err = run_here("learn", "out.csv", "out.csv")
    assert code == 2
    said = "the label 'refnd' is not in the label set; did you mean 'refund'?"
    assert f"out.csv, row 1: {said}" in err
    Path("marks.csv").write_text("text,right_label\nlost,refund\nfound,refnd\n")
    code, _, err = run_here("learn", "out.csv", "marks.csv")
    assert (code, f"marks.csv, 'found': {said}" in err) == (2, True), err


def test_edits_from_before_a_rename_follow_the_names(tickets):
    """They were refused, while reviews were carried over."""
    new = [{"label": "money back", "was": ["refund"]}, {"label": "delivery"}, {"label": "login"}]
    Path("new.json").write_text(json.dumps(new))
    with LoopbackLLM(wrong_at_random) as llm:
        ran("classify", tickets, *options(llm), "-o", "old.csv")
        given = ["--labels", "new.json", "--model", "openai/test", "--base-url", llm.base_url]
        ran("classify", tickets, *given, "-o", "new.csv")
    rows = rows_of("old.csv")
    wrong = [row for row in rows if row["nuc_label"] != true_label(row["text"])][:6]
    for row in wrong:
        row["nuc_label"] = true_label(row["text"])
    with Path("old.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    out, err = ran("learn", "new.csv", "old.csv", "-o", "better.csv")
    assert "6 judgments of other labels are carried over\n" in err
    assert "6 of 240 texts are judged: 6 by a person" in out
    given = {row["text"]: row["nuc_label"] for row in rows_of("better.csv")}
    names = [row["nuc_label"].replace("refund", "money back") for row in wrong]
    assert "money back" in names
    assert [given[row["text"]] for row in wrong] == names


@pytest.mark.slow
def test_edits_in_a_copy_count_as_those_in_the_results(tickets):
    """They took the place of marks, and a decimal comma was no number."""
    with LoopbackLLM(wrong_at_random) as llm:
        ran("classify", tickets, *options(llm), "-o", "out.csv")
    ran("review", "out.csv", "-n", "20")
    judged("review.json")
    ran("learn", "out.csv", "review.json", "-o", "first.csv")
    first = rows_of("first.csv")
    one = next(row for row in first if row["nuc_source"] != "person")
    one["nuc_label"] = LABELS[one["nuc_label"] == LABELS[0]]
    with Path("first.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(first[0]), delimiter=";")
        writer.writeheader()
        writer.writerows({**r, "nuc_trust": r["nuc_trust"].replace(".", ",")} for r in first)
    out, _ = ran("learn", "out.csv", "first.csv")
    assert "21 of 240 texts are judged: 21 by a person" in out


def _saved(rows, name):
    with Path(name).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_corrections_of_texts_that_a_spreadsheet_changed_are_named(tickets):
    """It makes 123 of 00123, and a date of 3-4: these corrections were dropped without a word."""
    with LoopbackLLM(wrong_at_random) as llm:
        ran("classify", tickets, *options(llm), "-o", "out.csv")
    rows = rows_of("out.csv")
    for at, row in enumerate(rows[:3]):
        row["nuc_label"] = LABELS[row["nuc_label"] == LABELS[0]]
        row["text"] = "04-Mar" if at else row["text"]
    _saved(rows, "copy.csv")
    _, err = ran("learn", "out.csv", "copy.csv", "-o", "new.csv")
    assert "1 of 240 labels in copy.csv differ from what was written" in err
    assert (
        "note: 2 texts in copy.csv are not those that were written, perhaps as a spreadsheet" in err
    )


@pytest.mark.slow
def test_a_column_that_was_moved_in_a_spreadsheet_is_not_learned(tickets):
    """Hundreds of labels became judgments without a word, and replaced careful ones."""
    with LoopbackLLM(wrong_at_random) as llm:
        ran("classify", tickets, *options(llm), "-o", "out.csv")
    ran("review", "out.csv", "-n", "40", "-o", "review.json")
    judged("review.json")
    ran("learn", "out.csv", "review.json", "-o", "better.csv")
    rows = rows_of("better.csv")
    labels = [row["nuc_label"] for row in rows]
    other = "differ from what was written, and are those of other rows: a column was sorted, or"
    moved = [
        (sorted(labels), other),
        ([*labels[:30], *labels[31:], ""], other),
        ([labels[0]] * 200 + labels[200:], " earlier judgments: perhaps a column was moved"),
    ]
    for column, said in moved:
        given = [{**row, "nuc_label": label} for row, label in zip(rows, column, strict=True)]
        _saved(given, "copy.csv")
        code, _, err = run_here("learn", "better.csv", "copy.csv", "-o", "new.csv")
        assert (code, said in err, Path("new.csv").exists()) == (2, True, False), err
        assert "nothing is learned. Restore the column" in err
        assert "as marks.csv: testnuc learn better.csv marks.csv" in err
    assert "40 of 240 texts are judged: 40 by" in ran("describe", "better.csv")[0]
    # the way that the message names
    edits = [(r["text"], labels[0]) for r in rows[:200] if r["nuc_label"] != labels[0]]
    Path("marks.csv").write_text("\n".join(map(",".join, [("text", "right_label"), *edits])))
    assert f" {len(edits):,} by a person" not in ran("learn", "better.csv", "marks.csv")[0]

    ran("learn", "out.csv", "review.json", "-o", "better.csv", "--overwrite")
    rows = rows_of("better.csv")
    person = next(row for row in rows if row["nuc_source"] == "person")
    person["nuc_label"] = next(one for one in LABELS if one != person["nuc_label"])
    next(row for row in rows if row["nuc_source"] != "person")["nuc_label"] = ""
    _saved(rows, "copy.csv")
    _, err = ran("learn", "better.csv", "copy.csv", "-o", "new.csv")
    assert "2 of 240 labels in copy.csv differ from what was written: taken as judgments" in err
    assert "no label fits: 1; earlier judgments that they replace: 1" in err


@pytest.mark.slow
def test_a_corrected_copy_is_of_the_results_that_are_named(tickets):
    """Most corrections were in another output: they were dropped, and other rows became edits."""
    with LoopbackLLM(wrong_at_random) as llm:
        ran("classify", tickets, *options(llm), "-o", "out.csv")
    with LoopbackLLM(lambda text: (true_label(text), 0.9)) as llm:
        ran("classify", tickets, *options(llm), "--model", "openai/better", "-o", "other.csv")
    rows = rows_of("out.csv")
    wrong = [row for row in rows if row["nuc_label"] != true_label(row["text"])]
    assert len(wrong) > 12
    for row in wrong[:-6]:
        row["nuc_label"] = true_label(row["text"])
    _saved(rows, "copy.csv")
    _, err = ran("learn", "out.csv", "copy.csv", "-o", "better.csv")
    assert f"{len(wrong) - 6} of 240 labels in copy.csv differ" in err
    people = {row["text"] for row in rows_of("better.csv") if row["nuc_source"] == "person"}
    assert people == {row["text"] for row in wrong[:-6]}


@pytest.mark.slow
def test_edits_that_agree_with_what_was_learned_are_named_and_a_copy_has_none(tickets):
    """They were left out, though `learn` took them."""
    with LoopbackLLM(wrong_at_random) as llm:
        ran("classify", tickets, *options(llm), "-o", "out.csv")
    ran("review", "out.csv", "-n", "60")
    judged("review.json")
    ran("learn", "out.csv", "review.json", "-o", "better.csv")
    written, better = (read_table(f"{name}.csv", "text").rows for name in ("out", "better"))
    one = next(
        row
        for row, new in zip(written, better, strict=True)
        if new["nuc_source"] != "person" and row["nuc_label"] != new["nuc_label"]
    )
    one["nuc_label"] = better[written.index(one)]["nuc_label"]
    with Path("out.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(written[0]))
        writer.writeheader()
        writer.writerows(written)
    _, err = ran("describe", "out.csv")
    assert "note: labels in out.csv that were edited and are not used: 1, as" in err
    code, out, err = run_here("learn", "out.csv", "out.csv", "-o", "better-2.csv")
    assert (code, "61 of 240 texts are judged" in out) == (0, True), out
    assert "edited" not in run_here("describe", "out.csv")[2]
    # what another output holds was not edited
    Path("better.csv").replace("out.csv")
    assert "edited" not in run_here("describe", "out.csv")[2]


@pytest.mark.slow
def test_learning_anew_says_that_it_ends_the_certificate(tickets, monkeypatch):
    """It was silent: what was proved became "no labels are proved"."""
    monkeypatch.chdir(tickets.parent)
    with LoopbackLLM(lambda text: (true_label(text), 0.9)) as llm:
        ran("classify", "tickets.csv", *options(llm), "-o", "out.csv")
    for at, (goal, n) in enumerate((("count", 30), ("certify", 60), ("count", 10))):
        ran("review", "out.csv", "-n", n, "--goal", goal, "-o", f"{at}.json", "--no-open")
        judged(f"{at}.json")
        _, err = ran("learn", "out.csv", f"{at}.json")
        assert ("were certified before, now 0%: trust was learned anew" in err) == (at == 2)
        _, count = ran("count", "out.csv")
        assert ("to learn from them ends the certificate" in count) == (at == 1)
    assert re.search(r"\nnext, judge .*: testnuc review out.csv -n \d+ --goal certify\n$", err)
    for name, goal in (("drawn", "certify"), ("others", "correct")):
        ran("review", "out.csv", "-n", "8", "--goal", goal, "-o", f"{name}.json", "--no-open")
        # what changes nothing of the trust would end nothing
        judge(f"{name}.json", true_label if goal == "certify" else lambda _: LABELS[0])
    ran("learn", "out.csv", "others.json")
    _, err = ran("learn", "out.csv", "drawn.json")
    assert re.search(r"note: \d texts were drawn to certify, but prove nothing: trust was", err)


def test_a_review_in_place_of_results_is_answered_with_the_right_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    context = ReviewContext(run=("out.csv", "--store", "a.db"))
    Review([], LABELS, 1, "test", context).save("review.json")
    for more, results in ((["other.csv"], "other.csv"), ([], "out.csv"), (["b.json"], "out.csv")):
        code, _, err = run_here("learn", "review.json", *more, "-o", "better.csv")
        assert code == 2
        then = f"testnuc learn {results} review.json"
        assert f"review.json is a review: name the results first, then it: {then}" in err
    code, _, err = run_here("describe", "review.json", "out.csv")
    assert (code, "then it: testnuc describe out.csv review.json" in err) == (2, True)


def test_a_learning_that_proves_less_says_so(capsys):
    """The service labeled by the LLM again, and it was said that labels stay as they are."""
    before, after = (
        SimpleNamespace(decides=decides, name="a model", ranking="", current={""}, judged=())
        for decides in ("head", "settings")
    )
    certificate = SimpleNamespace(judged=0, coverage=0.0)
    for learned, earlier, told in ((after, before, 1), (before, after, 0), (after, None, 0)):
        judging._say_what_ended(learned, certificate, earlier)
        said = capsys.readouterr().err
        assert (
            said.count("note: labels came from a model until now; all judgments prove it") == told
        )


@pytest.mark.slow
def test_two_questions_about_the_same_texts_are_told_apart(tmp_path, monkeypatch):
    """They have the same labels, and one store or one folder."""
    monkeypatch.chdir(tmp_path)
    asked = {name: f"Is it {name}?" for name in ("spam", "urgent")}
    texts = [f"message {at} of {('shop', 'bank', 'friend')[at % 3]}" for at in range(60)]
    Path("x.csv").write_text("\n".join(["text", *texts]))

    def of(name, llm, *more):
        given = ["--model", "openai/test", "--base-url", llm.base_url, "--k", "0", *more]
        return ["x.csv", "--labels", "yes,no", "--instructions", asked[name], *given]

    with LoopbackLLM(lambda _: ("no", 0.9)) as llm:
        for name in asked:
            ran("classify", *of(name, llm, "--store", "s.db"), "-o", f"{name}.csv")
            ran("classify", *of(name, llm), "-o", f"{name}-alone.csv")
        ran("review", "spam.csv", "-n", "20", "--store", "s.db", "--no-open")
        review = Review.load("review.json")
        for item in review:
            review.answer(item, "no" if "friend" in item.text else "yes")
        review.save("review.json")
        ran("learn", "spam.csv", "--store", "s.db")
        code, _, err = run_here("learn", "urgent.csv", "--store", "s.db", "-o", "u.csv")
        assert code != 0, err
        assert not Path("u.csv").exists()
        # a store has judgments of both
        ran("learn", "urgent.csv", "review.json", "--store", "s.db")
        code, _, err = run_here("learn", "spam-alone.csv", "s.db")
        assert code == 0, err
        again = [*of("spam", llm), "--instructions", "Is it an advertisement?", "-o", "other.csv"]
        ran("learn", "spam-alone.csv", "review.json")
        _, err = ran("classify", *again)
        assert "carries the judgments over, right if people would judge by both alike" in err
        assert next_command(err)[0] == "review"
        code, _, err = run_here("learn", "other.csv", "s.db")
        assert code == 2
        assert "judgments by other --instructions than this run: 'Is it spam?', 'Is it u" in err
        # a file that was written anew keeps its name
        ran("classify", *of("urgent", llm), "-o", "spam.csv", "--overwrite")
        code, _, err = run_here("learn", "spam.csv", "-o", "anew.csv")
        assert code == 2, err
        assert "no review of spam.csv with answers is in this folder" in err
        _, err = ran("learn", "spam.csv", "review.json", "-o", "anew.csv")
        assert "the answers are by other --instructions than this run: 'Is it spam?'" in err
        # rows that both runs wrote
        head, *rows = Path("spam-alone.csv").read_text().splitlines()
        part = [f"{head},mine", *(f"{row},1" for row in rows[:30])]
        Path("part.csv").write_text("\n".join(part))
        code, _, err = run_here("review", "part.csv", "-n", "5", "--no-open", "-o", "p.json")
        assert code == 2, err
        assert "rows that several runs wrote alike are of none" in err
