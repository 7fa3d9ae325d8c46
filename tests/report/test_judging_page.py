"""Judging on the page, in a real browser."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
from dataclasses import replace

import pytest

import testnuc
from testnuc._base.loop_thread import Background
from testnuc._engine import argmax_learning
from testnuc.report import write
from testnuc.report.page import page_of
from testnuc.results import Results
from testnuc.trust.candidates import choose as choose_candidate
from testnuc.trust.joining import join_reviews
from testnuc.trust.review import Review
from testnuc.types import Neighbor, Usage
from tests._engine.test_learning import Says, client, gold, judge, texts_of
from tests.report.test_page import HOSTILE, ODD, chosen, hostile_results, listed, row
from tests.report.test_page import choose as filtered
from tests.report.test_report import review_of

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")

MANY = [f"topic {number}" for number in range(70)] + [
    "refund", "refund status", "login", "loan", "delivery", "<b>no</b>", "__proto__",
]  # fmt: skip


def many_labels(n=60, **more):
    """Return results of 77 labels whose texts all look wrong."""
    rows = [
        row(
            i, f"message {i}", label="refund", own="loan", trust=i / 100,
            neighbors=(
                *(Neighbor(f"near {j}", 0.9, "delivery", 0.5) for j in range(3)),
                Neighbor("far", 0.5, "loan", 0.5),
            ),
        )
        for i in range(n)
    ]  # fmt: skip
    given = {"choices": MANY, "descriptions": {"login": "cannot sign in"}, **more}
    return Results(rows, Usage(), 0.0, **given)


def focus(page):
    return page.evaluate("document.activeElement.id || document.activeElement.tagName")


def state(page):
    return page.locator("#state").inner_text()


def saved(page, name):
    with page.expect_download() as download:
        page.get_by_role("button", name=name, exact=True).first.click()
    return download.value


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


def reload_until(page, progress, where="#far"):
    """Load the page again until it says `progress`: Chromium stores what was written a bit later.

    Where a page is loaded in another process, it may come first.
    """
    for _ in range(5):
        page.reload()
        with contextlib.suppress(AssertionError):
            playwright.expect(page.locator(where)).to_contain_text(progress, timeout=2_000)
            return
    playwright.expect(page.locator(where)).to_contain_text(progress)


def test_the_first_screen_says_one_thing_to_do(opened):
    for width, height in ((1_280, 860), (390, 844)):
        page = opened(many_labels(), viewport={"width": width, "height": height})
        assert page.locator("#todo").inner_text() == (
            "On 60 the neighbors contradict the LLM. Judge the 20 that look wrong, about 1 minute."
        )
        text = page.locator("#detail .text").first.bounding_box()
        assert text["y"] + text["height"] < height / 2
        for name in ("#next", ".option >> nth=0"):
            box = page.locator(name).bounding_box()
            assert box["y"] + box["height"] <= height


def test_targets_are_large_on_a_phone(opened):
    page = opened(many_labels(), viewport={"width": 390, "height": 844}, has_touch=True)
    page.locator(".option").first.tap()
    page.locator("#next").tap()
    playwright.expect(page.locator("#far")).to_contain_text("1 of 20 judged")
    small = page.evaluate(
        """() => [...document.querySelectorAll('button, select, input, summary, a')]
            .filter((e) => e.checkVisibility() && !e.closest('#glance') && e.className !== 'skip')
            .filter((e) => (e.type === 'checkbox' ? e.parentElement : e)
                .getBoundingClientRect().height < 43.9)
            .map((e) => e.outerHTML)"""
    )
    assert small == []
    # the text is in sight again
    page.mouse.wheel(0, 300)
    page.locator(".option").nth(2).tap()
    page.locator("#next").tap()
    assert 0 <= page.locator("#detail .text").first.bounding_box()["y"] < 844 / 2


def test_two_keys_judge_a_text(opened):
    page = opened(many_labels())
    first = chosen(page)
    press(page, "Enter")
    playwright.expect(page.locator("#said")).to_contain_text("Choose a label first")
    assert chosen(page) == first
    press(page, "2")
    assert state(page) == "chosen, not saved yet"
    assert page.locator(".option[aria-pressed=true] .name").inner_text() == "refund"
    press(page, "Enter")
    assert chosen(page) != first
    playwright.expect(page.locator("#said")).to_contain_text("Saved: refund. 1 of 20 judged")
    press(page, "0", "Enter")
    playwright.expect(page.locator("#said")).to_contain_text("Saved: none of the labels. 2 of 20")
    # undone, the text is shown again as it was
    press(page, "Control+z")
    assert page.locator("#bar").evaluate("e => e.value") == 1
    assert state(page) == ""
    press(page, "Control+z")
    assert chosen(page) == first
    assert page.locator("#bar").evaluate("e => e.value") == 0
    press(page, "Control+z")
    playwright.expect(page.locator("#said")).to_have_text("There is nothing to undo.")


def test_the_next_key_leaves_what_was_chosen(opened):
    """Before, `n` in the list of labels chose one that begins with n."""
    page = opened(many_labels())
    first = chosen(page)
    press(page, "/")
    page.keyboard.type("login")
    page.locator("#found li").first.click()
    assert page.locator(".other strong").inner_text() == "login"
    press(page, "n")
    assert chosen(page) != first
    playwright.expect(page.locator("#said")).to_contain_text("Saved: login. 1 of 20")
    # wherever the focus is
    for place in ("#skip", "#list", "#save", ".option >> nth=0", "#undo"):
        before = chosen(page)
        page.locator(place).focus()
        press(page, "1", "n")
        assert chosen(page) != before
        before = chosen(page)
        page.locator(place).focus()
        press(page, "2", "Enter")
        assert chosen(page) != before
    playwright.expect(page.locator("#far")).to_contain_text("11 of 20")
    page.locator(".option").nth(1).focus()
    press(page, "Space", "Enter")
    playwright.expect(page.locator("#far")).to_contain_text("12 of 20")
    # a filter that was chosen by the mouse gives the keys back
    page.locator("#sort").dispatch_event("pointerdown")
    page.locator("#sort").select_option("trust")
    before = chosen(page)
    press(page, "0", "Enter")
    assert chosen(page) != before
    # without a choice it skips
    far = page.locator("#far").inner_text()
    press(page, "n")
    assert page.locator("#far").inner_text() == far


def test_fifty_more_follow_the_first_fifty(opened):
    page = opened(many_labels(600))
    assert "Judge the 50 that look wrong" in page.locator("#todo").inner_text()
    press(page, *["2", "Enter"] * 50)
    playwright.expect(page.locator("#done")).to_contain_text("All 50 texts are judged.")
    assert (
        page.locator("#learned")
        .inner_text()
        .startswith("After: 50 right, before: 0, of 50 judged texts.")
    )
    page.get_by_role("button", name="50 more").click()
    playwright.expect(page.locator("#far")).to_contain_text("50 of 60 judged")
    assert page.locator("#done").is_hidden()


def test_any_of_77_labels_is_found_by_typing(opened):
    page = opened(many_labels())
    options = page.get_by_role("listbox", name="Labels").get_by_role("option")
    press(page, "/")
    assert focus(page) == "find"
    assert options.count() == 77
    page.keyboard.type("ref")
    assert options.all_inner_texts() == ["refund", "refund status"]
    press(page, "ArrowDown")
    assert page.locator("#find").get_attribute("aria-activedescendant") == "found-1"
    press(page, "Enter")
    playwright.expect(page.locator("#said")).to_contain_text("Saved: refund status. 1 of 20")
    assert focus(page) == "detail"
    for typed, label in (
        ("SIGN in", "login"),
        ("stat ref", "refund status"),
        ("lo", "login"),
        ("<b>", "<b>no</b>"),
        ("proto", "__proto__"),
        ("c 69", "topic 69"),
    ):
        press(page, "/")
        page.keyboard.type(typed)
        assert label in options.first.inner_text()
        press(page, "Enter")
        playwright.expect(page.locator("#said")).to_contain_text(f"Saved: {label}.")
    press(page, "/")
    page.keyboard.type("no label is like this")
    press(page, "Enter")
    assert focus(page) == "find"
    press(page, "Escape")
    assert page.locator("#find").input_value() == ""
    assert focus(page) == "detail"
    # digits in the field are no labels' keys
    press(page, "/", "6", "9", "Enter")
    playwright.expect(page.locator("#said")).to_contain_text("Saved: topic 69. 8 of 20")


def test_labels_that_are_digits_have_their_own_keys(opened):
    stars = ["1", "2", "3", "4", "5"]
    rows = [row(i, f"text {i}", label="5", own="4", trust=0.1) for i in range(3)]
    page = opened(Results(rows, Usage(), 0.0, choices=stars))
    press(page, "2", "Enter")
    playwright.expect(page.locator("#said")).to_contain_text("Saved: 2.")
    assert page.locator("#find").count() == 0


def test_instructions_and_descriptions_are_at_hand(opened):
    page = opened(many_labels(instructions="<i>Read</i> all of it."))
    page.get_by_text("Instructions and labels").click()
    guide = page.locator(".guide")
    assert "<i>Read</i> all of it." in guide.inner_text()
    assert "cannot sign in" in guide.inner_text()
    press(page, "1", "Enter")
    # the panel is drawn anew once the judgment is saved
    playwright.expect(page.locator(".guide")).to_have_attribute("open", "")
    assert "chance" in page.locator("#detail dl.description").last.inner_text()


def test_single_keys_can_be_confined_to_the_panel(opened):
    page = opened(many_labels())
    press(page, "?")
    playwright.expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.get_by_label("Single keys work everywhere").uncheck()
    press(page, "Escape")
    page.locator("#save").focus()
    page.evaluate("document.activeElement.blur()")
    press(page, "1", "n", "?")
    assert state(page) == ""
    assert page.get_by_role("dialog").count() == 0
    page.locator("#detail").focus()
    press(page, "1")
    assert state(page) == "chosen, not saved yet"


def test_judgments_belong_to_texts_and_outlive_the_page(opened):
    page = opened(many_labels())
    press(page, "1", "Enter", "2", "Enter")
    playwright.expect(page.locator("#far")).to_contain_text("2 of 20")
    text = listed(page)[0]
    reload_until(page, "2 of 20")
    # the page of another run: other labels given, the same label set, some of the texts
    rows = [row(0, "new"), row(1, text, label="login", own="login", trust=0.3)]
    others = Results(rows, Usage(), 0.0, choices=MANY[::-1])
    again = opened(others, file="again.html", context=page.context)
    reload_until(again, "1 text judged", "#marked")
    assert "1 text judged on other pages" in again.locator("#elsewhere").inner_text()
    filtered(again, Show="judged")
    assert listed(again) == [text]
    # other instructions ask another question
    asked = Results(rows, Usage(), 0.0, choices=MANY)
    asked.instructions = "Is it urgent?"
    other = opened(asked, file="asked.html", context=page.context)
    playwright.expect(other.locator("#marked")).to_have_text("0 texts judged")
    press(again, "u")
    playwright.expect(again.locator("#marked")).to_have_text("0 texts judged")
    reload_until(page, "1 of 20")
    # another label set is another task
    fewer = Results(rows, Usage(), 0.0, choices=MANY[:-1])
    other = opened(fewer, file="other.html", context=page.context)
    playwright.expect(other.locator("#marked")).to_have_text("0 texts judged")


def test_judgments_are_saved_in_four_formats(opened, tmp_path):
    page = opened(hostile_results())
    filtered(page, Show="all", **{"Sort by": "input"})
    assert page.get_by_role("button", name="Save marks.json").is_disabled()
    texts = list(HOSTILE.values())
    last = len(texts) - 1
    for number in range(len(texts)):
        press(page, {0: "3", 3: "4", 4: "0", last: "2"}.get(number, "1"), "Enter")
    page.get_by_text("All texts in the list").wait_for(state="attached")
    # half a character has no place in a file
    texts[last] = "half \ufffd of a rocket"
    labels = ["login", *["refund"] * 2, ODD, *["refund"] * (last - 5), "delivery"]
    expected = ([t for i, t in enumerate(texts) if i != 4], labels)
    for button, name in (("Save marks.json", "marks.json"), ("CSV", "marks.csv")):
        download = saved(page, button)
        assert download.suggested_filename == name
        download.save_as(tmp_path / name)
    assert testnuc.review.read_marks(tmp_path / "marks.csv") == expected
    review = Review.load(tmp_path / "marks.json")
    assert review[4].text == HOSTILE["rtl"]
    assert (review[4].answer, review[4].source, review[4].probability) == (None, "person", None)
    assert len(review.judged) == 13
    # a spreadsheet must not take a text for a formula
    csv.field_size_limit(2**31 - 1)
    cells = csv.DictReader(io.StringIO((tmp_path / "marks.csv").read_text("utf-8"), newline=""))
    assert not any(cell["text"].startswith(("=", "+", "-", "@")) for cell in cells)
    saved(page, "Label Studio").save_as(tmp_path / "tasks.json")
    tasks = json.loads((tmp_path / "tasks.json").read_text("utf-8"))
    assert tasks[0]["data"] == {"text": texts[0]}
    assert tasks[0]["annotations"][0]["result"] == [
        {
            "from_name": "label",
            "to_name": "text",
            "type": "choices",
            "value": {"choices": ["login"]},
        }
    ]
    assert tasks[0]["predictions"][0]["result"][0]["value"] == {"choices": ["refund"]}
    assert tasks[4]["annotations"][0]["result"] == []
    saved(page, "Argilla").save_as(tmp_path / "argilla.json")
    records = json.loads((tmp_path / "argilla.json").read_text("utf-8"))
    assert records[0] == {"text": texts[0], "label": "refund", "answer": "login"}
    assert records[4]["answer"] is None


def test_judgments_of_others_are_imported_and_disagreements_shown(opened, tmp_path):
    page = opened(many_labels())
    press(page, "1", "Enter", "1", "Enter")
    saved(page, "Save marks.json").save_as(tmp_path / "ann.json")
    mine = json.loads((tmp_path / "ann.json").read_text())
    mine["items"][0]["answer"] = "delivery"
    another = mine["items"][1]
    mine["items"].append({**another, "text": "message 7"})
    mine["items"].append({**another, "text": "message 8", "answer": "unheard of"})
    (tmp_path / "ben.json").write_text(json.dumps(mine))
    marks = [{"right_label": "login"}, {"text": "message 9", "right_label": "login"}]
    (tmp_path / "old.json").write_text(json.dumps(marks))
    (tmp_path / "bad.json").write_text("{}")
    page.locator("#import").set_input_files(
        [tmp_path / "ben.json", tmp_path / "old.json", tmp_path / "bad.json"]
    )
    warning = page.locator("#warning")
    playwright.expect(warning).to_contain_text("2 judgments imported; 1 contradict yours")
    playwright.expect(warning).to_contain_text("1 have a label that is not in the set; 1 file")
    playwright.expect(page.locator("#marked")).to_have_text("4 texts judged")
    filtered(page, Show="differ")
    assert listed(page) == [mine["items"][0]["text"]]
    option = page.locator(".option", has_text="delivery")
    assert "ben.json" in option.inner_text()
    assert state(page) == "saved: loan"


def reviewed(opened, review, **more):
    """Open the page of a review alone."""
    return opened(None, write=lambda _, path: write(None, path, review=review), **more)


def test_what_people_differ_on_is_asked_again(opened):
    def answers(*given):
        made = review_of(3)
        for at, label in enumerate(given):
            made.answer(at, label)
        return made

    page = reviewed(opened, answers(), file="ann.html")
    press(page, "1", "Enter", "1", "Enter", "2", "Enter")
    playwright.expect(page.locator("#done")).to_be_visible()
    joined = join_reviews({"ann": answers("a", "a", "b"), "ben": answers("b", "a", "b")}).review
    page = reviewed(opened, joined, file="joined.html", context=page.context)
    playwright.expect(page.locator("#far")).to_contain_text("2 of 3 judged")
    assert chosen(page) == "text 0"
    assert "ann" in page.locator(".option").nth(0).inner_text()
    assert "ben" in page.locator(".option").nth(1).inner_text()
    press(page, "2", "Enter")
    reload_until(page, "3 of 3 judged")


def test_a_blind_page_compares_with_no_label(opened, tmp_path):
    page = reviewed(opened, review_of(3).blind())
    assert "No label is shown: you judge blind. Judge 3 texts" in page.locator("#todo").inner_text()
    assert [option.inner_text() for option in page.locator(".option .name").all()] == [
        "a", "b", "None of the labels",
    ]  # fmt: skip
    press(page, "1", "Enter", "2", "Enter", "0", "Enter")
    playwright.expect(page.locator("#done")).to_be_visible()
    assert page.locator("#learned").is_hidden()
    facts = [fact.inner_text() for fact in page.locator("#list .facts").all()]
    assert facts == ["a", "b", "none of the labels"]
    said = page.locator("main").inner_text()
    for word in ("no label\n", "→", "How the label came about", "unknown", "Every text has"):
        assert word not in said
    assert page.locator("#label").is_hidden()
    saved(page, "Save review.json").save_as(tmp_path / "review.json")
    read = Review.load(tmp_path / "review.json")
    assert [item.answer for item in read] == ["a", "b", None]
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\d", item.day) for item in read)
    assert read.context.blind


def test_a_blind_page_shows_what_judges_said_and_mostly_texts(opened):
    review = review_of(3).blind()
    near = (Neighbor("a similar text", 0.9, None, None),)
    said = (("ann", "a"), ("ben", "b"))
    page = reviewed(
        opened, review.with_items([replace(i, said=said, neighbors=near) for i in review])
    )
    assert page.locator("#todo").inner_text().startswith("What others said is shown where they")
    first, last = (page.locator("th").nth(at).bounding_box() for at in (0, 1))
    assert 3 * first["width"] < last["width"]


def test_the_columns_of_a_summary_fit_a_phone(opened):
    """The table was cut, and the column of accuracy hidden."""
    cells = "delivery | 1,234 | 23.4 % (20.1 to 26.9) | 91.2 % (80.3 to 97.1) (about 120 more)"
    table = f"| label | texts | true share | right |\n| --- | --: | --: | --: |\n| {cells} |\n"
    viewport = {"width": 390, "height": 844}
    page = opened(
        None, write=lambda _, file: file.write_text(page_of(table, "t")), viewport=viewport
    )
    inner, shown = page.evaluate(
        "[document.querySelector('table').scrollWidth, document.querySelector('table').clientWidth]"
    )
    assert inner <= shown


def test_nine_labels_without_candidates_have_digits(opened):
    page = reviewed(opened, review_of(2, labels=tuple("abcdefghi")).blind())
    press(page, "9", "Enter")
    assert page.locator("#list .facts").first.inner_text() == "i"


def test_a_referees_answers_are_shown_and_stay(opened, tmp_path):
    review = review_of(2)
    review.answer(0, "b", "referee")
    review.answer(1, "a", "referee")
    page = reviewed(opened, review)
    assert "the referee" in page.locator(".option").nth(1).inner_text()
    # they count as answers in what was learned
    assert "The LLM is right on 1 of 2 judged texts." in page.locator("#learned").inner_text()
    press(page, "1", "Enter")
    saved(page, "Save review.json").save_as(tmp_path / "review.json")
    assert [(i.answer, i.source) for i in Review.load(tmp_path / "review.json")] == [
        ("a", "person"), ("a", "referee"),
    ]  # fmt: skip


def test_a_browser_that_keeps_nothing_is_named(opened):
    page = opened(many_labels())
    page.evaluate("() => { Storage.prototype.setItem = () => { throw new Error('full'); }; }")
    press(page, "1", "Enter")
    playwright.expect(page.locator("#warning")).to_contain_text("does not keep judgments")
    playwright.expect(page.locator("#far")).to_contain_text("1 of 20")
    saved(page, "Save marks.json")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1_280])
def test_judging_is_accessible(opened, scheme, width):
    page = opened(
        many_labels(instructions="Read."),
        color_scheme=scheme,
        viewport={"width": width, "height": 844},
    )
    page.get_by_text("Instructions and labels").click()
    press(page, "2")
    for keys in ([], ["Enter", "1", "/"]):
        press(page, *keys)
        found = axe.Axe().run(page)
        assert found.response["violations"] == [], found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth") <= width


async def drawn(path):
    """Draw a review of 50 texts, after one of 10 that was learned from."""
    async with client(Says(), policy="majority", k=0, store=path) as nuc:
        await nuc.classify_many(texts_of(400))
        judge(review := await nuc.review(10))
        await nuc.learn(review)
        # by default the judgments would certify what was learned, and teach nothing
        return await nuc.review(50, goal="decide", seed=1)


async def learned_from(path, review):
    """Learn from a review; returns what was learned, the labels after it, and each count right."""
    found = {}

    def spying(texts, candidates, rows, labels, draws, **options):
        for candidate in candidates:
            found[candidate.name] = int((candidate.labels[rows] == labels).sum())
        return choose_candidate(texts, candidates, rows, labels, draws, **options)

    async with client(Says(), policy="majority", k=0, store=path) as nuc:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(argmax_learning, "choose", spying)
            learned = await nuc.learn(review)
        after = await nuc.classify_many(texts_of(400))
        return learned, dict(zip(texts_of(400), after.labels, strict=True)), found


def judge_by_keys(page, review):
    for item in review:
        assert chosen(page) == item.text
        label = gold(item.text)
        keys = {
            option.locator(".name").inner_text(): option.get_attribute("aria-keyshortcuts")
            for option in page.locator(".option").all()
        }
        if item.index == 49:
            press(page, "0", "Enter", "Control+z")  # a slip
        if label in keys:
            press(page, keys[label], "Enter")
        else:
            press(page, "/")
            page.keyboard.type(label)
            press(page, "Enter")


def test_fifty_texts_are_judged_by_keyboard_alone(opened, tmp_path):
    """Draw, judge, save and learn; the page shows the numbers of `learn`."""
    store, background = tmp_path / "a.db", Background()
    review = background.run(drawn(store))
    assert len(review.context.earlier) == 10
    page = opened(
        None, write=lambda _, path: write(None, path, review=review, then="testnuc learn")
    )
    assert page.locator("#glance").is_hidden()
    todo = page.locator("#todo").inner_text()
    assert re.search(r"[Oo]n \d+ the strategies differ\. Judge 50 texts", todo)
    judge_by_keys(page, review)
    playwright.expect(page.locator("#done")).to_contain_text("All 50 texts are judged.")
    assert "testnuc learn" in page.locator("#done").inner_text()
    summary = page.locator("#learned").inner_text()
    with page.expect_download() as download:
        press(page, "Enter")
    download.value.save_as(tmp_path / "review.json")
    answered = Review.load(tmp_path / "review.json")
    assert [item.answer for item in answered] == [gold(item.text) for item in review]
    assert [item.probability for item in answered] == [item.probability for item in review]
    assert answered.context == review.context

    learned, labels, right = background.run(learned_from(store, answered))
    background.close()
    assert sum(judgment.source == "person" for judgment in learned.judged) == 60
    assert all(labels[item.text] == gold(item.text) for item in review)
    name = max(right, key=right.__getitem__)
    before = right["the LLM's own labels"]
    assert summary.startswith(f"The LLM is right on {before} of 60 judged texts. Ahead: {name}, ")
    assert f" right on {right[name]}." in summary
