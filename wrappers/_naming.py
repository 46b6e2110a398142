"""What states and actions of environments that are surely known are called, as documented there.

A class that is derived from one of them may mean something else by the same numbers, and gets no
names.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from bisim_abstract._base.types import IntArray
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._model.names import UNKNOWN, Names, Variable

# By class: the names of actions, and words for digits of state numbers.
TOY_TEXT: dict[str, tuple[tuple[str, ...], dict[str, tuple[str, ...]]]] = {
    "frozen_lake.FrozenLakeEnv": (("left", "down", "right", "up"), {}),
    "cliffwalking.CliffWalkingEnv": (("up", "right", "down", "left"), {}),
    "taxi.TaxiEnv": (
        ("south", "north", "east", "west", "pick up", "drop off"),
        {
            "passenger": ("red", "green", "yellow", "blue", "in the taxi"),
            "destination": ("red", "green", "yellow", "blue"),
        },
    ),
}
HOME = "gymnasium.envs.toy_text."


def named_as_in_gymnasium(
    mdp: TabularMDP, inner: object, digits: Sequence[Sequence[Any]]
) -> TabularMDP:
    """The model with names, if it is of one of Gymnasium's grids; else as it is.

    Args:
        mdp: The model; a state that it adds for the end of episodes has none of the variables.
        inner: The environment, unwrapped.
        digits: Names and sizes of what state numbers are made up of.
    """
    kind = type(inner)
    known = TOY_TEXT.get(f"{kind.__module__}.{kind.__name__}".removeprefix(HOME))
    if known is None or not digits or len(known[0]) != mdp.n_actions:
        return mdp
    actions, words = known
    variables = grid_variables(mdp.state_ids, digits, words)
    return replace(mdp, names=Names(actions=actions, variables=variables))


def grid_variables(
    ids: IntArray,
    digits: Sequence[Sequence[Any]],
    words: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> tuple[Variable, ...]:
    """Variables that are the digits of state ids, the first of them being the most significant."""
    rest: IntArray = ids
    is_added = rest < 0
    found = []
    for name, size in reversed(digits):
        rest, value = np.divmod(rest, size)
        values = np.where(is_added, UNKNOWN, value)
        found.append(Variable(name=name, values=values, words=words.get(name)))
    return tuple(reversed(found))


def named_as_in_minigrid(mdp: TabularMDP, inner: object) -> TabularMDP:
    """The model with MiniGrid's names of actions, if it is one of its environments."""
    home = sys.modules.get("minigrid.core.actions")
    actions: Any = getattr(inner, "actions", None)
    if home is None or actions is not home.Actions:
        return mdp
    if [int(action) for action in actions] != list(range(mdp.n_actions)):
        return mdp
    return mdp.with_names(actions=[str(action.name) for action in actions])
