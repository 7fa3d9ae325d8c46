"""What stands out in a label set."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from testnuc.errors import InvalidInputError
from testnuc.results import Results
from testnuc.trust.label_check import checked_labels, grouped
from testnuc.types import (
    UNKNOWN,
    Classification,
    Neighbor,
    Prediction,
)

NAMES = ("refund", "money back", "delivery", "login", "account", "unused")
#: Texts of a topic are next to each other; two labels are of one topic.
TOPICS = (("refund", "money back"), ("delivery",), ("login",), ("account",))
N, PER_TOPIC = 400, 100


def rows(label_of, per_topic=PER_TOPIC):
    """Return results: neighbors are of the same topic, the nearest are near copies."""
    labels = [label_of(at) for at in range(N)]
    made = []
    for at in range(N):
        start = at // per_topic * per_topic
        near = [start + (at - start + step) % per_topic for step in range(1, 11)]
        neighbors = tuple(
            Neighbor(f"text {other}", 0.999 - 0.003 * rank, labels[other], None)
            for rank, other in enumerate(near)
        )
        own = Prediction(labels[at], said=None if labels[at] else "Chargeback!")
        made.append(
            Classification(
                at, f"text {at}", labels[at], 1.0, 1.0, 1, True, own, neighbors=neighbors
            )
        )
    return made


def confused(at):
    choices = TOPICS[at // PER_TOPIC]
    return choices[int(np.random.default_rng(at).random() < 0.5) % len(choices)]


def test_labels_that_cannot_be_told_apart_are_found():
    found = checked_labels(rows(confused), NAMES)
    (pair,) = found.pairs
    assert {pair.first, pair.second} == {"refund", "money back"}
    # half of the neighbors of a quarter of the texts
    assert pair.share == pytest.approx(0.125, abs=0.02)
    assert pair.lift > 2
    assert found.by_chance < 0.02
    assert found.proved
    assert len(pair.examples) == 3
    labels = [confused(int(text.split()[1])) for example in pair.examples for text in example]
    assert labels == [pair.first, pair.second] * 3
    assert len({text for example in pair.examples for text in example}) == 6
    assert found.never == ("unused",)
    assert found.notice == (
        "1 of 6 labels: never given by the LLM (unused); pairs of labels that are confused: 1, "
        "such as 'refund' and 'money back'"
    )
    for said in ("gains up to about 12", "refund | money back", "text ", "labels: never given"):
        assert said in str(found)


def test_labels_that_near_copies_tell_apart_raise_no_alarm():
    def in_fives(at):
        choices = TOPICS[at // PER_TOPIC]
        return choices[at % PER_TOPIC // 5 % len(choices)]

    # texts next to each other have both labels, near copies have one
    made = [
        replace(
            row,
            neighbors=tuple(
                replace(near, similarity=near.similarity - 0.2 * (near.label != row.label))
                for near in row.neighbors
            ),
        )
        for row in rows(in_fives)
    ]
    found = checked_labels(made, NAMES)
    assert len(found.pairs) == 1
    assert not found.proved
    assert "judge some texts before you merge" in str(found)
    assert found.notice == "1 of 6 labels: never given by the LLM (unused)"


def test_one_label_for_each_topic_leaves_nothing_to_merge():
    found = checked_labels(rows(lambda at: TOPICS[at // PER_TOPIC][0]), NAMES)
    assert found.pairs == ()
    assert "no pair of labels stands out" in str(found)
    assert found.notice == "2 of 6 labels: never given by the LLM (money back, unused)"


def test_shuffled_labels_raise_no_alarm():
    shuffled = np.random.default_rng(0).choice(NAMES, N)
    found = checked_labels(rows(lambda at: str(shuffled[at])), NAMES)
    assert not found.proved
    assert found.notice is None


def test_answers_outside_the_labels_are_grouped():
    made = rows(lambda at: None if at % 10 == 0 else confused(at))
    made[0] = replace(made[0], prediction=Prediction(None, said="chargeback"))
    made[10] = replace(made[10], prediction=Prediction(None, said="weather"))
    found = checked_labels(made, NAMES)
    assert found.outside == {"Chargeback!": 39, "weather": 1}
    assert "answers outside the labels that say 'Chargeback!': 39" in str(found)
    assert "answers outside the labels that say 'weather': 1" in str(found)


def test_answers_that_are_not_listed_are_counted():
    outside = {f"answer {number}": 20 - number for number in range(10)}
    lines = str(replace(checked_labels([], NAMES), outside=outside)).splitlines()
    assert lines[-2:] == [
        "answers outside the labels that say 'answer 7': 13",
        "answers outside the labels that say something else: 23",
    ]


def test_spellings_of_an_answer_are_one():
    said = ["chargeback"] * 3 + ["Charge back", "chargebacks!", "chargeback request", "charge_back"]
    assert grouped([*said, "card", "card lost", "The issue", "?", None]) == {
        "chargeback": 7, "card": 1, "card lost": 1, "The issue": 1, "?": 1,
    }  # fmt: skip


def test_answers_that_mean_the_same_are_one():
    outside = {"chargeback": 5, "login": 4, "payment reversal": 3, "reversal": 2, "rest": 1}
    vectors = [[1.0, 0.0], [0.0, 1.0], [0.9, 0.4], [0.6, 0.8]]
    # some embedders return vectors that are longer
    for norm in (1, 240):
        long = norm * np.array(vectors)
        found = replace(checked_labels([], NAMES), outside=outside).grouped(long)
        # the last is like the third, which is one with the first
        assert found.outside == {"chargeback": 10, "login": 4, "rest": 1}
    assert replace(found, outside={}).grouped(np.empty((0, 2))).outside == {}


def test_a_label_that_swallows_others_is_named():
    # topics of 20 texts; a third of three of them is said to be of another topic
    names = [f"topic {number}" for number in range(20)]

    def label_of(at):
        topic = at // 20
        return names[0 if topic < 4 and at % 3 == 0 else topic]

    found = checked_labels(rows(label_of, per_topic=20), names)
    assert found.swallowing.keys() == {"topic 0"}
    assert set(found.swallowing["topic 0"]) == set(names[1:4])
    assert "topic 0 is given often, and may swallow topic" in str(found)


def test_rare_labels_are_named():
    found = checked_labels(rows(lambda at: "unused" if at == 7 else confused(at)), NAMES)
    assert found.rare == {"unused": 1}
    assert "labels that hardly occur: unused (1)" in str(found)


def test_that_no_text_is_none_of_these_is_no_fault():
    """A label that is there for texts that fit no other was said to be never given."""
    for label_of in (confused, lambda at: "unused" if at == 7 else confused(at)):
        results = Results(rows(label_of), UNKNOWN, 0.0, choices=NAMES, none_label="unused")
        found = results.check_labels()
        assert (found.never, found.rare) == ((), {})
        assert "never given" not in str(found)
        assert "hardly occur" not in str(found)
        assert "never given" not in found.notice


def test_judged_texts_confirm():
    made = rows(confused)
    judged = [
        SimpleNamespace(
            text=row.text, label="refund" if row.label == "money back" else "money back"
        )
        for row in made[:5]
    ]
    judged.append(SimpleNamespace(text="text 150", label="login"))
    found = checked_labels(made, NAMES, SimpleNamespace(judged=judged))
    assert found.pairs[0].confirmed == 5
    assert "confirmed by judgments" in str(found)
    assert "confirmed" not in str(checked_labels(made, NAMES))


def test_nothing_is_said_without_neighbors_or_of_two_labels():
    made = rows(confused)
    alone = [replace(row, neighbors=()) for row in made]
    assert checked_labels(alone, NAMES).pairs == ()
    assert checked_labels(made[:100], NAMES[:2]).pairs == ()
    assert checked_labels([], ()).notice is None
    # without the label set, the labels are those that occur
    assert Results(made, UNKNOWN, 0.0).check_labels().never == ()


def test_several_labels_are_refused():
    with pytest.raises(InvalidInputError, match="where a text can have several"):
        checked_labels([replace(row, shares={}) for row in rows(confused)], NAMES)
