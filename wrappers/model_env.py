"""`ModelEnv`: any model as an environment, so that agents can learn on it and be compared."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from bisim_abstract._base.checks import check_choice, check_int
from bisim_abstract._base.types import BoolArray, FloatArray
from bisim_abstract._model.files import read_model
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract.errors import InvalidArgumentError
from bisim_abstract.wrappers._rows import ModelRows
from bisim_abstract.wrappers._source import plain_action

# Episodes of models that come by a path or an id are cut here, as models need not end: far enough
# for most goals to be met by chance, and soon enough for agents to see many starts.
MAX_STEPS = 1_000


class ModelEnv(gym.Env[np.int64, np.int64 | int]):
    """A `TabularMDP` as an environment: what was read from a file can be stepped and learned on.

    A step draws the next state from the row of the present state and action, and pays the expected
    reward of both. Episodes start as the model's `start` says, and end when a state is entered
    that is never left and pays nothing (`mdp.absorbing`, the `terminal_state` among them).
    Models need not have such states: put a `gymnasium.wrappers.TimeLimit` around those.

    Observations are the model's state numbers. `info` has "action_mask" (int8), which actions the
    present state has, and "state_name", what it is called; `action_masks()` tells the former to
    MaskablePPO of sb3-contrib. An action that a state lacks does what its first one does, as in
    the model and in `AbstractedEnv`.

    It describes itself: `extract_mdp(ModelEnv(mdp))` is `mdp`, names included, and everything
    that takes an environment takes this one. Registered as `bisim_abstract/Model-v0`, with a limit
    of 1,000 steps: `gymnasium.make("bisim_abstract/Model-v0", path="model.npz")`.

    Args:
        mdp: The model; or else
        path: the path of a file of one, as `read_model` reads it. Give a path if the specification
            of the environment is to be written as JSON.
        render_mode: "ansi" or None.

    Attributes:
        mdp: The model.
        s: The number of the present state.

    Raises:
        InvalidArgumentError: If there is no model, or both; or if its states cannot be told apart
            by their ids, or episodes may start at the end.

    Example:
        >>> go, stay = [[0.0, 1.0], [0.0, 1.0]], np.eye(2)
        >>> mdp = TabularMDP.from_matrices([go, stay], np.array([[0.0, 1.0], [0.0, 0.0]]))
        >>> env = ModelEnv(mdp.with_names(states=["home", "away"], actions=["go", "stay"]))
        >>> env.reset(options={"state": 0})[1]["state_name"]
        'home'
        >>> observation, reward, terminated, truncated, info = env.step(0)
        >>> info["state_name"], reward, terminated
        ('away', 0.0, True)
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012
    ends_in_states = True

    def __init__(
        self,
        mdp: TabularMDP | None = None,
        *,
        path: str | Path | None = None,
        render_mode: str | None = None,
    ) -> None:
        mdp = checked_model(mdp, path)
        if render_mode is not None:
            check_choice("render_mode", render_mode, tuple(self.metadata["render_modes"]))
        self.mdp = mdp
        self.render_mode = render_mode
        self.observation_space = spaces.Discrete(mdp.n_states)
        self.action_space = spaces.Discrete(mdp.n_actions)
        self._rows = ModelRows(mdp)
        self._ends = mdp.absorbing
        self._places: dict[int, int] | None = None
        self.s: int | None = None
        self._last: int | None = None  # the row of the last step

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelEnv:
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        memo[id(self.mdp)] = self.mdp  # which nobody can change
        for name, value in self.__dict__.items():
            twin.__dict__[name] = copy.deepcopy(value, memo)
        return twin

    # -- acting ----------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Of all that is drawn from now on.
            options: {"state": s} to start in state s.
        """
        super().reset(seed=seed)
        wanted = (options or {}).get("state")
        if wanted is None:
            self.s = self._rows.start(self.np_random.random())
        else:
            self.s = check_int(
                'options["state"]', plain_action(wanted), low=0, high=self.mdp.n_states - 1
            )
        self._last = None
        return np.int64(self.s), self._info(self.s)

    def step(self, action: np.int64 | int) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Draw the next state."""
        rows = self._rows
        act = action
        if type(act) is not int or not 0 <= act < rows.n_actions:
            act = check_int("action", plain_action(act), low=0, high=rows.n_actions - 1)
        row = self._present("step()") * rows.n_actions + act
        self.s = state = rows.follow(row, self.np_random.random())
        self._last = row
        is_end = self._ends.item(state)
        return np.int64(state), rows.rewards[row], is_end, False, self._info(state)

    def action_masks(self) -> BoolArray:
        """(n_actions) which actions the present state has, as MaskablePPO asks for them."""
        return np.array(self.mdp.available[self._present("action_masks()")])

    def _info(self, state: int) -> dict[str, Any]:
        mask = self.mdp.available[state].astype(np.int8)
        return {"action_mask": mask, "state_name": self.mdp.state_name(state)}

    def _present(self, call: str) -> int:
        if self.s is None:
            raise ResetNeeded(f"call reset() before {call}")
        return self.s

    # -- describing itself -----------------------------------------------------------------

    def to_mdp(self, *, terminal: str = "absorb") -> TabularMDP:
        """The model itself; its metadata says that it was one.

        Args:
            terminal: Accepted for uniformity: a model has no other table beyond its ends.
        """
        check_choice("terminal", terminal, ("absorb", "table"))
        mdp = self.mdp
        if "time_limit" in mdp.metadata:  # of the environment that it was a model of
            kept = {name: entry for name, entry in mdp.metadata.items() if name != "time_limit"}
            mdp = dataclasses.replace(mdp, metadata=kept)
        about = {"model_of": mdp.metadata["env"]} if "env" in mdp.metadata else {}
        return mdp.with_metadata(method="model", **about)

    def state_id(self) -> int:
        """The id of the present state, one of the model's `state_ids`."""
        return self.mdp.state_ids.item(self._present("state_id()"))

    def action_mask(self, state: int) -> BoolArray:
        """(n_actions) which actions a state has, given by its id."""
        return np.array(self.mdp.available[self.observation_of(state)])

    def observation_of(self, state: int) -> np.int64:
        """The number of a state, given by its id; -1 is the end."""
        if self._places is None:
            self._places = {ident: k for k, ident in enumerate(self.mdp.state_ids.tolist())}
        return np.int64(self._places[state])

    def end_observations(self) -> list[np.int64]:
        """What only the end of an episode shows: the number of `terminal_state`, if there is."""
        end = self.mdp.terminal_state
        return [] if end is None else [np.int64(end)]

    @property
    def initial_state_distrib(self) -> FloatArray:
        """(n_states) the model's start distribution."""
        return self.mdp.start

    # -- showing ---------------------------------------------------------------------------

    def render(self) -> str | None:  # type: ignore[override]
        """The present state, and what the last action was and paid, as text."""
        if self.render_mode is None:
            gym.logger.warn("render() needs a render mode: ModelEnv(mdp, render_mode='ansi')")
            return None
        lines = []
        if self._last is not None:
            name = self.mdp.action_name(self._last % self.mdp.n_actions)
            lines.append(f"{name} paid {self._rows.rewards[self._last]:g}")
        lines.append(self.mdp.state_name(self._present("render()")))
        return "\n".join(lines) + "\n"


def checked_model(mdp: TabularMDP | None, path: str | Path | None) -> TabularMDP:
    """The model that is given, or that of a file, if it can be an environment."""
    if (mdp is None) == (path is None):
        raise InvalidArgumentError("give either a model or the path of one: mdp=... or path=...")
    if path is not None:
        mdp = read_model(path)
    check_mdp(mdp)
    assert mdp is not None
    problem = refusal(mdp)
    if problem:
        raise InvalidArgumentError(problem)
    return mdp


def refusal(mdp: TabularMDP) -> str:
    """Why a model cannot be an environment: ids do not tell states apart, or it starts at its end.

    Empty if it can.
    """
    end = mdp.terminal_state
    unknown = np.flatnonzero(mdp.state_ids < 0)
    unknown = unknown[unknown != (-1 if end is None else end)]
    if unknown.size:
        return (
            "mdp.state_ids must be at least 0 except at the terminal state, got "
            f"{mdp.state_ids[unknown[0]]} at state {unknown[0]}; leave state_ids out, and states "
            "are numbered"
        )
    if end is not None and mdp.start[end] > 0.0:
        return (
            f"episodes must not start at the end, but mdp.start is {mdp.start[end]:g} at the "
            f"terminal state {end}"
        )
    return ""
