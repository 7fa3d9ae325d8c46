"""Requests as a provider's client would send them, made by hand."""

import orjson

from testnuc.prompts.writing import user_prompt

GOLD = {"a": ("x", 0.5), "b": "y", "c": ["z", None], "line\nbreak": ("é", 1.0)}
SCHEMA = {"type": "object", "properties": {"label": {}, "confidence": {}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}


def chat(*texts, **more):
    messages = [
        {"role": "system", "content": "You label texts."},
        {"role": "user", "content": user_prompt(texts)},
    ]
    return {"model": "m", "messages": messages, **more}


def message(*texts, **more):
    parts = [{"type": "text", "text": user_prompt(texts)}]
    return {
        "model": "m",
        "max_tokens": 99,
        "system": "You label texts.",
        "messages": [{"role": "user", "content": parts}],
        **more,
    }


async def ask(session, llm, *texts, **more):
    async with session.post(f"{llm.base_url}/chat/completions", json=chat(*texts, **more)) as reply:
        return reply, orjson.loads(await reply.read())


async def ask_anthropic(session, llm, *texts, headers=None, **more):
    url, headers = f"{llm.base_url}/messages", headers or {"anthropic-version": "2023-06-01"}
    async with session.post(url, json=message(*texts, **more), headers=headers) as reply:
        return reply, orjson.loads(await reply.read())


def said(body):
    return body["choices"][0]["message"]["content"]


def content_of(wire, body):
    return said(body) if wire is ask else body["content"][0]["text"]
