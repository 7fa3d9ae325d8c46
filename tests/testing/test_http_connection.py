import itertools

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testnuc.prompts import user_prompt
from testnuc.testing import LoopbackLLM
from testnuc.testing.http_connection import Connection, header


class Transport:
    def __init__(self):
        self.written = b""

    def write(self, data):
        self.written += data

    def is_closing(self):
        return False

    def close(self):
        self.written += b"<closed>"


BODY = orjson.dumps(
    {"model": "m", "messages": [{"role": "user", "content": user_prompt(["a\n", "ß"])}]}
)
LINE = b"POST /v1/chat/completions?api-version=1 HTTP/1.1\r\nHost: here\r\n"
PLAIN = LINE + b"content-LENGTH: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = (
    LINE
    + b"Transfer-Encoding: chunked\r\n\r\n"
    + b"".join(
        b"%x;name=value\r\n%s\r\n" % (len(BODY[i : i + 40]), BODY[i : i + 40])
        for i in range(0, len(BODY), 40)
    )
    + b"0\r\nTrailer: yes\r\n\r\n"
)


def connected(llm):
    """A connection to a server that listens nowhere, and what it writes to."""
    connection, transport = Connection(llm._listener), Transport()
    connection.connection_made(transport)
    return connection, transport


@given(st.sampled_from([PLAIN, CHUNKED]), st.lists(st.integers(1, len(CHUNKED)), max_size=8))
def test_requests_are_understood_however_they_are_cut(request_bytes, cuts):
    llm = LoopbackLLM({"a\n": "x", "ß": "y"})
    connection, transport = connected(llm)
    places = [0, *sorted({min(cut, len(request_bytes) - 1) for cut in cuts}), len(request_bytes)]
    for start, end in itertools.pairwise(places):
        assert not transport.written
        connection.data_received(request_bytes[start:end])
    assert transport.written.startswith(b"HTTP/1.1 200 OK\r\n")
    assert llm.asked == {"a\n": 1, "ß": 1}


@given(st.binary(max_size=300))
def test_no_bytes_break_the_server(junk):
    llm = LoopbackLLM({})
    connection, _ = connected(llm)
    connection.data_received(junk + b"\r\n\r\n")
    connection.data_received(junk)
    assert llm.calls == 0


@pytest.mark.parametrize(
    "junk",
    [
        b"GET /v1/models HTTP/1.1\r\nContent-Length: -5",
        b"GET /v1/models HTTP/1.1\r\nContent-Length: five",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-5",
        b"GET /v1/models",
        b"a b c",
        b"x" * 70_000,
    ],
)
def test_what_is_not_http_is_refused(junk):
    connection, transport = connected(LoopbackLLM({}))
    connection.data_received(junk)
    connection.data_received(b"\r\n\r\n")
    assert transport.written.startswith(b"HTTP/1.1 4")
    assert transport.written.endswith(b"<closed>")


def test_requests_in_one_piece_are_answered_in_turn():
    llm = LoopbackLLM({"a\n": "x", "ß": "y"})
    connection, transport = connected(llm)
    connection.data_received((PLAIN + CHUNKED) * 3)
    assert transport.written.count(b"HTTP/1.1 200 OK") == llm.calls == 6


FIELDS = ["model", "messages", "max_tokens", "system", "response_format", "tools", "tool_choice"]
WITHIN = ["role", "content", "type", "name", "json_schema", "schema", "properties", "answers"]
VALUES = st.sampled_from([None, True, 1, "", "m", "user", "tool"])
SHALLOW = VALUES | st.lists(VALUES, max_size=2) | st.dictionaries(st.sampled_from(WITHIN), VALUES)
DEEP = SHALLOW | st.lists(SHALLOW, max_size=2) | st.dictionaries(st.sampled_from(WITHIN), SHALLOW)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from([*FIELDS, "output_config", "logprobs"]), DEEP))
def test_no_body_breaks_the_server(body):
    for path in (b"/v1/chat/completions", b"/v1/messages"):
        llm = LoopbackLLM({})
        connection, transport = connected(llm)
        data = orjson.dumps(body)
        connection.data_received(
            b"POST %s HTTP/1.1\r\nanthropic-version: 1\r\nContent-Length: %d\r\n\r\n%s"
            % (path, len(data), data)
        )
        assert transport.written.startswith(b"HTTP/1.1 400 ")


def test_headers_are_found_whatever_their_case():
    head = b"\r\nHost: a\r\nX-Api-Key:  Secret \r\nLast: z"
    assert header(head, b"x-api-key") == b"Secret"
    assert header(head, b"last") == b"z"
    assert header(head, b"api-key") is None
