"""The page that ``testnuc review`` serves, over its socket; a browser's part is in tests/report."""

import http.client
import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from testnuc.cli.answering import judge_on_page
from testnuc.testing import LoopbackLLM
from testnuc.trust.review import Review
from tests.cli.in_process import ran, rows_of, run_here
from tests.cli.test_answering import review_of
from tests.cli.test_judging import TEXTS, options, true_label, wrong_at_random
from tests.report.test_report import data_of


class Person:
    """Judges in place of a browser, in the thread that opens it."""

    def __init__(self, judge, ready=lambda: None):
        self.judge = judge
        #: Called before Done after a failure: where nothing can be saved, Done ends nothing.
        self.ready = ready
        self.failure = None

    def __call__(self, url):
        self.place = urlsplit(url)
        try:
            self.judge(self)
        except Exception as failure:  # noqa: BLE001 - the test must not wait for ever
            self.failure = failure
            self.ready()
            self.send("done", None)
        return True

    def request(self, method, path, body=None, **headers):
        server = http.client.HTTPConnection(self.place.netloc)
        with closing(server):
            server.request(method, path, body, headers)
            response = server.getresponse()
            return response.status, response.read().decode()

    def send(self, what, value, **headers):
        given = {"Origin": f"http://{self.place.netloc}", **headers}
        return self.request("POST", self.place.path + what, json.dumps(value), **given)


@pytest.fixture
def person(monkeypatch):
    """Let a function judge; afterwards it must not have failed."""
    made = []

    def person(judge, **more):
        made.append(Person(judge, **more))
        monkeypatch.setattr("webbrowser.open", made[-1])

    yield person
    assert [one.failure for one in made if one.failure] == []


def answers(path):
    return [(item.answer, item.source) for item in Review.load(path)]


@pytest.mark.slow
def test_each_judgment_is_saved_at_once_and_taken_back(person, tmp_path):
    path = tmp_path / "review.json"
    review = review_of(4)
    review.answer(3, "login", "referee")

    def judge(self):
        status, page = self.request("GET", self.place.path)
        told = data_of(page)
        assert (status, told["live"], told["file"]) == (200, True, "review.json")
        assert "connect-src &#x27;self&#x27;" in page
        assert self.send("judgments", [[0, True, "refund"]]) == (204, "")
        assert answers(path)[:2] == [("refund", "person"), (None, None)]
        self.send("judgments", [[1, True, None], [2, True, "login"], [3, True, "refund"]])
        assert answers(path)[1:] == [(None, "person"), ("login", "person"), ("refund", "person")]
        self.send("judgments", [[1, False, None], [3, False, None]])
        # a page that is loaded again shows what is saved
        told = data_of(self.request("GET", self.place.path)[1])
        assert [item["source"] for item in told["review"]["items"]][:2] == ["person", None]
        assert self.send("done", None)[0] == 204

    person(judge)
    assert judge_on_page(review, str(path), open_page=True)
    assert answers(path) == [
        ("refund", "person"), (None, None), ("login", "person"), ("login", "referee"),
    ]  # fmt: skip


def test_what_somebody_else_saved_meanwhile_is_kept(person, tmp_path):
    """As where the same review is open in two terminals."""
    path = tmp_path / "review.json"
    review_of(4).save(path)

    def elsewhere(self):
        assert self.send("judgments", [[0, True, "refund"]])[0] == 204
        other = Review.load(path)
        other.answer(1, "login")
        other.save(path)

    def judge(self):
        elsewhere(self)
        status, why = self.send("judgments", [[2, True, "login"]])
        assert (status, "was changed meanwhile" in why) == (507, True)
        assert answers(path)[:3] == [("refund", "person"), ("login", "person"), (None, None)]
        path.rename(tmp_path / "kept.json")
        assert self.send("done", None)[0] == 204

    def forget(self):
        elsewhere(self)
        assert self.send("done", None)[0] == 204

    person(judge)
    assert judge_on_page(Review.load(path), str(path), open_page=True)
    assert answers(path)[1:3] == [(None, None), ("login", "person")]
    person(forget)
    assert judge_on_page(Review.load(path), str(path), open_page=True)
    assert answers(path)[1:3] == [("login", "person")] * 2


def test_others_cannot_judge_and_nothing_wrong_is_saved(person, tmp_path):
    path = tmp_path / "gone" / "review.json"

    def judge(self):
        here, base = self.place.netloc, self.place.path
        one = json.dumps([[0, True, "refund"]])
        assert self.request("GET", "/")[0] == 404
        other = "x" if base[1] != "x" else "y"
        assert self.request("GET", f"/{other}{base[2:]}")[0] == 404
        assert self.request("GET", base, Host="evil.example")[0] == 403
        assert self.request("GET", base, Origin="https://evil.example")[0] == 403
        for headers in ({}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
            assert self.request("POST", f"{base}judgments", one, **headers)[0] == 403
            assert self.request("POST", f"{base}done", "null", **headers)[0] == 403
        assert self.request("POST", f"{base}judgments", one, Origin="http://x", Host=here)[0] == 403
        for wrong in ([[0, True, "refnd"]], [[9, True, "refund"]], [[0, True]], [1], 3):
            assert self.send("judgments", wrong)[0] == 400
        # as on a full disk: the page keeps what is not saved, and does not end
        status, told = self.send("judgments", [[0, True, "refund"]])
        assert (status, "review.json cannot be written" in told) == (507, True)
        assert self.send("done", None)[0] == 507
        path.parent.mkdir()
        assert self.send("done", None)[0] == 204

    person(judge, ready=lambda: path.parent.mkdir(exist_ok=True))
    assert judge_on_page(review_of(2), str(path), open_page=True)
    assert answers(path) == [("refund", "person"), (None, None)]


INTERRUPTED = """
import os, signal, sys, webbrowser
from testnuc.cli.answering import judge_on_page
from tests.cli.test_judging_page import Person, review_of

def judge(self):
    self.send("judgments", [[1, True, "login"]])
    os.kill(os.getpid(), signal.SIGINT)

# a process in the background ignores it
signal.signal(signal.SIGINT, signal.default_int_handler)
webbrowser.open = Person(judge)
assert judge_on_page(review_of(2), sys.argv[1], open_page=True)
"""


@pytest.mark.slow
def test_ctrl_c_in_the_terminal_ends_the_page(tmp_path):
    path = tmp_path / "review.json"
    # not in this process, whose signals other tests have handled
    made = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, path],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert answers(path) == [(None, None), ("login", "person")]


@pytest.mark.slow
def test_one_command_from_labels_to_corrected_ones(person, monkeypatch):
    Path("tickets.csv").write_text("text\n" + "\n".join(TEXTS))

    def judge(self):
        items = data_of(self.request("GET", self.place.path)[1])["review"]["items"]
        for at, item in enumerate(items):
            self.send("judgments", [[at, True, true_label(item["text"])]])
        self.send("done", None)

    def labels(path):
        return {row["text"]: row["nuc_label"] for row in rows_of(path)}

    with LoopbackLLM(wrong_at_random) as llm:
        ran("classify", "tickets.csv", *options(llm), "-o", "out.csv")
        person(judge)
        out, err = ran("review", "out.csv", "--open")
        assert "50 of 50 texts are judged, saved in review.json" in err
        assert "50 of 240 texts are judged: 50 by a person" in out
        assert "240 labels, 50 of them judged by a person, written to better.csv" in err
        assert err.splitlines()[-1].startswith("next, ")
        assert not Path("review.html").exists()
        found = labels("better.csv")
        for item in Review.load("review.json"):
            assert found[item.text] == true_label(item.text)
        # in the terminal the last answer goes on as Done does
        monkeypatch.setattr("builtins.input", lambda _: "refund")
        code, _, err = run_here("review", "out.csv", "-n", "2", "--answer")
        assert (code, "written to better-2.csv" in err) == (0, True), err
        # a review that is stopped there is continued or learned from
        lines = iter(["refund", "refund", "q"])
        monkeypatch.setattr("builtins.input", lambda _: next(lines))
        code, _, err = run_here("review", "out.csv", "-n", "3", "--answer", "-o", "third.json")
        assert (code, "2 of 3 texts are judged" in err) == (0, True), err
        assert "still open: 1; to continue: testnuc review third.json --answer\nnext" in err
        # who judges without the results saves, and is told what to do with the file
        Path("out.csv").rename("elsewhere.csv")
        person(lambda self: self.send("done", None))
        code, out, err = run_here("review", "review.json", "--open")
        assert (code, out) == (0, ""), err
        assert "next: testnuc learn out.csv review.json" in err
        # no browser: the page is a file, as before
        monkeypatch.setattr("webbrowser.open", lambda _: False)
        code, _, err = run_here("review", "review.json", "--open")
        assert (code, "open review.html in a browser" in err) == (0, True), err
        assert llm.calls == 240
