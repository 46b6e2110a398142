"""How far apart two start distributions are, from bounds on the distances of states.

The distance is Kantorovich's: the least that it costs to carry one distribution over to the other,
a unit of mass between two states costing their distance. Any way to carry it over (a coupling)
costs at least that; any function that never differs by more than the distance gains at most that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._bounds.features import ValueFeatures
from bisim_abstract._exact.transport import solve_transport
from bisim_abstract._relations.apart import TINY

MOST_CELLS = 250_000  # pairs of start states up to which all of them are looked at

Bounds = Callable[[IntArray, IntArray], tuple[FloatArray, FloatArray]]


@dataclass(frozen=True, eq=False)
class StartCoupling:
    """A way to carry one start distribution over to another.

    Attributes:
        first: (k) start states of the first model, in its own numbers.
        second: (k) start states of the second.
        mass: (k) how much is carried from the one to the other.
        missed: Bound on the mass of either distribution that this leaves out or carries too
            often, rounding included.
    """

    first: IntArray
    second: IntArray
    mass: FloatArray
    missed: float


def couple_starts(
    one: FloatArray, other: FloatArray, pairs: IntArray, order: tuple[FloatArray, FloatArray]
) -> StartCoupling:
    """Carry mass between states that correspond first, and the rest in the order of some values.

    Args:
        one: (n) start distribution of the first model.
        other: (m) that of the second.
        pairs: (k, 2) states that correspond; a state may be in several pairs.
        order: Values of the states of either model: the lowest go to the lowest.
    """
    left, right = one / math.fsum(one), other / math.fsum(other)
    sums = left.copy(), right.copy()
    # Of a state in several pairs, the first pair counts: then all pairs can be served at once.
    pairs = pairs[np.sort(np.unique(pairs[:, 0], return_index=True)[1])]
    pairs = pairs[np.sort(np.unique(pairs[:, 1], return_index=True)[1])]
    s, t = pairs[:, 0], pairs[:, 1]
    mass = np.minimum(left[s], right[t])
    s, t, mass = s[mass > 0.0], t[mass > 0.0], mass[mass > 0.0]
    left[s] -= mass
    right[t] -= mass
    # The rest, laid end to end on two lines: cut both wherever either has a cut.
    lines = []
    for rest, values in ((left, order[0]), (right, order[1])):
        states = np.flatnonzero(rest > 0.0)
        states = states[np.argsort(values[states], kind="stable")]
        lines.append((states, np.cumsum(rest[states])))
    cuts = np.unique(np.concatenate([np.zeros(1), *(ends for _, ends in lines)]))
    if lines[0][0].size and lines[1][0].size:
        middle = (cuts[1:] + cuts[:-1]) / 2.0
        ends = [np.minimum(np.searchsorted(x, middle), x.size - 1) for _, x in lines]
        s = np.concatenate([s, lines[0][0][ends[0]]])
        t = np.concatenate([t, lines[1][0][ends[1]]])
        mass = np.concatenate([mass, np.diff(cuts)])
    missed = max(
        float(np.abs(np.bincount(at, weights=mass, minlength=whole.size) - whole).sum())
        for at, whole in zip((s, t), sums, strict=True)
    )
    # Divisions are off by 2·EPS relative, and each of these sums by EPS for every term; all terms
    # of either side add up to 1, or nearly.
    return StartCoupling(s, t, mass, missed + 8.0 * EPS * (mass.size + 8))


def start_distance(
    one: FloatArray,
    other: FloatArray,
    coupling: StartCoupling,
    bounds: Bounds,
    features: ValueFeatures | None,
    places: tuple[IntArray, IntArray],
    most: float,
) -> tuple[float, float]:
    """Lower and upper bound on the distance of two start distributions.

    Where all pairs of start states are few, transports under the lower and under the upper bounds
    enclose it. Otherwise, above: what the coupling costs, where what it misses is carried as far as
    anything is; and below: differences of the means of value features. If |g(x) - g(y)| exceeds
    d(x, y) by at most c, then for every coupling the means of g differ by at most what it costs,
    and c.

    Args:
        one: (n) start distribution of the first model.
        other: (m) that of the second.
        coupling: A way to carry one over to the other.
        bounds: Bounds on the distances of states of the first and states of the second model.
        features: Value features of the union; None if starts are few.
        places: Where the states of either model are in the union.
        most: No distance is larger.
    """
    s, t = np.flatnonzero(one), np.flatnonzero(other)
    if s.size == t.size == 1:
        low, high = bounds(s, t)
        return float(low[0]), float(high[0])
    if s.size * t.size <= MOST_CELLS:
        low, high = bounds(s[:, None], t[None, :])
        lower = float(solve_transport(low, one[s], other[t]).lower)
        upper = float(solve_transport(high, one[s], other[t]).upper)
        return max(lower, 0.0), min(upper, most)
    high = bounds(coupling.first, coupling.second)[1]
    # A sum of that many products, rounded up; then the exact marginals are reached by moving at
    # most `missed` on either side.
    cost = math.fsum(coupling.mass * high) * (1.0 + 8.0 * EPS) + TINY
    upper = (cost + 2.0 * coupling.missed * most) * (1.0 + 8.0 * EPS)
    lower = 0.0
    if features is not None:
        left, right = one / math.fsum(one), other / math.fsum(other)
        for values, correction in zip(features.values, features.corrections, strict=True):
            g = values - (values.max() + values.min()) / 2.0  # a shift changes no difference
            gain = math.fsum(left * g[places[0]]) - math.fsum(right * g[places[1]])
            # Shift, division and product are off by at most 6·EPS of the largest |g| for all of
            # the mass of either side, and so are the sums and their difference by 3·EPS.
            slack = 64.0 * EPS * float(np.abs(g).max()) + 2.0 * TINY
            lower = max(lower, (abs(gain) - correction - slack) * (1.0 - 8.0 * EPS))
    return lower, min(upper, most)


def has_equal_masses(
    one: FloatArray,
    other: FloatArray,
    labels: IntArray,
    more: IntArray,
    *,
    digits: int | None = None,
) -> bool:
    """Whether two distributions give every class the same share.

    Args:
        one: (n) masses, divided by their exact sum.
        other: (m) likewise.
        labels: (n) class of each state of the first.
        more: (m) class of each state of the second.
        digits: Shares may differ by one unit of this decimal; None if not at all.
    """
    shares = []
    for masses, classes in ((one, labels), (other, more)):
        states = np.flatnonzero(masses)
        # Whole numbers of a common unit, as large as need be: sums of these are exact.
        fraction, exponent = np.frexp(masses[states])
        shifts = (exponent - exponent.min()).tolist()
        whole = (np.ldexp(fraction, 53)).astype(np.int64).tolist()
        share: dict[int, int] = {}
        for label, number, shift in zip(classes[states].tolist(), whole, shifts, strict=True):
            share[label] = share.get(label, 0) + (number << shift)
        shares.append(share)
    total, others = (sum(share.values()) for share in shares)
    gap = max(
        abs(shares[0].get(label, 0) * others - shares[1].get(label, 0) * total)
        for label in shares[0].keys() | shares[1].keys()
    )
    return gap == 0 if digits is None else gap * 10**digits <= total * others
