"""Models from one matrix per action, dense and sparse, with rewards of every shape."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import TabularMDP
from bisim_abstract.errors import InvalidMDPError

FORMATS = ["csr", "csc", "coo", "lil", "dok", "dia", "bsr"]


def world(n: int = 4, a: int = 3, seed: int = 0) -> tuple[Any, Any]:
    """(a, n, n) probabilities in eighths, some of them 0, and rewards that depend on all."""
    rng = np.random.default_rng(seed)
    rows = rng.multinomial(8, np.full(n, 1.0 / n), size=(a, n)) / 8.0
    return rows, rng.integers(-4, 5, size=(a, n, n)).astype(float)


def expected(P: Any, R: Any) -> Any:
    """(n, a) expected rewards by exact arithmetic, rounded once."""
    a, n, _ = P.shape
    out = np.zeros((n, a))
    for s in range(n):
        for k in range(a):
            row = [Fraction(float(p)) for p in P[k, s]]
            paid = [
                Fraction(float(r)) if p else Fraction(0) for p, r in zip(row, R[k, s], strict=False)
            ]
            out[s, k] = float(sum(p * r for p, r in zip(row, paid, strict=False)) / sum(row))
    return out


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 10**6))
def test_dense_rewards_of_next_states(n: int, a: int, seed: int) -> None:
    P, R = world(n, a, seed)
    R[P == 0.0] = np.nan  # what cannot happen pays nothing that matters
    by_action = TabularMDP.from_dense(P, R, order="ass")
    assert np.array_equal(by_action.rewards, expected(P, R))  # eighths: no rounding anywhere
    by_state = TabularMDP.from_dense(P.transpose(1, 0, 2), R.transpose(1, 0, 2), order="sas")
    assert by_state == by_action
    assert TabularMDP.from_matrices(list(P), list(R)) == by_action
    if n != a:  # either shape is then read as what it is
        assert TabularMDP.from_dense(P, R.transpose(1, 0, 2)) == by_action


def test_rows_that_miss_one_are_divided_by_their_sum() -> None:
    third = np.full((1, 3, 3), 1.0 / 3.0)
    third[0, 0] = [0.1, 0.2, 0.7000000001]
    R = np.arange(9.0).reshape(1, 3, 3)
    mdp = TabularMDP.from_dense(third, R)
    assert np.allclose(mdp.rewards, expected(third, R), rtol=1e-15, atol=0.0)
    total = 0.1 + 0.2 + 0.7000000001
    assert mdp.rewards[0, 0] == pytest.approx((0.2 + 2 * 0.7000000001) / total, rel=1e-15)
    assert mdp.rewards[0, 0] != 0.2 + 2 * 0.7000000001


def test_equal_rewards_are_not_rounded() -> None:
    P = np.array([[[0.1, 0.2, 0.7]] * 3])
    assert (TabularMDP.from_dense(P, np.full((1, 3, 3), 0.1)).rewards == 0.1).all()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("is_matrix", [False, True])
def test_sparse_matrices(kind: str, is_matrix: bool) -> None:
    P, R = world()
    make = getattr(sp, f"{kind}_{'matrix' if is_matrix else 'array'}")
    truth = TabularMDP.from_dense(P, R)
    sparse, paid = [make(x) for x in P], [make(x) for x in R]
    objects = np.empty(3, object)
    objects[:] = sparse
    for transitions in (sparse, tuple(sparse), objects, [sparse[0], P[1], sparse[2].tocsr()]):
        assert TabularMDP.from_matrices(transitions, paid) == truth
        assert TabularMDP.from_matrices(transitions, R) == truth


def test_rewards_of_every_shape() -> None:
    P, _ = world()
    sparse = [sp.csr_array(x) for x in P]
    table = np.arange(12.0).reshape(4, 3)
    truth = TabularMDP.from_dense(P, table)
    by_action = [table[:, k] for k in range(3)]
    one_way: list[Any] = [
        table,
        table.tolist(),
        sp.csr_array(table),
        by_action,
        tuple(by_action),
        [list(vector) for vector in by_action],
        [by_action[0][:, None], by_action[1][None], sp.csr_matrix(by_action[2])],
        [by_action[0], np.repeat(by_action[1][:, None], 4, axis=1), by_action[2]],
    ]
    for rewards in one_way:
        assert TabularMDP.from_matrices(sparse, rewards) == truth
    vector = [1.0, 2.0, 3.0, 4.0]
    assert TabularMDP.from_matrices(P, vector) == TabularMDP.from_dense(P, vector)


def test_entries_that_are_stored_twice_add_up() -> None:
    twice = sp.coo_array(([0.25, 0.75, 1.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    paid = sp.coo_array(([1.0, 2.0], ([0, 0], [1, 1])), shape=(2, 2))
    mdp = TabularMDP.from_matrices([twice], [paid])
    assert mdp.rewards.tolist() == [[3.0], [0.0]]
    hidden = sp.coo_array(([1.5, -0.5, 1.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    with pytest.raises(InvalidMDPError, match=r"non-negative, got -0.5 at state 0, action 0"):
        TabularMDP.from_matrices([hidden], [0.0, 0.0])


def test_sparse_matrices_stay_sparse() -> None:
    n = 20_000  # 3.2 GB if it were dense
    stay = sp.identity(n, format="csr")
    move = sp.csr_matrix((np.ones(n), (np.arange(n), (np.arange(n) + 1) % n)), shape=(n, n))
    tracemalloc.start()
    mdp = TabularMDP.from_matrices([stay, move], [stay, move])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (mdp.rewards == 1.0).all()
    assert mdp.is_deterministic
    assert peak < 40e6


def test_actions_that_states_lack() -> None:
    P, R = world()
    available = np.ones((4, 3), bool)
    available[1, 0] = False
    truth = TabularMDP.from_dense(P, R).with_available(available)
    P[0, 1], R[0, 1] = 0.0, np.nan
    assert TabularMDP.from_dense(P, R, available=available) == truth
    sparse = [sp.csr_array(x) for x in P]
    assert TabularMDP.from_matrices(sparse, list(R), available=available) == truth


def test_options_are_passed_on() -> None:
    P, R = world()
    mdp = TabularMDP.from_matrices(P, R, start=[0.0, 1.0, 0.0, 0.0], metadata={"x": 1})
    assert mdp.start[1] == 1.0
    assert mdp.metadata["x"] == 1


EYE = np.eye(2)


@pytest.mark.parametrize(
    ("transitions", "rewards", "message"),
    [
        (sp.csr_array(EYE), [0.0, 0.0], r"pass \[matrix\]"),
        ([], [0.0], "got none"),
        (3, [0.0], "one matrix per action, got int"),
        ([EYE, np.eye(3)], [0.0, 0.0], r"transitions\[1\] must have shape .* = \(2, 2\), got \(3"),
        ([np.zeros((2, 3))], [0.0], r"transitions\[0\] must have shape .*, got \(2, 3\)"),
        ([np.zeros((0, 0))], [], r"transitions\[0\] must have shape"),
        (np.ones((3, 2, 3)) / 3.0, [0.0] * 3, r"transitions\[0\] must have shape"),
        ([[[0.5, 0.5], [1.0]]], [0.0, 0.0], r"transitions\[0\] must have shape"),
        ([EYE * 1j], [0.0, 0.0], r"transitions\[0\] must hold real numbers"),
        ([EYE], [[0.0, 0.0, 0.0]], "rewards must have shape"),
        ([EYE], np.zeros((1, 2)), "rewards must have shape"),
        ([EYE, EYE], [[1.0, 2.0], [3.0, 4.0]], "can be read in two ways"),
        ([EYE, EYE], [np.zeros(2)], "one entry for each of 2 actions, got 1"),
        ([EYE], [np.zeros(3)], r"rewards\[0\] must have shape .*, got \(3,\)"),
        ([EYE], [np.full((2, 2), np.nan)], "got nan at state 0, action 0, next state 0"),
        ([EYE], [sp.csr_array(np.full((2, 2), np.inf))], "got inf at state 0, action 0, next st"),
        ([EYE * 0.5], [0.0, 0.0], "must sum to 1"),
        ([EYE * 0.0], [0.0, 0.0], "every row needs a successor"),
    ],
)
def test_what_is_wrong_is_named(transitions: Any, rewards: Any, message: str) -> None:
    with pytest.raises(InvalidMDPError, match=message):
        TabularMDP.from_matrices(transitions, rewards)


def test_dense_arrays_are_not_sparse_ones() -> None:
    with pytest.raises(InvalidMDPError, match=r"TabularMDP\.from_matrices takes sparse"):
        TabularMDP.from_dense([sp.csr_array(EYE)], [0.0, 0.0])  # type: ignore[arg-type]
    with pytest.raises(InvalidMDPError, match="probabilities must be finite, got nan"):
        TabularMDP.from_dense([EYE * np.nan], np.zeros((1, 2, 2)))
