"""The results published in the paper (Zou et al., ACL 2025, arXiv 2502.19163)."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import orjson

from bench.evaluation.datasets import PAPER_DATASETS

__all__ = ["COLUMNS", "paper_accuracy", "paper_tables"]

#: Dataset name -> column in the paper's accuracy tables.
COLUMNS = {**{name: row for name, (row, *_) in PAPER_DATASETS.items()}, "stackexchange": "StackEx"}


@cache
def paper_tables() -> dict[str, Any]:
    """Return the tables of the paper and the citation."""
    content = files("bench.evaluation").joinpath("paper_tables.json").read_bytes()
    tables: dict[str, Any] = orjson.loads(content)
    return tables


def paper_accuracy(dataset: str, row: str, table: str = "GPT-4o-mini") -> float | None:
    """Return a published accuracy, or None if the paper does not report it.

    Parameters
    ----------
    dataset : str
        One of `PAPER_DATASETS`.
    row : str
        Name of the row in the paper, such as ``"TestNUC (K=10)"``.
    table : str
        A model of the main table, ``"aggregation_gpt4o_mini_K50"``, ``"embedders_gpt4o_mini"``, or
        a method of ``"enhanced_methods_gpt4o_mini"``.
    """
    tables = paper_tables()
    column = COLUMNS.get(dataset)
    if column is None:
        return None
    order: list[str] = tables["datasets_order"]
    if table in tables["accuracy_by_model"]:
        rows = tables["accuracy_by_model"][table]
    elif table in tables["enhanced_methods_gpt4o_mini"]:
        rows = tables["enhanced_methods_gpt4o_mini"][table]
    else:
        found = tables.get(table, {})
        rows, order = found.get("rows", {}), found.get("order", order)
    if row not in rows or column not in order:
        return None
    accuracy: float = rows[row][order.index(column)]
    return accuracy
