"""Results written to files and read back, as data frames, and in a notebook."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

import testnuc
from testnuc.errors import InvalidInputError, MissingDependencyError, RateLimitedError
from testnuc.report import render
from testnuc.results import Results
from testnuc.types import Classification, Neighbor, Prediction, Usage

HOSTILE = '<script>alert(1)</script> & \u2028 \x85 "quoted" 🚀'


def some_results():
    near = (Neighbor(HOSTILE, 0.875, "b", None), Neighbor("another", 0.5, None, 0.25))
    rows = [
        Classification(
            0,
            HOSTILE,
            "b",
            0.75,
            0.5,
            3,
            complete=False,
            prediction=Prediction("a", 0.5, "A!"),
            neighbors=near,
            votes={"b": 1.5, "a": 0.5},
            trust=0.75,
            reason="because",
        ),
        Classification(
            1,
            "no label",
            None,
            0.0,
            0.0,
            0,
            complete=True,
            prediction=None,
            error=RateLimitedError("slow down", status_code=429),
        ),
        Classification(2, "plain", "a", 1.0, 1.0, 1, complete=True, prediction=Prediction("a")),
    ]
    usage, labels = Usage(3, None, 0, 7, None, 1), {"choices": ["a", "b"], "none_label": "b"}
    return Results(rows, usage, 1.5, model="openai/m", **labels)


def test_jsonl_there_and_back(tmp_path):
    written, again = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    results = some_results()
    results.to_jsonl(written)
    read = Results.from_jsonl(written)
    assert read[0] == results[0]
    assert read[2] == results[2]
    assert str(read[1].error) == "RateLimitedError: slow down"
    assert read[1].prediction is None
    assert (read.usage, read.seconds) == (results.usage, results.seconds)
    assert (read.model, read.choices) == (results.model, results.choices)
    assert read.none_label == results.none_label == "b"
    read.to_jsonl(again)
    assert again.read_bytes() == written.read_bytes()
    assert len(written.read_bytes().splitlines()) == 4


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "holds no results"),
        ("{}\n", "record 1 has no field 'text', only nothing"),
        ('{"message": "x", "nuc_label": "a"}\n', "name the text column with --text-column"),
        ('{"text": "x", "label": "a"}\n', "has no field 'nuc_label', only 'text', 'label': give a"),
        ('{"text": "x", "nuc_label": "a"}\nnot json\n', "line 2 is not JSON"),
        ("[1]\n", "line 1 is not a JSON object"),
        ('{"text": "x", "nuc_label": "a", "nuc_share": "much"}\n', "record 1 was not written by"),
        ('{"text": "x", "nuc_label": "a", "nuc_neighbors": [1]}\n', "record 1 was not written by"),
        ('{"text": "x", "nuc_label": "a"}\n{"nuc_run": 7}\n', "nuc_run was not written by"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, content, says):
    path = tmp_path / "results.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidInputError, match=says):
        Results.from_jsonl(path)


def test_a_file_that_cannot_be_had_is_one_error(tmp_path):
    with pytest.raises(InvalidInputError, match=r"none\.jsonl cannot be read: No such file"):
        Results.from_jsonl(tmp_path / "none.jsonl")
    with pytest.raises(InvalidInputError, match="cannot be written: No such file"):
        some_results().to_jsonl(tmp_path / "none" / "results.jsonl")
    with pytest.raises(InvalidInputError, match="cannot be written"):
        some_results().to_html(tmp_path / "none" / "results.html")


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text("old")
    results = some_results()

    class Interrupted(Results):
        def __iter__(self):
            yield results[0]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Interrupted(list(results), Usage(), 0.0).to_jsonl(path)
    assert path.read_text() == "old"


def test_pandas_and_polars():
    pandas, polars = some_results().to_pandas(), some_results().to_polars()
    assert list(pandas.columns) == polars.columns
    assert pandas["text"].tolist() == polars["text"].to_list() == [HOSTILE, "no label", "plain"]
    assert polars["label"].to_list() == ["b", None, "a"]
    assert pandas["label"].isna().tolist() == [False, True, False]
    assert polars["own_label"].to_list() == ["a", None, "a"]
    assert polars["trust"].to_list() == [0.75, None, None]
    assert polars["error"].to_list() == [None, "RateLimitedError: slow down", None]
    assert polars["own_said"].to_list() == ["A!", None, None]
    assert pandas["complete"].tolist() == [False, True, True]


def test_the_types_of_a_polars_column_do_not_hang_on_what_is_in_it():
    full, empty = some_results(), Results(some_results()[2:], Usage(), 0.0)
    nothing = Results([], Usage(), 0.0)
    assert full.to_polars().schema == empty.to_polars().schema
    assert nothing.to_polars().columns == full.to_polars().columns


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_a_missing_library_names_the_extra(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'testnuc\[frames\]'"):
        getattr(some_results(), f"to_{name}")()


def test_a_summary_in_lines():
    results = some_results()
    assert results.summary() == (
        "first error: RateLimitedError: slow down\n"
        "3 texts in 1.5 s, 2 labeled, 1 without a label, 1 failed, 1 labels changed by the vote, "
        "3 calls, 1 stored, tokens unknown"
    )
    odd = [*results, replace(results[2], label=None, prediction=Prediction(None, None, "Dunno."))]
    results = Results(odd, Usage(4, usd=0.5), 1.5)
    assert [row.index for row in results.unmatched] == [2]
    assert results.unmatched[0].prediction.said == "Dunno."
    assert "answers outside the labels, most often: 'Dunno.' (1)" in results.summary()
    spent = Usage(4, input_tokens=10, output_tokens=2, usd=0.5)
    assert "4 calls, 12 tokens, 0.5000 USD" in Results(odd, spent, 1.5).summary()
    assert "failed" not in Results(results[2:], Usage(), 0.0).summary()


def test_notebooks_show_results_and_escape_them():
    results = some_results()
    many = Results([results[0]] * 25, Usage(usd=1.25), 2.0)
    shown = [results._repr_html_(), results[0]._repr_html_()]
    for html in (*shown, many._repr_html_()):
        assert "<script" not in html
        assert "<b>" not in html
        assert "<i>" not in html
        assert html.count("<table") == html.count("</table>")
    assert "&lt;script&gt;" in shown[0]
    assert "the LLM said" in shown[1]
    assert "0.88" in shown[1]
    assert "and 15 more" in many._repr_html_()
    assert "1.2500" in many._repr_html_()


def test_a_first_text_that_was_not_asked_about_does_not_say_what_the_others_have():
    """Of several labels, and of a tree, their columns were missing."""
    empty = Classification(0, "", None, error=InvalidInputError("is empty"))
    several = Classification(1, "rain", "", shares={})
    deep = Classification(1, "rain", "a > b", path=("a", "b"))
    results = Results([empty, several], Usage(), 1.0)
    assert results.multilabel
    assert results.to_pandas()["labels"].to_list() == [None, []]
    assert results.to_polars()["labels"].to_list() == [None, []]
    assert '"several":true' in render(results)
    assert Results([empty, deep], Usage(), 1.0).to_pandas()["path"].to_list() == [None, ["a", "b"]]
    assert not Results([empty, replace(several, shares=None)], Usage(), 1.0).multilabel
    assert not Results([empty], Usage(), 1.0).multilabel


def test_what_the_llm_said_is_shown_where_it_is_no_label():
    """It was "None", and an answer without labels "nothing usable"."""
    outside = Classification(0, "rain", None, prediction=Prediction(None, said="weather"))
    none = Classification(0, "rain", "", prediction=Prediction("", stated=()), shares={})
    for shown in (outside.explain(), outside._repr_html_()):
        assert "weather" in shown
    assert "the LLM said none" in none.explain()
    assert "nothing usable" not in none._repr_html_()
    assert none._repr_html_().count(">none<") == 2


def test_marks_are_texts_and_labels(tmp_path):
    path = tmp_path / "marks.csv"
    path.write_text(
        "\ufefftext,label,right,right_label\r\n"
        '"fine","a","true","a"\r\n"\'=1+1","a","false","b"\r\n"who knows","a","false",""\r\n'
    )
    assert testnuc.review.read_marks(path) == (["fine", "=1+1"], ["a", "b"])


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("marks.txt", "x", "is not .csv"),
        ("marks.json", "{}", "or the .json of a review"),
        ("marks.csv", "text,right_label\n", "no text with a correct label"),
        ("marks.csv", "right_label,text\na\n", "mark 1 has no text and right_label"),
        ("marks.csv", "a,b\n1,2\n", "mark 1 has no text and right_label"),
        ("marks.csv", "text,right_label\nx,a\nx,b\n", "give each text one label"),
        ("marks.csv", b"text,right_label\n\xff,a\n", "not UTF-8"),
        ("marks.csv", None, "cannot be read"),
    ],
)
def test_other_files_are_no_marks(tmp_path, name, content, says):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidInputError, match=says):
        testnuc.review.read_marks(path)


def test_probabilities_are_trust_and_what_is_left_by_votes(tmp_path):
    voted, failed, plain = some_results()
    assert voted.probabilities == {"b": 0.75, "a": 0.25}
    assert failed.probabilities == plain.probabilities == {}
    wide = replace(
        voted,
        trust=0.5,
        alternative="c",
        trust_of_alternative=0.3,
        votes={"b": 4, "c": 3, "a": 2, "d": 1},
    )
    found = wide.probabilities
    assert list(found) == ["b", "c", "a", "d"]
    assert list(found.values()) == pytest.approx([0.5, 0.3, 0.2 * 2 / 3, 0.2 / 3])
    # nothing votes for another label: what is left is nobody's
    assert replace(voted, votes={"b": 1.0}).probabilities == {"b": 0.75}
    several = replace(voted, shares={"b": 0.9, "a": 0.4}, trusts={"b": 0.8})
    assert several.probabilities == {"b": 0.8, "a": 0.4}
    some_results().to_jsonl(tmp_path / "all.jsonl")
    first = json.loads((tmp_path / "all.jsonl").read_text().split("\n")[0])
    assert first["nuc_probabilities"] == {"b": 0.75, "a": 0.25}
    frame = pytest.importorskip("pandas") and some_results().to_pandas(probabilities=True)
    assert frame["probability_a"][0] == 0.25
    assert frame["probability_b"][0] == 0.75
    assert frame["probability_a"].isna().tolist() == [False, True, True]
