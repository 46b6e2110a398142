"""Exact mode of the verifier: every claim in whole numbers and fractions, nothing left open."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np

from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._verify.floats import (
    above_float,
    below_float,
    violated,
    wrong_centre,
    wrong_correction,
)
from bisim_abstract._verify.read import Claims, FeatureClaims, Table, radius_seen_by
from bisim_abstract._verify.relations import Match

Costs = tuple[Fraction, Fraction]


class ExactTable:
    """A table of claims as exact numbers.

    Args:
        table: The claims.
        gamma: The discount.
        levels: Levels that pairs of states read besides.
        features: Features that they read.
        mdp: The model, for pairs of states: if it is an estimate, the exact ends of reward
            intervals are read from it; the table has them rounded outward.

    Attributes:
        limit: The diameter D that the rewards allow, and that of different action sets.
        whole_limit: What it would be if any two rewards were compared.
    """

    def __init__(
        self,
        table: Table,
        gamma: float,
        *,
        levels: Sequence[ExactTable] = (),
        features: FeatureClaims | None = None,
        mdp: TabularMDP | None = None,
    ) -> None:
        self.table = table
        self._gamma = Fraction(gamma)
        self._levels = tuple(levels)
        self._points = None if features is None else features.functions()
        self._mdp = mdp
        self._ends: dict[tuple[int, int], Costs] = {}
        self._costs: dict[tuple[int, int], Costs] = {}
        self._others: dict[tuple[int, int], Costs] = {}
        ends = [self._extremes(action) for action in range(table.low.shape[1])]
        whole = max(high for high, _ in ends) - min(low for _, low in ends)
        span = table.relation.exact_span(ends)
        self.whole_limit = whole / (1 - self._gamma)
        self.limit = span / (1 - self._gamma)
        if table.apart is not None:
            self.limit = max(self.limit, Fraction(table.apart))

    def _extremes(self, action: int) -> Costs:
        """The highest and the lowest reward of an action, exactly."""
        table = self.table
        blocks = np.arange(table.n)
        # Unused actions of blocks say nothing where they are matched; any used one stands for them.
        if table.relation.matches_actions:
            blocks = np.flatnonzero(table.available[:, action])
            if blocks.size == 0:
                return self._interval(0, int(table.available[0].argmax()))[::-1]
        low, high = table.low[blocks, action], table.high[blocks, action]
        if self._mdp is None or self._mdp.estimate is None:
            return Fraction(float(high.max())), Fraction(float(low.min()))
        # Rounded ends first; all states whose rounded end may be the exact extreme.
        top = np.nextafter(np.nextafter(high.max(), -np.inf), -np.inf)
        bottom = np.nextafter(np.nextafter(low.min(), np.inf), np.inf)
        return (
            max(self._interval(int(s), action)[1] for s in blocks[high >= top]),
            min(self._interval(int(s), action)[0] for s in blocks[low <= bottom]),
        )

    def _interval(self, block: int, action: int) -> Costs:
        """The reward interval of a block, exactly."""
        key = (block, action)
        if key not in self._ends:
            if self._mdp is None or self._mdp.estimate is None:
                table = self.table
                ends = Fraction(float(table.low[key])), Fraction(float(table.high[key]))
            else:
                middle = Fraction(float(self._mdp.rewards[key]))
                radius = Fraction(float(self._mdp.estimate.reward_radius[key]))
                # No mean leaves the range of single rewards; but an interval holds its middle.
                least, most = (Fraction(end) for end in self._mdp.estimate.reward_range)
                ends = (
                    max(middle - radius, min(least, middle)),
                    min(middle + radius, max(most, middle)),
                )
            self._ends[key] = ends
        return self._ends[key]

    def _apart(self, first: int, second: int, action: int, other: int) -> Costs:
        """Gap and span of two reward intervals."""
        (low, high), (low_, high_) = self._interval(first, action), self._interval(second, other)
        one, two = high - low_, high_ - low
        return max(Fraction(0), -one, -two), max(one, two)

    def _matches(self, first: int, second: int) -> list[list[Match]]:
        """For each action that counts, the pairs of actions that may stand for it."""
        table = self.table
        one, two = (np.flatnonzero(table.available[block]).tolist() for block in (first, second))
        return table.relation.lines(one, two)

    def _start(self, first: int, second: int) -> Costs:
        """What the rewards say of a pair."""
        table = self.table
        if table.apart is not None and table.sets[first] != table.sets[second]:
            return Fraction(table.apart), Fraction(table.apart)
        apart = [
            [self._apart(first, second, *match) for match in matches]
            for matches in self._matches(first, second)
        ]
        below, above = Fraction(0), self.limit
        if table.lower_start == "reward":
            below = max(min(x[0] for x in costs) for costs in apart)
        if table.upper_start == "reward":
            above = max(min(x[1] for x in costs) for costs in apart) + self._gamma * self.limit
        return below, above

    def entry(self, first: int, second: int) -> Costs | None:
        """The stored bounds of a pair of blocks, if there are any."""
        table = self.table
        key = min(first, second) * table.n + max(first, second)
        at = int(np.searchsorted(table.keys, key))
        if at < table.keys.size and table.keys[at] == key:
            return Fraction(float(table.lower[at])), Fraction(float(table.upper[at]))
        return None

    def others(self, first: int, second: int) -> Costs:
        """What a pair reads that has no entry of its own."""
        table = self.table
        if first == second and table.sizes[first] == 1:
            return Fraction(0), Fraction(0)
        if first > second:
            first, second = second, first
        if (first, second) not in self._others:
            below, above = self._start(first, second)
            for level in self._levels:
                labels = level.table.labels
                found = level.entry(int(labels[first]), int(labels[second]))
                if found is not None:
                    below, above = max(below, found[0]), min(above, found[1])
            if self._points is not None:
                points, corrections = self._points
                for x, y, c in zip(
                    points[first].tolist(),
                    points[second].tolist(),
                    corrections.tolist(),
                    strict=True,
                ):
                    below = max(below, abs(Fraction(x) - Fraction(y)) - Fraction(c))
            self._others[first, second] = below, above
        return self._others[first, second]

    def cost(self, first: int, second: int) -> Costs:
        """What a pair reads below and above."""
        key = (first, second) if first <= second else (second, first)
        if key not in self._costs:
            below, above = self.others(*key)
            found = self.entry(*key)
            # A block of one is at distance 0 from itself; it has no entry.
            if found is not None:
                below, above = max(below, found[0]), min(above, found[1])
            self._costs[key] = below, above
        return self._costs[key]

    def check(self, index: int) -> None:
        """Both inequalities of one covered pair."""
        table = self.table
        first, second = table.pair(index)
        claim = Fraction(float(table.lower[index])), Fraction(float(table.upper[index]))
        below, above = self.others(first, second)
        is_high_done = claim[1] >= above
        if claim[0] <= below and is_high_done:
            return
        if table.apart is not None and table.sets[first] != table.sets[second]:
            for side, is_wrong in (
                ("lower", claim[0] > Fraction(table.apart)),
                ("upper", claim[1] < Fraction(table.apart)),
            ):
                if is_wrong:
                    raise violated(table, side, index, table.apart)
            return
        if claim[0] > below:
            self._check_below(index, first, second, claim[0])
        if not is_high_done:
            self._check_above(index, first, second, claim[1])

    def _check_below(self, index: int, first: int, second: int, claim: Fraction) -> None:
        """Some action must differ by as much from all that may stand for it."""
        gaps: dict[Match, Fraction] = {}
        found: dict[Match, Fraction] = {}
        lists = self._matches(first, second)
        for match in {match for matches in lists for match in matches}:
            gaps[match] = self._apart(first, second, *match)[0]
        # Actions whose rewards differ most first; in each, counterparts whose rewards are nearest.
        lists.sort(key=lambda matches: -min(gaps[match] for match in matches))
        backup = Fraction(0)
        for matches in lists:
            nearest = None
            for match in sorted(matches, key=gaps.__getitem__):
                if nearest is not None and gaps[match] >= nearest:
                    break
                if gaps[match] >= claim:
                    differ = gaps[match]
                elif match in found:
                    differ = found[match]
                else:
                    differ = found[match] = gaps[match] + self._gamma * self._carried(
                        first, second, *match
                    )
                nearest = differ if nearest is None else min(nearest, differ)
                if nearest < claim:
                    break
            if nearest is not None:
                backup = max(backup, nearest)
            if backup >= claim:
                return
        raise violated(self.table, "lower", index, above_float(backup))

    def _carried(self, first: int, second: int, action: int, other: int) -> Fraction:
        """The least cost of carrying one row to another, below, but for what may go anywhere."""
        table = self.table
        (x, p), (y, q) = table.row(first, action), table.row(second, other)
        free = Fraction(float(table.radius[first, action]))
        free += Fraction(float(table.radius[second, other]))
        if (x, p) == (y, q) or free >= 1:
            return Fraction(0)
        costs = [[self.cost(i, j)[0] for j in y] for i in x]
        masses = [Fraction(v) for v in p], [Fraction(v) for v in q]
        return partial_transport(costs, *masses, free)

    def _check_above(self, index: int, first: int, second: int, claim: Fraction) -> None:
        """Every action must have one that may stand for it and differs by no more."""
        found: dict[Match, Fraction] = {}
        for matches in self._matches(first, second):
            spans = {match: self._apart(first, second, *match)[1] for match in matches}
            nearest = None
            for match in sorted(matches, key=spans.__getitem__):
                if nearest is not None and spans[match] >= nearest:
                    break
                if match not in found:
                    found[match] = self._reach(first, second, match, spans[match], claim)
                nearest = found[match] if nearest is None else min(nearest, found[match])
                if nearest <= claim:
                    break
            if nearest is not None and nearest > claim:
                raise violated(self.table, "upper", index, below_float(nearest))

    def _reach(
        self, first: int, second: int, match: Match, span: Fraction, claim: Fraction
    ) -> Fraction:
        """What two actions differ by above; or less than the claim, if it is."""
        table, gamma = self.table, self._gamma
        (x, p), (y, q) = (
            table.row(block, action) for block, action in zip((first, second), match, strict=True)
        )
        at = [first, second], list(match)
        # Rows that are off by e, surely, are e·D from those stored, and W₁ obeys the triangle
        # inequality.
        off = sum((Fraction(v) for v in table.off[[first, second]].tolist()), Fraction(0))
        span += gamma * off * self.limit
        is_same = (x, p) == (y, q)
        if is_same and table.level is None and not table.radius[at].any():
            return span  # staying put costs nothing
        costs = [[self.cost(i, j)[1] for j in y] for i in x]
        kappa = max(c for line in costs for c in line)
        if table.is_sampled and table.short[at].any():
            kappa = max(kappa, self.limit)
        # No coupling costs more than the largest cost.
        if span + gamma * kappa <= claim:
            return span + gamma * kappa
        least = Fraction(0)
        if not (is_same and all(costs[i][i] == 0 for i in range(len(x)))):
            masses = [Fraction(v) for v in p], [Fraction(v) for v in q]
            least = exact_transport(costs, *masses)
        # See `check_pairs_kernel`: what a share of 1 - σ of a coupling leaves.
        sigma = max(Fraction(v) for v in table.spare[at].tolist())
        rest = sigma + sum((Fraction(v) for v in table.short[at].tolist()), Fraction(0))
        return span + gamma * min(kappa, (1 - sigma) * least + rest * kappa)


def check_exact_radii(table: Table, mdp: TabularMDP, rows: Iterable[int]) -> None:
    """Radius and short of a level must be enough for each of these rows of the model."""
    row_radius = radius_seen_by(mdp, table.labels)
    for row in rows:
        state, action = divmod(row, mdp.n_actions)
        block, name = int(table.labels[state]), table.called(state, action)
        if name < 0:
            continue
        successors, probs = mdp.successors(state, action)
        masses = [Fraction(p) for p in probs.tolist()]
        total = sum(masses, Fraction(0))
        lifted: dict[int, Fraction] = {}
        for other, mass in zip(table.labels[successors].tolist(), masses, strict=True):
            lifted[other] = lifted.get(other, Fraction(0)) + mass / total
        blocks, entries = table.row(block, name)
        centre_total = sum((Fraction(v) for v in entries), Fraction(0))
        centre = {b: Fraction(v) / centre_total for b, v in zip(blocks, entries, strict=True)}
        away = sum(
            (max(Fraction(0), v - centre.get(b, Fraction(0))) for b, v in lifted.items()),
            Fraction(0),
        )
        if not mdp.is_sampled:
            outside = lifted.keys() - centre.keys()
            if outside:
                raise wrong_centre(table, state, action, 1, float(min(outside)))
        keep = 1 - Fraction(float(table.spare[block, name]))
        lacks = sum(
            (max(Fraction(0), keep * c - lifted.get(b, Fraction(0))) for b, c in centre.items()),
            Fraction(0),
        )
        if mdp.estimate is not None:
            extra = Fraction(float(row_radius[state, action]))
            away, lacks = min(Fraction(1), away + extra), min(Fraction(1), lacks + extra)
        if away > Fraction(float(table.radius[block, name])):
            raise wrong_centre(table, state, action, 2, below_float(away))
        if lacks > Fraction(float(table.short[block, name])):
            raise wrong_centre(table, state, action, 3, below_float(lacks))


def check_exact_features(claims: Claims, mdp: TabularMDP) -> None:
    """Corrections of all features must be enough, by exact residuals."""
    features = claims.features
    if features is None:
        return
    gamma = Fraction(claims.gamma)
    lines = [[Fraction(v) for v in line] for line in features.values.tolist()]
    rewards = [[Fraction(v) for v in line] for line in mdp.rewards.tolist()]
    rows = [_exact_row(mdp, row) for row in range(mdp.n_states * mdp.n_actions)]

    def ahead(state: int, action: int, sign: int, line: list[Fraction], *cut: float) -> Fraction:
        row = rows[state * mdp.n_actions + action]
        mean = sum((p * line[other] for other, p in row), Fraction(0))
        reward = sign * rewards[state][action]
        for end, is_beyond in zip(cut, (operator.lt, operator.gt), strict=False):
            if is_beyond(reward, end):
                reward = Fraction(end)
        return reward + gamma * mean

    for k, line in enumerate(lines):
        signs = features.signs[k].tolist()
        used = [(a, sign) for a, sign in enumerate(signs) if sign]
        cut = float(features.floor[k]), float(features.ceiling[k])
        residual = []
        for state in range(mdp.n_states):
            found = [ahead(state, a, sign, line, *cut) for a, sign in used]
            value = sum(found, Fraction(0)) / len(used) if features.kinds[k] else max(found)
            residual.append(value - line[state])
        spread = max(residual) - min(residual)
        taken = [a for a, _ in used]
        spread += _exact_error(mdp, gamma, line, taken, is_mean=bool(features.kinds[k]))
        have = Fraction(float(features.corrections[k])) * (1 - gamma)
        if spread > have:
            raise wrong_correction(f"feature {k}", float(features.corrections[k]), spread - have)
    witnesses = features.witnesses
    if witnesses is None:
        return
    # Let δ be the largest difference of any function here, c the largest correction, and e the
    # most by which δ exceeds the metric. Extended potentials change by δ at most, so their backups
    # are within d + γe, and a witness within d + γe + span(r). Were e above c, it would come from a
    # witness, with span(r) <= correction - γc: e <= γe + c - γc, so e <= c. Hence it is within
    # d + γc + span(r).
    carried = gamma * Fraction(float(features.functions()[1].max()))
    lines += [[Fraction(v) for v in line] for line in witnesses.values.tolist()]
    away = {
        i: [max(abs(line[z] - line[i]) for line in lines) for z in range(mdp.n_states)]
        for i in np.unique(witnesses.support).tolist()
    }
    for k, stored in enumerate(witnesses.corrections.tolist()):
        start = [Fraction(v) for v in witnesses.potential[k].tolist()]
        support, action = witnesses.support[k].tolist(), int(witnesses.actions[k])
        potential = [
            min(u + away[i][z] for i, u in zip(support, start, strict=True))
            for z in range(mdp.n_states)
        ]
        residual = [
            ahead(state, action, int(witnesses.signs[k]), potential) - Fraction(value)
            for state, value in enumerate(witnesses.values[k].tolist())
        ]
        have = Fraction(stored) - carried
        spread = max(residual) - min(residual)
        spread += _exact_error(mdp, gamma, potential, [action], is_mean=False)
        if spread > have:
            raise wrong_correction(f"witness {k}", stored, spread - have)


def _exact_error(
    mdp: TabularMDP, gamma: Fraction, line: list[Fraction], actions: list[int], *, is_mean: bool
) -> Fraction:
    """By how much radii may widen the span of a residual; see `estimation_error`."""
    if mdp.estimate is None:
        return Fraction(0)
    width = gamma * (max(line) - min(line))
    errors = [
        [
            Fraction(float(mdp.estimate.reward_radius[state, a]))
            + width * Fraction(float(mdp.estimate.row_radius[state, a]))
            for a in actions
        ]
        for state in range(mdp.n_states)
    ]
    return 2 * max(sum(x, Fraction(0)) / len(x) if is_mean else max(x) for x in errors)


def _exact_row(mdp: TabularMDP, row: int) -> list[tuple[int, Fraction]]:
    successors, probs = mdp.successors(*divmod(row, mdp.n_actions))
    masses = [Fraction(p) for p in probs.tolist()]
    total = sum(masses, Fraction(0))
    return [(s, mass / total) for s, mass in zip(successors.tolist(), masses, strict=True)]


# -- transport ---------------------------------------------------------------------------------


def partial_transport(
    cost: list[list[Fraction]], a: list[Fraction], b: list[Fraction], free: Fraction
) -> Fraction:
    """The least cost of moving all but `free` of a/Σa to b/Σb, exactly; 0 <= free < 1.

    One more row and one more column of that mass cost nothing. Where they meet, real rows and
    columns carry more than they must, which costs no less.
    """
    if free == 0:
        return exact_transport(cost, a, b)
    wide = [[*line, Fraction(0)] for line in cost]
    wide.append([Fraction(0)] * (len(b) + 1))
    total_a, total_b = sum(a, Fraction(0)), sum(b, Fraction(0))
    rows = [*(v / total_a for v in a), free]
    cols = [*(v / total_b for v in b), free]
    return exact_transport(wide, rows, cols) * (1 + free)


def exact_transport(cost: list[list[Fraction]], a: list[Fraction], b: list[Fraction]) -> Fraction:
    """The least cost of moving a/Σa to b/Σb, exactly; costs must not be negative.

    Whole numbers throughout: masses are multiplied by the other side's sum and by a common
    denominator, costs by theirs. Shortest augmenting paths start from one row after another;
    they end because every path moves at least one unit. The answer proves itself before it is
    returned: its potentials are feasible and reach the cost of its plan.
    """
    n, m = len(a), len(b)
    sum_a, sum_b = sum(a, Fraction(0)), sum(b, Fraction(0))
    mass_unit = math.lcm(*(v.denominator for v in (*a, *b)))
    whole_a, whole_b = [int(v * mass_unit) for v in a], [int(v * mass_unit) for v in b]
    total_a, total_b = sum(whole_a), sum(whole_b)
    supply, demand = [v * total_b for v in whole_a], [v * total_a for v in whole_b]
    cost_unit = math.lcm(*(v.denominator for line in cost for v in line))
    c = [[v.numerator * (cost_unit // v.denominator) for v in line] for line in cost]
    unit = cost_unit * mass_unit * mass_unit * sum_a * sum_b
    if n == 1 or m == 1:
        single = sum(
            c[i][j] * (demand[j] if n == 1 else supply[i]) for i in range(n) for j in range(m)
        )
        return Fraction(single) / unit

    y, z = [0] * n, [min(c[i][j] for i in range(n)) for j in range(m)]
    plan = [[0] * m for _ in range(n)]
    room = list(demand)
    for source in range(n):
        left = supply[source]
        while left:
            reach: list[int | None] = [None] * m
            through, back = [source] * m, {source: -1}
            settled: dict[int, int] = {}
            frontier = {source: 0}
            rows = {source: 0}
            while True:
                for row, here in frontier.items():
                    for j in range(m):
                        length = here + c[row][j] - y[row] - z[j]
                        known = reach[j]
                        if known is None or length < known:
                            reach[j], through[j] = length, row
                distance, j = min(
                    (r, k) for k, r in enumerate(reach) if r is not None and k not in settled
                )
                settled[j] = distance
                if room[j]:
                    break
                frontier = {i: distance for i in range(n) if i not in rows and plan[i][j]}
                for i in frontier:
                    back[i] = j
                rows.update(frontier)
            for i, here in rows.items():
                y[i] += distance - here
            for k, here in settled.items():
                z[k] -= distance - here
            # The path, from its end to the source: forward and backward cells in turn.
            forward, backward, k = [], [], j
            while True:
                forward.append((through[k], k))
                if through[k] == source:
                    break
                backward.append((through[k], back[through[k]]))
                k = back[through[k]]
            amount = min([left, room[j], *(plan[r][k] for r, k in backward)])
            for r, k in forward:
                plan[r][k] += amount
            for r, k in backward:
                plan[r][k] -= amount
            left -= amount
            room[j] -= amount
    primal = sum(c[i][j] * plan[i][j] for i in range(n) for j in range(m))
    dual = sum(map(operator.mul, y, supply)) + sum(map(operator.mul, z, demand))
    is_feasible = all(y[i] + z[j] <= c[i][j] for i in range(n) for j in range(m))
    if not is_feasible or primal != dual or any(room) or min(map(min, plan)) < 0:
        raise AssertionError("an exact transport problem was not solved")
    return Fraction(primal) / unit
