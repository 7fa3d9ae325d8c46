"""Label texts with LLMs, and make the labels better without any labeled data."""

from __future__ import annotations

__version__ = "0.1.0.dev0"
