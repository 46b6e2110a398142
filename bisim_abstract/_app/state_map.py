"""Where states are drawn: in the cells of a grid, or as points of an embedding.

Models of grid environments say in `metadata["digits"]` how their state ids are made up, as
names and sizes from the most significant digit to the least: Taxi's are row, column, passenger
and destination. Rows and columns are cells; all other digits lay panels side by side. What the
environment prints in its cells is in `metadata["letters"]`, a text for each row.

Other models have a grid if their states have variables named row and column, as MiniGrid's do: a
direction that the agent faces is then drawn as four squares around a place, and whatever else
differs makes panels. Where there is neither, the variables themselves are rows and columns, or
states are squares in the order of their numbers, unless their rewards tell most of them apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.linear import product, symmetric_axes
from bisim_abstract._base.text import plain_text
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._model.names import UNKNOWN, Variable
from bisim_abstract._propose.embedding import Embedding, as_points
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["StateMap", "state_map"]

GAP = 1  # cells between two panels
DIGITS = 8  # more are no layout anybody could read
MAX_PANELS = 60  # of a grid by variables
MAX_HEADS = 40  # captions along each side
MAX_LETTERS = 10_000
MAX_ROWS = 400  # combinations of variables that are named
MAX_STATES = 200_000  # that are sorted by their variables
MAX_SPLIT = 3_000  # of which all tables are tried
BOX = (540.0, 600.0)  # the space of a map, for which one is chosen
SPARSE = 12  # cells for each state that such a table may have
FACING = {"right": (2, 1), "down": (1, 2), "left": (0, 1), "up": (1, 0)}  # in 3 by 3 cells


@dataclass(frozen=True, eq=False)
class StateMap:
    """Places of states in the plane, y growing downwards.

    Attributes:
        x: (n_states) columns of cells, or coordinates; NaN for states that have no place.
        y: (n_states) rows of cells, or coordinates; NaN for the same states.
        is_grid: Whether these are cells, whole numbers from 0 on, and not points.
        caption: What one sees, in one sentence.
        heads: (column, columns, text) captions above columns of cells.
        sides: (row, rows, text) captions beside rows of cells.
        panels: (column, row, columns, rows, text) frames around cells that belong together.
        letters: (column, row, text) what is printed in cells.
    """

    x: FloatArray
    y: FloatArray
    is_grid: bool
    caption: str
    heads: tuple[tuple[int, int, str], ...] = ()
    sides: tuple[tuple[int, int, str], ...] = ()
    panels: tuple[tuple[int, int, int, int, str], ...] = ()
    letters: tuple[tuple[int, int, str], ...] = ()

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
            variables of states are rows and columns, or rewards are the points.

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
    is_small = mdp.n_states <= MAX_STATES
    found = _by_place(mdp) if is_small else None
    if found is None and embedding is None and is_small:
        found = _by_variables(mdp)
    if found is not None:
        return found
    points = mdp.rewards if embedding is None else as_points(embedding, mdp.n_states)
    x, y = two_widest(np.asarray(points, dtype=np.float64))
    if embedding is None and not _is_spread(x, y):
        return _in_order(mdp)
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
        found = [(plain_text(name), int(size)) for name, size in digits]
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
    tall = digits[row][1] + GAP
    heads, sides = _headings(mdp, digits, others, wide, tall)
    panels = (digits[others[0]][1] if others else 1, math.prod(digits[k][1] for k in others[1:]))
    printed = _printed(mdp.metadata.get("letters"), tall - GAP, wide - GAP, panels)
    for k in reversed(others[1:]):
        x = x + values[k] * wide
        wide *= digits[k][1]
    if others:
        y = y + values[others[0]] * tall
    caption = "Every square is a state, where it lies on the grid"
    if others:
        down, *along = (digits[k][0] for k in others)
        caption += f"; panels differ by {down} from top to bottom"
        caption += f" and by {' and '.join(along)} from left to right" if along else ""
    return StateMap(
        np.where(is_placed, x, np.nan),
        np.where(is_placed, y, np.nan),
        True,
        f"{caption}.",
        heads,
        sides,
        letters=printed,
    )


def _headings(
    mdp: TabularMDP, digits: list[tuple[str, int]], others: list[int], wide: int, tall: int
) -> tuple[tuple[tuple[int, int, str], ...], tuple[tuple[int, int, str], ...]]:
    """Captions above and beside panels, by the words that the model has for digits."""
    words = {variable.name: variable.words for variable in mdp.names.variables}

    def text(k: int, value: int) -> str:
        name, known = digits[k][0], words.get(digits[k][0])
        called = known[value] if known is not None and value < len(known) else f"{value}"
        return f"{name} {called}"

    heads: list[tuple[int, int, str]] = []
    sides: list[tuple[int, int, str]] = []
    if others and digits[others[0]][1] <= MAX_HEADS:
        count = digits[others[0]][1]
        sides = [(k * tall, tall - GAP, text(others[0], k)) for k in range(count)]
    sizes = [digits[k][1] for k in others[1:]]
    if sizes and math.prod(sizes) <= MAX_HEADS:
        for place, entries in enumerate(np.ndindex(*sizes)):
            named = (text(k, v) for k, v in zip(others[1:], entries, strict=True))
            heads.append((place * wide, wide - GAP, ", ".join(named)))
    return tuple(heads), tuple(sides)


def _printed(
    letters: Any, rows: int, columns: int, panels: tuple[int, int]
) -> tuple[tuple[int, int, str], ...]:
    """What is printed in cells of all panels; nothing where a file has what does not fit."""
    is_text = isinstance(letters, list | tuple) and all(isinstance(row, str) for row in letters)
    if not is_text or len(letters) != rows or any(len(row) != columns for row in letters):
        return ()
    cells = [(x, y, c) for y, row in enumerate(letters) for x, c in enumerate(row) if c.strip()]
    # A file may tell of any number of panels: without a letter, none of them is looked at.
    if not cells or len(cells) * math.prod(panels) > MAX_LETTERS:
        return ()
    corners = [
        (i * (columns + GAP), k * (rows + GAP)) for k in range(panels[0]) for i in range(panels[1])
    ]
    return tuple((left + x, top + y, plain_text(c)) for left, top in corners for x, y, c in cells)


# -- grids by variables ------------------------------------------------------------------------


def _by_place(mdp: TabularMDP) -> StateMap | None:
    """States that have a row and a column, and perhaps a direction; None if they have not."""
    known = {variable.name: variable for variable in mdp.names.variables}
    names = [variable.name for variable in mdp.names.variables]
    if any(names.count(name) != 1 or known[name].words for name in ("row", "column")):
        return None
    is_placed = (known["row"].values != UNKNOWN) & (known["column"].values != UNKNOWN)
    placed = np.flatnonzero(is_placed)
    if not placed.size:
        return None
    x, y = (_from_zero(known[name].values[placed]) for name in ("column", "row"))
    facing, block = known.get("facing"), 1
    if facing is not None and facing.words is not None and set(facing.words) <= set(FACING):
        codes = facing.values[placed]
        if (codes == UNKNOWN).any():
            return None
        block, moves = 3, np.array([FACING[word] for word in facing.words])
        x, y = 3 * x + moves[codes, 0], 3 * y + moves[codes, 1]
    others = [v for v in mdp.names.variables if v.name not in ("row", "column")]
    others = [v for v in others if not (block == 3 and v.name == "facing")]
    panel, titles = _combinations(others, placed)
    columns, rows = (int(v.max()) + 1 for v in (x, y))
    columns, rows = (block * math.ceil(v / block) for v in (columns, rows))
    if len(titles) > MAX_PANELS or columns * rows * len(titles) > 1e9:
        return None
    gap = block if len(titles) > 1 else 0
    across = _panels_across(len(titles), columns + gap, rows + gap)
    left, top = (panel % across) * (columns + gap), (panel // across) * (rows + gap)
    cells = np.stack([left + x, top + y])
    if np.unique(cells, axis=1).shape[1] < placed.size:
        return None  # something else tells states apart
    found = np.full((2, mdp.n_states), np.nan)
    found[:, placed] = cells
    caption = "Every square is a state, where it lies on the grid"
    if block == 3:
        caption = "Four squares around a place are its states, by the direction that is faced"
    panels = []
    if len(titles) > 1:
        caption += "; panels are listed below"
        panels = [
            ((k % across) * (columns + gap), (k // across) * (rows + gap), columns, rows, title)
            for k, title in enumerate(titles)
        ]
    return StateMap(found[0], found[1], True, f"{caption}.", panels=tuple(panels))


def _by_variables(mdp: TabularMDP) -> StateMap | None:
    """A table of states by their variables; None if these are too many, or cells for nothing."""
    live = np.arange(mdp.n_states)
    if mdp.terminal_state is not None:
        live = np.delete(live, mdp.terminal_state)
    known = [v for v in mdp.names.variables if v.name and np.unique(v.values[live]).size > 1]
    if not 2 <= len(known) <= DIGITS:
        return None
    values = np.array([variable.values[live] for variable in known])
    if (values == UNKNOWN).any() or np.unique(values, axis=1).shape[1] < live.size:
        return None
    best, chosen = 0.0, None
    for across in _splits(len(known), live.size):
        column, row = (
            np.unique(values[k], axis=1, return_inverse=True)[1] for k in (across, ~across)
        )
        columns, rows = int(column.max()) + 1, int(row.max()) + 1
        cell = min(BOX[0] / columns, BOX[1] / rows)  # as large as there is room for
        if cell > best and columns * rows <= SPARSE * live.size:
            best, chosen = cell, (across, column.reshape(-1), row.reshape(-1))
    if chosen is None:
        return None
    across, column, row = chosen
    places = np.full((2, mdp.n_states), np.nan)
    places[:, live] = column, row
    right, down = (_listed([known[k] for k in np.flatnonzero(m)]) for m in (across, ~across))
    caption = f"Every square is a state: {right} from left to right, {down} from top to bottom."
    return StateMap(places[0], places[1], True, caption)


def _splits(count: int, n_states: int) -> Iterator[BoolArray]:
    """Which of so many variables go across: all choices for a few states, else first ones."""
    if n_states > MAX_SPLIT:
        yield from (np.arange(count) < k for k in range(1, count))
        return
    for code in range(1, 2**count - 1):
        yield np.array([code >> k & 1 for k in range(count)], np.bool_)


def _listed(variables: Sequence[Variable]) -> str:
    *names, last = (variable.name for variable in variables)
    return f"{', '.join(names)} and {last}" if names else last


def _combinations(variables: Sequence[Variable], states: IntArray) -> tuple[IntArray, list[str]]:
    """Which combination of values each state has, and what they are called, in rising order."""
    if not variables:
        return np.zeros(states.size, np.int64), [""]
    values = np.array([variable.values[states] for variable in variables])
    _, first, codes = np.unique(values, axis=1, return_index=True, return_inverse=True)
    if first.size > MAX_ROWS:
        return codes.reshape(-1), [""] * first.size
    varied = [v for v, row in zip(variables, values, strict=True) if np.unique(row).size > 1]
    titles = [
        ", ".join(filter(None, (v.text(int(states[k])) for v in varied))) for k in first.tolist()
    ]
    return codes.reshape(-1), titles


def _panels_across(count: int, wide: int, tall: int) -> int:
    """How many panels side by side make about a square."""
    return max(1, min(count, round(math.sqrt(count * tall / wide))))


def _from_zero(values: IntArray) -> IntArray:
    """Rows or columns, counted from the first that there is."""
    return np.asarray(values - values.min())


# -- without a grid ----------------------------------------------------------------------------


def _is_spread(x: FloatArray, y: FloatArray) -> bool:
    """Whether most points can be told apart."""
    unit = max(float(np.ptp(x)), float(np.ptp(y))) or 1.0
    places = np.unique(np.round(np.column_stack([x, y]) / unit, 3), axis=0)
    return bool(2 * places.shape[0] > x.size)


def _in_order(mdp: TabularMDP) -> StateMap:
    """Squares row by row; the end of episodes has no place."""
    live = np.arange(mdp.n_states)
    if mdp.terminal_state is not None:
        live = np.delete(live, mdp.terminal_state)
    across = max(1, math.ceil(math.sqrt(1.3 * live.size)))
    places = np.full((2, mdp.n_states), np.nan)
    places[:, live] = np.arange(live.size) % across, np.arange(live.size) // across
    caption = "Every square is a state, row by row in the order of their numbers."
    return StateMap(places[0], places[1], True, caption)


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
