"""`value_iteration` and `evaluate_policy` against exact linear algebra."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import (
    InvalidArgumentError,
    TabularMDP,
    Values,
    evaluate_policy,
    value_iteration,
)
from bisim_abstract._base.types import Progress
from bisim_abstract._exact import planning
from bisim_abstract._exact.planning import _bounded, _residual_bounds
from bisim_abstract.parts import random_mdp, sparse_mdp
from tests.support.oracles import optimal_values_exact, policy_values_exact
from tests.support.worlds import BY_HAND, Known, dense, gammas, mdps, scaled, two_loops, wheel

Floats = npt.NDArray[np.float64]


def check_bounds(values: Values, truth: list[Fraction]) -> None:
    """The truth lies between the bounds, the gap is what it says, convergence too."""
    assert values.lower.shape == values.upper.shape == (len(truth),)
    gap = Fraction(0)
    for low, exact, high in zip(values.lower.tolist(), truth, values.upper.tolist(), strict=True):
        assert Fraction(low) <= exact <= Fraction(high)
        gap = max(gap, Fraction(high) - Fraction(low))
    assert gap <= Fraction(values.gap)
    assert values.is_converged == (values.gap <= values.tol)


@st.composite
def policies(draw: st.DrawFn, n: int, n_actions: int) -> Floats:
    """(n, n_actions) probabilities: certain, dyadic, or off from 1 by a rounding."""
    rows = []
    for _ in range(n):
        parts = draw(st.lists(st.integers(0, 7), min_size=n_actions, max_size=n_actions))
        if not any(parts):
            parts[0] = 1
        rows.append([part / sum(parts) for part in parts])
    return np.array(rows)


# -- known answers -----------------------------------------------------------------------------


@pytest.mark.parametrize("known", BY_HAND, ids=lambda known: f"{known.name}-{known.gamma}")
def test_hand_solved_values(known: Known) -> None:
    assert optimal_values_exact(known.mdp, known.gamma) == known.values
    values = value_iteration(known.mdp, known.gamma)
    check_bounds(values, known.values)
    assert values.is_converged
    check_bounds(evaluate_policy(known.mdp, known.gamma, values.policy), known.values)


def test_the_better_action_is_chosen() -> None:
    # Stay for 1 now and for ever, or leave for nothing now and 3 for ever.
    P = np.zeros((2, 2, 2))
    P[0, 0, 0] = P[0, 1, 1] = 1.0
    P[1, :, 1] = 1.0
    mdp = TabularMDP.from_dense(P, [[1.0, 0.0], [3.0, 3.0]], order="sas")
    assert value_iteration(mdp, 0.2).policy[0] == 0
    assert value_iteration(mdp, 0.9).policy[0] == 1


# -- laws --------------------------------------------------------------------------------------


@pytest.mark.parametrize("actions", [(0, 1), (1, 0)])
def test_equal_actions_are_told_apart_by_number(actions: tuple[int, int]) -> None:
    # Both actions earn 0.3, one of them as 0.1 + 0.2, which is a unit in the last place more.
    assert 0.5 * 0.4 + 0.5 * 0.8 > 0.6
    sure, split = np.zeros((2, 5))
    sure[1], split[2:4] = 1.0, 0.5
    rest = np.eye(5)[4]
    P = np.array([[(sure, split)[k] for k in actions], *[[rest, rest]] * 4])
    rewards = np.zeros((5, 2))
    rewards[1], rewards[2], rewards[3] = 0.6, 0.4, 0.8
    found = value_iteration(TabularMDP.from_dense(P, rewards, order="sas"), 0.5)
    assert found.policy.tolist() == [0] * 5


def test_large_rewards_elsewhere_blur_no_small_ones() -> None:
    # Rounding errors of 1e13 are larger than what the second state decides about.
    P = np.repeat(np.eye(2)[:, None, :], 2, axis=1)
    mdp = TabularMDP.from_dense(P, [[1e12, 1e12], [1.0, 1.001]], order="sas")
    assert value_iteration(mdp, 0.9).policy.tolist() == [0, 1]


@given(mdps(max_actions=3), gammas())
def test_optimal_values_are_enclosed(mdp: TabularMDP, gamma: float) -> None:
    values = value_iteration(mdp, gamma)
    truth = optimal_values_exact(mdp, gamma)
    check_bounds(values, truth)
    assert values.is_converged
    # The greedy policy is as good as it claims.
    one_hot = np.eye(mdp.n_actions)[values.policy.astype(np.int64)]
    own = policy_values_exact(mdp, one_hot.tolist(), gamma)
    loss = max(best - mine for best, mine in zip(truth, own, strict=True))
    assert 0 <= loss <= 4 * Fraction(values.gap) / (1 - Fraction(gamma))


@given(mdps(max_actions=3), gammas(), st.integers(1, 3))
def test_few_sweeps_enclose_as_well(mdp: TabularMDP, gamma: float, max_sweeps: int) -> None:
    values = value_iteration(mdp, gamma, max_sweeps=max_sweeps, tol=1e-300)
    assert values.sweeps <= max_sweeps
    check_bounds(values, optimal_values_exact(mdp, gamma))


@given(mdps(max_actions=3), gammas(), st.data())
def test_policy_values_are_enclosed(mdp: TabularMDP, gamma: float, data: st.DataObject) -> None:
    policy = data.draw(policies(mdp.n_states, mdp.n_actions))
    values = evaluate_policy(mdp, gamma, policy)
    check_bounds(values, policy_values_exact(mdp, policy.tolist(), gamma))
    assert values.is_converged
    assert values.policy.shape == policy.shape


@given(mdps(max_actions=3), gammas(), st.data())
def test_actions_are_certain_probabilities(
    mdp: TabularMDP, gamma: float, data: st.DataObject
) -> None:
    n, n_actions = mdp.rewards.shape
    actions = np.array(data.draw(st.lists(st.integers(0, n_actions - 1), min_size=n, max_size=n)))
    by_action = evaluate_policy(mdp, gamma, actions)
    by_weight = evaluate_policy(mdp, gamma, np.eye(n_actions)[actions])
    np.testing.assert_array_equal(by_action.lower, by_weight.lower)
    np.testing.assert_array_equal(by_action.upper, by_weight.upper)
    np.testing.assert_array_equal(by_action.policy, actions)
    check_bounds(by_action, policy_values_exact(mdp, np.eye(n_actions)[actions].tolist(), gamma))


@pytest.mark.parametrize("states", [1, 3, 7])
def test_chains_are_mixed_in_parts(states: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many rows are mixed between two looks at the clock changes no bit."""
    mdp = sparse_mdp(20, 3, support=4, seed=1)
    policy = np.random.default_rng(0).dirichlet(np.ones(3), 20)
    whole = evaluate_policy(mdp, 0.9, policy)
    monkeypatch.setattr(planning, "CHAIN_STATES", states)
    parts = evaluate_policy(mdp, 0.9, policy)
    np.testing.assert_array_equal(parts.lower, whole.lower)
    np.testing.assert_array_equal(parts.upper, whole.upper)


def test_bounds_need_their_rounding_slack() -> None:
    # Residuals here are a few roundings: plain floats would miss the truth now and then.
    for seed in range(60):
        rng = np.random.default_rng(seed)
        mdp = random_mdp(4, 2, seed=seed)
        gamma = float(rng.choice([0.0, 0.3, 0.9, 0.99]))
        check_bounds(value_iteration(mdp, gamma), optimal_values_exact(mdp, gamma))
        policy = rng.dirichlet(np.ones(2), size=4)
        truth = policy_values_exact(mdp, policy.tolist(), gamma)
        values = evaluate_policy(mdp, gamma, policy)
        check_bounds(values, truth)
        assert values.gap <= 1e-12 / (1.0 - gamma) ** 2


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.99, 0.999])
def test_values_found_by_sweeps_are_enclosed(gamma: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of large chains are: what all states are off by in common is added at once."""
    monkeypatch.setattr(planning, "DIRECT_LIMIT", 0)
    models = random_mdp(5, 2, seed=0), sparse_mdp(7, 2, seed=1), wheel(gamma).mdp
    for seed, mdp in enumerate(models):
        policy = np.random.default_rng(seed).dirichlet(np.ones(mdp.n_actions), size=mdp.n_states)
        values = evaluate_policy(mdp, gamma, policy)
        check_bounds(values, policy_values_exact(mdp, policy.tolist(), gamma))
        assert values.is_converged


def test_tiny_terms_of_a_wide_mixture_add_up() -> None:
    # The last action leads to one state nearly for certain; a thousand other successors carry
    # half a rounding error each, which a plain sum loses one after the other. All pay 1.
    n_actions, width, gamma = 32, 32, 0.7
    n = (n_actions - 1) * width + 1
    row = np.concatenate([np.arange(n - 1), [n - 1]])
    probs = np.append(np.full(n - 1, 1.0 / width), 1.0)
    sizes = np.append(np.full(n_actions - 1, width), 1)
    mdp = TabularMDP(
        indptr=np.concatenate([[0], np.cumsum(np.tile(sizes, n))]),
        indices=np.tile(row, n),
        probs=np.tile(probs, n),
        rewards=np.ones((n, n_actions)),
    )
    policy = np.full((n, n_actions), width * 0.49 * 2.0**-53)
    policy[:, -1] = 1.0 - policy[0, :-1].sum()
    values = evaluate_policy(mdp, gamma, policy)
    truth = 1 / (1 - Fraction(gamma))
    assert all(Fraction(x) <= truth for x in values.lower.tolist())
    assert all(truth <= Fraction(x) for x in values.upper.tolist())


def test_policies_are_divided_by_their_sums() -> None:
    # Rows may miss 1 by 1e-9; the values are those of the quotients.
    mdp = two_loops(0.9).mdp
    policy = np.array([[1.0 + 8e-10], [1.0 - 8e-10]])
    values = evaluate_policy(mdp, 0.9, policy)
    check_bounds(values, policy_values_exact(mdp, policy.tolist(), 0.9))
    np.testing.assert_array_equal(values.policy, [[1.0], [1.0]])
    mdp = sparse_mdp(4, 3, support=2, seed=1)
    policy = np.array([[0.2, 0.3, 0.5]] * 4) * (1.0 + 9e-10 * np.array([[-1], [1], [0.3], [0.7]]))
    values = evaluate_policy(mdp, 0.99, policy)
    check_bounds(values, policy_values_exact(mdp, policy.tolist(), 0.99))


# -- large models ------------------------------------------------------------------------------


def lazy_countdown(n: int, stay: float) -> TabularMDP:
    """State i pays 1 and moves to i - 1, or stays with probability `stay`; 0 is the end."""
    states = np.arange(n)
    before = np.maximum(states - 1, 0)
    moves = np.stack([before, states], axis=1)[1:].ravel()
    weights = np.tile([1.0 - stay, stay], n - 1)
    return TabularMDP.from_rows(
        np.concatenate([[0, 1], 1 + 2 * np.arange(1, n)]),
        np.append(0, moves),
        np.append(1.0, weights),
        np.minimum(states, 1.0)[:, None],
        terminal_state=0,
    )


def countdown_values(n: int, stay: float, gamma: float) -> list[Fraction]:
    g, p = Fraction(gamma), Fraction(stay)
    values = [Fraction(0)]
    for _ in range(n - 1):
        values.append((1 + g * (1 - p) * values[-1]) / (1 - g * p))
    return values


@pytest.mark.parametrize("gamma", [0.0, 0.9, 0.99])
@pytest.mark.parametrize("solver", ["optimal", "policy"])
def test_more_states_than_a_factorisation_is_used_for(solver: str, gamma: float) -> None:
    n, stay = 30_001, 0.25
    mdp = lazy_countdown(n, stay)
    if solver == "optimal":
        values = value_iteration(mdp, gamma)
    else:
        values = evaluate_policy(mdp, gamma, np.zeros(n, np.int64))
    assert values.is_converged
    assert (values.lower <= values.upper).all()
    first = countdown_values(40, stay, gamma)
    for s, truth in enumerate(first):
        assert Fraction(float(values.lower[s])) <= truth <= Fraction(float(values.upper[s]))
    far = 1.0 / (1.0 - gamma)
    assert values.lower[-1] <= far * (1.0 + 1e-12)
    assert values.upper[-1] >= far * (1.0 - 1e-12)
    assert values.gap <= 1.1e-9 / (1.0 - gamma)


@pytest.mark.parametrize("n", [2_000, 20_000, 20_001])
def test_both_sides_of_the_limit_agree(n: int) -> None:
    values = value_iteration(lazy_countdown(n, 0.5), 0.9)
    for s, truth in enumerate(countdown_values(20, 0.5, 0.9)):
        assert Fraction(float(values.lower[s])) <= truth <= Fraction(float(values.upper[s]))
    assert values.is_converged


def test_a_large_model_with_choices() -> None:
    n = 25_000
    mdp = sparse_mdp(n, 3, support=2, seed=1)
    values = value_iteration(mdp, 0.9)
    assert values.is_converged
    # Bounds of the greedy policy must meet those of the optimum.
    own = evaluate_policy(mdp, 0.9, values.policy)
    assert own.is_converged
    assert (own.lower <= values.upper).all()
    assert (own.upper >= values.lower - 20.0 * values.gap).all()
    uniform = evaluate_policy(mdp, 0.9, np.full((n, 3), 1 / 3))
    assert (uniform.lower <= values.upper).all()


# -- extreme numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [-1.0, 1e-300, -1e-12, 1e12, -1e290])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.999])
def test_rewards_of_any_size_and_sign(factor: float, gamma: float) -> None:
    mdp = scaled(sparse_mdp(5, 2, support=2, seed=3), factor)
    values = value_iteration(mdp, gamma)
    check_bounds(values, optimal_values_exact(mdp, gamma))
    assert values.is_converged
    policy = np.full((5, 2), 0.5)
    values = evaluate_policy(mdp, gamma, policy)
    check_bounds(values, policy_values_exact(mdp, policy.tolist(), gamma))
    assert values.is_converged


def test_values_that_cancel() -> None:
    # Large rewards of both signs and an optimal value near 0.
    P = np.zeros((3, 1, 3))
    P[0, 0, [1, 2]] = 0.5
    P[1, 0, 1] = P[2, 0, 2] = 1.0
    mdp = TabularMDP.from_dense(P, [1e-9, 1e9, -1e9])
    check_bounds(value_iteration(mdp, 0.9), optimal_values_exact(mdp, 0.9))


def test_rewards_beyond_floats_are_refused() -> None:
    mdp = TabularMDP.from_dense([[[1.0]]], [1e305])
    with pytest.raises(InvalidArgumentError, match="rescale the rewards"):
        value_iteration(mdp, 0.999)
    with pytest.raises(InvalidArgumentError, match="rescale the rewards"):
        evaluate_policy(mdp, 0.999, [0])


# -- the value of the start --------------------------------------------------------------------


@given(mdps(), gammas(), st.data())
def test_start_values_are_enclosed(mdp: TabularMDP, gamma: float, data: st.DataObject) -> None:
    start = data.draw(policies(1, mdp.n_states))[0]
    mdp = TabularMDP(
        indptr=mdp.indptr, indices=mdp.indices, probs=mdp.probs, rewards=mdp.rewards, start=start
    )
    values = value_iteration(mdp, gamma, max_sweeps=data.draw(st.sampled_from((1, 100))))
    weights = [Fraction(w) for w in start.tolist()]
    optimum = optimal_values_exact(mdp, gamma)
    truth = sum(w * v for w, v in zip(weights, optimum, strict=True)) / sum(weights)
    low, high = values.start_bounds(mdp)
    assert Fraction(low) <= truth <= Fraction(high)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_start_values_of_many_states(sign: float) -> None:
    # After one sweep one bound is the truth on all start states, and the other is 0.
    n = 30_000
    rewards = np.full((n + 1, 1), sign)
    rewards[n] = 0.0
    mdp = TabularMDP(
        indptr=np.arange(n + 2),
        indices=np.arange(n + 1),
        probs=np.ones(n + 1),
        rewards=rewards,
        terminal_state=n,
    )
    low, high = value_iteration(mdp, 0.0, max_sweeps=1).start_bounds(mdp)
    assert Fraction(low) <= sign <= Fraction(high)


def test_start_bounds_cover_their_own_rounding() -> None:
    # The bounds themselves are handed over here, so that nothing else gives way.
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 30))
        mdp = TabularMDP(
            indptr=np.arange(n + 1),
            indices=np.arange(n),
            probs=np.ones(n),
            rewards=np.zeros((n, 1)),
            start=rng.dirichlet(np.ones(n)),
        )
        given_values = rng.normal(size=n)
        values = Values(0.5, given_values, given_values, np.zeros(n, np.int64), 0.0, 1.0, 1)
        weights = [Fraction(w) for w in mdp.start.tolist()]
        products = (w * Fraction(v) for w, v in zip(weights, given_values.tolist(), strict=True))
        truth = sum(products, Fraction(0)) / sum(weights)
        low, high = values.start_bounds(mdp)
        assert Fraction(low) <= truth <= Fraction(high)
        assert high - low <= 1e-13


def test_shifts_and_gaps_cover_their_own_rounding() -> None:
    """V + r/(1 - gamma), for residuals r that are handed over: nothing else gives way."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        gamma = float(rng.choice([0.0, 0.3, 0.9, 0.99]))
        values = rng.normal(size=5) * 10.0 ** rng.integers(-3, 3)
        low, high = -1e-3 * float(rng.random()), 1e-3 * float(rng.random())
        found = _bounded(gamma, values, low, high, np.zeros(5, np.int64), 1.0, 1)
        for k, value in enumerate(values.tolist()):
            rest = 1 - Fraction(gamma)
            assert Fraction(found.lower[k]) <= Fraction(value) + Fraction(low) / rest
            assert Fraction(found.upper[k]) >= Fraction(value) + Fraction(high) / rest
        gaps = [Fraction(b) - Fraction(a) for a, b in zip(found.lower, found.upper, strict=True)]
        assert Fraction(found.gap) >= max(gaps)
        assert found.gap <= float(max(gaps)) * (1.0 + 1e-14)


def test_residuals_cover_the_rounding_of_backups() -> None:
    """V that is its own backup up to rounding, so that residuals are nothing else."""
    missed = 0
    for seed in range(40):
        mdp, gamma = random_mdp(5, 1, seed=seed), 0.9
        P = [[Fraction(p) for p in line] for line in dense(mdp)[:, 0].tolist()]
        values = np.array(
            [float(v) for v in policy_values_exact(mdp, [[1.0]] * 5, gamma)], np.float64
        )
        backup = mdp.rewards[:, 0] + gamma * (mdp.kernel() @ values)
        low, high, _ = _residual_bounds(mdp, values, backup, mdp.max_support)
        for s in range(5):
            ahead = sum(p * Fraction(v) for p, v in zip(P[s], values.tolist(), strict=True))
            exact = Fraction(float(mdp.rewards[s, 0])) + Fraction(gamma) * ahead / sum(P[s])
            exact -= Fraction(float(values[s]))
            assert Fraction(low) <= exact <= Fraction(high)
            missed += not (backup - values).min() <= exact <= (backup - values).max()
    assert missed > 20  # plain floats would not do


# -- options and refusals ----------------------------------------------------------------------


def test_tolerance_and_progress() -> None:
    mdp = sparse_mdp(30, 2, seed=2)
    seen: list[Progress] = []
    loose = value_iteration(mdp, 0.9, tol=5.0)
    tight = value_iteration(mdp, 0.9, tol=1e-10, callback=seen.append)
    assert loose.is_converged
    assert loose.tol == 5.0
    assert tight.is_converged
    assert tight.gap <= 1e-10
    assert loose.sweeps < tight.sweeps
    assert [progress.done for progress in seen] == list(range(1, tight.sweeps + 1))
    assert (loose.lower <= tight.upper).all()
    assert (tight.lower <= loose.upper).all()


def test_an_impossible_tolerance_is_admitted() -> None:
    values = value_iteration(sparse_mdp(10, 2, seed=2), 0.9, tol=1e-300, max_sweeps=2000)
    assert not values.is_converged
    assert values.gap < 1e-10
    assert values.sweeps < 2000  # rounding stops it, not the limit


def test_rounding_ends_the_sweeps_of_larger_models() -> None:
    # Here the factorisation leaves residuals above those of a single backup.
    values = value_iteration(sparse_mdp(1000, 2, support=3, seed=1), 0.999999, max_sweeps=40)
    assert values.gap <= 1e-8 * 1e6
    assert values.sweeps < 40


def test_the_result_prints_itself_and_is_frozen() -> None:
    values = value_iteration(wheel(0.5).mdp, 0.5)
    assert "3 states, gamma=0.5" in repr(values)
    with pytest.raises(AttributeError):
        values.gap = 0.0  # type: ignore[misc]


@pytest.mark.parametrize(
    "gamma", [1.0, 2.0, -0.5, math.nan, math.inf, "x", "0.5", True, False, None]
)
def test_invalid_discounts_are_refused(gamma: Any) -> None:
    mdp = two_loops(0.5).mdp
    with pytest.raises(InvalidArgumentError, match="gamma must"):
        value_iteration(mdp, gamma)
    with pytest.raises(InvalidArgumentError, match="gamma must"):
        evaluate_policy(mdp, gamma, [0, 0])


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ([0], r"policy must be actions of shape \(3,\) .* of shape \(1,\)"),
        ([0.0, 1.0, 0.0], r"policy .* got float64 of shape \(3,\)"),
        ([0, 2, 0], r"policy must hold actions in \[0, 2\), got 2 at state 1"),
        ([0, 0, -1], r"got -1 at state 2"),
        ([[1.0, 0.0], [0.5, 0.4], [1.0, 0.0]], r"sum to 1, got \[0\.5, 0\.4\] at state 1"),
        ([[1.5, -0.5], [1.0, 0.0], [1.0, 0.0]], r"got \[1\.5, -0\.5\] at state 0"),
        ([[1.0, 0.0], [1.0, 0.0], [math.nan, 1.0]], r"got \[nan, 1\.0\] at state 2"),
        ([[1.0], [1.0], [1.0]], r"probabilities of shape \(3, 2\), .*\(3, 1\)"),
        ([["a", "b"]] * 3, "policy must be"),
    ],
)
def test_bad_policies_are_refused(policy: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        evaluate_policy(sparse_mdp(3, 2, support=2, seed=0), 0.5, policy)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tol": 0.0}, r"tol must be above 0, got 0\.0"),
        ({"tol": -1.0}, r"tol must be above 0, got -1\.0"),
        ({"max_sweeps": 0}, "max_sweeps must be at least 1, got 0"),
        ({"max_sweeps": 2.5}, r"max_sweeps must be a whole number, got 2\.5"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        value_iteration(two_loops(0.5).mdp, 0.5, **options)


def test_the_order_of_subjects_is_told() -> None:
    mdp = random_mdp(4, seed=0)
    with pytest.raises(InvalidArgumentError, match="model, certificate or clusters, gamma, policy"):
        evaluate_policy(mdp, [0, 0, 0, 0], 0.9)  # type: ignore[arg-type]
