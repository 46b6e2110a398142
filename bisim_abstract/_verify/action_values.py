"""Checks of bounds on optimal action values, and of clusters by their distance.

Claimed are middles m of all states and actions and a radius h, such that |m - Q*| <= h. With
v(s) = max over a of m(s, a) it is enough that

    |R(s, a) + γ P(s, a) v - m(s, a)| <= (1 - γ) h    for all s and a:

if e is the most by which Q* exceeds m, the values of states exceed v by e at most, so that
e <= (1 - γ)h + γe, and e <= h; mirrored below. For an estimated model it is the most and the least
that the radii allow in the place of the backup. So one backup decides.

The distance of two states with the same actions is then within 2h of D, the largest difference of
their middles. Computed, a difference is off by u = 2**-53 of itself. So computed differences of at
most (τ - 2h)/(1 + 4u) are links, and those above (τ + 2h)/(1 - 4u) are none. A clustering of the
upper arm is right if the states of each cluster are connected by links, one of the lower arm if
whatever may be a link lies within a cluster. States with different actions are at the distance
that is claimed for them, which τ must be below. Where τ is at least what rewards allow at all,
all states are linked, however large h is; where τ is negative, none are.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._verify.arithmetic import Arithmetic, as_float
from bisim_abstract._verify.clusters import check_numbering, check_within
from bisim_abstract._verify.floats import below_float
from bisim_abstract._verify.points import linked_points
from bisim_abstract._verify.read import ActionClaims, Claims
from bisim_abstract.errors import VerificationError

ROUNDING = 4 * Fraction(EPS)  # of a computed difference, and to spare


def check_bounds(claims: ActionClaims, mdp: TabularMDP, gamma: float, *, is_exact: bool) -> None:
    """Middles must be within the radius of the optimal values."""
    numbers = Arithmetic(mdp, gamma, is_exact=is_exact)
    best = claims.values.max(axis=1)
    rows = np.arange(claims.values.size)
    middles = numbers.of(claims.values.ravel())
    room = (1 - Fraction(gamma)) * Fraction(claims.radius)
    # The difference of backup and middle is rounded once more.
    slack = numbers.slack(numbers.size(best) + 4.0 * claims.radius, more=4)
    for side in (1, -1):
        beyond = side * (numbers.backups(best, side, rows) - middles)
        worst = int(beyond.argmax())
        away = beyond[worst] + slack
        if not away <= (room if is_exact else below_float(room)):
            state, action = divmod(worst, mdp.n_actions)
            is_open = not is_exact and bool(beyond[worst] - slack <= float(room))
            raise VerificationError(
                f"action_values: that of state {state}, action {action} is "
                f"{as_float(claims.values[state, action])!r}, which {'may be' if is_open else 'is'}"
                f" {as_float(beyond[worst])!r} {'below' if side > 0 else 'above'} its backup, more "
                f"than (1 - gamma) times the radius {claims.radius!r}",
                is_open=is_open,
            )


def check_clusters(claims: Claims, largest: Fraction) -> None:
    """Clusters at tau must follow from the bounds.

    Args:
        claims: What is claimed; bounds have been checked.
        largest: No two states are farther apart.
    """
    if claims.tau is None:
        return
    assert claims.actions is not None
    tau, states = Fraction(claims.tau), claims.states
    if states.apart is not None and tau >= Fraction(states.apart):
        raise VerificationError(
            f"tau is {claims.tau!r}, not below {states.apart!r}, the distance of states with "
            "different actions, of which no cluster may hold two"
        )
    check_numbering("labels_lower", claims.labels_lower)
    check_numbering("labels_upper", claims.labels_upper)
    radius = 2 * Fraction(claims.actions.radius)
    sure = below_float((tau - radius) / (1 + ROUNDING))
    possible = np.nextafter(below_float((tau + radius) / (1 - ROUNDING)), np.inf)
    check_within(
        claims.labels_upper,
        claims.labels_lower,
        "labels_upper puts states {} and {} together, which labels_lower keeps apart",
    )
    if tau < largest:  # else all states are linked
        check_within(
            claims.labels_upper,
            _connected(claims.actions.values, states.sets, sure),
            "labels_upper puts states {} and {} together, which no chain of upper bounds <= tau "
            f"= {claims.tau!r} connects",
        )
    if tau < 0:  # and none are
        return
    check_within(
        _connected(claims.actions.values, states.sets, float(possible)),
        claims.labels_lower,
        "labels_lower keeps states {} and {} apart, but lower bounds <= tau "
        f"= {claims.tau!r} connect them",
    )


def _connected(points: FloatArray, sets: IntArray, limit: float) -> IntArray:
    """(n) components of links between states with the same actions."""
    labels = np.arange(sets.size)
    for number in np.unique(sets).tolist():
        states = np.flatnonzero(sets == number)
        labels[states] = states[linked_points(points[states], limit)]
    return labels
