"""Writes the stores and the head of `tests/stores/test_learned_stores.py`.

It ran with commit 9266b39, which stored several labels as one string: ``python
tests/data/write_stores_with_learned.py FOLDER``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import zlib
from pathlib import Path

import numpy as np

from testnuc import Head, LabelSet, TestNUC
from testnuc.protocols import Answer, Reply

LABELS = ["refund", "delivery", "login", "fees"]
SETS = [("refund",), ("delivery",), ("refund", "login"), (), ("login", "fees")]
TEXTS = [f"s{i % len(SETS)} number {i}" for i in range(80)]
NEW = [f"s{i % len(SETS)} newer {i}" for i in range(15)]


class Clustered:
    """Embeds texts with the same labels near each other."""

    name, dim = "clustered", 8

    async def embed(self, texts):
        """Return unit vectors."""
        made = []
        for text in texts:
            vector = 0.15 * np.random.default_rng(zlib.crc32(text.encode())).normal(size=8)
            vector[int(text[1])] += 1.0
            made.append(vector / np.linalg.norm(vector))
        return np.array(made, dtype=np.float32)


class Model:
    """Answers by a rule, and counts its calls."""

    name, model, identity, batches = "fake", "m", "fake m", False

    def __init__(self, *, several):
        self.several, self.calls = several, 0

    async def answer(self, request):
        """Return wrong labels for a third of the texts, and one outside the set for some."""
        self.calls += 1
        return Reply(tuple(self._said(text) for text in request.texts))

    def _said(self, text):
        noise = zlib.crc32(text.encode()) % 100
        right = SETS[int(text[1])]
        if not self.several:
            return Answer(right[0] if right and noise > 30 else "Delivery", 0.5 + noise / 200)
        said = [(label, 0.9 if noise % 2 else None) for label in right[noise < 30 :]]
        return Answer("", None, tuple([*said, ("weather", 0.4)] if noise > 80 else said))


def right_of(text, *, several):
    """Return what a person says of a text."""
    right = SETS[int(text[1])]
    return list(right) if several else (right[0] if right else None)


def client(path, *, several, model=None):
    """Return a client of one of the stores."""
    model = Model(several=several) if model is None else model
    return TestNUC(
        LabelSet(LABELS, multilabel=several), model=model, embedder=Clustered(), store=path
    )


def seen(results):
    """Return what a test compares; the lists of several labels alone, as the stored files do."""
    return [
        [
            row.label,
            list(row.labels) if row.multilabel else [],
            row.trust,
            row.source,
        ]
        for row in results
    ]


def own(results):
    """Return what the LLM said of each text."""
    said = [row.prediction for row in results]
    several = [p.stated is not None for p in said]
    return [
        [p.label, list(p.labels if many else ()), p.confidence, list(p.unmatched if many else ())]
        for p, many in zip(said, several, strict=True)
    ]


async def write(folder):
    """Write a store of one label and of several, and a head of several."""
    expected = {}
    for several in (False, True):
        name = "several" if several else "one"
        async with client(folder / f"learned_{name}.db", several=several) as nuc:
            await nuc.classify_many(TEXTS)
            review = await nuc.review(40, seed=1)
            for item in review:
                review.answer(item.index, right_of(item.text, several=several))
            learned = await nuc.learn(review)
            made = await nuc.classify_many(TEXTS)
            expected[name] = {
                "decides": learned.decides,
                "certificate": str(learned.certify(0.6)),
                "judged": [j.text for j in learned.judged],
                "own": own(made),
                "results": seen(made),
            }
            if several:
                await nuc.distill(folder / "learned_several.head")
                head = Head.load(folder / "learned_several.head", embedder=Clustered())
                expected["head"] = seen(head.predict(NEW))
    (folder / "learned_stores.json").write_text(json.dumps(expected, indent=1))


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1])))
