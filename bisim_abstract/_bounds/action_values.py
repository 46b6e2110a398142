"""Bounds on optimal values of actions, and how far states are apart by them.

With |m(s, a) - Q*(s, a)| <= h proven for all states and actions, the distance

    d_Q(s, t) = max over a of |Q*(s, a) - Q*(t, a)|

is within 2h of D_m(s, t), the same of m: each of the two terms is off by h at most. So D_m + 2h
bounds it from above and D_m - 2h from below; the width of both is 4h. Two states with different
actions are as far apart as the plain relation has them (see `_exact/apart.py`), which no difference
of values exceeds.

All of these distances are those of points with one coordinate per action. Both arms therefore have
one minimum spanning tree in common, that of the points; equal points come first, and states of
different actions last. It takes no more than the points: no pair is listed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bisim_abstract._base.arrays import as_frozen
from bisim_abstract._base.checks import check_real
from bisim_abstract._base.deadline import look
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._linkage.forests import Forest
from bisim_abstract.errors import InvalidArgumentError

TINY = 1e-315  # far above what a few products lose by underflow
UP, DOWN = 1.0 + 8.0 * EPS, 1.0 - 8.0 * EPS
ANY = 2**62  # comparisons of coordinates: no limit


class TooMuchWorkError(Exception):
    """A spanning tree takes more work than it may."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ActionValues:
    """Values of actions within a proven distance of the optimal ones.

    Attributes:
        values: (n_states, n_actions) middles m; that of its first where a state lacks an action.
        radius: h: no optimal value is farther from its middle.
    """

    values: FloatArray
    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", as_frozen("values", self.values, np.float64))
        object.__setattr__(self, "radius", check_real("radius", self.radius))
        if self.values.ndim != 2 or self.values.size == 0:
            raise InvalidArgumentError(
                f"values must have shape (n_states, n_actions), got {self.values.shape}"
            )
        with np.errstate(over="ignore"):
            top = 4.0 * (float(np.abs(self.values).max()) + self.radius)
        if not 0.0 <= self.radius <= top < np.inf:
            raise InvalidArgumentError(
                "values and radius must be finite, with differences that are, and radius at least 0"
            )

    @property
    def n_states(self) -> int:
        """Number of states."""
        return int(self.values.shape[0])

    @property
    def width(self) -> float:
        """Bound on the gap between both bounds of any pair, rounded up."""
        top = float(self.values.max() - self.values.min())
        # Both bounds move a difference by twice 8 units, and round it three times.
        return 4.0 * self.radius * UP + 64.0 * EPS * top + 2.0 * TINY

    def lower(self, gaps: FloatArray) -> FloatArray:
        """Lower bounds on distances from computed differences of middles.

        A difference is off by EPS relative, twice the radius by nothing, and what is left of both
        by EPS of itself.
        """
        return np.maximum((gaps * DOWN - 2.0 * self.radius) * DOWN - TINY, 0.0)

    def upper(self, gaps: FloatArray) -> FloatArray:
        """Upper bounds on distances, likewise."""
        return (gaps * UP + 2.0 * self.radius) * UP + TINY

    def read(self, s: IntArray, t: IntArray) -> tuple[FloatArray, FloatArray]:
        """Lower and upper bounds of pairs of different states with the same actions."""
        gaps = np.zeros(np.shape(s))
        for a in range(self.values.shape[1]):
            column = self.values[:, a]
            np.maximum(gaps, np.abs(column[s] - column[t]), out=gaps)
        return self.lower(gaps), self.upper(gaps)

    def forests(self, sets: IntArray, diameter: float, *, most: int = ANY) -> tuple[Forest, Forest]:
        """Spanning forests of both arms over all pairs of states.

        Args:
            sets: (n_states) equal numbers for states with the same actions.
            diameter: No two states are farther apart, and those of different sets are just that.
            most: Comparisons of coordinates that it may take.

        Raises:
            TooMuchWorkError: If it takes more.
        """
        first, second, gaps = spanning_tree(self.values, sets, most)
        is_joint = sets[first] != sets[second]
        lower = np.where(is_joint, diameter, np.minimum(self.lower(gaps), diameter))
        upper = np.where(is_joint, diameter, np.minimum(self.upper(gaps), diameter))
        order = np.lexsort((upper, lower))
        # Rounding keeps the order of lengths, so that one order serves both.
        n, first, second = self.n_states, first[order], second[order]
        return (
            Forest(n, lower[order], first, second),
            Forest(n, np.maximum.accumulate(upper[order]), first, second),
        )


def spanning_tree(
    points: FloatArray, sets: IntArray, most: int = ANY
) -> tuple[IntArray, IntArray, FloatArray]:
    """A minimum spanning tree of points, those of different sets being farther than all others.

    Args:
        points: (n, d).
        sets: (n) numbers.
        most: Comparisons of coordinates that it may take.

    Returns:
        (n - 1) both ends of its edges, and their lengths; infinite between two sets.
    """
    order, begins = equal_rows(points, sets)
    is_first = np.zeros(order.size, bool)
    is_first[begins] = True
    edges = [(order[:-1][~is_first[1:]], order[1:][~is_first[1:]])]
    lengths = [np.zeros(edges[0][0].size)]
    some = np.sort(order[begins])  # one state for each different point
    own = sets[some]
    by_set = some[np.argsort(own, kind="stable")]
    cuts = np.append(np.flatnonzero(np.append(True, np.diff(np.sort(own)) != 0)), some.size)
    for begin, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        states = by_set[begin:end]
        first, second, length, work = _tree(np.ascontiguousarray(points[states]), most)
        most -= work
        edges.append((states[first], states[second]))
        lengths.append(length)
    heads = by_set[cuts[:-1]]
    edges.append((heads[:-1], heads[1:]))
    lengths.append(np.full(heads.size - 1, np.inf))
    one, two = (np.concatenate([edge[k] for edge in edges]) for k in range(2))
    return one, two, np.concatenate(lengths)


def equal_rows(points: FloatArray, sets: IntArray) -> tuple[IntArray, IntArray]:
    """States in an order in which equal points of one set are neighbours, and where each begins.

    Sorted by a hash of all bits; should different points or sets have the same one, by the points.
    """
    bits = (points + 0.0).view(np.int64)  # 0.0 and -0.0 are the same number
    hashed = sets.astype(np.int64)
    for column in bits.T:
        hashed = (hashed ^ column ^ (column >> 29)) * 0x5851F42D4C957F2D
        hashed ^= hashed >> 32
    order = np.argsort(hashed, kind="stable")
    is_same = hashed[order][1:] == hashed[order][:-1]
    one, two = order[:-1][is_same], order[1:][is_same]
    if not (np.array_equal(sets[one], sets[two]) and np.array_equal(points[one], points[two])):
        order = np.lexsort((*points.T, sets))
        is_same = (points[order][1:] == points[order][:-1]).all(axis=1)
        is_same &= sets[order][1:] == sets[order][:-1]
    return order, np.flatnonzero(np.append(True, ~is_same))


def _tree(points: FloatArray, most: int) -> tuple[IntArray, IntArray, FloatArray, int]:
    from bisim_abstract._kernels.points import LEAF, boruvka_kernel, tree_kernel

    n, d = points.shape
    first, second, lengths = np.empty(n - 1, np.int64), np.empty(n - 1, np.int64), np.empty(n - 1)
    if n == 1:
        return first, second, lengths, 0
    count = 2 ** (max(-(-n // LEAF) - 1, 0).bit_length() + 1) - 1  # boxes
    order, begins, ends = np.arange(n), np.zeros(count, np.int64), np.zeros(count, np.int64)
    low, high = np.empty((count, d)), np.empty((count, d))
    tree_kernel(points, order, begins, ends, low, high)
    boxes = points, order, begins, ends, low, high
    scratch = np.empty(n, np.int64), np.empty(count, np.int64)
    parent, least, best, ways = np.arange(n), np.zeros(n), np.empty(n), np.empty((2, n), np.int64)
    found = done = 0
    while found < n - 1:
        look()
        found, work = boruvka_kernel(
            *(*boxes, most - done, parent, *scratch, least, best, ways[0], ways[1]),
            *(first, second, lengths, found),
        )
        done += work
        if done > most:
            raise TooMuchWorkError
    return first, second, lengths, done
