"""``testnuc labels check``: from a labeled file to merged labels."""

import json
from pathlib import Path

import pytest

from testnuc.cli.labels import _merges
from testnuc.errors import InvalidInputError
from testnuc.testing import LoopbackLLM
from tests.cli.in_process import ran, rows_of, run_here
from tests.cli.test_judging import TEXTS, true_label

LABELS = ("refund", "money back", "delivery", "login", "unused")


def wavers(text):
    label = true_label(text)
    number = int(text.split("#")[1])
    return ("money back" if label == "refund" and number % 2 else label), 0.9


@pytest.fixture
def labeled():
    Path("tickets.csv").write_text("text\n" + "\n".join(TEXTS))
    with LoopbackLLM(wavers) as llm:
        options = ["--labels", ",".join(LABELS), "--base-url", llm.base_url]
        _, err = ran("classify", "tickets.csv", *options, "-o", "out.csv")
        assert "1 of 5 labels: never given by the LLM (unused)" in err
        assert "testnuc labels check out.csv" in err
        yield llm


@pytest.mark.slow
def test_confused_labels_are_shown_and_merged(labeled):
    out, err = ran("labels", "check", "out.csv")
    assert "refund | money back" in out
    assert "1 of 5 labels: never given by the LLM (unused)" in out
    assert "testnuc labels check out.csv --merge" in err

    merge = ["--merge", "money back = refund", "-o", "merged.csv"]
    _, err = ran("labels", "check", "out.csv", *merge)
    assert "4 of 5 labels, written to merged.labels.json" in err
    assert json.loads(Path("merged.labels.json").read_bytes()) == [
        "refund", "delivery", "login", "unused",
    ]  # fmt: skip
    merged = rows_of("merged.csv")
    assert [row["nuc_label"] for row in merged] == [true_label(text) for text in TEXTS]
    assert {row["nuc_error"] for row in merged} == {""}

    # the next command knows the merged labels
    ran("review", "merged.csv", "-n", "20")
    review = json.loads(Path("review.json").read_bytes())
    assert review["labels"] == ["refund", "delivery", "login", "unused"]
    assert labeled.calls == len(TEXTS)


def test_answers_outside_the_labels_are_grouped_by_meaning():
    outside = {0: "lost card", 3: "card, lost", 6: "lost cards"}

    def answer(text):
        return outside.get(int(text.split("#")[1]), true_label(text)), 0.9

    Path("tickets.txt").write_text("\n".join(TEXTS[:60]))
    with LoopbackLLM(answer) as llm:
        options = ["--labels", "refund,delivery,login", "--base-url", llm.base_url]
        _, err = ran("classify", "tickets.txt", *options, "-o", "out.csv")
        assert "most often: 'lost card' (2), 'card, lost' (1)" in err
        out, _ = ran("labels", "check", "out.csv")
        assert "answers outside the labels that say 'lost card': 3" in out


@pytest.mark.slow
def test_what_cannot_be_merged_is_refused(labeled):
    every = [f"{label} = refund" for label in LABELS[1:]]
    for given, said in (
        (["--merge", "money back = refund"], "--merge 'LABEL = OTHER' and -o"),
        (["-o", "merged.csv"], "--merge 'LABEL = OTHER' and -o"),
        (["--merge", "money = refund", "-o", "a.csv"], "closest to 'money' are 'money back', "),
        (["--merge", "refund = refund", "-o", "a.csv"], "'refund' is merged already"),
        ([*(w for m in every for w in ("--merge", m)), "-o", "a.csv"], "leaves one label"),
        (["--merge", "money back = refund", "-o", "out.csv"], "one file"),
    ):
        code, _, err = run_here("labels", "check", "out.csv", *given)
        assert code == 2, given
        assert said in err


def test_what_is_no_file_of_results_is_told():
    Path("labels.yaml").write_text('"a": "b"\n')
    Path("labels.json").write_text('{"a": "b"}')
    Path("tickets.csv").write_text("text\n" + "\n".join(TEXTS))
    for file, said in (
        ("labels.yaml", "labels.yaml has no texts with labels; name a .csv of them"),
        ("labels.json", "labels.json has no texts with labels; name a .csv of them"),
        ("none.yaml", "there is no file none.yaml"),
        ("tickets.csv", "texts without labels need `classify` first"),
    ):
        code, _, err = run_here("labels", "check", file)
        assert code == 2, err
        assert said in err


def test_a_wrong_label_to_merge_gets_the_closest_ones():
    names = [f"topic {number}" for number in range(200)]
    with pytest.raises(InvalidInputError) as raised:
        _merges(["topic 7 = topic 199x"], names)
    assert "two of the 200 labels" in str(raised.value)
    assert "closest to 'topic 199x' are 'topic 199', " in str(raised.value)
    assert str(raised.value).count("topic") < 8
    with pytest.raises(InvalidInputError, match="closest to 'topic 7' are 'topic 7'"):
        _merges(["topic 7"], names)


def test_an_answer_with_a_former_name_is_the_label():
    Path("tickets.csv").write_text("text\n" + "\n".join(TEXTS[:30]))
    labels = [{"label": "returns", "was": ["refund"]}, {"label": "delivery"}, {"label": "login"}]
    Path("labels.json").write_text(json.dumps(labels))
    with LoopbackLLM(lambda text: (true_label(text), 0.9)) as llm:
        options = ["--labels", "labels.json", "--model", "openai/test", "--base-url", llm.base_url]
        _, err = ran("classify", "tickets.csv", *options, "-o", "out.csv")
    assert "30 labeled" in err
    given = [row["nuc_own_label"] for row in rows_of("out.csv")]
    assert given == [true_label(text).replace("refund", "returns") for text in TEXTS[:30]]
    # a later command knows them
    assert run_here("diagnose", "out.csv")[0] == 0
    swapped = [{"label": "returns", "was": ["login"]}, {"label": "login", "was": ["returns"]}]
    Path("labels.json").write_text(json.dumps(swapped))
    code, _, err = run_here("classify", "tickets.csv", *options)
    assert (code, "'returns', 'login' have each other's former names" in err) == (2, True), err
