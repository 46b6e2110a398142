"""Seeded random models: dense, sparse, deterministic, and with planted groups."""

from __future__ import annotations

import numpy as np

from bisim_abstract._base.checks import as_generator, check_int, check_real
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.types import FloatArray, IntArray, SeedLike
from bisim_abstract._model.mdp import DENSE_BYTES, ENTRY_BYTES, ROW_BYTES, TabularMDP
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["grouped_mdp", "random_mdp", "sparse_mdp"]


def random_mdp(n_states: int, n_actions: int = 3, *, seed: SeedLike = None) -> TabularMDP:
    """Dense rows, uniform on the simplex, and rewards rescaled to span exactly [0, 1].

    The random MDPs of the paper's bound audit: 10 or 18 states, three actions, L = 1.

    Args:
        n_states: Number of states.
        n_actions: Number of actions.
        seed: Seed or generator.
    """
    n_states, n_actions = _sizes(n_states, n_actions)
    check_memory(
        DENSE_BYTES * n_states * n_actions * n_states,
        what=f"a model of {n_states:,} states and {n_actions:,} actions that reach every state",
        instead="use sparse_mdp, whose rows are short, or ask for fewer states",
    )
    rng = as_generator(seed)
    P = rng.dirichlet(np.ones(n_states), size=(n_states, n_actions))
    return TabularMDP.from_dense(
        P,
        _unit_rewards(rng, n_states, n_actions),
        order="sas",
        metadata={"generator": "random_mdp"},
    )


def sparse_mdp(
    n_states: int, n_actions: int = 3, *, support: int = 4, seed: SeedLike = None
) -> TabularMDP:
    """Rows over `support` random successors, uniform on the simplex; rewards span [0, 1].

    The sparse-support MDPs of the paper's scaling study.

    Args:
        n_states: Number of states.
        n_actions: Number of actions.
        support: Number of successors of a state and action; 1 makes the model deterministic.
        seed: Seed or generator.
    """
    n_states, n_actions = _sizes(n_states, n_actions)
    support = check_int("support", support, low=1, high=n_states)
    rows = n_states * n_actions
    _check_rows(rows, support, n_states, _distinct_bytes(rows, support, n_states))
    rng = as_generator(seed)
    indices = _distinct(rng, rows, support, n_states)
    probs = rng.dirichlet(np.ones(support), size=rows)
    return TabularMDP.from_rows(
        np.arange(rows + 1) * support,
        indices.ravel(),
        probs.ravel(),
        _unit_rewards(rng, n_states, n_actions),
        metadata={"generator": "sparse_mdp", "support": support},
    )


def grouped_mdp(
    n_states: int,
    n_groups: int,
    n_actions: int = 3,
    *,
    noise: float = 0.01,
    support: int = 4,
    matched_rewards: bool = False,
    seed: SeedLike = None,
) -> tuple[TabularMDP, IntArray]:
    """Planted groups: states of a group share rewards and group-level dynamics up to noise.

    Each group has base rewards in [0, 1] and, per action, a distribution over groups. A state
    draws `support` successors by it (the group first, then any member), weighted so that the
    row's mass on each group is the group's, times 1 + noise·U(-1, 1) and divided by the sum.
    Rewards are the group's plus noise·U(0, 1).

    Args:
        n_states: Number of states; groups differ in size by at most one.
        n_groups: Number of groups.
        n_actions: Number of actions.
        noise: Within-group noise; 0 makes groups exactly bisimilar up to rounding.
        support: Number of groups a group can reach under an action.
        matched_rewards: Give all groups the same base rewards but one, in which a single
            group differs: only transitions tell the others apart.
        seed: Seed or generator.

    Returns:
        The model, and the (n_states) planted group of each state.
    """
    n_states, n_actions = _sizes(n_states, n_actions)
    n_groups = check_int("n_groups", n_groups, low=1, high=n_states)
    support = check_int("support", support, low=1)
    noise = check_real("noise", noise)
    if not 0.0 <= noise < 1.0:
        raise InvalidArgumentError(f"noise must lie in [0, 1), got {noise!r}")
    reach = min(support, n_groups)
    drawn = _distinct_bytes(n_groups * n_actions, reach, n_groups)
    _check_rows(n_states * n_actions, reach, n_states, drawn)
    rng = as_generator(seed)
    groups = np.sort(np.arange(n_states) % n_groups)
    begins = np.searchsorted(groups, np.arange(n_groups + 1))
    targets = _distinct(rng, n_groups * n_actions, reach, n_groups)
    weights = rng.dirichlet(np.ones(reach), size=n_groups * n_actions)
    base = rng.random((n_groups, n_actions))
    if matched_rewards:
        base[1:] = base[1:2]

    kinds = (groups[:, None] * n_actions + np.arange(n_actions)).ravel()
    indices = np.empty((kinds.size, reach), np.int64)
    wanted = targets[kinds].ravel()
    order = np.argsort(wanted, kind="stable")
    ends = np.cumsum(np.bincount(wanted, minlength=n_groups))
    for g, (end, count) in enumerate(zip(ends, np.diff(ends, prepend=0), strict=True)):
        members = np.arange(begins[g], begins[g + 1])
        indices.ravel()[order[end - count : end]] = rng.choice(members, size=int(count))
    probs = weights[kinds] * (1.0 + noise * rng.uniform(-1.0, 1.0, size=indices.shape))
    probs /= probs.sum(axis=1, keepdims=True)
    rewards = base[groups] + noise * rng.random((n_states, n_actions))
    mdp = TabularMDP.from_rows(
        np.arange(kinds.size + 1) * reach,
        indices.ravel(),
        probs.ravel(),
        rewards,
        metadata={"generator": "grouped_mdp", "n_groups": n_groups, "noise": noise},
    )
    return mdp, groups


def _sizes(n_states: int, n_actions: int) -> tuple[int, int]:
    return check_int("n_states", n_states, low=1), check_int("n_actions", n_actions, low=1)


def _check_rows(rows: int, support: int, n_states: int, drawn: int) -> None:
    """Refuse a model whose rows would not fit, or `drawn` bytes, which their making takes."""
    check_memory(
        max(drawn, (ENTRY_BYTES + 16) * rows * support + ROW_BYTES * rows),
        what=f"a model of {n_states:,} states with {rows:,} rows of {support:,} successors",
        instead="ask for fewer states, actions or successors (support)",
    )


def _unit_rewards(rng: np.random.Generator, n_states: int, n_actions: int) -> FloatArray:
    rewards = rng.random((n_states, n_actions))
    span = np.ptp(rewards)
    return np.asarray((rewards - rewards.min()) / (span if span > 0.0 else 1.0))


def _distinct_bytes(rows: int, size: int, n: int) -> int:
    """What `_distinct` takes at most: all numbers for each row twice, or those drawn."""
    return 16 * rows * n if 4 * size >= n else 17 * rows * size


def _distinct(rng: np.random.Generator, rows: int, size: int, n: int) -> IntArray:
    """(rows, size) numbers below n, distinct within each row."""
    if 4 * size >= n:
        return rng.permuted(np.tile(np.arange(n), (rows, 1)), axis=1)[:, :size]
    # Draw again where a row has a repetition: few rows do, as size is small against n.
    drawn = rng.integers(n, size=(rows, size))
    while True:
        ordered = np.sort(drawn, axis=1)
        again = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
        if not again.any():
            return drawn
        drawn[again] = rng.integers(n, size=(int(again.sum()), size))
