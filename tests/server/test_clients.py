"""Clients that are slow, leave, or are many; and a service that ends while they wait."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
from base64 import b64encode
from contextlib import suppress

import pytest
from aiohttp import ClientError, web

from testnuc import Limits, TestNUC
from testnuc.client import parts_of
from testnuc.protocols import Answer, Reply
from testnuc.server import ServerSettings, Service, lifecycle, serve
from testnuc.testing import HashEmbedder, LoopbackLLM
from tests import virtual
from tests.conftest import LABELS, confident, gold, messages
from tests.server.serving import JSON, Held, client, served, until

pytest.importorskip("prometheus_client")
pytestmark = pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")


def request(body, *, length=None):
    """Return the bytes of a POST."""
    length = len(body) if length is None else length
    head = f"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n"
    return (head + "Content-Type: application/json\r\n\r\n").encode() + body


def address(session):
    return session._base_url.host, session._base_url.port


async def connect(session):
    return await asyncio.open_connection(*address(session))


async def test_a_client_that_leaves_does_not_cancel_what_another_waits_for():
    held = Held()
    async with served(client(held, k=0)) as (service, session):
        body = json.dumps({"text": "refund please"}).encode()
        _, leaving = await connect(session)
        leaving.write(request(body))
        await held.asked_for(1)
        staying = asyncio.create_task(session.post("/v1/classify", data=body, headers=JSON))
        await until(lambda: service.queue.pending == 2)
        leaving.transport.abort()
        await until(lambda: service.queue.pending == 1)
        held.gate.set()
        async with await staying as response:
            assert (await response.json())["label"] == "refund"
    assert held.asked == ["refund please"]


async def test_a_request_whose_body_comes_in_after_the_end_has_begun_is_refused():
    held = Held(is_open=True)
    async with served(client(held, k=0)) as (service, session):
        body = json.dumps({"text": "refund please"}).encode()
        reader, writer = await connect(session)
        writer.write(request(body[:5], length=len(body)))
        # another request on its way through shows that the head was read
        async with session.post("/v1/classify", json={"text": messages(1)[0]}) as response:
            assert response.status == 200
        service.closing = True
        writer.write(body[5:])
        assert b" 503 " in await reader.readline()
        writer.close()
    assert held.asked == messages(1)


async def test_an_abandoned_request_sends_nothing_more_and_stores_its_answers():
    held = Held()
    async with served(client(held, k=0, limits=Limits(concurrency=1))) as (service, session):
        for body in ({"texts": messages(5)}, {"texts": messages(5), "stream": True}):
            _, leaving = await connect(session)
            leaving.write(request(json.dumps(body).encode()))
            await until(lambda: service.queue.pending == 5)
            await held.asked_for(1)
            leaving.transport.abort()
            await until(lambda: service.queue.pending == 0)
        held.gate.set()
        async with session.post("/v1/classify", json={"text": messages(1)[0]}) as response:
            assert response.status == 200
    assert held.asked == messages(1)


async def test_a_stream_sends_each_label_when_it_is_there():
    class Stepwise(Held):
        async def answer(self, asked):
            if "login" not in gold(asked.texts[0]):
                await self.gate.wait()
            return Reply(tuple(Answer(*confident(t)) for t in asked.texts))

    held = Stepwise()
    async with served(client(held, k=0)) as (service, session):
        body = {"texts": messages(6), "stream": True}
        async with session.post("/v1/classify", json=body) as response:
            first = [json.loads(await response.content.readline()) for _ in range(2)]
            assert {line["label"] for line in first} == {"login"}
            # what is done makes room before the request is over
            await until(lambda: service.queue.pending == 4)
            held.gate.set()
            assert len([line async for line in response.content]) == 4


async def test_a_failure_amid_a_stream_is_in_the_lines_of_the_texts_without_an_answer():
    from testnuc.errors import AuthenticationError

    class Expiring(Held):
        async def answer(self, asked):
            self.asked += asked.texts
            if len(self.asked) > 2:
                raise AuthenticationError("the key was withdrawn", status_code=401)
            return Reply(tuple(Answer(*confident(t)) for t in asked.texts))

    async with served(client(Expiring(), k=0, limits=Limits(concurrency=1))) as (_, session):
        body = {"texts": messages(6), "stream": True}
        async with session.post("/v1/classify", json=body) as response:
            assert response.status == 200
            lines = [json.loads(line) async for line in response.content]
    # every text has a line: those answered before with a label, the others with the error
    assert len(lines) == 6
    assert sum(line["label"] is not None for line in lines) == 2
    failed = [line for line in lines if line["label"] is None]
    assert {line["error"]["type"] for line in failed} == {"provider_authentication"}


async def test_a_fault_of_ours_amid_a_stream_is_its_last_line_too():
    held = Held(is_open=True)
    async with served(client(held, k=0)) as (service, session):
        one = service.sets[""]
        made = one.note

        def note(result, failed):
            if one.recent:
                raise RuntimeError("the secret path /etc/passwd")
            made(result, failed)

        one.note = note
        body = {"texts": messages(6), "stream": True}
        async with session.post("/v1/classify", json=body) as response:
            assert response.status == 200
            lines = [json.loads(line) async for line in response.content]
        assert service.queue.pending == 0
    assert [line.get("error") for line in lines[:-1]] == [None]
    assert lines[-1]["error"]["type"] == "unexpected"
    assert "passwd" not in str(lines)


async def test_a_body_that_does_not_arrive():
    held = Held()
    async with served(client(held), body_timeout=0.05) as (service, session):
        reader, writer = await connect(session)
        writer.write(request(b'{"te', length=100))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408")
        assert b"Connection: close" in head
        writer.close()
        assert service.queue.pending == 0


async def test_large_bodies_that_do_not_end_are_bounded_together():
    held = Held(is_open=True)
    async with served(client(held, k=0)) as (service, session):
        service.bodies.limit = 1_000_000
        part = b" " * 400_000
        ends = []
        for _ in range(2):
            ends.append(await connect(session))
            ends[-1][1].write(request(part, length=500_000))
        await until(lambda: service.bodies.pending > 600_000)
        refused, writer = await connect(session)
        writer.write(request(part, length=500_000))
        head = await refused.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503")
        assert b"Retry-After: 5" in head
        assert b"Connection: close" in head
        # probes and small requests are answered
        for path in ("/healthz", "/readyz"):
            async with session.get(path) as response:
                assert response.status == 200
        async with session.post("/v1/classify", json={"text": "refund please"}) as response:
            assert response.status == 200
        assert service.bodies.pending <= 1_000_000
        # one that ends, or leaves, makes room
        body = json.dumps({"text": "refund please"}).encode()
        ends[0][1].write(body.rjust(100_000))
        assert b" 200 " in await ends[0][0].readline()
        ends[1][1].transport.abort()
        await until(lambda: service.bodies.pending == 0)
        assert not service.bodies.receiving
        for _, end in (*ends, (None, writer)):
            end.close()


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HT", request(b'{"te', length=100)])
async def test_connections_without_a_request_give_way_to_others(sent, monkeypatch):
    monkeypatch.setattr(lifecycle, "_MOST_CONNECTIONS", 5)
    held = Held()
    async with served(client(held, k=0)) as (service, session):
        asked = asyncio.create_task(session.post("/v1/classify", json={"text": "refund please"}))
        await held.asked_for(1)
        ends = []
        for _ in range(20):
            ends.append(await connect(session))
            ends[-1][1].write(sent)
        async with session.get("/healthz") as response:
            assert response.status == 200
        await until(lambda: len(service.used) <= 5)
        for reader, _ in ends[:15]:
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        # a request in progress is no such connection
        held.gate.set()
        assert (await asked).status == 200
        for _, writer in ends:
            writer.close()


@pytest.mark.slow
async def test_connections_that_stand_still_are_closed():
    held = Held(is_open=True)
    async with served(client(held), idle_timeout=1.0) as (service, session):
        quiet, other = await connect(session)
        half, writer = await connect(session)
        writer.write(b"POST /v1/classify HTTP/1.1\r\nHost: loc")
        async with asyncio.timeout(60):
            # one end or the other: both are closed
            for reader in (quiet, half):
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await reader.readuntil(b"\r\n\r\n")
        for end in (other, writer):
            end.close()
        # a request under way is not idle
        held.gate.clear()
        waiting = asyncio.create_task(session.post("/v1/classify", json={"text": "refund please"}))
        await held.asked_for(1)
        await asyncio.sleep(2.5)
        held.gate.set()
        assert (await waiting).status == 200
        await until(lambda: len(service.used) <= 1)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_takes_no_answer_is_let_go(stream):
    held = Held(is_open=True)
    # an answer of 20 MB: no buffer of the system takes it
    texts = [f"refund please {'x' * 20_000} {i}" for i in range(100)]
    body = json.dumps({"texts": texts, "stream": stream, "explain": True}).encode()
    async with served(client(held, k=10), idle_timeout=2.0) as (service, session):
        loop = asyncio.get_running_loop()
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            deaf.setblocking(False)
            await loop.sock_connect(deaf, address(session))
            await loop.sock_sendall(deaf, request(body))
            await until(lambda: len(held.asked) == 100 and not service.queue.pending)
            await until(lambda: not service.used)
            # cut off: what had been sent is less than the whole
            got = 0
            with suppress(ConnectionResetError):
                while part := await loop.sock_recv(deaf, 1 << 20):
                    got += len(part)
            assert got < 10_000_000
        async with session.post("/v1/classify", json={"text": "refund please"}) as response:
            assert response.status == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_at_the_end_of_a_response_is_no_error(
    stream, caplog, monkeypatch
):
    held, write_eof = Held(), web.StreamResponse.write_eof
    held.gate.set()
    async with served(client(held, k=0)) as (service, session):

        async def leave(response, *data):
            for connection in service.used:
                connection.transport.abort()
            await write_eof(response, *data)

        monkeypatch.setattr(web.StreamResponse, "write_eof", leave)
        with pytest.raises(ClientError):
            body = {"texts": ["refund please"], "stream": stream}
            async with session.post("/v1/classify", json=body) as response:
                await response.read()
        await until(lambda: not service.queue.pending)
    assert [record for record in caplog.records if record.exc_info] == []


async def test_noise_and_halves_leave_the_service_well():
    held = Held(is_open=True)
    async with served(client(held)) as (service, session):
        for noise in (b"\x00" * 5_000, b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00", b"A" * 100_000):
            reader, writer = await connect(session)
            writer.write(noise)
            writer.write_eof()
            await reader.read()
            writer.close()
        writers = []
        for i in range(100):
            _, writer = await connect(session)
            writer.write(request(b'{"text": "refund please, ' + b"x" * i, length=5_000))
            writers.append(writer)
        for writer in writers:
            writer.transport.abort()
        async with session.post("/v1/classify", json={"text": "refund please"}) as response:
            assert response.status == 200
        await until(lambda: len(service.used) <= 2 or service.queue.pending == 0)
    assert held.asked == ["refund please"]


async def test_a_request_has_its_time():
    held = Held()
    nuc = client(held, k=0)
    one, two = "refund please", "where is my parcel"
    bodies = ({"text": one}, {"texts": [one, two]}, {"texts": [one], "stream": True})
    async with served(nuc, request_timeout=5) as (service, session):
        for body, asked in zip(bodies, (1, 2, 2), strict=True):
            waiting = asyncio.create_task(session.post("/v1/classify", json=body))
            await until(lambda: service.queue.pending)
            await held.asked_for(asked)
            virtual.skip(6)
            assert (await waiting).status == 504
            await until(lambda: not service.queue.pending)
        async with session.get("/metrics") as response:
            assert 'testnuc_texts_total{outcome="failed"} 4.0' in await response.text()
        # what was sent is stored when it comes
        held.gate.set()
        assert (await nuc.classify(one)).label == "refund"
    assert held.asked.count(one) == 1


async def test_ending_lets_requests_finish(caplog):
    caplog.set_level(logging.INFO, "testnuc")
    held = Held()
    nuc = TestNUC(LABELS, held, embedder=HashEmbedder(), k=0)
    loaded, url = asyncio.Event(), asyncio.get_running_loop().create_future()
    service = Service(nuc, ServerSettings(port=0))
    import aiohttp

    async with nuc:
        running = asyncio.create_task(serve(service, prepare=loaded.wait, listening=url.set_result))
        async with aiohttp.ClientSession(await url) as session:

            async def state():
                async with session.get("/readyz") as response:
                    return response.status, (await response.json())["status"]

            assert await state() == (503, "starting")
            async with session.post("/v1/classify", json={"text": "too early"}) as response:
                assert (response.status, response.headers["Retry-After"]) == (503, "1")
            loaded.set()
            await until(lambda: service.state == "ready")
            assert await state() == (200, "ready")
            body = {"text": "refund please"}
            waiting = asyncio.create_task(session.post("/v1/classify", json=body))
            await held.asked_for(1)
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: service.closing)
            assert await state() == (503, "draining")
            async with session.post("/v1/classify", json={"text": "too late"}) as response:
                assert (response.status, response.headers["Connection"]) == (503, "close")
            held.gate.set()
            async with await waiting as response:
                assert (await response.json())["label"] == "refund"
        assert await running is True
    assert held.asked == ["refund please"]
    assert "stopped with 0 texts pending" in caplog.text


@pytest.mark.parametrize("again", [False, True], ids=["after its time", "by a second signal"])
async def test_what_takes_too_long_is_ended(again):
    held = Held()
    nuc = TestNUC(LABELS, held, embedder=HashEmbedder(), k=0)
    url = asyncio.get_running_loop().create_future()
    service = Service(nuc, ServerSettings(port=0, drain_timeout=1_000 if again else 0.05))
    import aiohttp

    # for the client, too, which then waits for no call
    async with asyncio.timeout(60), nuc:
        parts_of(nuc).pipeline.lanes["live"].drain = 1_000.0
        running = asyncio.create_task(serve(service, listening=url.set_result))
        async with aiohttp.ClientSession(await url) as session:
            await until(lambda: service.state == "ready")
            body = {"text": "refund please"}
            waiting = asyncio.create_task(session.post("/v1/classify", json=body))
            await held.asked_for(1)
            os.kill(os.getpid(), signal.SIGTERM)
            if again:
                await until(lambda: service.closing)
                os.kill(os.getpid(), signal.SIGINT)
            assert await running is False
            with pytest.raises(aiohttp.ClientError):
                await waiting


async def test_what_fails_at_the_start_ends_the_service():
    from testnuc.errors import StoreError

    async def prepare():
        raise StoreError("no such store")

    service = Service(client(Held()), ServerSettings(port=0))
    with pytest.raises(StoreError, match="no such store"):
        await serve(service, prepare=prepare)


@pytest.mark.slow
async def test_nothing_blocks_the_event_loop(client_of, tmp_path):
    blockbuster = pytest.importorskip("blockbuster")
    async with LoopbackLLM(confident) as llm:
        nuc = TestNUC(**client_of(llm, store=tmp_path / "labels.db", k=3))
        async with served(nuc, page=lambda results: f"<p>{len(results)}") as (_, session):

            async def all_routes(number):
                text = f"{messages(1)[0]} {number}"
                for body in ({"text": text}, {"texts": [text, *messages(5)]},
                             {"texts": [text], "stream": True}, {"nothing": 1}):  # fmt: skip
                    async with session.post("/v1/classify", json=body) as response:
                        await response.read()
                        assert response.status in {200, 422}
                for path in ("/", "/metrics", "/openapi.json", "/readyz"):
                    async with session.get(path) as response:
                        assert response.status == 200

            # what is imported when it is first used is read from files
            await all_routes(0)
            with blockbuster.blockbuster_ctx("testnuc", excluded_modules=["testnuc.testing"]):
                await asyncio.gather(*map(all_routes, range(1, 20)))


@pytest.mark.parametrize("grace", [0.0, 1_000.0])
async def test_a_second_signal_ends_the_grace_too(grace):
    nuc = TestNUC(LABELS, Held(), embedder=HashEmbedder(), k=0)
    service = Service(nuc, ServerSettings(port=0, grace=grace))
    async with nuc, asyncio.timeout(60):
        running = asyncio.create_task(serve(service))
        await until(lambda: service.state == "ready")
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: service.state == "draining")
        # while it lasts requests are taken
        assert service.closing is (grace == 0)
        if grace:
            os.kill(os.getpid(), signal.SIGTERM)
        assert await running is True


@pytest.mark.parametrize(
    "credentials",
    [
        "Bearer geheimnis-mit-umläuten".encode(),
        "Bearer geheimnis-mit-umläuten".encode("latin-1"),
        b"Bearer \xff\xfe\xfd",
        b"Bearer",
        b"Bearer " + b"x" * 4_000,
        b"Basic " + b64encode("x:geheimnis-ä".encode("latin-1")),
        b"Basic " + b64encode(b"x:\xed\xa0\x80"),
        b"Basic \xff",
    ],
)
@pytest.mark.parametrize("path", [b"/metrics", b"/results"])
async def test_a_token_of_any_bytes_is_wrong(credentials, path):
    async with served(client(Held(), k=0), token="0123456789abcdef") as (_, session):
        reader, writer = await connect(session)
        head = b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        writer.write(head + b"Authorization: " + credentials + b"\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"401"
        writer.close()
