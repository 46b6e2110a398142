"""Single linkage at one threshold: of points, of any function of pairs, and of given links."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.labels import numbered
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray

CHUNK = 2**20  # pairs that are held at once


def linked_points(points: npt.NDArray[Any], tau: float, p: float) -> IntArray:
    """Single linkage of points under an l_p distance, p = 2 or infinity.

    Points fall into cells at most tau wide, all of which are linked as they are. So only pairs
    of cells are listed, a bounded number at once; of these, pairs that are linked already or
    too far apart as a whole need no further look. Work and memory are near-linear unless cells
    have few points and many neighbours.
    """
    if tau < 0.0:
        return np.arange(len(points))
    unique, inverse = np.unique(points.astype(np.float64), axis=0, return_inverse=True)
    cells = _Cells(unique, tau, p)
    labels = np.arange(cells.count)
    for first, second in cells.neighbours():
        if labels.max() == 0:
            break
        apart = labels[first] != labels[second]
        first, second = first[apart], second[apart]
        near = cells.are_near(first, second)
        labels = joined(labels, first[near], second[near])
        for one, two in zip(first[~near].tolist(), second[~near].tolist(), strict=True):
            if labels[one] != labels[two] and cells.meet(one, two):
                labels = np.where(labels == labels[two], labels[one], labels)
        labels = numbered(labels)
    return numbered(labels[cells.of_point][inverse.ravel()])


class _Cells:
    """Sets of different points that are all within tau of each other, and their boxes.

    Args:
        points: (n, d) points, no two of them equal.
        tau: The threshold, at least 0.
        p: 2 or infinity.
    """

    def __init__(self, points: FloatArray, tau: float, p: float) -> None:
        self.points, self.tau, self.p = points, tau, p
        n, d = points.shape
        side = tau if p == np.inf else tau / np.sqrt(d)
        with np.errstate(all="ignore"):  # what overflows falls into cells that are too wide
            grid = np.floor((points - points.min(axis=0)) / side) if side > 0.0 else points
        self._group(np.unique(grid, axis=0, return_inverse=True)[1].ravel())
        # Rounding may have put points into one cell that are not within tau: these stay single.
        is_wide = ~(self._size(self.high - self.low) <= tau)[self.of_point]
        self._group(np.where(is_wide, n + np.arange(n), self.of_point))

    def _group(self, labels: IntArray) -> None:
        self.of_point = np.unique(labels, return_inverse=True)[1].astype(np.int64)
        self._order = np.argsort(self.of_point, kind="stable")
        self._begins = np.append(0, np.cumsum(np.bincount(self.of_point)))
        own = self.points[self._order]
        self.low = np.minimum.reduceat(own, self._begins[:-1])
        self.high = np.maximum.reduceat(own, self._begins[:-1])

    @property
    def count(self) -> int:
        """Number of cells."""
        return int(self.low.shape[0])

    def _size(self, gaps: FloatArray) -> FloatArray:
        """Lengths of vectors in rows."""
        with np.errstate(over="ignore"):
            return np.asarray(np.linalg.norm(gaps, ord=self.p, axis=-1))

    def neighbours(self) -> Iterator[tuple[IntArray, IntArray]]:
        """Pairs of cells whose boxes are within tau, a bounded number at once."""
        from scipy.spatial import KDTree

        if self.count == 1:
            return
        middle = self.low / 2.0 + self.high / 2.0
        # Points within tau lie in boxes whose middles are at most two half widths farther away.
        reach = (self.tau + float(self._size(self.high - self.low).max())) * (1.0 + 1e-9)
        tree = KDTree(middle)
        sizes = np.asarray(tree.query_ball_point(middle, reach, p=self.p, return_length=True))
        begin = 0
        while begin < self.count:
            fitting = np.searchsorted(np.cumsum(sizes[begin:]), CHUNK, side="right")
            end = begin + max(int(fitting), 1)
            near: Any = tree.query_ball_point(middle[begin:end], reach, p=self.p)
            second = np.concatenate([np.asarray(x, np.int64) for x in near])
            first = np.repeat(np.arange(begin, begin + len(near)), [len(x) for x in near])
            is_once = first < second
            first, second = first[is_once], second[is_once]
            low, high = self.low, self.high
            gap = np.maximum(low[first] - high[second], low[second] - high[first])
            is_open = self._size(np.maximum(gap, 0.0)) <= self.tau * (1.0 + 1e-9)
            yield first[is_open], second[is_open]
            begin = end

    def are_near(self, first: IntArray, second: IntArray) -> BoolArray:
        """Whether the first points of pairs of cells are within tau."""
        one, two = (self.points[self._order[self._begins[k]]] for k in (first, second))
        return np.asarray(self._size(one - two) <= self.tau)

    def meet(self, one: int, two: int) -> bool:
        """Whether any two points of both cells are within tau."""
        from scipy.spatial import KDTree

        a, b = (self.points[self._order[self._begins[k] : self._begins[k + 1]]] for k in (one, two))
        if len(a) * len(b) * a.shape[1] <= CHUNK // 16:
            return bool((self._size(a[:, None] - b) <= self.tau).any())
        most = float(np.nextafter(self.tau, np.inf))
        nearest: Any = KDTree(a).query(b, p=self.p, distance_upper_bound=most)[0]
        return bool((nearest <= self.tau).any())


def linked_pairs(distance: Callable[..., Any], n: int, tau: float) -> IntArray:
    """Single linkage of any function of pairs, a few rows at a time."""
    labels = np.arange(n)
    rows = max(1, CHUNK // n)
    everything = np.arange(n)
    for begin in range(0, n, rows):
        s, t = (x.ravel() for x in np.meshgrid(everything[begin : begin + rows], everything))
        s, t = s[s < t], t[s < t]
        near = np.asarray(distance(s, t), dtype=np.float64) <= tau
        labels = joined(labels, s[near], t[near])
    return numbered(labels)


def joined(labels: IntArray, first: IntArray, second: IntArray) -> IntArray:
    """Labels after linking the clusters of these pairs."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count = int(labels.max()) + 1
    ends = (labels[first], labels[second])
    graph = coo_array((np.ones(first.size, np.int8), ends), shape=(count, count))
    joined = np.asarray(connected_components(graph, directed=False)[1], np.int64)
    return joined[labels]
