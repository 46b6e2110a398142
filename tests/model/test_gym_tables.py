"""Models read from tables of Gymnasium, against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from bisim_abstract import InvalidArgumentError, TabularMDP
from bisim_abstract.errors import InvalidMDPError
from tests.support.models import ENV_NAMES, Outcome, Table, dense_of, env_mdp, env_table

# -- Gymnasium tables ----------------------------------------------------------------------------


def exact_row(
    outcomes: list[Outcome], absorbing: int | None
) -> tuple[dict[int, Fraction], Fraction]:
    """Mass by successor and mean reward in exact arithmetic."""
    mass: dict[int, Fraction] = {}
    total = paid = Fraction(0)
    for prob, successor, reward, done in outcomes:
        target = absorbing if done and absorbing is not None else int(successor)
        weight = Fraction(float(prob))
        total += weight
        paid += weight * Fraction(float(reward))
        if weight:
            mass[target] = mass.get(target, Fraction(0)) + weight
    return mass, paid / total


@pytest.mark.parametrize("terminal", ["absorb", "table"])
@pytest.mark.parametrize("name", ENV_NAMES)
def test_tables_against_exact_arithmetic(name: str, terminal: str) -> None:
    table, start = env_table(name)
    mdp = env_mdp(name, terminal)
    n = len(table)
    absorbing = n if terminal == "absorb" else None
    assert mdp.n_states == n + (absorbing is not None)
    assert mdp.terminal_state == absorbing
    np.testing.assert_array_equal(mdp.start[:n], start)
    np.testing.assert_array_equal(mdp.state_ids[:n], np.arange(n))
    for state, actions in table.items():
        assert mdp.n_actions == len(actions)
        for action, outcomes in actions.items():
            mass, reward = exact_row(outcomes, absorbing)
            successors, probs = mdp.successors(state, action)
            assert successors.tolist() == sorted(mass)
            for successor, prob in zip(successors.tolist(), probs.tolist(), strict=True):
                assert prob == float(mass[successor])
            assert mdp.rewards[state, action] == pytest.approx(float(reward), rel=1e-15)
    if absorbing is not None:
        assert mdp.start[absorbing] == 0.0
        assert mdp.state_ids[absorbing] == -1
        assert mdp.absorbing[absorbing]


@pytest.mark.parametrize(
    ("name", "live"), [("taxi", 400), ("lake4", 11), ("lake8", 53), ("cliff", 37)]
)
def test_known_numbers_of_live_states(name: str, live: int) -> None:
    mdp = env_mdp(name)
    reached = mdp.reachable()
    assert mdp.terminal_state in reached
    assert int((~mdp.absorbing[reached]).sum()) == live


@pytest.mark.parametrize(
    ("name", "value"),
    [("taxi", 6.33), ("lake4", 0.542), ("cliff", -12.25), ("slippery", -46.35)],
)
def test_known_optimal_values(name: str, value: float) -> None:
    """Plain value iteration at 0.99 on the table's own start distribution."""
    mdp = env_mdp(name)
    kernel, values = mdp.kernel(), np.zeros(mdp.n_states)
    for _ in range(2500):
        q = mdp.rewards + 0.99 * (kernel @ values).reshape(mdp.rewards.shape)
        values = q.max(axis=1)
    assert float(mdp.start @ values) == pytest.approx(value, abs=0.006)


def test_slippery_cliff_has_the_duplicates_it_is_tested_for() -> None:
    """Same next state, different rewards: the mean must weigh both, and the row count once."""
    table, _ = env_table("slippery")
    found = 0
    mdp = env_mdp("slippery")
    for state, actions in table.items():
        for action, outcomes in actions.items():
            by_target: dict[int, set[float]] = {}
            for _, successor, reward, done in outcomes:
                if not done:
                    by_target.setdefault(int(successor), set()).add(float(reward))
            if any(len(rewards) > 1 for rewards in by_target.values()):
                found += 1
                mean = sum(prob * reward for prob, _, reward, _ in outcomes)
                assert mdp.rewards[state, action] == pytest.approx(mean, rel=1e-14)
                assert -100.0 < mdp.rewards[state, action] < -1.0
    assert found > 0


def test_duplicate_outcomes_are_not_counted_twice() -> None:
    table: Table = {
        0: {0: [(0.25, 0, 4.0, False), (0.25, 0, 4.0, False), (0.5, 0, 4.0, False)]},
        1: {0: [(0.25, 0, 8.0, False), (0.25, 0, 0.0, False), (0.5, 1, 2.0, False)]},
    }
    mdp = TabularMDP.from_table(table, terminal="table")
    np.testing.assert_array_equal(mdp.rewards, [[4.0], [3.0]])
    np.testing.assert_array_equal(dense_of(mdp)[:, 0], [[1.0, 0.0], [0.5, 0.5]])
    assert mdp.nnz == 3


@pytest.mark.parametrize("reward", [0.1, 0.3, 0.7, -1.1, 1e-300, 123.456])
def test_equal_rewards_are_kept_as_they_are(reward: float) -> None:
    """Rows need not add up to one: an average would move the reward by a rounding error."""
    for missing in (0.0, 1e-10, 3e-10, 7e-10):
        row: list[Outcome] = [(1.0 / 7.0, 0, reward, False)] * 6
        row.append((1.0 / 7.0 - missing, 0, reward, False))
        assert TabularMDP.from_table({0: {0: row}}).rewards[0, 0] == reward


def test_rewards_of_a_row_that_misses_one() -> None:
    """The mean is over the row divided by its sum, as the kernel is."""
    row: list[Outcome] = [(0.5, 0, 1.0, False), (0.5 - 8e-10, 0, 3.0, False)]
    mean = exact_row(row, None)[1]
    found = TabularMDP.from_table({0: {0: row}}).rewards[0, 0]
    assert float(found) == pytest.approx(float(mean), rel=1e-15)


def test_done_redirects_the_outcome_and_not_the_state() -> None:
    table: Table = {
        0: {0: [(0.5, 1, 1.0, True), (0.5, 1, 3.0, False)]},
        1: {0: [(1.0, 0, 7.0, False)]},  # a live row, though an outcome ended here
    }
    mdp = TabularMDP.from_table(table)
    assert mdp.terminal_state == 2
    np.testing.assert_array_equal(
        dense_of(mdp)[:, 0], [[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    )
    np.testing.assert_array_equal(mdp.rewards, [[2.0], [7.0], [0.0]])
    np.testing.assert_array_equal(mdp.absorbing, [False, False, True])


def test_terminal_table_ignores_the_mark() -> None:
    table: Table = {0: {0: [(1.0, 1, 1.0, True)]}, 1: {0: [(1.0, 0, 7.0, False)]}}
    mdp = TabularMDP.from_table(table, terminal="table")
    assert mdp.terminal_state is None
    np.testing.assert_array_equal(dense_of(mdp)[:, 0], [[0.0, 1.0], [1.0, 0.0]])
    np.testing.assert_array_equal(mdp.start, [0.5, 0.5])


def test_default_start_of_a_table_leaves_the_added_state_out() -> None:
    table: Table = {0: {0: [(1.0, 1, 1.0, True)]}, 1: {0: [(1.0, 0, 7.0, False)]}}
    np.testing.assert_array_equal(TabularMDP.from_table(table).start, [0.5, 0.5, 0.0])


@pytest.mark.parametrize("terminal", ["absorb", "table"])
def test_no_state_is_added_where_nothing_ends(terminal: str) -> None:
    impossible = (0.0, 0, 1.0, True)
    table: Table = {0: {0: [(1.0, 1, 1.0, False), impossible]}, 1: {0: [(1.0, 0, 7.0, False)]}}
    mdp = TabularMDP.from_table(table, start=[0.25, 0.75], terminal=terminal)
    assert mdp.terminal_state is None
    assert mdp.n_states == 2
    np.testing.assert_array_equal(mdp.start, [0.25, 0.75])
    np.testing.assert_array_equal(mdp.rewards, [[1.0], [7.0]])


def test_tables_may_be_lists_and_have_impossible_outcomes() -> None:
    table = [[[(0.0, 1, 9.0, False), (1.0, 0, 2.0, False)]], [[(1.0, 1, 0.0, False)]]]
    mdp = TabularMDP.from_table(table, terminal="table", metadata={"env": "list"})
    np.testing.assert_array_equal(mdp.indices, [0, 1])
    assert mdp.rewards[0, 0] == 2.0
    assert mdp.metadata["env"] == "list"


@pytest.mark.parametrize("terminal", ["absorb", "table"])
def test_start_of_a_table(terminal: str) -> None:
    table: Table = {0: {0: [(1.0, 1, 1.0, True)]}, 1: {0: [(1.0, 0, 7.0, False)]}}
    mdp = TabularMDP.from_table(table, start=[0.25, 0.75], terminal=terminal)
    np.testing.assert_array_equal(mdp.start[:2], [0.25, 0.75])
    for start in ([1.0], [0.5, 0.25, 0.25], [0.5, 0.75], [[0.5], [0.5]], ["x", "y"]):
        with pytest.raises(InvalidMDPError, match="start"):
            TabularMDP.from_table(table, start=start, terminal=terminal)


BAD_OUTCOMES: list[tuple[str, Any, list[str]]] = [
    ("negative", [(1.5, 0, 0, False), (-0.5, 1, 0, False)], ["-0.5", "next state 1"]),
    ("nan", [(float("nan"), 0, 0, False)], ["probabilit", "nan"]),
    ("sum", [(0.5, 0, 0, False), (0.25, 1, 0, False)], ["sum to 1", "0.75"]),
    ("overflow", [(1.7e308, 0, 0, False), (1.7e308, 0, 0, False)], []),
    ("too large", [(1.0, 2, 0, False)], ["[0, 2)", "got 2"]),
    ("impossible and too large", [(1.0, 0, 0, False), (0.0, 9, 0, False)], ["got 9"]),
    ("negative next", [(1.0, -1, 0, True)], ["[0, 2)", "got -1"]),
    ("fractional next", [(1.0, 0.9, 0, False)], ["0.9"]),
    ("infinite next", [(1.0, float("inf"), 0, False)], ["inf"]),
    ("reward nan", [(1.0, 0, float("nan"), False)], ["rewards", "nan"]),
    ("reward inf", [(1.0, 0, float("inf"), False)], ["rewards", "inf"]),
    ("no outcome", [], ["positive probability"]),
    ("impossible only", [(0.0, 0, 1.0, False)], ["positive probability"]),
    ("three fields", [(1.0, 0, 0.0)], ["(probability, next state, reward, done)"]),
    ("text", [("p", 0, 0.0, False)], ["outcomes must be"]),
    ("not a list", None, []),
]


@pytest.mark.parametrize(
    ("outcomes", "words"), [case[1:] for case in BAD_OUTCOMES], ids=[c[0] for c in BAD_OUTCOMES]
)
def test_bad_outcomes_are_refused_by_name(outcomes: Any, words: list[str]) -> None:
    good = [(1.0, 0, 0.0, False)]
    table = {0: {0: good, 1: good}, 1: {0: good, 1: outcomes}}
    with pytest.raises(InvalidMDPError, match="state 1, action 1") as caught:
        TabularMDP.from_table(table)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, ["no states"]),
        ([], ["no states"]),
        ({0: {}}, ["action"]),
        ({0: None}, ["state 0"]),
        ({1: {0: [(1.0, 0, 0.0, False)]}}, ["state 0", "numbered from 0"]),
        ({0: {1: [(1.0, 0, 0.0, False)]}}, ["state 0, action 0", "numbered from 0"]),
        (
            {0: {0: [(1.0, 0, 0.0, False)]}, 1: {0: [(1.0, 0, 0.0, False)], 1: []}},
            ["same actions", "state 0 has 1", "state 1 has 2"],
        ),
    ],
    ids=[
        "dict",
        "list",
        "no action",
        "no actions at all",
        "numbering",
        "action numbering",
        "unequal",
    ],
)
def test_bad_tables(table: Any, words: list[str]) -> None:
    with pytest.raises(InvalidMDPError) as caught:
        TabularMDP.from_table(table)
    for word in words:
        assert word in str(caught.value)


def test_unknown_terminal_rule() -> None:
    table: Table = {0: {0: [(1.0, 0, 0.0, False)]}}
    with pytest.raises(InvalidArgumentError, match="'absorb', 'table', got 'loop'"):
        TabularMDP.from_table(table, terminal="loop")
