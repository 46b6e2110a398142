"""`TabularMDP`: what it accepts, what it refuses and says, and what derives from it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import InvalidArgumentError, TabularMDP
from bisim_abstract._model.mdp import check_mdp
from bisim_abstract.errors import InvalidMDPError
from tests.support.models import dense_of, estimate_of, loops, parts

# -- construction from rows and dense arrays ------------------------------------------------


def test_plain_constructor_keeps_what_it_is_given() -> None:
    mdp = TabularMDP(**parts())
    assert (mdp.n_states, mdp.n_actions, mdp.nnz, mdp.max_support) == (2, 2, 6, 2)
    assert not mdp.is_deterministic
    assert mdp.terminal_state is None
    assert mdp.estimate is None
    expected = [[[0.5, 0.5], [0.0, 1.0]], [[1.0, 0.0], [0.75, 0.25]]]
    np.testing.assert_array_equal(dense_of(mdp), expected)
    np.testing.assert_array_equal(mdp.rewards, [[0.0, 1.0], [2.0, -3.0]])
    np.testing.assert_array_equal(mdp.start, [0.25, 0.75])
    np.testing.assert_array_equal(mdp.state_ids, [7, 3])


def test_lists_and_other_number_types_are_accepted() -> None:
    reference = TabularMDP(**parts())
    as_lists = {name: value.tolist() for name, value in parts().items()}
    assert TabularMDP(**as_lists) == reference
    narrow = parts(
        indptr=np.array([0, 2, 3, 4, 6], np.int32),
        indices=np.array([0, 1, 1, 0, 0, 1], np.uint8),
        probs=np.array([0.5, 0.5, 1.0, 1.0, 0.75, 0.25], np.float32),
        rewards=np.array([[0, 1], [2, -3]], np.int16),
        start=np.array([0.25, 0.75], ">f8"),
    )
    mdp = TabularMDP(**narrow)
    assert mdp == reference
    assert mdp.indices.dtype == mdp.indptr.dtype == mdp.state_ids.dtype == np.int64
    assert mdp.probs.dtype == mdp.rewards.dtype == mdp.start.dtype == np.float64
    assert mdp.start.dtype.isnative


def test_fortran_order_and_strided_inputs() -> None:
    rewards = np.asfortranarray(parts()["rewards"])
    probs = np.repeat(parts()["probs"], 2)[::2]
    mdp = TabularMDP(**parts(rewards=rewards, probs=probs))
    assert mdp == TabularMDP(**parts())
    assert mdp.rewards.flags.c_contiguous
    assert mdp.probs.flags.c_contiguous


def test_defaults() -> None:
    plain = loops(4)
    np.testing.assert_array_equal(plain.start, np.full(4, 0.25))
    np.testing.assert_array_equal(plain.state_ids, np.arange(4))
    ended = loops(4, terminal_state=1)
    np.testing.assert_allclose(ended.start, [1 / 3, 0.0, 1 / 3, 1 / 3], rtol=1e-15)
    np.testing.assert_array_equal(ended.state_ids, [0, -1, 2, 3])
    alone = loops(1, terminal_state=0)
    np.testing.assert_array_equal(alone.start, [1.0])


def test_from_rows_sorts_merges_and_drops_zeros() -> None:
    mdp = TabularMDP.from_rows(
        [0, 4, 7],
        [1, 0, 1, 0, 0, 1, 1],
        [0.25, 0.5, 0.25, 0.0, 0.0, 0.5, 0.5],
        [[1.0], [2.0]],
    )
    np.testing.assert_array_equal(mdp.indptr, [0, 2, 3])
    np.testing.assert_array_equal(mdp.indices, [0, 1, 1])
    np.testing.assert_array_equal(mdp.probs, [0.5, 0.5, 1.0])
    # Merging transitions is no reason to count a reward twice.
    np.testing.assert_array_equal(mdp.rewards, [[1.0], [2.0]])


def test_from_dense_with_state_rewards() -> None:
    P = np.array([[[0.0, 1.0], [1.0, 0.0]], [[0.5, 0.5], [0.0, 1.0]]])
    mdp = TabularMDP.from_dense(P, [3.0, 4.0], order="sas")
    np.testing.assert_array_equal(mdp.rewards, [[3.0, 3.0], [4.0, 4.0]])
    np.testing.assert_array_equal(dense_of(mdp), P)
    assert mdp.nnz == 5


def test_what_can_be_read_in_two_ways_is_refused() -> None:
    """Rows sum to one along the last axis either way: nothing but the caller can tell."""
    P = np.array([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]])
    R = [[1.0, 0.0], [0.0, 2.0]]
    for table in (P, P.tolist()):
        with pytest.raises(InvalidMDPError, match=r"order='sas'.*'ass'"):
            TabularMDP.from_dense(table, R)
    one, other = (TabularMDP.from_dense(P, R, order=order) for order in ("sas", "ass"))
    assert one.successors(0, 1)[0].tolist() == [1]
    assert other.successors(0, 1)[0].tolist() == [0]
    with pytest.raises(InvalidArgumentError, match="order must be one of 'sas', 'ass'"):
        TabularMDP.from_dense(P, R, order="asa")
    for order, shape in (("sas", (2, 3, 3)), ("ass", (3, 2, 3)), (None, (2, 3, 4))):
        with pytest.raises(InvalidMDPError, match=r"shape \(n_"):
            TabularMDP.from_dense(np.zeros(shape), np.zeros((3, 2)), order=order)


def test_what_is_no_model_is_told_what_to_do() -> None:
    for wrong, remedy in (
        ("Taxi-v3", "extract_mdp"),
        (Path("model.npz"), "read_model"),
        (gymnasium.make("FrozenLake-v1"), "an environment becomes one by .*extract_mdp"),
        (0.9, "the model comes first, then the certificate or aggregation, gamma and policy"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"mdp must be a TabularMDP.*{remedy}"):
            check_mdp(wrong)
    with pytest.raises(InvalidArgumentError, match=r"got float; the order is f\(mdp, gamma\)"):
        check_mdp(0.9, call="f(mdp, gamma)")


def test_from_dense_passes_options_on() -> None:
    mdp = TabularMDP.from_dense(
        np.eye(3)[:, None, :],
        [1.0, 2.0, 0.0],
        start=[1.0, 0.0, 0.0],
        state_ids=[5, 6, 7],
        terminal_state=2,
        metadata={"note": "kept"},
    )
    assert mdp.terminal_state == 2
    assert mdp.metadata["note"] == "kept"
    np.testing.assert_array_equal(mdp.state_ids, [5, 6, 7])


@st.composite
def dense_models(
    draw: st.DrawFn,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    n, a = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    row = st.lists(st.integers(0, 9), min_size=n, max_size=n).filter(any)
    weights = np.array(draw(st.lists(row, min_size=n * a, max_size=n * a)), dtype=np.float64)
    P = (weights / weights.sum(axis=1, keepdims=True)).reshape(n, a, n)
    reward = st.floats(-1e6, 1e6)
    rewards = draw(st.lists(reward, min_size=n * a, max_size=n * a))
    return P, np.array(rewards).reshape(n, a)


@given(dense_models())
def test_law_dense_round_trip(model: tuple[npt.NDArray[Any], npt.NDArray[Any]]) -> None:
    P, R = model
    mdp = TabularMDP.from_dense(P, R, order="sas")
    np.testing.assert_array_equal(dense_of(mdp), P)
    np.testing.assert_array_equal(mdp.rewards, R)
    assert mdp.nnz == np.count_nonzero(P)
    assert TabularMDP.from_dense(dense_of(mdp), mdp.rewards, order="sas") == mdp


@given(dense_models())
def test_law_either_order_of_axes(model: tuple[npt.NDArray[Any], npt.NDArray[Any]]) -> None:
    P, R = model
    (n, a), swapped = R.shape, P.swapaxes(0, 1)
    mdp = TabularMDP.from_dense(P, R, order="sas")
    assert TabularMDP.from_dense(swapped, R, order="ass") == mdp
    assert TabularMDP.from_dense(swapped.tolist(), R, order="ass") == mdp
    if n != a or n == 1:
        assert TabularMDP.from_dense(P, R) == TabularMDP.from_dense(swapped, R) == mdp


@given(dense_models(), st.randoms(use_true_random=False))
def test_law_from_rows_ignores_order_and_splitting(
    model: tuple[npt.NDArray[Any], npt.NDArray[Any]], random: Any
) -> None:
    """Shuffled rows, halved entries and added zeros describe the same MDP, bit for bit."""
    P, R = model
    n = P.shape[0]
    indptr, entries = [0], []
    for row in P.reshape(-1, n):
        listed: list[tuple[int, float]] = []
        for successor, prob in enumerate(row):
            if prob > 0.0 and random.random() < 0.5:
                listed += [(successor, prob / 2.0), (successor, prob / 4.0), (successor, prob / 4)]
            else:
                listed.append((successor, float(prob)))
        random.shuffle(listed)
        entries += listed
        indptr.append(len(entries))
    indices, probs = zip(*entries, strict=True)
    dense = TabularMDP.from_dense(P, R, order="sas")
    assert TabularMDP.from_rows(indptr, indices, probs, R) == dense


@given(st.lists(st.floats(1e-9, 1.0), min_size=2, max_size=12), st.randoms(use_true_random=False))
def test_law_duplicates_add_up_in_any_order(weights: list[float], random: Any) -> None:
    """Sums that do round must still not depend on the order of what is summed."""
    total = math.fsum(weights)
    listed = [(index % 2, weight / total) for index, weight in enumerate(weights)]
    fingerprints = set()
    for _ in range(3):
        random.shuffle(listed)
        indices, probs = zip(*listed, strict=True)
        rows = [*indices, 1], [*probs, 1.0]
        indptr = [0, len(listed), len(listed) + 1]
        mdp = TabularMDP.from_rows(indptr, *rows, [[0.0], [1.0]])
        fingerprints.add(mdp.fingerprint)
    assert len(fingerprints) == 1
    even = math.fsum(prob for successor, prob in listed if successor == 0)
    assert mdp.successors(0, 0)[1][0] == pytest.approx(even, rel=1e-14)


# -- refusals ----------------------------------------------------------------------------------


BAD_PARTS: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        "row above one",
        {"probs": np.array([0.5, 0.5, 1.0, 1.0, 0.75, 0.5])},
        ["sum to 1", "1.25", "state 1, action 1"],
    ),
    (
        "row below one",
        {"probs": np.array([0.5, 0.25, 1.0, 1.0, 0.75, 0.25])},
        ["sum to 1", "0.75", "state 0, action 0"],
    ),
    (
        "two bad rows",
        {"probs": np.array([0.5, 0.25, 0.5, 1.0, 0.75, 0.25])},
        ["state 0, action 0", "1 more row"],
    ),
    (
        "negative",
        {"probs": np.array([0.5, 0.5, 1.0, 1.0, 1.25, -0.25])},
        ["non-negative", "-0.25", "state 1, action 1", "next state 1"],
    ),
    (
        "nan",
        {"probs": np.array([0.5, 0.5, 1.0, np.nan, 0.75, 0.25])},
        ["finite", "nan", "state 1, action 0"],
    ),
    (
        "inf",
        {"probs": np.array([0.5, 0.5, np.inf, 1.0, 0.75, 0.25])},
        ["finite", "inf", "state 0, action 1"],
    ),
    (
        "zero",
        {"probs": np.array([0.5, 0.5, 1.0, 1.0, 1.0, 0.0])},
        ["above 0", "state 1, action 1", "from_rows"],
    ),
    (
        "successor too large",
        {"indices": np.array([0, 1, 2, 0, 0, 1])},
        ["[0, 2)", "got 2", "state 0, action 1"],
    ),
    (
        "successor negative",
        {"indices": np.array([0, 1, 1, 0, -1, 1])},
        ["[0, 2)", "got -1", "state 1, action 1"],
    ),
    (
        "unsorted",
        {"indices": np.array([0, 1, 1, 0, 1, 0])},
        ["increase", "1 before 0", "state 1, action 1", "from_rows"],
    ),
    (
        "repeated",
        {"indices": np.array([1, 1, 1, 0, 0, 1])},
        ["increase", "1 before 1", "state 0, action 0", "from_rows"],
    ),
    (
        "empty row",
        {"indptr": np.array([0, 2, 3, 3, 6])},
        ["state 1, action 0", "none"],
    ),
    (
        "empty first row",
        {"indptr": np.array([0, 0, 3, 4, 6])},
        ["state 0, action 0", "none"],
    ),
    (
        "empty last row",
        {"indptr": np.array([0, 2, 3, 6, 6])},
        ["state 1, action 1", "none"],
    ),
    ("indptr too short", {"indptr": np.array([0, 2, 6])}, ["indptr", "5", "(3,)"]),
    ("indptr not from 0", {"indptr": np.array([1, 2, 3, 4, 6])}, ["indptr", "from 0", "got 1"]),
    ("indptr not to the end", {"indptr": np.array([0, 2, 3, 4, 5])}, ["indptr", "6", "to 5"]),
    ("indptr falls", {"indptr": np.array([0, 3, 2, 4, 6])}, ["indptr"]),
    ("indptr wraps", {"indptr": np.array([0, 2**63 - 1, -2, 3, 6])}, ["indptr"]),
    ("indptr two-dimensional", {"indptr": np.array([[0, 2, 3, 4, 6]])}, ["indptr", "(1, 5)"]),
    ("indptr fractional", {"indptr": np.array([0.0, 2, 3, 4, 6])}, ["indptr", "float64"]),
    ("indices fractional", {"indices": np.array([0, 1, 1, 0, 0, 1.0])}, ["indices", "float64"]),
    ("indices boolean", {"indices": np.array([0, 1, 1, 0, 0, 1], bool)}, ["indices", "bool"]),
    ("lengths differ", {"probs": np.array([1.0])}, ["indices", "probs", "(6,)", "(1,)"]),
    (
        "two-dimensional",
        {"indices": np.zeros((2, 3), int), "probs": np.zeros((2, 3))},
        ["one-dimensional", "(2, 3)"],
    ),
    (
        "reward nan",
        {"rewards": np.array([[0.0, 1.0], [np.nan, 0.0]])},
        ["rewards", "finite", "nan", "state 1, action 0"],
    ),
    (
        "reward inf",
        {"rewards": np.array([[0.0, -np.inf], [0.0, 0.0]])},
        ["rewards", "-inf", "state 0, action 1"],
    ),
    ("rewards flat", {"rewards": np.zeros(4)}, ["rewards", "(4,)"]),
    ("rewards text", {"rewards": np.array([["a", "b"], ["c", "d"]])}, ["rewards", "numbers"]),
    ("rewards ragged", {"rewards": [[0.0, 1.0], [2.0]]}, ["rewards", "numbers"]),
    ("rewards objects", {"rewards": [[None, None], [None, None]]}, ["rewards"]),
    ("rewards complex", {"rewards": np.zeros((2, 2), complex)}, ["rewards"]),
    ("no states", {"rewards": np.zeros((0, 2))}, ["at least one state", "(0, 2)"]),
    ("no actions", {"rewards": np.zeros((2, 0))}, ["at least one", "action", "(2, 0)"]),
    ("start short", {"start": np.array([1.0])}, ["start", "2", "(1,)"]),
    ("start matrix", {"start": np.array([[0.5, 0.5]])}, ["start", "(1, 2)"]),
    ("start not one", {"start": np.array([0.5, 0.25])}, ["start", "sum to 1", "0.75"]),
    ("start negative", {"start": np.array([1.5, -0.5])}, ["start", "-0.5", "state 1"]),
    ("start nan", {"start": np.array([np.nan, 1.0])}, ["start", "nan", "state 0"]),
    ("start inf", {"start": np.array([0.0, np.inf])}, ["start", "inf", "state 1"]),
    ("ids repeated", {"state_ids": np.array([4, 4])}, ["state_ids", "distinct", "4"]),
    ("ids short", {"state_ids": np.array([4])}, ["state_ids", "(1,)"]),
    ("ids fractional", {"state_ids": np.array([0.0, 1.0])}, ["state_ids", "float64"]),
    ("ids too large", {"state_ids": np.array([0, 2**63], np.uint64)}, ["state_ids"]),
    ("terminal too large", {"terminal_state": 2}, ["terminal_state", "[0, 2)", "2"]),
    ("terminal negative", {"terminal_state": -1}, ["terminal_state", "-1"]),
    (
        "terminal leaves",
        {"terminal_state": 0},
        ["terminal_state 0", "action 0", "[0, 1]"],
    ),
    (
        "terminal pays",
        {
            "indices": np.array([0, 1, 1, 1, 1]),
            "probs": np.array([0.5, 0.5, 1.0, 1.0, 1.0]),
            "indptr": np.array([0, 2, 3, 4, 5]),
            "rewards": np.array([[0.0, 1.0], [0.0, 5.0]]),
            "terminal_state": 1,
        },
        ["terminal_state 1", "action 1", "5.0"],
    ),
]


@pytest.mark.parametrize(
    ("changes", "words"),
    [case[1:] for case in BAD_PARTS],
    ids=[case[0] for case in BAD_PARTS],
)
def test_bad_parts_are_refused_by_name(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidMDPError) as caught:
        TabularMDP(**parts(**changes))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("terminal_state", [0.5, "x", float("inf"), float("nan")])
def test_terminal_state_must_be_a_whole_number(terminal_state: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="terminal_state"):
        loops(2, terminal_state=terminal_state)


def test_row_sums_have_room_for_rounding_only() -> None:
    tenths = np.full((1, 1, 10), 0.1)
    P = np.repeat(tenths, 10, axis=0)
    assert TabularMDP.from_dense(P, np.zeros(10)).nnz == 100
    TabularMDP(**parts(probs=np.array([0.5, 0.5, 1.0, 1.0 + 1e-10, 0.75, 0.25])))
    with pytest.raises(InvalidMDPError, match="state 1, action 0"):
        TabularMDP(**parts(probs=np.array([0.5, 0.5, 1.0, 1.0 + 1e-8, 0.75, 0.25])))


def test_sums_that_overflow_are_refused() -> None:
    huge = np.array([1e308, 1.7e308, 1.0, 1.0, 0.75, 0.25])
    with pytest.raises(InvalidMDPError, match="state 0, action 0"):
        TabularMDP(**parts(probs=huge))
    rows = parts(probs=huge, indices=np.array([1, 1, 1, 0, 0, 1]))
    with pytest.raises(InvalidMDPError, match="state 0, action 0"):
        TabularMDP.from_rows(rows["indptr"], rows["indices"], rows["probs"], rows["rewards"])


def test_from_rows_refuses_before_merging() -> None:
    with pytest.raises(InvalidMDPError, match=r"-0\.5 at state 1, action 0, next state 0"):
        TabularMDP.from_rows([0, 1, 4], [0, 0, 0, 1], [1.0, 1.0, -0.5, 0.5], [[0.0], [0.0]])
    with pytest.raises(InvalidMDPError, match="got 5 at state 1, action 0"):
        TabularMDP.from_rows([0, 1, 3], [0, 5, 1], [1.0, 0.0, 1.0], [[0.0], [0.0]])
    with pytest.raises(InvalidMDPError, match="state 1, action 0 has none"):
        TabularMDP.from_rows([0, 1, 2], [0, 1], [1.0, 0.0], [[0.0], [0.0]])
    with pytest.raises(InvalidMDPError, match=r"1\.5 at state 0, action 0"):
        TabularMDP.from_rows([0, 2, 3], [1, 1, 0], [1.0, 0.5, 1.0], [[0.0], [0.0]])


NOT_NUMBERS = [[["x"], ["y"]], [[0.0], [0.0, 1.0]], [[1j], [0.0]]]


@pytest.mark.parametrize("rewards", NOT_NUMBERS, ids=["text", "ragged", "complex"])
def test_rewards_that_are_no_numbers(rewards: Any) -> None:
    with pytest.raises(InvalidMDPError, match="rewards"):
        TabularMDP.from_rows([0, 1, 2], [0, 1], [1.0, 1.0], rewards)
    with pytest.raises(InvalidMDPError, match="rewards"):
        TabularMDP.from_dense(np.eye(2)[:, None, :], rewards)


@pytest.mark.parametrize(
    "transitions",
    [[[["x"]]], [[[1.0], [0.0, 1.0]]], np.ones((1, 1, 1), complex)],
    ids=["text", "ragged", "complex"],
)
def test_transitions_that_are_no_numbers(transitions: Any) -> None:
    with pytest.raises(InvalidMDPError, match="transitions"):
        TabularMDP.from_dense(transitions, [[0.0]])


@pytest.mark.parametrize("shape", [(2, 2), (2, 1, 3), (2, 1, 2, 1), ()])
def test_dense_transitions_of_wrong_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidMDPError, match="transitions must have shape") as caught:
        TabularMDP.from_dense(np.zeros(shape), np.zeros((2, 1)))
    assert str(shape) in str(caught.value)


@pytest.mark.parametrize("shape", [(3,), (2, 2), (1, 2), (2, 1, 1), ()])
def test_dense_rewards_of_wrong_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidMDPError, match="rewards must have shape") as caught:
        TabularMDP.from_dense(np.eye(2)[:, None, :], np.zeros(shape))
    assert str(shape) in str(caught.value)


@pytest.mark.parametrize(("n", "a"), [(0, 1), (2, 0), (0, 0)])
def test_empty_mdps(n: int, a: int) -> None:
    with pytest.raises(InvalidMDPError):
        TabularMDP.from_dense(np.zeros((n, a, n)), np.zeros((n, a)))
    with pytest.raises(InvalidMDPError):
        TabularMDP.from_rows(np.zeros(n * a + 1, int), [], [], np.zeros((n, a)))


def test_dense_errors_name_state_action_and_value() -> None:
    P = np.zeros((2, 2, 2))
    P[:, :, 0] = 1.0
    for value, word in ((0.5, "1.5"), (-0.25, "-0.25"), (np.nan, "nan"), (np.inf, "inf")):
        bad = P.copy()
        bad[1, 0, 1] = value
        with pytest.raises(InvalidMDPError, match="state 1, action 0") as caught:
            TabularMDP.from_dense(bad, np.zeros(2), order="sas")
        assert word in str(caught.value)
    P[0, 1] = 0.0
    with pytest.raises(InvalidMDPError, match="state 0, action 1 has none"):
        TabularMDP.from_dense(P, np.zeros(2), order="sas")


@pytest.mark.parametrize(
    "metadata",
    [
        {"array": np.zeros(2)},
        {"number": np.float32(1.0)},
        {"nan": float("nan")},
        {"set": {1}},
        {(1, 2): "key"},
        None,
    ],
    ids=["array", "numpy number", "nan", "set", "tuple key", "none"],
)
def test_metadata_must_be_json(metadata: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="metadata must hold JSON values"):
        TabularMDP(**parts(), metadata=metadata)


def test_circular_metadata() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    with pytest.raises(InvalidArgumentError, match="metadata"):
        TabularMDP(**parts(), metadata=loop)


def test_estimate_of_another_shape() -> None:
    with pytest.raises(InvalidMDPError, match="estimate") as caught:
        TabularMDP(**parts(), estimate=estimate_of(loops(3)))
    assert "(2, 2)" in str(caught.value)
    assert "(3, 1)" in str(caught.value)
