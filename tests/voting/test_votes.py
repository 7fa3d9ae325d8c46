"""What the vote accepts, what it refuses and how, and how its kernels are kept."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from testnuc._kernels import fast
from testnuc.errors import InvalidInputError
from testnuc.voting import (
    VotePolicy,
    decided,
    vote,
    vote_curve,
    vote_pool,
)

LABELS = np.array([[0, 1, 1], [2, -1, -1], [-1, -1, -1], [0, 1, 2]], np.int32)
SIMILARITIES = np.array([[1, 0.6, 0.5], [1, 0.2, 0.2], [1, 0.1, 0.1], [1, 1, 1]], np.float32)
JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"


def pool_arguments():
    return {
        "neighbor_ids": np.array([[0, 1], [2, -1]]),
        "similarities": np.array([[0.9, 0.8], [0.7, np.nan]], np.float32),
        "pool_labels": np.array([1, 1, 2], np.int32),
        "pool_confidences": np.array([0.9, 0.8, np.nan], np.float32),
        "own_labels": np.array([0, -1], np.int32),
        "own_confidences": np.array([0.5, np.nan], np.float32),
    }


def test_a_vote_in_full():
    result = vote(LABELS, SIMILARITIES, n_classes=3, votes=True)
    assert result.label.tolist() == [1, 2, -1, 0]
    np.testing.assert_allclose(result.share, [1.1 / 2.1, 1, 0, 1 / 3], rtol=1e-6)
    np.testing.assert_allclose(result.margin, [0.1 / 2.1, 1, 0, 0], rtol=1e-5)
    np.testing.assert_allclose(result.weight, [2.1, 1, 0, 3], rtol=1e-6)
    assert result.voters.tolist() == [3, 1, 0, 3]
    np.testing.assert_allclose(result.votes[0], [1, 1.1, 0], atol=1e-7)


def test_policies():
    assert VotePolicy.of("confidence-weighted") == VotePolicy.confidence_weighted()
    assert VotePolicy.of(VotePolicy.majority()) == VotePolicy("uniform")
    assert VotePolicy.filtered(0.9) == VotePolicy("similarity", min_confidence=0.9)
    assert not VotePolicy.weighted().uses_confidence
    assert VotePolicy.filtered().uses_confidence
    assert VotePolicy.confidence_weighted().uses_confidence
    with pytest.raises(InvalidInputError, match="'mojority'; choose one of 'majority'"):
        VotePolicy.of("mojority")
    with pytest.raises(InvalidInputError, match="weight is 'cosine'"):
        VotePolicy("cosine")
    with pytest.raises(
        InvalidInputError, match=r"min_confidence is 1.5; give a number from 0 to 1"
    ):
        VotePolicy(min_confidence=1.5)
    with pytest.raises(InvalidInputError, match="own_weight is nan"):
        VotePolicy(own_weight=float("nan"))


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint16, np.uint64, list])
def test_other_types_strides_and_read_only_arrays(kind):
    labels = np.abs(LABELS)
    expected = vote(labels, SIMILARITIES, n_classes=3)
    given = labels.tolist() if kind is list else np.asfortranarray(labels.astype(kind))
    wide = np.repeat(SIMILARITIES.astype(np.float64), 2, axis=1)[:, ::2]
    wide.flags.writeable = False
    result = vote(given, wide, n_classes=3)
    assert result.label.tolist() == expected.label.tolist()
    assert result.share.tobytes() == expected.share.tobytes()


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int16, np.uint64, np.uint32])
def test_all_kinds_of_ids_and_read_only_pools(dtype):
    arguments = pool_arguments()
    expected = vote_pool(**arguments, n_classes=3)
    arguments["neighbor_ids"] = arguments["neighbor_ids"].astype(dtype)
    for value in arguments.values():
        value.flags.writeable = False
    result = vote_pool(**arguments, n_classes=3)
    assert result.share.tobytes() == expected.share.tobytes()


def test_empty_shapes():
    result = vote(np.empty((0, 3), np.int32), np.empty((0, 3)), n_classes=2, votes=True)
    assert result.label.shape == (0,)
    assert result.votes.shape == (0, 2)
    alone = vote([[1], [-1]], [[1.0], [1.0]], n_classes=2)
    assert alone.label.tolist() == [1, -1]
    none = np.empty((2, 0))
    pooled = vote_pool(none.astype(int), none, [], None, [1, 0], None, n_classes=2)
    assert pooled.label.tolist() == [1, 0]
    assert vote_curve([[1]], [[1.0]], n_classes=2, ks=[]).shape == (0, 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.1, -1.1])
@pytest.mark.parametrize("packed", [False, True])
def test_a_similarity_that_is_no_cosine_names_its_row(bad, packed, monkeypatch):
    monkeypatch.setattr(fast, "pays", lambda *_: packed)
    similarities = SIMILARITIES.copy()
    similarities[3, 2] = bad
    for threads in (1, 3):
        with pytest.raises(InvalidInputError, match="row 3, column 2: the similarity is"):
            vote(LABELS, similarities, n_classes=3, threads=threads)
    with pytest.raises(InvalidInputError, match="row 3, column 2: the similarity is"):
        decided(LABELS, similarities, None, 1, n_classes=3)
    arguments = pool_arguments()
    arguments["similarities"][1, 0] = bad
    with pytest.raises(InvalidInputError, match="row 1, neighbor 0: the similarity is"):
        vote_pool(**arguments, n_classes=3)


@pytest.mark.parametrize("k", [3, 70])
@pytest.mark.parametrize("row", [0, 15, 16, 1039])
def test_of_many_rows_the_one_that_is_refused_is_named(k, row, monkeypatch):
    monkeypatch.setattr(fast, "pays", lambda *_: True)
    n_rows = 1040
    ids = np.zeros((n_rows, k), np.int64)
    ids[:, 1] = -1  # padding: the similarity may be anything
    similarities = np.full((n_rows, k), 0.5, np.float32)
    similarities[:, 1] = np.nan
    pool, own = np.zeros(3, np.int32), np.zeros(n_rows, np.int32)
    assert vote_pool(ids, similarities, pool, None, own, None, n_classes=2).voters[row] == k
    similarities[row, 2] = np.nan
    with pytest.raises(InvalidInputError, match=f"row {row}, neighbor 2: the similarity is nan"):
        vote_pool(ids, similarities, pool, None, own, None, n_classes=2)
    similarities[row, 2] = 0.5
    own[row] = 2
    with pytest.raises(InvalidInputError, match=f"row {row}: the label is 2"):
        vote_pool(ids, similarities, pool, None, own, None, n_classes=2)


@pytest.mark.parametrize("noisy", [1.0005, 1.001])
@pytest.mark.parametrize("packed", [False, True])
def test_rounding_noise_of_a_cosine_is_clipped(noisy, packed, monkeypatch):
    monkeypatch.setattr(fast, "pays", lambda *_: packed)
    result = vote([[-1, 0]], [[1.0, noisy]], n_classes=1)
    assert result.weight.tolist() == [1.0]
    pooled = vote_pool([[0]], [[noisy]], [0], None, [-1], None, n_classes=1)
    assert pooled.weight.tolist() == [1.0]
    assert decided([[-1, 0]], [[1.0, noisy]], None, 2, n_classes=1).tolist() == [True]


def test_when_packing_pays():
    assert fast.pays(1000, 50, 3000, 25_000)
    assert not fast.pays(1000, 49, 3000, 1000), "too few votes"
    assert not fast.pays(1000, 50, 3000, 25_001), "a large pool"
    assert not fast.pays(1000, 50, 3126, 1000), "a table larger than the votes"
    assert not fast.pays(15, 16_384, 150, 1000), "too few rows"
    assert not fast.pays(10**9, 10, 2**26 + 1, 1000), "places that do not fit beside a weight"
    one = np.zeros((2000, 40), np.int64)
    result = vote_pool(
        one, one + 1.0, [0], None, one[:, 0], None, n_classes=100_000, policy="majority"
    )
    assert result.voters.tolist() == [41] * 2000


@pytest.mark.parametrize("packed", [False, True])
def test_labels_and_confidences_out_of_range(packed, monkeypatch):
    monkeypatch.setattr(fast, "pays", lambda *_: packed)
    where = "pool position 1|row 0, neighbor 1"
    arguments = pool_arguments()
    arguments["pool_labels"][1] = 7
    with pytest.raises(InvalidInputError, match=f"({where}): the label is 7, but n_classes is 3"):
        vote_pool(**arguments, n_classes=3)
    arguments = pool_arguments()
    arguments["pool_confidences"][1] = 1.2
    with pytest.raises(InvalidInputError, match=f"({where}): the confidence is 1.2"):
        vote_pool(**arguments, n_classes=3)
    arguments = pool_arguments()
    arguments["own_labels"][1] = -2
    with pytest.raises(InvalidInputError, match="row 1: the label is -2"):
        vote_pool(**arguments, n_classes=3)
    with pytest.raises(InvalidInputError, match="labels holds 4294967295, which is not a label"):
        vote(LABELS.astype(np.int64) + 2**32, SIMILARITIES, n_classes=3)


@pytest.mark.parametrize("at", [0, 1, 515, 1001, 1002])
@pytest.mark.parametrize(("label", "confidence"), [(-2, 0.5), (3, 0.5), (1, -0.1), (2, np.inf)])
def test_the_first_bad_prediction_of_a_long_pool_is_named(at, label, confidence, monkeypatch):
    monkeypatch.setattr(fast, "pays", lambda *_: True)
    labels = np.arange(1003, dtype=np.int32) % 4 - 1
    confidences = np.full(1003, np.nan, np.float32)
    for place in (at, 1002):
        labels[place], confidences[place] = label, confidence
    given = confidences if 0 <= label < 3 else None
    ids, similarities = np.zeros((20, 40), np.int64), np.ones((20, 40), np.float32)
    with pytest.raises(InvalidInputError, match=f"pool position {at}:"):
        vote_pool(ids, similarities, labels, given, ids[:, 0], None, n_classes=3)


def test_shapes_types_and_numbers_that_do_not_fit():
    with pytest.raises(InvalidInputError, match=r"similarities has the shape \(4, 2\)"):
        vote(LABELS, SIMILARITIES[:, :2], n_classes=3)
    with pytest.raises(InvalidInputError, match=r"labels has the shape \(3,\)"):
        vote(LABELS[0], SIMILARITIES[0], n_classes=3)
    with pytest.raises(InvalidInputError, match="labels has the dtype float32; give integers"):
        vote(SIMILARITIES, SIMILARITIES, n_classes=3)
    with pytest.raises(InvalidInputError, match="n_classes is 0"):
        vote(LABELS, SIMILARITIES, n_classes=0)
    with pytest.raises(
        InvalidInputError, match="n_classes is 1152921504606846975; give an integer"
    ):
        vote(LABELS, SIMILARITIES, n_classes=2**60 - 1)
    with pytest.raises(InvalidInputError, match="threads is 0"):
        vote(LABELS, SIMILARITIES, n_classes=3, threads=0)
    with pytest.raises(InvalidInputError, match="ks asks for 3 neighbors, but a row has 2"):
        vote_curve(LABELS, SIMILARITIES, n_classes=3, ks=[3])
    with pytest.raises(InvalidInputError, match="row 2: known is 5; give 0 to 3"):
        decided(LABELS, SIMILARITIES, None, [1, 1, 5, 1], n_classes=3)


@pytest.mark.slow
def test_a_forked_child_votes_with_threads_of_its_own():
    if not hasattr(os, "fork"):
        pytest.skip("platform: no fork here")
    script = (
        "import os, numpy as np\n"
        "from testnuc.voting import vote\n"
        "one = np.zeros((8, 1), np.int32)\n"
        "run = lambda: vote(one, one + 1.0, n_classes=1, threads=4).voters.sum()\n"
        "assert run() == 8\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(0 if run() == 8 else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=300)


@pytest.mark.skipif(not JIT, reason="nothing is compiled")
@pytest.mark.parametrize(
    ("kind", "method"), [("_CacheLocator", "ensure_cache_path"), ("IndexDataCacheFile", "save")]
)
def test_nowhere_to_write_the_cache_is_no_error(monkeypatch, kind, method):
    from numba.core import caching

    from testnuc._kernels import compile as compiling

    def refuse(self, *args):
        raise PermissionError("read-only, or the disk is full")

    monkeypatch.setattr(getattr(caching, kind), method, refuse)
    signature = compiling.types.int64(compiling.types.int64)
    assert compiling.kernel(signature)(_double)()(4) == 8


def _double(x):
    return 2 * x


@pytest.mark.skipif(not JIT, reason="nothing is compiled")
def test_a_change_of_any_kernel_file_compiles_all_kernels_again(monkeypatch):
    # numba itself notices a change of the kernel's own file alone
    from testnuc._kernels import compile as compiling

    def cached_as(digest):
        monkeypatch.setattr(compiling, "sources", lambda: digest)
        signature = compiling.types.int64(compiling.types.int64)
        compiled = compiling.kernel(signature)(_double)()
        return compiled._cache._impl.filename_base

    assert cached_as("a") != cached_as("b")
    assert cached_as("a") == cached_as("a")


def test_the_digest_of_kernels_covers_every_file(monkeypatch, tmp_path):
    from testnuc._kernels import compile as compiling

    monkeypatch.setattr(compiling, "__file__", str(tmp_path / "compile.py"))
    found = set()
    for name, text in (("a.py", "1"), ("b.py", "2"), ("a.py", "3")):
        (tmp_path / name).write_text(text)
        found.add(compiling.sources.__wrapped__())
    assert len(found) == 3
