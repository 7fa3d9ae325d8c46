"""Labels over HTTP: one client behind ``POST /v1/classify``, for services that are not in Python.

`Service` answers requests, `page_of` makes the page at its ``/``, `serve` runs it until the process
is told to end, `ServerSettings` says where and how much. ``testnuc serve`` does all four. See
docs/service.md.
"""

from __future__ import annotations

from testnuc.server.lifecycle import serve
from testnuc.server.page import page_of
from testnuc.server.service import Service
from testnuc.server.settings import ServerSettings

__all__ = ["ServerSettings", "Service", "page_of", "serve"]
