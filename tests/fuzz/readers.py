"""Everything that reads foreign bytes, each with bytes that it can read.

A reader returns, or raises an error of ours, whatever it is given, and does not take long.
"""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random

import openpyxl

from testnuc import Head, LabelSet, Results, Review, TestNUC
from testnuc._base.jsonl import json_object
from testnuc.cli.label_files import read_labels
from testnuc.cli.reading import read_table
from testnuc.cli.settings import read_settings
from testnuc.limits.headers import reset_delay, retry_after
from testnuc.prompts.writing import system_prompt, user_prompt
from testnuc.protocols import Request, Task
from testnuc.providers.anthropic import Anthropic
from testnuc.providers.openai import OpenAI
from testnuc.report import read_marks
from testnuc.stores.export import load
from testnuc.stores.memory import MemoryStore
from testnuc.stores.sqlite.store import SqliteStore
from testnuc.testing import HashEmbedder
from testnuc.transport.api_errors import as_error
from testnuc.trust.learned import Learned
from tests.doubles import Says
from tests.weather.bodies import body
from tests.weather.exchanges import BUILT_IN, Asked, reply
from tests.weather.mutations import WAITS
from tests.weather.response import Response

#: Seconds of CPU time for one example; the largest has some 100 kB.
LONGEST = 2.0
LABELS = ("refund", "delivery", "login")


@dataclass(frozen=True)
class Reader:
    """A function of bytes, and examples that it can read."""

    read: Callable[[bytes], object]
    samples: tuple[bytes, ...]


@cache
def written() -> dict[str, bytes]:
    """Return what a client writes, by suffix: results, a review, a head, a store."""

    async def write(folder):
        texts = [f"text {i} {'x' * (i % 7)}" for i in range(60)]
        store = SqliteStore(folder / "s.db")
        async with TestNUC(
            LABELS,
            model=Says(lambda text: LABELS[len(text) % 2]),
            embedder=HashEmbedder(8),
            store=store,
        ) as nuc:
            results = await nuc.classify_many(texts)
            results.to_jsonl(folder / "r.jsonl")
            review = await nuc.review(12)
            for item in review:
                review.answer(item.index, LABELS[item.index % 2])
            review.save(folder / "v.json")
            learned = await nuc.learn(review)
            (folder / "l.learned").write_bytes(learned.to_bytes())
            await nuc.distill(folder / "h.head")

    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asyncio.run(write(Path(name)))
        return {path.suffix: path.read_bytes() for path in Path(name).iterdir()}


def in_file(suffix: str, read: Callable[[str], object]) -> Callable[[bytes], object]:
    """Return a reader of the bytes as a file."""

    def of_bytes(data):
        with tempfile.TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
            path = Path(folder, f"given{suffix}")
            path.write_bytes(data)
            return read(str(path))

    return of_bytes


def decoded(form: str, n: int, several: bool, confidence: str, data: bytes) -> object:
    """Decode a response with status 200."""
    kind = partial(OpenAI, responses=form == "responses")
    provider = (Anthropic if form == "anthropic" else kind)(
        "m", base_url="http://127.0.0.1:9/v1", api_key="sk-0123456789abcdef"
    )
    labels = LabelSet(LABELS, multilabel=several)
    task = Task(system_prompt(labels), LABELS, multilabel=several, confidence=confidence)
    texts = tuple(f"text {i}" for i in range(n))
    return provider.decode(Request(task, user_prompt(texts), texts), data)


def error_of(data: bytes) -> None:
    """Read an error; it must be short, printable, and hold no key."""
    key = "sk-0123456789abcdef/x+y="
    status = data[0] * 3 if data else 400
    error = as_error(status, {"x-request-id": "r"}, data, where="m at h", key=key)
    said = f"{error} {error.request_id} {error.retry_after}"
    assert key not in said
    assert len(said) < 5_000
    assert "\n" not in said


def headers_of(data: bytes) -> None:
    """Read headers with waits."""
    text = data.decode("utf-8", "replace")
    for name in ("retry-after", "retry-after-ms"):
        seconds = retry_after({name: text, "date": text}, 1.7e9)
        assert seconds is None or seconds >= 0
    seconds = reset_delay(text, 1.7e9)
    assert seconds is None or seconds >= 0


def settings_of(path: str) -> object:
    """Read a file of settings."""
    return read_settings(Path(path), {"classify": {"k", "model", "budget"}, "serve": {"port"}})


def exported(data: bytes) -> object:
    """Import the records of an export."""
    lines = enumerate(data.splitlines(), 1)
    records = [json_object(line, "export", number) for number, line in lines if line.strip()]
    return asyncio.run(load(MemoryStore(), records))


def store_of(path: str) -> None:
    """Read everything in a store's file."""

    async def read():
        store = SqliteStore(path)
        try:
            await store.open()
            rows = await store.predictions(count=1_000)
            await store.get_predictions([row.key for row in rows])
            for name, _ in await store.embedders():
                await store.vectors(name, count=1_000)
            for scope, _ in await store.scopes():
                await store.get_learned(scope)
                await store.count(scope)
        finally:
            await store.close()

    asyncio.run(read())


def _workbook() -> bytes:
    book = openpyxl.Workbook()
    for row in (["text", "n"], ["one", 1], ["two", 2.5], ["three", None]):
        book.active.append(row)
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


def _answers() -> tuple[bytes, ...]:
    one = json.dumps({"label": "refund", "confidence": 0.9})
    packed = {"answers": [{"id": i, "label": "login", "confidence": 0.5} for i in (1, 2, 3)]}
    several = {"labels": [{"label": "refund", "confidence": 0.9}, {"label": "login"}]}
    fenced = f"Well.\n```json\n{one}\n```"
    return one, json.dumps(packed), json.dumps(several), fenced, f"<think>x</think>{one}"


@cache
def readers() -> dict[str, Reader]:
    """Return the readers by name."""
    found = {}
    for form in ("chat", "responses", "anthropic"):
        samples = [json.dumps(reply(Asked(form, [], ""), said)).encode() for said in _answers()]
        for n, several, confidence in (
            (1, False, "verbalized"), (3, False, "verbalized"), (1, True, "verbalized"),
            (1, False, "logprobs"),
        ):  # fmt: skip
            name = f"{form} {n} {'several ' if several else ''}{confidence}"
            read = partial(decoded, form, n, several, confidence)
            found[name] = Reader(read, tuple(samples))
    files = written()
    record = {
        "kind": "prediction", "key": "00" * 16, "scope": "00" * 16, "hash": "00" * 16, "sample": 0,
        "label": "refund", "confidence": 0.5, "said": None,
    }  # fmt: skip
    vector = {"kind": "vector", "embedder": "e", "hash": "00" * 16, "vector": "AAAAAAAA"}
    lines = "\n".join(map(json.dumps, (record, vector, {"kind": "text", "embedder": "e",
                                                        "text": "x", "label": None})))  # fmt: skip
    table = partial(read_table, text_column="text", quiet=True)
    yaml = b"- refund: money back\n- delivery\n# note\n- &a login\n- *a\n"
    found |= {
        "errors": Reader(error_of, tuple(exchange.body for exchange in BUILT_IN)),
        "headers": Reader(headers_of, tuple(wait.encode() for wait in WAITS)),
        "workbooks": Reader(in_file(".xlsx", table), (_workbook(),)),
        "tables .csv": Reader(in_file(".csv", table), (b'text,n\none,1\n\'a"b\',2\n"x\ny",3\n',)),
        "tables .jsonl": Reader(in_file(".jsonl", table), (b'{"text": "a"}\n{"text": "b"}\n',)),
        "labels .yaml": Reader(in_file(".yaml", read_labels), (yaml, b"refund: a\nlogin: b\n")),
        "labels .json": Reader(in_file(".json", read_labels), (b'["a", {"label": "b"}]',)),
        "settings": Reader(
            in_file(".toml", settings_of), (b'k = 3\n[classify]\nmodel = "m"\n[serve]\nport = 1\n',)
        ),
        "heads": Reader(in_file(".head", Head.load), (files[".head"],)),
        "reviews": Reader(in_file(".json", Review.load), (files[".json"],)),
        "marks": Reader(
            in_file(".csv", read_marks), (b'text,right_label\none,a\ntwo,"[""b""]"\n',)
        ),
        "results": Reader(in_file(".jsonl", Results.from_jsonl), (files[".jsonl"],)),
        "learned": Reader(Learned.from_bytes, (files[".learned"],)),
        "stores": Reader(in_file(".db", store_of), (files[".db"],)),
        "exports": Reader(exported, (lines.encode(),)),
    }
    return found


def changed(random: Random, data: bytes) -> bytes:
    """Return bytes that differ from those given, in their JSON or in any place."""
    if data[:2] == b"PK" and random.random() < 0.7:
        return _in_archive(random, data)
    response = Response(200, [], data)
    for _ in range(random.choice((1, 1, 2, 4))):
        body(random, response)
    return response.body


def _in_archive(random: Random, data: bytes) -> bytes:
    """Change one of the files in an archive."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as given, zipfile.ZipFile(made, "w") as out:
        chosen = random.choice(given.namelist())
        for name in given.namelist():
            content = given.read(name)
            out.writestr(name, changed(random, content) if name == chosen else content)
    return made.getvalue()


def tried(reader: Reader, data: bytes, errors: tuple[type[Exception], ...]) -> float:
    """Read bytes, and return the seconds of CPU time; errors other than these propagate."""
    began = time.thread_time()
    with suppress(errors):
        reader.read(data)
    return time.thread_time() - began
