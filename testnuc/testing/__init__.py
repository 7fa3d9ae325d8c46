"""Public test doubles: a local HTTP server that acts as an LLM provider, and a hashing embedder.

Production code does not need this package. See docs/testing.md.
"""

from testnuc.testing.answers import AnswerOf, CannedAnswer, Latency, by_hash
from testnuc.testing.embedder import HashEmbedder
from testnuc.testing.faults import CURABLE_KINDS, FAULT_KINDS, Faults, Violation
from testnuc.testing.loopback import LoopbackLLM
from testnuc.testing.subprocess_server import ServerProcess, serve_in_process

__all__ = [
    "CURABLE_KINDS",
    "FAULT_KINDS",
    "AnswerOf",
    "CannedAnswer",
    "Faults",
    "HashEmbedder",
    "Latency",
    "LoopbackLLM",
    "ServerProcess",
    "Violation",
    "by_hash",
    "serve_in_process",
]
