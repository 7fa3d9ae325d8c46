"""TLS: a certificate that is trusted, and ones that are not, behind a small TLS server."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import subprocess
import sys
from contextlib import asynccontextmanager

import aiohttp
import pytest

from testnuc import Limits, TestNUC
from testnuc.errors import ConnectionFailedError
from testnuc.testing import HashEmbedder, LoopbackLLM
from testnuc.transport.connections import Connections
from tests.conftest import LABELS, confident, messages

#: Bytes of a record, so that responses come in parts.
PART = 50
RUN = """
import asyncio, sys
from testnuc import TestNUC
from testnuc.testing import HashEmbedder

async def main():
    model = {"model": "openai/test", "base_url": sys.argv[1], "api_key": "k"}
    async with TestNUC(["refund", "login"], **model, embedder=HashEmbedder(16), k=0) as nuc:
        for result in await nuc.classify_many(["refund 1", "refund 2"]):
            assert result.error is None, result.error

asyncio.run(main())
"""


@pytest.fixture
def certificate(tmp_path):
    """Return a function that makes a self-signed certificate for a host: its file and its key's."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("platform: no openssl")

    def make(name):
        file, key = tmp_path / "cert.pem", tmp_path / "key.pem"
        command = [openssl, "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=test"]
        command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        command += ["-addext", f"subjectAltName={name}"]
        command += ["-addext", "keyUsage=critical,digitalSignature,keyCertSign"]
        command += ["-keyout", str(key), "-out", str(file)]
        subprocess.run(command, check=True, capture_output=True)
        return file, key

    return make


@asynccontextmanager
async def behind_tls(llm, file, key):
    """Forward TLS connections to a server; yields the URL."""

    async def pipe(reader, writer, size):
        while data := await reader.read(size):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def handle(reader, writer):
        port = int(llm.base_url.rpartition(":")[2].partition("/")[0])
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(
            pipe(reader, inner_writer, 2**16),
            pipe(inner_reader, writer, PART),
            return_exceptions=True,
        )

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()


async def test_a_private_certificate_is_trusted_as_ssl_cert_file_says(certificate):
    file, key = certificate("IP:127.0.0.1")
    async with LoopbackLLM(lambda _: "refund") as llm, behind_tls(llm, file, key) as url:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", RUN, url,
            env={**os.environ, "SSL_CERT_FILE": str(file)}, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, said = await process.communicate()
        assert process.returncode == 0, said.decode()
        assert llm.calls == 2


@pytest.mark.parametrize("name", ["IP:127.0.0.1", "DNS:elsewhere.example"])
async def test_a_wrong_certificate_ends_the_run_with_the_remedy(certificate, name):
    file, key = certificate(name)
    model = {"model": "openai/test", "api_key": "secret-key-123"}
    async with LoopbackLLM(confident) as llm, behind_tls(llm, file, key) as url:
        nuc = TestNUC(LABELS, **model, base_url=url, embedder=HashEmbedder(16), k=0)
        async with nuc:
            with pytest.raises(ConnectionFailedError, match="SSL_CERT_FILE") as raised:
                await nuc.classify_many(messages(40))
    assert "not trusted" in str(raised.value)
    assert "secret-key-123" not in str(raised.value)
    assert llm.calls == 0


async def test_a_wrong_certificate_for_a_while_ends_no_run(monkeypatch):
    """One machine behind a balancer has another, or it is being replaced."""
    sent, post = 0, Connections.post

    async def sometimes(*given, **more):
        nonlocal sent
        sent += 1
        if 10 < sent <= 13:
            raise aiohttp.ClientConnectorCertificateError(None, ssl.CertificateError())
        return await post(*given, **more)

    monkeypatch.setattr(Connections, "post", sometimes)
    async with LoopbackLLM(confident) as llm:
        model = {"model": "openai/test", "api_key": "k", "base_url": llm.base_url, "k": 0}
        limits = Limits(concurrency=1)
        async with TestNUC(LABELS, **model, embedder=HashEmbedder(16), limits=limits) as nuc:
            results = await nuc.classify_many(messages(40))
    assert not results.errors
    assert llm.calls == 40
