"""Bounds on values from any function over states: one backup, and a shift that makes it a proof.

Let v be any function over states, found by whatever solver, and B the backup of the bound in
question (see `value`). With b >= Bv - v on all states,

    B(v + s) = Bv + γs <= v + b + γs <= v + s    for s = b/(1 - γ),

as a constant shift leaves spans as they are: v + s is an upper bound; mirrored below. Rounding
of the backup enters b, four times over, so that another float backup can confirm the result.

A backup is that of the best action, of a policy, of a mixture of actions, or of a set of actions,
of which the least counts: v <= min over the set of [R + γPv] bounds from below the value of every
policy that plays inside the set, randomised or with memory, as E[Σ_{t<k} γ^t r + γ^k v(x_k)] >=
v(x_0) holds for k = 0, and for k + 1 if for k.
"""

from __future__ import annotations

import numpy as np

from bisim_abstract._abstract.robust import backed_up, solve
from bisim_abstract._abstract.scale import start_means
from bisim_abstract._base.deadline import look
from bisim_abstract._base.labels import numbered
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._exact.planning import follow_actions
from bisim_abstract._model.mdp import TabularMDP

MARGIN = 4.0  # times the rounding error of a backup: room for whoever checks it
TINY = 1e-304  # above all that underflow may lose in a backup
ROUNDS = 200  # of policy iteration; the bounds hold after any number

# What is done in each state: (n_states) actions, (n_states, n_actions) probabilities, or
# (n_states, n_actions) booleans, the set of actions of which the worst counts.
Plan = IntArray | FloatArray | BoolArray


def largest_reward(mdp: TabularMDP) -> float:
    """The largest absolute reward of a model, confidence radius included."""
    radius = 0.0 if mdp.estimate is None else float(mdp.estimate.reward_radius.max())
    return float(np.abs(mdp.rewards).max()) + radius


def safe_shift(away: float, terms: int, top: float, values: FloatArray, gamma: float) -> float:
    """How far values must be moved so that a backup of the model confirms them, also in floats.

    If backups exceed values by `away` at most, rounding apart, a shift by s leaves a slack of
    (1 - γ)s - away. A float backup is off by (2·terms + 24)·EPS·size at most, whoever computes
    it, where `size` bounds a reward and four times the largest value *after* the shift. Four
    times as much is kept: for our own backup, for that of the verifier twice, and for rounding
    of the shift. Two passes, because the shift is part of the size.

    Args:
        away: The most by which backups exceed values.
        terms: Length of the longest row that is summed, and number of actions.
        top: The largest reward.
        values: The values.
        gamma: The discount.
    """
    shift, most = away / (1.0 - gamma), float(np.abs(values).max())
    for _ in range(2):
        size = top + 4.0 * (most + abs(shift))
        noise = (2 * terms + 24) * EPS * size + (TINY if size > 0.0 else 0.0)
        shift = (away + MARGIN * noise) / (1.0 - gamma)
    return shift


def backup(
    mdp: TabularMDP,
    gamma: float,
    values: FloatArray,
    sign: float,
    policy: Plan | None,
    rewards: FloatArray | None = None,
) -> FloatArray:
    """(n_states) one backup: of the best action, a policy's, a mixture's, or the worst of a set's.

    For an estimate it is the most (sign 1) or the least (-1) that radii allow. Other rewards than
    those of the model may be given, where it is no estimate.
    """
    n, n_actions = mdp.n_states, mdp.n_actions
    paid = mdp.rewards if rewards is None else rewards
    is_plan = policy is not None and policy.ndim == 1
    if mdp.estimate is not None:
        q = backed_up(mdp, gamma, values, sign)
    elif is_plan:
        assert policy is not None
        states, actions = np.arange(n), policy.astype(np.int64)
        rows = mdp.kernel()[states * n_actions + actions]
        return np.asarray(paid[states, actions] + gamma * (rows @ values))
    else:
        q = paid + gamma * (mdp.kernel() @ values).reshape(n, n_actions)
    if policy is None:
        return np.asarray(q.max(axis=1))
    if policy.dtype == np.bool_:
        return np.asarray(np.where(policy, q, np.inf).min(axis=1))
    return np.asarray(q[np.arange(n), policy] if is_plan else (policy * q).sum(axis=1))


def bounded(
    mdp: TabularMDP,
    gamma: float,
    values: FloatArray,
    sign: float,
    policy: Plan | None = None,
    rewards: FloatArray | None = None,
) -> FloatArray:
    """Values moved up (sign 1) or down (-1) until they satisfy their inequality, with room.

    A backup is a product of a row of at most max_support entries (each within 2·EPS relative of
    the exact quotient), a multiplication, an addition, a radius times a difference of values, and
    for a mixture as many products as there are actions: no term is rounded more than max_support +
    n_actions + 12 times, and their sizes amount to |R| + |radius| + 4·max|v| at most.
    """
    look()
    away = float((sign * (backup(mdp, gamma, values, sign, policy, rewards) - values)).max())
    top = largest_reward(mdp) if rewards is None else float(np.abs(rewards).max())
    shift = safe_shift(away, mdp.max_support + mdp.n_actions, top, values, gamma)
    return values + sign * shift


def with_radii(
    mdp: TabularMDP,
    gamma: float,
    sign: float,
    policy: Plan | None,
    guess: FloatArray,
) -> FloatArray:
    """Bounds for an estimated model: the best of a constant and of what is solved for."""
    # A constant is moved to the ends of what rewards allow.
    best = bounded(mdp, gamma, np.zeros(mdp.n_states), sign, policy)
    assert mdp.estimate is not None
    partitions: list[IntArray | None] = [None]
    if mdp.estimate.blocks is not None:  # whose radii are smaller, for functions constant on them
        partitions.append(numbered(mdp.estimate.blocks))
    for labels in partitions:
        found = bounded(mdp, gamma, solve(mdp, gamma, sign, policy, guess, labels), sign, policy)
        # Judged by the start, and by all states where that makes no difference.
        score = sign * (start_means(mdp.start, found)[0] - start_means(mdp.start, best)[0])
        if score < 0.0 or (score == 0.0 and sign * float((found - best).mean()) < 0.0):
            best = found
    return best


def least_inside(
    mdp: TabularMDP,
    gamma: float,
    allowed: BoolArray,
    tol: float,
    guess: FloatArray,
    rewards: FloatArray | None = None,
) -> FloatArray:
    """Lower bounds on the values of every policy that plays only actions of a set.

    Policy iteration that minimises; where it stops early, the shift at the end is larger.

    Args:
        mdp: The model.
        gamma: The discount, in [0, 1).
        allowed: (n_states, n_actions) the set, at least one action in each state.
        tol: How far below the least values the bounds may be, about.
        guess: (n_states) values to begin with.
        rewards: (n_states, n_actions) in place of the model's, if it is no estimate.
    """
    if mdp.estimate is not None:
        return with_radii(mdp, gamma, -1.0, allowed, guess)
    n, n_actions = mdp.n_states, mdp.n_actions
    kernel, paid = mdp.kernel(), mdp.rewards if rewards is None else rewards
    best = values = guess
    least, before = np.inf, np.empty(0, np.int64)
    for _ in range(ROUNDS):
        look()
        q = np.where(allowed, paid + gamma * (kernel @ values).reshape(n, n_actions), np.inf)
        policy = q.argmin(axis=1)
        backup_ = q[np.arange(n), policy]
        residual = values - backup_
        span = float(residual.max()) - float(residual.min())
        if span < least:
            # What all states are off by in common is known at once.
            best, least = (
                values - float(residual.max() + residual.min()) / 2.0 / (1.0 - gamma),
                span,
            )
        enough = max(tol * (1.0 - gamma), 4.0 * EPS * float(np.abs(values).max()))
        if span <= enough or np.array_equal(policy, before):
            break
        before = policy
        values = follow_actions(mdp, gamma, policy, backup_, rewards=rewards)
    return bounded(mdp, gamma, best, -1.0, allowed, rewards)
