"""Small models by hand, tables of Gymnasium, and parts of both."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from bisim_abstract import TabularMDP
from bisim_abstract.parts import Estimate

Outcome = tuple[float, int, float, bool]


Table = Mapping[int, Mapping[int, list[Outcome]]]


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
