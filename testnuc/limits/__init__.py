"""Rate limits, budgets and usage."""

from testnuc.limits.admission import Admission, Permit
from testnuc.limits.budget import BudgetAccount, Reservation
from testnuc.limits.concurrency import LONG
from testnuc.limits.headers import count, retry_after, usable_wait
from testnuc.limits.meter import Mark, Meter
from testnuc.limits.policies import (
    LONGEST_WAIT,
    BatchPolicy,
    Budget,
    Limits,
    RateLimit,
    RetryPolicy,
    longest_pause,
)
from testnuc.limits.prices import PICO, Price, context_window, require_price

__all__ = [
    "LONG",
    "LONGEST_WAIT",
    "PICO",
    "Admission",
    "BatchPolicy",
    "Budget",
    "BudgetAccount",
    "Limits",
    "Mark",
    "Meter",
    "Permit",
    "Price",
    "RateLimit",
    "Reservation",
    "RetryPolicy",
    "context_window",
    "count",
    "longest_pause",
    "require_price",
    "retry_after",
    "usable_wait",
]
