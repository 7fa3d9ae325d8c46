"""Calls over HTTP: one session, one retry loop.

::

    sending      Transport: reserve, acquire a permit, POST, decode, settle, retry
    retries      the rules of retrying
    accounting   permits and budget of attempts
    auxiliary    requests other than calls: uploads, downloads, polling
    calls        a call in flight, and its timer
    connections  HTTP sessions
    pool         idle connections
    failures     network failures as testnuc's exceptions
    api_errors   error responses of providers as testnuc's exceptions
    endpoint     base URLs and keys
    keys         keys that expire
    redaction    words of servers without keys
    telemetry    OpenTelemetry traces and metrics
"""

from __future__ import annotations

from testnuc.transport.auxiliary import AuxiliaryRequests
from testnuc.transport.sending import Transport

__all__ = ["AuxiliaryRequests", "Transport"]
