"""Answers to the labels before, where the label set changed."""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from testnuc.index.nearest import NearestVectors
from testnuc.testing import HashEmbedder, LoopbackLLM
from tests.cli.in_process import ran, rows_of, run_here

KINDS = [f"kind{i:02}" for i in range(30)]
TEXTS = [f"{KINDS[i % 30]} {KINDS[i % 30]} number {i}" for i in range(600)]


class Model:
    """Answers the kind of a text if that is a label, else the first one."""

    labels = KINDS[:29]

    def __call__(self, text):
        kind = text.split()[0]
        return kind if kind in self.labels else self.labels[0]


@pytest.fixture
def llm():
    """Return a server, and a function that labels with the given labels; the first 29 are done."""
    Path("a.txt").write_text("\n".join(TEXTS))
    model = Model()
    with LoopbackLLM(model) as server:

        def classify(labels, *more, output="new.csv"):
            model.labels = [row["label"] for row in labels]
            Path("l.json").write_text(json.dumps(labels))
            given = ["--labels", "l.json", "--model", "openai/test", "--base-url", server.base_url]
            before = server.calls
            _, err = ran("classify", "a.txt", *given, "-o", output, *more)
            return server.calls - before, err

        assert classify(named(KINDS[:29]), output="out.csv")[0] == 600
        yield classify


def named(kinds):
    return [{"label": kind} for kind in kinds]


def own_labels(output):
    return [(row["text"].split()[0], row) for row in rows_of(output)]


@pytest.mark.slow
def test_one_label_more_costs_the_texts_that_could_have_it(llm):
    for output in ("new.csv", "-"):
        _, err = llm(named(KINDS), "--dry-run", output=output)
        assert "600 texts have answers to other labels; to ask about all takes 600 calls" in err
        assert "price" not in err
    _, err = llm(named(KINDS), "--dry-run", "--reuse")
    assert "fewer texts: these calls and this price are the most" in err.splitlines()[-1]
    assert "--reuse asks about 60 at random and those that could have 'kind29' alone" in err
    calls, err = llm(named(KINDS), "--reuse", "--full")
    assert 80 <= calls < 250
    assert "0 got an added label: at most 4.9% of these others would get one" in err
    rows = own_labels("new.csv")
    assert all(row["nuc_own_label"] == kind for kind, row in rows)
    # judgments know how many of the first texts they were drawn from
    newest = max(Path(".testnuc").glob("answers*.db"), key=lambda path: path.stat().st_mtime)
    with closing(sqlite3.connect(newest)) as store:
        assert [text for (text,) in store.execute("SELECT text FROM pool ORDER BY id")] == TEXTS
    kept = [row for _, row in rows if row["nuc_own_said"].endswith("(of the labels before)")]
    assert len(kept) == 600 - calls
    # later commands, and another run, take them as they are
    ran("review", "new.csv", "-n", "5", "--no-open", key=None)
    assert (
        f"{len(kept)} of the LLM's answers are to the labels before"
        in run_here("describe", "new.csv")[1]
    )
    for more in ([], ["--reuse"]):
        assert llm(named(KINDS), *more)[0] == 0
    # until they are asked for
    assert llm(named(KINDS), "--no-reuse")[0] == len(kept)


def test_nothing_is_embedded_again_and_the_counts_add_up(llm, monkeypatch):
    embedded, embed = [], HashEmbedder.embed
    monkeypatch.setattr(
        HashEmbedder, "embed", lambda self, texts: embedded.extend(texts) or embed(self, texts)
    )
    calls, err = llm(named(KINDS), "--reuse")
    # the text of a label alone
    assert not {*embedded} & {*TEXTS}
    assert f" {calls:,} calls, {600 - calls:,} stored," in err, err


def test_neighbors_of_all_texts_with_a_new_label_are_found_at_once(llm, monkeypatch):
    """For each of them all texts were sorted, in the event loop."""
    searches, search = [], NearestVectors.search

    def counted(self, queries, *args, **where):
        if "limit" not in where:
            searches.append((len(queries), threading.current_thread() is threading.main_thread()))
        return search(self, queries, *args, **where)

    monkeypatch.setattr(NearestVectors, "search", counted)
    llm(named(KINDS), "--reuse")
    # the twenty texts with the new label; then no other
    assert max(searches)[0] >= 15
    assert len(searches) <= 3
    assert not any(in_loop for _, in_loop in searches)


def test_labels_in_another_order_cost_nothing(llm):
    """All texts were asked again, also with --reuse, and nothing was said."""
    _, err = llm(named(KINDS[28::-1]), "--dry-run")
    assert "600 texts have answers to other labels; to ask about all takes 600 calls" in err
    assert llm(named(KINDS[28::-1]), "--reuse")[0] == 0
    answers = [row["nuc_own_label"] for row in rows_of("out.csv")]
    assert [row["nuc_own_label"] for row in rows_of("new.csv")] == answers


def test_answers_that_were_kept_without_a_call_are_the_newest_run(llm):
    """It has no date, and was taken to be the oldest: `review` took the run before."""
    llm(named(KINDS[:29]), "--store", "s.db", output="x.csv")
    assert llm(named(KINDS[28::-1]), "--store", "s.db", "--reuse", output="y.csv")[0] == 0
    out, _ = ran("store", "runs", "s.db", key=None)
    assert out.index("run 1") < out.index("run 2")


def test_a_label_of_before_that_there_was_not_is_named_before_any_call(llm):
    wrong = [*named(KINDS[1:29]), {"label": "other", "was": [f"{KINDS[0]}x"]}]
    _, err = llm(wrong, "--reuse", "--dry-run")
    said = f"{KINDS[0] + 'x'!r}, which the labels before do not have; did you mean {KINDS[0]!r}?"
    assert f"note: `was` in --labels names {said}" in err
    _, err = llm([*named(KINDS[1:29]), {"label": "other"}], "--dry-run")
    assert f"note: {KINDS[0]!r} is gone; if it was renamed or split, say so in --labels" in err
    right = [*named(KINDS[1:29]), {"label": "other", "was": [KINDS[0]]}]
    _, err = llm(right, "--reuse", "--dry-run")
    assert "`was` in --labels" not in err
    assert "is gone" not in err


@pytest.mark.slow
def test_labels_that_are_renamed_merged_or_split(llm):
    merged = [*named(KINDS[2:29]), {"label": "both", "was": KINDS[:2]}]
    calls, err = llm(merged, "--reuse", output="merged.csv")
    assert calls == 0, err
    rows = own_labels("merged.csv")
    assert {row["nuc_own_label"] for kind, row in rows if kind in KINDS[:2]} == {"both"}
    ran("review", "merged.csv", "-n", "5", "--no-open", key=None)
    split = [*named(KINDS[2:29]), *({"label": name, "was": KINDS[:2]} for name in ("x", "y"))]
    # the texts of the kind without a label had the first one
    calls, err = llm(split, "--reuse", output="split.csv")
    assert (calls, "those whose label is split or gone alone" in err) == (60, True), err


@pytest.mark.slow
def test_calls_that_fail_say_nothing_of_the_texts_that_keep_their_answer(llm):
    """They counted as texts without the new label, and 70 of 600 kept a wrong one for good."""
    with pytest.raises(AssertionError, match="have no answer, so no others are kept; what came is"):
        llm(named(KINDS), "--reuse", "--budget-calls", "20")
    calls, err = llm(named(KINDS), "--reuse")
    assert 40 <= calls < 300, err
    assert "of 60 texts drawn at random" in err
    assert all(kind == row["nuc_own_label"] for kind, row in own_labels("new.csv"))
    # what is kept is no evidence
    Path("a.txt").write_text("\n".join([*TEXTS, *(f"another {text}" for text in TEXTS[:90])]))
    _, err = llm(named(KINDS), "--reuse", output="more.csv")
    assert "of 60 texts drawn at random from the 60 others" in err, err


@pytest.mark.slow
@pytest.mark.parametrize("words", ["about", "texts of", "only"])
def test_of_runs_with_the_same_labels_that_with_these_descriptions_is_taken(
    llm, monkeypatch, words
):
    """The name of its file, a hash, decided."""
    monkeypatch.setattr(Model, "__call__", lambda model, _: model.labels[1])
    described = [{"label": kind, "description": f"{words} {kind}"} for kind in KINDS[:29]]
    assert llm(described, output="described.csv")[0] == 600
    described[0] |= {"label": "new name", "was": [KINDS[0]]}
    assert llm(described, "--reuse", output="renamed.csv")[0] == 0
    assert {row["nuc_own_label"] for row in rows_of("renamed.csv")} == {KINDS[1]}


@pytest.mark.slow
def test_a_label_that_was_added_and_then_renamed_follows_the_run_that_has_it(llm):
    """The run before it had as many answers, and was taken: its texts had labels of before."""
    assert llm(named(KINDS), "--reuse")[0] < 300
    renamed = [*named(KINDS[:29]), {"label": "new name", "was": [KINDS[29]]}]
    calls, err = llm(renamed, "--reuse", output="renamed.csv")
    assert calls == 0, err
    rows = own_labels("renamed.csv")
    assert {row["nuc_own_label"] for kind, row in rows if kind == KINDS[29]} == {"new name"}
    # nothing was asked about, so that these answers are those of the run
    assert llm(renamed, "--no-reuse", output="asked.csv")[0] == 600


@pytest.mark.parametrize("more", [["--multilabel"], ["--referee", "openai/better"]])
def test_what_reuse_does_not_go_with(llm, more):
    with pytest.raises(AssertionError, match="--reuse is not for"):
        llm(named(KINDS), "--reuse", *more)
