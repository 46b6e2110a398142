"""Rooms and the frozen lake, small enough to be abstracted at once."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from bisim_abstract._verify import remembered

ROOMS = "bisim_abstract/RoomsGrid-v0"


GAMMA = 0.9


IS_WRAPPED = "ignore:.*is different from the unwrapped version"


def rooms(**kwargs: Any) -> gym.Env[Any, Any]:
    return gym.make(ROOMS, side=6, room_size=3, slip=0.4, **kwargs)


def lake(**kwargs: Any) -> gym.Env[Any, Any]:
    return gym.make("FrozenLake-v1", **kwargs)


# -- refusals ----------------------------------------------------------------------------------


class Counted:
    """Stands in for the verifier, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        remembered.known_claims.clear()
        home = importlib.import_module("bisim_abstract._verify.verify")
        self._judge = home._Check.judge
        monkeypatch.setattr(home._Check, "judge", lambda check, claims: self(check, claims))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self._judge(*args, **kwargs)


# -- the environment and its model -------------------------------------------------------------


class Tilted(gym.Env[np.int64, np.int64]):
    """Two states that stay, paid 0 and 1; three starts in four are in the first."""

    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.Discrete(1)
    P = {k: {0: [(1.0, k, float(k), False)]} for k in range(2)}  # noqa: RUF012
    initial_state_distrib = np.array([0.75, 0.25])
    s = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.s = int(self.np_random.random() >= 0.75)
        return np.int64(self.s), {}

    def step(self, action: Any) -> Any:
        return np.int64(self.s), float(self.s), False, False, {}


# -- steps -------------------------------------------------------------------------------------


class Leaves(gym.Env[np.int64, np.int64]):
    """Two live states that nearly nothing tells apart; one in 20 steps from 0 ends it."""

    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.Discrete(1)
    P = {  # noqa: RUF012
        0: {0: [(0.05, 0, 0.0, True), (0.95, 1, 0.0, False)]},
        1: {0: [(1.0, 0, 0.0, False)]},
    }
    initial_state_distrib = np.array([1.0, 0.0])
    s = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.s = 0
        return np.int64(0), {}

    def step(self, action: Any) -> Any:
        if self.s == 0 and self.np_random.random() < 0.05:
            return np.int64(0), 0.0, True, False, {}
        self.s = 1 - self.s
        return np.int64(self.s), 0.0, False, False, {}


# -- conventions -------------------------------------------------------------------------------


def walk(env: gym.Env[Any, Any]) -> list[int]:
    seen = [int(env.reset(seed=11)[0])]
    for k in range(50):
        observation, _, terminated, truncated, _ = env.step(k % 4)
        seen.append(int(observation))
        if terminated or truncated:
            seen.append(int(env.reset()[0]))
    return seen
