"""Index-side backups: the lemma's error, the theorem's parts (A) and (B), and true bounds."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from bisim_abstract import InvalidArgumentError, bisimulation_metric, verify
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.index_side import index_side_run, truncated_mdp
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._prove.certify import single_build
from bisim_abstract.parts import Estimate, random_mdp, sparse_mdp
from tests.support.examples import grid
from tests.support.oracles import backup_exact

GAMMA = 0.7


def model(seed: int) -> TabularMDP:
    return random_mdp(10, 2, seed=seed) if seed % 2 else sparse_mdp(12, 2, support=4, seed=seed)


def some_pairs(mdp: TabularMDP, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    first, second = np.triu_indices(mdp.n_states, 1)
    return first, second, np.random.default_rng(seed).random(first.size) < 0.6


@grid(omit=[0.0, 0.2], seed=range(12))
def test_theorem_and_bounds(seed: int, omit: float) -> None:
    mdp = model(seed)
    first, second, covered = some_pairs(mdp, seed)
    exact = bisimulation_metric(mdp, GAMMA)
    lower, upper = exact.lower[first, second], exact.upper[first, second]
    rho = upper[~covered].max()
    for sweeps in (1, 4, 12):
        run = index_side_run(
            mdp, GAMMA, first=first[covered], second=second[covered], sweeps=sweeps, dim=6,
            omit=omit, lower_start="zero", seed=seed,
        )  # fmt: skip
        assert run.eps_op >= GAMMA * (run.eta + run.omitted * run.arms.starts.diameter) > 0.0
        assert run.omitted <= omit + 1e-8
        below, above = run.arms.bounds(first, second)
        assert (below <= upper).all()
        assert (above >= lower).all()
        # Parts (A) and (B): errors of the arms as iterated, the lower one started at 0.
        error = np.abs(run.raw_lower - upper[covered]).max()
        transient = GAMMA**sweeps * upper.max() + exact.gap
        assert error <= max(run.eps_op / (1 - GAMMA), run.eps_op + GAMMA * rho) + transient
        assert max(error, rho) <= max(rho, run.eps_op / (1 - GAMMA)) + transient


@pytest.mark.parametrize("seed", range(4))
def test_one_backup_is_off_by_at_most_eps_op(seed: int) -> None:
    mdp = model(seed)
    first, second, covered = some_pairs(mdp, seed)
    s, t = first[covered], second[covered]
    start = Arms(mdp, GAMMA, lower_start="reward", upper_start="constant")
    table = np.zeros((mdp.n_states, mdp.n_states))
    table[first, second] = table[second, first] = start.bounds(first, second)[0]
    truth = backup_exact(mdp, GAMMA, table)
    run = index_side_run(mdp, GAMMA, first=s, second=t, sweeps=1, dim=2, omit=0.1)
    for k in range(s.size):
        gap = abs(Fraction(float(run.raw_lower[k])) - truth[int(s[k])][int(t[k])])
        assert gap <= Fraction(run.eps_op) + Fraction(1, 10**12)


def test_a_perfect_embedding_costs_nothing() -> None:
    """Rewards on a line: the start of the lower arm is Euclidean, so eta vanishes."""
    P = np.full((6, 1, 6), 1 / 6)
    mdp = TabularMDP.from_dense(P, np.linspace(0.0, 1.0, 6))
    first, second = np.triu_indices(6, 1)
    run = index_side_run(
        mdp, 0.5, first=first, second=second, sweeps=1, dim=5, upper_start="reward"
    )
    assert run.omitted == 0.0
    below, _ = run.arms.bounds(first, second)
    exact = bisimulation_metric(mdp, 0.5).upper[first, second]
    assert (exact - below).max() <= run.eps_op / 0.5 + 1e-12


@pytest.mark.parametrize("gamma", [0.5, 0.9])
@pytest.mark.parametrize("error", [0.25, -0.25])
def test_errors_that_add_up_are_corrected_in_full(
    gamma: float, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two states that stay: every sweep repeats the same error, which sums up to eps/(1-gamma)."""
    mdp = TabularMDP.from_dense(np.eye(2)[:, None, :], [0.0, 1.0])

    def off(distance: Any, n_states: int, **_: Any) -> np.ndarray:
        return np.array([[0.0], [float(distance(np.array(0), np.array(1))) + error]])

    monkeypatch.setattr("bisim_abstract._bounds.index_side.landmark_mds", off)
    run = index_side_run(mdp, gamma, first=np.array([0]), second=np.array([1]), sweeps=400)
    truth = Fraction(1) / (1 - Fraction(gamma))
    raw = float(run.raw_lower[0] if error > 0 else run.raw_upper[0])
    assert abs(raw - float(truth)) == pytest.approx(run.eps_op / (1 - gamma), rel=1e-6)
    below, above = run.arms.bounds(0, 1)
    assert Fraction(float(below)) <= truth <= Fraction(float(above))


def test_truncation_says_how_much_it_left_out() -> None:
    P = np.array([[[0.7, 0.2, 0.06, 0.04]]] * 4).reshape(4, 1, 4)
    mdp = TabularMDP.from_dense(P, np.arange(4.0))
    short, omitted = truncated_mdp(mdp, 0.1)
    assert short.successors(0, 0)[0].tolist() == [0, 1]
    assert short.successors(0, 0)[1] == pytest.approx([0.7 / 0.9, 0.2 / 0.9])
    assert 0.1 <= omitted < 0.1 + 1e-8
    assert truncated_mdp(mdp, 0.0) == (mdp, 0.0)
    assert truncated_mdp(mdp, 0.5)[0].max_support == 1


def test_single_build_with_index_backups_states_its_error() -> None:
    mdp = model(3)
    certificate = single_build(mdp, GAMMA, backup="index", sweeps=5, omit=0.1, neighbours=4)
    assert certificate.run["eps_op"] > 0.0
    exact = bisimulation_metric(mdp, GAMMA)
    first, second = np.triu_indices(mdp.n_states, 1)
    below, above = certificate.bounds(first, second)
    assert (below <= exact.upper[first, second]).all()
    assert (above >= exact.lower[first, second]).all()
    with pytest.raises(InvalidArgumentError, match="backup must be one of"):
        single_build(mdp, GAMMA, backup="guess")
    with pytest.raises(InvalidArgumentError, match="omit"):
        single_build(mdp, GAMMA, backup="index", omit=2.0)


@pytest.mark.parametrize("omit", [0.0, 1e-6])
def test_radii_of_estimated_models_enter(omit: float) -> None:
    mdp = random_mdp(10, 2, seed=0)
    shape = mdp.rewards.shape
    estimate = Estimate(
        counts=np.full(shape, 50),
        reward_radius=np.full(shape, 0.05),
        row_radius=np.full(shape, 0.3),
        alpha=0.05,
        reward_range=(-1.0, 2.0),
        support_bound=10,
    )
    mdp = dataclasses.replace(mdp, estimate=estimate)
    made = single_build(mdp, 0.9, backup="index", omit=omit, sweeps=30, neighbours=9, dim=9)
    assert verify(mdp, made).is_valid
