"""`TabularMDP.under_policy`: what is stored, against the exact mixture in fractions."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import (
    InvalidArgumentError,
    TabularMDP,
    estimate_mdp,
    evaluate_policy,
    value_iteration,
)
from bisim_abstract._base.types import FloatArray
from bisim_abstract._model.estimation import Estimate
from bisim_abstract._model.policies import uniform_policy
from bisim_abstract.errors import InvalidMDPError
from bisim_abstract.parts import random_mdp
from tests.support.oracles import chain_exact, lifted_exact, variation_exact
from tests.support.worlds import gammas, mdps, policies


def stored(chain: TabularMDP, s: int) -> dict[int, Fraction]:
    return lifted_exact(chain, range(chain.n_states), s, 0)


def off_by(chain: TabularMDP, mdp: TabularMDP, weights: FloatArray) -> FloatArray:
    """(n_states, 2) how much of the radii of reward and row is needed, as a share; 0 of 0."""
    rewards, rows = chain_exact(mdp, weights.tolist())
    shares = np.zeros((mdp.n_states, 2))
    for s in range(mdp.n_states):
        off = (
            abs(rewards[s] - Fraction(float(chain.rewards[s, 0]))),
            variation_exact(rows[s], stored(chain, s)),
        )
        for k, radii in enumerate(("reward_radius", "row_radius")):
            estimate = chain.estimate
            radius = 0.0 if estimate is None else getattr(estimate, radii)[s, 0]
            assert off[k] == 0 if radius == 0.0 else True
            shares[s, k] = 0.0 if radius == 0.0 else float(off[k] / Fraction(float(radius)))
    return shares


@given(st.data(), mdps(max_states=4, max_actions=4))
def test_the_exact_mixture_is_within_the_radii(data: st.DataObject, mdp: TabularMDP) -> None:
    weights = data.draw(policies(mdp))
    chain = mdp.under_policy(weights)
    assert (off_by(chain, mdp, weights) <= 1.0).all()
    assert chain.n_actions == 1
    assert chain.available.all()
    if chain.estimate is not None:
        assert chain.estimate.alpha == 0.0
        assert chain.estimate.row_radius.max() <= 1e-14
        assert chain.estimate.reward_radius.max() <= 1e-14 * (1.0 + np.abs(mdp.rewards).max())


def test_the_radii_are_needed() -> None:
    """Mixtures do round: no radius would be a lie, and what is claimed is not far from it."""
    mdp, rng = random_mdp(40, 3, seed=0), np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(3), size=40)
    shares = off_by(mdp.under_policy(weights), mdp, weights)
    assert (shares > 0.0).any(axis=0).all()
    assert shares.max() > 0.02


@given(st.data(), mdps(max_states=5, max_actions=3))
def test_actions_are_copied(data: st.DataObject, mdp: TabularMDP) -> None:
    actions = np.array([data.draw(st.integers(0, mdp.n_actions - 1)) for _ in range(mdp.n_states)])
    chain = mdp.under_policy(actions)
    assert chain.estimate is None
    np.testing.assert_array_equal(chain.rewards[:, 0], mdp.rewards[range(mdp.n_states), actions])
    for s, a in enumerate(actions):
        for mine, theirs in zip(chain.successors(s, 0), mdp.successors(s, a), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert mdp.under_policy(np.eye(mdp.n_actions)[actions]) == chain


def test_what_all_actions_agree_on_is_copied() -> None:
    P = np.array([[[0.3, 0.7], [0.3, 0.7]], [[0.0, 1.0], [0.0, 1.0 - 1e-12]]])
    mdp = TabularMDP.from_dense(P, [[0.1, 0.1], [0.5, 0.7]], order="sas")
    chain = mdp.under_policy([[0.4, 0.6], [0.4, 0.6]])
    assert chain.estimate is not None
    assert not chain.estimate.row_radius.any()
    assert (chain.estimate.reward_radius[:, 0] > 0.0).tolist() == [False, True]
    assert chain.successors(0, 0)[1].tolist() == [0.3, 0.7]


def test_support_that_underflows_is_in_the_radius() -> None:
    P = np.array([[[1.0, 0.0], [1.0, 1e-200]], [[0.0, 1.0], [0.0, 1.0]]])
    mdp = TabularMDP.from_dense(P, np.zeros((2, 2)), order="sas")
    chain = mdp.under_policy([[1.0, 1e-200], [1.0, 0.0]])
    assert chain.successors(0, 0)[0].tolist() == [0]
    assert chain.estimate is not None
    assert (chain.estimate.row_radius[:, 0] > 0.0).tolist() == [True, False]


def test_rewards_near_the_largest_float() -> None:
    mdp = TabularMDP.from_dense(np.ones((1, 3, 1)), [[1.7e308, 1.6e308, 1e-300]], order="sas")
    weights = np.array([[0.5, 0.3, 0.2]])
    chain = mdp.under_policy(weights)
    assert np.isfinite(chain.rewards).all()
    assert (off_by(chain, mdp, weights) <= 1.0).all()


def test_states_that_lack_actions() -> None:
    mdp = random_mdp(4, 3, seed=1).with_available(
        [[True, False, True], [False, True, False], [True, True, True], [False, False, True]]
    )
    weights = uniform_policy(random_mdp(4, 3, seed=1))
    chain = mdp.under_policy(weights)
    assert not chain.has_action_sets
    assert (off_by(chain, mdp, weights) <= 1.0).all()  # padded rows are those of the first action
    assert mdp.under_policy([1, 0, 2, 1]).rewards[1, 0] == mdp.rewards[1, 1]


@given(st.data(), mdps(max_states=4, max_actions=3), gammas(0.99))
def test_its_values_are_those_of_the_policy(
    data: st.DataObject, mdp: TabularMDP, gamma: float
) -> None:
    weights = data.draw(policies(mdp))
    of_policy = evaluate_policy(mdp, gamma, weights)
    of_chain = value_iteration(mdp.under_policy(weights), gamma)
    room = 1e-12 * (1.0 + np.abs(mdp.rewards).max()) / (1.0 - gamma) ** 2
    assert (of_chain.lower <= of_policy.upper + room).all()
    assert (of_policy.lower <= of_chain.upper + room).all()


def test_radii_of_an_estimate_are_mixed() -> None:
    """True models within the radii of the estimate have chains within those of its chain."""
    rng = np.random.default_rng(0)
    n, n_actions = 5, 3
    steps = rng.integers(n, size=400), rng.integers(n_actions, size=400)
    mdp = estimate_mdp(
        *steps, rng.random(400), rng.integers(n, size=400),
        n_states=n, n_actions=n_actions, reward_range=(0, 1), alpha=0.1, support_bound=2 * n,
    )  # fmt: skip
    assert mdp.estimate is not None
    weights = rng.dirichlet(np.ones(n_actions), size=n)
    chain = mdp.under_policy(weights)
    assert chain.estimate is not None
    assert chain.estimate.alpha == 0.1
    assert chain.estimate.counts.sum() == 400
    nearest = 1.0
    for _ in range(20):
        t = mdp.estimate.row_radius[:, :, None]
        P = (1.0 - t) * mdp.kernel().toarray().reshape(n, n_actions, n)
        P += t * np.eye(n)[rng.integers(n, size=(n, n_actions))]
        R = mdp.rewards + mdp.estimate.reward_radius * rng.choice([-1.0, 1.0], (n, n_actions))
        true = TabularMDP.from_dense(P, R, order="sas")
        rewards, rows = chain_exact(true, weights.tolist())
        for s in range(n):
            away = variation_exact(rows[s], stored(chain, s))
            paid = abs(rewards[s] - Fraction(float(chain.rewards[s, 0])))
            room = Fraction(1, 10**12)  # the true model was made of floats
            assert away <= Fraction(float(chain.estimate.row_radius[s, 0])) + room
            assert paid <= Fraction(float(chain.estimate.reward_radius[s, 0])) + room
            nearest = min(nearest, float(chain.estimate.reward_radius[s, 0]) - float(paid))
    assert nearest < 1e-9  # all off in one direction: no smaller radius would do
    one = mdp.under_policy(np.zeros(n, np.int64))
    assert one.estimate is not None
    np.testing.assert_array_equal(one.estimate.row_radius, mdp.estimate.row_radius[:, :1])


def test_everything_else_is_carried_over(tmp_path: Path) -> None:
    table = {s: {a: [(1.0, (s + a + 1) % 3, 1.0, s == 2)] for a in (0, 1)} for s in range(3)}
    mdp = TabularMDP.from_table(table, start=[0.5, 0.5, 0.0], metadata={"env": "Ring"})
    chain = mdp.under_policy(uniform_policy(mdp))
    assert chain.terminal_state == mdp.terminal_state == 3
    np.testing.assert_array_equal(chain.start, mdp.start)
    np.testing.assert_array_equal(chain.state_ids, mdp.state_ids)
    assert chain.metadata["env"] == "Ring"
    assert chain.metadata["under_policy"]["model"] == mdp.fingerprint
    assert not chain.metadata["under_policy"]["is_deterministic"]
    assert "under a policy" in repr(chain)
    assert "samples" not in repr(chain)
    assert "probability" not in chain._repr_html_()
    assert "rounding" in chain._repr_html_()
    chain.save(tmp_path / "chain.npz")
    again = TabularMDP.load(tmp_path / "chain.npz")
    assert again == chain
    assert again.metadata == chain.metadata
    assert again.estimate is not None
    assert not again.is_sampled
    assert replace(chain, estimate=None).fingerprint != chain.fingerprint
    assert chain.under_policy(np.zeros(4, np.int64)).metadata == chain.metadata


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ([0, 2], r"actions in \[0, 2\), got 2 at state 1"),
        ([0], "shape"),
        ([[0.5, 0.6], [1, 0]], "sum to 1"),
        ([[1.5, -0.5], [1, 0]], "sum to 1"),
        ([[np.nan, 1.0], [1, 0]], "sum to 1"),
    ],
)
def test_what_is_no_policy(policy: object, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        random_mdp(2, 2, seed=0).under_policy(policy)  # type: ignore[arg-type]


def test_alpha_zero_is_for_radii_that_are_sure() -> None:
    estimate = random_mdp(3, 2, seed=0).under_policy(np.full((3, 2), 0.5)).estimate
    assert estimate is not None
    assert not estimate.is_sampled
    assert replace(estimate, alpha=0.1).is_sampled
    with pytest.raises(InvalidArgumentError, match="alpha"):
        replace(estimate, alpha=-0.1)
    with pytest.raises(InvalidArgumentError, match="alpha"):
        estimate_mdp([0], [0], [0], [0], n_states=1, n_actions=1, reward_range=(0, 1), alpha=0.0)
    with pytest.raises(InvalidMDPError, match="row_radius"):
        replace(estimate, row_radius=np.full((3, 1), 1.5))
    assert isinstance(estimate, Estimate)
