"""The label whose tokens are most probable, whatever the reply says."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import testnuc
from testnuc import Sampling
from testnuc.errors import BadRequestError, UnreadableReplyError
from testnuc.providers.openai import OpenAI
from testnuc.testing import HashEmbedder, LoopbackLLM
from tests.providers.chat_bodies import LOCAL, adapts, completion, refuse, request, sent

SCORED = {"confidence": "logprobs", "score_labels": True}


def token(text, probability, *others):
    listed = [
        {"token": t, "logprob": math.log(p), "bytes": list(t.encode())}
        for t, p in ((text, probability), *others)
    ]
    return {**listed[0], "top_logprobs": listed}


def decoded(labels, *tokens, **facts):
    content = "".join(t["token"] for t in tokens)
    body = completion(content, logprobs={"content": list(tokens)})
    asked = request(labels=labels, **SCORED, **facts)
    return OpenAI("m", base_url=LOCAL).decode(asked, body).answers[0]


START, END = token('{"label": "', 0.1), token('"}', 1.0)


def test_alternatives_are_asked_for_at_temperature_0():
    body = sent(OpenAI("m", base_url=LOCAL), request(**SCORED))
    assert (body["logprobs"], body["top_logprobs"], body["temperature"]) == (True, 20, 0.0)
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["label"]
    assert "top_logprobs" not in sent(OpenAI("m", base_url=LOCAL), request(confidence="logprobs"))


def test_an_alternative_that_is_more_probable_than_the_reply_wins():
    said = token("re", 0.2, ("log", 0.5), ("del", 0.1), ("x", 0.2))
    answer = decoded(["refund", "login", "delivery"], START, said, token("fund", 0.9), END)
    assert answer.label == "login"
    assert answer.confidence == pytest.approx(0.5 / 0.8)


def test_probabilities_in_place_of_their_logarithms_are_none():
    def said(*, scored):
        # each would be certain, and the first label would be that of every text
        listed = [{"token": t, "logprob": p} for t, p in (("login", 0.9), ("refund", 0.1))]
        tokens = [START, {**listed[0], "top_logprobs": listed}, END]
        body = completion('{"label": "login"}', logprobs={"content": tokens})
        return OpenAI("m", base_url=LOCAL).decode(
            request(labels=["refund", "login"], confidence="logprobs", score_labels=scored), body
        )

    with pytest.raises(UnreadableReplyError, match="has no log-probabilities"):
        said(scored=True)
    (answer,) = said(scored=False).answers
    assert (answer.label, answer.confidence) == ("login", None)
    # others round a certain token
    answer = decoded(["refund", "login"], START, {"token": "login", "logprob": 1e-6}, END)
    assert answer.label == "login"


def test_labels_that_begin_alike_part_where_they_differ():
    labels = ["cancel order", "cancel subscription", "refund"]
    way = [token("cancel", 0.8, ("ref", 0.1)), token(" order", 0.3, (" sub", 0.6))]
    answer = decoded(labels, START, *way, END)
    assert answer.label == "cancel subscription"
    assert answer.confidence == pytest.approx(0.48 / (0.48 + 0.24 + 0.1))
    # an alternative that leads to two labels is shared by them
    answer = decoded(labels, START, token("refund", 0.3, ("cancel", 0.5)), END)
    assert (answer.label, answer.confidence) == ("refund", pytest.approx(0.3 / 0.8))


def test_a_label_may_be_the_beginning_of_another_and_share_a_token_with_a_quote():
    labels = ["refund", "refund status", "login"]
    opening = token('{"label": ', 0.5)
    first = token('"ref', 0.9, ('"log', 0.1))
    ends = token('und"', 0.2, ("und ", 0.7))
    answer = decoded(labels, opening, first, ends, token("}", 1.0))
    assert answer.label == "refund status"
    assert answer.confidence == pytest.approx(0.63 / (0.63 + 0.18 + 0.1))


def test_a_label_outside_the_set_stays_as_the_model_said_it():
    answer = decoded(["refund", "login"], START, token("else", 0.4), END)
    assert (answer.label, answer.confidence) == ("else", pytest.approx(0.4))


@pytest.mark.parametrize(
    ("label", "tokens"),
    [
        ("Refund", ["re", "fund"]),
        ("été", ["\\u00e9", "t\\u00e9"]),
        ("card lost", ["card", "_lost"]),
    ],
)
def test_a_label_in_another_case_or_with_escapes_is_that_label(label, tokens):
    first, second = tokens
    said = [token(first, 0.9, ("log", 0.05)), token(second, 1.0)]
    labels = testnuc.LabelSet([label, "login"])
    answer = decoded(labels.names, START, *said, END, same=labels.same)
    assert answer.label == label
    assert answer.confidence == pytest.approx(0.9 / 0.95)


@pytest.mark.slow
@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=2, max_size=6, unique=True),
    st.data(),
)
def test_scores_are_those_of_the_whole_tree(labels, data):
    """With all alternatives at each character, a score is the chance of the way to its label."""
    said = data.draw(st.sampled_from(labels))
    alphabet, way = 'ab"', []
    for character in f'{said}"':
        weights = data.draw(st.lists(st.integers(1, 9), min_size=3, max_size=3))
        chance = {c: w / sum(weights) for c, w in zip(alphabet, weights, strict=True)}
        others = [(c, p) for c, p in chance.items() if c != character]
        way.append((character, chance, token(character, chance[character], *others)))

    def score(label):
        """Follow the reply until the label leaves it, or is the only one left."""
        total, beginning = 1.0, ""
        for character, (reply, chance, _) in zip(f'{label}"', way, strict=False):
            beginning += character
            total *= chance[character]
            alike = [one for one in labels if f'{one}"'.startswith(beginning)]
            if character != reply or len(alike) == 1:
                return total / len(alike)
        return total

    scores = {label: score(label) for label in labels}
    answer = decoded(labels, START, *(token for *_, token in way), token("}", 1.0))
    assert scores[answer.label] == pytest.approx(max(scores.values()))
    assert answer.confidence == pytest.approx(scores[answer.label] / sum(scores.values()))


def test_a_server_without_log_probabilities_ends_the_run():
    provider, asked = OpenAI("m", base_url=LOCAL), request(**SCORED)
    with pytest.raises(UnreadableReplyError, match="--logits_all true") as caught:
        provider.decode(asked, completion())
    assert (caught.value.fatal, caught.value.retryable) == (True, False)
    assert caught.value.usage.output_tokens == 7
    sent(provider, asked)
    error = refuse(
        provider, "logprobs is not supported for models created with logits_all=False", 500
    )
    assert isinstance(error, BadRequestError)
    assert not adapts(provider, error)


@pytest.mark.parametrize(("per_call", "calls"), [(1, 3), (3, 1)])
async def test_a_run_gives_the_most_probable_labels(per_call, calls):
    answers = {"a": ("x", 0.9), "b": ("x", 0.1), "c": ("z", 0.4)}
    sampling = Sampling(score_labels=True, texts_per_call=per_call)
    settings = {"embedder": HashEmbedder(), "k": 0, "sampling": sampling}
    async with LoopbackLLM(answers) as llm:
        async with testnuc.TestNUC(
            ["x", "y", "z"], "openai/m", base_url=llm.base_url, **settings
        ) as nuc:
            found = {r.text: r.prediction for r in await nuc.classify_many(list(answers))}
        assert llm.calls == calls
    assert {text: said.label for text, said in found.items()} == {"a": "x", "b": "y", "c": "z"}
    assert [found[t].confidence for t in "abc"] == pytest.approx([0.9, 0.45, 0.4])
