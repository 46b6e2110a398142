"""Boxes that cells of states occupy: intervals of rewards and of features.

Two states are at least as far apart as their rewards for any action (or what stands for these, see
`Starts.columns`), and as the values of any feature less its correction. So are all states of two
cells by the gap between their intervals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bisim_abstract._base.parallel import map_chunks
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._bounds.features import ValueFeatures, box_gap
from bisim_abstract._bounds.ground import Starts

ROWS = 64  # cells per unit of work where pairs are listed


@dataclass(frozen=True, eq=False)
class Boxes:
    """What cells of states occupy.

    Attributes:
        low: (n_cells, k) no reward of a cell is lower, or what stands for rewards; no columns
            where these are not to be read.
        high: (n_cells, k) none is higher.
        least: (functions, n_cells) least value of each feature; no rows if there are none.
        most: (functions, n_cells) the largest.
        corrections: (functions) what features are off by at most.
    """

    low: FloatArray
    high: FloatArray
    least: FloatArray
    most: FloatArray
    corrections: FloatArray

    @classmethod
    def of(cls, starts: Starts, features: ValueFeatures | None, labels: IntArray) -> Boxes:
        """The boxes of a partition.

        Args:
            starts: Rewards of the states.
            features: Their features, if any.
            labels: (n_states) cells, numbered from 0 on without holes.
        """
        count = int(labels.max()) + 1
        low, high = starts.columns
        if low.shape[1] == 0:
            low = high = np.empty((count, 0))
        elif count < labels.size or (labels != np.arange(count)).any():
            order = np.argsort(labels, kind="stable")
            begins = np.concatenate([[0], np.cumsum(np.bincount(labels))[:-1]])
            low = np.minimum.reduceat(low[order], begins)
            high = np.maximum.reduceat(high[order], begins)
        return cls(low, high, *_feature_boxes(features, labels, count))

    def with_features(self, features: ValueFeatures, labels: IntArray) -> Boxes:
        """The same rewards and these features; labels (n_states) are the cells of states."""
        count = self.low.shape[0]
        return Boxes(self.low, self.high, *_feature_boxes(features, labels, count))

    @property
    def count(self) -> int:
        """Number of cells."""
        return int(self.low.shape[0])

    def row(self, cell: int) -> FloatArray:
        """(n_cells) lower bounds on the distance of a cell from all cells."""
        values = np.zeros(self.count)
        if self.low.shape[1]:
            low, high = self.low, self.high
            gap = np.maximum(low[cell] - high, low - high[cell]).max(axis=1)
            values = np.maximum(gap, 0.0) * (1.0 - 4.0 * EPS)  # one subtraction: EPS relative
        if self.corrections.size:
            gaps = box_gap(self.least, self.most, self.corrections, cell)
            np.maximum(values, gaps, out=values)
        return values

    def pairs(self, first: IntArray, second: IntArray) -> FloatArray:
        """The same for pairs of different cells."""
        values = np.zeros(first.size)
        for low, high in zip(self.low.T, self.high.T, strict=True):
            gap = np.maximum(low[first] - high[second], low[second] - high[first])
            np.maximum(values, gap * (1.0 - 4.0 * EPS), out=values)
        for least, most, correction in zip(self.least, self.most, self.corrections, strict=True):
            gap = np.maximum(least[first] - most[second], least[second] - most[first])
            # As features themselves are rounded: each factor covers one operation and more.
            lowered = (gap * (1.0 - 4.0 * EPS) - correction) * (1.0 - 4.0 * EPS)
            np.maximum(values, lowered, out=values)
        return values

    def for_kernels(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
        """All of them, column by column; copies, as what cannot be written is another type."""
        columns = (self.low.T, self.high.T, self.least, self.most)
        low, high, least, most = (np.array(x, order="C") for x in columns)
        return low, high, least, most, np.array(self.corrections)

    def close_pairs(
        self, limit: float, *, most: int, threads: int
    ) -> tuple[IntArray, IntArray] | None:
        """Pairs of cells whose bounds are below a limit; None if they are more than `most`."""
        from bisim_abstract._kernels.cells import close_kernel

        given, count = self.for_kernels(), self.count
        sizes: list[int] = []  # threads add to it

        def part(begin: int, end: int) -> tuple[IntArray, IntArray]:
            if sum(sizes) > most:
                return none, none
            room = 1 + (end - begin) * (count - begin)
            first, second = np.empty(room, np.int64), np.empty(room, np.int64)
            found = close_kernel(begin, end, *given, limit, first, second)
            sizes.append(found)
            return first[:found].copy(), second[:found].copy()

        none = np.empty(0, np.int64)
        parts = map_chunks(part, count, threads=threads, chunk=ROWS)
        if sum(sizes) > most:
            return None
        one, two = (np.concatenate([none, *(part[k] for part in parts)]) for k in range(2))
        return one, two


def _feature_boxes(
    features: ValueFeatures | None, labels: IntArray, count: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    if features is None:
        return np.empty((0, count)), np.empty((0, count)), np.empty(0)
    return (*features.boxes(labels, count), features.all_corrections)
