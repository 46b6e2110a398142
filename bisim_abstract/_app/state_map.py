"""Where states are drawn: in the cells of their grid, or as points of an embedding.

Models of grid environments say in `metadata["digits"]` how their state ids are made up, as
names and sizes from the most significant digit to the least: Taxi's are row, column, passenger
and destination. Rows and columns are cells; all other digits lay panels side by side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.linear import product, symmetric_axes
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._propose.embedding import Embedding, as_points
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["StateMap", "state_map"]

GAP = 1  # cells between two panels
DIGITS = 8  # more are no layout anybody could read


@dataclass(frozen=True, eq=False)
class StateMap:
    """Places of states in the plane, y growing downwards.

    Attributes:
        x: (n_states) columns of cells, or coordinates; NaN for states that have no place.
        y: (n_states) rows of cells, or coordinates; NaN for the same states.
        is_grid: Whether these are cells, whole numbers from 0 on, and not points.
        caption: What one sees, in one sentence.
    """

    x: FloatArray
    y: FloatArray
    is_grid: bool
    caption: str

    @property
    def has_place(self) -> BoolArray:
        """(n_states) whether a state is drawn."""
        return ~np.isnan(self.x)


def state_map(mdp: TabularMDP, *, embedding: Embedding | npt.ArrayLike | None = None) -> StateMap:
    """Where to draw the states of a model.

    Args:
        mdp: The model. If its metadata tell of a grid, states are the grid's cells.
        embedding: Points (n_states, k), or an object with `encode`, for models that are no
            grid: they are drawn along the two directions in which they vary most. By default
            rewards are the points.

    Example:
        >>> from bisim_abstract.wrappers import extract_mdp
        >>> places = state_map(extract_mdp("FrozenLake-v1", env_args={"map_name": "8x8"}))
        >>> places.is_grid, int(places.x[15]), int(places.y[15]), int(places.has_place.sum())
        (True, 7, 1, 64)
    """
    check_mdp(mdp)
    digits = mdp.metadata.get("digits")
    if digits is not None:
        return _grid(mdp, _checked(digits))
    points = mdp.rewards if embedding is None else as_points(embedding, mdp.n_states)
    x, y = two_widest(np.asarray(points, dtype=np.float64))
    source = "rewards" if embedding is None else "the embedding"
    return StateMap(x, y, False, f"States along the two widest directions of {source}.")


def _checked(digits: Any) -> list[tuple[str, int]]:
    """Names and sizes, as they may come from a file."""
    is_list = isinstance(digits, list | tuple) and 0 < len(digits) <= DIGITS
    if is_list and all(
        isinstance(entry, list | tuple)
        and len(entry) == 2
        and isinstance(entry[0], str)
        and type(entry[1]) is int
        and entry[1] > 0
        for entry in digits
    ):
        found = [(str(name), int(size)) for name, size in digits]
        names = [name for name, _ in found]
        is_numbered = math.prod(size for _, size in found) < 2**63  # as ids are
        if is_numbered and names.count("row") == 1 and names.count("column") == 1:
            return found
    raise InvalidArgumentError(
        "metadata['digits'] must list names and sizes, one 'row' and one 'column' among them, "
        f"got {digits!r}"
    )


def _grid(mdp: TabularMDP, digits: list[tuple[str, int]]) -> StateMap:
    total = math.prod(size for _, size in digits)
    ids = mdp.state_ids
    is_placed = (ids >= 0) & (ids < total)
    rest = np.where(is_placed, ids, 0)
    values: dict[int, IntArray] = {}
    for k in reversed(range(len(digits))):
        rest, values[k] = np.divmod(rest, digits[k][1])
    names = [name for name, _ in digits]
    row, column = names.index("row"), names.index("column")
    y, x = values[row], values[column]
    others = [k for k in range(len(digits)) if k not in (row, column)]
    # The first other digit lays panels below one another, all further ones side by side.
    wide = digits[column][1] + GAP
    for k in reversed(others[1:]):
        x = x + values[k] * wide
        wide *= digits[k][1]
    if others:
        y = y + values[others[0]] * (digits[row][1] + GAP)
    caption = "Every square is a state, where it lies on the grid"
    if others:
        down, *along = (digits[k][0] for k in others)
        caption += f"; panels differ by {down} from top to bottom"
        caption += f" and by {' and '.join(along)} from left to right" if along else ""
    return StateMap(
        np.where(is_placed, x, np.nan), np.where(is_placed, y, np.nan), True, caption + "."
    )


def two_widest(points: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Coordinates along the first two principal directions, signs fixed by the largest entry."""
    unit = max(float(np.abs(points).max(initial=0.0)), 1e-300)
    centred = points / unit
    centred = centred - centred.mean(axis=0)  # squares of which are within floats
    chosen = symmetric_axes(product(centred.T, centred))[1][:, ::-1].T[:2]
    signs = np.sign(chosen[np.arange(chosen.shape[0]), np.abs(chosen).argmax(axis=1)])
    flat = product(centred, (chosen * signs[:, None]).T) * unit
    if flat.shape[1] == 1:
        flat = np.column_stack([flat, np.zeros(flat.shape[0])])
    return flat[:, 0].copy(), flat[:, 1].copy()
