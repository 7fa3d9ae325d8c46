"""A Chromium for the tests of the page."""

from __future__ import annotations

import os
import shutil

import pytest


def chromium():
    """Return the path of a Chromium; skips the test without one."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    found = os.environ.get("TESTNUC_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(
            "there is no Chromium: install it (apt-get install chromium) or name it in "
            "TESTNUC_CHROMIUM"
        )
    return found


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Open the page of some results; afterwards nothing may have gone wrong or out."""
    contexts, faults, requests = [], [], []

    def open_(results, *, file="report.html", context=None, write=None, **options):
        if context is None:
            context = browser.new_context(**{"reduced_motion": "reduce", **options})
            contexts.append(context)
            context.set_default_timeout(10_000)
            context.on("request", lambda request: requests.append(request.url))
        page = context.new_page()
        page.on("console", lambda said: faults.append(f"{said.type}: {said.text}"))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda shown: faults.append(shown.message))
        if write is None:
            results.to_html(tmp_path / file, title="A run <of> & texts")
        else:
            write(results, tmp_path / file)
        page.goto((tmp_path / file).as_uri())
        return page

    open_.faults, open_.requests = faults, requests
    yield open_
    for context in contexts:
        context.close()
    assert faults == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
