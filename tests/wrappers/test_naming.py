"""Names of states and actions of environments that are known."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

from bisim_abstract import Reading
from bisim_abstract.wrappers import Distractor, RoomsGridEnv, extract_mdp

TAXI = "Taxi-v3" if "Taxi-v3" in gym.registry else "Taxi-v4"


def test_taxi_is_called_as_it_decodes_itself() -> None:
    mdp, env = extract_mdp(TAXI), gym.make(TAXI).unwrapped
    variables = {v.name: v for v in mdp.names.variables}
    assert list(variables) == ["row", "column", "passenger", "destination"]
    for state in range(0, 500, 7):
        decoded = [int(x) for x in env.decode(state)]  # type: ignore[attr-defined]
        assert [int(v.values[state]) for v in variables.values()] == decoded
    assert variables["passenger"].text(16) == "passenger=in the taxi"
    assert mdp.state_name(500) == "the end"


MOVES = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
MOVES |= {"west": (0, -1), "east": (0, 1), "north": (-1, 0), "south": (1, 0)}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("FrozenLake-v1", {"desc": ["SFF", "FFF", "FFG"], "is_slippery": False}),
        ("CliffWalking-v1", {}),
        (TAXI, {}),
    ],
)
def test_actions_go_where_they_say(name: str, options: dict[str, Any]) -> None:
    mdp = extract_mdp(name, env_args=options)
    row, column = (v.values for v in mdp.names.variables[:2])
    moved = 0
    for state in range(mdp.n_states - 1):
        for action in range(mdp.n_actions):
            (after,) = mdp.successors(state, action)[0]
            way = MOVES.get(mdp.action_name(action), (0, 0))
            if after == mdp.terminal_state:
                continue
            step = (row[after] - row[state], column[after] - column[state])
            if step == (0, 0):
                continue  # against a wall
            if name.startswith("Cliff") and (row[after], column[after]) == (3, 0):
                continue  # back from the cliff
            assert step == way
            moved += 1
    assert moved > 15


def test_rooms_are_called_by_their_cells() -> None:
    env = RoomsGridEnv(side=6, room_size=2, slip=0.0)
    mdp = env.to_mdp()
    assert mdp.state_name(13) == "row=2, column=1"
    assert mdp.action_name(2) == "down"
    assert mdp.successors(13, 2)[0].tolist() == [25]  # the same cell of the room below


def test_backgrounds_are_named_beside_what_they_multiply() -> None:
    mdp = extract_mdp(Distractor(gym.make("FrozenLake-v1"), n_background=3))
    assert mdp.state_name(4) == "row=0, column=1, background=1"
    assert mdp.state_name(mdp.n_states - 1) == "the end"
    assert mdp.names.actions == ("left", "down", "right", "up")


def test_what_is_not_surely_known_has_no_names() -> None:
    class Other(FrozenLakeEnv):
        pass

    mdp = extract_mdp(Other())
    assert mdp.names.actions is None
    assert not mdp.names.variables


def test_names_stay_with_reachable_states() -> None:
    part = extract_mdp("FrozenLake-v1", reading=Reading(reachable_only=True))
    row, column = (v.values for v in part.names.variables)
    ids = part.state_ids[:-1]
    assert np.array_equal(row[:-1] * 4 + column[:-1], ids)


def test_states_of_minigrid() -> None:
    pytest.importorskip("minigrid")
    mdp = extract_mdp("MiniGrid-DoorKey-5x5-v0", reading=Reading(starts=1))
    assert mdp.state_name(0) == (
        "row=3, column=1, facing=left, carrying=nothing, yellow door=locked, "
        "lying=yellow key at 2,1"
    )
    assert mdp.state_name(mdp.n_states - 1) == "the end"
    carrying = {v.name: v for v in mdp.names.variables}["carrying"]
    assert carrying.words == ("nothing", "yellow key")


def test_a_minigrid_of_another_kind_has_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minigrid")

    def fail(self: object, inner: object) -> None:
        raise TypeError("no such agent")

    monkeypatch.setattr("bisim_abstract.wrappers._naming.MiniGridStates.add", fail)
    assert extract_mdp("MiniGrid-Empty-5x5-v0").names.variables == ()


def test_actions_of_minigrid() -> None:
    pytest.importorskip("minigrid")
    mdp = extract_mdp("MiniGrid-Empty-5x5-v0")
    assert mdp.names.actions == ("left", "right", "forward", "pickup", "drop", "toggle", "done")
