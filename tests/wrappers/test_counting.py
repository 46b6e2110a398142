"""Environments that count their steps: time limits, and rewards that depend on the count."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from bisim_abstract import Reading, TabularMDP, abstract_env, certify
from bisim_abstract.wrappers import (
    AbstractedEnv,
    Distractor,
    ModelEnv,
    TabularEnv,
    enumerate_mdp,
    extract_mdp,
)
from bisim_abstract.wrappers._source import time_limit_in
from tests.support.counting import Door

FROZEN = ("steps",)
FALL = "rewards as at step 0 (the environment's fall with the steps taken)"


class Limited(Door):
    """Ends by itself after some steps, and does not say in an attribute when."""

    def __init__(self, limit: int = 37) -> None:
        self.make_limit: Callable[[], int] = lambda: limit

    def step(self, action: Any) -> Any:
        seen, reward, is_over, _, info = super().step(action)
        return seen, reward, is_over, self.steps >= self.make_limit(), info


class Told(Limited):
    """Says so, among other numbers."""

    def __init__(self, limit: int = 37) -> None:
        super().__init__(limit)
        self.most, self.version, self.size = limit, limit - 1, 10**9


class Down(Door):
    """Counts down."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        found = super().reset(seed=seed)
        self.left = 9
        return found

    def step(self, action: Any) -> Any:
        self.left -= 1
        seen, reward, is_over, _, info = super().step(action)
        return seen, reward, is_over, self.left == 0, info


@pytest.mark.parametrize("kind", [Limited, Told])
@pytest.mark.parametrize("limit", [2, 3, 4, 5, 37, 64, 1_000, 65_536])
def test_inner_limits_are_found(kind: Any, limit: int) -> None:
    mdp = extract_mdp(kind(limit), reading=Reading(freeze=("steps", "make_limit")))
    assert mdp.metadata["time_limit"] == limit


def test_the_least_limit_holds() -> None:
    freeze = ("steps", "make_limit")
    for outer, expected in ((20, 20), (50, 37)):
        env: Any = gym.wrappers.TimeLimit(Limited(), outer)
        assert extract_mdp(env, reading=Reading(freeze=freeze)).metadata["time_limit"] == expected
        assert enumerate_mdp(env, reading=Reading(freeze=freeze)).metadata["time_limit"] == expected
    assert extract_mdp("FrozenLake-v1").metadata["time_limit"] == 100
    assert extract_mdp("FrozenLake-v1", env_args={"max_episode_steps": 7}).metadata[
        "time_limit"
    ] == 7  # fmt: skip
    assert "time_limit" not in extract_mdp(Door(), reading=Reading(freeze=FROZEN)).metadata
    # A count that runs down is none that steps add to: nothing is claimed.
    assert (
        "time_limit" not in extract_mdp(Down(), reading=Reading(freeze=("steps", "left"))).metadata
    )


def test_limits_are_no_part_of_the_model() -> None:
    freeze = ("steps", "make_limit")
    short, long = (
        extract_mdp(Limited(limit), reading=Reading(freeze=freeze)) for limit in (20, 40)
    )
    assert short.fingerprint == long.fingerprint


class Frail(Limited):
    """Cannot be stepped beyond its limit."""

    def step(self, action: Any) -> Any:
        if self.steps > 40:
            raise IndexError("no such step")
        return super().step(action)


def test_counts_that_an_environment_never_has() -> None:
    mdp = extract_mdp(Frail(), reading=Reading(freeze=("steps", "make_limit")))
    assert "time_limit" not in mdp.metadata


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_episodes_of_an_abstraction_end_in_time(dynamics: str) -> None:
    small = abstract_env(
        Limited(), gamma=0.9, reading=Reading(freeze=("steps", "make_limit")), dynamics=dynamics
    )
    assert episode(small) == 37
    assert "end after 37 steps" in small.summary()


def test_a_limit_of_a_file_is_not_trusted() -> None:
    mdp = TabularMDP.from_dense([[[0.0, 1.0]], [[1.0, 0.0]]], [[1.0], [0.0]])
    for told in ("7", 0, -3, True, 2.5, [7], None):
        assert time_limit_in(mdp.with_metadata(time_limit=told)) is None
        model = mdp.with_metadata(conditions=told)
        small = AbstractedEnv(ModelEnv(model), certify(model, 0.9, tau=1e-9))
        assert "only" not in small.summary()
    model = mdp.with_metadata(conditions=["on \x1b[31mred"])
    small = AbstractedEnv(ModelEnv(model), certify(model, 0.9, tau=1e-9))
    assert "red" in small.summary()
    assert "\x1b" not in small.summary()


def test_a_model_has_not_the_limit_of_what_it_is_a_model_of() -> None:
    """Neither kind of steps may end where the other goes on."""
    mdp = extract_mdp(Limited(), reading=Reading(freeze=("steps", "make_limit")))
    assert mdp.metadata["time_limit"] == 37
    assert "time_limit" not in extract_mdp(ModelEnv(mdp)).metadata
    for dynamics in ("aggregated", "ground"):
        assert episode(abstract_env(mdp, gamma=0.9, dynamics=dynamics)) == 1_000


def episode(env: gym.Env[Any, Any]) -> int:
    """How many steps an episode takes that does not reach its goal."""
    env.reset(seed=0)
    for steps in range(1, 5_000):
        _, _, terminated, truncated, _ = env.step(0)
        assert not terminated
        if truncated:
            return steps
    return 0


# -- MiniGrid ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_minigrid_ends_after_its_steps(dynamics: str) -> None:
    pytest.importorskip("minigrid")
    small = abstract_env("MiniGrid-Empty-5x5-v0", gamma=0.9, dynamics=dynamics)
    assert small.mdp.metadata["time_limit"] == 100
    assert episode(small) == 100
    assert FALL in small.summary()


def test_minigrid_against_backgrounds_ends_too() -> None:
    pytest.importorskip("minigrid")
    ground = Distractor(gym.make("MiniGrid-Empty-5x5-v0"), n_background=2)
    mdp = extract_mdp(ground)
    assert mdp.metadata["time_limit"] == 100
    assert episode(AbstractedEnv(ground, certify(mdp, 0.9), mdp=mdp)) == 100


@pytest.mark.parametrize("kind", ["aggregated", "ground", "tabular"])
@pytest.mark.parametrize("name", ["Empty-5x5", "Empty-Random-5x5"])
def test_gymnasium_finds_nothing_wrong(name: str, kind: str) -> None:
    pytest.importorskip("minigrid")
    ground = gym.make(f"MiniGrid-{name}-v0", render_mode="rgb_array")
    env: Any
    if kind == "tabular":
        env = TabularEnv(ground)
    else:
        env = abstract_env(ground, gamma=0.9, n_clusters=31, dynamics=kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_env(env, skip_render_check=True)


def test_resets_take_the_generator_of_the_seed_that_was_asked_for() -> None:
    env = TabularEnv(Door(), reading=Reading(freeze=FROZEN))
    drawn = []
    for seed in (1, 2, 1):
        env.reset(seed=seed)
        drawn.append(env.unwrapped.np_random.integers(2**40))
        assert env.unwrapped.np_random_seed == seed
    assert drawn[0] == drawn[2] != drawn[1]


# -- rewards -------------------------------------------------------------------------------------


class Scaled(Door):
    """What the door pays moves with the steps taken."""

    def __init__(self, by: float) -> None:
        self.by = by

    def step(self, action: Any) -> Any:
        seen, reward, *rest = super().step(action)
        return seen, reward * (1.0 + self.by * self.steps), *rest


class Waves(Door):
    """Every step pays, one more and another less, as steps go by."""

    def step(self, action: Any) -> Any:
        seen, _, *rest = super().step(action)
        return seen, (-1.0, 1.0)[action] * self.steps, *rest


@pytest.mark.parametrize(
    ("env", "trend"),
    [(Scaled(-0.01), "fall"), (Scaled(0.01), "rise"), (Waves(), "change"), (Scaled(0.0), "")],
)
def test_rewards_that_depend_on_the_steps_are_named(env: Any, trend: str) -> None:
    mdp = extract_mdp(env, reading=Reading(freeze=FROZEN))
    expected = f"rewards as at step 0 (the environment's {trend} with the steps taken)"
    assert mdp.metadata["conditions"] == ([expected] if trend else [])
    # They are those of first steps.
    assert np.abs(mdp.rewards).max() == 1.0 + getattr(env, "by", 0.0)


def test_steps_that_count_as_state_need_no_condition() -> None:
    class Short(Scaled):
        def step(self, action: Any) -> Any:
            seen, reward, is_over, cut, info = super().step(action)
            return seen, reward, is_over or self.steps >= 8, cut, info

    assert extract_mdp(Short(-0.01), reading=Reading(freeze=())).metadata["conditions"] == []
