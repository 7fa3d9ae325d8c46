"""One run: a batch, the answers for it, its votes, and who labels each text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testnuc._engine.answers import Answers
from testnuc._engine.labeling import Labeling
from testnuc._engine.votes import Votes

if TYPE_CHECKING:
    from testnuc._engine.batch import TextBatch
    from testnuc.trust import VoteSettings


class Run:
    """What belongs to one run; its parts are complete when it is made, and `answers` grow."""

    def __init__(self, batch: TextBatch, settings: VoteSettings) -> None:
        self.batch = batch
        self.answers = Answers(batch)
        self.votes = Votes(batch, self.answers, settings)
        self.labeling = Labeling(batch, self.votes)
        #: For `Results.notes`; empty ones are left out.
        self.notes: list[str] = []
        #: The error that ended the run while neighbors were retrieved.
        self.failure: Exception | None = None
