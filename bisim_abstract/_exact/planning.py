"""Optimal values with certified bounds, and exact evaluation of a policy."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.checks import check_gamma, check_int, check_positive
from bisim_abstract._base.deadline import look
from bisim_abstract._base.html import table_html
from bisim_abstract._base.parallel import spans
from bisim_abstract._base.progress import shown
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.text import counted
from bisim_abstract._base.types import FloatArray, IntArray, Progress, ProgressCallback
from bisim_abstract._exact.solving import solve_chain
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._model.policies import policy_matrix
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["Values", "evaluate_policy", "value_iteration"]

logger = logging.getLogger(__name__)

# States up to which a sparse factorisation is the quick way. Without structure it fills in: at
# 8,000 states with four successors each it takes 15 s, a hundred times longer than sweeps.
DIRECT_LIMIT = 2_000
CHAIN_STATES = 100_000  # states whose rows are mixed at a time, between looks at the clock


@dataclass(frozen=True, eq=False)
class Values:
    """State values with certified bounds.

    Attributes:
        gamma: The discount.
        lower: (n_states) proven lower bounds.
        upper: (n_states) proven upper bounds.
        policy: (n_states) greedy actions, or (n_states, n_actions) the evaluated policy; only
            actions that states have.
        gap: Largest difference between an upper and a lower bound.
        tol: What the gap was asked to stay below.
        sweeps: Backups of all states that were made.
    """

    gamma: float
    lower: FloatArray
    upper: FloatArray
    policy: IntArray | FloatArray
    gap: float
    tol: float
    sweeps: int

    @property
    def is_converged(self) -> bool:
        """Whether the gap is at most the tolerance; the bounds hold in either case."""
        return self.gap <= self.tol

    def start_bounds(self, mdp: TabularMDP) -> tuple[float, float]:
        """Bounds on the expected value of the start distribution, divided by its sum."""
        if mdp.n_states != self.lower.size:
            raise InvalidArgumentError(
                f"these are values of {self.lower.size} states, the model has {mdp.n_states}"
            )
        used = np.flatnonzero(mdp.start)
        weights, low, high = mdp.start[used], self.lower[used], self.upper[used]
        total = math.fsum(weights)
        # Sums are correctly rounded; products, the quotient and the total round once each.
        slack = 8.0 * EPS * math.fsum(weights * np.maximum(np.abs(low), np.abs(high))) / total
        return (
            math.fsum(weights * low) / total - slack,
            math.fsum(weights * high) / total + slack,
        )

    def __repr__(self) -> str:
        return (
            f"Values({counted(self.lower.size, 'state')}, gamma={self.gamma!r}, "
            f"between {self.lower.min():.6g} and {self.upper.max():.6g}, gap {self.gap:.2g})"
        )

    def _repr_html_(self) -> str:
        kind = "one action" if self.policy.ndim == 1 else "probabilities of actions"
        goal = "as asked" if self.is_converged else f"above the {self.tol:.2g} asked for"
        rows = [
            ("values", f"from {self.lower.min():.6g} to {self.upper.max():.6g}"),
            ("gap between bounds", f"{self.gap:.2g} at most, {goal}"),
            ("discount", f"{self.gamma:g}"),
            ("policy", f"{kind} per state"),
            ("found after", counted(self.sweeps, "sweep")),
        ]
        return table_html(f"Values of {counted(self.lower.size, 'state')}, bounded", rows)


def value_iteration(
    mdp: TabularMDP,
    gamma: float,
    *,
    tol: float | None = None,
    max_sweeps: int = 100_000,
    guess: npt.ArrayLike | None = None,
    callback: ProgressCallback | None = None,
    progress: bool = False,
) -> Values:
    """Optimal values between certified bounds.

    Sweeps are accelerated: after each, the value of the greedy policy is solved for (models up
    to 2,000 states) or approached by a few fixed-policy sweeps. The bounds do not depend on
    how the values were found. If b bounds the residual TV - V from above, then V + b/(1 - gamma)
    is at least TV + gamma·b/(1 - gamma), hence a super-solution and an upper bound on the
    optimal values; mirrored for the lower bound. Rounding enters as an addition to b.

    Args:
        mdp: The model.
        gamma: The discount, in [0, 1).
        tol: Largest gap between the bounds; 1e-9 of the largest possible value by default.
        max_sweeps: Limit on backups of all states.
        guess: (n_states) values to begin with; 0 by default.
        callback: Called after every sweep.
        progress: Show a line of progress, on a terminal, in a notebook or in a log.

    Example:
        >>> import numpy as np
        >>> P = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]])
        >>> mdp = TabularMDP.from_dense(P, [[0.0, 1.0], [2.0, 0.0]], order="sas")
        >>> values = value_iteration(mdp, 0.5)
        >>> values.policy
        array([1, 0])
        >>> values.upper.round(6)
        array([3., 4.])
    """
    check_mdp(mdp)
    gamma = check_gamma(gamma)
    max_sweeps = check_int("max_sweeps", max_sweeps, low=1)
    goal = _goal(mdp, gamma, tol)
    with shown(callback, progress, on_terminal=False) as report:
        found = find_optimal(mdp, gamma, goal, max_sweeps=max_sweeps, guess=guess, callback=report)
    values, low, high, policy, sweeps = found
    return _told(_bounded(gamma, values, low, high, policy, goal, sweeps))


def find_optimal(
    mdp: TabularMDP,
    gamma: float,
    goal: float,
    *,
    max_sweeps: int,
    guess: npt.ArrayLike | None = None,
    callback: ProgressCallback | None = None,
) -> tuple[FloatArray, float, float, IntArray, int]:
    """Values near the optimal ones, bounds on their residual, greedy actions, and sweeps made."""
    n, n_actions = mdp.n_states, mdp.n_actions
    kernel = mdp.kernel()
    values, solved = _guessed(mdp, guess), np.empty(0, np.int64)
    for sweeps in range(1, max_sweeps + 1):
        look()
        q = mdp.rewards + gamma * (kernel @ values).reshape(n, n_actions)
        policy = q.argmax(axis=1)
        backup = q[np.arange(n), policy]
        low, high, noise = _residual_bounds(mdp, values, backup, mdp.max_support)
        gap = (high - low) / (1.0 - gamma)
        if callback is not None:
            callback(Progress("value iteration", sweeps, None, f"gap {gap:.2g}"))
        # Residuals of the size of their rounding errors cannot be improved on, and a policy
        # that was solved for already gives the same values again.
        again = n <= DIRECT_LIMIT and np.array_equal(policy, solved)
        if gap <= goal or high - low <= 4.0 * noise or again or sweeps == max_sweeps:
            break
        solved = policy
        values = follow_actions(mdp, gamma, policy, backup)
    # Of a backup's terms, state by state: where little can be had, little decides.
    ahead = np.abs(mdp.rewards) + gamma * (kernel @ np.abs(values)).reshape(n, n_actions)
    noise = 4.0 * (mdp.max_support + 8) * EPS * ahead.max(axis=1)
    return values, low, high, mdp.played(first_best(q, noise)), sweeps


def first_best(q: FloatArray, noise: FloatArray) -> IntArray:
    """The first action of each state that rounding errors do not tell from the best one.

    Args:
        q: (n_states, n_actions) values of actions.
        noise: (n_states) what may separate two of them that are equal: at least the rounding
            errors of both.
    """
    return np.asarray((q >= (q.max(axis=1) - noise)[:, None]).argmax(axis=1))


def evaluate_policy(
    mdp: TabularMDP,
    gamma: float,
    policy: npt.ArrayLike,
    *,
    tol: float | None = None,
    guess: npt.ArrayLike | None = None,
) -> Values:
    """Values of following a policy for ever, between certified bounds.

    Up to 2,000 states by one sparse factorisation, beyond by sweeps. The bounds come from the
    residual of the result, as in `value_iteration`.

    Args:
        mdp: The model.
        gamma: The discount, in [0, 1).
        policy: (n_states) actions, or (n_states, n_actions) probabilities. Where a state lacks an
            action that is named, its first available one is taken.
        tol: What the gap is compared with; 1e-9 of the largest possible value by default.
        guess: (n_states) values to begin sweeps with; rewards by default.
    """
    check_mdp(mdp, call="evaluate_policy(mdp, gamma, policy)")
    gamma = check_gamma(gamma)
    goal = _goal(mdp, gamma, tol)
    return _told(follow_policy(mdp, gamma, policy, goal, guess=guess))


def follow_policy(
    mdp: TabularMDP,
    gamma: float,
    policy: npt.ArrayLike,
    goal: float,
    *,
    guess: npt.ArrayLike | None = None,
) -> Values:
    """`evaluate_policy`, without a word where the goal is not reached."""
    weights = policy_matrix(mdp, policy)
    rewards, kernel = _chain(mdp, weights)
    first = rewards if guess is None else _guessed(mdp, guess)
    values = _solve_chain(rewards, kernel, gamma, goal, first)
    backup = rewards + gamma * (kernel @ values)
    # A row of the chain mixes up to n_actions rows: that many more terms, normalised weights.
    terms = int(np.diff(kernel.indptr).max()) + 2 * mdp.n_actions + 8
    low, high, _ = _residual_bounds(mdp, values, backup, terms)
    given = np.asarray(policy)
    kept = mdp.played(given.astype(np.int64)) if given.ndim == 1 else weights
    return _bounded(gamma, values, low, high, kept, goal, 1)


def _goal(mdp: TabularMDP, gamma: float, tol: float | None) -> float:
    top = float(np.abs(mdp.rewards).max())
    if not math.isfinite(top / (1.0 - gamma) / (1.0 - gamma)):
        raise InvalidArgumentError("the values would overflow; rescale the rewards")
    if tol is not None:
        return check_positive("tol", tol)
    return 1e-9 * max(top, 1e-300) / (1.0 - gamma)


def _residual_bounds(
    mdp: TabularMDP, values: FloatArray, backup: FloatArray, terms: int
) -> tuple[float, float, float]:
    """Bounds on the exact residual TV - V over all states, and how much of them is rounding.

    A backup is a product of a row of at most `terms` entries (each within 2·EPS relative of
    the exact quotient), a multiplication and an addition; |terms| are at most |R| + |V|. So it
    is off by at most (terms + 8)·EPS·(max|R| + max|V|), the subtraction by one rounding more.
    """
    size = float(np.abs(mdp.rewards).max() + np.abs(values).max(initial=0.0))
    residual = backup - values
    noise = (terms + 8) * EPS * size * (1.0 + 1e-9) + 1e-315
    noise += 2.0 * EPS * float(np.abs(residual).max())
    return float(residual.min()) - noise, float(residual.max()) + noise, noise


def _bounded(
    gamma: float,
    values: FloatArray,
    low: float,
    high: float,
    policy: IntArray | FloatArray,
    goal: float,
    sweeps: int,
) -> Values:
    # Adding the shift rounds once more: two units in the last place of the largest entry.
    shift_low, shift_high = low / (1.0 - gamma), high / (1.0 - gamma)
    top = float(np.abs(values).max(initial=0.0)) + max(abs(shift_low), abs(shift_high))
    pad = 8.0 * EPS * top
    lower, upper = values + shift_low - pad, values + shift_high + pad
    gap = float((upper - lower).max()) * (1.0 + 2.0 * EPS)
    return Values(gamma, lower, upper, policy, gap, goal, sweeps)


def _told(values: Values) -> Values:
    """The same, with a warning where the tolerance was not reached."""
    if values.gap > values.tol:
        text = "gap %.3g stays above tol %.3g; the bounds hold nevertheless"
        logger.warning(text, values.gap, values.tol)
    return values


def follow_actions(
    mdp: TabularMDP,
    gamma: float,
    policy: IntArray,
    backup: FloatArray,
    *,
    rewards: FloatArray | None = None,
) -> FloatArray:
    """An estimate of the value of `policy`; exact up to rounding where that is cheap."""
    n = mdp.n_states
    rows = np.arange(n) * mdp.n_actions + policy
    kernel = mdp.kernel()[rows]
    rewards = (mdp.rewards if rewards is None else rewards)[np.arange(n), policy]
    if n <= DIRECT_LIMIT:
        return _solve_chain(rewards, kernel, gamma, 0.0, rewards)
    values = backup
    for _ in range(20):
        look()
        values = rewards + gamma * (kernel @ values)
    return values


def _chain(mdp: TabularMDP, weights: FloatArray):  # type: ignore[no-untyped-def]
    """Rewards and kernel of the Markov chain that a policy makes of the model."""
    from scipy.sparse import csr_array, vstack

    n, n_actions = weights.shape
    kernel = mdp.kernel()
    parts = []
    for begin, end in spans(n, CHAIN_STATES):  # a product of a million rows takes a second
        look()
        count = (end - begin) * n_actions
        indptr = np.arange(end - begin + 1) * n_actions
        mixer = csr_array(
            (weights[begin:end].ravel(), np.arange(count), indptr), shape=(end - begin, count)
        )
        rows = kernel if count == kernel.shape[0] else kernel[begin * n_actions : end * n_actions]
        parts.append(mixer @ rows)
    whole = parts[0] if len(parts) == 1 else vstack(parts, format="csr")
    return (weights * mdp.rewards).sum(axis=1), whole.tocsr()


def _guessed(mdp: TabularMDP, guess: npt.ArrayLike | None) -> FloatArray:
    """Values to begin with."""
    if guess is None:
        return np.zeros(mdp.n_states)
    values = np.asarray(guess, dtype=np.float64)
    if values.shape != (mdp.n_states,) or not np.isfinite(values).all():
        raise InvalidArgumentError(
            f"guess must be {mdp.n_states} finite numbers, got shape {values.shape}"
        )
    return values


def _solve_chain(  # type: ignore[no-untyped-def]
    rewards: FloatArray, kernel, gamma: float, goal: float, values: FloatArray
) -> FloatArray:
    """Solve V = r + gamma·P V, beginning with `values` where it is done by sweeps."""
    if rewards.size <= DIRECT_LIMIT:
        return solve_chain(kernel, gamma, rewards)
    # Each sweep contracts the error by gamma: after this many only rounding is left. Krylov
    # solvers were tried: on chains, which are far from normal, they overflow or stagnate.
    # Where a chain mixes, what all states are still off by in common is left long after the rest:
    # a residual of r everywhere means r/(1 - gamma) more, at once.
    for _ in range(1 + (math.ceil(40.0 / -math.log(gamma)) if gamma > 0.0 else 1)):
        look()
        backup = rewards + gamma * (kernel @ values)
        residual = backup - values
        low, high = float(residual.min()), float(residual.max())
        values = backup
        # Or nothing but rounding is left of it.
        enough = max(goal * (1.0 - gamma) / 8.0, 4.0 * EPS * float(np.abs(values).max()))
        if (high - low) / 2.0 <= enough:
            values = values + gamma / (1.0 - gamma) * (low + high) / 2.0
            break
    return np.asarray(values)
