"""A page to look at results with: one HTML file that asks nothing of any other machine.

`render` makes the page, `write` puts it in a file, `read_marks` reads what a person marked on it.
"""

from __future__ import annotations

from testnuc.report.marks import read_marks
from testnuc.report.page import MOST_LISTED, render, write

__all__ = ["MOST_LISTED", "read_marks", "render", "write"]
