"""HTTP service: one client behind ``POST /v1/classify``, for callers in any language.

`Service` handles requests, `page_of` renders the page at ``/results``, `serve` runs the service
until a signal, `ServerSettings` has address and limits. ``testnuc serve`` combines them. See
docs/service.md.
"""

from testnuc.server.access import JsonLines
from testnuc.server.lifecycle import serve
from testnuc.server.service import Service, page_of
from testnuc.server.settings import ServerSettings

__all__ = ["JsonLines", "ServerSettings", "Service", "page_of", "serve"]
