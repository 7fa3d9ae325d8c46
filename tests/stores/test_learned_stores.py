"""Stores in which several labels were one string: they open, make no call, and label as before.

Commit 9266b39 wrote them: `client` labeled `TEXTS`, and forty judgments were learned from.
"""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest

from testnuc import Head, LabelSet, Learned, TestNUC
from testnuc.errors import StoreError
from testnuc.stores.sqlite import SqliteStore
from testnuc.trust.evidence import pack, unpack
from tests.doubles import Clustered, Says

DATA = Path(__file__).parents[1] / "data"
EXPECTED = json.loads((DATA / "learned_stores.json").read_text(encoding="utf-8"))

LABELS = ["refund", "delivery", "login", "fees"]
SETS = [("refund",), ("delivery",), ("refund", "login"), (), ("login", "fees")]
TEXTS = [f"s{i % len(SETS)} number {i}" for i in range(80)]
NEW = [f"s{i % len(SETS)} newer {i}" for i in range(15)]


class Embedder(Clustered):
    dim = 8


class Model(Says):
    """Says wrong labels of a third of the texts, and one outside the set of some."""

    name, identity = "fake", "fake m"

    def __init__(self, *, several):
        super().__init__(self.several if several else self.one, "m")

    def one(self, text):
        right, noise = SETS[int(text[1])], zlib.crc32(text.encode()) % 100
        return right[0] if right and noise > 30 else "Delivery", 0.5 + noise / 200

    def several(self, text):
        noise = zlib.crc32(text.encode()) % 100
        right = SETS[int(text[1])][noise < 30 :]
        outside = {"weather": 0.4} if noise > 80 else {}
        return dict.fromkeys(right, 0.9 if noise % 2 else None) | outside


def right_of(text, *, several):
    """Return what a person says of a text."""
    right = SETS[int(text[1])]
    return list(right) if several else (right[0] if right else None)


def client(path, *, several, model):
    """Return a client of one of the stores."""
    labels = LabelSet(LABELS, multilabel=several)
    return TestNUC(labels, model=model, embedder=Embedder(), store=path)


def seen(results):
    """Return what a test compares; the lists of several labels alone, as the stored files do."""
    return [
        [row.label, list(row.labels) if row.multilabel else [], row.trust, row.source]
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


def alike(rows):
    return [
        [pytest.approx(one, abs=1e-4) if isinstance(one, float) else one for one in row]
        for row in rows
    ]


@pytest.mark.parametrize("kind", ["one", "several"])
async def test_answers_and_what_was_learned_are_read_without_a_call(kind, tmp_path):
    store = shutil.copy(DATA / f"learned_{kind}.db", tmp_path / "old.db")
    model, expected = Model(several=kind == "several"), EXPECTED[kind]
    async with client(store, several=kind == "several", model=model) as nuc:
        found = await nuc.classify_many(TEXTS)
        assert not model.asked
        assert own(found) == alike(expected["own"])
        assert seen(found) == alike(expected["results"])
        learned = nuc.learned
        assert learned.decides == expected["decides"]
        # what was judged then is known, and was not drawn from a ranking
        assert learned.certify(0.6).judged == 0
        assert "none was judged since trust was learned" in str(learned.certify(0.6))
        assert [judgment.text for judgment in learned.judged] == expected["judged"]
        # one more judgment, and what is learned then is read again
        text = next(text for text in TEXTS if text not in expected["judged"])
        await nuc.learn([text], [right_of(text, several=kind == "several")])
    async with client(store, several=kind == "several", model=model) as nuc:
        again = await nuc.classify_many(TEXTS)
        assert len(nuc.learned.judged) == len(expected["judged"]) + 1
        assert again[TEXTS.index(text)].source == "person"
        judged = [row[-1] == "person" for row in expected["results"]]
        both = zip(judged, seen(again), alike(expected["results"]), strict=True)
        assert all(new == old for known, new, old in both if known)
    assert not model.asked


def newer(data):
    header, arrays = unpack(data)
    return zlib.compress(
        zlib.decompress(pack(header, arrays)).replace(b'"version":1', b'"version":9')
    )


@pytest.mark.parametrize("spoil", [newer, lambda data: data[:-20], lambda _: b"?"])
async def test_what_cannot_be_read_is_not_overwritten(spoil, tmp_path):
    path = shutil.copy(DATA / "learned_one.db", tmp_path / "old.db")
    store, model = SqliteStore(path), Model(several=False)
    one = TEXTS[:1], [right_of(TEXTS[0], several=False)]
    ((key, data),) = await store.learned()
    unread = spoil(data)
    await store.swap_learned(key, data, unread)
    async with client(store, several=False, model=model) as nuc:
        with pytest.raises(StoreError, match="unlearn"):
            await nuc.learn(*one)
        assert await store.learned() == [(key, unread)]
        assert await nuc.unlearn()
        await nuc.learn(*one)
        assert len(nuc.learned.judged) == 1
        assert await nuc.unlearn()
        assert not await nuc.unlearn()
        # it is set aside, and exported
        assert unread in dict(await store.learned()).values()
    await store.close()


def test_a_head_labels_as_it_did():
    head = Head.load(DATA / "learned_several.head", embedder=Embedder())
    assert seen(head.predict(NEW)) == alike(EXPECTED["head"])


@pytest.mark.parametrize("kind", ["one", "several"])
async def test_arrays_that_do_not_fit_each_other_are_damage(kind, tmp_path):
    """A store may come from somebody else: what it holds fails when it is read, not later."""
    store = shutil.copy(DATA / f"learned_{kind}.db", tmp_path / "old.db")
    model = Model(several=kind == "several")
    async with client(store, several=kind == "several", model=model) as nuc:
        header, arrays = unpack(nuc.learned.to_bytes())
    refused = 0
    for name, array in arrays.items():
        for wrong in (array[:-1], np.concatenate([array] * 2), array[None], array + 10_000):
            if array.dtype == bool and wrong.dtype != bool:
                continue
            try:
                learned = Learned.from_bytes(pack(header, {**arrays, name: wrong}))
            except StoreError:
                refused += 1
                continue
            assert wrong.shape == array.shape
            assert str(learned.certify(0.6))
    assert refused > len(arrays)


@pytest.mark.parametrize("kind", ["one", "several"])
async def test_values_of_another_type_are_damage(kind, tmp_path):
    store = shutil.copy(DATA / f"learned_{kind}.db", tmp_path / "old.db")
    model = Model(several=kind == "several")
    async with client(store, several=kind == "several", model=model) as nuc:
        data = nuc.learned.to_bytes()
    raw = zlib.decompress(data)
    length = int.from_bytes(raw[:8], "little")
    body = raw[8 + length :]
    header = json.loads(raw[8 : 8 + length])

    def read(changed):
        head = json.dumps(changed).encode()
        return Learned.from_bytes(zlib.compress(len(head).to_bytes(8, "little") + head + body))

    for wrong in (["a"], {"a": 1}, 2.5, "a", 10**30):
        # a record of a judgment: text, hash, label, source, ..; and the name of an array
        for records, place in [("judged", at) for at in range(2, 5)] + [("arrays", 0)]:
            changed = json.loads(json.dumps(header))
            changed[records][0][place] = wrong
            try:
                learned = read(changed)
            except StoreError:
                continue
            assert learned.judged[0].label is None or isinstance(learned.judged[0].label, str)
            assert str(learned)
    assert len(read(header).judged) == len(header["judged"])
