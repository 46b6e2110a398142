"""Which actions of a block's members are most like each other: a proposal, nothing relies on it."""

from __future__ import annotations

import numpy as np

from bisim_abstract._base.jit import inner, kernel
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray


@inner
def root_kernel(group: IntArray, k: int) -> int:
    """The first of the actions that one is joined with."""
    while group[k] != k:
        k = group[k]
    return k


@kernel
def match_kernel(
    begin: int,
    end: int,
    order: IntArray,
    starts: IntArray,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    rewards: FloatArray,
    available: BoolArray,
    block: IntArray,
    widest: int,
    weight: float,
    out: IntArray,
) -> None:
    """Name the actions of the members of the blocks begin..end, so that all use the same names.

    Every action of a member is called after the action of the block's first member that it is most
    like: by the difference of rewards, and `weight` times that of the rows, summed by block, in
    total variation. Of equally good ones the one with its own number, else the first. What nobody
    of a member is called after is joined with what is most like it there: then no name is left
    without an action.

    In: order (n), states sorted by block; starts (blocks + 1), where each begins; rows divided by
    their sums; rewards, available (n, actions); widest, the longest row.
    Out: out (n, actions): names, from 0 on in each block; -1 for what a state lacks.
    """
    n_actions = rewards.shape[1]
    sent = np.zeros(starts.size - 1)  # by a row of a member, to each block
    columns, masses = np.empty((n_actions, widest), np.int64), np.empty((n_actions, widest))
    lengths, group = np.zeros(n_actions, np.int64), np.empty(n_actions, np.int64)
    cost, near = np.empty((n_actions, n_actions)), np.empty(n_actions, np.int64)
    for c in range(begin, end):
        model = order[starts[c]]
        for b in range(n_actions):
            group[b] = b
            lengths[b] = 0
            if not available[model, b]:
                continue
            row = model * n_actions + b
            for e in range(indptr[row], indptr[row + 1]):
                sent[block[indices[e]]] += probs[e]
            for e in range(indptr[row], indptr[row + 1]):
                to = block[indices[e]]
                if sent[to] > 0.0:
                    columns[b, lengths[b]], masses[b, lengths[b]] = to, sent[to]
                    lengths[b] += 1
                    sent[to] = 0.0
        for k in range(starts[c], starts[c + 1]):
            x = order[k]
            for a in range(n_actions):
                out[x, a] = -1
                if not available[x, a]:
                    continue
                row = x * n_actions + a
                for e in range(indptr[row], indptr[row + 1]):
                    sent[block[indices[e]]] += probs[e]
                near[a] = -1
                for b in range(n_actions):
                    if not available[model, b]:
                        continue
                    shared = 0.0
                    for i in range(lengths[b]):
                        shared += min(masses[b, i], sent[columns[b, i]])
                    away = weight * max(1.0 - shared, 0.0) + abs(rewards[x, a] - rewards[model, b])
                    cost[a, b] = away
                    if (
                        near[a] < 0
                        or away < cost[a, near[a]]
                        or (b == a and away <= cost[a, near[a]])
                    ):
                        near[a] = b
                for e in range(indptr[row], indptr[row + 1]):
                    sent[block[indices[e]]] = 0.0
                out[x, a] = near[a]
            for b in range(n_actions):
                if not available[model, b]:
                    continue
                closest = -1
                is_used = False
                for a in range(n_actions):
                    if available[x, a]:
                        is_used = is_used or near[a] == b
                        if closest < 0 or cost[a, b] < cost[closest, b]:
                            closest = a
                if not is_used:
                    one, two = root_kernel(group, b), root_kernel(group, near[closest])
                    group[max(one, two)] = min(one, two)
        count = 0
        for b in range(n_actions):
            near[b] = -1
            if available[model, b] and group[b] == b:
                near[b] = count
                count += 1
        for k in range(starts[c], starts[c + 1]):
            x = order[k]
            for a in range(n_actions):
                if out[x, a] >= 0:
                    out[x, a] = near[root_kernel(group, out[x, a])]
