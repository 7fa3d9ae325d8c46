"""The map and the guide name only what exists: paths, names in files, make targets."""

import ast
import re
from pathlib import Path

import pytest

import testnuc

ROOT = Path(__file__).parents[2]
MAP = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
#: `folder/`, `folder/file.py` or `folder/file.py::Class.method`
PATH = r"`((?:testnuc|tests|bench|docs|examples)/[\w/.:]*)`"
NAMED = sorted(set(re.findall(PATH, MAP + GUIDE)))


def located(path):
    # the tests of a wheel run beside an installed package, not beside its source
    if path.startswith("testnuc/"):
        return Path(testnuc.__file__).parent / path.removeprefix("testnuc/")
    return ROOT / path


def defined(body):
    """Names that a module or class defines, with the statements inside each."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.body
        elif isinstance(node, ast.Assign):
            yield from ((target.id, []) for target in node.targets if isinstance(target, ast.Name))


@pytest.mark.parametrize("named", NAMED)
def test_what_is_named_exists(named):
    path, _, name = named.partition("::")
    place = located(path)
    assert place.is_dir() if path.endswith("/") else place.is_file()
    body = ast.parse(place.read_text(encoding="utf-8")).body if name else []
    for part in name.split(".") if name else []:
        body = dict(defined(body))[part]


def test_the_guide_names_make_targets():
    targets = set(re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))
    named = set(re.findall(r"make ([a-z]+)`", GUIDE))
    assert "test" in named
    assert named <= targets
