"""What is decided without labels, prior and review queue: on arrays."""

from __future__ import annotations

import numpy as np
import pytest

from testnuc._engine.batch import TextBatch
from testnuc._engine.rows import Rows
from testnuc._engine.run import Run
from testnuc.errors import InvalidInputError
from testnuc.index.nearest import NearestVectors
from testnuc.labels import LabelSet
from testnuc.protocols import PoolText
from testnuc.results import Results
from testnuc.trust.auto_policy import VoteSettings, correct, diagnose, target_shares
from testnuc.trust.review_queue import review_queue
from testnuc.types import Classification, Neighbor, Prediction, Usage
from testnuc.voting import VotePolicy, vote_pool
from tests.trust.arrays import with_near_copies

CLASSES = 8


def clustered(n, right, seed=0, spread=0.25):
    """Return neighbors, similarities, noisy labels and gold of texts in tight clusters."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(n // 8, 32))
    group = rng.integers(0, len(centers), n)
    # from copies to strangers
    width = spread * rng.random((n, 1)) * 2
    vectors = centers[group] + width * rng.normal(size=(n, 32))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
    gold = (group % CLASSES).astype(np.int32)
    noise = rng.integers(0, CLASSES, n).astype(np.int32)
    labels = np.where(rng.random(n) < right, gold, noise).astype(np.int32)
    index = NearestVectors(32, exact_below=n + 1)
    index.add(vectors, np.arange(n, dtype=np.uint64))
    ids, similarities = index.search(vectors, 30, exclude=np.arange(n))
    return ids, similarities, labels, gold


def gain(found, ids, similarities, labels, gold, *, kept=(), n_classes=CLASSES):
    chosen = found.decision
    if chosen.policy is None:
        return 0.0
    keeps = np.isin(labels, kept) | (similarities.max(axis=1) < chosen.min_nearest)
    voted = vote_pool(
        np.where(keeps[:, None], -1, ids[:, : chosen.k]),
        similarities[:, : chosen.k],
        labels,
        None,
        labels,
        None,
        n_classes=n_classes,
        policy=chosen.policy,
    ).label
    return float((voted == gold).mean() - (labels == gold).mean())


def run_of(ids, similarities, labels):
    """Return a run in which the LLM gave these labels."""
    texts = [PoolText(str(i), str(i).encode()) for i in range(len(labels))]
    names = [f"label {i}" for i in range(CLASSES)]
    auto = VoteSettings.of(VotePolicy.auto(), None, LabelSet(names))
    run = Run(TextBatch(LabelSet(names), texts, len(texts), ids, similarities), auto)
    for place, label in enumerate(labels.tolist()):
        run.answers.put(place, Prediction(names[label], 0.9))
    return run


@pytest.mark.parametrize("right", [0.65, 0.8])
def test_accidents_in_clusters_are_outvoted(right):
    ids, similarities, labels, gold = clustered(2_000, right)
    found = diagnose(ids, similarities, labels, n_classes=CLASSES)
    assert found.decision.policy is not None, found
    assert gain(found, ids, similarities, labels, gold) > 0.05
    assert found.near_copies_bounds[0] <= found.near_copies <= found.near_copies_bounds[1]


def test_a_right_labeler_is_left_alone():
    ids, similarities, labels, _ = clustered(2_000, 1.0)
    assert diagnose(ids, similarities, labels, n_classes=CLASSES).decision.policy is None


@pytest.mark.parametrize("n_classes", [2, 5, 20])
@pytest.mark.parametrize(("purity", "spread"), [(0, 2.0), (0.6, 1.0), (0.9, 2.0)])
def test_near_copies_that_are_unlike_the_others_do_no_harm(n_classes, purity, spread):
    """All texts were voted on: up to 63 points were lost, since other neighbors differ."""
    arrays = with_near_copies(1, n_classes, purity, spread)
    found = diagnose(*arrays[:3], n_classes=n_classes)
    assert gain(found, *arrays, kept=found.decision.kept, n_classes=n_classes) > -0.01


@pytest.mark.slow
def test_only_texts_are_voted_on_that_evidence_reaches():
    ids, similarities, labels, gold = clustered(1_000, 0.7)
    far = 2_500
    # each far text is between others that are alike, and its label is right
    others = 1_000 + (np.arange(far)[:, None] + np.arange(1, 31)) % far
    ids = np.concatenate([ids, others])
    distant = np.linspace(0.3, 0.2, 30, dtype=np.float32)
    similarities = np.concatenate([similarities, np.tile(distant, (far, 1))])
    gold = np.concatenate([gold, np.arange(far, dtype=np.int32) % CLASSES])
    labels = np.concatenate([labels, gold[1_000:]])
    found = diagnose(ids, similarities, labels, n_classes=CLASSES)
    assert found.decision.min_nearest > 0.3
    run = run_of(ids, similarities, labels)
    run.votes.decide(found.decision)
    rows = Rows(run, [str(i) for i in range(len(labels))], np.arange(len(labels)))
    voted = np.array([row.label == f"label {g}" for row, g in zip(rows, gold, strict=True)])
    assert voted[:1_000].mean() > (labels == gold)[:1_000].mean() + 0.1
    assert voted[1_000:].all()
    assert rows[1_000].voters == 1
    assert rows[1_000].reason.code == "not_similar"
    assert f"{found.decision.min_nearest:.2f}" in rows[1_000].reason


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("right", [0.5, 0.8, 1.0])
def test_neighbors_that_mean_nothing_do_no_harm(seed, right):
    ids, similarities, labels, gold = clustered(1_000, right, seed)
    rng = np.random.default_rng(seed)
    ids = rng.permutation(ids.ravel()).reshape(ids.shape)
    found = diagnose(ids, similarities, labels, n_classes=CLASSES)
    assert gain(found, ids, similarities, labels, gold) >= -0.01


def test_a_small_pool_decides_nothing_and_says_so():
    ids, similarities, labels, _ = clustered(400, 0.7)
    labels[150:] = -1
    found = diagnose(ids, similarities, labels, n_classes=CLASSES)
    assert found.decision.policy is None
    assert "150 predictions" in found.decision.reason
    assert any("too small" in w for w in found.warnings)
    assert "The LLM's own labels are kept: 150 predictions are too few" in str(found)


def test_nothing_to_look_at():
    empty = np.empty((0, 0))
    found = diagnose(
        empty.astype(np.int64), empty.astype(np.float32), np.empty(0, np.int32), n_classes=3
    )
    assert found.predictions == 0
    assert found.decision.policy is None


def test_an_unbalanced_set_is_reported():
    ids, similarities, labels, _ = clustered(400, 0.7)
    labels[:] = 0
    labels[:20] = 1
    found = diagnose(ids, similarities, labels, n_classes=CLASSES)
    assert any("unbalanced" in w for w in found.warnings)


def test_a_given_k_is_kept():
    ids, similarities, labels, _ = clustered(2_000, 0.7)
    found = diagnose(ids, similarities, labels, n_classes=CLASSES, k=12)
    assert {c.k for c in found.candidates} == {12}


@pytest.mark.slow
def test_plot():
    pytest.importorskip("matplotlib")
    ids, similarities, labels, _ = clustered(600, 0.7)
    assert len(diagnose(ids, similarities, labels, n_classes=CLASSES).plot().axes) == 2


@pytest.mark.parametrize("prior", ["even", {"a": 1}, {"a": 1, "b": 0}, {"a": 1, "b": float("nan")}])
def test_prior_refused(prior):
    with pytest.raises(InvalidInputError):
        target_shares(prior, ["a", "b"])


def test_correction_without_effect_changes_nothing():
    ids, similarities, labels, _ = clustered(300, 0.6)
    labels[:30] = -1
    result = vote_pool(ids, similarities, labels, None, labels, None, n_classes=CLASSES, votes=True)
    same = correct(result, np.ones(CLASSES))
    assert (same.label == result.label).all()
    assert same.share == pytest.approx(result.share, abs=1e-6)
    assert same.margin == pytest.approx(result.margin, abs=1e-6)


def result(index, label, trust, own, near):
    return Classification(
        index,
        f"text {index}",
        label,
        0.5,
        0.5,
        5,
        complete=True,
        prediction=Prediction(own),
        neighbors=(Neighbor("other", near, "b", None),),
        trust=trust,
    )


def test_review_puts_the_doubtful_first_and_says_why():
    calm = [result(i, "b", 1.0, "b", 0.6) for i in range(98)]
    changed = result(98, "a", 0.3, "c", 0.65)
    far = result(99, "b", 1.0, "b", 0.01)
    queue = review_queue([*calm, changed, far], 2)
    assert [r.result.index for r in queue] == [98, 99]
    assert any("changed 'c' to 'a'" in why for why in queue[0].why)
    assert "far from all others" in queue[1].why[0]
    assert "overruled" in changed.explain()
    with pytest.raises(InvalidInputError):
        review_queue([], -1)


@pytest.mark.slow
def test_recorded_banking_questions(recordings):
    import orjson

    path = recordings / "predictions" / "banking77.gpt-4o-mini.jsonl"
    rows = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    vectors = np.load(recordings / "embeddings" / "banking77.all-MiniLM-L6-v2.f16.npy")
    names = sorted({row["gold"] for row in rows})
    first = sorted({row["text"]: i for i, row in reversed([*enumerate(rows)])}.values())
    gold = np.array([names.index(rows[i]["gold"]) for i in first], np.int32)
    answers = [rows[i]["prediction"] for i in first]
    labels = np.array([names.index(p) if p in names else -1 for p in answers], np.int32)
    index = NearestVectors(384, exact_below=20_000)
    index.add(vectors[first], np.arange(len(first), dtype=np.uint64))
    ids, similarities = index.search(vectors[first], 30, exclude=np.arange(len(first)))
    found = diagnose(ids, similarities, labels, n_classes=len(names))
    chosen = found.decision
    assert chosen.policy is not None
    voted = vote_pool(
        ids[:, : chosen.k],
        similarities[:, : chosen.k],
        labels,
        None,
        labels,
        None,
        n_classes=len(names),
        policy=chosen.policy,
    ).label
    assert (voted == gold).mean() - (labels == gold).mean() >= 0.04


def pairs_among_others(seed=0, n=3_000):
    """Return clusters of noisy labels 0..6; in some lie twins of the label 7, right every time."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(n // 12, 32))
    group = rng.integers(0, len(centers), n)
    vectors = centers[group] + 0.25 * rng.random((n, 1)) * rng.normal(size=(n, 32))
    gold = (group % 7).astype(np.int32)
    labels = np.where(rng.random(n) < 0.75, gold, rng.integers(0, 7, n)).astype(np.int32)
    twins = np.repeat(centers[:25] + 0.15 * rng.normal(size=(25, 32)), 2, axis=0)
    twins += 0.01 * rng.normal(size=twins.shape)
    sevens = np.full(len(twins), 7, np.int32)
    vectors = np.concatenate([vectors, twins])
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
    index = NearestVectors(32, exact_below=len(vectors) + 1)
    index.add(vectors, np.arange(len(vectors), dtype=np.uint64))
    ids, similarities = index.search(vectors, 30, exclude=np.arange(len(vectors)))
    return ids, similarities, np.concatenate([labels, sevens]), np.concatenate([gold, sevens])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_labels_that_surely_lose_by_the_vote_keep_theirs(seed):
    ids, similarities, labels, gold = pairs_among_others(seed)
    found = diagnose(ids, similarities, labels, n_classes=CLASSES)
    assert found.decision.kept == (7,)
    everywhere = gain(found, ids, similarities, labels, gold)
    with_kept = gain(found, ids, similarities, labels, gold, kept=found.decision.kept)
    assert everywhere + 0.8 * (labels == 7).mean() < with_kept


@pytest.mark.slow
@pytest.mark.parametrize("right", [0.65, 0.8])
def test_no_label_is_kept_without_reason(right):
    for seed in range(5):
        ids, similarities, labels, _ = clustered(2_000, right, seed)
        assert diagnose(ids, similarities, labels, n_classes=CLASSES).decision.kept == ()


@pytest.mark.slow
def test_a_kept_label_is_not_overruled_by_its_neighbors():
    ids, similarities, labels, _ = pairs_among_others()
    run = run_of(ids, similarities, labels)
    names = run.batch.labels.names
    run.votes.decide(run.votes.diagnose().decision)
    rows = Rows(run, [str(i) for i in range(len(labels))], np.arange(len(labels)))
    twin = int(np.flatnonzero(labels == 7)[0])
    assert rows[twin].label == "label 7"
    assert rows[twin].voters == 1
    assert "label 7" in rows[twin].reason
    other = next(i for i, row in enumerate(rows) if row.label != names[labels[i]])
    assert rows[other].reason is None
    assert [row.label for row in rows][twin::97] == Results(rows, Usage(), 0.0).labels[twin::97]


def test_the_same_labels_in_another_order_are_no_change():
    own = Prediction("a; b", stated=(("a", None), ("b", None)))
    row = Classification(0, "x", "b; a", prediction=own, shares={"b": 0.7, "a": 0.6})
    assert review_queue([row]) == []
