"""The FastAPI example, as its framework runs it."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

import pytest

from testnuc.testing import HashEmbedder, LoopbackLLM
from tests.conftest import confident, gold, messages

pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")
pytestmark = [
    pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:starlette.*"),
]
EXAMPLE = Path(__file__).parents[2] / "examples" / "fastapi_app.py"


@pytest.fixture
def example():
    if not EXAMPLE.exists():
        pytest.skip("the examples are not here")
    spec = importlib.util.spec_from_file_location("fastapi_app", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_tickets_are_labeled_by_one_client(example, tmp_path):
    async with LoopbackLLM(confident) as llm:
        app = example.make_app(
            model="openai/test", base_url=llm.base_url, api_key="key", embedder=HashEmbedder(),
            store=tmp_path / "tickets.db", k=0,
        )  # fmt: skip
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://tickets") as http,
        ):
            texts = messages(40)
            answers = await asyncio.gather(
                *(http.post("/tickets", json={"text": text}) for text in texts * 2)
            )
            assert [a.json()["label"] for a in answers] == [gold(t) for t in texts * 2]
            assert llm.calls == 40
            assert (await http.post("/tickets", json={"text": ""})).status_code == 422
            assert (await http.post("/tickets", json={"text": "  "})).status_code == 422
        assert (tmp_path / "tickets.db").exists()


async def test_a_failing_provider_is_not_the_callers_fault(example):
    async with LoopbackLLM(confident, api_key="another") as llm:
        app = example.make_app(
            model="openai/test", base_url=llm.base_url, api_key="key", embedder=HashEmbedder()
        )
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://tickets") as http,
        ):
            answer = await http.post("/tickets", json={"text": messages(1)[0]})
    assert answer.status_code == 502
