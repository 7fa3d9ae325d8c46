"""The benchmark of several labels: what it counts of answers and results, and the default."""

from __future__ import annotations

import numpy as np
import orjson
import pytest

from bench._scikit_llm import _Answers, _cells, against_scikit_llm
from bench._unions import simulated_unions
from testnuc.testing.server import HTTPRequest


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")
def test_labels_of_the_answers_arrive_whole_and_in_order():
    one, packed, *_ = against_scikit_llm(40, 8).rows
    assert one["calls"] > packed["calls"] > 0
    for row in (one, packed):
        assert (row["labels not said"], row["labels lost"], row["order"]) == (0, 0, 40)


def test_faults_are_counted():
    answers = {"a": ["x", "new", "y"], "b": ["y"]}
    cells = _cells(["a", "b"], ["x", "y", "z"], answers, 2, 100, [["y", "z"], ["y"]])
    assert cells == {
        "calls": 2,
        "tokens a text": 50,
        "labels not said": 1,
        "labels lost": 1,
        "order": 1,
    }
    server = _Answers(answers)
    body = {"messages": [{"role": "user", "content": "Text sample: ```a```"}]}
    said = orjson.loads(server.respond(HTTPRequest("POST", "/", {}, orjson.dumps(body))).body)
    content = orjson.loads(said["choices"][0]["message"]["content"])
    assert content == {"label": ["x", "new", "y"]}
    assert (server.calls, server.tokens) == (1, 5)


@pytest.mark.slow
def test_the_default_gives_the_labels_of_the_llm():
    data = simulated_unions(300, 6, 5, 0.2, 0.3, 0.5)
    scores, _ = data.scores()
    given = np.zeros_like(data.said)
    given[scores.vote.rows[scores.vote.given], scores.vote.label[scores.vote.given]] = True
    assert (given == data.said).all()
