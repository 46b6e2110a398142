"""Small models to make blocks of, and true models within the radii of an estimate."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract import (
    TabularMDP,
    bisimulation_classes,
    estimate_mdp,
)
from bisim_abstract._model.estimation import Estimate
from bisim_abstract.parts import grouped_mdp, random_mdp, sparse_mdp
from tests.support.worlds import dense

Floats = npt.NDArray[np.float64]


Ints = npt.NDArray[np.int64]


# -- models and partitions ---------------------------------------------------------------------


def estimated(
    mdp: TabularMDP, reward_radius: npt.ArrayLike, row_radius: npt.ArrayLike
) -> TabularMDP:
    """The model as an estimate with given radii."""
    shape = mdp.rewards.shape
    estimate = Estimate(
        counts=np.ones(shape, np.int64),
        reward_radius=np.broadcast_to(reward_radius, shape),
        row_radius=np.broadcast_to(row_radius, shape),
        alpha=0.1,
        reward_range=(-1e3, 1e3),
        support_bound=mdp.n_states,
    )
    return dataclasses.replace(mdp, estimate=estimate)


def dyadic(n: int, n_actions: int, rng: np.random.Generator) -> TabularMDP:
    """Rows in sixteenths and rewards in quarters: many coincide, all sums are exact."""
    pool = rng.multinomial(16, np.ones(n) / n, size=3) / 16
    P = pool[rng.integers(3, size=(n, n_actions))]
    return TabularMDP.from_dense(P, rng.integers(0, 3, (n, n_actions)) / 4)


def small_mdp(seed: int) -> TabularMDP:
    """Four to seven states: random, sparse, planted, deterministic, dyadic or estimated."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 8))
    kind = seed % 6
    if kind == 0:
        return random_mdp(min(n, 5), 2, seed=seed)
    if kind == 1:
        return sparse_mdp(n, 2, support=3, seed=seed)
    if kind == 2:
        noise = float(rng.choice([0.0, 0.01, 0.1]))
        return grouped_mdp(n, 3, 2, noise=noise, support=2, seed=seed)[0]
    if kind == 3:
        return sparse_mdp(n, 2, support=1, seed=seed)
    if kind == 4:
        return dyadic(n, 2, rng)
    base = sparse_mdp(n, 2, support=2, seed=seed)
    shape = base.rewards.shape
    few = rng.random(shape) < 0.5
    return estimated(base, 0.05 * rng.random(shape) * few, 0.2 * rng.random(shape))


def noisy_groups(
    n: int, n_groups: int, noise: float, *, n_actions: int = 3, seed: int = 0
) -> tuple[TabularMDP, Ints]:
    """Groups of equal rewards, each state of which sends some of its mass to a group of its own.

    Radii of blocks are then as large as `noise`, which their bounds pay at every step.
    """
    rng = np.random.default_rng(seed)
    groups = np.sort(np.arange(n) % n_groups)
    sizes = np.bincount(groups)
    begins, support = np.cumsum(sizes) - sizes, min(3, n_groups)
    kinds = (groups[:, None] * n_actions + np.arange(n_actions)).ravel()
    count = n_groups * n_actions
    targets = np.array([rng.choice(n_groups, support, replace=False) for _ in range(count)])
    weights = rng.dirichlet(np.ones(support), size=count)
    columns = np.column_stack([targets[kinds], rng.integers(n_groups, size=kinds.size)])
    masses = np.column_stack([weights[kinds] * (1.0 - noise), np.full(kinds.size, noise)])
    members = begins[columns] + (rng.random(columns.shape) * sizes[columns]).astype(np.int64)
    indptr = np.arange(kinds.size + 1) * columns.shape[1]
    rewards = rng.random((n_groups, n_actions))[groups]
    return TabularMDP.from_rows(indptr, members.ravel(), masses.ravel(), rewards), groups


def partition(mdp: TabularMDP, kind: str, seed: int = 0) -> Ints:
    n = mdp.n_states
    rng = np.random.default_rng([seed, n])
    if kind == "classes":
        return bisimulation_classes(mdp).labels
    if kind == "singletons":
        return rng.permutation(n)
    if kind == "one":
        return np.full(n, 7)
    return rng.integers(0, int(rng.integers(1, n)) + 1, n)


# -- estimated models --------------------------------------------------------------------------


def moved_mass(
    P: Floats, radius: Floats, rng: np.random.Generator, towards: Sequence[int] | None = None
) -> Floats:
    """Rows at total variation `radius` of given ones, on any states (dyadic: exact)."""
    out = P.copy()
    for s, a in np.ndindex(radius.shape):
        left = radius[s, a]
        row = out[s, a]
        to = int(rng.choice(towards if towards is not None else np.flatnonzero(row == 0.0)))
        for k in rng.permutation(np.flatnonzero(row)):
            if k != to:
                part = min(left, row[k])
                row[k] -= part
                row[to] += part
                left -= part
    return out


def true_models(mdp: TabularMDP, rng: np.random.Generator, count: int) -> list[TabularMDP]:
    """Models at the very edge of what an estimate allows."""
    assert mdp.estimate is not None
    e, found = mdp.estimate, []
    for _ in range(count):
        signs = rng.choice([-1.0, 1.0], size=mdp.rewards.shape)
        P = moved_mass(dense(mdp), e.row_radius, rng, range(mdp.n_states))
        found.append(TabularMDP.from_dense(P, mdp.rewards + signs * e.reward_radius))
    return found


def ends(gamma: float, rows: Floats, rewards: Floats) -> TabularMDP:
    """States 0 and 1 with given rows over 2 (pays nothing for ever) and 3 (pays 1)."""
    P = np.zeros((4, 1, 4))
    P[:2, 0, 2:] = rows
    P[2, 0, 2] = P[3, 0, 3] = 1.0
    return TabularMDP.from_dense(P, [*rewards, 0.0, 1.0])


# (rows and rewards of 0 and 1 as estimated and as they are, radii of row and reward)
EDGES: dict[str, tuple[Any, Any, Any, Any, float, float]] = {
    "rows apart": ([[0.5, 0.5]] * 2, [0, 0], [[0.25, 0.75], [0.75, 0.25]], [0, 0], 0.25, 0.0),
    "rows together": ([[0.25, 0.75], [0.75, 0.25]], [0, 0], [[0.5, 0.5]] * 2, [0, 0], 0.25, 0.0),
    "never seen": ([[1.0, 0.0]] * 2, [0, 0], [[0.75, 0.25], [1.0, 0.0]], [0, 0], 0.25, 0.0),
    "rewards apart": ([[1.0, 0.0]] * 2, [0.5, 0.5], [[1.0, 0.0]] * 2, [0.25, 0.75], 0.0, 0.25),
    "rewards together": ([[1.0, 0.0]] * 2, [0, 0.5], [[1.0, 0.0]] * 2, [0.25, 0.25], 0.0, 0.25),
}


def sampled(truth: TabularMDP, visits: int, rng: np.random.Generator) -> TabularMDP:
    """An estimate from as many visits to every state and action."""
    s, a = (np.repeat(x.ravel(), visits) for x in np.indices(truth.rewards.shape))
    t = np.array(
        [
            rng.choice(successors, p=probs / probs.sum())
            for x, y in zip(s.tolist(), a.tolist(), strict=True)
            for successors, probs in [truth.successors(x, y)]
        ]
    )
    return estimate_mdp(
        s,
        a,
        (rng.random(s.size) < truth.rewards[s, a]).astype(float),
        t,
        n_states=truth.n_states,
        n_actions=truth.n_actions,
        reward_range=(0.0, 1.0),
        alpha=0.1,
        support_bound=2,
    )
