"""Labels inside a FastAPI application: one client for all requests.

Run it with ``pip install 'testnuc[local]' fastapi uvicorn`` and ``uvicorn fastapi_app:app``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel, Field

import testnuc

LABELS = {
    "refund": "wants money back",
    "delivery": "asks where a parcel is",
    "login": "cannot sign in",
}


class Ticket(BaseModel):
    """A message to label."""

    text: str = Field(min_length=1, max_length=8_000)


class Labeled(BaseModel):
    """The label and its trust, 0..1."""

    label: str | None
    trust: float | None


def make_app(**client: Any) -> FastAPI:
    """Return the application; arguments are those of `testnuc.TestNUC`."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # one client per process: requests share its calls, store and rate limits
        async with testnuc.TestNUC(LABELS, **client) as nuc:
            app.state.nuc = nuc
            yield

    app = FastAPI(title="tickets", lifespan=lifespan)
    app.post("/tickets")(label_ticket)
    return app


async def client_of(request: Request) -> testnuc.TestNUC:
    """Return the client of the application."""
    nuc: testnuc.TestNUC = request.app.state.nuc
    return nuc


async def label_ticket(
    ticket: Ticket, nuc: Annotated[testnuc.TestNUC, Depends(client_of)]
) -> Labeled:
    """Label one ticket."""
    try:
        result = await nuc.classify(ticket.text)
    except testnuc.InvalidInputError as exc:
        raise HTTPException(422, str(exc)) from exc
    except testnuc.ProviderError as exc:
        # an error of the provider, not of the request
        raise HTTPException(502, str(exc)) from exc
    return Labeled(label=result.label, trust=result.trust)


app = make_app(model="openai/gpt-4o-mini", store="tickets.db")
