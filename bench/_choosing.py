"""How many judgments the choice among recorded runs takes, and how often it is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from bench._report import Report
from testnuc.trust.choice import Choice
from testnuc.types import Classification, Prediction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

_SETS = {
    "security_requirements": ("gpt-4o-mini", "mistral", "mistral-nemo"),
    "babe_media_bias": ("gpt-4", "gpt-3.5"),
    "banking77_test": ("qwen3-1.7b", "qwen2.5-7b"),
}
_MARGIN, _ERROR, _ROUND = 0.02, 0.05, 10
#: Sizes of random samples that are tried.
_SIZES = np.arange(10, 1001, 10)


def _read(folder: Path, name: str, models: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the distinct texts of a set, as each model labels them."""
    found = {}
    for model in models:
        lines = (folder / "predictions" / f"{name}.{model}.jsonl").read_bytes().splitlines()
        rows = [orjson.loads(line) for line in reversed(lines)]
        found[model] = [*{row["text"]: row for row in rows}.values()]
    return found


def results_of(rows: Sequence[Mapping[str, Any]]) -> list[Classification]:
    """Return recorded answers as results."""
    return [
        Classification(
            index=at, text=row["text"], label=row["prediction"], share=0, margin=0, voters=1,
            complete=True, prediction=Prediction(row["prediction"]),
        )
        for at, row in enumerate(rows)
    ]  # fmt: skip


def _decided(
    runs: Mapping[str, Sequence[Classification]], gold: Mapping[str, str], order: Sequence[str]
) -> Choice:
    """Judge texts in rounds of ten until a run is chosen."""
    review = None
    while True:
        # as `choose` does, in this order
        choice = Choice(runs, review, order, None)
        choice.decide(_MARGIN, 1 - _ERROR, {}, cheapest=False)
        if choice.chosen is not None or not choice.open:
            return choice
        review = choice.review(_ROUND)
        for item in review:
            if item.source is None:
                label = gold[item.text]
                review.answer(item.index, label if label in review.labels else None)


def _fixed(right: NDArray[np.bool_], rng: np.random.Generator) -> tuple[NDArray[np.int64], ...]:
    """Return what random samples of each size prove, all of them judged: the run, -1 = nothing.

    First by an exact paired test, then by the normal approximation.
    """
    from scipy.stats import binom, norm

    order = rng.permutation(right.shape[1])[: _SIZES[-1]]
    sizes = _SIZES[len(order) >= _SIZES]
    error = _ERROR / (len(right) - 1)
    exact, normal = np.full((2, len(sizes)), -1)
    for one in range(len(right)):
        both = np.ones((2, len(sizes)), np.bool_)
        for other in set(range(len(right))) - {one}:
            wins = (right[one] & ~right[other])[order].cumsum()[sizes - 1]
            losses = (right[other] & ~right[one])[order].cumsum()[sizes - 1]
            # one of two that differ by the margin wins at most so often where they differ
            both[0] &= binom.sf(wins - 1, wins + losses, (1 - _MARGIN) / 2) <= error
            mean, spread = (wins - losses) / sizes, (wins + losses) / sizes
            error_of = np.sqrt(np.maximum(spread, _MARGIN) / sizes)
            both[1] &= (mean + _MARGIN) / error_of >= norm.isf(error)
        exact[both[0] & (exact < 0)] = one
        normal[both[1] & (normal < 0)] = one
    return exact, normal


def _needed(found: NDArray[np.int64], rate: float) -> int | None:
    """Return the smallest size at which a part of the draws proves anything; None: none does."""
    enough = (found >= 0).mean(axis=0) >= rate
    return int(_SIZES[enough.argmax()]) if enough.any() else None


def choosing_report(folder: Path, draws: int) -> Report:
    """Choose among recorded runs, with correct labels as judgments."""
    report = Report(
        "labels",
        f"{draws:,} orders of the texts of each set: judgments until a run is proved to be the "
        f"most accurate one, or within {100 * _MARGIN:g} points of it, at {1 - _ERROR:.0%} "
        "confidence; and the size of a random sample, all judged, that proves the same",
    )
    for name, models in _SETS.items():
        rows = _read(folder, name, models)
        gold = {row["text"]: row["gold"] for row in rows[models[0]]}
        runs = {model: results_of(rows[model]) for model in models}
        right = np.array([[r["prediction"] == r["gold"] for r in rows[m]] for m in models])
        accuracy = dict(zip(models, right.mean(axis=1).tolist(), strict=True))
        best = max(accuracy.values())
        rng, texts = np.random.default_rng(0), [*gold]
        orders = ([texts[at] for at in rng.permutation(len(texts))] for _ in range(draws))
        choices = [_decided(runs, gold, order) for order in orders]
        wrong = sum(
            (choice.chosen is not None and accuracy[choice.chosen] < best - _MARGIN)
            or any(accuracy[run] == best for run in choice.worse)
            for choice in choices
        )
        judged = [choice.judged for choice in choices]
        exact, normal = map(np.array, zip(*(_fixed(right, rng) for _ in range(draws)), strict=True))
        report.row(
            **{
                "set": name,
                "runs": len(runs),
                "differ": choices[0].differing / choices[0].texts,
                "wrong": wrong / draws,
                "decided": sum(choice.chosen is not None for choice in choices) / draws,
                "judgments, mean": float(np.mean(judged)),
                "90 %": int(np.quantile(judged, 0.9)),
                "random, 50 %": _needed(exact, 0.5),
                "random, 90 %": _needed(exact, 0.9),
                "random, 99 %": _needed(exact, 0.99),
                "normal, 90 %": _needed(normal, 0.9),
                "normal, 99 %": _needed(normal, 0.99),
            }
        )
    report.note(
        "wrong: the chosen run is less accurate than the best one by more than the margin; or the "
        "best one is said to be worse than another"
    )
    report.note(
        "judgments: in rounds of ten, until a run is chosen; 90 %: nine of ten orders take at most "
        "so many"
    )
    report.note(
        "random: the size at which a part of the samples, all judged, proves the same of a run by "
        "an exact paired test (binomial, over the texts on which one of two is right)"
    )
    report.note("normal: by the normal approximation, which errs more often")
    return report
