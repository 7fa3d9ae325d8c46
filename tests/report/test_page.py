"""The page of results in a real browser: searched, explained, marked, by mouse and by keyboard."""

from __future__ import annotations

import re
import socketserver
import threading
from contextlib import contextmanager

import pytest

from testnuc.results import Results
from testnuc.types import Classification, Neighbor, Prediction, Usage

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")

HOSTILE = {
    "script": "<script>window.hacked = 1</script>",
    "closing": "</script><img src=x onerror='window.hacked = 2'><!-- <script>",
    "attribute": '" onmouseover="window.hacked = 3" x=\'',
    "template": "{{script}} ${window.hacked = 4} &lt;b&gt; &amp;",
    "rtl": "أين طردي؟ \u202eevil\u202c שלום",
    "emoji": "👩🏽\u200d🚀 where is my 📦? 🇩🇪",
    "long": "parcel " * 14_286,
    "astral": "x" * 299 + "🚀" * 2_000,
    "lines": "one\u2028two\u2029three\r\nfour\x00five",
    "formula": '=HYPERLINK("http://127.0.0.1:9/","refund")',
    "quoted": "'=1+1",
    "names": "__proto__ constructor toString",
    "surrogate": "half \ud83d of a rocket",
}
ODD = '<b onclick="window.hacked=5">odd</b> & "label"'
LABELS = ["refund", "delivery", "login", ODD, "__proto__"]


def row(index, text, label="refund", own="refund", trust=0.9, **more):
    votes = {name: weight for name, weight in ((label, 7.5), (own, 2.5)) if name is not None}
    given = {
        "share": 0.75,
        "margin": 0.5,
        "voters": 11,
        "complete": True,
        "prediction": Prediction(own, 0.8),
        "votes": votes,
        **more,
    }
    return Classification(index=index, text=text, label=label, trust=trust, **given)


def hostile_results():
    texts = list(HOSTILE.values())
    near = tuple(
        Neighbor(text, 1 - i / 40, LABELS[i % 5], i / 20)
        for i, text in enumerate(texts)
        if text != HOSTILE["surrogate"]
    )
    rows = [row(i, text, neighbors=near[:i] + near[i + 1 :]) for i, text in enumerate(texts)]
    rows[1] = row(1, texts[1], label=ODD, own="delivery", trust=0.2, neighbors=near, reason="<i>")
    rows[2] = row(2, texts[2], label="__proto__", own=None, trust=None, neighbors=near[3:])
    rows[-1] = row(
        len(rows) - 1,
        texts[-1],
        label=None,
        trust=None,
        prediction=None,
        error=ValueError("<script>window.hacked = 6</script>"),
    )
    return Results(rows, Usage(13, 1_300, 0, 90, 0.0125), 2.5, model="<m>", choices=LABELS)


def plain_results(n):
    texts = [
        f"message number {i} about my {('refund', 'parcel', 'login')[i % 3]}" for i in range(n)
    ]
    return Results(
        [
            row(
                i,
                text,
                label=LABELS[i % 3],
                own=LABELS[(i + (i % 7 == 0)) % 3],
                trust=(i * 37 % 100) / 100,
                neighbors=tuple(
                    Neighbor(texts[(i + 3 * j) % n], 0.99 - j / 50, LABELS[i % 3], 0.7)
                    for j in range(1, 11)
                ),
            )
            for i, text in enumerate(texts)
        ],
        Usage(calls=n),
        1.0,
        choices=LABELS[:3],
    )


def items(page):
    return page.get_by_role("listbox", name="Texts").get_by_role("option")


def listed(page):
    return [text.split("\n")[0] for text in items(page).all_inner_texts() if text.strip()]


def chosen(page):
    return page.locator("#detail .text").first.inner_text()


def choose(page, **filters):
    for name, value in filters.items():
        page.get_by_role("combobox", name=name, exact=True).select_option(value)


def saved(page, name):
    with page.expect_download() as download:
        page.get_by_role("button", name=name, exact=True).click()
    return download.value


def test_hostile_texts_are_shown_as_they_are_and_run_nothing(opened):
    page = opened(hostile_results())
    assert page.title() == "A run <of> & texts"
    choose(page, Show="all", **{"Sort by": "input"})
    page.focus("#list")
    for number, text in enumerate(HOSTILE.values()):
        page.keyboard.press("Home")
        for _ in range(number):
            page.keyboard.press("ArrowDown")
        shown = page.evaluate("document.querySelector('#detail .text').textContent")
        cut = len(text.encode("utf-16-le", "surrogatepass")) > 2 * 3_000
        assert (text[: len(shown)] if cut else text) == shown
        assert shown
        assert page.evaluate("window.hacked") is None
    assert page.locator("#detail").get_by_text("window.hacked = 6").count() == 2
    # the page's own elements, and none that a text brought along
    assert page.locator("script").count() == 2
    assert page.locator("img, b, i, iframe").count() == 0


def test_a_long_text_is_shown_in_part_and_whole_when_asked(opened):
    page = opened(hostile_results())
    page.get_by_label("Search").fill("parcel parcel parcel")
    choose(page, Show="all")
    assert len(chosen(page)) <= 3_000
    page.get_by_role("button", name="Show all 100,002 characters").click()
    assert page.evaluate("document.querySelector('#detail .text').textContent.length") == 100_002


def test_a_text_is_never_cut_in_the_middle_of_a_character(opened):
    page = opened(hostile_results())
    page.get_by_label("Search").fill("xxxx")
    choose(page, Show="all")
    line = page.evaluate("document.querySelector('.item .line').textContent")
    assert line == "x" * 299
    assert all(ord(c) != 0xFFFD for c in chosen(page))


def test_foreign_text_has_its_own_direction(opened):
    page = opened(hostile_results())
    page.get_by_label("Search").fill("طردي")
    choose(page, Show="all")
    assert items(page).count() == 1
    for place in (".item .line", "#detail .text"):
        assert page.eval_on_selector(place, "e => getComputedStyle(e).direction") == "rtl"
    assert page.eval_on_selector("body", "e => getComputedStyle(e).direction") == "ltr"


def test_the_run_at_a_glance_stands_below_the_texts(opened):
    page = opened(hostile_results())
    cards = dict(
        zip(
            page.locator("#cards dt").all_inner_texts(),
            page.locator("#cards dd").all_inner_texts(),
            strict=True,
        )
    )
    assert cards["texts"] == "13"
    assert cards["labels differ from the LLM's"].split() == ["1", "7.7", "%"]
    assert cards["calls"] == "13"
    assert cards["tokens"] == "1,390"
    assert cards["US dollars"] == "0.0125"
    assert cards["with an error"] == "1"
    assert page.locator("#labels .name").all_inner_texts()[0] == "refund"
    assert ODD in page.locator("#labels .name").all_inner_texts()
    assert page.locator("#pairs .name").all_text_contents() == [f"delivery → {ODD}"]
    assert page.get_by_role("button", name="10 texts with trust from 0.9 to 1.0").count() == 1
    assert "2 texts have no trust" in page.locator("#trust-note").inner_text()
    boxes = [page.locator(name).bounding_box()["y"] for name in ("#detail", "#glance", "#cards")]
    assert boxes == sorted(boxes)


def test_labels_that_are_confused_stand_side_by_side(opened):
    # of the first two topics, texts in turn have one of two labels
    topics = [("refund", ODD), ("delivery", "login"), ("card",), ("voucher",)]
    texts = [f"topic {at // 60}, text {at} {HOSTILE['script']}" for at in range(240)]
    labels = [topics[at // 60][at % len(topics[at // 60])] for at in range(240)]
    near = [[at // 60 * 60 + (at + step) % 60 for step in range(1, 11)] for at in range(240)]
    rows = [
        row(
            at, text, labels[at], labels[at],
            neighbors=tuple(Neighbor(texts[of], 0.99, labels[of], None) for of in near[at]),
        )
        for at, text in enumerate(texts)
    ]  # fmt: skip
    page = opened(Results(rows, Usage(), 0.0, choices=sorted({*labels})))
    panel = page.get_by_role("region", name="Labels that are confused")
    pairs = panel.locator("summary").all_inner_texts()
    assert {frozenset(pair.split(" | ")) for pair in pairs} == {
        frozenset({"refund", ODD}), frozenset({"delivery", "login"}),
    }  # fmt: skip
    assert "Near copies have different labels" in panel.inner_text()
    assert panel.locator(".sides").count() == 6
    # the first pair is open
    assert panel.locator(".sides p:visible").count() == 6
    assert all(HOSTILE["script"] in text for text in panel.locator(".sides p").all_text_contents())


def test_no_panel_is_empty(opened):
    rows = [row(0, "a text", trust=None, voters=1)]
    sure = Results(rows, Usage(), 0.0, choices=LABELS[:3], learned="About 71 %")
    page = opened(sure)
    assert "About 71 %" in page.locator("#glance").inner_text()
    assert page.locator("#glance h3").all_inner_texts() == ["Labels"]
    # nothing looks wrong, and nothing asks for anything
    assert page.locator("#todo").inner_text() == "Every text has a label."
    assert page.locator("#progress").is_hidden()
    nothing = opened(Results([], Usage(), 0.0), file="nothing.html")
    assert nothing.locator("#todo").inner_text() == "There is no text yet."
    for hidden in ("#texts", "#files", "#glance"):
        assert nothing.locator(hidden).is_hidden()


def test_search_filter_and_sort(opened):
    page = opened(plain_results(300))
    count = page.locator("#count")
    assert count.inner_text() == "30 of 300 texts"
    choose(page, Show="all")
    page.get_by_label("Search").fill("PARCEL number")
    playwright.expect(count).to_have_text("100 of 300 texts")
    page.get_by_label("Search").fill("")
    choose(page, Label="1", Trust="low", **{"Sort by": "trust"})
    shares = [float(t.split("trust ")[1][:4]) for t in items(page).all_inner_texts()]
    assert shares == sorted(shares)
    assert max(shares) < 0.5
    assert {t.split("\n")[1].split()[0] for t in items(page).all_inner_texts()} == {"delivery"}
    choose(page, Show="changed", Label="", Trust="")
    playwright.expect(count).to_have_text("43 of 300 texts")
    page.get_by_label("Search").fill("nothing is like this")
    playwright.expect(page.get_by_text("No text is like that")).to_be_visible()
    page.get_by_role("button", name="Clear").click()
    playwright.expect(count).to_have_text("300 of 300 texts")
    page.get_by_role("button", name=re.compile("with trust from 0.3 to 0.4")).click()
    playwright.expect(count).to_have_text("30 of 300 texts")
    page.locator("#pairs button").first.click()
    assert page.get_by_role("combobox", name="Show").input_value() == "changed"


def test_any_text_shows_its_neighbors_and_votes(opened):
    page = opened(plain_results(60))
    choose(page, Show="all", **{"Sort by": "input"})
    items(page).nth(0).click()
    detail = page.locator("#detail")
    assert "message number 0 " in chosen(page)
    text = detail.inner_text()
    assert "the vote changed 'delivery' to 'refund'" in text
    assert "7.50 (75 %)" in text
    assert "delivery (confidence 0.80)" in text
    table = detail.get_by_role("table")
    assert table.get_by_role("row").count() == 11
    assert "0.97" in table.get_by_role("row").nth(1).inner_text()
    table.get_by_role("button", name="message number 3 about my refund").click()
    assert "message number 3 " in chosen(page)
    assert page.locator('[aria-selected="true"]').inner_text().startswith("message number 3 ")


def test_levels_of_a_label_in_a_tree_have_their_trust(opened):
    made = Classification(
        index=0, text="where is my money", label="refund > late", share=0.5, margin=0.1, voters=4,
        complete=True, prediction=Prediction("refund > late", 0.9), trust=0.55,
        path=("refund", "late"), path_shares=(0.9, 0.5), path_trusts=(0.97, 0.55),
    )  # fmt: skip
    page = opened(Results([made], Usage(calls=1), 1.0, choices=["refund > late", "refund > twice"]))
    choose(page, Show="all")
    items(page).first.click()
    assert "refund 0.97 > late 0.55" in page.locator("#detail").inner_text()


def test_ten_thousand_texts_stay_responsive(opened):
    page = opened(plain_results(10_000))
    choose(page, Show="all", **{"Sort by": "input"})
    # what is in sight alone is in the document
    assert page.locator(".item").count() < 60
    page.focus("#list")
    page.keyboard.press("End")
    assert chosen(page) == "message number 9999 about my refund"
    assert page.locator(".item").count() < 60
    page.mouse.move(*centre(page, "#list"))
    page.mouse.wheel(0, -200_000)
    # it scrolls when the browser comes to it
    playwright.expect(page.locator("#item-9999")).to_have_count(0)
    assert page.locator(".item").count() > 0
    page.get_by_label("Search").fill("9998")
    playwright.expect(page.locator("#count")).to_have_text("1 of 10,000 texts")


def centre(page, selector):
    box = page.locator(selector).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1_280])
@pytest.mark.parametrize(
    "results", [plain_results(60), hostile_results()], ids=["plain", "hostile"]
)
def test_it_is_accessible_and_fits_the_screen(opened, results, scheme, width):
    page = opened(results, color_scheme=scheme, viewport={"width": width, "height": 900})
    choose(page, Show="all")
    page.focus("#list")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("2")
    found = axe.Axe().run(page)
    assert found.response["violations"] == [], found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) < 200) == (scheme == "dark")


def test_the_page_makes_no_request(opened):
    page = opened(plain_results(3))
    with listening() as (port, heard):
        blocked = page.evaluate(
            """async (port) => {
                const image = new Image();
                const failed = new Promise((done) => { image.onerror = () => done(true); });
                image.src = `http://127.0.0.1:${port}/image`;
                const asked = fetch(`http://127.0.0.1:${port}/fetch`);
                const fetched = await asked.then(() => false, () => true);
                const inline = document.createElement('script');
                inline.textContent = 'window.hacked = 7';
                document.body.append(inline);
                return [await failed, fetched, window.hacked === undefined];
            }""",
            port,
        )
    assert blocked == [True, True, True]
    assert heard == []
    # the browser says what it refused: that is what was tried here
    assert opened.faults
    assert all("Content Security Policy" in fault for fault in opened.faults)
    opened.faults.clear()
    opened.requests.clear()


@contextmanager
def listening():
    """Listen on a port of this machine and note who calls."""
    heard = []

    class Hear(socketserver.BaseRequestHandler):
        def handle(self):
            heard.append(self.request.recv(1_024))

    with socketserver.TCPServer(("127.0.0.1", 0), Hear) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1], heard
        server.shutdown()
        thread.join()
