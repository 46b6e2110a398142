"""Small models whose actions correspond only after renaming, or are missing in some states."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract import TabularMDP
from tests.support.honest import estimated

Ints = npt.NDArray[np.int64]


def renamed_mdp(
    seed: int,
    *,
    n: int = 5,
    n_actions: int = 3,
    missing: float = 0.3,
    noise: float | None = None,
    radius: float = 0.0,
) -> TabularMDP:
    """Some states do what another does with its actions permuted, or one of them twice.

    Others do something of their own. Rewards are multiples of 1/8 and a little noise, or none. With
    a radius it is an estimate.
    """
    rng = np.random.default_rng([19, seed])
    P, R = np.zeros((n, n_actions, n)), np.zeros((n, n_actions))
    noise = float(rng.choice([0.0, 0.01])) if noise is None else noise
    for s in range(n):
        for a in range(n_actions):
            support = rng.permutation(n)[: int(rng.integers(1, 3))]
            P[s, a, support] = rng.integers(1, 5, support.size)
            R[s, a] = rng.integers(-8, 9) / 8
    for s in range(1, n):
        if rng.random() < 0.6:
            like = int(rng.integers(s))
            order = rng.permutation(n_actions)
            if rng.random() < 0.3:
                order[0] = order[-1]
            P[s], R[s] = P[like, order], R[like, order] + noise * rng.random(n_actions)
    available = rng.random((n, n_actions)) >= missing
    available[np.arange(n), rng.integers(n_actions, size=n)] = True
    P /= P.sum(axis=2, keepdims=True)
    mdp = TabularMDP.from_dense(P, R, order="sas")
    if radius > 0.0:
        mdp = estimated(mdp, radius, radius, seed)
    return mdp.with_available(available)


def random_renaming(mdp: TabularMDP, labels: Any, rng: np.random.Generator) -> Ints:
    """Any names that all states of a block use, numbered from 0 on."""
    names = np.full(mdp.rewards.shape, -1)
    for block in set(labels):
        members = [s for s, label in enumerate(labels) if label == block]
        most = int(mdp.available[members].sum(axis=1).min())
        count = int(rng.integers(1, most + 1))
        for s in members:
            own = np.flatnonzero(mdp.available[s])
            called = np.concatenate([np.arange(count), rng.integers(count, size=own.size - count)])
            names[s, own] = rng.permutation(called)
    return names


def random_labels(mdp: TabularMDP, rng: np.random.Generator, *, is_pure: bool) -> list[int]:
    """Any blocks; of states with the same actions, if asked for."""
    labels = rng.integers(0, 3, mdp.n_states)
    if is_pure:
        labels = labels + 3 * mdp.action_sets
    return [int(x) for x in np.unique(labels, return_inverse=True)[1].ravel()]
