"""Every public name is documented on one page of the reference, and every page is in the menu."""

import re
from inspect import ismodule
from pathlib import Path

import testnuc
from testnuc import testing

ROOT = Path(__file__).parents[2]
REFERENCE = "\n".join(p.read_text(encoding="utf-8") for p in ROOT.glob("docs/reference/*.md"))
NAMED = re.findall(r"(?m)^::: ([\w.]+)$", REFERENCE)


def test_every_public_name_has_one_place():
    # errors are documented as a module
    public = {f"testnuc.{n}" for n in testnuc.__all__ if not n.endswith("Error")}
    assert public <= set(NAMED)
    assert len(NAMED) == len(set(NAMED))
    assert "testnuc.errors" in NAMED
    # a page that names the package alone leaves out what it imports
    doubles = {f"testnuc.testing.{n}" for n, of in vars(testing).items() if not ismodule(of)}
    assert {name for name in doubles if "._" not in name} <= set(NAMED)


def test_the_overview_links_every_page():
    overview = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    pages = {f"reference/{p.name}" for p in ROOT.glob("docs/reference/*.md")}
    assert pages == set(re.findall(r"\]\((reference/[\w.]+)\)", overview))
