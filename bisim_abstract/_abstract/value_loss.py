"""`value_loss`: what any policy loses on the model itself, between proven bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bisim_abstract._abstract.baseline import Baseline, find_baseline
from bisim_abstract._abstract.scale import Stake, start_size
from bisim_abstract._base.checks import check_gamma
from bisim_abstract._base.rounding import EPS
from bisim_abstract._exact.planning import Values, evaluate_policy, value_iteration
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["ValueLoss", "value_loss"]


@dataclass(frozen=True)
class ValueLoss:
    """How far the values of a policy are below the optimal ones.

    Each figure is proven to lie between its lower and its upper bound; the upper one is what
    may be claimed.

    Attributes:
        sup: Upper bound on the largest loss of a state.
        mean: Upper bound on the mean over all states.
        start: Upper bound on the mean over the start distribution.
        sup_lower: Lower bound on the largest loss.
        mean_lower: Lower bound on the mean.
        start_lower: Lower bound on the mean over the start.
        kept: Lower bound on the kept share of the start value; see `ProvenValue.kept`.
    """

    sup: float
    mean: float
    start: float
    sup_lower: float
    mean_lower: float
    start_lower: float
    kept: float


def value_loss(
    mdp: TabularMDP,
    gamma: float,
    policy: npt.ArrayLike,
    *,
    optimal: Values | None = None,
    baseline: Baseline | None = None,
) -> ValueLoss:
    """What a policy loses against the optimal values, between certified bounds.

    Args:
        mdp: The model. If it is an estimate, values are those of the estimate.
        gamma: The discount, in [0, 1).
        policy: (n_states) actions, or (n_states, n_actions) probabilities.
        optimal: `value_iteration(mdp, gamma)`, if known already.
        baseline: `find_baseline(mdp, gamma)`, if known already.
    """
    check_mdp(mdp, call="value_loss(mdp, gamma, policy)")
    gamma = check_gamma(gamma)
    optimal = value_iteration(mdp, gamma) if optimal is None else optimal
    baseline = find_baseline(mdp, gamma) if baseline is None else baseline
    check_optimal(mdp, gamma, optimal)
    if baseline.lower.size != mdp.n_states:
        raise InvalidArgumentError(
            f"baseline must be of these {mdp.n_states} states, got {baseline.lower.size}"
        )
    own = evaluate_policy(mdp, gamma, policy)
    # One rounding of each difference, and one each of sum and quotient.
    size = float(max(np.abs(optimal.upper).max(), np.abs(own.lower).max()))
    size = max(size, float(max(np.abs(optimal.lower).max(), np.abs(own.upper).max())))
    pad = 8.0 * EPS * size + 1e-315
    high, low = optimal.upper - own.lower + pad, optimal.lower - own.upper - pad
    best, reached = optimal.start_bounds(mdp), own.start_bounds(mdp)
    n = mdp.n_states
    mean, start = math.fsum(high) / n + pad, best[1] - reached[0] + pad
    rewards, choice = (mdp.rewards, mdp.rewards), mdp.has_choice
    size = start_size(best, rewards, gamma, has_choice=choice)
    stake = Stake(best, baseline.start, size)
    return ValueLoss(
        # No mean is above the largest; only its own rounding could make it look so.
        sup=max(float(high.max()), mean, start),
        mean=mean,
        start=start,
        sup_lower=max(0.0, float(low.max())),
        mean_lower=max(0.0, math.fsum(low) / n - pad),
        start_lower=max(0.0, best[0] - reached[1] - pad),
        kept=stake.share(reached[0]),
    )


def check_optimal(mdp: TabularMDP, gamma: float, optimal: Values) -> None:
    """Refuse values of another model or another discount."""
    if optimal.lower.size != mdp.n_states or optimal.gamma != gamma:
        raise InvalidArgumentError(
            f"optimal must be the values of these {mdp.n_states} states at gamma {gamma:g}, "
            f"got {optimal.lower.size} states at {optimal.gamma:g}"
        )
