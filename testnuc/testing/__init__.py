"""Public test doubles: a local HTTP server that acts as an LLM provider, and a hashing embedder.

Production code does not need this package. See docs/testing.md.

    loopback         LoopbackLLM, the server; `subprocess_server` runs it in a process
    listener         its socket; `http_connection` reads requests and injects faults
    formats          the wire formats; `request_checks` validates requests
    answers          canned answers and latencies; `content` renders them; `faults`; `rate_limit`
    batch_api        the batch APIs; `batch_formats`, `batch_options`
    embedder         HashEmbedder
"""

from __future__ import annotations

from testnuc.testing.answers import AnswerOf, CannedAnswer, Latency, by_hash
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
