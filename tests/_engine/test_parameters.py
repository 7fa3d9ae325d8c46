"""One table of parameters: the command line, scikit-learn and the client agree on it."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest

import testnuc
from testnuc import Budget, LabelSet, Limits, Sampling, TestNUC, UncertaintySampling, VotePolicy
from testnuc._engine.components import Components
from testnuc._engine.parameters import GROUPS, client_arguments
from testnuc.testing import HashEmbedder


def defaults(function, without=()):
    """Return the default of each parameter that has one."""
    return {
        p.name: p.default
        for p in inspect.signature(function).parameters.values()
        if p.default is not p.empty and p.name not in without
    }


def grouped_defaults():
    """Return the default of each flat name whose group is a dataclass."""
    found = {f.name: f.default for f in fields(Sampling)} | {"request_options": None}
    return found | {f.name: f.default for f in fields(VotePolicy) if f.name in GROUPS}


def test_the_clients_have_the_parameters_of_the_components_without_the_internals():
    declared = list(inspect.signature(Components).parameters)
    assert declared[0] == "internals"
    for client in (TestNUC, testnuc.SyncTestNUC):
        assert list(inspect.signature(client).parameters) == declared[1:]


def test_options_of_the_command_line_are_in_the_table():
    from testnuc.cli.options import client_options

    known = defaults(TestNUC.__init__) | grouped_defaults()
    known |= defaults(LabelSet.__init__) | {"ask": "all", "head": None}
    rule = UncertaintySampling()
    known |= {"stop": rule.min_agreement, "most": rule.max_fraction}
    known["max_concurrency"] = Limits().concurrency
    for name, option in client_options().items():
        # an embedder that is not named is that of the store, and trust is the head's own; a run is
        # one of a store
        if name in {"labels", "embedder", "head_trust", "run"}:
            continue
        assert name in known or name in GROUPS
        assert option == known.get(name), name


def test_the_classifier_of_scikit_learn_takes_flat_names():
    pytest.importorskip("sklearn")
    from testnuc.sklearn import TestNUCClassifier

    known = {"labels": None} | defaults(TestNUC.__init__) | grouped_defaults()
    known |= defaults(LabelSet.__init__)
    taken = defaults(TestNUCClassifier.__init__)
    assert set(fields_of_sampling := {f.name for f in fields(Sampling)}) <= set(taken)
    assert {name: known[name] for name in taken} == taken
    assert fields_of_sampling


@pytest.mark.parametrize("name", sorted(GROUPS))
def test_a_flat_name_is_refused_with_its_place(name):
    with pytest.raises(testnuc.InvalidInputError, match=rf"{GROUPS[name]}=testnuc\.\w+"):
        TestNUC(["a", "b"], embedder=HashEmbedder(), **{name: 1})


@pytest.mark.parametrize("client", [TestNUC, testnuc.SyncTestNUC])
def test_arguments_that_do_not_fit_are_named_with_the_right_ones(client):
    def refused(words):
        return pytest.raises(TypeError, match=rf"^{client.__name__}: .*{words}")

    with refused(r"'temprature'; .*Sampling\(temperature=\.\.\)"):
        client(["a", "b"], temprature=0.5)
    with refused(r"'batch'; .*Limits\(batches=\.\.\)"):
        client(["a", "b"], batch=True)
    with refused(r"'embeder'; did you mean embedder=\.\.\?"):
        client(["a", "b"], embeder="x")
    with refused(r"'qqqq'$"):
        client(["a", "b"], qqqq=1)
    with refused(r"'labels'$"):
        client()


def test_flat_names_make_the_groups():
    made = client_arguments(
        {
            "labels": ["a", "b"],
            "policy": "filtered",
            "min_trust": 0.8,
            "temperature": None,
            "request_options": None,
            "seed": 7,
            "requests_per_minute": 60,
            "tokens_per_minute": None,
            "budget_usd": 2.0,
        }
    )
    assert made == {
        "labels": ["a", "b"],
        "policy": VotePolicy("similarity", min_confidence=0.7, min_trust=0.8),
        "sampling": Sampling(temperature=None, request_options={"seed": 7}),
        "limits": Limits(60, budget=Budget(usd=2.0)),
    }
    unset = {"policy": "auto", "min_trust": None, "requests_per_minute": None, "budget_usd": None}
    assert client_arguments(unset) == {"policy": "auto", "limits": Limits()}
    assert client_arguments({**unset, "prior": "balanced"})["policy"] == VotePolicy.auto(
        prior="balanced"
    )


def test_a_policy_of_a_client_does_not_weigh_a_single_vote():
    for policy in (VotePolicy.auto(), VotePolicy(prior="balanced"), VotePolicy(min_trust=0.5)):
        with pytest.raises(testnuc.InvalidInputError, match="predictions of a client"):
            testnuc.voting.vote([[0, 1]], [[1.0, 0.5]], n_classes=2, policy=policy)
    with pytest.raises(testnuc.InvalidInputError, match="decides min_confidence"):
        VotePolicy("auto", min_confidence=0.7)


def test_provider_objects_take_what_a_connection_needs():
    model = testnuc.OpenAI(
        "m", api_key="secret", organization="org", project="p",
        headers={"X-Team": "support", "authorization": "Bearer of-a-gateway"}, trust_env=True,
    )  # fmt: skip
    assert model.headers == {
        "Content-Type": "application/json",
        "OpenAI-Organization": "org",
        "OpenAI-Project": "p",
        "X-Team": "support",
        "authorization": "Bearer of-a-gateway",
    }
    assert model.trust_env
    assert "gateway" not in repr(model)
    named = testnuc.Anthropic("m", api_key="secret", headers={"anthropic-beta": "x"})
    assert named.headers["anthropic-beta"] == "x"
    # the connection is in no key: stored predictions stay valid
    assert model.identity == testnuc.OpenAI("m", api_key="other").identity
    for wrong in ("X-Team", {"X-Team": 7}, {"X Team": "a"}, {"X-Team": "a\r\nb"}):
        with pytest.raises(testnuc.InvalidInputError, match="header"):
            testnuc.OpenAI("m", api_key="secret", headers=wrong)
