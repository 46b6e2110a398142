"""What states and actions of environments that are surely known are called, as documented there.

A class that is derived from one of them may mean something else by the same numbers, and gets no
names.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from bisim_abstract._base.types import IntArray
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._model.names import UNKNOWN, Names, Variable, as_variable

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
MOST_VARIABLES, MOST_LETTERS, MOST_ENTRIES = 12, 40, 4  # of attributes that name states
HOME = "gymnasium.envs.toy_text."
FACING = ("right", "down", "left", "up")  # MiniGrid's numbers of directions
STILL = frozenset({"wall", "floor", "goal", "lava"})  # what no action of MiniGrid moves or changes


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


def grid_letters(inner: object, digits: Sequence[Sequence[Any]]) -> list[str]:
    """What Gymnasium's grids print in their cells, row by row; nothing for others."""
    kind = f"{type(inner).__module__}.{type(inner).__name__}".removeprefix(HOME)
    sizes = {name: int(size) for name, size in digits}
    if kind == "frozen_lake.FrozenLakeEnv":
        desc = np.asarray(inner.desc)  # type: ignore[attr-defined]
        rows = ["".join(cell.decode("ascii", "replace") for cell in row) for row in desc]
    elif kind == "taxi.TaxiEnv":
        cells = [[" "] * 5 for _ in range(5)]
        for letter, (row, column) in zip("RGYB", inner.locs, strict=True):  # type: ignore[attr-defined]
            cells[row][column] = letter
        rows = ["".join(row) for row in cells]
    elif kind == "cliffwalking.CliffWalkingEnv":
        rows = [" " * 12] * 3 + ["S" + "C" * 10 + "G"]
    else:
        return []
    fits = len(rows) == sizes["row"] and all(len(row) == sizes["column"] for row in rows)
    return rows if fits else []


class MiniGridStates:
    """Collects what tells states of a MiniGrid environment apart, one state after the other.

    These are the agent's place and direction, what it carries, whether doors are open, and where
    things lie. What is the same in all states is left out, except for the agent's place.
    """

    def __init__(self) -> None:
        self._seen: list[dict[str, str | int]] = []

    @staticmethod
    def knows(inner: object) -> bool:
        """Whether it is one of MiniGrid's environments."""
        home = sys.modules.get("minigrid.minigrid_env")
        return home is not None and isinstance(inner, home.MiniGridEnv)

    def add(self, inner: Any) -> None:
        """Take down the state that the environment is in."""
        column, row = (int(x) for x in inner.agent_pos)
        found: dict[str, str | int] = {"row": row, "column": column}
        found["facing"] = FACING[int(inner.agent_dir)]
        held = inner.carrying
        found["carrying"] = "nothing" if held is None else f"{held.color} {held.type}"
        lying, things = [], list(_things(inner.grid))
        names = [f"{thing.color} {thing.type}" for thing, _, _ in things]
        for name, (thing, x, y) in zip(names, things, strict=True):
            if thing.type == "door":
                is_only = names.count(name) == 1
                word = "open" if thing.is_open else "locked" if thing.is_locked else "closed"
                found[name if is_only else f"{name} at {y},{x}"] = word
            else:
                lying.append(f"{name} at {y},{x}")
        found["lying"] = "; ".join(lying) or "nothing"
        self._seen.append(found)

    def variables(self, n_states: int) -> tuple[Variable, ...]:
        """Variables of the states in their order; those that follow, as the end, have none."""
        names = list(dict.fromkeys(name for state in self._seen for name in state))
        found = []
        for name in names:
            given = [state.get(name, "gone") for state in self._seen]
            if name not in ("row", "column", "facing") and len(set(given)) == 1:
                continue
            variable = as_variable(name, given)
            if name == "facing":
                codes = np.array([FACING.index(str(word)) for word in given])
                variable = Variable(name=name, values=codes, words=FACING)
            more = np.full(n_states - len(given), UNKNOWN)
            found.append(replace(variable, values=np.append(variable.values, more)))
        return tuple(found)


class AttributeStates:
    """Collects what tells states of any environment apart: attributes that are simple values.

    These are whole numbers, truth values, short texts, None, and a few whole numbers in a row. What
    is the same in all states is left out, and so is what is anything else in some state.

    Args:
        aside: Names of attributes that are no state.
    """

    def __init__(self, aside: Iterable[str]) -> None:
        self._aside = frozenset(aside)
        self._seen: dict[str, list[Any]] = {}
        self._count = 0

    def add(self, inner: object) -> None:
        """Take down the state that the environment is in."""
        found = simple_attributes(inner, self._aside)
        if self._count == 0:
            self._seen = {name: [] for name in found}
        for name in list(self._seen):
            if name in found:
                self._seen[name].append(found[name])
            else:
                del self._seen[name]
        self._count += 1

    def variables(self, n_states: int) -> tuple[Variable, ...]:
        """Variables of the states in their order; those that follow, as the end, have none."""
        more = np.full(n_states - self._count, UNKNOWN)
        found: list[Variable] = []
        for name, values in self._seen.items():
            kinds = {type(value) for value in values}
            if len(set(values)) > 1 and len(found) < MOST_VARIABLES:
                told = values if len(kinds) == 1 else [str(value) for value in values]
                variable = as_variable(name, told)
                found.append(replace(variable, values=np.append(variable.values, more)))
        return tuple(found)


def simple_attributes(inner: object, aside: Iterable[str]) -> dict[str, Any]:
    """Attributes that are simple values, by name, those of `aside` left out."""
    left = {name for name in vars(inner) if name.startswith("_")} | set(aside)
    own = {name: value for name, value in vars(inner).items() if name not in left}
    return {key: told for name, value in own.items() for key, told in _simple(name, value).items()}


def _simple(name: str, value: object) -> dict[str, Any]:
    """The values of an attribute by name, where they are simple ones."""
    if value is None:
        return {name: "none"}
    if isinstance(value, bool | np.bool_):
        return {name: bool(value)}
    if isinstance(value, int | np.integer):
        return {name: int(value)} if abs(int(value)) < 2**62 else {}
    if isinstance(value, str):
        return {name: value} if len(value) <= MOST_LETTERS else {}
    is_row = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim == 1)
    entries: Sequence[Any] = list(value) if is_row else []  # type: ignore[call-overload]
    if len(entries) > MOST_ENTRIES or not all(
        isinstance(x, int | np.integer) and abs(int(x)) < 2**62 for x in entries
    ):
        return {}
    return {f"{name}[{k}]": int(x) for k, x in enumerate(entries)}


def _things(grid: Any) -> Iterator[tuple[Any, int, int]]:
    """Whatever can be moved or changed, with column and row."""
    for y in range(grid.height):
        for x in range(grid.width):
            thing = grid.get(x, y)
            if thing is not None and thing.type not in STILL:
                yield thing, x, y
