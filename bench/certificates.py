"""How often certificates are wrong where parts of the texts are just not right enough."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import numpy as np

from bench._judged import proof
from bench._report import Report
from testnuc.trust.certificates import PARTS, too_many

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    World = tuple[str, NDArray[np.bool_], NDArray[np.int64]]

__all__ = ["main", "worlds"]


def worlds(n: int) -> Iterator[World]:
    """Yield a name, which labels are right, and texts judged before, of texts by falling trust."""
    random = np.random.default_rng(1)
    ends = [int(np.ceil(part * n - 1e-9)) for part in PARTS]

    def wrong_so_far(counts: list[int]) -> NDArray[np.bool_]:
        right, start, have = np.ones(n, dtype=np.bool_), 0, 0
        for end, count in zip(ends, counts, strict=True):
            right[start + random.permutation(end - start)[: count - have]] = False
            start, have = end, count
        return right

    just_not = [too_many(end, 0.9) for end in ends]
    right = wrong_so_far(just_not)
    none = np.empty(0, dtype=np.int64)
    yield "every part just not", right, none
    yield "the first part is, each larger one just not", wrong_so_far([1, *just_not[1:]]), none
    yield "known before", right, random.permutation(np.flatnonzero(right))[:50]
    any_order = np.ones(n, dtype=np.bool_)
    any_order[random.permutation(n)[: just_not[-1]]] = False
    yield "trust says nothing", any_order, none
    yield "trust is upside down", np.arange(n) >= 0.1 * n, none


def main(argv: list[str]) -> None:
    """Draw again and again until a certificate of 90 % is wrong, or there are enough draws."""
    parser = argparse.ArgumentParser(prog="python -m bench certificates", description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000, help="of each world")
    parser.add_argument("--texts", type=int, nargs="+", default=[300, 1_000, 5_000])
    parser.add_argument("--draws", type=int, default=500, help="at most, of each run")
    parser.add_argument("--json", help="write the result to this file")
    given = parser.parse_args(argv)
    report = Report(
        "certificates",
        f"texts by falling trust; how often a certificate of 90 % is wrong in {given.runs:,} runs, "
        f"with a look after each of {given.draws} judgments. Just not: one more wrong label than "
        "nine of ten right ones leave. Known before: 50 right ones were judged before",
    )
    rows: dict[str, dict[str, float]] = {}
    for n in given.texts:
        trust = np.linspace(1, 0.01, n)
        for name, right, known in worlds(n):
            random = np.random.default_rng(2)
            wrong = [proof(trust, right, known, given.draws, random)[1] for _ in range(given.runs)]
            rows.setdefault(name, {})[f"{n:,} texts"] = float(np.mean(wrong))
    for name, cells in rows.items():
        report.row(world=name, **cells)
    report.show()
    if given.json:
        report.write(given.json)
