"""Sweeps of value features and of witnesses, distances of functions, bounding boxes of blocks.

Everything is float64 and evaluated in a fixed order per state, so that results depend neither
on the chunks nor on the threads that work on them. Masses are rows already divided by their
sum: each is within 2·EPS relative of the exact quotient.
"""

from __future__ import annotations

import numpy as np

from bisim_abstract._base.jit import kernel
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import FloatArray, IntArray


@kernel
def feature_sweep_kernel(
    begin: int,
    end: int,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    rewards: FloatArray,
    gamma: float,
    signs: FloatArray,
    used: IntArray,
    kinds: IntArray,
    floor: FloatArray,
    ceiling: FloatArray,
    offset: FloatArray,
    values: FloatArray,
    out: FloatArray,
    ranges: FloatArray,
) -> None:
    """Φg - offset for all k functions at once, over the states begin..end.

    In: rows divided by their sums; rewards (n, A); signs (A, k), 0 for actions left out; used
    (k), the number of actions not left out; kinds (k); floor and ceiling (k), where signed rewards
    are cut off; offset (k), subtracted from every signed reward; values (n, k), the functions g.
    Out: out (n, k); ranges (4, k): least and largest of out - g, then of out, over these states.
    """
    n_actions, k = signs.shape
    ahead = np.empty(k)
    for f in range(k):
        ranges[0, f] = ranges[2, f] = np.inf
        ranges[1, f] = ranges[3, f] = -np.inf
    for x in range(begin, end):
        best = out[x]
        for f in range(k):
            best[f] = -np.inf if kinds[f] == 0 else 0.0
        for a in range(n_actions):
            row = x * n_actions + a
            for f in range(k):
                ahead[f] = 0.0
            for e in range(indptr[row], indptr[row + 1]):
                mass = probs[e]
                there = values[indices[e]]
                for f in range(k):
                    ahead[f] += mass * there[f]
            reward = rewards[x, a]
            for f in range(k):
                sign = signs[a, f]
                if sign != 0.0:
                    paid = min(max(sign * reward, floor[f]), ceiling[f])
                    q = (paid - offset[f]) + gamma * ahead[f]
                    if kinds[f] == 1:
                        best[f] += q
                    elif q > best[f]:
                        best[f] = q
        here = values[x]
        for f in range(k):
            if kinds[f] == 1:
                best[f] /= used[f]
            change = best[f] - here[f]
            ranges[0, f] = min(ranges[0, f], change)
            ranges[1, f] = max(ranges[1, f], change)
            ranges[2, f] = min(ranges[2, f], best[f])
            ranges[3, f] = max(ranges[3, f], best[f])


@kernel
def distance_kernel(
    begin: int, end: int, values: FloatArray, points: FloatArray, out: FloatArray
) -> None:
    """The largest difference of a function between the states begin..end and some points.

    In: values (k, n), the functions; points (m, k), their values at the points. Out: out (m, n).
    States run innermost, contiguous.
    """
    for i in range(points.shape[0]):
        target = out[i, begin:end]
        target[:] = 0.0
        for f in range(values.shape[0]):
            line = values[f, begin:end]
            point = points[i, f]
            for z in range(end - begin):
                target[z] = max(target[z], abs(line[z] - point))


@kernel
def witness_kernel(
    begin: int,
    end: int,
    actions: IntArray,
    signs: IntArray,
    offsets: FloatArray,
    support: IntArray,
    potential: FloatArray,
    away: FloatArray,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    rewards: FloatArray,
    gamma: float,
    out: FloatArray,
    largest: FloatArray,
) -> None:
    """sign·R - offset + γ·P u for the functions begin..end, with u = min_i (potential_i + away_i).

    In: actions, signs, offsets (k); support (k, m), rows of away; potential (k, m); away (points,
    n), distances; rows divided by their sums; rewards (n, A).
    Out: out (k, n); largest (k): the largest |u|.
    """
    n, n_actions = rewards.shape
    u = np.empty(n)
    for f in range(begin, end):
        u[:] = np.inf
        for i in range(support.shape[1]):
            line = away[support[f, i]]
            start = potential[f, i]
            for z in range(n):
                u[z] = min(u[z], start + line[z])
        most = 0.0
        for z in range(n):
            most = max(most, abs(u[z]))
        largest[f] = most
        action, sign, offset = actions[f], float(signs[f]), offsets[f]
        for x in range(n):
            row = x * n_actions + action
            ahead = 0.0
            for e in range(indptr[row], indptr[row + 1]):
                ahead += probs[e] * u[indices[e]]
            out[f, x] = (sign * rewards[x, action] - offset) + gamma * ahead


@kernel
def lower_kernel(
    values: FloatArray, corrections: FloatArray, first: IntArray, second: IntArray, best: FloatArray
) -> None:
    """Raise bounds on pairs of states to the largest difference of a function less its correction.

    Rounded down: the difference, and each of the three operations after it, is off by EPS
    relative at most, and each factor takes 4·EPS off. Below the normal range differences and sums
    are exact.

    In: values (k, n), corrections (k); first, second (pairs). In and out: best (pairs).
    """
    down = 1.0 - 4.0 * EPS
    for f in range(values.shape[0]):
        line, correction = values[f], corrections[f]
        for p in range(first.size):
            gap = (abs(line[first[p]] - line[second[p]]) * down - correction) * down
            best[p] = max(best[p], gap)


@kernel
def box_kernel(values: FloatArray, labels: IntArray, low: FloatArray, high: FloatArray) -> None:
    """Least and largest value of a function in every block.

    In: values (n), labels (n). In/out: low and high (n_blocks), given as +inf and -inf.
    """
    for x in range(labels.size):
        block = labels[x]
        low[block] = min(low[block], values[x])
        high[block] = max(high[block], values[x])
