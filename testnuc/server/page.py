"""The page at ``/``: the latest results of a service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from testnuc.client import TestNUC
from testnuc.report import render
from testnuc.types import Classification


def page_of(nuc: TestNUC) -> Callable[[Sequence[Classification]], Awaitable[str]]:
    """Return the page function of a `Service`: the latest results, and the client's usage."""

    def made(results: Sequence[Classification]) -> str:
        return render(
            # the indices of each request start at 0
            [replace(result, index=at) for at, result in enumerate(results)],
            usage=nuc.usage,
            model=nuc.model,
            choices=nuc.labels.names,
            title=f"testnuc: the latest {len(results):,} texts"
            if results
            else "testnuc: no text yet",
            descriptions=nuc.labels.descriptions,
            several=nuc.labels.multilabel,
        )

    one = asyncio.Lock()

    async def page(results: Sequence[Classification]) -> str:
        # rendering takes a fraction of a second: one page at a time, off the event loop
        async with one:
            return await asyncio.to_thread(made, results)

    return page
