"""Slow truths that share no code with the package.

Enclosure is proven, not assumed: T is a contraction, so any table f is within
max|Tf - f| / (1 - gamma) of the metric, wherever f comes from. A finding is a bound that is
provably on the wrong side. Fractions leave no tolerance at all; they serve small models.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numba
import numpy as np

from bisim_abstract import TabularMDP
from fuzzing.models import Floats, dense, exact_rows

Enclosure = tuple[Floats, Floats]  # below and above
Means = tuple[Fraction, Fraction]
NOTHING = Fraction(1, 10**9)  # of a start value: what is lost below this counts as nothing
ROUNDING = 2e-14  # relative error of one backup of at most eight states, generously
UNIT = 2**52  # whole numbers that masses are rounded to
STEPS = 2.0**46  # and costs, so that sums over a path are exact


def _move(cost: Any, supply: Any, demand: Any, m: int, n: int) -> float:
    """Least cost by successive shortest paths (Bellman-Ford); masses are whole numbers.

    Paths are compared by costs rounded to whole numbers, whose sums are exact: rounding errors
    would close circles. The coupling found is then paid at the costs themselves.
    """
    top = cost.max()
    if top == 0.0:
        return 0.0
    price = np.rint(cost / top * STEPS)
    flow = np.zeros((m, n))
    left, room = supply.copy(), demand.copy()
    nodes = m + n
    while left.max() > 0.0:
        distance = np.full(nodes, np.inf)
        origin = np.full(nodes, -1)
        for i in range(m):
            if left[i] > 0.0:
                distance[i] = 0.0
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
        target = -1
        for j in range(n):
            if room[j] > 0.0 and (target < 0 or distance[m + j] < distance[target]):
                target = m + j
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
    return float((flow / supply.sum() * cost).sum())


move = numba.njit(cache=True)(_move)


def _backup(P: Any, W: Any, R: Any, gamma: float, f: Any) -> Any:
    """T f over all pairs; W are the rows as whole numbers with one sum, 0 where P is."""
    n, n_actions = R.shape
    out = np.zeros((n, n))
    for s in range(n):
        for t in range(s + 1, n):
            best = 0.0
            for a in range(n_actions):
                x, y = np.nonzero(P[s, a])[0], np.nonzero(P[t, a])[0]
                cost = np.empty((x.size, y.size))
                for i in range(x.size):
                    for j in range(y.size):
                        cost[i, j] = f[x[i], y[j]]
                p, q = W[s, a][x], W[t, a][y]
                if x.size == 1:
                    paid = float((q * cost[0]).sum() / q.sum())
                elif y.size == 1:
                    paid = float((p * cost[:, 0]).sum() / p.sum())
                else:
                    paid = move(cost, p, q, x.size, y.size)
                best = max(best, abs(R[s, a] - R[t, a]) + gamma * paid)
            out[s, t] = out[t, s] = best
    return out


backup = numba.njit(cache=True)(_backup)


def whole_rows(P: Floats) -> Floats:
    """Rows as whole numbers that sum to 2**52; what rounding leaves goes to the largest entry."""
    W = np.rint(P * UNIT)
    at = P.argmax(axis=2)[..., None]
    rest = UNIT - W.sum(axis=2, keepdims=True)
    np.put_along_axis(W, at, np.take_along_axis(W, at, axis=2) + rest, axis=2)
    return W


def metric_enclosure(
    mdp: TabularMDP, gamma: float, guess: Floats, *, sweeps: int = 300
) -> tuple[Floats, Floats]:
    """Tables below and above the metric, from any first guess."""
    # Large rewards are made smaller, by a power of 2, so that sums stay within floats.
    unit = 2.0 ** max(0, math.frexp(float(np.abs(mdp.rewards).max()))[1] - 800)
    P, R = dense(mdp), mdp.rewards / unit
    W = whole_rows(P)
    P = np.where(W > 0.0, P, 0.0)  # masses below 2**-53 are left out: part of the rounding
    f = np.where(np.isfinite(guess), np.maximum(guess / unit, 0.0), 0.0)
    f = np.maximum(f, f.T)
    np.fill_diagonal(f, 0.0)
    with np.errstate(all="ignore"):
        diameter = float(np.ptp(R, axis=0).max()) / (1.0 - gamma)
        error = np.inf
        for _ in range(sweeps):
            after = backup(P, W, R, gamma, f)
            moved = float(np.abs(after - f).max())
            if np.isnan(moved):
                raise ArithmeticError("the oracle itself failed: NaN in a backup")
            if not moved < error:
                break
            f, error = after, moved
            if moved <= ROUNDING * diameter:
                break
        # The last table came from a step of length `error`: the next is no longer than that.
        pad = (error + ROUNDING * diameter) / (1.0 - gamma) + 1e-318
        return (f - pad) * unit, (f + pad) * unit


def values_enclosure(
    mdp: TabularMDP, gamma: float, policy: Floats | None, guess: Floats
) -> tuple[Floats, Floats]:
    """Below and above the values of a policy (action probabilities), or the optimal ones."""
    P, R = dense(mdp), mdp.rewards
    values = np.where(np.isfinite(guess), guess, 0.0)
    size = float(np.abs(R).max()) / (1.0 - gamma)
    error = np.inf
    for _ in range(300):
        q = R + gamma * (P @ values)
        after = q.max(axis=1) if policy is None else (policy * q).sum(axis=1)
        moved = float(np.abs(after - values).max())
        if not moved < error:
            break
        values, error = after, moved
        if moved <= ROUNDING * size:
            break
    pad = (error + ROUNDING * size) / (1.0 - gamma) + 1e-318
    return values - pad, values + pad


# -- fractions -----------------------------------------------------------------------------------


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


def exact_transport(
    cost: dict[tuple[int, int], Fraction], p: dict[int, Fraction], q: dict[int, Fraction]
) -> Fraction:
    """Least cost of moving p to q, both of mass 1, by successive shortest paths."""
    left, room = dict(p), dict(q)
    flow = dict.fromkeys(cost, Fraction(0))
    paid = Fraction(0)
    while any(left.values()):
        distance: dict[tuple[str, int], Fraction] = {
            ("p", i): Fraction(0) for i, x in left.items() if x
        }
        origin: dict[tuple[str, int], tuple[str, int]] = {}
        is_changed = True
        while is_changed:
            is_changed = False
            for (i, j), price in cost.items():
                for one, two, step in (
                    (("p", i), ("q", j), price),
                    (("q", j), ("p", i), -price),
                ):
                    if one not in distance or (one[0] == "q" and not flow[i, j]):
                        continue
                    if two not in distance or distance[one] + step < distance[two]:
                        distance[two], origin[two] = distance[one] + step, one
                        is_changed = True
        target = min((j for j, x in room.items() if x), key=lambda j: distance["q", j])
        path = [("q", target)]
        while path[-1] in origin:
            path.append(origin[path[-1]])
        amount = min(left[path[-1][1]], room[target])
        for two, one in itertools.pairwise(path):
            if one[0] == "q":
                amount = min(amount, flow[two[1], one[1]])
        for two, one in itertools.pairwise(path):
            if one[0] == "p":
                flow[one[1], two[1]] += amount
            else:
                flow[two[1], one[1]] -= amount
        left[path[-1][1]] -= amount
        room[target] -= amount
        paid += amount * distance["q", target]
    return paid


def exact_backup(mdp: TabularMDP, gamma: float, table: Floats) -> dict[tuple[int, int], Fraction]:
    """T(table) at all pairs s < t, without rounding."""
    rows, g = exact_rows(mdp), Fraction(gamma)
    result = {}
    for s in range(mdp.n_states):
        for t in range(s + 1, mdp.n_states):
            best = Fraction(0)
            for a in range(mdp.n_actions):
                p, q = rows[s][a], rows[t][a]
                cost = {(i, j): Fraction(float(table[i, j])) for i in p for j in q}
                gap = Fraction(float(mdp.rewards[s, a])) - Fraction(float(mdp.rewards[t, a]))
                best = max(best, abs(gap) + g * exact_transport(cost, p, q))
            result[s, t] = best
    return result


def exact_deterministic_metric(mdp: TabularMDP, gamma: float) -> dict[tuple[int, int], Fraction]:
    """The metric of a deterministic model: the longest discounted path, by policy iteration."""
    g, n = Fraction(gamma), mdp.n_states
    after = mdp.indices.reshape(n, mdp.n_actions).tolist()
    gaps = {
        (s, t, a): abs(Fraction(float(mdp.rewards[s, a])) - Fraction(float(mdp.rewards[t, a])))
        for s in range(n)
        for t in range(n)
        for a in range(mdp.n_actions)
    }
    choice = {(s, t): 0 for s in range(n) for t in range(n)}
    while True:
        values = {pair: _followed(pair, choice, gaps, after, g) for pair in choice}
        is_stable = True
        for (s, t), value in values.items():
            for a in range(mdp.n_actions):
                if gaps[s, t, a] + g * values[after[s][a], after[t][a]] > value:
                    choice[s, t], is_stable = a, False
                    break
        if is_stable:
            return values


def _followed(
    pair: tuple[int, int],
    choice: dict[tuple[int, int], int],
    gaps: dict[tuple[int, int, int], Fraction],
    after: list[list[int]],
    g: Fraction,
) -> Fraction:
    """What a pair collects when both states follow the chosen actions: a path and a circle."""
    seen: dict[tuple[int, int], int] = {}
    paid: list[Fraction] = []
    while pair not in seen:
        seen[pair] = len(paid)
        a = choice[pair]
        paid.append(gaps[pair[0], pair[1], a])
        pair = after[pair[0]][a], after[pair[1]][a]
    begin = seen[pair]
    circle = sum((g**k * x for k, x in enumerate(paid[begin:])), Fraction(0))
    circle /= 1 - g ** (len(paid) - begin)
    return sum((g**k * x for k, x in enumerate(paid[:begin])), Fraction(0)) + g**begin * circle


def exact_values(
    mdp: TabularMDP, gamma: float, policy: list[list[Fraction]] | None
) -> list[Fraction]:
    """Values of a policy, or the optimal ones by policy iteration."""
    rows, g, n = exact_rows(mdp), Fraction(gamma), mdp.n_states
    R = [[Fraction(x) for x in line] for line in mdp.rewards.tolist()]
    if policy is not None:
        return _solved(rows, R, g, policy)
    choice = [0] * n
    while True:
        one_hot = [[Fraction(int(a == choice[s])) for a in range(mdp.n_actions)] for s in range(n)]
        values = _solved(rows, R, g, one_hot)
        is_stable = True
        for s in range(n):
            for a in range(mdp.n_actions):
                ahead = sum((m * values[t] for t, m in rows[s][a].items()), Fraction(0))
                if R[s][a] + g * ahead > values[s]:
                    choice[s], is_stable = a, False
                    break
        if is_stable:
            return values


def _solved(
    rows: list[list[dict[int, Fraction]]],
    R: list[list[Fraction]],
    g: Fraction,
    policy: list[list[Fraction]],
) -> list[Fraction]:
    n = len(rows)
    system = [[Fraction(int(s == t)) for t in range(n)] for s in range(n)]
    right = [Fraction(0)] * n
    for s in range(n):
        for a, weight in enumerate(policy[s]):
            right[s] += weight * R[s][a]
            for t, mass in rows[s][a].items():
                system[s][t] -= g * weight * mass
    for k in range(n):  # diagonally dominant: no pivot is 0
        for i in range(n):
            if i != k and system[i][k]:
                factor = system[i][k] / system[k][k]
                system[i] = [x - factor * y for x, y in zip(system[i], system[k], strict=True)]
                right[i] -= factor * right[k]
    return [right[k] / system[k][k] for k in range(n)]


def linked(n: int, pairs: list[tuple[int, int]]) -> list[int]:
    """(n) connected components by their least member."""
    parent = list(range(n))

    def root(x: int) -> int:
        while parent[x] != x:
            x = parent[x]
        return x

    for s, t in pairs:
        x, y = sorted((root(s), root(t)))
        parent[y] = x
    return [root(x) for x in range(n)]
