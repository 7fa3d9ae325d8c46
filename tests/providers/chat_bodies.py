"""Requests and completions, for the tests of the chat completions protocol."""

import itertools
from weakref import WeakKeyDictionary

import orjson

from testnuc.labels import LabelSet
from testnuc.prompts.writing import system_prompt, user_prompt
from testnuc.protocols import Request, Task

KEY = "sk-test-0123456789abcdef"
LABELS = ("refund", 'say "no"', "\u00fcber")
LOCAL = "http://localhost:8000/v1"


def task(labels=LABELS, **more):
    return Task(system_prompt(LabelSet(labels)), tuple(labels), **more)


def request(n=1, **more):
    texts = tuple(f"text {i}" for i in range(n))
    return Request(more.pop("task", None) or task(**more), user_prompt(texts), texts)


#: Provider -> the task of the call that was encoded last.
_TASKS = WeakKeyDictionary()


def sent(provider, asked=None, **more):
    asked = asked or request(**more)
    _TASKS[provider] = asked.task
    return orjson.loads(provider.encode(asked))


def adapts(provider, error):
    return provider.adapt(error, _TASKS.get(provider) or task())


def refuse(provider, message, status=400, **fields):
    body = orjson.dumps({"error": {"message": message, **fields}})
    return provider.error(status, {}, body)


_NUMBERS = itertools.count()


def completion(content='{"label": "refund", "confidence": 0.9}', finish="stop", **more):
    message = {"role": "assistant", "content": content, "refusal": more.pop("refusal", None)}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    if "logprobs" in more:
        choice["logprobs"] = more.pop("logprobs")
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 64},
    }
    # an id that was there before is that of a response sent twice
    name = f"chatcmpl-{next(_NUMBERS)}"
    return orjson.dumps({"id": name, "choices": [choice], "usage": usage, **more})
