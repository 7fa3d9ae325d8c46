"""Responses as no server should send them, over raw sockets: too long, cut, compressed, late."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
import time
import tracemalloc
import zlib
from collections import Counter
from contextlib import suppress
from types import SimpleNamespace

import aiohttp
import orjson
import pytest
from aiohttp.http_exceptions import HttpProcessingError

from testnuc import Limits, TestNUC
from testnuc.errors import (
    BadRequestError,
    ConnectionFailedError,
    ProviderError,
    ServerError,
    UnreadableReplyError,
)
from testnuc.limits.policies import Budget, RetryPolicy
from testnuc.protocols import Request
from testnuc.testing import HashEmbedder
from testnuc.transport import auxiliary
from testnuc.transport.connections import MOST_BYTES
from testnuc.transport.failures import safe_cause
from tests.accounts import spent
from tests.conftest import LABELS, messages
from tests.transport.small_server import ONE, Wire, raw, sending

ANSWER = b'{"label": "a", "usage": [10, 2]}'


def whole(body, status=b"200 OK", headers=b""):
    return b"HTTP/1.1 %s\r\n%sContent-Length: %d\r\n\r\n%s" % (status, headers, len(body), body)


def sends(data, *, closes=False):
    """Respond to each request with these bytes."""

    async def respond(number, writer):
        writer.write(data)
        if closes:
            await writer.drain()
            writer.close()
            raise ConnectionError

    return respond


class Endless:
    """Sends the same bytes until the client closes the connection."""

    def __init__(self, piece, head=b"HTTP/1.1 200 OK\r\n\r\n"):
        self.head, self.piece, self.sent = head, piece, []

    async def __call__(self, number, writer):
        self.sent.append(0)
        writer.write(self.head)
        while True:
            writer.write(self.piece)
            await writer.drain()
            self.sent[number] += len(self.piece)
            if writer.transport.is_closing():
                raise ConnectionError


CHUNK = b"x" * 65_536
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LONG = b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999999\r\n\r\n"


async def test_an_answer_before_the_end_of_the_request_is_read_and_its_connection_closed():
    heads = []

    async def connected(reader, writer):
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        # the body is not read
        writer.write(whole(ANSWER))
        with suppress(ConnectionError):
            await writer.drain()
            await closed.wait()
        writer.close()

    closed = asyncio.Event()
    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=1024)
    wire = Wire(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
    large = Request(ONE.task, "x" * 16_000_000, ONE.texts)
    try:
        async with sending() as transport:
            for _ in range(2):
                assert (await transport.call(wire, large)).answers[0].label == "a"
    finally:
        closed.set()
        server.close()
        await server.wait_closed()
    assert len(heads) == 2


@pytest.mark.parametrize(
    ("piece", "head"),
    [
        (CHUNK, LONG),
        (CHUNK, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"),
        (b"10000\r\n%s\r\n" % CHUNK, CHUNKED),
        (b"data: %s\n" % CHUNK, LONG),
        (b": ping\n\n" * 8192, CHUNKED.replace(b"Transfer-Encoding: chunked", b"X: y")),
    ],
)
async def test_an_endless_reply_is_read_to_a_limit_and_three_times(piece, head):
    endless = Endless(piece, head)
    async with raw(endless) as (wire, _), sending(budget=Budget(calls=9)) as transport:
        with pytest.raises(UnreadableReplyError, match=r"127\.0\.0\.1.* longer than 16 MB"):
            await transport.call(wire, ONE)
        # each may have been billed
        assert spent(transport.account)[2] == transport.meter.calls == len(endless.sent) == 3
    # the rest is what buffers of the sockets hold
    assert all(sent < 2 * MOST_BYTES for sent in endless.sent)


@pytest.mark.parametrize("head", [b"100 Continue\r\n\r\n", b"102 P\r\nX: y\r\n\r\n"])
async def test_a_flood_of_heads_is_not_parsed(head):
    """Ten thousand in one read blocked the loop for a second."""
    endless = Endless((b"HTTP/1.1 " + head) * 1000, b"")
    async with raw(endless) as (wire, _), sending(retry=RetryPolicy(attempts=2)) as transport:
        with pytest.raises(ConnectionFailedError, match="broke"):
            await transport.call(wire, ONE)
        assert len(endless.sent) == 2
        assert transport.meter.calls == 0


@pytest.mark.parametrize(
    ("response", "most"),
    [
        (whole(ANSWER, headers=b"Content-Length: 4\r\n"), 3),
        (whole(ANSWER, headers=b"Content-Encoding: br\r\n"), 3),
        (whole(ANSWER, headers=b"Bad header\r\n"), 3),
        # a connection may break: each call is sent again
        (whole(ANSWER)[:-5], 10),
    ],
)
async def test_responses_that_all_break_http_end_the_run(response, most):
    """Each is billed, several times for a text: a proxy on the way breaks them all."""
    retry = RetryPolicy(initial_wait=0.001, max_wait=0.001)
    async with (
        raw(sends(response, closes=True)) as (wire, requests),
        TestNUC(
            LABELS, "openai/test", base_url=wire.url.removesuffix("/chat/completions"),
            api_key="k" * 20, embedder=HashEmbedder(), k=0,
            limits=Limits(retry=retry, concurrency=4),
        ) as nuc,
    ):  # fmt: skip
        with pytest.raises(ConnectionFailedError, match="first 20 texts got no response"):
            await nuc.classify_many(messages(200))
            # each of four calls that back off lends its place to another one
            assert len(requests) <= most * (20 + 8)


async def test_an_error_whose_body_breaks_off_is_that_error():
    broken = whole(b'{"error": "no key"}', status=b"401 Unauthorized")[:-5]
    async with raw(sends(broken, closes=True)) as (wire, requests), sending() as transport:
        with pytest.raises(ProviderError) as caught:
            await transport.call(wire, ONE)
        assert (caught.value.status_code, len(requests)) == (401, 1)


async def test_a_few_interim_responses_are_passed_over():
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 9
    async with raw(sends(hints + whole(ANSWER))) as (wire, _), sending() as transport:
        assert (await transport.call(wire, ONE)).answers[0].label == "a"


async def test_an_endless_error_is_cut_far_earlier():
    endless = Endless(b'{"error": "no"}' + CHUNK, LONG.replace(b"200 OK", b"400 No"))
    async with raw(endless) as (wire, _), sending() as transport:
        with pytest.raises(BadRequestError):
            await transport.call(wire, ONE)
    assert endless.sent[0] < MOST_BYTES / 2


def test_no_cause_holds_bytes_of_a_response():
    broken = aiohttp.ServerDisconnectedError()
    broken.__cause__ = HttpProcessingError(message="b'Authorization: ..'")
    assert safe_cause(broken) is None
    assert safe_cause(OSError()) is not None
    proxy = SimpleNamespace(ssl=False, host="h", port=1, proxy_auth="me:hush")
    assert safe_cause(aiohttp.ClientConnectorError(proxy, OSError())) is None


@pytest.mark.parametrize(
    "status", [b"201 Created", b"202 Accepted", b"203 Changed", b"206 Part", b"299 Fine"]
)
async def test_an_answer_with_another_status_of_success_is_one(status):
    accepted = sends(whole(ANSWER, status))
    async with raw(accepted) as (wire, requests), sending(budget=Budget(calls=1)) as transport:
        assert (await transport.call(wire, ONE)).answers[0].label == "a"
        assert (len(requests), transport.meter.calls, spent(transport.account)[2]) == (1, 1, 1)


@pytest.mark.parametrize("status", [b"200 OK", b"400 Bad"])
@pytest.mark.parametrize(
    ("encoding", "compress"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)]
)
async def test_a_compression_bomb_is_not_unpacked(status, encoding, compress):
    bomb = whole(compress(bytes(2**27), 1), status, b"Content-Encoding: %s\r\n" % encoding)
    sizes = [0]

    def error(status, headers, body):
        sizes.append(len(body))
        return BadRequestError("no", status_code=status)

    async with raw(sends(bomb)) as (wire, requests), sending() as transport:
        wire.error = error
        tracemalloc.start()
        try:
            with pytest.raises(ProviderError):
                await transport.call(wire, ONE)
            assert tracemalloc.get_traced_memory()[1] < 4 * MOST_BYTES
        finally:
            tracemalloc.stop()
        assert len(requests) <= 3
        # of an error far less is read
        assert max(sizes) <= 2**18


async def test_many_endless_replies_at_once_take_bounded_memory():
    bomb = whole(gzip.compress(bytes(2**26), 1), headers=b"Content-Encoding: gzip\r\n")
    async with raw(sends(bomb)) as (wire, requests), sending() as transport:
        tracemalloc.start()
        try:
            calls = [transport.call(wire, ONE) for _ in range(24)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert tracemalloc.get_traced_memory()[1] < 8 * MOST_BYTES
        finally:
            tracemalloc.stop()
        assert {type(result) for result in results} == {UnreadableReplyError}
        assert len(requests) == 3 * 24


async def test_a_compressed_reply_is_read():
    packed = whole(gzip.compress(ANSWER), headers=b"Content-Encoding: gzip\r\n")
    async with raw(sends(packed)) as (wire, _), sending() as transport:
        assert (await transport.call(wire, ONE)).answers[0].label == "a"


@pytest.mark.parametrize(
    "response",
    [
        whole(b"no gzip", headers=b"Content-Encoding: gzip\r\n"),
        whole(ANSWER, headers=b"Content-Encoding: zstd\r\n"),
        whole(ANSWER, headers=b"X: %s\r\n" % (b"y" * 60_000)),
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000,
        b"no HTTP at all\r\n\r\n",
    ],
)
async def test_a_response_that_is_no_http_is_paid_for_three_times_at_most(response):
    broken = sends(response, closes=True)
    async with raw(broken) as (wire, requests), sending(budget=Budget(calls=50)) as transport:
        with pytest.raises(ProviderError) as caught:
            await transport.call(wire, ONE)
        assert caught.value.attempts == len(requests) == spent(transport.account)[2] == 3
        assert transport.meter.calls == 3
        assert all(wait > 0 for wait in transport.waits)
        assert len(str(caught.value)) < 1000


async def test_a_response_that_breaks_off_is_a_connection_error_that_may_be_billed():
    async def respond(number, writer):
        if number >= 4:
            writer.write(whole(ANSWER))
            return
        writer.write(CHUNKED + b"5\r\nabc")
        await writer.drain()
        writer.close()
        raise ConnectionError

    async with raw(respond) as (wire, requests), sending(budget=Budget(tokens=999)) as transport:
        assert (await transport.call(wire, ONE)).answers[0].label == "a"
        # the worst case of four, and what the fifth reports
        assert spent(transport.account)[1:] == (4 * 30 + 12, len(requests))
        assert (len(requests), transport.meter.calls) == (5, 1)


@pytest.mark.parametrize(
    "response",
    [
        CHUNKED + b"%x\r\n%s\r\n" % (len(ANSWER), ANSWER),
        whole(ANSWER).replace(b"Length: 32", b"Length: 37"),
        whole(gzip.compress(ANSWER) + b"?", headers=b"Content-Encoding: gzip\r\n")[:-1],
    ],
)
@pytest.mark.parametrize("parts", [1, 3])
async def test_an_answer_that_is_whole_is_used_however_long_its_head_says_it_is(response, parts):
    async def respond(number, writer):
        size = -(-len(response) // parts)
        for start in range(0, len(response), size):
            writer.write(response[start : start + size])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()
        raise ConnectionError

    async with raw(respond) as (wire, requests), sending(budget=Budget(tokens=999)) as transport:
        assert (await transport.call(wire, ONE)).answers[0].label == "a"
        # what it reports, and no worst case
        assert spent(transport.account)[1:] == (12, len(requests)) == (12, 1)


async def test_auxiliary_responses_are_limited_too():
    endless = Endless(CHUNK, LONG)
    async with raw(endless) as (wire, _), sending() as transport:
        with pytest.raises(ServerError, match="longer than 16 MB"):
            await transport.auxiliary.send(wire, "GET", wire.url, again=False)
    assert endless.sent[0] < 2 * MOST_BYTES


async def test_a_line_that_is_too_long_is_left_out(monkeypatch, caplog):
    monkeypatch.setattr(auxiliary, "MOST_BYTES", 100_000)
    lines = [b'{"n": %d}' % n for n in range(4)]
    body = b"\n".join([lines[0], b"x" * 900_000, lines[1], b"", b"y" * 99_999, lines[2], lines[3]])

    taken = []
    async with raw(sends(whole(body))) as (wire, _), sending() as transport:
        await transport.auxiliary.read_lines(wire, wire.url, taken.append)
    assert taken == [lines[0], lines[1], b"y" * 99_999, lines[2], lines[3]]
    assert "left out" in caplog.text


@pytest.mark.parametrize("piece", [CHUNK, b'{"n": 1}\n' * 8192, b"\n" * 65_536])
async def test_an_endless_download_ends(piece, monkeypatch):
    monkeypatch.setattr(auxiliary, "_MOST_OF_DOWNLOAD", 2**20)
    endless = Endless(piece, LONG)
    async with raw(endless) as (wire, _), sending() as transport:
        with pytest.raises(ServerError, match="download"):
            await transport.auxiliary.read_lines(wire, wire.url, lambda line: None)


# -- responses that nobody asked for ---------------------------------------------------------------


def labeled(label):
    return whole(b'{"label": "%s", "usage": [1, 1]}' % label)


def extra_first(extra, sent):
    """Serve "a" to the first request and "b" to others, and send `extra` after the first answer."""
    connections = []

    async def respond(number, writer):
        connections.append(writer)
        if number:
            writer.write(labeled(b"b"))
            return
        if not extra:
            writer.write(labeled(b"a"))
        elif sent is None:  # in one segment
            writer.write(labeled(b"a") + extra)
        else:
            writer.write(labeled(b"a"))
            await writer.drain()
            await asyncio.sleep(0.02)  # the first has been read
            writer.write(extra)
            await writer.drain()
            sent.set()

    return respond, connections


async def ask_twice(extra, *, at_once=False):
    sent = None if at_once else asyncio.Event()
    respond, connections = extra_first(extra, sent)
    async with raw(respond) as (wire, _), sending() as transport:
        first = (await transport.call(wire, ONE)).answers[0].label
        if extra and sent is not None:
            await sent.wait()
            await asyncio.sleep(0.02)  # it has arrived
        second = (await transport.call(wire, ONE)).answers[0].label
        assert transport.meter.calls == 2
    return first + second, len(set(connections))


LATE = [labeled(b"x"), labeled(b"x")[:30], b"HTTP/1.1 200", b"\r\n", b"0\r\n\r\n", b"x"]


@pytest.mark.parametrize(
    ("extra", "at_once"), [*((extra, False) for extra in LATE), (labeled(b"x"), True)]
)
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, "uvloop"])
def test_bytes_that_nobody_asked_for_answer_no_text(loop, extra, at_once):
    if loop == "uvloop":
        loop = pytest.importorskip("uvloop", reason="platform: no uvloop").new_event_loop
    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(ask_twice(extra, at_once=at_once)) == ("ab", 2)


@pytest.mark.parametrize("status", [b"408", b"502 Bad Gateway", b"503", b"504", b"524"])
@pytest.mark.parametrize("at_a_proxy", [False, True])
async def test_the_late_response_of_a_gateway_that_gave_up_answers_no_text(
    status, at_a_proxy, monkeypatch
):
    first = []

    async def respond(number, writer):
        if not first:
            first.append(writer)
            writer.write(whole(b"{}", status))
        else:
            writer.write(labeled(b"x" if writer is first[0] else b"b"))

    async with raw(respond) as (wire, _):
        if at_a_proxy:
            monkeypatch.setenv("http_proxy", wire.url)
            wire.url = "http://example.test/v1"
        async with sending(trust_env=at_a_proxy) as transport:
            assert (await transport.call(wire, ONE)).answers[0].label == "b"


@pytest.mark.parametrize("extra", [labeled(b"x"), labeled(b"x")[:30]])
async def test_what_follows_a_large_response_answers_no_text(extra):
    """A parser that was paused keeps it, and returns it when the connection is idle."""

    async def respond(number, writer):
        padded = whole(b'{"label": "a", "usage": [1, 1]}' + b" " * 3_000_000)
        writer.write(labeled(b"b") if number else padded + extra)
        await writer.drain()

    async with raw(respond) as (wire, _), sending() as transport:
        labels = [(await transport.call(wire, ONE)).answers[0].label for _ in range(3)]
    assert labels == ["a", "b", "b"]


async def test_a_connection_without_extra_bytes_is_used_again():
    assert await ask_twice(b"") == ("ab", 1)


class Late(threading.Thread):
    """A server in a thread that sends an extra response while the client's loop is blocked."""

    def __init__(self, extra):
        super().__init__(daemon=True)
        self.extra, self.go, self.sent = extra, threading.Event(), threading.Event()
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.settimeout(10)

    def run(self):
        with self.socket:
            first, _ = self.socket.accept()
            with first:
                first.recv(65_536)
                first.sendall(labeled(b"a"))
                self.go.wait()
                first.sendall(self.extra) if self.extra else first.shutdown(socket.SHUT_WR)
                self.sent.set()
                second, _ = self.socket.accept()
                with second:
                    second.recv(65_536)
                    second.sendall(labeled(b"b"))


@pytest.mark.parametrize("extra", [labeled(b"x"), b"x", b""])
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, "uvloop"])
def test_what_arrives_while_the_loop_is_busy_answers_no_text(loop, extra):
    if loop == "uvloop":
        loop = pytest.importorskip("uvloop", reason="platform: no uvloop").new_event_loop

    async def run():
        server = Late(extra)
        server.start()
        wire = Wire(f"http://127.0.0.1:{server.socket.getsockname()[1]}/v1")
        async with sending() as transport:
            first = await transport.call(wire, ONE)
            server.go.set()
            server.sent.wait()
            time.sleep(0.05)  # noqa: ASYNC251 - it is in the socket's buffer, and not read
            second = await transport.call(wire, ONE)
        server.join()
        return first.answers[0].label + second.answers[0].label

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(run()) == "ab"


async def labels_of_repeated(connections, *, every, name="chatcmpl-{:032x}", texts=30, says="ab"):
    """Label texts by a server that sends some responses again, 3 ms later, and changes them."""

    async def respond(number, writer):
        text = int(orjson.loads(requests[number])["user"])
        body = {
            "id": name.format(number) if name else number % 5,
            "label": says[text % len(says)],
            "usage": [1, 1],
        }
        writer.write(whole(orjson.dumps(body), headers=b"Date: now\r\n"))
        await writer.drain()
        if every and number < texts and number % every == 0:
            await asyncio.sleep(0.003)
            again = {"served": number, **body} if number % 2 else body
            data = orjson.dumps(again, option=orjson.OPT_INDENT_2)
            writer.write(whole(data, headers=b"Date: later\r\n"))

    async with (
        raw(respond) as (wire, requests),
        sending(concurrency=connections) as transport,
    ):
        asked = [Request(ONE.task, str(i), (str(i),)) for i in range(texts)]
        replies = await asyncio.gather(*(transport.call(wire, request) for request in asked))
    return "".join(reply.answers[0].label for reply in replies), len(requests), transport


@pytest.mark.parametrize("connections", [1, 4])
async def test_a_response_sent_twice_answers_no_later_request(connections):
    labels, sent, transport = await labels_of_repeated(connections, every=11)
    assert labels == "ab" * 15
    assert 30 < transport.meter.calls <= sent


async def labels_of_cached(hits, *, name="chatcmpl-{:032x}", created=None, texts=30, concurrency=4):
    """Label texts behind a proxy that caches POST by URL; `hits` of attempt and text are hits."""
    cached, attempts = [], Counter()

    async def respond(number, writer):
        text = int(orjson.loads(requests[number])["user"])
        body = {"id": name.format(number), "label": "ab"[text % 2], "usage": [1, 1]}
        data = orjson.dumps(body | ({"created": created} if created else {}))
        if not (cached and hits(attempts[text], text)):
            cached[:] = [data]
        attempts[text] += 1
        writer.write(whole(cached[0]))

    async with (
        raw(respond) as (wire, requests),
        sending(concurrency=concurrency) as transport,
    ):
        asked = [Request(ONE.task, str(i), (str(i),)) for i in range(texts)]
        calls = (transport.call(wire, request) for request in asked)
        replies = await asyncio.gather(*calls, return_exceptions=True)
    errors = [reply for reply in replies if isinstance(reply, Exception)]
    labels = "".join(
        "-" if isinstance(reply, Exception) else reply.answers[0].label for reply in replies
    )
    return labels, errors, len(requests), transport


async def test_a_cached_response_answers_no_other_request(caplog):
    labels, errors, sent, transport = await labels_of_cached(
        lambda attempt, text: attempt < 2 and text % 3 == 2
    )
    assert labels == "ab" * 15
    assert not errors
    assert transport.meter.calls == sent
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_a_proxy_that_caches_every_response_labels_no_other_text(concurrency):
    """It forwards one request; that the server is no mock is seen by the time in its responses."""
    labels, errors, sent, transport = await labels_of_cached(
        lambda *_: True, created=int(time.time()), concurrency=concurrency, texts=8
    )
    assert labels == "a" + 7 * "-"
    assert "another request" in str(errors[0])
    assert "cache" in str(errors[0])
    assert transport.meter.calls == sent == 1 + 3 * 7


async def test_the_same_request_may_be_answered_by_a_cache():
    async def respond(number, writer):
        text = orjson.loads(requests[number])["user"]
        writer.write(whole(orjson.dumps({"id": f"chatcmpl-{text:032}", "label": "a"})))

    async with raw(respond) as (wire, requests), sending(concurrency=8) as transport:
        asked = [Request(ONE.task, str(i % 5), ("x",)) for i in range(40)]
        await asyncio.gather(*(transport.call(wire, request) for request in asked[:8]))
        await asyncio.gather(*(transport.call(wire, request) for request in asked[8:]))
    # one that comes on the connection of before is asked about again
    assert 40 <= transport.meter.calls <= 45


@pytest.mark.parametrize(
    ("name", "labels", "most"),
    [("chatcmpl-always-the-same", "ab", 30), ("x", "ab", 30), ("x", "a", 31), ("", "ab", 30),
     ("chatcmpl-7", "a", 30)],
)  # fmt: skip
async def test_a_server_whose_ids_are_not_unique_is_sent_one_more_call_at_most(name, labels, most):
    given, sent, _ = await labels_of_repeated(1, every=0, name=name, says=labels)
    assert given == (labels * 30)[:30]
    assert sent <= most


@pytest.mark.parametrize(
    "head", [b"Content-Length: 32\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"]
)
@pytest.mark.parametrize("cut", [60, -5])
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, "uvloop"])
def test_the_connection_of_a_response_that_comes_in_parts_is_used_again(loop, head, cut):
    if loop == "uvloop":
        loop = pytest.importorskip("uvloop", reason="platform: no uvloop").new_event_loop
    body = ANSWER if b"Length" in head else b"%x\r\n%s\r\n0\r\n\r\n" % (len(ANSWER), ANSWER)
    response = b"HTTP/1.1 200 OK\r\n" + head + body
    connections = set()

    async def respond(number, writer):
        connections.add(writer)
        writer.write(response[:cut])
        await writer.drain()
        await asyncio.sleep(0.01)  # the first part has been read
        writer.write(response[cut:])

    async def run():
        async with raw(respond) as (wire, _), sending() as transport:
            return [(await transport.call(wire, ONE)).answers[0].label for _ in range(3)]

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(run()) == ["a", "a", "a"]
    assert len(connections) == 1


async def test_a_call_that_is_given_up_sends_no_more_of_its_request():
    """Its connection would stay open, with the request in memory, until the server reads on."""
    reached, given_up, served = asyncio.Event(), asyncio.Event(), asyncio.Event()
    size = 0

    async def connected(reader, writer):
        nonlocal size
        await reader.readuntil(b"\r\n\r\n")
        reached.set()
        await given_up.wait()
        with suppress(ConnectionError):
            while part := await reader.read(2**20):
                size += len(part)
        writer.close()
        served.set()

    large = Request(ONE.task, "x" * 32_000_000, ONE.texts)
    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=1024)
    wire = Wire(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
    try:
        async with sending() as transport:
            call = asyncio.ensure_future(transport.call(wire, large))
            await reached.wait()
            call.cancel()
            await asyncio.wait([call])
            given_up.set()
            await served.wait()
    finally:
        server.close()
        await server.wait_closed()
    assert call.cancelled()
    assert size < 32_000_000


async def test_a_status_below_100_is_an_error():
    async with raw(sends(whole(ANSWER, b"099 Strange"))) as (wire, _), sending() as transport:
        with pytest.raises(ServerError, match="99"):
            await transport.call(wire, ONE)
