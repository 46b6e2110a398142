"""Middles and a radius that enclose the optimal values of all actions: found, then proven.

Let m be any function of states and actions, v(s) = max over a of m(s, a), and

    |R(s, a) + γ P(s, a) v - m(s, a)| <= b    for all s and a.

With h = b/(1 - γ), m + h satisfies R + γ P max(m + h) = R + γ P v + γh <= m + b + γh = m + h, so
that it is an upper bound on Q*; m - h is a lower one likewise. Any m will do, so it is rounded to
whole multiples of a power of two, which is no larger than b with what rounding may add to it:
values that are equal but for the last bits become equal or neighbouring numbers, on every machine.
For an estimated model, the most and the least that radii allow take the place of R + γ P v; both
move by γh with v (see `robust`).
"""

from __future__ import annotations

import math

import numpy as np

from bisim_abstract._abstract.proofs import largest_reward, safe_shift
from bisim_abstract._abstract.robust import backed_up
from bisim_abstract._base.checks import check_gamma, check_positive
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import FloatArray
from bisim_abstract._bounds.action_values import ActionValues
from bisim_abstract._exact.planning import find_optimal
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract.errors import InvalidArgumentError

RELATIVE_TOL = 1e-10  # of the largest possible value: what optimal values are solved for up to
MAX_SWEEPS = 100_000


def bound_action_values(
    mdp: TabularMDP, gamma: float, *, tol: float | None = None, grid: float = 0.0
) -> ActionValues:
    """Proven bounds on the optimal values of all actions.

    Args:
        mdp: The model. If it is an estimate, they hold for the true one where its radii do.
        gamma: The discount, in [0, 1).
        tol: How far values of states may be from the optimal ones, about.
        grid: Middles are multiples of at least this, so that fewer of them differ.
    """
    gamma = check_gamma(gamma)
    top = largest_reward(mdp)
    if not math.isfinite(8.0 * top / (1.0 - gamma)):
        raise InvalidArgumentError("the values would overflow; rescale the rewards")
    if tol is None:
        goal = RELATIVE_TOL * max(top, 1e-300) / (1.0 - gamma)
    else:
        goal = check_positive("tol", tol)
    values, low, high, _, _ = find_optimal(mdp, gamma, goal, max_sweeps=MAX_SWEEPS)
    values = values + (low / 2.0 + high / 2.0) / (1.0 - gamma)
    middles = (_backup(mdp, gamma, values, 1.0) + _backup(mdp, gamma, values, -1.0)) / 2.0
    best = middles.max(axis=1)
    terms = mdp.max_support + mdp.n_actions
    away = safe_shift(_away(mdp, gamma, middles, best), terms, top, middles, gamma) * (1.0 - gamma)
    # Rounding costs half a step, and γ/2 steps through what follows: the radius doubles at most.
    step = 2.0 ** math.floor(math.log2(max(away, EPS * float(np.abs(middles).max()), 1e-290)))
    step = max(step, 2.0 ** math.floor(math.log2(grid)) if grid > 0.0 else 0.0)
    middles = np.round(middles / step) * step
    away = _away(mdp, gamma, middles, middles.max(axis=1))
    return ActionValues(values=middles, radius=safe_shift(away, terms, top, middles, gamma))


def _backup(mdp: TabularMDP, gamma: float, values: FloatArray, sign: float) -> FloatArray:
    """(n_states, n_actions) what actions are worth, at most (sign 1) or at least (-1)."""
    if mdp.estimate is not None:
        return backed_up(mdp, gamma, values, sign)
    return np.asarray(mdp.rewards + gamma * (mdp.kernel() @ values).reshape(mdp.rewards.shape))


def _away(mdp: TabularMDP, gamma: float, middles: FloatArray, best: FloatArray) -> float:
    """The most by which backups are away from middles, but for rounding."""
    above = _backup(mdp, gamma, best, 1.0) - middles
    below = above if mdp.estimate is None else _backup(mdp, gamma, best, -1.0) - middles
    return max(float(above.max()), -float(below.min()), 0.0)
