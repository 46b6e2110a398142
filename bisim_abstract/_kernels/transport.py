"""Small exact optimal transport, its two-sided bounds, and the backup of a state pair.

All kernels that call each other stand in this one file, because numba's cache does not
notice an edited callee in another file.

Masses are rows already divided by their sum (`normalise_rows_kernel`): each is within 2·EPS
relative of the exact quotient. Costs are non-negative. Everything is float64 and evaluated in
a fixed order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bisim_abstract._base.jit import inlined, inner, kernel
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import AnyIntArray, BoolArray, FloatArray, IntArray

# Far above what products of small numbers lose in any sum met here, but for masses below the normal
# range, whose error counts by the size of what they are multiplied with: 1e-300 times that.
TINY = 1e-315
NOTHING = 1e-300  # masses up to here are left out of transports, and counted as
LEFT_OUT = 1e-280  # free mass: more than all of them together


class Tree(NamedTuple):
    """Views of the scratch of `solve_kernel`, each of it as long as there are nodes.

    Lines (rows, then columns) are the nodes of a spanning tree, linked by the first five: parent
    (-1: none), first child, next and previous sibling, and a stack to walk it. `carried` is the
    flow on the edge to the parent, `rest` what a line has left, `base` a column's least cost.
    """

    parent: IntArray
    child: IntArray
    after: IntArray
    before: IntArray
    stack: IntArray
    carried: FloatArray
    rest: FloatArray
    base: FloatArray


class Scratch(NamedTuple):
    """What backups of a pair need: one problem, its answer, and the tree that finds it.

    For `size` rows and columns at most: cost and flow (size·size, row-major), mass_p and mass_q
    (size), pot (2·size), links (5, 2·size) and amounts (3, 2·size). The last two are made a `Tree`
    where it is needed: to hand over eight arrays takes as long as a small problem.
    """

    cost: FloatArray
    flow: FloatArray
    mass_p: FloatArray
    mass_q: FloatArray
    pot: FloatArray
    links: IntArray
    amounts: FloatArray


@kernel
def normalise_rows_kernel(indptr: IntArray, weights: FloatArray, out: FloatArray) -> None:
    """Divide each row by its sum, the sum held to twice float64 precision.

    In: indptr (rows + 1), weights (nnz, positive). Out: out (nnz).
    The sum is accumulated in a double-double, whose relative error is below 2**-100 for any
    practical row; `hi + lo` rounds it once and the division rounds once more, so every
    quotient carries a relative error of at most 2·EPS. A row of one entry gives exactly 1.
    """
    for row in range(indptr.size - 1):
        begin, end = indptr[row], indptr[row + 1]
        if end - begin == 1:
            out[begin] = 1.0
            continue
        hi = 0.0
        lo = 0.0
        for k in range(begin, end):
            x = weights[k]
            s = hi + x
            bb = s - hi
            lo += (hi - (s - bb)) + (x - bb)
            hi = s
        total = hi + lo
        for k in range(begin, end):
            out[k] = weights[k] / total


@inlined
def tree_kernel(links: IntArray, amounts: FloatArray) -> Tree:
    """The parts of a tree, in (5, nodes) and (3, nodes) numbers."""
    return Tree(
        links[0], links[1], links[2], links[3], links[4], amounts[0], amounts[1], amounts[2]
    )


@inner
def scratch_kernel(size: int) -> Scratch:
    """Room for problems of at most `size` rows and as many columns."""
    cells, lines = np.empty((2, size * size)), np.empty((2, size))
    pot = np.empty(2 * size)
    return Scratch(
        cells[0],
        cells[1],
        lines[0],
        lines[1],
        pot,
        np.empty((5, 2 * size), np.int64),
        np.empty((3, 2 * size)),
    )


@inlined
def start_kernel(
    m: int, n: int, cost: FloatArray, a: FloatArray, b: FloatArray, tree: Tree
) -> float:
    """The starting tree: each row in turn fills its cheapest open columns.

    Cheapest above the column's least cost. Every cell closes exactly one line and hangs it below
    the line that stays open. Returns the largest cost. Out: tree.parent, tree.carried; the root is
    the last row.
    """
    parent, stack, carried, rest, base = (
        tree.parent,
        tree.stack,
        tree.carried,
        tree.rest,
        tree.base,
    )
    top = 0.0
    for j in range(n):
        rest[m + j] = b[j]
        base[j] = cost[j]
        stack[j] = j
    for i in range(m):
        rest[i] = a[i]
        for j in range(n):
            c = cost[i * n + j]
            if c < base[j]:
                base[j] = c
            if c > top:
                top = c
    parent[m - 1] = -1
    i = 0
    still_open = n
    while True:
        at = 0
        if still_open > 1:
            least = cost[i * n + stack[0]] - base[stack[0]]
            for k in range(1, still_open):
                c = cost[i * n + stack[k]] - base[stack[k]]
                if c < least:
                    least = c
                    at = k
        j = m + stack[at]
        amount = min(rest[i], rest[j])
        if i == m - 1 and still_open == 1:
            parent[j] = i
            carried[j] = amount
            break
        if still_open == 1 or (i < m - 1 and rest[i] <= rest[j]):
            parent[i] = j
            carried[i] = amount
            rest[j] -= amount
            i += 1
        else:
            parent[j] = i
            carried[j] = amount
            rest[i] -= amount
            still_open -= 1
            stack[at] = stack[still_open]
    return top


@inlined
def potentials_kernel(m: int, n: int, cost: FloatArray, pot: FloatArray, tree: Tree) -> None:
    """Children from parents, and the potentials that make every edge of the tree tight."""
    parent, child, after, before = tree.parent, tree.child, tree.after, tree.before
    stack = tree.stack
    for k in range(m + n):
        child[k] = -1
    for k in range(m + n):
        p = parent[k]
        if p >= 0:
            first = child[p]
            after[k] = first
            before[k] = -1
            if first >= 0:
                before[first] = k
            child[p] = k
    pot[m - 1] = 0.0
    stack[0] = m - 1
    size = 1
    while size > 0:
        size -= 1
        p = stack[size]
        k = child[p]
        while k >= 0:
            if k < m:
                pot[k] = cost[k * n + p - m] - pot[p]
            else:
                pot[k] = cost[p * n + k - m] - pot[p]
            stack[size] = k
            size += 1
            k = after[k]


@inlined
def enter_kernel(
    m: int, n: int, cost: FloatArray, pot: FloatArray, least: float, row: int, is_bland: bool
) -> tuple[float, int, int, int]:
    """The cell that enters: its reduced cost, below `least`, its row (-1: none) and column node.

    The most negative one (small tables), the most negative of the next row from `row` on that has
    one (large tables), or simply the first (Bland). Returns the row to go on with besides.
    """
    enter_row = -1
    enter_col = -1
    if is_bland:
        row = 0
    for _ in range(m):
        ui = pot[row]
        for j in range(n):
            d = cost[row * n + j] - ui - pot[m + j]
            if d < least:
                least = d
                enter_row = row
                enter_col = j
                if is_bland:
                    break
        row += 1
        if row == m:
            row = 0
        if enter_row >= 0 and (m * n > 64 or is_bland):
            break
    return least, enter_row, enter_col + m, row


@inlined
def push_kernel(
    m: int, n: int, enter_row: int, enter_col: int, tree: Tree
) -> tuple[float, int, bool]:
    """Push flow round the cycle: how much, below which node an edge leaves, if on the row's side.

    The cycle closes where the ancestors of both ends meet. Pushing along the cell takes flow from
    the edges above rows on the row's side and from those above columns on the column's side; the
    smallest of them leaves.
    """
    parent, stack, carried = tree.parent, tree.stack, tree.carried
    for k in range(m + n):
        stack[k] = 0
    k = enter_row
    while k >= 0:
        stack[k] = 1
        k = parent[k]
    join = enter_col
    while stack[join] == 0:
        join = parent[join]
    delta = np.inf
    leave = -1
    is_row_side = True
    k = enter_row
    while k != join:
        if k < m and (carried[k] < delta or (carried[k] == delta and k < leave)):
            delta = carried[k]
            leave = k
        k = parent[k]
    k = enter_col
    while k != join:
        if k >= m and carried[k] < delta:
            delta = carried[k]
            leave = k
            is_row_side = False
        k = parent[k]
    if delta > 0.0:
        k = enter_row
        while k != join:
            carried[k] += -delta if k < m else delta
            k = parent[k]
        k = enter_col
        while k != join:
            carried[k] += -delta if k >= m else delta
            k = parent[k]
    return delta, leave, is_row_side


@inlined
def rehang_kernel(
    m: int,
    moved: int,
    above: int,
    leave: int,
    delta: float,
    shift: float,
    pot: FloatArray,
    tree: Tree,
) -> None:
    """Hang the subtree that is cut off at `leave` below `above`, turning round the path to it.

    Its rows move by `shift`, its columns against it: the new edge, from `moved` up, is tight.
    """
    parent, child, after, before = tree.parent, tree.child, tree.after, tree.before
    stack, carried = tree.stack, tree.carried
    k = moved
    flow = delta
    while True:
        old = parent[k]
        freed = carried[k]
        prev_k = before[k]
        next_k = after[k]
        if prev_k >= 0:
            after[prev_k] = next_k
        else:
            child[old] = next_k
        if next_k >= 0:
            before[next_k] = prev_k
        first = child[above]
        after[k] = first
        before[k] = -1
        if first >= 0:
            before[first] = k
        child[above] = k
        parent[k] = above
        carried[k] = flow
        if k == leave:
            break
        flow = freed
        above = k
        k = old
    stack[0] = moved
    size = 1
    while size > 0:
        size -= 1
        p = stack[size]
        pot[p] += shift if p < m else -shift
        k = child[p]
        while k >= 0:
            stack[size] = k
            size += 1
            k = after[k]


@inner
def solve_kernel(
    m: int,
    n: int,
    cost: FloatArray,
    a: FloatArray,
    b: FloatArray,
    flow: FloatArray,
    pot: FloatArray,
    links: IntArray,
    amounts: FloatArray,
) -> int:
    """Transport `a` (m masses) to `b` (n masses) at least cost: network simplex on the tree.

    In: cost (m·n, row-major), a (m), b (n).
    Out: flow (m·n), pot (m + n): row potentials u, then column potentials v, with
    u_i + v_j <= cost_ij up to rounding. Returns the number of pivots.
    Scratch: links and amounts, of m + n nodes at least.

    A pivot subtracts the smallest flow of its cycle, so that one edge becomes exactly 0 and none
    negative. Runs of degenerate pivots switch to Bland's rule, which cannot cycle; a cap ends
    what rounding might still prolong.
    The answer needs no trust: `bounds_kernel` turns any flow and any potentials into bounds.
    """
    tree = tree_kernel(links, amounts)
    top = start_kernel(m, n, cost, a, b, tree)
    potentials_kernel(m, n, cost, pot, tree)
    nodes = m + n
    pivots = 0
    stalled = 0
    row = 0
    while pivots < 64 * nodes + 256:
        least, enter_row, enter_col, row = enter_kernel(
            m, n, cost, pot, -8.0 * EPS * top, row, stalled > nodes
        )
        if enter_row < 0:
            break
        delta, leave, is_row_side = push_kernel(m, n, enter_row, enter_col, tree)
        stalled = 0 if delta > 0.0 else stalled + 1
        if is_row_side:
            moved, above, shift = enter_row, enter_col, least
        else:
            moved, above, shift = enter_col, enter_row, -least
        rehang_kernel(m, moved, above, leave, delta, shift, pot, tree)
        pivots += 1

    for k in range(m * n):
        flow[k] = 0.0
    for k in range(nodes):
        p = tree.parent[k]
        if p >= 0:
            at = k * n + p - m if k < m else p * n + k - m
            flow[at] = tree.carried[k]
    return pivots


@inner
def bounds_kernel(
    m: int,
    n: int,
    cost: FloatArray,
    a: FloatArray,
    b: FloatArray,
    flow: FloatArray,
    u: FloatArray,
) -> tuple[float, float]:
    """Lower and upper bound on the exact transport cost, whatever `flow` >= 0 and `u` are.

    The exact problem has masses within 2·EPS relative of `a` and `b`, summing to one.

    Lower: any feasible dual is a lower bound. With v_j = min_i fl(cost_ij - u_i), the exact
    minimum is at least v_j - EPS'|v_j| (y - EPS'|y| increases with y, EPS' = EPS(1 + 2EPS)),
    so (u, v - EPS'|v|) is feasible. Its value differs from the computed sum by at most
    [2 (masses) + 1 (products) + m + n (additions) + 1 (repair) + 1 (last rounding)]·EPS times
    S = Σ a|u| + Σ b|v|, up to second order; the factor below leaves room for that and for
    the rounding of S itself.

    Upper: reduce `flow` entrywise until no marginal is exceeded (this cannot raise the cost,
    as costs are >= 0), then send the missing mass anywhere, at most at the largest cost. The
    missing mass is at most Σ_i (a_i - row_i)+ + Σ_j (col_j - b_j)+ ; the float sums of flow
    and the masses are off by at most (n + 2)EPS and (m + 2)EPS in total, as all sums are
    near one.
    """
    value = 0.0
    size = 0.0
    shift = u[0]
    for i in range(1, m):
        if u[i] < shift:
            shift = u[i]
    for i in range(m):
        ui = u[i] - shift  # any numbers may serve as u: this only keeps them small
        value += a[i] * ui
        size += a[i] * ui
    top = 0.0
    total = 0.0
    missing = 0.0
    for j in range(n):
        least = np.inf
        column = 0.0
        for i in range(m):
            c = cost[i * n + j]
            x = flow[i * n + j]
            if c > top:
                top = c
            if c - (u[i] - shift) < least:
                least = c - (u[i] - shift)
            if x > 0.0:
                total += x * c
                column += x
        value += b[j] * least
        size += b[j] * abs(least)
        if column > b[j]:
            missing += column - b[j]
    for i in range(m):
        row = 0.0
        for j in range(n):
            row += flow[i * n + j]
        if a[i] > row:
            missing += a[i] - row
    # Masses below the normal range are off by 2**-1074 at most, times potentials of order top.
    lower = value - (m + n + 16) * EPS * size * (1.0 + 1e-9) - 1e-300 * top - TINY
    missing = missing * (1.0 + 1e-9) + (m + n + 16) * EPS
    upper = total * (1.0 + (m * n + 8) * EPS) + top * missing
    upper = upper * (1.0 + 8 * EPS) + TINY
    return max(lower, 0.0), upper


@kernel
def batch_kernel(
    cost: FloatArray,
    a: FloatArray,
    b: FloatArray,
    flow: FloatArray,
    pot: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
    begin: int,
    end: int,
) -> None:
    """Solve problems begin..end of a batch of equal shape.

    In: cost (B, m·n), a (B, m), b (B, n), normalised.
    Out: flow (B, m·n), pot (B, m + n), lower and upper (B).
    """
    m, n = a.shape[1], b.shape[1]
    links, amounts = np.empty((5, m + n), np.int64), np.empty((3, m + n))
    for k in range(begin, end):
        solve_kernel(m, n, cost[k], a[k], b[k], flow[k], pot[k], links, amounts)
        lower[k], upper[k] = bounds_kernel(m, n, cost[k], a[k], b[k], flow[k], pot[k])


@inner
def pair_position_kernel(s: int, t: int, n: int) -> int:
    """Position of the pair s < t among all pairs of n states, ordered by s, then t."""
    return s * (2 * n - s - 1) // 2 + t - s - 1


@inner
def pair_at_kernel(position: int, n: int) -> tuple[int, int]:
    """The pair s < t at a position: the inverse of `pair_position_kernel`."""
    s = int(n - 0.5 - np.sqrt((n - 0.5) * (n - 0.5) - 2.0 * position))
    s = min(max(s, 0), n - 2)
    while s > 0 and pair_position_kernel(s, s + 1, n) > position:
        s -= 1
    while s < n - 2 and pair_position_kernel(s + 1, s + 2, n) <= position:
        s += 1
    return s, s + 1 + position - pair_position_kernel(s, s + 1, n)


@inner
def same_row_kernel(
    p: int, q: int, indptr: IntArray, indices: IntArray, weights: FloatArray
) -> bool:
    """Whether rows p and q are equal bit for bit, as stored."""
    begin, other = indptr[p], indptr[q]
    size = indptr[p + 1] - begin
    if indptr[q + 1] - other != size:
        return False
    for k in range(size):
        if indices[begin + k] != indices[other + k] or weights[begin + k] != weights[other + k]:
            return False
    return True


@inner
def gather_cost_kernel(
    p: int,
    q: int,
    indptr: IntArray,
    indices: IntArray,
    line_of: IntArray,
    table: FloatArray,
    cost: FloatArray,
) -> float:
    """Fill `cost` (row-major) with table values between the supports of rows p and q.

    In: table, whose line line_of[s] is that of state s. Returns the largest of them, an upper bound
    on the transport cost.
    """
    at = 0
    top = 0.0
    for i in range(indptr[p], indptr[p + 1]):
        line = table[line_of[indices[i]]]
        for j in range(indptr[q], indptr[q + 1]):
            c = line[indices[j]]
            cost[at] = c
            at += 1
            if c > top:
                top = c
    return top


@inner
def floor_kernel(m: int, n: int, top: float, work: Scratch) -> float:
    """A lower bound on the exact transport cost between m and n masses, without solving.

    In: of `work` cost, mass_p and mass_q; top, the largest cost. Whatever leaves a row costs at
    least the least cost there, and so for columns. Masses are within 2·EPS relative, and each sum
    has m or n terms >= 0; masses below the normal range are covered as in `bounds_kernel`.
    """
    cost, a, b = work.cost, work.mass_p, work.mass_q
    by_row = 0.0
    for i in range(m):
        least = cost[i * n]
        for j in range(1, n):
            least = min(least, cost[i * n + j])
        by_row += a[i] * least
    by_column = 0.0
    for j in range(n):
        least = cost[j]
        for i in range(1, m):
            least = min(least, cost[i * n + j])
        by_column += b[j] * least
    most = max(by_row, by_column)
    return max(most * (1.0 - (m + n + 16) * EPS) - 1e-300 * top - TINY, 0.0)


@inner
def couple_actions_kernel(choice: int, match: int, n_actions: int, is_lax: bool) -> tuple[int, int]:
    """The actions of s and t that a choice and the answer to it are.

    A choice is an action of s, or n_actions and an action of t. By name, an action is answered by
    the one that is called the same.
    """
    if not is_lax:
        return choice, choice
    if choice < n_actions:
        return choice, match
    return match, choice - n_actions


@kernel
def sweep_kernel(
    begin: int,
    end: int,
    first: int,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    rewards: FloatArray,
    gamma: float,
    is_lax: bool,
    counts: IntArray,
    line_of: IntArray,
    table: FloatArray,
    drift: float,
    is_fixed: bool,
    action: IntArray,
    match: AnyIntArray,
    ceiling: FloatArray,
    value: FloatArray,
    cells: IntArray,
    masses: FloatArray,
) -> None:
    """One exact backup of the pairs at positions begin..end, in plain floating point.

    A choice (see `couple_actions_kernel`) is worth what the best answer to it leaves; the backup
    is the choice that is worth most. By name there is one answer to each.

    In: the MDP's rows and rewards (n, A); is_lax: actions are renamed, and states have the first
    counts (n) of them; table (lines, n), symmetric with zero diagonal, of which line_of (n) says
    where the line of a state is (only those of first states and their successors need be there);
    first: the pair with which the arrays over pairs begin; drift: what
    the values of choices may have grown by so far, as the table moved; is_fixed: choices stay as
    they are, and only answers and couplings are looked for.
    In/out: action (pairs), the best choice, tried first, or -1 where the table stays as it is;
    match (pairs, choices), the answer to each, tried first; ceiling (pairs, choices): what each
    choice was worth, at most, when it was last looked at, less the drift of that time. One that
    cannot have come up to the best since is passed over.
    Out: value (pairs); cells and masses (pairs, width): the coupling of the best choice and its
    answer as pair positions (-1 for a pair of equal states) and masses, padded with -1 and 0. With
    width 0 no couplings are kept.
    """
    n, n_actions = rewards.shape
    width = cells.shape[1]
    widest = 0
    for p in range(n * n_actions):
        widest = max(widest, indptr[p + 1] - indptr[p])
    work = scratch_kernel(widest)
    cost, flow, mass_p, mass_q = work.cost, work.flow, work.mass_p, work.mass_q
    kept = np.empty(widest * widest if is_lax else 0)  # the flow of the best answer
    s, t = pair_at_kernel(begin, n)
    for at in range(begin, end):
        best = -1.0
        chosen = action[at - first]
        n_choices = 1 if is_fixed else ceiling.shape[1]
        if chosen < 0:
            n_choices = 0
            best = table[line_of[s], t]
            for k in range(width):
                cells[at - first, k] = -1
                masses[at - first, k] = 0.0
        for k in range(n_choices):
            c = action[at - first] if k == 0 else (k - 1 if k <= action[at - first] else k)
            if ceiling[at - first, c] + drift <= best:
                continue
            least = np.inf
            p, q, rows, cols = 0, 0, 0, 0
            n_answers, told = 1, 0
            if is_lax:
                n_answers, told = counts[t] if c < n_actions else counts[s], match[at - first, c]
            for j in range(n_answers):
                m = told if j == 0 else (j - 1 if j <= told else j)
                a, b = couple_actions_kernel(c, m, n_actions, is_lax)
                gap = abs(rewards[s, a] - rewards[t, b])
                if gap >= least:
                    continue
                x, y = s * n_actions + a, t * n_actions + b
                top = gather_cost_kernel(x, y, indptr, indices, line_of, table, cost)
                if gap + gamma * top <= best:
                    least = min(least, gap + gamma * top)
                    if is_lax:
                        match[at - first, c] = m
                    break
                m_rows = masses_kernel(x, indptr, probs, mass_p)
                m_cols = masses_kernel(y, indptr, probs, mass_q)
                if j > 0 and gap + gamma * floor_kernel(m_rows, m_cols, top, work) >= least:
                    continue
                if m_rows == 1 or m_cols == 1:
                    for i in range(m_rows):
                        for i2 in range(m_cols):
                            flow[i * m_cols + i2] = mass_p[i] * mass_q[i2]
                else:
                    solve_kernel(
                        m_rows,
                        m_cols,
                        cost,
                        mass_p,
                        mass_q,
                        flow,
                        work.pot,
                        work.links,
                        work.amounts,
                    )
                total = 0.0
                for k2 in range(m_rows * m_cols):
                    total += flow[k2] * cost[k2]
                total = gap + gamma * total
                if total < least:
                    least = total
                    p, q, rows, cols = x, y, m_rows, m_cols
                    if is_lax:
                        match[at - first, c] = m
                        for k2 in range(rows * cols):
                            kept[k2] = flow[k2]
                    if least <= best:
                        break
            ceiling[at - first, c] = least - drift
            if least > best:
                best = least
                chosen = c
                if width > 0:
                    used = 0
                    if is_lax:
                        for k2 in range(rows * cols):
                            flow[k2] = kept[k2]
                    for i in range(rows):
                        x = indices[indptr[p] + i]
                        for j in range(cols):
                            if flow[i * cols + j] > 0.0 and used < width:
                                y = indices[indptr[q] + j]
                                if x != y:
                                    lo, hi = min(x, y), max(x, y)
                                    cells[at - first, used] = pair_position_kernel(lo, hi, n)
                                    masses[at - first, used] = flow[i * cols + j]
                                    used += 1
                    for k2 in range(used, width):
                        cells[at - first, k2] = -1
                        masses[at - first, k2] = 0.0
        action[at - first] = chosen
        value[at - first] = best
        t += 1
        if t == n:
            s += 1
            t = s + 1


@inlined
def couple_kernel(m: int, n: int, top: float, work: Scratch) -> tuple[float, float]:
    """Lower and upper bound on the exact transport cost between m and n masses.

    In: of `work` cost, mass_p and mass_q; top, the largest cost.
    """
    cost, a, b = work.cost, work.mass_p, work.mass_q
    if m == 1 and n == 1:
        return cost[0], cost[0]  # one coupling, of mass 1: exact
    if m == 1 or n == 1:
        # One coupling: the product of the masses, each within 2·EPS relative, times a cost,
        # summed over m·n terms >= 0.
        total = 0.0
        for i in range(m):
            for j in range(n):
                total += a[i] * b[j] * cost[i * n + j]
        slack = (m * n + 8) * EPS
        tiny = 1e-300 * top + TINY
        return max(total * (1.0 - slack) - tiny, 0.0), total * (1.0 + slack) + tiny
    solve_kernel(m, n, cost, a, b, work.flow, work.pot, work.links, work.amounts)
    return bounds_kernel(m, n, cost, a, b, work.flow, work.pot)


@inner
def masses_kernel(row: int, indptr: IntArray, probs: FloatArray, out: FloatArray) -> int:
    """Copy the masses of a row, so that solvers see one type of array; their number."""
    size = 0
    for k in range(indptr[row], indptr[row + 1]):
        out[size] = probs[k]
        size += 1
    return size


@inner
def some_masses_kernel(
    row: int, indptr: IntArray, probs: FloatArray, out: FloatArray, place: IntArray
) -> int:
    """The same of masses above NOTHING. Out: place (row), where in `out` each is, or -1."""
    size = 0
    for k in range(indptr[row], indptr[row + 1]):
        place[k - indptr[row]] = -1
        if probs[k] > NOTHING:
            place[k - indptr[row]] = size
            out[size] = probs[k]
            size += 1
    return size


@kernel
def residual_kernel(
    begin: int,
    end: int,
    first: int,
    indptr: IntArray,
    indices: IntArray,
    weights: FloatArray,
    probs: FloatArray,
    rewards: FloatArray,
    gamma: float,
    is_lax: bool,
    counts: IntArray,
    line_of: IntArray,
    table: FloatArray,
    action: IntArray,
    match: AnyIntArray,
) -> tuple[float, float]:
    """Bound how far the exact backup of `table` leaves it, over pairs at begin..end.

    In: weights, the rows as stored; probs, the same divided by their sums. Rows that are equal
    as stored cost nothing to couple; equal after rounding would not be enough. first, is_lax,
    counts, line_of and table as in `sweep_kernel`.
    Returns (rise, fall) with table - fall <= T(table) <= table + rise on these pairs, T being
    the exact operator in exact arithmetic. `action` and `match` are only hints what to try first,
    but for pairs of action -1, whose entries T does not move.

    Why these are bounds. For each pair of actions, `bounds_kernel` encloses the transport cost and
    the reward gap is one subtraction, off by at most EPS relative; adding the two and multiplying
    by gamma round three times. All terms are >= 0, so scaling by 1 ∓ 4·EPS covers them. What
    a choice is worth, the minimum over all answers, is at most the least upper bound of those
    that were tried, and at least the least lower bound if an answer is passed over only where some
    lower bound on it is no less than that. A choice is
    skipped only if an upper bound on its worth is at most a lower bound already
    reached by another one: it then raises neither side. The maximum over choices of lower
    (upper) bounds is a lower (upper) bound on the maximum.
    """
    n, n_actions = rewards.shape
    widest = 0
    for p in range(n * n_actions):
        widest = max(widest, indptr[p + 1] - indptr[p])
    work = scratch_kernel(widest)
    rise = 0.0
    fall = 0.0
    s, t = pair_at_kernel(begin, n)
    for at in range(begin, end):
        best_lower = 0.0
        best_upper = 0.0
        hint = action[at - first]
        if hint < 0:
            best_lower, best_upper = table[line_of[s], t], table[line_of[s], t]
        for k in range(0 if hint < 0 else (2 * n_actions if is_lax else n_actions)):
            c = hint if k == 0 else (k - 1 if k <= hint else k)
            n_answers, told = 1, 0
            if is_lax:
                if c >= n_actions + counts[t] or counts[s] <= c < n_actions:
                    continue
                n_answers, told = counts[t] if c < n_actions else counts[s], match[at - first, c]
            least_lower, least_upper = np.inf, np.inf
            for j in range(n_answers):
                m = told if j == 0 else (j - 1 if j <= told else j)
                a, b = couple_actions_kernel(c, m, n_actions, is_lax)
                p, q = s * n_actions + a, t * n_actions + b
                gap = abs(rewards[s, a] - rewards[t, b])
                if gap * (1.0 - 4.0 * EPS) - TINY >= least_lower:
                    continue
                lower = 0.0
                upper = 0.0
                if not same_row_kernel(p, q, indptr, indices, weights):
                    top = gather_cost_kernel(p, q, indptr, indices, line_of, table, work.cost)
                    most = (gap + gamma * top) * (1.0 + 4.0 * EPS) + TINY
                    if most <= best_lower:
                        least_upper = most
                        break
                    rows = masses_kernel(p, indptr, probs, work.mass_p)
                    cols = masses_kernel(q, indptr, probs, work.mass_q)
                    if j > 0:
                        low = gap + gamma * floor_kernel(rows, cols, top, work)
                        if low * (1.0 - 4.0 * EPS) - TINY >= least_lower:
                            continue
                    lower, upper = couple_kernel(rows, cols, top, work)
                least_lower = min(least_lower, (gap + gamma * lower) * (1.0 - 4.0 * EPS) - TINY)
                least_upper = min(least_upper, (gap + gamma * upper) * (1.0 + 4.0 * EPS) + TINY)
                if least_upper <= best_lower:
                    break
            if least_upper > best_lower:
                best_lower = max(best_lower, least_lower)
                best_upper = max(best_upper, least_upper)
        # One subtraction each: at most EPS relative of its result, covered by the factor.
        rise = max(rise, (best_upper - table[line_of[s], t]) * (1.0 + 2.0 * EPS))
        fall = max(fall, (table[line_of[s], t] - best_lower) * (1.0 + 2.0 * EPS))
        t += 1
        if t == n:
            s += 1
            t = s + 1
    return rise, fall


@inner
def keep_kernel(
    m: int,
    n: int,
    place_p: IntArray,
    place_q: IntArray,
    positions: AnyIntArray,
    work: Scratch,
    out: FloatArray,
) -> float:
    """Write down the coupling of m and n masses that `couple_kernel` has found; what it costs.

    In: place_p and place_q, where among the masses each entry of two rows is, or -1; positions of
    the ground costs of their cells; of `work` the masses, costs and the flow. Out: out, the line of
    an action as in `arm_kernel`.
    """
    width = out.size // 2
    used = 0
    total = 0.0
    for i in range(place_p.size):
        for j in range(place_q.size):
            x, y = place_p[i], place_q[j]
            if x < 0 or y < 0:
                continue
            if m == 1 or n == 1:  # one coupling, which was not looked for
                mass = work.mass_p[x] * work.mass_q[y]
            else:
                mass = work.flow[x * n + y]
            if mass > 0.0 and used < width:
                out[1 + used] = positions[i * place_q.size + j]
                out[1 + width + used] = mass
                total += mass * work.cost[x * n + y]
                used += 1
    return total


@inlined
def actions_backup_kernel(
    s: int,
    a: int,
    t: int,
    b: int,
    cell: int,
    positions: AnyIntArray,
    indptr: IntArray,
    indices: IntArray,
    weights: FloatArray,
    probs: FloatArray,
    low: FloatArray,
    high: FloatArray,
    radius: FloatArray,
    spare: FloatArray,
    short: FloatArray,
    gamma: float,
    reach: float,
    is_upper: bool,
    least: float,
    values: FloatArray,
    place_p: IntArray,
    place_q: IntArray,
    work: Scratch,
    out: FloatArray,
    pair: int,
    begin_note: int,
    end_note: int,
) -> float:
    """One certified backup of action a of block s against action b of block t.

    In: positions from `cell` on: where in `values` the costs of the cells of both supports stand;
    blocks as in `arm_kernel`; reach: no ground cost outside the supports is larger; least: what
    does not exceed it may be answered by 0. Out: of `out` the columns begin_note to end_note of the
    pair, if there are any: a line as in `arm_kernel`. Scratch: place_p, place_q, work.

    Why bounds, for members x and y with rows within t and t' of the centres c and c':
    - Rewards: |R(x) - R(y)| lies between the gap and the span of the two intervals.
    - Upper: let σ be the larger spare. Of a coupling of c and c' times 1 - σ, all but what x or y
      are short of also couples x and y (summed by block), as they have as much there: both were
      measured at a share of 1 - spare >= 1 - σ. What is left, σ + short + short' of the mass at
      most, may go anywhere at a cost of at most κ, the largest in reach.
    - Lower: of a coupling of x and y, all but at most t + t' of the mass couples parts of c
      and c'. One more row and column, each of mass t + t', take part at no cost; between the
      two of them a unit costs 4·top. Whatever carries all but t + t' of the mass from c to c'
      can be completed to a plan of this larger problem at the same cost, so the larger problem
      costs no more; and any feasible dual of it, which is what `bounds_kernel` evaluates, is a
      lower bound on it.
    - Masses up to NOTHING, of blocks that are in reach and no more, take no part in transports:
      they count as free mass, and their costs enter κ.
    - Rounding as in `residual_kernel`: each term is >= 0 and computed with a relative error
      below 4·EPS per line.
    """
    cost, mass_p, mass_q = work.cost, work.mass_p, work.mass_q
    n_actions = low.shape[1]
    p, q = s * n_actions + a, t * n_actions + b
    rows = some_masses_kernel(p, indptr, probs, mass_p, place_p)
    cols = some_masses_kernel(q, indptr, probs, mass_q, place_q)
    length_p, length_q = indptr[p + 1] - indptr[p], indptr[q + 1] - indptr[q]
    without = 0.0
    if is_upper:
        without = max(spare[s, a], spare[t, b])
        free = without + (short[s, a] + short[t, b])
    else:
        free = radius[s, a] + radius[t, b]
    if free > 0.0:
        free *= 1.0 + 4.0 * EPS
    if rows < length_p or cols < length_q:
        free += LEFT_OUT
    # The lower arm lets `free` of the mass travel at no cost: one more row and column.
    more = 1 if free > 0.0 and not is_upper else 0
    stride = cols + more
    top = 0.0
    begin_cell = cell
    for i in range(length_p):
        line = place_p[i] * stride
        for j in range(length_q):
            c = values[positions[cell]]
            cell += 1
            if c > top:
                top = c
            if line >= 0 and place_q[j] >= 0:
                cost[line + place_q[j]] = c
    if is_upper:
        gap = max(high[s, a] - low[t, b], high[t, b] - low[s, a])
    else:
        gap = max(0.0, low[s, a] - high[t, b], low[t, b] - high[s, a])
    most = max(top, reach) if free > 0.0 else top
    if (gap + gamma * most) * (1.0 + 4.0 * EPS) + TINY <= least and begin_note == end_note:
        return 0.0
    is_still = same_row_kernel(p, q, indptr, indices, weights)
    if is_still:
        for i in range(rows):
            if cost[i * stride + i] > 0.0:
                is_still = False
    lower, upper = 0.0, 0.0
    if not is_still and free < 1.0 and (more == 0 or top > 0.0):
        if more == 1:
            mass_p[rows], mass_q[cols] = free, free
            for i in range(rows):
                cost[i * stride + cols] = 0.0
            for j in range(cols):
                cost[rows * stride + j] = 0.0
            cost[rows * stride + cols] = 4.0 * top
        lower, upper = couple_kernel(rows + more, stride, top, work)
    is_capped = False  # whether it is the dearest cell that counts
    if is_upper:
        if free >= 1.0:
            upper = most
        elif free > 0.0:
            upper = (upper * (1.0 - without) + free * most) * (1.0 + 8.0 * EPS) + TINY
            upper = min(upper, most)
        is_capped = free > 0.0 and upper == most
        value = (gap + gamma * upper) * (1.0 + 4.0 * EPS) + TINY
    else:
        value = (gap + gamma * lower) * (1.0 - 4.0 * EPS) - TINY
    if end_note > begin_note:
        note = out[pair, begin_note:end_note]
        total = 0.0
        note[:] = 0.0
        if not is_capped and not is_still and free < 1.0 and top > 0.0:
            total = keep_kernel(
                rows + more,
                stride,
                place_p[:length_p],
                place_q[:length_q],
                positions[begin_cell : begin_cell + length_p * length_q],
                work,
                note,
            )
        note[0] = value - gamma * total
    return float(value)


@inlined
def estimate_actions_kernel(
    s: int,
    t: int,
    cell: int,
    positions: AnyIntArray,
    indptr: IntArray,
    probs: FloatArray,
    low: FloatArray,
    high: FloatArray,
    radius: FloatArray,
    spare: FloatArray,
    short: FloatArray,
    available: BoolArray,
    gamma: float,
    reach: float,
    is_upper: bool,
    values: FloatArray,
    begins: IntArray,
    known: FloatArray,
    least: FloatArray,
    most: FloatArray,
) -> None:
    """What backups of all actions of s against all of t can be, without transports.

    In: as in `actions_backup_kernel`. Out, all (actions, actions): begins, where the positions of
    two actions begin; known, NaN; least and most: their backups lie between these, rewards and the
    cheapest and the dearest cell tell. The cheapest cell tells nothing where some of the mass
    travels free, or takes no part.
    """
    n_actions = low.shape[1]
    for a in range(n_actions):
        for b in range(n_actions):
            if not available[s, a] or not available[t, b]:
                continue
            p, q = s * n_actions + a, t * n_actions + b
            begins[a, b] = cell
            known[a, b] = np.nan
            bottom, top = np.inf, 0.0
            for _ in range((indptr[p + 1] - indptr[p]) * (indptr[q + 1] - indptr[q])):
                c = values[positions[cell]]
                cell += 1
                bottom = min(bottom, c)
                top = max(top, c)
            if is_upper:
                gap = max(high[s, a] - low[t, b], high[t, b] - low[s, a])
                free = max(spare[s, a], spare[t, b]) + (short[s, a] + short[t, b])
            else:
                gap = max(0.0, low[s, a] - high[t, b], low[t, b] - high[s, a])
                free = radius[s, a] + radius[t, b]
            if free > 0.0:
                bottom, top = 0.0, max(top, reach)
            for k in range(indptr[p], indptr[p + 1]):
                if probs[k] <= NOTHING:
                    bottom = 0.0
            for k in range(indptr[q], indptr[q + 1]):
                if probs[k] <= NOTHING:
                    bottom = 0.0
            least[a, b] = (gap + gamma * bottom) * (1.0 - 4.0 * EPS) - TINY
            most[a, b] = (gap + gamma * top) * (1.0 + 4.0 * EPS) + TINY


@kernel
def arm_kernel(
    begin: int,
    end: int,
    first: IntArray,
    second: IntArray,
    offset: IntArray,
    positions: AnyIntArray,
    arrays: tuple[
        IntArray,
        IntArray,
        FloatArray,
        FloatArray,
        FloatArray,
        FloatArray,
        FloatArray,
        FloatArray,
        FloatArray,
        BoolArray,
        IntArray,
    ],
    gamma: float,
    widest: int,
    is_lax: bool,
    apart: float,
    reach: float,
    is_upper: bool,
    values: FloatArray,
    out: FloatArray,
) -> None:
    """One certified backup of the block pairs begin..end of one arm, into `out`.

    In: first and second (pairs), the blocks of each pair; positions: for every pair from
    `begin` on, every two actions that are compared, and cell of their supports, where in `values`
    its ground cost stands; offset (end - begin + 1), where each pair's positions begin; arrays, of
    blocks: indptr and indices of their centre rows, these as stored (weights) and divided by their
    sums (probs); low, high, radius, spare, short and available (blocks, actions); sets (blocks),
    equal numbers for blocks with the same actions (a plain tuple: what is compiled and kept could
    not be read any more where a class of arguments has another name since); widest, the
    longest row; is_lax: whether every action is compared with all of the other block, or with the
    one of its name; apart: the distance of blocks with different actions, if not; reach: no ground
    cost outside the supports is larger (0 if members reach nothing outside).
    Out: out (pairs, 1 + lines·(1 + 2·width)) or (pairs, 1). The first column is a lower bound on
    the exact backup of every pair of members, or an upper bound. The others, if there are any, say
    where it came from, untrusted and for every line: a constant, places in `values`, and what
    each of them weighs, so that constant + gamma·(what they weigh) is the line's backup. Unused
    places weigh 0. A line is an action with the one of its name; or an action of the first block
    with what is most like it in the second, and then the same the other way round.

    Why bounds. The backup is a maximum over lines of the smallest backup of two actions. Backups
    of two actions are bounds, for all members: see `actions_backup_kernel`. By name there is one to
    choose from. Else, above, whatever is chosen bounds the smallest. Below, all are to be looked
    at: one is passed over only if it is at least as large as another that was met, so that the
    smallest does not change. The two blocks of a pair (C, C) are one: every action of one member
    has one of its name in the other, which bounds the smallest above. A line is given up once it is
    at most what another has reached, as the maximum does not change then.
    """
    indptr, indices, weights, probs, low, high, radius, spare, short, available, sets = arrays
    n_actions = low.shape[1]
    work = scratch_kernel(widest + 1)
    place_p, place_q = np.empty(widest, np.int64), np.empty(widest, np.int64)
    room = n_actions if is_lax else 0
    begins = np.empty((room, room), np.int64)
    known, least, most = (
        np.empty((room, room)),
        np.empty((room, room)),
        np.empty((room, room)),
    )
    lines = 2 * n_actions if is_lax else n_actions
    size = (out.shape[1] - 1) // lines
    for at in range(begin, end):
        s, t = first[at], second[at]
        cell = offset[at - begin]
        best = 0.0
        out[at] = 0.0
        is_asked = out.shape[1] > 1
        if not is_lax and sets[s] != sets[t]:
            out[at, 0] = apart
            if is_asked:
                out[at, 1] = apart
            continue
        is_named = not is_lax or s == t
        if not is_named:
            estimate_actions_kernel(
                s,
                t,
                cell,
                positions,
                indptr,
                probs,
                low,
                high,
                radius,
                spare,
                short,
                available,
                gamma,
                reach,
                is_upper,
                values,
                begins,
                known,
                least,
                most,
            )
        for line in range(n_actions if is_named else lines):
            is_first = line < n_actions
            own = line if is_first else line - n_actions
            one, two = (s, t) if is_first else (t, s)
            if not available[one, own]:
                continue
            likely, bound = own, np.inf
            if not is_named:
                # The most promising one first: it lets others be passed over.
                likely = -1
                for other in range(n_actions):
                    if available[two, other]:
                        top = most[own, other] if is_first else most[other, own]
                        if likely < 0 or top < bound:
                            likely, bound = other, top
                if bound <= best and not is_asked:
                    continue
            smallest, match = np.inf, likely
            # First the likely one, then the others, and last, if asked for, that of the smallest
            # once more. One place that calls: compiling takes as long as all of them together.
            for k in range(-1, 0 if is_named else n_actions + 1):
                is_last = k == n_actions
                if is_last and not is_asked:
                    break
                other = match if is_last else (likely if k < 0 else k)
                if not is_last and (k == likely or not available[two, other]):
                    continue
                a, b = (own, other) if is_first else (other, own)
                begin_cell = cell
                if not is_named:
                    begin_cell = begins[a, b]
                    if not is_last and np.isnan(known[a, b]) and least[a, b] >= smallest:
                        continue
                value = known[a, b] if not is_named and not is_last else np.nan
                if np.isnan(value):
                    is_noted = is_named or is_last
                    value = actions_backup_kernel(
                        s,
                        a,
                        t,
                        b,
                        begin_cell,
                        positions,
                        indptr,
                        indices,
                        weights,
                        probs,
                        low,
                        high,
                        radius,
                        spare,
                        short,
                        gamma,
                        reach,
                        is_upper,
                        best if is_named else -1.0,
                        values,
                        place_p,
                        place_q,
                        work,
                        out,
                        at,
                        1 + line * size,
                        1 + (line + is_noted) * size,
                    )
                    if not is_named:
                        known[a, b] = value
                if value < smallest:
                    smallest, match = value, other
                if smallest <= best and not is_asked:
                    break
            best = max(best, smallest)
            if is_named:
                p, q = s * n_actions + own, t * n_actions + own
                cell += (indptr[p + 1] - indptr[p]) * (indptr[q + 1] - indptr[q])
        out[at, 0] = best


@kernel
def coupled_kernel(
    begin: int,
    end: int,
    cells: IntArray,
    masses: FloatArray,
    gamma: float,
    x: FloatArray,
    out: FloatArray,
) -> None:
    """The mean of `x`, times gamma, over the coupling of each of the pairs begin..end.

    In: cells and masses (pairs, width), as `sweep_kernel` keeps them; x (pairs). Out: out (pairs).
    """
    for p in range(begin, end):
        total = 0.0
        for k in range(cells.shape[1]):
            at = cells[p, k]
            if at >= 0:
                total += masses[p, k] * x[at]
        out[p] = gamma * total


@kernel
def respond_kernel(
    begin: int,
    end: int,
    couplings: FloatArray,
    lines: int,
    gamma: float,
    values: FloatArray,
    action: IntArray,
    out: FloatArray,
) -> None:
    """The best line of the pairs begin..end where couplings are given, and what it is worth.

    In: couplings and lines, as `arm_kernel` writes them; values, ground costs. Out: out (pairs).
    In/out: action (pairs), the line, which changes only for a better one.
    """
    size = (couplings.shape[1] - 1) // lines
    for at in range(begin, end):
        best, chosen = -np.inf, action[at]
        for k in range(lines):
            a = action[at] if k == 0 else (k - 1 if k <= action[at] else k)
            line = 1 + a * size
            total = 0.0
            for c in range(line + 1, line + 1 + size // 2):
                total += couplings[at, c + size // 2] * values[int(couplings[at, c])]
            total = couplings[at, line] + gamma * total
            if total > best:
                best, chosen = total, a
        action[at] = chosen
        out[at] = best


@kernel
def spread_kernel(begin: int, end: int, value: FloatArray, table: FloatArray) -> None:
    """Write packed pair values at positions begin..end into both halves of `table` (n, n)."""
    n = table.shape[0]
    s, t = pair_at_kernel(begin, n)
    for at in range(begin, end):
        table[s, t] = value[at]
        table[t, s] = value[at]
        t += 1
        if t == n:
            s += 1
            t = s + 1


@kernel
def reward_gap_kernel(
    begin: int,
    end: int,
    rewards: FloatArray,
    is_lax: bool,
    counts: IntArray,
    sets: IntArray,
    apart: float,
    value: FloatArray,
    action: IntArray,
    ceiling: FloatArray,
) -> None:
    """How far apart rewards alone put the pairs at positions begin..end, and what to sweep there.

    In: sets (n), apart: pairs of states of different sets are that far apart, and stay so; the
    others as in `sweep_kernel`. Out: value (pairs); action (pairs), -1 for those that stay;
    ceiling (pairs, choices), infinite, but minus infinity for actions that a state does not have.
    """
    n, n_actions = rewards.shape
    s, t = pair_at_kernel(begin, n)
    for at in range(begin, end):
        best = 0.0
        for c in range(ceiling.shape[1]):
            ceiling[at, c] = np.inf
            n_answers = 1
            if is_lax:
                if c >= n_actions + counts[t] or counts[s] <= c < n_actions:
                    ceiling[at, c] = -np.inf
                    continue
                n_answers = counts[t] if c < n_actions else counts[s]
            least = np.inf
            for m in range(n_answers):
                a, b = couple_actions_kernel(c, m, n_actions, is_lax)
                least = min(least, abs(rewards[s, a] - rewards[t, b]))
            best = max(best, least)
        action[at] = 0
        if sets[s] != sets[t]:
            best = apart
            action[at] = -1
        value[at] = best
        t += 1
        if t == n:
            s += 1
            t = s + 1
