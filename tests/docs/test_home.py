"""The home page's example prints what the page and its picture show."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
HOME = (DOCS / "index.md").read_text(encoding="utf-8")


@pytest.mark.torch
def test_the_example_prints_what_is_shown(capsys):
    exec(re.findall(r"```python\n(.*?)```", HOME, re.DOTALL)[0], {})
    printed = capsys.readouterr().out
    shown = re.findall(r"```text\n(.*?)```", HOME, re.DOTALL)[0]
    assert printed.startswith(shown)
    assert printed.count("is labeled") == 2
