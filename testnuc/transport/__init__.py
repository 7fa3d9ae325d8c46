"""The HTTP side of calls: one session, one layer of retries.

::

    sending    Transport: budget, limits, POST, status to error, retry
    exchanges  requests that are no calls: uploads, downloads, questions
    calls      one call on its way, and its timer
    failures   what went wrong on the way, said in our own terms
"""

from __future__ import annotations

from testnuc.transport.auxiliary import Exchanges
from testnuc.transport.sending import Transport

__all__ = ["Exchanges", "Transport"]
