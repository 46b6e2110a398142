"""Spaces of finitely many values, and what is said of those that are not."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import DiscretizeObservation

from bisim_abstract._model.space_rows import SpaceRows
from bisim_abstract.errors import ExtractionError
from bisim_abstract.wrappers import extract_mdp
from bisim_abstract.wrappers._source import numbering_advice

FEW = [
    (spaces.Box(-1, 1, (2, 2), np.int64), 81),
    (spaces.Dict({"a": spaces.Box(0, 4, (2,), np.int64), "b": spaces.Discrete(3)}), 75),
    (spaces.Tuple([spaces.Box(2, 3, (), np.int8), spaces.MultiBinary(2)]), 8),
]


@pytest.mark.parametrize(("space", "count"), FEW, ids=range(len(FEW)))
def test_boxes_of_integers_count_their_states(space: Any, count: int) -> None:
    rows = SpaceRows(space)
    assert rows.n_states == count
    listed = [rows.observation(state) for state in range(count)]
    assert all(space.contains(observation) for observation in listed)
    batch: Any = listed
    if isinstance(space, spaces.Dict):
        batch = {key: np.stack([each[key] for each in listed]) for key in space.spaces}
    elif isinstance(space, spaces.Tuple):
        batch = [np.stack(part) for part in zip(*listed, strict=True)]
    assert rows.rows(batch, count).tolist() == list(range(count))


def test_images_and_mixtures_stay_vectors() -> None:
    image = spaces.Box(0, 255, (7, 7, 3), np.uint8)
    assert SpaceRows(image).n_states is None
    assert SpaceRows(image).width == 147
    mixed = spaces.Tuple([spaces.Box(0, 3, (2,), np.int64), spaces.Box(0.0, 1.0, (1,))])
    assert SpaceRows(mixed).n_states is None
    assert SpaceRows(mixed).width == 3
    wide = spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64)
    assert SpaceRows(wide).n_states is None


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiDiscrete([3, 2]),
        spaces.MultiDiscrete([2, 2], start=[1, -1]),
        spaces.MultiBinary(3),
        spaces.Box(-1, 1, (2, 1), np.int64),
        spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3, start=5)]),
    ],
)
def test_actions_are_numbered_as_advised(space: Any) -> None:
    advice = numbering_advice(space)
    action_space = eval(
        advice.partition("action_space ")[2].partition(", and")[0], {"gymnasium": gym}
    )
    line = advice.partition("action = ")[2]
    met = set()
    for action in range(int(action_space.n)):
        found = eval(line, {"numpy": np, "action": action})
        if isinstance(space, spaces.Tuple):
            assert space.contains(tuple(found))
        else:
            assert space.contains(found.astype(space.dtype))
        met.add(found.tobytes())
    assert len(met) == action_space.n


class Lights(gym.Env[Any, Any]):
    """Two lights, each of which is switched or not."""

    observation_space = spaces.Dict({"lights": spaces.Box(0, 1, (2,), np.int64)})

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.action_space = space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.lights = np.zeros(2, np.int64)
        return {"lights": self.lights.copy()}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if isinstance(self.action_space, spaces.Discrete):
            action = np.array(np.unravel_index(action, (2, 2)))
        self.lights = self.lights ^ action
        return {"lights": self.lights.copy()}, float(self.lights.all()), False, False, {}


def test_actions_of_several_numbers_say_how_to_number_them() -> None:
    with pytest.raises(ExtractionError, match=r"Discrete\(4\), and begin step with action = numpy"):
        extract_mdp(Lights(spaces.MultiBinary(2)))
    assert extract_mdp(Lights(spaces.Discrete(4))).n_states == 4
    with pytest.raises(ExtractionError, match="choose finitely many, few of them, and number"):
        extract_mdp("Pendulum-v1")


def test_cells_are_no_states() -> None:
    env: Any = DiscretizeObservation(gym.make("MountainCar-v0"), bins=10)
    with pytest.raises(ExtractionError, match=r"DiscretizeObservation, are no Markov states"):
        extract_mdp(env)
