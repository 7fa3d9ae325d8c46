"""Judging texts with several labels on the page, in a real browser."""

from __future__ import annotations

import csv
import io
import json

import pytest

import testnuc
from testnuc._base.checks import hash_text
from testnuc.report import write
from testnuc.results import Results
from testnuc.trust.review import Review, ReviewItem
from testnuc.types import Classification, Neighbor, Prediction, Usage
from tests.report.test_judging_page import press, saved, state

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

LABELS = ("refund", "delivery", "login", "fees", "card", "loan")


def row(i, own, labels, trust=0.4):
    """Return a result whose labels are in the order of their shares, not of the label set."""
    return Classification(
        index=i,
        text=f"message {i}",
        label="; ".join(labels),
        share=trust,
        margin=0.1,
        voters=4,
        complete=True,
        prediction=Prediction("; ".join(own), 0.9, stated=tuple((one, 0.9) for one in own)),
        neighbors=(Neighbor(f"near {i}", 0.8, "card; refund", 0.5),),
        trust=trust,
        shares={label: 0.9 - 0.1 * n for n, label in enumerate([*labels, "fees"])},
    )


def results_of(n=6):
    rows = [row(i, ["login"], ["login", "refund"]) for i in range(n - 1)]
    return Results([*rows, row(n - 1, ["login"], [])], Usage(), 0.0, choices=LABELS)


def pressed(page):
    return page.locator(".option[aria-pressed=true] .name").all_inner_texts()


def keys_of(page):
    names = page.locator(".option .name").all_inner_texts()
    return {name: str(at + 1) for at, name in enumerate(names)} | {"none": "0"}


def test_labels_are_chosen_and_saved_together(opened, tmp_path):
    page = opened(results_of())
    keys = keys_of(page)
    assert list(keys)[:2] == ["login", "refund"], "what the LLM said, then what the vote gives"
    press(page, keys["refund"], keys["login"])
    assert sorted(pressed(page)) == ["login", "refund"]
    assert state(page) == "chosen, not saved yet"
    press(page, "Enter")
    said = page.locator("#said")
    playwright.expect(said).to_contain_text("Saved: refund; login. 1 of 6 judged")
    # the same key takes a label away again, and without any nothing is chosen
    press(page, keys["login"], keys["login"], "Enter")
    playwright.expect(said).to_contain_text("Choose a label first")
    # any other label by typing
    press(page, keys["refund"], "/")
    page.keyboard.type("loan")
    press(page, "Enter")
    playwright.expect(said).to_contain_text("Saved: refund; loan. 2 of 6")
    press(page, keys["login"], "0", "Enter")
    playwright.expect(said).to_contain_text("Saved: none of the labels. 3 of 6")
    assert "After: 1 right, before: 0" in page.locator("#learned").inner_text()
    saved(page, "Save marks.json").save_as(tmp_path / "marks.json")
    review = Review.load(tmp_path / "marks.json")
    assert review.multilabel
    assert [(item.own_label, item.answer) for item in review] == [
        ("login", "refund; login"),
        ("login", "refund; loan"),
        ("login", ""),
    ]
    expected = (
        ["message 0", "message 1", "message 2"],
        [["refund", "login"], ["refund", "loan"], []],
    )
    saved(page, "CSV").save_as(tmp_path / "marks.csv")
    assert testnuc.review.read_marks(tmp_path / "marks.csv") == expected
    cells = list(csv.DictReader(io.StringIO((tmp_path / "marks.csv").read_text("utf-8"))))
    assert [cell["right"] for cell in cells] == ["true", "false", "false"]
    saved(page, "Label Studio").save_as(tmp_path / "tasks.json")
    (result,) = json.loads((tmp_path / "tasks.json").read_text("utf-8"))[1]["annotations"][0][
        "result"
    ]
    assert result["value"] == {"choices": ["refund", "loan"]}
    saved(page, "Argilla").save_as(tmp_path / "argilla.json")
    records = json.loads((tmp_path / "argilla.json").read_text("utf-8"))
    # Argilla refuses an empty list
    assert [record["answer"] for record in records] == [
        ["refund", "login"],
        ["refund", "loan"],
        None,
    ]
    # this browser keeps them, and another one takes them from the file
    other = opened(results_of(), file="other.html")
    other.set_input_files("#import", tmp_path / "marks.json")
    playwright.expect(other.locator("#far")).to_contain_text("3 of 6 judged")
    page.reload()
    playwright.expect(page.locator("#far")).to_contain_text("3 of 6")
    page.locator("#show").select_option("all")
    page.locator("#label").select_option(label="refund (5)")
    playwright.expect(page.locator("#count")).to_contain_text("5 of 6 texts")


def test_a_review_of_sets_is_judged_and_learned_from(opened, tmp_path):
    items = [
        ReviewItem(
            index=i, text=f"text {i}", hash=hash_text(f"text {i}"), own_label="login; refund",
            candidates=(("login", ("the LLM", "share 0.70")), ("card", ("share 0.20",))),
            trust=0.5, neighbors=(), goal="certify", probability=0.1, floor=0.1,
        )
        for i in range(2)
    ]  # fmt: skip
    review = Review(items, LABELS, 100, "m", multilabel=True)
    page = opened(review, write=lambda given, file: write(None, file, review=given))
    assert "share 0.20" in page.locator(".option", has_text="card").inner_text()
    press(page, "2", "1", "Enter", "0", "Enter")
    playwright.expect(page.locator("#done")).to_contain_text("All 2 texts are judged.")
    saved(page, "Save review.json").save_as(tmp_path / "review.json")
    judged = Review.load(tmp_path / "review.json")
    assert [item.answer for item in judged] == ["login; card", ""]
    assert [item.own_label for item in judged] == ["login; refund"] * 2
    assert [item.probability for item in judged] == [0.1, 0.1]
