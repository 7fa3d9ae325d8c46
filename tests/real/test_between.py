"""LiteLLM and a mock server from npm: between client and double, and in the place of either.

What they change on the way are faults to find here; each gets a test in the normal suite.
"""

import json
import os
import socket
import subprocess
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import testnuc
from testnuc import Limits
from testnuc.errors import AuthenticationError, RateLimitedError, UnknownModelError
from testnuc.testing import Faults, HashEmbedder, LoopbackLLM
from tests.conftest import LABELS, WORDS, confident, gold, messages
from tests.real.conftest import PYTHON
from tests.testing.loopback_client import FORMAT, chat

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

KEY = "sk-real-tests"
TEXTS = messages(30)
WAIT = 120
#: Published on npm by others.
MOCK = "openai-mock-api@0.4.0"


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def running(command, url, log, cwd=None):
    """Run a server until the block ends; `url` answers when it is ready."""
    clean = {n: v for n, v in os.environ.items() if n != "PYTHONPATH"}
    clean |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with (
        log.open("w") as out,
        subprocess.Popen(command, stdout=out, stderr=out, env=clean, cwd=cwd) as server,
    ):
        try:
            until = time.monotonic() + WAIT
            while True:
                try:
                    urllib.request.urlopen(url, timeout=5).close()
                    break
                except OSError:
                    assert server.poll() is None, log.read_text()[-2000:]
                    assert time.monotonic() < until, log.read_text()[-2000:]
                    time.sleep(0.2)
            yield
        finally:
            server.terminate()
            server.wait(timeout=30)


def client(url, model="openai/double", **more):
    settings = {"k": 0, "embedder": HashEmbedder(), "api_key": KEY} | more
    return testnuc.TestNUC(LABELS, model, base_url=url, **settings)


# -- testnuc -> LiteLLM's proxy -> LoopbackLLM -----------------------------------------------------


#: What servers behind the proxy refuse, each the only model of its own double.
REFUSING = {
    "no-schema": {"structured": False},
    "prose": {"structured": "ignore"},
    "no-temperature": {"rejects": ["temperature"]},
    "no-system": {"rejects": ["system"]},
    "failing": {
        "faults": Faults(schedule=["500", "429-retry-after-ms", "empty-choices"], retry_after=0.001)
    },
}


@contextmanager
def proxy(llm, folder, refusing):
    """Start LiteLLM's proxy, which takes seconds, in front of doubles; gives its base URL."""
    at = llm.base_url
    models = {
        "double": {"model": "openai/double", "api_base": at, "api_key": "k"},
        "claude": {
            "model": "anthropic/claude-haiku-4-5",
            "api_base": at.removesuffix("/v1"),
            "api_key": "k",
        },
        "fixed": {
            "model": "openai/gpt-4o-mini",
            "api_key": "k",
            "mock_response": '{"label": "login", "confidence": 0.75}',
        },
        "busy": {
            "model": "openai/gpt-4o-mini",
            "api_key": "k",
            "mock_response": "litellm.RateLimitError",
        },
    }
    for name, other in refusing.items():
        models[name] = {"model": "openai/double", "api_base": other.base_url, "api_key": "k"}
    listed = [{"model_name": name, "litellm_params": given} for name, given in models.items()]
    config = {
        "model_list": listed,
        "general_settings": {"master_key": KEY},
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
    }
    file = folder / "litellm.yaml"
    file.write_text(json.dumps(config))  # which is YAML, too
    port = free_port()
    litellm = str(Path(str(PYTHON)).with_name("litellm"))
    command = [litellm, "--config", str(file), "--host", "127.0.0.1", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with running(command, f"{url}/health/liveliness", folder / "litellm.log"):
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def double():
    with LoopbackLLM(confident, record=100) as llm:
        yield llm


@pytest.fixture(scope="module")
def gateway(double, tmp_path_factory):
    with ExitStack() as stack:
        refusing = {
            name: stack.enter_context(LoopbackLLM(confident, **more))
            for name, more in REFUSING.items()
        }
        yield stack.enter_context(proxy(double, tmp_path_factory.mktemp("litellm"), refusing))


@pytest.mark.parametrize("model", ["openai/double", "openai/claude", "anthropic/claude"])
async def test_labels_and_tokens_come_through_a_gateway(double, gateway, model):
    double.reset()
    async with client(gateway, model) as nuc:
        results = await nuc.classify_many(TEXTS)
        used = nuc.usage
    assert not results.errors
    assert [r.label for r in results] == [gold(text) for text in TEXTS]
    assert [r.prediction.confidence for r in results] == [confident(t)[1] for t in TEXTS]
    assert double.calls == used.calls == len(TEXTS)
    assert (used.input_tokens, used.output_tokens) == (double.input_tokens, double.output_tokens)


async def test_a_schema_with_the_labels_comes_through_a_gateway(double, gateway):
    double.reset()
    for model in ("openai/double", "openai/claude"):
        async with client(gateway, model) as nuc:
            await nuc.classify(TEXTS[0])
    first, second = double.bodies
    assert (
        first["response_format"]["json_schema"]["schema"]["properties"]["label"]["enum"] == LABELS
    )
    assert LABELS[0] in json.dumps(second.get("output_format") or second.get("output_config"))


async def test_scores_come_through_a_gateway(double, gateway):
    sampling = testnuc.Sampling(score_labels=True)
    async with client(gateway, sampling=sampling) as nuc:
        results = await nuc.classify_many(TEXTS)
    assert [r.label for r in results] == [gold(text) for text in TEXTS]
    assert all(r.prediction.confidence is not None for r in results)


async def test_mocks_of_a_gateway_answer_and_refuse(gateway):
    async with client(gateway, "openai/fixed") as nuc:
        result = await nuc.classify("a")
    assert (result.label, result.prediction.confidence) == ("login", 0.75)
    retry = testnuc.RetryPolicy(attempts=2, initial_wait=0.0, max_wait=0.0)
    async with client(gateway, "openai/busy", limits=Limits(retry=retry)) as nuc:
        with pytest.raises(RateLimitedError, match="429"):
            await nuc.classify("a")
        assert nuc.usage.retries == 1


async def test_a_gateway_refuses_a_key_and_a_model_at_once(gateway):
    async with client(gateway, api_key="sk-wrong") as nuc:
        with pytest.raises(AuthenticationError):
            await nuc.classify_many(TEXTS)
    async with client(gateway, "openai/unknown-model") as nuc:
        with pytest.raises(
            (UnknownModelError, testnuc.errors.BadRequestError), match="unknown-model"
        ):
            await nuc.classify_many(TEXTS)


@pytest.mark.parametrize("name", REFUSING)
async def test_what_a_server_behind_a_gateway_refuses_is_not_sent(name, gateway):
    async with client(gateway, f"openai/{name}") as nuc:
        results = await nuc.classify_many(TEXTS)
    assert not results.errors
    assert [r.label for r in results] == [gold(text) for text in TEXTS]


# -- LiteLLM's client -> LoopbackLLM --------------------------------------------------------------


def through_litellm(*calls):
    """Return what LiteLLM's client reads of each call."""
    script = str(Path(__file__).with_name("litellm_client.py"))
    clean = {n: v for n, v in os.environ.items() if n != "PYTHONPATH"}
    done = subprocess.run(
        [PYTHON, script],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        env=clean,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def asked(llm, model, text, **more):
    given = chat(text, **more)
    at = llm.base_url if model.startswith("openai/") else llm.base_url.removesuffix("/v1")
    return {**given, "model": model, "api_base": at, "max_tokens": 99}


MODELS = ["openai/double", "anthropic/claude-haiku-4-5"]
KINDS = ["400", "403", "429-retry-after", "500"]


@pytest.fixture(scope="module")
def read_by_litellm():
    """Give what LiteLLM reads for each model, and the double's tokens; its import takes seconds."""
    with ExitStack() as stack:
        doubles = [
            stack.enter_context(LoopbackLLM(confident, faults=Faults(schedule=[None, *KINDS])))
            for _ in MODELS
        ]
        said = through_litellm(
            *(
                asked(llm, model, TEXTS[0], response_format=FORMAT)
                for llm, model in zip(doubles, MODELS, strict=True)
                for _ in range(1 + len(KINDS))
            )
        )
        tokens = [(llm.input_tokens, llm.output_tokens) for llm in doubles]
    half = len(said) // 2
    return dict(zip(MODELS, zip((said[:half], said[half:]), tokens, strict=True), strict=True))


@pytest.mark.parametrize("model", MODELS)
def test_litellm_reads_the_double(model, read_by_litellm):
    (said, *_), tokens = read_by_litellm[model]
    label, confidence = confident(TEXTS[0])
    assert json.loads(said["content"]) == {"label": label, "confidence": confidence}
    assert said["finish"] == "stop"
    assert (said["input"], said["output"]) == tokens


@pytest.mark.parametrize("model", MODELS)
def test_litellm_reads_the_errors_of_the_double(model, read_by_litellm):
    (_, *said), _ = read_by_litellm[model]
    assert [one["status"] for one in said] == [400, 403, 429, 500]
    assert [one["error"] for one in said[2:]] == ["RateLimitError", "InternalServerError"]


# -- testnuc -> a mock server from npm ------------------------------------------------------------


@pytest.fixture(scope="module")
def mock(tmp_path_factory):
    """Give the base URL of the mock server."""
    folder = tmp_path_factory.mktemp("npm")
    subprocess.run(["npm", "install", "--silent", "--no-save", MOCK], cwd=folder, check=True)
    replies = {phrases[0]: label for label, phrases in WORDS.items()}
    config = {
        "apiKey": KEY,
        "responses": [
            {
                "id": label,
                "messages": [
                    {"role": "system", "matcher": "any"},
                    {"role": "user", "content": word, "matcher": "contains"},
                    {
                        "role": "assistant",
                        "content": json.dumps({"label": label, "confidence": 0.5}),
                    },
                ],
            }
            for word, label in replies.items()
        ],
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    port = free_port()
    command = ["node_modules/.bin/openai-mock-api", "--config", "config.yaml", "--port", str(port)]
    with running(command, f"http://127.0.0.1:{port}/health", folder / "mock.log", cwd=folder):
        yield f"http://127.0.0.1:{port}/v1"


async def test_a_mock_server_from_npm_is_labeled(mock):
    texts = [text for text in TEXTS if any(said[0] in text for said in WORDS.values())]
    async with client(mock, "openai/gpt-4o-mini") as nuc:
        results = await nuc.classify_many(texts)
        assert nuc.usage.calls == len(texts)
        assert nuc.usage.input_tokens > 0
    assert [r.label for r in results] == [gold(text) for text in texts]


async def test_a_mock_server_from_npm_refuses_a_key(mock):
    async with client(mock, "openai/gpt-4o-mini", api_key="sk-wrong") as nuc:
        with pytest.raises(AuthenticationError):
            await nuc.classify("money back")
