"""Public test doubles: an LLM provider that runs on this machine, and an embedder made of hashes.

Nothing here is needed to label texts. See docs/testing.md.
"""

from __future__ import annotations

from testnuc.testing.answers import AnswerOf, Latency, Told, by_hash
from testnuc.testing.batch_options import BATCH_OUTCOMES, Batches
from testnuc.testing.embedder import HashEmbedder
from testnuc.testing.faults import CURABLE_KINDS, FAULT_KINDS, Faults
from testnuc.testing.loopback import LoopbackLLM
from testnuc.testing.rate_limit import Violation
from testnuc.testing.subprocess_server import ServerProcess, serve_in_process

__all__ = [
    "BATCH_OUTCOMES",
    "CURABLE_KINDS",
    "FAULT_KINDS",
    "AnswerOf",
    "Batches",
    "Faults",
    "HashEmbedder",
    "Latency",
    "LoopbackLLM",
    "ServerProcess",
    "Told",
    "Violation",
    "by_hash",
    "serve_in_process",
]
