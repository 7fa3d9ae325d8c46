"""What the page is made of; what it does in a browser is in test_page.py."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from testnuc.errors import InvalidInputError
from testnuc.report import render
from testnuc.results import Results
from testnuc.types import Classification, Neighbor, Prediction, Usage


class Elements(HTMLParser):
    """Notes the elements of a page, and what is in its data element."""

    def __init__(self, page):
        super().__init__()
        self.names, self.data, self.inside = [], "", False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.inside = ("id", "data") in attrs

    def handle_data(self, data):
        if self.inside:
            self.data += data

    def handle_endtag(self, tag):
        self.inside = False


def labeled(i, text, **more):
    given = {"label": "a", "share": 1.0, "margin": 1.0, "voters": 3, "trust": 1.0, **more}
    return Classification(
        index=i, text=text, complete=True, prediction=Prediction("a", 0.5), **given
    )


def data_of(page):
    return json.loads(Elements(page).data)


def test_texts_add_no_element_whatever_they_are():
    nasty = "</script></SCRIPT ><!--<script>\u2028\u2029 ]]> & {{script}} \ud83d"
    tame, wild = (
        render([labeled(0, "tame")]),
        render(
            [labeled(0, nasty, neighbors=(Neighbor(nasty, 0.5, nasty, None),), reason=nasty)],
            title=nasty,
            model=nasty,
            key=nasty,
            choices=[nasty],
        ),
    )
    assert Elements(tame).names == Elements(wild).names
    told = data_of(wild)
    assert told["texts"] == [nasty]
    assert told["labels"][0] == told["model"] == told["rows"][0]["r"] == nasty
    assert "\u2028" not in wild[wild.index('id="data"') :]


def test_numbers_that_json_does_not_know_are_unknown():
    odd = labeled(0, "x", share=float("nan"), trust=float("nan"), votes={"a": float("inf")})
    told = data_of(render([odd], seconds=float("nan")))
    assert told["rows"][0]["s"] is told["rows"][0]["t"] is told["seconds"] is None
    assert told["summary"]["unknown"] == 1


def test_all_are_counted_where_few_are_listed():
    rows = [labeled(i, f"text {i}", trust=0.2 if i >= 90 else 1.0) for i in range(100)]
    told = data_of(render(rows, most=15))
    assert told["total"] == 100
    assert sum(told["summary"]["trust"]) == 100
    # those to review first, then the first of the others, all in the order of the input
    assert [row["i"] for row in told["rows"]] == [*range(5), *range(90, 100)]
    with pytest.raises(InvalidInputError, match="most is 0"):
        render(rows, most=0)


def test_a_result_that_is_no_text_and_an_empty_run_have_a_page():
    told = data_of(render([labeled(0, 7, label=None, error=ValueError("bad"))]))
    assert told["texts"] == ["7"]
    assert told["rows"][0]["e"] == "ValueError: bad"
    assert data_of(render([]))["total"] == 0


def test_results_bring_along_what_is_known_of_their_run():
    results = Results([labeled(0, "x")], Usage(calls=3), 1.5, model="m", choices=["a", "b"])
    told = data_of(render(results))
    assert told["usage"]["calls"] == 3
    assert (told["model"], told["seconds"], told["choices"]) == ("m", 1.5, 2)
    assert told["labels"] == ["a", "b"]
    assert data_of(render(list(results)))["usage"] is None


def test_the_same_results_are_the_same_page():
    rows = [labeled(0, "x")]
    assert render(rows) == render(rows)
    keys = [re.search(r'data-key="(.*?)"', page)[1] for page in (render(rows), render(rows * 2))]
    assert keys[0] != keys[1]
    assert 'data-key="mine"' in render(rows, key="mine")
