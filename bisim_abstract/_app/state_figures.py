"""Figures of states: which are drawn and where, in what colours, and linked by which edges.

However many states there are, as many are drawn as a picture or a page can hold, evenly spread;
captions tell what is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bisim_abstract._app.state_map import StateMap, two_widest
from bisim_abstract._base.text import counted, shortened
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._linkage.forests import Forest
from bisim_abstract._model.names import Names
from bisim_abstract.errors import InvalidArgumentError

MAX_AREA = 4_000_000  # cells of a grid, the empty ones among them
WHOLE = 2**53  # up to here browsers know all whole numbers
MAX_NAME = 120  # characters of a state's name under the pointer


@dataclass(frozen=True, eq=False)
class PlacesFigure:
    """States where they are drawn."""

    states: IntArray  # (drawn) their numbers, rising
    x: FloatArray  # (drawn) columns or coordinates, NaN without a place
    y: FloatArray  # (drawn) rows or coordinates, growing downwards
    is_grid: bool  # whether these are cells, whole numbers from 0 on, and not points
    stride: int  # cells along each side that share one drawn state
    caption: str  # what one sees, and what one does not
    # Of a grid of which all cells are drawn:
    heads: Sequence[tuple[int, int, str]] = ()  # column, columns, caption above them
    sides: Sequence[tuple[int, int, str]] = ()  # row, rows, caption beside them
    panels: Sequence[tuple[int, int, int, int, str]] = ()  # column, row, columns, rows, title
    letters: Sequence[tuple[int, int, str]] = ()  # column, row, what is printed there

    @property
    def has_place(self) -> BoolArray:
        """(drawn) whether a state has a place."""
        return ~np.isnan(self.x)


def places_figure(places: StateMap, end: int | None, *, most: int) -> PlacesFigure:
    """All states of a map, or at most so many; `end` stands for the end of episodes, if any."""
    states, stride = _choose_states(places, most)
    x, y = places.x[states], places.y[states]
    if places.is_grid:
        x, y = x // stride, y // stride
    caption = _caption(places, states.size, stride, end)
    whole = (places.heads, places.sides, places.panels, places.letters)
    drawn = whole if places.is_grid and stride == 1 else ((), (), (), ())
    return PlacesFigure(states, x, y, places.is_grid, stride, caption, *drawn)


def _choose_states(places: StateMap, most: int) -> tuple[IntArray, int]:
    """States to draw, and the stride between their cells."""
    n, placed = places.x.size, np.flatnonzero(places.has_place)
    if not places.is_grid or not placed.size:
        return (np.arange(n) if n <= most else evenly(placed if placed.size else n, most)), 1
    x, y = places.x[placed].astype(np.int64), places.y[placed].astype(np.int64)
    area = (int(x.max()) + 1) * (int(y.max()) + 1)
    stride = max(1, math.isqrt(placed.size // most), math.isqrt(max(area - 1, 0) // MAX_AREA) + 1)
    if stride == 1 and n <= most:
        return np.arange(n), 1
    while True:  # a gap between panels may ask for one more than the number suggests
        wide = int(x.max()) // stride + 1
        _, first = np.unique((y // stride) * wide + x // stride, return_index=True)
        if first.size <= most:
            return np.sort(placed[first]), stride
        stride += 1


def evenly(choices: IntArray | int, most: int) -> IntArray:
    """All of them, or so many evenly spread ones; a number stands for those below it."""
    choices = np.arange(choices) if isinstance(choices, int) else choices
    return choices[np.linspace(0, choices.size - 1, min(most, choices.size)).astype(np.int64)]


def _caption(places: StateMap, drawn: int, stride: int, end: int | None) -> str:
    words, n = [places.caption], places.x.size
    homeless = np.flatnonzero(~places.has_place).tolist()
    if stride > 1:
        words.append(
            f"One state stands for each {stride} by {stride} squares: {drawn:,} of {n:,} are drawn."
        )
    elif drawn < n:
        words.append(f"An even sample of {drawn:,} of {n:,} states is drawn.")
    elif homeless == [end]:
        words.append("The end of episodes has no place on it.")
    elif homeless:
        words.append(f"Not drawn: {counted(len(homeless), 'state')} without a place.")
    if not places.is_grid:
        words.append("States at the same place cover each other.")
    return " ".join(words)


def check_places(places: StateMap, n_states: int) -> None:
    """Refuse a map of other states, or places that are no numbers."""
    if not isinstance(places, StateMap):
        raise InvalidArgumentError(f"places must be a StateMap, got {places!r}")
    for name in ("x", "y"):
        values = getattr(places, name)
        if values.shape != (n_states,) or np.isinf(values).any():
            raise InvalidArgumentError(
                f"places.{name} must have a finite value or NaN for each of {n_states} states, "
                f"got shape {values.shape}"
            )
    if (np.isnan(places.x) != np.isnan(places.y)).any():
        raise InvalidArgumentError("places.x and places.y must be NaN for the same states")
    cells = np.concatenate([places.x[places.has_place], places.y[places.has_place]])
    if places.is_grid and ((cells < 0.0) | (cells != np.floor(cells)) | (cells > 1e9)).any():
        raise InvalidArgumentError("cells of a grid must be whole numbers from 0 on")


# -- embeddings --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class EmbeddingFigure:
    """Embedded states in the plane."""

    x: FloatArray  # (n_states) first coordinates
    y: FloatArray  # (n_states) second coordinates, growing upwards
    axes: tuple[str, str]  # what the two directions are


def embedding_figure(points: FloatArray) -> EmbeddingFigure:
    """Points of two coordinates as they are, others along their two widest directions."""
    if points.shape[1] <= 2:
        x, y = two_widest(points) if points.shape[1] == 1 else (points[:, 0], points[:, 1])
        return EmbeddingFigure(x, y, ("first coordinate", "second coordinate"))
    return EmbeddingFigure(*two_widest(points), ("widest direction", "second widest direction"))


# -- what the page alone needs -----------------------------------------------------------------


def page_places(figure: PlacesFigure, state_ids: IntArray, names: Names) -> dict[str, Any]:
    """A map for the page: points in the unit square, and states only where they are some."""
    called = None
    if names.variables:  # of drawn states alone
        called = [shortened(names.state(s), MAX_NAME) for s in figure.states.tolist()]
    ids = state_ids[figure.states]
    if figure.is_grid:
        axes = (figure.x.tolist(), figure.y.tolist())
        x, y = ([None if math.isnan(v) else int(v) for v in axis] for axis in axes)
        size = [max((v for v in axis if v is not None), default=-1) + 1 for axis in (x, y)]
        cells: dict[str, Any] = {"x": x, "y": y, "size": size}
    else:
        cells = unit_square(figure.x, figure.y)
    return cells | {
        "is_grid": figure.is_grid,
        "heads": figure.heads,
        "sides": figure.sides,
        "panels": [[*frame, shortened(title, MAX_NAME)] for *frame, title in figure.panels],
        "letters": figure.letters,
        "states": None if figure.states.size == state_ids.size else figure.states,
        "ids": None if np.array_equal(ids, figure.states) else [_exact(v) for v in ids.tolist()],
        "names": called,
    }


def _exact(number: int) -> int | str:
    """A whole number that a browser reads as it is: a large one as text."""
    return number if abs(number) <= WHOLE else str(number)


def unit_square(x: FloatArray, y: FloatArray) -> dict[str, Any]:
    """Points in the unit square, both directions to the same scale and in few digits."""
    is_known = np.isfinite(x) & np.isfinite(y)
    if not is_known.any():
        return {"x": x, "y": y, "size": [1.0, 1.0]}
    spans = [float(np.ptp(values[is_known])) for values in (x, y)]
    unit = max(spans) or 1.0
    across, down = (np.round((values - values[is_known].min()) / unit, 4) for values in (x, y))
    return {"x": across, "y": down, "size": [round(span / unit, 4) for span in spans]}


def page_forest(forest: Forest, states: IntArray) -> dict[str, Any]:
    """A forest over the drawn states, equal weights written once."""
    drawn = restrict(forest, states)
    weights, counts = np.unique(drawn.weights, return_counts=True)
    return {"tau": weights, "edges": counts, "first": drawn.first, "second": drawn.second}


def restrict(forest: Forest, states: IntArray) -> Forest:
    """The forest over some of the states that links the same of them at every threshold.

    Edges are gone through in rising order; each tree remembers one chosen state, and two trees
    that meet are linked by theirs, if both have one.
    """
    if states.size == forest.n_states:
        return forest
    parent = list(range(forest.n_states))
    chosen = dict(zip(states.tolist(), range(states.size), strict=True))  # by root

    def root(s: int) -> int:
        while parent[s] != s:
            parent[s] = s = parent[parent[s]]
        return s

    links = []
    for k, (s, t) in enumerate(zip(forest.first.tolist(), forest.second.tolist(), strict=True)):
        s, t = root(s), root(t)
        parent[t] = s
        if s == t or t not in chosen:
            continue
        if s in chosen:
            links.append((k, chosen[s], chosen[t]))
        else:
            chosen[s] = chosen[t]
    edges, first, second = np.array(links, np.int64).reshape(-1, 3).T
    return Forest(int(states.size), forest.weights[edges], first, second)
