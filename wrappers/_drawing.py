"""Pictures of an abstraction: clusters of a grid, or clusters alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.types import IntArray
from bisim_abstract.wrappers.rooms import room_colours

LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
PIXELS = 500  # along a side
MARK = (20, 20, 20)
WALL = (60, 60, 60)

Image = npt.NDArray[np.uint8]


def grid_image(clusters: IntArray, *, cell: tuple[int, int] | None, cluster: int) -> Image:
    """A grid of cells coloured by cluster.

    Args:
        clusters: (rows, columns) the cluster of each cell.
        cell: The present cell, which is marked; without one, all cells outside the present
            cluster are faded.
        cluster: The present cluster.
    """
    pixels = max(1, PIXELS // max(clusters.shape))
    colours = room_colours(int(clusters.max()) + 1)[clusters]
    if cell is None:
        faded = (0.25 * colours + 0.75 * 255.0).astype(np.uint8)
        colours = np.where((clusters == cluster)[:, :, None], colours, faded)
    image = colours.repeat(pixels, axis=0).repeat(pixels, axis=1)
    if pixels >= 4:  # lines between clusters, where a cell is more than a dot
        rows, columns = np.nonzero(clusters[1:] != clusters[:-1])
        for k in range(pixels):
            image[(rows + 1) * pixels, columns * pixels + k] = WALL
        rows, columns = np.nonzero(clusters[:, 1:] != clusters[:, :-1])
        for k in range(pixels):
            image[rows * pixels + k, (columns + 1) * pixels] = WALL
    if cell is not None:
        row, column = (x * pixels for x in cell)
        pad = max(0, (5 - pixels) // 2)  # at least five pixels wide, however small cells are
        top, left = max(row - pad, 0), max(column - pad, 0)
        image[top : row + pixels + pad, left : column + pixels + pad] = MARK
    return image


def grid_text(clusters: IntArray, *, cell: tuple[int, int] | None, cluster: int) -> str:
    """The same as letters, one per cluster (they repeat after 62).

    The present cell is "@"; without one, cells of other clusters are dots.
    """
    rows = []
    for r, row in enumerate(clusters.tolist()):
        line = [LETTERS[k % len(LETTERS)] if cell is not None or k == cluster else "." for k in row]
        if cell is not None and cell[0] == r:
            line[cell[1]] = "@"
        rows.append("".join(line))
    return "\n".join(rows) + "\n"


def strip_image(count: int, cluster: int) -> Image:
    """One square per cluster, those apart from the present one faded."""
    side = math.ceil(math.sqrt(count))
    places: Any = np.arange(side * math.ceil(count / side)).reshape(-1, side)
    image = grid_image(places, cell=None, cluster=cluster)
    pixels = image.shape[1] // side
    is_used = (places < count).repeat(pixels, axis=0).repeat(pixels, axis=1)
    image[~is_used] = 255
    return image
