"""Purity, gold votes and every study, against brute force on small synthetic data."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

from bench.evaluation.neighborhoods import (
    gold_votes,
    gold_votes_over_k,
    leave_one_out,
    nearest,
    purity,
    purity_over_k,
    splits,
)
from bench.evaluation.plots import plot
from bench.evaluation.recording import Recording
from bench.evaluation.studies import (
    accuracy_of_the_choice,
    accuracy_over_embedders,
    accuracy_over_k,
    accuracy_over_policies,
    accuracy_over_pool_size,
    accuracy_with_foreign_texts,
    consistency,
    voted_runs,
)
from testnuc.errors import InvalidInputError
from tests import naive

NAMES = ("a", "b", "c")


def made(n=80, seed=0, right=0.7, name="made", dim=6):
    """Texts in three clusters, of which a labeler gets a part right."""
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, 3, n).astype(np.int32)
    vectors = rng.normal(size=(n, dim)) + 2.5 * np.eye(dim)[gold]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    labels = np.where(rng.random(n) < right, gold, rng.integers(-1, 3, n)).astype(np.int32)
    confidences = rng.integers(5, 11, n) / 10
    confidences[::9] = np.nan
    texts = tuple(f"{name} text {i} of seed {seed}" for i in range(n))
    return Recording(
        name, NAMES, texts, gold, labels, confidences.astype(np.float32),
        vectors.astype(np.float16),
    )  # fmt: skip


def brute_winner(recording, i, k, policy, pool=None):
    vectors = recording.vectors.astype(np.float64).tolist()
    ids, similarities = naive.most_similar(vectors, i, k, pool)
    who = [(i, 1.0), *zip(ids, similarities, strict=True)]
    voters = [
        naive.voter(recording.labels[j], naive.as_float32(min(s, 1.0)), recording.confidences[j])
        for j, s in who
    ]
    return naive.winner(voters, naive.PRESETS[policy])


def test_neighbors_and_purity_are_those_of_brute_force():
    recording = made()
    hood = leave_one_out(recording, 12)
    vectors = recording.vectors.astype(np.float64).tolist()
    near = [naive.most_similar(vectors, i, 12)[0] for i in range(80)]
    assert hood.ids.tolist() == near
    ks = (1, 3, 12)
    gold = recording.gold.tolist()
    expected = [naive.purity(gold, near, k) for k in ks]
    assert purity(recording.gold, hood, ks).tolist() == pytest.approx(expected)
    table = purity_over_k(recording, ks=ks)
    assert table["purity"].tolist() == pytest.approx(expected)
    # more neighbors than there are
    few = nearest(recording, 99, pool=np.arange(5))
    assert few.k == 5
    near = [naive.most_similar(vectors, i, 99, range(5))[0] for i in range(80)]
    assert purity(recording.gold, few, (99,))[0] == pytest.approx(naive.purity(gold, near, 99))


def test_gold_votes_are_those_of_brute_force():
    recording = made(60, seed=3)
    hood = leave_one_out(recording, 9)
    ks = (1, 2, 5, 9)
    found = gold_votes(recording.gold, hood, ks, n_classes=3)
    for row, policy in enumerate(("majority", "weighted")):
        for column, k in enumerate(ks):
            right = 0
            for i in range(60):
                voters = [(-1, 1.0, None)]
                voters += [
                    (int(recording.gold[j]), float(s), None)
                    for j, s in zip(hood.ids[i, :k], hood.similarities[i, :k], strict=True)
                ]
                right += naive.winner(voters, naive.PRESETS[policy]) == recording.gold[i]
            assert found[row, column] == pytest.approx(right / 60)
    table = gold_votes_over_k(recording, ks=ks)
    assert table["accuracy"].tolist() == pytest.approx(found.ravel().tolist())


def test_accuracy_over_k_is_that_of_brute_force():
    recording = made()
    table = accuracy_over_k(recording, ks=(0, 4, 9))
    for row in table.to_dict("records"):
        right = sum(
            brute_winner(recording, i, row["k"], row["policy"]) == recording.gold[i]
            for i in range(80)
        )
        assert row["accuracy"] == pytest.approx(right / 80)
        assert math.isnan(row["std"])
    assert table[table.k == 0]["accuracy"].tolist() == pytest.approx([recording.accuracy] * 4)


def test_splits_never_share_a_text_and_are_the_same_again():
    recording = made()
    seen = []
    for seed, rows, pool in splits(recording, test=20, seeds=(0, 1)):
        assert len(rows) == 20
        assert sorted([*rows, *pool]) == list(range(80))
        seen.append((seed, rows.tolist(), pool.tolist()))
    again = [(s, r.tolist(), p.tolist()) for s, r, p in splits(recording, test=20, seeds=(0, 1))]
    assert seen == again
    assert seen[0][1] != seen[1][1]
    for wrong in (0, 80, 81):
        with pytest.raises(InvalidInputError, match="test is"):
            next(splits(recording, test=wrong))


def test_means_and_deviations_are_over_the_seeds():
    recording = made()
    table = accuracy_over_k(recording, ks=(0, 5), policies=("weighted",), test=25, seeds=(0, 1, 2))
    accuracies = [
        np.mean([
            brute_winner(recording, int(i), 5, "weighted", pool.tolist()) == recording.gold[i]
            for i in rows
        ])
        for _, rows, pool in splits(recording, test=25, seeds=(0, 1, 2))
    ]  # fmt: skip
    last = table.to_dict("records")[-1]
    assert (last["k"], last["runs"]) == (5, 3)
    assert last["accuracy"] == pytest.approx(np.mean(accuracies))
    assert last["std"] == pytest.approx(np.std(accuracies, ddof=1))


def test_policies_and_thresholds():
    table = accuracy_over_policies(made(), k=8, thetas=(0.0, 0.7), floors=(-1.0, 0.5))
    rows = {(r["policy"], r["threshold"]): r["accuracy"] for r in table.to_dict("records")[4:]}
    first = {r["policy"]: r["accuracy"] for r in table.to_dict("records")[:4]}
    assert first["alone"] == pytest.approx(made().accuracy)
    expected = accuracy_over_k(made(), ks=(8,)).set_index("policy")["accuracy"]
    assert first["weighted"] == expected["weighted"] == rows["similarity floor", -1.0]
    assert rows["filtered", 0.7] == expected["filtered"]


def test_pool_sizes():
    recording = made(200, seed=5)
    table = accuracy_over_pool_size(
        recording, sizes=(10, 50, None), ks=(5, 20), test=40, seeds=(0, 1)
    )
    assert table["pool"].tolist() == [10, 10, 50, 50, 160, 160]
    assert table["k"].tolist() == [5, 20] * 3
    whole = accuracy_over_k(recording, ks=(5,), policies=("weighted",), test=40, seeds=(0, 1))
    assert table["accuracy"][4] == whole["accuracy"][0]


def test_embedders():
    recording = made()
    other = np.random.default_rng(1).normal(size=(80, 4))
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    vectors = {"good": recording.vectors, "noise": other}
    table = accuracy_over_embedders(recording, vectors, ks=(0, 10))
    found = table.set_index(["embedder", "k"])["accuracy"]
    assert found["good", 0] == found["noise", 0]
    assert found["good", 10] > found["noise", 10]


def test_foreign_texts():
    recording, foreign = made(120), made(60, seed=9, name="foreign")
    table = accuracy_with_foreign_texts(
        recording, foreign, shares=(0.0, 0.5), pool=80, ks=(0, 5), test=30, seeds=(0, 1)
    )
    assert len(table) == 2 * 2 * 2
    none = table[(table.share == 0) & (table.policy == "weighted")]["accuracy"].tolist()
    half = table[(table.share == 0.5) & (table.policy == "weighted")]["accuracy"].tolist()
    assert none[0] == half[0]
    with pytest.raises(InvalidInputError, match="is too large"):
        accuracy_with_foreign_texts(recording, foreign, shares=(0.9,), pool=80, test=30)
    strange = replace(foreign, names=("z",))
    with pytest.raises(InvalidInputError, match="other labels"):
        accuracy_with_foreign_texts(recording, strange)


def test_the_choice_is_made_on_held_out_texts_alone():
    recording = made(200, seed=2)
    options = {"ks": (0, 5, 20), "held_out": 40, "test": 40, "seeds": (0, 1)}
    table = accuracy_of_the_choice(recording, **options)
    # other gold labels of the test texts: the same choice
    gold = recording.gold.copy()
    _, drawn, _ = next(splits(recording, test=80, seeds=(0,)))
    gold[drawn[40:]] = (gold[drawn[40:]] + 1) % 3
    changed = replace(recording, gold=gold)
    other = accuracy_of_the_choice(changed, **options)
    for column in ("policy", "k", "held_out"):
        assert table[column][0] == other[column][0]
    assert table["accuracy"][0] != other["accuracy"][0]


def test_error_and_inconsistency():
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 3, 40)
    runs = rng.integers(-1, 3, (10, 40)).astype(np.int32)
    same = np.tile(gold, (10, 1)).astype(np.int32)
    table = consistency({"noise": runs, "sure": same}, gold).set_index("method")
    assert table["inconsistency"]["noise"] == pytest.approx(naive.inconsistency(runs.tolist()))
    assert table["error"]["noise"] == pytest.approx((runs != gold).mean())
    assert (table["error"]["sure"], table["inconsistency"]["sure"]) == (0, 0)
    with pytest.raises(InvalidInputError, match="shape"):
        consistency({"x": runs[0]}, gold)


def test_the_vote_makes_runs_agree():
    first = made(150, seed=4)
    runs = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        labels = np.where(rng.random(150) < 0.7, first.gold, rng.integers(0, 3, 150))
        runs.append(replace(first, labels=labels.astype(np.int32)))
    winners = voted_runs(runs, ks=(10,))
    assert [w.shape for w in winners.values()] == [(5, 150)] * 2
    table = consistency(winners, first.gold).set_index("method")
    assert table["error"]["vote (k=10)"] < table["error"]["alone"]
    assert table["inconsistency"]["vote (k=10)"] < table["inconsistency"]["alone"]
    with pytest.raises(InvalidInputError, match="runs is empty"):
        voted_runs([])


def test_recordings_are_checked():
    recording = made(10)
    with pytest.raises(InvalidInputError, match="labels has 3 rows for 10 texts"):
        replace(recording, labels=recording.labels[:3])
    with pytest.raises(InvalidInputError, match="twice"):
        replace(recording, texts=("t",) * 10)
    with pytest.raises(InvalidInputError, match="pool is empty"):
        nearest(recording, 3, pool=np.empty(0, np.int64))


@pytest.mark.slow
def test_every_table_has_a_plot(tmp_path):
    recording, foreign = made(200), made(60, seed=9, name="foreign")
    runs = voted_runs([recording, recording], ks=(5,))
    ks = {"ks": (0, 5, 10)}
    tables = [
        purity_over_k(recording, ks=(1, 5)),
        gold_votes_over_k(recording, ks=(1, 5)),
        accuracy_over_k(recording, **ks),
        accuracy_over_k(recording, **ks, test=50, seeds=(0, 1)),
        accuracy_over_policies(recording, k=5),
        accuracy_over_pool_size(recording, sizes=(20, None), ks=(5,), test=50, seeds=(0, 1)),
        accuracy_over_embedders(recording, {"one": recording.vectors}, **ks),
        accuracy_with_foreign_texts(
            recording, foreign, shares=(0, 0.5), pool=60, **ks, test=50, seeds=(0, 1)
        ),
        accuracy_of_the_choice(recording, **ks, held_out=40, test=40, seeds=(0,)),
        consistency(runs, recording.gold),
    ]
    for i, table in enumerate(tables):
        path = tmp_path / f"{i}.png"
        plot(table).savefig(path)
        assert path.stat().st_size > 5_000
    table = tables[0].copy()
    table.attrs = {}
    with pytest.raises(InvalidInputError, match="not one that a study returned"):
        plot(table)
