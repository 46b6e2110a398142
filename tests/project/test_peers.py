"""What `scripts/bench.py` compares with does what it is said to do: peers are not strawmen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bisim_abstract import bisimulation_metric
from bisim_abstract.parts import random_mdp, solve_transport, sparse_mdp
from tests.support import ROOT
from tests.support.learners import steps_down


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import peers

    return peers


def test_plans_become_couplings_and_couplings_stay(peers: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.dirichlet(np.ones(4), 20), rng.dirichlet(np.ones(3), 20)
    made = peers.as_couplings(rng.random((20, 4, 3)) / 12.0, a, b)
    assert (made >= 0.0).all()
    np.testing.assert_allclose(made.sum(axis=2), a, atol=1e-12)
    np.testing.assert_allclose(made.sum(axis=1), b, atol=1e-12)
    exact = solve_transport(rng.random((20, 4, 3)), a, b).coupling
    np.testing.assert_allclose(peers.as_couplings(exact, a, b), exact, atol=1e-12)


def test_plain_iterations_reach_their_fixed_points(peers: Any) -> None:
    chain = steps_down(6)
    found, _ = peers.plain_deterministic(chain, 0.8, 1e-9)
    np.testing.assert_allclose(found, bisimulation_metric(chain, 0.8).upper, atol=2e-9)
    mdp = random_mdp(5, 1, seed=0)
    P, paid = mdp.kernel().toarray(), mdp.rewards[:, 0]
    found, _ = peers.plain_mico(P, paid, 0.8, 1e-10)
    # U = |r - r'| + gamma·(P x P) U is a linear system over pairs.
    gaps = np.abs(paid[:, None] - paid).ravel()
    exact = np.linalg.solve(np.eye(25) - 0.8 * np.kron(P, P), gaps).reshape(5, 5)
    np.testing.assert_allclose(found, exact, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_sinkhorn_value_iteration_approaches_the_metric_from_above(peers: Any, seed: int) -> None:
    mdp = sparse_mdp(8, 1, support=3, seed=seed)
    metric = bisimulation_metric(mdp, 0.8)
    off = []
    for eta, rounds in ((0.5, 10), (0.5, 100), (0.05, 1_500)):
        found = peers.sinkhorn_value_iteration(
            peers.Chain.of(mdp), 0.8, eta=eta, rounds=rounds, tol=1e-9
        )
        assert (found >= metric.lower - 1e-8).all()
        off.append(float((found - metric.lower).max()))
    assert off[0] > off[1] > off[2]
    assert off[2] < 0.02 * metric.upper.max()


def test_chains_have_one_action_and_rows_of_one_length(peers: Any) -> None:
    with pytest.raises(ValueError, match="one action"):
        peers.Chain.of(random_mdp(4, 2, seed=0))
