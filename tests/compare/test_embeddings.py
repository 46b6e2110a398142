"""Embeddings against certified metrics: numbers that can be worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import spearmanr

from bisim_abstract import (
    InvalidArgumentError,
    MetricBounds,
    TabularMDP,
    bisimulation_metric,
    evaluate_embedding,
    mico_distance,
)
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._compare import embeddings
from bisim_abstract._model.policies import uniform_policy
from bisim_abstract.parts import (
    EmbeddingQuality,
    grouped_mdp,
    landmark_mds,
    single_build,
    sparse_mdp,
)


def line(places: npt.ArrayLike, gap: float = 0.0) -> MetricBounds:
    """States on a line whose distances are known up to `gap` on either side."""
    at = np.asarray(places, dtype=np.float64)
    table = np.abs(at[:, None] - at)
    upper = table + gap
    np.fill_diagonal(upper, 0.0)
    return MetricBounds(
        gamma=0.9,
        labels=np.arange(at.size),
        class_lower=np.maximum(table - gap, 0.0),
        class_upper=upper,
        within=0.0,
        gap=2.0 * gap,
        tol=1.0,
        sweeps=0,
    )


class Learned:
    """Points on a line, and a distance that has nothing to do with them."""

    def __init__(self, places: npt.ArrayLike) -> None:
        self.places = np.asarray(places, dtype=np.float64)

    def encode(self, states: IntArray) -> FloatArray:
        return self.places[states][:, None]

    def distance(self, s: IntArray, t: IntArray) -> FloatArray:
        return np.full(np.shape(s), 7.0)


def test_a_perfect_embedding() -> None:
    places = np.random.default_rng(0).permutation(60) ** 1.5
    found = evaluate_embedding(line(places), places[:, None], k=5)
    assert found.distortion < 1e-9
    assert found.outside == 0.0
    assert found.recall == 1.0
    assert found.rank_correlation == pytest.approx(1.0)
    assert not found.is_learned
    assert (found.n_pairs, found.n_queries, found.k) == (1770, 60, 5)


def test_numbers_by_hand() -> None:
    found = evaluate_embedding(line([0.0, 1.0, 4.0], gap=0.5), [[0.0], [1.25], [6.0]], k=1)
    assert found.distortion == pytest.approx(2.0)  # 6 for 4
    assert found.mean_error == pytest.approx((0.25 + 2.0 + 1.75) / 3)
    assert found.outside == pytest.approx(2 / 3)
    assert found.recall == 1.0
    assert found.rank_correlation == pytest.approx(1.0)


def test_neighbours_that_are_missed() -> None:
    # The nearest of 0, 1, 4, 5 are 1, 0, 5, 4; embedded, 0 and 4 have changed places.
    found = evaluate_embedding(line([0.0, 1.0, 4.0, 5.0]), [[4.0], [1.0], [0.0], [5.0]], k=1)
    assert found.recall == 0.0


def test_equally_far_states_stand_for_one_another() -> None:
    found = evaluate_embedding(line([0.0] * 6 + [1.0] * 6), np.r_[0:6, 50:56][:, None], k=2)
    assert found.recall == 1.0


def test_learned_distances_are_measured_and_points_searched() -> None:
    found = evaluate_embedding(line([0.0, 1.0, 3.0]), Learned([0.0, 1.0, 3.0]), k=1)
    assert found.is_learned
    assert found.distortion == pytest.approx(6.0)
    assert found.outside == 1.0
    assert found.recall == 1.0
    assert np.isnan(found.rank_correlation)


def test_ranks_agree_with_scipy() -> None:
    rng = np.random.default_rng(3)
    places, points = rng.integers(6, size=40).astype(float), rng.normal(size=(40, 2)).round(1)
    found = evaluate_embedding(line(places), points, k=3)
    s, t = np.triu_indices(40, 1)
    embedded = np.linalg.norm(points[s] - points[t], axis=1)
    expected = spearmanr(embedded, np.abs(places[s] - places[t])).statistic
    assert found.rank_correlation == pytest.approx(expected)


def test_samples_are_seeded_and_near_the_whole() -> None:
    mdp = sparse_mdp(200, 2, seed=0)
    metric = bisimulation_metric(mdp, 0.5)
    points = np.asarray(mdp.rewards)
    whole = evaluate_embedding(metric, points, sample=10**6)
    part = evaluate_embedding(metric, points, sample=1_000, seed=1)
    assert part == evaluate_embedding(metric, points, sample=1_000, seed=1)
    assert part.n_pairs == 1_000
    assert whole.n_pairs == 19_900
    assert part.distortion <= whole.distortion
    assert part.mean_error == pytest.approx(whole.mean_error, rel=0.1)
    assert part.rank_correlation == pytest.approx(whole.rank_correlation, abs=0.1)


def test_certificates_are_as_good_as_metrics() -> None:
    mdp, _ = grouped_mdp(40, 4, noise=0.01, seed=1)
    certificate = single_build(mdp, 0.9, neighbours=8, seed=0)
    metric = bisimulation_metric(mdp, 0.9)

    def midpoint(s: IntArray, t: IntArray) -> FloatArray:
        lower, upper = metric.bounds(s, t)
        return (lower + upper) / 2.0

    good = landmark_mds(midpoint, 40, dim=8, seed=0)
    found = evaluate_embedding(certificate, good)
    bad = evaluate_embedding(certificate, np.random.default_rng(0).normal(size=(40, 8)))
    assert isinstance(found, EmbeddingQuality)
    assert found.rank_correlation > 0.6 > bad.rank_correlation
    assert "proven wrong" in found.summary()


class Trained:
    """A learned distance that is exactly what it says, on a model."""

    def __init__(self, mdp: TabularMDP, name: str | None, gamma: float, table: FloatArray) -> None:
        self.mdp, self.trained_for, self.gamma, self.table = mdp, name, gamma, table

    def encode(self, states: IntArray) -> FloatArray:
        return self.mdp.rewards[states]

    def distance(self, s: IntArray, t: IntArray) -> FloatArray:
        return np.asarray(self.table[s, t])


@pytest.mark.parametrize("name", ["bisimulation", "on_policy", "mico"])
@pytest.mark.parametrize("is_given", [False, True])
def test_what_it_is_trained_for(name: str, is_given: bool) -> None:
    """Each distance fits itself perfectly, at its own discount and policy, and no other."""
    mdp, gamma = sparse_mdp(30, 3, seed=0), 0.8
    policy = np.arange(30) % 3 if is_given else uniform_policy(mdp)
    tables = {
        "bisimulation": bisimulation_metric(mdp, gamma).upper,
        "on_policy": bisimulation_metric(mdp.under_policy(policy), gamma).upper,
        "mico": mico_distance(mdp, gamma, policy).upper,
    }
    metric = bisimulation_metric(mdp, 0.5)
    embedding = Trained(mdp, name, gamma, tables[name])
    found = evaluate_embedding(metric, embedding, mdp=mdp, policy=policy if is_given else None)
    own = found.trained_for
    assert own is not None
    assert own.name == name
    assert own.distortion < 1e-6 < found.distortion
    assert own.rank_correlation > 0.999 > found.rank_correlation
    assert own.outside == 0.0 < found.outside
    assert f"against {own.title}, which it is trained for" in found.summary()
    for other in sorted(set(tables) - {name}):
        wrong = evaluate_embedding(metric, Trained(mdp, name, gamma, tables[other]), mdp=mdp)
        assert wrong.trained_for is not None
        assert wrong.trained_for.outside > 0.0
    assert evaluate_embedding(metric, embedding).trained_for is None


def test_the_metric_at_hand_is_not_solved_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    mdp = sparse_mdp(10, 2, seed=0)
    metric = bisimulation_metric(mdp, 0.9)
    monkeypatch.setattr(embeddings, "bisimulation_metric", None)
    embedding = Trained(mdp, "bisimulation", 0.9, metric.lower * 0.9)
    found = evaluate_embedding(metric, embedding, mdp=mdp)
    assert found.trained_for is not None
    assert found.trained_for.mean_error == found.mean_error > 0.0


def test_what_does_not_say_is_held_against_the_metric_only() -> None:
    mdp = sparse_mdp(10, 2, seed=0)
    metric = bisimulation_metric(mdp, 0.9)
    assert evaluate_embedding(metric, mdp.rewards, mdp=mdp).trained_for is None
    silent = Trained(mdp, None, 0.9, metric.lower)
    assert evaluate_embedding(metric, silent, mdp=mdp).trained_for is None
    odd = Trained(mdp, "fame", 0.9, metric.lower)
    with pytest.raises(InvalidArgumentError, match="trained_for must be one of 'bisimulation'"):
        evaluate_embedding(metric, odd, mdp=mdp)
    with pytest.raises(InvalidArgumentError, match="give mdp too"):
        evaluate_embedding(metric, silent, policy=np.zeros(10, np.int64))
    with pytest.raises(InvalidArgumentError, match="of 10 states"):
        evaluate_embedding(metric, silent, mdp=sparse_mdp(11, 2, seed=0))
    with pytest.raises(InvalidArgumentError, match="TabularMDP"):
        evaluate_embedding(metric, silent, mdp=3)  # type: ignore[arg-type]


def test_memory_stays_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0

    class Watched:
        n_states = 30_000

        def bounds(self, s: Any, t: Any) -> tuple[FloatArray, FloatArray]:
            nonlocal largest
            gap = np.abs(np.asarray(s) - t).astype(float)
            largest = max(largest, gap.size)
            return gap, gap

    found = evaluate_embedding(Watched(), np.arange(30_000.0)[:, None], sample=1_000)
    assert found.recall == 1.0
    assert largest <= 2**21


@pytest.mark.parametrize(
    ("points", "message"),
    [([[0.0], [1.0]], "shape"), ([[0.0], [1.0], [np.nan]], "finite")],
)
def test_points_are_checked(points: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        evaluate_embedding(line([0.0, 1.0, 3.0]), points)


def test_other_arguments_are_checked() -> None:
    metric, points = line([0.0, 1.0, 3.0]), np.arange(3.0)[:, None]
    bads: list[dict[str, Any]] = [{"k": 0}, {"sample": 0}, {"seed": -1}]
    for bad in bads:
        with pytest.raises(InvalidArgumentError):
            evaluate_embedding(metric, points, **bad)
    with pytest.raises(InvalidArgumentError, match="bounds"):
        evaluate_embedding(points, points)  # type: ignore[arg-type]
    learned = Learned(points[:, 0])
    learned.distance = lambda s, t: np.full(s.shape, np.nan)  # type: ignore[method-assign]
    with pytest.raises(InvalidArgumentError, match="finite"):
        evaluate_embedding(metric, learned)


def test_a_single_state() -> None:
    found = evaluate_embedding(line([1.0]), [[1.0]])
    assert (found.n_pairs, found.distortion, found.recall) == (0, 0.0, 1.0)
