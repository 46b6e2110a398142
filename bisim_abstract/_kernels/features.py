"""Sweeps of value features, potentials extended to all states, and bounding boxes of blocks.

Everything is float64 and evaluated in a fixed order per state, so that results depend neither
on the chunks nor on the threads that work on them. Masses are rows already divided by their
sum: each is within 2·EPS relative of the exact quotient.
"""

from __future__ import annotations

import numpy as np

from bisim_abstract._base.jit import kernel
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
    offset: FloatArray,
    values: FloatArray,
    out: FloatArray,
    ranges: FloatArray,
) -> None:
    """Φg - offset for all k functions at once, over the states begin..end.

    In: rows divided by their sums; rewards (n, A); signs (A, k), 0 for actions left out; used
    (k), the number of actions not left out; kinds (k); offset (k), subtracted from every signed
    reward; values (n, k), the functions g.
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
                    q = (sign * reward - offset[f]) + gamma * ahead[f]
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
def extend_kernel(
    begin: int,
    end: int,
    values: FloatArray,
    points: FloatArray,
    potential: FloatArray,
    out: FloatArray,
) -> None:
    """Extend a potential to the states begin..end: out(z) = min_i (potential_i + δ(z, i)).

    In: values (k, n), the functions; points (m, k), their values at the support; potential (m).
    Out: out (n). δ is the largest difference of a function; states run innermost, contiguous.
    """
    distance = np.empty(end - begin)
    target = out[begin:end]
    target[:] = np.inf
    for i in range(potential.size):
        distance[:] = 0.0
        for f in range(values.shape[0]):
            line = values[f, begin:end]
            point = points[i, f]
            for z in range(end - begin):
                distance[z] = max(distance[z], abs(line[z] - point))
        for z in range(end - begin):
            target[z] = min(target[z], potential[i] + distance[z])


@kernel
def backup_kernel(
    begin: int,
    end: int,
    action: int,
    sign: float,
    offset: float,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    rewards: FloatArray,
    gamma: float,
    values: FloatArray,
    out: FloatArray,
) -> None:
    """sign·R - offset + γ·P w of one action for one function w, over the states begin..end.

    In: rows divided by their sums; rewards (n, A); values (n), the function. Out: out (n).
    """
    n_actions = rewards.shape[1]
    for x in range(begin, end):
        row = x * n_actions + action
        ahead = 0.0
        for e in range(indptr[row], indptr[row + 1]):
            ahead += probs[e] * values[indices[e]]
        out[x] = (sign * rewards[x, action] - offset) + gamma * ahead


@kernel
def box_kernel(values: FloatArray, labels: IntArray, low: FloatArray, high: FloatArray) -> None:
    """Least and largest value of a function in every block.

    In: values (n), labels (n). In/out: low and high (n_blocks), given as +inf and -inf.
    """
    for x in range(labels.size):
        block = labels[x]
        low[block] = min(low[block], values[x])
        high[block] = max(high[block], values[x])
