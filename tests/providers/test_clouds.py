"""Claude on Amazon Bedrock and Vertex AI: the Messages API under a URL for each model."""

import re
from dataclasses import replace
from urllib.parse import unquote

import orjson
import pytest

import testnuc
from testnuc.batch import has_batches
from testnuc.errors import AuthenticationError, ConfigurationError, InvalidInputError
from testnuc.limits.budget import Price
from testnuc.providers.anthropic import Anthropic
from testnuc.testing import HashEmbedder, LoopbackLLM
from tests.conftest import LABELS, confident, gold, messages

AWS = "https://bedrock-runtime.us-east-1.amazonaws.com"
AWS_MODEL = "us.anthropic.claude-haiku-4-5-20251001-v1:0"
GOOGLE = "https://us-east5-aiplatform.googleapis.com/v1/projects/p/locations/us-east5"
GOOGLE_MODEL = "claude-haiku-4-5@20251001"
CLOUDS = [("/model", AWS_MODEL), ("/v1/projects/p/locations/global", GOOGLE_MODEL)]
CALLS = {AWS_MODEL: "bedrock-2023-05-31", GOOGLE_MODEL: "vertex-2023-10-16"}


@pytest.mark.parametrize(
    ("base_url", "model", "url"),
    [
        (AWS, AWS_MODEL, f"{AWS}/model/{AWS_MODEL}/invoke"),
        (f"{AWS}/", "arn:aws:x/y", f"{AWS}/model/arn:aws:x%2Fy/invoke"),
        ("http://gate/aws/model", "m", "http://gate/aws/model/m/invoke"),
        (GOOGLE, GOOGLE_MODEL, f"{GOOGLE}/publishers/anthropic/models/{GOOGLE_MODEL}:rawPredict"),
    ],
)
def test_urls(base_url, model, url):
    provider = Anthropic(model, base_url=base_url, api_key="k")
    assert provider.url == url
    assert not has_batches(provider)


def test_keys(monkeypatch):
    # the key of another provider is never sent
    monkeypatch.setenv("ANTHROPIC_API_KEY", "anthropic")
    with pytest.raises(ConfigurationError, match="AWS_BEARER_TOKEN_BEDROCK"):
        Anthropic("m", base_url=AWS)
    with pytest.raises(ConfigurationError, match="CLOUDSDK_AUTH_ACCESS_TOKEN"):
        Anthropic("m", base_url=GOOGLE)
    with pytest.raises(InvalidInputError, match="/v1/projects/<project>/locations/<location>"):
        Anthropic("m", base_url="https://aiplatform.googleapis.com/v1", api_key="k")
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "aws")
    assert Anthropic("m", base_url=AWS).headers == {
        "Content-Type": "application/json",
        "Authorization": "Bearer aws",
    }


@pytest.mark.parametrize(("base_url", "model"), [(AWS, AWS_MODEL), (GOOGLE, GOOGLE_MODEL)])
def test_prices_are_known(base_url, model):
    provider = Anthropic(model, base_url=base_url, api_key="k")
    assert Price.of("anthropic", model, provider.url) is not None


class Cloud(LoopbackLLM):
    """Takes the model from the path, and the version from the body."""

    PATH = re.compile(r"/model/([^/]+)/invoke$|/publishers/anthropic/models/([^/]+):rawPredict$")

    def respond(self, call):
        found, body, headers = self.PATH.search(call.path), orjson.loads(call.body), call.headers
        assert "model" not in body
        assert "anthropic-version" not in headers
        body["model"], headers = unquote(found[1] or found[2]), headers.copy()
        headers["anthropic-version"] = body["anthropic_version"]
        asked = replace(call, path="/v1/messages", headers=headers, body=orjson.dumps(body))
        return super().respond(asked)


@pytest.mark.parametrize(("path", "model"), CLOUDS)
async def test_texts_are_labeled(path, model):
    texts = messages(8)
    async with Cloud(confident, api_key="token", model=model, record=1) as llm:
        url = llm.base_url.removesuffix("/v1") + path
        settings = {"base_url": url, "k": 0, "embedder": HashEmbedder()}
        named = f"anthropic/{model}"
        async with testnuc.TestNUC(LABELS, named, api_key="token", **settings) as nuc:
            results = await nuc.classify_many(texts)
            assert nuc.usage.calls == llm.calls == len(texts)
            with pytest.raises(InvalidInputError, match="names no supported batch_format"):
                await nuc.classify_many(texts, lane="batch")
        assert [result.label for result in results] == [gold(text) for text in texts]
        assert llm.bodies[0]["anthropic_version"] == CALLS[model]
        async with testnuc.TestNUC(LABELS, named, api_key="another", **settings) as nuc:
            with pytest.raises(AuthenticationError, match=r"Check the key in (AWS|CLOUDSDK)_"):
                await nuc.classify_many(texts)
