"""Runtime and cost per text, by method: alone, with the vote, and with stored neighbors."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal

from bench.evaluation.plots import frame
from testnuc.errors import InvalidInputError
from testnuc.limits.budget import PICO
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
    from testnuc.limits.budget import Price
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
_WITH_VOTE: tuple[_Way, ...] = ("neighbors asked", "neighbors stored", "batch")


@dataclass(frozen=True, slots=True)
class Cost:
    """Mean runtime and cost per text."""

    method: str
    #: "alone": no vote; "neighbors asked": one text at a time, calls the LLM for its neighbors;
    #: "neighbors stored": TestNUC-S, predictions of the pool are stored; "batch": `classify_many`.
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
    """Measure seconds, calls, tokens and US dollars per text; each row is a `Cost`.

    Texts are classified one at a time, as in the paper, each with a separate store. Rows with way
    ``batch`` classify all of them together. The one-time cost of the pool (embeddings, and its
    predictions for TestNUC-S) is not included.

    Parameters
    ----------
    client : callable
        Returns a client for the arguments ``method=``, ``k=``, ``neighbors=`` and ``join_pool=``,
        with a fixed policy.
    texts, pool : sequence of str
        The texts to classify, and the unlabeled texts; they must be disjoint.
    methods : mapping
        Name -> method.
    ks : sequence of int
        Numbers of neighbors that vote.
    price : Price, optional
        Token prices, if the client has none, such as for a local server.

    Raises
    ------
    InvalidInputError
        A text is also in the pool.
    """
    if set(texts) & set(pool):
        raise InvalidInputError("a text is also in the pool; remove it from one of them")
    rows: list[Cost] = []
    for name, method in methods.items():
        rows.append(await _measured(client, texts, pool, name, method, 0, "alone"))
        for k in ks:
            rows += [
                await _measured(client, texts, pool, name, method, k, way) for way in _WITH_VOTE
            ]
    if price is not None:
        rows = [_with_price(row, price) for row in rows]
    return frame("measure_costs", [asdict(row) for row in rows])


def _with_price(row: Cost, price: Price) -> Cost:
    if row.input_tokens is None or row.output_tokens is None:
        return row
    # prices apply to whole tokens, so compute the price of a million texts
    usage = TokenUsage(round(row.input_tokens * 1e6), round(row.output_tokens * 1e6))
    return replace(row, usd=price.pico(usage) / PICO / 1e6)


async def _measured(
    client: Callable[..., TestNUC],
    texts: Sequence[str],
    pool: Sequence[str],
    name: str,
    method: Method,
    k: int,
    way: _Way,
) -> Cost:
    """Classify one text at a time, which does not join the pool; or all of them as a batch."""
    stored, batch = way == "neighbors stored", way == "batch"
    neighbors = "stored" if stored else "predict"
    total = _Total()
    # without stored neighbors each text needs a new client and store, so that predictions of
    # neighbors are not shared between texts
    for group in (texts,) if stored or batch else [(text,) for text in texts]:
        async with client(method=method, k=k, neighbors=neighbors, join_pool=batch) as nuc:
            if not batch and (k or method.context):
                await nuc.add(pool)
            if stored:
                await nuc.predict_pool()
            for part in (group,) if batch else [(text,) for text in group]:
                before, started = nuc.usage, time.perf_counter()
                await (nuc.classify_many(part) if batch else nuc.classify(*part))
                total.add(before, nuc.usage, time.perf_counter() - started)
    return total.cost(name, way, k, len(texts))


class _Total:
    """Sums the growth of usage; an unknown summand makes the sum unknown."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._calls = 0
        self._spent: dict[str, float | None] = dict.fromkeys(
            ("input_tokens", "output_tokens", "usd"), 0
        )

    def add(self, before: Usage, after: Usage, seconds: float) -> None:
        self._seconds += seconds
        self._calls += after.calls - before.calls
        for name, total in self._spent.items():
            old, new = getattr(before, name), getattr(after, name)
            known = total is not None and old is not None and new is not None
            self._spent[name] = total + new - old if known else None

    def cost(self, name: str, way: _Way, k: int, n: int) -> Cost:
        spent = (None if total is None else total / n for total in self._spent.values())
        return Cost(name, way, k, self._seconds / n, self._calls / n, *spent)
