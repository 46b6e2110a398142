"""What a model tells: successors, what can be reached, and parts of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from bisim_abstract import BisimError, InvalidArgumentError, TabularMDP
from bisim_abstract.parts import random_mdp, sparse_mdp
from tests.support.examples import seeds
from tests.support.models import ENV_NAMES, dense_of, env_mdp, estimate_of, loops, parts

# -- reading -------------------------------------------------------------------------------------


def reached_by_search(mdp: TabularMDP) -> list[int]:
    frontier = [state for state in range(mdp.n_states) if mdp.start[state] > 0.0]
    seen = set(frontier)
    while frontier:
        state = frontier.pop(0)
        for action in range(mdp.n_actions):
            for successor in mdp.successors(state, action)[0].tolist():
                if successor not in seen:
                    seen.add(successor)
                    frontier.append(successor)
    return sorted(seen)


@seeds(12)
def test_reachable_against_a_plain_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, n_actions = int(rng.integers(1, 60)), int(rng.integers(1, 3))
    support = int(rng.integers(1, min(n, 2) + 1))
    start = np.zeros(n)
    starts = rng.choice(n, size=int(rng.integers(1, min(n, 3) + 1)), replace=False)
    start[starts] = 1.0 / starts.size
    mdp = dataclasses.replace(sparse_mdp(n, n_actions, support=support, seed=rng), start=start)
    reached = mdp.reachable()
    assert reached.dtype == np.int64
    assert reached.tolist() == reached_by_search(mdp)


def test_the_searches_leave_something_out() -> None:
    """Were everything always reachable, the comparison above would show nothing."""
    sizes = []
    for seed in range(5):
        start = np.eye(50)[seed]
        mdp = dataclasses.replace(sparse_mdp(50, 1, support=1, seed=seed), start=start)
        assert mdp.reachable().tolist() == reached_by_search(mdp)
        sizes.append(mdp.reachable().size)
    assert max(sizes) < 50
    assert min(sizes) > 1


@pytest.mark.parametrize("n_actions", [1, 127, 128, 256, 512])
def test_many_actions_into_one_state(n_actions: int) -> None:
    mdp = TabularMDP(
        indptr=np.arange(3 * n_actions + 1),
        indices=np.repeat([1, 0, 2], n_actions),
        probs=np.ones(3 * n_actions),
        rewards=np.zeros((3, n_actions)),
        start=np.array([1.0, 0.0, 0.0]),
    )
    assert mdp.reachable().tolist() == [0, 1]


def test_absorbing_needs_every_action_certainty_and_no_pay() -> None:
    rows: list[list[tuple[dict[int, float], float]]] = [
        [({0: 1.0}, 0.0), ({0: 1.0}, -0.0)],  # absorbing
        [({1: 1.0}, 0.0), ({0: 1.0}, 0.0)],  # one action leaves
        [({2: 1.0}, 0.0), ({2: 1.0}, 1e-300)],  # one action pays
        [({3: 0.5, 0: 0.5}, 0.0), ({3: 1.0}, 0.0)],  # may leave
        [({0: 1.0}, 0.0), ({0: 1.0}, 0.0)],  # certain, but elsewhere
    ]
    P, R = np.zeros((5, 2, 5)), np.zeros((5, 2))
    for state, actions in enumerate(rows):
        for action, (row, reward) in enumerate(actions):
            R[state, action] = reward
            for successor, prob in row.items():
                P[state, action, successor] = prob
    mdp = TabularMDP.from_dense(P, R)
    np.testing.assert_array_equal(mdp.absorbing, [True, False, False, False, False])


@pytest.mark.parametrize(("state", "action"), [(2, 0), (0, 2), (-1, 0), (0, -1)])
def test_successors_out_of_range(state: int, action: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"got {state} and {action}"):
        TabularMDP(**parts()).successors(state, action)


def test_deterministic() -> None:
    assert loops(3).is_deterministic
    assert env_mdp("taxi").is_deterministic
    assert not env_mdp("lake4").is_deterministic
    assert env_mdp("lake4").max_support == 3


def test_single_entries_are_normalised_exactly() -> None:
    probs = np.array([1.0 - 1e-10, 1.0 + 1e-10, np.nextafter(1.0, 0.0), 1.0])
    mdp = TabularMDP(
        indptr=np.arange(5), indices=np.arange(4), probs=probs, rewards=np.zeros((4, 1))
    )
    np.testing.assert_array_equal(mdp.normalised_probs, np.ones(4))
    np.testing.assert_array_equal(mdp.probs, probs)


@pytest.mark.parametrize("seed", range(4))
def test_normalised_probs_against_exact_division(seed: int) -> None:
    rng = np.random.default_rng(seed)
    base = sparse_mdp(12, 2, support=7, seed=rng)
    wobble = 1.0 + 1e-10 * rng.uniform(-1.0, 1.0, base.nnz)
    mdp = dataclasses.replace(base, probs=base.probs * wobble)
    off = 0
    for row in range(mdp.indptr.size - 1):
        span = range(int(mdp.indptr[row]), int(mdp.indptr[row + 1]))
        total = sum(Fraction(float(mdp.probs[entry])) for entry in span)
        off += total != 1
        for entry in span:
            exact = Fraction(float(mdp.probs[entry])) / total
            error = abs(Fraction(float(mdp.normalised_probs[entry])) - exact)
            assert error <= 2 * exact * Fraction(2) ** -53
    assert off > 0


@pytest.mark.parametrize("name", ENV_NAMES)
def test_kernel_rows_sum_to_one(name: str) -> None:
    mdp = env_mdp(name)
    kernel = mdp.kernel()
    assert kernel.shape == (mdp.n_states * mdp.n_actions, mdp.n_states)
    np.testing.assert_allclose(kernel.sum(axis=1), 1.0, rtol=0.0, atol=4e-16)
    dense = dense_of(mdp).reshape(kernel.shape)
    np.testing.assert_allclose(kernel.toarray(), dense, rtol=1e-9)


def test_kernel_of_rows_that_miss_one() -> None:
    mdp = TabularMDP(**parts(probs=np.array([0.5, 0.5 + 5e-10, 1.0, 1.0 - 5e-10, 0.75, 0.25])))
    assert not np.array_equal(np.add.reduceat(mdp.probs, mdp.indptr[:-1]), np.ones(4))
    np.testing.assert_allclose(mdp.kernel().sum(axis=1), 1.0, rtol=0.0, atol=4e-16)


def test_repr() -> None:
    assert repr(TabularMDP(**parts())) == "TabularMDP(2 states, 2 actions, 6 transitions)"
    one = TabularMDP.from_dense([[[1.0]]], [[1.0]])
    assert repr(one) == "TabularMDP(1 state, 1 action, 1 transition)"
    wide = loops(1200, terminal_state=3, metadata={"env": "Loops-v0"})
    assert repr(wide) == (
        "TabularMDP(1,200 states, 1 action, 1,200 transitions, terminal state 3, from Loops-v0)"
    )
    guessed = dataclasses.replace(one, estimate=estimate_of(one))
    assert "estimated from samples" in repr(guessed)


# -- restricting ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENV_NAMES)
def test_restricting_to_what_is_reachable(name: str) -> None:
    mdp = env_mdp(name)
    keep = mdp.reachable()
    small = mdp.restrict(keep)
    assert small.n_states == keep.size
    np.testing.assert_array_equal(small.state_ids, mdp.state_ids[keep])
    np.testing.assert_array_equal(small.start, mdp.start[keep])
    np.testing.assert_array_equal(small.rewards, mdp.rewards[keep])
    assert small.terminal_state is not None
    assert keep[small.terminal_state] == mdp.terminal_state
    for place, state in enumerate(keep.tolist()):
        for action in range(mdp.n_actions):
            successors, probs = small.successors(place, action)
            expected, weights = mdp.successors(state, action)
            np.testing.assert_array_equal(keep[successors], expected)
            np.testing.assert_array_equal(probs, weights)
    assert small.reachable().size == small.n_states


def test_restricting_to_everything_changes_nothing() -> None:
    mdp = random_mdp(6, seed=3)
    assert mdp.restrict(np.arange(6)) == mdp
    assert mdp.restrict([5, 4, 3, 2, 1, 0, 0]) == mdp
    assert dict(mdp.restrict(range(6)).metadata) == dict(mdp.metadata)


def test_restricting_renormalises_the_start() -> None:
    mdp = loops(4, start=[0.25, 0.25, 0.5, 0.0], terminal_state=3)
    small = mdp.restrict([0, 2])
    np.testing.assert_allclose(small.start, [1 / 3, 2 / 3], rtol=1e-15)
    assert small.terminal_state is None
    np.testing.assert_array_equal(small.state_ids, [0, 2])
    with_end = mdp.restrict([3, 2])
    assert with_end.terminal_state == 1
    np.testing.assert_array_equal(with_end.start, [1.0, 0.0])


def test_restricting_to_an_open_set() -> None:
    P = np.zeros((4, 2, 4))
    P[:, 0] = np.eye(4)
    P[:, 1] = np.eye(4)
    P[2, 1] = [0.5, 0.0, 0.5, 0.0]
    mdp = TabularMDP.from_dense(P, np.zeros(4))
    with pytest.raises(InvalidArgumentError, match="not closed: state 2, action 1"):
        mdp.restrict([1, 2, 3])
    assert mdp.restrict([0, 2]).n_states == 2


def test_restricting_to_nothing_useful() -> None:
    mdp = loops(3, start=[1.0, 0.0, 0.0])
    with pytest.raises(InvalidArgumentError, match="start"):
        mdp.restrict([1, 2])
    bad: list[list[int]] = [[], [0, 3], [-1, 0]]
    for states in bad:
        with pytest.raises(InvalidArgumentError, match=r"\[0, 3\)"):
            mdp.restrict(states)


def test_a_mask_is_not_read_as_indices() -> None:
    mask = np.array([True, False, True])
    try:
        small = loops(3).restrict(mask)
    except BisimError:
        return
    np.testing.assert_array_equal(small.state_ids, [0, 2])


@pytest.mark.parametrize("states", [[0.7], ["x"]], ids=["fraction", "text"])
def test_states_must_be_whole_numbers(states: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="states"):
        loops(3).restrict(states)


def test_every_refusal_is_of_the_package() -> None:
    """One `except BisimError` catches whatever a constructor refuses."""
    calls: list[Callable[[], TabularMDP]] = [
        lambda: TabularMDP(**parts(probs=np.zeros(6))),
        lambda: TabularMDP.from_dense(np.zeros((1, 1, 1)), [[0.0]]),
        lambda: TabularMDP.from_rows([0, 1], [3], [1.0], [[0.0]]),
        lambda: TabularMDP.from_table({}),
        lambda: loops(2).restrict([9]),
        lambda: loops(2, metadata={"x": object()}),
    ]
    for call in calls:
        with pytest.raises(BisimError) as caught:
            call()
        assert isinstance(caught.value, ValueError)
