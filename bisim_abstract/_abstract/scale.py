"""The scale of start values: 0 for the baseline, 1 for the best policy.

The baseline V₀ is the best of a few policies that look at nothing: uniformly random actions, and
each action for ever. It is measured from the start distribution. A plan that goes nowhere, or that
takes one action everywhere, is worth no more than 0 on this scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import FloatArray

# Of the optimal start value: a loss below this is rounding, and counts as nothing.
NOTHING = 1e-9
# Of what is at stake: a loss above this is never nothing, however large values are.
OF_STAKE = 1e-6


@dataclass(frozen=True)
class Stake:
    """What is at stake at the start: bounds on the best start value and on the baseline's.

    Attributes:
        optimal: Lower and upper bound of the optimal start value S.
        baseline: Lower and upper bound of the baseline V₀.
        size: What losses are measured by: a lower bound on |S|, or all that values can differ by,
            whichever is less. Infinite where all policies have the same values.
    """

    optimal: tuple[float, float]
    baseline: tuple[float, float]
    size: float

    @property
    def is_nothing(self) -> bool:
        """Whether the baseline is proven to be as good as the best policy, but for rounding."""
        return self.optimal[1] - self.baseline[0] <= NOTHING * self.size

    @property
    def is_tiny(self) -> bool:
        """Whether the best policy is proven to gain less than a thousandth of what it is worth."""
        return self.optimal[1] - self.baseline[0] <= 1e-3 * self.size

    def share(self, policy: float, *, nothing: float = NOTHING) -> float:
        """A lower bound on (V - V₀) / (S - V₀); -inf if there is none.

        With V <= S the quotient rises with V, falls with V₀, and falls with S where V >= V₀, rises
        where V < V₀. So: the lower bound of V, the upper bound of V₀, and the upper bound of S
        where V is proven to reach V₀'s upper bound, else the lower bound of S. It is 1 where
        nothing is lost but what rounding may add to the bounds.

        Args:
            policy: Lower bound of V.
            nothing: Share of `size` up to which a loss is rounding.
        """
        high, base = self.optimal[1], self.baseline[1]
        low = max(self.optimal[0], self.baseline[0], policy)  # S is at least each of them
        lost = high - policy
        is_rounding = lost <= nothing * self.size
        if is_rounding and (self.is_nothing or lost <= OF_STAKE * (low - base)):
            return 1.0
        if lost <= 0.0:
            return 1.0
        gain = (high if policy >= base else low) - base
        if not gain > 0.0:
            return -math.inf
        share = (policy - base) / gain
        # A difference, another one and the quotient round once each.
        return min(1.0, share - 4.0 * EPS * abs(share))


def start_means(
    start: FloatArray, values: FloatArray, *, slack: float = 16.0
) -> tuple[float, float]:
    """Bounds on the mean of values over the start distribution, divided by its sum.

    Sums are correctly rounded; a product, each sum and the quotient round once: four units of
    EPS of the mean of absolute values, of which `slack` has more.
    """
    used = np.flatnonzero(start)
    weights, picked = start[used], values[used]
    total = math.fsum(weights)
    mean = math.fsum(weights * picked) / total
    pad = slack * EPS * math.fsum(weights * np.abs(picked)) / total
    return mean - pad, mean + pad


def start_size(
    optimal: tuple[float, float],
    rewards: tuple[FloatArray, FloatArray],
    gamma: float,
    *,
    has_choice: bool,
) -> float:
    """What start losses are measured by: |V*| at the start, or all that values could differ by.

    The second keeps a constant that is added to all rewards from hiding what is lost. Infinity
    where nothing can be lost: if actions do not differ, or rewards are equal everywhere, all
    policies have the same values.

    Args:
        optimal: Lower and upper bound of the optimal start value.
        rewards: (n_states, n_actions) lower and upper bounds on rewards.
        gamma: The discount.
        has_choice: Whether actions differ in any state.
    """
    low, high = rewards
    span = float(high.max()) - float(low.min())
    if span == 0.0 or not has_choice:
        return math.inf
    return min(max(optimal[0], -optimal[1], 0.0), span / (1.0 - gamma))
