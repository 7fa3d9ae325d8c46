"""OpenAI's Responses API, which some models need in place of chat completions."""

import re
from collections.abc import Mapping
from typing import Any

import orjson

PATH = "/responses"

#: Models without chat completions.
_MODELS = re.compile(
    r"^(o\d+-pro|gpt-\d+(\.\d+)?-pro|.*codex|.*deep-research|computer-use)", re.IGNORECASE
)
#: The refusals of chat completions for such a model.
NEEDED = re.compile(
    r"only supported in v1/responses|not a chat model|use (the )?(v1)?/?responses"
    r"|chatcompletion operation does not work|not accessible via the /chat/completions",
    re.IGNORECASE,
)


def needs(model: str) -> bool:
    """Whether a model has no chat completions, by its name without the provider's."""
    return _MODELS.search(model) is not None


def opening(model: str, system: str) -> bytes:
    """Return the body up to and with the opening quote of the user message."""
    head = orjson.dumps({"model": model, "instructions": system})[:-1]
    return head + b',"input":[{"role":"user","content":"'


def parameters(chat: Mapping[str, Any], limit: int | None) -> dict[str, Any]:
    """Return the parameters of a response, from those of a chat completion without output limit."""
    sent = dict(chat)
    form = sent.pop("response_format", None)
    if form is not None:
        schema = form.get("json_schema")
        flat = {"type": form["type"], **schema} if isinstance(schema, dict) else form
        sent["text"] = {**sent.get("text", {}), "format": flat}
    effort = sent.pop("reasoning_effort", None)
    if effort is not None:
        sent["reasoning"] = {**sent.get("reasoning", {}), "effort": effort}
    if sent.pop("logprobs", None):
        sent["include"] = ["message.output_text.logprobs"]
    if limit is not None:
        sent["max_output_tokens"] = limit
    # texts are not kept at the provider for thirty days
    return {"store": False, **sent}


def content(answer: Mapping[str, Any]) -> tuple[str, str | None, list[Any]]:
    """Return the text of a response, its refusal or None, and the tokens' log-probabilities."""
    said: list[str] = []
    refusals: list[str] = []
    tokens: list[Any] = []
    output = answer.get("output")
    for item in output if isinstance(output, list) else ():
        if not isinstance(item, dict) or item.get("type") != "message":
            continue
        parts = item.get("content")
        # what a model says on its way, and what it was asked, are no answers
        if item.get("phase") == "commentary" or item.get("role", "assistant") != "assistant":
            continue
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                said.append(part["text"])
                tokens += part["logprobs"] if isinstance(part.get("logprobs"), list) else []
            elif isinstance(part, dict) and isinstance(part.get("refusal"), str):
                refusals.append(part["refusal"])
    return "".join(said), "".join(refusals) or None, tokens
