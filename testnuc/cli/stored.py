"""What a store holds: labels, embedder, texts and their results."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from testnuc.cli.client_factory import client_of
from testnuc.cli.event_loop import run_to_end
from testnuc.cli.options_of_run import held_scopes, with_options_of_store
from testnuc.cli.reading import Table
from testnuc.errors import InvalidInputError, SmallPoolWarning

if TYPE_CHECKING:
    from testnuc.client import TestNUC
    from testnuc.results import Results

__all__ = ["stored_results", "stored_texts"]

#: Texts that are read from a pool at a time.
_CHUNK = 2_000


async def stored_texts(nuc: TestNUC, store: str) -> Table:
    """Return the texts of the pool that have a stored answer of this client.

    Raises
    ------
    InvalidInputError
        There are none.
    """
    parts = nuc.engine.parts
    rows: list[dict[str, Any]] = []
    start: int | None = 0
    while start is not None:
        found, start = await parts.pool.scan(start, _CHUNK)
        known = await parts.store.get_predictions([parts.predictor.key(e.text) for e in found])
        rows += [
            {"text": entry.text}
            for entry, prediction in zip(found, known, strict=True)
            if prediction is not None
        ]
    if not rows:
        raise InvalidInputError(
            f"{await held_scopes(store)}; it holds no text embedded by {parts.embedding.name} that "
            "this model answered with these labels and settings: give the options of the run that "
            "filled it"
        )
    return Table(rows, ["text"], "text")


def stored_results(store: str, client: dict[str, Any]) -> Results:
    """Return the results of the texts in a store; makes no call.

    Raises
    ------
    InvalidInputError
        It holds none for these options.
    """
    options = with_options_of_store(client, store)

    async def find() -> Results:
        # nothing is sent, so no key is needed
        nuc = client_of({**options, "store": store, "neighbors": "stored"}, api_key="not-needed")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SmallPoolWarning)
            async with nuc:
                table = await stored_texts(nuc, store)
                return await nuc.classify_many(table.texts)

    return run_to_end(find())
