"""Rooms and the frozen lake, small enough to be abstracted at once."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from bisim_abstract import Certificate, Reading, certify, prove_value
from bisim_abstract._verify import remembered
from bisim_abstract.wrappers import extract_mdp

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
    """Two states that stay or end, paid 1 and 2; three starts in four are in the first."""

    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.Discrete(1)
    P = {k: {0: [(0.5, k, k + 1.0, x) for x in (False, True)]} for k in range(2)}  # noqa: RUF012
    initial_state_distrib = np.array([0.75, 0.25])
    s = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.s = int(self.np_random.random() >= 0.75)
        return np.int64(self.s), {}

    def step(self, action: Any) -> Any:
        return np.int64(self.s), self.s + 1.0, bool(self.np_random.random() < 0.5), False, {}


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


# -- names of actions --------------------------------------------------------------------------


class Fork(gym.Env[Any, Any]):
    """A hall from which chance leads left or right, to rooms that are mirror images.

    In the left room (0) action 1 finds the way out, in the right one (1) action 0 does, and pays
    1; all others stay. Whatever is done in the hall (2) pays 10. So rooms are alike once actions
    are renamed: "stay" (0) and "go" (1) in both, of three actions each. The hall has one name.

    Args:
        is_dark: Whether both rooms look the same.
    """

    action_space = gym.spaces.Discrete(3)
    initial_state_distrib = np.array([0.0, 0.0, 1.0])
    renaming = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]])  # the last is the end
    clusters = (0, 0, 1, 2)

    def __init__(self, *, is_dark: bool = False) -> None:
        self.is_dark = is_dark
        self.observation_space = gym.spaces.Discrete(3)
        self.P = {
            2: {a: [(0.5, 0, 10.0, False), (0.5, 1, 10.0, False)] for a in range(3)},
        }
        for room in (0, 1):
            self.P[room] = {
                a: [(1.0, room, 1.0, True)] if a == 1 - room else [(1.0, room, 0.0, False)]
                for a in range(3)
            }
        self.s = 2

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.s = 2
        return self._seen(), {"action_mask": np.ones(3, np.int8)}

    def step(self, action: Any) -> Any:
        outcomes = self.P[self.s][int(action)]
        _, self.s, reward, is_over = outcomes[int(self.np_random.integers(len(outcomes)))]
        return self._seen(), reward, is_over, False, {"action_mask": np.ones(3, np.int8)}

    def _seen(self) -> np.int64:
        return np.int64(0 if self.is_dark and self.s < 2 else self.s)


def of_fork(**options: Any) -> Certificate:
    """A certificate of its two clusters, whose value renames actions."""
    mdp = extract_mdp(Fork(**options), reading=Reading(checks=0))
    found = certify(mdp, GAMMA, tau=6.0)
    value = prove_value(mdp, found.labels_upper, GAMMA, renaming=Fork.renaming)
    return found.with_proven(value)


# -- conventions -------------------------------------------------------------------------------


def walk(env: gym.Env[Any, Any]) -> list[int]:
    seen = [int(env.reset(seed=11)[0])]
    for k in range(50):
        observation, _, terminated, truncated, _ = env.step(k % 4)
        seen.append(int(observation))
        if terminated or truncated:
            seen.append(int(env.reset()[0]))
    return seen
