"""What the page is made of; what it does in a browser is in test_page.py."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest

from testnuc._base.checks import hash_text
from testnuc.errors import InvalidInputError
from testnuc.report import render
from testnuc.results import Results
from testnuc.trust.review import Review, ReviewContext, ReviewItem
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
            Results(
                [labeled(0, nasty, neighbors=(Neighbor(nasty, 0.5, nasty, None),), reason=nasty)],
                Usage(),
                1.0,
                model=nasty,
                choices=[nasty],
                descriptions={nasty: nasty},
                instructions=nasty,
            ),
            title=nasty,
            then=nasty,
        ),
    )
    assert Elements(tame).names == Elements(wild).names
    data = data_of(wild)
    assert data["texts"] == [nasty]
    assert data["labels"][0] == data["model"] == data["rows"][0]["r"] == nasty
    assert "\u2028" not in wild[wild.index('id="data"') :]


def test_numbers_that_json_does_not_know_are_unknown():
    odd = labeled(0, "x", share=float("nan"), trust=float("nan"), votes={"a": float("inf")})
    data = data_of(render(Results([odd], Usage(), float("nan"))))
    assert data["rows"][0]["s"] is data["rows"][0]["t"] is data["seconds"] is None
    assert data["summary"]["unknown"] == 1


def test_all_are_counted_where_few_are_listed():
    rows = [labeled(i, f"text {i}", trust=0.2 if i >= 90 else 1.0) for i in range(100)]
    data = data_of(render(rows, most=15))
    assert data["total"] == 100
    assert sum(data["summary"]["trust"]) == 100
    # those to review first, then the first of the others, all in the order of the input
    assert [row["i"] for row in data["rows"]] == [*range(5), *range(90, 100)]
    with pytest.raises(InvalidInputError, match="most is 0"):
        render(rows, most=0)


def test_a_result_that_is_no_text_and_an_empty_run_have_a_page():
    data = data_of(render([labeled(0, 7, label=None, error=ValueError("bad"))]))
    assert data["texts"] == ["7"]
    assert data["rows"][0]["e"] == "ValueError: bad"
    assert data_of(render([]))["total"] == 0


def test_results_bring_along_what_is_known_of_their_run():
    results = Results([labeled(0, "x")], Usage(calls=3), 1.5, model="m", choices=["a", "b"])
    data = data_of(render(results))
    assert data["usage"]["calls"] == 3
    assert (data["model"], data["seconds"], data["choices"]) == ("m", 1.5, 2)
    assert data["labels"] == ["a", "b"]
    assert data_of(render(list(results)))["usage"] is None


def review_of(n, labels=("a", "b")):
    items = [
        ReviewItem(
            index=i, text=f"text {i}", hash=hash_text(f"text {i}"), own_label="a",
            candidates=(("a", ("the LLM's own labels",)), ("b", ("another",))), trust=0.5,
            neighbors=(Neighbor("near", 0.9, "b", None),), goal="decide", probability=0.1,
            floor=0.1,
        )
        for i in range(n)
    ]  # fmt: skip
    context = ReviewContext(
        ("the LLM's own labels", "another"),
        differing=7, unlabeled=2, descriptions={"a": "the first"}, instructions="Read well.",
        blind=False,
    )  # fmt: skip
    return Review(items, labels, 100, "m", context)


def test_a_review_alone_has_a_page():
    data = data_of(render(None, review=review_of(3)))
    assert [data["texts"][row["x"]] for row in data["rows"]] == ["text 0", "text 1", "text 2"]
    assert (data["only"], data["choices"], data["model"]) == (True, 2, "m")
    assert data["descriptions"] == ["the first", None]
    assert data["instructions"] == "Read well."
    assert data["review"]["items"][2]["candidates"] == [["a", ["the LLM's own labels"]],
                                                        ["b", ["another"]]]  # fmt: skip


def test_the_texts_of_a_review_are_listed_whatever_else_is():
    rows = [labeled(i, f"text {i}", trust=0.2 if i >= 90 else 1.0) for i in range(100)]
    data = data_of(render(rows, review=review_of(5), most=8))
    assert [row["i"] for row in data["rows"]] == [*range(5), *range(90, 93)]
    # with the neighbors that the review knows, as a .csv file of results does not
    near = [[data["texts"][x] for x, *_ in row["k"]] for row in data["rows"]]
    assert near == [["near"]] * 5 + [[]] * 3
    assert data["only"] is False


def test_what_neighbors_contradict_is_counted_whatever_the_policy_decided():
    near = [Neighbor(f"near {i}", 0.9, "b", None) for i in range(3)]
    rows = [labeled(0, "x", neighbors=tuple(near[:n])) for n in range(4)]
    rows.append(labeled(1, "y", neighbors=tuple(near), label=None))
    # two votes of the text itself against 0.9 of each neighbor
    assert data_of(render(rows))["summary"]["disputed"] == 2


def test_an_answer_outside_the_labels_is_why_to_judge():
    odd = Classification(
        index=0, text="x", label=None, share=0.0, margin=0.0, voters=0, complete=True,
        prediction=Prediction(None, 0.9, "top up by card"), reason="own labels are kept",
    )  # fmt: skip
    assert data_of(render([odd]))["rows"][0]["w"] == [
        "the answer 'top up by card' matches no label"
    ]
