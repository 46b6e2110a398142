from __future__ import annotations

import copy
import enum
import logging
import math
import os
import random
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import Reading, TabularMDP, value_iteration
from bisim_abstract._base.types import Progress
from bisim_abstract.errors import (
    ExtractionError,
    InvalidArgumentError,
    StateLimitError,
    StochasticEnvError,
)
from bisim_abstract.wrappers import enumerate as module
from bisim_abstract.wrappers import extract_mdp
from bisim_abstract.wrappers._snapshot import Codec
from bisim_abstract.wrappers.enumerate import StateReader, enumerate_mdp
from bisim_abstract.wrappers.tabular import extract_again

Step = tuple[int, float, bool, bool, dict[str, Any]]

EMPTY, DOORKEY, UNLOCK, ROOMS = (
    f"MiniGrid-{name}-v0" for name in ("Empty-5x5", "DoorKey-5x5", "Unlock", "FourRooms")
)


def make(name: str, **options: Any) -> gym.Env[Any, Any]:
    pytest.importorskip("minigrid")
    return gym.make(name, **options)


@cache
def table(name: str) -> TabularMDP:
    return enumerate_mdp(make(name), reading=Reading(checks=64, starts=1))


# -- small worlds --------------------------------------------------------------------------


class Line(gym.Env[int, np.int64]):
    """Five places in a row; going right from the last pays 1 and ends the episode."""

    def __init__(self) -> None:
        self.action_space = gym.spaces.Discrete(2)
        self.observation_space = gym.spaces.Discrete(5)
        self.place = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        return 0, {}

    def step(self, action: Any) -> Step:
        end = self.place == 4 and action == 1
        self.place = min(max(self.place + (1 if action == 1 else -1), 0), 4)
        return self.place, float(end), end, False, {}


class Counting(Line):
    """Counts its steps, ends episodes by the count if told so, and counts episodes."""

    def __init__(self, limit: int | None = None) -> None:
        super().__init__()
        self.limit = limit
        self.ticks = 0
        self.episodes = 0

    def reset(self, **options: Any) -> tuple[int, dict[str, Any]]:
        self.ticks = 0
        self.episodes += 1
        return super().reset(**options)

    def step(self, action: Any) -> Step:
        self.ticks += 1
        observation, reward, terminated, _, info = super().step(action)
        late = self.limit is not None and self.ticks >= self.limit
        return observation, reward, terminated, late, info


class Slippery(Line):
    """Stays in place now and then, by a coin that is thrown at one place only."""

    def __init__(self, coin: str) -> None:
        super().__init__()
        self.coin = coin
        self.own = random.Random(3)

    def step(self, action: Any) -> Step:
        if self.place == 3:
            draws: dict[str, Callable[[], float]] = {
                "np_random": self.np_random.random,
                "own": self.own.random,
                "random": random.random,
                "numpy": np.random.mtrand.random_sample,
                "fresh": np.random.default_rng().random,
            }
            if draws[self.coin]() < 0.5:
                return self.place, 0.0, False, False, {}
        return super().step(action)


class Key:
    def __init__(self) -> None:
        self.colour = "red"


class TwoKeys(Line):
    """Two keys that look alike; holding the right one, by identity, pays."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = [Key(), Key()]
        self.wanted = self.keys[1]
        self.held: Key | None = None

    def reset(self, **options: Any) -> tuple[int, dict[str, Any]]:
        self.held = None
        return super().reset(**options)

    def step(self, action: Any) -> Step:
        self.held = self.keys[int(action)]
        return 0, float(self.held is self.wanted), False, False, {}


# -- counts --------------------------------------------------------------------------------


def search_by_copies(name: str) -> tuple[list[int], list[float]]:
    """Breadth-first search over deep copies, keyed on what MiniGrid's dynamics read."""
    walls: dict[int, Any] = {}

    def key(env: Any) -> Any:
        held = None if env.carrying is None else env.carrying.encode()
        where = tuple(int(i) for i in env.agent_pos)
        return where, int(env.agent_dir), held, env.grid.encode().tobytes()

    first: Any = make(name).unwrapped
    first.reset(seed=0)
    for thing in [*first.grid.grid, first.action_space, first.observation_space, first.spec]:
        if thing is not None and getattr(thing, "type", "wall") == "wall":
            walls[id(thing)] = thing  # not copied: nothing changes a wall
    numbers, queue = {key(first): 0}, deque([first])
    successors, rewards = [], []
    while queue:
        env = queue.popleft()
        for action in range(7):
            other = copy.deepcopy(env, dict(walls))
            other.step_count = 0
            _, reward, terminated, _, _ = other.step(action)
            rewards.append(float(reward))
            if terminated:
                successors.append(-1)
                continue
            if key(other) not in numbers:
                numbers[key(other)] = len(numbers)
                queue.append(other)
            successors.append(numbers[key(other)])
    return successors, rewards


@pytest.mark.parametrize(
    ("name", "count"),
    [(EMPTY, 32), (DOORKEY, 260), pytest.param(UNLOCK, 1024, marks=pytest.mark.slow)],
)
def test_minigrid_agrees_with_a_search_over_copies(name: str, count: int) -> None:
    successors, rewards = search_by_copies(name)
    mdp = table(name)
    assert mdp.n_states == count + 1 == len(successors) // 7 + 1
    assert mdp.terminal_state == count
    assert mdp.is_deterministic
    wanted = np.where(np.array(successors) < 0, count, successors)
    np.testing.assert_array_equal(mdp.indices[:-7], wanted)
    np.testing.assert_array_equal(mdp.rewards[:-1].ravel(), rewards)
    np.testing.assert_array_equal(mdp.reachable(), np.arange(count + 1))
    assert mdp.start[0] == 1.0
    assert mdp.state_ids[-1] == -1
    assert (mdp.state_ids[:-1] >= 0).all()


def test_four_rooms_has_four_states_per_free_cell() -> None:
    env: Any = make(ROOMS).unwrapped
    env.reset(seed=0)
    cells, waiting = set(), [tuple(int(i) for i in env.agent_pos)]
    while waiting:
        x, y = waiting.pop()
        if (x, y) not in cells and env.grid.get(x, y) is None:
            cells.add((x, y))
            waiting += [(x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)]
    mdp = table(ROOMS)
    assert len(cells) == 259
    assert mdp.n_states == 4 * 259 + 1
    assert mdp.metadata == {
        "env": ROOMS,
        "method": "enumeration",
        "seed": 0,
        "starts": 1,
        "frozen": ["step_count"],
        "held": {"step_count": mdp.metadata["held"]["step_count"]},
        "gymnasium": gym.__version__,
        "terminal": "absorb",
        "time_limit": 100,
        "conditions": [
            "from 1 sampled start of several",
            "rewards as at step 0 (the environment's fall with the steps taken)",
        ],
    }


def test_layout_depends_on_the_seed_and_nothing_else_does() -> None:
    env = make(DOORKEY)
    env.reset(seed=77)
    assert enumerate_mdp(env, reading=Reading(seed=0, checks=0, starts=1)) == table(DOORKEY)
    assert enumerate_mdp(env, reading=Reading(seed=1, checks=0, starts=1)) != table(DOORKEY)


@pytest.mark.parametrize(("name", "steps"), [(EMPTY, 500), (DOORKEY, 2000), (UNLOCK, 1500)])
def test_table_agrees_with_long_walks_of_a_new_env(name: str, steps: int) -> None:
    mdp = table(name)
    env = make(name, render_mode="rgb_array")  # drawing settings are not part of the state
    inner: Any = env.unwrapped
    reader = StateReader(env)
    number = {int(own): state for state, own in enumerate(mdp.state_ids)}
    rng = np.random.default_rng(1)
    tried = np.zeros((mdp.n_states, mdp.n_actions), np.int64)
    ends, state = 0, -1
    for step in range(steps):
        if state < 0:
            env.reset(seed=0)
            state = number[reader.state_id()]
            assert state == 0
        if step % 500 == 0:
            env.render()
        inner.step_count = 0
        # The action tried least here, so that the walk gets about.
        action = int(rng.choice(np.flatnonzero(tried[state] == tried[state].min())))
        tried[state, action] += 1
        _, reward, terminated, truncated, _ = env.step(action)
        assert not truncated
        successor = int(mdp.successors(state, action)[0][0])
        assert reward == mdp.rewards[state, action]
        assert terminated == (successor == mdp.terminal_state)
        if not terminated:
            assert reader.state_id() == mdp.state_ids[successor]
        ends += terminated
        state = -1 if terminated else successor
    assert ends > 0
    assert np.count_nonzero(tried) > steps // 4  # many pairs, not a few again and again


def test_doorkey_value_is_that_of_the_shortest_path() -> None:
    mdp = table(DOORKEY)
    distance = {0: 0}
    queue = deque([0])
    while mdp.terminal_state not in distance:
        state = queue.popleft()
        for successor in mdp.indices[7 * state : 7 * state + 7].tolist():
            if successor not in distance:
                distance[successor] = distance[state] + 1
                queue.append(successor)
    values = value_iteration(mdp, 0.9)
    reward = 1 - 0.9 / 250  # every step counts as the first of at most 250
    steps = 1 + math.log(values.upper[0] / reward) / math.log(0.9)
    assert steps == pytest.approx(distance[mdp.n_states - 1])
    assert mdp.rewards.max() == reward


def test_a_table_is_enumerated_to_itself(caplog: pytest.LogCaptureFixture) -> None:
    env: Any = gym.make("CliffWalking-v1")
    with caplog.at_level(logging.WARNING):
        mdp = enumerate_mdp(env, reading=Reading(freeze=["lastaction"]))
    inner = env.unwrapped
    read = TabularMDP.from_table(inner.P, start=inner.initial_state_distrib)
    read = read.restrict(read.reachable())
    assert mdp.n_states == read.n_states == 38
    assert value_iteration(mdp, 0.99).upper[0] == pytest.approx(-12.25, abs=0.005)
    reader = StateReader(env, freeze=["lastaction"])
    for own, state in zip(read.state_ids[:-1], range(37), strict=True):
        inner.s = own  # the numbering differs, the rows do not
        place = int(np.flatnonzero(mdp.state_ids == reader.state_id())[0])
        np.testing.assert_array_equal(mdp.rewards[place], read.rewards[state])
    # It draws a number for every step, of which nothing depends: it has one outcome.
    assert "drew" not in caplog.text
    assert mdp.is_deterministic
    assert "draws" not in mdp.metadata


# -- shared objects ------------------------------------------------------------------------


def test_unlock_ends_though_its_door_is_held_twice() -> None:
    """`step` asks `self.door`, the agent opens the cell of `self.grid`.

    Restoring the grid alone would leave two doors, and no episode would ever end.
    """
    env: Any = make(UNLOCK).unwrapped
    env.reset(seed=0)
    assert env.door in env.grid.grid
    mdp = table(UNLOCK)
    into_end = np.flatnonzero(mdp.indices[:-7] == mdp.terminal_state)
    assert into_end.size > 0
    assert set((into_end % 7).tolist()) == {int(env.actions.toggle)}
    assert (mdp.rewards.ravel()[into_end] > 0).all()


def test_objects_that_look_alike_are_told_apart_by_identity() -> None:
    mdp = enumerate_mdp(TwoKeys())
    assert mdp.n_states == 3  # nothing held, and one state per key
    np.testing.assert_array_equal(mdp.rewards, [[0, 1]] * 3)
    assert mdp.indices.tolist() == [1, 2] * 3


def test_a_list_that_is_held_twice_stays_one() -> None:
    class Shared(Line):
        def __init__(self, *, is_one: bool) -> None:
            super().__init__()
            self.is_one = is_one

        def reset(self, **options: Any) -> tuple[int, dict[str, Any]]:
            self.written = [0, 1]
            self.read = self.written if self.is_one else [0, 1]
            return super().reset(**options)

        def step(self, action: Any) -> Step:
            self.written[0] = (self.written[0] + int(action)) % 3
            return 0, float(self.read[0]), False, False, {}

    assert sorted(enumerate_mdp(Shared(is_one=True)).rewards[:, 0].tolist()) == [0.0, 1.0, 2.0]
    assert sorted(enumerate_mdp(Shared(is_one=False)).rewards[:, 0].tolist()) == [0.0] * 3


class Level(enum.IntEnum):
    LOW = 1


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.sampled_from([Level.LOW, np.int64(3), np.float64(0.5), np.True_]),
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple),
    max_leaves=8,
)


@given(st.lists(PLAIN, min_size=1, max_size=3))
def test_restored_values_are_what_they_were(values: list[Any]) -> None:
    env: Any = Line()
    codec = Codec(env, frozenset())
    for k, value in enumerate(values):
        setattr(env, f"value{k}", value)
    snapshot = codec.snapshot()
    ident = codec.digest(snapshot)
    for k in range(len(values)):
        setattr(env, f"value{k}", "another")
    codec.restore(snapshot)
    found = [getattr(env, f"value{k}") for k in range(len(values))]
    assert repr(found) == repr(values)  # NumPy's numbers show their type
    other = Codec(env, frozenset())  # which remembers no digest
    assert other.digest(other.snapshot()) == ident


def test_a_position_may_be_a_tuple_or_an_array() -> None:
    class Moving(Line):
        pair: Any

        def step(self, action: Any) -> Step:
            out = super().step(action)
            self.pair = (self.place, 1) if action == 1 else np.array([self.place, 1])
            return out

        def reset(self, **options: Any) -> tuple[int, dict[str, Any]]:
            self.pair = [0, 1]
            return super().reset(**options)

    assert enumerate_mdp(Moving()).n_states == 6

    class Adding(Moving):
        def step(self, action: Any) -> Step:
            doubled = len(self.pair + self.pair)  # 4 for a tuple, 2 for an array
            observation, _, terminated, truncated, info = super().step(action)
            return observation, float(doubled), terminated, truncated, info

    with pytest.raises(ExtractionError, match=r"state \d was reached in two forms.*the reward was"):
        enumerate_mdp(Adding())


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (1, np.int64(1), True),
        (0.5, np.float64(0.5), True),
        (True, np.True_, True),
        ((1, 2), np.array([1, 2]), True),
        ([1.0, math.nan], (1.0, math.nan), True),
        ({"a", "b", "c"}, {"c", "b", "a"}, True),
        (len, len, True),
        (np.array([[1, 2]], order="F"), np.array([[1, 2]], order="C"), True),
        (deque([1, 2]), deque([1, 2]), True),
        (1, True, False),
        (1, 1.0, False),
        (255, np.uint8(255), False),
        ("1", 1, False),
        ("ab", b"ab", False),
        (["a", "bc"], ["ab", "c"], False),
        ([[1], 2], [[1, 2]], False),
        (np.zeros((2, 3)), np.zeros((3, 2)), False),
        ({1: 2, 3: 4}, {3: 4, 1: 2}, False),
        (deque([1, 2]), deque([1, 2], maxlen=2), False),
        (len, max, False),
        (int, float, False),
    ],
)
def test_ids_follow_values(one: object, other: object, is_same: bool) -> None:
    env: Any = Line()
    reader = StateReader(env)
    ids = []
    for value in (one, other):
        env.value = value
        ids.append(reader.state_id())
        env.value = [value]  # the same within other objects
        ids.append(reader.state_id())
    assert (ids[0] == ids[2], ids[1] == ids[3]) == (is_same, is_same)
    assert all(0 <= number < 2**63 for number in ids)


def test_what_is_not_state_has_no_part_in_the_id() -> None:
    env: Any = Line()
    reader = StateReader(env)
    before = reader.state_id()
    env.reset(seed=9)
    env.step_count = 12
    env.window = None
    env.generator = np.random.default_rng(4)
    env.space = gym.spaces.Discrete(3)
    env.render_mode = "rgb_array"
    assert reader.state_id() == before
    env.place = 1
    assert reader.state_id() != before


def test_ids_and_order_do_not_depend_on_hash_seeds() -> None:
    program = (
        "from tests.wrappers.test_enumerate import Bag, enumerate_mdp;"
        "import sys; sys.stdout.write(enumerate_mdp(Bag()).fingerprint)"
    )
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == enumerate_mdp(Bag()).fingerprint


class Bag(Line):
    """Puts words into a set and takes them out again."""

    words = ("ant", "bee", "cat", "dog")

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.Discrete(4)
        self.bag: set[str] = set()

    def reset(self, **options: Any) -> tuple[int, dict[str, Any]]:
        self.bag = set()
        return super().reset(**options)

    def step(self, action: Any) -> Step:
        self.bag ^= {self.words[action]}
        return 0, float(len(self.bag)), False, False, {}


# -- ends of episodes ----------------------------------------------------------------------


def test_terminated_steps_are_absorbed_or_followed() -> None:
    absorbed = enumerate_mdp(Line())
    assert absorbed.terminal_state == 5
    assert absorbed.indices.tolist() == [0, 1, 0, 2, 1, 3, 2, 4, 3, 5, 5, 5]
    assert absorbed.rewards.ravel().tolist() == [0.0] * 9 + [1.0, 0.0, 0.0]
    followed = enumerate_mdp(Line(), reading=Reading(terminal="table"))
    assert followed.terminal_state is None
    assert followed.indices.tolist() == [0, 1, 0, 2, 1, 3, 2, 4, 3, 4]
    assert followed.rewards[4].tolist() == [0.0, 1.0]
    assert followed.metadata["terminal"] == "table"


def test_no_absorbing_state_where_nothing_ends() -> None:
    mdp = enumerate_mdp(Bag())
    assert mdp.n_states == 16
    assert mdp.terminal_state is None
    assert mdp.metadata["env"] == "Bag"


def test_time_limits_are_refused_unless_frozen() -> None:
    with pytest.raises(
        ExtractionError, match=r"truncated=True at state \d+, action 0.*freeze.*'ticks'"
    ):
        enumerate_mdp(Counting(limit=3), reading=Reading(freeze=["episodes"]))
    mdp = enumerate_mdp(Counting(limit=3), reading=Reading(freeze=["episodes", "ticks"]))
    assert mdp.n_states == 6
    assert mdp.metadata["frozen"] == ["episodes", "ticks"]
    wrapped: gym.Env[Any, Any] = gym.wrappers.TimeLimit(Line(), max_episode_steps=2)
    assert enumerate_mdp(wrapped) == enumerate_mdp(Line())


# -- the caller's environment --------------------------------------------------------------


@pytest.mark.parametrize("is_failing", [False, True])
def test_the_env_is_left_as_it_was(is_failing: bool) -> None:
    env, twin = make(DOORKEY), make(DOORKEY)
    inner: Any = env.unwrapped
    for each in (env, twin):
        each.reset(seed=3)
        for action in (2, 1, 1, 2, 0):
            each.step(action)
    held = dict(vars(inner))
    drawn = inner.np_random.bit_generator.state
    random.seed(5)
    np.random.mtrand.seed(5)
    np.random.mtrand.standard_normal()  # half of a pair is now waiting
    before = random.getstate(), np.random.mtrand.get_state(legacy=False)
    bits = np.random.mtrand.get_bit_generator()
    if is_failing:
        with pytest.raises(StateLimitError):
            enumerate_mdp(env, reading=Reading(max_states=10))
    else:
        enumerate_mdp(env, reading=Reading(checks=8))
    assert list(vars(inner)) == list(held)
    assert all(vars(inner)[name] is held[name] for name in held)
    assert inner.np_random.bit_generator.state == drawn
    after = random.getstate(), np.random.mtrand.get_state(legacy=False)
    assert before[0] == after[0]
    np.testing.assert_equal(before[1], after[1])
    assert np.random.mtrand.get_bit_generator() is bits
    rng = np.random.default_rng(0)
    for _ in range(100):
        action = int(rng.integers(7))
        (one, *rest), (other, *others) = env.step(action), twin.step(action)
        np.testing.assert_equal(one, other)
        assert rest == others


def test_objects_that_reset_changes_in_place_are_left_alone() -> None:
    class Reusing(Line):
        def __init__(self) -> None:
            super().__init__()
            self.path = [7]
            self.own = np.random.default_rng(1)

        def reset(self, **options: Any) -> tuple[int, dict[str, Any]]:
            self.path.clear()
            self.own.random()
            return super().reset(**options)

    env = Reusing()
    state = env.own.bit_generator.state
    enumerate_mdp(env)
    assert env.path == [7]
    assert env.own.bit_generator.state == state
    assert "_np_random" not in vars(env)


def test_nothing_is_drawn_on_screen() -> None:
    class Drawing(Line):
        def step(self, action: Any) -> Step:
            if self.render_mode == "human":
                raise AssertionError
            return super().step(action)

    env = Drawing()
    env.render_mode = "human"
    assert enumerate_mdp(env) == enumerate_mdp(Line())
    assert env.render_mode == "human"


def test_progress_is_reported() -> None:
    told: list[Progress] = []
    enumerate_mdp(make(DOORKEY), reading=Reading(checks=0, starts=1), callback=told.append)
    assert [progress.done for progress in told] == [64, 128, 192, 256, 260]
    assert {progress.stage for progress in told} == {"enumerating"}
    assert [progress.total for progress in told] == [None] * 4 + [260]
    assert told[-1].detail == "0 waiting"


# -- refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("coin", "checks"),
    [("own", 0), ("random", 0), ("numpy", 0), ("random", 256), ("fresh", 256)],
)
def test_stochastic_envs_are_refused(coin: str, checks: int) -> None:
    # A generator made within the step ("fresh") is only found by repeating steps.
    with pytest.raises(StochasticEnvError, match=r"state 3, action \d.*'place'.*estimate_mdp"):
        enumerate_mdp(Slippery(coin), reading=Reading(checks=checks))


def test_a_coin_of_the_environment_is_enumerated() -> None:
    mdp = enumerate_mdp(Slippery("np_random"))
    assert mdp.n_states == 6
    assert [mdp.successors(3, a)[1].tolist() for a in range(2)] == [[0.5, 0.5]] * 2


def test_draws_without_effect_from_other_generators_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Idle(Line):
        def step(self, action: Any) -> Step:
            random.random()
            return super().step(action)

    with caplog.at_level(logging.WARNING):
        assert enumerate_mdp(Idle()) == enumerate_mdp(Line())
    assert "drew random numbers in 10 of 10 steps" in caplog.text


def test_dynamic_obstacles_are_refused() -> None:
    # They look for a free place by drawing until one is.
    match = r"Env is random in a way .* state 0, action 0, .*choice\(those_that_fit\)|4,096"
    with pytest.raises(StochasticEnvError, match=match):
        enumerate_mdp(make("MiniGrid-Dynamic-Obstacles-5x5-v0"))


def test_random_rewards_and_ends_of_other_generators_are_refused() -> None:
    class Noisy(Line):
        is_reward = True

        def step(self, action: Any) -> Step:
            observation, reward, terminated, truncated, info = super().step(action)
            if self.is_reward:
                return observation, random.random(), terminated, truncated, info
            return observation, reward, random.random() < 0.5, truncated, info

    with pytest.raises(StochasticEnvError, match=r"state 0, action 0, the reward was 0\.\d+ and"):
        enumerate_mdp(Noisy())
    Noisy.is_reward = False
    with pytest.raises(StochasticEnvError, match=r"state \d, action \d, terminated was"):
        enumerate_mdp(Noisy())


def test_a_reset_that_cannot_be_repeated_is_refused() -> None:
    with pytest.raises(StochasticEnvError, match=r"reset\(seed=0\).*second time.*'episodes'"):
        enumerate_mdp(Counting(), reading=Reading(freeze=["ticks"]))


def test_the_state_limit_names_the_counter() -> None:
    with pytest.raises(
        StateLimitError, match=r"max_states=200 .*200 were found.*; 'ticks' changed.*freeze"
    ):
        enumerate_mdp(Counting(), reading=Reading(max_states=200))
    with pytest.raises(StateLimitError, match=r"raise max_states.*'grid' \(") as caught:
        enumerate_mdp(make(UNLOCK), reading=Reading(max_states=300))
    assert "changed in every step" not in str(caught.value)
    assert enumerate_mdp(Line(), reading=Reading(max_states=5)).n_states == 6


def test_a_counter_is_named_long_before_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(StateLimitError), caplog.at_level(logging.WARNING):
        enumerate_mdp(Counting(), reading=Reading(max_states=1_200))
    assert "Counting: 'ticks' changed in each of" in caplog.text
    assert "freeze=['ticks']" in caplog.text


def test_state_outside_the_attributes_is_refused() -> None:
    outside = [0]

    class Leaking(Line):
        def reset(self, **options: Any) -> tuple[int, dict[str, Any]]:
            outside[0] = 0
            return super().reset(**options)

        def step(self, action: Any) -> Step:
            outside[0] += 1
            observation, reward, terminated, truncated, info = super().step(action)
            return observation, reward + (outside[0] == 7), terminated, truncated, info

    with pytest.raises(ExtractionError, match=r"state \d, action \d"):
        enumerate_mdp(Leaking())

    class Holding(Line):
        nothing = Key()  # compared by identity, which a copy does not keep

        def reset(self, **options: Any) -> tuple[int, dict[str, Any]]:
            self.held = self.nothing
            return super().reset(**options)

        def step(self, action: Any) -> Step:
            observation, _, terminated, truncated, info = super().step(action)
            return observation, float(self.held is self.nothing), terminated, truncated, info

    with pytest.raises(ExtractionError, match=r"restoring a state does not restore all of it"):
        enumerate_mdp(Holding())


def test_what_cannot_be_pickled_is_refused_unless_frozen() -> None:
    class Locked(Line):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()
            self.shape = lambda: 1  # functions are kept, not copied

    with pytest.raises(ExtractionError, match=r"Locked cannot be pickled, because of 'lock' \(Typ"):
        enumerate_mdp(Locked())
    with pytest.raises(ExtractionError, match="'lock'"):
        StateReader(Locked()).state_id()
    assert enumerate_mdp(Locked(), reading=Reading(freeze=["lock"])).n_states == 6


def test_action_spaces_that_are_no_table() -> None:
    env: Any = Line()
    env.action_space = gym.spaces.Box(0.0, 1.0)
    with pytest.raises(ExtractionError, match=r"must be Discrete, got Box"):
        enumerate_mdp(env)
    env.action_space = gym.spaces.Discrete(2, start=1)
    with pytest.raises(ExtractionError, match=r"numbered from 0"):
        enumerate_mdp(env)
    wrapper: Any = gym.Wrapper(Line())
    wrapper.action_space = gym.spaces.Discrete(1)
    with pytest.raises(ExtractionError, match=r"a wrapper changes the action space"):
        enumerate_mdp(wrapper)


def test_other_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slotted(Line):
        __slots__ = ("secret",)

    with pytest.raises(ExtractionError, match="__slots__"):
        enumerate_mdp(Slotted())
    env: Any = Line()
    env.nothing = object()
    with pytest.raises(ExtractionError, match=r"bare object\(\)"):
        enumerate_mdp(env)
    with pytest.raises(InvalidArgumentError, match="freeze must be a sequence"):
        enumerate_mdp(Line(), reading=Reading(freeze="ticks"))
    with pytest.raises(InvalidArgumentError, match=r"freeze names 'tocks'.*'ticks'"):
        enumerate_mdp(Counting(), reading=Reading(freeze=["tocks"]))
    with pytest.raises(InvalidArgumentError, match="vector"):
        enumerate_mdp(gym.vector.SyncVectorEnv([Line]))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="terminal must be one of"):
        enumerate_mdp(Line(), reading=Reading(terminal="end"))

    class Unbounded(Line):
        def step(self, action: Any) -> Step:
            return 0, math.inf, False, False, {}

    with pytest.raises(ExtractionError, match=r"finite, got inf at state 0, action 0"):
        enumerate_mdp(Unbounded())
    monkeypatch.setattr(module, "_short_id", lambda digest: 1)
    with pytest.raises(ExtractionError, match=r"states 0 and 1 share the id 1"):
        enumerate_mdp(Line())


def test_errors_of_the_env_say_where() -> None:
    class Broken(Line):
        def step(self, action: Any) -> Step:
            if self.place == 2:
                raise RuntimeError("out of order")
            return super().step(action)

    with pytest.raises(RuntimeError, match="out of order") as caught:
        enumerate_mdp(Broken())
    assert caught.value.__notes__ == ["raised by step of Broken, at state 2, action 0"]


# -- action masks --------------------------------------------------------------------------------


class Stairs(gym.Env[Any, Any]):
    """Up or down on five stairs; from the top one jumps off. Down is no action at the bottom."""

    observation_space = gym.spaces.Discrete(6)
    action_space = gym.spaces.Discrete(3)  # down, up, jump

    def __init__(self, *, is_told: bool = True, is_moody: bool = False) -> None:
        self.is_told, self.is_moody = is_told, is_moody
        self.stair = 0

    def _info(self, action: int) -> dict[str, Any]:
        mask = [self.stair > 0, self.stair < 4, self.stair == 4]
        if self.is_moody and action == 0:
            mask[0] = True
        return {"action_mask": np.array(mask, np.int8)} if self.is_told else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.stair = 0
        return 0, self._info(1)

    def step(self, action: Any) -> Step:
        if action == 2:
            assert self.stair == 4
            return 5, 1.0, True, False, {}
        self.stair += 2 * int(action) - 1
        assert 0 <= self.stair < 5
        return self.stair, 0.0, False, False, self._info(int(action))


def test_only_actions_that_there_are_are_taken() -> None:
    mdp = enumerate_mdp(Stairs(), reading=Reading(action_masks=True))
    assert mdp.n_states == 6
    assert mdp.terminal_state == 5
    assert mdp.available.astype(int).tolist() == [
        [0, 1, 0],
        [1, 1, 0],
        [1, 1, 0],
        [1, 1, 0],
        [1, 0, 1],
        [1, 1, 1],
    ]
    assert [int(mdp.successors(0, a)[0][0]) for a in range(3)] == [1, 1, 1]
    assert [int(mdp.successors(4, a)[0][0]) for a in range(3)] == [3, 3, 5]
    assert mdp.rewards[4].tolist() == [0.0, 0.0, 1.0]
    assert value_iteration(mdp, 0.5).policy.tolist() == [1, 1, 1, 1, 2, 0]
    with pytest.raises(AssertionError):
        enumerate_mdp(Stairs())


def test_masks_are_part_of_what_is_remembered() -> None:
    env = Stairs()
    mdp = extract_mdp(env, reading=Reading(action_masks=True))
    assert mdp.metadata["method"] == "enumeration"
    assert mdp.metadata["action_masks"] is True
    assert extract_again(env, Reading(max_states=10, action_masks=True)) == mdp
    with pytest.raises(AssertionError):
        extract_again(env, Reading(max_states=10))


def test_masks_must_be_told_and_belong_to_states() -> None:
    with pytest.raises(ExtractionError, match=r"Stairs does not tell .* into info, or extract it"):
        enumerate_mdp(Stairs(is_told=False), reading=Reading(action_masks=True))
    with pytest.raises(
        ExtractionError, match=r"state 0 was met with two action masks, \[0, 1, 0\]"
    ):
        enumerate_mdp(Stairs(is_moody=True), reading=Reading(action_masks=True))
