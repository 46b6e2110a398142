"""Diameters against the exact metric, and baselines against brute force."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bisim_abstract import (
    InvalidArgumentError,
    TabularMDP,
    bisimulation_metric,
    certify,
)
from bisim_abstract._base.labels import numbered
from bisim_abstract._linkage import points as _linkage
from bisim_abstract._linkage.points import linked_points
from bisim_abstract.parts import (
    cluster_by_arm,
    cluster_by_embedding,
    cluster_by_metric,
    cluster_by_rewards,
    grouped_mdp,
    sparse_mdp,
)


def linked(table: Any, tau: float) -> npt.NDArray[np.int64]:
    """Single linkage by Warshall's closure."""
    reach = np.asarray(table <= tau)
    np.fill_diagonal(reach, True)
    for k in range(len(reach)):
        reach |= reach[:, [k]] & reach[[k]]
    return numbered(reach.argmax(axis=1))


# -- diameters ---------------------------------------------------------------------------------


# -- baselines ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_clusters_of_the_metric(seed: int) -> None:
    mdp, _ = grouped_mdp(30, 3, noise=[0.0, 0.05, 0.3, 0.0][seed], seed=seed)
    metric = bisimulation_metric(mdp, 0.9)
    for tau in (0.0, 0.1, 0.5, 2.0, 50.0):
        for arm in ("lower", "upper"):
            table = getattr(metric, arm)
            assert cluster_by_metric(metric, tau, arm=arm).tolist() == linked(table, tau).tolist()
    with pytest.raises(InvalidArgumentError, match="arm must be one of"):
        cluster_by_metric(metric, 0.1, arm="middle")


def test_clusters_of_an_arm() -> None:
    mdp, _ = grouped_mdp(30, 3, noise=0.05, seed=0)
    certificate = certify(mdp, 0.9)
    assert certificate.tau is not None
    for k, arm in enumerate(("lower", "upper")):
        expected = certificate.partitions(0.2)[k].tolist()
        assert cluster_by_arm(certificate, 0.2, arm=arm).tolist() == expected


@pytest.mark.parametrize("tau", [-1.0, 0.0, 0.01, 0.1, 0.3, 1.0])
def test_clusters_of_rewards(tau: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    mdp = sparse_mdp(60, seed=0)
    rewards = np.round(rng.random((60, mdp.n_actions)), 1)
    mdp = TabularMDP(indptr=mdp.indptr, indices=mdp.indices, probs=mdp.probs, rewards=rewards)
    table = np.abs(rewards[:, None] - rewards).max(axis=2)
    found = cluster_by_rewards(mdp, tau)
    assert found.tolist() == (list(range(60)) if tau < 0 else linked(table, tau).tolist())
    monkeypatch.setattr(_linkage, "CHUNK", 7)  # many small queries
    assert cluster_by_rewards(mdp, tau).tolist() == found.tolist()


class Learned:
    """An encoder with a distance of its own."""

    def __init__(self, points: npt.NDArray[np.float64]) -> None:
        self.points = points
        self.largest = 0

    def encode(self, states: Any) -> npt.NDArray[np.float64]:
        return np.asarray(self.points[states])

    def distance(self, s: Any, t: Any) -> npt.NDArray[np.float64]:
        self.largest = max(self.largest, len(s))
        return np.asarray(np.abs(self.points[s] - self.points[t]).sum(axis=1))


def test_clusters_of_an_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.random.default_rng(1).random((50, 3))
    euclidean = np.linalg.norm(points[:, None] - points, axis=2)
    manhattan = np.abs(points[:, None] - points).sum(axis=2)
    monkeypatch.setattr(_linkage, "CHUNK", 300)
    for tau in (0.0, 0.1, 0.2, 0.3, 0.5):
        assert cluster_by_embedding(points, 50, tau).tolist() == linked(euclidean, tau).tolist()
        learned = Learned(points)
        assert cluster_by_embedding(learned, 50, tau).tolist() == linked(manhattan, tau).tolist()
        assert learned.largest <= 300
    with pytest.raises(InvalidArgumentError, match="max_pairs = 10 does not allow the 1,225"):
        cluster_by_embedding(Learned(points), 50, 0.1, max_pairs=10)


# -- points by cells ---------------------------------------------------------------------------


def rewards_only(rewards: Any) -> TabularMDP:
    n, n_actions = rewards.shape
    rows = n * n_actions
    return TabularMDP(
        indptr=np.arange(rows + 1),
        indices=np.repeat(np.arange(n), n_actions),
        probs=np.ones(rows),
        rewards=rewards,
    )


def scattered(kind: str, seed: int) -> npt.NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 60)), int(rng.integers(1, 4)))
    if kind == "lattice":  # distances that are exactly tau
        return rng.integers(0, 6, size=shape).astype(float)
    if kind == "clusters":
        return rng.integers(0, 4, size=shape) + 0.01 * rng.normal(size=shape)
    return rng.normal(size=shape) * {"plain": 1.0, "large": 1e150, "small": 1e-150}[kind]


@pytest.mark.parametrize("kind", ["plain", "lattice", "clusters", "large", "small"])
@pytest.mark.parametrize("seed", range(4))
def test_points_are_linked_at_any_threshold(kind: str, seed: int) -> None:
    points = scattered(kind, seed)
    gaps = np.abs(points[:, None] - points)
    for p, table in ((np.inf, gaps.max(axis=2)), (2.0, np.sqrt((gaps**2).sum(axis=2)))):
        for tau in (0.0, 1.0, 2.0, *np.quantile(table, [0.02, 0.1, 0.3, 0.7, 1.0]), 1e300):
            if p == 2.0 and np.isclose(table, tau, rtol=1e-12, atol=0.0).any() and tau > 0.0:
                continue  # sums of squares may round either way
            found = linked_points(points, float(tau), p)
            assert found.tolist() == linked(table, float(tau)).tolist()


@pytest.mark.parametrize("tau", [1e9, 0.5, 0.1])
def test_rewards_of_many_states_need_no_pairs(tau: float) -> None:
    """All pairs of these would be four hundred million."""
    mdp = rewards_only(np.random.default_rng(0).random((20_000, 2)))
    tracemalloc.start()
    try:
        found = cluster_by_rewards(mdp, tau)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.max() == 0
    assert held < 30_000_000


def test_dense_groups_are_linked_across_cells() -> None:
    """Two lines of many points, whose ends alone are within the threshold; a third is not."""
    line = np.linspace(0.0, 1.0, 5_000)
    points = np.concatenate([line, line + 2.0, line + 4.1])[:, None]
    near = cluster_by_rewards(rewards_only(points), 1.0)
    assert np.bincount(near).tolist() == [10_000, 5_000]
    assert cluster_by_rewards(rewards_only(points), 1.2).max() == 0


def test_points_in_a_cell_that_rounding_made_too_wide() -> None:
    steps = np.append(0.0, 1.75 * 2.0**60 + 256.0 * np.arange(6))[:, None]  # quotients coincide
    assert linked_points(steps, 1.5, np.inf).tolist() == list(range(7))
    points = np.array([[0.0], [1e300], [1e300 + 1e285], [1e-300]])
    assert cluster_by_rewards(rewards_only(points), 1e284).tolist() == [0, 1, 2, 0]
    assert cluster_by_rewards(rewards_only(points), 2e285).tolist() == [0, 1, 1, 0]
