"""MICo's distance: against its linear system in fractions, and beside the on-policy metric."""

from __future__ import annotations

import logging
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import (
    InvalidArgumentError,
    Resources,
    TabularMDP,
    bisimulation_metric,
    mico_distance,
)
from bisim_abstract._base.types import Progress
from bisim_abstract._exact import mico
from bisim_abstract._model.estimation import Estimate
from bisim_abstract._model.policies import uniform_policy
from bisim_abstract.errors import MemoryLimitError
from bisim_abstract.parts import random_mdp, sparse_mdp
from tests.support.oracles import mico_exact
from tests.support.worlds import gammas, mdps, policies


def check_encloses(mdp: TabularMDP, gamma: float, weights: np.ndarray, **options: float) -> None:
    found = mico_distance(mdp, gamma, weights, **options)  # type: ignore[arg-type]
    truth = mico_exact(mdp, weights.tolist(), gamma)
    for s in range(mdp.n_states):
        for t in range(mdp.n_states):
            assert Fraction(float(found.lower[s, t])) <= truth[s][t]
            assert truth[s][t] <= Fraction(float(found.upper[s, t]))
    np.testing.assert_array_equal(found.upper, found.upper.T)
    np.testing.assert_array_equal(found.lower, found.lower.T)
    widest = (found.upper - found.lower).max()
    assert widest <= found.gap


@given(st.data(), mdps(max_states=3, max_actions=3), gammas(0.999))
def test_the_tables_enclose_the_fixed_point(
    data: st.DataObject, mdp: TabularMDP, gamma: float
) -> None:
    weights = data.draw(policies(mdp))
    check_encloses(mdp, gamma, weights)
    check_encloses(mdp, gamma, weights, max_sweeps=1)  # bounds hold wherever it ends


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.99, 0.9999])
@pytest.mark.parametrize("doubles", [True, False])
def test_both_ways_arrive(monkeypatch: pytest.MonkeyPatch, gamma: float, doubles: bool) -> None:
    monkeypatch.setattr(mico._Pairs, "doubling_pays", lambda self, sweeps: doubles)
    mdp = random_mdp(4, 2, seed=3)
    weights = uniform_policy(mdp)
    found = mico_distance(mdp, gamma, weights)
    assert found.is_converged
    assert found.sweeps < 100 or not doubles
    check_encloses(mdp, gamma, weights)


def test_near_one_it_does_not_take_forever() -> None:
    """Two ends that nothing leaves: no common shift helps, and sweeps alone take 10,000."""
    P = np.array([[[0.5, 0.25, 0.25]], [[0.0, 1.0, 0.0]], [[0.0, 0.0, 1.0]]])
    mdp = TabularMDP.from_dense(P, [[0.0], [1.0], [0.0]], order="sas")
    found = mico_distance(mdp, 0.999, [0, 0, 0])
    assert found.is_converged
    lower, upper = found.bounds(1, 2)
    assert lower <= 1000.0 <= upper
    large = mico_distance(sparse_mdp(200, 2, seed=0), 0.9999, np.zeros(200, np.int64))
    assert large.is_converged
    assert large.sweeps < 50


def test_the_largest_gap_is_that_of_rounding() -> None:
    """What is called rounding is little: the proof leaves no more room than it needs."""
    mdp = random_mdp(30, 3, seed=0)
    found = mico_distance(mdp, 0.9, uniform_policy(mdp), tol=1e-300)
    assert not found.is_converged
    assert found.gap <= 1e-12 * found.upper.max()


@given(st.data(), mdps(max_states=5, max_actions=2), gammas(0.95))
def test_it_lies_above_the_on_policy_metric(
    data: st.DataObject, mdp: TabularMDP, gamma: float
) -> None:
    weights = data.draw(policies(mdp))
    on_policy = bisimulation_metric(mdp.under_policy(weights), gamma)
    assert (on_policy.lower <= mico_distance(mdp, gamma, weights).upper).all()


def test_a_state_is_away_from_itself() -> None:
    P = np.full((2, 1, 2), 0.5)
    found = mico_distance(TabularMDP.from_dense(P, [1.0, 0.0]), 0.5, [0, 0])
    np.testing.assert_allclose(found.upper, [[0.5, 1.5], [1.5, 0.5]], atol=1e-8)
    assert found.lower[0, 0] > 0.4
    assert "never cluster" in found.summary()
    assert "MicoBounds(2 states" in repr(found)


def test_bounds_broadcast_and_cannot_be_written() -> None:
    mdp = random_mdp(5, 2, seed=0)
    found = mico_distance(mdp, 0.9, np.zeros(5, np.int64))
    lower, upper = found.bounds(np.arange(5)[:, None], np.arange(5))
    np.testing.assert_array_equal(lower, found.lower)
    np.testing.assert_array_equal(upper, found.upper)
    with pytest.raises(ValueError, match="read-only"):
        found.upper[0, 0] = 1.0
    with pytest.raises(InvalidArgumentError, match="states"):
        found.bounds(5, 0)


def test_samples_are_taken_as_they_are() -> None:
    mdp = random_mdp(4, 2, seed=0)
    chain = mdp.under_policy(uniform_policy(mdp))
    assert chain.estimate is not None
    radii = replace(
        chain.estimate,
        alpha=0.1,
        counts=np.ones((4, 2), np.int64),
        reward_radius=np.ones((4, 2)),
        row_radius=np.ones((4, 2)),
    )
    weights = uniform_policy(mdp)
    guessed = mico_distance(replace(mdp, estimate=radii), 0.9, weights)
    np.testing.assert_array_equal(guessed.upper, mico_distance(mdp, 0.9, weights).upper)


def test_a_limit_is_told(caplog: pytest.LogCaptureFixture) -> None:
    mdp = random_mdp(4, 2, seed=0)
    with caplog.at_level(logging.WARNING):
        found = mico_distance(mdp, 0.9, np.zeros(4, np.int64), max_sweeps=2)
    assert not found.is_converged
    assert found.sweeps == 2
    assert "stays above tol" in caplog.text


def test_progress_and_interruption() -> None:
    seen: list[Progress] = []
    mdp = random_mdp(4, 2, seed=0)
    found = mico_distance(mdp, 0.9, np.zeros(4, np.int64), callback=seen.append)
    assert len(seen) == found.sweeps

    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mico_distance(mdp, 0.9, np.zeros(4, np.int64), callback=stop)


def test_what_is_refused() -> None:
    mdp = random_mdp(200, 2, seed=0)
    actions = np.zeros(200, np.int64)
    with pytest.raises(MemoryLimitError, match="MICo"):
        mico_distance(mdp, 0.9, actions, resources=Resources(memory_limit=1_000_000))
    with pytest.raises(InvalidArgumentError, match="gamma"):
        mico_distance(mdp, 1.0, actions)
    with pytest.raises(InvalidArgumentError, match="policy"):
        mico_distance(mdp, 0.9, actions[:5])
    with pytest.raises(InvalidArgumentError, match="tol"):
        mico_distance(mdp, 0.9, actions, tol=0.0)
    with pytest.raises(InvalidArgumentError, match="order is mico_distance"):
        mico_distance(0.9, mdp, actions)  # type: ignore[arg-type]
    huge = TabularMDP.from_dense(np.eye(2)[:, None, :], [1e308, -1e308])
    with pytest.raises(InvalidArgumentError, match="overflow"):
        mico_distance(huge, 0.9, [0, 0])


@pytest.mark.parametrize("level", [0.1, 1.0 / 3.0, 0.7])
def test_long_sums_are_within_their_bound(level: float) -> None:
    """A constant table moves by exactly gamma - 1 of it; floats miss that by many roundings."""
    n, gamma = 600, 0.9
    chain = TabularMDP.from_dense(np.full((n, 1, n), 1.0 / n), np.zeros(n))
    pairs = mico._Pairs(chain, gamma)
    table = np.full((n, n), level)
    backup = pairs.backup(table)
    rise, fall = pairs.residual(table, backup)
    moved = (Fraction(gamma) - 1) * Fraction(level)
    assert -Fraction(fall) <= moved <= Fraction(rise)
    error = max(abs(Fraction(float(x)) - moved - Fraction(level)) for x in np.unique(backup))
    assert error > Fraction(level) * Fraction(32, 2**53)  # no fixed number of roundings would do


def test_residuals_hold_for_all_chains_within_the_radii() -> None:
    rng, n, gamma, t, r = np.random.default_rng(0), 6, 0.8, 0.03, 0.02
    stored = random_mdp(n, 1, seed=0)
    estimate = Estimate(
        counts=np.zeros((n, 1), np.int64),
        reward_radius=np.full((n, 1), r),
        row_radius=np.full((n, 1), t),
        alpha=0.0,
        reward_range=(0.0, 1.0),
        support_bound=n,
    )
    pairs = mico._Pairs(replace(stored, estimate=estimate), gamma)
    corner = np.zeros((n, n))
    corner[0, 0] = 1.0  # where rows gain most by what they may be off
    for table in (corner, rng.random((n, n))):
        table = (table + table.T) / 2.0
        rise, fall = pairs.residual(table, pairs.backup(table))
        rows, paid = stored.kernel().toarray(), stored.rewards[:, 0]
        least = np.inf
        for x in range(n):
            P = (1.0 - t) * rows + t * np.eye(n)[x]
            R = paid + r * np.where(rng.random(n) < 0.5, 1.0, -1.0)
            R[paid.argmax()], R[paid.argmin()] = paid.max() + r, paid.min() - r
            moved = np.abs(np.subtract.outer(R, R)) + gamma * P @ table @ P.T - table
            assert moved.max() <= rise
            assert -moved.min() <= fall
            least = min(least, rise - moved.max())
        assert least < 2.0 * r + 2.0 * gamma * t
