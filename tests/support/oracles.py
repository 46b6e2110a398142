"""Slow references, written for clarity and exactness only.

They share nothing with the package: exact ones compute with whole numbers and fractions and
take every stored float as the number it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import lcm
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

from bisim_abstract import TabularMDP

Number = float | Fraction
Table = Sequence[Sequence[Number]] | npt.NDArray[np.float64]


def fractions(values: npt.NDArray[np.float64]) -> list[Fraction]:
    """The numbers that floats are."""
    return [Fraction(x) for x in values.tolist()]


# -- transport ---------------------------------------------------------------------------------


def transport_exact(cost: Table, a: Sequence[Number], b: Sequence[Number]) -> Fraction:
    """The exact least cost of moving a/sum(a) to b/sum(b); costs are non-negative."""
    return plan_exact(cost, a, b)[0]


def plan_exact(
    cost: Table, a: Sequence[Number], b: Sequence[Number]
) -> tuple[Fraction, dict[tuple[int, int], Fraction]]:
    """The same, and what is moved from where to where.

    Successive shortest paths in whole numbers. The result is checked before it is returned:
    the flow has the marginals, the potentials are feasible, and both have the same value.
    """
    rows = [i for i, x in enumerate(a) if x]
    cols = [j for j, x in enumerate(b) if x]
    total_a = sum((Fraction(x) for x in a), Fraction(0))
    total_b = sum((Fraction(x) for x in b), Fraction(0))
    # Masses times both sums, so that the two sides carry the same total.
    supply, mass_unit = _whole(
        [Fraction(a[i]) * total_b for i in rows] + [Fraction(b[j]) * total_a for j in cols]
    )
    flat, cost_unit = _whole([Fraction(cost[i][j]) for i in rows for j in cols])
    m, n = len(rows), len(cols)
    c = [flat[i * n : (i + 1) * n] for i in range(m)]
    value, flow = _least_cost(c, supply[:m], supply[m:])
    whole = mass_unit * total_a * total_b
    plan = {
        (rows[i], cols[j]): flow[i][j] / whole for i in range(m) for j in range(n) if flow[i][j]
    }
    return Fraction(value, cost_unit) / whole, plan


def _whole(numbers: list[Fraction]) -> tuple[list[int], int]:
    unit = lcm(*(x.denominator for x in numbers))
    return [x.numerator * (unit // x.denominator) for x in numbers], unit


def _least_cost(
    c: list[list[int]], supply: list[int], demand: list[int]
) -> tuple[int, list[list[int]]]:
    m, n = len(supply), len(demand)
    left, room = list(supply), list(demand)
    flow = [[0] * n for _ in range(m)]
    high = [0] * (m + n)  # potentials: c[i][j] + high[i] - high[m + j] >= 0
    while any(left):
        distance: list[int | None] = [0 if k < m and left[k] else None for k in range(m + n)]
        origin = [-1] * (m + n)
        done = [False] * (m + n)
        target = -1
        while True:
            here, best = -1, 0
            for k in range(m + n):
                d = distance[k]
                if d is not None and not done[k] and (here < 0 or d < best):
                    here, best = k, d
            done[here] = True
            if here >= m and room[here - m]:
                target = here
                break
            for k in range(m, m + n) if here < m else range(m):
                if done[k]:
                    continue
                if here < m:
                    step = c[here][k - m] + high[here] - high[k]
                elif flow[k][here - m]:
                    step = high[here] - high[k] - c[k][here - m]
                else:
                    continue
                d = distance[k]
                if d is None or best + step < d:
                    distance[k], origin[k] = best + step, here
        limit = distance[target]
        assert limit is not None
        for k in range(m + n):
            d = distance[k]
            high[k] += d if done[k] and d is not None else limit
        path = [target]
        while origin[path[-1]] >= 0:
            path.append(origin[path[-1]])
        amount = min(room[target - m], left[path[-1]])
        for k, before in pairwise(path):
            if before >= m:
                amount = min(amount, flow[k][before - m])
        room[target - m] -= amount
        left[path[-1]] -= amount
        for k, before in pairwise(path):
            if before < m:
                flow[before][k - m] += amount
            else:
                flow[k][before - m] -= amount
    primal = sum(c[i][j] * flow[i][j] for i in range(m) for j in range(n))
    dual = sum(high[m + j] * demand[j] for j in range(n)) - sum(
        high[i] * supply[i] for i in range(m)
    )
    assert all(c[i][j] + high[i] >= high[m + j] for i in range(m) for j in range(n))
    assert all(sum(flow[i]) == supply[i] for i in range(m))
    assert all(sum(line[j] for line in flow) == demand[j] for j in range(n))
    assert min(map(min, flow)) >= 0
    assert primal == dual
    return primal, flow


def transport_lp(
    cost: npt.NDArray[np.float64], a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]
) -> float:
    """The least cost by SciPy's linear programming; good to about 1e-9 of the largest cost."""
    m, n = cost.shape
    top = float(cost.max()) or 1.0
    into = np.vstack([np.kron(np.eye(m), np.ones(n)), np.kron(np.ones(m), np.eye(n))])
    masses = np.concatenate([a / a.sum(), b / b.sum()])
    # The last equation follows from the others, but for rounding.
    result = linprog(cost.ravel() / top, A_eq=into[:-1], b_eq=masses[:-1], method="highs")
    assert result.x is not None, result.message
    return float(result.x @ cost.ravel())


def partial_exact(
    cost: Table, a: Sequence[Number], b: Sequence[Number], free: Fraction
) -> Fraction:
    """The least cost of carrying all but `free`, by two dummies that are kept apart."""
    if free >= 1:
        return Fraction(0)
    exact = [[Fraction(x) for x in line] for line in cost]
    wide = [[*line, Fraction(0)] for line in exact]
    wide.append([*(Fraction(0) for _ in b), 4 * max(map(max, exact)) + 1])
    rows, cols = (
        [*(Fraction(v) / sum(Fraction(x) for x in side) for v in side), free] for side in (a, b)
    )
    return transport_exact(wide, rows, cols) * (1 + free)


# -- the metric --------------------------------------------------------------------------------


def backup_exact(
    mdp: TabularMDP,
    gamma: float,
    table: Table,
    relation: str = "plain",
    apart: float | None = None,
) -> list[list[Fraction]]:
    """T(table) for a symmetric table with zero diagonal, every number taken as it is."""
    n = mdp.n_states
    result = [[Fraction(0)] * n for _ in range(n)]
    for s in range(n):
        for t in range(s + 1, n):
            value = backup_pair_exact(mdp, gamma, table, s, t, relation, apart)
            result[s][t] = result[t][s] = value
    return result


def backup_pair_exact(
    mdp: TabularMDP,
    gamma: float,
    table: Table,
    s: int,
    t: int,
    relation: str = "plain",
    apart: float | None = None,
) -> Fraction:
    """T(table) at one pair."""
    worth: dict[tuple[int, int], Fraction] = {}
    jobs = compared(mdp, s, t, relation)
    if jobs is None:
        assert apart is not None
        return Fraction(apart)
    for a, b in jobs:
        (x, p), (y, q) = mdp.successors(s, a), mdp.successors(t, b)
        cost = [[Fraction(table[i][j]) for j in y.tolist()] for i in x.tolist()]
        gap = abs(Fraction(float(mdp.rewards[s, a])) - Fraction(float(mdp.rewards[t, b])))
        worth[a, b] = gap + Fraction(gamma) * transport_exact(cost, p.tolist(), q.tolist())
    return Fraction(hausdorff(worth))


def compared(mdp: TabularMDP, s: int, t: int, relation: str) -> list[tuple[int, int]] | None:
    """The pairs of actions of s and t that count; None where states are not compared."""
    mine, theirs = own_actions(mdp, s), own_actions(mdp, t)
    if relation == "lax":
        return [(a, b) for a in mine for b in theirs]
    return [(a, a) for a in mine] if mine == theirs else None


def hausdorff(worth: dict[tuple[int, int], Any]) -> Any:
    """The largest of what each action of either state is, at least, from those of the other."""
    sides: tuple[dict[int, Any], dict[int, Any]] = ({}, {})
    for pair, value in worth.items():
        for side, action in zip(sides, pair, strict=True):
            side[action] = min(side.get(action, value), value)
    return max(max(side.values()) for side in sides)


def compared_pair(
    mdp: TabularMDP,
    gamma: float,
    table: Table,
    s: int,
    t: int,
    *,
    relation: str = "lax",
    apart: float | None = None,
) -> Fraction:
    """One pair's backup under either relation, all actions of one state against all of the other.

    Lax: the Hausdorff distance of what the states can do. Plain: action by action, and `apart`
    where the states do not have the same actions.
    """
    own, other = (np.flatnonzero(mdp.available[x]).tolist() for x in (s, t))
    if relation == "plain" and own != other:
        assert apart is not None
        return Fraction(apart)
    differ = {}
    for a in own:
        for b in other:
            (x, p), (y, q) = mdp.successors(s, a), mdp.successors(t, b)
            cost = [[Fraction(table[i][j]) for j in y.tolist()] for i in x.tolist()]
            gap = abs(Fraction(float(mdp.rewards[s, a])) - Fraction(float(mdp.rewards[t, b])))
            moved = transport_exact(cost, p.tolist(), q.tolist())
            differ[a, b] = gap + Fraction(gamma) * moved
    if relation == "plain":
        return max(differ[a, a] for a in own)
    there = max(min(differ[a, b] for b in other) for a in own)
    back = max(min(differ[a, b] for a in own) for b in other)
    return max(there, back)


def compared_metric(
    mdp: TabularMDP,
    gamma: float,
    *,
    relation: str = "lax",
    apart: float | None = None,
    sweeps: int = 40,
) -> npt.NDArray[np.float64]:
    """The metric of either relation by value iteration from 0, but for gamma**sweeps of it."""
    n = mdp.n_states
    table = np.zeros((n, n))
    for _ in range(sweeps):
        old = table.tolist()
        for s in range(n):
            for t in range(s + 1, n):
                found = compared_pair(mdp, gamma, old, s, t, relation=relation, apart=apart)
                table[s, t] = table[t, s] = float(found)
    return table


def metric_exact(
    mdp: TabularMDP,
    gamma: float,
    guess: Table,
    relation: str = "plain",
    apart: float | None = None,
    *,
    rounds: int = 30,
) -> list[list[Fraction]]:
    """The metric itself, in fractions: T d = d holds exactly, and T has one fixed point.

    From any guess, though a good one saves rounds: the actions and plans that are best under it
    make a system of linear equations, whose solution is the next.
    """
    n, g = mdp.n_states, Fraction(gamma)
    table = [[Fraction(float(guess[min(s, t)][max(s, t)])) for t in range(n)] for s in range(n)]
    pairs = [(s, t) for s in range(n) for t in range(s + 1, n)]
    at = {pair: k for k, pair in enumerate(pairs)}
    for _ in range(rounds):
        system = [[Fraction(int(i == j)) for j in range(len(pairs))] for i in range(len(pairs))]
        right = [Fraction(0)] * len(pairs)
        for (s, t), k in at.items():
            jobs = compared(mdp, s, t, relation)
            if jobs is None:
                assert apart is not None
                right[k] = Fraction(apart)
                continue
            worth: dict[tuple[int, int], Fraction] = {}
            ways = {}
            for a, b in jobs:
                (x, p), (y, q) = mdp.successors(s, a), mdp.successors(t, b)
                cost = [[table[i][j] for j in y.tolist()] for i in x.tolist()]
                gap = abs(Fraction(float(mdp.rewards[s, a])) - Fraction(float(mdp.rewards[t, b])))
                moved, plan = plan_exact(cost, p.tolist(), q.tolist())
                worth[a, b] = gap + g * moved
                ways[a, b] = gap, {(int(x[i]), int(y[j])): mass for (i, j), mass in plan.items()}
            best = hausdorff(worth)
            chosen = next(job for job in jobs if worth[job] == best)
            right[k], plan = ways[chosen]
            for (i, j), mass in plan.items():
                if i != j:
                    system[k][at[min(i, j), max(i, j)]] -= g * mass
        found = _eliminate(system, right)
        table = [[Fraction(0)] * n for _ in range(n)]
        for (s, t), k in at.items():
            table[s][t] = table[t][s] = found[k]
        if backup_exact(mdp, gamma, table, relation, apart) == table:
            return table
    raise AssertionError("the exact metric was not found; another guess may help")


def check_inequalities(
    mdp: TabularMDP,
    gamma: float,
    lower: npt.NDArray[np.float64],
    upper: npt.NDArray[np.float64],
    relation: str = "plain",
    apart: float | None = None,
) -> None:
    """lower <= T(lower) and upper >= T(upper) on every pair, in exact arithmetic.

    By monotony of T and uniqueness of its fixed point d this proves lower <= d <= upper.
    """
    below, above = (backup_exact(mdp, gamma, table, relation, apart) for table in (lower, upper))
    for s, t in np.ndindex(lower.shape):
        assert Fraction(float(lower[s, t])) <= below[s][t], ("lower", s, t)
        assert Fraction(float(upper[s, t])) >= above[s][t], ("upper", s, t)


def metric_lp(
    mdp: TabularMDP,
    gamma: float,
    *,
    error: float = 1e-8,
    relation: str = "plain",
    apart: float | None = None,
) -> npt.NDArray[np.float64]:
    """The metric by value iteration from 0, all transports of a sweep in one linear program.

    Off by less than `error` of the largest possible distance, and by what the solver leaves.
    """
    n = mdp.n_states
    every = {(s, t): compared(mdp, s, t, relation) for s in range(n) for t in range(s + 1, n)}
    jobs = [(s, t, a, b) for (s, t), pairs in every.items() for a, b in pairs or ()]
    if not every:
        return np.zeros((n, n))
    equations: list[int] = []
    variables: list[int] = []
    masses: list[float] = []
    left: list[int] = []
    right: list[int] = []
    owner: list[int] = []
    for job, (s, t, a, b) in enumerate(jobs):
        (x, p), (y, q) = mdp.successors(s, a), mdp.successors(t, b)
        first, base = len(left), len(masses)
        for i in range(x.size):
            for j in range(y.size):
                variable = first + i * y.size + j
                equations.append(base + i)
                variables.append(variable)
                if j < y.size - 1:  # the last column follows from the rest
                    equations.append(base + x.size + j)
                    variables.append(variable)
        left += np.repeat(x, y.size).tolist()
        right += np.tile(y, x.size).tolist()
        owner += [job] * (x.size * y.size)
        masses += (p / p.sum()).tolist() + (q / q.sum()).tolist()[:-1]
    matrix = np.zeros((len(masses), len(left)))
    matrix[equations, variables] = 1.0
    gaps = np.array([abs(mdp.rewards[s, a] - mdp.rewards[t, b]) for s, t, a, b in jobs])
    top = max(float(gaps.max(initial=0.0)), (apart or 0.0) * (1.0 - gamma)) or 1.0
    gaps /= top
    table = np.zeros((n, n))
    remaining = 1.0
    while remaining > error:
        backup = gaps
        if jobs:
            cost = table[left, right]
            result = linprog(cost, A_eq=matrix, b_eq=masses, method="highs")
            assert result.x is not None, result.message
            carried = np.bincount(owner, weights=result.x * cost, minlength=len(jobs))
            backup = gaps + gamma * carried
        table = np.zeros((n, n))
        found = dict(zip(jobs, backup.tolist(), strict=True))
        for (s, t), pairs in every.items():
            value = (apart or 0.0) / top
            if pairs is not None:
                value = hausdorff({(a, b): found[s, t, a, b] for a, b in pairs})
            table[s, t] = table[t, s] = value
        remaining *= gamma
    return table * top


# -- bisimulation ------------------------------------------------------------------------------


def lifted_exact(mdp: TabularMDP, labels: Sequence[int], s: int, a: int) -> dict[int, Fraction]:
    """The row of a state and action, divided by its exact sum and summed by label."""
    successors, probs = mdp.successors(s, a)
    masses = [Fraction(p) for p in probs.tolist()]
    total = sum(masses)
    row: dict[int, Fraction] = {}
    for t, mass in zip(successors.tolist(), masses, strict=True):
        row[labels[t]] = row.get(labels[t], Fraction(0)) + mass / total
    return row


def variation_exact(row: dict[int, Fraction], other: dict[int, Fraction]) -> Fraction:
    """Total variation distance of two exact rows."""
    keys = row.keys() | other.keys()
    return sum(
        (max(row.get(k, Fraction(0)) - other.get(k, Fraction(0)), Fraction(0)) for k in keys),
        Fraction(0),
    )


def classes_exact(
    mdp: TabularMDP, initial: Sequence[int] | None = None, relation: str = "plain"
) -> list[int]:
    """The coarsest stable partition by naive refinement, numbered by first appearance."""
    n = mdp.n_states
    labels = first_appearance(list(initial)) if initial is not None else [0] * n
    while True:
        signatures = [(labels[s], _doings(mdp, labels, s, relation)) for s in range(n)]
        finer = first_appearance(signatures)
        if max(finer) == max(labels):
            return finer
        labels = finer


def _doings(mdp: TabularMDP, labels: Sequence[int], s: int, relation: str) -> frozenset[object]:
    """What state s can do: what each of its own actions pays and leads to, by name or without."""
    return frozenset(
        (
            a if relation == "plain" else None,
            Fraction(float(mdp.rewards[s, a])),
            frozenset(lifted_exact(mdp, labels, s, a).items()),
        )
        for a in own_actions(mdp, s)
    )


def own_actions(mdp: TabularMDP, s: int) -> list[int]:
    """The actions that state s has."""
    return [int(a) for a in np.flatnonzero(mdp.available[s])]


def actions(mdp: TabularMDP) -> range:
    return range(mdp.n_actions)


def first_appearance(keys: Sequence[object]) -> list[int]:
    """Number equal keys by where they first appear."""
    names: dict[object, int] = {}
    return [names.setdefault(key, len(names)) for key in keys]


# -- values ------------------------------------------------------------------------------------


def policy_values_exact(
    mdp: TabularMDP, policy: Sequence[Sequence[Number]], gamma: float
) -> list[Fraction]:
    """Values of a policy of action probabilities, each row divided by its exact sum."""
    n, g = mdp.n_states, Fraction(gamma)
    identity = list(range(n))
    system = [[Fraction(int(s == t)) for t in range(n)] for s in range(n)]
    right = [Fraction(0)] * n
    for s in range(n):
        weights = [Fraction(w) for w in policy[s]]
        total = sum(weights)
        for a in actions(mdp):
            weight = weights[a] / total
            right[s] += weight * Fraction(float(mdp.rewards[s, a]))
            for t, mass in lifted_exact(mdp, identity, s, a).items():
                system[s][t] -= g * weight * mass
    return _eliminate(system, right)


def chain_exact(
    mdp: TabularMDP, policy: Sequence[Sequence[Number]]
) -> tuple[list[Fraction], list[dict[int, Fraction]]]:
    """Rewards and rows of the chain of a policy, mixed exactly."""
    identity = list(range(mdp.n_states))
    rewards, rows = [], []
    for s in identity:
        weights = [Fraction(w) for w in policy[s]]
        total = sum(weights)
        row: dict[int, Fraction] = {}
        reward = Fraction(0)
        for a in actions(mdp):
            if not weights[a]:
                continue
            reward += weights[a] / total * Fraction(float(mdp.rewards[s, a]))
            for t, mass in lifted_exact(mdp, identity, s, a).items():
                row[t] = row.get(t, Fraction(0)) + weights[a] / total * mass
        rewards.append(reward)
        rows.append(row)
    return rewards, rows


def mico_exact(
    mdp: TabularMDP, policy: Sequence[Sequence[Number]], gamma: float
) -> list[list[Fraction]]:
    """MICo's distance, from its linear system over all ordered pairs."""
    n, g = mdp.n_states, Fraction(gamma)
    rewards, rows = chain_exact(mdp, policy)
    system = [[Fraction(int(i == j)) for j in range(n * n)] for i in range(n * n)]
    right = [abs(rewards[i // n] - rewards[i % n]) for i in range(n * n)]
    for i in range(n * n):
        for x, p in rows[i // n].items():
            for y, q in rows[i % n].items():
                system[i][x * n + y] -= g * p * q
    flat = _eliminate(system, right)
    return [flat[s * n : (s + 1) * n] for s in range(n)]


def _eliminate(system: list[list[Fraction]], right: list[Fraction]) -> list[Fraction]:
    n = len(right)
    for k in range(n):
        pivot = next(i for i in range(k, n) if system[i][k])
        system[k], system[pivot] = system[pivot], system[k]
        right[k], right[pivot] = right[pivot], right[k]
        for i in range(n):
            if i != k and system[i][k]:
                factor = system[i][k] / system[k][k]
                system[i] = [x - factor * y for x, y in zip(system[i], system[k], strict=True)]
                right[i] -= factor * right[k]
    return [right[k] / system[k][k] for k in range(n)]


def optimal_values_exact(mdp: TabularMDP, gamma: float) -> list[Fraction]:
    """Optimal values by policy iteration with fractions."""
    n, g = mdp.n_states, Fraction(gamma)
    identity = list(range(n))
    lifted = [[lifted_exact(mdp, identity, s, a) for a in actions(mdp)] for s in range(n)]
    choice = [0] * n
    while True:
        one_hot = [[float(a == choice[s]) for a in actions(mdp)] for s in range(n)]
        values = policy_values_exact(mdp, one_hot, gamma)
        is_stable = True
        for s in range(n):
            for a in actions(mdp):
                ahead = sum(mass * values[t] for t, mass in lifted[s][a].items())
                if Fraction(float(mdp.rewards[s, a])) + g * ahead > values[s]:
                    choice[s], is_stable = a, False
                    break
        if is_stable:
            return values


# -- partitions --------------------------------------------------------------------------------


def refines(fine: Sequence[int], coarse: Sequence[int]) -> bool:
    """Whether what is together in the first partition is together in the second."""
    return len(set(zip(fine, coarse, strict=True))) == len(set(fine))


def linked(table: Table, tau: float) -> list[int]:
    """Clusters of all pairs at most tau apart, by merging, numbered by first appearance."""
    n = len(table)
    label = list(range(n))
    for s in range(n):
        for t in range(s + 1, n):
            if label[s] != label[t] and table[s][t] <= tau:
                old, new = label[t], label[s]
                label = [new if x == old else x for x in label]
    return first_appearance(label)
