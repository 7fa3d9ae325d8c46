"""Evaluation: reproduce the paper's tables and plots with your own data and model.

::

    dataset = load("banking77", data_dir="data")
    recording = await record(dataset, model="openai/gpt-4o-mini", store="answers.db")
    table = accuracy_over_k(recording)          # a pandas table
    plot(table).savefig("accuracy_over_k.png")  # matplotlib

`record` calls the LLM once per text. The studies then work on arrays of predictions and neighbors,
and take seconds each. The extra ``plots`` installs pandas and matplotlib, the extra ``data`` the
download of the paper's datasets.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testnuc.evaluation.costs import Cost, measure_costs
    from testnuc.evaluation.datasets import (
        PAPER_DATASETS,
        Dataset,
        load,
        paper_accuracy,
        paper_tables,
    )
    from testnuc.evaluation.neighborhoods import (
        Neighborhood,
        gold_votes,
        gold_votes_over_k,
        leave_one_out,
        nearest,
        purity,
        purity_over_k,
        splits,
    )
    from testnuc.evaluation.plots import plot
    from testnuc.evaluation.recording import Recording, embedded, record, record_runs
    from testnuc.evaluation.scores import MultilabelScores, score_multilabel
    from testnuc.evaluation.studies import (
        accuracy_of_the_choice,
        accuracy_over_embedders,
        accuracy_over_k,
        accuracy_over_policies,
        accuracy_over_pool_size,
        accuracy_with_foreign_texts,
        consistency,
        voted_runs,
    )

_HOMES = {
    "costs": ("Cost", "measure_costs"),
    "datasets": ("PAPER_DATASETS", "Dataset", "load", "paper_accuracy", "paper_tables"),
    "neighborhoods": (
        "Neighborhood",
        "gold_votes",
        "gold_votes_over_k",
        "leave_one_out",
        "nearest",
        "purity",
        "purity_over_k",
        "splits",
    ),
    "scores": ("MultilabelScores", "score_multilabel"),
    "plots": ("plot",),
    "recording": ("Recording", "embedded", "record", "record_runs"),
    "studies": (
        "accuracy_of_the_choice",
        "accuracy_over_embedders",
        "accuracy_over_k",
        "accuracy_over_policies",
        "accuracy_over_pool_size",
        "accuracy_with_foreign_texts",
        "consistency",
        "voted_runs",
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "PAPER_DATASETS",
    "Cost",
    "Dataset",
    "MultilabelScores",
    "Neighborhood",
    "Recording",
    "accuracy_of_the_choice",
    "accuracy_over_embedders",
    "accuracy_over_k",
    "accuracy_over_policies",
    "accuracy_over_pool_size",
    "accuracy_with_foreign_texts",
    "consistency",
    "embedded",
    "gold_votes",
    "gold_votes_over_k",
    "leave_one_out",
    "load",
    "measure_costs",
    "nearest",
    "paper_accuracy",
    "paper_tables",
    "plot",
    "purity",
    "purity_over_k",
    "record",
    "record_runs",
    "score_multilabel",
    "splits",
    "voted_runs",
]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'testnuc.evaluation' has no attribute {name!r}")
    # a submodule and its function can have the same name
    value: object = getattr(import_module(f"testnuc.evaluation.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
