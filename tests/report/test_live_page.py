"""The page that ``testnuc review`` serves, in a real browser, by keyboard alone."""

from __future__ import annotations

import queue
import threading
from urllib.request import Request, urlopen

import pytest

from testnuc.cli.answering import judge_on_page
from testnuc.trust.review import Review
from tests.report.test_judging_page import focus, press
from tests.report.test_report import review_of

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")


@pytest.fixture
def judged(browser, tmp_path, monkeypatch):
    """Serve a review and open its page; returns the page, its faults, and a wait for the end."""
    path, urls, ends = tmp_path / "review.json", queue.Queue(), queue.Queue()
    monkeypatch.setattr("webbrowser.open", lambda url: urls.put(url) or True)
    serving = threading.Thread(
        target=lambda: ends.put(judge_on_page(review_of(3), str(path), open_page=True))
    )
    serving.start()
    url = urls.get(timeout=60)
    context = browser.new_context(reduced_motion="reduce")
    context.set_default_timeout(10_000)
    page, faults = context.new_page(), []
    page.on("console", lambda said: faults.append(said.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(url)
    yield page, path, faults, lambda: ends.get(timeout=60)
    if serving.is_alive():
        urlopen(Request(f"{url}done", b"null", {"Origin": url[: url.index("/", 8)]}))
        serving.join()
    context.close()


def answers(path):
    return [item.answer for item in Review.load(path)]


def key(page, *keys):
    with page.expect_response("**/judgments") as response:
        press(page, *keys)
    assert response.value.status == 204


@pytest.mark.slow
def test_done_ends_the_command_and_each_key_is_saved(judged):
    page, path, faults, end = judged
    assert page.get_by_role("button", name="Done").count() == 1
    key(page, "1", "Enter")
    assert answers(path) == ["a", None, None]
    key(page, "Control+z")
    assert answers(path) == [None] * 3
    key(page, "2", "Enter")
    key(page, "0", "Enter")
    # the page is made of the file: a browser that crashed loses nothing
    page.reload()
    playwright.expect(page.locator("#far")).to_contain_text("2 of 3 judged")
    key(page, "1", "Enter")
    playwright.expect(page.locator("#done")).to_contain_text("All 3 texts are judged.")
    assert focus(page) == "BUTTON"
    press(page, "Enter")
    playwright.expect(page.get_by_role("dialog", name="Saved")).to_contain_text(
        "3 judgments in review.json"
    )
    assert end() is True
    assert answers(path) == ["b", None, "a"]
    assert faults == []


@pytest.mark.slow
def test_what_cannot_be_saved_is_told_and_can_be_kept(judged):
    page, path, _, end = judged
    # what is chosen when one is done is saved, too
    press(page, "2")
    page.locator("#end").focus()
    press(page, "Enter")
    playwright.expect(page.get_by_role("dialog", name="Saved")).to_be_visible()
    assert (end(), answers(path)) == (True, ["b", None, None])
    page.evaluate("document.querySelector('#ended').close()")
    press(page, "1", "Enter")
    warning = page.locator("#warning")
    playwright.expect(warning).to_contain_text("Not saved: testnuc review has ended.")
    with page.expect_download() as download:
        page.locator("#save").click()
    download.value.save_as(path)
    assert answers(path) == ["b", "a", None]
