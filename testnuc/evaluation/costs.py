"""Runtime and cost of one text, by method: alone, with the vote, and with stored neighbors."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal

from testnuc.errors import InvalidInputError
from testnuc.evaluation.tables import frame
from testnuc.methods import (
    BestOfN,
    SelfConsistency,
    StandardPrompting,
    TopKICL,
    TopKICLP,
    WeightedBestOfN,
)
from testnuc.protocols import TokenUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pandas as pd

    from testnuc.client import TestNUC
    from testnuc.limits import Price
    from testnuc.protocols import Method
    from testnuc.types import Usage

__all__ = ["METHODS", "Cost", "measure_costs"]

#: The paper's names of the methods.
METHODS: Mapping[str, Method] = {
    "Standard Prompting": StandardPrompting(),
    "Self-Consistency": SelfConsistency(10),
    "Best-of-N": BestOfN(10),
    "Weighted Best-of-N": WeightedBestOfN(10),
    "KNN-ICL": TopKICL(10),
    "KNN-ICL-P": TopKICLP(10),
}

_Way = Literal["alone", "neighbors asked", "neighbors stored", "batch"]


@dataclass(frozen=True, slots=True)
class Cost:
    """What one text cost on average."""

    method: str
    #: "alone"; "neighbors asked": one text after the other, each asks about its neighbors;
    #: "neighbors stored": TestNUC-S, the pool's predictions are there; "batch": `classify_many`.
    way: _Way
    k: int
    seconds: float
    calls: float
    input_tokens: float | None
    output_tokens: float | None
    usd: float | None


async def measure_costs(
    client: Callable[..., TestNUC],
    texts: Sequence[str],
    pool: Sequence[str],
    *,
    methods: Mapping[str, Method] = METHODS,
    ks: Sequence[int] = (10,),
    price: Price | None = None,
) -> pd.DataFrame:
    """Measure runtime, calls, tokens and US dollars of each text; a row is a `Cost`.

    Texts are classified one after the other, as in the paper, each with a store of its own; rows
    that are called ``batch`` classify them together. What the pool's predictions cost TestNUC-S
    once is not in its rows, nor is embedding the pool.

    Parameters
    ----------
    client : callable
        Makes a client of ``method=``, ``k=``, ``neighbors=`` and ``join_pool=``, with a fixed
        policy.
    texts, pool : sequence of str
        The texts to classify, and unlabeled ones; no text is in both.
    methods : mapping
        Name -> method.
    ks : sequence of int
        Neighbors that vote.
    price : Price, optional
        Of the tokens, where the client knows none: at a server on this machine.
    """
    if set(texts) & set(pool):
        raise InvalidInputError("a text is in the pool, too; take it out of one of them")
    rows: list[Cost] = []
    for name, method in methods.items():
        rows.append(await _one_by_one(client, texts, pool, name, method, 0, "alone"))
        for k in ks:
            rows += [
                await _one_by_one(client, texts, pool, name, method, k, "neighbors asked"),
                await _one_by_one(client, texts, pool, name, method, k, "neighbors stored"),
                await _together(client, texts, name, method, k),
            ]
    if price is not None:
        rows = [_priced(row, price) for row in rows]
    return frame("measure_costs", [asdict(row) for row in rows])


def _priced(row: Cost, price: Price) -> Cost:
    if row.input_tokens is None or row.output_tokens is None:
        return row
    # a price is of whole tokens: of a million texts at once
    usage = TokenUsage(round(row.input_tokens * 1e6), round(row.output_tokens * 1e6))
    return replace(row, usd=price.usd(usage) / 1e6)


async def _one_by_one(
    client: Callable[..., TestNUC],
    texts: Sequence[str],
    pool: Sequence[str],
    name: str,
    method: Method,
    k: int,
    way: _Way,
) -> Cost:
    """Classify one text after the other; none becomes a neighbor of later ones."""
    stored = way == "neighbors stored"
    total = _Total()
    # without stored neighbors each text has a client, and so a store, of its own: what one text
    # asked about its neighbors must not serve the next
    for group in (texts,) if stored else [(text,) for text in texts]:
        async with client(
            method=method, k=k, neighbors="stored" if stored else "predict", join_pool=False
        ) as nuc:
            if k or method.context:
                await nuc.add(pool)
            if stored:
                await nuc.predict_pool()
            for text in group:
                before, started = nuc.usage, time.perf_counter()
                await nuc.classify(text)
                total.add(before, nuc.usage, time.perf_counter() - started)
    return total.cost(name, way, k, len(texts))


async def _together(
    client: Callable[..., TestNUC], texts: Sequence[str], name: str, method: Method, k: int
) -> Cost:
    total = _Total()
    async with client(method=method, k=k, neighbors="predict", join_pool=True) as nuc:
        before, started = nuc.usage, time.perf_counter()
        await nuc.classify_many(texts)
        total.add(before, nuc.usage, time.perf_counter() - started)
    return total.cost(name, "batch", k, len(texts))


class _Total:
    """Sums what usage grows by; what is unknown once is unknown in sum."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._calls = 0
        self._input: float | None = 0
        self._output: float | None = 0
        self._usd: float | None = 0.0

    def add(self, before: Usage, after: Usage, seconds: float) -> None:
        self._seconds += seconds
        self._calls += after.calls - before.calls
        self._input = _sum(self._input, before.input_tokens, after.input_tokens)
        self._output = _sum(self._output, before.output_tokens, after.output_tokens)
        self._usd = _sum(self._usd, before.usd, after.usd)

    def cost(self, name: str, way: _Way, k: int, n: int) -> Cost:
        return Cost(
            name,
            way,
            k,
            self._seconds / n,
            self._calls / n,
            *(None if x is None else x / n for x in (self._input, self._output, self._usd)),
        )


def _sum(total: float | None, before: float | None, after: float | None) -> float | None:
    if total is None or before is None or after is None:
        return None
    return total + after - before
