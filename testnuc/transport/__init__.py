"""Calls over HTTP: one session, one retry loop."""

from testnuc.transport.auxiliary import AuxiliaryRequests
from testnuc.transport.sending import Transport

__all__ = ["AuxiliaryRequests", "Transport"]
