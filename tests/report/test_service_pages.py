"""The pages `/` and `/results` of a service, in a real browser, with texts that bite."""

from __future__ import annotations

import asyncio
import queue
import threading

import pytest

from testnuc import TestNUC
from testnuc.server import page_of
from testnuc.testing import HashEmbedder
from tests.conftest import messages
from tests.doubles import Says
from tests.report.test_page import choose, items, listed
from tests.server.serving import served

pytest.importorskip("prometheus_client")
pytestmark = pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")

BITE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
LABELS = {
    f"refund {BITE}": f"wants money back {BITE}",
    "delivery '\"><svg onload=alert(3)>": "</td><script>alert(4)</script>",
}


def biting(text):
    """Answer with a label, and one outside of the set."""
    return f"{BITE} is none" if "none" in text else next(iter(LABELS))


@pytest.fixture(params=[None, "0123456789abcdef0123456789abcdef"])
def service(request):
    """Serve until the test ends; yields the URL and the token."""
    urls, stop = queue.Queue(), threading.Event()

    async def run():
        nuc = TestNUC(LABELS, Says(biting, BITE), embedder=HashEmbedder(), policy="weighted", k=3)
        async with served(nuc, page=page_of, token=request.param) as (_, session):
            urls.put(str(session._base_url))
            await asyncio.to_thread(stop.wait)

    serving = threading.Thread(target=lambda: asyncio.run(run()))
    serving.start()
    yield urls.get(timeout=60), request.param
    stop.set()
    serving.join()


def test_texts_labels_and_models_stay_text(browser, service):
    url, token = service
    context = browser.new_context()
    context.set_default_timeout(10_000)
    page, faults = context.new_page(), []
    page.on("dialog", lambda shown: faults.append(shown.message))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if "401" not in said.text else None)
    outside = []
    page.on("request", lambda asked: outside.append(asked.url))
    answer = page.goto(url)
    policy = answer.headers["content-security-policy"]
    script = next(part for part in policy.split(";") if "script-src" in part)
    assert "'sha256-" in script
    assert "unsafe-inline" not in script
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    # a text can be typed at once
    assert page.evaluate("document.activeElement.id") == "text"
    if token is not None:
        page.get_by_label("Token").fill(token)
    for text in (f"money now {BITE}", f"money back {BITE}", f"none of it {BITE} '\"; rm -rf"):
        page.get_by_label("A text").fill(text)
        page.get_by_role("button", name="Label it").click()
        shown = "text => document.getElementById('curl').textContent.includes(text)"
        page.wait_for_function(shown, arg=text[:10])
    assert page.locator("#result").is_visible()
    assert BITE in page.locator("#own").inner_text()
    assert page.locator("img, svg").count() == 0
    # words of the head are not broken
    style = "all => all.map(head => getComputedStyle(head).whiteSpace)"
    heads = page.locator("#near th").evaluate_all(style)
    assert set(heads) == {"nowrap"}
    page.goto(f"{url.rstrip('/')}/docs")
    page.wait_for_selector("h2 code")
    if token is not None:
        page.set_extra_http_headers({"Authorization": f"Bearer {token}"})
    page.goto(f"{url.rstrip('/')}/results")
    assert "rm -rf" in page.inner_text("body")
    assert BITE in page.inner_text("body")
    assert page.evaluate("document.querySelectorAll('img[src=x], svg[onload]').length") == 0
    assert not faults
    assert all(asked.startswith((url, "data:", "blob:")) for asked in outside)
    context.close()


def test_the_latest_results_stay_judged_when_others_come(browser, service):
    url, token = service
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    context = browser.new_context(extra_http_headers=headers)
    page = context.new_page()
    place = url.rstrip("/")
    page.goto(f"{place}/results")
    assert page.title() == "testnuc: no text yet"

    def classify(texts):
        sent = context.request.post(f"{place}/v1/classify", data={"texts": texts})
        assert sent.status == 200
        page.reload()

    classify([BITE, *messages(11)])
    assert page.title() == "testnuc: the latest 12 texts"
    choose(page, Show="all", **{"Sort by": "input"})
    assert listed(page)[0] == BITE
    items(page).nth(0).click()
    assert page.locator("#detail").get_by_role("row").count() == 4
    page.keyboard.press("1")
    page.keyboard.press("Enter")
    classify(["another"])
    assert page.locator("#marked").inner_text() == "1 text judged"
    context.close()
