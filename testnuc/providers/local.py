"""``local/zero-shot``: a local labeler, without network or API key.

It predicts the label whose embedding (or whose description's) is nearest to that of the text; the
confidence is the softmax of the cosines at temperature 0.05. Its accuracy is moderate: use it for
demos, for tests, and where texts must stay on the machine. An LLM is more accurate.
"""

from hashlib import blake2b

import numpy as np

from testnuc._base.arrays import Float32s
from testnuc.labels import LabelSet
from testnuc.protocols import Answer, Embedder, Reply, Request, TokenUsage

_TEMPERATURE = 0.05


class ZeroShot:
    """Labels by the cosine of text and label embeddings; a `Provider`.

    A label's description is embedded if there is one, else its name. The embedder's ``name`` is
    part of the identity.
    """

    name = "local"
    model = "zero-shot"

    def __init__(self, embedder: Embedder, labels: LabelSet) -> None:
        self._embedder = embedder
        self._labels = labels
        self._prototypes: Float32s | None = None
        digest = blake2b("\n".join(self._descriptions()).encode(), digest_size=8).hexdigest()
        name = getattr(embedder, "name", type(embedder).__qualname__)
        self.identity = f"{name}/{_TEMPERATURE}/{digest}"

    def __repr__(self) -> str:
        return "ZeroShot()"

    def _descriptions(self) -> list[str]:
        return [self._labels.descriptions.get(name) or name for name in self._labels.names]

    async def answer(self, request: Request) -> Reply:
        """Label all texts of the request, without calls or tokens."""
        if self._prototypes is None:
            self._prototypes = await self._embedder.embed(self._descriptions())
        answers = []
        for vector in await self._embedder.embed(request.texts):
            # one text at a time: a matrix product over many could round differently
            cosines = (self._prototypes @ vector).astype(np.float64)
            weights = np.exp((cosines - cosines.max()) / _TEMPERATURE)
            best = int(cosines.argmax())
            answers.append(Answer(self._labels.names[best], float(weights[best] / weights.sum())))
        return Reply(tuple(answers), TokenUsage(0, 0))
