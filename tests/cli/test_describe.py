"""``testnuc describe``: a page for a methods section, and the store that repeats a run."""

import datetime as dt
import hashlib
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest

from testnuc._engine.carried import _judgments_in
from testnuc._engine.reporting import _accuracy, _by_label, _headline, _judgments, cell_in
from testnuc.errors import InvalidInputError
from testnuc.report.page import page_of
from testnuc.testing import LoopbackLLM
from testnuc.trust.certificates import Certificate
from testnuc.trust.counts import Counts, LabelCount
from testnuc.trust.evidence import Judgment
from testnuc.trust.joining import join_reviews
from testnuc.trust.review import Review
from testnuc.trust.shares import Accuracy, Share
from testnuc.types import Classification
from tests.cli.in_process import judge, ran, rows_of, run_here
from tests.cli.test_judging import (
    LABELS,
    TEXTS,
    judged,
    options,
    text_of,
    true_label,
    wrong_at_random,
)
from tests.report.test_report import review_of


def label_and_draw(llm, n):
    """Label the texts, and draw some of them to be judged."""
    Path("tickets.csv").write_text("text\n" + "\n".join(TEXTS))
    ran("classify", "tickets.csv", *options(llm), "-o", "out.csv")
    ran("review", "out.csv", "-n", f"{n}", "--goal", "count")


@pytest.fixture
def labeled():
    """Labeled texts of a folder, of which 90 are judged."""
    with LoopbackLLM(wrong_at_random) as llm:
        label_and_draw(llm, 90)
        judged("review.json")
        _, err = ran("learn", "out.csv", "review.json")
        assert "how many texts have each label: testnuc count out.csv" in err
        yield llm


@pytest.mark.slow
def test_a_blind_review_of_chosen_texts_is_told_as_one(labeled):
    """Judgments of goal "correct" lost their day, and that no label was shown."""
    goal = ["--goal", "correct", "--blind", "--no-open", "-o", "chosen.json"]
    ran("review", "out.csv", "-n", "5", *goal)
    judged("chosen.json")
    file = Path("chosen.json")
    file.write_bytes(re.sub(rb"\d{4}-\d\d-\d\d", b"2026-01-02", file.read_bytes()))
    ran("learn", "out.csv", "chosen.json")
    ran("describe", "out.csv", "-o", "page.md")
    said = "- 2026-01-02: 5 judged by one person, blind: no label was shown"
    assert said in Path("page.md").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("labeled")
def test_the_page_tells_that_rows_seem_to_be_chosen_by_the_labels_in_use():
    ran("learn", "out.csv", "-o", "better.csv")
    header, *lines = Path("better.csv").read_text().splitlines()
    at = header.split(",").index("nuc_label")
    chosen = [line for line in lines if line.split(",")[at] == "refund"]
    Path("some.csv").write_text("\n".join([header, *chosen]))
    Path("all.csv").write_text("\n".join([header, *lines]))
    for name in ("some", "all"):
        ran("report", f"{name}.csv", "--summary", "-o", f"{name}.md")
        page = Path(f"{name}.md").read_text()
        assert ("if rows were chosen or grouped by the labels in use" in page) == (name == "some")


@pytest.mark.slow
def test_a_page_says_how_labels_were_made(labeled):
    prompt, _ = ran("classify", "tickets.csv", *options(labeled), "--show-prompt")
    assert TEXTS[0] in prompt
    one = Review.load("review.json")
    first, *others = one
    # the same answers of another judge, who is no copy
    one.with_items([*others, first]).save("other.json")
    page, _ = ran("describe", "out.csv", "review.json", "other.json")
    texts = hashlib.sha256("\n".join(sorted(TEXTS)).encode()).hexdigest()
    for said in (
        f"Answers of {dt.datetime.now(dt.UTC).date()}",
        "the provider reported `",
        "- Model: `openai/test`, asked at 127.0.0.1:",
        ", which is no server of OpenAI's or Anthropic's own, for a JSON schema with the labels, ",
        "- Method: standard prompting\n",
        "its version is not known\n",
        "reasoning effort least, no seed was sent\n",
        "- Vote, where no model was learned: vote policy weight auto, at most",
        f"- Texts: SHA-256 `{texts}`, of the distinct ones, sorted, one newline between two",
        "- Draws of texts to be judged have seed 0, unless `nuc.review` in Python was given",
        "`, of the block below without its last newline\n",
        "of the labels of 240 texts are right by the judgments",
        "- Macro F1 by the judgments: 0.",
        "The labels now are from: ",
        "240 texts (240 distinct) were labeled by the LLM `openai/test` at temperature 0.7",
        "| refund |",
        "90 texts were drawn with known probabilities, all of them at random from all texts",
        "`out.csv` was written before the last judgments or later texts: ",
        f"- {dt.datetime.now(dt.UTC).date()}: 90 judged by one person, who saw",
        "Krippendorff's alpha",
        "In brackets are ranges that hold in 95 of 100 cases, each alone.",
        "- numpy ",
    ):
        assert said in page
    assert not any(text in page for text in TEXTS)
    # who reads it did not judge
    assert "your" not in page.split("## Prompt")[0].lower()
    shown = prompt.rstrip("\n").replace(TEXTS[0], "..")
    assert hashlib.sha256(shown.encode()).hexdigest() in page
    assert shown in page
    code, out, _ = run_here("describe", "out.csv", "-o", "methods.md")
    assert (code, out) == (0, "")
    assert "Krippendorff" not in Path("methods.md").read_text()
    assert run_here("describe", "out.csv", "-o", "methods.txt")[0] == 2


@pytest.mark.slow
def test_one_page_says_how_good_labels_are_and_what_comes_next(labeled):
    code, out, err = run_here("report", "out.csv", "--summary", "-o", "page.md")
    assert (code, out) == (0, ""), err
    page = Path("page.md").read_text()
    headline, _, todo, *_ = page.splitlines()
    right = r"# About (\d+) of 100 labels are right \((\d+) to (\d+)\), by your judgments; "
    now, low, high, before = map(
        int, re.fullmatch(rf"{right}(\d+) of 100 before", headline).groups()
    )
    assert before < low <= now <= high
    assert todo.startswith("What to do next: ")
    assert re.search("judge|correct|use all labels, of which at least", todo)
    # emphasis is not rendered, so that labels cannot have it
    assert "**" not in page
    for said in (
        "240 texts (240 distinct)",
        "## What is proved\n\n- ",
        "| label | texts with it | of these, right | of those that should have it, found | share",
        "90 judged by one person, who saw the labels given",
        "## Next\n\n",
        "`testnuc ",
    ):
        assert said in page
    # who reads it types no commands but the last one, and need not know statistics
    body = page.split("## Next")[0]
    unknown = ("--", "protect", "goal", "beta", "strat", "prior", "vote", "Macro", "calibrated")
    assert not [word for word in unknown if word in re.sub("[|] --.*", "", body)]
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| refund")]
    assert len(rows) == 1
    for cell in rows[0][2:]:
        low, high = map(float, re.search(r"\(([\d.]+) to ([\d.]+)\)", cell).groups())
        assert 0 < low < high <= 100
    assert re.fullmatch(r"\d+ % \(\d+ to \d+\), \d+ judged", rows[0][2])
    assert not any(text in page for text in TEXTS)
    ran("report", "out.csv", "--summary", "-o", "page.html")
    html = Path("page.html").read_text()
    assert html.startswith("<!doctype html>")
    assert "<td>refund</td>" in html
    assert "<script" not in html
    assert run_here("report", "out.csv", "-o", "page.md")[0] == 2
    code, _, err = run_here("report", "out.csv", "--summary", "-o", "page.md")
    assert (code, "page.md exists; add --overwrite" in err) == (2, True)
    ran("report", "out.csv", "--summary", "-o", "page.md", "--overwrite")


@pytest.mark.slow
def test_shares_by_period_are_on_the_same_page(labeled):
    dated = "".join(f"{text},2026-0{1 + at % 2}-03\n" for at, text in enumerate(TEXTS))
    Path("dated.csv").write_text("text,day\n" + dated)
    ran("classify", "dated.csv", *options(labeled), "-o", "out.csv", "--overwrite")
    given = ["report", "out.csv", "--summary", "-o", "page.md", "--overwrite", "--by", "day"]
    ran(*given, "--period", "month")
    page = Path("page.md").read_text().split("## Shares by month\n\n")[1]
    assert page.startswith("| label | all | 2026-01 | 2026-02 |\n| --- | --: | --: | --: |\n")
    row = next(line for line in page.splitlines() if line.startswith("| refund | "))
    shares = [cell.split(" %")[0] for cell in row.split(" | ")[1:]]
    # they are those of `count`
    ran("count", "out.csv", "--by", "day", "--period", "month", "-o", "counts.json")
    counted = orjson.loads(Path("counts.json").read_bytes())
    assert shares == [f"{100 * c['share']:.1f}" for c in counted if c["label"] == "refund"]
    assert "\n- right: by your judgments\n" in page
    assert "has no column 'dya'" in run_here(*given[:-1], "dya")[2]
    # of later texts nothing may be judged yet
    Path("later.csv").write_text(dated.replace(" #", " again #").join(["text,day\n", ""]))
    ran("classify", "later.csv", *options(labeled), "-o", "later-out.csv")
    ran("report", "later-out.csv", *given[2:4], "later.md", "--by", "day")
    page = Path("later.md").read_text()
    assert "## Shares by day\n\nNot known: none of these texts was drawn at random" in page
    for wrong in ([*given[:-2], "--period", "month"], ["report", "out.csv", "--by", "day"]):
        code, _, err = run_here(*wrong)
        assert code == 2
        assert "--period needs --by, a column of dates; --by needs --summary" in err


@pytest.mark.slow
def test_texts_that_fit_no_label_are_a_row_and_the_next_step():
    with LoopbackLLM(wrong_at_random) as llm:
        label_and_draw(llm, 60)
    judge("review.json", lambda text: None if (it := true_label(text)) == "refund" else it)
    _, err = ran("learn", "out.csv", "review.json")
    step = "add a label, as docs/label-set.md says: testnuc classify TEXTS --labels NEW.json"
    (line,) = (line for line in err.splitlines() if line.startswith(f"next, {step} --reuse"))
    # with the options of the run
    given = options(llm)
    for name in ("--model", "--base-url"):
        assert f" {name} {given[given.index(name) + 1]}" in line
    assert "or, with these labels, judge" in err
    out, err = ran("count", "out.csv")
    # one number for one thing
    needed = re.search(r"about ([\d,]+) more judgments", out)[1]
    assert f"judge more at random: testnuc review out.csv -n {needed} " in err
    share = next(line for line in out.splitlines() if line.startswith("(none of these)"))
    ran("report", "out.csv", "--summary", "-o", "page.md")
    page = Path("page.md").read_text()
    assert "\nWhat to do next: add a label, as " in page
    row = next(line for line in page.splitlines() if line.startswith("| (none of these) |"))
    assert re.search(r"[\d.]+ % \(.*?\)", share)[0] in row


@pytest.mark.slow
def test_later_texts_and_a_referee_are_told_on_the_pages():
    with LoopbackLLM(wrong_at_random) as llm:
        label_and_draw(llm, 60)
        review = Review.load("review.json")
        for item in review:
            review.answer(item.index, true_label(item.text), "referee")
        review.save("review.json")
        ran("learn", "out.csv", "review.json")
        ran("count", "out.csv", "-o", "counts.csv")
        assert {row["judge"] for row in rows_of("counts.csv")} == {"referee"}
        Path("both.csv").write_text("text\n" + "\n".join([*TEXTS, *map(text_of, (240, 241))]))
        ran("classify", "both.csv", *options(llm), "-o", "both-out.csv")
    for command in (["describe"], ["report", "--summary", "-o", "page.md"]):
        page, _ = ran(command[0], "both-out.csv", *command[1:])
        page = page or Path("page.md").read_text()
        assert f"| share of {len(TEXTS)} texts, as the referee would label |" in page
        assert "\n2 texts came after the last draw and are left out of the shares.\n" in page
        assert "person who judged it" not in page


def test_a_headline_says_what_is_known_and_what_to_do():
    def headline(
        covered,
        *,
        several=False,
        more=40,
        accuracy=True,
        later=0,
        error=None,
        of=3,
        unfit=0,
        now=(0.71, 0.66, 0.764),
        asked=(),
    ):
        known = Accuracy(Share(0.42, 0.4, 0.5), Share(*now), 0, error, of)
        certificate = Certificate(0.9, 0.9, 0.5, covered, 0, judgments_needed=more)
        learned = SimpleNamespace(
            certify=lambda: certificate,
            wants_decisions=lambda _: False,
            unfit_among=lambda _: ([None] * unfit, 40),
            reopened=asked,
            measured=3,
            later=lambda hashes, among: [at < later for at in range(len(hashes))],
        )
        labels = SimpleNamespace(multilabel=several)
        of_these = (known if accuracy else None, {"a", "b", "c"})
        return [*_headline(SimpleNamespace(labels=labels), learned, *of_these)]

    right = "(66 to 76), by your judgments; 42 of 100 before"
    title, todo, brackets = headline(0.0)
    assert title == f"About 71 of 100 labels are right {right}"
    assert todo.startswith("What to do next: judge 40 more texts")
    assert "in brackets" in brackets.lower()
    _, todo, _ = headline(0.0, unfit=7)
    assert "next: add a label, as 7 of 40 texts that were drawn at random and judged fit" in todo
    title, todo, _ = headline(0.31, several=True)
    assert title == f"About 71 of 100 texts have exactly the right labels {right}"
    assert "use the labels of 31% of the texts, which are proved to be at least 90% right" in todo
    # where all are known to be as right, none is to be corrected
    sure = {"now": (0.99, 0.96, 1.0)}
    said = "What to do next: use all labels, of which at least 96 of 100 are right by the range"
    assert headline(0.31, **sure)[1].startswith(f"{said}; 31% are also certified, a stricter proof")
    assert headline(0.0, **sure)[1] == f"{said}.\n"
    assert "correct the others" in headline(0.31, **sure, of=2)[1]
    assert "correct the others" in headline(0.31, **sure, error=0.09)[1]
    assert "add a label" in headline(0.0, **sure, unfit=7)[1]
    # the same number as at the end of the page
    todo = headline(0.0, asked=range(9), unfit=7)[1]
    assert "next: judge 9 more texts, whose judgment the new label set leaves open" in todo
    assert "it is no probability before judgments" in "".join(_accuracy(None))
    most = (
        "if judges err in at most 9.0% (by their differences; errors that both make are not in it)"
    )
    assert f"{most}, it is 57 to 85." in headline(0.0, error=0.09)[2]
    assert "the true number lies in it" in headline(0.0)[2]
    # texts that came after the draws were not measured
    assert "not about 1 of these texts, which were not drawn from" in headline(0.0, of=2)[-1]
    assert "is known is of other texts" in headline(0.0, accuracy=False, later=2)[1]
    title, todo = headline(0.0, accuracy=False)
    assert title == "How many of these labels are right is not known yet"
    assert todo == (
        "The reason: people judged too few of these texts, drawn at random. What to do next is "
        "said at the end."
    )
    assert "judge fifty texts" in [*_headline(None, None, None, [])][1]


def test_where_too_few_texts_of_a_label_are_judged_its_accuracy_is_not_known():
    class Counted(list):
        def count_labels(self, _):
            raise InvalidInputError("none was drawn")

    learned = SimpleNamespace(by_label=lambda _: {}, judged=())
    labels = SimpleNamespace(names=("a", "b"))
    results = Counted(Classification(at, f"text {at}", "ab"[at % 2]) for at in range(10))
    page = "\n".join(_by_label(SimpleNamespace(labels=labels), results, learned))
    assert "| a | 5 | not known, 0 judged |" in page


def table_of(counts, *, texts=10):
    """Return the table of labels of a page, where shares are these."""

    class Counted(list):
        def count_labels(self, _):
            return counts

    learned = SimpleNamespace(by_label=lambda _: {}, judged=())
    labels = SimpleNamespace(names=("a", "b"))
    results = Counted(Classification(at, f"text {at}", "ab"[at % 2]) for at in range(texts))
    return "\n".join(_by_label(SimpleNamespace(labels=labels), results, learned))


def test_shares_by_a_referee_alone_are_not_those_of_a_person():
    shares = [LabelCount(None, name, 10, Share(0.5, 0.4, 0.6), 0.5, 0.5, 9, 9) for name in "ab"]
    page = table_of(Counts(shares))
    assert "| share of all texts |" in page
    assert "right if a person who judged it said so" in page
    page = table_of(Counts(shares, judge="referee"))
    assert "| share of all texts, as the referee would label |" in page
    assert "Shares are by the referee, another LLM: no person judged" in page
    assert "person who" not in page


def test_the_accuracy_of_a_file_is_told_beside_that_of_all_texts():
    class Known:
        measured = 9

        def macro_f1(self):
            return None

        def __str__(self):
            return "Of all."

    def lines(texts):
        return [
            *_accuracy(
                Known(), Accuracy(Share(0.4, 0.3, 0.5), Share(0.7, 0.6, 0.8), 0, None, texts)
            )
        ]

    assert lines(9)[0] == "- Of all."
    here, rest, of_all, _ = lines(4)
    assert here.startswith("- Of these texts: About 70 % (60 to 80) of the labels of 4 texts")
    assert "by the judgments" in here
    assert rest == "- What follows is of 9 texts, not of these alone."
    assert of_all == "- Of all."


def test_shares_name_the_texts_that_they_are_of():
    shares = [LabelCount(None, name, 10, Share(0.5, 0.4, 0.6), 0.5, 0.5, 9, 9) for name in "ab"]
    assert "the last draw" not in table_of(Counts(shares))
    page = table_of(Counts(shares), texts=14)
    assert "| share of 10 texts |" in page
    assert "\n4 texts came after the last draw and are left out of the shares." in page
    assert "*" not in page
    # `count` marked it, the page did not
    ends = [replace(shares[0], label="a", group=None, share=Share(0.6, 0.4, 0.6))]
    page = table_of(Counts(ends))
    assert "| * 60.0 % (40.0 to 60.0) |" in page
    assert "\n*: an end of its interval, as few are judged: trust the interval" in page


def test_a_review_that_nobody_judged_has_no_agreement():
    review_of(3).save("open.json")
    code, _, err = run_here("describe", "out.csv", "open.json")
    assert (code, "open.json: nobody has judged it; leave it out" in err) == (2, True), err


def said_of(judged):
    """Return what the page of all these texts says of their judgments."""
    texts = {one.text for one in judged}
    return "\n".join(_judgments(SimpleNamespace(judged=judged), None, texts))


def test_each_kind_of_draw_says_what_it_is_for():
    def judged(n, source="person", chance=0.1, **more):
        return [Judgment("", b"", "a", source, chance, chance, 9, **more)] * n

    drawn = [*judged(118, uniform=True), *judged(2, source=None, uniform=True)]
    ranked = judged(45, chance=None, uniform=False, ranking="r")
    page = said_of(drawn + ranked)
    assert "120 texts were drawn with known probabilities, all of them at random from all" in page
    assert (
        "45 more were drawn at random among the most trusted texts: they prove certificates alone"
        in page
    )
    assert "chosen" not in page
    mixed = [*drawn, *judged(30, uniform=False), *judged(7, chance=None)]
    mixed += judged(9, chance=None, uniform=True)
    page = said_of(mixed)
    assert "150 texts were drawn with known probabilities, 120 of them at random from" in page
    assert "9 more were drawn at random among later texts, and count for these alone" in page
    assert "7 more were chosen, not drawn: they correct labels, and prove nothing" in page


def test_a_page_says_how_many_people_judged_when_and_whether_blind():
    whole = review_of(20)
    parts = whole.blind().split(2)
    for part in (*parts, whole):
        for item in part:
            part.answer(item.index, "a")
    days = [Review.load(saved(part)) for part in parts]
    assert {item.day for item in days[0]} == {str(dt.datetime.now(dt.UTC).date())}
    blind = _judgments_in(join_reviews(parts).review)
    blind = [replace(one, day="2026-11-25") for one in blind]
    seeing = [replace(one, day="2026-11-26") for one in _judgments_in(whole)]
    older = [replace(blind[0], by="", day="")]
    stored = [*Judgment.all_of([one.record() for one in (*blind, *seeing, *older)])]
    assert stored == [*blind, *seeing, *older]
    page = said_of(stored)
    # a text that the other one did not have, or skipped, was judged by one alone
    assert "- 2026-11-25: 18 judged by one of 2 people, blind: no label was shown" in page
    assert "- 2026-11-25: 2 judged by 2 people, blind: no label was shown" in page
    assert "- 2026-11-26: 20 judged by one person, who saw the labels given" in page
    assert "- before dates were noted: 1 judged by people\n" in f"{page}\n"
    # who settles what judges differ on sees their answers
    for part, answer in zip(parts, "ab", strict=True):
        for item in part:
            part.answer(item.index, answer)
    joined = join_reviews(parts).review
    first = next(item for item in joined if item.said)
    joined.answer(first.index, "b")
    page = said_of(_judgments_in(joined))
    assert "1 judged by a person who saw the answers of judges who differed" in page
    # an answer keeps its date when it is read, not that of another answer
    record = orjson.loads(Path("review.json").read_bytes())
    record["items"][0]["day"] = "2026-01-02"
    Path("review.json").write_bytes(orjson.dumps(record))
    assert Review.load("review.json")[0].day == "2026-01-02"


def test_judgments_and_reviews_of_other_texts_are_not_taken_for_those_of_a_file():
    for name, texts in (("first", TEXTS[:120]), ("second", TEXTS[120:])):
        Path(f"{name}.csv").write_text("text\n" + "\n".join(texts))
    with LoopbackLLM(wrong_at_random) as llm:
        ran("classify", "first.csv", *options(llm), "-o", "first-out.csv")
        ran("review", "first-out.csv", "-n", "30", "--goal", "count", "-o", "one.json", "--no-open")
        ran("classify", "second.csv", *options(llm), "-o", "second-out.csv", "--store", "s.db")
        draw = ["review", "second-out.csv", "-n", "9", "--goal", "count", "-o", "two.json"]
        ran(*draw, "--store", "s.db", "--no-open")
    judged("one.json")
    judged("two.json")
    # answers of another run count for nothing here
    Path("three.json").write_bytes(Path("two.json").read_bytes())
    judge("three.json", lambda _: LABELS[0])
    out, err = ran("learn", "first-out.csv", "two.json", "three.json")
    assert "note: no text of this review, drawn from second-out.csv, is here, and its" in err
    assert "Judges differ" not in out
    for n, said in enumerate([False, True]):
        # one that is learned again shows what stays
        _, err = ran("learn", "first-out.csv", "one.json", "-o", "better.csv", *["--overwrite"][:n])
        assert ("note: answers of before that this review lacks stay: " in err) == said, err
    assert "judges err" not in ran("count", "better.csv")[0]
    code, _, err = run_here("describe", "better.csv", "one.json", "two.json")
    assert (code, "no text of two.json is in better.csv; leave it out" in err) == (2, True), err
    page, err = ran("describe", "better.csv", "one.json", "one.json")
    assert "a file is named twice, and counts once: one.json, one.json" in err
    assert "30 texts were drawn with known probabilities, all of them" in page
    assert re.search(r": 30 judged by one person.*\n- Judgments of other texts, .*: 9\n", page)
    # a part of the file
    rows = Path("better.csv").read_text().splitlines()
    Path("part.csv").write_text("\n".join(rows[:61]))
    here = sum(item.text in TEXTS[:60] for item in Review.load("one.json"))
    page, err = ran("describe", "part.csv", "one.json")
    assert f"note: {30 - here} texts of one.json are not in part.csv" in err
    assert f"named here ({30 - here} of their texts are not among these), 30 texts are" in page
    page, _ = ran("report", "part.csv", "--summary", "-o", "page.md")
    page = Path("page.md").read_text()
    assert f": {here} judged by one person" in page
    assert "What follows is of 120 texts, not of these alone." in page


def saved(review):
    review.save("review.json")
    return "review.json"


def test_labels_mean_nothing_on_the_page():
    label = cell_in("a|b<script>*x* [y](http://z) ![i](u)\n&amp;")
    page = page_of(f"| label |\n| --- |\n| {label} |\n", "<title>")
    assert "<script" not in page
    assert "<title>&lt;title&gt;" in page
    assert "<td>a|b&lt;script&gt;*x* [y](http://z) ![i](u) &amp;amp;</td>" in page


@pytest.mark.slow
def test_a_file_has_six_columns_and_says_which_labels_are_certified(labeled):
    short = ["nuc_label", "nuc_trust", "nuc_certified", "nuc_source", "nuc_own_label", "nuc_error"]

    def checked(name):
        rows = rows_of(name)
        assert [column for column in rows[0] if column.startswith("nuc_")] == short
        return rows

    assert {row["nuc_certified"] for row in checked("out.csv")} == {""}
    ran("learn", "out.csv", "review.json", "-o", "better.csv")
    assert {row["nuc_certified"] for row in checked("better.csv")} == {"no"}
    for _ in range(4):
        assert (
            run_here("review", "out.csv", "-n", "50", "--goal", "certify", "-o", "r.json")[0] == 0
        )
        judged("r.json")
        ran("learn", "out.csv", "r.json", "-o", "better.csv", "--overwrite")
        Path("r.json").unlink()
        made = checked("better.csv")
        if any(row["nuc_certified"] == "yes" for row in made):
            break
    assert {row["nuc_certified"] for row in made} <= {"yes", "no"}
    ran("certify", "out.csv", "-o", "certified.csv")
    ran("report", "out.csv", "--summary", "-o", "page.md")
    page = Path("page.md").read_text()
    assert "of the texts are certified: at least 90% of their labels are right by the j" in page
    # the labels are those that were written last, and the next command is not the one that was run
    assert page.endswith("-o certified-2.csv`\n")
    # all are known to be as right as the certified ones
    assert "What to do next: use all labels, of which at least 9" in page
    assert "--goal correct" not in page
    assert "prove a larger part, judge more: `testnuc review out.csv -n 50 --goal cert" in page
    ran("report", "better.csv", "--summary", "-o", "page.md", "--overwrite")
    assert "This page is about the labels in `better.csv`." in Path("page.md").read_text()
    certified = [row["text"] for row in made if row["nuc_certified"] == "yes"]
    assert [row["text"] for row in checked("certified.csv")] == certified != []
    # a run that applies what was learned says the same; all columns on request
    given = ["classify", "tickets.csv", *options(labeled), "--overwrite"]
    ran(*given, "-o", "again.csv")
    again = [row["text"] for row in checked("again.csv") if row["nuc_certified"] == "yes"]
    assert again == certified
    ran(*given, "--full", "-o", "full.csv")
    assert {*short, "nuc_share", "nuc_own_said"} < {
        *Path("full.csv").read_text().split("\n")[0].strip().split(",")
    }


@pytest.mark.slow
def test_another_person_with_the_store_repeats_labels_and_numbers_without_a_call(labeled):
    calls = labeled.calls
    first = [run_here(command, "out.csv")[1] for command in ("count", "describe")]
    other = Path("other")
    other.mkdir()
    shutil.copy("tickets.csv", other)
    shutil.copy(next(Path(".testnuc").glob("**/*.db")), other / "answers.db")
    store = ["--store", "other/answers.db"]
    file, out = str(other / "tickets.csv"), str(other / "again.csv")
    ran("classify", file, *options(labeled), *store, "-o", out)
    run_here("learn", "out.csv", "review.json", "-o", "relabeled.csv")
    columns = [[row["nuc_label"] for row in rows_of(name)] for name in ("relabeled.csv", out)]
    assert columns[0] == columns[1]
    again = [run_here(command, out, *store)[1] for command in ("count", "describe")]
    # but for the name of the file
    about = ".*This page is about the labels .*"
    assert [re.sub(about, "", page) for page in again] == [re.sub(about, "", o) for o in first]
    assert labeled.calls == calls
