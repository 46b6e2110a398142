"""Slow truths that share no code with the package, and what a certificate says against them.

Enclosure is proven, not assumed: T is a contraction, so any table f is within
max|Tf - f| / (1 - gamma) of the metric, wherever f comes from. A finding is a bound that is
provably on the wrong side. Where fractions serve, those of `tests.oracles` leave no tolerance.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numba
import numpy as np

from bisim_abstract import (
    Certificate,
    TabularMDP,
    bisimulation_metric,
    evaluate_policy,
    value_iteration,
)
from tests.stress.certifying import ONE
from tests.stress.strategies import Floats
from tests.support.oracles import lifted_exact
from tests.support.proven import false_claims

Enclosure = tuple[Floats, Floats]  # below and above
Means = tuple[Fraction, Fraction]
NOTHING = Fraction(1, 10**9)  # of a start value: what is lost below this counts as nothing
ROUNDING = 2e-14  # relative error of one backup of at most eight states, generously
UNIT = 2**52  # whole numbers that masses are rounded to
STEPS = 2.0**46  # and costs, so that sums over a path are exact


def dense(mdp: TabularMDP) -> Floats:
    """(n_states, n_actions, n_states) kernel, each row divided by its exact sum."""
    n, n_actions = mdp.rewards.shape
    P = np.zeros((n, n_actions, n))
    for s, a in np.ndindex(n, n_actions):
        for t, mass in lifted_exact(mdp, range(n), s, a).items():
            P[s, a, t] = float(mass)
    return P


# -- enclosures of the metric and of values --------------------------------------------------------


@numba.njit(cache=True)
def move(cost: Any, supply: Any, demand: Any) -> Any:
    """Least cost by successive shortest paths (Bellman-Ford); masses are whole numbers.

    Paths are compared by costs rounded to whole numbers, whose sums are exact: rounding errors
    would close circles. The coupling found is then paid at the costs themselves.
    """
    m, n = cost.shape
    top = cost.max()
    if top == 0.0:
        return 0.0
    price = np.rint(cost / top * STEPS)
    flow = np.zeros((m, n))
    left, room = supply.copy(), demand.copy()
    while left.max() > 0.0:
        distance = np.full(m + n, np.inf)
        origin = np.full(m + n, -1)
        distance[:m][left > 0.0] = 0.0
        is_changed = True
        while is_changed:
            is_changed = False
            for i in range(m):
                for j in range(n):
                    if distance[i] + price[i, j] < distance[m + j]:
                        distance[m + j] = distance[i] + price[i, j]
                        origin[m + j] = i
                        is_changed = True
                    if flow[i, j] > 0.0 and distance[m + j] - price[i, j] < distance[i]:
                        distance[i] = distance[m + j] - price[i, j]
                        origin[i] = m + j
                        is_changed = True
        target = m + np.where(room > 0.0, distance[m:], np.inf).argmin()
        amount, node = room[target - m], target
        while origin[node] >= 0:
            before = origin[node]
            if before >= m:
                amount = min(amount, flow[node, before - m])
            node = before
        amount = min(amount, left[node])
        left[node] -= amount
        room[target - m] -= amount
        node = target
        while origin[node] >= 0:
            before = origin[node]
            if before < m:
                flow[before, node - m] += amount
            else:
                flow[node, before - m] -= amount
            node = before
    return (flow / supply.sum() * cost).sum()


@numba.njit(cache=True)
def backup(P: Any, W: Any, R: Any, gamma: float, f: Any) -> Any:
    """T f over all pairs; W are the rows as whole numbers with one sum, 0 where P is."""
    n, n_actions = R.shape
    out = np.zeros((n, n))
    for s in range(n):
        for t in range(s + 1, n):
            for a in range(n_actions):
                x, y = np.nonzero(P[s, a])[0], np.nonzero(P[t, a])[0]
                cost = f[x][:, y]
                p, q = W[s, a][x], W[t, a][y]
                if x.size == 1:
                    paid = (q * cost[0]).sum() / q.sum()
                elif y.size == 1:
                    paid = (p * cost[:, 0]).sum() / p.sum()
                else:
                    paid = move(cost, p, q)
                out[s, t] = max(out[s, t], abs(R[s, a] - R[t, a]) + gamma * paid)
            out[t, s] = out[s, t]
    return out


def whole_rows(P: Floats) -> Floats:
    """Rows as whole numbers that sum to 2**52; what rounding leaves goes to the largest entry."""
    W = np.rint(P * UNIT)
    at = P.argmax(axis=2)[..., None]
    rest = UNIT - W.sum(axis=2, keepdims=True)
    np.put_along_axis(W, at, np.take_along_axis(W, at, axis=2) + rest, axis=2)
    return W


def enclosed(step: Any, guess: Floats, gamma: float, size: float, sweeps: int) -> Enclosure:
    """Both sides of the fixed point of a contraction, from any first guess.

    Args:
        step: The contraction.
        guess: Where to begin.
        gamma: Its modulus.
        size: The largest number that rounding is relative to.
        sweeps: Most steps to take.
    """
    error = np.inf
    with np.errstate(all="ignore"):
        for _ in range(sweeps):
            after = step(guess)
            moved = float(np.abs(after - guess).max())
            assert not np.isnan(moved), "the oracle itself failed: NaN in a backup"
            if not moved < error:
                break
            guess, error = after, moved
            if moved <= ROUNDING * size:
                break
        # The last table came from a step of length `error`: the next is no longer than that.
        pad = (error + ROUNDING * size) / (1.0 - gamma) + 1e-318
        return guess - pad, guess + pad


def metric_enclosure(
    mdp: TabularMDP, gamma: float, guess: Floats, *, sweeps: int = 300
) -> Enclosure:
    """Tables below and above the metric, from any first guess."""
    # Large rewards are made smaller, by a power of 2, so that sums stay within floats.
    unit = 2.0 ** max(0, math.frexp(float(np.abs(mdp.rewards).max()))[1] - 800)
    P, R = dense(mdp), mdp.rewards / unit
    W = whole_rows(P)
    P = np.where(W > 0.0, P, 0.0)  # masses below 2**-53 are left out: part of the rounding
    f = np.where(np.isfinite(guess), np.maximum(guess / unit, 0.0), 0.0)
    f = np.maximum(f, f.T)
    np.fill_diagonal(f, 0.0)
    diameter = float(np.ptp(R, axis=0).max()) / (1.0 - gamma)
    low, high = enclosed(lambda f: backup(P, W, R, gamma, f), f, gamma, diameter, sweeps)
    with np.errstate(all="ignore"):
        return low * unit, high * unit


def values_enclosure(
    mdp: TabularMDP, gamma: float, policy: Floats | None, guess: Floats
) -> Enclosure:
    """Below and above the values of a policy (action probabilities), or the optimal ones."""
    P, R = dense(mdp), mdp.rewards

    def step(values: Floats) -> Floats:
        q = R + gamma * (P @ values)
        return np.asarray(q.max(axis=1) if policy is None else (policy * q).sum(axis=1))

    size = float(np.abs(R).max()) / (1.0 - gamma)
    return enclosed(step, np.where(np.isfinite(guess), guess, 0.0), gamma, size, 300)


def exact_deterministic_metric(mdp: TabularMDP, gamma: float) -> list[list[Fraction]]:
    """The metric of a deterministic model: the longest discounted path, by policy iteration."""
    g, n = Fraction(gamma), mdp.n_states
    after = mdp.indices.reshape(n, mdp.n_actions).tolist()
    R = [[Fraction(x) for x in line] for line in mdp.rewards.tolist()]
    choice = {(s, t): 0 for s in range(n) for t in range(n)}

    def followed(pair: tuple[int, int]) -> Fraction:
        """What a pair collects when both states follow the chosen actions: a path and a circle."""
        seen: dict[tuple[int, int], int] = {}
        paid: list[Fraction] = []
        while pair not in seen:
            seen[pair] = len(paid)
            (s, t), a = pair, choice[pair]
            paid.append(abs(R[s][a] - R[t][a]))
            pair = after[s][a], after[t][a]
        begin = seen[pair]
        circle = sum((g**k * x for k, x in enumerate(paid[begin:])), Fraction(0))
        circle /= 1 - g ** (len(paid) - begin)
        return sum((g**k * x for k, x in enumerate(paid[:begin])), Fraction(0)) + g**begin * circle

    is_stable = False
    while not is_stable:
        is_stable, values = True, {pair: followed(pair) for pair in choice}
        for (s, t), value in values.items():
            for a in range(mdp.n_actions):
                if abs(R[s][a] - R[t][a]) + g * values[after[s][a], after[t][a]] > value:
                    choice[s, t], is_stable = a, False
                    break
    return [[values[s, t] for t in range(n)] for s in range(n)]


def start_mean(mdp: TabularMDP, values: Enclosure) -> Means:
    """Both ends of an enclosure as means over the start, which is divided by its exact sum."""
    weights = [Fraction(x) for x in mdp.start.tolist()]
    low, high = (
        sum((w * Fraction(x) for w, x in zip(weights, end.tolist(), strict=True)), Fraction(0))
        for end in values
    )
    return low / sum(weights), high / sum(weights)


def largest_share(optimal: Means, own: Means, random: Means, span: Fraction) -> Fraction:
    """No share of the start value that is kept is larger; 1 where nothing may be lost.

    (own - random) / (optimal - random) rises with the first, falls with the second, and falls
    with the third unless the numerator is negative.

    Args:
        optimal: Enclosure of the optimal start value.
        own: That of the policy.
        random: That of acting at random.
        span: The most that values can differ by.
    """
    size = min(max(abs(optimal[0]), abs(optimal[1])), span)
    gain = (optimal[0] if own[1] >= random[0] else optimal[1]) - random[0]
    if optimal[0] - own[1] <= NOTHING * size or optimal[0] <= random[1]:
        return Fraction(1)  # nothing is lost, or nothing is to be gained, for all that is known
    return min(Fraction(1), (own[1] - random[0]) / gain)


class Truth:
    """What is known about the metric and the values of one model, for any discount."""

    def __init__(self, mdp: TabularMDP) -> None:
        self.mdp = mdp
        self._known: dict[float, tuple[Any, Any]] = {}
        self._values: dict[tuple[Any, ...], Enclosure] = {}

    def bounds(self, gamma: float) -> tuple[Any, Any]:
        """Tables [s][t] that enclose the metric; equal fractions where it is known exactly."""
        if gamma not in self._known:
            if self.mdp.is_deterministic:
                table = exact_deterministic_metric(self.mdp, gamma)
                self._known[gamma] = table, table
            else:
                low, high = self.tables(gamma, sweeps=5000)
                # What is beyond all floats says nothing about bounds, which are floats.
                high = np.minimum(high, np.finfo(np.float64).max)
                self._known[gamma] = low.tolist(), high.tolist()
        return self._known[gamma]

    def tables(self, gamma: float, *, sweeps: int = 300) -> Enclosure:
        """The metric between two tables; the guess is the package's, proven by the oracle."""
        found = bisimulation_metric(self.mdp, gamma, resources=ONE)
        guess = found.lower / 2.0 + found.upper / 2.0
        return metric_enclosure(self.mdp, gamma, guess, sweeps=sweeps)

    def values(self, gamma: float, policy: list[int] | str) -> Enclosure:
        """Values of actions by state, of "random" ones, or the "optimal" values."""
        key = gamma, *policy
        if key not in self._values:
            mdp, weights = self.mdp, None
            if policy == "random":
                weights = np.full(mdp.rewards.shape, 1.0 / mdp.n_actions)
            elif policy != "optimal":
                weights = np.eye(mdp.n_actions)[np.array(policy)]
            found = (
                value_iteration(mdp, gamma)
                if weights is None
                else evaluate_policy(mdp, gamma, weights)
            )
            guess = found.lower / 2.0 + found.upper / 2.0  # proven by the oracle
            self._values[key] = values_enclosure(mdp, gamma, weights, guess)
        return self._values[key]

    def start_value(self, gamma: float, policy: list[int] | str) -> Means:
        """The same as a mean over the start."""
        return start_mean(self.mdp, self.values(gamma, policy))

    def largest_share(self, gamma: float, policy: list[int]) -> Fraction:
        """No share of the start value that a policy keeps is larger."""
        optimal, own, random = (
            self.start_value(gamma, each) for each in ("optimal", policy, "random")
        )
        span = Fraction(float(np.ptp(self.mdp.rewards))) / (1 - Fraction(gamma))
        return largest_share(optimal, own, random, span)

    def start_loss(self, gamma: float, policy: list[int]) -> Fraction:
        """What the start loses by a policy at least."""
        return self.start_value(gamma, "optimal")[0] - self.start_value(gamma, policy)[1]


# -- what a certificate says -----------------------------------------------------------------------


def check_certificate(certificate: Certificate, truth: Truth, widening: float) -> None:
    """All that a certificate says is true."""
    check_enclosure(certificate, truth, widening)
    check_clusters(certificate, truth)
    check_value(certificate, truth)


def check_enclosure(certificate: Certificate, truth: Truth, widening: float) -> None:
    """All bounds, moved outward by the widening, enclose the metric."""
    n = certificate.n_states
    states = np.arange(n)
    lower, upper = certificate.bounds(states[:, None], states)
    low, high = truth.bounds(certificate.gamma)
    wide = Fraction(widening)
    for s in range(n):
        for t in range(s + 1, n):
            below, above = (Fraction(float(x[s, t])) for x in (lower, upper))
            where = f"at ({s}, {t}), widening {widening!r}"
            assert below <= above + 2 * wide, f"lower above upper {where}"
            truly = float(low[s][t]), float(high[s][t])
            assert below - wide <= Fraction(high[s][t]), (
                f"lower bound {float(below)!r} above the metric, {truly[1]!r}, {where}"
            )
            assert above + wide >= Fraction(low[s][t]), (
                f"upper bound {float(above)!r} below the metric, {truly[0]!r}, {where}"
            )


def check_clusters(certificate: Certificate, truth: Truth) -> None:
    """Clusters at the threshold are what they claim to be under the metric itself."""
    if certificate.tau is None:
        return
    n, tau = certificate.n_states, Fraction(certificate.tau)
    low, high = truth.bounds(certificate.gamma)
    pairs = [(s, t) for s in range(n) for t in range(s + 1, n)]
    if certificate.scope == "covered":
        pairs = [divmod(key, n) for key in certificate.keys.tolist()]
    labels = certificate.labels_lower.tolist()
    for s, t in pairs:
        assert labels[s] == labels[t] or Fraction(high[s][t]) > tau, (
            f"({s}, {t}) within tau in different clusters"
        )
    # Links that may exist, given how well the metric is known, must join every upper cluster.
    root = linked(n, [(s, t) for s, t in pairs if Fraction(low[s][t]) <= tau])
    labels = certificate.labels_upper.tolist()
    for s in range(n):
        first = labels.index(labels[s])
        assert root[s] == root[first], f"{first} and {s} in one cluster without links"


def linked(n: int, pairs: list[tuple[int, int]]) -> list[int]:
    """(n) connected components by their least member."""
    parent = list(range(n))
    for s, t in pairs * n:  # often enough for any path
        parent[s] = parent[t] = min(parent[s], parent[t])
    return parent


def check_value(
    certificate: Certificate, truth: Truth, *, averaged: TabularMDP | None = None
) -> None:
    """All that is said about values is on the right side of what they are.

    Args:
        certificate: What says it.
        truth: The model that it is about.
        averaged: Whose rows the small environment averages, where that is another model.
    """
    value = certificate.value
    if value is None:
        return
    gamma, labels = certificate.gamma, value.labels
    assert np.array_equal(labels_apart(certificate), labels), "a value of other clusters"
    policy = value.policy[labels].tolist()
    best, chance, own = (truth.values(gamma, each) for each in ("optimal", "random", policy))
    robust = truth.values(gamma, value.bracket.policy[labels].tolist())
    assert (value.optimal_upper >= best[0]).all(), "optimal_upper is below the values"
    assert (value.optimal_lower <= best[1]).all(), "optimal_lower is above the values"
    assert (value.policy_lower <= own[1]).all(), "policy_lower is above the values"
    assert (value.random_upper >= chance[0]).all(), "random_upper is below the values"
    assert (value.bracket.upper[labels] >= best[0]).all(), "bracket.upper is below the values"
    assert (value.bracket.lower[labels] <= robust[1]).all(), "bracket.lower is above the values"
    lost = max(Fraction(a) - Fraction(b) for a, b in zip(best[0], own[1], strict=True))
    assert lost <= Fraction(value.loss), f"a state loses {float(lost)!r}, not {value.loss!r}"
    start_lost = truth.start_loss(gamma, policy)
    assert start_lost <= Fraction(value.start_loss), "the start loses more than it is said to"
    assert value.kept <= 1.0, "more than everything is kept"
    if value.kept > -math.inf:
        share = truth.largest_share(gamma, policy)
        assert Fraction(value.kept) <= share, (
            f"{value.kept!r} kept by proof, but {float(share)!r} at most in truth"
        )
    false = false_claims(value, truth.mdp, gamma, averaged=averaged)
    assert not false, f"claims that do not follow: {false}"


def labels_apart(certificate: Certificate) -> list[int]:
    """Certified clusters by first live state; the end, if there is one, is the last of all."""
    end, number = certificate.terminal_state, dict[int, int]()
    given = certificate.labels_upper.tolist()
    for s, label in enumerate(given):
        if s != end:
            number.setdefault(label, len(number))
    return [len(number) if s == end else number[label] for s, label in enumerate(given)]
