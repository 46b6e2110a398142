"""Models whose states are alike after renaming actions, and backups of both relations, exactly."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from bisim_abstract import TabularMDP
from tests.support.oracles import Table, fractions, transport_exact


def renamed_mdp(
    seed: int, *, n_states: int = 6, n_actions: int = 3, noise: float = 0.0, has_sets: bool = True
) -> TabularMDP:
    """A small model with permuted, duplicated and missing actions."""
    rng = np.random.default_rng(seed)
    P = np.zeros((n_states, n_actions, n_states))
    for row in P.reshape(-1, n_states):
        size = int(rng.integers(1, 4))
        row[rng.choice(n_states, size, replace=False)] = rng.dirichlet(np.ones(size))
    R = np.round(rng.random((n_states, n_actions)), int(rng.integers(1, 4)))
    available = np.ones(R.shape, bool)
    if has_sets:
        available = rng.random(R.shape) < 0.7
        available[np.arange(n_states), rng.integers(n_actions, size=n_states)] = True
    for s in range(1, n_states):
        kind = rng.random()
        if kind < 0.4:  # a state like the one before, its actions in another order
            order = rng.permutation(n_actions)
            P[s], R[s], available[s] = P[s - 1][order], R[s - 1][order], available[s - 1][order]
            R[s] += noise * rng.random(n_actions)
        elif kind < 0.6:  # two actions that do the same
            a, b = rng.integers(n_actions, size=2)
            P[s, b], R[s, b] = P[s, a], R[s, a]
    return TabularMDP.from_dense(P, R, available=available, order="sas")


def compared_exact(
    mdp: TabularMDP, gamma: float, table: Table, s: int, a: int, t: int, b: int
) -> Fraction:
    """|R(s, a) - R(t, b)| + gamma·W of the two rows under a table of distances."""
    gap = abs(Fraction(float(mdp.rewards[s, a])) - Fraction(float(mdp.rewards[t, b])))
    (x, p), (y, q) = mdp.successors(s, a), mdp.successors(t, b)
    cost = [[Fraction(table[i][j]) for j in y.tolist()] for i in x.tolist()]
    return gap + Fraction(gamma) * transport_exact(cost, fractions(p), fractions(q))


def backup_of_pair(
    mdp: TabularMDP, gamma: float, table: Table, s: int, t: int, relation: str, apart: float
) -> Fraction:
    """The backup of a table at a pair of different states."""
    one, two = (np.flatnonzero(mdp.available[x]).tolist() for x in (s, t))
    if relation == "plain":
        if one != two:
            return Fraction(apart)
        return max(compared_exact(mdp, gamma, table, s, a, t, a) for a in one)
    found = [[compared_exact(mdp, gamma, table, s, a, t, b) for b in two] for a in one]
    best: Fraction = max(max(map(min, found)), max(map(min, zip(*found, strict=True))))
    return best
