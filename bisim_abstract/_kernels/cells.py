"""Cells of states compared each with each: their spanning tree, and the pairs that are close.

A cell occupies an interval per action (of rewards) and per function (of features). Two cells are
at least as far apart as the widest gap between their intervals; how gaps are rounded is that of
`Boxes.row`. Columns are contiguous, so that a cell is compared with many at once: of 10,000 cells
all 50 million pairs are looked at in a second or two, and none of them is stored.
"""

from __future__ import annotations

import numpy as np

from bisim_abstract._base.jit import inner, kernel
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray

DOWN = 1.0 - 4.0 * EPS


@inner
def _fill_line(
    cell: int,
    begin: int,
    low: FloatArray,
    high: FloatArray,
    least: FloatArray,
    most: FloatArray,
    corrections: FloatArray,
    out: FloatArray,
) -> None:
    """How far a cell is at least from each of the cells from `begin` on.

    In: low and high (actions, cells) of rewards; least and most (functions, cells) of features,
    whose corrections are (functions). Out: out (cells).
    """
    count = out.size
    for j in range(begin, count):
        out[j] = 0.0
    for a in range(low.shape[0]):
        bottom, top, lows, highs = low[a, cell], high[a, cell], low[a], high[a]
        for j in range(begin, count):
            above, below = bottom - highs[j], lows[j] - top
            gap = (above if above > below else below) * DOWN
            out[j] = gap if gap > out[j] else out[j]
    for f in range(corrections.size):
        bottom, top, lows, highs = least[f, cell], most[f, cell], least[f], most[f]
        correction = corrections[f]
        for j in range(begin, count):
            above, below = bottom - highs[j], lows[j] - top
            gap = ((above if above > below else below) * DOWN - correction) * DOWN
            out[j] = gap if gap > out[j] else out[j]


@kernel
def tree_kernel(
    low: FloatArray,
    high: FloatArray,
    least: FloatArray,
    most: FloatArray,
    corrections: FloatArray,
    blocks: IntArray,
    line_starts: IntArray,
    line_others: IntArray,
    line_values: FloatArray,
    known_starts: IntArray,
    known_others: IntArray,
    known_values: FloatArray,
    node: int,
    steps: int,
    best: FloatArray,
    is_out: BoolArray,
    parent: IntArray,
    weights: FloatArray,
) -> int:
    """So many steps of Prim's algorithm for a minimum spanning tree of all cells.

    In: boxes as for `_fill_line`; blocks (levels, cells), numbered through all levels; for each
    block from line_starts on the blocks that it has entries with, and these; for each cell from
    known_starts on the cells to which the distance is known, and is that whatever boxes say; node,
    the cell to go on with, 0 at first. In and out: best (cells), infinite at first, how near each
    cell is to those reached; is_out (cells), which are not. Returns the cell to go on with, -1
    after the last one.
    Out: parent (cells), weights (cells): the edge by which a cell was reached, infinite for none.
    Equally near cells are taken by number.
    """
    count = weights.size
    gaps, line = np.empty(count), np.zeros(line_starts.size)
    for _ in range(steps):
        is_out[node] = False
        weights[node] = best[node]
        _fill_line(node, 0, low, high, least, most, corrections, gaps)
        for level in range(blocks.shape[0]):
            block = blocks[level, node]
            for e in range(line_starts[block], line_starts[block + 1]):
                line[line_others[e]] = line_values[e]
            for cell in range(count):
                gaps[cell] = max(gaps[cell], line[blocks[level, cell]])
            for e in range(line_starts[block], line_starts[block + 1]):
                line[line_others[e]] = 0.0
        for e in range(known_starts[node], known_starts[node + 1]):
            gaps[known_others[e]] = known_values[e]
        nearest = -1
        for cell in range(count):
            if is_out[cell]:
                if gaps[cell] < best[cell]:
                    best[cell] = gaps[cell]
                    parent[cell] = node
                if nearest < 0 or best[cell] < best[nearest]:
                    nearest = cell
        node = nearest
        if node < 0:
            break
    return node


@kernel
def close_kernel(
    begin: int,
    end: int,
    low: FloatArray,
    high: FloatArray,
    least: FloatArray,
    most: FloatArray,
    corrections: FloatArray,
    limit: float,
    first: IntArray,
    second: IntArray,
) -> int:
    """Pairs of the cells begin..end with later ones that are closer than a limit.

    In: boxes as for `_fill_line`. Out: first and second, with room for all pairs; how many.
    """
    count = low.shape[1]
    gaps = np.empty(count)
    found = 0
    for cell in range(begin, end):
        _fill_line(cell, cell + 1, low, high, least, most, corrections, gaps)
        for other in range(cell + 1, count):
            # Written whatever it is, and overwritten if it is not close: no branch to guess.
            first[found] = cell
            second[found] = other
            found += gaps[other] < limit
    return found
