import inspect
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "testing.md"
BLOCKS = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)


def test_there_are_examples():
    assert len(BLOCKS) == 6


@pytest.mark.parametrize("block", BLOCKS)
async def test_the_examples_run(block, monkeypatch):
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    names: dict[str, object] = {}
    exec(compile(block, DOCS.name, "exec"), names)
    for name, test in names.items():
        if name.startswith("test_") and inspect.isfunction(test):
            result = test()
            if inspect.isawaitable(result):
                await result
