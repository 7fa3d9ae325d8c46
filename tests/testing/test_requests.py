"""The requests of a client, however damaged, get a response."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testnuc.testing import LoopbackLLM
from testnuc.testing.server import HTTPRequest

FIELDS = ["model", "messages", "max_tokens", "system", "response_format", "tools", "tool_choice"]
WITHIN = ["role", "content", "type", "name", "json_schema", "schema", "properties", "answers"]
VALUES = st.sampled_from([None, True, 1, "", "m", "user", "tool"])
SHALLOW = VALUES | st.lists(VALUES, max_size=2) | st.dictionaries(st.sampled_from(WITHIN), VALUES)
DEEP = SHALLOW | st.lists(SHALLOW, max_size=2) | st.dictionaries(st.sampled_from(WITHIN), SHALLOW)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from([*FIELDS, "output_config", "logprobs"]), DEEP))
def test_no_body_breaks_the_server(body):
    for path in ("/v1/chat/completions", "/v1/messages"):
        call = HTTPRequest("POST", path, {"anthropic-version": "1"}, orjson.dumps(body))
        assert LoopbackLLM({}).respond(call).status == 400
