"""`TabularMDP`: what it accepts, what it refuses and says, and what derives from it."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisim_abstract import BisimError, InvalidArgumentError, TabularMDP
from bisim_abstract._base.arrays import kept
from bisim_abstract._model.mdp import check_mdp
from bisim_abstract.errors import InvalidMDPError
from bisim_abstract.parts import Estimate, random_mdp, sparse_mdp

Outcome = tuple[float, int, float, bool]
Table = Mapping[int, Mapping[int, list[Outcome]]]

LAW = settings(derandomize=True, deadline=None, max_examples=60)

TAXI = "Taxi-v3" if "Taxi-v3" in gymnasium.registry else "Taxi-v4"
ENVS: list[tuple[str, dict[str, Any]]] = [
    (TAXI, {}),
    ("FrozenLake-v1", {"map_name": "4x4"}),
    ("FrozenLake-v1", {"map_name": "8x8"}),
    ("CliffWalking-v1", {}),
    ("CliffWalkingSlippery-v1", {}),
]
ENV_NAMES = ["taxi", "lake4", "lake8", "cliff", "slippery"]
ENV_INDEX = {name: index for index, name in enumerate(ENV_NAMES)}


@cache
def env_table(name: str) -> tuple[Table, npt.NDArray[np.float64]]:
    env_id, options = ENVS[ENV_INDEX[name]]
    env = gymnasium.make(env_id, **options)
    table = env.get_wrapper_attr("P")
    start = np.array(env.get_wrapper_attr("initial_state_distrib"), dtype=np.float64)
    env.close()
    return table, start


@cache
def env_mdp(name: str, terminal: str = "absorb") -> TabularMDP:
    table, start = env_table(name)
    return TabularMDP.from_table(table, start=start, terminal=terminal)


def parts(**changes: Any) -> dict[str, Any]:
    """Two states, two actions; the row of state 1, action 1 is the last one."""
    model: dict[str, Any] = {
        "indptr": np.array([0, 2, 3, 4, 6]),
        "indices": np.array([0, 1, 1, 0, 0, 1]),
        "probs": np.array([0.5, 0.5, 1.0, 1.0, 0.75, 0.25]),
        "rewards": np.array([[0.0, 1.0], [2.0, -3.0]]),
        "start": np.array([0.25, 0.75]),
        "state_ids": np.array([7, 3]),
    }
    return model | changes


def loops(n: int, **options: Any) -> TabularMDP:
    """States that stay where they are and pay nothing."""
    return TabularMDP(
        indptr=np.arange(n + 1),
        indices=np.arange(n),
        probs=np.ones(n),
        rewards=np.zeros((n, 1)),
        **options,
    )


def estimate_of(mdp: TabularMDP, **changes: Any) -> Estimate:
    shape = mdp.rewards.shape
    fields: dict[str, Any] = {
        "counts": np.full(shape, 9),
        "reward_radius": np.full(shape, 0.5),
        "row_radius": np.full(shape, 0.25),
        "alpha": 0.1,
        "reward_range": (0.0, 1.0),
        "support_bound": 2,
    }
    return Estimate(**(fields | changes))


def dense_of(mdp: TabularMDP) -> npt.NDArray[np.float64]:
    """Stored probabilities, entry by entry, without the package's own kernel."""
    dense = np.zeros((mdp.n_states, mdp.n_actions, mdp.n_states))
    for state in range(mdp.n_states):
        for action in range(mdp.n_actions):
            for successor, prob in zip(*mdp.successors(state, action), strict=True):
                assert dense[state, action, successor] == 0.0
                dense[state, action, successor] = prob
    return dense


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


@LAW
@given(dense_models())
def test_law_dense_round_trip(model: tuple[npt.NDArray[Any], npt.NDArray[Any]]) -> None:
    P, R = model
    mdp = TabularMDP.from_dense(P, R, order="sas")
    np.testing.assert_array_equal(dense_of(mdp), P)
    np.testing.assert_array_equal(mdp.rewards, R)
    assert mdp.nnz == np.count_nonzero(P)
    assert TabularMDP.from_dense(dense_of(mdp), mdp.rewards, order="sas") == mdp


@LAW
@given(dense_models())
def test_law_either_order_of_axes(model: tuple[npt.NDArray[Any], npt.NDArray[Any]]) -> None:
    P, R = model
    (n, a), swapped = R.shape, P.swapaxes(0, 1)
    mdp = TabularMDP.from_dense(P, R, order="sas")
    assert TabularMDP.from_dense(swapped, R, order="ass") == mdp
    assert TabularMDP.from_dense(swapped.tolist(), R, order="ass") == mdp
    if n != a or n == 1:
        assert TabularMDP.from_dense(P, R) == TabularMDP.from_dense(swapped, R) == mdp


@LAW
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


@LAW
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


# -- immutability ------------------------------------------------------------------------------


PINNED = "2d17a9821391962c228c2949c07760e4a15b984fd88585beafe78731d83c47c9"
ARRAYS = ["indptr", "indices", "probs", "rewards", "start", "state_ids"]


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_read_only_and_not_the_callers(name: str) -> None:
    given_parts = parts()
    mdp = TabularMDP(**given_parts)
    before = getattr(mdp, name).copy()
    fingerprint = mdp.fingerprint
    with pytest.raises(ValueError, match="read-only"):
        getattr(mdp, name).flat[0] = 1
    assert given_parts[name].flags.writeable
    given_parts[name].flat[0] = 99
    np.testing.assert_array_equal(getattr(mdp, name), before)
    assert dataclasses.replace(mdp).fingerprint == fingerprint


@pytest.mark.parametrize("name", ARRAYS)
def test_a_read_only_view_of_a_writable_array_is_not_shared(name: str) -> None:
    given_parts = parts()
    owner = given_parts[name]
    view = owner.view()
    view.setflags(write=False)
    mdp = TabularMDP(**parts(**{name: view}))
    before = np.array(getattr(mdp, name))
    owner.flat[0] = 99
    np.testing.assert_array_equal(getattr(mdp, name), before)


@pytest.mark.parametrize("name", ARRAYS)
def test_an_older_writable_view_does_not_reach_in(name: str) -> None:
    owner = parts()[name]
    view = owner.view()
    owner.setflags(write=False)
    assert view.flags.writeable
    mdp = TabularMDP(**parts(**{name: owner}))
    before = np.array(getattr(mdp, name))
    view.flat[0] = 99
    np.testing.assert_array_equal(getattr(mdp, name), before)


def test_constructors_do_not_share_either() -> None:
    P, R = np.eye(2)[:, None, :].copy(), np.array([[1.0], [2.0]])
    mdp = TabularMDP.from_dense(P, R)
    P[:], R[:] = 7.0, 7.0
    np.testing.assert_array_equal(mdp.probs, [1.0, 1.0])
    np.testing.assert_array_equal(mdp.rewards, [[1.0], [2.0]])

    rows = parts()
    mdp = TabularMDP.from_rows(rows["indptr"], rows["indices"], rows["probs"], rows["rewards"])
    for name in ("indptr", "indices", "probs", "rewards"):
        rows[name][:] = 7
    np.testing.assert_array_equal(mdp.rewards, parts()["rewards"])
    np.testing.assert_array_equal(mdp.probs, parts()["probs"])

    start = np.array([1.0])
    table: Table = {0: {0: [(1.0, 0, 1.0, True)]}}
    mdp = TabularMDP.from_table(table, start=start, terminal="table")
    start[0] = 5.0
    np.testing.assert_array_equal(mdp.start, [1.0])


def test_fields_cannot_be_set() -> None:
    mdp = TabularMDP(**parts(), metadata={"a": 1})
    with pytest.raises(dataclasses.FrozenInstanceError):
        mdp.rewards = np.zeros((2, 2))  # type: ignore[misc]
    with pytest.raises(TypeError):
        mdp.metadata["a"] = 2  # type: ignore[index]


def test_derived_arrays_are_read_only() -> None:
    mdp = TabularMDP(**parts())
    successors, probs = mdp.successors(0, 0)
    for array in (successors, probs, mdp.normalised_probs):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_metadata_is_a_copy() -> None:
    given_metadata: dict[str, Any] = {"list": [1, 2], "tuple": (3,)}
    mdp = TabularMDP(**parts(), metadata=given_metadata)
    given_metadata["list"].append(3)
    given_metadata["new"] = 1
    assert dict(mdp.metadata) == {"list": [1, 2], "tuple": [3]}
    more = mdp.with_metadata(new="x", list=None)
    assert dict(more.metadata) == {"list": None, "tuple": [3], "new": "x"}
    assert dict(mdp.metadata) == {"list": [1, 2], "tuple": [3]}


# -- fingerprint, equality, pickling -------------------------------------------------------------


def test_fingerprint_is_pinned() -> None:
    """Files carry fingerprints: this may only change together with the file version."""
    assert TabularMDP(**parts()).fingerprint == PINNED


def _next(array: npt.NDArray[np.float64], index: int | tuple[int, int]) -> npt.NDArray[np.float64]:
    changed = array.copy()
    changed[index] = np.nextafter(changed[index], 2.0)
    return changed


@pytest.mark.parametrize(
    "changes",
    [
        {"probs": _next(parts()["probs"], 3)},
        {"rewards": _next(parts()["rewards"], (1, 1))},
        {"start": _next(parts()["start"], 0)},
        {"state_ids": np.array([7, 4])},
        {"indices": np.array([0, 1, 0, 0, 0, 1])},
        {"rewards": parts()["rewards"].T},
    ],
    ids=["probs", "rewards", "start", "state_ids", "indices", "transposed"],
)
def test_any_change_of_content_changes_the_fingerprint(changes: dict[str, Any]) -> None:
    before, after = TabularMDP(**parts()), TabularMDP(**parts(**changes))
    assert before.fingerprint != after.fingerprint
    assert before != after


def test_row_boundaries_are_content() -> None:
    """The same entries, cut into rows in another place."""
    common = {"indices": [0, 1, 0, 1, 0], "rewards": [[0.0, 0.0], [0.0, 0.0]]}
    P = [0.5, 0.5, 1.0, 1.0, 1.0]
    left = TabularMDP(indptr=[0, 2, 3, 4, 5], probs=P, **common)  # type: ignore[arg-type]
    right = TabularMDP(
        indptr=[0, 1, 2, 4, 5],  # type: ignore[arg-type]
        probs=[1.0, 1.0, 0.5, 0.5, 1.0],  # type: ignore[arg-type]
        **common,  # type: ignore[arg-type]
    )
    assert left != right


def test_shape_and_terminal_state_are_content() -> None:
    start, ids = [0.5, 0.5], [0, 1]
    plain = loops(2, start=start, state_ids=ids)
    assert plain != loops(2, start=start, state_ids=ids, terminal_state=1)
    assert loops(2, start=start, state_ids=ids, terminal_state=0) != loops(
        2, start=start, state_ids=ids, terminal_state=1
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"counts": np.full((2, 2), 8)},
        {"reward_radius": np.full((2, 2), 0.4)},
        {"row_radius": np.full((2, 2), 0.2)},
        {"alpha": 0.2},
        {"reward_range": (0.0, 2.0)},
        {"support_bound": 3},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_the_estimate_is_content(changes: dict[str, Any]) -> None:
    plain = TabularMDP(**parts())
    one = TabularMDP(**parts(), estimate=estimate_of(plain))
    two = TabularMDP(**parts(), estimate=estimate_of(plain, **changes))
    assert plain != one
    assert one != two
    assert one == TabularMDP(**parts(), estimate=estimate_of(plain))


def test_negative_zero_is_zero() -> None:
    plain = TabularMDP(**parts(rewards=np.zeros((2, 2)), start=np.array([1.0, 0.0])))
    minus = TabularMDP(**parts(rewards=-np.zeros((2, 2)), start=np.array([1.0, -0.0])))
    assert np.signbit(minus.rewards).any()
    assert minus == plain
    assert hash(minus) == hash(plain)
    radii = [estimate_of(plain, row_radius=sign * np.zeros((2, 2))) for sign in (1.0, -1.0)]
    one, two = (TabularMDP(**parts(), estimate=radius) for radius in radii)
    assert one == two


def test_negative_zero_in_the_reward_range_is_zero() -> None:
    plain = TabularMDP(**parts())
    ranges = ((0.0, 1.0), (-0.0, 1.0))
    one, two = (
        TabularMDP(**parts(), estimate=estimate_of(plain, reward_range=bounds)) for bounds in ranges
    )
    assert one == two


def test_metadata_is_not_content() -> None:
    mdp = TabularMDP(**parts())
    other = mdp.with_metadata(env="other")
    assert other.metadata["env"] == "other"
    assert other == mdp
    assert len({mdp, other}) == 1


def test_equality_with_other_types() -> None:
    mdp = TabularMDP(**parts())
    assert mdp != "mdp"
    assert mdp != mdp.fingerprint
    assert mdp.__eq__(3) is NotImplemented


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_keeps_everything(protocol: int) -> None:
    base = loops(3, terminal_state=2)
    mdp = dataclasses.replace(base, estimate=estimate_of(base), metadata={"env": "x"})
    again = pickle.loads(pickle.dumps(mdp, protocol=protocol))
    assert isinstance(again, TabularMDP)
    assert again == mdp
    assert again.terminal_state == 2
    assert dict(again.metadata) == {"env": "x"}
    assert again.estimate is not None
    with pytest.raises(ValueError, match="read-only"):
        again.probs[0] = 0.5
    with pytest.raises(ValueError, match="read-only"):
        again.estimate.row_radius[0] = 0.5


def test_copies_are_equal() -> None:
    mdp = TabularMDP(**parts(), metadata={"nested": {"list": [1]}})
    for again in (copy.copy(mdp), copy.deepcopy(mdp)):
        assert again == mdp
        assert dict(again.metadata) == dict(mdp.metadata)


def test_a_deep_copy_is_read_only_too() -> None:
    mdp = TabularMDP(**parts())
    again = copy.deepcopy(dataclasses.replace(mdp, estimate=estimate_of(mdp)))
    assert again.estimate is not None
    for array in (again.probs, again.rewards, *again.estimate.arrays()):
        with pytest.raises(ValueError, match="read-only"):
            array.flat[0] = 0


def test_fingerprint_survives_a_file(tmp_path: Any) -> None:
    mdp = env_mdp("slippery")
    mdp.save(tmp_path / "mdp.npz")
    assert TabularMDP.load(tmp_path / "mdp.npz").fingerprint == mdp.fingerprint


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


@pytest.mark.parametrize("seed", range(12))
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


# -- arrays that are kept ----------------------------------------------------------------------


def frozen_array(values: Any, dtype: Any = np.float64) -> npt.NDArray[Any]:
    array = np.array(values, dtype=dtype)
    array.setflags(write=False)
    return array


def test_arrays_that_nobody_can_write_to_are_kept() -> None:
    for array in (frozen_array([1.0, 2.0]), frozen_array([[1.0, 2.0]]), frozen_array([])):
        assert kept("x", array, np.float64) is array
    whole = frozen_array([1, 2], np.int64)
    assert kept("x", whole, np.int64) is whole


WRITEABLE = np.arange(6.0)
SQUARE = frozen_array(np.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize(
    "given",
    [
        WRITEABLE,
        WRITEABLE[:3],
        np.asfortranarray(np.ones((2, 3))),
        SQUARE.T,
        SQUARE[0],
        frozen_array([1.0, 2.0], np.float32),
        frozen_array([1, 2], np.int64),
        frozen_array([1.0, 2.0], np.dtype(">f8")),
        [1.0, 2.0],
        1.0,
    ],
)
def test_all_others_are_copied(given: Any) -> None:
    found = kept("x", given, np.float64)
    assert found is not given
    assert not np.shares_memory(found, np.asarray(given))
    assert found.base is None
    assert found.dtype == np.float64
    assert found.dtype.isnative
    assert found.flags.c_contiguous
    assert not found.flags.writeable
    np.testing.assert_array_equal(found, np.asarray(given))
    assert kept("x", found, np.float64) is found


def test_a_read_only_view_of_a_writeable_array_is_copied() -> None:
    base = np.arange(4.0)
    view = base[:]
    view.setflags(write=False)
    found = kept("x", view, np.float64)
    base[:] = 9.0
    assert found.tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (frozen_array([1.0, 2.0]), np.int64),
        (frozen_array([True, False], np.bool_), np.int64),
        (frozen_array([2**63], np.uint64), np.int64),
        (frozen_array([1j], np.complex128), np.float64),
        (["a"], np.float64),
        ([[1.0], [1.0, 2.0]], np.float64),
    ],
)
def test_what_cannot_be_kept_is_named(given: Any, dtype: type) -> None:
    with pytest.raises(InvalidMDPError, match="the array"):
        kept("the array", given, dtype)
