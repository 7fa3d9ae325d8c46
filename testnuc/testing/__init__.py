"""Public test doubles: a server that acts as an LLM provider, and a hashing embedder."""

from testnuc.testing.answers import AnswerOf as AnswerOf
from testnuc.testing.answers import CannedAnswer as CannedAnswer
from testnuc.testing.answers import Latency as Latency
from testnuc.testing.answers import by_hash as by_hash
from testnuc.testing.embedder import HashEmbedder as HashEmbedder
from testnuc.testing.faults import CURABLE_KINDS as CURABLE_KINDS
from testnuc.testing.faults import FAULT_KINDS as FAULT_KINDS
from testnuc.testing.faults import Faults as Faults
from testnuc.testing.faults import Violation as Violation
from testnuc.testing.loopback import LoopbackLLM as LoopbackLLM
