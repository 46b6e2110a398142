"""Recorded episodes as steps: datasets of Minari, or anything that has their interface.

Nothing of Minari is imported. Read are `observation_space`, `action_space` and
`iterate_episodes()`, whose episodes have `observations` (one more than steps), `actions`,
`rewards`, `terminations` and `truncations`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from bisim_abstract._base.arrays import frozen
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._model.space_rows import SpaceRows
from bisim_abstract.errors import InvalidArgumentError


@runtime_checkable
class Dataset(Protocol):
    """What a dataset of Minari offers that is needed here."""

    @property
    def observation_space(self) -> Any:
        """The space of single observations."""

    @property
    def action_space(self) -> Any:
        """The space of single actions."""

    def iterate_episodes(self) -> Iterable[Any]:
        """All episodes, one after another."""


@dataclass(frozen=True, eq=False)
class RecordedSteps:
    """The steps of a dataset, with numbered states and actions; see `TransitionsLike`."""

    states: npt.NDArray[Any]
    actions: IntArray
    rewards: FloatArray
    next_states: npt.NDArray[Any]
    terminated: BoolArray
    n_states: int
    n_actions: int
    terminal_state: int | None = None


def read_episodes(dataset: Dataset) -> RecordedSteps:
    """All steps of a dataset. One that was cut off leads to what was observed, not to the end.

    Raises:
        InvalidArgumentError: If observations or actions are not finitely many, or an episode does
            not fit together.
    """
    rows, space = SpaceRows(dataset.observation_space), dataset.action_space
    if rows.n_states is None:
        raise InvalidArgumentError(
            f"a dataset must have finitely many observations, its space is "
            f"{dataset.observation_space}; number the states yourself and give arrays, if these "
            "numbers tell all that matters"
        )
    if not isinstance(space, spaces.Discrete):
        raise InvalidArgumentError(
            f"a dataset must have Discrete actions, its space is {space}; number the actions "
            "yourself and give arrays"
        )
    columns: list[list[npt.NDArray[Any]]] = [[], [], [], [], []]
    for number, episode in enumerate(dataset.iterate_episodes()):
        actions = frozen(f"actions of episode {number}", episode.actions, np.int64)
        size = actions.size
        seen = _observed(rows, episode.observations, size + 1, number)
        paid = frozen(f"rewards of episode {number}", episode.rewards, np.float64)
        ended = frozen(f"terminations of episode {number}", episode.terminations, np.bool_)
        cut = frozen(f"truncations of episode {number}", episode.truncations, np.bool_)
        if any(part.shape != (size,) for part in (actions, paid, ended, cut)):
            raise InvalidArgumentError(
                f"episode {number} must have as many rewards, terminations and truncations as "
                f"actions, got {paid.size}, {ended.size}, {cut.size} and {size}"
            )
        if (ended | cut)[:-1].any():
            raise InvalidArgumentError(
                f"episode {number} goes on after it was terminated or truncated; split it there"
            )
        steps = (seen[:-1], actions - int(space.start), paid, seen[1:], ended)
        for column, values in zip(columns, steps, strict=True):
            column.append(values)
    if not columns[0]:
        raise InvalidArgumentError("a dataset must have at least one episode, got none")
    states, acts, rewards, after, terminated = (np.concatenate(column) for column in columns)
    return RecordedSteps(states, acts, rewards, after, terminated, rows.n_states, int(space.n))


def _observed(rows: SpaceRows, observations: Any, count: int, number: int) -> IntArray:
    """(count) numbers of the states of an episode."""
    try:
        return np.asarray(rows.rows(observations, count))
    except (ValueError, TypeError, KeyError, IndexError) as error:
        if isinstance(error, InvalidArgumentError):
            raise InvalidArgumentError(
                f"episode {number} does not fit its space: {error}"
            ) from error
        raise InvalidArgumentError(
            f"episode {number} must have {count:,} observations of the dataset's space, one more "
            f"than actions ({error})"
        ) from error
