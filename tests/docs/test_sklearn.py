import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "sklearn.md"
BLOCKS = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
SAID = ["['delivery']\n[[1. 0.]] ['delivery' 'refund']\n5\n", "{'k': 1} 1.0 18\n"]


@pytest.mark.slow
@pytest.mark.parametrize(("block", "said"), list(zip(BLOCKS, SAID, strict=True)))
def test_the_examples_print_what_they_say(block, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, DOCS.name, "exec"), {})
    assert capsys.readouterr().out == said
