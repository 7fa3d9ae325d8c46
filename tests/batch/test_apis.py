"""What the batch APIs of Mistral and Gemini have of their own."""

from contextlib import aclosing

import orjson
import pytest

from bench._batch_api import Batches, BatchLLM, model_at
from testnuc import BatchPolicy, Limits, OpenAI, TestNUC
from testnuc.batch.apis import GeminiBatches, MistralBatches, OpenAIBatches
from testnuc.batch.lane import batch_api
from testnuc.batch.manager import BatchManager
from testnuc.batch.manifest import custom_id
from testnuc.protocols import StoredBatch
from testnuc.stores.memory import MemoryStore
from testnuc.transport import Transport
from tests.conftest import confident, gold, messages


@pytest.mark.parametrize(
    ("url", "form"),
    [
        (None, "openai"),
        ("https://api.mistral.ai/v1", "mistral"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "gemini"),
        ("https://api.groq.com/openai/v1", "openai"),
    ],
)
def test_the_host_says_which_batch_api_it_has(url, form):
    assert OpenAI("any", base_url=url, api_key="k").batch_format == form


@pytest.mark.parametrize("kind", ["mistral", "gemini"])
async def test_a_lost_batch_is_found_on_a_later_page_and_paid_once(kind, client_of, monkeypatch):
    for api in (MistralBatches, GeminiBatches):
        monkeypatch.setattr(api, "page", 2)
    batches = Batches(lost=[0], polls=20)
    async with BatchLLM(confident, batches=batches) as llm:
        policy = BatchPolicy(max_requests=10, first_poll=0.001, longest_poll=0.002)
        model = model_at(f"{kind}/test", llm.base_url, "secret")
        client = client_of(llm, model=model, limits=Limits(batches=policy))
        async with TestNUC(**client) as nuc:
            results = await nuc.classify_many(messages(60), lane="batch")
        assert [row.label for row in results] == [gold(text) for text in messages(60)]
        assert set(llm.asked.values()) == {1}
        assert llm.batches == 6


@pytest.mark.parametrize("kind", ["mistral", "gemini", "openai"])
@pytest.mark.parametrize("most", [1, 2, 3, 7])
async def test_a_list_is_read_to_its_end_whatever_the_size_of_its_pages(kind, most):
    async def wait(seconds):
        assert not seconds

    async with (
        aclosing(Transport()) as transport,
        BatchLLM(confident, batches=Batches(page=most)) as llm,
    ):
        provider = model_at(f"{kind}/test", llm.base_url, "secret")
        if kind == "openai":
            provider = OpenAI("test", base_url=llm.base_url, api_key="secret")
        api = batch_api(provider, transport.auxiliary)
        body = orjson.dumps({"model": "test", "messages": [{"role": "user", "content": "a text"}]})
        made = []
        for number in range(7):
            name = bytes([number]) * 16
            line = api.line(custom_id(name.hex(), 0), body)
            made.append(await api.create(name.hex(), await api.prepare(name.hex(), [line])))
        for number, remote in enumerate(made):
            batch = StoredBatch(bytes([number]) * 16, b"s" * 16, {}, 1, 0.0, b"")
            assert await api.find(batch, set(), wait) == remote.id


@pytest.mark.parametrize("kind", ["mistral", "gemini"])
async def test_the_store_says_which_batch_api_has_a_batch(kind, client_of, monkeypatch):
    store = MemoryStore()
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    async with BatchLLM(confident, batches=Batches(polls=5), api_key="secret") as llm:
        policy = BatchPolicy(rest="error")
        model = model_at(f"{kind}/test", llm.base_url, "secret")
        client = client_of(llm, model=model, store=store, limits=Limits(batches=policy))
        async with TestNUC(**client) as nuc:
            await nuc.classify_many(messages(20), lane="batch")
        (batch,) = await store.batches(ended=True)
        assert batch.facts["batch_format"] == kind
        async with BatchManager(store) as manager:
            remote = await manager._lifecycle(batch).api.retrieve(batch.remote_id)
        assert (remote.status, remote.done) == ("completed", 20)
        # uploaded texts are deleted
        assert llm.batch_server.files == {}


@pytest.mark.parametrize("status", ["SUCCESS", "success", "Success"])
def test_statuses_of_mistral_count_in_any_case(status):
    provider = OpenAI("any", base_url="https://api.mistral.ai/v1", api_key="k")
    remote = MistralBatches(provider, None)._remote({"id": "job", "status": status}, None)
    assert (remote.status, remote.ended) == ("completed", True)


@pytest.mark.parametrize("status", ["JOB_STATE_SUCCEEDED", "in_progress", ""])
@pytest.mark.parametrize(
    ("done", "file", "ended"), [(5, "f", True), (4, "f", False), (5, "", False)]
)
def test_a_state_in_other_words_is_final_where_all_results_are_there(status, done, file, ended):
    provider = OpenAI("any", base_url="http://127.0.0.1:9/v1", api_key="k")
    counts = {"total": 5, "completed": done, "failed": 0}
    found = {"id": "b", "status": status, "request_counts": counts, "output_file_id": file}
    assert OpenAIBatches(provider, None)._remote(found, None).ended == ended
    found = {
        "id": "b", "status": status, "output_file": file,
        "total_requests": 5, "succeeded_requests": done, "failed_requests": 0,
    }  # fmt: skip
    assert MistralBatches(provider, None)._remote(found, None).ended == ended
