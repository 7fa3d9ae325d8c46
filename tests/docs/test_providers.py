"""The table of docs/providers.md: its names make providers, its counts are those of the data."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bench._replay import read
from testnuc import providers
from testnuc.batch import has_batches
from testnuc.errors import ConfigurationError, InvalidInputError
from testnuc.protocols import Task
from testnuc.providers._dialect import Structure

ROOT = Path(__file__).parents[2]
OWN = {"openai": "api.openai.com", "anthropic": "api.anthropic.com"}


def rows():
    text = (ROOT / "docs" / "providers.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    header, _, *body = [
        [cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in lines
    ]
    assert header[1:3] == ["model=", "base_url="]
    return body


def host_of(model, url):
    host = urlsplit(url).netloc if url else OWN.get(model.partition("/")[0], "")
    return re.sub(r"^(resource|account)(?=[.])", "", host)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_row(row):
    _, model, url, structured, logprobs, batch, _ = row
    kind = model.partition("/")[0]
    if kind == "local":
        return
    provider = providers.resolve(model, base_url=url or None, api_key="key")
    assert provider.model == model.partition("/")[2]
    assert not url or urlsplit(provider.url).path.startswith(urlsplit(url).path)
    assert batch != "yes" or has_batches(provider)
    assert structured != "JSON object" or Structure.OBJECT in provider.structures
    task = Task("", ("a", "b"), confidence="logprobs")
    if logprobs == "no":
        with pytest.raises(ConfigurationError, match="log-probabilities"):
            provider.validate(task)
    else:
        provider.validate(task)


def test_every_known_server_is_in_the_table():
    table = {(name.lower().replace(" ", "_"), url) for name, _, url, *_ in rows() if url}
    for server, url in providers.SERVERS.items():
        assert [name for name, at in table if at == url and server in name], server
        with pytest.raises(InvalidInputError, match=re.escape(f"base_url='{url}'")):
            providers.resolve(f"{server}/some-model")


def test_calls_go_to_the_paths_that_were_recorded():
    file = Path(os.environ.get("TESTNUC_DATA", "")) / "recorded_exchanges.jsonl"
    if not file.is_file():
        pytest.skip("recordings: TESTNUC_DATA has no recorded_exchanges.jsonl")
    known = [(one.host, one.path) for one in read(file) if one.protocol and one.status == 200]
    known = [(host, re.sub(r"/deployments/[^/]+", "/deployments/gpt-4o", p)) for host, p in known]
    for name, model, url, *_, how in rows():
        if how.startswith("recorded"):
            provider = providers.resolve(model, base_url=url or None, api_key="key")
            at = host_of(model, url)
            paths = {path.partition("?")[0] for host, path in known if host.endswith(at)}
            assert urlsplit(provider.url).path in paths, name
