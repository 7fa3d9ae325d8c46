"""A self-contained HTML page for browsing and marking results; it makes no network request."""

from testnuc.report.marks import read_marks
from testnuc.report.page import MOST_LISTED, render, write

__all__ = ["MOST_LISTED", "read_marks", "render", "write"]
