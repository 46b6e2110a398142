"""Compiled code of the verifier: its own transport, its own bounds, its own reading of tables.

Nothing here is shared with the code that makes bounds, so that a mistake there cannot repeat
itself here. Throughout, u = 2**-53, γ_k = k·u/(1 - k·u), and a row means its stored entries
divided by their exact sum. "Cost" is a float that may differ from the exact cost by a factor
between 1 - 8u and 1 + 8u: values stored in a certificate are exact, start values are rounded
at most six times (see `ground_costs`). W is monotone and homogeneous in the costs, so W at
the exact costs differs from W at the float costs by the same factor at most.
"""

from __future__ import annotations

import numpy as np

from bisim_abstract._kernels._jit import kernel
from bisim_abstract._typing import FloatArray, IntArray

U = 2.0**-53
# Above every underflow error below (each at most 2**-1075 times a cost or a count of terms).
TINY = 1e-290
# Mass that is not worth another path. What stays behind is charged to the bound, see
# `plan_bound`: at most an eighth of u per row and column.
NEGLIGIBLE = 2.0**-56
PATHS_PER_NODE = 100  # far beyond what is ever needed; makes an end certain


@kernel
def transport_kernel(
    n: int,
    m: int,
    a: FloatArray,
    b: FloatArray,
    c: FloatArray,
    y: FloatArray,
    z: FloatArray,
    x: FloatArray,
    need: FloatArray,
    reach: FloatArray,
    through: IntArray,
    back: IntArray,
    row_done: IntArray,
    col_done: IntArray,
    row_reach: FloatArray,
) -> None:
    """Shortest augmenting paths from one row after another, on the dense bipartite graph.

    The answer is not trusted: `dual_bound` and `plan_bound` hold for any potentials and any
    plan. It ends because every path search settles a column per step, and the number of paths
    is limited; if the limit is met, or masses run out by rounding, the plan stays incomplete.

    In: n, m; a (n), b (m) masses; c (n, m) costs.
    Out: y (n), z (m) potentials; x (n, m) plan.
    Scratch: need, reach, through, col_done (m); back, row_done, row_reach (n).
    """
    for j in range(m):
        need[j] = b[j]
        z[j] = c[0, j]
        for i in range(1, n):
            z[j] = min(z[j], c[i, j])
    for i in range(n):
        y[i] = c[i, 0] - z[0]
        for j in range(1, m):
            y[i] = min(y[i], c[i, j] - z[j])
        for j in range(m):
            x[i, j] = 0.0
    paths = PATHS_PER_NODE * (n + m)
    for source in range(n):
        left = a[source]
        while left > NEGLIGIBLE:
            paths -= 1
            if paths < 0:
                return
            for i in range(n):
                row_done[i] = 0
            for j in range(m):
                col_done[j] = 0
                reach[j] = np.inf
            row, here = source, 0.0
            row_done[row] = 1
            row_reach[row] = 0.0
            target = -1
            # A row is reached at no cost from a settled column that it ships to, so only columns
            # compete for being next; row_done is 2 for rows that are reached but not relaxed.
            while True:
                for j in range(m):
                    if col_done[j] == 0:
                        length = here + max(0.0, c[row, j] - y[row] - z[j])
                        if length < reach[j]:
                            reach[j] = length
                            through[j] = row
                # The next row that hangs on a settled column, at the same distance.
                pending = -1
                for i in range(n):
                    if row_done[i] == 2:
                        pending = i
                        break
                if pending < 0:
                    best = -1
                    for j in range(m):
                        limit = np.inf if best < 0 else reach[best]
                        if col_done[j] == 0 and reach[j] < limit:
                            best = j
                    if best < 0:
                        break
                    col_done[best] = 1
                    if need[best] > NEGLIGIBLE:
                        target = best
                        break
                    for i in range(n):
                        if row_done[i] == 0 and x[i, best] > 0.0:
                            row_done[i] = 2
                            row_reach[i] = reach[best]
                            back[i] = best
                    for i in range(n):
                        if row_done[i] == 2:
                            pending = i
                            break
                    if pending < 0:
                        # Nothing hangs on this column: relax the same row again (no effect)
                        # and go on with the next column.
                        continue
                row = pending
                row_done[row] = 1
                here = row_reach[row]
            if target < 0:
                return
            total = reach[target]
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
            while True:
                i = through[j]
                x[i, j] += amount
                if i == source:
                    break
                j = back[i]
                x[i, j] -= amount


@kernel
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


@kernel
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
    y: FloatArray,
    z: FloatArray,
    x: FloatArray,
    need: FloatArray,
    reach: FloatArray,
    through: IntArray,
    back: IntArray,
    row_done: IntArray,
    col_done: IntArray,
    row_reach: FloatArray,
) -> tuple[float, float]:
    """Bounds on W from below and above. Buffers as in `transport_kernel`.

    Where a side has one point there is one coupling: Σ mass·cost, non-negative terms with a
    mass off by γ_N, a product, at most N additions and a cost off by 8u, so below γ_(2N + 10).
    """
    top = 0.0
    for i in range(n):
        for j in range(m):
            top = max(top, c[i, j])
    if top == 0.0:
        return 0.0, 0.0
    if n == 1 or m == 1:
        value = 0.0
        for i in range(n):
            for j in range(m):
                mass = b[j] if n == 1 else a[i]
                if n == 1 and m == 1:
                    mass = 1.0
                value += mass * c[i, j]
        slack = value * (3.0 * (n + m) + 16.0) * U + TINY
        return max(0.0, value - slack), value + slack
    transport_kernel(
        n, m, a, b, c, y, z, x, need, reach, through, back, row_done, col_done, row_reach
    )
    return dual_bound(n, m, a, b, c, top, y, z), plan_bound(n, m, a, b, c, top, x)


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
def reward_gap(s: int, t: int, rewards: FloatArray) -> float:
    """max_a |R(s,a) - R(t,a)|, off by u of itself (one subtraction).

    In: rewards (n_states, n_actions).
    """
    gap = 0.0
    for k in range(rewards.shape[1]):
        gap = max(gap, abs(rewards[s, k] - rewards[t, k]))
    return gap


@kernel
def ground_costs(
    s: int,
    t: int,
    row_start: IntArray,
    keys: IntArray,
    below: FloatArray,
    above: FloatArray,
    rewards: FloatArray,
    gamma: float,
    diameter: float,
    is_reward_below: bool,
    is_reward_above: bool,
) -> tuple[float, float]:
    """What a pair of states reads: from the tables if covered, its start values if not.

    Start values are off by 8u of themselves at most: d_R by u; the diameter by 3u (reward
    difference, 1 - γ, division) and one more for its product with γ, then the sum.

    In: row_start (n_states + 1) where the pairs of each smaller state begin in keys (covered);
    below, above (covered); rewards (n_states, n_actions).
    """
    if s == t:
        return 0.0, 0.0
    if s > t:
        s, t = t, s
    key = s * rewards.shape[0] + t
    left, right = row_start[s], row_start[s + 1]
    while left < right:
        middle = (left + right) // 2
        if keys[middle] < key:
            left = middle + 1
        else:
            right = middle
    if left < row_start[s + 1] and keys[left] == key:
        return below[left], above[left]
    gap = 0.0
    if is_reward_below or is_reward_above:
        gap = reward_gap(s, t, rewards)
    low = gap if is_reward_below else 0.0
    high = gap + gamma * diameter if is_reward_above else diameter
    return low, high


@kernel
def check_pairs_kernel(
    begin: int,
    end: int,
    row_start: IntArray,
    keys: IntArray,
    below: FloatArray,
    above: FloatArray,
    claim_below: FloatArray,
    claim_above: FloatArray,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    rewards: FloatArray,
    gamma: float,
    diameter: float,
    is_reward_below: bool,
    is_reward_above: bool,
    max_support: int,
    lower: FloatArray,
    upper: FloatArray,
) -> None:
    """Bounds on both backups of each covered pair, as far as its claims need them.

    Claims: claim_below <= (T below)(p) and claim_above >= (T above)(p). One action that proves
    the first is enough. An action is passed over for the first claim if a coupling shows that
    it stays below the claim (with a margin of 16u, beyond rounding), and for the second if a
    coupling shows that it stays below the claim there, which is all that is asked.

    A backup is gap + γ·W, with gap off by u, rounded twice more: 8u cover it. A gap alone is
    moved by 2u, which covers u and the rounding of the move itself.

    In: row_start, keys, below, above as in `ground_costs`; claim_below, claim_above (covered);
    indptr, indices, probs, rewards of the model.
    Out: lower (covered, 2): what T below is certainly not less than, and, if that does not
    reach the claim, what it certainly does not exceed (else infinity). upper (covered, 2):
    what T above certainly does not exceed (or the claim, if less), and, if that goes beyond
    the claim, what it is certainly not less than (else 0).
    """
    n_states, n_actions = rewards.shape
    a, b = np.empty(max_support), np.empty(max_support)
    cost_below = np.empty((max_support, max_support))
    cost_above = np.empty((max_support, max_support))
    x = np.empty((max_support, max_support))
    y, z = np.empty(max_support), np.empty(max_support)
    need, reach, row_reach = np.empty(max_support), np.empty(max_support), np.empty(max_support)
    through, back = np.empty(max_support, np.int64), np.empty(max_support, np.int64)
    row_done, col_done = np.empty(max_support, np.int64), np.empty(max_support, np.int64)
    up, down = 1.0 + 8.0 * U, 1.0 - 8.0 * U
    for pair in range(begin, end):
        s, t = keys[pair] // n_states, keys[pair] % n_states
        gap = reward_gap(s, t, rewards)
        # T below >= d_R, and the start of the upper arm is a super-solution.
        proved_low, ceiling = gap * (1.0 - 2.0 * U), 0.0
        proved_high, floor = gap * (1.0 + 2.0 * U), gap * (1.0 - 2.0 * U)
        is_low_done = proved_low >= claim_below[pair]
        start = (gap + gamma * diameter if is_reward_above else diameter) * (1.0 + 16.0 * U)
        is_high_done = start <= claim_above[pair]
        for action in range(n_actions):
            if is_low_done and is_high_done:
                break
            gap = abs(rewards[s, action] - rewards[t, action])
            row, other = s * n_actions + action, t * n_actions + action
            n = row_masses(indptr[row], indptr[row + 1], probs, a)
            m = row_masses(indptr[other], indptr[other + 1], probs, b)
            is_same = n == m
            if is_same:
                for i in range(n):
                    here, there = indptr[row] + i, indptr[other] + i
                    if indices[here] != indices[there] or probs[here] != probs[there]:
                        is_same = False
                        break
            if is_same or gamma == 0.0:
                # Staying put costs nothing: W = 0, and the gap is all there is.
                ceiling = max(ceiling, gap * (1.0 + 2.0 * U))
                continue
            top = 0.0
            for i in range(n):
                for j in range(m):
                    cost_below[i, j], cost_above[i, j] = ground_costs(
                        indices[indptr[row] + i],
                        indices[indptr[other] + j],
                        row_start,
                        keys,
                        below,
                        above,
                        rewards,
                        gamma,
                        diameter,
                        is_reward_below,
                        is_reward_above,
                    )
                    top = max(top, cost_above[i, j])
            if not is_low_done:
                spread = (gap + gamma * spread_bound(n, m, a, b, cost_below)) * up + TINY
                if spread * (1.0 + 16.0 * U) < claim_below[pair]:
                    ceiling = max(ceiling, spread)
                else:
                    low, high = transport_bounds(
                        n,
                        m,
                        a,
                        b,
                        cost_below,
                        y,
                        z,
                        x,
                        need,
                        reach,
                        through,
                        back,
                        row_done,
                        col_done,
                        row_reach,
                    )
                    if high == 0.0:
                        ceiling = max(ceiling, gap * (1.0 + 2.0 * U))
                    else:
                        proved_low = max(proved_low, (gap + gamma * low) * down - TINY)
                        ceiling = max(ceiling, (gap + gamma * high) * up + TINY)
                    is_low_done = proved_low >= claim_below[pair]
            if not is_high_done and top > 0.0:
                quick = (gap + gamma * (top * up)) * up + TINY
                if quick > claim_above[pair]:
                    quick = (gap + gamma * spread_bound(n, m, a, b, cost_above)) * up + TINY
                if quick <= claim_above[pair]:
                    proved_high = max(proved_high, quick)
                else:
                    low, high = transport_bounds(
                        n,
                        m,
                        a,
                        b,
                        cost_above,
                        y,
                        z,
                        x,
                        need,
                        reach,
                        through,
                        back,
                        row_done,
                        col_done,
                        row_reach,
                    )
                    proved_high = max(proved_high, (gap + gamma * high) * up + TINY)
                    floor = max(floor, (gap + gamma * low) * down - TINY)
        if is_high_done:
            proved_high = claim_above[pair]
        lower[pair, 0] = proved_low
        lower[pair, 1] = np.inf if is_low_done else ceiling
        upper[pair, 0] = proved_high
        upper[pair, 1] = 0.0 if proved_high <= claim_above[pair] else floor
