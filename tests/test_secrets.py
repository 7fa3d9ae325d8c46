"""A key is nowhere but in the header of the calls it is for."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import subprocess
import traceback

import pytest
from aiohttp import web

import testnuc
from testnuc import Limits, RetryPolicy, TestNUC
from testnuc.testing import Faults, HashEmbedder, LoopbackLLM
from tests.cli.in_process import command_line
from tests.conftest import LABELS, confident, messages
from tests.transport.small_server import serving

pytestmark = pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")

#: As providers make them, and one that no pattern would find.
KEYS = ["sk-proj-Zq81xYkLm0TheSecretPart77", "hunter2hunter2"]
QUICK = RetryPolicy(attempts=2, timeout=0.2, initial_wait=0.001)


def everything_said(error):
    """All that a log, a notebook or a bug report could show of an error and its causes."""
    parts, seen, pending = [], set(), [error]
    while pending:
        error = pending.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        parts += [repr(error), str(error), repr(error.args), repr(vars(error))]
        parts += traceback.format_exception(error)
        pending += [error.__cause__, error.__context__, *getattr(error, "exceptions", ())]
    return "\n".join(parts)


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.DEBUG)
    return caplog


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("model", ["openai/test", "anthropic/test"])
async def test_representations(loopback, logged, key, model):
    async with loopback(LoopbackLLM(confident, record=1), model=model, api_key=key) as (llm, nuc):
        results = await nuc.classify_many(messages(20))
        sent = llm.headers[0]
        assert key in f"{sent.get('authorization')} {sent.get('x-api-key')}"
        parts = nuc._parts
        shown = [
            nuc, results, results[0], nuc.usage, parts.transport, parts.scheduler, parts.embedding,
            parts.store, parts.pool, parts.predictor.provider, nuc.labels,
            parts.transport._connections,
        ]  # fmt: skip
        for thing in shown:
            assert key not in f"{thing!r} {thing}"
        # an answer of the model is data; its request is not
        assert key.encode() not in b"".join(map(str.encode, map(repr, llm.bodies)))
    assert key not in logged.text


ECHOING = {
    "wrong key": (401, '{"error": {"message": "Incorrect API key provided: %s."}}'),
    "forbidden": (403, '{"error": {"message": "Key %s may not use this model"}}'),
    "no such model": (404, '{"error": {"message": "%s sees no such model"}}'),
    "bad request": (400, '{"error": {"message": "header x-api-key: %s is bad"}}'),
    "limited": (429, '{"error": {"message": "Rate limit reached for key %s"}}'),
    "failing": (500, "<html>Authorization: Bearer %s</html>"),
    "in a 200": (200, '{"error": {"message": "the key %s is wrong", "type": "server_error"}}'),
    "redirected": (302, "%s"),
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("what", ECHOING)
async def test_servers_that_repeat_the_key(logged, key, what):
    status, body = ECHOING[what]

    def answer(_, request):
        return web.Response(status=status, text=body % key, headers={"Location": f"/{key}"})

    async with (
        serving(answer) as (wire, seen),
        TestNUC(
            LABELS, "openai/test", base_url=wire.url, api_key=key, embedder=HashEmbedder(), k=0,
            limits=Limits(retry=QUICK),
        ) as nuc,
    ):  # fmt: skip
        with pytest.raises(testnuc.ProviderError) as caught:
            await nuc.classify("where is my parcel")
    assert key in seen[0][0]["Authorization"]
    said = everything_said(caught.value)
    assert key not in said
    assert "ProviderError" in [c.__name__ for c in type(caught.value).__mro__]
    assert key not in logged.text


def chat(content, finish="stop", refusal=None):
    message = {"role": "assistant", "content": content, "refusal": refusal}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"id": "chat-%s", "choices": [choice]}


REPLIES = {
    "a label": chat('{"label": "%s", "confidence": 0.9}'),
    "a part": chat('{"label": "the key is %.9s", "confidence": 0.9}'),
    "prose": chat("The key is %s."),
    "a refusal": chat(None, refusal="I do not tell that %s"),
    "cut off": chat('{"label": "%s', finish="length"),
    "one of two": chat('{"answers": [{"id": 1, "label": "%s"}, {"id": 7, "label": "%s"}]}'),
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("what", REPLIES)
@pytest.mark.parametrize("several", [False, True])
async def test_models_that_repeat_the_key(logged, tmp_path, key, what, several):
    body = json.dumps(REPLIES[what])
    body = body.replace("%.9s", key[:9]).replace("%s", key)

    def answer(_, request):
        return web.Response(text=body, content_type="application/json")

    async with (
        serving(answer) as (wire, _),
        TestNUC(
            testnuc.LabelSet(LABELS, multilabel=several), "openai/test", base_url=wire.url,
            api_key=key, embedder=HashEmbedder(), k=0, limits=Limits(retry=QUICK),
            store=tmp_path / "labels.db",
            sampling=testnuc.Sampling(texts_per_call=2 if what == "one of two" else 1),
        ) as nuc,
    ):  # fmt: skip
        results = await nuc.classify_many(messages(2))
        results.to_jsonl(tmp_path / "results.jsonl")
    shown = [logged.text, *map(repr, results), *(everything_said(r.error) for r in results)]
    files = [file.read_bytes().decode("latin-1") for file in tmp_path.rglob("*") if file.is_file()]
    for place in [*shown, *files]:
        assert key[:9] not in place
    if what in {"a label", "a part"}:
        assert all("[key]" in result.prediction.said for result in results)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["refused", "reset-before", "reset-within", "stalled"])
async def test_broken_connections(loopback, logged, kind):
    key = KEYS[0]
    faults = Faults(1.0, [kind], stall=1)
    async with loopback(
        LoopbackLLM(confident, faults=faults), api_key=key, limits=Limits(retry=QUICK), k=0
    ) as (_, nuc):
        # a server that was never reached ends the run
        (ended,) = await asyncio.gather(nuc.classify_many(messages(3)), return_exceptions=True)
    assert isinstance(ended, testnuc.ProviderError) == (kind == "refused")
    for error in [ended] if kind == "refused" else [result.error for result in ended]:
        assert isinstance(error, testnuc.ProviderError)
        assert key not in everything_said(error)
    assert key not in repr(list(ended) if kind != "refused" else ended) + logged.text


@pytest.mark.parametrize(
    "wrong", ["sk-with a space-Zq81xYk", "sk-line\nbreak-Zq81xYk", "sk-é-Zq81xYk"]
)
def test_a_key_that_cannot_be_sent_is_not_quoted(wrong):
    with pytest.raises(testnuc.errors.ConfigurationError) as caught:
        TestNUC(LABELS, "openai/test", api_key=wrong, embedder=HashEmbedder())
    assert "Zq81xYk" not in everything_said(caught.value)


@pytest.mark.parametrize("url", ["https://user:Zq81xYk@host/v1", "https://host/v1?api_key=Zq81xYk"])
def test_a_key_in_the_url_is_refused_and_not_quoted(url):
    with pytest.raises(testnuc.InvalidInputError) as caught:
        TestNUC(LABELS, "openai/test", base_url=url, embedder=HashEmbedder())
    assert "Zq81xYk" not in everything_said(caught.value)


async def test_stores_and_keys_of_predictions(client_of, tmp_path):
    path = tmp_path / "labels.db"
    async with LoopbackLLM(confident) as llm:
        for key in KEYS:
            async with TestNUC(**client_of(llm, api_key=key, store=path)) as nuc:
                await nuc.classify_many(messages(30))
        # another key is no other model: answers stored with one serve the other
        assert llm.calls == 30
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert files
    for file in files:
        content = file.read_bytes()
        assert all(key.encode() not in content for key in KEYS), file


async def test_errors_that_cross_processes(loopback):
    async with loopback(LoopbackLLM(confident, api_key="another"), api_key=KEYS[1]) as (_, nuc):
        with pytest.raises(testnuc.errors.AuthenticationError) as caught:
            await nuc.classify("where is my parcel")
    assert KEYS[1].encode() not in pickle.dumps(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("status", [400, 401])
def test_the_command_line(tmp_path, status):
    key = KEYS[1]
    source = tmp_path / "in.txt"
    source.write_text("hello\nthere\n")

    async def run():
        def answer(_, request):
            return web.Response(status=status, text=f'{{"error": {{"message": "{key}"}}}}')

        async with serving(answer) as (wire, _):
            return await asyncio.to_thread(
                subprocess.run,
                command_line(
                    "classify", source, "--labels", "a,b", "--model", "openai/test",
                    "--base-url", wire.url, "--k", "0", python=("-X", "dev"),
                ),
                check=False, capture_output=True, text=True, timeout=300,
                env={**os.environ, "OPENAI_API_KEY": key},
            )  # fmt: skip

    done = asyncio.run(run())
    assert done.returncode == 1
    assert key not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "proxy", ["http://user:Pa55/word@127.0.0.1:9", "http://user:Pa55#word@h:9"]
)
async def test_a_password_that_breaks_the_url_of_a_proxy(logged, monkeypatch, client_of, proxy):
    monkeypatch.setenv("HTTP_PROXY", proxy)
    monkeypatch.setenv("NO_PROXY", "")
    model = testnuc.OpenAI("m", base_url="http://api.invalid/v1", api_key=KEYS[0], trust_env=True)
    async with LoopbackLLM(confident) as llm:
        parts = {**client_of(llm), "model": model, "base_url": None, "api_key": None}
        async with TestNUC(**parts) as nuc:
            with pytest.raises(testnuc.errors.TestNUCError) as caught:
                await nuc.classify("Where is my parcel?")
    assert "Pa55" not in everything_said(caught.value) + logged.text
