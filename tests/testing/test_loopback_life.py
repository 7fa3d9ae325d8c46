import asyncio
import errno
import json
import os
import signal
import socket
import sys
import threading
import urllib.request

import aiohttp
import orjson
import pytest

from bench._server import serve_in_process
from testnuc.errors import InvalidInputError, TestNUCError
from testnuc.testing import Faults, LoopbackLLM
from tests import virtual
from tests.testing.loopback_client import GOLD, ask, ask_anthropic, chat, said
from tests.waiting import until


async def test_latency_and_the_peak(session):
    async with LoopbackLLM(GOLD, latency=30) as llm:
        asking = asyncio.gather(*(ask(session, llm, "a") for _ in range(20)))
        await until(lambda: llm.in_flight == 20)
        await asyncio.sleep(0.02)
        assert not asking.done()
        virtual.skip(31)
        await asking
        assert llm.peak == 20
        assert llm.in_flight == 0


async def test_a_server_killed_and_started_again(session):
    latencies = iter([30, 0])
    async with LoopbackLLM(GOLD, latency=lambda rng: next(latencies)) as llm:
        url = llm.base_url
        waiting = asyncio.ensure_future(ask(session, llm, "a"))
        await until(lambda: llm.in_flight)
        await llm.stop()
        with pytest.raises(aiohttp.ClientError):
            await waiting
        for _ in range(3):
            with pytest.raises(aiohttp.ClientConnectorError) as refused:
                await ask(session, llm, "a")
            assert refused.value.errno == errno.ECONNREFUSED
        await llm.start()
        await llm.start()
        assert llm.base_url == url
        assert (await ask(session, llm, "a"))[0].status == 200
        assert (llm.requests, llm.calls, llm.in_flight) == (2, 1, 0)
        await llm.stop()
        await llm.stop()
    with socket.socket() as sock:  # the port was given back
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", int(url.split(":")[2].removesuffix("/v1"))))


async def test_no_server_gives_an_id_of_one_before(session):
    """A client takes a response with such an id for a repetition."""
    ids = []
    for _ in range(2):
        async with LoopbackLLM(GOLD) as llm:
            ids += [(await ask(session, llm, "a"))[1]["id"] for _ in range(2)]
            ids.append((await ask_anthropic(session, llm, "a"))[1]["id"])
    assert len(set(ids)) == 6


async def test_a_response_that_a_stop_prevents_is_not_counted(session):
    async with LoopbackLLM(GOLD, latency=30) as llm:
        waiting = asyncio.ensure_future(ask(session, llm, "a"))
        await until(lambda: llm.in_flight)
        virtual.skip(31)
        for _ in range(2):  # the response is due in the same iteration
            await asyncio.sleep(0)
        await llm.stop()
        with pytest.raises(aiohttp.ClientError):
            await waiting
        assert (llm.calls, llm.asked, llm.in_flight) == (0, {}, 0)


async def test_a_stop_in_the_middle_of_a_refusal(session):
    faults = Faults(schedule=["refused", "refused"], refuse=0.01)
    async with LoopbackLLM(GOLD, faults=faults) as llm:
        with pytest.raises(aiohttp.ClientError):
            await ask(session, llm, "a")
        await llm.stop()
        await asyncio.sleep(0.02)
        with pytest.raises(aiohttp.ClientConnectorError):
            await ask(session, llm, "a")
        await llm.start()
        with pytest.raises(aiohttp.ClientError):
            await ask(session, llm, "a")


async def test_a_taken_port_is_an_error():
    async with LoopbackLLM(GOLD) as llm:
        port = int(llm.base_url.removesuffix("/v1").rpartition(":")[2])
        with pytest.raises(OSError, match="in use"):
            await LoopbackLLM(GOLD, port=port).start()
        with pytest.raises(OSError, match="in use"), LoopbackLLM(GOLD, port=port):
            pass


async def test_counts_can_be_reset(session):
    async with LoopbackLLM(GOLD) as llm:
        await ask(session, llm, "a")
        assert llm.stats()["calls"] == 1
        llm.reset()
        assert (llm.calls, llm.requests, llm.peak, llm.asked) == (0, 0, 0, {})


# -- a thread, a process ---------------------------------------------------------------------------


def post(url, body):
    request = urllib.request.Request(f"{url}/chat/completions", orjson.dumps(body))
    with urllib.request.urlopen(request, timeout=5) as reply:
        return orjson.loads(reply.read())


def test_without_an_event_loop():
    with LoopbackLLM(GOLD) as llm:
        for _ in range(2):
            assert json.loads(said(post(llm.base_url, chat("a"))))["label"] == "x"

        async def restart():
            await llm.stop()
            with pytest.raises(OSError, match="refused"):
                post(llm.base_url, chat("a"))
            await llm.start()

        asyncio.run(restart())
        post(llm.base_url, chat("b"))
        assert (llm.calls, llm.asked["a"]) == (3, 2)
    assert "LoopbackLLM" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.slow
def test_in_another_process(tmp_path):
    with serve_in_process({"a": ("x", 0.5), "b": "y"}, latency=0.001) as server:
        assert server.pid != os.getpid()
        assert json.loads(said(post(server.base_url, chat("a", "b"))))["answers"][1]["label"] == "y"
        stats = server.stats()
        assert (stats["calls"], stats["texts"], stats["peak"]) == (1, 2, 1)
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)
    path = tmp_path / "answers.json"
    path.write_text('{"a": ["x", 0.5]}')
    with serve_in_process(path, faults={"schedule": ["503"]}) as server:
        with pytest.raises(OSError, match="503"):
            post(server.base_url, chat("a"))
        assert json.loads(said(post(server.base_url, chat("a"))))["label"] == "x"


@pytest.mark.slow
def test_a_process_that_cannot_start_says_so(tmp_path, capfd):
    missing = serve_in_process(tmp_path / "missing.json")
    with pytest.raises(TestNUCError, match="exited with code"), missing:
        pass
    assert "missing.json" in capfd.readouterr().err
    impossible = serve_in_process(["x"], latency=lambda rng: 0.1)
    with pytest.raises(InvalidInputError, match="another process"), impossible:
        pass


@pytest.mark.slow
def test_on_the_command_line():
    import subprocess

    command = [sys.executable, "-m", "testnuc.testing", "--labels", "x, y", "--latency", "0.001"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        url = json.loads(process.stdout.readline())["base_url"]
        assert json.loads(said(post(url, chat("some text"))))["label"] in {"x", "y"}
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 0
