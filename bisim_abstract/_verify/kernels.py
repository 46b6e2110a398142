"""Compiled code of the verifier: its own transport, its own bounds, its own reading of tables.

Nothing here but the number u = 2**-53 is shared with the code that makes bounds, so that a mistake
there cannot repeat itself here. Throughout, γ_k = k·u/(1 - k·u), and a row means its stored entries
divided by their exact sum. "Cost" is a float that may differ from the exact cost by a factor
between 1 - 8u and 1 + 8u: values stored in a certificate are exact, start values are rounded
at most six times (see `start_costs_kernel`), and distances of features are rounded down. W is
monotone and homogeneous in the costs, so W at the exact costs differs from W at the float
costs by the same factor at most.

"Pairs" are pairs of blocks; a state is a block of one member. Ground costs are not looked up
one by one where they are needed: `list_cells_kernel` lists the pairs that a few backups read,
their costs are read all at once, and `check_pairs_kernel` bounds the backups.

Actions of a pair are compared by name, or, in the lax relation, each with the one that is most
like it on the other side: a backup is then a Hausdorff distance. Both are maxima over actions of
a minimum over the actions that may stand for them, of which there is one if they go by name.
"""

from __future__ import annotations

import numpy as np

from bisim_abstract._base.jit import inlined, inner, kernel
from bisim_abstract._base.rounding import EPS as U
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray

# Above every underflow error below: each is at most 2**-1075 times a count of terms. Not times a
# cost, which may be near 1e300: masses below SPECK are set aside, so that those which are divided
# or multiplied by costs are normal numbers, off by u of themselves.
TINY = 1e-290
SPECK, SPECKS = 1e-300, 1e-280  # mass that no transport is bothered with, and all of it in a row
# Mass that is not worth another path. What stays behind is charged to the bound, see
# `plan_bound`: at most an eighth of u per row and column.
NEGLIGIBLE = 2.0**-56
PATHS_PER_NODE = 100  # far beyond what is ever needed; makes an end certain


@inlined
def transport_kernel(
    n: int,
    m: int,
    a: FloatArray,
    b: FloatArray,
    c: FloatArray,
    y: FloatArray,
    z: FloatArray,
    x: FloatArray,
    line: FloatArray,
    mark: IntArray,
) -> None:
    """Shortest augmenting paths from one row after another, on the dense bipartite graph.

    The answer is not trusted: `dual_bound` and `plan_bound` hold for any potentials and any
    plan. It ends because every path search settles a column per step, and the number of paths
    is limited; if the limit is met, or masses run out by rounding, the plan stays incomplete.

    In: n, m; a (n), b (m) masses; c (n, m) costs.
    Out: y (n), z (m) potentials; x (n, m) plan.
    Scratch: line (3, at least n and m), mark (4, the same).
    """
    need, reach, row_reach = line[0], line[1], line[2]
    through, back, row_done, col_done = mark[0], mark[1], mark[2], mark[3]
    for j in range(m):
        need[j] = b[j]
        z[j] = c[0, j]
        for i in range(1, n):
            z[j] = min(z[j], c[i, j])
    for i in range(n):
        y[i] = c[i, 0] - z[0]
        for j in range(m):
            y[i] = min(y[i], c[i, j] - z[j])
            x[i, j] = 0.0
    paths = PATHS_PER_NODE * (n + m)
    for source in range(n):
        left = a[source]
        while left > NEGLIGIBLE and paths > 0:
            paths -= 1
            for i in range(n):
                row_done[i] = 0
            for j in range(m):
                col_done[j] = 0
                reach[j] = np.inf
            # The column settled last; the source is reached at no cost, and so is a row from a
            # settled column that it ships to: only columns compete for being next.
            target = -1
            while True:
                for i in range(n):
                    if target < 0:
                        is_next = i == source
                    else:
                        is_next = row_done[i] == 0 and x[i, target] > 0.0
                    if is_next:
                        row_done[i] = 1
                        back[i] = target
                        here = 0.0 if target < 0 else reach[target]
                        row_reach[i] = here
                        for j in range(m):
                            length = here + max(0.0, c[i, j] - y[i] - z[j])
                            if col_done[j] == 0 and length < reach[j]:
                                reach[j] = length
                                through[j] = i
                target = -1
                total = np.inf
                for j in range(m):
                    if col_done[j] == 0 and reach[j] < total:
                        total = reach[j]
                        target = j
                if target < 0:
                    break
                col_done[target] = 1
                if need[target] > NEGLIGIBLE:
                    break
            if target < 0:
                paths = 0
                break
            for i in range(n):
                if row_done[i] == 1:
                    y[i] += total - row_reach[i]
            for j in range(m):
                if col_done[j] == 1:
                    z[j] -= total - reach[j]
            amount = min(left, need[target])
            j = target
            while through[j] != source:
                i = through[j]
                j = back[i]
                amount = min(amount, x[i, j])
            left -= amount
            need[target] -= amount
            j = target
            while j >= 0:
                i = through[j]
                x[i, j] += amount
                j = back[i]
                if j >= 0:
                    x[i, j] -= amount


@inlined
def dual_bound(
    n: int,
    m: int,
    a: FloatArray,
    b: FloatArray,
    c: FloatArray,
    top: float,
    y: FloatArray,
    z: FloatArray,
) -> float:
    """A number that W certainly does not fall below, from any potentials y.

    Let C = top = max c and N = n + m. The potentials are first repaired: y is shifted so that
    its least entry is 0 and clipped to [0, C] (NaN becomes 0), and z_j = min_i fl(c_ij - y_i),
    which lies in [-C, C]. One rounding of a number of size at most C: y_i + z_j <= c_ij + u·C,
    so that (y, z - u·C) is feasible and

        W(c) >= Σ p_i·y_i + Σ q_j·z_j - u·C.

    a_i is the row entry times 1 + θ, |θ| <= γ_N (a sum of at most N - 1 positive terms, a
    division), the product rounds once, the sum at most N - 1 times: every term is off by γ_2N
    of itself at most, and Σ p_i·|y_i| + Σ q_j·|z_j| <= 2C. Hence the computed sum is off by
    2·γ_2N·C < 4.1·N·u·C. Costs add 8u·W <= 8.1·u·C, the last subtraction 2.1·u·C, u·C is
    above: together below (5N + 16)·u·C, its own rounding included. TINY covers underflow.

    In: a (n), b (m), c (n, m), top. In and out: y (n), repaired. Out: z (m).
    """
    # A transform there and back first: it only tightens what the solver left behind.
    for j in range(m):
        z[j] = np.inf
        for i in range(n):
            z[j] = min(z[j], c[i, j] - y[i])
    low = np.inf
    for i in range(n):
        y[i] = np.inf
        for j in range(m):
            y[i] = min(y[i], c[i, j] - z[j])
        low = min(low, y[i])
    for i in range(n):
        shifted = y[i] - low
        if not shifted >= 0.0:
            shifted = 0.0
        y[i] = min(shifted, top)
    value = 0.0
    for j in range(m):
        z[j] = c[0, j] - y[0]
        for i in range(1, n):
            z[j] = min(z[j], c[i, j] - y[i])
        value += b[j] * z[j]
    for i in range(n):
        value += a[i] * y[i]
    return max(0.0, value - ((5.0 * (n + m) + 16.0) * U * top + TINY))


@inlined
def plan_bound(
    n: int, m: int, a: FloatArray, b: FloatArray, c: FloatArray, top: float, x: FloatArray
) -> float:
    """A number that W certainly does not exceed, from any plan x.

    Entries that are not above 0 are read as 0. Let r_i, s_j be the exact marginals of x and
    X its mass. Scale each row of x by min(1, p_i/r_i), then each column in the same way: the
    result is below x and below both marginals, and the mass E that it lacks is at most
    1 - X + Σ(r_i - p_i)⁺ + Σ(s_j - q_j)⁺ = Σ(p_i - r_i)⁺ + Σ(s_j - q_j)⁺, as 1 = Σp_i.
    Any completion costs at most C = top per unit:

        W(c) <= Σ x_ij·c_ij + C·E.

    With K positive entries and N = n + m: Σ x·c is off by γ_(K+1) of itself. In E, p_i and
    q_j are off by γ_N, r_i and s_j by γ_N, the differences and the sum by γ_(N+1) of terms
    whose sizes add up to 2(1 + X) at most: below (4N + 4)·u·(1 + X) in all. Costs add 8u·W.
    The slack below, u·((K + 12)·V + (5N + 16)·(1 + X)·C), covers these and its own rounding.
    W <= C holds besides, and is all that remains of a plan that is no plan.

    In: a (n), b (m), c (n, m), top, x (n, m).
    """
    value, mass, lack, count = 0.0, 0.0, 0.0, 0.0
    for i in range(n):
        line = 0.0
        for j in range(m):
            if x[i, j] > 0.0:
                line += x[i, j]
                value += x[i, j] * c[i, j]
                count += 1.0
        mass += line
        lack += max(0.0, a[i] - line)
    for j in range(m):
        line = 0.0
        for i in range(n):
            if x[i, j] > 0.0:
                line += x[i, j]
        lack += max(0.0, line - b[j])
    trivial = top * (1.0 + 16.0 * U)
    if not mass <= 2.0:
        return trivial
    slack = U * ((count + 12.0) * value + (5.0 * (n + m) + 16.0) * (1.0 + mass) * top)
    bound = value + lack * top + slack + TINY
    return bound if bound < trivial else trivial


@kernel
def spread_bound(n: int, m: int, a: FloatArray, b: FloatArray, c: FloatArray) -> float:
    """The cost of the independent coupling, rounded up: a cheap bound from above.

    All terms are non-negative and carry two masses off by γ_N each, two products, at most
    n + m additions (rows first, then their sum) and a cost off by 8u: below γ_(3N + 12).
    """
    value = 0.0
    for i in range(n):
        line = 0.0
        for j in range(m):
            line += b[j] * c[i, j]
        value += a[i] * line
    return value * (1.0 + (4.0 * (n + m) + 24.0) * U) + TINY


@kernel
def transport_bounds(
    n: int,
    m: int,
    a: FloatArray,
    b: FloatArray,
    c: FloatArray,
    free: float,
    x: FloatArray,
    line: FloatArray,
    mark: IntArray,
) -> tuple[float, float]:
    """Bounds on the cost of carrying all but `free` of the mass, 0 <= free < 1.

    For free > 0, one more row and one more column, each of mass `free`, cost nothing. A plan of
    this wider problem in which they meet with mass v carries 1 - free + v of the mass between
    real rows and columns, which costs no less than 1 - free does; and a plan that carries 1 -
    free can be completed at no cost. So both problems have the same value. Masses of the wider
    problem are those of the rows over 1 + free: three more roundings, and three more terms than
    n, which the analysis in `dual_bound` counts by the size of the wider problem. The product
    with 1 + free is rounded twice: 4u cover it.

    Where a side has one point there is one coupling: Σ mass·cost, non-negative terms with a
    mass off by γ_N, a product, at most N additions and a cost off by 8u, so below γ_(2N + 10).

    In: a (n), b (m). In and out: c (n, m), where free > 0 one wider.
    Scratch: with k = 1 + the larger of n and m, x (k, k), line (7, k), mark (4, k).
    """
    top = 0.0
    for i in range(n):
        for j in range(m):
            top = max(top, c[i, j])
    if top == 0.0:
        return 0.0, 0.0
    if free == 0.0 and (n == 1 or m == 1):
        value = 0.0
        for i in range(n):
            for j in range(m):
                mass = b[j] if n == 1 else a[i]
                if n == 1 and m == 1:
                    mass = 1.0
                value += mass * c[i, j]
        slack = value * (3.0 * (n + m) + 16.0) * U + TINY
        return max(0.0, value - slack), value + slack
    y, z, p, q = line[3], line[4], line[5], line[6]
    scale = 1.0 + free
    for i in range(n):
        p[i] = a[i] / scale
    for j in range(m):
        q[j] = b[j] / scale
    if free > 0.0:
        p[n], q[m] = free / scale, free / scale
        for i in range(n):
            c[i, m] = 0.0
        for j in range(m + 1):
            c[n, j] = 0.0
        n, m = n + 1, m + 1
    transport_kernel(n, m, p, q, c, y, z, x, line, mark)
    low, high = dual_bound(n, m, p, q, c, top, y, z), plan_bound(n, m, p, q, c, top, x)
    if free > 0.0:
        low, high = low * scale * (1.0 - 4.0 * U), high * scale * (1.0 + 4.0 * U)
    return low, high


@kernel
def row_masses(begin: int, end: int, probs: FloatArray, out: FloatArray) -> int:
    """Entries of a row over their sum; how many there are.

    In: probs (nnz). Out: out (row length), each off by γ_(length) of itself.
    """
    total = 0.0
    for k in range(begin, end):
        total += probs[k]
    for k in range(begin, end):
        out[k - begin] = probs[k] / total
    return end - begin


@kernel
def drop_specks(length: int, masses: FloatArray, place: IntArray) -> int:
    """Move the masses of at least SPECK to the front; how many they are.

    In and out: masses (length). Out: place (length): where each of them went; -1 for the others.
    """
    count = 0
    for k in range(length):
        place[k] = -1
        if masses[k] >= SPECK:
            masses[count] = masses[k]
            place[k] = count
            count += 1
    return count


# -- reading costs -----------------------------------------------------------------------------


@inner
def matched_rewards(
    s: int, t: int, low: FloatArray, high: FloatArray, available: BoolArray, nearest: FloatArray
) -> tuple[float, float]:
    """Hausdorff distances of two blocks' reward intervals: of their gaps, and of their spans.

    Also for a block and itself: each of its actions may stand for any.

    In: low, high, available (blocks, actions). Scratch: nearest (2, actions).
    """
    n_actions = low.shape[1]
    gap, span = 0.0, 0.0
    for b in range(n_actions):
        nearest[0, b], nearest[1, b] = np.inf, np.inf
    for a in range(n_actions):
        if not available[s, a]:
            continue
        least_gap, least_span = np.inf, np.inf
        for b in range(n_actions):
            if available[t, b]:
                one, two = high[s, a] - low[t, b], high[t, b] - low[s, a]
                here, there = max(0.0, -one, -two), max(one, two)
                least_gap, least_span = min(least_gap, here), min(least_span, there)
                nearest[0, b] = min(nearest[0, b], here)
                nearest[1, b] = min(nearest[1, b], there)
        gap, span = max(gap, least_gap), max(span, least_span)
    for b in range(n_actions):
        if available[t, b]:
            gap, span = max(gap, nearest[0, b]), max(span, nearest[1, b])
    return gap, span


@kernel
def start_costs_kernel(
    first: IntArray,
    second: IntArray,
    low: FloatArray,
    high: FloatArray,
    available: BoolArray,
    sets: IntArray,
    sizes: IntArray,
    gamma: float,
    diameter: float,
    apart: float,
    is_lax: bool,
    is_reward_below: bool,
    is_reward_above: bool,
    shrink: float,
    grow: float,
    tiny: float,
    below: FloatArray,
    above: FloatArray,
) -> None:
    """Start values of pairs: what depends on reward intervals alone; 0 for a point and itself.

    Off by 8u of themselves at most: gap and span by u (one subtraction); the diameter by 3u
    (reward difference, 1 - γ, division) and one more for its product with γ, then the sum. They
    are multiplied by `shrink` and `grow`, 1 or beyond these errors. Below the normal range a
    difference is exact, but quotient and products are not: `tiny` is added above, which also keeps
    a cost from being read as 0 where it is not. Maxima and minima round nothing, and the distance
    of different action sets is what it is.

    In: first, second (pairs); low, high, available (blocks, actions); sets, sizes (blocks).
    Out: below, above (pairs).
    """
    nearest = np.empty((2, low.shape[1]))
    for k in range(first.size):
        s, t = first[k], second[k]
        if s == t and sizes[s] == 1:
            below[k] = 0.0
            above[k] = 0.0
            continue
        if sets[s] != sets[t]:
            below[k] = apart
            above[k] = apart
            continue
        gap, span = 0.0, 0.0
        if is_lax:
            gap, span = matched_rewards(s, t, low, high, available, nearest)
        elif is_reward_below or is_reward_above:
            for a in range(low.shape[1]):
                one, two = high[s, a] - low[t, a], high[t, a] - low[s, a]
                span = max(span, one, two)
                gap = max(gap, -one, -two)
        below[k] = gap * shrink if is_reward_below else 0.0
        above[k] = (span + gamma * diameter if is_reward_above else diameter) * grow + tiny


@kernel
def entry_costs_kernel(
    first: IntArray,
    second: IntArray,
    labels: IntArray,
    is_labelled: bool,
    n: int,
    row_start: IntArray,
    keys: IntArray,
    lower: FloatArray,
    upper: FloatArray,
    below: FloatArray,
    above: FloatArray,
) -> None:
    """Tighten costs by stored entries: of the pairs themselves, or of their blocks.

    A state and itself stay at 0: entries of a block and itself are 0 below.

    In: first, second (pairs); labels (states), used if is_labelled; row_start (n + 1) where the
    entries of each smaller block begin in keys (covered); lower, upper (covered).
    In and out: below, above (pairs).
    """
    for k in range(first.size):
        s, t = first[k], second[k]
        if is_labelled:
            s, t = labels[s], labels[t]
        if s > t:
            s, t = t, s
        key = s * n + t
        left, right = row_start[s], row_start[s + 1]
        end = right
        while left < right:
            middle = (left + right) // 2
            if keys[middle] < key:
                left = middle + 1
            else:
                right = middle
        if left < end and keys[left] == key:
            below[k] = max(below[k], lower[left])
            above[k] = min(above[k], upper[left])


@kernel
def feature_costs_kernel(
    first: IntArray,
    second: IntArray,
    points: FloatArray,
    corrections: FloatArray,
    below: FloatArray,
) -> None:
    """Tighten lower costs by the distances of features.

    A difference v is off by u of itself, v - c by u of v + c: 4u·(v + c) cover both, and the
    rounding of the sum below.

    In: first, second (pairs); points (states, functions); corrections (functions).
    In and out: below (pairs).
    """
    for k in range(first.size):
        s, t = first[k], second[k]
        best = below[k]
        for f in range(corrections.size):
            v, c = abs(points[s, f] - points[t, f]), corrections[f]
            best = max(best, v - c - 4.0 * U * (v + c))
        below[k] = best


@kernel
def function_gaps_kernel(
    begin: int, end: int, points: FloatArray, states: IntArray, out: FloatArray
) -> None:
    """Largest difference of a function between some states and the states begin..end.

    In: points (states, functions); states (m). Out: out (m, states), each off by u of itself.
    """
    for z in range(begin, end):
        for i in range(states.size):
            best = 0.0
            for f in range(points.shape[1]):
                best = max(best, abs(points[z, f] - points[states[i], f]))
            out[i, z] = best


# -- backups -----------------------------------------------------------------------------------


@inner
def is_same_row(
    row: int, other: int, indptr: IntArray, indices: IntArray, probs: FloatArray
) -> bool:
    """Whether two rows are stored alike, bit for bit."""
    begin, there = indptr[row], indptr[other]
    size = indptr[row + 1] - begin
    if indptr[other + 1] - there != size:
        return False
    for i in range(size):
        if indices[begin + i] != indices[there + i] or probs[begin + i] != probs[there + i]:
            return False
    return True


@inner
def needs_costs(
    s: int,
    a: int,
    t: int,
    b: int,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    radius: FloatArray,
    gamma: float,
    is_states: bool,
) -> bool:
    """Whether comparing two actions of a pair reads costs; not if staying put is free."""
    if gamma == 0.0:
        return False
    if not is_states or radius[s, a] + radius[t, b] > 0.0:
        return True
    n_actions = radius.shape[1]
    return not is_same_row(s * n_actions + a, t * n_actions + b, indptr, indices, probs)


@kernel
def list_cells_kernel(
    first: IntArray,
    second: IntArray,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    reach_ptr: IntArray,
    reach: IntArray,
    radius: FloatArray,
    sets: IntArray,
    gamma: float,
    is_states: bool,
    is_lax: bool,
    counts: IntArray,
    from_: IntArray,
    to: IntArray,
) -> None:
    """The pairs whose costs backups read: pair by pair, action by action, row by row.

    Where actions are matched, their rows are read again and again, and often lead to the same
    blocks: all that one block reaches is listed once against all that the other does.

    In: first, second (pairs); reach_ptr (blocks + 1), reach: what each block reaches (is_lax).
    Out: counts (pairs), how many each backup reads; from_, to (all of them), or empty, to count.
    """
    n_actions = radius.shape[1]
    is_listing = from_.size > 0
    cell = 0
    for k in range(first.size):
        s, t = first[k], second[k]
        counts[k] = 0
        if sets[s] != sets[t] or gamma == 0.0:
            continue
        if is_lax:
            begin, end = reach_ptr[t], reach_ptr[t + 1]
            counts[k] = (reach_ptr[s + 1] - reach_ptr[s]) * (end - begin)
            if is_listing:
                for i in range(reach_ptr[s], reach_ptr[s + 1]):
                    for j in range(begin, end):
                        from_[cell] = reach[i]
                        to[cell] = reach[j]
                        cell += 1
            continue
        for a in range(n_actions):
            if needs_costs(s, a, t, a, indptr, indices, probs, radius, gamma, is_states):
                row, other = s * n_actions + a, t * n_actions + a
                begin, end = indptr[other], indptr[other + 1]
                counts[k] += (indptr[row + 1] - indptr[row]) * (end - begin)
                if is_listing:
                    for i in range(indptr[row], indptr[row + 1]):
                        for j in range(begin, end):
                            from_[cell] = indices[i]
                            to[cell] = indices[j]
                            cell += 1


@inner
def next_match(
    s: int,
    t: int,
    available: BoolArray,
    is_low: bool,
    claim: float,
    least: FloatArray,
    most: FloatArray,
    is_open: BoolArray,
) -> int:
    """Which two matched actions a, b to compare next, as a·n_actions + b; -1 if none is needed.

    Below, the action to look at first is the one whose nearest counterpart may be farthest; it
    proves the claim if all its counterparts reach it, and proves nothing once one of them
    certainly does not. Above, every action needs one counterpart that stays below the claim, and
    one that cannot be nearer than the nearest so far is of no use.

    In: available (blocks, actions); least, most (actions, actions) bounds on what two actions
    differ by, is_open: whether these could be better.
    """
    n_actions = least.shape[0]
    best, farthest = -1, -np.inf
    for side in range(2):
        one, two = (s, t) if side == 0 else (t, s)
        for row in range(n_actions):
            if not available[one, row]:
                continue
            ceiling, proved, pick = np.inf, np.inf, -1
            for other in range(n_actions):
                if available[two, other]:
                    a, b = (row, other) if side == 0 else (other, row)
                    ceiling, proved = min(ceiling, most[a, b]), min(proved, least[a, b])
            if is_low and proved >= claim:
                return -1
            if ceiling <= claim if not is_low else ceiling * (1.0 + 16.0 * U) < claim:
                continue
            limit = claim if is_low else ceiling
            shown, lowest = np.inf, np.inf
            for other in range(n_actions):
                a, b = (row, other) if side == 0 else (other, row)
                if not available[two, other] or not is_open[a, b] or not least[a, b] < limit:
                    continue
                is_nearer = most[a, b] == shown and least[a, b] < lowest
                if pick < 0 or most[a, b] < shown or is_nearer:
                    pick, shown, lowest = a * n_actions + b, most[a, b], least[a, b]
            if pick >= 0 and not is_low:
                return pick
            if pick >= 0 and ceiling > farthest:
                best, farthest = pick, ceiling
    return best


@inner
def matched_bounds(
    s: int, t: int, available: BoolArray, is_lax: bool, least: FloatArray, most: FloatArray
) -> tuple[float, float]:
    """Bounds on a backup: the largest over actions of the least over those that stand for them.

    In: available (blocks, actions); least, most (actions, actions), or (actions, 1) by name.
    """
    n_actions = least.shape[0]
    lower, upper = 0.0, 0.0
    for side in range(2 if is_lax else 1):
        one, two = (s, t) if side == 0 else (t, s)
        for row in range(n_actions):
            if not available[one, row]:
                continue
            low, high = np.inf, np.inf
            for other in range(least.shape[1]):
                if not is_lax or available[two, other]:
                    a, b = (row, other) if side == 0 else (other, row)
                    low, high = min(low, least[a, b]), min(high, most[a, b])
            lower, upper = max(lower, low), max(upper, high)
    return lower, upper


@kernel
def check_pairs_kernel(
    first: IntArray,
    second: IntArray,
    below: FloatArray,
    above: FloatArray,
    claim_below: FloatArray,
    claim_above: FloatArray,
    is_low_implied: BoolArray,
    is_high_implied: BoolArray,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    reach_ptr: IntArray,
    place: IntArray,
    low: FloatArray,
    high: FloatArray,
    radius: FloatArray,
    spare: FloatArray,
    short: FloatArray,
    available: BoolArray,
    sets: IntArray,
    gamma: float,
    beyond: float,
    apart: float,
    is_states: bool,
    is_lax: bool,
    lower: FloatArray,
    upper: FloatArray,
) -> None:
    """Bounds on both backups of each pair, as far as its claims need them.

    With c, c' the rows of two actions, t, t' their radii, σ the larger of both spares and e = σ +
    both shorts, these actions differ by

        below: gap  + γ·(cost of carrying all but t + t' of c to c'),
        above: span + γ·min(κ, (1 - σ)·W(c, c') + e·κ),

    κ the largest cost between the supports, and at least `beyond` if e > 0. Above: members have
    (1 - σ)·c and (1 - σ)·c', but for what they are short of. So much of a coupling of c and c'
    as neither is short of couples them too; e bounds what is left of the mass.

    A backup is the largest of these over actions, each compared with the one of the same name;
    `apart` if the actions of the blocks are not the same. In the lax relation it is the largest,
    over the actions of both blocks, of the least over the actions of the other block, which every
    member of it has; a block and itself are no exception. One action that proves the first claim
    is enough. An action is passed over for the first claim if a coupling shows that it stays
    below the claim (with a margin of 16u, beyond rounding), and for the second if a coupling
    shows that it stays below the claim there, which is all that is asked.

    Masses below SPECK take no part: together they are less than SPECKS. Of what may be, they count
    as mass that may go anywhere, like t + t'; of what certainly is, as mass that is carried as far
    as any (below), or not at all (above).

    What two actions differ by is gap + γ·W, with gap off by u, rounded twice more: 8u cover it. A
    gap alone is moved by 2u, which covers u and the rounding of the move itself. t + t' and e are
    rounded up by 2u and 4u. The sum (1 - σ)·W + e·κ has costs off by 8u, e by 4u, and five more
    roundings: 20u cover it. Maxima and minima round nothing.

    In: first, second (pairs); below, above (cells) as listed by `list_cells_kernel`;
    claim_below, claim_above, is_low_implied, is_high_implied (pairs): claims, and whether they
    need no backup; reach_ptr (blocks + 1) and place (nnz), where an entry of a row stands in what
    its block reaches (is_lax); the rest of the model, (blocks, actions).
    Out: lower (pairs, 2): what the backup below is certainly not less than (or the claim, if
    that needs no backup), and, if that does not reach the claim, what it certainly does not
    exceed (else infinity). upper (pairs, 2): what the backup above certainly does not exceed
    (or the claim), and, if that goes beyond the claim, what it is certainly not less than
    (else 0).
    """
    n_actions = low.shape[1]
    size = 2
    for pair in range(first.size):
        for action in range(n_actions):
            row, other = first[pair] * n_actions + action, second[pair] * n_actions + action
            size = max(size, indptr[row + 1] - indptr[row] + 1)
            size = max(size, indptr[other + 1] - indptr[other] + 1)
    p, q = np.empty(size), np.empty(size)
    c, x = np.empty((size, size)), np.empty((size, size))
    line, mark = np.empty((7, size)), np.empty((4, size), np.int64)
    places = np.empty((2, size), np.int64)
    # What an action differs by from those that may stand for it: all, or that of the same name.
    n_others = n_actions if is_lax else 1
    least, most = np.empty((n_actions, n_others)), np.empty((n_actions, n_others))
    is_open = np.empty((n_actions, n_others), np.bool_)
    starts = np.empty(n_actions, np.int64)  # where the costs of each action begin; -1 for none
    up, down = 1.0 + 8.0 * U, 1.0 - 8.0 * U
    cell = 0
    for pair in range(first.size):
        s, t = first[pair], second[pair]
        lower[pair, 0], lower[pair, 1] = claim_below[pair], np.inf
        upper[pair, 0], upper[pair, 1] = claim_above[pair], 0.0
        if sets[s] != sets[t]:
            if not is_low_implied[pair] and apart < claim_below[pair]:
                lower[pair, 0], lower[pair, 1] = apart, apart
            if not is_high_implied[pair] and apart > claim_above[pair]:
                upper[pair, 0], upper[pair, 1] = apart, apart
            continue
        for a in range(n_actions):
            starts[a] = -1
            if is_lax:
                starts[a] = cell if gamma > 0.0 else -1
            elif needs_costs(s, a, t, a, indptr, indices, probs, radius, gamma, is_states):
                starts[a] = cell
                row, other = s * n_actions + a, t * n_actions + a
                cell += (indptr[row + 1] - indptr[row]) * (indptr[other + 1] - indptr[other])
        if is_lax and gamma > 0.0:
            cell += (reach_ptr[s + 1] - reach_ptr[s]) * (reach_ptr[t + 1] - reach_ptr[t])
        for side in range(2):
            is_low = side == 0
            if is_low_implied[pair] if is_low else is_high_implied[pair]:
                continue
            claim = claim_below[pair] if is_low else claim_above[pair]
            # No two actions differ by less than the gap below, nor by less than the span above.
            for a in range(n_actions):
                for col in range(n_others):
                    b = col if is_lax else a
                    one, two = high[s, a] - low[t, b], high[t, b] - low[s, a]
                    base = max(0.0, -one, -two) if is_low else max(one, two)
                    least[a, col], most[a, col] = base * (1.0 - 2.0 * U), np.inf
                    is_open[a, col] = True
            if is_low:
                lower[pair, 0] = matched_bounds(s, t, available, is_lax, least, most)[0]
                if lower[pair, 0] >= claim:
                    continue
            # First all actions in turn, then those matches that are asked for.
            step, n_first = -1, n_actions * n_others
            while True:
                step += 1
                is_quick = is_lax and step < n_first
                if is_quick:
                    a, b = step // n_actions, step % n_actions
                    if not (available[s, a] and available[t, b]) or least[a, b] > claim:
                        continue
                elif is_lax:
                    match = next_match(s, t, available, is_low, claim, least, most, is_open)
                    if match < 0:
                        break
                    a, b = match // n_actions, match % n_actions
                else:
                    a, b = step, step
                    if step == n_first:
                        break
                    if not available[s, a]:
                        continue
                col = b if is_lax else 0
                is_open[a, col] = is_quick
                one, two = high[s, a] - low[t, b], high[t, b] - low[s, a]
                span, gap = max(one, two), max(0.0, -one, -two)
                row, other = s * n_actions + a, t * n_actions + b
                base = gap if is_low else span
                is_free = starts[a] < 0
                if is_lax and not is_free:
                    is_free = not needs_costs(
                        s, a, t, b, indptr, indices, probs, radius, gamma, is_states
                    )
                if is_free:
                    # Staying put costs nothing: W = 0, and the rewards are all there is.
                    most[a, col] = base * (1.0 + 2.0 * U)
                    is_open[a, col] = False
                    continue
                begin, there = indptr[row], indptr[other]
                length, width = indptr[row + 1] - begin, indptr[other + 1] - there
                without = max(spare[s, a], spare[t, b])
                n = drop_specks(row_masses(begin, begin + length, probs, p), p, places[0])
                m = drop_specks(row_masses(there, there + width, probs, q), q, places[1])
                if is_low:
                    free = (radius[s, a] + radius[t, b]) * (1.0 + 2.0 * U)
                else:
                    free = (without + (short[s, a] + short[t, b])) * (1.0 + 4.0 * U)
                is_still = is_same_row(row, other, indptr, indices, probs)
                kappa = beyond if free > 0.0 else 0.0
                is_same = is_still
                stride = reach_ptr[t + 1] - reach_ptr[t] if is_lax else width
                for i in range(length):
                    at = starts[a] + (place[begin + i] if is_lax else i) * stride
                    for j in range(width):
                        here = at + (place[there + j] if is_lax else j)
                        cost = below[here] if is_low else above[here]
                        kappa = max(kappa, cost)
                        if places[0, i] >= 0 and places[1, j] >= 0:
                            c[places[0, i], places[1, j]] = cost
                        if is_same and not is_low and i == j and cost > 0.0:
                            is_still = False
                if is_still if is_low else (kappa == 0.0 or (is_still and free == 0.0)):
                    most[a, col] = base * (1.0 + 2.0 * U)
                    is_open[a, col] = False
                    continue
                if is_low and free >= 1.0:  # but for 4u, by which it was rounded up
                    most[a, col] = (base + gamma * (8.0 * U * kappa)) * up + TINY
                    is_open[a, col] = False
                    continue
                specks = 0.0 if is_still or (n == length and m == width) else SPECKS
                # What couplings show that need no solver.
                quick = (span + gamma * (kappa * up)) * up + TINY
                if is_low or quick > claim:
                    more = 0.0 if is_still else spread_bound(n, m, p, q, c)
                    more += specks * kappa
                    if free > 0.0 and not is_low:
                        more = (more * (1.0 - without) + free * kappa) * (1.0 + 20.0 * U) + TINY
                        more = min(kappa * up, more)
                    quick = (base + gamma * more) * up + TINY
                if is_quick or (quick * (1.0 + 16.0 * U) < claim if is_low else quick <= claim):
                    most[a, col] = quick
                    continue
                less, more = 0.0, 0.0
                if not is_still:
                    less, more = transport_bounds(
                        n, m, p, q, c, free + specks if is_low else 0.0, x, line, mark
                    )
                more += specks * kappa
                if not is_low:
                    less = max(0.0, less - specks * kappa)
                if free > 0.0 and not is_low:
                    more = (more * (1.0 - without) + free * kappa) * (1.0 + 20.0 * U) + TINY
                    less = (less * (1.0 - without) + free * kappa) * (1.0 - 20.0 * U)
                    more, less = min(kappa * up, more), min(kappa * down, less)
                if is_low and more == 0.0:
                    most[a, col] = gap * (1.0 + 2.0 * U)
                    continue
                least[a, col] = max(least[a, col], (base + gamma * less) * down - TINY)
                most[a, col] = (base + gamma * more) * up + TINY
                if is_low and not is_lax and least[a, col] >= claim:
                    break
            less, more = matched_bounds(s, t, available, is_lax, least, most)
            if is_low:
                lower[pair, 0], lower[pair, 1] = less, np.inf if less >= claim else more
            else:
                upper[pair, 0], upper[pair, 1] = more, 0.0 if more <= claim else less


# -- block models ------------------------------------------------------------------------------


@kernel
def normal_rows_kernel(indptr: IntArray, probs: FloatArray, out: FloatArray) -> None:
    """All rows over their sums. In: probs (nnz). Out: out (nnz), see `row_masses`."""
    for row in range(indptr.size - 1):
        begin, end = indptr[row], indptr[row + 1]
        row_masses(begin, end, probs, out[begin:end])


@kernel
def radius_kernel(
    begin: int,
    end: int,
    labels: IntArray,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    row_radius: FloatArray,
    centre_indptr: IntArray,
    centre_indices: IntArray,
    centre_probs: FloatArray,
    centre_masses: FloatArray,
    radius: FloatArray,
    spare: FloatArray,
    short: FloatArray,
    renaming: IntArray,
    is_estimate: bool,
    needed: FloatArray,
    lacking: FloatArray,
) -> tuple[int, int, float]:
    """What each row of the states begin..end asks of radius and short of its block, rounded up.

    It is compared with the centre of the action that it is called in its block; rows of actions
    that a state lacks ask for nothing, unless actions are called what they are.

    The row is summed by block; its total variation from the centre is Σ(p_B - c_B)⁺. A sum of
    entries and the row's sum are off by γ_l each (l entries), their quotient by one rounding
    more, c_B by γ_k (k entries), the difference and the sum by γ_k of what is at most 1: below
    (2l + 2k + 8)·u in all, for which (3(l + k) + 16)·u is counted. If every sum is exact, which
    the error term of each addition tells, and equals the centre's entry, then it is 0 exactly.
    The same slack covers Σ((1 - spare)·c_B - p_B)⁺, whose factor rounds twice more.

    In: labels (n_states); rows of the model; row_radius (n_states, n_actions), which the true
    row may be off by besides; centre rows as stored (centre_probs) and over their sums
    (centre_masses); radius, spare, short (blocks, actions) as claimed; renaming (n_states,
    n_actions), empty where actions are called what they are.
    Out: needed, lacking (n_states, n_actions). Returns the first row for which a claim is false,
    or -1; why (1: it reaches a block outside the centre's support, 2: it is farther than
    claimed, 3: it lacks more than claimed); and what it is certainly not nearer than.
    """
    n_blocks, n_actions = radius.shape
    mass, mark = np.empty(n_blocks), np.zeros(n_blocks, np.int64)  # the row met last, plus one
    for state in range(begin, end):
        block = labels[state]
        for action in range(n_actions):
            row = state * n_actions + action
            name = action if renaming.size == 0 else renaming[state, action]
            needed[state, action], lacking[state, action] = 0.0, 0.0
            if name < 0:
                continue
            centre = block * n_actions + name
            for k in range(centre_indptr[centre], centre_indptr[centre + 1]):
                mark[centre_indices[k]] = row + 1
                mass[centre_indices[k]] = 0.0
            is_exact = True
            total, outside = 0.0, 0.0
            for k in range(indptr[row], indptr[row + 1]):
                other, p = labels[indices[k]], probs[k]
                total += p
                if mark[other] != row + 1:
                    if not is_estimate:
                        return row, 1, float(other)
                    outside += p
                    is_exact = False
                    continue
                old = mass[other]
                new = old + p
                part = new - old
                if (old - (new - part)) + (p - part) != 0.0:
                    is_exact = False
                mass[other] = new
            variation, lack = outside / total, 0.0
            keep = 1.0 - spare[block, name]
            for k in range(centre_indptr[centre], centre_indptr[centre + 1]):
                here = mass[centre_indices[k]]
                if here != centre_probs[k]:
                    is_exact = False
                variation += max(0.0, here / total - centre_masses[k])
                lack += max(0.0, keep * centre_masses[k] - here / total)
            size = indptr[row + 1] - indptr[row]
            size += centre_indptr[centre + 1] - centre_indptr[centre]
            slack = (3.0 * size + 16.0) * U
            if is_exact:
                variation, lack, slack = 0.0, 0.0, 0.0
            extra = row_radius[state, action]
            for side in range(2):
                off = variation if side == 0 else lack
                most = (off + slack + extra) * (1.0 + 4.0 * U)
                if off + slack == 0.0:
                    most = extra
                out = needed if side == 0 else lacking
                out[state, action] = min(1.0, most)
                least = min(1.0, (off - slack + extra) * (1.0 - 4.0 * U))
                if least > (radius if side == 0 else short)[block, name]:
                    return row, 2 + side, least
    return -1, 0, 0.0


@kernel
def largest_kernel(
    labels: IntArray, renaming: IntArray, needed: FloatArray, radius: FloatArray
) -> None:
    """Raise radii to what members need, see `radius_kernel`.

    In: needed (n_states, n_actions); renaming, the same or empty. In and out: radius.
    """
    for state in range(labels.size):
        for action in range(radius.shape[1]):
            block, name = labels[state], action
            if renaming.size > 0:
                name = renaming[state, action]
            if name >= 0:
                radius[block, name] = max(radius[block, name], needed[state, action])


# -- features ----------------------------------------------------------------------------------


@kernel
def residual_kernel(
    begin: int,
    end: int,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    rewards: FloatArray,
    offsets: FloatArray,
    values: FloatArray,
    shift: float,
    widest: float,
    base: FloatArray,
    base_shift: float,
    signs: IntArray,
    floor: float,
    ceiling: float,
    is_mean: bool,
    gamma: float,
    low: FloatArray,
    high: FloatArray,
) -> None:
    """Bounds on max (or mean) over used actions of r + γ·P(values - shift) - (base - base_shift).

    r = φ(σ·R) - offset, φ cutting off what is below the floor or above the ceiling, which rounds
    nothing. It is small where rewards are large and differ by little, so that errors are of the
    size of what they differ by. With V = widest, the largest |values - shift|, and l
    the length of a row: r is off by u·|r|; differences of values by u of themselves, products by
    u, the sum and the row's sum by γ_l each, the quotient and its product with γ by u, so that
    γ·P(..) is off by (2l + 5)·u·V; the sum with r by u·(|r| + V). An action is off by less than
    (2l + 8)·u·(|r| + V), for which (3l + 16)·u is counted: the roundings of V, of this slack and
    of its sum with the action's value are within. The maximum of upper ends is an upper end.
    A mean of A actions is off by the mean of their slacks, and by (A + 2)·u of the mean of |r| +
    V, for which (2A + 8)·u is counted. The last difference is off by u of the base's difference,
    by u of both for itself and for moving it: 4u cover them. One TINY covers all underflow.

    In: rows of the model, rewards; offsets (n_actions), equal for all used actions unless
    is_mean; values, base (n_states); signs (n_actions); nothing so large that it overflows.
    Out: low, high (n_states).
    """
    n_actions = rewards.shape[1]
    for state in range(begin, end):
        least, most = -np.inf, -np.inf
        total, slacks, sizes, count = 0.0, 0.0, 0.0, 0.0
        for action in range(n_actions):
            if signs[action] == 0:
                continue
            row = state * n_actions + action
            ahead, mass = 0.0, 0.0
            for k in range(indptr[row], indptr[row + 1]):
                mass += probs[k]
                ahead += probs[k] * (values[indices[k]] - shift)
            reward = min(max(signs[action] * rewards[state, action], floor), ceiling)
            reward -= offsets[action]
            value = reward + gamma * (ahead / mass)
            size = abs(reward) + widest
            slack = (3.0 * (indptr[row + 1] - indptr[row]) + 16.0) * U * size
            least, most = max(least, value - slack), max(most, value + slack)
            total += value
            slacks += slack
            sizes += size
            count += 1.0
        if is_mean:
            mean = total / count
            slack = slacks / count * (1.0 + (2.0 * count + 8.0) * U)
            slack += (2.0 * count + 8.0) * U * (sizes / count)
            least, most = mean - slack, mean + slack
        away = base[state] - base_shift
        low[state] = (least - away) - 4.0 * U * (abs(least) + abs(away)) - TINY
        high[state] = (most - away) + 4.0 * U * (abs(most) + abs(away)) + TINY
