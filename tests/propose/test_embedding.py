"""Embeddings: checks, landmark MDS against Euclidean truth, and the distortion."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bisim_abstract import InvalidArgumentError
from bisim_abstract._base.linear import symmetric_axes
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._propose import embedding
from bisim_abstract._propose.embedding import (
    Distance,
    Embedding,
    as_points,
    distortion,
    landmark_mds,
)


def euclidean(points: FloatArray) -> Distance:
    def distance(s: IntArray, t: IntArray) -> FloatArray:
        return np.asarray(np.linalg.norm(points[s] - points[t], axis=-1))

    return distance


def cloud(n: int, d: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).normal(size=(n, d))


class Shifted:
    """An encoder with a large offset."""

    def encode(self, states: IntArray) -> FloatArray:
        return 1e6 + np.stack([states, states**2], axis=1) / 1000.0


# -- points ------------------------------------------------------------------------------------


def test_points_are_centred_single_precision() -> None:
    points = as_points(np.asfortranarray(cloud(50, 3) + 1000.0), 50)
    assert points.dtype == np.float32
    assert points.flags["C_CONTIGUOUS"]
    assert np.abs(points.mean(axis=0)).max() < 1e-6
    np.testing.assert_allclose(points, cloud(50, 3) - cloud(50, 3).mean(axis=0), atol=1e-6)


def test_centring_keeps_the_digits_of_offset_encodings() -> None:
    assert isinstance(Shifted(), Embedding)
    points = as_points(Shifted(), 10).astype(np.float64)
    assert (points[1] - points[0]).tolist() == pytest.approx([0.001, 0.001], rel=1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_points_must_be_finite(value: float) -> None:
    rows = cloud(9, 2)
    rows[[4, 7], 1] = value
    with pytest.raises(InvalidArgumentError, match=r"finite.*state 4"):
        as_points(rows, 9)


def test_points_must_fit_in_single_precision() -> None:
    with pytest.raises(InvalidArgumentError, match=r"single precision.*state 0"):
        as_points(np.array([[1e300], [-1e300]]), 2)


@pytest.mark.parametrize(
    "rows", [np.zeros(4), np.zeros((3, 2)), np.zeros((4, 0)), np.zeros((4, 1), complex), ["a"] * 4]
)
def test_points_of_other_shapes_and_kinds(rows: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="embedding must"):
        as_points(rows, 4)


# -- landmark MDS ------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "d", "dim"), [(1, 2, 3), (2, 1, 1), (40, 3, 3), (300, 2, 4)])
@pytest.mark.parametrize("scale", [1e-160, 1.0, 1e200])
def test_euclidean_distances_are_recovered(n: int, d: int, dim: int, scale: float) -> None:
    truth = euclidean(cloud(n, d))
    points = landmark_mds(lambda s, t: scale * np.asarray(truth(s, t)), n, dim=dim, seed=3)
    assert points.shape == (n, dim)
    assert distortion(points / scale, truth, n) < 1e-8
    if d < dim:
        assert not points[:, d:].any()  # padded, not filled with rounding errors


def test_few_landmarks_are_enough_for_few_dimensions() -> None:
    truth = euclidean(cloud(500, 2))
    assert distortion(landmark_mds(truth, 500, dim=2, n_landmarks=3, seed=0), truth, 500) < 1e-6
    assert distortion(landmark_mds(truth, 500, dim=2, n_landmarks=2, seed=0), truth, 500) > 0.1


def test_more_dimensions_distort_less() -> None:
    truth = euclidean(cloud(200, 6))
    errors = [distortion(landmark_mds(truth, 200, dim=d, seed=0), truth, 200) for d in (1, 3, 6)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-8


def test_other_distances_give_finite_points() -> None:
    """Not a metric: random symmetric numbers, and the discrete one, with equal eigenvalues."""
    table = np.random.default_rng(0).random((150, 150))
    table += table.T
    np.fill_diagonal(table, 0.0)
    assert np.isfinite(landmark_mds(lambda s, t: table[s, t], 150, seed=0)).all()
    points = landmark_mds(lambda s, t: (s != t) * 1.0, 5, dim=4, seed=0)
    assert distortion(points, lambda s, t: (s != t) * 1.0, 5) < 1e-12


def test_a_distance_of_zero_everywhere_gives_one_point() -> None:
    def zero(s: IntArray, t: IntArray) -> FloatArray:
        return np.zeros(np.broadcast_shapes(np.shape(s), np.shape(t)))

    assert not landmark_mds(zero, 100, dim=3, seed=0).any()


def test_the_seed_decides() -> None:
    truth = euclidean(cloud(120, 5))
    first, again = (landmark_mds(truth, 120, dim=3, seed=7) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert (first != landmark_mds(truth, 120, dim=3, seed=8)).any()


def test_axes_do_not_depend_on_the_signs_of_eigenvectors(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = euclidean(cloud(90, 4))
    plain = landmark_mds(truth, 90, dim=4, seed=1)
    eigh = np.linalg.eigh

    def flipped(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
        values, vectors = eigh(matrix)
        return values, -vectors

    monkeypatch.setattr(np.linalg, "eigh", flipped)
    np.testing.assert_array_equal(plain, landmark_mds(truth, 90, dim=4, seed=1))


@pytest.mark.parametrize("n", [50, 400, 4000])
def test_cost_is_linear_in_states(n: int) -> None:
    truth = euclidean(cloud(n, 2))
    sizes = []

    def counted(s: IntArray, t: IntArray) -> npt.ArrayLike:
        sizes.append(np.broadcast(s, t).size)
        return truth(s, t)

    landmark_mds(counted, n, dim=4, seed=0)
    landmarks = n if n <= 64 else 32
    assert sum(sizes) == n * landmarks
    assert max(sizes) <= n


def test_landmarks_are_spread_over_far_groups() -> None:
    """One of 1,000 states lies far away: farthest-point selection never misses it."""
    rows = np.concatenate([cloud(999, 2) * 1e-3, [[100.0, 0.0]]])
    truth = euclidean(rows)
    points = landmark_mds(truth, 1000, dim=2, n_landmarks=4, seed=5)
    assert np.linalg.norm(points[0] - points[999]) == pytest.approx(100.0, abs=0.01)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_distances_must_be_numbers_from_zero_up(value: float) -> None:
    def broken(s: IntArray, t: IntArray) -> FloatArray:
        return np.where((s == 3) & (t != 3), value, 1.0)

    with pytest.raises(InvalidArgumentError, match=r"distance must be .* states 3 and \d+"):
        landmark_mds(broken, 10, seed=0)


def test_distances_must_broadcast() -> None:
    with pytest.raises(InvalidArgumentError, match="broadcast"):
        landmark_mds(lambda s, t: 1.0, 10, seed=0)


@pytest.mark.parametrize("name", ["dim", "n_landmarks", "n_states", "seed"])
def test_arguments_out_of_range(name: str) -> None:
    arguments: dict[str, Any] = {"n_states": 5, name: -1}
    with pytest.raises(InvalidArgumentError, match=name):
        landmark_mds(lambda s, t: abs(s - t), **arguments)


# -- distortion --------------------------------------------------------------------------------


def test_distortion_by_hand() -> None:
    points = np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
    table = np.array([[0.0, 5.0, 3.0], [5.0, 0.0, 4.0], [3.0, 4.0, 0.0]])
    assert distortion(points, lambda s, t: table[s, t], 3) == 2.0
    assert distortion(points[:1], lambda s, t: table[s, t], 1) == 0.0
    assert distortion(points[:1], lambda s, t: table[s, t], 1, sample=5, seed=0) == 0.0


def test_sampled_distortion_is_at_most_the_true_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bisim_abstract._propose.embedding.PAIR_CHUNK", 100)
    truth = euclidean(cloud(60, 4))
    points = landmark_mds(truth, 60, dim=2, seed=0)
    exact = distortion(points, truth, 60)
    assert 0.0 < distortion(points, truth, 60, sample=250, seed=0) <= exact
    assert distortion(points, truth, 60, sample=50_000, seed=0) == exact
    with pytest.raises(InvalidArgumentError, match="sample"):
        distortion(points, truth, 60, sample=0)


def test_axes_of_equal_eigenvalues_do_not_depend_on_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The corners of a cube: three equal eigenvalues, whose axes are free to turn.
    corners = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], float)

    def distance(s: Any, t: Any) -> Any:
        return np.sqrt(((corners[s] - corners[t]) ** 2).sum(axis=-1))

    honest, rng = symmetric_axes, np.random.default_rng(0)

    def turned(matrix: Any) -> tuple[Any, Any]:
        values, vectors = honest(matrix)
        vectors[:, -3:] = vectors[:, -3:] @ np.linalg.qr(rng.normal(size=(3, 3)))[0]
        return values, vectors

    found = [as_points(landmark_mds(distance, 8, dim=dim, seed=0), 8) for dim in (2, 3)]
    monkeypatch.setattr(embedding, "symmetric_axes", turned)
    for _ in range(5):
        for dim, points in zip((2, 3), found, strict=True):
            again = as_points(landmark_mds(distance, 8, dim=dim, seed=0), 8)
            np.testing.assert_array_equal(again, points)


def test_rounding_errors_do_not_reach_an_index() -> None:
    rng = np.random.default_rng(0)
    points = np.column_stack([rng.normal(size=50), np.zeros(50)])
    noise = 1e-15 * rng.normal(size=points.shape)
    np.testing.assert_array_equal(as_points(points, 50)[:, 1], 0.0)
    np.testing.assert_array_equal(as_points(points + noise, 50), as_points(points, 50))
