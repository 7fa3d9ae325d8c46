"""Flat parameter names, such as ``temperature``, and the arguments of `TestNUC` they belong to.

The command line, its settings file and the scikit-learn classifier take flat names;
`client_arguments` groups them. `TestNUC` itself takes the groups; its error for a flat name names
the group to use.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from typing import Any, Concatenate, ParamSpec

from testnuc._base.checks import checked_choice, checked_whole
from testnuc.errors import InvalidInputError
from testnuc.head import Head
from testnuc.labels import LabelSet
from testnuc.limits.policies import Budget, Limits
from testnuc.methods import Sampling, StandardPrompting
from testnuc.protocols import Method
from testnuc.trust.auto_policy import given_policy
from testnuc.trust.evidence import Referee
from testnuc.trust.uncertainty import UncertaintySampling
from testnuc.voting import VotePolicy

P = ParamSpec("P")

#: Flat name -> the argument of `TestNUC` that has it as a field.
GROUPS = {
    **{field.name: "sampling" for field in fields(Sampling)},
    "seed": "sampling",
    **dict.fromkeys(("prior", "prior_power", "min_trust", "threshold"), "policy"),
    **dict.fromkeys(("headers", "organization", "project", "trust_env"), "model"),
    **dict.fromkeys(("prompt_cache_key", "prompt_cache_retention", "responses"), "model"),
    **dict.fromkeys(("requests_per_minute", "tokens_per_minute", "max_concurrency"), "limits"),
    **dict.fromkeys(("rate_limit", "retry", "budget", "batches"), "limits"),
    **dict.fromkeys(("budget_usd", "budget_tokens", "budget_calls"), "limits"),
    **dict.fromkeys(("none_label", "multilabel", "former"), "labels"),
    **dict.fromkeys(("ask", "stop", "most", "head", "head_trust"), "labeler"),
    "escalate": "referee",
}

#: Flat name -> the field, if it is called otherwise.
_FIELDS = {
    **dict.fromkeys(("budget_usd", "budget_tokens", "budget_calls"), "budget"),
    "head_trust": "least_trust",
    "max_concurrency": "concurrency",
    "most": "max_fraction",
    "rate_limit": "requests_per_minute",
    "stop": "min_agreement",
}

#: How to write a group, or a flat name, in code, with a gap for the field name.
_WRITTEN = {
    "sampling": "sampling=testnuc.Sampling({}=..)",
    "seed": "sampling=testnuc.Sampling(request_options={{'{}': ..}})",
    "policy": "policy=testnuc.VotePolicy.auto({}=..)",
    "model": "model=testnuc.OpenAI('..', {}=..)",
    "limits": "limits=testnuc.Limits({}=..)",
    "labels": "labels=testnuc.LabelSet([..], {}=..)",
    "labeler": "labeler=testnuc.UncertaintySampling({}=..)",
    "ask": "labeler=testnuc.UncertaintySampling()",
    "head": "labeler=testnuc.Head.load('..')",
    "head_trust": "labeler=testnuc.Head.load('..', {}=..)",
    "referee": "referee=testnuc.Referee('..', {}=..)",
}

#: What several labels have instead.
_WHY = {
    "method": ": only StandardPrompting()",
    "confidence": ": the LLM states its confidence in each label",
    "min_trust": ", but a threshold of the policy",
}


def client_arguments(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `TestNUC` for flat names of `GROUPS`; others stay as they are."""
    given = {name: value for name, value in flat.items() if name not in GROUPS}
    groups: dict[str, dict[str, Any]] = {}
    for name, value in flat.items():
        if name in GROUPS:
            groups.setdefault(GROUPS[name], {})[name] = value
    for group, values in groups.items():
        made = _MAKERS[group](values, given.get(group))
        if made is not None:
            given[group] = made
    return given


def takes_arguments_of(
    parts: Callable[Concatenate[Any, Any, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a constructor the parameters of `Components`, without the internals.

    A flat name raises an error that names the right argument.
    """

    def decorate(init: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        known = signature(parts)
        names = [name for name in known.parameters if name != "internals"]
        public = known.replace(parameters=[known.parameters[name] for name in names])

        @wraps(init)
        def checked(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
            wrong = next((name for name in kwargs if name not in names), "")
            if wrong in GROUPS:
                raise InvalidInputError(f"{wrong} is not an argument; give {_written(wrong)}")
            try:
                public.bind(self, *args, **kwargs)
            except TypeError as exc:
                close = get_close_matches(wrong, [*names, *GROUPS], 1)
                hint = f"; did you mean {_written(close[0])}?" if close else ""
                raise TypeError(f"{type(self).__name__}: {exc}{hint}") from None
            init(self, *args, **kwargs)

        checked.__signature__ = public  # type: ignore[attr-defined]
        return checked

    return decorate


def _written(name: str) -> str:
    """Return how to write an argument, or a flat name, in code."""
    where = _WRITTEN.get(name, _WRITTEN[GROUPS[name]]) if name in GROUPS else "{}=.."
    return where.format(_FIELDS.get(name, name))


def _labels(values: Mapping[str, Any], labels: Any) -> LabelSet | None:
    """Return the set of the labels; None: unchanged."""
    plain = values.get("none_label") is None and values.get("multilabel", False) is False
    unchanged = (plain and not values.get("former")) or isinstance(labels, LabelSet)
    return None if unchanged else LabelSet(labels, **values)


def _sampling(values: Mapping[str, Any], sampling: Any) -> Sampling:
    own = dict(values)
    seed = own.pop("seed", None)
    if seed is not None or own.get("request_options", {}) is None:
        # the provider's own option, as in code
        extra = {} if seed is None else {"seed": checked_whole("seed", seed, least=0)}
        own["request_options"] = {**(own.get("request_options") or {}), **extra}
    # the command line has no numbers among words
    size = own.get("shortlist")
    if isinstance(size, str) and size.isdecimal():
        own["shortlist"] = int(size)
    return replace(Sampling() if sampling is None else sampling, **own)


def _policy(values: Mapping[str, Any], policy: Any) -> VotePolicy | None:
    """Return the policy with the given fields replaced; None: unchanged."""
    own = {name: value for name, value in values.items() if value is not None}
    if not own:
        return None
    return replace(given_policy("auto" if policy is None else policy), **own)


def _limits(values: Mapping[str, Any], _: Any) -> Limits:
    given = {name: value for name, value in values.items() if value is not None}
    part = "budget_"
    budget = {name.removeprefix(part): given.pop(name) for name in [*given] if part in name}
    own = {_FIELDS.get(name, name): value for name, value in given.items()}
    if budget:
        own["budget"] = Budget(**budget)
    return Limits(**own)


def _labeler(values: Mapping[str, Any], _: Any) -> UncertaintySampling | Head | None:
    """Return what labels besides the LLM; None: nothing does."""
    head, trust, ask = values.get("head"), values.get("head_trust"), values.get("ask", "all")
    checked_choice("ask", ask, ("all", "unsure"))
    if head is not None and ask == "unsure":
        raise InvalidInputError("ask is 'unsure', but a head labels the texts; leave out one")
    if head is not None:
        return Head.load(head, least_trust=trust)
    if trust is not None:
        raise InvalidInputError("head_trust needs a head, a file from `testnuc distill`")
    own = {_FIELDS[name]: values[name] for name in ("stop", "most") if name in values}
    return UncertaintySampling(**own) if ask == "unsure" else None


_MAKERS: dict[str, Callable[[Mapping[str, Any], Any], Any]] = {
    "labels": _labels,
    "sampling": _sampling,
    "policy": _policy,
    "limits": _limits,
    "labeler": _labeler,
    # with its part of the texts
    "referee": lambda values, given: None if given is None else Referee(given, **values),
}


def check_options(
    labels: LabelSet,
    policy: VotePolicy,
    model: object,
    method: Method | None,
    sampling: Sampling,
    referee: Referee | None,
    labeler: object,
) -> None:
    """Raise an `InvalidInputError` if an option is not supported with or without several labels."""
    if not labels.multilabel:
        if policy.threshold is not None:
            raise InvalidInputError(
                f"threshold is {policy.threshold!r}, but a text has one label, which needs none; "
                "leave threshold out, or set multilabel=True"
            )
        return
    if model == "local/zero-shot":
        raise InvalidInputError(
            "model 'local/zero-shot' gives one label; with multilabel=True choose an LLM"
        )
    supported = {
        "method": (method, method is None or isinstance(method, StandardPrompting)),
        "confidence": (sampling.confidence, sampling.confidence == "verbalized"),
        "shortlist": (sampling.shortlist, sampling.shortlist in {"auto", None}),
        "score_labels": (sampling.score_labels, not sampling.score_labels),
        "escalate": (referee and referee.escalate, referee is None or not referee.escalate),
        "labeler": (labeler, labeler == "llm" or isinstance(labeler, Head)),
        "prior": (policy.prior, policy.prior is None),
        "min_trust": (policy.min_trust, policy.min_trust is None),
    }
    for name, (value, fits) in supported.items():
        if not fits:
            raise InvalidInputError(
                f"{name} is {value!r}, which multilabel=True does not support{_WHY.get(name, '')}; "
                f"leave {name} out"
            )
