"""Stores in which several labels were one string: they open, make no call, and label as before.

``tests/data/write_stores_with_learned.py`` wrote them.
"""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest

from testnuc import Head, Learned
from testnuc.errors import StoreError
from testnuc.stores.sqlite import SqliteStore
from testnuc.trust.evidence import pack, unpack
from tests.data import write_stores_with_learned as written

DATA = Path(__file__).parents[1] / "data"
EXPECTED = json.loads((DATA / "learned_stores.json").read_text(encoding="utf-8"))


def alike(rows):
    return [
        [pytest.approx(one, abs=1e-4) if isinstance(one, float) else one for one in row]
        for row in rows
    ]


@pytest.mark.parametrize("kind", ["one", "several"])
async def test_answers_and_what_was_learned_are_read_without_a_call(kind, tmp_path):
    store = shutil.copy(DATA / f"learned_{kind}.db", tmp_path / "old.db")
    model, expected = written.Model(several=kind == "several"), EXPECTED[kind]
    async with written.client(store, several=kind == "several", model=model) as nuc:
        found = await nuc.classify_many(written.TEXTS)
        assert model.calls == 0
        assert written.own(found) == alike(expected["own"])
        assert written.seen(found) == alike(expected["results"])
        learned = nuc.learned
        assert learned.decides == expected["decides"]
        # what was judged then is known, and was not drawn from a ranking
        assert learned.certify(0.6).judged == 0
        assert "no text was drawn" in str(learned.certify(0.6))
        assert [judgment.text for judgment in learned.judged] == expected["judged"]
        # one more judgment, and what is learned then is read again
        text = next(text for text in written.TEXTS if text not in expected["judged"])
        await nuc.learn([text], [written.right_of(text, several=kind == "several")])
    async with written.client(store, several=kind == "several", model=model) as nuc:
        again = await nuc.classify_many(written.TEXTS)
        assert len(nuc.learned.judged) == len(expected["judged"]) + 1
        assert again[written.TEXTS.index(text)].source == "person"
        judged = [row[-1] == "person" for row in expected["results"]]
        both = zip(judged, written.seen(again), alike(expected["results"]), strict=True)
        assert all(new == old for known, new, old in both if known)
    assert model.calls == 0


def newer(data):
    header, arrays = unpack(data)
    return zlib.compress(
        zlib.decompress(pack(header, arrays)).replace(b'"version":1', b'"version":9')
    )


@pytest.mark.parametrize("spoil", [newer, lambda data: data[:-20], lambda _: b"?"])
async def test_what_cannot_be_read_is_not_overwritten(spoil, tmp_path):
    path = shutil.copy(DATA / "learned_one.db", tmp_path / "old.db")
    store, model = SqliteStore(path), written.Model(several=False)
    one = written.TEXTS[:1], [written.right_of(written.TEXTS[0], several=False)]
    ((key, data),) = await store.learned()
    unread = spoil(data)
    await store.swap_learned(key, data, unread)
    async with written.client(store, several=False, model=model) as nuc:
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
    head = Head.load(DATA / "learned_several.head", embedder=written.Clustered())
    assert written.seen(head.predict(written.NEW)) == alike(EXPECTED["head"])


@pytest.mark.parametrize("kind", ["one", "several"])
async def test_arrays_that_do_not_fit_each_other_are_damage(kind, tmp_path):
    """A store may come from somebody else: what it holds fails when it is read, not later."""
    store = shutil.copy(DATA / f"learned_{kind}.db", tmp_path / "old.db")
    model = written.Model(several=kind == "several")
    async with written.client(store, several=kind == "several", model=model) as nuc:
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
    model = written.Model(several=kind == "several")
    async with written.client(store, several=kind == "several", model=model) as nuc:
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
