"""The example notebook runs from top to bottom in a kernel of its own."""

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = [pytest.mark.slow, pytest.mark.torch]

NOTEBOOK = Path(__file__).parents[2] / "examples" / "tickets.ipynb"


def outputs(cell, kind):
    return [o["data"][kind] for o in cell.get("outputs", []) if kind in o.get("data", {})]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_notebook_runs(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(NOTEBOOK.parents[1])]))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown, table, counts, trust, queue = (cells[i] for i in (2, 3, 4, 5, 6))
    assert "702" in outputs(shown, "text/html")[0]
    assert "own_label" in outputs(table, "text/html")[0]
    assert "track order" in outputs(counts, "text/plain")[0]
    alone, voted = map(float, re.findall(r"0\.\d+", trust["outputs"][0]["text"]))
    assert voted > alone
    assert "why" in outputs(queue, "text/html")[0]
    assert "is labeled" in cells[7]["outputs"][0]["text"]
