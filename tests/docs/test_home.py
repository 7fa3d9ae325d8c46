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


def test_the_picture_shows_the_example():
    shown = re.findall(r"```text\n(.*?)```", HOME, re.DOTALL)[0]
    drawn = re.findall(r">([^<]+)</text>", (DOCS / "images" / "vote-light.svg").read_text())
    votes = re.findall(r"'(\w+)' (\d\.\d\d)", shown.splitlines()[2])
    assert len(votes) == 3
    neighbors = re.findall(r"0\.\d\d '(\w+)' '([^']+)'", shown)
    assert len(neighbors) == 4
    for expected in (*votes, *neighbors):
        assert set(expected) <= set(drawn)
    assert {"refund", "confidence 0.41", "trust 0.52"} <= set(drawn)
