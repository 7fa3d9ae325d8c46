"""A provider whose process is killed once, and an embedder that rejects a text.

They are in a module that other processes can import.
"""

from __future__ import annotations

import os
import signal

from testnuc.errors import InvalidInputError
from testnuc.protocols import Answer, Reply, TokenUsage
from testnuc.testing import HashEmbedder
from tests.conftest import confident

#: The answer before which the process dies.
LAST = 60


class Choosy(HashEmbedder):
    """Rejects a text."""

    def __init__(self, rejected):
        super().__init__()
        self.rejected = rejected

    async def embed(self, texts):
        if self.rejected in texts:
            raise InvalidInputError("the text is not allowed")
        return await super().embed(texts)


class Mortal:
    """Logs what it is asked in a folder, and is killed in the middle of its work."""

    name = "test"
    model = "mortal"
    identity = "1"

    def __init__(self, folder):
        self.asked = folder / "asked"
        self.killed = folder / "killed"
        self.count = 0

    async def answer(self, request):
        self.count += 1
        if self.count == LAST and not self.killed.exists():
            self.killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with self.asked.open("a") as log:
            log.write(f"{request.texts[0]}\n")
        label, confidence = confident(request.texts[0])
        return Reply((Answer(label, confidence),), TokenUsage(0, 0))
