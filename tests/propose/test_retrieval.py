"""Retrieval against brute force, with duplicates, for every kind of index."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest

from bisim_abstract import InvalidArgumentError
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._propose.faiss_index import Index
from bisim_abstract._propose.retrieval import (
    k_means,
    nearest_points,
    recall_miss,
    retrieve_neighbours,
    retrieve_pairs,
    uniform_pairs,
)

INDICES = ["Flat", "LSH1", "LSH8", "LSH64", "HNSW16", "IVF8,Flat", "IVF64,Flat", "PCA2,Flat"]


def cloud(n: int, d: int = 4, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).normal(size=(n, d))


def brute_force(points: FloatArray, k: int) -> set[tuple[int, int]]:
    found = set()
    for s in range(len(points)):
        order = np.argsort(np.linalg.norm(points - points[s], axis=1), kind="stable")
        found |= {(min(s, int(t)), max(s, int(t))) for t in order[order != s][:k]}
    return found


def as_set(pairs: tuple[IntArray, IntArray]) -> set[tuple[int, int]]:
    return set(zip(pairs[0].tolist(), pairs[1].tolist(), strict=True))


def check_valid(pairs: tuple[IntArray, IntArray], n: int) -> None:
    s, t = pairs
    assert s.dtype == t.dtype == np.int64
    assert ((s >= 0) & (s < t) & (t < n)).all()
    keys = s * n + t
    assert (np.diff(keys) > 0).all()


# -- neighbours --------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "k"), [(2, 1), (30, 1), (200, 7), (60, 59)])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_flat_agrees_with_brute_force(n: int, k: int, scale: float) -> None:
    points = cloud(n) * scale
    pairs = retrieve_pairs(points, k=k, seed=0)
    check_valid(pairs, n)
    assert as_set(pairs) == brute_force(points / scale, k)
    assert recall_miss(points, pairs, k) == 0.0


def test_tight_clusters_far_apart_and_off_centre() -> None:
    """Single precision would lose these neighbours if squares were expanded."""
    points = np.repeat(cloud(10), 50, axis=0) + 1e-4 * cloud(500, seed=1) + 100.0
    assert recall_miss(points, retrieve_pairs(points, k=5, seed=0), 5) < 0.002


@pytest.mark.parametrize("index", INDICES)
def test_every_index_gives_valid_pairs(index: str) -> None:
    pairs = retrieve_pairs(cloud(300), k=6, index=index, seed=0)
    check_valid(pairs, 300)
    assert pairs[0].size <= 300 * 6


@pytest.mark.parametrize("index", INDICES)
def test_every_index_repeats_with_the_seed(index: str) -> None:
    first, again = (retrieve_pairs(cloud(300), k=4, index=index, seed=5) for _ in range(2))
    assert as_set(first) == as_set(again)


@pytest.mark.parametrize("index", ["LSH8", "LSH64"])
def test_hyperplanes_are_drawn_afresh(index: str) -> None:
    found = [as_set(retrieve_pairs(cloud(300), k=4, index=index, seed=s)) for s in range(4)]
    assert len(found[0] & found[1]) < 0.9 * len(found[0])
    union = set[tuple[int, int]]().union(*found)
    truth = brute_force(cloud(300), 4)
    assert len(union & truth) > 1.3 * len(found[0] & truth)


def test_hyperplanes_differ_and_not_only_the_order() -> None:
    """With so many bits ties are rare: the same hyperplanes would give 99% of the same pairs."""
    first, second = (
        as_set(retrieve_pairs(cloud(300), k=4, index="LSH1024", seed=seed)) for seed in (0, 1)
    )
    assert len(first & second) < 0.93 * len(first)


def test_k_beyond_the_number_of_states_is_clipped() -> None:
    for index in ("Flat", "LSH4", "HNSW8"):
        assert retrieve_pairs(cloud(5), k=100, index=index, seed=0)[0].size == 10


@pytest.mark.parametrize("index", INDICES)
def test_a_single_state_has_no_pairs(index: str) -> None:
    s, t = retrieve_pairs(np.ones((1, 2)), k=3, index=index, seed=0)
    assert s.size == t.size == 0


def test_states_without_hits_are_passed_over() -> None:
    """A cell that holds one point only answers -1."""
    points = np.concatenate([cloud(40) * 0.01, cloud(40) * 0.01 + 9.0, [[500.0] * 4]])
    check_valid(retrieve_pairs(points, k=3, index="IVF3,Flat", nprobe=1, seed=0), 81)


def test_visiting_all_cells_is_exact() -> None:
    points = cloud(400)
    few, all_cells = (
        retrieve_pairs(points, k=5, index="IVF16,Flat", nprobe=m, seed=0) for m in (1, 99)
    )
    assert recall_miss(points, few, 5) > 0.02
    assert recall_miss(points, all_cells, 5) == 0.0


# -- duplicates --------------------------------------------------------------------------------


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("k", [1, 3, 40])
def test_all_points_identical(index: str, k: int) -> None:
    pairs = retrieve_pairs(np.full((60, 3), 0.1), k=k, index=index, seed=0)
    check_valid(pairs, 60)
    degree = Counter(np.concatenate(pairs).tolist())
    assert min(degree[s] for s in range(60)) >= k
    assert max(degree.values()) <= 2 * k  # a ring: k ahead, k behind
    if k == 1:
        assert pairs[0].size == 60


@pytest.mark.parametrize("index", INDICES)
def test_half_identical(index: str) -> None:
    points = cloud(200)
    points[::2] = points[0]
    pairs = retrieve_pairs(points, k=4, index=index, seed=0)
    check_valid(pairs, 200)
    s, t = pairs
    is_twin = (s % 2 == 0) & (t % 2 == 0)
    degree = Counter(np.concatenate([s[is_twin], t[is_twin]]).tolist())
    assert set(degree) == set(range(0, 200, 2))
    assert min(degree.values()) >= 4
    assert pairs[0].size <= 200 * 4


def test_small_groups_reach_beyond_themselves() -> None:
    """Fifty points, each taken by three states: two twins first, then the nearest others."""
    points = np.repeat(cloud(50), 3, axis=0)
    for k in (1, 2, 4, 9):
        pairs = retrieve_pairs(points, k=k, seed=0)
        check_valid(pairs, 150)
        assert recall_miss(points, pairs, k, ties="any") == 0.0
        assert pairs[0].size <= 150 * k


def test_twins_are_found_whatever_the_sign_of_zero() -> None:
    points = np.array([[0.0, 1.0], [-0.0, 1.0], [0.0, -1.0], [-0.0, -1.0]])
    assert as_set(retrieve_pairs(points, k=1, index="LSH1", seed=0)) == {(0, 1), (2, 3)}


def test_partners_among_many_twins_change_with_the_seed() -> None:
    first, second = (retrieve_pairs(np.zeros((100, 2)), k=2, seed=seed) for seed in (0, 1))
    assert as_set(first) != as_set(second)


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "index",
    ["Nonsense", "", "LSH", "LSH0", "LSHr", "PCA2,LSH4", "HNSW1", "IVF0,Flat", "IVF4", "PQ3", 3],
)
def test_bad_factory_strings(index: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="index") as caught:
        retrieve_pairs(cloud(30), k=2, index=index, seed=0)
    assert len(str(caught.value)) < 350


def test_a_bad_string_says_what_faiss_says() -> None:
    with pytest.raises(InvalidArgumentError, match=r"'Nonsense'.*could not parse.*try 'Flat'"):
        retrieve_pairs(cloud(30), k=2, index="Nonsense", seed=0)


def test_nan_is_refused_with_its_state() -> None:
    points = cloud(30)
    points[17, 2] = np.nan
    with pytest.raises(InvalidArgumentError, match="state 17"):
        retrieve_pairs(points, k=2, seed=0)


@pytest.mark.parametrize(
    ("points", "arguments", "match"),
    [
        (cloud(9), {"k": 0}, "k must"),
        (cloud(9), {"k": 2.5}, "k must"),
        (cloud(9), {"k": 2, "nprobe": 3}, "nprobe"),
        (cloud(9), {"k": 2, "index": "IVF2,Flat", "nprobe": 0}, "nprobe"),
        (np.zeros(9), {"k": 2}, "shape"),
        (np.zeros((0, 2)), {"k": 2}, "n_states"),
    ],
)
def test_bad_arguments(points: Any, arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        retrieve_pairs(points, seed=0, **arguments)


# -- settings and imports ----------------------------------------------------------------------


@pytest.mark.parametrize("index", ["Flat", "Nonsense"])
def test_settings_of_faiss_are_restored(index: str) -> None:
    import faiss

    before = faiss.omp_get_max_threads()
    blas = faiss.cvar.distance_compute_blas_threshold
    faiss.omp_set_num_threads(2)
    try:
        if index == "Flat":
            retrieve_pairs(cloud(30), k=2, seed=0)
        else:
            with pytest.raises(InvalidArgumentError):
                retrieve_pairs(cloud(30), k=2, index=index, seed=0)
        assert faiss.omp_get_max_threads() == 2
        assert faiss.cvar.distance_compute_blas_threshold == blas
    finally:
        faiss.omp_set_num_threads(before)


def test_nothing_is_printed_by_faiss(capfd: pytest.CaptureFixture[str]) -> None:
    retrieve_pairs(cloud(100), k=2, index="IVF16,Flat", seed=0)
    assert capfd.readouterr() == ("", "")


def test_faiss_is_not_imported_with_the_modules() -> None:
    code = "import sys, bisim_abstract._propose.retrieval as r; "
    code += "early = 'faiss' in sys.modules; r.retrieve_pairs([[0.0], [1.0]], k=1, seed=0); "
    code += "sys.exit(early)"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


# -- uniform partners --------------------------------------------------------------------------


def test_uniform_partners() -> None:
    s, t = uniform_pairs(6, per_state=5000, seed=0)
    assert (s == np.repeat(np.arange(6), 5000)).all()
    table = np.zeros((6, 6), np.int64)
    np.add.at(table, (s, t), 1)
    assert not table.diagonal().any()
    drawn = table[~np.eye(6, dtype=bool)]
    assert np.abs(drawn - 1000).max() < 5 * np.sqrt(800)
    again = uniform_pairs(6, per_state=5000, seed=0)
    assert (again[1] == t).all()


@pytest.mark.parametrize(("n", "u"), [(1, 3), (4, 0)])
def test_no_uniform_partners(n: int, u: int) -> None:
    s, t = uniform_pairs(n, per_state=u, seed=0)
    assert s.size == t.size == 0


def test_two_states_have_one_partner_each() -> None:
    assert uniform_pairs(2, per_state=2, seed=0)[1].tolist() == [1, 1, 0, 0]


# -- the nearest of some points ----------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 30, 1000])
def test_the_nearest_point_against_brute_force(n: int) -> None:
    points, queries = cloud(n), cloud(200, seed=1)
    found = nearest_points(points, queries)
    assert found.dtype == np.int64
    assert found.shape == (200,)
    distances = np.linalg.norm(queries[:, None, :] - points, axis=2)
    best = distances.min(axis=1)
    np.testing.assert_allclose(distances[np.arange(200), found], best, rtol=1e-5)


def test_points_are_their_own_nearest() -> None:
    points = cloud(300)
    assert nearest_points(points, points).tolist() == list(range(300))
    assert nearest_points([[0.0], [1.0], [5.0]], [[0.4], [0.6], [9.0], [-3.0]]).tolist() == [
        *(0, 1, 2, 0),
    ]
    assert nearest_points(points, points[:0]).shape == (0,)


def test_the_nearest_of_many_points_is_mostly_found() -> None:
    points, queries = cloud(3000), cloud(300, seed=1)
    found = nearest_points(points, queries)
    assert ((found >= 0) & (found < 3000)).all()
    best = np.argmin(((queries[:, None, :] - points) ** 2).sum(axis=2), axis=1)
    assert np.mean(found == best) > 0.9
    np.testing.assert_array_equal(found, nearest_points(points, queries))


# -- recall ------------------------------------------------------------------------------------


def test_few_hyperplanes_miss_neighbours() -> None:
    points = cloud(300)
    pairs = {i: retrieve_pairs(points, k=5, index=i, seed=0) for i in ("Flat", "LSH2", "LSH64")}
    miss = {index: recall_miss(points, found, 5) for index, found in pairs.items()}
    assert 0.0 == miss["Flat"] < miss["LSH64"] < miss["LSH2"] <= 1.0


def test_recall_by_hand() -> None:
    points = np.array([[0.0], [1.0], [3.0], [6.0]])  # nearest: 1, 0, 1, 2
    assert recall_miss(points, (np.array([0]), np.array([1])), 1) == 0.5
    assert recall_miss(points, np.array([[1], [-1], [0], [2]]), 1) == 0.5
    assert recall_miss(points, np.empty((4, 0), np.int64), 2) == 1.0
    assert recall_miss(points, np.triu_indices(4, 1), 50) == 0.0
    assert recall_miss(points[:1], np.empty((1, 0), np.int64), 3) == 0.0


def test_ties_by_index_or_any() -> None:
    points = np.array([[0.0], [1.0], [-1.0]])
    found = np.array([[2], [0], [0]])
    assert recall_miss(points, found, 1) == pytest.approx(1 / 3)
    assert recall_miss(points, found, 1, ties="any") == 0.0
    assert recall_miss(points, np.array([[-1], [0], [0]]), 1, ties="any") == pytest.approx(1 / 3)


def test_recall_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bisim_abstract._propose.retrieval.MAX_QUERIES", 100)
    monkeypatch.setattr("bisim_abstract._propose.retrieval.CHUNK_CELLS", 5_000)
    points = cloud(400)
    assert recall_miss(points, retrieve_pairs(points, k=5, seed=0), 5, seed=0) == 0.0
    found = retrieve_pairs(points, k=5, index="LSH8", seed=0)
    miss = recall_miss(points, found, 5, seed=0)
    assert miss == recall_miss(points, found, 5, seed=0)
    monkeypatch.undo()
    assert miss == pytest.approx(recall_miss(points, found, 5), abs=0.1)


@pytest.mark.parametrize(
    "found", [([0], [9]), ([0, 1], [1]), np.zeros((2, 1), int), np.full((3, 1), 3), np.zeros(3)]
)
def test_recall_of_what_cannot_be(found: Any) -> None:
    found = tuple(map(np.array, found)) if isinstance(found, tuple) else found
    with pytest.raises(InvalidArgumentError, match="pairs_or_neighbours"):
        recall_miss(cloud(3), found, 1)


# -- k-means -----------------------------------------------------------------------------------


def alike(labels: IntArray, truth: IntArray) -> bool:
    """Whether two clusterings are the same but for names."""
    pairs = set(zip(labels.tolist(), truth.tolist(), strict=True))
    return len(pairs) == len(np.unique(labels)) == len(np.unique(truth))


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("seed", range(3))
def test_k_means_finds_two_clouds(scale: float, seed: int) -> None:
    truth = np.arange(200) % 2
    points = (cloud(200) * 0.1 + 10.0 * truth[:, None] + 1e9) * scale
    labels = k_means(points, 2, seed)
    assert labels.dtype == np.int64
    assert labels.shape == (200,)
    assert alike(labels, truth)


@pytest.mark.parametrize("k", [1, 2, 7, 40])
def test_k_means_gives_nearest_centres(k: int) -> None:
    points = cloud(400, d=2)
    labels = k_means(points, k, 0)
    assert np.unique(labels).tolist() == list(range(k))
    centres = np.array([points[labels == name].mean(axis=0) for name in range(k)])
    far = np.linalg.norm(points[:, None] - centres, axis=2)
    # Lloyd's steps may end before the last points have moved.
    assert (labels == far.argmin(axis=1)).mean() > 0.95


@pytest.mark.parametrize("k", [3, 5])
def test_k_means_with_few_distinct_points(k: int) -> None:
    points = np.array([[0.0, 1.0], [2.0, 2.0], [0.0, 1.0], [5.0, 5.0], [2.0, 2.0]])
    assert alike(k_means(points, k, 0), np.array([0, 1, 0, 2, 1]))


def test_k_means_of_equal_points() -> None:
    assert k_means(np.full((6, 2), 3.5), 4, 0).tolist() == [0] * 6


def test_k_means_repeats_with_the_seed() -> None:
    points = cloud(300)
    np.testing.assert_array_equal(k_means(points, 20, 5), k_means(points, 20, 5))
    assert not alike(k_means(points, 20, 5), k_means(points, 20, 6))


@pytest.mark.parametrize("seed", range(4))
def test_k_means_among_many_duplicates(seed: int) -> None:
    """Rewards are like this: nearly all of them 0."""
    points = np.concatenate([np.zeros((1000, 1)), np.arange(1.0, 6.0)[:, None]])
    assert np.unique(k_means(points, 5, seed)).size == 5


def test_k_means_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    k_means(cloud(50), 30, 0)
    k_means(cloud(3000), 4, 0)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("index", ["Flat", "LSH8", "HNSW16"])
@pytest.mark.parametrize("k", [1, 5, 100])
def test_neighbours_are_what_pairs_are_made_of(index: str, k: int) -> None:
    points = np.random.default_rng(0).integers(3, size=(40, 3)).astype(float)  # with duplicates
    found = retrieve_neighbours(points, k=k, index=index, seed=7)
    assert found.shape == (40, min(k, 39))
    s, t = np.repeat(np.arange(40), found.shape[1]), found.ravel()
    s, t = s[t >= 0], t[t >= 0]
    assert (s != t).all()
    keys = np.unique(np.minimum(s, t) * 40 + np.maximum(s, t))
    first, second = retrieve_pairs(points, k=k, index=index, seed=7)
    np.testing.assert_array_equal(keys, first * 40 + second)


def test_exact_neighbours_come_in_the_order_of_distance() -> None:
    points = np.random.default_rng(1).normal(size=(30, 4))
    found = retrieve_neighbours(points, k=6, seed=0)
    distance = np.linalg.norm(points[:, None] - points, axis=2)
    np.testing.assert_array_equal(found, np.argsort(distance, axis=1)[:, 1:7])


@pytest.mark.parametrize("index", ["Flat", "HNSW16", "IVF2,Flat"])
def test_equally_far_points_are_told_apart_by_number(
    index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A square grid: most neighbours are as far as others, and an index may list them in any order.
    points = np.array([[x, y] for x in range(6) for y in range(6)], float)
    found = retrieve_neighbours(points, k=4, index=index, seed=0)
    honest, rng = Index.search, np.random.default_rng(0)

    def shuffled(self: Index, queries: Any, k: int, **options: Any) -> Any:
        hits = honest(self, queries, k, **options)
        return rng.permuted(hits, axis=1)

    monkeypatch.setattr(Index, "search", shuffled)
    np.testing.assert_array_equal(retrieve_neighbours(points, k=4, index=index, seed=0), found)
