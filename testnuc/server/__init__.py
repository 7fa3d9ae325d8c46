"""HTTP service: clients behind ``POST /v1/classify``; see docs/service.md."""

from testnuc.server.access import JsonLines
from testnuc.server.lifecycle import serve
from testnuc.server.service import Service, page_of
from testnuc.server.settings import ServerSettings

__all__ = ["JsonLines", "ServerSettings", "Service", "page_of", "serve"]
