"""Hausdorff distances of sets of rewards: how far each is at most from something of the other."""

from __future__ import annotations

import numpy as np

from bisim_abstract._base.jit import inner, kernel
from bisim_abstract._base.types import FloatArray, IntArray


@inner
def farthest_point_kernel(one: FloatArray, two: FloatArray) -> float:
    """The most that a number of `one` is away from the nearest one of `two`; both rise."""
    worst = 0.0
    k = 0
    for x in one:
        while k + 1 < two.size and abs(two[k + 1] - x) <= abs(two[k] - x):
            k += 1
        worst = max(worst, abs(two[k] - x))
    return worst


@kernel
def point_sets_kernel(
    first: IntArray, second: IntArray, points: FloatArray, out: FloatArray
) -> None:
    """Hausdorff distances of pairs of sets, each off by EPS relative.

    In: first, second (pairs); points (n, k), rising within a row. Out: out (pairs).
    """
    for p in range(first.size):
        one, two = points[first[p]], points[second[p]]
        out[p] = max(farthest_point_kernel(one, two), farthest_point_kernel(two, one))


@kernel
def interval_sets_kernel(
    first: IntArray,
    second: IntArray,
    low: FloatArray,
    high: FloatArray,
    gap: FloatArray,
    span: FloatArray,
) -> None:
    """The same of sets whose members are known to lie in intervals, one for each.

    In: first, second (pairs); low, high (n, k). Out, (pairs), each off by EPS relative: gap, which
    no Hausdorff distance is below, and span, which none is above: both are Hausdorff distances
    again, of the smallest and of the largest distance of two numbers from two intervals.
    """
    k = low.shape[1]
    for p in range(first.size):
        gap[p] = 0.0
        span[p] = 0.0
        for side in range(2):
            s, t = (first[p], second[p]) if side == 0 else (second[p], first[p])
            for a in range(k):
                nearest, farthest = np.inf, np.inf
                for b in range(k):
                    above, below = low[s, a] - high[t, b], low[t, b] - high[s, a]
                    nearest = min(nearest, max(0.0, above, below))
                    farthest = min(farthest, max(high[s, a] - low[t, b], high[t, b] - low[s, a]))
                gap[p] = max(gap[p], nearest)
                span[p] = max(span[p], farthest)
