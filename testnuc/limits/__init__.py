"""How fast, how much and how dear: what holds calls back, and what counts them.

::

    policies     RateLimit, RetryPolicy, Budget, BatchPolicy: what the user says
    headers      what the server says, read from the headers of its answers
    rates        sliding windows of requests and tokens
    gates        what is left of the server's own limits
    concurrency  how many calls at a time, and the pause after a refusal
    permits      leave to send a request
    admission    the one queue in which calls wait for all of these
    prices       what tokens cost
    budget       set aside before a call, settled after
    meter        what was spent
    sharing      what a transport needs of all this, so that many can share one
"""

from __future__ import annotations

from testnuc.limits.admission import Admission, Permit
from testnuc.limits.budget import BudgetAccount, Reservation
from testnuc.limits.headers import retry_after
from testnuc.limits.meter import Mark, Meter
from testnuc.limits.policies import BatchPolicy, Budget, RateLimit, RetryPolicy
from testnuc.limits.prices import PICO, Price, require_price
from testnuc.limits.protocols import AdmissionControl, BudgetControl

__all__ = [
    "PICO",
    "Admission",
    "AdmissionControl",
    "BatchPolicy",
    "Budget",
    "BudgetAccount",
    "BudgetControl",
    "Mark",
    "Meter",
    "Permit",
    "Price",
    "RateLimit",
    "Reservation",
    "RetryPolicy",
    "require_price",
    "retry_after",
]
