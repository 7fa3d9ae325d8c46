"""A proxy that refuses, and names that are not found, over raw sockets."""

from __future__ import annotations

import asyncio
import base64
import logging
import socket
import traceback
from contextlib import asynccontextmanager
from urllib.parse import unquote

import pytest

from testnuc import OpenAI, TestNUC
from testnuc.errors import ConnectionFailedError, ProviderError
from testnuc.testing import LoopbackLLM
from tests.conftest import confident, messages

pytestmark = pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")


@asynccontextmanager
async def proxy(monkeypatch, answer, word="hush-word"):
    """Run a proxy that answers every request with these bytes, and then closes."""
    asked = []

    async def handle(reader, writer):
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, f"http://user:{word}@127.0.0.1:{port}")
        monkeypatch.delenv(name.upper(), raising=False)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    try:
        yield asked
    finally:
        server.close()


def through(client_of, url):
    """Return the arguments of a client that uses the proxies of the environment."""
    model = OpenAI("test", base_url=url, api_key="secret-key-123", trust_env=True)
    with LoopbackLLM(confident) as llm:
        given = client_of(llm, k=0)
    return {**given, "model": model, "base_url": None, "api_key": None}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 407 Log in\r\nContent-Length: 0\r\n\r\n", r"proxy refuses with 407.; give its"),
        (b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n", r"proxy refuses with 403.; check HTTPS_"),
        (b"HTTP/1.1 502 No\r\nContent-Length: 0\r\n\r\n", r"proxy refuses with 502.; check HTTPS_"),
    ],
)
async def test_a_proxy_that_refuses_ends_the_run_with_its_name(
    client_of, monkeypatch, answer, says
):
    async with (
        proxy(monkeypatch, answer) as asked,
        TestNUC(**through(client_of, "https://llm.example/v1")) as nuc,
    ):
        with pytest.raises(ConnectionFailedError, match=says) as raised:
            await nuc.classify_many(messages(40))
    assert asked[0].startswith(b"CONNECT llm.example:443")
    # the key is for the server, and the proxy's word for the proxy
    assert all(b"secret-key-123" not in request for request in asked)
    assert "hush-word" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 407 Log in\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\n<p/>",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\n<p/>",
    ],
)
async def test_a_proxy_that_answers_itself_ends_the_run(client_of, monkeypatch, answer):
    async with (
        proxy(monkeypatch, answer),
        TestNUC(**through(client_of, "http://llm.example/v1")) as nuc,
    ):
        with pytest.raises(ProviderError):
            await nuc.classify_many(messages(40))


@pytest.mark.parametrize("word", ["hush-word", "hush", "h%C3%A4sh word"])
@pytest.mark.parametrize("form", ["{}", "user:{}", "Basic {b}", "{q}", "http://user:{q}@proxy"])
async def test_a_proxy_that_quotes_its_password(client_of, monkeypatch, caplog, word, form):
    plain = unquote(word)
    # as aiohttp encodes it
    packed = base64.b64encode(f"user:{plain}".encode("latin-1")).decode()
    said = form.format(plain, b=packed, q=word).encode()
    head = b"HTTP/1.1 407 Log in\r\nx-request-id: %b\r\nContent-Length: %d\r\n\r\n%b"
    answer = head % (packed.encode(), len(said), said)
    async with proxy(monkeypatch, answer, word) as asked:
        with caplog.at_level(logging.DEBUG):
            async with TestNUC(**through(client_of, "http://llm.example/v1")) as nuc:
                with pytest.raises(ProviderError, match="407") as raised:
                    await nuc.classify_many(messages(4))
    assert packed.encode() in asked[0]
    seen = "".join(traceback.format_exception(raised.value)) + repr(vars(raised.value))
    for secret in (plain, word, packed):
        assert secret not in seen + caplog.text


@pytest.fixture
def names(monkeypatch):
    """Let the name llm.example be looked up as the test says."""
    real, found = socket.getaddrinfo, []

    def look_up(host, port, *args, **more):
        if host != "llm.example":
            return real(host, port, *args, **more)
        answer = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(answer, OSError):
            raise answer
        return real(answer, port, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return found


UNKNOWN = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
FAILING = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


@pytest.mark.parametrize("problem", [UNKNOWN, FAILING])
async def test_a_name_that_is_not_found_ends_the_run(client_of, names, problem):
    names.append(problem)
    with LoopbackLLM(confident) as llm:
        given = client_of(llm, k=0) | {"base_url": "http://llm.example/v1"}
    async with TestNUC(**given) as nuc:
        with pytest.raises(ConnectionFailedError, match=f"llm.example .{problem.strerror}"):
            await nuc.classify_many(messages(40))


async def test_a_name_that_is_not_found_for_a_moment_is_looked_up_again(client_of, names):
    names += [FAILING, FAILING, "127.0.0.1"]
    async with LoopbackLLM(confident) as llm:
        given = client_of(llm, k=0) | {"base_url": llm.base_url.replace("127.0.0.1", "llm.example")}
        async with TestNUC(**given) as nuc:
            results = await nuc.classify_many(messages(12))
        assert not results.errors
        assert llm.calls == 12
