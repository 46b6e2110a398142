"""The baseline: the best policy that looks at nothing, from the start distribution.

Policies that look at nothing are uniformly random actions, and each action for ever (where a
state lacks it, uniformly random actions of its own). Each is the policy of a Markov chain, whose
values are found by whatever solver and proven after (`proofs.bounded`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bisim_abstract._abstract.proofs import bounded, with_radii
from bisim_abstract._abstract.scale import start_means
from bisim_abstract._base.deadline import look
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._exact.planning import DIRECT_LIMIT, follow_policy
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._model.policies import uniform_policy

RANDOM = -1  # in place of an action: all of them, uniformly
FEW = 32  # actions up to which each chain is solved to the last bit, in small models
BETWEEN = 8  # sweeps between two looks at the bounds


@dataclass(frozen=True, eq=False)
class Baseline:
    """Bounds on the values of policies that look at nothing.

    Attributes:
        random_upper: (n_states) upper bounds on the values of uniformly random actions.
        constant_upper: (n_states, n_actions) upper bounds on the values of each action for ever.
        action: The policy that is best from the start: an action, or -1 for random ones.
        lower: (n_states) lower bounds on the values of that policy.
        start: Bounds on the baseline: the largest start value of these policies.
    """

    random_upper: FloatArray
    constant_upper: FloatArray
    action: int
    lower: FloatArray
    start: tuple[float, float]


def constant_policy(mdp: TabularMDP, action: int) -> IntArray | FloatArray:
    """One action for ever, as a policy over states; -1 for uniformly random actions."""
    if action == RANDOM:
        return uniform_policy(mdp)
    has_it = mdp.available[:, action]
    if has_it.all():
        return np.full(mdp.n_states, action, np.int64)
    weights = uniform_policy(mdp)
    weights[has_it] = 0.0
    weights[has_it, action] = 1.0
    return weights


def find_baseline(
    mdp: TabularMDP, gamma: float, *, tol: float | None = None, guess: FloatArray | None = None
) -> Baseline:
    """Bounds on all policies that look at nothing, as close as the best one asks for.

    Args:
        mdp: The model.
        gamma: The discount, in [0, 1).
        tol: How far bounds on the best one may be apart, about; by default a ten-millionth of what
            values can differ by.
        guess: (n_states) near the values of random actions, if known.
    """
    if tol is None:
        span = float(mdp.rewards.max()) - float(mdp.rewards.min())
        tol = max(1e-7 * span / (1.0 - gamma), 1e-300)
    best, most, action, found = -math.inf, -math.inf, RANDOM, np.zeros(mdp.n_states)
    uppers = []
    for each in range(RANDOM, mdp.n_actions):
        look()
        policy = constant_policy(mdp, each)
        if mdp.estimate is not None:
            zero = np.zeros(mdp.n_states)
            upper, lower = (with_radii(mdp, gamma, sign, policy, zero) for sign in (1.0, -1.0))
        else:
            first = guess if each == RANDOM else None
            values = _values(mdp, gamma, policy, tol, best, guess=first)
            upper, lower = (bounded(mdp, gamma, values, sign, policy) for sign in (1.0, -1.0))
        uppers.append(upper)
        low, most = start_means(mdp.start, lower)[0], max(most, start_means(mdp.start, upper)[1])
        if low > best:
            best, action, found = low, each, lower
    constants = np.stack(uppers[1:], axis=1)
    for array in (uppers[0], constants, found):
        array.setflags(write=False)
    return Baseline(uppers[0], constants, action, found, (best, most))


def _values(
    mdp: TabularMDP,
    gamma: float,
    policy: IntArray | FloatArray,
    tol: float,
    best: float,
    *,
    guess: FloatArray | None,
) -> FloatArray:
    """Values near those of a policy; not trusted.

    A policy that is clearly worse than another one from the start need not be known any better.
    """
    n, n_actions = mdp.n_states, mdp.n_actions
    if policy.ndim == 2 or (n <= DIRECT_LIMIT and n_actions <= FEW):
        found = follow_policy(mdp, gamma, policy, tol, guess=guess)
        return np.asarray(found.lower / 2.0 + found.upper / 2.0)
    rows = mdp.kernel()[np.arange(n) * n_actions + policy.astype(np.int64)]
    rewards = mdp.rewards[np.arange(n), policy]
    values = rewards / (1.0 - gamma)
    weights = mdp.start / mdp.start.sum()
    sweeps = 1 + (math.ceil(40.0 / -math.log(gamma)) if gamma > 0.0 else 1)
    for k in range(sweeps):
        look()
        backup = rewards + gamma * (rows @ values)
        residual = backup - values
        low, high = float(residual.min()), float(residual.max())
        values = backup
        if k % BETWEEN:
            continue
        rest = gamma / (1.0 - gamma)
        is_worse = float((weights * values).sum()) + rest * high < best - tol
        if is_worse or (high - low) * rest <= tol:
            return np.asarray(values + rest * (low + high) / 2.0)
    return np.asarray(values)
