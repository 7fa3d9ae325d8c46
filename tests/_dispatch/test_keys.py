"""Keys of predictions: those of version 0.1.0, whose stores must stay valid."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testnuc._dispatch.predictor import Predictor
from testnuc.labels import LabelSet
from testnuc.methods import Sampling
from testnuc.prompts.writing import Demonstration, text_json, user_prompt, user_prompt_start
from tests._engine.engine_parts import NoProvider


def predictor(instructions="Be strict.", **more):
    sampling = Sampling(request_options={"max_tokens": 50}, **more)
    labels = LabelSet(["refund", "delivery"])
    return Predictor(NoProvider(), None, labels, sampling, instructions=instructions)


@pytest.mark.parametrize(
    ("text", "sample", "shown", "key"),
    [
        ("hello", 0, (), "6cccd31825bb8b838f059f6ea35c459a"),
        ("hello", 3, (), "1c72326ff8048185cc86bb8a3e52549c"),
        ("", 0, (), "676800fe6a55bbd7b89529510be84af6"),
        (
            'line\nline\r\n\ttab "quoted" \\ back',
            0,
            (),
            "5f4e8b8a935561070601fd90172c5a47",
        ),
        (
            "caf\u00e9 \u65e5\u672c\u8a9e \U0001f600",
            1,
            (),
            "e8e12100da04458a3555ec1aa0aa4e71",
        ),
        (
            "unseen \x7f\x85\u2028\u2029 \x00\x1f",
            0,
            (),
            "a0578d064660f0bb88e7df14f2c1cfd5",
        ),
        ("hello", 0, (Demonstration("shown"),), "76c81617722ccc3ab05d990086986089"),
        ("hello", 0, (Demonstration("shown", "refund"),), "129d3e455e30f61681ebe5b6ee56ae29"),
        (
            "caf\u00e9\n",
            70_000,
            (
                Demonstration("a\u2028b", "delivery"),
                Demonstration("\u65e5"),
                Demonstration("x\ny", "refund"),
            ),
            "e1a12e0b6bbe0ab638795750948bce2c",
        ),
    ],
)
def test_keys_are_those_of_the_first_version(text, sample, shown, key):
    made = predictor()
    # twice: a key must not depend on the keys computed before
    for _ in range(2):
        assert made.key(text, sample, shown).hex() == key
        assert made.ask(text, b"h" * 16, 7, sample, shown).key.hex() == key


def test_scopes_and_keys_of_kinds_are_those_of_the_first_version():
    made = predictor()
    assert made.scope.hex() == "23fed31892b28ea539fe39494fc876e0"
    assert made.key_of("kind/3", b"h" * 16).hex() == "fc8ce40fda8adbec2e2eb333fd4274da"
    packed = predictor(texts_per_call=4, temperature=None, instructions=None)
    assert packed.scope.hex() == "119d9535092f47053ab048ef246fb691"
    assert packed.key("hello").hex() == "8a6444ef8a7942c470b2d773140b166c"


texts = st.text(st.characters(exclude_categories=["Cs"]))
shown = st.lists(st.builds(Demonstration, texts, st.none() | texts), max_size=3)


@given(texts, shown)
def test_the_parts_of_a_key_are_the_prompt(text, demonstrations):
    parts = user_prompt_start(demonstrations) + text_json(text)
    assert parts.decode() == user_prompt([text], demonstrations)


def test_scored_labels_have_keys_of_their_own():
    keys = {
        predictor(**more).key("hello").hex()
        for more in (
            {},
            {"confidence": "logprobs"},
            {"score_labels": True},
            {"score_labels": False},
        )
    }
    assert len(keys) == 3
    assert "6cccd31825bb8b838f059f6ea35c459a" in keys


def test_an_effort_is_in_the_key_if_it_is_set():
    keys = {
        predictor(**({} if effort == "default" else {"reasoning_effort": effort})).key("hello")
        for effort in ("default", "least", None, "low", "high")
    }
    assert len(keys) == 4
    assert predictor().key("hello").hex() == "6cccd31825bb8b838f059f6ea35c459a"
