"""Loading datasets: the paper's layout, any file, downloads, and what is wrong with them."""

from __future__ import annotations

import json
from hashlib import sha1

import pytest

from bench.evaluation import datasets
from bench.evaluation.datasets import PAPER_DATASETS, load
from bench.evaluation.paper_tables import paper_accuracy, paper_tables
from testnuc.errors import InvalidInputError
from testnuc.testing.server import Response, Server

ROWS = [("my card is gone", "lost card"), ("what is my PIN", "pin"), ("card lost!", "lost card")]


def jsonl(rows=ROWS):
    return "".join(json.dumps({"task": "t", "input": t, "label": g}) + "\n" for t, g in rows)


@pytest.mark.parametrize("layout", ["datasets/banking77", "banking77"])
def test_the_layout_of_the_reference_repository(tmp_path, layout):
    folder = tmp_path / layout
    folder.mkdir(parents=True)
    (folder / "large.jsonl").write_text(jsonl())
    (folder / "small.jsonl").write_text(jsonl(ROWS[:2]))
    dataset = load("banking77", tmp_path)
    assert dataset.texts == tuple(t for t, _ in ROWS)
    assert dataset.names == ("lost card", "pin")
    assert dataset.gold.tolist() == [0, 1, 0]
    assert dataset.differences == (
        "2 classes, in the paper 77",
        "3 texts, in the paper 10003",
    )
    small = load("banking77", tmp_path, "small")
    assert len(small) == 2
    assert "small split of 2 texts" in small.differences[1]
    (folder / "large.jsonl").unlink()
    assert len(load("banking77", tmp_path)) == 2


def test_any_file_with_usual_or_named_columns(tmp_path):
    path = tmp_path / "tickets.jsonl"
    path.write_text(jsonl())
    assert load(path).name == "tickets"
    table = tmp_path / "tickets.csv"
    table.write_text("\ufefftext,topic\nhi there,1\nbye,2\n", encoding="utf-8")
    dataset = load(str(table), label="topic")
    assert dataset.labels == ("1", "2")
    assert dataset.differences == ()
    with pytest.raises(InvalidInputError, match="no label column; its columns are 'text'"):
        load(table)
    with pytest.raises(InvalidInputError, match="no column 'body'"):
        load(table, text="body", label="topic")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "has no rows"),
        ("{oops\n", "line 1 is not JSON"),
        ("[1]\n", "line 1 is not a JSON object"),
        (jsonl([("", "a"), ("x", "b")]), "line 1: the text is empty"),
        (jsonl([("x", "a"), ("y", None)]), "line 2: the label is None"),
        (jsonl([("x", "a"), ("y", "a")]), "only the label"),
    ],
)
def test_broken_files_are_named_with_their_line(tmp_path, content, says):
    path = tmp_path / "broken.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidInputError, match=says):
        load(path)


def test_mistakes_in_what_is_asked_for(tmp_path):
    with pytest.raises(InvalidInputError, match="unknown dataset 'bankng77'; use one of bank"):
        load("bankng77")
    with pytest.raises(InvalidInputError, match="check the path"):
        load(tmp_path / "nowhere.csv")
    with pytest.raises(InvalidInputError, match="check data_dir"):
        load("reddit", tmp_path)
    with pytest.raises(InvalidInputError, match="split is 'medium'"):
        load("reddit", tmp_path, "medium")


def test_samples_and_distinct_texts(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(jsonl([*ROWS, ROWS[0]]))
    dataset = load(path)
    assert dataset.distinct().texts == tuple(t for t, _ in ROWS)
    some = dataset.sample(2, seed=3)
    assert len(some) == 2
    assert some.texts == dataset.sample(2, seed=3).texts
    assert some.names == dataset.names
    assert dataset.sample(None) is dataset
    assert load(path).descriptions["lost card"] == "lost card"


def test_a_csv_file_may_hold_long_texts_but_no_other_encoding(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f"text,label\n{'x' * 200_000},a\ny,b\n")
    assert len(load(path).texts[0]) == 200_000
    path.write_bytes("text,label\ncaf\xe9,a\ny,b\n".encode("cp1252"))
    with pytest.raises(InvalidInputError, match="UTF-8"):
        load(path)


def test_labels_that_are_file_names_become_words(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(jsonl([("a", "english.stackexchange.com.txt"), ("b", "China.txt")]))
    assert list(load(path).descriptions.values()) == ["China", "english"]


class Mirror(Server):
    """Serves one file, and notes the paths that were asked for."""

    def __init__(self):
        super().__init__()
        self.content, self.paths = jsonl().encode(), []

    def respond(self, call):
        self.paths.append(call.path)
        found = call.path == "/v1/banking77/large.jsonl"
        return Response(200, self.content) if found else Response(404, b"")


@pytest.fixture
def mirror(monkeypatch):
    with Mirror() as mirror:
        blob = sha1(b"blob %d\0" % len(mirror.content) + mirror.content).hexdigest()
        monkeypatch.setitem(datasets._BLOBS, ("banking77", "large"), blob)
        yield mirror


def test_a_download_is_checked_and_kept(mirror, tmp_path, monkeypatch):
    pooch = pytest.importorskip("pooch")
    monkeypatch.setattr(pooch, "os_cache", lambda _: tmp_path)
    url = mirror.base_url
    first = load("banking77", base_url=url)
    assert first.texts == tuple(t for t, _ in ROWS)
    assert load("banking77", base_url=url).source == first.source
    assert mirror.paths == ["/v1/banking77/large.jsonl"]
    # what was cut off or changed on disk is fetched again
    first.source.write_text("")
    assert len(load("banking77", base_url=url)) == 3
    mirror.content += b"\n"
    first.source.unlink()
    with pytest.raises(InvalidInputError, match="checksum mismatch"):
        load("banking77", base_url=url)
    assert not first.source.exists()
    with pytest.raises(InvalidInputError, match="cannot download"):
        load("clinc", base_url=url)


def test_checksums_are_known_of_every_dataset():
    assert set(datasets._BLOBS) == {(n, s) for n in PAPER_DATASETS for s in ("large", "small")}
    assert all(len(blob) == 40 for blob in datasets._BLOBS.values())
    assert len(set(datasets._BLOBS.values())) == 16


def test_the_numbers_of_the_paper():
    assert "arXiv 2502.19163" in paper_tables()["citation"]
    assert paper_accuracy("banking77", "TestNUC (K=10)") == 0.712
    assert paper_accuracy("go_emotion", "TestNUC (K=50)", "GPT-4o") == 0.464
    assert paper_accuracy("banking77", "all-MiniLM-L12-v2-120M", "embedders_gpt4o_mini") == 0.706
    assert paper_accuracy("go_emotion", "all-MiniLM-L12-v2-120M", "embedders_gpt4o_mini") is None
    assert paper_accuracy("banking77", "w. TestNUC", "KNN-ICL-P") == 0.768
    assert paper_accuracy("tickets", "TestNUC (K=10)") is None
    assert paper_accuracy("banking77", "TestNUC (K=99)") is None
