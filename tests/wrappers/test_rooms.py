"""RoomsGrid: its dynamics, its table, its pictures, and a million states."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import bisim_abstract
from bisim_abstract import (
    InvalidArgumentError,
    TabularMDP,
    bisimulation_classes,
    bisimulation_metric,
    prove_value,
)
from bisim_abstract.errors import MemoryLimitError
from bisim_abstract.wrappers import RoomsGridEnv, extract_mdp
from tests.support.oracles import classes_exact
from tests.support.renaming import lax_classes

ID = "bisim_abstract/RoomsGrid-v0"


def rows_by_hand(env: RoomsGridEnv, state: int, action: int) -> dict[int, float]:
    """The row of a state, from the words of the description."""
    side, size = env.side, env.room_size
    row, col = divmod(state, side)
    dr, dc = [(-1, 0), (0, 1), (1, 0), (0, -1)][action]
    to_row, to_col = row + dr * size, col + dc * size
    target = state
    if 0 <= to_row < side and 0 <= to_col < side:
        target = to_row * side + to_col
    near = []
    for nr, nc in [(row - 1, col), (row + 1, col), (row, col - 1), (row, col + 1)]:
        same_room = nr // size == row // size and nc // size == col // size
        if 0 <= nr < side and 0 <= nc < side and same_room:
            near.append(nr * side + nc)
    slip = float(env._slips[state])
    mass = {target: 1.0 - slip}
    for cell in near:
        mass[cell] = mass.get(cell, 0.0) + slip / len(near)
    return mass


@pytest.mark.parametrize(("side", "size"), [(6, 2), (6, 3), (6, 6), (4, 1), (1, 1)])
def test_rows_follow_the_description(side: int, size: int) -> None:
    env = RoomsGridEnv(side=side, room_size=size, noise=0.1, seed=2)
    mdp = env.to_mdp()
    for state in range(mdp.n_states):
        for action in range(4):
            successors, probs = mdp.successors(state, action)
            found = dict(zip(successors.tolist(), probs.tolist(), strict=True))
            assert found == pytest.approx(rows_by_hand(env, state, action))


def test_defaults_are_those_of_the_paper() -> None:
    env = gym.make(ID)
    assert env.spec is not None
    assert env.spec.max_episode_steps == 200
    inner = env.unwrapped
    assert isinstance(inner, RoomsGridEnv)
    assert (inner.side, inner.room_size, inner.slip, inner.noise) == (50, 10, 0.2, 0.02)
    assert len(set(inner.rooms.tolist())) == 25
    assert np.bincount(inner.rooms).tolist() == [100] * 25
    mdp = extract_mdp(env)
    assert mdp.max_support == 5
    assert mdp.terminal_state is None
    assert not mdp.absorbing.any()


def test_noise_levels() -> None:
    quiet = RoomsGridEnv(noise=0.0, seed=1)
    loud = RoomsGridEnv(noise=0.1, seed=1)
    base = quiet.to_mdp().rewards
    for room in range(25):
        assert np.ptp(base[quiet.rooms == room], axis=0).max() == 0.0
    assert base.min() >= 0.0
    assert base.max() <= 1.0
    extra = loud.to_mdp().rewards - base
    assert extra.min() >= 0.0
    assert 0.09 < extra.max() <= 0.1
    assert 0.18 <= loud._slips.min() < 0.183
    assert 0.217 < loud._slips.max() <= 0.22


def test_without_noise_the_rooms_are_the_classes() -> None:
    env = RoomsGridEnv(side=12, room_size=4, noise=0.0, seed=3)
    classes = bisimulation_classes(env.to_mdp(), digits=10)
    assert classes.n_classes == 9
    pairs = set(zip(classes.labels.tolist(), env.rooms.tolist(), strict=True))
    assert len(pairs) == 9


def test_rooms_are_closer_within_than_across() -> None:
    env = RoomsGridEnv(side=9, room_size=3, noise=0.02, seed=0)
    metric = bisimulation_metric(env.to_mdp(), 0.9)
    same = env.rooms[:, None] == env.rooms
    assert metric.upper[same].max() < metric.lower[~same].min()


def test_table_and_model_agree() -> None:
    env = RoomsGridEnv(side=6, room_size=3)
    start = env.initial_state_distrib
    assert TabularMDP.from_table(env.P, terminal="table", start=start) == env.to_mdp()


def test_table_of_a_large_grid_is_refused() -> None:
    env = RoomsGridEnv(side=400, room_size=40)
    with pytest.raises(MemoryLimitError, match=r"160,000 states.*to_mdp\(\)"):
        _ = env.P


def test_steps_follow_the_rows() -> None:
    env = RoomsGridEnv(side=4, room_size=2, slip=0.4, seed=5)
    env.reset(seed=7)
    counts = np.zeros((16, 4, 16))
    rewards = env.to_mdp().rewards
    for k in range(20_000):
        before, action = env.s, k % 4
        _, reward, *_ = env.step(np.int64(action))
        assert reward == rewards[before, action]
        counts[before, action, env.s] += 1
    dense = env.to_mdp().kernel().toarray().reshape(16, 4, 16)
    expected = dense * counts.sum(axis=2, keepdims=True)
    used = expected >= 5.0
    statistic = ((counts - expected)[used] ** 2 / expected[used]).sum()
    freedom = int(used.sum()) - 64
    assert abs(statistic - freedom) < 4.0 * np.sqrt(2.0 * freedom)
    assert (counts[dense == 0.0] == 0).all()


def test_passes_the_environment_checker() -> None:
    env = gym.make(ID, render_mode="rgb_array", side=10, room_size=5)
    check_env(env.unwrapped)


def test_seeds() -> None:
    assert RoomsGridEnv(seed=1).to_mdp() == RoomsGridEnv(seed=1).to_mdp()
    assert RoomsGridEnv(seed=1).to_mdp() != RoomsGridEnv(seed=2).to_mdp()
    env = RoomsGridEnv()
    walks = []
    for _ in range(2):
        env.reset(seed=4)
        walks.append([int(env.step(np.int64(k % 4))[0]) for k in range(50)])
    assert walks[0] == walks[1]


def test_ansi_shows_rooms_and_agent() -> None:
    env = RoomsGridEnv(side=4, room_size=2, render_mode="ansi")
    env.reset(seed=0)
    env.s = 6
    assert env.render() == (
        "room 1, cell (1, 2)\n+--+--+\n|..|..|\n|..|@.|\n+--+--+\n|..|..|\n|..|..|\n+--+--+\n"
    )


@pytest.mark.parametrize(("side", "size"), [(10, 5), (500, 100)])
def test_image_has_one_colour_per_room_and_marks_the_agent(side: int, size: int) -> None:
    env = RoomsGridEnv(side=side, room_size=size, render_mode="rgb_array")
    env.reset(seed=0)
    env.s = 0
    image = env.render()
    assert isinstance(image, np.ndarray)
    assert image.dtype == np.uint8
    assert image.shape[0] == image.shape[1] == side * max(1, 500 // side)
    colours = {tuple(pixel) for pixel in image.reshape(-1, 3).tolist()}
    marks = {(20, 20, 20), (60, 60, 60)}
    assert len(colours - marks) == (side // size) ** 2
    assert tuple(image[2, 2].tolist()) == (20, 20, 20)


def test_render_without_a_mode_says_how() -> None:
    with pytest.warns(UserWarning, match="render_mode"):
        assert RoomsGridEnv().render() is None


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"side": 7, "room_size": 2}, "multiple of room_size, got 7 and 2"),
        ({"side": 0}, "side must be at least 1"),
        ({"slip": 1.2}, r"slip must lie in \[0, 1\]"),
        ({"slip": 0.9, "noise": 0.5}, "at most 1"),
        ({"noise": -0.1}, "noise"),
        ({"render_mode": "human"}, "render_mode must be one of 'ansi', 'rgb_array'"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_arguments_are_named(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        RoomsGridEnv(**kwargs)


def test_bad_action_is_named() -> None:
    env = RoomsGridEnv()
    env.reset(seed=0)
    with pytest.raises(InvalidArgumentError, match="action must be between 0 and 3, got 4"):
        env.step(np.int64(4))
    with pytest.raises(InvalidArgumentError, match="whole number"):
        env.step(1.7)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_million_states_build_in_sparse_form() -> None:
    begin = time.perf_counter()
    mdp = RoomsGridEnv(side=1000, room_size=100).to_mdp()
    assert mdp.n_states == 1_000_000
    # Per action every cell's move, and in each of 100 rooms both ends of every inner edge.
    assert mdp.nnz == 4 * (1_000_000 + 100 * 2 * (2 * 100 * 99))
    # Generous: it takes seconds, a build with Python objects takes many minutes.
    assert time.perf_counter() - begin < 60.0


def test_registered_by_import_and_by_gymnasium_convention() -> None:
    code = (
        "import gymnasium as gym, bisim_abstract, json, sys;"
        "gym.register_envs(bisim_abstract);"
        f"print(json.dumps(gym.make('{ID}').unwrapped.side))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(out.stdout) == 50
    gym.register_envs(bisim_abstract)


def test_vector_environments() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gym.make_vec(ID, num_envs=2, vectorization_mode="sync", side=10, room_size=5)
    observations, _ = env.reset(seed=0)
    assert observations.shape == (2,)
    env.close()


# -- mirror images -------------------------------------------------------------------------------


def turned(env: RoomsGridEnv, state: int) -> int:
    """Where a quarter turn to the right takes a cell."""
    row, col = divmod(state, env.side)
    return col * env.side + env.side - 1 - row


def reflected(env: RoomsGridEnv, state: int) -> int:
    """Where swapping left and right takes a cell."""
    row, col = divmod(state, env.side)
    return row * env.side + env.side - 1 - col


@pytest.mark.parametrize("side", [2, 6, 8, 10])
def test_a_mirrored_grid_is_turned_and_reflected_into_itself(side: int) -> None:
    env = RoomsGridEnv(side=side, room_size=2, noise=0.0, seed=3, mirror=True)
    mdp = env.to_mdp()
    for symmetry, actions in ((turned, [1, 2, 3, 0]), (reflected, [0, 3, 2, 1])):
        place = [symmetry(env, s) for s in range(mdp.n_states)]
        assert (env.twins[place] == env.twins).all()
        for s in range(mdp.n_states):
            for a, image in enumerate(actions):
                assert mdp.rewards[s, a] == mdp.rewards[place[s], image]
                successors, probs = mdp.successors(s, a)
                there, masses = mdp.successors(place[s], image)
                expected = dict(zip((place[t] for t in successors), probs, strict=True))
                assert dict(zip(there.tolist(), masses, strict=True)) == expected


# Rooms, and kinds of rooms up to symmetry, by hand: one of each kind lies in a wedge.
@pytest.mark.parametrize(("per_side", "kinds"), [(1, 1), (2, 1), (3, 3), (4, 3), (5, 6)])
@pytest.mark.parametrize("seed", [0, 1])
def test_rooms_are_alike_up_to_symmetry_only(per_side: int, kinds: int, seed: int) -> None:
    # Halves are exact: with them, cells of a room are exactly alike.
    options: dict[str, Any] = {"side": 2 * per_side, "room_size": 2, "slip": 0.5, "noise": 0.0}
    env = RoomsGridEnv(**options, seed=seed, mirror=True)
    mdp = env.to_mdp()
    assert classes_exact(mdp) == env.rooms.tolist() if per_side > 2 else True
    assert np.unique(env.twins).size == kinds
    found = np.array(lax_classes(mdp))
    assert np.unique(np.stack([found, env.twins]), axis=1).shape[1] == kinds == found.max() + 1
    plain = RoomsGridEnv(**options, seed=seed)
    assert plain.twins.tolist() == plain.rooms.tolist()
    assert lax_classes(plain.to_mdp()) == plain.rooms.tolist()


def test_a_renaming_keeps_what_names_alone_lose() -> None:
    env = RoomsGridEnv(side=15, room_size=3, mirror=True)
    mdp = env.to_mdp()
    # What each direction is called: after that of the first image, found by trying.
    renaming = np.empty((mdp.n_states, 4), np.int64)
    for s in range(mdp.n_states):
        place, actions = s, np.arange(4)
        for k in range(8):
            if env.rooms[place] == env.twins[s]:
                break
            place, actions = turned(env, place), (actions + 1) % 4
            if k == 3:
                place, actions = reflected(env, place), np.array([0, 3, 2, 1])[actions]
        assert env.rooms[place] == env.twins[s]
        renaming[s] = actions
    renamed = prove_value(mdp, env.twins, 0.9, renaming=renaming)
    by_name = prove_value(mdp, env.twins, 0.9)
    rooms = prove_value(mdp, env.rooms, 0.9)
    assert np.unique(env.twins).size == 6
    assert rooms.kept > 0.95
    assert renamed.kept > 0.95
    assert by_name.kept < 0.5


def test_mirrored_rooms_by_id() -> None:
    env = gym.make(ID, side=6, room_size=2, mirror=True)
    mdp = extract_mdp(env)
    assert mdp.metadata["mirror"] is True
    assert "mirror" not in extract_mdp(gym.make(ID, side=6, room_size=2)).metadata
    assert env.spec is not None
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert extract_mdp(again) == mdp
    with pytest.raises(InvalidArgumentError, match="mirror must be True or False"):
        RoomsGridEnv(mirror=1)  # type: ignore[arg-type]
