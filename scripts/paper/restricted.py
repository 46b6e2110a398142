"""A restricted run held against the exact metric: the checks that several experiments share.

Every check compares numbers that are proven on their own: the tables of `bisimulation_metric`
enclose the metric d, and the arms are bounds of it whatever the solver answered. What the
theorems say of the *limit* of an arm carries over to the table at hand by its defect, which is
measured too: if f <= Tf <= f + c on the covered pairs, T rounded up, then f is at most
c / (1 - gamma) below the limit. So a tolerance is found, never chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bisim_abstract import MetricBounds
from paper.inside import Arms, FloatArray

EPS = 2.0**-53
MAX_SWEEPS = 5_000  # a sound run stands long before
WIDEST = 1e-8  # of the diameter: a check that needs more would say nothing, and fails


@dataclass(frozen=True)
class Findings:
    """What a run left open, and which theorems it obeyed.

    Attributes:
        coverage: Share of all pairs that was looked at.
        rho: The coverage gap, of the uncovered pairs alone.
        error: Largest distance of the lower table from the metric, over all pairs.
        covered_error: The same over covered pairs.
        mean_covered_error: Its mean.
        slack: What rounding and the last sweeps can account for in the checks below.
        is_enclosed: Lower table <= d <= upper table, without tolerance.
        is_identity: The error is the coverage gap.
        is_contracted: The covered error is at most gamma times the gap.
    """

    coverage: float
    rho: float
    error: float
    covered_error: float
    mean_covered_error: float
    slack: float
    is_enclosed: bool
    is_identity: bool
    is_contracted: bool


def settle(arms: Arms, *, tol: float = 0.0) -> int:
    """Sweep both arms until neither moves by more than `tol`; how many sweeps it took."""
    for made in range(1, MAX_SWEEPS + 1):
        if max(arms.sweep()) <= tol:
            return made
    return MAX_SWEEPS


def start_table(arms: Arms) -> FloatArray:
    """(n, n) start values of the lower arm, from the rewards and not from the arms."""
    rewards = arms.mdp.rewards
    table = np.zeros((arms.n, arms.n))
    if arms.starts.lower == "reward":
        for column in rewards.T:
            np.maximum(table, np.abs(column[:, None] - column), out=table)
    return table


def defect(arms: Arms) -> float:
    """How far the backup of the lower arm, rounded up, exceeds it on covered pairs."""
    if arms.n_covered == 0:
        return 0.0
    backup = arms.backup(arms.ground_costs(is_upper=False), is_upper=True)
    return max(0.0, float((backup - arms.lower).max()))


def is_between(arms: Arms, metric: MetricBounds) -> bool:
    """Whether the covered bounds enclose the metric, as far as its own bounds can tell."""
    below, above = metric.bounds(*arms.pairs())
    return bool((arms.lower <= above).all() and (arms.upper >= below).all())


def examine(arms: Arms, metric: MetricBounds) -> Findings:
    """Hold a run that has settled against the metric."""
    n, gamma = arms.n, arms.gamma
    states = np.arange(n)
    low, high = arms.bounds(states[:, None], states)
    below, above = metric.lower, metric.upper
    is_covered = np.zeros((n, n), bool)
    first, second = arms.pairs()
    is_covered[first, second] = True
    is_open = ~(is_covered | is_covered.T | np.eye(n, dtype=bool))

    rho = float((above - start_table(arms))[is_open].max(initial=0.0))
    error = float((above - low).max(initial=0.0))
    covered = (above - low)[first, second]
    covered_error = float(covered.max(initial=0.0))
    # Each of the figures above is off by the gap of the metric and a few roundings at most.
    diameter = arms.starts.diameter
    slack = defect(arms) / (1.0 - gamma) + metric.gap + 16.0 * EPS * diameter
    is_sharp = slack <= WIDEST * diameter or diameter == 0.0
    return Findings(
        coverage=arms.coverage,
        rho=rho,
        error=error,
        covered_error=covered_error,
        mean_covered_error=float(covered.mean()) if covered.size else 0.0,
        slack=slack,
        is_enclosed=bool((low <= above).all() and (high >= below).all()),
        is_identity=is_sharp and abs(error - rho) <= slack,
        is_contracted=is_sharp and covered_error <= gamma * rho + slack,
    )
