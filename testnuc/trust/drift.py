"""Whether the trust of new texts differs from that of the texts that a head was trained on."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Drift: standard errors between the mean trust of new texts and that of the texts trained on, and
#: the least difference that is reported. It is tested at 100, 200, 400, .. texts: with 20 such
#: tests the chance of a false alarm is 0.1 %.
_DRIFT_ERRORS, _DRIFT_LEAST, _DRIFT_FROM = 4.0, 0.02, 100


@dataclass(slots=True)
class TrustDrift:
    """Compares the mean trust of new texts with that of the texts that a head was trained on."""

    #: Mean and standard deviation of trust, out of fold, of so many texts.
    mean: float
    spread: float
    texts: int
    seen: int = field(default=0, init=False)
    _total: float = field(default=0.0, init=False)
    _squares: float = field(default=0.0, init=False)
    _next: int = field(default=_DRIFT_FROM, init=False)
    #: A head labels in several threads.
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)

    def add(self, trust: NDArray[np.floating]) -> str | None:
        """Count new texts; returns the drift in words when a test finds it, else None."""
        values = trust.astype(np.float64)
        with self._lock:
            self.seen += len(values)
            self._total += float(values.sum())
            self._squares += float((values**2).sum())
            if self.seen < self._next:
                return None
            while self._next <= self.seen:
                self._next *= 2
            return self._compared()

    def _compared(self) -> str | None:
        mean = self._total / self.seen
        variance = max(self._squares / self.seen - mean**2, self.spread**2)
        error = float(np.sqrt(variance / self.seen + self.spread**2 / self.texts))
        if abs(mean - self.mean) <= max(_DRIFT_ERRORS * error, _DRIFT_LEAST):
            return None
        return (
            f"the mean trust of {self.seen:,} new texts is {mean:.2f}; that of the texts that the "
            f"head was trained on is {self.mean:.2f}: the new texts differ, and trust may "
            "be wrong; label some of the new texts with the LLM, and distill again"
        )
