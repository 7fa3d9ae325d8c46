"""Labels over HTTP: one client behind ``POST /v1/classify``, for services that are not in Python.

`Service` answers requests, `serve` runs it until the process is told to end, `ServerSettings` says
where and how much. ``testnuc serve`` does all three. See docs/service.md.
"""

from __future__ import annotations

from testnuc.server.running import serve
from testnuc.server.service import Service
from testnuc.server.settings import ServerSettings

__all__ = ["ServerSettings", "Service", "serve"]
