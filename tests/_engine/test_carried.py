"""Judgments of another label set: a superset, a renaming, a merge and a split."""

from testnuc import LabelSet
from testnuc._base.checks import hash_text
from testnuc._engine.carried import carried_over
from testnuc.trust.evidence import Judgment

OLD = ("card", "loan", "fee", "rate")


def judged(label, source="person"):
    return Judgment("text", hash_text("text"), label, source, 0.1, 0.1, 10, uniform=True)


def carried(labels, label, was=None, **more):
    new = labels if isinstance(labels, LabelSet) else LabelSet(labels)
    (found,) = carried_over([judged(label, **more)], OLD, new, was or {})
    # the draw stays, also where the answer is lost
    assert (found.probability, found.uniform) == (0.1, True)
    return found.label, found.source


def test_what_was_judged_keeps_its_label_in_a_superset():
    assert carried([*OLD, "app"], "loan") == ("loan", "person")
    # it may be the new label
    assert carried([*OLD, "app"], None) == (None, None)
    assert carried(LabelSet([*OLD, "app"], none_label="fee"), "fee") == (None, None)
    assert carried(OLD, None) == (None, "person")
    assert carried(OLD[::-1], "fee", source="referee") == ("fee", "referee")
    assert carried([*OLD, "app"], None, source=None) == (None, None)


def test_renamed_and_merged_labels_are_followed():
    new, was = ["card", "credit", "cost"], {"credit": ["loan"], "cost": ["fee", "rate"]}
    assert [carried(new, label, was)[0] for label in OLD] == ["card", "credit", "cost", "cost"]
    assert carried(new, None, was) == (None, "person")


def test_a_label_whose_former_name_was_not_there_either_is_new():
    """Judged as none of the labels, a text had none for good."""
    new, was = [*OLD, "billing"], {"billing": ["invoice"]}
    assert carried(new, None, was) == (None, None)
    assert carried(new, "loan", was) == ("loan", "person")


def test_only_judgments_of_labels_that_are_split_or_gone_are_lost():
    new = ["card lost", "card late", "loan", "fee"]
    was = {"card lost": ["card"], "card late": ["card"]}
    assert [carried(new, label, was) for label in OLD] == [
        (None, None),
        ("loan", "person"),
        ("fee", "person"),
        (None, None),
    ]
    # what is left of a label is not what it was
    assert carried([*OLD, "card late"], "card", {"card late": ["card"]}) == (None, None)


def test_what_is_left_open_keeps_the_labels_that_it_may_be():
    def maybe(labels, label, was=None, **more):
        new = labels if isinstance(labels, LabelSet) else LabelSet(labels)
        first = judged(label, **more)
        (found,) = carried_over([first], OLD, new, was or {})
        # stored and read again
        assert Judgment.all_of([found.record()]) == (found,)
        return found.possible

    split = {"card lost": ["card"], "card late": ["card"]}
    new = ["card lost", "card late", "loan", "fee"]
    assert maybe(new, "card", split) == ("card lost", "card late")
    # gone: any
    assert maybe(new, "rate", split) == ()
    assert maybe(new, "loan", split) == ()
    assert maybe([*OLD, "app"], None) == ("app", None)
    assert maybe([*OLD, "app"], None, source=None) == ()
    assert maybe(LabelSet([*OLD, "app"], none_label="fee"), "fee") == ("fee", "app")
    several = LabelSet(["card lost", "card late", "loan"], multilabel=True)
    assert maybe(several, "card; loan", split) == ("card lost", "card late", "loan")
    # and once more
    (first,) = carried_over([judged("card")], OLD, LabelSet(new), split)
    again = {"card": ["card lost"], "late": ["card late"], "lately": ["card late"]}
    labels = LabelSet(["late", "lately", "card", "loan"])
    (second,) = carried_over([first], new, labels, again)
    assert (second.source, second.possible) == (None, ("late", "lately", "card"))


def test_each_of_several_labels_is_followed():
    new = LabelSet(["cost", "card", "loan"], multilabel=True)
    was = {"cost": ["fee", "rate"]}
    assert carried(new, "card; fee", was) == ("cost; card", "person")
    assert carried(new, "rate; fee", was) == ("cost", "person")
    assert carried(new, "", was) == ("", "person")
    assert carried(LabelSet(["card", "loan"], multilabel=True), "card; fee") == (None, None)


def test_a_label_that_was_added_may_apply_besides_those_that_were_judged():
    def possible(old, new, *judgments):
        found = carried_over(judgments, old, LabelSet(new, multilabel=True), {})
        assert [*Judgment.all_of([one.record() for one in found])] == found
        return found

    first = possible(OLD, [*OLD, "app"], judged("card; fee"), judged(""))
    assert [(one.label, one.source, one.possible) for one in first] == [
        ("card; fee", "person", ("app",)),
        ("", "person", ("app",)),
    ]
    # and once more: what was open stays open
    second = possible([*OLD, "app"], [*OLD, "app", "atm"], *first, judged("app"))
    assert [one.possible for one in second] == [("app", "atm"), ("app", "atm"), ("atm",)]
