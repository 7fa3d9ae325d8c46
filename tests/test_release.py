"""What is released: the package that is tested is the one in the wheel, and it is whole."""

import os
import re
from importlib.metadata import metadata, version
from pathlib import Path

import pytest
import yaml

import testnuc

ROOT = Path(__file__).parents[1]


def test_the_version_is_that_of_the_package_and_of_the_changelog():
    assert version("testnuc") == testnuc.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{testnuc.__version__}]" in changelog


def test_the_citation_names_the_version_and_the_license():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(citation["version"]) == testnuc.__version__
    assert citation["license"] == metadata("testnuc")["License-Expression"]


def test_the_package_says_that_it_is_typed_and_brings_its_data():
    package = Path(testnuc.__file__).parent
    assert (package / "py.typed").is_file()
    assert (package / "data" / "support_messages.jsonl").is_file()
    assert list((package / "report").glob("*.css"))
    assert (package / ".agents" / "skills" / "testnuc" / "SKILL.md").is_file()


def test_commits_are_checked_by_the_ruff_of_the_tests():
    pinned = re.findall(r"^ruff==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert set(re.findall(r"ruff==[^\]\s]+", hooks.split("repos:")[1])) == set(pinned)


@pytest.mark.skipif("release" not in ROOT.parts, reason="only where `make tests` runs the wheel")
def test_the_wheel_is_what_is_tested():
    assert not (ROOT / "testnuc").exists()
    assert Path(testnuc.__file__).resolve().is_relative_to(Path(os.environ["PYTHONPATH"]).resolve())
