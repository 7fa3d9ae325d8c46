"""``testnuc study``: studies on labeled texts, as a CSV table and a figure."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testnuc.cli.event_loop import run_to_end
from testnuc.cli.options_of_run import with_embedder
from testnuc.errors import InvalidInputError

if TYPE_CHECKING:
    import pandas as pd

    from testnuc.types import Usage

__all__ = ["STUDIES", "run"]

#: Name -> function of `testnuc.evaluation`; the first two make no calls.
STUDIES = {
    "purity": "purity_over_k",
    "gold-votes": "gold_votes_over_k",
    "k": "accuracy_over_k",
    "policies": "accuracy_over_policies",
    "pool-size": "accuracy_over_pool_size",
    "choice": "accuracy_of_the_choice",
}


def run(
    study: str,
    data: str,
    *,
    data_dir: str | None,
    limit: int | None,
    output: str | None,
    yes: bool,
    **client: Any,
) -> None:
    """Run a study; print its table, and write the table and its figure to `output`."""
    if study not in STUDIES:
        raise InvalidInputError(f"there is no study {study!r}; choose from {', '.join(STUDIES)}")
    if output is not None and Path(output).suffix not in {".csv", ".png"}:
        raise InvalidInputError(f"the output is {output!r}; name a .csv or a .png file")
    client = run_to_end(with_embedder(client, client["store"]))
    table: pd.DataFrame = run_to_end(_table(study, data, data_dir, limit, client, yes=yes))
    print(table.to_string(index=False))  # noqa: T201 - the command's output
    if output is None:
        return
    from testnuc.evaluation import plot

    table.to_csv(Path(output).with_suffix(".csv"), index=False)
    plot(table).savefig(Path(output).with_suffix(".png"), dpi=110)


async def _table(
    study: str,
    data: str,
    data_dir: str | None,
    limit: int | None,
    client: dict[str, Any],
    *,
    yes: bool,
) -> pd.DataFrame:
    from testnuc import evaluation

    dataset = evaluation.load(data, data_dir).sample(limit)
    for difference in dataset.differences:
        print(f"{dataset.name}: {difference}", file=sys.stderr)  # noqa: T201
    if study in {"purity", "gold-votes"}:
        vectors = await evaluation.embedded(dataset.distinct().texts, client["embedder"])
        recording = evaluation.Recording.of(dataset, {}, vectors)
    else:
        recording = await evaluation.record(
            dataset, agree=partial(_agreed, client["model"], yes), progress=True, **client
        )
    table: pd.DataFrame = getattr(evaluation, STUDIES[study])(recording)
    return table


def _agreed(model: str, yes: bool, usage: Usage) -> bool:  # noqa: FBT001 - bound by its caller
    """Print the estimated cost; return whether the user accepts it, or it is free."""
    if usage.usd == 0 or not usage.calls:
        return True
    price = "at an unknown price" if usage.usd is None else f"about {usage.usd:.2f} US$"
    print(f"at most {usage.calls:,} calls to {model}, {price}", file=sys.stderr)  # noqa: T201
    if yes:
        return True
    if sys.stdin.isatty():
        return input("continue? [y/N] ").strip().lower() in {"y", "yes"}
    raise InvalidInputError("cost estimate declined; give --yes to accept it")
