"""Models cannot be changed, and their fingerprints tell them apart."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bisim_abstract import TabularMDP
from bisim_abstract._base.arrays import as_frozen
from bisim_abstract.errors import InvalidMDPError
from tests.support.models import Table, env_mdp, estimate_of, loops, parts

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


# -- arrays that are kept ----------------------------------------------------------------------


def frozen_array(values: Any, dtype: Any = np.float64) -> npt.NDArray[Any]:
    array = np.array(values, dtype=dtype)
    array.setflags(write=False)
    return array


def test_arrays_that_nobody_can_write_to_are_kept() -> None:
    for array in (frozen_array([1.0, 2.0]), frozen_array([[1.0, 2.0]]), frozen_array([])):
        assert as_frozen("x", array, np.float64) is array
    whole = frozen_array([1, 2], np.int64)
    assert as_frozen("x", whole, np.int64) is whole


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
    found = as_frozen("x", given, np.float64)
    assert found is not given
    assert not np.shares_memory(found, np.asarray(given))
    assert found.base is None
    assert found.dtype == np.float64
    assert found.dtype.isnative
    assert found.flags.c_contiguous
    assert not found.flags.writeable
    np.testing.assert_array_equal(found, np.asarray(given))
    assert as_frozen("x", found, np.float64) is found


def test_a_read_only_view_of_a_writeable_array_is_copied() -> None:
    base = np.arange(4.0)
    view = base[:]
    view.setflags(write=False)
    found = as_frozen("x", view, np.float64)
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
        as_frozen("the array", given, dtype)
