"""Maps of states against what the environments themselves decode."""

from __future__ import annotations

import tracemalloc
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from bisim_abstract import InvalidArgumentError, Reading, TabularMDP
from bisim_abstract._app.state_map import StateMap, state_map
from bisim_abstract._base.types import FloatArray
from bisim_abstract.parts import random_mdp
from bisim_abstract.wrappers import Distractor, RoomsGridEnv, extract_mdp


def existing(*names: str) -> str:
    return next(name for name in names if name in gym.registry)


def check_cells(places: StateMap, mdp: TabularMDP, live: int) -> list[tuple[int, int]]:
    """Whole numbers from 0 on, no two alike; the end of episodes has no place."""
    assert places.is_grid
    assert places.x.shape == places.y.shape == (mdp.n_states,)
    has_place = places.has_place
    assert has_place.sum() == live
    np.testing.assert_array_equal(np.isnan(places.y), ~has_place)
    if mdp.terminal_state is not None:
        assert not has_place[mdp.terminal_state]
    cells = [(int(x), int(y)) for x, y in zip(places.x[:live], places.y[:live], strict=True)]
    np.testing.assert_array_equal(places.x[:live], [x for x, _ in cells])
    np.testing.assert_array_equal(places.y[:live], [y for _, y in cells])
    assert len(set(cells)) == live
    assert min(x for x, _ in cells) == min(y for _, y in cells) == 0
    return cells


def test_taxi() -> None:
    name = existing("Taxi-v3", "Taxi-v4")
    mdp = extract_mdp(name)
    places = state_map(mdp)
    cells = check_cells(places, mdp, 500)
    env: Any = gym.make(name).unwrapped
    for state, (x, y) in enumerate(cells):
        row, column, passenger, destination = env.decode(state)
        # Six cells per panel: five and a gap.
        assert (x, y) == (column + 6 * destination, row + 6 * passenger)
    assert (int(np.nanmax(places.x)), int(np.nanmax(places.y))) == (22, 28)
    assert "by passenger from top to bottom" in places.caption
    assert "by destination from left to right" in places.caption


@pytest.mark.parametrize("desc", [["SFF", "FHG"], ["SF", "HF", "FG", "FF"]])
@pytest.mark.parametrize("terminal", ["absorb", "table"])
def test_frozen_lake(desc: list[str], terminal: str) -> None:
    mdp = extract_mdp("FrozenLake-v1", env_args={"desc": desc}, reading=Reading(terminal=terminal))
    columns = len(desc[0])
    live = columns * len(desc)
    cells = check_cells(state_map(mdp), mdp, live)
    assert cells == [(k % columns, k // columns) for k in range(live)]
    assert state_map(mdp).caption == "Every square is a state, where it lies on the grid."


def test_cliff_walking() -> None:
    mdp = extract_mdp(existing("CliffWalking-v1", "CliffWalking-v0"))
    cells = check_cells(state_map(mdp), mdp, 48)
    env: Any = gym.make(existing("CliffWalking-v1", "CliffWalking-v0")).unwrapped
    for state, (x, y) in enumerate(cells):
        assert (y, x) == divmod(state, env.shape[1])


def test_rooms() -> None:
    env = RoomsGridEnv(side=6, room_size=3)
    mdp = extract_mdp(env)
    cells = check_cells(state_map(mdp), mdp, 36)
    assert cells == [(s % 6, s // 6) for s in range(36)]


def test_reachable_states_keep_their_cells() -> None:
    mdp = extract_mdp("FrozenLake-v1", reading=Reading(reachable_only=True))
    places = state_map(mdp)
    assert places.has_place.sum() == mdp.n_states - 1 < 16
    for state, ident in enumerate(mdp.state_ids.tolist()):
        if state != mdp.terminal_state:
            assert (places.x[state], places.y[state]) == (ident % 4, ident // 4)


def test_distractor() -> None:
    env = Distractor(gym.make("FrozenLake-v1"), n_background=3)
    mdp = extract_mdp(env)
    places = state_map(mdp)
    cells = check_cells(places, mdp, 48)
    for state, cell in enumerate(cells):
        inner, background = divmod(state, 3)
        assert cell == (inner % 4, inner // 4 + 5 * background)
    assert "panels differ by background from top to bottom." in places.caption


def test_distractor_of_taxi() -> None:
    name = existing("Taxi-v3", "Taxi-v4")
    mdp = extract_mdp(Distractor(gym.make(name), n_background=2), reading=Reading(checks=16))
    cells = check_cells(state_map(mdp), mdp, 1000)
    env: Any = gym.make(name).unwrapped
    for state, cell in enumerate(cells):
        inner, background = divmod(state, 2)
        row, column, passenger, destination = env.decode(inner)
        # Backgrounds lie side by side, in each destination's panel.
        assert cell == (column + 6 * background + 12 * destination, row + 6 * passenger)


def test_environments_that_are_no_grid_say_nothing() -> None:
    assert "digits" not in extract_mdp("MiniGrid-Empty-5x5-v0").metadata
    assert "digits" not in random_mdp(4, seed=0).metadata


def test_letters_are_those_of_the_environment() -> None:
    desc = ["SFF", "FHG"]
    places = state_map(extract_mdp("FrozenLake-v1", env_args={"desc": desc}))
    assert {(x, y): c for x, y, c in places.letters} == {
        (x, y): c for y, row in enumerate(desc) for x, c in enumerate(row)
    }
    taxi = state_map(extract_mdp(existing("Taxi-v3", "Taxi-v4")))
    assert len(taxi.letters) == 4 * 20  # in each panel
    assert (0, 0, "R") in taxi.letters
    assert (6 + 3, 12 + 4, "B") in taxi.letters
    assert taxi.heads[1] == (6, 5, "destination green")
    assert taxi.sides[4] == (24, 5, "passenger in the taxi")
    for letters in ([1, 2], ["S", "F"], "SF", ["SFF", "FH"], None):
        mdp = random_mdp(6, seed=0).with_metadata(digits=[["row", 2], ["column", 3]])
        assert state_map(mdp.with_metadata(letters=letters)).letters == ()


def test_minigrid_is_drawn_by_place_and_direction() -> None:
    minigrid = pytest.importorskip("minigrid")
    assert minigrid
    mdp = extract_mdp("MiniGrid-DoorKey-5x5-v0", reading=Reading(starts=1))
    known = {v.name: v for v in mdp.names.variables}
    assert list(known) == ["row", "column", "facing", "carrying", "yellow door", "lying"]
    places = state_map(mdp)
    cells = check_cells(places, mdp, 260)
    moves = {"right": (2, 1), "down": (1, 2), "left": (0, 1), "up": (1, 0)}
    frames = [panel[:4] for panel in places.panels]
    for state, (x, y) in enumerate(cells):
        ((left, top, _, _),) = [
            (a, b, w, h) for a, b, w, h in frames if a <= x < a + w and b <= y < b + h
        ]
        words = {v.name: v.text(state).partition("=")[2] for v in known.values()}
        dx, dy = moves[words["facing"]]
        assert x - left == 3 * (int(words["column"]) - 1) + dx
        assert y - top == 3 * (int(words["row"]) - 1) + dy
    env: Any = gym.make("MiniGrid-DoorKey-5x5-v0")
    env.reset(seed=0)
    column, row = env.unwrapped.agent_pos
    assert mdp.state_name(0).startswith(f"row={row}, column={column}, facing=left")


def test_variables_are_rows_and_columns_where_there_is_no_grid() -> None:
    states = np.arange(24)
    named = {"a": states % 4, "b": states // 4 % 3, "c": states // 12}
    mdp = random_mdp(24, seed=0).with_names(states=named)
    places = state_map(mdp)
    check_cells(places, mdp, 24)
    assert places.caption.startswith("Every square is a state: ")
    assert all(name in places.caption for name in ("a", "b", "c"))
    points = np.random.default_rng(0).normal(size=(24, 2))
    assert not state_map(mdp, embedding=points).is_grid


def test_states_that_rewards_do_not_tell_apart_are_squares_in_order() -> None:
    mdp = TabularMDP.from_dense(np.eye(8)[:, None, :], np.arange(8) % 2)
    places = state_map(mdp)
    check_cells(places, mdp, 8)
    assert "order of their numbers" in places.caption


def test_three_other_digits_are_apart() -> None:
    digits = [["a", 2], ["row", 2], ["b", 3], ["column", 2], ["c", 2]]
    mdp = random_mdp(48, seed=0).with_metadata(digits=digits)
    check_cells(state_map(mdp), mdp, 48)


def test_ids_beyond_the_digits_have_no_place() -> None:
    mdp = random_mdp(6, seed=0).with_metadata(digits=[["row", 2], ["column", 2]])
    places = state_map(mdp)
    assert places.has_place.tolist() == [True] * 4 + [False] * 2
    assert np.isnan(places.x[4:]).all()
    assert np.isnan(places.y[4:]).all()


@pytest.mark.parametrize(
    "digits",
    [
        [],
        {},
        "row",
        7,
        True,
        [["row", 2]],
        [["column", 2]],
        [["row", 2], ["row", 2], ["column", 2]],
        [["row", 2], ["column", 2], ["column", 2]],
        [["row", 2, 3], ["column", 2]],
        [["row"], ["column", 2]],
        [["row", 0], ["column", 2]],
        [["row", -2], ["column", 2]],
        [["row", 2.0], ["column", 2]],
        [["row", True], ["column", 2]],
        [["row", "2"], ["column", 2]],
        [["row", None], ["column", 2]],
        [[1, 2], ["row", 2], ["column", 2]],
        ["row", "column"],
        {"row": 2, "column": 2},
        [["row", 2], ["column", 2], *[[f"d{k}", 1] for k in range(7)]],
    ],
)
def test_hostile_digits(digits: Any) -> None:
    mdp = random_mdp(4, seed=0).with_metadata(digits=digits)
    with pytest.raises(InvalidArgumentError, match=r"metadata\['digits'\]"):
        state_map(mdp)


@pytest.mark.parametrize(
    "digits",
    [
        [["row", 10**30], ["column", 2]],
        [["row", 2], ["column", 2], ["a", 2], ["b", 2**63]],
    ],
)
def test_digits_beyond_all_ids(digits: Any) -> None:
    mdp = random_mdp(4, seed=0).with_metadata(digits=digits)
    with pytest.raises(InvalidArgumentError, match=r"metadata\['digits'\]"):
        state_map(mdp)


def test_blank_letters_on_any_number_of_panels() -> None:
    digits = [["row", 1], ["column", 1], ["x", 3_000_000]]
    mdp = random_mdp(4, seed=0).with_metadata(digits=digits, letters=[" "])
    tracemalloc.start()
    try:
        assert state_map(mdp).letters == ()
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


def test_names_of_digits_are_for_reading() -> None:
    digits = [["row", 2], ["column", 2], ["a\u202eb", 2], ["c\x1b[31m", 2]]
    mdp = random_mdp(16, seed=0).with_metadata(digits=digits)
    places = state_map(mdp)
    for text in (places.caption, *(head[-1] for head in (*places.heads, *places.sides))):
        assert text.isprintable()
    assert "differ by a\ufffdb from top" in places.caption


# -- points ------------------------------------------------------------------------------------


def distances(x: FloatArray, y: FloatArray) -> FloatArray:
    return np.hypot(x[:, None] - x, y[:, None] - y)


def test_points_in_the_plane_keep_their_distances() -> None:
    mdp = random_mdp(30, seed=0)
    points = np.random.default_rng(0).normal(size=(30, 2)) * [1.0, 5.0] + [100.0, -3.0]
    places = state_map(mdp, embedding=points)
    assert not places.is_grid
    assert places.has_place.all()
    np.testing.assert_allclose(
        distances(places.x, places.y), distances(points[:, 0], points[:, 1]), atol=1e-4
    )
    assert places.x.std() > 3.0 * places.y.std()
    assert "of the embedding" in places.caption
    again = state_map(mdp, embedding=points)
    np.testing.assert_array_equal(again.x, places.x)


def test_the_two_widest_of_many_directions() -> None:
    rng = np.random.default_rng(1)
    plane = rng.normal(size=(40, 2)) * [9.0, 4.0]
    points = np.column_stack([1e-3 * rng.normal(size=40), plane[:, 1], np.zeros(40), plane[:, 0]])
    places = state_map(random_mdp(40, seed=0), embedding=points)
    np.testing.assert_allclose(
        distances(places.x, places.y), distances(plane[:, 0], plane[:, 1]), atol=1e-3
    )
    # The sign is that in which the largest entry of a direction is above 0.
    assert np.corrcoef(places.x, plane[:, 0])[0, 1] > 0.99
    assert np.corrcoef(places.y, plane[:, 1])[0, 1] > 0.9


def test_rewards_are_points_by_default() -> None:
    mdp = TabularMDP.from_dense(np.eye(3)[:, None, :].repeat(2, 1), [[0, 0], [3, 0], [0, 1]])
    places = state_map(mdp)
    np.testing.assert_allclose(
        distances(places.x, places.y),
        [[0, 3, 1], [3, 0, np.sqrt(10)], [1, np.sqrt(10), 0]],
        atol=1e-12,
    )
    assert "of rewards" in places.caption


def test_one_dimension() -> None:
    mdp = TabularMDP.from_dense(np.eye(3)[:, None, :], [1.0, 5.0, 3.0])
    places = state_map(mdp)
    np.testing.assert_allclose(places.x, [-2.0, 2.0, 0.0])
    assert places.y.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_constant_points(columns: int) -> None:
    places = state_map(random_mdp(5, seed=0), embedding=np.full((5, columns), 2.5))
    assert places.x.tolist() == places.y.tolist() == [0.0] * 5


def test_one_state() -> None:
    places = state_map(TabularMDP.from_dense([[[1.0]]], [2.0]))
    assert (places.x.tolist(), places.y.tolist()) == ([0.0], [0.0])


def test_huge_rewards() -> None:
    mdp = TabularMDP.from_dense(
        np.eye(3)[:, None, :].repeat(2, 1), [[0.0, 0.0], [1e200, 0.0], [0.0, 1.0]]
    )
    places = state_map(mdp)
    assert np.isfinite(places.x).all()
    assert places.x[1] - places.x[0] == pytest.approx(1e200)


class Learned:
    def encode(self, states: Any) -> FloatArray:
        return np.column_stack([np.asarray(states), np.zeros(len(states))]).astype(np.float64)


def test_encoders_and_bad_points() -> None:
    mdp = random_mdp(4, seed=0)
    np.testing.assert_allclose(state_map(mdp, embedding=Learned()).x, [-1.5, -0.5, 0.5, 1.5])
    with pytest.raises(InvalidArgumentError, match="shape"):
        state_map(mdp, embedding=np.zeros((5, 2)))
    with pytest.raises(InvalidArgumentError):
        state_map("FrozenLake-v1")  # type: ignore[arg-type]
