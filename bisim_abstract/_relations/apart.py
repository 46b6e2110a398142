"""How far apart states can be: the span of all rewards, and the distance of action sets.

Where actions correspond by their names, states compare what each action pays, and the largest
difference under one action bounds every distance. Where they are renamed, or where states have
different actions, an action of one state meets any action of the other, and it is the span of all
rewards, over states and actions together, that counts. (A state that can only do what pays 100 and
one that can only do what pays 0 differ by 100 in value at once, though no action tells them apart.)
"""

from __future__ import annotations

import math

import numpy as np

from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import FloatArray
from bisim_abstract._model.estimation import reward_intervals
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["apart_distance", "largest_distance", "overall_span", "reward_span"]

TINY = 1e-315  # far above what a few products lose by underflow


def reward_span(rewards: FloatArray) -> float:
    """L: the largest reward difference between two states under one action, rounded up."""
    with np.errstate(over="ignore"):
        span = float(np.ptp(rewards, axis=0).max())
    if not math.isfinite(span):
        raise InvalidArgumentError("rewards differ by more than a float can hold; rescale them")
    return math.nextafter(span, math.inf) if span > 0.0 else 0.0


def overall_span(mdp: TabularMDP) -> float:
    """Largest less smallest of all rewards, over states and actions together, rounded up.

    For an estimate, of all that its confidence intervals allow.
    """
    low, high = reward_intervals(mdp)
    with np.errstate(over="ignore"):
        span = float(high.max() - low.min())
    if not math.isfinite(span):
        raise InvalidArgumentError("rewards differ by more than a float can hold; rescale them")
    return math.nextafter(span, math.inf) if span > 0.0 else 0.0


def apart_distance(mdp: TabularMDP, gamma: float) -> float:
    """M, the plain distance of two states that do not have the same actions.

    M >= L/(1 - gamma), L the span of all rewards. Then L + gamma·M <= M, so that nothing exceeds
    M: states of one action set are at most that far apart, values differ by no more, and as two
    sets are M apart and three states never lie in more than three of them, the triangle inequality
    holds. It is a float that is rounded up as the diameter of start values is, so that the same
    inequality holds for what is computed: (L + gamma·M)(1 + 8·EPS) <= M, with room for underflow.
    """
    return largest_distance(overall_span(mdp), gamma)


def largest_distance(span: float, gamma: float) -> float:
    """D: no distance is larger where rewards differ by `span` at most.

    D is L/(1 - gamma)·(1 + 16·EPS + 16·EPS/(1 - gamma)): then (L + gamma·D)(1 + 8·EPS) <= D. It
    carries 4·TINY/(1 - gamma) more against underflow: products below the normal range lose up to
    5e-324 each.
    """
    far = span / (1.0 - gamma) * (1.0 + 16.0 * EPS + 16.0 * EPS / (1.0 - gamma))
    if span > 0.0:
        far += 4.0 * TINY / (1.0 - gamma)
    if not math.isfinite(far / (1.0 - gamma)):
        raise InvalidArgumentError("the metric would overflow; rescale the rewards")
    return far
