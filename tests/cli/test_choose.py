"""``testnuc choose``: from files of results to a choice."""

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest

from testnuc.testing import LoopbackLLM
from tests.cli.in_process import judge, ran, run_here

TEXTS = [f"{'invoice' if at % 2 else 'parcel'} {at}" for at in range(200)]


def right(text):
    return "money" if "invoice" in text else "delivery"


def wrong_at(every):
    def label(text):
        other = {"money": "delivery", "delivery": "money"}[right(text)]
        return other if int(text.split()[1]) % every == 0 else right(text)

    return label


def write(file, label_of, texts=TEXTS):
    with Path(file).open("w", newline="") as opened:
        rows = [[text, label_of(text), label_of(text)] for text in texts]
        csv.writer(opened).writerows([["text", "nuc_label", "nuc_own_label"], *rows])


def test_files_are_judged_until_one_is_chosen():
    write("good.csv", right)
    write("poor.csv", wrong_at(3))
    out, err = ran("choose", "good.csv", "poor.csv", "--no-open", "-n", "5")
    assert not out
    assert "5 texts to judge, written to choose.json" in err
    assert "run: testnuc choose good.csv poor.csv --no-open -n 5" in err
    assert "testnuc review choose.json --answer" in err
    assert Path("choose.html").exists()
    judge("choose.json", right)
    out, _ = ran("choose", "good.csv", "poor.csv", "--no-open", "-n", "60")
    assert "not decided yet: judge more texts" in out
    judge("choose.json", right)
    out, _ = ran("choose", "good.csv", "poor.csv")
    assert "choose good.csv: the most accurate run" in out
    assert "worse" in out
    # the judgments are of other texts
    write("other.csv", right, ["parcel 900", "parcel 901"])
    write("more.csv", wrong_at(2), ["parcel 900", "parcel 901"])
    code, _, err = run_here("choose", "other.csv", "more.csv")
    assert code == 2
    assert "choose.json is a review of other texts, and is kept" in err


def test_texts_are_judged_in_the_terminal(monkeypatch):
    write("good.csv", right)
    write("poor.csv", wrong_at(2))
    monkeypatch.setattr("testnuc.cli.answering.input", lambda _: "q", raising=False)
    out, err = ran("choose", "good.csv", "poor.csv", "--answer", "--margin", "1")
    assert "next, judge more texts: testnuc choose good.csv poor.csv --answer --margin 1" in err
    assert "not decided yet" in out


def test_runs_that_do_not_fit_are_refused():
    write("a.csv", right)
    write("b.csv", lambda text: right(text).upper())
    write("c.csv", wrong_at(2), TEXTS[:50])
    Path("plain.csv").write_text("text\na\nb\n")
    for files, problem in [
        (["a.csv"], "name two files of results"),
        (["a.csv", "./a.csv"], "name two files of results"),
        (["a.csv", "b.csv"], "different labels"),
        (["a.csv", "plain.csv"], "give a file written by `testnuc classify`"),
    ]:
        code, _, err = run_here("choose", *files)
        assert code == 2, err
        assert problem in err
    _, err = ran("choose", "a.csv", "c.csv", "--no-open")
    assert "150 texts of a.csv are not in all files" in err


@pytest.fixture
def by_model():
    """Two models of one server: one is wrong on each third text, and its answers are stored."""
    Path("texts.txt").write_text("\n".join(TEXTS))

    def given(*more):
        words = ["--labels", "money,delivery", "--no-open", "--base-url", llm.base_url, *more]
        models = ["--model", "openai/gpt-4o", "--model", "openai/gpt-4o-mini"]
        return run_here("choose", "texts.txt", *models, *words)

    def answer(text):
        model = llm.bodies[-1]["model"]
        return (right if model == "gpt-4o" else wrong_at(3))(text), 0.9

    with LoopbackLLM(answer, record=1_000) as llm:
        given.llm = llm
        yield given


def test_models_label_a_sample_and_are_judged_where_they_differ(by_model):
    code, out, err = by_model("--sample", "150", "--dry-run")
    assert code == 0, err
    assert out.count("nothing was sent; 150 texts") == 2
    assert by_model.llm.calls == 0
    code, out, err = by_model("--sample", "150", "-n", "30")
    assert code == 0, err
    assert by_model.llm.calls == 300
    assert "30 texts to judge, written to choose.json" in err
    judge("choose.json", right)
    code, out, err = by_model("--sample", "150", "-n", "30")
    assert code == 0, err
    assert by_model.llm.calls == 300, "answers are stored"
    assert "choose openai/gpt-4o: the most accurate run, or within 2 points" in out
    assert "on 200 texts, of which these 150 are a sample" in out


def test_all_models_have_one_budget(by_model):
    code, _, err = by_model("--sample", "50", "--budget-calls", "60")
    assert code == 3, err
    assert by_model.llm.calls == 60
    assert "0 of the budget of 60 calls are left" in err
    # what is stored costs nothing
    code, _, err = by_model("--sample", "50", "--budget-calls", "60")
    assert code == 0, err
    assert by_model.llm.calls == 100


def test_the_cheapest_model_that_will_do_is_chosen(by_model, monkeypatch):
    async def priced(nuc, texts):
        usd = {"openai/gpt-4o": 1.0, "openai/gpt-4o-mini": 0.1}[nuc.model]
        return SimpleNamespace(usd=usd * len(texts) / 1_000)

    monkeypatch.setattr("testnuc.cli.evaluate.estimate_of", priced)
    code, out, err = by_model("--cheapest", "--margin", "50")
    assert code == 0, err
    judge("choose.json", right)
    code, out, err = by_model("--cheapest", "--margin", "50")
    assert code == 0, err
    assert "openai/gpt-4o-mini: chosen, worse, 0.1 USD for 1,000 texts" in out
    assert "choose openai/gpt-4o-mini: the cheapest run within 50 points" in out


def test_what_models_need_is_said():
    Path("texts.txt").write_text("\n".join(TEXTS))
    write("a.csv", right)
    write("b.csv", right)
    two = ["--model", "openai/a", "--model", "openai/b"]
    for given, problem in [
        (["texts.txt", "--model", "openai/a"], "two or more different --model"),
        (["texts.txt", "a.csv", *two], "one file of texts"),
        (["texts.txt", *two], "there are no labels; give --labels"),
        (["a.csv", "b.csv", "--cheapest"], "--cheapest and --dry-run need --model"),
    ]:
        code, _, err = run_here("choose", *given)
        assert code == 2, err
        assert problem in err
